//! As much of Kubernetes' protobuf as kubectl's own `create` commands and `auth can-i` send: they write nothing else.

use serde_json::{Map, Value, json};

use super::defaults::base64;
use super::object::set;

/// What every body begins with.
const MAGIC: &[u8] = b"k8s\0";

/// How a field is read.
enum Field {
    Text,
    Number,
    /// Bytes, which JSON has as base64.
    Bytes,
    Texts,
    /// From text to text.
    Map,
    /// From text to bytes.
    Data,
    Message(Schema),
}

/// Fields by number. Others are passed over.
type Schema = &'static [(u64, &'static str, Field)];

const METADATA: Schema = &[
    (1, "name", Field::Text),
    (2, "generateName", Field::Text),
    (3, "namespace", Field::Text),
    (11, "labels", Field::Map),
    (12, "annotations", Field::Map),
    (14, "finalizers", Field::Texts),
];

const PLAIN: Schema = &[(1, "metadata", Field::Message(METADATA))];

const CONFIG_MAP: Schema =
    &[(1, "metadata", Field::Message(METADATA)), (2, "data", Field::Map), (3, "binaryData", Field::Data)];

const SECRET: Schema =
    &[(1, "metadata", Field::Message(METADATA)), (2, "data", Field::Data), (3, "type", Field::Text)];

const REVIEW: Schema = &[
    (1, "metadata", Field::Message(METADATA)),
    (2, "spec", Field::Message(&[(1, "resourceAttributes", Field::Message(ATTRIBUTES))])),
];

const ATTRIBUTES: Schema = &[
    (1, "namespace", Field::Text),
    (2, "verb", Field::Text),
    (3, "group", Field::Text),
    (4, "version", Field::Text),
    (5, "resource", Field::Text),
    (6, "subresource", Field::Text),
    (7, "name", Field::Text),
];

const DELETE_OPTIONS: Schema = &[
    (1, "gracePeriodSeconds", Field::Number),
    (2, "preconditions", Field::Message(&[(1, "uid", Field::Text), (2, "resourceVersion", Field::Text)])),
    (4, "propagationPolicy", Field::Text),
];

/// The body as JSON. `None`: it is damaged, or of a kind that is not known here.
pub(super) fn decode(body: &[u8]) -> Option<Value> {
    const TYPE: Schema = &[(1, "apiVersion", Field::Text), (2, "kind", Field::Text)];
    let mut object = json!({});
    let (mut kind, mut raw) = (String::new(), None);
    let mut rest = body.strip_prefix(MAGIC)?;
    while !rest.is_empty() {
        match next(&mut rest)? {
            (1, Wire::Bytes(bytes)) => {
                object = message(bytes, TYPE)?;
                object.get("kind").and_then(Value::as_str).unwrap_or_default().clone_into(&mut kind);
            }
            (2, Wire::Bytes(bytes)) => raw = Some(bytes),
            _ => {}
        }
    }
    let schema = match kind.as_str() {
        "Namespace" | "ServiceAccount" => PLAIN,
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "SelfSubjectAccessReview" => REVIEW,
        "DeleteOptions" => DELETE_OPTIONS,
        _ => return None,
    };
    let Value::Object(fields) = message(raw.unwrap_or_default(), schema)? else { return None };
    object.as_object_mut()?.extend(fields);
    Some(object)
}

enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, more) = rest.split_first()?;
        *rest = more;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn next<'a>(rest: &mut &'a [u8]) -> Option<(u64, Wire<'a>)> {
    let tag = number(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Number(number(rest)?),
        2 => {
            let length = usize::try_from(number(rest)?).ok()?;
            let (bytes, more) = rest.split_at_checked(length)?;
            *rest = more;
            Wire::Bytes(bytes)
        }
        _ => return None,
    };
    Some((tag >> 3, wire))
}

fn message(mut rest: &[u8], schema: Schema) -> Option<Value> {
    let mut object = Value::Object(Map::new());
    while !rest.is_empty() {
        let (tag, wire) = next(&mut rest)?;
        let Some((_, name, field)) = schema.iter().find(|(number, _, _)| *number == tag) else { continue };
        match (field, wire) {
            (Field::Number, Wire::Number(number)) => set(&mut object, &[name], json!(number)),
            (Field::Text, Wire::Bytes(bytes)) if !bytes.is_empty() => set(&mut object, &[name], text(bytes)),
            (Field::Bytes, Wire::Bytes(bytes)) => set(&mut object, &[name], json!(base64(bytes))),
            (Field::Message(schema), Wire::Bytes(bytes)) => {
                set(&mut object, &[name], message(bytes, schema)?);
            }
            (Field::Texts, Wire::Bytes(bytes)) => {
                let mut all = super::object::list_at(&object, &[name]).to_vec();
                all.push(text(bytes));
                set(&mut object, &[name], json!(all));
            }
            (Field::Map, Wire::Bytes(bytes)) => {
                let entry = message(bytes, &[(1, "key", Field::Text), (2, "value", Field::Text)])?;
                insert(&mut object, name, &entry);
            }
            (Field::Data, Wire::Bytes(bytes)) => {
                let entry = message(bytes, &[(1, "key", Field::Text), (2, "value", Field::Bytes)])?;
                insert(&mut object, name, &entry);
            }
            _ => {}
        }
    }
    Some(object)
}

fn text(bytes: &[u8]) -> Value {
    json!(String::from_utf8_lossy(bytes))
}

fn insert(object: &mut Value, field: &str, entry: &Value) {
    let part = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
    set(object, &[field, part("key")], json!(part("value")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_read_and_damage_is_noticed() {
        let mut body = MAGIC.to_vec();
        body.extend(b"\x0a\x0f\x0a\x02v1\x12\x09Namespace");
        body.extend(b"\x12\x11\x0a\x0d\x0a\x03foo\x5a\x06\x0a\x01a\x12\x01b\x12\x00");
        let expected = json!({ "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": "foo", "labels": { "a": "b" } } });
        assert_eq!(decode(&body), Some(expected));
        assert_eq!(decode(&body[..body.len() - 4]), None);
        assert_eq!(decode(b"{}"), None);
    }
}
