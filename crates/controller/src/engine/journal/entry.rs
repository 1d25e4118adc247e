//! Entries of a durable journal: a key that a ConfigMap allows, and JSON.

use super::Intent;
use crate::decide::ledger::Payload;
use crate::decide::volume::Begun;
use crate::names;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use volwright_provisioner::{ClaimUid, Failure, Result};

const CLAIM: &str = "claim.";
const DELETE: &str = "delete.";
/// Of a ConfigMap's key.
const KEY_MAX: usize = 253;
/// Of a PV's name that is kept in a key when the whole does not fit; the rest are a dot and 16 hex digits.
const NAME_KEPT: usize = 200;

/// What an entry means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    Intent(Arc<Intent>),
    Delete { pv: String, begun: Arc<Begun> },
}

#[derive(Serialize, Deserialize)]
struct StoredDelete {
    /// Where the key cannot hold the whole name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pv: Option<String>,
    #[serde(flatten)]
    begun: Begun,
}

pub(super) fn claim_key(claim: &ClaimUid) -> String {
    format!("{CLAIM}{claim}")
}

pub(super) fn delete_key(pv: &str) -> String {
    let whole = format!("{DELETE}{pv}");
    if whole.len() <= KEY_MAX {
        return whole;
    }
    let kept = pv.get(..NAME_KEPT).unwrap_or_default();
    format!("{DELETE}{kept}.{}", names::node_hash(pv))
}

/// Key and text of an intent. What an agent's storage would keep of it is not written twice.
pub(super) fn encode_intent(intent: &Intent) -> Result<(String, String)> {
    let key = checked(claim_key(&intent.request.claim.uid))?;
    if intent.request.intent.is_none() {
        return Ok((key, text(intent)?));
    }
    let mut bare = intent.clone();
    bare.request.intent = None;
    Ok((key, text(&bare)?))
}

/// Key and text of a delete.
pub(super) fn encode_delete(pv: &str, begun: &Begun) -> Result<(String, String)> {
    let key = checked(delete_key(pv))?;
    let whole = key.strip_prefix(DELETE) == Some(pv);
    let stored = StoredDelete { pv: (!whole).then(|| pv.to_owned()), begun: begun.clone() };
    Ok((key, text(&stored)?))
}

fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Failure::invalid("cannot be recorded in the journal: not JSON").caused_by(error))
}

fn checked(key: String) -> Result<String> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if key.len() <= KEY_MAX && key.bytes().all(allowed) {
        return Ok(key);
    }
    Err(Failure::invalid(format!("{key:?} cannot be a key of the journal: only letters, digits, -, _ and .")))
}

impl Payload for Record {
    fn decode(key: &str, text: &str) -> Option<Self> {
        if let Some(uid) = key.strip_prefix(CLAIM) {
            let intent: Intent = serde_json::from_str(text).ok()?;
            return (intent.request.claim.uid.as_str() == uid).then(|| Self::Intent(Arc::new(intent)));
        }
        let name = key.strip_prefix(DELETE)?;
        let StoredDelete { pv, begun } = serde_json::from_str(text).ok()?;
        let pv = pv.unwrap_or_else(|| name.to_owned());
        (delete_key(&pv) == key).then(|| Self::Delete { pv, begun: Arc::new(begun) })
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
