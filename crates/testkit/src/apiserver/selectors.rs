//! Label and field selectors.

use serde_json::Value;

use super::object::text_at;
use super::resources::Resource;
use super::status::Status;

/// What a list or a watch shows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Above(i64),
    Below(i64),
}

#[derive(Debug, Clone, PartialEq)]
struct FieldRequirement {
    path: &'static [&'static str],
    /// Where the first says nothing.
    or_path: &'static [&'static str],
    equal: bool,
    value: String,
}

impl Selector {
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = parse_labels(labels)
            .map_err(|why| Status::bad_request(format!("unable to parse requirement: {why}")))?;
        let mut parsed = Vec::new();
        for term in fields.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (key, equal, value) = split_field(term).ok_or_else(|| {
                Status::bad_request(format!("invalid selector: '{fields}'; can't understand '{term}'"))
            })?;
            let Some((path, or_path)) = field_path(resource, key) else {
                let own = matches!(resource.plural, "events" | "pods" | "nodes" | "namespaces" | "secrets");
                let known = if own {
                    format!("field label not supported: {key}")
                } else {
                    format!(
                        "{key:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                    )
                };
                return Err(Status::bad_request(known));
            };
            parsed.push(FieldRequirement { path, or_path, equal, value: value.to_owned() });
        }
        Ok(Self { labels, fields: parsed })
    }

    /// Does it let everything through?
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Value) -> bool {
        if self.is_empty() {
            return true;
        }
        let labels = object.get("metadata").and_then(|metadata| metadata.get("labels"));
        self.labels.iter().all(|requirement| {
            let value = labels.and_then(|labels| labels.get(&requirement.key)).and_then(Value::as_str);
            requirement.test.holds(value)
        }) && self.fields.iter().all(|field| {
            let mut found = text_at(object, field.path);
            if found.is_empty() {
                found = text_at(object, field.or_path);
            }
            (found == field.value) == field.equal
        })
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::Exists => value.is_some(),
            Self::Absent => value.is_none(),
            Self::In(values) => value.is_some_and(|value| values.iter().any(|v| v == value)),
            Self::NotIn(values) => !value.is_some_and(|value| values.iter().any(|v| v == value)),
            Self::Above(limit) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v > *limit),
            Self::Below(limit) => value.and_then(|v| v.parse::<i64>().ok()).is_some_and(|v| v < *limit),
        }
    }
}

fn split_field(term: &str) -> Option<(&str, bool, &str)> {
    for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
        if let Some((key, value)) = term.split_once(sign) {
            return Some((key, equal, value));
        }
    }
    None
}

/// Where a field selector looks, in the stored shape.
fn field_path(resource: &Resource, key: &str) -> Option<(&'static [&'static str], &'static [&'static str])> {
    let path: &'static [&'static str] = match (resource.plural, key) {
        (_, "metadata.name") => &["metadata", "name"],
        (_, "metadata.namespace") => &["metadata", "namespace"],
        ("events", key) => {
            let core = resource.group.is_empty();
            let part = key.strip_prefix(if core { "involvedObject." } else { "regarding." });
            return match (part, key) {
                (Some("kind"), _) => Some((&["involvedObject", "kind"], &[])),
                (Some("namespace"), _) => Some((&["involvedObject", "namespace"], &[])),
                (Some("name"), _) => Some((&["involvedObject", "name"], &[])),
                (Some("uid"), _) => Some((&["involvedObject", "uid"], &[])),
                (Some("apiVersion"), _) => Some((&["involvedObject", "apiVersion"], &[])),
                (Some("resourceVersion"), _) => Some((&["involvedObject", "resourceVersion"], &[])),
                (Some("fieldPath"), _) => Some((&["involvedObject", "fieldPath"], &[])),
                (None, "reason") => Some((&["reason"], &[])),
                (None, "type") => Some((&["type"], &[])),
                (None, "reportingController") if !core => Some((&["reportingComponent"], &[])),
                (None, "reportingComponent") if core => Some((&["reportingComponent"], &[])),
                (None, "source") if core => Some((&["source", "component"], &["reportingComponent"])),
                _ => None,
            };
        }
        ("pods", "spec.nodeName") => &["spec", "nodeName"],
        ("pods", "spec.restartPolicy") => &["spec", "restartPolicy"],
        ("pods", "spec.schedulerName") => &["spec", "schedulerName"],
        ("pods", "spec.serviceAccountName") => &["spec", "serviceAccountName"],
        ("pods", "status.podIP") => &["status", "podIP"],
        ("pods" | "namespaces", "status.phase") => &["status", "phase"],
        ("nodes", "spec.unschedulable") => &["spec", "unschedulable"],
        ("secrets", "type") => &["type"],
        _ => return None,
    };
    Some((path, &[]))
}

