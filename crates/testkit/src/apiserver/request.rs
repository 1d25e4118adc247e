//! From the URL of a request to what is asked for.

use serde_json::Value;
use std::collections::BTreeMap;

use super::resources::Resource;

/// A request for objects, as a hook sees it.
#[derive(Debug, Clone)]
pub struct RequestInfo {
    /// Who asks: the label of the client, else the user agent.
    pub client: String,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete` or `deletecollection`.
    pub verb: &'static str,
    /// The kind of object.
    pub resource: &'static Resource,
    /// Such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-wide requests.
    pub namespace: String,
    /// Empty for collections; for a created object as in the body.
    pub name: String,
    /// Parameters.
    pub query: BTreeMap<String, String>,
    /// The object, the patch, or the options of a deletion; null if there is none.
    pub body: Value,
}

/// Where a URL points.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
}

impl Target {
    /// `None`: not the path of objects.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let group = match parts.as_slice() {
            ["api", "v1", _, ..] => {
                parts.drain(..2);
                ""
            }
            ["apis", group, "v1", _, ..] => {
                let group = *group;
                parts.drain(..3);
                group
            }
            _ => return None,
        };
        // Of a namespace itself there are only these.
        let (namespace, rest) = match parts.as_slice() {
            ["namespaces", _, "status" | "finalize"] => ("", &parts[..]),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let part = |index: usize| rest.get(index).map(|part| decode(part)).unwrap_or_default();
        if rest.len() > 3 {
            return None;
        }
        Some(Self {
            group: group.to_owned(),
            namespace: decode(namespace),
            plural: part(0),
            name: part(1),
            subresource: part(2),
        })
    }
}

/// Parameters of a URL.
pub(super) fn query(text: &str) -> BTreeMap<String, String> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&key.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

/// Percent decoding. What is malformed stays as it is.
fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let decoded = (*first == b'%')
            .then(|| {
                more.get(..2).and_then(|hex| u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok())
            })
            .flatten();
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { more.get(2..).unwrap_or_default() } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_objects() {
        let cases = [
            ("/api/v1/nodes", ("", "", "nodes", "", "")),
            ("/api/v1/namespaces/a", ("", "", "namespaces", "a", "")),
            ("/api/v1/namespaces/a/status", ("", "", "namespaces", "a", "status")),
            ("/api/v1/namespaces/a/pods/p/status", ("", "a", "pods", "p", "status")),
            ("/apis/storage.k8s.io/v1/storageclasses/x", ("storage.k8s.io", "", "storageclasses", "x", "")),
            ("/api/v1/persistentvolumes/a%3Ab", ("", "", "persistentvolumes", "a:b", "")),
        ];
        for (path, (group, namespace, plural, name, subresource)) in cases {
            let target = Target::parse(path).unwrap();
            let found = (
                target.group.as_str(),
                target.namespace.as_str(),
                target.plural.as_str(),
                target.name.as_str(),
                target.subresource.as_str(),
            );
            assert_eq!(found, (group, namespace, plural, name, subresource), "case: {path}");
        }
        for path in ["/version", "/api", "/api/v1", "/apis/storage.k8s.io/v1", "/apis/x/v2/y"] {
            assert_eq!(Target::parse(path), None, "case: {path}");
        }
    }

    #[test]
    fn queries_are_decoded() {
        let query = query("labelSelector=a+in+%28b%2Cc%29&watch=true&limit");
        assert_eq!(query["labelSelector"], "a in (b,c)");
        assert_eq!((query["watch"].as_str(), query["limit"].as_str()), ("true", ""));
    }
}
