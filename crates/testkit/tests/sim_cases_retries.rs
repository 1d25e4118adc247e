//! Storms, spam and starvation: public reports (docs/reliability.md), each played to its end and counted.

#![allow(clippy::unwrap_used, reason = "a test: its helpers may fail it")]

mod sim_common;

use serde_json::json;
use sim_common::{Asked, CSI, FAST, LATE, Scene, forbidden, gaps, play, secs};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_provisioner::Class;
use volwright_testkit::Trick;
use volwright_testkit::sim::{PROVISIONER, Setup};

/// As the flags' defaults are: delays of up to five minutes, everything looked at again after a quarter of an hour.
fn patient() -> Setup {
    Setup { backoff_max: secs(300), resync: secs(900), ..Setup::default() }
}

/// So many claims at once; how long until all are bound.
async fn many(scene: &mut Scene, count: usize, limit: Duration) -> Duration {
    let claims: Vec<String> = (0..count).map(|_| scene.users.claim(FAST)).collect();
    scene.until(limit, "all are bound", |scene| claims.iter().all(|claim| scene.is_bound(claim))).await
}

fn number(metrics: &str, series: &str) -> f64 {
    let line = metrics.lines().find(|line| line.starts_with(series));
    line.and_then(|line| line.rsplit(' ').next()).map_or(0.0, |number| number.parse().unwrap())
}

