//! Objects as JSON: reading them, and the forms in which they are sent.

use axum::body::Bytes;
use serde_json::{Map, Value, json};
use std::sync::OnceLock;

use super::resources::Resource;

/// One version of an object. It never changes, and is written as JSON once.
#[derive(Debug)]
pub(super) struct Stored {
    pub value: Value,
    pub version: u64,
    /// Without `kind` and `apiVersion`, as lists show it.
    item: OnceLock<Bytes>,
    metadata: OnceLock<Bytes>,
    converted: OnceLock<Bytes>,
}

/// How much of an object is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Full,
    Metadata,
    /// Rows for kubectl, which are made for each answer anew: they tell ages.
    Table,
}

impl Stored {
    /// `value` gets this version.
    pub fn new(mut value: Value, version: u64) -> Self {
        set(&mut value, &["metadata", "resourceVersion"], json!(version.to_string()));
        Self { version, ..Self::unwritten(value) }
    }

    /// What would be kept, for the answer to a dry run.
    pub fn unwritten(value: Value) -> Self {
        Self {
            value,
            version: 0,
            item: OnceLock::new(),
            metadata: OnceLock::new(),
            converted: OnceLock::new(),
        }
    }

    /// As an item of a list.
    pub fn item(&self, resource: &Resource, form: Form) -> Bytes {
        match form {
            Form::Metadata => self
                .metadata
                .get_or_init(|| serde_json::to_vec(&metadata_of(&self.value)).unwrap_or_default().into())
                .clone(),
            Form::Full | Form::Table if resource.is_converted() => {
                self.converted.get_or_init(|| without_type(&events_from_core(&self.value))).clone()
            }
            Form::Full | Form::Table => self.item.get_or_init(|| without_type(&self.value)).clone(),
        }
    }

    /// As the answer to a GET, or in an event.
    pub fn write(&self, resource: &Resource, form: Form, out: &mut Vec<u8>) {
        let item = self.item(resource, form);
        if form == Form::Metadata {
            out.extend_from_slice(&item);
            return;
        }
        out.extend_from_slice(b"{\"kind\":\"");
        out.extend_from_slice(resource.kind.as_bytes());
        out.extend_from_slice(b"\",\"apiVersion\":\"");
        out.extend_from_slice(resource.api_version().as_bytes());
        out.extend_from_slice(b"\",");
        out.extend_from_slice(item.get(1..).unwrap_or_default());
    }
}

/// `PartialObjectMetadata`.
pub(super) fn metadata_of(value: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": value.get("metadata").unwrap_or(&Value::Null),
    })
}

fn without_type(value: &Value) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    out.push(b'{');
    for (key, value) in value.as_object().into_iter().flatten() {
        if key == "kind" || key == "apiVersion" {
            continue;
        }
        if out.len() > 1 {
            out.push(b',');
        }
        // Writing JSON to memory cannot fail.
        serde_json::to_writer(&mut out, key).ok();
        out.push(b':');
        serde_json::to_writer(&mut out, value).ok();
    }
    out.push(b'}');
    out.into()
}

/// Names of an event's fields in core/v1 and in events.k8s.io/v1.
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn renamed(value: &Value, api_version: &str, names: impl Fn(&str) -> Option<&'static str>) -> Value {
    let entries = value.as_object().into_iter().flatten();
    let mut renamed: Map<String, Value> = entries
        .map(|(key, value)| (names(key).map_or_else(|| key.clone(), str::to_owned), value.clone()))
        .collect();
    renamed.insert("apiVersion".to_owned(), json!(api_version));
    renamed.into()
}

/// An event as events.k8s.io/v1 shows it.
pub(super) fn events_from_core(value: &Value) -> Value {
    let mut event = renamed(value, "events.k8s.io/v1", |key| {
        EVENT_FIELDS.iter().find(|(core, _)| *core == key).map(|(_, new)| *new)
    });
    if let Some(event) = event.as_object_mut() {
        for optional in ["reportingController", "reportingInstance"] {
            if event.get(optional).and_then(Value::as_str) == Some("") {
                event.remove(optional);
            }
        }
    }
    event
}

