//! What stays on the storage without a PV, and why. Operators are told; nothing here is removed but by their word.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Volumes without a PV, by the PV's name, with the reason. Cheap to clone; lives as long as the process.
#[derive(Debug, Clone, Default)]
pub struct Orphans(Arc<Mutex<BTreeMap<String, String>>>);

impl Orphans {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them.
    pub fn list(&self) -> BTreeMap<String, String> {
        self.lock().clone()
    }

    /// Is the volume of this PV known to be one?
    pub fn contains(&self, pv: &str) -> bool {
        self.lock().contains_key(pv)
    }

    /// Returns how many there are now.
    pub(super) fn add(&self, pv: &str, reason: &str) -> usize {
        let mut orphans = self.lock();
        orphans.insert(pv.to_owned(), reason.to_owned());
        orphans.len()
    }

    /// `Some`: it was one, and so many are left.
    pub(super) fn remove(&self, pv: &str) -> Option<usize> {
        let mut orphans = self.lock();
        orphans.remove(pv).map(|_| orphans.len())
    }
}
