use super::*;
use serde_json::json;
use volwright_provisioner::PvName;
use volwright_provisioner::{InstallationId, Observed, Pristine};

fn item(owner: &str, state: MarkState, intent: Option<String>) -> InventoryItem<Envelope> {
    let mark = Mark {
        installation: InstallationId::new("i"),
        owner: ClaimUid::new(owner),
        pv_name: PvName::new(format!("pvc-{owner}")),
        epoch: Epoch::default(),
        state,
    };
    InventoryItem {
        handle: Envelope { version: 1, backend: "local-path".to_owned(), handle: json!({ "id": owner }) },
        observed: Observed { mark: Some(mark), size: Some(5), pristine: Pristine::Yes, users: Vec::new() },
        intent,
        trashed: None,
    }
}

/// An intent that was planned for this item, with the handle of before it was made.
fn planned(item: &InventoryItem<Envelope>) -> Intent {
    let mut intent = reopened(item.clone(), item.observed.mark.as_ref().unwrap());
    intent.undoing = false;
    "fast".clone_into(&mut intent.request.class_name);
    intent.handle.handle = json!({ "id": "planned" });
    intent.request.intent = Some("itself".to_owned());
    intent
}

#[test]
fn what_was_never_published_is_open_again() {
    let mut made = item("a", MarkState::Unpublished, None);
    made.intent = Some(encode_blob(&planned(&made)).unwrap());
    let anothers = item("b", MarkState::Planned, made.intent.clone());
    let items = vec![
        made.clone(),
        anothers,
        item("c", MarkState::Planned, None),
        item("d", MarkState::Planned, Some("{".to_owned())),
        item("e", MarkState::Published, None),
        item("f", MarkState::Retained, None),
        item("g", MarkState::Unpublished, None),
        InventoryItem { observed: Observed { mark: None, ..made.observed.clone() }, ..made.clone() },
    ];
    let open = recovered(items, &|item| {
        item.observed.mark.as_ref().is_some_and(|mark| mark.pv_name.as_str() == "pvc-g")
    });
    let told: Vec<(&str, bool)> =
        open.iter().map(|intent| (intent.request.claim.uid.as_str(), intent.undoing)).collect();
    assert_eq!(told, [("a", false), ("b", true), ("c", true), ("d", true)]);
    assert_eq!(open[0].handle, made.handle, "what is there is newer than what was planned");
    assert_eq!(open[0].request.class_name, "fast");
    assert_eq!(open[0].request.intent, None);
    assert_eq!((open[2].request.size, open[2].policy), (5, ReclaimPolicy::Retain));
}

#[test]
fn of_two_volumes_of_one_claim_the_one_that_can_go_on_comes_first() {
    let mut good = item("a", MarkState::Unpublished, None);
    good.intent = Some(encode_blob(&planned(&good)).unwrap());
    let bad = item("a", MarkState::Planned, None);
    for items in [vec![good.clone(), bad.clone()], vec![bad, good]] {
        let open = recovered(items, &|_| false);
        assert_eq!(open.iter().map(|intent| intent.undoing).collect::<Vec<_>>(), [false]);
    }
}