#[test]
fn a_choice_made_anew_after_every_failure_is_taken_back_ever_more_seldom_and_the_event_says_why() {
    play(async {
        let mut scene = Scene::begin_with(patient()).await;
        scene.store.always("provision", Trick::Fail(Class::Exhausted, "the pool is full"));
        let claim = scene.users.claim(LATE);
        sleep(secs(3600)).await;
        let times: Vec<Instant> = scene.asked(Asked::unselects).iter().map(|asked| asked.at).collect();
        assert!((10..=24).contains(&times.len()), "{}", times.len());
        let gaps = gaps(&times);
        assert!(
            gaps[0] < 5.0 && gaps.iter().rev().take(5).all(|gap| (300.0..=365.0).contains(gap)),
            "{gaps:?}"
        );
        let warnings = scene.events("Warning", &claim);
        assert!(warnings.iter().all(|event| event["note"].as_str().unwrap().contains("the pool is full")));
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(scene.store.volumes().is_empty());
        scene.store.never("provision");
        scene.until(secs(365), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
    });
}

#[test]
fn a_delete_that_always_fails_is_tried_ever_more_seldom_with_one_counted_event() {
    play(async {
        let mut scene = Scene::begin_with(patient()).await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        scene.store.always("delete", Trick::Fail(Class::Unavailable, "the array says no"));
        scene.users.delete_claim(&claim);
        sleep(secs(3600)).await;
        let gaps = gaps(&scene.store.times("delete"));
        assert!(gaps[0] < 2.0 && gaps.len() < 25, "{gaps:?}");
        assert!(gaps.iter().rev().take(5).all(|gap| *gap <= 365.0), "{gaps:?}");
        let warnings = scene.events("Warning", &pv);
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(warnings[0]["series"]["count"].as_u64().unwrap() > 10, "{warnings:#?}");
        scene.store.never("delete");
        scene.until(secs(365), "the volume has gone", |s| s.store.volumes().is_empty()).await;
        scene.nothing_is_left().await;
    });
}

#[test]
fn an_attached_volume_is_waited_for_without_a_warning_and_deleted_soon_after_its_detach() {
    play(async {
        let mut scene = Scene::begin_with(patient()).await;
        let claim = scene.bound(CSI).await;
        let attachment = json!({
            "metadata": { "name": "va" },
            "spec": {
                "attacher": PROVISIONER, "nodeName": "node-a",
                "source": { "persistentVolumeName": scene.pv_of(&claim) },
            },
        });
        let pv = scene.pv_of(&claim);
        scene.api.create("volumeattachments", attachment).unwrap();
        scene.users.delete_claim(&claim);
        sleep(secs(20)).await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
        assert_eq!(scene.events("Warning", &pv), Vec::<serde_json::Value>::new());
        scene.api.delete("volumeattachments", "", "va").unwrap();
        // A poll of 5 s, with its jitter.
        scene.until(secs(7), "the volume has gone", |s| s.store.volumes().is_empty()).await;
        assert_eq!(scene.events("Warning", &pv), Vec::<serde_json::Value>::new());
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_claim_that_fails_for_an_hour_costs_at_most_twenty_event_writes() {
    play(async {
        let mut scene = Scene::begin_with(patient()).await;
        scene.store.always("provision", Trick::Fail(Class::Unavailable, "the array is away"));
        let claim = scene.users.claim(FAST);
        sleep(secs(3600)).await;
        let writes = scene.asked(|asked| asked.resource == "events" && asked.is_write());
        assert!(writes.len() <= 20, "{}", writes.len());
        let warnings = scene.events("Warning", &claim);
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(warnings[0]["series"]["count"].as_u64().unwrap() > 10, "{warnings:#?}");
        scene.store.never("provision");
        scene.until(secs(365), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
    });
}

#[test]
fn an_unknown_parameter_is_refused_once_and_served_when_the_class_is_made_anew() {
    play(async {
        let scene = Scene::begin_with(patient()).await;
        let class = |parameters| {
            json!({
                "metadata": { "name": "odd" }, "provisioner": PROVISIONER, "reclaimPolicy": "Delete",
                "volumeBindingMode": "Immediate", "parameters": parameters,
            })
        };
        scene.api.create("storageclasses", class(json!({ "foo": "bar" }))).unwrap();
        scene.make_claim("c0", "odd", &json!({}), &json!({}));
        sleep(secs(1800)).await;
        assert!(scene.store.calls().iter().all(|(op, _)| *op == "inventory"), "{:?}", scene.store.calls());
        let warnings = scene.events("Warning", "c0");
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(warnings[0]["note"].as_str().unwrap().contains("foo"), "{warnings:#?}");
        scene.api.delete("storageclasses", "", "odd").unwrap();
        scene.api.create("storageclasses", class(json!({}))).unwrap();
        scene.until(secs(5), "the claim is bound", |s| s.is_bound("c0")).await;
        scene.rest().await;
        assert_eq!(scene.calls("provision"), 1);
    });
}

#[test]
fn a_claim_with_an_unknown_data_source_gets_no_volume_and_an_event() {
    play(async {
        let scene = Scene::begin().await;
        let source = json!({ "dataSourceRef": { "apiGroup": "foo.io", "kind": "Foo", "name": "x" } });
        scene.make_claim("c0", FAST.name, &json!({}), &source);
        sleep(secs(1800)).await;
        assert_eq!((scene.calls("plan"), scene.calls("provision")), (0, 0));
        let events = scene.events("Normal", "c0");
        assert_eq!(events.len(), 1, "{events:#?}");
        assert!(events[0]["note"].as_str().unwrap().contains("Foo (foo.io)"), "{events:#?}");
        assert_eq!(scene.world.violations(), []);
    });
}

#[test]
fn a_hundred_claims_cost_an_api_server_of_fifty_requests_a_second_six_calls_each() {
    play(async {
        let mut scene = Scene::begin().await;
        let before = scene.asked(|_| true).len();
        scene.world.chaos().pace(50);
        let took = many(&mut scene, 100, secs(30)).await;
        let calls = scene.asked(|asked| asked.verb != "watch").len() - before;
        assert!(calls <= 6 * 100, "{calls} calls in {took:?}");
        assert_eq!((scene.calls("provision"), scene.store.volumes().len()), (100, 100));
        assert_eq!(scene.asked(|asked| asked.resource == "pods").len(), 0);
        scene.rest().await;
    });
}

#[test]
fn fifty_claims_never_make_more_calls_at_once_than_there_are_workers() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.store.always("provision", Trick::Slow(secs(1)));
        many(&mut scene, 50, secs(120)).await;
        assert!(scene.store.most_running() <= 4, "{}", scene.store.most_running());
        scene.rest().await;
    });
}

#[test]
fn slow_events_delay_no_claim_and_what_is_too_much_of_them_is_dropped_and_counted() {
    let time = |slow: bool| {
        play(async move {
            let mut scene = Scene::begin().await;
            if slow {
                scene.world.chaos().slow("create events", secs(2));
                scene.world.chaos().slow("patch events", secs(2));
            }
            scene.store.always("provision", Trick::Slow(Duration::from_millis(100)));
            many(&mut scene, 50, secs(60)).await
        })
    };
    let (quick, slow) = (time(false), time(true));
    assert!(slow < quick + secs(1), "{slow:?} instead of {quick:?}");
    play(async {
        let mut scene = Scene::begin().await;
        scene.world.chaos().slow("create events", secs(4));
        scene.store.always("provision", Trick::Fail(Class::Unavailable, "the array is away"));
        let claims: Vec<String> = (0..200).map(|_| scene.users.claim(FAST)).collect();
        sleep(secs(240)).await;
        assert!(number(&scene.world.metrics(), "volwright_events_total{outcome=\"dropped\"}") > 0.0);
        scene.store.never("provision");
        let bound = |scene: &Scene| claims.iter().take(5).all(|claim| scene.is_bound(claim));
        scene.until(secs(30), "the claims are bound", bound).await;
    });
}

#[test]
fn claims_are_bound_though_events_are_forbidden_and_the_api_server_is_not_asked_again_and_again() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.deny(|request| (request.resource.plural == "events").then(|| forbidden(request)));
        many(&mut scene, 50, secs(30)).await;
        let asked = scene.asked(|asked| asked.resource == "events").len();
        assert!(asked <= 2, "{asked}");
        assert!(number(&scene.world.metrics(), "volwright_events_total{outcome=\"refused\"}") >= 90.0);
        scene.rest().await;
    });
}
