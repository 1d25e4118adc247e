//! What is kept: objects, their versions, and a stretch of history. No rules here.

use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::object::Stored;
use super::resources::TABLES;

/// What happened to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Added,
    Modified,
    Deleted,
}

/// One change, for watches.
#[derive(Debug)]
pub(super) struct Event {
    pub change: Change,
    pub version: u64,
    /// After the change; of a deletion the last state, with the deletion's version.
    pub object: Arc<Stored>,
    pub previous: Option<Arc<Stored>>,
}

/// One kind's objects, by `namespace/name` as in etcd, or by name.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub objects: BTreeMap<String, Arc<Stored>>,
    pub history: VecDeque<Arc<Event>>,
    /// The newest change that history no longer has.
    pub dropped: u64,
}

/// Everything that is kept.
#[derive(Debug)]
pub(super) struct State {
    pub version: u64,
    pub tables: Vec<Table>,
    /// A place in history before this is answered with 410, even if history happens to reach back further.
    pub compacted: u64,
    /// Watches that were opened in an earlier epoch are cut.
    pub epoch: u64,
    /// Counts what happened; it never goes back.
    pub changes: u64,
    pub random: fastrand::Rng,
    history: usize,
}

/// All objects and the version, as a backup of etcd has them.
#[derive(Debug, Clone)]
pub struct Snapshot {
    version: u64,
    objects: Vec<BTreeMap<String, Arc<Stored>>>,
}

impl Snapshot {
    /// The newest version in it.
    pub fn resource_version(&self) -> u64 {
        self.version
    }
}

/// The key of an object.
pub(super) fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

impl State {
    pub fn new(history: usize, seed: u64) -> Self {
        Self {
            version: 0,
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            compacted: 0,
            epoch: 0,
            changes: 0,
            random: fastrand::Rng::with_seed(seed),
            history: history.max(1),
        }
    }

    pub fn get(&self, table: usize, key: &str) -> Option<&Arc<Stored>> {
        self.tables.get(table)?.objects.get(key)
    }

    /// Writes an object under the next version.
    pub fn put(&mut self, table: usize, key: &str, value: Value) -> Arc<Stored> {
        self.version += 1;
        let stored = Arc::new(Stored::new(value, self.version));
        if let Some(place) = self.tables.get_mut(table) {
            let previous = place.objects.insert(key.to_owned(), Arc::clone(&stored));
            let change = if previous.is_some() { Change::Modified } else { Change::Added };
            self.record(
                table,
                Event { change, version: self.version, object: Arc::clone(&stored), previous },
            );
        }
        stored
    }

    /// Removes an object; returns its last state with the deletion's version.
    pub fn delete(&mut self, table: usize, key: &str) -> Option<Arc<Stored>> {
        let previous = self.tables.get_mut(table)?.objects.remove(key)?;
        self.version += 1;
        let object = Arc::new(Stored::new(previous.value.clone(), self.version));
        let event = Event {
            change: Change::Deleted,
            version: self.version,
            object: Arc::clone(&object),
            previous: Some(previous),
        };
        self.record(table, event);
        Some(object)
    }

    fn record(&mut self, table: usize, event: Event) {
        self.changes += 1;
        let Some(table) = self.tables.get_mut(table) else { return };
        table.history.push_back(Arc::new(event));
        while table.history.len() > self.history {
            if let Some(dropped) = table.history.pop_front() {
                table.dropped = dropped.version;
            }
        }
    }

    /// The oldest version that a watch or a list may still name.
    pub fn floor(&self, table: usize) -> u64 {
        self.tables.get(table).map_or(0, |table| table.dropped).max(self.compacted)
    }

