//! Killed at every single step, the same call again finishes the work.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::faulty::{Die, Faulty};
use common::{
    Fixture, assert_refused, at_every_step, block_on, delete, faulty, fill, mark, place, provision, snapshot,
    wanted, with,
};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use volwright_provisioner::{Class, MarkState, Observed, Pristine, Progress};
use volwright_volume_tree::{Look, look, make_identity};

const PATH: &str = "ns/app/data";

fn observe(fixture: &Fixture) -> Option<Observed> {
    block_on(fixture.volumes().observe(&place(PATH, "u"))).unwrap()
}

#[test]
fn a_provision_killed_at_any_step_is_finished_by_the_same_call() {
    let runs = at_every_step(|at, die| {
        let fixture = Fixture::new();
        drop(fixture.volumes());
        let outside = snapshot(&fixture.outside());
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.provision(&place(PATH, "u"), &mark("u"), &wanted()));
        let died = volumes.tree().died();
        assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
        if let Err(failure) = first {
            assert!(matches!(failure.class(), Class::Unavailable | Class::Unknown), "{failure:?}");
        }
        drop(volumes);

        let seen = observe(&fixture);
        assert!(seen.is_none_or(|o| o.mark.is_some() && o.pristine == Pristine::Yes), "step {at} {die:?}");
        let size = block_on(fixture.volumes().provision(&place(PATH, "u"), &mark("u"), &wanted()));
        assert_eq!(size.unwrap(), wanted().size, "step {at} {die:?}");
        let seen = observe(&fixture).unwrap();
        assert_eq!(seen.mark.unwrap().state, MarkState::Unpublished);
        assert_eq!(seen.pristine, Pristine::Yes);
        let volume = fixture.path(PATH).metadata().unwrap();
        assert_eq!(volume.mode() & 0o7777, 0o777);
        assert_eq!(fixture.path("ns/app").metadata().unwrap().mode() & 0o7777, 0o755, "step {at} {die:?}");
        delete(&fixture.volumes(), PATH, "u").unwrap();
        fixture.assert_clean(&format!("step {at} {die:?}"));
        assert_eq!(outside, snapshot(&fixture.outside()));
        died
    });
    assert!(runs > 60, "{runs} steps only");
}

#[test]
fn a_provision_killed_at_any_step_can_be_undone() {
    at_every_step(|at, die| {
        let fixture = Fixture::new();
        drop(fixture.volumes());
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.provision(&place(PATH, "u"), &mark("u"), &wanted()));
        drop(volumes);
        // If nothing is recorded and yet something is there, it would stay for ever.
        delete(&fixture.volumes(), PATH, "u").unwrap_or_else(|e| panic!("step {at} {die:?}: {e:?}"));
        fixture.assert_clean(&format!("step {at} {die:?}"));
        first.is_err()
    });
}

#[test]
fn an_undo_killed_at_any_step_of_a_half_made_volume_is_finished() {
    for made in 0..70 {
        let fixture = Fixture::new();
        drop(fixture.volumes());
        let volumes = faulty(&fixture, made, Die::After);
        block_on(volumes.provision(&place(PATH, "u"), &mark("u"), &wanted())).ok();
        drop(volumes);
        for at in (0..60).step_by(7) {
            let volumes = faulty(&fixture, at, Die::After);
            block_on(volumes.delete(&place(PATH, "u"), &mark("u"))).ok();
            drop(volumes);
        }
        delete(&fixture.volumes(), PATH, "u").unwrap();
        fixture.assert_clean(&format!("made to step {made}"));
    }
}

#[test]
fn a_delete_killed_at_any_step_is_finished_by_the_same_call() {
    let runs = at_every_step(|at, die| {
        let fixture = Fixture::new();
        provision(&fixture.volumes(), PATH, "u").unwrap();
        provision(&fixture.volumes(), "ns/other", "v").unwrap();
        fill(&fixture.path(PATH), &fixture.outside());
        fill(&fixture.path("ns/other"), &fixture.outside());
        let around = (snapshot(&fixture.outside()), snapshot(&fixture.path("ns/other")));
        let volumes = faulty(&fixture, at, die);
        let first = block_on(volumes.delete(&place(PATH, "u"), &mark("u")));
        let died = volumes.tree().died();
        assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
        drop(volumes);

        // Until the end its mark stays to be seen, so that nobody takes it for another's or for gone.
        if fixture.path(PATH).exists()
            || fixture.path(".volwright/trash").read_dir().unwrap().next().is_some()
        {
            let seen = observe(&fixture);
            let data_left =
                snapshot(&fixture.path(".volwright/trash")).values().any(|v| v.ends_with(" data"));
            assert!(seen.is_some() || !data_left, "step {at} {die:?}");
        }
        delete(&fixture.volumes(), PATH, "u").unwrap_or_else(|e| panic!("step {at} {die:?}: {e:?}"));
        assert_eq!(observe(&fixture), None);
        assert_eq!(around, (snapshot(&fixture.outside()), snapshot(&fixture.path("ns/other"))));
        assert!(fixture.path("ns").exists(), "another volume is in there");
        delete(&fixture.volumes(), "ns/other", "v").unwrap();
        fixture.assert_clean(&format!("step {at} {die:?}"));
        died
    });
    assert!(runs > 100, "{runs} steps only");
}

