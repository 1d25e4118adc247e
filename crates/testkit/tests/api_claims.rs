//! Claims against a real API server: whose they are, when they are served, and what their PVs say.
#![allow(clippy::expect_used, clippy::type_complexity, reason = "helpers of tests, and tables of cases")]

mod common;

use common::{SELECTED_NODE, SOON, World, a_while, annotation, name, uid};
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::OnceCell;
use volwright_controller::names;
use volwright_lab::control_plane::{ControlPlane, Options as ControlPlaneOptions};
use volwright_provisioner::Class;
use volwright_testkit::Trick;
use volwright_testkit::harness::eventually;

static BARE: OnceCell<ControlPlane> = OnceCell::const_new();

/// A control plane without kube-controller-manager, which would write the annotations that these tests are about.
async fn bare(test: &str) -> World {
    let plane = BARE.get_or_init(|| async {
        let options = ControlPlaneOptions { kcm: false, scheduler: false, ..ControlPlaneOptions::default() };
        ControlPlane::start(options).await.expect("a control plane starts")
    });
    let kubeconfig: PathBuf = plane.await.kubeconfig().to_owned();
    World::on(test, kubeconfig).await
}

fn asked(provisioner: &str) -> Value {
    annotated(&[(names::STORAGE_PROVISIONER, provisioner)])
}

fn annotated(annotations: &[(&str, &str)]) -> Value {
    json!({ "metadata": { "annotations": annotations.iter().copied().collect::<BTreeMap<_, _>>() } })
}

