//! The trash: killed at every single step nothing is lost, and what is asked again is finished.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{
    Fixture, assert_refused, at_every_step, block_on, delete, faulty, fill, mark, place, provision, released,
    snapshot, under,
};
use std::time::Duration;
use volwright_provisioner::{Class, MarkState, Progress, Trashed};
use volwright_volume_tree::{Listed, Slice, Tree, Volumes};

const PATH: &str = "ns/app/data";

fn until(until: u64) -> Trashed {
    Trashed {
        at: 1,
        until,
        namespace: "ns".into(),
        claim: "data".into(),
        class_name: "c".into(),
        size: 1 << 20,
        note: "{}".into(),
    }
}

fn trash<T: Tree>(volumes: &Volumes<T>, owner: &str, record: &Trashed) -> Option<Trashed> {
    match block_on(volumes.trash(&place(PATH, owner), &released(owner), record)).unwrap() {
        Progress::Done(kept) => kept,
        Progress::Pending { note, .. } => panic!("{note}"),
    }
}

fn restore<T: Tree>(volumes: &Volumes<T>, owner: &str) -> volwright_provisioner::Result<Progress<()>> {
    block_on(volumes.restore(&place(PATH, owner), &released(owner)))
}

fn purge<T: Tree>(volumes: &Volumes<T>, owner: &str, judged: &Trashed) {
    for _ in 0..1000 {
        let (place, mark) = (place(PATH, owner), released(owner));
        if let Progress::Done(()) = block_on(volumes.purge(&place, &mark, judged)).unwrap() {
            return;
        }
    }
    panic!("a purge without end");
}

fn listed(fixture: &Fixture) -> Vec<Listed> {
    let found = block_on(fixture.volumes().inventory(&mark("u").installation)).unwrap();
    assert!(found.unreadable.is_empty(), "{:?}", found.unreadable);
    found.volumes
}

/// A volume with data in it: what is in the directory.
fn filled(fixture: &Fixture) -> common::Snapshot {
    provision(&fixture.volumes(), PATH, "u").unwrap();
    fill(&fixture.path(PATH), &fixture.outside());
    snapshot(&fixture.path(PATH))
}

#[test]
fn a_volume_leaves_its_place_and_comes_back_with_all_that_is_in_it() {
    let fixture = Fixture::new();
    let before = filled(&fixture);
    assert_eq!(trash(&fixture.volumes(), "u", &until(10)), Some(until(10)));
    assert_eq!(trash(&fixture.volumes(), "u", &until(99)), Some(until(10)), "the first time stays");
    assert!(!fixture.path("ns").exists(), "directories above it that are empty go");
    assert_eq!(block_on(fixture.volumes().observe(&place(PATH, "u"))).unwrap(), None);
    let all = listed(&fixture);
    let [item] = &all[..] else { panic!("not once") };
    assert_eq!(
        (item.record.mark.state, item.record.trashed.as_ref()),
        (MarkState::Trashed, Some(&until(10)))
    );
    // A delete, of which it may be the end or not, takes nothing out of the trash.
    delete(&fixture.volumes(), PATH, "u").unwrap();
    for _ in 0..2 {
        assert_eq!(restore(&fixture.volumes(), "u").unwrap(), Progress::Done(()));
    }
    assert_eq!(before, snapshot(&fixture.path(PATH)));
    let all = listed(&fixture);
    let [item] = &all[..] else { panic!("not once") };
    assert_eq!((item.record.mark.state, item.record.trashed.as_ref()), (MarkState::Retained, None));
    delete(&fixture.volumes(), PATH, "u").unwrap();
    fixture.assert_clean("at the end");
}

/// Large volumes are removed in slices, and an operator may ask for one in between.
#[test]
fn what_has_begun_to_be_purged_is_never_brought_back_in_part() {
    let fixture = Fixture::new();
    filled(&fixture);
    let one_by_one = Slice { entries: 1, time: Duration::from_secs(60) };
    let volumes = fixture.volumes().with_slice(one_by_one);
    trash(&volumes, "u", &until(10));
    let first = block_on(volumes.purge(&place(PATH, "u"), &released("u"), &until(10))).unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    assert_refused(restore(&volumes, "u"), Class::Invalid, "is being destroyed");
    assert!(!fixture.path(PATH).exists());
    let listed = block_on(volumes.inventory(&mark("u").installation)).unwrap();
    assert_eq!(listed.volumes.len(), 1, "somebody has to finish it");
    purge(&volumes, "u", &until(10));
    drop(volumes);
    fixture.assert_clean("at the end");
}

#[test]
fn the_path_is_free_for_others_and_a_restore_says_who_is_there() {
    let fixture = Fixture::new();
    let before = filled(&fixture);
    trash(&fixture.volumes(), "u", &until(10));
    provision(&fixture.volumes(), PATH, "w").unwrap();
    assert_refused(
        restore(&fixture.volumes(), "u"),
        Class::Blocked(volwright_provisioner::Until::OperatorActs),
        "another volume is at the path",
    );
    delete(&fixture.volumes(), PATH, "w").unwrap();
    provision(&fixture.volumes(), "ns", "w").unwrap();
    assert!(restore(&fixture.volumes(), "u").is_err(), "it would lie in another volume");
    delete(&fixture.volumes(), "ns", "w").unwrap();
    restore(&fixture.volumes(), "u").unwrap();
    assert_eq!(before, snapshot(&fixture.path(PATH)));
}

#[test]
fn a_claim_of_the_same_uid_gets_no_empty_volume_in_place_of_its_data() {
    let fixture = Fixture::new();
    filled(&fixture);
    trash(&fixture.volumes(), "u", &until(10));
    assert!(provision(&fixture.volumes(), PATH, "u").is_err());
    restore(&fixture.volumes(), "u").unwrap();
}

