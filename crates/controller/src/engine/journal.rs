//! What is about to be done, recorded before it is begun.
//!
//! An intent ends only when a PV carries its handle, or its own delete is final. [`MemoryJournal`] keeps intents while
//! the process lives; a durable journal puts them where the next process finds them.

use crate::backend::Envelope;
use crate::decide::volume::Begun;
use crate::decide::{OnDelete, ReclaimPolicy};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use volwright_provisioner::{BoxFuture, ClaimUid, ParameterMap, Request, Result};

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
    pub mount_options: Vec<String>,
    /// What happens to the data in the end.
    pub on_delete: OnDelete,
    /// Where it will be.
    pub handle: Envelope,
}

/// Where intents are kept.
pub trait Journal: Send + Sync + 'static {
    /// Records an intent, or replaces the one of the same claim (its handle was completed). On return it is as durable
    /// as this journal makes it. Fails `Unavailable` if it surely is not recorded.
    fn open(&self, intent: Intent) -> BoxFuture<'_, Result<()>>;
    /// Ends the intent of a claim. Idempotent.
    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>>;
    /// The open intent of a claim.
    fn intent(&self, claim: &ClaimUid) -> Option<Arc<Intent>>;
    /// Claims with an open intent.
    fn claims(&self) -> Vec<ClaimUid>;
    /// Records that a PV is about to be deleted. The first record of a PV (by uid) stays, so that a
    /// change since then shows.
    fn begin_delete<'a>(&'a self, pv: &'a str, begun: Begun) -> BoxFuture<'a, Result<()>>;
    /// With what the delete of a PV began.
    fn begun(&self, pv: &str) -> Option<Begun>;
    /// The delete of a PV has ended. Idempotent.
    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>>;
}

/// Intents in memory: they do not survive the process.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    intents: HashMap<ClaimUid, Arc<Intent>>,
    deletes: HashMap<String, Begun>,
}

impl MemoryJournal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Journal for MemoryJournal {
    fn open(&self, intent: Intent) -> BoxFuture<'_, Result<()>> {
        self.lock().intents.insert(intent.request.claim.uid.clone(), Arc::new(intent));
        Box::pin(std::future::ready(Ok(())))
    }

    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>> {
        self.lock().intents.remove(claim);
        Box::pin(std::future::ready(Ok(())))
    }

    fn intent(&self, claim: &ClaimUid) -> Option<Arc<Intent>> {
        self.lock().intents.get(claim).cloned()
    }

    fn claims(&self) -> Vec<ClaimUid> {
        self.lock().intents.keys().cloned().collect()
    }

    fn begin_delete<'a>(&'a self, pv: &'a str, begun: Begun) -> BoxFuture<'a, Result<()>> {
        let mut tables = self.lock();
        let known = tables.deletes.get(pv).is_some_and(|known| known.uid == begun.uid);
        if !known {
            tables.deletes.insert(pv.to_owned(), begun);
        }
        Box::pin(std::future::ready(Ok(())))
    }

    fn begun(&self, pv: &str) -> Option<Begun> {
        self.lock().deletes.get(pv).cloned()
    }

    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>> {
        self.lock().deletes.remove(pv);
        Box::pin(std::future::ready(Ok(())))
    }
}
