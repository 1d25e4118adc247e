//! Long random histories of one leader, where `explore_tests.rs` has all short ones of several: writes that are lost,
//! late, refused or answered; edits by hand; entries of many sizes in several shards.

use super::{Bounds, Bugs, Image, Ledger, Opened, Refusal, Soundness, Standing, Step, Version, Write};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use volwright_provisioner::Epoch;

const BOUNDS: Bounds = Bounds { shard_bytes: 64, shards: 3, entry_bytes: 40 };
const ODD: &str = "?not ours\n\u{fffd}";

#[derive(Debug, Clone, Copy)]
enum Fate {
    Answered,
    LostAfter,
    /// Stays under way until an `Arrive`.
    Late,
    Refused,
}

#[derive(Debug, Clone)]
enum Op {
    Open(u8, usize),
    Close(u8),
    Work(usize, Fate),
    Arrive(usize),
    /// By hand: takes an entry away, or puts back what was there.
    Edit(u8),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let fate = prop_oneof![
        4 => Just(Fate::Answered),
        1 => Just(Fate::LostAfter),
        1 => Just(Fate::Late),
        1 => Just(Fate::Refused),
    ];
    let op = prop_oneof![
        3 => (0..9_u8, 0..44_usize).prop_map(|(key, size)| Op::Open(key, size)),
        2 => (0..9_u8).prop_map(Op::Close),
        6 => (0..3_usize, fate).prop_map(|(at, fate)| Op::Work(at, fate)),
        1 => (0..4_usize).prop_map(Op::Arrive),
        1 => (0..9_u8).prop_map(Op::Edit),
    ];
    proptest::collection::vec(op, 0..120)
}

struct Server {
    shards: Vec<Option<Image>>,
    revision: u64,
    late: Vec<(usize, Write<()>)>,
}

impl Server {
    fn stamp(&mut self) -> Version {
        self.revision += 1;
        Version { uid: "u".to_owned(), resource: self.revision.to_string() }
    }

    fn write(&mut self, at: usize, write: &Write<()>) -> Option<Version> {
        if self.shards[at].as_ref().map(|image| &image.version) != write.version.as_ref() {
            return None;
        }
        let version = self.stamp();
        self.shards[at] = Some(Image {
            version: version.clone(),
            epoch: write.epoch,
            counter: write.counter,
            shards: write.shards,
            stop: None,
            data: write.data.clone(),
        });
        Some(version)
    }

    fn stored(&self) -> BTreeMap<String, String> {
        self.shards.iter().flatten().flat_map(|image| image.data.clone()).collect()
    }
}

/// One call, if there is something to do. The size of what is sent is looked at.
fn work(ledger: &mut Ledger<()>, server: &mut Server, at: usize, fate: Fate) {
    match ledger.next(at) {
        Step::Done => {}
        Step::Read => ledger.absorb(at, server.shards[at].clone()),
        Step::Count => work(ledger, server, 0, fate),
        Step::Write(write) => {
            let bytes: usize = write.data.iter().map(|(key, text)| key.len() + text.len()).sum();
            assert!(bytes <= BOUNDS.shard_bytes, "{bytes}");
            match fate {
                Fate::Answered => {
                    if let Some(version) = server.write(at, &write) {
                        ledger.acknowledged(at, &write, version);
                    }
                }
                Fate::LostAfter => {
                    server.write(at, &write);
                    ledger.lost(at, *write);
                }
                Fate::Late => {
                    server.late.push((at, Write::clone(&write)));
                    ledger.lost(at, *write);
                }
                Fate::Refused => ledger.refused(at, *write),
            }
        }
        step @ (Step::Overtaken | Step::Unsound(_)) => panic!("{step:?}"),
    }
}

