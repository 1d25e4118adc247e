//! What the server refuses. Of the real one's checks, those that a provisioner or its tests can run into.

use serde_json::{Value, json};

use super::defaults::size_of;
use super::object::{at, finalizers, is_terminating, list_at, name, text_at};
use super::quantity::Quantity;
use super::resources::Resource;
use super::status::FieldError;

const IMMUTABLE: &str = "field is immutable";

/// Bytes of data that a config map or a secret may have.
const DATA_LIMIT: usize = 1024 * 1024;

/// Fields of a PV's spec that are not its source.
const NOT_A_SOURCE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// All that is wrong with an object.
pub(super) fn validate(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = metadata(resource, object);
    match resource.kind {
        "PersistentVolume" => volume(object, &mut errors),
        "PersistentVolumeClaim" => claim(object, &mut errors),
        "StorageClass" => class(object, &mut errors),
        "ConfigMap" | "Secret" => {
            let size: usize = ["data", "binaryData"]
                .iter()
                .filter_map(|field| object.get(field)?.as_object())
                .flat_map(|data| data.values())
                .map(|value| value.as_str().map_or(0, str::len))
                .sum();
            if size > DATA_LIMIT {
                errors.push(FieldError::too_long(
                    if resource.kind == "Secret" { "data" } else { "[]" },
                    DATA_LIMIT,
                ));
            }
        }
        "Lease" => lease(object, &mut errors),
        "Event" => event(object, resource.is_converted(), &mut errors),
        _ => {}
    }
    errors
}

fn metadata(resource: &Resource, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let name = name(object);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else if resource.kind == "Namespace" {
        if !is_label(name) && is_subdomain(name) {
            errors.push(FieldError::invalid("metadata.name", &json!(name), "must not contain dots"));
        } else if !is_label(name) {
            errors.push(FieldError::invalid("metadata.name", &json!(name), LABEL_RULE));
        }
    } else if !is_subdomain(name) {
        errors.push(FieldError::invalid("metadata.name", &json!(name), SUBDOMAIN_RULE));
    }
    for (index, finalizer) in finalizers(object).iter().enumerate() {
        let text = finalizer.as_str().unwrap_or_default();
        if !is_qualified(text) {
            errors.push(FieldError::invalid("metadata.finalizers", finalizer, QUALIFIED_RULE));
        }
        // Only the core group's own check counts them.
        if resource.group.is_empty()
            && !text.contains('/')
            && !["orphan", "foregroundDeletion", "kubernetes"].contains(&text)
        {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, why));
        }
    }
    let entries =
        |field: &str| at(object, &["metadata", field]).and_then(Value::as_object).into_iter().flatten();
    for (key, value) in entries("labels") {
        if !is_qualified(key) {
            errors.push(FieldError::invalid("metadata.labels", &json!(key), QUALIFIED_RULE));
        }
        let text = value.as_str().unwrap_or_default();
        if text.len() > 63 {
            errors.push(FieldError::invalid("metadata.labels", value, "must be no more than 63 bytes"));
        } else if !text.is_empty() && !is_word(text) {
            errors.push(FieldError::invalid("metadata.labels", value, LABEL_VALUE_RULE));
        }
    }
    for (key, _) in entries("annotations") {
        if !is_qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid("metadata.annotations", &json!(key), QUALIFIED_RULE));
        }
    }
    let annotations: usize =
        entries("annotations").map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if annotations > 256 * 1024 {
        errors.push(FieldError::too_long("metadata.annotations", 256 * 1024));
    }
    errors
}

const SUBDOMAIN_RULE: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_RULE: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED_RULE: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE_RULE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

fn is_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}

/// A label of a subdomain may be as long as the whole.
fn is_subdomain(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    text.len() <= 253
        && text.split('.').all(|part| {
            edge(part.chars().next())
                && edge(part.chars().next_back())
                && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        })
}

fn is_word(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= 63
        && edge(text.chars().next())
        && edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

fn is_qualified(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_word(name),
        None => is_word(text),
    }
}

fn access_modes(object: &Value, missing: &str, errors: &mut Vec<FieldError>) {
    let modes = list_at(object, &["spec", "accessModes"]);
    if modes.is_empty() {
        errors.push(FieldError::required("spec.accessModes", missing));
    }
    for mode in modes.iter().filter(|mode| !mode.as_str().is_some_and(|mode| ACCESS_MODES.contains(&mode))) {
        errors.push(FieldError::unsupported("spec.accessModes", mode, &ACCESS_MODES));
    }
    if modes.len() > 1 && modes.iter().any(|mode| mode == "ReadWriteOncePod") {
        let why = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden("spec.accessModes", why));
    }
}

