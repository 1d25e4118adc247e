//! Which volume suits a claim, and which node suits a volume.

use serde_json::Value;

use super::super::object::{annotation, at, is_terminating, list_at, name, namespace, text_at, uid};

/// The class that a claim or a PV names; empty if none.
pub(super) fn class_of(object: &Value) -> &str {
    match annotation(object, "volume.beta.kubernetes.io/storage-class") {
        "" => text_at(object, &["spec", "storageClassName"]),
        class => class,
    }
}

fn bytes(value: &Value, path: &[&str]) -> u64 {
    volwright_provisioner::parse_bytes(text_at(value, path)).unwrap_or(0)
}

fn capacity(volume: &Value) -> u64 {
    bytes(volume, &["spec", "capacity", "storage"])
}

fn mode(object: &Value) -> &str {
    match text_at(object, &["spec", "volumeMode"]) {
        "" => "Filesystem",
        mode => mode,
    }
}

/// Does the PV's claimRef mean this claim? Without a uid it means any claim of that name.
pub(super) fn is_reserved_for(volume: &Value, claim: &Value) -> bool {
    let Some(reference) = at(volume, &["spec", "claimRef"]) else { return false };
    let wanted = text_at(reference, &["uid"]);
    text_at(reference, &["name"]) == name(claim)
        && text_at(reference, &["namespace"]) == namespace(claim)
        && (wanted.is_empty() || wanted == uid(claim))
}

/// Size, modes, attributes class; whatever the PV's claimRef says.
fn is_large_and_alike(volume: &Value, claim: &Value) -> bool {
    let attributes = |object: &Value| text_at(object, &["spec", "volumeAttributesClassName"]).to_owned();
    let offered = list_at(volume, &["spec", "accessModes"]);
    capacity(volume) >= bytes(claim, &["spec", "resources", "requests", "storage"])
        && mode(volume) == mode(claim)
        && attributes(volume) == attributes(claim)
        && list_at(claim, &["spec", "accessModes"]).iter().all(|mode| offered.contains(mode))
        && !is_terminating(volume)
}

/// May this PV, which the claim names, be bound to it?
pub(super) fn satisfies(volume: &Value, claim: &Value) -> bool {
    is_large_and_alike(volume, claim) && class_of(volume) == class_of(claim)
}

/// The PV for a claim that names none: one that is reserved for it, else the smallest that will do. `late`: the binder
/// leaves the choice among the rest to the scheduler, which asks for a node's labels.
pub(super) fn best<'a>(
    volumes: impl Iterator<Item = &'a Value>,
    claim: &Value,
    late: bool,
    node: Option<&Value>,
) -> Option<&'a Value> {
    let mut smallest: Option<&Value> = None;
    for volume in volumes.filter(|volume| is_large_and_alike(volume, claim)) {
        let reachable = node.is_none_or(|node| suits(volume, node));
        if at(volume, &["spec", "claimRef"]).is_some() {
            if is_reserved_for(volume, claim) {
                return reachable.then_some(volume);
            }
            continue;
        }
        let free = text_at(volume, &["status", "phase"]) == "Available"
            && class_of(volume) == class_of(claim)
            && reachable
            && is_selected(claim, volume);
        if free && (node.is_some() || !late) && smallest.is_none_or(|best| capacity(volume) < capacity(best))
        {
            smallest = Some(volume);
        }
    }
    smallest
}

/// The claim's label selector on PVs.
fn is_selected(claim: &Value, volume: &Value) -> bool {
    let Some(selector) = at(claim, &["spec", "selector"]) else { return true };
    let labels = at(volume, &["metadata", "labels"]).unwrap_or(&Value::Null);
    let wanted = selector.get("matchLabels").and_then(Value::as_object);
    wanted.into_iter().flatten().all(|(key, value)| labels.get(key) == Some(value))
        && list_at(selector, &["matchExpressions"]).iter().all(|requirement| holds(requirement, labels))
}

/// May the PV be used on that node?
pub(super) fn suits(volume: &Value, node: &Value) -> bool {
    let Some(required) = at(volume, &["spec", "nodeAffinity", "required"]) else { return true };
    list_at(required, &["nodeSelectorTerms"]).iter().any(|term| term_holds(term, node))
}

fn term_holds(term: &Value, node: &Value) -> bool {
    let labels = at(node, &["metadata", "labels"]).unwrap_or(&Value::Null);
    let fields = serde_json::json!({ "metadata.name": name(node) });
    list_at(term, &["matchExpressions"]).iter().all(|requirement| holds(requirement, labels))
        && list_at(term, &["matchFields"]).iter().all(|requirement| holds(requirement, &fields))
}

fn holds(requirement: &Value, labels: &Value) -> bool {
    let found = labels.get(text_at(requirement, &["key"]));
    let listed = found.is_some_and(|found| list_at(requirement, &["values"]).contains(found));
    match text_at(requirement, &["operator"]) {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => found.is_some(),
        "DoesNotExist" => found.is_none(),
        _ => false,
    }
}