fn run(ops: Vec<Op>) {
    let odd = [("odd".to_owned(), ODD.to_owned())];
    let first = Image {
        version: Version { uid: "u".to_owned(), resource: "0".to_owned() },
        epoch: Epoch { number: 1, token: 1 },
        counter: 4,
        shards: Some(1),
        stop: None,
        data: odd.into(),
    };
    let mut server = Server { shards: vec![Some(first.clone()), None, None], revision: 0, late: Vec::new() };
    let (mut ledger, _) = Ledger::<()>::load(BOUNDS, Bugs::default(), vec![Some(first)], None);
    ledger.raise(7, 0);
    work(&mut ledger, &mut server, 0, Fate::Answered);
    let mut asked: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut acknowledged: BTreeSet<String> = BTreeSet::new();
    // What hands take away is put back by the next write only.
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for op in ops {
        match op {
            Op::Open(key, size) => {
                let (key, text) = (format!("k{key}"), "x".repeat(size));
                match ledger.open(&key, &text, ()) {
                    Ok(Opened::Waits { at, .. }) => {
                        acknowledged.remove(&key);
                        asked.insert(key, (at, text));
                    }
                    Ok(Opened::Already) | Err(Refusal::Full) => {}
                    Err(Refusal::TooBig(bytes)) => assert!(bytes > BOUNDS.entry_bytes),
                    Err(refusal) => panic!("{refusal:?}"),
                }
            }
            Op::Close(key) => {
                let key = format!("k{key}");
                ledger.close(&key);
                acknowledged.remove(&key);
                asked.remove(&key);
            }
            Op::Work(at, fate) => work(&mut ledger, &mut server, at, fate),
            Op::Arrive(index) if index < server.late.len() => {
                let (at, write) = server.late.remove(index);
                server.write(at, &write);
            }
            Op::Arrive(_) => {}
            Op::Edit(key) => {
                let key = format!("k{key}");
                let at = server
                    .shards
                    .iter()
                    .position(|image| image.as_ref().is_some_and(|i| i.data.contains_key(&key)));
                if let Some(at) = at {
                    let version = server.stamp();
                    let image = server.shards[at].as_mut().unwrap();
                    image.data.remove(&key);
                    image.version = version;
                    taken.insert(key);
                }
            }
        }
        for (key, (at, text)) in &asked {
            if ledger.standing(*at, key, text) == Standing::Recorded {
                acknowledged.insert(key.clone());
            }
        }
        let stored = server.stored();
        assert_eq!(stored.get("odd").map(String::as_str), Some(ODD), "byte for byte");
        taken.retain(|key| !stored.contains_key(key));
        acknowledged.retain(|key| !taken.contains(key));
        for key in &acknowledged {
            assert_eq!(stored.get(key), Some(&asked[key].1), "{key} was acknowledged");
        }
        let open: BTreeSet<&str> = ledger.open_entries().map(|(key, ())| key).collect();
        assert!(acknowledged.iter().all(|key| open.contains(key.as_str())), "shown while it is open");
        assert_eq!(ledger.soundness(), Soundness::Sound);
    }
    // Left in peace, what is stored is what is open.
    for _ in 0..8 {
        for at in ledger.unsettled() {
            work(&mut ledger, &mut server, at, Fate::Answered);
        }
    }
    // Edits are noticed by the next conflict or look.
    for at in 0..server.shards.len() {
        ledger.doubt(at);
        for _ in 0..3 {
            if at < ledger.counted {
                work(&mut ledger, &mut server, at, Fate::Answered);
            }
        }
    }
    let mut open: BTreeMap<String, String> = ledger
        .open_entries()
        .map(|(key, ())| (key.to_owned(), ledger.text(key).unwrap_or_default().to_owned()))
        .collect();
    open.insert("odd".to_owned(), ODD.to_owned());
    assert_eq!(server.stored(), open);
    let late = std::mem::take(&mut server.late);
    let arrived = late.iter().filter(|(at, write)| server.write(*at, write).is_some()).count();
    assert_eq!(arrived, 0, "everything late was fenced off");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_long_history_loses_nothing_and_keeps_its_bounds(ops in ops()) {
        run(ops);
    }
}
