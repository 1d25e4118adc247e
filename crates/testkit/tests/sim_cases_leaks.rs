//! Volumes that others lost, forgot or destroyed: public reports (docs/reliability.md), each played to its end.

mod sim_common;

use serde_json::json;
use sim_common::{CSI, FAST, LATE, SELECTED_NODE, Scene, asks, forbidden, play, secs};
use tokio::time::sleep;
use volwright_provisioner::Class;
use volwright_testkit::Trick;
use volwright_testkit::sim::{Fault, Planned, Point, Setup};

#[test]
fn a_crash_between_create_and_pv_leaves_nothing_when_the_claim_goes() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.world.chaos().plan(Planned { at: Point::Next("backend provision"), fault: Fault::KillAfter });
        let claim = scene.users.claim(FAST);
        scene.until(secs(10), "it dies with the volume made", |s| s.process(0).gate().is_dead()).await;
        assert_eq!(scene.store.volumes().len(), 1);
        scene.users.delete_claim(&claim);
        sleep(secs(90)).await;
        scene.nothing_is_left().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (1, 1));
        assert_eq!(scene.count("create", "persistentvolumes"), 0);
    });
}

#[test]
fn creates_that_time_out_and_succeed_are_followed_by_one_delete_when_the_claim_goes() {
    play(async {
        let mut scene = Scene::begin().await;
        // Longer than the deadline of 20 s: each call is given up, and takes effect.
        scene.store.once("provision", Trick::Slow(secs(25)));
        scene.store.once("provision", Trick::Slow(secs(25)));
        let claim = scene.users.claim(FAST);
        scene.until(secs(40), "it is asked twice", |s| s.calls("provision") == 2).await;
        scene.users.delete_claim(&claim);
        sleep(secs(120)).await;
        scene.nothing_is_left().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (2, 1));
        assert_eq!(scene.count("create", "persistentvolumes"), 0);
    });
}

#[test]
fn storage_slower_than_the_deadline_ends_in_one_volume_and_no_delete() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.store.once("provision", Trick::Slow(secs(45)));
        scene.store.once("provision", Trick::Hang);
        scene.store.once("provision", Trick::Hang);
        let claim = scene.users.claim(FAST);
        scene.until(secs(120), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (4, 0));
        assert_eq!((scene.store.volumes().len(), scene.count("create", "persistentvolumes")), (1, 1));
    });
}

#[test]
fn creates_that_time_out_are_never_followed_by_a_delete_while_the_claim_is_there() {
    play(async {
        let mut scene = Scene::begin().await;
        for _ in 0..3 {
            scene.store.once("provision", Trick::Hang);
        }
        let claim = scene.users.claim(FAST);
        scene.until(secs(120), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (4, 0));
    });
}

#[test]
fn a_pv_that_another_made_meanwhile_means_that_our_volume_goes_with_a_warning() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.store.once("provision", Trick::Slow(secs(3)));
        let claim = scene.users.claim(FAST);
        scene.until(secs(2), "the volume is being made", |s| s.calls("provision") == 1).await;
        let pv = json!({
            "metadata": { "name": scene.pv_of(&claim) },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
                "nfs": { "server": "elsewhere", "path": "/other" },
            },
        });
        scene.api.create("persistentvolumes", pv).unwrap();
        scene.world.cluster(0).tower.excuse(scene.uid_of(&claim));
        sleep(secs(60)).await;
        assert!(scene.store.volumes().is_empty());
        assert_eq!((scene.calls("provision"), scene.calls("delete")), (1, 1));
        let pv = scene.pv(&scene.pv_of(&claim)).unwrap();
        assert_eq!(pv["spec"]["nfs"]["path"], "/other");
        let warnings = scene.events("Warning", &claim);
        assert!((1..=2).contains(&warnings.len()), "{warnings:#?}");
        assert!(warnings[0]["note"].as_str().unwrap().contains(pv["metadata"]["name"].as_str().unwrap()));
        scene.rest().await;
    });
}

#[test]
fn a_claim_is_made_once_though_the_watch_lags_behind_its_pv() {
    play(async {
        let mut scene = Scene::new(Setup::default());
        scene.world.chaos().slow("watch persistentvolumes", secs(5));
        scene.world.start_all();
        sleep(secs(5)).await;
        scene.store.once("provision", Trick::Slow(secs(1)));
        let claim = scene.users.claim(FAST);
        for round in 0..8 {
            let change = json!({ "metadata": { "annotations": { "round": format!("{round}") } } });
            scene.api.patch("persistentvolumeclaims", "users", &claim, &change).unwrap();
            sleep(secs(1)).await;
        }
        assert!(scene.is_bound(&claim));
        assert_eq!((scene.calls("provision"), scene.count("create", "persistentvolumes")), (1, 1));
        scene.rest().await;
        assert_eq!(scene.calls("delete"), 0);
    });
}

