//! Claims that ask for more, on a real API server beside a real kube-controller-manager: what they get, what their status and
//! `kubectl` say on the way, and what happens when the process dies or less is asked for again.
#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]

mod common;

use common::{SOON, World, a_while, name, plane, uid};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use std::time::Duration;
use volwright_provisioner::{Class, Placement};
use volwright_testkit::Trick;
use volwright_testkit::harness::eventually;

const GI: u64 = 1 << 30;

fn grows() -> Value {
    json!({ "allowVolumeExpansion": true })
}

fn asking(size: &str) -> Value {
    json!({ "spec": { "resources": { "requests": { "storage": size } } } })
}

/// What the status of a claim says of its size: capacity, allocated, progress, conditions.
type Size = (String, String, String, Vec<String>);

fn size_of(claim: &PersistentVolumeClaim) -> Size {
    let status = serde_json::to_value(claim.status.clone().unwrap_or_default()).expect("a status is JSON");
    let text = |path: &str| status.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let conditions = status.get("conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    let kinds = conditions.iter().map(|condition| condition["type"].as_str().unwrap_or_default().to_owned());
    (
        text("/capacity/storage"),
        text("/allocatedResources/storage"),
        text("/allocatedResourceStatuses/storage"),
        kinds.collect(),
    )
}

fn size(capacity: &str, allocated: &str, progress: &str, conditions: &[&str]) -> Size {
    let conditions = conditions.iter().map(|kind| (*kind).to_owned()).collect();
    (capacity.to_owned(), allocated.to_owned(), progress.to_owned(), conditions)
}

async fn becomes(world: &World, claim: &str, expected: Size) {
    let look = || async { size_of(&world.claim_now(claim).await) };
    eventually(&format!("claim {claim} becomes {expected:?}"), SOON, look, |found| *found == expected).await;
}

fn capacity(volume: &PersistentVolume) -> String {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|sizes| sizes.get("storage")).map(|size| size.0.clone()).unwrap_or_default()
}