#[test]
fn only_what_was_judged_is_purged_and_nothing_by_an_earlier_leader() {
    let fixture = Fixture::new();
    let before = filled(&fixture);
    let volumes = fixture.volumes();
    purge(&volumes, "u", &until(10));
    assert_eq!(before, snapshot(&fixture.path(PATH)), "it is in its place");
    trash(&volumes, "u", &until(10));
    let here = place(PATH, "u");
    let refused = block_on(volumes.purge(&here, &released("u"), &until(9)));
    assert_refused(refused, Class::Unavailable, "trashed anew");
    let later = under(&released("u"), 2);
    block_on(volumes.restore(&here, &later)).unwrap();
    block_on(volumes.trash(&here, &later, &until(10))).unwrap();
    for refused in [
        block_on(volumes.purge(&here, &released("u"), &until(10))),
        block_on(volumes.restore(&here, &released("u"))),
    ] {
        assert_refused(refused, Class::Unavailable, "a later leader");
    }
    assert_eq!(block_on(volumes.restore(&here, &later)).unwrap(), Progress::Done(()));
    assert_eq!(before, snapshot(&fixture.path(PATH)));
}

#[test]
fn what_was_purged_is_gone_and_says_so() {
    let fixture = Fixture::new();
    filled(&fixture);
    let outside = snapshot(&fixture.outside());
    trash(&fixture.volumes(), "u", &until(10));
    for _ in 0..2 {
        purge(&fixture.volumes(), "u", &until(10));
    }
    assert_refused(restore(&fixture.volumes(), "u"), Class::Invalid, "was purged");
    assert_eq!(trash(&fixture.volumes(), "u", &until(11)), None);
    fixture.assert_clean("purged");
    assert_eq!(outside, snapshot(&fixture.outside()));
}

#[test]
fn a_trash_killed_at_any_step_loses_nothing_and_is_finished_or_undone() {
    let runs = at_every_step(|at, die| {
        let fixture = Fixture::new();
        let before = filled(&fixture);
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.trash(&place(PATH, "u"), &released("u"), &until(10)));
        let died = volumes.tree().died();
        assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
        drop(volumes);
        let listed_once = listed(&fixture);
        assert_eq!(listed_once.len(), 1, "step {at} {die:?}");
        if at % 2 == 0 {
            let kept = trash(&fixture.volumes(), "u", &until(20)).unwrap();
            assert!([10, 20].contains(&kept.until), "{kept:?}");
            assert_eq!(listed(&fixture)[0].record.trashed.as_ref(), Some(&kept), "step {at} {die:?}");
            assert_eq!(block_on(fixture.volumes().observe(&place(PATH, "u"))).unwrap(), None);
        } else {
            trash(&fixture.volumes(), "u", &until(20));
        }
        restore(&fixture.volumes(), "u").unwrap_or_else(|e| panic!("step {at} {die:?}: {e:?}"));
        assert_eq!(before, snapshot(&fixture.path(PATH)), "step {at} {die:?}");
        delete(&fixture.volumes(), PATH, "u").unwrap();
        fixture.assert_clean(&format!("step {at} {die:?}"));
        died
    });
    assert!(runs > 40, "{runs} steps only");
}

#[test]
fn a_restore_killed_at_any_step_loses_nothing_whatever_comes_next() {
    for next in ["restore", "trash", "purge"] {
        let runs = at_every_step(|at, die| {
            let fixture = Fixture::new();
            let before = filled(&fixture);
            trash(&fixture.volumes(), "u", &until(10));
            let volumes = faulty(&fixture, at, die);
            let first = block_on(volumes.restore(&place(PATH, "u"), &released("u")));
            let died = volumes.tree().died();
            assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
            drop(volumes);
            let all = listed(&fixture);
            let [item] = &all[..] else { panic!("{next} step {at} {die:?}: not once") };
            let state = item.record.mark.state;
            assert!(matches!(state, MarkState::Trashed | MarkState::Retained), "{state:?}");
            assert_eq!(item.record.trashed.is_some(), state == MarkState::Trashed);
            match next {
                "purge" => purge(&fixture.volumes(), "u", &until(10)),
                "trash" => assert!(trash(&fixture.volumes(), "u", &until(20)).is_some()),
                _ => {}
            }
            let gone = next == "purge" && state == MarkState::Trashed;
            if gone {
                assert_refused(restore(&fixture.volumes(), "u"), Class::Invalid, "was purged");
            } else {
                restore(&fixture.volumes(), "u")
                    .unwrap_or_else(|e| panic!("{next} step {at} {die:?}: {e:?}"));
                assert_eq!(before, snapshot(&fixture.path(PATH)), "{next} step {at} {die:?}");
                delete(&fixture.volumes(), PATH, "u").unwrap();
            }
            fixture.assert_clean(&format!("{next} step {at} {die:?}"));
            died
        });
        assert!(runs > 30, "{runs} steps only");
    }
}

#[test]
fn a_purge_killed_at_any_step_is_finished_by_the_same_call() {
    let runs = at_every_step(|at, die| {
        let fixture = Fixture::new();
        filled(&fixture);
        let outside = snapshot(&fixture.outside());
        trash(&fixture.volumes(), "u", &until(10));
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.purge(&place(PATH, "u"), &released("u"), &until(10)));
        let died = volumes.tree().died();
        assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
        drop(volumes);
        purge(&fixture.volumes(), "u", &until(10));
        fixture.assert_clean(&format!("step {at} {die:?}"));
        assert_eq!(outside, snapshot(&fixture.outside()));
        died
    });
    assert!(runs > 60, "{runs} steps only");
}
