//! One shard: an object that is written whole, by compare-and-swap.

use super::{Bugs, Payload, Soundness};
use std::collections::BTreeMap;
use volwright_provisioner::Epoch;

/// Which writing of which object. A deleted object that is made again has another uid.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Version {
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource: String,
}

/// A shard as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Image {
    /// Which writing this is.
    pub version: Version,
    /// Who wrote it. Default where that cannot be read.
    pub epoch: Epoch,
    /// Commits to it so far.
    pub counter: u64,
    /// On shard 0: how many there are. `None` where that cannot be read.
    pub shards: Option<usize>,
    /// On shard 0: why deletes are stopped.
    pub stop: Option<String>,
    /// The entries.
    pub data: BTreeMap<String, String>,
}

/// One write of a whole shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write<R> {
    /// What it replaces; `None` makes the object.
    pub version: Option<Version>,
    /// See [`Image::epoch`].
    pub epoch: Epoch,
    /// See [`Image::counter`].
    pub counter: u64,
    /// See [`Image::shards`].
    pub shards: Option<usize>,
    /// See [`Image::stop`].
    pub stop: Option<String>,
    /// The entries.
    pub data: BTreeMap<String, String>,
    /// What was known of the entries that it submits for the first time.
    undo: Vec<(String, Option<Entry<R>>)>,
    was_unfenced: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// Acknowledged, or read.
    Recorded,
    /// Submitted, or changed behind our back: goes into every write until one is acknowledged.
    InDoubt,
    /// Left out of every write; forgotten when one is acknowledged.
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Entry<R> {
    pub(super) text: String,
    pub(super) read: R,
    pub(super) state: State,
}