fn parse_labels(text: &str) -> Result<Vec<Requirement>, String> {
    let mut requirements = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let end = end_of_term(rest);
        let (term, more) = rest.split_at(end);
        requirements.push(parse_term(term.trim())?);
        rest = more.strip_prefix(',').unwrap_or(more).trim();
    }
    Ok(requirements)
}

/// The first comma outside parentheses.
fn end_of_term(text: &str) -> usize {
    let mut depth = 0;
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => return index,
            _ => {}
        }
    }
    text.len()
}

fn parse_term(term: &str) -> Result<Requirement, String> {
    let requirement = |key: &str, test: Test| {
        let mut words = key.split_whitespace();
        let (key, second, third) = (words.next().unwrap_or_default(), words.next(), words.next());
        if key.is_empty() || key.contains(|c: char| "()!=<>".contains(c)) {
            return Err(format!("found '{term}', expected: !, identifier, or 'end of string'"));
        }
        match (second, third) {
            (None, _) => Ok(Requirement { key: key.to_owned(), test }),
            (Some("in" | "notin"), third) => {
                Err(format!("found '{}' expected: '('", third.unwrap_or_default()))
            }
            (Some(second), _) => Err(format!("found '{second}', expected: in, notin, =, ==, !=, gt, lt")),
        }
    };
    if let Some((head, values)) = term.split_once('(') {
        let values = values.strip_suffix(')').ok_or_else(|| format!("found '{term}', expected: ')'"))?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        let (key, operator) = head
            .trim()
            .rsplit_once(char::is_whitespace)
            .ok_or_else(|| format!("found '{term}', expected: in, notin"))?;
        return match operator {
            "in" => requirement(key, Test::In(values)),
            "notin" => requirement(key, Test::NotIn(values)),
            other => Err(format!("found '{other}', expected: in, notin")),
        };
    }
    for sign in ["!=", "==", "="] {
        if let Some((key, value)) = term.split_once(sign) {
            let value = vec![value.trim().to_owned()];
            return requirement(key, if sign == "!=" { Test::NotIn(value) } else { Test::In(value) });
        }
    }
    for (sign, above) in [('>', true), ('<', false)] {
        if let Some((key, value)) = term.split_once(sign) {
            let limit = value.trim().parse().map_err(|_| format!("{value:?} is not an integer"))?;
            return requirement(key, if above { Test::Above(limit) } else { Test::Below(limit) });
        }
    }
    match term.strip_prefix('!') {
        Some(key) => requirement(key, Test::Absent),
        None => requirement(term, Test::Exists),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn label_selectors_choose_as_documented() {
        let pv = Resource::named("persistentvolumes").unwrap();
        let object =
            json!({ "metadata": { "name": "a", "labels": { "tier": "gold", "size": "7", "x.io/y": "" } } });
        let cases = [
            ("", true),
            ("tier=gold", true),
            ("tier==gold,size=7", true),
            ("tier!=gold", false),
            ("colour!=red", true),
            ("tier in (silver, gold)", true),
            ("tier notin (silver,gold)", false),
            ("colour notin (red),tier", true),
            ("tier", true),
            ("!tier", false),
            ("!colour,size>6,size<8", true),
            ("x.io/y=", true),
        ];
        for (text, expected) in cases {
            let selector = Selector::parse(pv, text, "").unwrap();
            assert_eq!(selector.matches(&object), expected, "case: {text}");
        }
        for text in ["tier in gold", "a b", "=x", "tier in (a"] {
            assert_eq!(Selector::parse(pv, text, "").unwrap_err().code, 400, "case: {text}");
        }
    }

    #[test]
    fn field_selectors_are_those_of_the_kind() {
        let events = Resource::named("events.events.k8s.io").unwrap();
        let event = json!({ "metadata": { "name": "e" }, "reason": "R", "involvedObject": { "uid": "u" } });
        assert!(Selector::parse(events, "", "regarding.uid=u,reason=R").unwrap().matches(&event));
        assert!(!Selector::parse(events, "", "regarding.uid=u,reason!=R").unwrap().matches(&event));
        assert!(Selector::parse(events, "", "involvedObject.uid=u").is_err());
        let core = Resource::named("events").unwrap();
        assert!(Selector::parse(core, "", "involvedObject.uid=u").unwrap().matches(&event));
        let pv = Resource::named("persistentvolumes").unwrap();
        assert_eq!(Selector::parse(pv, "", "status.phase=Bound").unwrap_err().code, 400);
    }
}
