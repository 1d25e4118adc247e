use super::*;
use std::collections::BTreeMap;

fn image(number: u64, counter: u64, entries: &[(&str, &str)]) -> Image {
    let data: BTreeMap<String, String> =
        entries.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    Image {
        version: Version { uid: "u".to_owned(), resource: format!("{number}.{counter}") },
        epoch: Epoch { number, token: number },
        counter,
        shards: Some(1),
        stop: None,
        data,
    }
}

fn version(resource: &str) -> Version {
    Version { uid: "u".to_owned(), resource: resource.to_owned() }
}

/// Leads with epoch 6 and counter 11.
fn leading(entries: &[(&str, &str)]) -> Ledger<()> {
    let (mut ledger, found) =
        Ledger::load(Bounds::default(), Bugs::default(), vec![Some(image(5, 10, entries))], None);
    assert_eq!(found, Found::Sound);
    ledger.raise(6, 0);
    acknowledge(&mut ledger, "6.11");
    assert_eq!(ledger.unraised(), None);
    ledger
}

fn acknowledge(ledger: &mut Ledger<()>, resource: &str) -> Write<()> {
    let Step::Write(write) = ledger.next(0) else { panic!("there is nothing to write") };
    ledger.acknowledged(0, &write, version(resource));
    *write
}

#[test]
fn what_a_read_means() {
    let ours = image(6, 11, &[("a", "1")]);
    let cases = [
        ("as it was", Some(ours.clone()), Soundness::Sound),
        ("one commit more: an answer was lost", Some(image(6, 12, &[])), Soundness::Sound),
        ("another leads", Some(image(7, 12, &[])), Soundness::Deposed),
        (
            "another with the same number",
            Some(Image { epoch: Epoch { number: 6, token: 9 }, ..ours.clone() }),
            Soundness::Deposed,
        ),
        ("an earlier leader's", Some(image(5, 12, &[])), Soundness::RolledBack),
        ("no epoch at all", Some(Image { epoch: Epoch::default(), ..ours.clone() }), Soundness::RolledBack),
        ("fewer commits", Some(image(6, 10, &[])), Soundness::RolledBack),
        (
            "made again",
            Some(Image { version: Version { uid: "v".to_owned(), resource: "1".to_owned() }, ..ours }),
            Soundness::Vanished,
        ),
        ("not there", None, Soundness::Vanished),
    ];
    for (name, read, expected) in cases {
        let mut ledger = leading(&[("a", "1")]);
        ledger.absorb(0, read);
        assert_eq!(ledger.soundness(), expected, "{name}");
        if expected != Soundness::Sound {
            assert_eq!(ledger.next(0), Step::Unsound(expected), "{name}");
            assert_eq!(ledger.open("b", "1", ()), Err(Refusal::Unsound(expected)), "{name}");
            assert!(ledger.get("a").is_some(), "{name}: what is known is still shown");
        }
    }
}

#[test]
fn what_load_finds() {
    let first = |shards| Some(Image { shards, ..image(3, 4, &[]) });
    let cases = [
        ("whole", vec![first(Some(2)), first(None)], Found::Sound),
        ("nothing", vec![None], Found::Missing),
        ("the first is gone", vec![None, first(None)], Found::Missing),
        ("the second is gone", vec![first(Some(2)), None], Found::Missing),
        ("nobody knows how many there were", vec![first(None)], Found::Missing),
    ];
    for (name, images, expected) in cases {
        let (_, found) = Ledger::<()>::load(Bounds::default(), Bugs::default(), images, None);
        assert_eq!(found, expected, "{name}");
    }
    let before = leading(&[]);
    for (name, counter, expected) in [("as left", 11, Found::Sound), ("older", 10, Found::Missing)] {
        let images = vec![Some(image(6, counter, &[]))];
        let (mut ledger, found) = Ledger::load(Bounds::default(), Bugs::default(), images, Some(&before));
        assert_eq!(found, expected, "{name}");
        ledger.raise(1, 0);
        assert_eq!(ledger.epoch().number, 7, "{name}");
    }
}

#[test]
fn an_entry_is_shown_from_when_it_is_sent() {
    let mut ledger = leading(&[]);
    let Ok(Opened::Waits { at, id }) = ledger.open("a", "1", ()) else { panic!("refused") };
    assert_eq!((ledger.get("a"), ledger.standing(at, "a", "1")), (None, Standing::Waiting));
    ledger.withdraw(at, "a", id + 1);
    assert_eq!(ledger.standing(at, "a", "1"), Standing::Waiting, "another's");
    let Step::Write(write) = ledger.next(0) else { panic!("nothing to write") };
    assert_eq!((ledger.get("a"), ledger.standing(at, "a", "1")), (Some(&()), Standing::InDoubt));
    // Closed while it is under way: it is in that write, and so must be left out of another.
    assert!(ledger.close("a") && !ledger.close("a"));
    ledger.acknowledged(0, &write, version("6.12"));
    assert_eq!(ledger.get("a"), None);
    assert!(acknowledge(&mut ledger, "6.13").data.is_empty());
    assert_eq!(ledger.next(0), Step::Done);
    assert_eq!(ledger.unsettled(), Vec::<usize>::new());
}

#[test]
fn a_stop_stands_until_it_is_taken_off() {
    let mut ledger = leading(&[]);
    assert!(!ledger.stop("why"));
    assert_eq!(acknowledge(&mut ledger, "6.12").stop.as_deref(), Some("why"));
    assert!(ledger.stop("other"));
    let stopped = Image { stop: Some("why".to_owned()), ..image(6, 12, &[]) };
    ledger.absorb(0, Some(stopped.clone()));
    assert_eq!(ledger.stopped(), Some("why"));
    ledger.absorb(0, Some(Image { stop: None, version: version("x"), ..stopped }));
    assert_eq!(ledger.stopped(), None);
    // One that is not recorded yet is not acknowledged by its absence.
    ledger.stop("again");
    ledger.absorb(0, Some(Image { version: version("y"), ..image(6, 12, &[]) }));
    assert_eq!(ledger.stopped(), Some("again"));
}