impl<R> Entry<R> {
    pub(super) fn is_open(&self) -> bool {
        self.state != State::Ended
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Waiting<R> {
    pub(super) id: u64,
    pub(super) text: String,
    pub(super) read: R,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Shard<R> {
    /// The last writing that we know of. `None`: it is to be made.
    pub(super) version: Option<Version>,
    pub(super) counter: u64,
    /// It has our epoch.
    pub(super) raised: bool,
    /// It may be made: it was not there when the term began.
    pub(super) may_make: bool,
    /// To be read before it is written.
    pub(super) stale: bool,
    /// A write of ours that replaces `version` may still arrive.
    unfenced: bool,
    pub(super) entries: BTreeMap<String, Entry<R>>,
    pub(super) waiting: BTreeMap<String, Waiting<R>>,
    /// Entries that cannot be read, or that somebody else put there.
    pub(super) foreign: BTreeMap<String, String>,
}

impl<R: Payload> Shard<R> {
    /// One that is not there.
    pub(super) fn absent() -> Self {
        Self {
            version: None,
            counter: 0,
            raised: false,
            may_make: true,
            stale: false,
            unfenced: false,
            entries: BTreeMap::new(),
            waiting: BTreeMap::new(),
            foreign: BTreeMap::new(),
        }
    }

    /// One that should be there.
    pub(super) fn unread() -> Self {
        Self { may_make: false, stale: true, ..Self::absent() }
    }

    /// Takes what is stored for the truth: the term has not begun.
    pub(super) fn adopt(&mut self, image: Image) {
        let waiting = std::mem::take(&mut self.waiting);
        *self = Self { may_make: false, waiting, ..Self::absent() };
        self.version = Some(image.version);
        self.counter = image.counter;
        for (key, text) in image.data {
            match R::decode(&key, &text) {
                Some(read) => {
                    self.entries.insert(key, Entry { text, read, state: State::Recorded });
                }
                None => {
                    self.foreign.insert(key, text);
                }
            }
        }
    }

    /// What this image means for the term.
    pub(super) fn verdict(&self, image: &Image, ours: Epoch, bugs: Bugs) -> Soundness {
        let theirs = image.epoch;
        let other = theirs != ours && !bugs.has_ignored_epoch();
        if other && theirs.number >= ours.number {
            return Soundness::Deposed;
        }
        if !self.raised {
            return Soundness::Sound;
        }
        if self.version.as_ref().is_some_and(|known| known.uid != image.version.uid) && !bugs.has_remake() {
            return Soundness::Vanished;
        }
        if (other || image.counter < self.counter) && !bugs.has_ignored_age() {
            return Soundness::RolledBack;
        }
        Soundness::Sound
    }

    /// Takes our own table for the truth: of our entries nobody else may dispose.
    pub(super) fn merge(&mut self, image: Image, bugs: Bugs) {
        // Whatever we sent before replaces a version that is no more.
        if self.version.as_ref() != Some(&image.version) {
            self.unfenced = false;
        }
        self.version = Some(image.version);
        self.counter = image.counter;
        self.stale = false;
        let (unfenced, trusting) = (self.unfenced, bugs.has_trusted_read());
        for (key, entry) in &mut self.entries {
            let stored = image.data.get(key) == Some(&entry.text);
            entry.state = match entry.state {
                State::Ended => State::Ended,
                State::InDoubt if stored && (!unfenced || trusting) => State::Recorded,
                State::Recorded if stored => State::Recorded,
                State::InDoubt | State::Recorded => State::InDoubt,
            };
        }
        if bugs.has_dropped_doubt() {
            self.entries.retain(|key, entry| entry.state != State::InDoubt || image.data.contains_key(key));
        }
        let foreign = image.data.into_iter().filter(|(key, _)| !self.entries.contains_key(key));
        self.foreign = foreign.filter(|_| !bugs.has_dropped_foreign()).collect();
    }

    pub(super) fn make_again(&mut self) {
        self.version = None;
        self.raised = false;
        self.stale = false;
    }

    /// Everything that waits goes along, if the shard is ours.
    pub(super) fn submit(&mut self, bugs: Bugs) -> Write<R> {
        let sent = if bugs.has_early_acknowledgement() { State::Recorded } else { State::InDoubt };
        let mut undo = Vec::new();
        if self.raised {
            for (key, Waiting { text, read, .. }) in std::mem::take(&mut self.waiting) {
                let earlier = self.entries.insert(key.clone(), Entry { text, read, state: sent });
                undo.push((key, earlier));
            }
        }
        let open = self.entries.iter().filter(|(_, entry)| entry.is_open());
        let mut data = self.foreign.clone();
        data.extend(open.map(|(key, entry)| (key.clone(), entry.text.clone())));
        let mut version = self.version.clone();
        if bugs.has_no_version()
            && let Some(version) = &mut version
        {
            version.resource.clear();
        }
        let write = Write {
            version,
            epoch: Epoch::default(),
            counter: self.counter + 1,
            shards: None,
            stop: None,
            data,
            undo,
            was_unfenced: self.unfenced,
        };
        self.stale = true;
        self.unfenced = true;
        write
    }

    pub(super) fn acknowledged(&mut self, write: &Write<R>, version: Version) {
        self.version = Some(version);
        self.counter = write.counter;
        self.stale = false;
        self.unfenced = false;
        self.entries.retain(|key, entry| entry.is_open() || write.data.contains_key(key));
        for (key, text) in &write.data {
            if let Some(entry) = self.entries.get_mut(key)
                && entry.state == State::InDoubt
                && entry.text == *text
            {
                entry.state = State::Recorded;
            }
        }
    }

    pub(super) fn refused(&mut self, write: Write<R>) {
        self.stale = false;
        self.unfenced = write.was_unfenced;
        for (key, earlier) in write.undo {
            // Somebody may have closed it while the write was under way.
            let ended = self.entries.get(&key).is_none_or(|entry| !entry.is_open());
            match earlier {
                Some(earlier) => {
                    let state = if ended { State::Ended } else { earlier.state };
                    self.entries.insert(key, Entry { state, ..earlier });
                }
                None => {
                    self.entries.remove(&key);
                }
            }
        }
    }

    pub(super) fn is_unsettled(&self) -> bool {
        let unsettled = |entry: &Entry<R>| entry.state != State::Recorded;
        self.unfenced || self.stale || !self.waiting.is_empty() || self.entries.values().any(unsettled)
    }

    /// Bytes of the next write, but for one entry.
    pub(super) fn bytes_without(&self, without: &str) -> usize {
        let foreign = self.foreign.iter().map(|(key, text)| (key, text.len()));
        let open =
            self.entries.iter().filter(|(key, entry)| entry.is_open() && !self.waiting.contains_key(*key));
        let waiting = self.waiting.iter().map(|(key, waiting)| (key, waiting.text.len()));
        let all = foreign.chain(open.map(|(key, entry)| (key, entry.text.len()))).chain(waiting);
        all.filter(|(key, _)| *key != without).map(|(key, size)| key.len() + size).sum()
    }
}
