//! The durable journal as a state machine: which write comes next, and what an answer, a conflict or silence means.
//!
//! Entries lie in shards, each one object that is written whole, by compare-and-swap on its version:
//!
//! ```text
//! open -> waiting -> submitted with everybody else's: in doubt -> acknowledged: recorded -> close: ended -> next write
//!                    409, silence: read, absorb, write again        refused: as before
//! ```
//! - *When in doubt it is recorded*: what was submitted is shown and written again until an acknowledged write either
//!   holds it or has left it out on purpose. A read that does not show it proves nothing, since the write may still
//!   arrive; only a write of a newer version fences it off.
//! - *Shards are raised one by one*, number 0 first, since it tells how many there are. A raised shard belongs to this
//!   term: another epoch in it ends the term.
//! - *Entries that cannot be read* are written back byte for byte with every write.
//!
//! Invariant: pure. The shell (`engine/journal/config_map.rs`) sends what [`Ledger::next`] says and reports back;
//! `explore_tests.rs` does the same with every order of events.

mod bugs; // mistakes that tests switch on
mod shard; // one object

pub use self::bugs::Bugs;
#[cfg(any(test, feature = "switchable-rules"))]
pub use self::bugs::JournalBug;
pub use self::shard::{Image, Version, Write};

use self::shard::{Shard, State, Waiting};
use std::fmt::Debug;
use volwright_provisioner::Epoch;

/// As many shards are read at most, however many shard 0 tells of: it may have been edited.
pub const SHARDS_READ: usize = 64;

/// How much may be recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Bytes of keys and values per shard. An eighth of it is left to entries that are there already and grow: without
    /// it, a journal full of intents could not note how far they have come, and so would never empty.
    pub shard_bytes: usize,
    /// Shards.
    pub shards: usize,
    /// Bytes of one entry.
    pub entry_bytes: usize,
}

impl Default for Bounds {
    /// A ConfigMap holds at most 1 MiB, and quotes are escaped on the wire; every commit sends a whole shard, and some
    /// 250 intents under way fill one. 16 shards are 4 MiB in etcd.
    fn default() -> Self {
        Self { shard_bytes: 256 * 1024, shards: 16, entry_bytes: 64 * 1024 }
    }
}

impl Bounds {
    fn for_new(&self) -> usize {
        self.shard_bytes - self.shard_bytes / 8
    }
}

/// What an entry's text means; `None` where it cannot be read.
pub trait Payload: Clone + Debug {
    /// Reads an entry.
    fn decode(key: &str, text: &str) -> Option<Self>;
}

/// What [`Ledger::load`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// All that was ever recorded.
    Sound,
    /// Nothing is recorded here, or a part has vanished: compare the inventory first.
    Missing,
}

/// Can this term still use its journal?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Soundness {
    /// Yes.
    Sound,
    /// Another epoch was raised: another leads.
    Deposed,
    /// It was deleted under us, and a running leader does not make it again: what it held may be needed.
    Vanished,
    /// What is read is older than what was written: etcd was restored.
    RolledBack,
}

/// What to do for a shard now.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Step<R> {
    /// Nothing.
    Done,
    /// Read it, then [`absorb`](Ledger::absorb).
    Read,
    /// Write it, then say what came of it: [`acknowledged`](Ledger::acknowledged), [`refused`](Ledger::refused), or
    /// nothing at all, which counts as lost.
    Write(Box<Write<R>>),
    /// Have shard 0 tell of it first.
    Count,
    /// Another has raised as high an epoch meanwhile: [`raise`](Ledger::raise) above it.
    Overtaken,
    /// Nothing more is written in this term.
    Unsound(Soundness),
}

/// What came of asking for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opened {
    /// The same is recorded already.
    Already,
    /// It waits for the next write of this shard, under this number.
    Waits {
        /// The shard.
        at: usize,
        /// For [`Ledger::withdraw`].
        id: u64,
    },
}

/// Why an entry is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// No shard has room.
    Full,
    /// It has this many bytes, which is more than an entry may have.
    TooBig(usize),
    /// This shard has an entry of that key which cannot be read.
    Unreadable(usize),
    /// The term has not begun.
    NotBegun,
    /// The term is over.
    Unsound(Soundness),
}

/// How far an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not submitted yet.
    Waiting,
    /// Submitted.
    InDoubt,
    /// Acknowledged.
    Recorded,
    /// Ended, withdrawn, or another text.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Stop {
    reason: String,
    recorded: bool,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ledger<R> {
    bounds: Bounds,
    bugs: Bugs,
    epoch: Epoch,
    /// Highest epoch number ever seen.
    highest: u64,
    /// Every counted shard has been raised to `epoch`.
    begun: bool,
    overtaken: bool,
    /// Shards that shard 0 is known to tell of. There may be one more, which is being made.
    counted: usize,
    /// How many it is to tell of.
    wanted: usize,
    shards: Vec<Shard<R>>,
    stop: Option<Stop>,
    soundness: Soundness,
    last_id: u64,
}

