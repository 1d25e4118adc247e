//! What must never happen to data, on a real API server. Where a rule has a name, a test also shows that without it the
//! data is lost: so it is the rule that protects.
#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]

mod common;

use common::{World, a_while, annotation, copy_of, has_finalizer, name, phase, policy, terminating, uid};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use std::time::Duration;
use volwright_controller::decide::{Rule, Rules};
use volwright_controller::names;
use volwright_provisioner::{ClaimUid, Class, InstallationId, MarkState, Placement};
use volwright_testkit::harness::eventually;
use volwright_testkit::{Options, Trick};

/// Waits until `op` was called on `path` at least so often.
async fn called(world: &World, op: &str, path: &str, times: usize) {
    let look = || async { world.store.count(op, path) };
    eventually(&format!("{op} of {path}, {times} times"), common::SOON, look, |count| *count >= times).await;
}

/// The data is there, nobody has called delete on it, and the engine has had its time.
async fn kept(world: &World, path: &str) {
    a_while().await;
    assert_eq!(world.store.count("delete", path), 0, "{:#?}", world.store.calls());
    assert!(world.store.volumes().contains_key(path));
}

fn with(world: &World, rule: Rule) -> [Options; 2] {
    let without = Options { rules: Rules::without(rule), ..world.options.clone() };
    [world.options.clone(), without]
}

/// Removes a claim and its PV while no engine runs, as `kubectl delete` and a stripped finalizer would.
async fn removed(world: &World, claim: &str, pv: &str) {
    world.delete_claim(claim).await;
    world.volume_is("released", pv, |v| phase(v) == "Released").await;
    world.patch_volume(pv, json!({ "metadata": { "finalizers": null } })).await;
    world.delete_volume(pv).await;
    world.gone(pv).await;
}

