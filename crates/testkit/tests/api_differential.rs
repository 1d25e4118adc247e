//! One script of calls on the real API server and on ours: the answers must be the same, field by field.

#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]

mod differential;

use differential::{Extra, METADATA, METADATA_LIST, Session, differences};
use serde_json::{Value, json};
use volwright_controller::client;
use volwright_lab::control_plane::{ControlPlane, Options as ControlPlaneOptions};
use volwright_testkit::apiserver::{ApiServer, Options};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn the_api_server_in_process_answers_as_the_real_one_does() {
    // No controllers: they would write in between.
    let options = ControlPlaneOptions { kcm: false, scheduler: false, ..ControlPlaneOptions::default() };
    let plane = ControlPlane::start(options).await.expect("a control plane starts");
    let real = client::connect(Some(plane.kubeconfig()), "testkit").await.expect("clients").requests;
    let theirs = run(real).await;
    let ours = run(ApiServer::new(Options::default()).client()).await;
    plane.stop().await;
    let mut failed = 0;
    for (theirs, ours) in theirs.iter().zip(&ours) {
        let mut found = Vec::new();
        differences(&theirs.answer, &ours.answer, "", &mut found);
        if theirs.call != ours.call {
            found.push(format!("the calls themselves: {} / {}", theirs.call, ours.call));
        }
        if !found.is_empty() {
            failed += 1;
            println!(
                "{} {}\n  {}\n  theirs: {}\n  ours:   {}\n",
                theirs.call,
                theirs.sent,
                found.join("\n  "),
                theirs.answer,
                ours.answer
            );
        }
    }
    println!("{} calls, {failed} answered otherwise", theirs.len());
    assert_eq!(theirs.len(), ours.len());
    assert!(theirs.len() >= 100);
    assert_eq!(failed, 0, "answers differ, see above: theirs / ours");
}

async fn run(client: kube::Client) -> Vec<differential::Step> {
    let mut session = Session::new(client);
    let s = &mut session;
    namespaces_and_creation(s).await;
    updates(s).await;
    patches(s).await;
    deletion_and_finalizers(s).await;
    classes(s).await;
    volumes(s).await;
    claims(s).await;
    nodes_and_pods(s).await;
    events(s).await;
    leases(s).await;
    other_kinds(s).await;
    lists(s).await;
    watches(s).await;
    corners(s).await;
    session.comparable()
}

const MAPS: &str = "/api/v1/namespaces/diff/configmaps";
const VOLUMES: &str = "/api/v1/persistentvolumes";
const CLAIMS: &str = "/api/v1/namespaces/diff/persistentvolumeclaims";
const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";

fn map(name: &str, change: Value) -> Value {
    let mut object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { "a": "1" } });
    merge(&mut object, change);
    object
}

fn merge(target: &mut Value, change: Value) {
    match (target, change) {
        (Value::Object(target), Value::Object(change)) => {
            for (key, value) in change {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
        (target, change) => *target = change,
    }
}

fn text(value: &Value, place: &str) -> String {
    value.pointer(place).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn version(object: &Value) -> String {
    text(object, "/metadata/resourceVersion")
}

const OTHER_UID: &str = "00000000-0000-4000-8000-000000000000";

async fn namespaces_and_creation(s: &mut Session) {
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "diff" } });
    s.post("/api/v1/namespaces", namespace.clone()).await;
    s.post("/api/v1/namespaces", namespace).await;
    s.get("/api/v1/namespaces/diff").await;
    s.get("/api/v1/namespaces/missing").await;
    s.delete("/api/v1/namespaces/kube-system", Value::Null).await;
    s.post("/api/v1/namespaces", json!({ "metadata": { "name": "a.b" } })).await;
    s.post("/api/v1/namespaces/missing/configmaps", map("a", json!({}))).await;
    s.get("/api/v1/namespaces/missing/configmaps/a").await;
    s.get("/api/v1/namespaces/missing/configmaps").await;
    s.post(MAPS, map("a", json!({ "metadata": { "labels": { "x": "y" }, "annotations": { "k": "v" } } })))
        .await;
    s.post(MAPS, map("a", json!({}))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "namespace": "default" } }))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "resourceVersion": "5" } }))).await;
    s.post(MAPS, map("b", json!({ "kind": "ServiceAccount" }))).await;
    s.post(MAPS, map("", json!({}))).await;
    s.post(MAPS, map("Not_A_Name", json!({}))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "labels": { "bad key": "x" } } }))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "labels": { "k": "bad value" } } }))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "finalizers": ["bare"] } }))).await;
    s.post(MAPS, map("b", json!({ "metadata": { "finalizers": ["bad value"] } }))).await;
    s.post(MAPS, map("big", json!({ "data": { "a": "x".repeat(1024 * 1024 + 1) } }))).await;
    s.post(MAPS, map("big", json!({ "data": { "a": "x".repeat(3 * 1024 * 1024) } }))).await;
    let ignored = json!({ "metadata": {
        "uid": OTHER_UID, "creationTimestamp": "2020-01-01T00:00:00Z", "deletionTimestamp": "2020-01-01T00:00:00Z",
        "generation": 7, "labels": {}, "annotations": null, "selfLink": "x",
    }});
    s.post(MAPS, map("ignored", ignored)).await;
    s.post(&format!("{MAPS}?dryRun=All"), map("dry", json!({}))).await;
    s.get(&format!("{MAPS}/dry")).await;
    let made = s.post(MAPS, json!({ "metadata": { "generateName": "gen-" } })).await;
    s.rename(&text(&made, "/metadata/name"), "<generated>");
    s.get(&format!("{MAPS}/a")).await;
    s.get("/api/v1/nonsense").await;
    s.get("/apis/nonsense.io/v1/things").await;
    s.get(&format!("{MAPS}/a/status")).await;
    s.call("POST", &format!("{MAPS}/a"), map("a", json!({})), Extra::default()).await;
    let yaml = Extra { content: Some("text/plain"), ..Extra::default() };
    s.call("POST", MAPS, map("c", json!({})), Extra { only: &["/kind"], ..yaml }).await;
}

