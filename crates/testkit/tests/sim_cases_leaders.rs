//! Leaders that stop, hand over, or starve: public reports (docs/reliability.md), each played to its end.

#![allow(clippy::unwrap_used, reason = "a test: its helpers may fail it")]

mod sim_common;

use sim_common::{Asked, FAST, Scene, gaps, play, secs};
use std::collections::BTreeSet;
use tokio::time::{Instant, sleep};
use volwright_testkit::Trick;
use volwright_testkit::sim::{Process, Setup};

fn pair() -> Setup {
    Setup { processes: 2, ..Setup::default() }
}

/// The process that leads.
fn leader(scene: &Scene) -> Process {
    let holder = scene.holder();
    scene.world.processes().into_iter().find(|process| process.name() == holder).unwrap()
}

/// What `process` wrote that is not its lease, from `since` on.
fn writes(scene: &Scene, process: &Process, since: Instant) -> Vec<Asked> {
    scene.asked(|asked| {
        asked.client == process.name() && asked.is_write() && asked.resource != "leases" && asked.at >= since
    })
}

#[test]
fn a_leader_stopped_past_its_lease_changes_nothing_when_it_goes_on() {
    play(async {
        let mut scene = Scene::begin_with(pair()).await;
        let first = leader(&scene);
        scene.store.once("provision", Trick::Slow(secs(5)));
        let (one, two) = (scene.users.claim(FAST), scene.bound(FAST).await);
        sleep(secs(1)).await;
        first.gate().freeze();
        scene.users.delete_claim(&two);
        let three = scene.users.claim(FAST);
        let bound = |s: &Scene| s.is_bound(&one) && s.is_bound(&three);
        scene.until(secs(120), "the other serves the claims", bound).await;
        scene.until(secs(120), "and deletes", |s| s.store.volumes().len() == 2).await;
        assert_ne!(leader(&scene).name(), first.name());
        sleep(secs(60)).await;
        let (calls, resumed) = (scene.store.calls().len(), Instant::now());
        first.gate().thaw();
        sleep(secs(110)).await;
        let since: Vec<_> = scene.store.calls().split_off(calls);
        assert!(since.iter().all(|(op, _)| matches!(*op, "observe" | "inventory")), "{since:?}");
        assert!(writes(&scene, &first, resumed).iter().all(|asked| asked.resource == "events"));
        scene.rest().await;
        assert_eq!((scene.store.volumes().len(), scene.count("create", "persistentvolumes")), (2, 3));
    });
}

#[test]
fn of_two_processes_one_acts_and_the_other_takes_over_when_it_is_killed() {
    play(async {
        let mut scene = Scene::begin_with(pair()).await;
        let began = Instant::now();
        let names: BTreeSet<String> = scene.world.processes().iter().map(|p| p.name().to_owned()).collect();
        assert_eq!(names.len(), 2);
        let first = leader(&scene);
        let other = scene.world.processes().into_iter().find(|p| p.name() != first.name()).unwrap();
        scene.bound(FAST).await;
        sleep(secs(60)).await;
        assert_eq!(scene.holder(), first.name());
        assert!(writes(&scene, &other, began).is_empty());
        first.gate().kill();
        let claim = scene.users.claim(FAST);
        let took = scene.until(secs(60), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert!(took < secs(25), "a lease of 15 s and a retry: {took:?}");
        scene.rest().await;
    });
}

#[test]
fn one_lease_is_written_and_no_endpoints_or_configmap_locks() {
    play(async {
        let mut scene = Scene::begin_with(pair()).await;
        scene.bound(FAST).await;
        sleep(secs(300)).await;
        let leases = scene.asked(|asked| asked.resource == "leases" && asked.is_write());
        let names: BTreeSet<&str> = leases.iter().map(|asked| asked.name.as_str()).collect();
        assert_eq!(names.len(), 1, "{names:?}");
        assert_eq!(scene.api.list("leases", "").unwrap().len(), 1);
        assert_eq!(scene.asked(|asked| asked.resource.starts_with("endpoint")).len(), 0);
        let lock = "control-plane.alpha.kubernetes.io/leader";
        assert!(scene.asked(Asked::is_write).iter().all(|asked| !asked.body.to_string().contains(lock)));
        scene.rest().await;
    });
}

#[test]
fn the_lease_is_renewed_in_time_while_an_api_server_of_five_requests_a_second_serves_a_hundred_claims() {
    play(async {
        let mut scene = Scene::begin().await;
        let process = scene.process(0);
        scene.world.chaos().pace(5);
        let claims: Vec<String> = (0..100).map(|_| scene.users.claim(FAST)).collect();
        scene.until(secs(900), "all are bound", |s| claims.iter().all(|claim| s.is_bound(claim))).await;
        let renewals = scene.asked(|asked| asked.is("update", "leases"));
        let times: Vec<Instant> = renewals.iter().map(|asked| asked.at).collect();
        let gaps = gaps(&times);
        assert!(times.len() > 20 && gaps.iter().all(|gap| *gap < 10.0), "{gaps:?}");
        assert_eq!((scene.process(0).name(), scene.holder().as_str()), (process.name(), process.name()));
        scene.rest().await;
        assert_eq!(scene.calls("provision"), 100);
    });
}

#[test]
fn a_sigterm_during_a_long_create_ends_the_process_after_the_pv_is_saved() {
    play(async {
        let mut scene = Scene::begin().await;
        let process = scene.process(0);
        scene.store.once("provision", Trick::Slow(secs(18)));
        let claim = scene.users.claim(FAST);
        scene.until(secs(2), "the volume is being made", |s| s.calls("provision") == 1).await;
        let told = Instant::now();
        scene.world.terminate(0);
        scene.until(secs(30), "the process ends", |_| process.gate().is_dead()).await;
        assert!(told.elapsed() < secs(25), "{:?}", told.elapsed());
        let made = scene.asked(|asked| asked.is("create", "persistentvolumes"));
        assert_eq!(made.iter().map(|asked| asked.client.as_str()).collect::<Vec<_>>(), [process.name()]);
        assert!(scene.is_bound(&claim));
        assert_eq!(scene.holder(), "", "the lease is free for the next");
        scene.rest().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (1, 0));
    });
}

#[test]
fn a_leader_that_is_told_to_end_hands_over_within_seconds() {
    play(async {
        let mut scene = Scene::begin_with(pair()).await;
        let first = leader(&scene);
        let index = scene.world.processes().iter().position(|p| p.name() == first.name()).unwrap();
        scene.world.terminate(index);
        let claim = scene.users.claim(FAST);
        let took = scene.until(secs(30), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert!(took < secs(5), "{took:?}");
        assert_ne!(scene.holder(), first.name());
        scene.rest().await;
    });
}
