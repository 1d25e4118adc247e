//! A request's way through the server: route, hook, verb, answer, audit. Synchronous throughout.

use axum::body::Body;
use http::request::Parts;
use http::{Method, Response, header};
use serde_json::{Value, json};
use std::sync::Arc;

use super::audit::AuditEntry;
use super::object::{Form, Stored, name, namespace, set, text_at};
use super::read::{self, Options};
use super::request::{RequestInfo, Target, query};
use super::resources::{NOWHERE, RESOURCES, Resource};
use super::status::Status;
use super::write::{PatchKind, Write, Written};
use super::{Shared, discovery, protobuf, table, watch};

/// Of a request's body; the same as the real server's.
pub(super) const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Of an object: etcd's limit of 1.5 MiB for a request.
const OBJECT_LIMIT: usize = 1536 * 1024;

/// What is sent for a path that means nothing.
const NOTHING: Answer = Answer::Text(404, "404 page not found");

/// What is sent back.
enum Answer {
    Json(u16, Vec<u8>),
    Text(u16, &'static str),
    Watch(Body),
}

impl Answer {
    fn value(code: u16, value: &Value) -> Self {
        Self::Json(code, value.to_string().into_bytes())
    }

    fn into_response(self) -> Response<Body> {
        let (code, kind, body) = match self {
            Self::Json(code, body) => (code, "application/json", Body::from(body)),
            Self::Text(code, text) => (code, "text/plain", Body::from(text)),
            Self::Watch(body) => (200, "application/json", body),
        };
        let mut response = Response::new(body);
        if let Ok(code) = http::StatusCode::from_u16(code) {
            *response.status_mut() = code;
        }
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        response
    }
}

/// Answers any request.
pub(super) fn handle(
    shared: &Arc<Shared>,
    client: Option<&str>,
    parts: &Parts,
    body: &[u8],
) -> Response<Body> {
    let mut response = answer(shared, client, parts, body)
        .unwrap_or_else(|status| Answer::value(status.code, &status.to_value()))
        .into_response();
    // What clients compare their clocks with.
    let date = shared.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    if let Ok(date) = header::HeaderValue::from_str(&date) {
        response.headers_mut().insert(header::DATE, date);
    }
    response
}

fn answer(shared: &Arc<Shared>, client: Option<&str>, parts: &Parts, body: &[u8]) -> Result<Answer, Status> {
    let path = parts.uri.path();
    let Some(target) = Target::parse(path) else {
        return match path {
            "/healthz" | "/livez" | "/readyz" => Ok(Answer::Text(200, "ok")),
            _ => Ok(discovery::show(path).map_or(NOTHING, |shown| Answer::value(200, &shown))),
        };
    };
    if !RESOURCES.iter().any(|resource| resource.group == target.group) {
        return Ok(NOTHING);
    }
    let request = request(client, parts, target, body)?;
    let answer = objects(shared, &request, parts);
    let code = match &answer {
        Ok(Answer::Json(code, _)) => *code,
        Ok(_) => 200,
        Err(status) => status.code,
    };
    shared.audit().push(AuditEntry::new(&request, code));
    answer
}

fn unknown() -> Status {
    let mut status = Status::new(404, "NotFound", "the server could not find the requested resource");
    status.details = json!({});
    status
}

fn text(parts: &Parts, name: header::HeaderName) -> &str {
    parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What is asked for.
fn request(client: Option<&str>, parts: &Parts, target: Target, body: &[u8]) -> Result<RequestInfo, Status> {
    let resource = Resource::find(&target.group, &target.plural).ok_or_else(unknown)?;
    if body.len() > BODY_LIMIT {
        let message = format!("Request entity too large: limit is {BODY_LIMIT}");
        return Err(Status::new(413, "RequestEntityTooLarge", message));
    }
    let query = query(parts.uri.query().unwrap_or_default());
    let watches = query.get("watch").is_some_and(|watch| watch == "true" || watch == "1");
    let verb = match (&parts.method, target.name.is_empty()) {
        (&Method::GET, false) => "get",
        (&Method::GET, true) if watches => "watch",
        (&Method::GET, true) => "list",
        (&Method::POST, true) => "create",
        (&Method::POST, false) if target.subresource == "binding" => "create",
        (&Method::PUT, false) => "update",
        (&Method::PATCH, false) => "patch",
        (&Method::DELETE, false) => "delete",
        (&Method::DELETE, true) => "deletecollection",
        _ => return Err(not_allowed()),
    };
    let subresource_is_known = match target.subresource.as_str() {
        "" => true,
        "status" => resource.has_status,
        "finalize" => resource.kind == "Namespace",
        "binding" => resource.kind == "Pod",
        _ => false,
    };
    let place_is_known = if resource.namespaced {
        !target.namespace.is_empty() || matches!(verb, "list" | "watch")
    } else {
        target.namespace.is_empty()
    };
    if !subresource_is_known || !place_is_known {
        return Err(if subresource_is_known { not_allowed() } else { unknown() });
    }
    // What has data is refused for their size.
    if body.len() > OBJECT_LIMIT && !matches!(resource.kind, "ConfigMap" | "Secret") {
        return Err(Status::new(500, "", "etcdserver: request is too large"));
    }
    let body = if body.is_empty() { Value::Null } else { parse(parts, verb, body)? };
    let name = if verb == "create" && target.name.is_empty() { name(&body).to_owned() } else { target.name };
    Ok(RequestInfo {
        client: client.unwrap_or_else(|| text(parts, header::USER_AGENT)).to_owned(),
        verb,
        resource,
        subresource: target.subresource,
        namespace: target.namespace,
        name,
        query,
        body,
    })
}

fn not_allowed() -> Status {
    let mut status = Status::new(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
    );
    status.details = json!({});
    status
}

fn parse(parts: &Parts, verb: &str, body: &[u8]) -> Result<Value, Status> {
    let kind = text(parts, header::CONTENT_TYPE);
    if kind.starts_with("application/vnd.kubernetes.protobuf")
        && let Some(object) = protobuf::decode(body)
    {
        return Ok(object);
    }
    if verb != "patch" && !(kind.is_empty() || kind.starts_with("application/json") || kind == "*/*") {
        let message = "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf";
        return Err(Status::new(415, "UnsupportedMediaType", message));
    }
    serde_json::from_slice(body).map_err(|error| {
        Status::bad_request(format!("the object provided is unrecognized (must be of type Object): {error}"))
    })
}

fn form(parts: &Parts) -> Form {
    let accept = text(parts, header::ACCEPT);
    if accept.contains("as=PartialObjectMetadata") {
        Form::Metadata
    } else if accept.contains("as=Table;v=v1;") {
        Form::Table
    } else {
        Form::Full
    }
}

fn objects(shared: &Arc<Shared>, request: &RequestInfo, parts: &Parts) -> Result<Answer, Status> {
    let hook = shared.hook();
    let denied = hook.as_ref().and_then(|hook| hook(request));
    if request.resource.table == NOWHERE {
        return Ok(access_review(request, hook.as_deref()));
    }
    if let Some(denied) = denied {
        return Err(denied);
    }
    let form = form(parts);
    let RequestInfo { resource, namespace, name, .. } = request;
    match request.verb {
        "get" => {
            let state = shared.state();
            Options::parse(&request.query).check_reached(&state)?;
            let stored = state
                .get(resource.table, &super::store::key(namespace, name))
                .ok_or_else(|| Status::not_found(resource, name))?;
            Ok(sent(shared, 200, resource, form, stored))
        }
        "list" => {
            let page = read::list(&shared.state(), resource, namespace, &Options::parse(&request.query))?;
            if form == Form::Table {
                let objects = page.items.iter().map(|stored| &stored.value);
                let table = table::table(resource, &page.metadata(), objects, shared.now());
                return Ok(Answer::value(200, &table));
            }
            Ok(Answer::Json(200, page.write(resource, form)))
        }
        "watch" => {
            let options = Options::parse(&request.query);
            watch::open(shared, &shared.state(), resource, namespace, &options, form).map(Answer::Watch)
        }
        "deletecollection" => delete_all(shared, request, form),
        _ => {
            let written = write(shared, request, parts)?;
            Ok(match written {
                Written::Object(stored) | Written::Created(stored) if request.subresource == "binding" => {
                    drop(stored);
                    let mut bound = success(None);
                    bound["code"] = json!(201);
                    Answer::value(201, &bound)
                }
                Written::Object(stored) => sent(shared, 200, resource, form, &stored),
                Written::Created(stored) => sent(shared, 201, resource, form, &stored),
                Written::Deleted(uid) => Answer::value(200, &deleted(resource, name, &uid)),
            })
        }
    }
}

/// One object.
fn sent(shared: &Shared, code: u16, resource: &Resource, form: Form, stored: &Stored) -> Answer {
    if form == Form::Table {
        let metadata = json!({ "resourceVersion": stored.version.to_string() });
        let table = table::table(resource, &metadata, std::iter::once(&stored.value), shared.now());
        return Answer::value(code, &table);
    }
    let mut out = Vec::with_capacity(1024);
    stored.write(resource, form, &mut out);
    Answer::Json(code, out)
}

fn success(details: Option<Value>) -> Value {
    let mut value = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success" });
    if let Some(details) = details {
        value["details"] = details;
    }
    value
}

fn deleted(resource: &Resource, name: &str, uid: &str) -> Value {
    let mut details = json!({ "name": name, "kind": resource.plural, "uid": uid });
    if !resource.group.is_empty() {
        details["group"] = json!(resource.group);
    }
    success(Some(details))
}

/// The options of a deletion are in the body, or in the query.
fn delete_options(request: &RequestInfo) -> Value {
    let mut options = request.body.clone();
    for key in ["propagationPolicy", "gracePeriodSeconds"] {
        if let Some(value) = request.query.get(key) {
            let value = value.parse::<u64>().map_or_else(|_| json!(value), |number| json!(number));
            set(&mut options, &[key], value);
        }
    }
    options
}

fn is_dry_run(request: &RequestInfo) -> bool {
    let in_body = request.body.get("dryRun").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
    request.query.get("dryRun").is_some_and(|value| value == "All")
        || (request.verb.starts_with("delete") && in_body)
}

fn delete_all(shared: &Arc<Shared>, request: &RequestInfo, form: Form) -> Result<Answer, Status> {
    let options = delete_options(request);
    let (page, table) = {
        let mut state = shared.state();
        let page = read::list(&state, request.resource, &request.namespace, &Options::parse(&request.query))?;
        for object in &page.items {
            let write = Write {
                resource: request.resource,
                namespace: namespace(&object.value),
                name: name(&object.value),
                to_status: false,
                dry_run: is_dry_run(request),
                now: shared.now(),
            };
            write.delete(&mut state, &options)?;
        }
        (page, request.resource.table)
    };
    shared.wake(table);
    Ok(Answer::Json(200, page.write(request.resource, form)))
}

fn write(shared: &Arc<Shared>, request: &RequestInfo, parts: &Parts) -> Result<Written, Status> {
    let write = Write {
        resource: request.resource,
        namespace: &request.namespace,
        name: &request.name,
        to_status: request.subresource == "status",
        dry_run: is_dry_run(request),
        now: shared.now(),
    };
    let body = &request.body;
    match (request.verb, request.subresource.as_str()) {
        ("create", "binding") => {
            // The scheduler's part of the spec, which makes no new generation.
            let node = text_at(body, &["target", "name"]);
            let change = json!({ "spec": { "nodeName": node } });
            shared.write(request.resource.table, |state| write.patch(state, PatchKind::Merge, &change))
        }
        ("create", _) => shared.write(request.resource.table, |state| write.create(state, body.clone())),
        ("update", "finalize") => {
            let mut change = json!({ "spec": { "finalizers": null } });
            if let Some(finalizers) = body.get("spec").and_then(|spec| spec.get("finalizers")) {
                set(&mut change, &["spec", "finalizers"], finalizers.clone());
            }
            shared.write(request.resource.table, |state| write.patch(state, PatchKind::Merge, &change))
        }
        ("update", _) => shared.write(request.resource.table, |state| write.replace(state, body.clone())),
        ("patch", _) => {
            let kind = match text(parts, header::CONTENT_TYPE).split(';').next().unwrap_or_default() {
                "application/merge-patch+json" => PatchKind::Merge,
                "application/strategic-merge-patch+json" => PatchKind::Strategic,
                "application/json-patch+json" => PatchKind::Json,
                other => {
                    // Server-side apply needs the owners of every field, which are not kept here.
                    let message = format!(
                        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json ({other})"
                    );
                    return Err(Status::new(415, "UnsupportedMediaType", message));
                }
            };
            shared.write(request.resource.table, |state| write.patch(state, kind, body))
        }
        _ => {
            let options = delete_options(request);
            shared.write(request.resource.table, |state| write.delete(state, &options))
        }
    }
}

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

/// May this client do that? Yes, unless the hook denies it.
fn access_review(request: &RequestInfo, hook: Option<&super::Hook>) -> Answer {
    let attributes = request.body.get("spec").and_then(|spec| spec.get("resourceAttributes"));
    let attributes = attributes.unwrap_or(&Value::Null);
    let text = |key: &str| text_at(attributes, &[key]).to_owned();
    let verb = VERBS.iter().find(|verb| **verb == text("verb"));
    let resource = Resource::find(&text("group"), &text("resource"));
    let denied = match (verb, resource, hook) {
        (Some(verb), Some(resource), Some(hook)) => hook(&RequestInfo {
            client: request.client.clone(),
            verb,
            resource,
            subresource: text("subresource"),
            namespace: text("namespace"),
            name: text("name"),
            query: std::collections::BTreeMap::new(),
            body: Value::Null,
        }),
        _ => None,
    };
    let mut answer = request.body.clone();
    set(&mut answer, &["kind"], json!(request.resource.kind));
    set(&mut answer, &["apiVersion"], json!(request.resource.api_version()));
    super::object::default(&mut answer, &["metadata"], json!({}));
    set(&mut answer, &["status", "allowed"], json!(denied.is_none()));
    if let Some(denied) = denied {
        set(&mut answer, &["status", "reason"], json!(denied.message));
    }
    Answer::value(201, &answer)
}