async fn updates(s: &mut Session) {
    let path = &format!("{MAPS}/a");
    let first = s.get(path).await;
    let mut changed = first.clone();
    changed["data"] = json!({ "a": "2" });
    s.put(path, changed.clone()).await;
    s.put(path, changed.clone()).await;
    let now = s.put(path, map("a", json!({ "data": { "a": "3" } }))).await;
    s.put(path, now.clone()).await;
    s.put(path, map("other", json!({}))).await;
    s.put(path, map("a", json!({ "metadata": { "uid": OTHER_UID } }))).await;
    s.put(path, map("a", json!({ "metadata": { "namespace": "default" } }))).await;
    s.put(&format!("{MAPS}/missing"), map("missing", json!({}))).await;
    let mut changed = now;
    changed["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    changed["metadata"]["labels"] = json!({ "l": "m" });
    s.put(path, changed).await;
    s.post(MAPS, map("fixed", json!({ "immutable": true }))).await;
    s.merge(&format!("{MAPS}/fixed"), json!({ "data": { "a": "2" } })).await;
}

async fn patches(s: &mut Session) {
    let path = &format!("{MAPS}/a");
    let label = json!({ "metadata": { "labels": { "p": "q" } } });
    let first = s.merge(path, label.clone()).await;
    s.merge(path, label).await;
    let second = s.merge(path, json!({ "data": { "b": "2" } })).await;
    s.merge(path, json!({ "metadata": { "resourceVersion": version(&first), "labels": { "p": "r" } } }))
        .await;
    s.merge(path, json!({ "metadata": { "resourceVersion": version(&second), "labels": { "p": "r" } } }))
        .await;
    s.merge(path, json!({ "metadata": { "resourceVersion": null, "labels": { "p": "s" } } })).await;
    s.merge(path, json!({ "metadata": { "uid": OTHER_UID } })).await;
    s.merge(path, json!({ "metadata": { "uid": text(&first, "/metadata/uid"), "labels": { "p": null } } }))
        .await;
    s.merge(path, json!({ "metadata": { "name": "other" } })).await;
    s.merge(path, json!({ "metadata": { "namespace": "default" } })).await;
    // The message quotes the whole object.
    let loosely = Extra {
        content: Some("application/merge-patch+json"),
        only: &["/code", "/reason"],
        ..Extra::default()
    };
    s.call("PATCH", path, json!({ "kind": "Secret" }), loosely).await;
    s.merge(path, json!({ "data": null })).await;
    s.merge(path, json!({ "metadata": { "annotations": { "k": "v" }, "creationTimestamp": null } })).await;
    s.merge(path, json!({ "metadata": { "deletionTimestamp": "2020-01-01T00:00:00Z" } })).await;
    s.strategic(path, json!({ "metadata": { "finalizers": ["x.io/a", "x.io/b"] } })).await;
    s.strategic(path, json!({ "metadata": { "finalizers": ["x.io/c"] } })).await;
    s.strategic(
        path,
        json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["x.io/a", "x.io/c", "x.io/z"] } }),
    )
    .await;
    s.strategic(
        path,
        json!({ "metadata": { "uid": OTHER_UID, "$deleteFromPrimitiveList/finalizers": ["x.io/b"] } }),
    )
    .await;
    s.strategic(path, json!({ "metadata": { "labels": { "$patch": "replace", "only": "this" } } })).await;
    s.strategic(path, json!({ "data": { "c": "1" }, "metadata": { "annotations": { "k": null } } })).await;
    let json_patch = Extra { content: Some("application/json-patch+json"), ..Extra::default() };
    let operations = json!([
        { "op": "test", "path": "/data/c", "value": "1" },
        { "op": "replace", "path": "/data/c", "value": "2" },
        { "op": "add", "path": "/metadata/labels/x.io~1y", "value": "z" },
        { "op": "remove", "path": "/metadata/labels/only" },
    ]);
    s.call("PATCH", path, operations, json_patch).await;
    // The words of the JSON patch library differ; code and reason count.
    let fails = json!([{ "op": "test", "path": "/data/c", "value": "9" }]);
    let answer = s.call("PATCH", path, fails, json_patch).await;
    assert_eq!(answer["code"], 422, "{answer}");
    s.steps.pop();
    s.merge(&format!("{MAPS}/missing"), json!({ "data": { "b": "2" } })).await;
    let metadata = Extra { content: Some("application/merge-patch+json"), accept: Some(METADATA), only: &[] };
    s.call("PATCH", path, json!({ "metadata": { "labels": { "meta": "only" } } }), metadata).await;
    s.merge(path, json!({ "metadata": { "finalizers": null } })).await;
}

