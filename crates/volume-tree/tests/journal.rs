//! The record as the journal entry of a create: what a crash leaves, what an undo takes, and for whom.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::faulty::{Die, Faulty};
use common::{
    Fixture, assert_refused, block_on, delete, delete_as, faulty, fill, mark, place, released, snapshot,
    under, undoing, wanted, wanted_for, with,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use volwright_provisioner::{Class, Failure, Mark, MarkState, Until};
use volwright_volume_tree::{Listed, Volumes};

const PATH: &str = "ns/app/data";
const OPERATOR: Class = Class::Blocked(Until::OperatorActs);

/// A root with its identity.
fn fixture() -> Fixture {
    let fixture = Fixture::new();
    drop(fixture.volumes());
    fixture
}

/// Does something after the chosen step, in the middle of a call.
fn meanwhile(fixture: &Fixture, at: usize, act: impl Fn() + Send + Sync + 'static) -> Volumes<Faulty> {
    with(fixture, |tree| Faulty { meanwhile: Some(Box::new(act)), ..Faulty::new(tree, at, Die::Before) })
}

/// A create that was cut off there. False when it came to its end.
fn begin(fixture: &Fixture, at: usize, die: Die) -> bool {
    let volumes = faulty(fixture, at, die);
    block_on(volumes.provision(&place(PATH, "u"), &mark("u"), &wanted_for("making"))).is_err()
}

fn listed(fixture: &Fixture) -> Vec<Listed> {
    let inventory = block_on(fixture.volumes().inventory(&mark("u").installation)).unwrap();
    assert!(inventory.unreadable.is_empty(), "{inventory:?}");
    inventory.volumes
}

fn intent(fixture: &Fixture) -> Option<String> {
    let listed = listed(fixture);
    assert_eq!(listed.len(), 1);
    listed[0].record.wanted.intent.clone()
}

fn in_every_way(mut scenario: impl FnMut(usize, Die) -> bool) {
    for die in [Die::Before, Die::After] {
        let mut at = 0;
        while scenario(at, die) {
            at += 1;
        }
        assert!(at > 5, "{at} steps only");
    }
}

#[test]
fn a_create_killed_at_any_step_leaves_nothing_or_its_intent() {
    let (mut nothing, mut planned, mut unpublished) = (0, 0, 0);
    in_every_way(|at, die| {
        let fixture = fixture();
        let cut = begin(&fixture, at, die);
        let left = listed(&fixture);
        match left.first() {
            None => {
                nothing += 1;
                fixture.assert_clean(&format!("step {at} {die:?}"));
            }
            Some(item) => {
                assert_eq!(item.record.wanted, wanted_for("making"), "step {at} {die:?}");
                match item.record.mark.state {
                    MarkState::Planned => planned += 1,
                    MarkState::Unpublished => unpublished += 1,
                    other => panic!("{other:?} at step {at} {die:?}"),
                }
            }
        }
        cut
    });
    assert!(nothing > 10 && planned > 10 && unpublished > 2, "{nothing} {planned} {unpublished}");
}

#[test]
fn the_intent_ends_with_the_mark_that_ends_the_create() {
    for state in [MarkState::Published, MarkState::Retained, MarkState::Trashed] {
        in_every_way(|at, die| {
            let fixture = fixture();
            assert!(!begin(&fixture, usize::MAX - 1, Die::Before));
            assert_eq!(intent(&fixture).as_deref(), Some("making"));
            let volumes = faulty(&fixture, at, die);
            let marking = block_on(volumes.set_mark(&place(PATH, "u"), &mark("u").with_state(state)));
            drop(volumes);
            let listed = listed(&fixture);
            let ended = listed[0].record.mark.state == state;
            assert_eq!(listed[0].record.wanted.intent.is_none(), ended, "step {at} {die:?}");
            assert!(ended || marking.is_err());
            marking.is_err()
        });
    }
}

#[test]
fn the_intent_of_the_last_call_counts_until_the_volume_is_published() {
    let fixture = fixture();
    let provision = |intent| {
        let volumes = fixture.volumes();
        block_on(volumes.provision(&place(PATH, "u"), &mark("u"), &wanted_for(intent))).unwrap();
    };
    // Cut off behind the record.
    let mut at = 0;
    while listed(&fixture).is_empty() {
        begin(&fixture, at, Die::After);
        at += 1;
    }
    assert_eq!(listed(&fixture)[0].record.mark.state, MarkState::Planned);
    provision("another");
    assert_eq!(intent(&fixture).as_deref(), Some("another"));
    provision("a third");
    assert_eq!(intent(&fixture).as_deref(), Some("a third"));
    // A volume that is gone before its PV was made is made anew, with all that was said of it.
    std::fs::remove_dir(fixture.path(PATH)).unwrap();
    provision("a third");
    assert_eq!(intent(&fixture).as_deref(), Some("a third"));
    block_on(fixture.volumes().set_mark(&place(PATH, "u"), &released("u"))).unwrap();
    provision("too late");
    assert_eq!(intent(&fixture), None);
}

#[test]
fn an_intent_that_could_not_be_read_again_is_not_written() {
    let fixture = fixture();
    let before = fixture.snapshot();
    let long = wanted_for(&"\u{1}".repeat(30_000));
    let refused = block_on(fixture.volumes().provision(&place("v", "u"), &mark("u"), &long));
    assert_refused(refused, Class::Invalid, "could not be read again");
    assert_eq!(before, fixture.snapshot());
    let longest = wanted_for(&"\u{1}".repeat(16 * 1024));
    block_on(fixture.volumes().provision(&place("v", "u"), &mark("u"), &longest)).unwrap();
    assert_eq!(intent(&fixture), longest.intent);
}

#[test]
fn an_undo_of_a_create_killed_at_any_step_takes_nothing_that_was_written_meanwhile() {
    let mut kept = 0;
    in_every_way(|at, die| {
        let fixture = fixture();
        let cut = begin(&fixture, at, die);
        let file = fixture.path(PATH).join("file");
        if fixture.path(PATH).exists() {
            kept += 1;
            std::fs::write(&file, "precious").unwrap();
            let before = fixture.snapshot();
            for _ in 0..2 {
                assert_refused(
                    delete_as(&fixture.volumes(), PATH, &undoing("u")),
                    OPERATOR,
                    "not empty any more",
                );
            }
            assert_eq!(before, fixture.snapshot(), "step {at} {die:?}");
            assert_eq!(intent(&fixture).as_deref(), Some("making"));
            std::fs::remove_file(&file).unwrap();
        }
        delete_as(&fixture.volumes(), PATH, &undoing("u")).unwrap();
        fixture.assert_clean(&format!("step {at} {die:?}"));
        cut
    });
    assert!(kept > 5, "{kept}");
}

#[test]
fn an_undo_killed_at_any_step_is_finished_by_the_same_call() {
    for made in (0..80).step_by(3) {
        in_every_way(|at, die| {
            let fixture = fixture();
            begin(&fixture, made, Die::After);
            let volumes = faulty(&fixture, at, die);
            let undone = block_on(volumes.delete(&place(PATH, "u"), &undoing("u")));
            drop(volumes);
            for item in listed(&fixture) {
                assert_eq!(item.record.wanted.intent.as_deref(), Some("making"), "until it is undone");
            }
            delete_as(&fixture.volumes(), PATH, &undoing("u")).unwrap();
            fixture.assert_clean(&format!("made to {made}, step {at} {die:?}"));
            undone.is_err()
        });
    }
}

#[test]
fn what_is_written_at_any_moment_of_an_undo_is_kept() {
    let (mut kept, mut too_late) = (0, 0);
    // Made to the end, and made into place and not recorded so.
    let mut made = 0;
    while {
        let fixture = fixture();
        begin(&fixture, made, Die::After);
        !fixture.path(PATH).exists()
    } {
        made += 1;
    }
    for made in [made, usize::MAX - 1] {
        for at in 0..60 {
            let fixture = fixture();
            begin(&fixture, made, Die::After);
            let (file, written) = (fixture.path(PATH).join("file"), Arc::new(AtomicBool::new(false)));
            let (path, flag) = (file.clone(), Arc::clone(&written));
            let volumes = meanwhile(&fixture, at, move || {
                flag.store(std::fs::write(&path, "precious").is_ok(), Ordering::Relaxed);
            });
            let undone = block_on(volumes.delete(&place(PATH, "u"), &undoing("u")));
            drop(volumes);
            if written.load(Ordering::Relaxed) {
                kept += 1;
                assert_refused(undone, OPERATOR, "not empty any more");
                assert_eq!(std::fs::read_to_string(file).unwrap(), "precious", "step {at}");
                assert_eq!(intent(&fixture).as_deref(), Some("making"));
            } else {
                too_late += 1;
                undone.unwrap();
                fixture.assert_clean(&format!("step {at}"));
            }
        }
    }
    assert!(kept > 20 && too_late > 20, "{kept} {too_late}");
}

#[test]
fn the_volume_of_a_released_pv_goes_with_what_is_in_it_though_it_was_never_marked_published() {
    in_every_way(|at, die| {
        let fixture = fixture();
        assert!(!begin(&fixture, usize::MAX - 1, Die::Before));
        fill(&fixture.path(PATH), &fixture.outside());
        let outside = snapshot(&fixture.outside());
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.delete(&place(PATH, "u"), &released("u")));
        drop(volumes);
        for item in listed(&fixture) {
            // On its way out it is nobody's create any more.
            let in_trash = !fixture.path(".volwright/records/ns%2Fapp%2Fdata.json").exists();
            assert_eq!(item.record.wanted.intent.is_none(), in_trash, "step {at} {die:?}");
        }
        delete(&fixture.volumes(), PATH, "u").unwrap();
        fixture.assert_clean(&format!("step {at} {die:?}"));
        assert_eq!(outside, snapshot(&fixture.outside()));
        first.is_err()
    });
}

