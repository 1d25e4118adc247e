//! What is not objects: the version, health, and the lists by which kubectl finds its way.

use serde_json::{Value, json};
use std::collections::BTreeSet;

use super::resources::{NOWHERE, RESOURCES, Resource};

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// What a path shows. `None`: nothing is there.
pub(super) fn show(path: &str) -> Option<Value> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    match parts.as_slice() {
        ["version"] => Some(json!({
            "major": "1", "minor": "35", "gitVersion": "v1.35.4+volwright", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "1970-01-01T00:00:00Z", "goVersion": "none", "compiler": "rustc", "platform": "linux/amd64",
        })),
        ["api"] => {
            Some(json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }))
        }
        ["apis"] => {
            let groups: Vec<Value> = groups().into_iter().map(group).collect();
            Some(json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups }))
        }
        ["apis", name] if groups().contains(name) => {
            let mut group = group(name);
            group["kind"] = json!("APIGroup");
            group["apiVersion"] = json!("v1");
            Some(group)
        }
        ["api", "v1"] => Some(resources("")),
        ["apis", name, "v1"] if groups().contains(name) => Some(resources(name)),
        ["openapi", "v3"] => {
            let paths = groups().into_iter().chain([""]).map(|group| {
                let place = if group.is_empty() { "api/v1".to_owned() } else { format!("apis/{group}/v1") };
                (place.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{place}") }))
            });
            Some(json!({ "paths": paths.collect::<serde_json::Map<String, Value>>() }))
        }
        ["openapi", "v3", "api", "v1"] => Some(openapi("")),
        ["openapi", "v3", "apis", name, "v1"] if groups().contains(name) => Some(openapi(name)),
        _ => None,
    }
}

fn groups() -> BTreeSet<&'static str> {
    RESOURCES.iter().map(|resource| resource.group).filter(|group| !group.is_empty()).collect()
}

fn group(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
    json!({ "name": name, "versions": [version], "preferredVersion": version })
}

fn of(group: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group)
}

fn resources(group: &str) -> Value {
    let mut all = Vec::new();
    for resource in of(group) {
        let verbs: &[&str] = if resource.table == NOWHERE { &["create"] } else { &VERBS };
        let singular = resource.kind.to_lowercase();
        all.push(json!({
            "name": resource.plural, "singularName": singular, "namespaced": resource.namespaced,
            "kind": resource.kind, "verbs": verbs, "shortNames": resource.short,
        }));
        if resource.has_status {
            all.push(json!({
                "name": format!("{}/status", resource.plural), "singularName": "", "namespaced": resource.namespaced,
                "kind": resource.kind, "verbs": ["get", "patch", "update"],
            }));
        }
    }
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": all })
}

/// No schemas, only what tells kubectl to leave the checking of fields to the server.
fn openapi(group: &str) -> Value {
    let mut paths = serde_json::Map::new();
    for resource in of(group) {
        let base = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
        let place = if resource.namespaced { "/namespaces/{namespace}" } else { "" };
        let patch = json!({ "patch": {
            "parameters": [{ "name": "fieldValidation", "in": "query", "schema": { "type": "string" } }],
            "x-kubernetes-group-version-kind": { "group": group, "version": "v1", "kind": resource.kind },
        }});
        paths.insert(format!("{base}{place}/{}/{{name}}", resource.plural), patch);
    }
    json!({ "openapi": "3.0.0", "info": { "title": "volwright-testkit", "version": "v1" }, "paths": paths })
}
