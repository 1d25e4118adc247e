//! Watches that end, lag, are refused or fall silent, and API servers that are away: public reports
//! (docs/reliability.md), each played to its end.

mod sim_common;

use serde_json::json;
use sim_common::{FAST, Scene, gaps, play, secs};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_testkit::Trick;
use volwright_testkit::apiserver::{RequestInfo, Status};
use volwright_testkit::sim::{Fault, Planned, Point, Setup};

fn away() -> Status {
    Status::new(503, "ServiceUnavailable", "the server is currently unable to handle the request")
}

#[test]
fn watches_cut_five_times_and_refused_for_two_minutes_lose_no_claim_and_show_in_readiness() {
    play(async {
        let mut scene = Scene::begin().await;
        assert!(scene.world.ready().is_ok());
        for _ in 0..5 {
            scene.api.cut_watches();
            sleep(Duration::from_millis(300)).await;
        }
        scene.deny(|request| (request.resource.plural != "leases" && request.verb != "create").then(away));
        scene.api.cut_watches();
        let claim = scene.users.claim(FAST);
        sleep(secs(60)).await;
        assert!(scene.world.ready().is_err());
        sleep(secs(60)).await;
        assert!(!scene.is_bound(&claim) && scene.world.ready().is_err());
        scene.allow();
        scene.until(secs(15), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert!(scene.world.ready().is_ok());
        scene.rest().await;
    });
}

#[test]
fn a_watch_refused_with_410_is_followed_by_a_list_and_no_loop() {
    for refused in [true, false] {
        play(async {
            let mut scene = Scene::begin_with(Setup { history: 5, ..Setup::default() }).await;
            scene.api.refuse_old_watches(refused);
            let gone = scene.bound(FAST).await;
            scene.deny(|request| (request.verb == "watch" || request.verb == "list").then(away));
            scene.api.cut_watches();
            scene.users.delete_claim(&gone);
            let claim = scene.users.claim(FAST);
            for round in 0..20 {
                scene.make_claim(&format!("x{round}"), "none", &json!({}), &json!({}));
                scene.users.delete_claim(&format!("x{round}"));
            }
            scene.api.compact();
            sleep(secs(10)).await;
            let lists = scene.count("list", "persistentvolumeclaims");
            scene.allow();
            scene.until(secs(30), "the claim is bound", |s| s.is_bound(&claim)).await;
            assert!(scene.count("list", "persistentvolumeclaims") > lists);
            let watches = scene.count("watch", "persistentvolumeclaims");
            sleep(secs(60)).await;
            assert!(scene.count("watch", "persistentvolumeclaims") <= watches + 1);
            scene.rest().await;
            assert_eq!(scene.store.volumes().len(), 1);
        });
    }
}

#[test]
fn a_watch_that_says_nothing_more_is_given_up_after_its_time() {
    play(async {
        let mut scene = Scene::new(Setup::default());
        scene
            .world
            .chaos()
            .plan(Planned { at: Point::Next("watch persistentvolumeclaims"), fault: Fault::WatchSilent });
        scene.world.start_all();
        // It falls silent within a minute.
        sleep(secs(61)).await;
        let claim = scene.users.claim(FAST);
        let took = scene.until(secs(235), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert!(took > secs(5), "it was silent: {took:?}");
        scene.rest().await;
    });
}

#[test]
fn an_api_server_that_asks_for_ten_seconds_is_asked_no_more_often() {
    play(async {
        let mut scene = Scene::begin().await;
        let such = |request: &RequestInfo| request.resource.plural == "persistentvolumeclaims";
        scene.deny(move |request| such(request).then(|| Status::too_many_requests(10)));
        scene.api.cut_watches();
        let claim = scene.users.claim(FAST);
        let began = Instant::now();
        sleep(secs(120)).await;
        let asked = scene.asked(|asked| asked.resource == "persistentvolumeclaims" && asked.at >= began);
        let times: Vec<Instant> = asked.iter().map(|asked| asked.at).collect();
        assert!(gaps(&times).iter().all(|gap| *gap >= 10.0), "{:?}", gaps(&times));
        assert!(times.len() > 5, "{}", times.len());
        scene.allow();
        scene.until(secs(15), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
    });
}

#[test]
fn nothing_is_made_before_every_list_is_complete() {
    play(async {
        let mut scene = Scene::begin().await;
        let first = scene.bound(FAST).await;
        scene.process(0).gate().kill();
        scene.world.chaos().slow("list persistentvolumes", secs(8));
        let killed = Instant::now();
        let second = scene.users.claim(FAST);
        scene.until(secs(120), "the claim is bound", |s| s.is_bound(&second)).await;
        let listed = scene.asked(|asked| asked.is("list", "persistentvolumes") && asked.at > killed)[0].at;
        let calls = scene.store.times("plan");
        assert!(calls.iter().filter(|at| **at > killed).all(|at| *at >= listed), "{calls:?}");
        assert!(scene.is_bound(&first));
        scene.rest().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (2, 0));
    });
}

#[test]
fn an_api_server_away_for_a_minute_ends_no_process_and_repeats_no_volume() {
    play(async {
        let mut scene = Scene::begin().await;
        let process = scene.process(0);
        scene.store.once("provision", Trick::Slow(secs(10)));
        let claim = scene.users.claim(FAST);
        scene.until(secs(2), "the volume is being made", |s| s.calls("provision") == 1).await;
        scene.deny(|_| Some(away()));
        scene.api.cut_watches();
        sleep(secs(60)).await;
        assert!(scene.world.ready().is_err(), "{:?}", scene.world.ready());
        scene.allow();
        scene.until(secs(60), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert_eq!(scene.process(0).name(), process.name());
        assert!(scene.world.ready().is_ok());
        scene.rest().await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
        assert_eq!(scene.asked(|asked| asked.is("create", "persistentvolumes")).len(), 1);
    });
}

#[test]
fn a_process_started_ninety_seconds_before_the_api_server_waits_for_it() {
    play(async {
        let mut scene = Scene::new(Setup::default());
        scene.deny(|_| Some(away()));
        scene.world.start_all();
        let claim = scene.users.claim(FAST);
        let process = scene.process(0);
        sleep(secs(90)).await;
        assert!(!process.gate().is_dead() && scene.world.ready().is_err());
        assert!(scene.store.calls().is_empty());
        scene.allow();
        scene.until(secs(60), "the claim is bound", |s| s.is_bound(&claim)).await;
        assert_eq!(scene.process(0).name(), process.name());
        scene.rest().await;
    });
}