#[test]
fn an_undo_leaves_a_published_volume_with_data_and_a_kept_one() {
    for (state, written, text) in [
        (MarkState::Published, true, "not empty any more"),
        (MarkState::Retained, true, "kept on purpose"),
        (MarkState::Retained, false, "kept on purpose"),
    ] {
        let fixture = fixture();
        assert!(!begin(&fixture, usize::MAX - 1, Die::Before));
        block_on(fixture.volumes().set_mark(&place(PATH, "u"), &mark("u").with_state(state))).unwrap();
        if written {
            fill(&fixture.path(PATH), &fixture.outside());
        }
        let before = fixture.snapshot();
        assert_refused(delete_as(&fixture.volumes(), PATH, &undoing("u")), OPERATOR, text);
        assert_eq!(before, fixture.snapshot());
    }
}

#[test]
fn a_deposed_leaders_calls_change_nothing() {
    let fixture = fixture();
    let volumes = fixture.volumes();
    let at = place(PATH, "u");
    block_on(volumes.provision(&at, &under(&mark("u"), 2), &wanted())).unwrap();
    // The next leader goes on with it, which marks it anew.
    block_on(volumes.provision(&at, &under(&mark("u"), 3), &wanted())).unwrap();
    for published in [false, true] {
        let before = fixture.snapshot();
        for asked in [undoing("u"), released("u")].map(|mark| under(&mark, 2)) {
            assert_refused(delete_as(&volumes, PATH, &asked), Class::Unavailable, "too late");
            assert_refused(block_on(volumes.set_mark(&at, &asked)), Class::Unavailable, "too late");
            let again = block_on(volumes.provision(&at, &asked, &wanted()));
            assert_refused(again, Class::Unavailable, "too late");
        }
        assert_eq!(before, fixture.snapshot());
        if !published {
            block_on(volumes.set_mark(&at, &under(&released("u"), 3))).unwrap();
        }
    }
    delete_as(&volumes, PATH, &under(&released("u"), 4)).unwrap();
    fixture.assert_clean("deleted by the leader after that");
}