fn static_nfs(name: &str, server: &str, path: &str, change: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "nfs": { "server": server, "path": path },
        },
    });
    common::merge(&mut object, change);
    object
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_handle_that_cannot_be_read_deletes_nothing_and_says_what_to_do() {
    let world = World::new("handle").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let cases = [
        ("missing", Value::Null, "put it back"),
        ("garbage", json!("{"), "not readable"),
        ("newer", json!(r#"{"version":2,"backend":"memory","handle":{}}"#), "upgrade"),
        ("foreign", json!(r#"{"version":1,"backend":"ebs","handle":{}}"#), "belongs to the backend \"ebs\""),
        ("empty", json!(r#"{"version":1,"backend":"memory","handle":{}}"#), "not readable"),
    ];
    for (claim, handle, remedy) in cases {
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        let good = annotation(&volume, names::HANDLE).expect("a handle");
        world.patch_volume(&pv, json!({ "metadata": { "annotations": { (names::HANDLE): handle } } })).await;
        world.delete_claim(claim).await;
        world.event(&uid(&volume), &["Warning VolumeFailedDelete", remedy, "nothing will be deleted"]).await;
        kept(&world, &path).await;
        assert!(!terminating(&world.volume(&pv).await.expect("it stays")), "{claim}");
        world.patch_volume(&pv, json!({ "metadata": { "annotations": { (names::HANDLE): good } } })).await;
        world.gone(&pv).await;
        world.data_gone(&path).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn source_matches_handle_a_pv_made_again_elsewhere_deletes_nothing() {
    let world = World::new("elsewhere").await;
    let class = world.class("delete", json!({})).await;
    for (claim, options) in ["kept", "lost"].into_iter().zip(with(&world, Rule::SourceMatchesHandle)) {
        let engine = world.start_with(&options).await;
        let (volume, path) = world.made(claim, &class).await;
        engine.stop().await;
        removed(&world, claim, &name(&volume)).await;
        let mut moved = copy_of(&volume);
        moved["spec"]["nfs"]["path"] = json!(format!("/elsewhere-{claim}"));
        let moved = world.create(moved).await;
        let engine = world.start_with(&options).await;
        if claim == "kept" {
            let remedy = "source is not the one of its handle";
            world.event(&uid(&moved), &["Warning VolumeFailedDelete", remedy]).await;
            kept(&world, &path).await;
            world.patch_volume(&name(&volume), policy("Retain")).await;
        } else {
            world.data_gone(&path).await;
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_and_handle_pointed_at_anothers_data_let_it_go() {
    let world = World::new("pointed").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (attacker, own_path) = world.made("attacker", &class).await;
    let (victim, victim_path) = world.made("victim", &class).await;
    engine.stop().await;
    // The victim's own PV is away for a while (backup and restore), so no alias protects it: only the mark does.
    removed(&world, "victim", &name(&victim)).await;
    removed(&world, "attacker", &name(&attacker)).await;
    let mut forged = copy_of(&attacker);
    forged["spec"]["nfs"]["path"] = json!(victim_path);
    forged["metadata"]["annotations"][names::HANDLE] = json!(annotation(&victim, names::HANDLE));
    let forged = world.create(forged).await;
    let engine = world.start().await;
    world.event(&uid(&forged), &["Warning VolumeFailedDelete", "another owner's mark"]).await;
    world.gone(&name(&attacker)).await;
    kept(&world, &victim_path).await;
    kept(&world, &own_path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn anothers_mark_or_none_keeps_the_data_and_lets_the_pv_go() {
    let world = World::new("mark").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    for claim in ["other", "none"] {
        let (volume, path) = world.made(claim, &class).await;
        world.store.edit(&path, |stored| match (claim, stored.mark.as_mut()) {
            ("other", Some(mark)) => mark.owner = ClaimUid::new("somebody else"),
            _ => stored.mark = None,
        });
        world.delete_claim(claim).await;
        world.gone(&name(&volume)).await;
        world.event(&uid(&volume), &["Warning VolumeFailedDelete", "mark", "kept"]).await;
        kept(&world, &path).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn another_installations_data_stays_when_its_objects_are_copied() {
    let world = World::new("copied").await;
    let class = world.class("delete", json!({})).await;
    let stranger = Options { installation: InstallationId::new("other-cluster"), ..world.options.clone() };
    for (claim, options, stays) in [("theirs", stranger, true), ("ours", world.options.clone(), false)] {
        let engine = world.start().await;
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        engine.stop().await;
        removed(&world, claim, &pv).await;
        // As velero restores: same names and annotations, new uids, claimRef without one.
        let mut copy = copy_of(&volume);
        let reference = copy["spec"]["claimRef"].as_object_mut().expect("a claimRef");
        reference.retain(|key, _| ["namespace", "name", "kind", "apiVersion"].contains(&key.as_str()));
        let copy = world.create(copy).await;
        world.claim(claim, &class, json!({ "spec": { "volumeName": pv } })).await;
        assert_eq!(name(&world.bound(claim).await), pv);
        let engine = world.start_with(&options).await;
        world.volume_is("taken up", &pv, has_finalizer).await;
        world.delete_claim(claim).await;
        world.gone(&pv).await;
        if stays {
            world.event(&uid(&copy), &["Warning VolumeFailedDelete", "another owner's mark"]).await;
            kept(&world, &path).await;
        } else {
            world.data_gone(&path).await;
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn no_alias_a_second_pv_on_the_same_data_a_parent_or_a_child_keeps_it() {
    let mut world = World::new("alias").await;
    // Who waits for an alias to go is woken when it goes, and need not wait for its next try.
    world.options.backoff_max = Duration::from_secs(600);
    let class = world.class("delete", json!({})).await;
    let engine = world.start().await;
    let other = json!({ "metadata": { "annotations": { (names::PROVISIONED_BY): "nfs.csi.k8s.io" } },
                        "spec": { "persistentVolumeReclaimPolicy": "Delete" } });
    let cases = [("same", "", json!({})), ("child", "/sub/dir", json!({})), ("driver", "/", other)];
    for (claim, below, change) in cases {
        let (volume, path) = world.made(claim, &class).await;
        let alias = format!("{}-{claim}", world.namespace);
        world.create(static_nfs(&alias, &world.server(), &format!("{path}{below}"), change)).await;
        world.delete_claim(claim).await;
        world.event(&uid(&volume), &["Warning VolumeFailedDelete", &alias, "remove that PV"]).await;
        kept(&world, &path).await;
        world.delete_volume(&alias).await;
        world.gone(&name(&volume)).await;
        world.data_gone(&path).await;
    }
    let (volume, path) = world.made("parent", &class).await;
    let alias = format!("{}-parent", world.namespace);
    world.create(static_nfs(&alias, &world.server(), "/pool", json!({}))).await;
    world.delete_claim("parent").await;
    world.event(&uid(&volume), &["Warning VolumeFailedDelete", &alias]).await;
    kept(&world, &path).await;
    engine.stop().await;
    let engine = world.start_with(&with(&world, Rule::NoAlias)[1]).await;
    world.data_gone(&path).await;
    world.delete_volume(&alias).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn of_two_released_pvs_of_one_volume_the_marked_one_deletes_it() {
    let mut world = World::new("two").await;
    // Who waits for an alias to go is woken when it goes, and need not wait for its next try.
    world.options.backoff_max = Duration::from_secs(600);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let mut alias = copy_of(&volume);
    alias["metadata"]["name"] = json!(format!("{}-alias", world.namespace));
    alias["spec"]["claimRef"]["uid"] = json!("11111111-2222-3333-4444-555555555555");
    world.store.always("observe", Trick::Fail(Class::Unavailable, "not yet"));
    let alias = world.create(alias).await;
    world.delete_claim("data").await;
    world.volume_is("released", &name(&volume), |v| phase(v) == "Released").await;
    world
        .volume_is("released", alias.metadata.name.as_deref().unwrap_or_default(), |v| phase(v) == "Released")
        .await;
    world.store.never("observe");
    world.gone(&name(&volume)).await;
    world.gone(alias.metadata.name.as_deref().unwrap_or_default()).await;
    world.data_gone(&path).await;
    world.event(&uid(&alias), &["Warning VolumeFailedDelete", "another owner's mark"]).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn no_claim_names_it_a_claim_that_asks_for_the_terminating_pv_keeps_the_data() {
    let world = World::new("named").await;
    let class = world.class("delete", json!({})).await;
    for (claim, second) in [("same-name", "same-name"), ("other-name", "rescue")] {
        let engine = world.start().await;
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        world.store.edit(&path, |stored| stored.users = vec!["somebody".to_owned()]);
        world.delete_volume(&pv).await;
        world.delete_claim(claim).await;
        world.volume_is("released, terminating", &pv, |v| phase(v) == "Released" && terminating(v)).await;
        world.claim(second, &class, json!({ "spec": { "volumeName": pv } })).await;
        a_while().await;
        world.store.edit(&path, |stored| stored.users.clear());
        kept(&world, &path).await;
        world.event(&uid(&volume), &["Warning VolumeFailedDelete", "spec.volumeName"]).await;
        if claim == "same-name" {
            world.delete_claim(second).await;
        } else {
            engine.stop().await;
            let engine = world.start_with(&with(&world, Rule::NoClaimNamesIt)[1]).await;
            world.data_gone(&path).await;
            engine.stop().await;
            continue;
        }
        world.gone(&pv).await;
        world.data_gone(&path).await;
        engine.stop().await;
    }
}

async fn turn_to_retain(world: &World, pv: &str) {
    world.patch_volume(pv, policy("Retain")).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn policy_turned_to_retain_before_the_fence_keeps_pv_and_data() {
    let world = World::new("turn-before").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    let seen = world.store.count("observe", &path);
    world.store.once("observe", Trick::Slow(Duration::from_secs(3)));
    world.delete_claim("data").await;
    called(&world, "observe", &path, seen + 1).await;
    turn_to_retain(&world, &pv).await;
    world.volume_is("no finalizer with Retain", &pv, |v| !has_finalizer(v)).await;
    kept(&world, &path).await;
    assert!(!terminating(&world.volume(&pv).await.expect("it stays")));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn policy_turned_to_retain_between_the_fence_and_the_delete_keeps_the_data() {
    let world = World::new("turn-fenced").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    // Each question takes so long that the policy turns while the last one before the delete is asked.
    world.store.always("observe", Trick::Slow(Duration::from_secs(2)));
    world.delete_claim("data").await;
    world.volume_is("fenced", &pv, terminating).await;
    turn_to_retain(&world, &pv).await;
    world.gone(&pv).await;
    world.event(&uid(&volume), &["Normal VolumeRetained", "kind: PersistentVolume"]).await;
    kept(&world, &path).await;
    assert_eq!(world.store.volumes()[&path].mark.as_ref().map(|mark| mark.state), Some(MarkState::Retained));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn policy_turned_to_retain_while_a_delete_is_retried_stops_it() {
    let mut world = World::new("turn-retry").await;
    world.options.backend_timeout = Duration::from_secs(2);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    for (claim, trick) in [
        ("failing", Trick::Fail(Class::Unavailable, "the storage is away")),
        ("pending", Trick::Pending(Duration::from_millis(300))),
        ("hanging", Trick::Hang),
    ] {
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        world.store.always("delete", trick);
        world.delete_claim(claim).await;
        called(&world, "delete", &path, 1).await;
        turn_to_retain(&world, &pv).await;
        world.gone(&pv).await;
        world.store.never("delete");
        world.event(&uid(&volume), &["Normal VolumeRetained", "kind: PersistentVolume"]).await;
        let calls = world.store.count("delete", &path);
        a_while().await;
        assert_eq!(world.store.count("delete", &path), calls, "{claim}: no delete after the turn");
        assert!(world.store.volumes().contains_key(&path), "{claim}");
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn policy_turned_to_retain_when_the_data_is_already_gone_does_not_keep_the_pv_for_ever() {
    let world = World::new("turn-late").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.store.once("delete", Trick::LoseReply);
    world.store.always("observe", Trick::Slow(Duration::from_secs(1)));
    world.delete_claim("data").await;
    world.data_gone(&path).await;
    turn_to_retain(&world, &pv).await;
    world.gone(&pv).await;
    world.event(&uid(&volume), &["VolumeAbsent"]).await;
    assert!(world.events(&uid(&volume)).await.iter().all(|event| !event.contains("VolumeRetained")));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_given_to_another_driver_during_its_delete_is_left_alone() {
    let world = World::new("given").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.store.always("observe", Trick::Slow(Duration::from_secs(2)));
    world.delete_claim("data").await;
    world.volume_is("fenced", &pv, terminating).await;
    let given = json!({ "metadata": { "annotations": { (names::PROVISIONED_BY): "nfs.csi.k8s.io" } } });
    world.patch_volume(&pv, given).await;
    kept(&world, &path).await;
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn same_volume_a_handle_edited_after_the_delete_began_stops_it() {
    let world = World::new("edited").await;
    let class = world.class("delete", json!({})).await;
    for (claim, options) in ["kept", "lost"].into_iter().zip(with(&world, Rule::SameVolume)) {
        let engine = world.start_with(&options).await;
        let (volume, path) = world.made(claim, &class).await;
        let pv = name(&volume);
        world.store.always("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
        world.delete_volume(&pv).await;
        world.delete_claim(claim).await;
        called(&world, "delete", &path, 2).await;
        // The same source, but not the handle that the delete began with.
        let handle = annotation(&volume, names::HANDLE).expect("a handle").replace("null", "\"node-b\"");
        world.patch_volume(&pv, json!({ "metadata": { "annotations": { (names::HANDLE): handle } } })).await;
        a_while().await;
        world.store.never("delete");
        if claim == "kept" {
            world
                .event(&uid(&volume), &["Warning VolumeFailedDelete", "changed since its delete began"])
                .await;
            a_while().await;
            assert!(world.store.volumes().contains_key(&path));
            world.patch_volume(&pv, policy("Retain")).await;
            world.gone(&pv).await;
        } else {
            world.data_gone(&path).await;
        }
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_made_again_under_its_name_is_not_held_to_the_old_ones_record() {
    let world = World::new("reborn").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (volume, path) = world.made("data", &class).await;
    let pv = name(&volume);
    world.store.always("delete", Trick::Slow(Duration::from_secs(3)));
    world.store.once("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    world.delete_claim("data").await;
    called(&world, "delete", &path, 2).await;
    // While a call is under way the PV goes and comes back: the engine sees only the new one.
    world.store.edit(&path, |stored| stored.users = vec!["somebody".to_owned()]);
    world.patch_volume(&pv, json!({ "metadata": { "finalizers": null } })).await;
    world.create(copy_of(&volume)).await;
    world.store.never("delete");
    a_while().await;
    assert!(world.volume(&pv).await.is_some_and(|v| !terminating(&v)));
    world.store.edit(&path, |stored| stored.users.clear());
    world.gone(&pv).await;
    world.data_gone(&path).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_root_that_is_not_there_is_not_an_empty_one() {
    let world = World::new("root").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let (released, released_path) = world.made("released", &class).await;
    let (by_hand, by_hand_path) = world.made("by-hand", &class).await;
    world.store.hide_root(true);
    world.delete_claim("released").await;
    world.patch_volume(&name(&by_hand), policy("Retain")).await;
    world.delete_claim("by-hand").await;
    world.volume_is("released", &name(&by_hand), |v| phase(v) == "Released" && !has_finalizer(v)).await;
    world.delete_volume(&name(&by_hand)).await;
    world.claim("new", &class, json!({})).await;
    world.event(&uid(&released), &["Warning VolumeFailedDelete", "root"]).await;
    a_while().await;
    let paths: Vec<_> = world.store.volumes().into_keys().collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    let waiting = world.volume(&name(&released)).await.expect("it stays");
    assert!(has_finalizer(&waiting) && phase(&waiting) == "Released");
    world.store.hide_root(false);
    world.gone(&name(&released)).await;
    world.data_gone(&released_path).await;
    world.bound("new").await;
    let look = || async { world.store.volumes()[&by_hand_path].mark.clone().map(|mark| mark.state) };
    eventually("marked", common::SOON, look, |state| *state == Some(MarkState::Retained)).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn pvs_of_others_are_never_touched() {
    let world = World::new("foreign").await;
    let engine = world.start().await;
    let foreign = static_nfs(
        &format!("{}-foreign", world.namespace),
        &world.server(),
        "/theirs",
        json!({
            "metadata": { "annotations": { (names::PROVISIONED_BY): "nfs.csi.k8s.io" } },
            "spec": {
                "persistentVolumeReclaimPolicy": "Delete",
                "claimRef": { "namespace": world.namespace, "name": "gone", "uid": "11111111-2222-3333-4444-555555555555" },
            },
        }),
    );
    let foreign = world.create(foreign).await;
    let pv = foreign.metadata.name.clone().unwrap_or_default();
    world.volume_is("released", &pv, |v| phase(v) == "Released").await;
    a_while().await;
    let untouched = |v: &PersistentVolume| !has_finalizer(v) && !terminating(v);
    assert!(untouched(&world.volume(&pv).await.expect("there")));
    assert!(world.store.calls().is_empty(), "{:?}", world.store.calls());
    world.volumes().delete(&pv, &DeleteParams::default()).await.expect("removed");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_agent_puts_its_label_back_and_lists_what_its_watch_cannot_show() {
    let mut world = World::new("agent").await;
    let node = world.node("a").await;
    world.options.placement = Placement::PerNode { node: node.clone() };
    let engine = world.start().await;
    let class = world.class("late", json!({ "volumeBindingMode": "WaitForFirstConsumer" })).await;
    let mut made = Vec::new();
    for claim in ["data", "kept", "going"] {
        world.claim(claim, &class, json!({})).await;
        world.select_node(claim, &node).await;
        let volume = world.bound(claim).await;
        made.push((name(&volume), World::path_of(&volume), volume));
    }
    let labelled =
        |v: &PersistentVolume| v.metadata.labels.as_ref().is_some_and(|l| l.contains_key(names::NODE_LABEL));
    let strip = json!({ "metadata": { "labels": { (names::NODE_LABEL): null } } });

    // A PV that keeps its data and only lost its label was not deleted.
    let (pv, path, volume) = &made[1];
    world.patch_volume(pv, policy("Retain")).await;
    world.volume_is("no finalizer with Retain", pv, |v| !has_finalizer(v)).await;
    world.patch_volume(pv, strip.clone()).await;
    world.volume_is("its label is back", pv, labelled).await;
    world.event(&uid(volume), &["Warning VolumeRepaired"]).await;
    let state = |path: &str| world.store.volumes()[path].mark.as_ref().map(|mark| mark.state);
    assert_eq!(state(path), Some(MarkState::Published));

    // One that is on its way out as well: nobody else would ever end it.
    let (pv, path, _) = &made[2];
    world.store.always("delete", Trick::Fail(Class::Unavailable, "the storage is away"));
    world.delete_claim("going").await;
    called(&world, "delete", path, 1).await;
    world.patch_volume(pv, strip).await;
    world.volume_is("its label is back", pv, labelled).await;
    world.store.never("delete");
    world.gone(pv).await;
    world.data_gone(path).await;

    let (pv, path, volume) = &made[0];
    let alias = format!("{}-alias", world.namespace);
    world.create(static_nfs(&alias, &world.server(), &format!("{path}/below"), json!({}))).await;
    world.delete_claim("data").await;
    world.event(&uid(volume), &["Warning VolumeFailedDelete", &alias, "remove that PV"]).await;
    kept(&world, path).await;
    world.delete_volume(&alias).await;
    world.gone(pv).await;
    world.data_gone(path).await;
    engine.stop().await;
}