fn volume(object: &Value, errors: &mut Vec<FieldError>) {
    access_modes(object, "", errors);
    let capacity = at(object, &["spec", "capacity"]);
    if capacity.is_none() {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    if capacity.and_then(|capacity| capacity.get("storage")).is_none() {
        let value = capacity.cloned().unwrap_or(Value::Null);
        errors.push(FieldError::unsupported("spec.capacity", &value, &["storage"]));
    }
    if let Some(size) = capacity.and_then(|capacity| capacity.get("storage")).and_then(size_of) {
        let field = "spec.capacity[storage]";
        if size.is_negative() {
            let why = "must be a valid resource quantity";
            errors.push(FieldError::invalid(field, &json!(size.whole()), why));
        }
        positive(size, field, errors);
    }
    let policy = at(object, &["spec", "persistentVolumeReclaimPolicy"]).unwrap_or(&Value::Null);
    let policies = ["Delete", "Recycle", "Retain"];
    if !policy.as_str().is_some_and(|policy| policies.contains(&policy)) {
        errors.push(FieldError::unsupported("spec.persistentVolumeReclaimPolicy", policy, &policies));
    }
    let sources = source(object);
    if sources.is_empty() {
        errors.push(FieldError::required("spec", "must specify a volume type"));
    }
    for (kind, _) in sources.iter().skip(1) {
        let why = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(format!("spec.{kind}"), why));
    }
    if at(object, &["spec", "local"]).is_some() && at(object, &["spec", "nodeAffinity"]).is_none() {
        errors.push(FieldError::required("spec.nodeAffinity", "Local volume requires node affinity"));
    }
}

/// The fields of a PV's spec that say where its data are.
fn source(object: &Value) -> Vec<(&String, &Value)> {
    let spec = at(object, &["spec"]).and_then(Value::as_object);
    spec.into_iter().flatten().filter(|(key, _)| !NOT_A_SOURCE.contains(&key.as_str())).collect()
}

fn positive(size: Quantity, field: &str, errors: &mut Vec<FieldError>) {
    if size.is_negative() || size.is_zero() {
        let value = json!(size.canonical());
        errors.push(FieldError::invalid(field, &value, "must be greater than zero"));
    }
}

/// Is there a size that is none? The real server finds out while it decodes the object.
pub(super) fn malformed_size(object: &Value) -> bool {
    let places: [&[&str]; 4] = [
        &["spec", "capacity"],
        &["spec", "resources", "requests"],
        &["status", "capacity"],
        &["status", "allocatedResources"],
    ];
    places.iter().any(|place| {
        let sizes = at(object, place).and_then(Value::as_object).into_iter().flatten();
        sizes.filter(|(_, size)| !size.is_null()).any(|(_, size)| size_of(size).is_none())
    })
}

fn class(object: &Value, errors: &mut Vec<FieldError>) {
    let provisioner = text_at(object, &["provisioner"]).to_lowercase();
    if provisioner.is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    } else if !is_qualified(&provisioner) {
        errors.push(FieldError::invalid("provisioner", &json!(provisioner), QUALIFIED_RULE));
    }
    let parameters = at(object, &["parameters"]).and_then(Value::as_object);
    let mut size = 0;
    for (key, value) in parameters.into_iter().flatten() {
        if key.is_empty() {
            errors.push(FieldError::invalid("parameters", &json!(key), "field can not be empty."));
        }
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > 256 * 1024 {
        errors.push(FieldError::too_long("parameters", 256 * 1024));
    }
    for (field, known) in [
        ("reclaimPolicy", ["Delete", "Retain"]),
        ("volumeBindingMode", ["Immediate", "WaitForFirstConsumer"]),
    ] {
        let value = at(object, &[field]).unwrap_or(&Value::Null);
        if !value.as_str().is_some_and(|value| known.contains(&value)) {
            errors.push(FieldError::unsupported(field, value, &known));
        }
    }
}

fn claim(object: &Value, errors: &mut Vec<FieldError>) {
    access_modes(object, "at least 1 access mode is required", errors);
    match at(object, &REQUEST).and_then(size_of) {
        Some(size) => positive(size, "spec.resources[storage]", errors),
        None => errors.push(FieldError::required("spec.resources[storage]", "")),
    }
    let class = text_at(object, &["spec", "storageClassName"]);
    if !class.is_empty() && !is_subdomain(class) {
        errors.push(FieldError::invalid("spec.storageClassName", &json!(class), SUBDOMAIN_RULE));
    }
    let mode = at(object, &["spec", "volumeMode"]).unwrap_or(&Value::Null);
    let modes = ["Block", "Filesystem"];
    if !mode.as_str().is_some_and(|mode| modes.contains(&mode)) {
        errors.push(FieldError::unsupported("spec.volumeMode", mode, &modes));
    }
}