#[test]
fn a_pv_deleted_before_its_claim_keeps_its_volume_until_the_claim_goes_and_is_there_until_the_volume_has_gone()
 {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        scene.api.delete("persistentvolumes", "", &pv).unwrap();
        sleep(secs(300)).await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
        assert!(scene.pv(&pv).is_some());
        scene.users.delete_claim(&claim);
        scene.until(secs(30), "the PV has gone", |s| s.pv(&pv).is_none()).await;
        let patches = scene.asked(|asked| asked.is("patch", "persistentvolumes"));
        assert!(scene.store.times("delete")[0] <= patches.last().unwrap().at);
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_pv_turned_to_retain_goes_when_it_is_deleted_and_its_data_stays() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        let change = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
        scene.api.patch("persistentvolumes", "", &pv, &change).unwrap();
        sleep(secs(5)).await;
        scene.users.delete_claim(&claim);
        sleep(secs(5)).await;
        scene.api.delete("persistentvolumes", "", &pv).unwrap();
        scene.until(secs(10), "the PV has gone", |s| s.pv(&pv).is_none()).await;
        scene.rest().await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
    });
}

#[test]
fn a_retain_pv_with_our_finalizer_that_is_deleted_goes_and_its_data_stays() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        // Terminating first: nobody had the time to take the finalizer off.
        scene.api.delete("persistentvolumes", "", &pv).unwrap();
        let change = json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } });
        scene.api.patch("persistentvolumes", "", &pv, &change).unwrap();
        scene.users.delete_claim(&claim);
        scene.until(secs(30), "the PV has gone", |s| s.pv(&pv).is_none()).await;
        scene.rest().await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
    });
}

#[test]
fn a_pv_in_phase_failed_loses_its_volume() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        scene.process(0).gate().freeze();
        scene.users.delete_claim(&claim);
        sleep(secs(1)).await;
        scene
            .api
            .patch_status("persistentvolumes", "", &pv, &json!({ "status": { "phase": "Failed" } }))
            .unwrap();
        scene.process(0).gate().thaw();
        scene.until(secs(30), "the PV has gone", |s| s.pv(&pv).is_none()).await;
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_process_of_another_identity_deletes_what_an_earlier_one_made() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        sleep(secs(5)).await;
        let first = scene.process(0);
        first.gate().kill();
        scene.until(secs(60), "another runs", |s| s.process(0).name() != first.name()).await;
        scene.users.delete_claim(&claim);
        scene.until(secs(60), "the volume has gone", |s| s.store.volumes().is_empty()).await;
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_volume_is_deleted_after_its_class_has_gone() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(CSI).await;
        scene.api.delete("storageclasses", "", CSI.name).unwrap();
        scene.users.delete_claim(&claim);
        scene.until(secs(30), "the volume has gone", |s| s.store.volumes().is_empty()).await;
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_volume_of_a_former_name_is_deleted_by_whoever_answers_to_it() {
    for (answers, left) in [(true, 0), (false, 1)] {
        play(async {
            let former_names = if answers { vec!["fuseim.pri/ifs".to_owned()] } else { Vec::new() };
            let mut scene = Scene::begin_with(Setup { former_names, ..Setup::default() }).await;
            let claim = scene.bound(FAST).await;
            let by = json!({ "metadata": { "annotations": { "pv.kubernetes.io/provisioned-by": "fuseim.pri/ifs" } } });
            scene.api.patch("persistentvolumes", "", &scene.pv_of(&claim), &by).unwrap();
            scene.users.delete_claim(&claim);
            sleep(secs(200)).await;
            assert_eq!(scene.store.volumes().len(), left);
            assert_eq!(scene.world.violations(), []);
        });
    }
}

#[test]
fn a_copied_claim_with_bind_completed_gets_one_volume_at_most() {
    play(async {
        let scene = Scene::begin().await;
        let mut annotations = asks();
        annotations["pv.kubernetes.io/bind-completed"] = json!("yes");
        annotations["pv.kubernetes.io/bound-by-controller"] = json!("yes");
        scene.make_claim("copy", FAST.name, &annotations, &json!({}));
        sleep(secs(600)).await;
        assert!(scene.store.volumes().len() <= 1 && scene.calls("provision") <= 1);
        assert!(scene.count("create", "persistentvolumes") <= 1);
        scene.users.delete_claim("copy");
        sleep(secs(60)).await;
        scene.nothing_is_left().await;
    });
}