async fn deletion_and_finalizers(s: &mut Session) {
    let path = &format!("{MAPS}/a");
    let now = s.get(path).await;
    s.delete(path, json!({ "preconditions": { "uid": OTHER_UID } })).await;
    s.delete(path, json!({ "preconditions": { "resourceVersion": "1" } })).await;
    s.delete(&format!("{path}?dryRun=All"), Value::Null).await;
    let (uid, rv) = (text(&now, "/metadata/uid"), version(&now));
    s.delete(path, json!({ "preconditions": { "uid": uid, "resourceVersion": rv } })).await;
    s.delete(path, Value::Null).await;
    let path = &format!("{MAPS}/f");
    s.post(MAPS, map("f", json!({ "metadata": { "finalizers": ["x.io/a", "x.io/b"] } }))).await;
    let going = s.delete(path, Value::Null).await;
    s.delete(path, Value::Null).await;
    s.delete(path, json!({ "preconditions": { "uid": OTHER_UID } })).await;
    s.get(path).await;
    s.strategic(path, json!({ "metadata": { "finalizers": ["x.io/new"] } })).await;
    s.merge(path, json!({ "metadata": { "deletionTimestamp": null, "labels": { "still": "here" } } })).await;
    s.put(path, map("f", json!({ "metadata": { "finalizers": ["x.io/a", "x.io/b"] } }))).await;
    s.merge(path, json!({ "metadata": { "finalizers": ["x.io/a"] } })).await;
    s.strategic(path, json!({ "metadata": { "uid": text(&going, "/metadata/uid"), "$deleteFromPrimitiveList/finalizers": ["x.io/a"] } })).await;
    s.get(path).await;
    for name in ["many-1", "many-2"] {
        s.post(MAPS, map(name, json!({ "metadata": { "labels": { "many": "yes" } } }))).await;
    }
    s.delete(&format!("{MAPS}?labelSelector=many%3Dyes"), Value::Null).await;
    s.get(&format!("{MAPS}?labelSelector=many")).await;
}

async fn classes(s: &mut Session) {
    let class = json!({ "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "c" },
        "provisioner": "x.io", "parameters": { "a": "b" } });
    s.post(CLASSES, class.clone()).await;
    s.post(CLASSES, class).await;
    s.post(CLASSES, json!({ "metadata": { "name": "none" } })).await;
    let path = &format!("{CLASSES}/c");
    s.merge(path, json!({ "parameters": { "a": "c" } })).await;
    s.merge(path, json!({ "provisioner": "y.io" })).await;
    s.merge(path, json!({ "reclaimPolicy": "Retain" })).await;
    s.merge(path, json!({ "volumeBindingMode": "WaitForFirstConsumer" })).await;
    s.merge(path, json!({ "mountOptions": ["hard"], "allowVolumeExpansion": false })).await;
    s.get(&format!("{CLASSES}/missing")).await;
    let annotations = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
    let late = json!({ "metadata": { "name": "standard", "annotations": annotations }, "provisioner": "x.io",
        "volumeBindingMode": "WaitForFirstConsumer", "allowVolumeExpansion": true });
    s.post(CLASSES, late).await;
    s.get(CLASSES).await;
    s.delete(path, Value::Null).await;
    s.delete(path, Value::Null).await;
}

fn volume(name: &str, change: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": { "name": name, "labels": { "volume": name }, "annotations": { "pv.kubernetes.io/provisioned-by": "x.io" } },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "standard",
            "nfs": { "server": "s", "path": "/p" },
        },
    });
    merge(&mut object, change);
    object
}

async fn volumes(s: &mut Session) {
    let path = &format!("{VOLUMES}/v");
    let first = s.post(VOLUMES, volume("v", json!({ "status": { "phase": "Bound" } }))).await;
    s.post(VOLUMES, volume("v", json!({}))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "capacity": null } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "accessModes": [] } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "accessModes": ["Sometimes"] } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] } })))
        .await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "nfs": null } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "hostPath": { "path": "/x" } } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "nfs": null, "local": { "path": "/x" } } }))).await;
    s.post(VOLUMES, volume("w", json!({ "spec": { "persistentVolumeReclaimPolicy": "Keep" } }))).await;
    let csi = json!({ "driver": "d.io", "volumeHandle": "h", "volumeAttributes": { "a": "b" } });
    let affinity = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions":
        [{ "key": "kubernetes.io/hostname", "operator": "In", "values": ["n"] }] }] } });
    let claim = json!({ "namespace": "diff", "name": "a", "uid": OTHER_UID });
    s.post(
        VOLUMES,
        volume(
            "csi",
            json!({ "spec": { "nfs": null, "csi": csi, "capacity": { "storage": "1024Mi" },
        "storageClassName": "", "nodeAffinity": affinity, "claimRef": claim,
        "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Block" } }),
        ),
    )
    .await;
    let local = json!({ "nfs": null, "local": { "path": "/x" }, "nodeAffinity": affinity, "capacity": { "storage": "1500M" } });
    s.post(VOLUMES, volume("local", json!({ "spec": local, "metadata": { "finalizers": ["x.io/own"] } })))
        .await;
    s.post(VOLUMES, volume("host", json!({ "spec": { "nfs": null, "hostPath": { "path": "/x" } } }))).await;
    s.merge(path, json!({ "spec": { "nfs": { "path": "/q" } } })).await;
    s.merge(path, json!({ "spec": { "volumeMode": "Block" } })).await;
    s.merge(&format!("{VOLUMES}/local"), json!({ "spec": { "nodeAffinity": null } })).await;
    s.merge(
        path,
        json!({ "spec": { "capacity": { "storage": "2Gi" }, "persistentVolumeReclaimPolicy": "Delete" } }),
    )
    .await;
    s.merge(path, json!({ "spec": { "claimRef": { "namespace": "diff", "name": "a" } }, "status": { "phase": "Bound" } })).await;
    let status = &format!("{path}/status");
    s.get(status).await;
    s.merge(
        status,
        json!({ "status": { "phase": "Bound" }, "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
    )
    .await;
    s.merge(status, json!({ "status": { "phase": "Bound" } })).await;
    s.merge(
        status,
        json!({ "status": { "phase": "Released" }, "metadata": { "labels": { "via": "status" } } }),
    )
    .await;
    s.merge(path, json!({ "metadata": { "resourceVersion": version(&first), "uid": text(&first, "/metadata/uid"), "annotations": { "z": "z" } } })).await;
    let only = Extra { accept: Some(METADATA), ..Extra::default() };
    s.call("GET", path, Value::Null, only).await;
    let only = Extra { accept: Some(METADATA_LIST), ..Extra::default() };
    s.call("GET", &format!("{VOLUMES}?labelSelector=volume"), Value::Null, only).await;
    s.call("GET", &format!("{VOLUMES}?labelSelector=nothing"), Value::Null, only).await;
    s.get(&format!("{VOLUMES}?labelSelector=nothing")).await;
    let before = s.get(path).await;
    s.delete(path, json!({ "preconditions": { "uid": text(&before, "/metadata/uid"), "resourceVersion": version(&first) } })).await;
    s.delete(path, json!({ "preconditions": { "uid": text(&before, "/metadata/uid"), "resourceVersion": version(&before) } })).await;
    s.merge(path, json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } })).await;
    s.strategic(path, json!({ "metadata": { "finalizers": ["x.io/late"] } })).await;
    let metadata =
        Extra { content: Some("application/strategic-merge-patch+json"), accept: Some(METADATA), only: &[] };
    let release =
        json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["kubernetes.io/pv-protection"] } });
    s.call("PATCH", path, release, metadata).await;
    s.get(path).await;
    s.merge(path, json!({ "metadata": { "labels": { "too": "late" } } })).await;
}

