//! A journal for node agents: the storage's own records are the journal.
//!
//! `provision` records the mark, and the intent as an opaque text, before it makes anything; after a restart the
//! inventory brings both back. So tables in memory do for the rest: no API write, no epoch, and no commit to wait for.
//! A lock on the storage keeps a second agent out.

use super::{Found, Intent, Journal, MemoryJournal, Soundness};
use crate::backend::{Backend, Envelope};
use crate::decide::volume::Begun;
use crate::decide::{OnDelete, ReclaimPolicy};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;
use tracing::warn;
use volwright_provisioner::{
    AccessMode, BoxFuture, ClaimInfo, ClaimUid, Epoch, Failure, InventoryItem, Mark, MarkState, ParameterMap,
    Request, Result, VolumeMode,
};

/// See the module.
pub struct RecordJournal {
    backend: Arc<dyn Backend>,
    tables: MemoryJournal,
}

impl RecordJournal {
    /// Asks nothing yet.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self { backend, tables: MemoryJournal::new() }
    }
}

/// What an agent's storage keeps as [`Request::intent`]: the intent without the text itself.
pub fn encode_blob(intent: &Intent) -> Result<String> {
    let mut bare = intent.clone();
    bare.request.intent = None;
    serde_json::to_string(&bare)
        .map_err(|error| Failure::invalid("the intent cannot be recorded: not JSON").caused_by(error))
}

/// Intents for what was planned or made and never published: no PV that is `known` names it. What has no readable intent
/// is to be undone. Of two volumes of one claim the one that can go on comes first; the other is an orphan until then.
pub fn recovered(
    items: Vec<InventoryItem<Envelope>>,
    known: &dyn Fn(&InventoryItem<Envelope>) -> bool,
) -> Vec<Intent> {
    let mut found: BTreeMap<ClaimUid, Intent> = BTreeMap::new();
    for item in items {
        let Some(mark) = item.observed.mark.clone() else { continue };
        let unpublished = matches!(mark.state, MarkState::Planned | MarkState::Unpublished);
        if !unpublished || known(&item) {
            continue;
        }
        let (uid, pv) = (mark.owner.clone(), mark.pv_name.clone());
        let intent = reopened(item, &mark);
        match found.get(&uid) {
            Some(other) => {
                warn!(%uid, %pv, "Two unpublished volumes bear the mark of one claim; one is dealt with after the other.");
                if other.undoing && !intent.undoing {
                    found.insert(uid, intent);
                }
            }
            None => {
                found.insert(uid, intent);
            }
        }
    }
    found.into_values().collect()
}

fn reopened(item: InventoryItem<Envelope>, mark: &Mark) -> Intent {
    let InventoryItem { handle, observed, intent, trashed: _ } = item;
    let decoded = intent.as_deref().and_then(|text| serde_json::from_str::<Intent>(text).ok());
    let same = |intent: &Intent| {
        intent.request.claim.uid == mark.owner
            && intent.request.pv_name == mark.pv_name
            && intent.request.mark.same_owner(mark)
    };
    // What is on the storage is newer than what was planned.
    if let Some(intent) = decoded.filter(same) {
        return Intent { handle, ..intent };
    }
    let (uid, pv) = (&mark.owner, &mark.pv_name);
    warn!(%uid, %pv, "An unpublished volume has no readable intent: it is undone if it is pristine.");
    let request = Request {
        claim: ClaimInfo {
            namespace: String::new(),
            name: String::new(),
            uid: mark.owner.clone(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        },
        pv_name: mark.pv_name.clone(),
        size: observed.size.unwrap_or(1).max(1),
        access_modes: vec![AccessMode::ReadWriteOnce],
        volume_mode: VolumeMode::Filesystem,
        class_name: String::new(),
        parameters: ParameterMap::new(),
        node: None,
        attempt: 0,
        mark: mark.with_state(MarkState::Unpublished),
        intent: None,
    };
    Intent {
        request,
        class_uid: String::new(),
        provisioner: String::new(),
        // It never becomes a PV; should it, the data stays.
        policy: ReclaimPolicy::Retain,
        mount_options: Vec::new(),
        on_delete: OnDelete::Retain,
        handle,
        undoing: true,
        epoch: mark.epoch,
    }
}

impl Journal for RecordJournal {
    fn load(&self) -> BoxFuture<'_, Result<Found>> {
        Box::pin(async {
            let items = self.backend.inventory().await?;
            let open = recovered(items, &|_| false);
            self.tables.reset(open);
            Ok(Found::Sound)
        })
    }

    fn raise(&self, recovered: Vec<Intent>, above: u64) -> BoxFuture<'_, Result<()>> {
        self.tables.raise(recovered, above)
    }

    fn epoch(&self) -> Epoch {
        self.tables.epoch()
    }

    fn soundness(&self) -> watch::Receiver<Soundness> {
        self.tables.soundness()
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        self.tables.tend()
    }

    fn open(&self, intent: Intent) -> BoxFuture<'_, Result<()>> {
        self.tables.open(intent)
    }

    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>> {
        self.tables.close(claim)
    }

    fn intent(&self, claim: &ClaimUid) -> Option<Arc<Intent>> {
        self.tables.intent(claim)
    }

    fn claims(&self) -> Vec<ClaimUid> {
        self.tables.claims()
    }

    fn begin_delete<'a>(&'a self, pv: &'a str, begun: Begun) -> BoxFuture<'a, Result<()>> {
        self.tables.begin_delete(pv, begun)
    }

    fn begun(&self, pv: &str) -> Option<Begun> {
        self.tables.begun(pv)
    }

    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>> {
        self.tables.end_delete(pv)
    }

    fn deletes(&self) -> Vec<String> {
        self.tables.deletes()
    }

    /// Until the process ends: an agent has no journal that could be older than its storage.
    fn stop_deletes<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<()>> {
        self.tables.stop_deletes(reason)
    }

    fn deletes_stopped(&self) -> Option<String> {
        self.tables.deletes_stopped()
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