async fn kubectl(arguments: &[&str]) -> String {
    let mut command = plane().await.lock().await.kubectl_command();
    let arguments: Vec<_> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let output = tokio::task::spawn_blocking(move || command.args(arguments).output());
    let output = output.await.expect("joined").expect("kubectl runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_that_asks_for_more_gets_it_and_says_so() {
    let world = World::new("grows").await;
    let engine = world.start().await;
    let class = world.class("grows", grows()).await;
    let (volume, path) = world.made("data", &class).await;
    let claim = uid(&world.claim_now("data").await);
    world.patch_claim("data", asking("2Gi")).await;
    becomes(&world, "data", size("2Gi", "2Gi", "", &[])).await;
    let after = world.volume(&name(&volume)).await.expect("the PV is there");
    assert_eq!(capacity(&after), "2Gi");
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(2 * GI));
    world.event(&claim, &["Normal Resizing", "resized to 2Gi"]).await;
    world.event(&claim, &["Normal VolumeResizeSuccessful", "2Gi"]).await;
    // kube-controller-manager's own, which is all that there was before.
    world.event(&claim, &["Normal ExternalExpanding"]).await;
    let shown = kubectl(&["get", "pvc", "data", "-n", &world.namespace, "--no-headers"]).await;
    assert!(shown.contains(" 2Gi "), "{shown}");

    // Twice in a row, the second while the first is under way.
    world.store.once("expand", Trick::Slow(Duration::from_secs(1)));
    world.patch_claim("data", asking("3Gi")).await;
    world.called("expand", 2).await;
    world.patch_claim("data", asking("5Gi")).await;
    becomes(&world, "data", size("5Gi", "5Gi", "", &[])).await;
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(5 * GI));
    a_while().await;
    let calls = world.store.count("expand", &path);
    assert!(calls <= 4, "one call for each size, and at most one that found nothing to do: {calls}");
    engine.stop().await;
    let writes = World::writes(&name(&volume)).await;
    let patches = writes.iter().filter(|write| *write == "patch 200").count();
    assert!(writes[0] == "create 201" && patches <= 3, "one patch of the PV for each size: {writes:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_class_without_expansion_is_refused_by_the_api_server() {
    let world = World::new("fixed").await;
    let engine = world.start().await;
    let class = world.class("fixed", json!({})).await;
    let (_, path) = world.made("data", &class).await;
    let wanted = Patch::Merge(asking("2Gi"));
    let refused = world.claims().patch("data", &PatchParams::default(), &wanted).await;
    let text = refused.expect_err("a class that does not allow it").to_string();
    assert!(text.contains("must support resize"), "{text}");
    a_while().await;
    assert_eq!(world.store.count("expand", &path), 0);
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_backend_that_cannot_grow_is_told_of_and_the_claim_left_alone() {
    let world = World::new("cannot").await;
    let engine = world.start().await;
    let mut class = grows();
    class["parameters"] = json!({ "resizer": "nobody" });
    let class = world.class("cannot", class).await;
    world.made("data", &class).await;
    world.patch_claim("data", asking("2Gi")).await;
    let claim = uid(&world.claim_now("data").await);
    let told = world.event(&claim, &["Warning VolumeResizeFailed", "cannot grow", "(doctor: claims)"]).await;
    assert!(told.contains("make a larger claim"), "{told}");
    assert_eq!(size_of(&world.claim_now("data").await), size("1Gi", "", "", &[]));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn what_is_asked_for_by_then_is_what_it_gets() {
    let world = World::new("lowered").await;
    let engine = world.start().await;
    let class = world.class("grows", grows()).await;
    let (volume, path) = world.made("data", &class).await;
    world.store.always("expand", Trick::Fail(Class::Unavailable, "scripted: the storage is away"));
    world.patch_claim("data", asking("4Gi")).await;
    world.called("expand", 2).await;
    let claim = world.claim_now("data").await;
    assert_eq!(size_of(&claim), size("1Gi", "4Gi", "ControllerResizeInProgress", &["Resizing"]));
    world.event(&uid(&claim), &["Warning VolumeResizeFailed", "the storage is away"]).await;
    world.patch_claim("data", asking("2Gi")).await;
    world.store.never("expand");
    // A quota goes on counting what may have been on its way.
    becomes(&world, "data", size("2Gi", "4Gi", "", &[])).await;
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(2 * GI), "never 4Gi");
    assert_eq!(capacity(&world.volume(&name(&volume)).await.expect("there")), "2Gi");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn too_much_is_told_with_the_remedy_and_less_is_then_given() {
    let world = World::new("toomuch").await;
    let engine = world.start().await;
    let class = world.class("grows", grows()).await;
    let (_, path) = world.made("data", &class).await;
    world.patch_claim("data", asking("2Pi")).await;
    let conditions = ["Resizing", "ControllerResizeError"];
    becomes(&world, "data", size("1Gi", "2Pi", "ControllerResizeInfeasible", &conditions)).await;
    let claim = uid(&world.claim_now("data").await);
    let told = world.event(&claim, &["Warning VolumeResizeFailed", "more than 1Pi"]).await;
    assert!(
        told.contains("lower spec.resources.requests.storage") && told.contains("(doctor: claims)"),
        "{told}"
    );
    let shown = kubectl(&["describe", "pvc", "data", "-n", &world.namespace]).await;
    assert!(
        shown.contains("ControllerResizeError") && shown.contains("above the 1Gi that it has"),
        "{shown}"
    );
    a_while().await;
    let warnings =
        |events: Vec<String>| events.into_iter().filter(|event| event.contains("VolumeResizeFailed")).count();
    assert_eq!(warnings(world.events(&claim).await), 1, "one event, counted");
    world.patch_claim("data", asking("3Gi")).await;
    becomes(&world, "data", size("3Gi", "3Gi", "", &[])).await;
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(3 * GI));
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn whoever_comes_after_a_crash_goes_on() {
    let world = World::new("resumed").await;
    let class = world.class("grows", grows()).await;
    let mut engine = world.start().await;
    let (_, path) = world.made("data", &class).await;
    for (number, trick, wanted) in [(1, Trick::Hang, "2Gi"), (2, Trick::LoseReply, "3Gi")] {
        // It is killed in the call, or after an effect that it did not hear of.
        world.store.once("expand", trick);
        world.store.always("observe", Trick::Slow(Duration::from_millis(200)));
        let before = world.store.count("expand", &path);
        world.patch_claim("data", asking(wanted)).await;
        world.called("expand", before + 1).await;
        engine.kill();
        world.store.never("observe");
        let (_, allocated, progress, _) = size_of(&world.claim_now("data").await);
        assert_eq!(
            (allocated.as_str(), progress.as_str()),
            (wanted, "ControllerResizeInProgress"),
            "{number}"
        );
        engine = world.start().await;
        becomes(&world, "data", size(wanted, wanted, "", &[])).await;
    }
    engine.kill();
    // Cut off between the PV and the claim.
    let volume = name(&world.bound("data").await);
    world.patch_claim("data", asking("6Gi")).await;
    world.store.edit(&path, |volume| volume.size = 6 * GI);
    world.patch_volume(&volume, json!({ "spec": { "capacity": { "storage": "6Gi" } } })).await;
    engine = world.start().await;
    becomes(&world, "data", size("6Gi", "6Gi", "", &[])).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_file_system_on_a_csi_volume_is_left_to_its_node() {
    let world = World::new("csigrows").await;
    let engine = world.start().await;
    let mut class = grows();
    class["parameters"] = json!({ "shape": "csi" });
    let class = world.class("csi", class).await;
    let (volume, path) = world.made("data", &class).await;
    world.patch_claim("data", asking("2Gi")).await;
    becomes(&world, "data", size("1Gi", "2Gi", "NodeResizePending", &["FileSystemResizePending"])).await;
    assert_eq!(capacity(&world.volume(&name(&volume)).await.expect("there")), "2Gi");
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(2 * GI));
    let claim = uid(&world.claim_now("data").await);
    world.event(&claim, &["Normal FileSystemResizeRequired"]).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_node_agent_notices_what_its_own_claims_ask_for() {
    let mut world = World::new("agentgrows").await;
    let node = world.node("node").await;
    world.options.placement = Placement::PerNode { node: node.clone() };
    let engine = world.start().await;
    let mut class = grows();
    class["volumeBindingMode"] = json!("WaitForFirstConsumer");
    let class = world.class("late", class).await;
    world.claim("data", &class, json!({})).await;
    world.select_node("data", &node).await;
    let path = World::path_of(&world.bound("data").await);
    world.patch_claim("data", asking("2Gi")).await;
    becomes(&world, "data", size("2Gi", "2Gi", "", &[])).await;
    engine.stop().await;
    // Asked for while the agent was away.
    world.patch_claim("data", asking("3Gi")).await;
    let engine = world.start().await;
    becomes(&world, "data", size("3Gi", "3Gi", "", &[])).await;
    assert_eq!(world.store.get(&path).map(|volume| volume.size), Some(3 * GI));
    engine.stop().await;
}
