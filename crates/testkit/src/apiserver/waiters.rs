//! Who waits for changes. They are woken in the order in which they came, so that a run can be replayed.

use std::collections::BTreeMap;
use std::task::Waker;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    last: u64,
    waiting: BTreeMap<u64, (Option<usize>, Waker)>,
}

impl Waiters {
    /// A new waiter's number.
    pub fn register(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Wakes on the next change of this table, or of any.
    pub fn wait(&mut self, id: u64, table: Option<usize>, waker: &Waker) {
        match self.waiting.get_mut(&id) {
            Some((waits_for, known)) => {
                *waits_for = table;
                known.clone_from(waker);
            }
            None => drop(self.waiting.insert(id, (table, waker.clone()))),
        }
    }

    pub fn forget(&mut self, id: u64) {
        self.waiting.remove(&id);
    }

    /// Those to be woken, once no lock is held. `None`: all.
    pub fn take(&mut self, table: Option<usize>) -> Vec<Waker> {
        let due = |waits_for: Option<usize>| table.is_none() || waits_for.is_none() || waits_for == table;
        let ids: Vec<u64> =
            self.waiting.iter().filter(|(_, (waits_for, _))| due(*waits_for)).map(|(id, _)| *id).collect();
        ids.iter().filter_map(|id| self.waiting.remove(id)).map(|(_, waker)| waker).collect()
    }
}
