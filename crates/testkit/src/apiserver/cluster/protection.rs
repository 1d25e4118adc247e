//! Claims and volumes stay while they are in use; a namespace stays until it is empty; and what waits for the garbage
//! collector is let go, since no owners are tracked here.

use serde_json::{Value, json};

use super::super::ApiServer;
use super::super::object::is_terminating;
use super::super::object::{list_at, name, namespace, text_at};
use super::super::resources::{NOWHERE, RESOURCES};
use super::{CLAIMS, VOLUMES, all, patch, release};

pub(super) fn pass(server: &ApiServer) -> usize {
    let pods = all(server, "pods");
    let mut written = 0;
    for claim in all(server, CLAIMS) {
        let claim = &claim.value;
        if is_terminating(claim) && !pods.iter().any(|pod| uses(&pod.value, claim)) {
            written += release(server, CLAIMS, claim, "kubernetes.io/pvc-protection");
        }
    }
    for volume in all(server, VOLUMES) {
        if text_at(&volume.value, &["status", "phase"]) != "Bound" {
            written += release(server, VOLUMES, &volume.value, "kubernetes.io/pv-protection");
        }
    }
    written
}

/// Names of the claims that a pod mounts.
pub(super) fn claims_of(pod: &Value) -> impl Iterator<Item = &str> {
    list_at(pod, &["spec", "volumes"])
        .iter()
        .map(|volume| text_at(volume, &["persistentVolumeClaim", "claimName"]))
        .filter(|name| !name.is_empty())
}

/// A pod that has no node yet does not count: its kubelet will not start it with a terminating claim.
fn uses(pod: &Value, claim: &Value) -> bool {
    namespace(pod) == namespace(claim)
        && !text_at(pod, &["spec", "nodeName"]).is_empty()
        && !["Succeeded", "Failed"].contains(&text_at(pod, &["status", "phase"]))
        && claims_of(pod).any(|used| used == name(claim))
}

/// Empties terminating namespaces, and lets them go when they are empty.
pub(super) fn namespaces(server: &ApiServer) -> usize {
    let mut written = 0;
    for place in all(server, "namespaces").iter().filter(|place| is_terminating(&place.value)) {
        let mut left = 0;
        let kinds = RESOURCES.iter().filter(|r| r.namespaced && r.table != NOWHERE && !r.is_converted());
        for resource in kinds {
            for object in server.objects(resource, name(&place.value)) {
                left += 1;
                if !is_terminating(&object.value) {
                    let before = server.changes();
                    server.delete(&resource.qualified(), namespace(&object.value), name(&object.value)).ok();
                    written += usize::from(server.changes() != before);
                }
            }
        }
        if left == 0 {
            written += patch(server, "namespaces", &place.value, &json!({ "spec": { "finalizers": null } }));
        }
    }
    for (resource, object) in server.terminating() {
        for finalizer in ["foregroundDeletion", "orphan"] {
            written += release(server, &resource.qualified(), &object.value, finalizer);
        }
    }
    written
}
