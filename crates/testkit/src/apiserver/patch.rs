//! The kinds of patches: merge patch, strategic merge patch, JSON patch.

use serde_json::{Map, Value};

/// RFC 7386.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(target) = target.as_object_mut() else { return };
    for (key, change) in changes {
        if change.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

/// How a strategic patch treats a list, by the field's name.
enum List {
    Replaced,
    /// A set of plain values.
    Set,
    /// Of maps that are told apart by this key.
    Keyed(&'static str),
}

fn list(field: &str) -> List {
    match field {
        "finalizers" | "podCIDRs" => List::Set,
        "ownerReferences" => List::Keyed("uid"),
        "conditions" | "addresses" => List::Keyed("type"),
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets" => List::Keyed("name"),
        "volumeMounts" => List::Keyed("mountPath"),
        "volumeDevices" => List::Keyed("devicePath"),
        "ports" => List::Keyed("containerPort"),
        "hostAliases" | "podIPs" => List::Keyed("ip"),
        _ => List::Replaced,
    }
}

const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Strategic merge: as merge patch, except that some lists are merged, and for the directives.
pub(super) fn strategic(target: &mut Value, patch: &Value) -> Result<(), String> {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return Ok(());
    };
    match changes.get("$patch").and_then(Value::as_str) {
        None => {}
        Some("merge") if changes.contains_key("$patch") => {}
        Some("delete") => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some("replace") => {
            let kept = changes.iter().filter(|(key, _)| *key != "$patch");
            *target = Value::Object(kept.map(|(key, value)| (key.clone(), value.clone())).collect());
            return Ok(());
        }
        Some(other) => return Err(format!("unknown patch type found: {other}")),
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Some(map) = target.as_object_mut() else { return Ok(()) };
    if let Some(Value::Array(kept)) = changes.get("$retainKeys") {
        map.retain(|key, _| kept.iter().any(|kept| kept == key));
    }
    for (key, change) in changes {
        if let Some(field) = key.strip_prefix(DELETE_FROM) {
            if let (Some(Value::Array(values)), Value::Array(gone)) = (map.get_mut(field), change) {
                values.retain(|value| !gone.contains(value));
            }
        } else if key.starts_with('$') {
            // Orders are set below.
        } else if change.is_null() || is_deletion(change) {
            map.remove(key);
        } else if let Value::Array(changes) = change {
            merge_list(map.entry(key.clone()).or_insert(Value::Null), changes, &list(key))?;
        } else {
            strategic(map.entry(key.clone()).or_insert(Value::Null), change)?;
        }
    }
    for (key, order) in changes {
        let (Some(field), Value::Array(order)) = (key.strip_prefix(ORDER), order) else { continue };
        if let Some(Value::Array(values)) = map.get_mut(field) {
            let before = values.clone();
            *values = ordered(std::mem::take(values), &before, order, &list(field));
        }
    }
    Ok(())
}

/// Puts a merged list in order, as the real server does: what the patch names in the patch's order, the rest between it
/// as late as the order before allows.
fn ordered(values: Vec<Value>, before: &[Value], patch: &[Value], kind: &List) -> Vec<Value> {
    let place = |list: &[Value], value: &Value| list.iter().position(|other| same(other, value, kind));
    let (mut named, rest): (Vec<Value>, Vec<Value>) =
        values.into_iter().partition(|value| place(patch, value).is_some());
    named.sort_by_key(|value| place(patch, value));
    let (mut named, mut rest) = (named.into_iter().peekable(), rest.into_iter().peekable());
    let mut all = Vec::new();
    while let (Some(mine), Some(theirs)) = (named.peek(), rest.peek()) {
        let known = place(before, theirs).zip(place(before, mine));
        let next = if known.is_some_and(|(theirs, mine)| theirs < mine) { rest.next() } else { named.next() };
        all.extend(next);
    }
    all.extend(named);
    all.extend(rest);
    all
}

fn is_deletion(change: &Value) -> bool {
    change.get("$patch").and_then(Value::as_str) == Some("delete")
}

fn same(a: &Value, b: &Value, list: &List) -> bool {
    match list {
        List::Keyed(key) => a.get(key).is_some() && a.get(key) == b.get(key),
        List::Set | List::Replaced => a == b,
    }
}

fn merge_list(target: &mut Value, changes: &[Value], kind: &List) -> Result<(), String> {
    let mut values = match target {
        Value::Array(values) if !matches!(kind, List::Replaced) => std::mem::take(values),
        _ => Vec::new(),
    };
    let before = values.clone();
    if changes.iter().any(|change| change.get("$patch").and_then(Value::as_str) == Some("replace")) {
        values.clear();
    }
    for change in changes {
        let place = values.iter_mut().find(|value| same(value, change, kind));
        match (place, kind) {
            (_, List::Keyed(_)) if is_deletion(change) => values.retain(|value| !same(value, change, kind)),
            (_, List::Keyed(_)) if change.get("$patch").is_some() => {}
            (Some(value), List::Keyed(_)) => strategic(value, change)?,
            (Some(_), List::Set) => {}
            _ => values.push(change.clone()),
        }
    }
    if !matches!(kind, List::Replaced) {
        values = ordered(values, &before, changes, kind);
    }
    *target = Value::Array(values);
    Ok(())
}

/// RFC 6902.
pub(super) fn json_patch(target: &mut Value, operations: &Value) -> Result<(), String> {
    let operations = operations.as_array().ok_or("a JSON patch is a list")?;
    for operation in operations {
        let text = |key: &str| operation.get(key).and_then(Value::as_str).unwrap_or_default();
        let (op, path, from) = (text("op"), text("path"), text("from"));
        let value = operation.get("value").cloned().unwrap_or(Value::Null);
        match op {
            "add" => insert(target, path, value)?,
            "remove" => drop(take(target, path)?),
            "replace" => {
                take(target, path)?;
                insert(target, path, value)?;
            }
            "move" => {
                let value = take(target, from)?;
                insert(target, path, value)?;
            }
            "copy" => {
                let value = target.pointer(from).cloned().ok_or_else(|| missing(from))?;
                insert(target, path, value)?;
            }
            "test" if target.pointer(path).unwrap_or(&Value::Null) == &value => {}
            "test" => return Err(format!("testing value {path} failed")),
            other => return Err(format!("unexpected kind: {other}")),
        }
    }
    Ok(())
}

fn missing(path: &str) -> String {
    format!("the path {path:?} does not exist")
}

fn split(path: &str) -> Result<(&str, String), String> {
    let (parent, key) = path.rsplit_once('/').ok_or_else(|| missing(path))?;
    Ok((parent, key.replace("~1", "/").replace("~0", "~")))
}

fn insert(target: &mut Value, path: &str, value: Value) -> Result<(), String> {
    let (parent, key) = split(path)?;
    match target.pointer_mut(parent) {
        Some(Value::Object(map)) => drop(map.insert(key, value)),
        Some(Value::Array(list)) if key == "-" => list.push(value),
        Some(Value::Array(list)) => {
            let index = key.parse().ok().filter(|index| *index <= list.len()).ok_or_else(|| missing(path))?;
            list.insert(index, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn take(target: &mut Value, path: &str) -> Result<Value, String> {
    let (parent, key) = split(path)?;
    let taken = match target.pointer_mut(parent) {
        Some(Value::Object(map)) => map.remove(&key),
        Some(Value::Array(list)) => {
            let index = key.parse().ok().filter(|index| *index < list.len());
            index.map(|index: usize| list.remove(index))
        }
        _ => None,
    };
    taken.ok_or_else(|| missing(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn strategic_patches_merge_what_kubernetes_merges() {
        let cases = [
            (
                "finalizers are a set",
                json!({ "finalizers": ["a", "b"] }),
                json!({ "finalizers": ["b", "c"] }),
                json!({ "finalizers": ["a", "b", "c"] }),
            ),
            (
                "one finalizer goes, however the list has changed",
                json!({ "finalizers": ["a", "b"] }),
                json!({ "$deleteFromPrimitiveList/finalizers": ["a", "x"] }),
                json!({ "finalizers": ["b"] }),
            ),
            (
                "conditions merge by type",
                json!({ "conditions": [{ "type": "A", "status": "True", "reason": "r" }] }),
                json!({ "conditions": [{ "type": "A", "status": "False" }, { "type": "B" }] }),
                json!({ "conditions": [{ "type": "A", "status": "False", "reason": "r" }, { "type": "B" }] }),
            ),
            (
                "a condition is deleted by its key",
                json!({ "conditions": [{ "type": "A" }, { "type": "B" }] }),
                json!({ "conditions": [{ "type": "A", "$patch": "delete" }] }),
                json!({ "conditions": [{ "type": "B" }] }),
            ),
            (
                "other lists and replaced maps are replaced",
                json!({ "accessModes": ["a"], "m": { "x": 1 } }),
                json!({ "accessModes": ["b"], "m": { "$patch": "replace", "y": 2 } }),
                json!({ "accessModes": ["b"], "m": { "y": 2 } }),
            ),
            (
                "null removes",
                json!({ "a": 1, "b": { "c": 1 } }),
                json!({ "a": null, "b": { "c": null } }),
                json!({ "b": {} }),
            ),
        ];
        for (name, mut target, patch, expected) in cases {
            strategic(&mut target, &patch).unwrap();
            assert_eq!(target, expected, "case: {name}");
        }
    }

    #[test]
    fn a_json_patch_is_all_its_operations_or_an_error() {
        let mut target = json!({ "a": { "b/c": [1, 3] } });
        let patch = json!([
            { "op": "test", "path": "/a/b~1c/0", "value": 1 },
            { "op": "add", "path": "/a/b~1c/1", "value": 2 },
            { "op": "replace", "path": "/a/b~1c/2", "value": 4 },
            { "op": "move", "from": "/a/b~1c", "path": "/d" },
        ]);
        json_patch(&mut target, &patch).unwrap();
        assert_eq!(target, json!({ "a": {}, "d": [1, 2, 4] }));
        assert!(json_patch(&mut target, &json!([{ "op": "remove", "path": "/x" }])).is_err());
        assert!(json_patch(&mut target, &json!([{ "op": "test", "path": "/d/0", "value": 5 }])).is_err());
    }
}
