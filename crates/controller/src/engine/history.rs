//! Has the API server's state gone back in time? After etcd was restored from a backup, PVs are as they were then: one that
//! somebody rescued since (policy turned to Retain, claimRef cleared) looks released for deletion again.
//!
//! Versions of all objects come from one counter. A restore takes that back, unless it is told to go on from a higher number
//! (`etcdutl snapshot restore --bump-revision`); in both cases an object is older than it was. (Kubernetes API concepts,
//! "resource versions"; comparable by documentation since 1.35, and in every release in practice.) A watch cache that lags
//! behind shows old objects too, so only a read that goes to etcd counts as proof. A watch need not notice at all: one that
//! goes on from a version that etcd has not reached yet is served, and shows nothing until it has.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// The versions that this process has seen. It outlives terms.
#[derive(Debug, Default)]
pub(super) struct History {
    state: Mutex<State>,
    broken: Notify,
}

#[derive(Debug, Default)]
struct State {
    highest: u64,
    /// Hash of the uid of a PV of ours -> its version. A collision costs one read.
    volumes: BTreeMap<u64, u64>,
    /// PVs by name that were shown older than they were, with the version that they had.
    suspects: BTreeMap<String, Suspect>,
    /// What else has shown it, without any object.
    told: Option<&'static str>,
    /// How often a watch or list was interrupted, and for how many of these it was compared.
    breaks: u64,
    checked: u64,
}

/// A PV that was shown older than it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Suspect {
    pub(super) uid: String,
    pub(super) version: u64,
}

/// What was known before the reads that go to etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) highest: u64,
    pub(super) suspects: BTreeMap<String, Suspect>,
    pub(super) told: Option<&'static str>,
    breaks: u64,
}

fn number(version: &str) -> Option<u64> {
    // What is no number is no version that could be compared.
    version.parse().ok()
}

fn hash(uid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    uid.hash(&mut hasher);
    hasher.finish()
}

impl History {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object of this version was shown to us.
    pub(super) fn seen(&self, version: &str) {
        if let Some(version) = number(version) {
            let mut state = self.lock();
            state.highest = state.highest.max(version);
        }
    }

    /// A PV of ours of this version was shown to us.
    pub(super) fn seen_volume(&self, name: &str, uid: &str, version: &str) {
        let Some(shown) = number(version) else { return };
        let mut state = self.lock();
        state.highest = state.highest.max(shown);
        let known = state.volumes.entry(hash(uid)).or_insert(shown);
        if *known <= shown {
            *known = shown;
            return;
        }
        let suspect = Suspect { uid: uid.to_owned(), version: *known };
        state.suspects.insert(name.to_owned(), suspect);
        state.breaks += 1;
        drop(state);
        self.broken.notify_one();
    }

    /// A PV of ours has gone.
    pub(super) fn forget_volume(&self, uid: &str) {
        self.lock().volumes.remove(&hash(uid));
    }

    /// What we know may be of another time than what is: until that was compared, nothing is destroyed.
    pub(super) fn interrupted(&self) {
        self.lock().breaks += 1;
        self.broken.notify_one();
    }

    /// Something other than a version has shown that time has gone back. By the next comparison the versions may be beyond
    /// what they were.
    pub(super) fn went_back(&self, how: &'static str) {
        self.lock().told = Some(how);
        self.interrupted();
    }

    /// Waits for an interruption.
    pub(super) async fn wait(&self) {
        self.broken.notified().await;
    }

    /// Was everything compared since the last interruption?
    pub(super) fn is_checked(&self) -> bool {
        let state = self.lock();
        state.checked == state.breaks
    }

    /// To be taken before the reads.
    pub(super) fn before(&self) -> Before {
        let state = self.lock();
        let (suspects, told) = (state.suspects.clone(), state.told);
        Before { highest: state.highest, suspects, told, breaks: state.breaks }
    }

    /// The reads of what was known `before` have shown no step back.
    pub(super) fn is_whole(&self, before: &Before) {
        let mut state = self.lock();
        state.checked = state.checked.max(before.breaks);
        state.suspects.retain(|name, suspect| before.suspects.get(name) != Some(suspect));
        state.told = state.told.filter(|told| before.told != Some(told));
    }

    /// Time has gone back to version `now`, which was told. From here on it goes on from there.
    pub(super) fn begin_anew(&self, before: &Before, now: u64) {
        let mut state = self.lock();
        state.highest = now;
        state.volumes.clear();
        state.suspects.clear();
        state.told = None;
        state.checked = state.checked.max(before.breaks);
    }

    /// How much is remembered.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        state.volumes.len() + state.suspects.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_object_is_suspect_until_a_read_has_shown_the_truth() {
        let history = History::default();
        history.seen("7");
        history.seen("5");
        history.seen("not a number");
        history.seen_volume("pv", "u", "6");
        history.seen_volume("pv", "u", "8");
        assert_eq!((history.before().highest, history.is_checked()), (8, true));
        history.seen_volume("pv", "u", "6");
        let before = history.before();
        assert_eq!(before.suspects["pv"], Suspect { uid: "u".to_owned(), version: 8 });
        assert!(!history.is_checked());
        history.is_whole(&before);
        assert!(history.is_checked());
        assert!(history.before().suspects.is_empty());
        history.seen_volume("pv", "made anew", "3");
        assert!(history.is_checked(), "another object under the name is no older one");
    }

    #[test]
    fn what_began_during_the_comparison_is_not_covered_by_it() {
        let history = History::default();
        history.interrupted();
        let before = history.before();
        history.interrupted();
        history.is_whole(&before);
        assert!(!history.is_checked());
    }

    #[test]
    fn a_step_back_that_the_journal_has_shown_is_known_however_far_versions_have_come_since() {
        let history = History::default();
        history.seen("7");
        history.went_back("the journal");
        history.seen("9");
        let before = history.before();
        assert_eq!((before.told, history.is_checked()), (Some("the journal"), false));
        history.begin_anew(&before, 9);
        assert_eq!((history.before().told, history.is_checked()), (None, true));
    }

    #[test]
    fn after_a_step_back_time_goes_on_from_there() {
        let history = History::default();
        history.seen_volume("pv", "u", "8");
        history.interrupted();
        history.begin_anew(&history.before(), 4);
        assert!(history.is_checked());
        history.seen_volume("pv", "u", "5");
        assert_eq!((history.before().highest, history.is_checked(), history.len()), (5, true, 1));
        history.forget_volume("u");
        assert_eq!(history.len(), 0);
    }
}
