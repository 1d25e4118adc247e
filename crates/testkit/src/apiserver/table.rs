//! Objects as kubectl prints them.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::object::{at, list_at, metadata_of, name, text_at};
use super::resources::Resource;

/// A column: name, type, and whether only `-o wide` shows it.
type Column = (&'static str, bool);

fn columns(resource: &Resource) -> &'static [Column] {
    match resource.kind {
        "PersistentVolume" => &[
            ("Name", false),
            ("Capacity", false),
            ("Access Modes", false),
            ("Reclaim Policy", false),
            ("Status", false),
            ("Claim", false),
            ("StorageClass", false),
            ("VolumeAttributesClass", false),
            ("Reason", false),
            ("Age", false),
            ("VolumeMode", true),
        ],
        "PersistentVolumeClaim" => &[
            ("Name", false),
            ("Status", false),
            ("Volume", false),
            ("Capacity", false),
            ("Access Modes", false),
            ("StorageClass", false),
            ("VolumeAttributesClass", false),
            ("Age", false),
            ("VolumeMode", true),
        ],
        "StorageClass" => &[
            ("Name", false),
            ("Provisioner", false),
            ("ReclaimPolicy", false),
            ("VolumeBindingMode", false),
            ("AllowVolumeExpansion", false),
            ("Age", false),
        ],
        "Event" => {
            &[("Last Seen", false), ("Type", false), ("Reason", false), ("Object", false), ("Message", false)]
        }
        "Pod" => &[("Name", false), ("Status", false), ("Age", false), ("Node", true)],
        "Namespace" => &[("Name", false), ("Status", false), ("Age", false)],
        "Lease" => &[("Name", false), ("Holder", false), ("Age", false)],
        "ConfigMap" => &[("Name", false), ("Data", false), ("Age", false)],
        _ => &[("Name", false), ("Age", false)],
    }
}

fn cells(resource: &Resource, object: &Value, now: Timestamp) -> Vec<Value> {
    let text = |path: &[&str]| text_at(object, path).to_owned();
    let or_unset = |text: String| if text.is_empty() { "<unset>".to_owned() } else { text };
    let age = age(text_at(object, &["metadata", "creationTimestamp"]), now);
    let mode = text(&["spec", "volumeMode"]);
    let phase = || {
        if super::object::is_terminating(object) {
            "Terminating".to_owned()
        } else {
            text(&["status", "phase"])
        }
    };
    let own = name(object).to_owned();
    let attributes = or_unset(text(&["spec", "volumeAttributesClassName"]));
    let cells: Vec<String> = match resource.kind {
        "PersistentVolume" => {
            let claim = match text(&["spec", "claimRef", "name"]) {
                claim if claim.is_empty() => claim,
                claim => format!("{}/{claim}", text(&["spec", "claimRef", "namespace"])),
            };
            vec![
                own,
                text(&["spec", "capacity", "storage"]),
                access_modes(list_at(object, &["spec", "accessModes"])),
                text(&["spec", "persistentVolumeReclaimPolicy"]),
                phase(),
                claim,
                text(&["spec", "storageClassName"]),
                attributes,
                text(&["status", "reason"]),
                age,
                mode,
            ]
        }
        "PersistentVolumeClaim" => {
            let modes = access_modes(list_at(object, &["status", "accessModes"]));
            let (volume, size) = (text(&["spec", "volumeName"]), text(&["status", "capacity", "storage"]));
            vec![
                own,
                phase(),
                volume,
                size,
                modes,
                text(&["spec", "storageClassName"]),
                attributes,
                age,
                mode,
            ]
        }
        "StorageClass" => {
            let is_default = if super::defaults::is_default_class(object) { " (default)" } else { "" };
            let expands = at(object, &["allowVolumeExpansion"]) == Some(&json!(true));
            vec![
                format!("{own}{is_default}"),
                text(&["provisioner"]),
                text(&["reclaimPolicy"]),
                text(&["volumeBindingMode"]),
                expands.to_string(),
                age,
            ]
        }
        "Event" => {
            let seen =
                [text(&["series", "lastObservedTime"]), text(&["lastTimestamp"]), text(&["eventTime"])];
            let seen = seen.iter().find(|time| !time.is_empty());
            let kind = text(&["involvedObject", "kind"]).to_lowercase();
            vec![
                self::age(seen.map_or("", String::as_str), now),
                text(&["type"]),
                text(&["reason"]),
                format!("{kind}/{}", text(&["involvedObject", "name"])),
                text(&["message"]).trim().to_owned(),
            ]
        }
        "Pod" => vec![own, phase(), age, text(&["spec", "nodeName"])],
        "Namespace" => vec![own, phase(), age],
        "Lease" => vec![own, text(&["spec", "holderIdentity"]), age],
        "ConfigMap" => {
            let data = at(object, &["data"]).and_then(Value::as_object).map_or(0, serde_json::Map::len);
            vec![own, data.to_string(), age]
        }
        _ => vec![own, age],
    };
    cells.into_iter().map(Value::from).collect()
}

fn access_modes(modes: &[Value]) -> String {
    let short = |mode: &Value| match mode.as_str() {
        Some("ReadWriteOnce") => "RWO",
        Some("ReadOnlyMany") => "ROX",
        Some("ReadWriteMany") => "RWX",
        Some("ReadWriteOncePod") => "RWOP",
        _ => "?",
    };
    modes.iter().map(short).collect::<Vec<_>>().join(",")
}

/// As kubectl rounds it.
fn age(since: &str, now: Timestamp) -> String {
    let Ok(since) = since.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = now.as_second() - since.as_second();
    let two = |large: i64, unit: &str, small: i64, rest: &str| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{rest}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10800 => format!("{minutes}m"),
        10800..28800 => two(hours, "h", minutes % 60, "m"),
        28800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

/// `Table`. `metadata` is the list's; `objects` are in the stored shape.
pub(super) fn table<'a>(
    resource: &Resource,
    metadata: &Value,
    objects: impl Iterator<Item = &'a Value>,
    now: Timestamp,
) -> Value {
    let columns: Vec<Value> = columns(resource)
        .iter()
        .map(|(name, wide)| {
            let format = if *name == "Name" { "name" } else { "" };
            json!({ "name": name, "type": "string", "format": format, "description": "", "priority": i32::from(*wide) })
        })
        .collect();
    let rows: Vec<Value> = objects
        .map(|object| json!({ "cells": cells(resource, object, now), "object": metadata_of(object) }))
        .collect();
    json!({ "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": columns, "rows": rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_rounded_as_kubectl_rounds_them() {
        let now: Timestamp = "2026-01-10T00:00:00Z".parse().unwrap();
        for (since, expected) in [
            ("2026-01-09T23:58:30Z", "90s"),
            ("2026-01-09T23:55:00Z", "5m"),
            ("2026-01-09T23:54:50Z", "5m10s"),
            ("2026-01-09T20:50:00Z", "3h10m"),
            ("2026-01-09T10:10:00Z", "13h"),
            ("2026-01-07T00:00:00Z", "3d"),
            ("2025-01-10T00:00:00Z", "365d"),
            ("", "<unknown>"),
        ] {
            assert_eq!(age(since, now), expected, "case: {since}");
        }
    }
}
