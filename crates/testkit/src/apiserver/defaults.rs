//! What the server fills in, and what it takes out, before an object is checked.

use serde_json::{Map, Value, json};

use super::object::{annotation, at, default, map_at, remove, set, text_at};
use super::quantity::Quantity;
use super::resources::Resource;

/// Puts an object into the shape in which it is kept: no nulls, nothing empty that Go would omit, defaults set.
pub(super) fn normalise(resource: &Resource, object: &mut Value) {
    drop_nulls(object);
    set(object, &["kind"], json!(resource.kind));
    set(object, &["apiVersion"], json!(resource.api_version()));
    tidy_metadata(map_at(object, "metadata"));
    match resource.kind {
        "PersistentVolume" => volume(object),
        "PersistentVolumeClaim" => claim(object),
        "StorageClass" => {
            default(object, &["reclaimPolicy"], json!("Delete"));
            default(object, &["volumeBindingMode"], json!("Immediate"));
            omit_empty(object, &[&["parameters"], &["mountOptions"], &["allowedTopologies"]]);
        }
        "CSIDriver" => {
            let fields = [
                ("attachRequired", json!(true)),
                ("podInfoOnMount", json!(false)),
                ("fsGroupPolicy", json!("ReadWriteOnceWithFSType")),
                ("storageCapacity", json!(false)),
                ("volumeLifecycleModes", json!(["Persistent"])),
                ("requiresRepublish", json!(false)),
                ("seLinuxMount", json!(false)),
            ];
            for (field, value) in fields {
                default(object, &["spec", field], value);
            }
        }
        "Namespace" => {
            let name = json!(text_at(object, &["metadata", "name"]));
            set(object, &["metadata", "labels", "kubernetes.io/metadata.name"], name);
            default(object, &["spec"], json!({}));
        }
        "Node" => node(object),
        "Pod" => pod(object),
        "Secret" => secret(object),
        "VolumeAttachment" => default(object, &["status"], json!({ "attached": false })),
        "Lease" => default(object, &["spec"], json!({})),
        "Event" => event(object),
        _ => omit_empty(object, &[&["data"], &["binaryData"]]),
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

fn tidy_metadata(metadata: &mut Map<String, Value>) {
    metadata.remove("selfLink");
    metadata.remove("managedFields");
    metadata.retain(|_, value| !is_empty(value));
}

fn omit_empty(object: &mut Value, paths: &[&[&str]]) {
    for path in paths {
        if at(object, path).is_some_and(is_empty) {
            remove(object, path);
        }
    }
}

fn volume(object: &mut Value) {
    default(object, &["spec", "persistentVolumeReclaimPolicy"], json!("Retain"));
    default(object, &["spec", "volumeMode"], json!("Filesystem"));
    default(object, &["status"], json!({}));
    if at(object, &["spec", "hostPath"]).is_some() {
        default(object, &["spec", "hostPath", "type"], json!(""));
    }
    for field in ["storageClassName", "mountOptions", "accessModes", "capacity"] {
        omit_empty(object, &[&["spec", field]]);
    }
    for field in ["kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"] {
        omit_empty(object, &[&["spec", "claimRef", field]]);
    }
    canonical_sizes(object, &["spec", "capacity"]);
}

fn claim(object: &mut Value) {
    default(object, &["spec", "resources"], json!({}));
    default(object, &["spec", "volumeMode"], json!("Filesystem"));
    default(object, &["status"], json!({}));
    default(object, &["status", "phase"], json!("Pending"));
    omit_empty(object, &[&["spec", "volumeName"], &["spec", "accessModes"]]);
    drop_odd_source(object);
    for (from, to) in [("dataSource", "dataSourceRef"), ("dataSourceRef", "dataSource")] {
        if let Some(source) = at(object, &["spec", from]).cloned()
            && text_at(&source, &["namespace"]).is_empty()
        {
            default(object, &["spec", to], source);
        }
    }
    // Written even if there is none.
    for source in ["dataSource", "dataSourceRef"] {
        if at(object, &["spec", source]).is_some() {
            default(object, &["spec", source, "apiGroup"], Value::Null);
        }
    }
    condition_times(object, &["lastProbeTime", "lastTransitionTime"]);
    canonical_sizes(object, &["spec", "resources", "requests"]);
    canonical_sizes(object, &["status", "capacity"]);
    canonical_sizes(object, &["status", "allocatedResources"]);
    omit_empty(
        object,
        &[
            &["status", "capacity"],
            &["status", "allocatedResources"],
            &["status", "allocatedResourceStatuses"],
            &["status", "conditions"],
        ],
    );
}

/// The older of the two fields takes claims and snapshots only, and everything else without a word.
fn drop_odd_source(object: &mut Value) {
    if at(object, &["spec", "dataSourceRef"]).is_some() {
        return;
    }
    let Some(source) = at(object, &["spec", "dataSource"]) else { return };
    let kind = (text_at(source, &["apiGroup"]), text_at(source, &["kind"]));
    if !matches!(kind, ("", "PersistentVolumeClaim") | ("snapshot.storage.k8s.io", "VolumeSnapshot")) {
        remove(object, &["spec", "dataSource"]);
    }
}

/// Times of conditions are written even if there are none.
fn condition_times(object: &mut Value, fields: &[&str]) {
    let conditions = object.get_mut("status").and_then(|status| status.get_mut("conditions"));
    for condition in conditions.and_then(Value::as_array_mut).into_iter().flatten() {
        for field in fields {
            default(condition, &[field], Value::Null);
        }
    }
}

fn node(object: &mut Value) {
    condition_times(object, &["lastHeartbeatTime", "lastTransitionTime"]);
    default(object, &["spec"], json!({}));
    default(object, &["status", "daemonEndpoints", "kubeletEndpoint", "Port"], json!(0));
    for field in [
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ] {
        default(object, &["status", "nodeInfo", field], json!(""));
    }
    if let Some(capacity) = at(object, &["status", "capacity"]).cloned() {
        default(object, &["status", "allocatable"], capacity);
    }
}

/// Far from all: what tells a scheduled pod from a waiting one.
fn pod(object: &mut Value) {
    condition_times(object, &["lastProbeTime", "lastTransitionTime"]);
    default(object, &["spec", "restartPolicy"], json!("Always"));
    default(object, &["spec", "terminationGracePeriodSeconds"], json!(30));
    default(object, &["spec", "dnsPolicy"], json!("ClusterFirst"));
    default(object, &["spec", "schedulerName"], json!("default-scheduler"));
    default(object, &["spec", "securityContext"], json!({}));
    default(object, &["status"], json!({}));
    omit_empty(object, &[&["spec", "nodeName"]]);
}

fn secret(object: &mut Value) {
    default(object, &["type"], json!("Opaque"));
    if let Some(Value::Object(texts)) = remove(object, &["stringData"]) {
        for (key, text) in texts {
            let text = text.as_str().unwrap_or_default();
            set(object, &["data", &key], json!(base64(text.as_bytes())));
        }
    }
    omit_empty(object, &[&["data"]]);
}

/// Kept as core/v1 shows it, where these are always there.
fn event(object: &mut Value) {
    default(object, &["involvedObject"], json!({}));
    default(object, &["source"], json!({}));
    default(object, &["reportingComponent"], json!(""));
    default(object, &["reportingInstance"], json!(""));
    for field in ["firstTimestamp", "lastTimestamp", "eventTime"] {
        default(object, &[field], Value::Null);
    }
    if at(object, &["count"]) == Some(&json!(0)) {
        remove(object, &["count"]);
    }
    omit_empty(object, &[&["message"], &["action"], &["reason"], &["type"]]);
}

/// As JSON has bytes.
pub(super) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let letter = LETTERS.get(bits >> (18 - 6 * index) & 63).copied().unwrap_or(b'=');
            text.push(if index <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

/// Sizes as Kubernetes writes them: 1024Mi becomes 1Gi.
fn canonical_sizes(object: &mut Value, path: &[&str]) {
    let Some(sizes) = path.iter().try_fold(&mut *object, |value, key| value.get_mut(*key)) else { return };
    for size in sizes.as_object_mut().into_iter().flat_map(Map::values_mut) {
        if let Some(quantity) = size_of(size) {
            *size = json!(quantity.canonical());
        }
    }
}

/// A size may be written as text or as a number.
pub(super) fn size_of(value: &Value) -> Option<Quantity> {
    match value {
        Value::String(text) => Quantity::parse(text),
        Value::Number(number) => Quantity::parse(&number.to_string()),
        _ => None,
    }
}

/// What a new object's status is, whatever the request says; and the finalizers and fields that admission adds.
pub(super) fn prepare_create(resource: &Resource, object: &mut Value, now: &str) {
    match resource.kind {
        "PersistentVolume" => {
            set(object, &["status"], json!({ "phase": "Pending", "lastPhaseTransitionTime": now }));
            add_finalizer(object, "kubernetes.io/pv-protection");
        }
        "PersistentVolumeClaim" => {
            set(object, &["status"], json!({ "phase": "Pending" }));
            add_finalizer(object, "kubernetes.io/pvc-protection");
        }
        "Namespace" => {
            set(object, &["spec", "finalizers"], json!(["kubernetes"]));
            set(object, &["status"], json!({ "phase": "Active" }));
        }
        "Node" => {
            // Admission plug-in TaintNodesByCondition.
            let taint = json!({ "effect": "NoSchedule", "key": "node.kubernetes.io/not-ready" });
            let mut taints = super::object::list_at(object, &["spec", "taints"]).to_vec();
            if !taints.iter().any(|other| other.get("key") == taint.get("key")) {
                taints.push(taint);
            }
            set(object, &["spec", "taints"], json!(taints));
        }
        "Pod" => {
            set(object, &["metadata", "generation"], json!(1));
            set(object, &["status"], json!({ "phase": "Pending", "qosClass": "BestEffort" }));
        }
        "VolumeAttachment" => set(object, &["status"], json!({ "attached": false })),
        _ => {}
    }
}

fn add_finalizer(object: &mut Value, finalizer: &str) {
    let mut finalizers = super::object::finalizers(object).to_vec();
    if !finalizers.iter().any(|other| other == finalizer) {
        finalizers.push(json!(finalizer));
        set(object, &["metadata", "finalizers"], json!(finalizers));
    }
}

/// The status is written through `/status` only, and nothing of the spec is.
pub(super) fn prepare_update(resource: &Resource, old: &Value, new: &mut Value, to_status: bool, now: &str) {
    if !resource.has_status {
        return;
    }
    let kept = if to_status { "spec" } else { "status" };
    match old.get(kept) {
        Some(value) => set(new, &[kept], value.clone()),
        None => drop(remove(new, &[kept])),
    }
    if to_status && resource.kind == "PersistentVolume" {
        const TIME: [&str; 2] = ["status", "lastPhaseTransitionTime"];
        let same_phase = text_at(old, &["status", "phase"]) == text_at(new, &["status", "phase"]);
        let (before, after) = (at(old, &TIME).cloned(), at(new, &TIME));
        match (same_phase, before) {
            (true, Some(before)) if after.is_none() => set(new, &TIME, before),
            (false, before) if after.is_none() || after == before.as_ref() => set(new, &TIME, json!(now)),
            _ => {}
        }
    }
}

/// Does a claim name no class at all, so that it gets the default one?
pub(super) fn wants_default_class(object: &Value) -> bool {
    at(object, &["spec", "storageClassName"]).is_none()
        && annotation(object, "volume.beta.kubernetes.io/storage-class").is_empty()
}

/// Is this class the default?
pub(super) fn is_default_class(class: &Value) -> bool {
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"]
        .iter()
        .any(|key| annotation(class, key) == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_kept_as_base64() {
        for (text, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }
}