#[test]
fn the_path_of_a_volume_on_its_way_out_can_be_given_out_anew() {
    let fixture = Fixture::new();
    let volumes = fixture
        .volumes()
        .with_slice(volwright_volume_tree::Slice { entries: 1, time: std::time::Duration::from_secs(60) });
    provision(&volumes, PATH, "u").unwrap();
    fill(&fixture.path(PATH), &fixture.outside());
    let first = block_on(volumes.delete(&place(PATH, "u"), &mark("u"))).unwrap();
    assert!(matches!(first, Progress::Pending { .. }), "{first:?}");
    provision(&volumes, PATH, "v").unwrap();
    fill(&fixture.path(PATH), &fixture.outside());
    let before = snapshot(&fixture.path(PATH));

    let seen = block_on(volumes.observe(&place(PATH, "u"))).unwrap().unwrap();
    assert_eq!((seen.mark.unwrap().owner, seen.pristine), (mark("u").owner, Pristine::No));
    assert_eq!(block_on(volumes.inventory(&mark("u").installation)).unwrap().volumes.len(), 2);
    delete(&volumes, PATH, "u").unwrap();
    assert_eq!(before, snapshot(&fixture.path(PATH)));
    assert_refused(delete(&volumes, PATH, "u"), Class::NotOurs, "another volume's");
    assert_eq!(block_on(volumes.observe(&place(PATH, "u"))).unwrap(), None);
    assert_eq!(before, snapshot(&fixture.path(PATH)));
}

#[test]
fn the_first_identity_killed_at_any_step_is_made_by_the_next_call() {
    at_every_step(|at, die| {
        let fixture = Fixture::new();
        let tree = Faulty::new(fixture.tree(), at, die);
        let first = block_on(make_identity(&tree));
        let seen = block_on(look(&fixture.tree())).unwrap();
        assert_ne!(seen, Look::Lost, "step {at} {die:?}");
        let id = block_on(make_identity(&fixture.tree())).unwrap();
        assert!(seen == Look::Fresh || seen == Look::Shown(id.clone()));
        assert!(first.as_ref().is_ok_and(|first| *first == id) || tree.died());
        tree.died()
    });
}

#[test]
fn what_somebody_puts_in_the_place_at_any_moment_is_kept() {
    let mut kept = 0;
    for at in 0..70 {
        let fixture = Fixture::new();
        drop(fixture.volumes());
        let path = fixture.path("v");
        let planted = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&planted);
        let meanwhile = move || {
            let made = std::fs::create_dir(&path).and_then(|()| std::fs::write(path.join("file"), "theirs"));
            flag.store(made.is_ok(), Ordering::Relaxed);
        };
        let volumes = with(&fixture, |tree| Faulty {
            meanwhile: Some(Box::new(meanwhile)),
            ..Faulty::new(tree, at, Die::Before)
        });
        let result = block_on(volumes.provision(&place("v", "u"), &mark("u"), &wanted()));
        if planted.load(Ordering::Relaxed) {
            kept += 1;
            assert_refused(result, Class::NotOurs, "already");
            std::fs::remove_file(fixture.path("v/file")).unwrap();
            std::fs::remove_dir(fixture.path("v")).unwrap();
            fixture.assert_clean(&format!("step {at}"));
        } else {
            result.unwrap();
        }
    }
    assert!(kept > 20, "{kept}");
}

#[test]
fn two_calls_at_any_distance_are_never_given_the_same_place() {
    for paths in [["v", "v"], ["v/a", "v"], ["v", "v/a"], ["v/a", "v/b"]] {
        for distance in 0..60 {
            let fixture = Fixture::new();
            drop(fixture.volumes());
            let volumes = with(&fixture, |tree| Faulty {
                yields: true,
                ..Faulty::new(tree, usize::MAX - 1, Die::Before)
            });
            let provision = async |path, owner, wait| {
                for _ in 0..wait {
                    tokio::task::yield_now().await;
                }
                volumes.provision(&place(path, owner), &mark(owner), &wanted()).await
            };
            let both =
                async { tokio::join!(provision(paths[0], "u", 0), provision(paths[1], "w", distance)) };
            let both =
                block_on(async { tokio::time::timeout(std::time::Duration::from_secs(10), both).await });
            let (one, two) = both.unwrap_or_else(|_| panic!("{paths:?} hang at distance {distance}"));
            let won = u8::from(one.is_ok()) + u8::from(two.is_ok());
            let expected = if paths[1] == "v/b" { 2 } else { 1 };
            assert_eq!(won, expected, "{paths:?} {distance}: {one:?} {two:?}");
            let listed = block_on(volumes.inventory(&mark("u").installation)).unwrap();
            assert_eq!(listed.volumes.len(), usize::from(expected));
        }
    }
}