    /// A kind's objects as they were at a version. `None`: history does not reach back so far.
    pub fn objects_at(&self, table: usize, version: u64) -> Option<BTreeMap<String, Arc<Stored>>> {
        if version < self.floor(table) {
            return None;
        }
        let table = self.tables.get(table)?;
        let mut objects = table.objects.clone();
        for event in table.history.iter().rev().take_while(|event| event.version > version) {
            let value = &event.object.value;
            let key = key(super::object::namespace(value), super::object::name(value));
            match &event.previous {
                Some(previous) => drop(objects.insert(key, Arc::clone(previous))),
                None => drop(objects.remove(&key)),
            }
        }
        Some(objects)
    }

    /// Has anything of this kind changed since that version?
    pub fn changed_since(&self, table: usize, version: u64) -> bool {
        let newest = self.tables.get(table).and_then(|table| table.history.back());
        newest.is_some_and(|event| event.version > version)
    }

    /// The first change after a version. `Err`: history has lost it.
    pub fn next_event(&self, table: usize, after: u64) -> Result<Option<&Arc<Event>>, ()> {
        let Some(table) = self.tables.get(table) else { return Ok(None) };
        if after < table.dropped {
            return Err(());
        }
        let index = table.history.partition_point(|event| event.version <= after);
        Ok(table.history.get(index))
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            version: self.version,
            objects: self.tables.iter().map(|table| table.objects.clone()).collect(),
        }
    }

    /// Back to what was, with no history, as after etcd was restored from a backup.
    pub fn restore(&mut self, snapshot: &Snapshot) {
        self.version = snapshot.version;
        self.compacted = snapshot.version;
        for (table, objects) in self.tables.iter_mut().zip(&snapshot.objects) {
            *table = Table { objects: objects.clone(), history: VecDeque::new(), dropped: snapshot.version };
        }
        self.epoch += 1;
        self.changes += 1;
    }

    /// A uid as a random UUID's.
    pub fn uid(&mut self) -> String {
        let bits = self.random.u128(..);
        let bits = (bits & !(0xf << 76) & !(0b11 << 62)) | (0x4 << 76) | (0b10 << 62);
        let hex = format!("{bits:032x}");
        let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
        format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
    }

    /// The end of a generated name. No vowels, as in Kubernetes.
    pub fn suffix(&mut self) -> String {
        const LETTERS: [char; 27] = [
            'b', 'c', 'd', 'f', 'g', 'h', 'j', 'k', 'l', 'm', 'n', 'p', 'q', 'r', 's', 't', 'v', 'w', 'x',
            'z', '2', '4', '5', '6', '7', '8', '9',
        ];
        (0..5).filter_map(|_| self.random.choice(LETTERS)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str) -> Value {
        json!({ "metadata": { "name": name } })
    }

    fn names(objects: Option<BTreeMap<String, Arc<Stored>>>) -> Option<Vec<String>> {
        objects.map(|objects| objects.into_keys().collect())
    }

    #[test]
    fn the_past_can_be_read_as_far_as_history_reaches() {
        let mut state = State::new(3, 1);
        state.put(1, "a", object("a")); // version 1
        state.put(1, "b", object("b"));
        state.delete(1, "a");
        state.put(1, "c", object("c"));
        assert_eq!(names(state.objects_at(1, 4)), Some(vec!["b".into(), "c".into()]));
        assert_eq!(names(state.objects_at(1, 2)), Some(vec!["a".into(), "b".into()]));
        assert_eq!(names(state.objects_at(1, 1)), Some(vec!["a".into()]));
        assert_eq!(names(state.objects_at(1, 0)), None, "the first change was dropped");
    }

    #[test]
    fn a_restore_takes_versions_back_and_uids_not() {
        let mut state = State::new(10, 1);
        state.put(1, "a", object("a"));
        let snapshot = state.snapshot();
        let first = state.uid();
        state.delete(1, "a");
        state.restore(&snapshot);
        assert_eq!(state.version, 1);
        assert!(state.get(1, "a").is_some());
        assert_ne!(state.uid(), first);
        assert!(state.next_event(1, 0).is_err());
    }
}
