//! Claims that cannot be served, PVs and places that are taken, and claims that go while they are served, against a real
//! API server.
#![allow(clippy::expect_used, clippy::type_complexity, reason = "helpers of tests, and tables of cases")]

mod common;

use common::{SOON, World, a_while, from, name, uid};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use volwright_controller::decide::{Rule, Rules};
use volwright_controller::names;
use volwright_provisioner::Class;
use volwright_testkit::Trick;
use volwright_testkit::harness::eventually;
use volwright_testkit::memory::StoredVolume;

/// Warnings of ours on an object.
async fn warnings(world: &World, uid: &str) -> Vec<String> {
    let events = world.events(uid).await;
    events.into_iter().filter(|event| event.starts_with("Warning ProvisioningFailed")).collect()
}

fn parameters(key: &str, value: &str) -> Value {
    json!({ "parameters": { key: value } })
}

fn source(group: Option<&str>, kind: &str) -> Value {
    json!({ "dataSource": { "apiGroup": group, "kind": kind, "name": "origin" } })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn what_cannot_be_served_is_refused_by_one_event_that_names_the_remedy() {
    let world = World::new("refused").await;
    let engine = world.start().await;
    let gold = format!("{}-gold", world.namespace);
    world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": { "name": gold }, "driverName": world.name, "parameters": { "iops": "1" },
        }))
        .await;
    // name, change of the class, change of the claim's spec, parts of the one Warning
    let cases: [(&str, Value, Value, &[&str]); 10] = [
        (
            "block",
            parameters("filesystemOnly", "true"),
            json!({ "volumeMode": "Block" }),
            &["does not offer volumeMode Block"],
        ),
        (
            "unknown",
            parameters("bogus", "1"),
            json!({}),
            &["unknown field `bogus`", "`pool`", "`pathPattern`", "onDelete"],
        ),
        ("unreadable", parameters("filesystemOnly", "maybe"), json!({}), &["\"maybe\" is not true or false"]),
        ("pattern", parameters("pathPattern", "${pvc.secret}"), json!({}), &["unknown token", "${pvc.name}"]),
        (
            "fate",
            parameters("onDelete", "retian"),
            json!({}),
            &["onDelete", "\"retian\"", "use delete, retain or trash"],
        ),
        (
            "binding",
            parameters("lateOnly", "true"),
            json!({}),
            &["volumeBindingMode Immediate", "volumeBindingMode: WaitForFirstConsumer"],
        ),
        (
            "selector",
            json!({}),
            json!({ "selector": { "matchLabels": { "app": "x" } } }),
            &["spec.selector", "remove the selector", "spec.volumeName"],
        ),
        (
            "clone",
            json!({}),
            source(None, "PersistentVolumeClaim"),
            &["\"origin\"", "cannot clone", "leave dataSource out"],
        ),
        (
            "snapshot",
            json!({}),
            source(Some("snapshot.storage.k8s.io"), "VolumeSnapshot"),
            &["\"origin\"", "cannot restore snapshots", "leave dataSource out"],
        ),
        (
            "gold",
            json!({}),
            json!({ "volumeAttributesClassName": gold }),
            &["volumeAttributesClassName", "CSI volumes only", "remove it"],
        ),
    ];
    let mut claims = Vec::new();
    for (case, class, spec, parts) in &cases {
        let class = world.class(case, class.clone()).await;
        claims.push((uid(&world.claim(case, &class, json!({ "spec": spec })).await), *case, *parts));
    }
    for (uid, _, parts) in &claims {
        world.event(uid, &[&["Warning ProvisioningFailed"], *parts].concat()).await;
    }
    for number in 0..5 {
        for (_, case, _) in &claims {
            world.patch_claim(case, json!({ "metadata": { "labels": { "n": number.to_string() } } })).await;
        }
    }
    a_while().await;
    for (uid, case, _) in &claims {
        let warnings = warnings(&world, uid).await;
        assert_eq!(warnings.len(), 1, "{case}: no storm: {warnings:#?}");
        assert!(world.volume_of(uid).await.is_none(), "{case}");
    }
    assert_eq!(world.store.volumes().len(), 0);
    assert_eq!(world.store.count("provision", ""), 0, "{:#?}", world.store.calls());
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_class_made_anew_with_known_parameters_serves_the_claims_that_it_refused() {
    let mut world = World::new("anew").await;
    // Not by a retry: the class's change wakes the claim.
    world.options.backoff_max = Duration::from_hours(1);
    let _engine = world.start().await;
    let class = world.class("plain", parameters("bogus", "1")).await;
    let claim = world.claim("data", &class, json!({})).await;
    world.event(&uid(&claim), &["Warning ProvisioningFailed", "bogus"]).await;
    world.delete_class(&class).await;
    world.class("plain", parameters("pool", "fast")).await;
    let volume = world.bound("data").await;
    assert!(World::path_of(&volume).starts_with("/fast/"));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_api_server_itself_refuses_what_nobody_could_serve() {
    let world = World::new("premise").await;
    let cases = [
        ("nothing", json!({ "resources": { "requests": { "storage": "0" } } })),
        ("no-modes", json!({ "accessModes": [] })),
        ("rwop-and-more", json!({ "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] })),
        ("no-request", json!({ "resources": null })),
    ];
    for (case, change) in cases {
        let mut object = json!({
            "metadata": { "name": case },
            "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        });
        common::merge(&mut object, json!({ "spec": change }));
        let claim: PersistentVolumeClaim = from(object);
        let answer = world.claims().create(&PostParams::default(), &claim).await;
        assert!(matches!(&answer, Err(kube::Error::Api(status)) if status.code == 422), "{case}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_source_of_unknown_kind_is_left_to_its_populator() {
    let world = World::new("populator").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let book =
        json!({ "spec": { "dataSourceRef": { "apiGroup": "example.com", "kind": "Book", "name": "b" } } });
    let claim = world.claim("data", &class, book).await;
    world.event(&uid(&claim), &["Normal Provisioning", "populator for Book (example.com)"]).await;
    a_while().await;
    assert_eq!(warnings(&world, &uid(&claim)).await, Vec::<String>::new());
    assert_eq!(world.store.calls(), Vec::new());
    assert!(world.volume_of(&uid(&claim)).await.is_none());
}

/// A PV under the name that a claim's PV will have, and that no claim binds to.
fn foreign_volume(world: &World, uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": format!("pvc-{uid}"), "annotations": { names::PROVISIONED_BY: "other.example" } },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "other",
            "persistentVolumeReclaimPolicy": "Retain",
            "nfs": { "server": world.server(), "path": "/somebody/elses" },
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_of_that_name_that_another_made_is_refused_before_anything_is_planned() {
    let world = World::new("taken").await;
    let class = world.class("plain", json!({})).await;
    let claim = world.claim("data", &class, json!({})).await;
    let pv = format!("pvc-{}", uid(&claim));
    world.create(foreign_volume(&world, &uid(&claim))).await;
    let _engine = world.start().await;
    world.event(&uid(&claim), &["Warning ProvisioningFailed", &pv, "did not make", "remove it"]).await;
    a_while().await;
    assert_eq!(world.store.calls(), Vec::new(), "nothing was planned or made");
    world.delete_volume(&pv).await;
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_with_another_volume_that_came_first_means_that_ours_goes_again() {
    let world = World::new("raced").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.once("provision", Trick::Slow(Duration::from_secs(2)));
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 1).await;
    let foreign = world.create(foreign_volume(&world, &uid(&claim))).await;
    world.event(&uid(&claim), &["Warning ProvisioningFailed", "another volume exists", "is removed"]).await;
    eventually("ours is removed", SOON, || async { world.store.volumes() }, BTreeMap::is_empty).await;
    assert_eq!(world.store.count("delete", &uid(&claim)), 1);
    let kept = world.volume_of(&uid(&claim)).await.expect("the other's PV is kept");
    assert_eq!(kept.metadata.uid, foreign.metadata.uid);
    world.delete_volume(&name(&kept)).await;
    let volume = world.bound("data").await;
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volume)]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_with_our_volume_that_came_first_is_our_own_work() {
    let world = World::new("replayed").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.once("provision", Trick::Slow(Duration::from_secs(2)));
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 1).await;
    // As our own create whose answer was lost, or that of a leader who has just stepped down.
    let path = format!("/pool/{}", uid(&claim));
    let handle = json!({ "version": 1, "backend": "memory", "handle": {
        "server": world.server(), "path": path, "csi": false, "node": null,
    }});
    let mut volume = foreign_volume(&world, &uid(&claim));
    let ours = json!({
        "metadata": {
            "annotations": { names::PROVISIONED_BY: world.name, names::HANDLE: handle.to_string() },
            "finalizers": [names::FINALIZER],
        },
        "spec": {
            "nfs": { "path": path }, "storageClassName": class, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": world.namespace, "name": "data", "uid": uid(&claim) },
        },
    });
    common::merge(&mut volume, ours);
    world.create(volume).await;
    world.bound("data").await;
    a_while().await;
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [path]);
    assert_eq!(world.store.count("delete", ""), 0);
    assert_eq!(warnings(&world, &uid(&claim)).await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_restart_finds_what_is_done_and_does_it_no_second_time() {
    let world = World::new("restart").await;
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let claim = world.claim("data", &class, json!({})).await;
    world.published(&uid(&claim)).await;
    engine.kill();
    let _engine = world.start().await;
    world.bound("data").await;
    a_while().await;
    assert_eq!(world.store.count("provision", ""), 1, "{:#?}", world.store.calls());
    assert_eq!(world.store.count("delete", ""), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_kill_between_make_and_publish_still_ends_in_one_volume() {
    let world = World::new("killed").await;
    let class = world.class("plain", json!({})).await;
    let claim = world.claim("data", &class, json!({})).await;
    for op in ["observe", "provision", "set_mark"] {
        let engine = world.start().await;
        world.store.always(op, Trick::Slow(Duration::from_secs(60)));
        world.called(op, 1).await;
        engine.kill();
        world.store.never(op);
    }
    let _engine = world.start().await;
    let volume = world.bound("data").await;
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volume)]);
    assert_eq!(world.store.count("delete", ""), 0);
    assert_eq!(warnings(&world, &uid(&claim)).await, Vec::<String>::new());
}

fn stranger() -> StoredVolume {
    StoredVolume { size: 1 << 30, ..StoredVolume::unmarked() }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn what_stands_in_the_planned_place_is_never_touched() {
    let world = World::new("place").await;
    let _engine = world.start().await;
    let class = world.class("plain", parameters("pathPattern", "${pvc.name}")).await;
    world.store.put("/pool/data", stranger());
    let claim = world.claim("data", &class, json!({})).await;
    world.event(&uid(&claim), &["Warning ProvisioningFailed", "did not make stands", "pathPattern"]).await;
    a_while().await;
    assert_eq!(world.store.volumes().remove("/pool/data"), Some(stranger()));
    assert_eq!(world.store.count("provision", "") + world.store.count("set_mark", ""), 0);
    assert!(world.volume_of(&uid(&claim)).await.is_none());
    world.delete_claim("data").await;
    a_while().await;
    assert_eq!(world.store.volumes().remove("/pool/data"), Some(stranger()), "nor when the claim goes");
    world.claim("data", &class, json!({})).await;
    world.store.remove("/pool/data");
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn without_the_rule_what_stands_in_the_planned_place_would_be_taken() {
    let mut world = World::new("norule").await;
    world.options.rules = Rules::without(Rule::PlaceIsFree);
    let _engine = world.start().await;
    let class = world.class("plain", parameters("pathPattern", "${pvc.name}")).await;
    world.store.put("/pool/data", stranger());
    world.claim("data", &class, json!({})).await;
    world.bound("data").await;
    assert_ne!(world.store.volumes().remove("/pool/data"), Some(stranger()));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn two_claims_planned_for_one_place_do_not_share_it() {
    let world = World::new("shared").await;
    let _engine = world.start().await;
    let class = world.class("plain", parameters("pathPattern", "one")).await;
    let (first, second) =
        (world.claim("a", &class, json!({})).await, world.claim("b", &class, json!({})).await);
    let look = || async {
        (warnings(&world, &uid(&first)).await.len(), warnings(&world, &uid(&second)).await.len())
    };
    eventually("one is told that the place is taken", SOON, look, |(a, b)| a + b == 1).await;
    a_while().await;
    let made = [world.volume_of(&uid(&first)).await, world.volume_of(&uid(&second)).await];
    assert_eq!(made.iter().flatten().count(), 1);
    assert_eq!(world.store.volumes().len(), 1);
    assert_eq!(world.store.count("delete", ""), 0, "the loser deletes nothing: {:#?}", world.store.calls());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_deleted_while_its_volume_is_made_leaves_nothing_behind() {
    let world = World::new("deleted").await;
    let _engine = world.start().await;
    world.store.always("provision", Trick::Slow(Duration::from_secs(2)));
    for policy in ["Delete", "Retain"] {
        let class = world.class(&policy.to_lowercase(), json!({ "reclaimPolicy": policy })).await;
        let before = world.store.count("provision", "");
        let claim = world.claim("data", &class, json!({})).await;
        world.called("provision", before + 1).await;
        world.delete_claim("data").await;
        a_while().await;
        eventually("nothing is left", SOON, || async { world.store.volumes() }, BTreeMap::is_empty).await;
        assert!(world.volume_of(&uid(&claim)).await.is_none(), "{policy}: it was never published");
        assert_eq!(world.store.count("delete", &uid(&claim)), 1, "{policy}: {:#?}", world.store.calls());
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_deleted_after_lost_replies_has_its_volume_deleted_once() {
    let world = World::new("lost").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("provision", Trick::LoseReply);
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 3).await;
    assert_eq!(world.store.count("delete", ""), 0, "not while the claim is there");
    world.delete_claim("data").await;
    eventually("nothing is left", SOON, || async { world.store.volumes() }, BTreeMap::is_empty).await;
    a_while().await;
    assert_eq!(world.store.count("delete", ""), 1, "{:#?}", world.store.calls());
    assert!(world.volume_of(&uid(&claim)).await.is_none());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn what_may_have_been_made_for_a_gone_claim_is_deleted_until_that_is_final() {
    let world = World::new("final").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("provision", Trick::Fail(Class::Unknown, "who knows"));
    world.store.once("delete", Trick::Fail(Class::Unavailable, "not now"));
    world.store.once("delete", Trick::Pending(Duration::from_millis(100)));
    world.store.once("delete", Trick::LoseReply);
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 1).await;
    world.delete_claim("data").await;
    world.called("delete", 4).await;
    a_while().await;
    // Absence was seen each time; only the final answer ends it.
    assert_eq!(world.store.count("delete", &uid(&claim)), 4, "{:#?}", world.store.calls());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_unpublished_volume_that_somebody_wrote_to_is_kept_and_reported() {
    let world = World::new("written").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("provision", Trick::LoseReply);
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 2).await;
    let path = format!("/pool/{}", uid(&claim));
    world.store.edit(&path, |volume| volume.written = true);
    world.delete_claim("data").await;
    world.event(&uid(&claim), &["Warning ProvisioningCleanupFailed", "not empty", "It is kept"]).await;
    a_while().await;
    assert!(world.store.volumes().contains_key(&path));
    assert_eq!(world.store.count("delete", ""), 0);
}