fn claim(name: &str, change: Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    merge(&mut object, change);
    object
}

async fn claims(s: &mut Session) {
    let path = &format!("{CLAIMS}/a");
    s.post(CLAIMS, claim("a", json!({}))).await;
    s.post(CLAIMS, claim("none", json!({ "spec": { "storageClassName": "", "volumeName": "" } }))).await;
    let beta = json!({ "metadata": { "annotations": { "volume.beta.kubernetes.io/storage-class": "old" } } });
    s.post(CLAIMS, claim("beta", beta)).await;
    let source = json!({ "spec": { "dataSource": { "kind": "PersistentVolumeClaim", "name": "other" }, "storageClassName": "x" } });
    s.post(CLAIMS, claim("clone", source)).await;
    s.post(CLAIMS, claim("bad", json!({ "spec": { "accessModes": [] } }))).await;
    s.post(CLAIMS, claim("bad", json!({ "spec": { "resources": { "requests": null } } }))).await;
    s.post(CLAIMS, claim("bad", json!({ "spec": { "volumeMode": "Tape" } }))).await;
    s.merge(path, json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } })).await;
    s.merge(path, json!({ "spec": { "storageClassName": "other" } })).await;
    s.merge(path, json!({ "spec": { "accessModes": ["ReadWriteMany"] } })).await;
    let bound =
        json!({ "pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n" });
    s.merge(path, json!({ "spec": { "volumeName": "v" }, "metadata": { "annotations": bound } })).await;
    s.merge(path, json!({ "spec": { "volumeName": "w" } })).await;
    s.merge(path, json!({ "status": { "phase": "Bound" } })).await;
    let status =
        json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } });
    s.merge(&format!("{path}/status"), json!({ "status": status, "spec": { "volumeName": "x" } })).await;
    s.merge(path, json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } })).await;
    s.merge(path, json!({ "spec": { "resources": { "requests": { "storage": "1Gi" } } } })).await;
    let conditions = json!({ "status": { "conditions": [{ "type": "Resizing", "status": "True" }] } });
    s.strategic(&format!("{path}/status"), conditions).await;
    let conditions =
        json!({ "status": { "conditions": [{ "type": "FileSystemResizePending", "status": "True" }] } });
    s.strategic(&format!("{path}/status"), conditions).await;
    growth(s, path).await;
    let metadata = Extra { content: Some("application/merge-patch+json"), accept: Some(METADATA), only: &[] };
    let unselect = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": null } } });
    s.call("PATCH", path, unselect, metadata).await;
    s.delete(path, Value::Null).await;
    s.merge(path, json!({ "metadata": { "finalizers": null } })).await;
    s.delete(&format!("{CLAIMS}/none"), json!({ "propagationPolicy": "Background" })).await;
    s.get("/api/v1/persistentvolumeclaims").await;
}

