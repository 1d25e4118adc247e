//! Claims, volumes and pods go the same way under the real controllers and scheduler as under our models of them.

#![allow(clippy::expect_used, clippy::panic, reason = "a test: its helpers may fail it")]

mod differential;

use differential::{Extra, Session, differences};
use serde_json::{Value, json};
use std::time::Duration;
use volwright_controller::client;
use volwright_lab::control_plane::{ControlPlane, Options as ControlPlaneOptions};
use volwright_testkit::apiserver::{ApiServer, Options, cluster};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_models_do_to_claims_what_the_controllers_do() {
    let plane = ControlPlane::start(ControlPlaneOptions::default()).await.expect("a control plane starts");
    let real = client::connect(Some(plane.kubeconfig()), "testkit").await.expect("clients").requests;
    let theirs = run(real).await;
    plane.stop().await;
    let server = ApiServer::new(Options::default());
    let models = tokio::spawn(cluster::run(server.clone(), Duration::from_millis(5)));
    let ours = run(server.client()).await;
    models.abort();
    let mut failed = 0;
    for (theirs, ours) in theirs.iter().zip(&ours) {
        let mut found = Vec::new();
        differences(&theirs.answer, &ours.answer, "", &mut found);
        if !found.is_empty() {
            failed += 1;
            println!("{}\n  {}\n", theirs.call, found.join("\n  "));
        }
    }
    println!("{} states, {failed} different", theirs.len());
    assert_eq!((theirs.len(), failed), (ours.len(), 0), "states differ, see above: theirs / ours");
}

const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/model/persistentvolumeclaims";
const PODS: &str = "/api/v1/namespaces/model/pods";
const NODES: &str = "/api/v1/nodes";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const PHASE: &str = "/status/phase";
const ASKED: &str = "/metadata/annotations/volume.kubernetes.io~1storage-provisioner";
const NODE: &str = "/metadata/annotations/volume.kubernetes.io~1selected-node";

/// How many writes it took, and which came first, is not compared.
const STATE: Extra<'_> = Extra {
    accept: None,
    content: None,
    only: &[
        "/metadata/annotations",
        "/metadata/finalizers",
        "/spec",
        "/status/phase",
        "/status/capacity",
        "/status/accessModes",
    ],
};

/// Waits until the place shows the value, then keeps the state.
async fn until(s: &mut Session, path: &str, place: &str, expected: &str) -> Value {
    for _ in 0..600 {
        let seen = s.call("GET", path, Value::Null, STATE).await;
        let text = seen.pointer(place).and_then(Value::as_str).unwrap_or_default();
        if text == expected {
            return seen;
        }
        s.steps.pop();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{path} does not show {expected:?} at {place}: {:#?}", s.get(path).await);
}

async fn gone(s: &mut Session, path: &str) {
    until(s, path, "/reason", "NotFound").await;
}

/// A change whose answer is not compared: the models may be between two writes.
async fn quietly(s: &mut Session, method: &str, path: &str, body: Value) -> Value {
    let content = (method == "PATCH").then_some("application/merge-patch+json");
    let answer = s.call(method, path, body, Extra { content, ..Extra::default() }).await;
    let code = s.steps.pop().map(|step| step.answer["code"].clone());
    assert!(code.and_then(|code| code.as_u64()).is_some_and(|code| code < 300), "{method} {path}: {answer}");
    answer
}

fn claim(name: &str, class: &str, volume: Option<&str>) -> Value {
    let mut claim = json!({ "metadata": { "name": name }, "spec": { "accessModes": ["ReadWriteOnce"],
        "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } } });
    if let Some(volume) = volume {
        claim["spec"]["volumeName"] = json!(volume);
    }
    claim
}

/// As a provisioner makes it, for the claim or for nobody.
fn volume(name: &str, class: &str, owner: Option<&Value>, node: Option<&str>) -> Value {
    let mut pv = json!({
        "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": "x.io" } },
        "spec": { "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                  "persistentVolumeReclaimPolicy": "Delete", "nfs": { "server": "s", "path": "/p" } },
    });
    if let Some(owner) = owner {
        let of = &owner["metadata"];
        pv["spec"]["claimRef"] = json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "namespace": of["namespace"], "name": of["name"], "uid": of["uid"] });
    }
    if let Some(node) = node {
        pv["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions":
            [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] }] } });
    }
    pv
}

async fn node(s: &mut Session, name: &str) {
    let object = json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } });
    quietly(s, "POST", NODES, object).await;
    let path = format!("{NODES}/{name}");
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }],
        "capacity": { "pods": "10", "cpu": "4", "memory": "8Gi" }, "allocatable": { "pods": "10", "cpu": "4", "memory": "8Gi" } } });
    quietly(s, "PATCH", &format!("{path}/status"), ready).await;
    quietly(s, "PATCH", &path, json!({ "spec": { "taints": null } })).await;
}