fn lease(object: &Value, errors: &mut Vec<FieldError>) {
    if let Some(seconds) = at(object, &["spec", "leaseDurationSeconds"])
        && seconds.as_i64().is_none_or(|seconds| seconds <= 0)
    {
        errors.push(FieldError::invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0"));
    }
    if let Some(transitions) = at(object, &["spec", "leaseTransitions"])
        && transitions.as_i64().is_none_or(|transitions| transitions < 0)
    {
        errors.push(FieldError::invalid(
            "spec.leaseTransitions",
            transitions,
            "must be greater than or equal to 0",
        ));
    }
}

/// What both shapes of events are held to; `converted`: as events.k8s.io/v1.
fn event(object: &Value, converted: bool, errors: &mut Vec<FieldError>) {
    let (own, regarded) =
        (text_at(object, &["metadata", "namespace"]), text_at(object, &["involvedObject", "namespace"]));
    let is_old = at(object, &["eventTime"]).is_none_or(Value::is_null);
    let agrees = match (is_old, regarded) {
        (true, "") => own == "default",
        (true, regarded) => own == regarded,
        (false, "") => ["default", "kube-system"].contains(&own),
        (false, _) => true,
    };
    if !agrees {
        let why = "does not match event.namespace";
        errors.push(FieldError::invalid("involvedObject.namespace", &json!(regarded), why));
    }
    if is_old {
        return;
    }
    let controller = if converted { "reportingController" } else { "reportingComponent" };
    let reporter = text_at(object, &["reportingComponent"]);
    if reporter.is_empty() {
        errors.push(FieldError::required(controller, ""));
    }
    if !is_qualified(reporter) {
        errors.push(FieldError::invalid(controller, &json!(reporter), QUALIFIED_RULE));
    }
    for (field, limit) in [("reportingInstance", 128), ("action", 128), ("reason", 128), ("message", 1024)] {
        let text = text_at(object, &[field]);
        if text.is_empty() && field != "message" {
            errors.push(FieldError::required(field, ""));
        } else if text.len() > limit {
            let why = format!("can have at most {limit} characters");
            errors.push(FieldError::invalid(field, &json!(""), why));
        }
    }
}

/// What events.k8s.io/v1 wants of a new event besides.
pub(super) fn new_event(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    series(object, &mut errors);
    if at(object, &["eventTime"]).is_none_or(Value::is_null) {
        errors.push(FieldError::required("eventTime", ""));
    }
    let kind = text_at(object, &["type"]);
    if !["Normal", "Warning"].contains(&kind) {
        errors.push(FieldError::invalid("type", &json!(""), format!("has invalid value: {kind}")));
    }
    for field in ["firstTimestamp", "lastTimestamp"] {
        if at(object, &[field]).is_some_and(|time| !time.is_null()) {
            errors.push(FieldError::invalid(field, &json!(""), "needs to be unset"));
        }
    }
    if at(object, &["count"]).is_some() {
        errors.push(FieldError::invalid("count", &json!(""), "needs to be unset"));
    }
    if at(object, &["source"]).and_then(Value::as_object).is_some_and(|source| !source.is_empty()) {
        errors.push(FieldError::invalid("source", &json!(""), "needs to be unset"));
    }
    errors
}

fn series(event: &Value, errors: &mut Vec<FieldError>) {
    let Some(series) = at(event, &["series"]) else { return };
    if at(series, &["count"]).and_then(Value::as_i64).is_none_or(|count| count < 2) {
        errors.push(FieldError::invalid("series.count", &json!(""), "should be at least 2"));
    }
    if text_at(series, &["lastObservedTime"]).is_empty() {
        errors.push(FieldError::required("series.lastObservedTime", ""));
    }
}

/// In events.k8s.io/v1 only the series of an event can change.
fn event_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    if old.get("series") != new.get("series") {
        series(new, errors);
    }
    for (field, name) in [
        ("involvedObject", "involvedObject"),
        ("reason", "reason"),
        ("message", "message"),
        ("source", "source"),
        ("firstTimestamp", "firstTimestamp"),
        ("lastTimestamp", "lastTimestamp"),
        ("count", "count"),
        ("type", "type"),
        ("eventTime", "eventTime"),
        ("action", "action"),
        ("related", "related"),
        ("reportingComponent", "reportingController"),
        ("reportingInstance", "reportingInstance"),
    ] {
        immutable(old, new, &[field], name, errors);
    }
}