#[test]
fn a_volume_that_a_later_leader_marks_at_any_moment_is_not_destroyed_by_the_one_before() {
    for asked in [undoing("u"), released("u")] {
        let (mut refused, mut lost, mut done) = (0, 0, 0);
        for at in 0..70 {
            let fixture = fixture();
            assert!(!begin(&fixture, usize::MAX - 1, Die::Before));
            let (path, marked) = (fixture.path(PATH), Arc::new(AtomicBool::new(false)));
            let (later, flag) = (under(&released("u"), 1), Arc::clone(&marked));
            let other = Arc::new(with(&fixture, |tree| Faulty::new(tree, usize::MAX - 1, Die::Before)));
            let volumes = meanwhile(&fixture, at, move || {
                let (other, later, path) = (Arc::clone(&other), later.clone(), path.clone());
                let marking = std::thread::spawn(move || mark_if_there(&other, &later, &path));
                flag.store(marking.join().unwrap(), Ordering::Relaxed);
            });
            let deleted = block_on(volumes.delete(&place(PATH, "u"), &asked));
            drop(volumes);
            match (deleted, marked.load(Ordering::Relaxed)) {
                (Err(failure), true) => {
                    refused += 1;
                    assert_refused::<()>(Err(failure), Class::Unavailable, "too late");
                    assert!(fixture.path(PATH).exists(), "step {at}");
                    assert_eq!(listed(&fixture)[0].record.mark, under(&released("u"), 1), "step {at}");
                    delete_as(&fixture.volumes(), PATH, &under(&released("u"), 1)).unwrap();
                    fixture.assert_clean(&format!("step {at}"));
                }
                (Ok(_), true) => lost += 1,
                (Ok(_), false) => done += 1,
                (Err(failure), false) => panic!("step {at}: {failure:?}"),
            }
        }
        // No file system compares and removes in one step: one read lies between.
        assert!(refused > 15 && done > 10 && lost <= 1, "{asked:?}: {refused} {done} {lost}");
    }
}

fn mark_if_there(volumes: &Volumes<Faulty>, mark: &Mark, path: &std::path::Path) -> bool {
    path.exists() && block_on(volumes.set_mark(&place(PATH, "u"), mark)).map_err(|_: Failure| ()).is_ok()
}
