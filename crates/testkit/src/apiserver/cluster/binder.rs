//! The persistent volume controller: binds claims and volumes, keeps their phases, and asks provisioners for what is
//! missing. It never deletes the PV of an external provisioner.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::ApiServer;
use super::super::object::{Stored, annotation, at, name, namespace, text_at, uid};
use super::matching::{best, class_of, is_reserved_for, satisfies};
use super::{CLAIMS, VOLUMES, all, patch, patch_status};

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Everything as a pass found it. A write makes its object's entry stale, so each object is written once in a pass.
pub(super) struct View {
    /// By uid.
    pub claims: BTreeMap<String, Arc<Stored>>,
    pub volumes: BTreeMap<String, Arc<Stored>>,
    pub classes: BTreeMap<String, Arc<Stored>>,
}

impl View {
    pub fn new(server: &ApiServer) -> Self {
        let by = |key: fn(&Value) -> &str, resource: &str| {
            all(server, resource).into_iter().map(|object| (key(&object.value).to_owned(), object)).collect()
        };
        Self { claims: by(uid, CLAIMS), volumes: by(name, VOLUMES), classes: by(name, "storageclasses") }
    }

    pub fn volume(&self, name: &str) -> Option<&Value> {
        self.volumes.get(name).map(|volume| &volume.value)
    }

    pub fn class(&self, claim: &Value) -> Option<&Value> {
        self.classes.get(class_of(claim)).map(|class| &class.value)
    }

    pub fn volumes(&self) -> impl Iterator<Item = &Value> {
        self.volumes.values().map(|volume| &volume.value)
    }
}

/// Does the claim's class leave it to the scheduler when and where?
pub(super) fn is_late(claim: &Value, class: Option<&Value>) -> bool {
    annotation(claim, SELECTED_NODE).is_empty()
        && class.is_some_and(|class| text_at(class, &["volumeBindingMode"]) == "WaitForFirstConsumer")
}

pub(super) fn is_bound(claim: &Value) -> bool {
    !annotation(claim, BIND_COMPLETED).is_empty() && !text_at(claim, &["spec", "volumeName"]).is_empty()
}

pub(super) fn pass(server: &ApiServer) -> usize {
    let mut written = 0;
    let mut view = View::new(server);
    for claim in all(server, CLAIMS) {
        let wrote = sync_claim(server, &view, &claim.value);
        // A claim bound just now has taken a PV from the view.
        if wrote > 0 {
            view = View::new(server);
        }
        written += wrote;
    }
    for volume in view.volumes() {
        written += sync_volume(server, &view, volume);
    }
    written
}

fn sync_claim(server: &ApiServer, view: &View, claim: &Value) -> usize {
    let wanted = text_at(claim, &["spec", "volumeName"]);
    let completed = !annotation(claim, BIND_COMPLETED).is_empty();
    let volume = view.volume(wanted);
    match (completed, wanted.is_empty(), volume) {
        (false, true, _) => {
            let late = is_late(claim, view.class(claim));
            match best(view.volumes(), claim, late, None) {
                Some(volume) => bind(server, volume, claim),
                None if late => 0,
                None => ask_provisioner(server, view.class(claim), claim),
            }
        }
        (false, false, Some(volume)) if at(volume, &["spec", "claimRef"]).is_none() => {
            if satisfies(volume, claim) { bind(server, volume, claim) } else { 0 }
        }
        (false, false, Some(volume)) if is_reserved_for(volume, claim) => bind(server, volume, claim),
        // Somebody's wish that cannot be met yet.
        (false, false, _) => 0,
        (true, false, Some(volume)) if at(volume, &["spec", "claimRef"]).is_none() => {
            bind(server, volume, claim)
        }
        (true, false, Some(volume)) if text_at(volume, &["spec", "claimRef", "uid"]) == uid(claim) => {
            bind(server, volume, claim)
        }
        (true, _, _) => lost(server, claim),
    }
}

fn lost(server: &ApiServer, claim: &Value) -> usize {
    let change = json!({ "status": { "phase": "Lost", "accessModes": null, "capacity": null } });
    patch_status(server, CLAIMS, claim, &change)
}

/// Marks the claim for the external provisioner of its class.
fn ask_provisioner(server: &ApiServer, class: Option<&Value>, claim: &Value) -> usize {
    let provisioner = class.map_or("", |class| text_at(class, &["provisioner"]));
    if provisioner.is_empty() || provisioner.starts_with("kubernetes.io/") {
        return 0;
    }
    let annotations = json!({ (PROVISIONER): provisioner, (PROVISIONER_BETA): provisioner });
    patch(server, CLAIMS, claim, &json!({ "metadata": { "annotations": annotations } }))
}

