//! Lists: whole, in pages, and as of an earlier version.

use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::object::{Form, Stored};
use super::resources::Resource;
use super::selectors::Selector;
use super::status::{FieldError, Status};
use super::store::State;

/// The query of a list or a watch.
#[derive(Debug, Clone, Default)]
pub(super) struct Options {
    pub version: String,
    pub version_match: String,
    pub limit: usize,
    pub next: String,
    pub labels: String,
    pub fields: String,
    pub watch: bool,
    pub bookmarks: bool,
    pub initial_events: Option<bool>,
    pub timeout: Option<u64>,
}

impl Options {
    pub fn parse(query: &BTreeMap<String, String>) -> Self {
        let text = |key: &str| query.get(key).cloned().unwrap_or_default();
        let is = |value: &str| matches!(value, "true" | "1");
        Self {
            version: text("resourceVersion"),
            version_match: text("resourceVersionMatch"),
            limit: text("limit").parse().unwrap_or(0),
            next: text("continue"),
            labels: text("labelSelector"),
            fields: text("fieldSelector"),
            watch: is(&text("watch")),
            bookmarks: is(&text("allowWatchBookmarks")),
            initial_events: query.get("sendInitialEvents").map(|value| is(value)),
            timeout: text("timeoutSeconds").parse().ok().filter(|seconds| *seconds > 0),
        }
    }

    pub fn selector(&self, resource: &Resource) -> Result<Selector, Status> {
        Selector::parse(resource, &self.labels, &self.fields)
    }