/// All that a change must not do. Metadata that a request leaves out has been filled in.
pub(super) fn validate_update(resource: &Resource, old: &Value, new: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if is_terminating(old) {
        let added: Vec<String> = finalizers(new)
            .iter()
            .filter(|finalizer| !finalizers(old).contains(finalizer))
            .map(ToString::to_string)
            .collect();
        if !added.is_empty() {
            let why = format!(
                "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                added.join(", ")
            );
            errors.push(FieldError::forbidden("metadata.finalizers", why));
        }
    }
    for field in ["uid", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let path = ["metadata", field];
        immutable(old, new, &path, &format!("metadata.{field}"), &mut errors);
    }
    errors.extend(validate(resource, new));
    match resource.kind {
        "PersistentVolume" => volume_update(old, new, &mut errors),
        "PersistentVolumeClaim" => claim_update(old, new, &mut errors),
        "StorageClass" => {
            for field in ["parameters", "provisioner", "reclaimPolicy"] {
                if old.get(field) != new.get(field) {
                    errors.push(FieldError::forbidden(field, format!("updates to {field} are forbidden.")));
                }
            }
            immutable(old, new, &["volumeBindingMode"], "volumeBindingMode", &mut errors);
        }
        "CSIDriver" => immutable(old, new, &["spec", "attachRequired"], "spec.attachedRequired", &mut errors),
        "CSIStorageCapacity" => {
            immutable(old, new, &["nodeTopology"], "nodeTopology", &mut errors);
            immutable(old, new, &["storageClassName"], "storageClassName", &mut errors);
        }
        "Event" if resource.is_converted() => event_update(old, new, &mut errors),
        "VolumeAttachment" => immutable(old, new, &["spec"], "spec", &mut errors),
        "Secret" => immutable(old, new, &["type"], "type", &mut errors),
        _ => {}
    }
    if matches!(resource.kind, "Secret" | "ConfigMap") && old.get("immutable") == Some(&json!(true)) {
        for field in ["immutable", "data", "binaryData"] {
            if old.get(field) != new.get(field) {
                let why = "field is immutable when `immutable` is set";
                errors.push(FieldError::forbidden(field, why));
            }
        }
    }
    errors
}

fn immutable(old: &Value, new: &Value, path: &[&str], field: &str, errors: &mut Vec<FieldError>) {
    if at(old, path) != at(new, path) {
        errors.push(FieldError::invalid(field, at(new, path).unwrap_or(&Value::Null), IMMUTABLE));
    }
}

fn volume_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    if source(old) != source(new) {
        let change = format!("{:?} is not {:?}", source(new), source(old));
        let why = format!("spec.persistentvolumesource is immutable after creation\n{change}");
        errors.push(FieldError::forbidden("spec.persistentvolumesource", why));
    }
    immutable(old, new, &["spec", "volumeMode"], "volumeMode", errors);
    let affinity = |value: &Value| at(value, &["spec", "nodeAffinity"]).cloned();
    if affinity(old).is_some() && affinity(old) != affinity(new) {
        let why = "field is immutable, except for updating from beta label to GA";
        errors.push(FieldError::invalid("nodeAffinity", &affinity(new).unwrap_or_default(), why));
    }
}

/// Where a claim says how much it wants.
pub(super) const REQUEST: [&str; 4] = ["spec", "resources", "requests", "storage"];

fn claim_update(old: &Value, new: &Value, errors: &mut Vec<FieldError>) {
    let bound = text_at(new, &["status", "phase"]) == "Bound";
    let differs = |field: &str| {
        let (before, after) = (at(old, &["spec", field]), at(new, &["spec", field]));
        before != after
            && match field {
                "volumeName" => before.is_some(),
                "resources" => !bound || before.map(without_request) != after.map(without_request),
                "volumeAttributesClassName" => !bound,
                _ => true,
            }
    };
    let fields = |value: &Value| -> Vec<String> {
        at(value, &["spec"])
            .and_then(Value::as_object)
            .map(|spec| spec.keys().cloned().collect())
            .unwrap_or_default()
    };
    if fields(old).iter().chain(&fields(new)).any(|field| differs(field)) {
        let (before, after) = (&old["spec"], &new["spec"]);
        let why = format!(
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims\n{after} is not {before}"
        );
        errors.push(FieldError::forbidden("spec", why));
    }
    let size = |value: &Value, path: &[&str]| {
        volwright_provisioner::parse_bytes(text_at(value, path)).unwrap_or_default()
    };
    if size(new, &REQUEST) < size(old, &REQUEST)
        && size(new, &REQUEST) <= size(old, &["status", "capacity", "storage"])
    {
        let why = "field can not be less than status.capacity";
        errors.push(FieldError::forbidden("spec.resources.requests.storage", why));
    }
    immutable(old, new, &["spec", "volumeMode"], "volumeMode", errors);
}

fn without_request(resources: &Value) -> Value {
    let mut resources = resources.clone();
    if let Some(requests) = resources.get_mut("requests").and_then(Value::as_object_mut) {
        requests.remove("storage");
    }
    resources
}
