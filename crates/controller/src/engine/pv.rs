//! The PV object for a volume, and the manifest that brings a retained one back.

use crate::backend::Envelope;
use crate::decide::trash::DEFAULT_KEPT;
use crate::decide::{OnDelete, ReclaimPolicy, VolumeView};
use crate::names;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use volwright_provisioner::{Failure, Result, Topology, VolumeMode, VolumeSource, format_bytes};

use super::journal::Intent;

/// What is published for a claim.
pub struct Publication<'a> {
    /// As it was planned.
    pub intent: &'a Intent,
    /// The completed handle.
    pub handle: &'a Envelope,
    /// What the PV says.
    pub source: &'a VolumeSource,
    /// Real size in bytes.
    pub size: u64,
    /// From where it can be used.
    pub topology: &'a Topology,
    /// `spec.volumeAttributesClassName` of the claim; a CSI-shaped PV must have the same or never binds.
    pub attributes_class: Option<&'a str>,
    /// The node of an agent.
    pub node: Option<&'a str>,
}

/// The PV, complete in its create call: what is added later can be missed by others.
pub fn persistent_volume(p: &Publication<'_>) -> Result<PersistentVolume> {
    let request = &p.intent.request;
    let mut annotations = BTreeMap::from([
        (names::PROVISIONED_BY, p.intent.provisioner.clone()),
        (names::PROVISIONER, p.intent.provisioner.clone()),
        (names::HANDLE, p.handle.to_text()),
        (names::ON_DELETE, p.intent.on_delete.as_str().to_owned()),
        (names::OWNER, request.mark.owner.to_string()),
    ]);
    let mut labels = BTreeMap::new();
    if let Some(node) = p.node {
        annotations.insert(names::NODE_NAME, node.to_owned());
        labels.insert(names::NODE_LABEL, names::node_hash(node));
    }
    if p.intent.on_delete == OnDelete::Trash {
        // Written out: another default must not shorten what was promised.
        let said = request.parameters.get(names::TRASH_FOR_PARAMETER).cloned();
        let kept = said.unwrap_or_else(|| humantime::format_duration(DEFAULT_KEPT).to_string());
        annotations.insert(names::TRASH_FOR, kept);
    }
    let finalizers: &[&str] = match p.intent.policy {
        ReclaimPolicy::Delete => &[names::FINALIZER],
        ReclaimPolicy::Retain | ReclaimPolicy::Recycle => &[],
    };
    let mut spec = json!({
        "capacity": { "storage": format_bytes(p.size) },
        "accessModes": request.access_modes,
        "volumeMode": request.volume_mode,
        "persistentVolumeReclaimPolicy": p.intent.policy.as_str(),
        "storageClassName": request.class_name,
        "mountOptions": p.intent.mount_options,
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": request.claim.namespace,
            "name": request.claim.name,
            "uid": request.claim.uid,
        },
    });
    if request.volume_mode == VolumeMode::Block {
        // Kubernetes refuses mount options on block volumes.
        spec["mountOptions"] = json!([]);
    }
    add_source(&mut spec, p.source)?;
    add_affinity(&mut spec, p.topology);
    if let Some(class) = p.attributes_class.filter(|_| p.source.is_csi()) {
        spec["volumeAttributesClassName"] = json!(class);
    }
    let object = json!({
        "metadata": {
            "name": request.pv_name,
            "annotations": annotations,
            "labels": labels,
            "finalizers": finalizers,
        },
        "spec": spec,
    });
    serde_json::from_value(object).map_err(|error| {
        Failure::invalid("the volume cannot be written as a PersistentVolume").caused_by(error)
    })
}

/// The manifest that makes the PV of a retained volume again, to be bound by whoever claims it by name.
///
/// In one line of YAML, and without what follows from the rest (the node's name is in the handle): it is to fit into an
/// event.
pub fn manifest(volume: &VolumeView) -> String {
    let mut annotations = Map::new();
    let derived_owner = volume.name.strip_prefix("pvc-") == volume.owner.as_deref();
    let kept = [
        (names::PROVISIONED_BY, &volume.provisioned_by),
        (names::HANDLE, &volume.handle),
        (names::ON_DELETE, &volume.on_delete.clone().filter(|text| text != OnDelete::default().as_str())),
        (names::TRASH_FOR, &volume.trash_for),
        (names::OWNER, &volume.owner.clone().filter(|_| !derived_owner)),
    ];
    for (key, value) in kept {
        if let Some(value) = value {
            annotations.insert(key.to_owned(), json!(value));
        }
    }
    let mut metadata = json!({ "name": volume.name, "annotations": annotations });
    if let Some(label) = &volume.node_label {
        metadata["labels"] = json!({ (names::NODE_LABEL): label });
    }
    let mut spec = json!({
        "capacity": { "storage": volume.capacity },
        "accessModes": volume.access_modes,
        // The policy is left out: Retain is what the API gives a PV that is made by hand.
        "storageClassName": volume.class,
    });
    if volume.block {
        spec["volumeMode"] = json!("Block");
    }
    add_affinity(&mut spec, &volume.topology);
    // A source of a kind that is not ours cannot be here; if it were, a manifest without it is refused by the API.
    add_source(&mut spec, &volume.source).ok();
    flow(&json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec }))
}

