use super::*;
use crate::backend::Envelope;
use crate::decide::{ClaimRef, OnDelete, ReclaimPolicy};
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;
use volwright_provisioner::{
    AccessMode, ClaimInfo, CsiSource, Epoch, InstallationId, Mark, MarkState, NodeInfo, PvName, Request,
    VolumeMode, VolumeSource,
};

fn texts() -> impl Strategy<Value = BTreeMap<String, String>> {
    proptest::collection::btree_map(".{0,8}", ".{0,8}", 0..3)
}

prop_compose! {
    fn intents()(
        uid in "[-a-z0-9]{1,40}",
        name in ".{0,20}",
        (labels, annotations, parameters) in (texts(), texts(), texts()),
        node in proptest::option::of(texts()),
        options in proptest::collection::vec(".{0,8}", 0..3),
        (size, attempt, number, token) in any::<(u64, u32, u64, u64)>(),
        (undoing, block, retain) in any::<(bool, bool, bool)>(),
    ) -> Intent {
        let uid = ClaimUid::new(uid);
        let pv_name = PvName::new(names::pv_name(uid.as_str()));
        let epoch = Epoch { number, token };
        let mark = Mark {
            installation: InstallationId::new("i"),
            owner: uid.clone(),
            pv_name: pv_name.clone(),
            epoch,
            state: MarkState::Planned,
        };
        Intent {
            request: Request {
                claim: ClaimInfo { namespace: name.clone(), name: name.clone(), uid, labels, annotations },
                pv_name,
                size,
                access_modes: vec![AccessMode::ReadWriteMany],
                volume_mode: if block { VolumeMode::Block } else { VolumeMode::Filesystem },
                class_name: name.clone(),
                parameters,
                node: node.map(|labels| NodeInfo { name: name.clone(), uid: String::new(), labels }),
                attempt,
                mark,
                intent: None,
            },
            class_uid: name.clone(),
            provisioner: name,
            policy: if retain { ReclaimPolicy::Retain } else { ReclaimPolicy::Delete },
            mount_options: options,
            on_delete: if retain { OnDelete::Retain } else { OnDelete::Delete },
            handle: Envelope { version: 1, backend: "b".to_owned(), handle: json!({ "n": token }) },
            undoing,
            epoch,
        }
    }
}

proptest! {
    #[test]
    fn an_intent_is_read_as_it_was_written(intent in intents()) {
        let (key, text) = encode_intent(&intent).unwrap();
        prop_assert_eq!(Record::decode(&key, &text), Some(Record::Intent(Arc::new(intent))));
        prop_assert_eq!(Record::decode("claim.another", &text), None);
    }

    #[test]
    fn a_delete_is_read_as_it_was_written(pv in "[-.a-z0-9]{1,253}", handle in proptest::option::of(".{0,9}"), uid in ".{0,9}") {
        let claim = handle.clone().map(|name| ClaimRef { namespace: String::new(), name, uid: uid.clone() });
        let source = VolumeSource::Csi(CsiSource { driver: uid.clone(), ..CsiSource::default() });
        let begun = Begun { uid, claim, handle, source };
        let (key, text) = encode_delete(&pv, &begun).unwrap();
        prop_assert!(key.len() <= KEY_MAX);
        prop_assert_eq!(Record::decode(&key, &text), Some(Record::Delete { pv, begun: Arc::new(begun) }));
    }

    #[test]
    fn nonsense_is_not_read(key in ".{0,20}", text in ".{0,40}") {
        for key in [key.clone(), format!("{CLAIM}{key}"), format!("{DELETE}{key}")] {
            prop_assert_eq!(Record::decode(&key, &text), None);
        }
    }
}

#[test]
fn an_entry_is_as_small_as_it_can_be_and_its_form_is_fixed() {
    let text = r#"{"request":{"claim":{"namespace":"ns","name":"data","uid":"u"},"pvName":"pvc-u","size":1,"accessModes":["ReadWriteOnce"],"volumeMode":"Filesystem","className":"nfs","parameters":{},"attempt":0,"mark":{"installation":"i","owner":"u","pvName":"pvc-u","epoch":{"number":0,"token":0},"state":"unpublished"}},"classUid":"c","provisioner":"nfs.volwright.io","policy":"Delete","onDelete":"delete","handle":{"version":1,"backend":"nfs","handle":"/a"},"epoch":{"number":1,"token":2}}"#;
    let Some(Record::Intent(intent)) = Record::decode("claim.u", text) else {
        panic!("cannot be read any more")
    };
    assert_eq!(encode_intent(&intent).unwrap(), ("claim.u".to_owned(), text.to_owned()));
    let text = r#"{"uid":"1","source":{"nfs":{"server":"s","path":"/a"}}}"#;
    let Some(Record::Delete { pv, begun }) = Record::decode("delete.pv", text) else {
        panic!("cannot be read")
    };
    assert_eq!(encode_delete(&pv, &begun).unwrap(), ("delete.pv".to_owned(), text.to_owned()));
    assert!(encode_delete("a b", &begun).is_err(), "not a key");
}