fn late() -> Value {
    json!({ "volumeBindingMode": "WaitForFirstConsumer" })
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_annotation_says_who_acts_and_its_newer_spelling_wins() {
    let world = bare("asked").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let (ours, other) = (world.name.as_str(), "other.example");
    let (ga, beta) = (names::STORAGE_PROVISIONER, names::STORAGE_PROVISIONER_BETA);
    let cases: [(&str, &[(&str, &str)], bool); 7] = [
        ("nobody", &[], false),
        ("foreign", &[(ga, other)], false),
        ("beta-only", &[(beta, ours)], true),
        ("ga-only", &[(ga, ours)], true),
        ("both", &[(ga, ours), (beta, ours)], true),
        ("ga-ours", &[(ga, ours), (beta, other)], true),
        ("ga-foreign", &[(ga, other), (beta, ours)], false),
    ];
    let mut left_alone = Vec::new();
    for (case, annotations, served) in cases {
        let claim = world.claim(case, &class, annotated(annotations)).await;
        if served {
            world.published(&uid(&claim)).await;
        } else {
            left_alone.push((case, uid(&claim)));
        }
    }
    a_while().await;
    for (case, uid) in &left_alone {
        assert!(world.volume_of(uid).await.is_none(), "{case}");
        assert_eq!(world.store.count("plan", uid), 0, "{case}");
        assert_eq!(world.events(uid).await, Vec::<String>::new(), "{case}");
    }
    world.patch_claim("nobody", asked(ours)).await;
    world.published(&left_alone[0].1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_class_of_another_provisioner_is_not_served_whatever_the_claim_says() {
    let world = bare("classof").await;
    let _engine = world.start().await;
    let class = world.class("other", json!({ "provisioner": "other.example" })).await;
    let claim = world.claim("data", &class, asked(&world.name)).await;
    a_while().await;
    assert!(world.volume_of(&uid(&claim)).await.is_none());
    assert_eq!(world.store.calls(), Vec::new());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_missing_class_is_named_and_its_claims_are_served_once_it_exists() {
    let world = bare("noclass").await;
    let _engine = world.start().await;
    let class = format!("{}-late", world.namespace);
    let claim = world.claim("data", &class, asked(&world.name)).await;
    world
        .event(&uid(&claim), &["Warning ProvisioningFailed", "StorageClass", &class, "does not exist"])
        .await;
    assert_eq!(world.store.calls(), Vec::new());
    world.class("late", json!({})).await;
    world.published(&uid(&claim)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_older_than_its_class_binds_without_being_made_anew() {
    let world = World::new("older").await;
    let _engine = world.start().await;
    let claim = world.claim("data", &format!("{}-late", world.namespace), json!({})).await;
    a_while().await;
    world.class("late", json!({})).await;
    world.bound("data").await;
    assert_eq!(uid(&world.claim_now("data").await), uid(&claim));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn late_binding_waits_for_the_selected_node() {
    let world = World::new("late").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    // The annotation stays when a node is taken back, so a claim may be asked for and yet have no node.
    world.claim("asked", &class, asked(&world.name)).await;
    world.claim("data", &class, json!({})).await;
    a_while().await;
    assert_eq!(world.store.calls(), Vec::new());
    let node = world.node("a").await;
    for claim in ["asked", "data"] {
        world.select_node(claim, &node).await;
        world.bound(claim).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_choice_of_a_node_that_is_gone_is_taken_back_with_one_warning() {
    let world = World::new("gone").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let claim = world.claim("data", &class, json!({})).await;
    world.select_node("data", "ghost").await;
    world.unselected("data").await;
    world
        .event(&uid(&claim), &["Warning ProvisioningFailed", "selected node \"ghost\" does not exist"])
        .await;
    a_while().await;
    let warnings: Vec<_> =
        world.events(&uid(&claim)).await.into_iter().filter(|e| e.starts_with("Warning")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(world.store.calls(), Vec::new(), "nothing was begun for a node that is not there");
    let node = world.node("a").await;
    world.select_node("data", &node).await;
    world.bound("data").await;
}

/// Plays a scheduler that chooses the same node again at once. Returns how often the choice was taken back within
/// `period`.
async fn removals(world: &World, claim: &str, node: &str, period: Duration) -> usize {
    let mut removals = 0;
    let count = async {
        loop {
            world.select_node(claim, node).await;
            while annotation(&world.claim_now(claim).await, SELECTED_NODE).is_some() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            removals += 1;
        }
    };
    tokio::time::timeout(period, count).await.expect_err("it goes on for ever");
    removals
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_choice_made_again_and_again_is_taken_back_ever_more_seldom() {
    let mut world = World::new("rarer").await;
    world.options.backoff_max = Duration::from_mins(1);
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let node = world.node("full").await;
    world.store.always("plan", Trick::Fail(Class::Exhausted, "the node is full"));
    for (claim, node) in [("ghost", "ghost"), ("full", node.as_str())] {
        let object = world.claim(claim, &class, asked(&world.name)).await;
        // Delays of 0, 0.1, 0.2, 0.4, ... s: the ninth removal is not before 12.7 s. At the first delay for ever there
        // would be 60 and more.
        let removals = removals(&world, claim, node, Duration::from_secs(8)).await;
        assert!((3..=8).contains(&removals), "{claim}: {removals} removals");
        let events = world.events(&uid(&object)).await;
        assert_eq!(events.iter().filter(|event| event.starts_with("Warning")).count(), 1, "{events:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn no_room_on_one_node_is_undone_and_tried_on_the_next() {
    let world = World::new("noroom").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let (full, free) = (world.node("full").await, world.node("free").await);
    // Half made before the room ended: what the first call left must go.
    world.store.once("provision", Trick::LoseReply);
    world.store.once("provision", Trick::Fail(Class::Exhausted, "no room on this node"));
    let claim = world.claim("data", &class, json!({})).await;
    world.select_node("data", &full).await;
    world.unselected("data").await;
    assert_eq!(world.store.volumes().len(), 0, "the plan was undone before the choice was taken back");
    world.event(&uid(&claim), &["Warning ProvisioningFailed", "no room on this node"]).await;
    world.select_node("data", &free).await;
    let volume = world.bound("data").await;
    assert!(annotation(&volume, names::HANDLE).is_some_and(|handle| handle.contains(&free)));
    assert_eq!(world.store.volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_unknown_outcome_keeps_the_node_and_asks_again_for_the_same_volume() {
    let mut world = World::new("unknown").await;
    world.options.backend_timeout = Duration::from_millis(300);
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let node = world.node("a").await;
    world.store.once("provision", Trick::Hang);
    world.store.once("provision", Trick::LoseReply);
    world.store.once("provision", Trick::Hang);
    let claim = world.claim("data", &class, json!({})).await;
    world.select_node("data", &node).await;
    world.bound("data").await;
    assert_eq!(annotation(&world.claim_now("data").await, SELECTED_NODE), Some(node));
    assert_eq!(world.store.count("provision", &uid(&claim)), 4, "{:#?}", world.store.calls());
    assert_eq!(world.store.count("provision", ""), 4, "one place was asked for: {:#?}", world.store.calls());
    assert_eq!(world.store.count("delete", ""), 0);
    assert_eq!(world.store.volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_choice_is_taken_back_though_the_claim_changed_meanwhile_in_what_nobody_reads() {
    let world = World::new("noise").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let node = world.node("a").await;
    world.store.once("observe", Trick::Slow(Duration::from_secs(2)));
    world.store.once("provision", Trick::Fail(Class::Exhausted, "no room on this node"));
    world.claim("data", &class, json!({})).await;
    world.select_node("data", &node).await;
    world.called("observe", 1).await;
    // Raises the resource version, with which the removal goes.
    world.patch_claim("data", json!({ "metadata": { "finalizers": ["example.com/noise"] } })).await;
    world.unselected("data").await;
    world.patch_claim("data", json!({ "metadata": { "finalizers": null } })).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_node_chosen_anew_under_an_open_intent_means_undo_and_plan_anew() {
    let world = World::new("moved").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let (one, two) = (world.node("one").await, world.node("two").await);
    world.store.once("provision", Trick::LoseReply);
    world.store.always("provision", Trick::Fail(Class::Unknown, "who knows"));
    world.claim("data", &class, json!({})).await;
    world.select_node("data", &one).await;
    world.called("provision", 2).await;
    world.select_node("data", &two).await;
    world.called("plan", 2).await;
    world.store.never("provision");
    let volume = world.bound("data").await;
    assert!(annotation(&volume, names::HANDLE).is_some_and(|handle| handle.contains(&two)));
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volume)]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_node_that_goes_under_an_open_intent_is_taken_back_after_the_undo() {
    let world = World::new("left").await;
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let (one, two) = (world.node("one").await, world.node("two").await);
    world.store.once("provision", Trick::LoseReply);
    world.store.always("provision", Trick::Fail(Class::Unknown, "who knows"));
    world.store.once("delete", Trick::Fail(Class::Unavailable, "not now"));
    world.claim("data", &class, json!({})).await;
    world.select_node("data", &one).await;
    world.called("provision", 2).await;
    world.delete_node(&one).await;
    world.unselected("data").await;
    assert_eq!(world.store.volumes().len(), 0, "nothing is being made when the scheduler chooses anew");
    world.store.never("provision");
    world.select_node("data", &two).await;
    world.bound("data").await;
    assert_eq!(world.store.volumes().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_plan_whose_undo_takes_its_time_is_undone_to_the_end() {
    let mut world = World::new("undo").await;
    // No retry comes between: only the removal of the node starts the undo.
    (world.options.backoff_base, world.options.backoff_max) =
        (Duration::from_mins(5), Duration::from_mins(5));
    let _engine = world.start().await;
    let class = world.class("late", late()).await;
    let node = world.node("a").await;
    world.store.once("provision", Trick::LoseReply);
    world.store.once("delete", Trick::Pending(Duration::from_millis(200)));
    let claim = world.claim("data", &class, json!({})).await;
    world.select_node("data", &node).await;
    world.event(&uid(&claim), &["Warning ProvisioningFailed", "the reply is lost"]).await;
    world.patch_claim("data", json!({ "metadata": { "annotations": { SELECTED_NODE: null } } })).await;
    eventually("what was made is removed", SOON, || async { world.store.volumes() }, BTreeMap::is_empty)
        .await;
    world.select_node("data", &node).await;
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_class_that_goes_under_an_open_intent_strands_no_claim() {
    let world = World::new("classgone").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({ "reclaimPolicy": "Retain", "mountOptions": ["hard"] })).await;
    world.store.once("provision", Trick::LoseReply);
    world.store.always("provision", Trick::Fail(Class::Unknown, "who knows"));
    world.claim("data", &class, json!({})).await;
    world.called("provision", 2).await;
    world.delete_class(&class).await;
    a_while().await;
    world.store.never("provision");
    let volume = world.bound("data").await;
    let spec = volume.spec.as_ref().expect("a spec");
    assert_eq!(spec.persistent_volume_reclaim_policy.as_deref(), Some("Retain"), "as the class said");
    assert_eq!(spec.mount_options.as_deref(), Some(&["hard".to_owned()][..]));
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volume)]);
    assert_eq!(world.store.count("delete", ""), 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_pv_says_what_class_and_claim_say() {
    let mut world = World::new("copied").await;
    let old = format!("old.{}", world.name);
    world.options.names.push(old.clone());
    let _engine = world.start().await;
    let csi = json!({ "parameters": { "shape": "csi" } });
    let attributes = format!("{}-gold", world.namespace);
    world
        .create(json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass",
            "metadata": { "name": attributes }, "driverName": world.name, "parameters": { "iops": "1" },
        }))
        .await;
    // name, change of the class, change of the claim's spec, what is checked
    let cases: [(&str, Value, Value, fn(&PersistentVolume) -> Value, Value); 8] = [
        (
            "mounts",
            json!({ "mountOptions": ["nfsvers=4.1", "hard"] }),
            json!({}),
            |pv| json!(pv.spec.as_ref().and_then(|s| s.mount_options.clone())),
            json!(["nfsvers=4.1", "hard"]),
        ),
        (
            "rwop",
            json!({}),
            json!({ "accessModes": ["ReadWriteOncePod"] }),
            access_modes,
            json!(["ReadWriteOncePod"]),
        ),
        (
            "many",
            json!({}),
            json!({ "accessModes": ["ReadWriteMany", "ReadOnlyMany"] }),
            access_modes,
            json!(["ReadWriteMany", "ReadOnlyMany"]),
        ),
        (
            "block",
            json!({ "mountOptions": ["hard"] }),
            json!({ "volumeMode": "Block" }),
            mode,
            json!("Block"),
        ),
        ("plain", json!({}), json!({}), finalizer_and_policy, json!([true, "Delete"])),
        (
            "kept",
            json!({ "reclaimPolicy": "Retain" }),
            json!({}),
            finalizer_and_policy,
            json!([false, "Retain"]),
        ),
        (
            "former",
            json!({ "provisioner": old }),
            json!({}),
            |pv| json!(annotation(pv, names::PROVISIONED_BY)),
            json!(old),
        ),
        (
            "gold",
            csi,
            json!({ "volumeAttributesClassName": attributes }),
            |pv| json!(pv.spec.as_ref().and_then(|s| s.volume_attributes_class_name.clone())),
            json!(attributes),
        ),
    ];
    for (case, class, spec, _, _) in &cases {
        let class = world.class(case, class.clone()).await;
        world.claim(case, &class, json!({ "spec": spec })).await;
    }
    for (case, _, _, look, expected) in cases {
        let volume = world.bound(case).await;
        assert_eq!(look(&volume), expected, "{case}: {volume:#?}");
    }
    world.delete_claim("kept").await;
}

fn access_modes(pv: &PersistentVolume) -> Value {
    json!(pv.spec.as_ref().and_then(|spec| spec.access_modes.clone()))
}

fn mode(pv: &PersistentVolume) -> Value {
    json!(pv.spec.as_ref().and_then(|spec| spec.volume_mode.clone()))
}

fn finalizer_and_policy(pv: &PersistentVolume) -> Value {
    let finalizers = pv.metadata.finalizers.iter().flatten();
    json!([
        finalizers.into_iter().any(|finalizer| finalizer == names::FINALIZER),
        pv.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.clone()),
    ])
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_empty_selector_is_none() {
    let world = World::new("selector").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.claim("data", &class, json!({ "spec": { "selector": {} } })).await;
    world.bound("data").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_changed_many_times_is_provisioned_once() {
    let world = World::new("changed").await;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("provision", Trick::Slow(Duration::from_millis(500)));
    let claim = world.claim("data", &class, json!({})).await;
    let change = |number: i32| json!({ "metadata": { "labels": { "change": number.to_string() } } });
    for number in 0..60 {
        world.patch_claim("data", change(number)).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let volume = world.bound("data").await;
    for number in 0..10 {
        world.patch_claim("data", change(number)).await;
    }
    a_while().await;
    assert_eq!(world.store.count("provision", &uid(&claim)), 1, "{:#?}", world.store.calls());
    assert_eq!(name(&volume), format!("pvc-{}", uid(&claim)));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_copied_claim_that_says_it_is_bound_gets_at_most_one_volume() {
    let world = World::new("pasted").await;
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let pasted = annotated(&[
        ("pv.kubernetes.io/bind-completed", "yes"),
        ("pv.kubernetes.io/bound-by-controller", "yes"),
        (names::STORAGE_PROVISIONER, &world.name),
    ]);
    let claim = world.claim("data", &class, pasted).await;
    for number in 0..10 {
        world.patch_claim("data", json!({ "metadata": { "labels": { "n": number.to_string() } } })).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    assert!(world.store.volumes().len() <= 1, "{:#?}", world.store.volumes());
    engine.stop().await;
    let _engine = world.start().await;
    a_while().await;
    assert!(world.store.count("provision", &uid(&claim)) <= 1, "{:#?}", world.store.calls());
    world.delete_claim("data").await;
    eventually("nothing is left", SOON, || async { world.store.volumes() }, BTreeMap::is_empty).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pv_that_a_populator_gave_to_another_claim_is_kept() {
    let world = World::new("populated").await;
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let source =
        json!({ "spec": { "dataSourceRef": { "apiGroup": "example.com", "kind": "Book", "name": "b" } } });
    let wanted = world.claim("data", &class, source).await;
    let prime = world.claim("prime", &class, json!({})).await;
    let volume = world.bound("prime").await;
    let path = World::path_of(&volume);
    world.store.edit(&path, |volume| volume.written = true);
    let reference = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": world.namespace, "name": "data", "uid": uid(&wanted), "resourceVersion": null,
    });
    world.patch_volume(&name(&volume), json!({ "spec": { "claimRef": reference } })).await;
    let bound = world.bound("data").await;
    assert_eq!(name(&bound), format!("pvc-{}", uid(&prime)));
    world.delete_claim("prime").await;
    a_while().await;
    engine.stop().await;
    let _engine = world.start().await;
    a_while().await;
    assert_eq!(world.volume(&name(&volume)).await.expect("it is kept").metadata.deletion_timestamp, None);
    assert_eq!(world.store.count("delete", ""), 0);
    assert_eq!(world.store.volumes().len(), 1, "the claim of the populator's got none of its own");
    // And it goes with the claim that has it now.
    world.delete_claim("data").await;
    world.gone(&name(&volume)).await;
    eventually("the volume is gone", SOON, || async { world.store.volumes() }, BTreeMap::is_empty).await;
}
