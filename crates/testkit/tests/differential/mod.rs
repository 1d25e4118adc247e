//! A session with an API server: what was asked and answered, made comparable.
//!
//! What two servers cannot have in common is replaced: uids and generated names by the order in which they were first
//! seen, versions of objects by their rank, times that a server gave, page tokens. What is left must be the same.

#![allow(dead_code, reason = "each test binary uses its part")]

use http::Request;
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// One call and its answer.
#[derive(Debug, Clone)]
pub struct Step {
    pub call: String,
    /// The first of what was sent.
    pub sent: String,
    pub answer: Value,
}

/// See the module.
pub struct Session {
    client: Client,
    pub steps: Vec<Step>,
    names: BTreeMap<String, String>,
    in_calls: Vec<(String, String)>,
}

/// Of a call that is out of the ordinary.
#[derive(Default, Clone, Copy)]
pub struct Extra<'a> {
    pub accept: Option<&'a str>,
    pub content: Option<&'a str>,
    /// Compare only what stands at these places.
    pub only: &'a [&'a str],
}

pub const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

impl Session {
    pub fn new(client: Client) -> Self {
        Self { client, steps: Vec::new(), names: BTreeMap::new(), in_calls: Vec::new() }
    }

    /// In later answers this name is shown as `shown`.
    pub fn rename(&mut self, name: &str, shown: &str) {
        self.names.insert(name.to_owned(), shown.to_owned());
    }

    /// In calls, of which versions and page tokens are a part, this is shown as `shown`.
    pub fn rename_in_calls(&mut self, text: &str, shown: &str) {
        self.in_calls.push((format!("={text}"), format!("={shown}")));
    }

    pub async fn get(&mut self, path: &str) -> Value {
        self.call("GET", path, Value::Null, Extra::default()).await
    }

    pub async fn post(&mut self, path: &str, body: Value) -> Value {
        self.call("POST", path, body, Extra::default()).await
    }

    pub async fn put(&mut self, path: &str, body: Value) -> Value {
        self.call("PUT", path, body, Extra::default()).await
    }

    pub async fn delete(&mut self, path: &str, body: Value) -> Value {
        self.call("DELETE", path, body, Extra::default()).await
    }

    pub async fn merge(&mut self, path: &str, body: Value) -> Value {
        let extra = Extra { content: Some("application/merge-patch+json"), ..Extra::default() };
        self.call("PATCH", path, body, extra).await
    }

    pub async fn strategic(&mut self, path: &str, body: Value) -> Value {
        let extra = Extra { content: Some("application/strategic-merge-patch+json"), ..Extra::default() };
        self.call("PATCH", path, body, extra).await
    }

    fn request(method: &str, path: &str, body: &Value, extra: Extra<'_>) -> Request<Body> {
        let body = if body.is_null() { Body::empty() } else { Body::from(body.to_string().into_bytes()) };
        Request::builder()
            .method(method)
            .uri(path)
            .header("accept", extra.accept.unwrap_or("application/json"))
            .header("content-type", extra.content.unwrap_or("application/json"))
            .body(body)
            .expect("a request")
    }

    /// Makes a call; returns the answer as it came.
    pub async fn call(&mut self, method: &str, path: &str, body: Value, extra: Extra<'_>) -> Value {
        let mut text = body.to_string();
        text.truncate(300);
        let call = format!("{method} {path}");
        let sent = format!("{text} {}", extra.content.or(extra.accept).unwrap_or_default());
        let answer = self.client.send(Self::request(method, path, &body, extra)).await.expect("an answer");
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect_bytes().await.expect("a body");
        let body: Value = serde_json::from_slice(&bytes)
            .unwrap_or_else(|_| json!({ "text": String::from_utf8_lossy(&bytes).trim() }));
        let mut shown = body.clone();
        if !extra.only.is_empty() {
            shown = extra
                .only
                .iter()
                .map(|place| ((*place).to_owned(), body.pointer(place).cloned().unwrap_or_default()))
                .collect::<serde_json::Map<_, _>>()
                .into();
        }
        self.steps.push(Step { call, sent, answer: json!({ "code": code, "body": shown }) });
        body
    }

    /// Opens a watch, lets `meanwhile` happen, and reads until so many events or the end came.
    pub async fn watch(
        &mut self,
        path: &str,
        accept: Option<&str>,
        events: usize,
        meanwhile: impl AsyncFnOnce(&mut Session),
    ) -> Vec<Value> {
        use futures::StreamExt;
        let extra = Extra { accept, ..Extra::default() };
        let answer =
            self.client.send(Self::request("GET", path, &Value::Null, extra)).await.expect("a watch");
        let code = answer.status().as_u16();
        meanwhile(self).await;
        let mut stream = axum::body::Body::new(answer.into_body()).into_data_stream();
        let (mut text, mut seen) = (Vec::new(), Vec::new());
        let end = tokio::time::Instant::now() + Duration::from_secs(10);
        while seen.len() < events {
            let Ok(Some(Ok(chunk))) = tokio::time::timeout_at(end, stream.next()).await else { break };
            text.extend_from_slice(&chunk);
            while seen.len() < events
                && let Some(line) = text.iter().position(|byte| *byte == b'\n')
            {
                let line: Vec<u8> = text.drain(..=line).collect();
                seen.push(serde_json::from_slice(&line).expect("an event"));
            }
        }
        // A refusal is a body without a line break.
        if seen.is_empty() && !text.is_empty() {
            seen.push(serde_json::from_slice(&text).expect("a body"));
        }
        self.steps.push(Step {
            call: format!("WATCH {path}"),
            sent: String::new(),
            answer: json!({ "code": code, "events": seen }),
        });
        seen
    }