impl<R: Payload> Ledger<R> {
    /// From what was read, shard by shard; `before` is the last term's ledger of this process. The term begins when all
    /// shards have been [raised](Self::raise).
    pub fn load(
        bounds: Bounds,
        bugs: Bugs,
        images: Vec<Option<Image>>,
        before: Option<&Self>,
    ) -> (Self, Found) {
        let older = |at: usize, image: &Image| {
            let known = before.and_then(|before| before.shards.get(at));
            known.is_some_and(|known| known.version.is_some() && image.counter < known.counter)
        };
        let uncounted = images.first().is_none_or(|first| {
            first.as_ref().and_then(|first| first.shards).is_none_or(|count| count > images.len())
        });
        let fewer = before.is_some_and(|before| before.counted > images.len());
        let stale =
            images.iter().enumerate().any(|(at, image)| image.as_ref().is_none_or(|image| older(at, image)));
        let found = if uncounted || fewer || stale { Found::Missing } else { Found::Sound };
        let seen = images.iter().flatten().map(|image| image.epoch.number).max().unwrap_or(0);
        let recorded = images.first().and_then(Option::as_ref).and_then(|first| first.stop.clone());
        // A stop that could not be recorded in the last term still stands.
        let unrecorded = before.and_then(|before| before.stop.clone()).filter(|stop| !stop.recorded);
        let counted = images.len().max(1);
        let mut shards: Vec<Shard<R>> = Vec::new();
        for image in images {
            let mut shard = Shard::absent();
            if let Some(image) = image {
                shard.adopt(image);
            }
            shards.push(shard);
        }
        if shards.is_empty() {
            shards.push(Shard::unread());
        }
        let ledger = Self {
            bounds,
            bugs,
            epoch: Epoch::default(),
            highest: before.map_or(0, |before| before.highest).max(seen),
            begun: false,
            overtaken: false,
            counted,
            wanted: counted,
            shards,
            stop: recorded.map(|reason| Stop { reason, recorded: true }).or(unrecorded),
            soundness: Soundness::Sound,
            last_id: 0,
        };
        (ledger, found)
    }

    /// Chooses the term's epoch, above all that was seen and not below `floor`, and begins to write it into every shard.
    pub fn raise(&mut self, token: u64, floor: u64) {
        self.epoch = Epoch { number: floor.max(self.highest + 1), token };
        self.highest = self.epoch.number;
        self.begun = false;
        self.overtaken = false;
        for shard in &mut self.shards {
            shard.raised = false;
        }
    }

    /// The next shard to be raised. `None`: the term has begun.
    pub fn unraised(&self) -> Option<usize> {
        self.shards.iter().take(self.counted).position(|shard| !shard.raised)
    }

    /// Of this term.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Can this term still write?
    pub fn soundness(&self) -> Soundness {
        self.soundness
    }

    /// Asks for an entry to be recorded with the shard's next write. A later one of the same key replaces it.
    pub fn open(&mut self, key: &str, text: &str, read: R) -> Result<Opened, Refusal> {
        if self.soundness != Soundness::Sound {
            return Err(Refusal::Unsound(self.soundness));
        }
        if !self.begun {
            return Err(Refusal::NotBegun);
        }
        if self.home(key).is_none()
            && let Some(at) = self.shards.iter().position(|shard| shard.foreign.contains_key(key))
        {
            return Err(Refusal::Unreadable(at));
        }
        let size = key.len() + text.len();
        if size > self.bounds.entry_bytes {
            return Err(Refusal::TooBig(size));
        }
        if let Some(at) = self.home(key)
            && self.standing(at, key, text) == Standing::Recorded
        {
            return Ok(Opened::Already);
        }
        let at = self.place(key, size).ok_or(Refusal::Full)?;
        self.last_id += 1;
        let id = self.last_id;
        if let Some(shard) = self.shards.get_mut(at) {
            shard.waiting.insert(key.to_owned(), Waiting { id, text: text.to_owned(), read });
        }
        Ok(Opened::Waits { at, id })
    }

    /// Whoever asked has gone before it was submitted.
    pub fn withdraw(&mut self, at: usize, key: &str, id: u64) {
        if let Some(shard) = self.shards.get_mut(at)
            && shard.waiting.get(key).is_some_and(|waiting| waiting.id == id)
        {
            shard.waiting.remove(key);
        }
    }

