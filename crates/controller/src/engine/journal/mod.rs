//! What is about to be done, recorded before it is begun.
//!
//! An intent ends only when a PV carries its handle, or its own delete is final. Where it is recorded:
//!
//! | journal | for | survives |
//! |---|---|---|
//! | [`ConfigMapJournal`] | central engines | everything but the loss of etcd |
//! | [`RecordJournal`] | node agents | everything but the loss of the storage: its records are the journal |
//! | [`MemoryJournal`] | tests, trying out | nothing |
//!
//! A term is one leadership of one process: `load`, `raise`, then `tend` beside the work until it ends.

mod config_map; // in ConfigMaps, by the ledger
mod entry; // keys and texts
mod memory; // in this process alone
mod records; // the storage's own records
mod stored; // a shard as an object

pub use self::config_map::{ConfigMapJournal, ConfigMapSettings};
pub use self::memory::MemoryJournal;
pub use self::records::{RecordJournal, encode_blob, recovered};
#[cfg(any(test, feature = "switchable-rules"))]
pub use crate::decide::ledger::JournalBug;
pub use crate::decide::ledger::{Bounds, Bugs, Found, Soundness};

use crate::backend::Envelope;
use crate::decide::volume::Begun;
use crate::decide::{OnDelete, ReclaimPolicy};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tokio::sync::watch;
use volwright_provisioner::{BoxFuture, ClaimUid, Epoch, ParameterMap, Request, Result};

/// A volume is about to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Intent {
    /// All that the backend was asked, parameters included: the class may go.
    pub request: Request<ParameterMap>,
    /// Under which class it was planned.
    pub class_uid: String,
    /// `provisioner` of that class: what `provisioned-by` will say.
    pub provisioner: String,
    /// The PV's policy.
    pub policy: ReclaimPolicy,
    /// The PV's mount options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mount_options: Vec<String>,
    /// What happens to the data in the end.
    pub on_delete: OnDelete,
    /// Where it will be.
    pub handle: Envelope,
    /// Its undo has begun: it is never continued, only undone. The next plan has the next attempt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undoing: bool,
    /// The epoch it was recorded under first: a call of that leader may still be under way. Set by [`Journal::open`]
    /// where it is the default.
    #[serde(default)]
    pub epoch: Epoch,
}

/// Where intents are kept.
pub trait Journal: Send + Sync + 'static {
    /// Reads what is recorded. To be called at the start of each term, before anything else.
    fn load(&self) -> BoxFuture<'_, Result<Found>>;
    /// Begins the term: raises the epoch in every shard, so that commits of earlier leaders fail, creates what is
    /// missing, and records `recovered` intents (found on the storage by comparing its inventory).
    /// `above` is the highest number that a mark on the storage bears, as far as was looked.
    fn raise(&self, recovered: Vec<Intent>, above: u64) -> BoxFuture<'_, Result<()>>;
    /// Of this term. `Epoch::default()` where there are none (agents, memory).
    fn epoch(&self) -> Epoch;
    /// Why this journal can no longer be used by this term, or `Sound`.
    fn soundness(&self) -> watch::Receiver<Soundness>;
    /// Background work of a term: clears what has ended after some idle seconds, notices edits. Runs until dropped.
    fn tend(&self) -> BoxFuture<'_, ()>;
    /// Records an intent, or replaces the one of the same claim (its handle was completed, its undo begins). On success
    /// it is as durable as this journal makes it. After a failure it may be recorded or not: [`intent`](Self::intent)
    /// shows it until it is known not to be. So whoever finds an intent opens it as it is before the backend is asked
    /// for anything: that costs a write only if it is in doubt.
    fn open(&self, intent: Intent) -> BoxFuture<'_, Result<()>>;
    /// Ends the intent of a claim. Idempotent, and lazy: it may show up again after a crash.
    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>>;
    /// The open intent of a claim.
    fn intent(&self, claim: &ClaimUid) -> Option<Arc<Intent>>;
    /// Claims with an open intent.
    fn claims(&self) -> Vec<ClaimUid>;
    /// Records that a PV is about to be deleted. The first record of a PV (by uid) stays, so that a change since then
    /// shows.
    fn begin_delete<'a>(&'a self, pv: &'a str, begun: Begun) -> BoxFuture<'a, Result<()>>;
    /// With what the delete of a PV began.
    fn begun(&self, pv: &str) -> Option<Begun>;
    /// The delete of a PV has ended. Idempotent, and lazy as [`close`](Self::close) is.
    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>>;
    /// PVs whose delete has begun, so that entries of PVs that are long gone can be dropped after a restart.
    fn deletes(&self) -> Vec<String>;
    /// Stops deletes and expiry until an operator acknowledges, durably. Idempotent.
    fn stop_deletes<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<()>>;
    /// The reason while deletes are stopped.
    fn deletes_stopped(&self) -> Option<String>;
}
