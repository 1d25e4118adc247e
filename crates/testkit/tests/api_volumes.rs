//! The volume side of the contract, on a real API server: finalizer, retain, delete, and what stands in their way.
#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]

mod common;

use common::{SOON, World, a_while, annotation, from, has_finalizer, name, phase, policy, terminating, uid};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use std::time::Duration;
use volwright_controller::names;
use volwright_provisioner::{Class, MarkState};
use volwright_testkit::Trick;
use volwright_testkit::harness::eventually;

fn state_of(world: &World, path: &str) -> Option<MarkState> {
    world.store.volumes().get(path)?.mark.as_ref().map(|mark| mark.state)
}

async fn retained(world: &World, path: &str) {
    let look = || async { state_of(world, path) };
    eventually(&format!("{path} is marked retained"), SOON, look, |state| {
        *state == Some(MarkState::Retained)
    })
    .await;
}

/// Waits until `op` was called on `path` at least so often.
async fn called(world: &World, op: &str, path: &str, times: usize) {
    let look = || async { world.store.count(op, path) };
    eventually(&format!("{op} of {path}, {times} times"), SOON, look, |count| *count >= times).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_finalizer_follows_the_policy_and_is_put_back() {
    let world = World::new("follow").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, _) = world.made("data", &class).await;
    let pv = name(&volume);
    assert!(has_finalizer(&volume), "{volume:#?}");
    for _ in 0..2 {
        world.patch_volume(&pv, policy("Retain")).await;
        world.volume_is("no finalizer with Retain", &pv, |v| !has_finalizer(v)).await;
        world.patch_volume(&pv, policy("Delete")).await;
        world.volume_is("finalizer with Delete", &pv, has_finalizer).await;
    }
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": ["example.com/theirs"] } })).await;
    world.volume_is("stripped from a bound PV, it comes back", &pv, has_finalizer).await;
    let volume = world.volume(&pv).await.expect("there");
    assert!(volume.metadata.finalizers.expect("some").iter().any(|f| f == "example.com/theirs"));
    world.patch_volume(&pv, policy("Recycle")).await;
    world.volume_is("Recycle counts as Retain", &pv, |v| !has_finalizer(v)).await;
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_retained_volume_keeps_its_data_until_the_policy_says_delete() {
    let world = World::new("later").await;
    let engine = world.start().await;
    let class = world.class("retain", json!({ "reclaimPolicy": "Retain" })).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    assert!(!has_finalizer(&volume), "no finalizer with Retain, from the first");
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0);
    let before = World::writes(&pv).await.len();
    world.patch_volume(&pv, policy("Delete")).await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
    let writes = World::writes(&pv).await;
    let ours = &writes[before + 1..];
    assert_eq!(ours.len(), 3, "finalizer on, DELETE, finalizer off: {ours:?}");
    assert!(ours.iter().all(|write| write.ends_with("200")), "{ours:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_policy_turned_to_retain_before_the_release_keeps_the_data() {
    let world = World::new("before").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.patch_volume(&pv, policy("Retain")).await;
    world.delete_claim("data").await;
    world.volume_is("released without finalizer", &pv, |v| phase(v) == "Released" && !has_finalizer(v)).await;
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0);
    assert!(world.store.volumes().contains_key(&path) && world.volume(&pv).await.is_some());
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_delete_writes_twice() {
    let world = World::new("writes").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let mut volumes = Vec::new();
    for number in 0..10 {
        volumes.push(name(&world.made(&format!("data-{number}"), &class).await.0));
    }
    for number in 0..10 {
        world.delete_claim(&format!("data-{number}")).await;
    }
    for pv in &volumes {
        world.gone(pv).await;
    }
    engine.stop().await;
    for pv in &volumes {
        assert_eq!(World::writes(pv).await, ["create 201", "delete 200", "patch 200"], "{pv}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_deleted_before_its_claim_stays_until_the_data_is_gone() {
    let world = World::new("first").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.store.always("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    world.delete_volume(&pv).await;
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0, "its claim is still there");
    world.delete_claim("data").await;
    called(&world, "delete", &path, 2).await;
    let volume = world.volume(&pv).await.expect("it waits for its data");
    assert!(terminating(&volume) && has_finalizer(&volume));
    world.store.never("delete");
    world.gone(&pv).await;
    assert!(!world.store.volumes().contains_key(&path), "first the data, then the PV");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_retain_pv_deleted_by_hand_is_recorded_and_its_manifest_brings_it_back() {
    let world = World::new("back").await;
    let engine = world.start().await;
    let class = world.class("retain", json!({ "reclaimPolicy": "Retain" })).await;
    let (volume, path) = world.made("data", &class).await;
    let (pv, pv_uid) = (name(&volume), uid(&volume));
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    world.delete_volume(&pv).await;
    world.gone(&pv).await;
    retained(&world, &path).await;
    let event = world.event(&pv_uid, &["Normal VolumeRetained", "kind: PersistentVolume"]).await;
    let (_, manifest) = event.split_once("kubectl create:\n").expect("a manifest");
    world.apply(manifest).await;
    world.volume_is("comes back", &pv, |v| phase(v) == "Available").await;
    world.claim("again", &class, json!({ "spec": { "volumeName": pv } })).await;
    assert_eq!(name(&world.bound("again").await), pv);
    world.patch_volume(&pv, policy("Delete")).await;
    world.volume_is("finalizer with Delete", &pv, has_finalizer).await;
    world.delete_claim("again").await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_bound_retain_pv_deleted_by_hand_is_recorded_when_it_goes() {
    let world = World::new("bound-retain").await;
    let engine = world.start().await;
    let class = world.class("retain", json!({ "reclaimPolicy": "Retain" })).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.delete_volume(&pv).await;
    world.volume_is("terminating", &pv, terminating).await;
    world.delete_claim("data").await;
    world.gone(&pv).await;
    retained(&world, &path).await;
    world.event(&uid(&volume), &["Normal VolumeRetained", "kind: PersistentVolume"]).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_available_pv_deleted_by_hand_keeps_its_data() {
    let world = World::new("available").await;
    let engine = world.start().await;
    let class = world.class("retain", json!({ "reclaimPolicy": "Retain" })).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    world.patch_volume(&pv, json!({ "spec": { "claimRef": null } })).await;
    world.volume_is("available", &pv, |v| phase(v) == "Available").await;
    world.patch_volume(&pv, policy("Delete")).await;
    world.volume_is("finalizer with Delete", &pv, has_finalizer).await;
    world.delete_volume(&pv).await;
    world.gone(&pv).await;
    retained(&world, &path).await;
    let event = world.event(&uid(&volume), &["Normal VolumeRetained", "kind: PersistentVolume"]).await;
    a_while().await;
    let all = world.events(&uid(&volume)).await;
    assert_eq!(
        all.iter().filter(|e| e.contains("VolumeRetained")).count(),
        1,
        "told once: {all:#?}, {event}"
    );
    assert_eq!(world.store.count("delete", &path), 0);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_failed_pv_is_deleted_like_a_released_one() {
    let world = World::new("failed").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    engine.stop().await;
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    let failed = Patch::Merge(json!({ "status": { "phase": "Failed" } }));
    world.volumes().patch_status(&pv, &PatchParams::default(), &failed).await.expect("patched");
    let engine = world.start().await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_delete_needs_no_class() {
    let world = World::new("classless").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({ "parameters": { "pool": "other" } })).await;
    let (volume, path) = world.made("data", &class).await;
    world.delete_class(&class).await;
    world.delete_claim("data").await;
    world.gone(&name(&volume)).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn on_delete_retain_keeps_the_data_and_says_where() {
    let world = World::new("keep").await;
    let engine = world.start().await;
    let class = world.class("keep", json!({ "parameters": { "onDelete": "retain" } })).await;
    let (volume, path) = world.made("data", &class).await;
    assert_eq!(annotation(&volume, names::ON_DELETE).as_deref(), Some("retain"));
    world.delete_claim("data").await;
    world.gone(&name(&volume)).await;
    retained(&world, &path).await;
    world.event(&uid(&volume), &["Normal VolumeRetained", &path]).await;
    assert_eq!(world.store.count("delete", &path), 0);
    // Its data went meanwhile: nothing is left to keep, and the PV must not stay for ever.
    let (volume, path) = world.made("empty", &class).await;
    world.store.remove(&path);
    world.delete_claim("empty").await;
    world.gone(&name(&volume)).await;
    world.event(&uid(&volume), &["VolumeAbsent"]).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_unknown_on_delete_blocks_and_names_the_remedy() {
    let world = World::new("unknown").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.patch_volume(&pv, json!({ "metadata": { "annotations": { (names::ON_DELETE): "retian" } } })).await;
    world.delete_claim("data").await;
    world
        .event(&uid(&volume), &["Warning VolumeFailedDelete", "retian", "use delete, retain or trash"])
        .await;
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0);
    assert!(!terminating(&world.volume(&pv).await.expect("it stays")));
    world.patch_volume(&pv, json!({ "metadata": { "annotations": { (names::ON_DELETE): "delete" } } })).await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_finalizer_stripped_at_release_is_mended_in_three_writes() {
    let world = World::new("mend").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    engine.stop().await;
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
    world.store.once("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    let before = World::writes(&pv).await.len();
    let engine = world.start().await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
    let writes = World::writes(&pv).await;
    assert_eq!(writes[before..], ["patch 200", "delete 200", "patch 200"], "{writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn provisioned_by_is_put_back() {
    let world = World::new("stripped").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world
        .patch_volume(&pv, json!({ "metadata": { "annotations": { (names::PROVISIONED_BY): null } } }))
        .await;
    let back = |v: &PersistentVolume| annotation(v, names::PROVISIONED_BY).as_ref() == Some(&world.name);
    world.volume_is("provisioned-by is back", &pv, back).await;
    world.event(&uid(&volume), &["Warning VolumeRepaired"]).await;
    world.delete_claim("data").await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_stripped_pv_of_another_provisioner_of_the_same_kind_is_left_alone() {
    let (world, other) = (World::new("mine").await, World::new("theirs").await);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, _) = world.made("data", &class).await;
    let pv = name(&volume);
    engine.stop().await;
    let stranger = other.start().await;
    world
        .patch_volume(&pv, json!({ "metadata": { "annotations": { (names::PROVISIONED_BY): null } } }))
        .await;
    a_while().await;
    let volume = world.volume(&pv).await.expect("there");
    assert_eq!(annotation(&volume, names::PROVISIONED_BY), None, "it is not the stranger's to put back");
    stranger.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_delete_is_retried_for_ever_with_growing_gaps() {
    let mut world = World::new("retry").await;
    world.options.backoff_max = Duration::from_secs(60);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    world.store.always("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    world.delete_claim("data").await;
    called(&world, "delete", &path, 3).await;
    a_while().await;
    // 0.1, 0.2, 0.4, 0.8, 1.6, 3.2 s: fixed gaps of 0.1 s would be over 30 calls.
    let calls = world.store.count("delete", &path);
    assert!(calls <= 8, "{calls} calls");
    let event = world.event(&uid(&volume), &["Warning VolumeFailedDelete", "the storage is away"]).await;
    assert_eq!(world.events(&uid(&volume)).await.len(), 1, "one event that counts, not one a try: {event}");
    world.store.never("delete");
    world.gone(&name(&volume)).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_unknown_or_pending_delete_is_asked_again_until_final() {
    let mut world = World::new("unsure").await;
    world.options.backend_timeout = Duration::from_secs(1);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    for (claim, trick) in [
        ("lost", Trick::LoseReply),
        ("pending", Trick::Pending(Duration::from_millis(200))),
        ("hung", Trick::Hang),
    ] {
        let (volume, path) = world.made(claim, &class).await;
        world.store.once("delete", trick);
        world.delete_claim(claim).await;
        world.gone(&name(&volume)).await;
        assert!(!world.store.volumes().contains_key(&path), "{claim}");
        assert_eq!(world.store.count("delete", &path), 2, "{claim}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn absent_data_is_a_done_delete_with_one_event() {
    let world = World::new("absent").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    world.store.remove(&path);
    world.delete_claim("data").await;
    world.gone(&name(&volume)).await;
    world.event(&uid(&volume), &["Normal VolumeAbsent x1"]).await;
    a_while().await;
    let events = world.events(&uid(&volume)).await;
    assert_eq!(events.len(), 1, "{events:#?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_used_volume_is_waited_for_quietly() {
    let world = World::new("used").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.store.edit(&path, |stored| stored.users = vec!["client 10.0.0.7".to_owned()]);
    let seen = world.store.count("observe", &path);
    world.delete_claim("data").await;
    called(&world, "observe", &path, seen + 6).await;
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0);
    assert!(!terminating(&world.volume(&pv).await.expect("it stays")), "what can be seen before DELETE is");
    let events = world.events(&uid(&volume)).await;
    assert!(events.len() <= 1, "{events:#?}");
    assert!(events.iter().all(|event| event.contains("client 10.0.0.7")), "{events:#?}");
    world.store.edit(&path, |stored| stored.users.clear());
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_attached_csi_volume_waits_for_its_detach() {
    let world = World::new("attached").await;
    let engine = world.start().await;
    let class = world.class("csi", json!({ "parameters": { "shape": "csi" } })).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    let attachment = format!("va-{}", world.namespace);
    world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "VolumeAttachment",
            "metadata": { "name": attachment },
            "spec": { "attacher": "csi.test", "nodeName": "node-a", "source": { "persistentVolumeName": pv } },
        }))
        .await;
    let seen = world.store.count("observe", &path);
    world.delete_claim("data").await;
    world.volume_is("fenced", &pv, terminating).await;
    called(&world, "observe", &path, seen + 5).await;
    assert_eq!(world.store.count("delete", &path), 0);
    let attachments: kube::Api<k8s_openapi::api::storage::v1::VolumeAttachment> =
        kube::Api::all(world.client.clone());
    attachments.delete(&attachment, &kube::api::DeleteParams::default()).await.expect("detached");
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn other_finalizers_are_not_waited_for_and_are_no_orphan() {
    let world = World::new("others").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    for (claim, on_delete) in [("data", "delete"), ("kept", "retain")] {
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        let change = json!({ "metadata": {
            "finalizers": ["example.com/theirs", names::FINALIZER],
            "annotations": { (names::ON_DELETE): on_delete },
        }});
        world.patch_volume(&pv, change).await;
        world.delete_claim(claim).await;
        world.volume_is("only theirs is left", &pv, |v| terminating(v) && !has_finalizer(v)).await;
        assert_eq!(world.store.volumes().contains_key(&path), on_delete == "retain");
        a_while().await;
        let events = world.events(&uid(&volume)).await;
        assert!(events.iter().all(|event| !event.starts_with("Warning")), "{events:#?}");
        world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
        world.gone(&pv).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_that_terminates_without_our_finalizer_is_a_reported_orphan() {
    let world = World::new("orphan").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    engine.stop().await;
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": ["example.com/theirs"] } })).await;
    world.delete_volume(&pv).await;
    world.delete_claim("data").await;
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    let engine = world.start().await;
    world.event(&uid(&volume), &["Warning VolumeFailedDelete", "without our finalizer"]).await;
    assert_eq!(world.store.count("delete", &path), 0);
    assert!(world.store.volumes().contains_key(&path));
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_made_again_has_nothing_to_do_with_the_old_ones_delete() {
    let world = World::new("again").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (old, old_path) = world.made("data", &class).await;
    world.store.always("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    world.delete_claim("data").await;
    called(&world, "delete", &old_path, 2).await;
    let (new, new_path) = world.made("data", &class).await;
    assert_ne!(old_path, new_path);
    called(&world, "delete", &old_path, 4).await;
    world.store.never("delete");
    world.gone(&name(&old)).await;
    world.data_gone(&old_path).await;
    a_while().await;
    assert_eq!(world.store.count("delete", &new_path), 0);
    assert_eq!(phase(&world.volume(&name(&new)).await.expect("there")), "Bound");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_denied_delete_destroys_nothing_and_leaves_no_trace_when_the_pv_is_used_again() {
    let mut world = World::new("denied").await;
    let rules = |verbs: &[&str]| {
        json!([
            { "apiGroups": [""], "resources": ["persistentvolumes"], "verbs": verbs },
            { "apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get", "list", "watch", "patch"] },
            { "apiGroups": ["storage.k8s.io"], "resources": ["storageclasses"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        ])
    };
    let (role, user) = (world.namespace.clone(), format!("user-{}", world.namespace));
    let rbac = "rbac.authorization.k8s.io";
    let most = ["get", "list", "watch", "create", "patch"];
    let kind = format!("{rbac}/v1");
    world
        .create(json!({ "apiVersion": kind, "kind": "ClusterRole", "metadata": { "name": role }, "rules": rules(&most) }))
        .await;
    world
        .create(json!({
            "apiVersion": kind, "kind": "ClusterRoleBinding", "metadata": { "name": role },
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": role },
            "subjects": [{ "apiGroup": rbac, "kind": "User", "name": user }],
        }))
        .await;
    world.kubeconfig = common::plane().await.lock().await.client_for(&user, &[]).expect("a kubeconfig");
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.delete_claim("data").await;
    world.event(&uid(&volume), &["Warning VolumeFailedDelete", "delete", "persistentvolumes"]).await;
    assert!(world.store.volumes().contains_key(&path) && world.store.count("delete", &path) == 0);
    // Somebody takes it for another claim, and the role is mended.
    world.patch_volume(&pv, json!({ "spec": { "claimRef": null } })).await;
    world.claim("second", &class, json!({ "spec": { "volumeName": pv } })).await;
    assert_eq!(name(&world.bound("second").await), pv);
    let cluster_roles: kube::Api<k8s_openapi::api::rbac::v1::ClusterRole> =
        kube::Api::all(world.client.clone());
    let all = ["get", "list", "watch", "create", "patch", "delete"];
    let change: serde_json::Value = from(json!({ "rules": rules(&all) }));
    cluster_roles.patch(&role, &PatchParams::default(), &Patch::Merge(change)).await.expect("patched");
    a_while().await;
    assert_eq!(world.store.count("delete", &path), 0, "it is bound");
    world.delete_claim("second").await;
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}