    /// How far is this text under this key?
    pub fn standing(&self, at: usize, key: &str, text: &str) -> Standing {
        let Some(shard) = self.shards.get(at) else { return Standing::Other };
        if let Some(waiting) = shard.waiting.get(key) {
            return if waiting.text == text { Standing::Waiting } else { Standing::Other };
        }
        match shard.entries.get(key).filter(|entry| entry.text == text).map(|entry| entry.state) {
            Some(State::Recorded) => Standing::Recorded,
            Some(State::InDoubt) => Standing::InDoubt,
            Some(State::Ended) | None => Standing::Other,
        }
    }

    /// The entry has ended: it goes with the next write. Was there one?
    pub fn close(&mut self, key: &str) -> bool {
        let forget = self.bugs.has_forgetting_close();
        let Some(shard) = self.home(key).and_then(|at| self.shards.get_mut(at)) else { return false };
        shard.waiting.remove(key);
        if forget {
            return shard.entries.remove(key).is_some();
        }
        shard.entries.get_mut(key).is_some_and(|entry| {
            let open = entry.state != State::Ended;
            entry.state = State::Ended;
            open
        })
    }

    /// An open entry: recorded, or perhaps so.
    pub fn get(&self, key: &str) -> Option<&R> {
        self.shards.iter().find_map(|shard| shard.entries.get(key)).filter(|e| e.is_open()).map(|e| &e.read)
    }

    /// As it is written.
    pub fn text(&self, key: &str) -> Option<&str> {
        let found = self.shards.iter().find_map(|shard| shard.entries.get(key));
        found.filter(|entry| entry.is_open()).map(|entry| entry.text.as_str())
    }

    /// Every open entry.
    pub fn open_entries(&self) -> impl Iterator<Item = (&str, &R)> {
        let entries = self.shards.iter().flat_map(|shard| &shard.entries);
        entries.filter(|(_, entry)| entry.is_open()).map(|(key, entry)| (key.as_str(), &entry.read))
    }

    /// Entries that cannot be read, with their shards.
    pub fn unreadable(&self) -> impl Iterator<Item = (usize, &str)> {
        self.shards
            .iter()
            .enumerate()
            .flat_map(|(at, shard)| shard.foreign.keys().map(move |key| (at, key.as_str())))
    }

    /// Stops deletes. Returns whether that is recorded already.
    pub fn stop(&mut self, reason: &str) -> bool {
        self.stop.get_or_insert_with(|| Stop { reason: reason.to_owned(), recorded: false }).recorded
    }

    /// The reason while deletes are stopped, recorded or not.
    pub fn stopped(&self) -> Option<&str> {
        self.stop.as_ref().map(|stop| stop.reason.as_str())
    }

    /// Shards with something to write.
    pub fn unsettled(&self) -> Vec<usize> {
        (0..self.shards.len()).filter(|at| self.is_unsettled(*at)).collect()
    }

    /// Does shard 0 tell of this shard?
    pub fn is_counted(&self, at: usize) -> bool {
        at < self.counted
    }

    /// Is there an entry of this key, readable or not?
    pub fn knows(&self, key: &str) -> bool {
        self.get(key).is_some() || self.shards.iter().any(|shard| shard.foreign.contains_key(key))
    }

    /// As given to [`load`](Self::load).
    pub fn bugs(&self) -> Bugs {
        self.bugs
    }

    /// Forces a read before the next write.
    pub fn doubt(&mut self, at: usize) {
        if let Some(shard) = self.shards.get_mut(at) {
            shard.stale = true;
        }
    }

    /// What to do for a shard. A write that is returned counts as sent.
    pub fn next(&mut self, at: usize) -> Step<R> {
        if self.soundness != Soundness::Sound {
            return Step::Unsound(self.soundness);
        }
        if self.overtaken {
            return Step::Overtaken;
        }
        // Nothing is written before the term has an epoch.
        if self.epoch == Epoch::default() {
            return Step::Done;
        }
        let unsettled = self.is_unsettled(at);
        let Some(shard) = self.shards.get(at) else { return Step::Done };
        if shard.stale {
            return Step::Read;
        }
        if shard.raised && at >= self.counted {
            self.wanted = at + 1;
            return Step::Count;
        }
        if shard.raised && !unsettled {
            return Step::Done;
        }
        self.submit(at)
    }

    fn submit(&mut self, at: usize) -> Step<R> {
        let head = at == 0;
        let (epoch, shards) = (self.epoch, self.wanted.max(self.counted));
        let stop = self.stop.as_ref().map(|stop| stop.reason.clone());
        let Some(shard) = self.shards.get_mut(at) else { return Step::Done };
        let mut write = shard.submit(self.bugs);
        write.epoch = epoch;
        write.shards = head.then_some(shards);
        write.stop = stop.filter(|_| head);
        Step::Write(Box::new(write))
    }

