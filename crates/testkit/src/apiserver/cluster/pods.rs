//! The scheduler, as far as volumes are concerned, and as much of a kubelet as lets pods start and end.

use serde_json::{Value, json};
use std::sync::Arc;

use super::super::ApiServer;
use super::super::object::{Stored, annotation, at, is_terminating, list_at, name, namespace, text_at};
use super::binder::{SELECTED_NODE, View, bind_volume, is_bound};
use super::matching::{best, class_of, suits};
use super::protection::claims_of;
use super::{CLAIMS, VOLUMES, all, patch, patch_status};

pub(super) fn schedule(server: &ApiServer) -> usize {
    let waiting = |pod: &Value| text_at(pod, &["spec", "nodeName"]).is_empty() && !is_terminating(pod);
    let pods = all(server, "pods");
    pods.iter().filter(|pod| waiting(&pod.value)).map(|pod| schedule_pod(server, &pod.value)).sum()
}

fn schedule_pod(server: &ApiServer, pod: &Value) -> usize {
    let view = View::new(server);
    let mut claims = Vec::new();
    for wanted in claims_of(pod) {
        let mut found = view.claims.values().map(|claim| &claim.value);
        let claim = found.find(|claim| name(claim) == wanted && namespace(claim) == namespace(pod));
        match claim {
            Some(claim) if !is_terminating(claim) => claims.push(claim),
            // Unschedulable until it is there.
            _ => return 0,
        }
    }
    let waits = |claim: &Value| {
        view.class(claim).is_none_or(|class| text_at(class, &["volumeBindingMode"]) != "WaitForFirstConsumer")
    };
    // Claims with immediate binding are not the scheduler's to bind.
    if claims.iter().any(|claim| !is_bound(claim) && waits(claim)) {
        return 0;
    }
    let nodes = all(server, "nodes");
    let mut feasible =
        nodes.iter().map(|node| &node.value).filter(|node| fits(server, &view, pod, &claims, node));
    let Some(first) = feasible.next() else { return 0 };
    // Once it has told a claim its node, it sticks to that.
    let told = |node: &&Value| claims.iter().any(|claim| annotation(claim, SELECTED_NODE) == name(node));
    let node = if told(&first) { first } else { feasible.find(told).unwrap_or(first) };
    let unbound: Vec<&Value> = claims.iter().copied().filter(|claim| !is_bound(claim)).collect();
    if unbound.is_empty() {
        return patch(server, "pods", pod, &json!({ "spec": { "nodeName": name(node) } }));
    }
    unbound.into_iter().map(|claim| place(server, claim, node)).sum()
}

/// Reserves a PV that is there, or tells the provisioner the node.
fn place(server: &ApiServer, claim: &Value, node: &Value) -> usize {
    let view = View::new(server);
    if let Some(volume) = best(view.volumes(), claim, true, Some(node)) {
        return patch(server, VOLUMES, volume, &bind_volume(volume, claim));
    }
    patch(server, CLAIMS, claim, &json!({ "metadata": { "annotations": { (SELECTED_NODE): name(node) } } }))
}

fn fits(server: &ApiServer, view: &View, pod: &Value, claims: &[&Value], node: &Value) -> bool {
    let labels = at(node, &["metadata", "labels"]).unwrap_or(&Value::Null);
    let selector = at(pod, &["spec", "nodeSelector"]).and_then(Value::as_object);
    at(node, &["spec", "unschedulable"]) != Some(&json!(true))
        && !is_terminating(node)
        && selector.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && claims.iter().all(|claim| {
            if is_bound(claim) {
                let volume = view.volume(text_at(claim, &["spec", "volumeName"]));
                return volume.is_some_and(|volume| suits(volume, node));
            }
            let told = annotation(claim, SELECTED_NODE);
            if !told.is_empty() {
                return told == name(node);
            }
            best(view.volumes(), claim, true, Some(node)).is_some()
                || can_provision(server, view, claim, node)
        })
}

/// Allowed topologies, and storage capacity where the class's provisioner publishes it.
fn can_provision(server: &ApiServer, view: &View, claim: &Value, node: &Value) -> bool {
    let Some(class) = view.class(claim) else { return false };
    let provisioner = text_at(class, &["provisioner"]);
    if provisioner == "kubernetes.io/no-provisioner" {
        return false;
    }
    let labels = at(node, &["metadata", "labels"]).unwrap_or(&Value::Null);
    let label_is = |requirement: &Value| {
        let found = labels.get(text_at(requirement, &["key"]));
        found.is_some_and(|found| list_at(requirement, &["values"]).contains(found))
    };
    let allowed = list_at(class, &["allowedTopologies"]);
    let reachable = allowed.is_empty()
        || allowed.iter().any(|term| list_at(term, &["matchLabelExpressions"]).iter().all(label_is));
    reachable && has_capacity(server, claim, provisioner, labels)
}

fn has_capacity(server: &ApiServer, claim: &Value, provisioner: &str, labels: &Value) -> bool {
    let driver = server.get("csidrivers.storage.k8s.io", "", provisioner).ok();
    if driver.and_then(|driver| at(&driver, &["spec", "storageCapacity"]).cloned()) != Some(json!(true)) {
        return true;
    }
    let bytes = |value: &Value, path: &[&str]| volwright_provisioner::parse_bytes(text_at(value, path)).ok();
    let wanted = bytes(claim, &["spec", "resources", "requests", "storage"]).unwrap_or(0);
    all(server, "csistoragecapacities").iter().any(|capacity| {
        let capacity: &Stored = Arc::as_ref(capacity);
        let limit =
            bytes(&capacity.value, &["maximumVolumeSize"]).or_else(|| bytes(&capacity.value, &["capacity"]));
        let topology = at(&capacity.value, &["nodeTopology", "matchLabels"]).and_then(Value::as_object);
        text_at(&capacity.value, &["storageClassName"]) == class_of(claim)
            && limit.is_some_and(|limit| limit >= wanted)
            && at(&capacity.value, &["nodeTopology"]).is_some()
            && topology.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
    })
}

pub(super) fn run(server: &ApiServer) -> usize {
    let mut written = 0;
    for pod in all(server, "pods") {
        let pod = &pod.value;
        if text_at(pod, &["spec", "nodeName"]).is_empty() {
            continue;
        }
        if is_terminating(pod) {
            let before = server.changes();
            server.delete_now("pods", namespace(pod), name(pod)).ok();
            written += usize::from(server.changes() != before);
        } else if text_at(pod, &["status", "phase"]) == "Pending" {
            written += patch_status(server, "pods", pod, &json!({ "status": { "phase": "Running" } }));
        }
    }
    written
}