    /// What cannot be asked.
    pub fn check(&self) -> Result<(), Status> {
        let matches = self.version_match.as_str();
        let field = "resourceVersionMatch";
        let mut errors = Vec::new();
        let mut forbid = |field: &str, why: &str| errors.push(FieldError::forbidden(field, why));
        if self.watch {
            if self.initial_events.is_some() && matches != "NotOlderThan" {
                forbid(field, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            if !matches.is_empty() && self.initial_events.is_none() {
                forbid(
                    field,
                    "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
                );
            }
            if !matches.is_empty() && matches != "NotOlderThan" {
                errors.push(FieldError::unsupported(field, &json!(matches), &["NotOlderThan"]));
            }
        } else {
            if !matches.is_empty() && self.version.is_empty() {
                forbid(field, "resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            if !matches.is_empty() && !self.next.is_empty() {
                forbid(field, "resourceVersionMatch is forbidden when continue is provided");
            }
            if matches == "Exact" && self.version == "0" {
                forbid(field, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            if self.initial_events.is_some() {
                forbid("sendInitialEvents", "sendInitialEvents is forbidden for list");
            }
            if !["", "Exact", "NotOlderThan"].contains(&matches) {
                errors.push(FieldError::unsupported(field, &json!(matches), &["Exact", "NotOlderThan", ""]));
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid_kind("meta.k8s.io", "ListOptions", "", &errors))
    }

    /// The version that is named. `None`: none is, or any will do.
    pub fn wanted_version(&self) -> Result<Option<u64>, Status> {
        if self.version.is_empty() || self.version == "0" {
            return Ok(None);
        }
        self.version.parse().map(Some).map_err(|_| {
            let what = format!(
                "resourceVersion: Invalid value: {:?}: strconv.ParseUint: parsing {:?}: invalid syntax",
                self.version, self.version
            );
            if self.watch {
                Status::new(500, "", what)
            } else {
                Status::bad_request(format!("invalid resource version: {what}"))
            }
        })
    }

    /// Has the server come as far as the version that is named?
    pub fn check_reached(&self, state: &State) -> Result<(), Status> {
        match self.wanted_version()? {
            Some(version) if version > state.version => {
                Err(Status::too_large_version(version, state.version))
            }
            _ => Ok(()),
        }
    }
}

/// A page of a list.
pub(super) struct Page {
    pub version: u64,
    pub items: Vec<Arc<Stored>>,
    pub next: Option<String>,
    pub remaining: Option<usize>,
}

/// Where a page begins: the version of the whole list (`None`: the present one), and the key before it.
struct Place {
    version: Option<u64>,
    after: Option<String>,
}

const LOST: &str = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.";

pub(super) fn list(
    state: &State,
    resource: &'static Resource,
    namespace: &str,
    options: &Options,
) -> Result<Page, Status> {
    options.check()?;
    let selector = options.selector(resource)?;
    let place = place(state, resource, options)?;
    let version = place.version.unwrap_or(state.version);
    let objects = match state.tables.get(resource.table) {
        Some(table) if !state.changed_since(resource.table, version) => Cow::Borrowed(&table.objects),
        _ => Cow::Owned(state.objects_at(resource.table, version).unwrap_or_default()),
    };
    // The watch cache answers "any version", and takes no notice of limits.
    let limit = if options.limit == 0 || options.version == "0" { usize::MAX } else { options.limit };
    let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    let start = match &place.after {
        Some(after) => Bound::Excluded(after.as_str()),
        None => Bound::Included(prefix.as_str()),
    };
    let mut range =
        objects.range::<str, _>((start, Bound::Unbounded)).take_while(|(key, _)| key.starts_with(&prefix));
    let (mut items, mut last, mut next) = (Vec::new(), "", None);
    for (key, object) in range.by_ref() {
        // Whether what comes is selected is not known before it is asked for.
        if items.len() == limit {
            next = Some(format!("{version}:{last}"));
            break;
        }
        if selector.matches(&object.value) {
            items.push(Arc::clone(object));
            last = key;
        }
    }
    // Without selectors it is known how many are to come; with the one that ended the page.
    let remaining = (next.is_some() && selector.is_empty()).then(|| range.count() + 1);
    Ok(Page { version, items, next, remaining })
}

fn place(state: &State, resource: &Resource, options: &Options) -> Result<Place, Status> {
    let wanted = options.wanted_version()?;
    let known = |version: u64, refusal: &dyn Fn() -> Status| {
        if version > state.version {
            Err(Status::too_large_version(version, state.version))
        } else if version < state.floor(resource.table) {
            Err(refusal())
        } else {
            Ok(())
        }
    };
    if !options.next.is_empty() {
        if wanted.is_some() {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let token = options.next.split_once(':').and_then(|(version, after)| {
            Some((if version.is_empty() { None } else { Some(version.parse::<u64>().ok()?) }, after))
        });
        let Some((version, after)) = token else {
            return Err(Status::bad_request("invalid continue token: continue key is not valid"));
        };
        if let Some(version) = version {
            known(version, &|| {
                let mut status = Status::expired(LOST);
                // Goes on from there in the present.
                status.next = Some(format!(":{after}"));
                status
            })?;
        }
        return Ok(Place { version, after: Some(after.to_owned()) });
    }
    // A limit without a word on the match has always meant "exactly".
    let exact = options.version_match == "Exact" || (options.version_match.is_empty() && options.limit > 0);
    match wanted {
        Some(version) if exact => {
            known(version, &|| Status::expired("The resourceVersion for the provided list is too old."))?;
            Ok(Place { version: Some(version), after: None })
        }
        Some(version) if version > state.version => Err(Status::too_large_version(version, state.version)),
        _ => Ok(Place { version: None, after: None }),
    }
}

impl Page {
    /// The body of the answer.
    pub fn write(&self, resource: &Resource, form: Form) -> Vec<u8> {
        let (kind, api_version) = match form {
            Form::Full | Form::Table => (format!("{}List", resource.kind), resource.api_version()),
            Form::Metadata => ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned()),
        };
        let mut out = Vec::with_capacity(256 + self.items.len() * 1024);
        let head = format!(
            "{{\"kind\":\"{kind}\",\"apiVersion\":\"{api_version}\",\"metadata\":{},\"items\":",
            self.metadata()
        );
        out.extend_from_slice(head.as_bytes());
        if self.items.is_empty() && form == Form::Metadata {
            // As the real server has it.
            out.extend_from_slice(b"null}");
            return out;
        }
        out.push(b'[');
        for (index, item) in self.items.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            out.extend_from_slice(&item.item(resource, form));
        }
        out.extend_from_slice(b"]}");
        out
    }

    /// The list's own metadata.
    pub fn metadata(&self) -> Value {
        let mut metadata = json!({ "resourceVersion": self.version.to_string() });
        if let Some(next) = &self.next {
            metadata["continue"] = json!(next);
        }
        if let Some(remaining) = self.remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        metadata
    }
}