    /// The server has answered that a write was done, and which version it made.
    pub fn acknowledged(&mut self, at: usize, write: &Write<R>, version: Version) {
        if let Some(shard) = self.shards.get_mut(at) {
            shard.acknowledged(write, version);
            // Of an epoch that was overtaken meanwhile.
            shard.raised = write.epoch == self.epoch;
        }
        if let Some(stop) = self.stop.as_mut().filter(|stop| write.stop.as_ref() == Some(&stop.reason)) {
            stop.recorded = true;
        }
        if let Some(shards) = write.shards {
            self.counted = self.counted.max(shards);
        }
        self.begin();
    }

    /// The server has answered that it did not do a write, and not because of its version.
    pub fn refused(&mut self, at: usize, write: Write<R>) {
        if let Some(shard) = self.shards.get_mut(at) {
            shard.refused(write);
        }
    }

    /// No answer came, or none that tells. Nothing is to be done: a write counts as lost from when it is sent.
    pub fn lost(&mut self, at: usize, write: Write<R>) {
        if self.bugs.has_lost_is_refused() {
            self.refused(at, write);
        }
    }

    /// A shard was read: as it is, or that it is not there.
    pub fn absorb(&mut self, at: usize, image: Option<Image>) {
        let counted = at < self.counted;
        let Some(shard) = self.shards.get_mut(at) else { return };
        let Some(image) = image else {
            let may_make = !shard.raised && shard.may_make || !counted || self.bugs.has_remake();
            if may_make {
                shard.make_again();
            } else {
                self.soundness = Soundness::Vanished;
            }
            return;
        };
        self.highest = self.highest.max(image.epoch.number);
        let verdict = shard.verdict(&image, self.epoch, self.bugs);
        if verdict != Soundness::Sound {
            // While it is being raised, a higher epoch is only a reason to go above it.
            if self.begun || shard.raised || verdict != Soundness::Deposed {
                self.soundness = verdict;
                return;
            }
            self.overtaken = true;
        }
        if at == 0 {
            self.stop = match (&image.stop, self.stop.take()) {
                (Some(reason), _) => Some(Stop { reason: reason.clone(), recorded: true }),
                // Who takes it off has acknowledged.
                (None, Some(stop)) if stop.recorded => None,
                (None, stop) => stop,
            };
            // In a running term only our own write can have raised it.
            let count = image.shards.unwrap_or(0).min(if self.begun { self.wanted } else { SHARDS_READ });
            self.counted = self.counted.max(count);
            self.wanted = self.wanted.max(self.counted);
        }
        let ours = image.epoch == self.epoch;
        if shard.raised {
            shard.merge(image, self.bugs);
        } else {
            shard.adopt(image);
            shard.raised = ours;
        }
        while self.shards.len() < self.counted {
            self.shards.push(Shard::unread());
        }
        self.begin();
    }

    /// Is it gone? The answer to a write, where [`absorb`](Self::absorb) answers a read.
    pub fn gone(&mut self, at: usize) {
        self.absorb(at, None);
    }

    fn begin(&mut self) {
        self.begun = self.begun || !self.overtaken && self.unraised().is_none();
    }

    fn is_unsettled(&self, at: usize) -> bool {
        let head = self.stop.as_ref().is_some_and(|stop| !stop.recorded) || self.wanted > self.counted;
        self.shards.get(at).is_some_and(Shard::is_unsettled) || at == 0 && head
    }

    /// The shard that has, or will have, an entry of this key.
    fn home(&self, key: &str) -> Option<usize> {
        let has = |shard: &Shard<R>| shard.entries.contains_key(key) || shard.waiting.contains_key(key);
        self.shards.iter().position(has)
    }

    fn place(&mut self, key: &str, size: usize) -> Option<usize> {
        let fits = |shard: &Shard<R>, limit: usize| shard.bytes_without(key) + size <= limit;
        if let Some(at) = self.home(key) {
            return self.shards.get(at).filter(|shard| fits(shard, self.bounds.shard_bytes)).map(|_| at);
        }
        let limit = self.bounds.for_new();
        let active = self.shards.iter().take(self.counted);
        let roomy: Vec<usize> =
            active.enumerate().filter(|(_, shard)| fits(shard, limit)).map(|(at, _)| at).collect();
        if !roomy.is_empty() {
            return roomy.get(spread(key) % roomy.len()).copied();
        }
        if self.counted >= self.bounds.shards {
            return None;
        }
        if self.shards.len() == self.counted {
            self.shards.push(Shard::absent());
        }
        self.shards.get(self.counted).filter(|shard| fits(shard, limit)).map(|_| self.counted)
    }
}

/// FNV-1a, 32 bits. Which shard an entry is in is never derived from it again, so it may change.
fn spread(key: &str) -> usize {
    let hash =
        key.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash as usize
}

#[cfg(test)]
mod explore_tests;
#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
