//! What was asked, in the order in which it was answered.

use std::fmt;

use super::request::RequestInfo;

/// One answered request for objects. A watch stands here once, when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditEntry {
    /// The label of the client, else the user agent.
    pub client: String,
    /// As in [`RequestInfo::verb`].
    pub verb: &'static str,
    /// Empty for the core group.
    pub group: &'static str,
    /// Plural.
    pub resource: &'static str,
    /// Such as `status`, or empty.
    pub subresource: String,
    /// Empty for cluster-wide requests.
    pub namespace: String,
    /// Empty for collections.
    pub name: String,
    /// Of HTTP.
    pub code: u16,
}

impl AuditEntry {
    pub(super) fn new(request: &RequestInfo, code: u16) -> Self {
        Self {
            client: request.client.clone(),
            verb: request.verb,
            group: request.resource.group,
            resource: request.resource.plural,
            subresource: request.subresource.clone(),
            namespace: request.namespace.clone(),
            name: request.name.clone(),
            code,
        }
    }

    /// Does it change objects?
    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

impl fmt::Display for AuditEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = |text: &str| if text.is_empty() { String::new() } else { format!("/{text}") };
        write!(
            f,
            "{}: {} {}{}{}{} {}",
            self.client,
            self.verb,
            self.resource,
            slash(&self.namespace),
            slash(&self.name),
            slash(&self.subresource),
            self.code
        )
    }
}