async fn run(client: kube::Client) -> Vec<differential::Step> {
    let mut session = Session::new(client);
    let s = &mut session;
    quietly(s, "POST", "/api/v1/namespaces", json!({ "metadata": { "name": "model" } })).await;
    for (name, binding) in [("now", "Immediate"), ("late", "WaitForFirstConsumer")] {
        let class =
            json!({ "metadata": { "name": name }, "provisioner": "x.io", "volumeBindingMode": binding });
        quietly(s, "POST", CLASSES, class).await;
    }
    dynamic(s).await;
    fixed(s).await;
    late(s).await;
    session.comparable()
}

/// Claims that a provisioner serves, once it has been asked: annotations must not depend on who is faster.
async fn dynamic(s: &mut Session) {
    let (path, pv) = (&format!("{CLAIMS}/a"), &format!("{VOLUMES}/a"));
    let made = quietly(s, "POST", CLAIMS, claim("a", "now", None)).await;
    until(s, path, ASKED, "x.io").await;
    quietly(s, "POST", VOLUMES, volume("a", "now", Some(&made), None)).await;
    until(s, path, PHASE, "Bound").await;
    until(s, pv, PHASE, "Bound").await;
    // A bound PV is protected; a released one goes.
    quietly(s, "DELETE", pv, Value::Null).await;
    quietly(s, "DELETE", path, Value::Null).await;
    gone(s, path).await;
    gone(s, pv).await;
    // Without that it stays released, also when a claim of that name comes back.
    let made = quietly(s, "POST", CLAIMS, claim("b", "now", None)).await;
    until(s, &format!("{CLAIMS}/b"), ASKED, "x.io").await;
    let pv = &format!("{VOLUMES}/b");
    quietly(s, "POST", VOLUMES, volume("b", "now", Some(&made), None)).await;
    until(s, pv, PHASE, "Bound").await;
    quietly(s, "DELETE", &format!("{CLAIMS}/b"), Value::Null).await;
    until(s, pv, PHASE, "Released").await;
    quietly(s, "POST", CLAIMS, claim("b", "now", None)).await;
    until(s, &format!("{CLAIMS}/b"), ASKED, "x.io").await;
    until(s, pv, PHASE, "Released").await;
    // A claim is lost with its volume.
    let made = quietly(s, "POST", CLAIMS, claim("c", "now", None)).await;
    until(s, &format!("{CLAIMS}/c"), ASKED, "x.io").await;
    let pv = &format!("{VOLUMES}/c");
    quietly(s, "POST", VOLUMES, volume("c", "now", Some(&made), None)).await;
    until(s, &format!("{CLAIMS}/c"), PHASE, "Bound").await;
    // In this order: a finalizer that is taken off an object in use is put back, on a terminating one it is not.
    until(s, pv, "/metadata/finalizers/0", "kubernetes.io/pv-protection").await;
    quietly(s, "DELETE", pv, Value::Null).await;
    quietly(s, "PATCH", pv, json!({ "metadata": { "finalizers": null } })).await;
    until(s, &format!("{CLAIMS}/c"), PHASE, "Lost").await;
    // A volume too small, or of another mode, is not bound.
    let made = quietly(s, "POST", CLAIMS, claim("d", "now", None)).await;
    until(s, &format!("{CLAIMS}/d"), ASKED, "x.io").await;
    let mut small = volume("d", "now", Some(&made), None);
    small["spec"]["capacity"]["storage"] = json!("1Mi");
    quietly(s, "POST", VOLUMES, small).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    until(s, &format!("{VOLUMES}/d"), PHASE, "Pending").await;
    until(s, &format!("{CLAIMS}/d"), PHASE, "Pending").await;
    // A claim that has another volume: this one was made in vain.
    let made = quietly(s, "POST", CLAIMS, claim("e", "now", None)).await;
    until(s, &format!("{CLAIMS}/e"), ASKED, "x.io").await;
    quietly(s, "POST", VOLUMES, volume("e1", "now", Some(&made), None)).await;
    until(s, &format!("{CLAIMS}/e"), PHASE, "Bound").await;
    quietly(s, "POST", VOLUMES, volume("e2", "now", Some(&made), None)).await;
    until(s, &format!("{VOLUMES}/e2"), PHASE, "Released").await;
    let mut kept = volume("e3", "now", Some(&made), None);
    kept["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    quietly(s, "POST", VOLUMES, kept).await;
    until(s, &format!("{VOLUMES}/e3"), PHASE, "Available").await;
}

/// Volumes that were there before.
async fn fixed(s: &mut Session) {
    for (name, size) in [("large", "10Gi"), ("fits", "2Gi"), ("small", "1Mi")] {
        let mut pv = volume(name, "none", None, None);
        pv["spec"]["capacity"]["storage"] = json!(size);
        quietly(s, "POST", VOLUMES, pv).await;
        until(s, &format!("{VOLUMES}/{name}"), PHASE, "Available").await;
    }
    quietly(s, "POST", CLAIMS, claim("static", "none", None)).await;
    until(s, &format!("{CLAIMS}/static"), PHASE, "Bound").await;
    until(s, &format!("{VOLUMES}/fits"), PHASE, "Bound").await;
    quietly(s, "POST", CLAIMS, claim("chosen", "none", Some("large"))).await;
    until(s, &format!("{CLAIMS}/chosen"), PHASE, "Bound").await;
    until(s, &format!("{VOLUMES}/large"), PHASE, "Bound").await;
    quietly(s, "POST", CLAIMS, claim("waits", "none", Some("missing"))).await;
    // Reserved by name alone.
    let mut reserved = volume("reserved", "now", None, None);
    reserved["spec"]["claimRef"] = json!({ "namespace": "model", "name": "f" });
    quietly(s, "POST", VOLUMES, reserved).await;
    until(s, &format!("{VOLUMES}/reserved"), PHASE, "Available").await;
    quietly(s, "POST", CLAIMS, claim("f", "now", None)).await;
    until(s, &format!("{CLAIMS}/f"), PHASE, "Bound").await;
    until(s, &format!("{VOLUMES}/reserved"), PHASE, "Bound").await;
    until(s, &format!("{CLAIMS}/waits"), PHASE, "Pending").await;
    // Nobody can delete a volume that names no provisioner.
    let mut unowned = volume("unowned", "none", None, None);
    unowned["metadata"]["annotations"] = Value::Null;
    quietly(s, "POST", VOLUMES, unowned).await;
    quietly(s, "POST", CLAIMS, claim("unowned", "none", Some("unowned"))).await;
    until(s, &format!("{CLAIMS}/unowned"), PHASE, "Bound").await;
    quietly(s, "DELETE", &format!("{CLAIMS}/unowned"), Value::Null).await;
    until(s, &format!("{VOLUMES}/unowned"), PHASE, "Failed").await;
}

/// Claims that wait for a pod.
async fn late(s: &mut Session) {
    node(s, "n1").await;
    let path = &format!("{CLAIMS}/g");
    let made = quietly(s, "POST", CLAIMS, claim("g", "late", None)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    until(s, path, PHASE, "Pending").await;
    let pod = json!({ "metadata": { "name": "p" }, "spec": { "containers": [{ "name": "c", "image": "i" }],
        "automountServiceAccountToken": false,
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "g" } }] } });
    // The real one admits pods once the namespace has its service account.
    let account = "/api/v1/namespaces/model/serviceaccounts/default";
    let shown = s.get(account).await;
    s.steps.pop();
    if shown["code"] == 404 {
        let account = json!({ "metadata": { "name": "default" } });
        quietly(s, "POST", "/api/v1/namespaces/model/serviceaccounts", account).await;
    }
    quietly(s, "POST", PODS, pod).await;
    until(s, path, NODE, "n1").await;
    until(s, path, ASKED, "x.io").await;
    // The provisioner gives it back; meanwhile there is a better node.
    quietly(s, "PATCH", &format!("{NODES}/n1"), json!({ "spec": { "unschedulable": true } })).await;
    node(s, "n2").await;
    let back = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    quietly(s, "PATCH", path, back).await;
    until(s, path, NODE, "n2").await;
    quietly(s, "POST", VOLUMES, volume("g", "late", Some(&made), Some("n2"))).await;
    until(s, path, PHASE, "Bound").await;
    until(s, &format!("{VOLUMES}/g"), PHASE, "Bound").await;
    for _ in 0..600 {
        let pod = s.get(&format!("{PODS}/p")).await;
        s.steps.pop();
        if pod["spec"]["nodeName"] == "n2" {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In use, so it stays.
    quietly(s, "DELETE", path, Value::Null).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    until(s, path, PHASE, "Bound").await;
    quietly(s, "DELETE", &format!("{PODS}/p"), json!({ "gracePeriodSeconds": 0 })).await;
    gone(s, path).await;
    until(s, &format!("{VOLUMES}/g"), PHASE, "Released").await;
}