/// PV first, then claim, and each one's spec before its status: what is done already changes nothing.
fn bind(server: &ApiServer, volume: &Value, claim: &Value) -> usize {
    let mut written = 0;
    if text_at(volume, &["spec", "claimRef", "uid"]) != uid(claim) {
        written += patch(server, VOLUMES, volume, &bind_volume(volume, claim));
    }
    written += patch_status(server, VOLUMES, volume, &json!({ "status": { "phase": "Bound" } }));
    let mut annotations = json!({ (BIND_COMPLETED): "yes" });
    let mut change = json!({});
    if text_at(claim, &["spec", "volumeName"]) != name(volume) {
        annotations[BOUND_BY_CONTROLLER] = json!("yes");
        change["spec"] = json!({ "volumeName": name(volume) });
    }
    change["metadata"] = json!({ "annotations": annotations });
    written += patch(server, CLAIMS, claim, &change);
    let mut status = json!({ "phase": "Bound", "accessModes": at(volume, &["spec", "accessModes"]) });
    // The capacity of a bound claim is the resizer's.
    if text_at(claim, &["status", "phase"]) != "Bound" {
        status["capacity"] = at(volume, &["spec", "capacity"]).cloned().unwrap_or_default();
    }
    written + patch_status(server, CLAIMS, claim, &json!({ "status": status }))
}

/// The change that reserves a PV for a claim.
pub(super) fn bind_volume(volume: &Value, claim: &Value) -> Value {
    let reference = json!({
        "kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": namespace(claim), "name": name(claim),
        "uid": uid(claim), "resourceVersion": text_at(claim, &["metadata", "resourceVersion"]),
    });
    let mut change = json!({ "spec": { "claimRef": reference } });
    if !is_reserved_for(volume, claim) {
        change["metadata"] = json!({ "annotations": { (BOUND_BY_CONTROLLER): "yes" } });
    }
    change
}

fn sync_volume(server: &ApiServer, view: &View, volume: &Value) -> usize {
    let phase = |phase: &str| patch_status(server, VOLUMES, volume, &json!({ "status": { "phase": phase } }));
    let Some(reference) = at(volume, &["spec", "claimRef"]) else { return phase("Available") };
    if text_at(reference, &["uid"]).is_empty() {
        return phase("Available");
    }
    let claim = view.claims.get(text_at(reference, &["uid"])).map(|claim| &claim.value);
    let Some(claim) = claim else { return release(server, volume) };
    match text_at(claim, &["spec", "volumeName"]) {
        // The claim's pass binds it, or waits.
        "" => 0,
        bound if bound == name(volume) => phase("Bound"),
        _ => bound_elsewhere(server, volume),
    }
}

/// The claim has another PV.
fn bound_elsewhere(server: &ApiServer, volume: &Value) -> usize {
    let dynamic = !annotation(volume, PROVISIONED_BY).is_empty();
    if dynamic && text_at(volume, &["spec", "persistentVolumeReclaimPolicy"]) == "Delete" {
        return release(server, volume);
    }
    let change = if annotation(volume, BOUND_BY_CONTROLLER).is_empty() {
        json!({ "spec": { "claimRef": { "uid": null } } })
    } else {
        json!({ "spec": { "claimRef": null }, "metadata": { "annotations": { (BOUND_BY_CONTROLLER): null } } })
    };
    patch(server, VOLUMES, volume, &change)
        + patch_status(server, VOLUMES, volume, &json!({ "status": { "phase": "Available" } }))
}

/// The claim is gone. The rest is for the provisioner; without one, nobody can delete such a volume.
fn release(server: &ApiServer, volume: &Value) -> usize {
    let now = text_at(volume, &["status", "phase"]);
    let delete = text_at(volume, &["spec", "persistentVolumeReclaimPolicy"]) == "Delete";
    let orphan = delete
        && annotation(volume, PROVISIONED_BY).is_empty()
        && at(volume, &["spec", "hostPath"]).is_none();
    let phase = match now {
        "Released" if orphan => "Failed",
        "Released" | "Failed" => return 0,
        _ => "Released",
    };
    patch_status(server, VOLUMES, volume, &json!({ "status": { "phase": phase } }))
}