    /// The steps, comparable.
    pub fn comparable(mut self) -> Vec<Step> {
        let mut uids = BTreeMap::new();
        let mut versions = BTreeSet::new();
        for step in &mut self.steps {
            collect(&mut step.answer, "", &mut uids, &mut versions);
        }
        let ranks: BTreeMap<u64, usize> =
            versions.into_iter().enumerate().map(|(rank, rv)| (rv, rank)).collect();
        let texts: Vec<(String, String)> = uids.into_iter().chain(self.names).collect();
        self.in_calls.sort_by_key(|(text, _)| std::cmp::Reverse(text.len()));
        for step in &mut self.steps {
            replace(&mut step.answer, "", &texts, &ranks);
            for (from, to) in texts.iter().chain(&self.in_calls) {
                step.call = step.call.replace(from, to);
            }
        }
        self.steps
    }
}

/// Does the metadata belong to a list, so that its version is the server's, and moves by itself?
fn is_list(value: &Value) -> bool {
    value.get("items").is_some() || value.get("type").and_then(Value::as_str) == Some("BOOKMARK")
}

fn collect(value: &mut Value, key: &str, uids: &mut BTreeMap<String, String>, versions: &mut BTreeSet<u64>) {
    let list = is_list(value);
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            // The real server checks metadata in two places, and lists some causes twice.
            if let Some(Value::Array(causes)) = map.get_mut("causes") {
                let all = std::mem::take(causes);
                for cause in all {
                    if !causes.contains(&cause) {
                        causes.push(cause);
                    }
                }
            }
            if list {
                let metadata = if map.contains_key("items") {
                    map.get_mut("metadata")
                } else {
                    map.get_mut("object").and_then(|object| object.get_mut("metadata"))
                };
                if let Some(version) = metadata.and_then(|metadata| metadata.get_mut("resourceVersion")) {
                    *version = json!("<of the server>");
                }
            }
            for (key, value) in map {
                collect(value, key, uids, versions);
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|value| collect(value, key, uids, versions)),
        Value::String(text) if key == "uid" && text.len() == 36 => {
            let next = format!("<uid {}>", uids.len());
            uids.entry(text.clone()).or_insert(next);
        }
        Value::String(text) if key == "resourceVersion" => versions.extend(text.parse::<u64>()),
        _ => {}
    }
}

fn replace(value: &mut Value, key: &str, texts: &[(String, String)], ranks: &BTreeMap<u64, usize>) {
    match value {
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| replace(value, key, texts, ranks)),
        Value::Array(list) => list.iter_mut().for_each(|value| replace(value, key, texts, ranks)),
        Value::String(text) => {
            for (from, to) in texts {
                if text.contains(from) {
                    *text = text.replace(from, to);
                }
            }
            match key {
                "creationTimestamp" | "deletionTimestamp" | "lastPhaseTransitionTime" => {
                    "<time>".clone_into(text);
                }
                "continue" => "<token>".clone_into(text),
                "resourceVersion" => {
                    if let Some(rank) = text.parse().ok().and_then(|version| ranks.get(&version)) {
                        *text = format!("<version {rank}>");
                    }
                }
                "message" | "text" => *text = message(text, ranks),
                _ => {}
            }
        }
        _ => {}
    }
}

/// Versions in messages become ranks, or are left out; so is what follows a line break: a structural diff of Go values.
fn message(text: &str, ranks: &BTreeMap<u64, usize>) -> String {
    let text = text.split('\n').next().unwrap_or_default();
    // Then the words of the decoder.
    if let Some((start, _)) = text.split_once("continue key is not valid") {
        return format!("{start}continue key is not valid");
    }
    // The present version of a server moves by itself.
    let no_ranks = BTreeMap::new();
    let ranks = if text.contains("Too large") || text.contains("too old") { &no_ranks } else { ranks };
    let mut out = String::new();
    let mut digits = String::new();
    let mut shown = false;
    let versions = text.contains("esource version") || text.contains("ResourceVersion");
    for c in text.chars().chain(['\0']) {
        // What was replaced already.
        shown = (shown || c == '<') && c != '>';
        if versions && !shown && c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        if !digits.is_empty() {
            let rank = digits.parse().ok().and_then(|version: u64| ranks.get(&version));
            out.push_str(&rank.map_or_else(|| "<number>".to_owned(), |rank| format!("<version {rank}>")));
            digits.clear();
        }
        out.push(c);
    }
    out.trim_end_matches('\0').to_owned()
}

/// Places at which two values differ, as "place: theirs / ours".
pub fn differences(theirs: &Value, ours: &Value, place: &str, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
            for key in keys {
                let missing = Value::String("<missing>".to_owned());
                let (a, b) = (theirs.get(key).unwrap_or(&missing), ours.get(key).unwrap_or(&missing));
                differences(a, b, &format!("{place}/{key}"), found);
            }
        }
        (Value::Array(theirs), Value::Array(ours)) if theirs.len() == ours.len() => {
            for (index, (a, b)) in theirs.iter().zip(ours).enumerate() {
                differences(a, b, &format!("{place}/{index}"), found);
            }
        }
        (theirs, ours) if theirs != ours => found.push(format!("{place}: {theirs} / {ours}")),
        _ => {}
    }
}