#[test]
fn a_denied_delete_of_the_pv_destroys_nothing_and_is_done_when_it_is_allowed() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        scene.deny(|request| {
            (request.verb == "delete" && request.resource.plural == "persistentvolumes")
                .then(|| forbidden(request))
        });
        scene.users.delete_claim(&claim);
        sleep(secs(600)).await;
        assert_eq!((scene.store.volumes().len(), scene.calls("delete")), (1, 0));
        scene.allow();
        scene.until(secs(30), "the volume has gone", |s| s.store.volumes().is_empty()).await;
        scene.nothing_is_left().await;
        assert_eq!(scene.calls("delete"), 1);
    });
}

#[test]
fn a_volume_that_is_gone_while_its_pv_may_not_be_patched_counts_as_deleted_when_it_may() {
    play(async {
        let mut scene = Scene::begin().await;
        let claim = scene.bound(FAST).await;
        let pv = scene.pv_of(&claim);
        scene.deny(|request| {
            (request.verb == "patch" && request.resource.plural == "persistentvolumes")
                .then(|| forbidden(request))
        });
        scene.users.delete_claim(&claim);
        sleep(secs(600)).await;
        assert!(scene.store.volumes().is_empty() && scene.pv(&pv).is_some());
        assert!(!scene.events("Warning", &pv).is_empty());
        scene.allow();
        scene.until(secs(30), "the PV has gone", |s| s.pv(&pv).is_none()).await;
        scene.nothing_is_left().await;
    });
}

#[test]
fn a_node_that_is_gone_is_taken_back_once_with_one_warning() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.make_claim("c0", LATE.name, &json!({ (SELECTED_NODE): "ghost" }), &json!({}));
        sleep(secs(300)).await;
        assert!(scene.claim_of("c0")["metadata"]["annotations"].get(SELECTED_NODE).is_none());
        assert_eq!(scene.asked(sim_common::Asked::unselects).len(), 1);
        let warnings = scene.events("Warning", "c0");
        assert_eq!(warnings.len(), 1, "{warnings:#?}");
        assert!(warnings[0]["note"].as_str().unwrap().contains("\"ghost\""), "{warnings:#?}");
        assert_eq!(scene.calls("plan"), 0);
        // The scheduler chooses again (the claim is there already, its pod comes).
        scene.users.claim(LATE);
        scene.until(secs(60), "the claim is bound", |s| s.is_bound("c0")).await;
        scene.rest().await;
    });
}

#[test]
fn no_room_takes_the_choice_of_a_node_back_and_a_time_out_keeps_it() {
    play(async {
        let mut scene = Scene::begin().await;
        scene.store.once("provision", Trick::Hang);
        let claim = scene.bound(LATE).await;
        assert_eq!(scene.asked(sim_common::Asked::unselects).len(), 0);
        assert_eq!(scene.calls("provision"), 2);
        scene.store.once("provision", Trick::Fail(Class::Exhausted, "the pool is full"));
        let other = scene.bound(LATE).await;
        let unselected = scene.asked(sim_common::Asked::unselects);
        assert_eq!(unselected.len(), 1);
        assert_eq!(unselected[0].name, other);
        assert!(scene.is_bound(&claim));
        scene.rest().await;
        assert_eq!(scene.store.volumes().len(), 2);
    });
}

#[test]
fn a_claim_whose_secret_is_missing_for_half_an_hour_is_bound_soon_after_it_is_there() {
    play(async {
        let mut scene = Scene::begin().await;
        let text = "the secret ns/key does not exist: create it";
        scene.store.always("provision", Trick::Fail(Class::Unavailable, text));
        let claim = scene.users.claim(FAST);
        sleep(secs(1800)).await;
        let tries = scene.store.times("provision");
        let gaps = sim_common::gaps(&tries);
        // The cap of 20 s with its jitter.
        assert!(gaps.iter().all(|gap| *gap <= 25.0), "{gaps:?}");
        assert!(tries.len() < 120, "{}", tries.len());
        let warnings = scene.events("Warning", &claim);
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0]["note"], format!("{text} (doctor: claims)"));
        scene.store.never("provision");
        scene.until(secs(25), "the claim is bound", |s| s.is_bound(&claim)).await;
        scene.rest().await;
        assert_eq!(scene.store.volumes().len(), 1);
    });
}
