//! What the rest of a cluster does to claims, volumes and pods: kube-controller-manager's volume, protection and namespace
//! controllers, kube-scheduler, and as much of a kubelet as lets pods start and end.
//!
//! Level-triggered like the originals, and without caches: a pass looks at everything and writes what is missing, in a
//! fixed order. What they would only tell in events is left out, and so is whatever needs no provisioner.

use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

use super::ApiServer;
use super::object::{Stored, finalizers, is_terminating, name, namespace, uid};
use super::resources::Resource;
use super::status::Status;

mod binder; // claims and volumes: the persistent volume controller
mod matching; // which volume suits a claim, which node suits a volume
mod pods; // the scheduler, and a kubelet
mod protection; // finalizers of claims and volumes in use; namespaces

/// One pass of all of them; how much was written. 0 means that all is quiet until something changes.
pub fn step(server: &ApiServer) -> usize {
    controllers(server) + scheduler(server) + kubelets(server)
}

/// One pass of kube-controller-manager: binding, phases, protection, namespaces.
pub fn controllers(server: &ApiServer) -> usize {
    protection::namespaces(server) + binder::pass(server) + protection::pass(server)
}

/// One pass of kube-scheduler: nodes for claims that wait for their first consumer, and for pods.
pub fn scheduler(server: &ApiServer) -> usize {
    pods::schedule(server)
}

/// One pass of all kubelets: scheduled pods run, terminating ones go.
pub fn kubelets(server: &ApiServer) -> usize {
    pods::run(server)
}

/// Makes passes for as long as there is something to do, then waits for the next change; each pass comes `pace` after the
/// one before, as these components are never immediate. Never returns.
pub async fn run(server: ApiServer, pace: Duration) {
    loop {
        let seen = server.changes();
        let written = step(&server);
        if written == 0 {
            server.changed(seen).await;
        }
        tokio::time::sleep(pace).await;
    }
}

const CLAIMS: &str = "persistentvolumeclaims";
const VOLUMES: &str = "persistentvolumes";

fn all(server: &ApiServer, resource: &str) -> Vec<Arc<Stored>> {
    Resource::named(resource).map(|resource| server.objects(resource, "")).unwrap_or_default()
}

/// Did it change anything? What is refused is tried again in the next pass, as a controller would.
fn wrote(before: u64, result: &Result<Value, Status>, server: &ApiServer) -> usize {
    usize::from(result.is_ok() && server.changes() != before)
}

/// Would merging this change nothing? Spares most of the requests of a pass.
fn is_merged(object: &Value, change: &Value) -> bool {
    let Value::Object(change) = change else { return object == change };
    change.iter().all(|(key, change)| match object.get(key) {
        None => change.is_null() || change.as_object().is_some_and(|map| map.values().all(Value::is_null)),
        Some(found) => is_merged(found, change),
    })
}

fn patch(server: &ApiServer, resource: &str, object: &Value, change: &Value) -> usize {
    if is_merged(object, change) {
        return 0;
    }
    let before = server.changes();
    let result = server.patch(resource, namespace(object), name(object), change);
    wrote(before, &result, server)
}

fn patch_status(server: &ApiServer, resource: &str, object: &Value, change: &Value) -> usize {
    if is_merged(object, change) {
        return 0;
    }
    let before = server.changes();
    let result = server.patch_status(resource, namespace(object), name(object), change);
    wrote(before, &result, server)
}

/// Takes a finalizer off a terminating object.
fn release(server: &ApiServer, resource: &str, object: &Value, finalizer: &str) -> usize {
    if !is_terminating(object) || !finalizers(object).iter().any(|other| other == finalizer) {
        return 0;
    }
    let left: Vec<&Value> = finalizers(object).iter().filter(|other| *other != finalizer).collect();
    patch(server, resource, object, &json!({ "metadata": { "uid": uid(object), "finalizers": left } }))
}

#[cfg(test)]
mod tests;
