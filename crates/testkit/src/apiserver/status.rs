//! What the server answers when it refuses, worded as the real one words it.

use serde_json::{Map, Value, json};
use std::fmt;

use super::resources::Resource;

/// A refusal.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Of HTTP.
    pub code: u16,
    /// For programs, such as `NotFound`.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// `name`, `group`, `kind`, `uid`, `causes`, `retryAfterSeconds`; null if there are none.
    pub details: Value,
    /// The token to go on with after a list that lost its place.
    pub(super) next: Option<String>,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.code, self.reason, self.message)
    }
}

impl std::error::Error for Status {}

/// What is wrong with one field.
#[derive(Debug, Clone)]
pub(super) struct FieldError {
    reason: &'static str,
    field: String,
    body: String,
}

impl FieldError {
    pub fn forbidden(field: impl Into<String>, detail: impl fmt::Display) -> Self {
        Self { reason: "FieldValueForbidden", field: field.into(), body: format!("Forbidden: {detail}") }
    }

    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let colon = if detail.is_empty() { "" } else { ": " };
        Self {
            reason: "FieldValueRequired",
            field: field.into(),
            body: format!("Required value{colon}{detail}"),
        }
    }

    pub fn invalid(field: impl Into<String>, value: &Value, detail: impl fmt::Display) -> Self {
        let body = format!("Invalid value: {value}: {detail}");
        Self { reason: "FieldValueInvalid", field: field.into(), body }
    }

    pub fn unsupported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list: Vec<String> = supported.iter().map(|value| format!("{value:?}")).collect();
        let body = format!("Unsupported value: {value}: supported values: {}", list.join(", "));
        Self { reason: "FieldValueNotSupported", field: field.into(), body }
    }

    pub fn too_long(field: impl Into<String>, limit: usize) -> Self {
        let body = format!("Too long: may not be more than {limit} bytes");
        Self { reason: "FieldValueTooLong", field: field.into(), body }
    }
}

impl Status {
    /// Any refusal.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Value::Null, next: None }
    }

    /// As RBAC denies it.
    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let subject =
            if name.is_empty() { resource.qualified() } else { format!("{} {name:?}", resource.qualified()) };
        Self::new(403, "Forbidden", format!("{subject} is forbidden: {why}")).about(resource, name)
    }

    /// Too busy: come again.
    pub fn too_many_requests(seconds: u32) -> Self {
        let mut status =
            Self::new(429, "TooManyRequests", "Too many requests, please try again later.".to_owned());
        status.details = json!({ "retryAfterSeconds": seconds });
        status
    }

    /// Something broke.
    pub fn internal(message: impl fmt::Display) -> Self {
        let mut status = Self::new(500, "InternalError", format!("Internal error occurred: {message}"));
        status.details = json!({ "causes": [{ "message": message.to_string() }] });
        status
    }

    /// The request makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// There is none of that name.
    pub fn not_found(resource: &Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", resource.qualified()))
            .about(resource, name)
    }

    /// There is one of that name.
    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", resource.qualified()))
            .about(resource, name)
    }

    /// A precondition does not hold.
    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    /// A precondition of a DELETE does not hold: told by kind where the others tell the resource.
    pub(super) fn delete_conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message =
            format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified_kind());
        let mut status = Self::new(409, "Conflict", message).about(resource, name);
        status.details["kind"] = json!(resource.kind);
        status
    }

    /// Changed since it was read.
    pub(super) fn modified(resource: &Resource, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// History does not reach back so far.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Fields that cannot be.
    pub(super) fn invalid(resource: &Resource, name: &str, errors: &[FieldError]) -> Self {
        Self::invalid_kind(resource.group, resource.kind, name, errors)
    }

    pub(super) fn invalid_kind(group: &str, kind: &str, name: &str, errors: &[FieldError]) -> Self {
        let lines: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.field, error.body)).collect();
        let list = if lines.len() == 1 { lines.concat() } else { format!("[{}]", lines.join(", ")) };
        let dot = if group.is_empty() { "" } else { "." };
        let mut status = Self::new(422, "Invalid", format!("{kind}{dot}{group} {name:?} is invalid: {list}"));
        let causes: Vec<Value> = errors
            .iter()
            .map(|error| json!({ "reason": error.reason, "message": error.body, "field": error.field }))
            .collect();
        status.details = details(group, kind, name);
        status.details["causes"] = json!(causes);
        status
    }

    /// A version that this server has not reached.
    pub(super) fn too_large_version(wanted: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {wanted}, current: {current}");
        let mut status = Self::new(504, "Timeout", format!("Timeout: {message}"));
        status.details = json!({
            "causes": [{ "reason": "ResourceVersionTooLarge", "message": "Too large resource version" }],
            "retryAfterSeconds": 1,
        });
        status
    }

    fn about(mut self, resource: &Resource, name: &str) -> Self {
        self.details = details(resource.group, resource.plural, name);
        self
    }

    /// The object that is sent.
    pub fn to_value(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(next) = &self.next {
            metadata.insert("continue".to_owned(), json!(next));
        }
        let mut value = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": metadata,
            "status": "Failure", "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            value["reason"] = json!(self.reason);
        }
        if !self.details.is_null() {
            value["details"] = self.details.clone();
        }
        value
    }
}

/// Without what is empty.
fn details(group: &str, kind: &str, name: &str) -> Value {
    let entries = [("name", name), ("group", group), ("kind", kind)];
    entries
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(key, text)| ((*key).to_owned(), json!(text)))
        .collect::<Map<String, Value>>()
        .into()
}