/// As a resizer writes it, with a version or none, and what it may not write.
async fn growth(s: &mut Session, path: &str) {
    let status = &format!("{path}/status");
    let changed = |change: Value| json!({ "status": change });
    let begun = json!({
        "allocatedResources": { "storage": "2048Mi" },
        "allocatedResourceStatuses": { "storage": "ControllerResizeInProgress" },
        "conditions": [{ "type": "Resizing", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" }],
    });
    s.merge(status, changed(begun)).await;
    s.merge(
        status,
        json!({ "metadata": { "resourceVersion": "1" }, "status": { "capacity": { "storage": "2Gi" } } }),
    )
    .await;
    s.merge(
        status,
        json!({ "metadata": { "uid": OTHER_UID }, "status": { "capacity": { "storage": "2Gi" } } }),
    )
    .await;
    s.merge(status, changed(json!({ "capacity": { "storage": "1.5Gi" }, "conditions": [] }))).await;
    let finished = json!({
        "capacity": { "storage": "2Gi" }, "allocatedResourceStatuses": { "storage": null }, "conditions": null,
    });
    s.merge(status, changed(finished)).await;
    // There is none any more.
    s.merge(status, changed(json!({ "allocatedResourceStatuses": { "storage": null } }))).await;
}

async fn nodes_and_pods(s: &mut Session) {
    let nodes = "/api/v1/nodes";
    s.post(nodes, json!({ "metadata": { "name": "n", "labels": { "kubernetes.io/hostname": "n" } } })).await;
    let ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "True" }], "capacity": { "cpu": "1" } } });
    s.strategic(&format!("{nodes}/n/status"), ready).await;
    s.merge(
        &format!("{nodes}/n"),
        json!({ "spec": { "unschedulable": true }, "metadata": { "labels": { "a": "b" } } }),
    )
    .await;
    let only = Extra { accept: Some(METADATA_LIST), ..Extra::default() };
    s.call("GET", nodes, Value::Null, only).await;
    let account = json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" } });
    s.post("/api/v1/namespaces/diff/serviceaccounts", account).await;
    // A pod has far more defaults than are of use here.
    let pods = "/api/v1/namespaces/diff/pods";
    let places = &[
        "/metadata",
        "/spec/nodeName",
        "/status/phase",
        "/spec/restartPolicy",
        "/spec/terminationGracePeriodSeconds",
    ];
    let picked = Extra { only: places, ..Extra::default() };
    let pod = |name: &str| {
        json!({ "metadata": { "name": name }, "spec": { "containers": [{ "name": "c", "image": "i" }],
        "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "a" } }] } })
    };
    s.call("POST", pods, pod("p"), picked).await;
    s.call("POST", pods, pod("q"), picked).await;
    let binding = json!({ "apiVersion": "v1", "kind": "Binding", "metadata": { "name": "p" }, "target": { "kind": "Node", "name": "n" } });
    s.post(&format!("{pods}/p/binding"), binding).await;
    let merge = Extra { content: Some("application/merge-patch+json"), ..picked };
    s.call("PATCH", &format!("{pods}/p/status"), json!({ "status": { "phase": "Running" } }), merge).await;
    let names = Extra {
        accept: Some(METADATA_LIST),
        only: &["/items/0/metadata/name", "/items/1"],
        ..Extra::default()
    };
    s.call("GET", &format!("{pods}?fieldSelector=spec.nodeName%3Dn"), Value::Null, names).await;
    s.call(
        "GET",
        &format!("{pods}?fieldSelector=status.phase%3DPending,spec.nodeName%3D"),
        Value::Null,
        names,
    )
    .await;
    s.call("DELETE", &format!("{pods}/q"), Value::Null, picked).await;
    s.call("GET", &format!("{pods}/q"), Value::Null, picked).await;
    s.call("DELETE", &format!("{pods}/p"), Value::Null, picked).await;
    s.call("DELETE", &format!("{pods}/p"), Value::Null, picked).await;
    s.call("DELETE", &format!("{pods}/p"), json!({ "gracePeriodSeconds": 0 }), picked).await;
    s.call("GET", &format!("{pods}/p"), Value::Null, picked).await;
    s.delete(&format!("{nodes}/n"), Value::Null).await;
}

async fn events(s: &mut Session) {
    let (core, new) = ("/api/v1/namespaces/diff/events", "/apis/events.k8s.io/v1/namespaces/diff/events");
    let event = |name: &str, change: Value| {
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": { "name": name },
            "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "x.io/y", "reportingInstance": "i",
            "action": "Provision", "reason": "Failed", "type": "Warning", "note": "why",
            "regarding": { "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "diff", "name": "a", "uid": OTHER_UID },
        });
        merge(&mut event, change);
        event
    };
    s.post(new, event("e", json!({}))).await;
    s.post(new, event("bad", json!({ "eventTime": null }))).await;
    s.post(new, event("bad", json!({ "note": "x".repeat(1025) }))).await;
    s.post(new, event("bad", json!({ "action": null }))).await;
    s.post(new, event("bad", json!({ "type": "Odd" }))).await;
    s.post(new, event("bad", json!({ "regarding": { "namespace": "default" } }))).await;
    let old = json!({
        "metadata": { "name": "c" }, "reason": "Old", "message": "m", "type": "Normal", "count": 2,
        "source": { "component": "kcm" }, "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:01Z",
        "involvedObject": { "kind": "PersistentVolumeClaim", "namespace": "diff", "name": "a", "uid": OTHER_UID },
    });
    s.post(core, old).await;
    for path in [format!("{core}/e"), format!("{new}/e"), format!("{core}/c"), format!("{new}/c")] {
        s.get(&path).await;
    }
    let series = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z" } });
    s.merge(&format!("{new}/e"), series).await;
    s.merge(&format!("{new}/missing"), json!({ "series": { "count": 3 } })).await;
    for selector in ["regarding.uid", "involvedObject.uid"] {
        s.get(&format!("{core}?fieldSelector={selector}%3D{OTHER_UID}")).await;
        s.get(&format!("{new}?fieldSelector={selector}%3D{OTHER_UID},reason%3DFailed")).await;
    }
    let only = Extra { accept: Some(METADATA_LIST), ..Extra::default() };
    let one = format!("{new}?fieldSelector=regarding.uid%3D{OTHER_UID},reason%3DFailed&limit=1");
    s.call("GET", &one, Value::Null, only).await;
    s.get(&format!("{core}?fieldSelector=reason!%3DFailed,type%3DNormal")).await;
    s.delete(&format!("{new}/c"), Value::Null).await;
}

async fn leases(s: &mut Session) {
    let leases = "/apis/coordination.k8s.io/v1/namespaces/diff/leases";
    let path = &format!("{leases}/l");
    let lease = json!({ "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "l" },
        "spec": { "holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                  "acquireTime": "2026-01-01T00:00:00.000000Z", "renewTime": "2026-01-01T00:00:00.123456Z" } });
    let mut first = s.post(leases, lease.clone()).await;
    s.put(path, lease).await;
    first["spec"]["holderIdentity"] = json!("b");
    s.put(path, first.clone()).await;
    s.put(path, first).await;
    s.put(&format!("{leases}/m"), json!({ "metadata": { "name": "m" }, "spec": { "holderIdentity": "c" } }))
        .await;
    s.post(leases, json!({ "metadata": { "name": "bad" }, "spec": { "leaseDurationSeconds": 0 } })).await;
    s.merge(path, json!({ "spec": { "holderIdentity": "" } })).await;
    s.get(leases).await;
    s.delete(path, Value::Null).await;
}

async fn other_kinds(s: &mut Session) {
    let base = "/apis/storage.k8s.io/v1";
    let driver = json!({ "metadata": { "name": "d.io" }, "spec": { "attachRequired": false, "storageCapacity": true } });
    s.post(&format!("{base}/csidrivers"), driver).await;
    s.merge(&format!("{base}/csidrivers/d.io"), json!({ "spec": { "attachRequired": true } })).await;
    let capacity = json!({ "metadata": { "name": "cap" }, "storageClassName": "standard", "capacity": "1Gi",
        "nodeTopology": { "matchLabels": { "kubernetes.io/hostname": "n" } } });
    let capacities = &format!("{base}/namespaces/diff/csistoragecapacities");
    s.post(capacities, capacity).await;
    s.merge(&format!("{capacities}/cap"), json!({ "capacity": "2Gi" })).await;
    s.merge(&format!("{capacities}/cap"), json!({ "storageClassName": "other" })).await;
    let attachment = json!({ "metadata": { "name": "att" }, "spec": { "attacher": "d.io", "nodeName": "n",
        "source": { "persistentVolumeName": "csi" } } });
    let attachments = &format!("{base}/volumeattachments");
    s.post(attachments, attachment).await;
    s.merge(&format!("{attachments}/att/status"), json!({ "status": { "attached": true } })).await;
    s.get(attachments).await;
    s.delete(&format!("{attachments}/att"), Value::Null).await;
    let secrets = "/api/v1/namespaces/diff/secrets";
    s.post(secrets, json!({ "metadata": { "name": "s" }, "stringData": { "a": "text", "b": "" }, "data": { "c": "Zm9v" } })).await;
    s.merge(&format!("{secrets}/s"), json!({ "type": "other" })).await;
    let review = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": { "resourceAttributes": { "verb": "create", "resource": "persistentvolumes" } } });
    s.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review).await;
}

async fn lists(s: &mut Session) {
    let mut newest = Value::Null;
    for name in ["l1", "l2", "l3", "l4", "l5"] {
        newest = s
            .post(
                MAPS,
                map(name, json!({ "metadata": { "labels": { "list": "yes", "n": name } }, "data": null })),
            )
            .await;
    }
    let list = &format!("{MAPS}?labelSelector=list%3Dyes");
    s.get(list).await;
    for selector in [
        "n%20in%20(l1,l2),list",
        "n%20notin%20(l1,l2),list",
        "list,!n",
        "list!%3Dyes,x",
        "n%3D%3Dl3",
        "n=l3,list=no",
        "a%20b",
        "n%20in%20l1",
    ] {
        s.get(&format!("{MAPS}?labelSelector={selector}")).await;
    }
    s.get(&format!("{MAPS}?fieldSelector=metadata.name%3Dl2")).await;
    s.get(&format!("{MAPS}?fieldSelector=metadata.name!%3Dl2,metadata.namespace%3Ddiff&labelSelector=list"))
        .await;
    s.get(&format!("{MAPS}?fieldSelector=data.a%3D1")).await;
    s.get(&format!("{VOLUMES}?fieldSelector=status.phase%3DBound")).await;
    // Pages. PVs, of which only the script's are there.
    let page = s.get(&format!("{VOLUMES}?limit=2")).await;
    let token = text(&page, "/metadata/continue");
    let changed =
        s.merge(&format!("{VOLUMES}/local"), json!({ "metadata": { "labels": { "changed": "yes" } } })).await;
    s.rename_in_calls(&token, "<token>");
    s.rename_in_calls(&version(&changed), "<version of local>");
    // What the real one answers from its cache may lag behind. It waits for a version that it is asked for.
    s.get(&format!("{VOLUMES}?resourceVersion={}", version(&changed))).await;
    s.get(&format!("{VOLUMES}?limit=2&continue={token}")).await;
    s.get(&format!("{VOLUMES}?limit=2&continue={token}&resourceVersion={}", version(&page))).await;
    s.get(&format!("{VOLUMES}?limit=1&labelSelector=volume")).await;
    s.get(&format!("{VOLUMES}?limit=2&resourceVersion=0")).await;
    s.get(&format!("{VOLUMES}?resourceVersion=0&resourceVersionMatch=NotOlderThan")).await;
    let old = version(&newest);
    s.rename_in_calls(&old, "<version of l5>");
    let after = s.merge(&format!("{MAPS}/l5"), json!({ "data": { "a": "after" } })).await;
    s.rename_in_calls(&version(&after), "<version after l5>");
    s.get(&format!("{list}&resourceVersion={}", version(&after))).await;
    s.get(&format!("{list}&resourceVersion={old}")).await;
    s.get(&format!("{list}&resourceVersion={old}&resourceVersionMatch=NotOlderThan")).await;
    s.get(&format!("{list}&resourceVersion={old}&resourceVersionMatch=Exact")).await;
    s.get(&format!("{list}&resourceVersion={old}&limit=5")).await;
    s.get(&format!("{list}&resourceVersion=999999999")).await;
    s.get(&format!("{list}&resourceVersion=999999999&resourceVersionMatch=Exact")).await;
    s.get(&format!("{MAPS}/l1?resourceVersion=999999999")).await;
    s.get(&format!("{MAPS}/l1?resourceVersion=0")).await;
    s.get(&format!("{list}&resourceVersion=abc")).await;
    s.get(&format!("{list}&resourceVersionMatch=Exact")).await;
    s.get(&format!("{list}&resourceVersion=0&resourceVersionMatch=Exact")).await;
    s.get(&format!("{list}&resourceVersion=5&resourceVersionMatch=Other")).await;
    s.get(&format!("{list}&sendInitialEvents=true")).await;
    s.get(&format!("{list}&continue=nonsense&limit=2")).await;
}

async fn watches(s: &mut Session) {
    let now = s.get(&format!("{MAPS}/l1")).await;
    let from = version(&s.merge(&format!("{MAPS}/l1"), json!({ "data": { "a": "w" } })).await);
    assert_ne!(version(&now), from);
    s.rename_in_calls(&from, "<from>");
    let label = |value: &str| json!({ "metadata": { "labels": { "w": value } } });
    // What happens, seen by the plain watch, by one with a selector, and by one of metadata.
    let path = &format!("{MAPS}/w");
    s.post(MAPS, map("w", label("no"))).await;
    s.merge(path, label("yes")).await;
    s.merge(path, json!({ "data": { "a": "2" } })).await;
    s.merge(path, label("no")).await;
    s.merge(path, label("yes")).await;
    s.merge(path, json!({ "metadata": { "finalizers": ["x.io/a"] } })).await;
    s.delete(path, Value::Null).await;
    s.merge(path, json!({ "metadata": { "finalizers": null } })).await;
    let watch = format!("{MAPS}?watch=true&resourceVersion={from}");
    s.watch(&watch, None, 8, async |_| ()).await;
    s.watch(&format!("{watch}&labelSelector=w%3Dyes"), None, 6, async |_| ()).await;
    s.watch(&watch, Some(METADATA), 8, async |_| ()).await;
    s.watch(&format!("{watch}&fieldSelector=metadata.name%3Dnone&timeoutSeconds=1"), None, 1, async |_| ())
        .await;
    // While it is open.
    s.watch(&format!("{watch}&labelSelector=live"), None, 3, async |s| {
        s.post(MAPS, map("live", json!({ "metadata": { "labels": { "live": "yes" } } }))).await;
        s.merge(&format!("{MAPS}/live"), json!({ "data": { "a": "2" } })).await;
        s.delete(&format!("{MAPS}/live"), Value::Null).await;
    })
    .await;
    let list = format!("{MAPS}?watch=1&labelSelector=list");
    s.watch(&list, None, 5, async |_| ()).await;
    s.watch(&format!("{list}&resourceVersion=0"), None, 5, async |_| ()).await;
    let initial = format!("{list}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    s.watch(&format!("{initial}&allowWatchBookmarks=true"), None, 6, async |_| ()).await;
    for resource in [VOLUMES, CLAIMS, CLASSES] {
        let initial = format!("{resource}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
        s.watch(&format!("{initial}&allowWatchBookmarks=true&labelSelector=none"), None, 1, async |_| ())
            .await;
    }
    s.watch(
        &format!("{initial}&allowWatchBookmarks=true&resourceVersion={from}"),
        Some(METADATA),
        6,
        async |_| (),
    )
    .await;
    s.watch(&format!("{list}&resourceVersion=1"), None, 1, async |_| ()).await;
    s.watch(&format!("{VOLUMES}?watch=1&resourceVersion=1&allowWatchBookmarks=true"), None, 1, async |_| ())
        .await;
    s.watch(&format!("{list}&sendInitialEvents=true"), None, 1, async |_| ()).await;
    s.watch(&format!("{list}&resourceVersionMatch=NotOlderThan"), None, 1, async |_| ()).await;
    s.watch(&format!("{list}&resourceVersion=abc"), None, 1, async |_| ()).await;
    let core = "/api/v1/namespaces/diff/events?watch=1&fieldSelector=reason%3DFailed";
    s.watch(core, None, 1, async |_| ()).await;
    let new = "/apis/events.k8s.io/v1/events?watch=1&fieldSelector=reason%3DFailed";
    s.watch(new, None, 1, async |_| ()).await;
}

/// What did not fit elsewhere.
async fn corners(s: &mut Session) {
    for (name, size) in [
        ("q1", json!("1.5Gi")),
        ("q2", json!("0.5Gi")),
        ("q3", json!("1e9")),
        ("q4", json!(1_073_741_824)),
        ("q5", json!("1073741824")),
        ("q6", json!("1000Ki")),
        ("q7", json!("1G")),
        ("q8", json!("500000k")),
        ("q9", json!("10000000000m")),
        ("q10", json!("1.1Gi")),
    ] {
        s.post(VOLUMES, volume(name, json!({ "spec": { "capacity": { "storage": size } } }))).await;
    }
    for size in ["0", "-1Gi", "1.5", "lots"] {
        s.post(VOLUMES, volume("bad", json!({ "spec": { "capacity": { "storage": size } } }))).await;
        s.post(CLAIMS, claim("bad", json!({ "spec": { "resources": { "requests": { "storage": size } } } })))
            .await;
    }
    let path = &format!("{VOLUMES}/q1");
    let mut whole = s.get(path).await;
    whole["status"] = json!({ "phase": "Failed", "message": "m", "reason": "r" });
    whole["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
    let mut whole = s.put(path, whole).await;
    whole["status"] = json!({ "phase": "Failed", "message": "m", "reason": "r" });
    whole["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
    let whole = s.put(&format!("{path}/status"), whole).await;
    s.put(&format!("{path}/status"), whole).await;
    let reserve = json!({ "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": "diff", "name": "a", "uid": OTHER_UID });
    s.merge(path, json!({ "spec": { "claimRef": reserve } })).await;
    s.merge(path, json!({ "spec": { "claimRef": { "uid": null } } })).await;
    s.merge(path, json!({ "spec": { "claimRef": null } })).await;
    s.merge(path, json!({ "metadata": { "finalizers": [] } })).await;
    s.merge(path, json!({ "metadata": { "labels": {}, "annotations": {} } })).await;
    s.merge(path, json!({ "metadata": { "labels": null, "annotations": null } })).await;
    s.strategic(path, json!({ "metadata": { "finalizers": ["x.io/a", "x.io/b", "x.io/c"] } })).await;
    let ordered = json!({ "metadata": { "$setElementOrder/finalizers": ["x.io/c", "x.io/d", "x.io/a"],
        "finalizers": ["x.io/d"], "$deleteFromPrimitiveList/finalizers": ["x.io/b"] } });
    s.strategic(path, ordered).await;
    s.strategic(path, json!({ "metadata": { "finalizers": null } })).await;
    s.delete(path, json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground" }))
        .await;
    s.merge(path, json!({ "metadata": { "finalizers": null } })).await;
    s.delete(&format!("{VOLUMES}/q2"), json!({ "propagationPolicy": "Orphan" })).await;
    s.merge(&format!("{VOLUMES}/q2"), json!({ "metadata": { "finalizers": ["orphan"] } })).await;
    s.merge(&format!("{VOLUMES}/q2"), json!({ "metadata": { "finalizers": [] } })).await;
    s.merge(&format!("{VOLUMES}/q3"), json!({ "spec": { "accessModes": [] } })).await;
    s.merge(&format!("{VOLUMES}/q3"), json!({ "spec": { "capacity": null } })).await;
    s.merge(&format!("{VOLUMES}/q3"), json!({ "spec": { "nfs": null } })).await;
    s.merge(
        &format!("{VOLUMES}/q3"),
        json!({ "spec": { "storageClassName": "other", "mountOptions": ["hard"] } }),
    )
    .await;
    // Sources of claims.
    let group = |group: &str, kind: &str| json!({ "apiGroup": group, "kind": kind, "name": "x" });
    s.post(
        CLAIMS,
        claim(
            "from-snapshot",
            json!({ "spec": { "dataSource": group("snapshot.storage.k8s.io", "VolumeSnapshot") } }),
        ),
    )
    .await;
    s.post(CLAIMS, claim("from-odd", json!({ "spec": { "dataSource": group("x.io", "Odd") } }))).await;
    s.post(CLAIMS, claim("from-ref", json!({ "spec": { "dataSourceRef": group("x.io", "Odd") } }))).await;
    s.post(CLAIMS, claim("selecting", json!({ "spec": { "selector": { "matchLabels": { "a": "b" } } } })))
        .await;
    s.post(CLAIMS, claim("bad", json!({ "spec": { "storageClassName": "Not A Class" } }))).await;
    s.post(CLAIMS, claim("bad", json!({ "spec": { "accessModes": ["ReadWriteOncePod", "ReadWriteOnce"] } })))
        .await;
    let finalizer = json!({ "metadata": { "finalizers": ["x.io/own"] } });
    s.post(CLAIMS, claim("own", finalizer)).await;
    // Classes.
    let class = |change: Value| {
        let mut class = json!({ "metadata": { "name": "bad" }, "provisioner": "x.io" });
        merge(&mut class, change);
        class
    };
    s.post(CLASSES, class(json!({ "reclaimPolicy": "Recycle" }))).await;
    s.post(CLASSES, class(json!({ "volumeBindingMode": "Sometimes" }))).await;
    s.post(CLASSES, class(json!({ "provisioner": "Not a name" }))).await;
    s.post(CLASSES, class(json!({ "parameters": { "": "x" } }))).await;
    let second = json!({ "metadata": { "name": "standard2", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } } });
    s.post(CLASSES, class(second)).await;
    // To the end of a list.
    let mut next = String::new();
    for _ in 0..4 {
        let page = s.get(&format!("{VOLUMES}?limit=4&continue={next}")).await;
        next = text(&page, "/metadata/continue");
        if next.is_empty() {
            break;
        }
        s.rename_in_calls(&next, "<token>");
    }
    s.call(
        "GET",
        &format!("{VOLUMES}?limit=1&labelSelector=volume%3Dq5"),
        Value::Null,
        Extra { accept: Some(METADATA_LIST), ..Extra::default() },
    )
    .await;
    s.get("/api/v1/namespaces/diff/events?limit=1&fieldSelector=type%3DNothing").await;
    // How a PV goes, as a watch of its label sees it.
    let from = version(
        &s.merge(&format!("{VOLUMES}/q4"), json!({ "metadata": { "labels": { "gone": "soon" } } })).await,
    );
    s.rename_in_calls(&from, "<from q4>");
    s.delete(&format!("{VOLUMES}/q4"), Value::Null).await;
    s.merge(
        &format!("{VOLUMES}/q4"),
        json!({ "metadata": { "finalizers": null, "labels": { "gone": "now" } } }),
    )
    .await;
    s.watch(
        &format!("{VOLUMES}?watch=1&resourceVersion={from}&labelSelector=gone%3Dsoon"),
        None,
        2,
        async |_| (),
    )
    .await;
    s.watch(
        &format!("{VOLUMES}?watch=1&resourceVersion={from}&labelSelector=gone%3Dnow&timeoutSeconds=1"),
        None,
        1,
        async |_| (),
    )
    .await;
    let all = format!(
        "/api/v1/configmaps?watch=1&labelSelector=list&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={from}&timeoutSeconds=1"
    );
    s.watch(&all, None, 1, async |_| ()).await;
    // A namespace that goes.
    s.delete("/api/v1/namespaces/diff", Value::Null).await;
    s.delete("/api/v1/namespaces/diff", Value::Null).await;
    s.post(MAPS, map("late", json!({}))).await;
    s.post(CLAIMS, claim("late", json!({}))).await;
    s.merge(&format!("{MAPS}/l2"), json!({ "data": { "still": "changes" } })).await;
    s.get("/api/v1/namespaces/diff").await;
}