/// The manifests that bring a volume back from the trash: its PV as it was, reserved for a claim of the name that it had,
/// and that claim.
pub fn restorable(volume: &VolumeView) -> [Value; 2] {
    let kept = [
        (names::PROVISIONED_BY, &volume.provisioned_by),
        (names::PROVISIONER, &volume.provisioner),
        (names::HANDLE, &volume.handle),
        (names::ON_DELETE, &volume.on_delete),
        (names::TRASH_FOR, &volume.trash_for),
        (names::OWNER, &Some(volume.owner().to_owned())),
        (names::NODE_NAME, &volume.node_name),
    ];
    let annotations: Map<_, _> =
        kept.iter().filter_map(|(key, value)| Some(((*key).to_owned(), json!(value.as_ref()?)))).collect();
    let mut metadata = json!({
        "name": volume.name, "annotations": annotations, "finalizers": [names::FINALIZER],
    });
    if let Some(label) = &volume.node_label {
        metadata["labels"] = json!({ (names::NODE_LABEL): label });
    }
    let mode = if volume.block { VolumeMode::Block } else { VolumeMode::Filesystem };
    let mut spec = json!({
        "capacity": { "storage": volume.capacity },
        "accessModes": volume.access_modes,
        "volumeMode": mode,
        "persistentVolumeReclaimPolicy": ReclaimPolicy::Delete.as_str(),
        "storageClassName": volume.class,
    });
    if !volume.mount_options.is_empty() {
        spec["mountOptions"] = json!(volume.mount_options);
    }
    let (namespace, name) =
        volume.claim.as_ref().map_or(("default", "restored"), |c| (c.namespace.as_str(), c.name.as_str()));
    // Without a uid: the claim is to be made again.
    spec["claimRef"] = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
    });
    add_affinity(&mut spec, &volume.topology);
    add_source(&mut spec, &volume.source).ok();
    let claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": namespace, "name": name },
        "spec": {
            "accessModes": volume.access_modes,
            "resources": { "requests": { "storage": volume.capacity } },
            "storageClassName": volume.class,
            "volumeMode": mode,
            "volumeName": volume.name,
        },
    });
    [json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": spec }), claim]
}

/// YAML in flow style, quoted only where it must be: a tenth shorter than JSON, which decides whether an event can carry it.
fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<_> =
                fields.iter().map(|(key, value)| format!("{}: {}", plain(key), flow(value))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => plain(text),
        other => other.to_string(),
    }
}

/// Letters first, and nothing that YAML could read as anything else.
fn plain(text: &str) -> String {
    let first = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let rest = text.chars().all(|c| c.is_ascii_alphanumeric() || "./-_".contains(c));
    let word =
        ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_lowercase().as_str());
    if first && rest && !word { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}

fn add_source(spec: &mut Value, source: &VolumeSource) -> Result<()> {
    match source {
        VolumeSource::Local { path } => spec["local"] = json!({ "path": path }),
        // `Directory`: kubelet must never make an empty directory in place of a volume that is not there.
        VolumeSource::HostPath { path } => spec["hostPath"] = json!({ "path": path, "type": "Directory" }),
        VolumeSource::Nfs { server, path } => spec["nfs"] = json!({ "server": server, "path": path }),
        VolumeSource::Csi(csi) => {
            let mut fields = json!({
                "driver": csi.driver,
                "volumeHandle": csi.volume_handle,
                "volumeAttributes": csi.volume_attributes,
            });
            if let Some(fs_type) = &csi.fs_type {
                fields["fsType"] = json!(fs_type);
            }
            if let Some(secret) = &csi.node_stage_secret {
                fields["nodeStageSecretRef"] = json!(secret);
            }
            spec["csi"] = fields;
        }
        VolumeSource::Other { kind } => {
            return Err(Failure::invalid(format!(
                "the backend made a volume source of unknown kind {kind:?}"
            )));
        }
    }
    Ok(())
}

fn add_affinity(spec: &mut Value, topology: &Topology) {
    if topology.is_empty() {
        return;
    }
    let expressions: Vec<_> = topology
        .iter()
        .map(|(key, values)| json!({ "key": key, "operator": "In", "values": values }))
        .collect();
    spec["nodeAffinity"] =
        json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": expressions }] } });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_style_is_read_back_as_it_was() {
        let value = json!({
            "apiVersion": "v1", "a/b": ["x", "10Gi", "true", "No", "", "- x", "it's", "{\"h\":1}", "a: b", "#c"],
            "n": { "empty": {}, "list": [] }, "number": 3, "yes": null,
        });
        let read: Value = serde_yaml::from_str(&flow(&value)).unwrap();
        assert_eq!(read, value);
    }
}
