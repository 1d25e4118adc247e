//! A journal in memory: it does not survive the process.

use super::{Found, Intent, Journal, Soundness};
use crate::decide::volume::Begun;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use volwright_provisioner::{BoxFuture, ClaimUid, Epoch, Result};

/// Intents in memory: they do not survive the process, but they do survive a term.
#[derive(Debug)]
pub struct MemoryJournal {
    tables: Mutex<Tables>,
    soundness: watch::Sender<Soundness>,
}

#[derive(Debug, Default)]
struct Tables {
    intents: BTreeMap<ClaimUid, Arc<Intent>>,
    deletes: BTreeMap<String, Begun>,
    stopped: Option<String>,
}

impl Default for MemoryJournal {
    fn default() -> Self {
        Self { tables: Mutex::default(), soundness: watch::Sender::new(Soundness::Sound) }
    }
}

impl MemoryJournal {
    /// An empty journal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins anew with these intents; deletes that have begun are kept.
    pub(super) fn reset(&self, open: Vec<Intent>) {
        let keyed = open.into_iter().map(|intent| (intent.request.claim.uid.clone(), Arc::new(intent)));
        self.lock().intents = keyed.collect();
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn done<T: Send + 'static>(value: T) -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Ok(value)))
}

impl Journal for MemoryJournal {
    fn load(&self) -> BoxFuture<'_, Result<Found>> {
        done(Found::Sound)
    }

    fn raise(&self, recovered: Vec<Intent>, _above: u64) -> BoxFuture<'_, Result<()>> {
        let mut tables = self.lock();
        for intent in recovered {
            tables.intents.insert(intent.request.claim.uid.clone(), Arc::new(intent));
        }
        done(())
    }

    fn epoch(&self) -> Epoch {
        Epoch::default()
    }

    fn soundness(&self) -> watch::Receiver<Soundness> {
        self.soundness.subscribe()
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    fn open(&self, intent: Intent) -> BoxFuture<'_, Result<()>> {
        self.lock().intents.insert(intent.request.claim.uid.clone(), Arc::new(intent));
        done(())
    }

    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>> {
        self.lock().intents.remove(claim);
        done(())
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
        done(())
    }

    fn begun(&self, pv: &str) -> Option<Begun> {
        self.lock().deletes.get(pv).cloned()
    }

    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>> {
        self.lock().deletes.remove(pv);
        done(())
    }

    fn deletes(&self) -> Vec<String> {
        self.lock().deletes.keys().cloned().collect()
    }

    fn stop_deletes<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<()>> {
        self.lock().stopped.get_or_insert_with(|| reason.to_owned());
        done(())
    }

    fn deletes_stopped(&self) -> Option<String> {
        self.lock().stopped.clone()
    }
}