/// An event as it is kept.
pub(super) fn events_to_core(value: &Value) -> Value {
    renamed(value, "v1", |key| EVENT_FIELDS.iter().find(|(_, new)| *new == key).map(|(core, _)| *core))
}

/// What stands at a path.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The text at a path; empty if there is none.
pub(super) fn text_at<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    if path.is_empty() {
        return "";
    }
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// The list at a path; empty if there is none.
pub(super) fn list_at<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The map at a key, made if need be. What is there and no map is replaced.
pub(super) fn map_at<'a>(value: &'a mut Value, key: &str) -> &'a mut Map<String, Value> {
    let map = as_map(value);
    as_map(map.entry(key.to_owned()).or_insert(Value::Null))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        // Just made one.
        _ => unreachable!("an object"),
    }
}

/// Sets what stands at a path, and makes the maps on the way.
pub(super) fn set(value: &mut Value, path: &[&str], new: Value) {
    let Some((last, parents)) = path.split_last() else { return };
    let mut place = value;
    for key in parents {
        place = as_map(place).entry((*key).to_owned()).or_insert(Value::Null);
    }
    as_map(place).insert((*last).to_owned(), new);
}

/// Takes away what stands at a path.
pub(super) fn remove(value: &mut Value, path: &[&str]) -> Option<Value> {
    let (last, parents) = path.split_last()?;
    let mut place = value;
    for key in parents {
        place = place.get_mut(key)?;
    }
    place.as_object_mut()?.remove(*last)
}

/// Sets what is not there.
pub(super) fn default(value: &mut Value, path: &[&str], new: Value) {
    if at(value, path).is_none_or(Value::is_null) {
        set(value, path, new);
    }
}

pub(super) fn name(value: &Value) -> &str {
    text_at(value, &["metadata", "name"])
}

pub(super) fn namespace(value: &Value) -> &str {
    text_at(value, &["metadata", "namespace"])
}

pub(super) fn uid(value: &Value) -> &str {
    text_at(value, &["metadata", "uid"])
}

pub(super) fn is_terminating(value: &Value) -> bool {
    at(value, &["metadata", "deletionTimestamp"]).is_some()
}

pub(super) fn finalizers(value: &Value) -> &[Value] {
    list_at(value, &["metadata", "finalizers"])
}

/// An annotation; empty if there is none.
pub(super) fn annotation<'a>(value: &'a Value, key: &str) -> &'a str {
    text_at(value, &["metadata", "annotations", key])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_has_two_shapes_and_one_content() {
        let core = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": { "name": "e" },
            "involvedObject": { "uid": "u" }, "message": "m", "reason": "R", "reportingComponent": "c",
        });
        let new = events_from_core(&core);
        assert_eq!(new["regarding"]["uid"], "u");
        assert_eq!(new["note"], "m");
        assert_eq!(new["apiVersion"], "events.k8s.io/v1");
        assert_eq!(events_to_core(&new), core);
    }

    #[test]
    fn an_object_is_sent_with_its_type_and_listed_without() {
        let pv = Resource::named("persistentvolumes").unwrap();
        let stored =
            Stored::new(json!({ "kind": "PersistentVolume", "apiVersion": "v1", "metadata": {} }), 7);
        assert_eq!(&stored.item(pv, Form::Full)[..], br#"{"metadata":{"resourceVersion":"7"}}"#);
        let mut out = Vec::new();
        stored.write(pv, Form::Full, &mut out);
        assert_eq!(
            serde_json::from_slice::<Value>(&out).unwrap(),
            json!({ "kind": "PersistentVolume", "apiVersion": "v1", "metadata": { "resourceVersion": "7" } })
        );
    }
}
