//! A journal in ConfigMaps: for engines of which one leads.
//!
//! `decide::ledger` says what is written and what an answer means; this sends it. Of those who wait for a shard one
//! writes for all: the lock of a shard is a turn to write, and who gets it looks first whether others have carried its
//! entry. A caller that is dropped in the middle of its turn leaves a write in doubt, which the next turn resolves by
//! reading.

use super::entry::{self, Record};
use super::stored;
use super::{Found, Intent, Journal, Soundness};
use crate::client::describe;
use crate::decide::ledger::{
    Bounds, Bugs, Image, Ledger, Opened, Refusal, SHARDS_READ, Standing, Step, Version, Write,
};
use crate::decide::volume::Begun;
use crate::engine::clock::Clock;
use crate::names;
use futures::future::{join, join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PostParams;
use kube::{Api, Client};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tracing::{info, warn};
use volwright_provisioner::{BoxFuture, ClaimUid, Class, Epoch, Failure, Result, Until};

/// Quiet time after which what has ended is cleared, so that an idle journal is empty: what a new leader finds is then
/// work that was really under way. Each costs at most one write.
const IDLE: Duration = Duration::from_secs(5);
/// How often it is looked whether an operator has acknowledged a stop: at most this long do they wait for deletes.
const LOOK: Duration = Duration::from_secs(15);
/// A full journal empties as fast as volumes are made.
const FULL: Duration = Duration::from_secs(5);
/// Calls that one turn may need: each conflict costs two, and only hands and other candidates make conflicts.
const CALLS: usize = 16;

/// Where the journal is, and how much it may hold.
#[derive(Debug, Clone)]
pub struct ConfigMapSettings {
    /// Namespace of the ConfigMaps: the provisioner's own.
    pub namespace: String,
    /// Base of their names: shard n is `<name>-<n>`.
    pub name: String,
    /// Our provisioner name.
    pub provisioner: String,
    /// Deadline of one call.
    pub api_timeout: Duration,
    /// How much is recorded at most.
    pub bounds: Bounds,
    /// Epochs are numbered by it, so that they go on rising when etcd is restored from a backup.
    pub clock: Arc<dyn Clock>,
}

/// See the module.
pub struct ConfigMapJournal {
    api: Api<ConfigMap>,
    settings: ConfigMapSettings,
    state: Mutex<State>,
    /// One turn at a time per shard.
    turns: Vec<tokio::sync::Mutex<()>>,
    soundness: watch::Sender<Soundness>,
    /// Something was left to be written.
    stirred: Notify,
}

struct State {
    ledger: Ledger<Record>,
    /// The objects as last seen, for what others have put on them.
    bases: Vec<Option<ConfigMap>>,
    turns: Vec<Turns>,
    changed: Instant,
    /// Counts loads: what was asked for in an earlier term is not answered by a later one.
    term: u64,
}

#[derive(Debug, Clone, Default)]
struct Turns {
    ended: u64,
    /// The last one that failed: its number, and how.
    failed: Option<(u64, Class, String)>,
}

/// What came of one write.
enum Answer {
    Done(Box<ConfigMap>),
    Conflict,
    Gone,
    Refused(Failure),
    Lost(Failure),
}

impl ConfigMapJournal {
    /// Sends nothing yet.
    pub fn new(client: Client, settings: ConfigMapSettings) -> Self {
        Self::with_bugs(client, settings, Bugs::default())
    }

    /// For tests: with a mistake.
    pub fn with_bugs(client: Client, settings: ConfigMapSettings, bugs: Bugs) -> Self {
        let shards = settings.bounds.shards.max(SHARDS_READ);
        let (ledger, _) = Ledger::load(settings.bounds, bugs, Vec::new(), None);
        let state = State {
            ledger,
            bases: vec![None; shards],
            turns: vec![Turns::default(); shards],
            changed: Instant::now(),
            term: 0,
        };
        Self {
            api: Api::namespaced(client, &settings.namespace),
            settings,
            state: Mutex::new(state),
            turns: std::iter::repeat_with(tokio::sync::Mutex::default).take(shards).collect(),
            soundness: watch::Sender::new(Soundness::Sound),
            stirred: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the ledger, and tells if the term is over by that.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, soundness) = {
            let mut state = self.lock();
            let result = change(&mut state);
            (result, state.ledger.soundness())
        };
        let news = self.soundness.send_if_modified(|known| std::mem::replace(known, soundness) != soundness);
        if news && soundness != Soundness::Sound {
            warn!(?soundness, name = self.settings.name, "The journal cannot be used any more in this term.");
        }
        result
    }

    /// The seconds of the wall clock: what a leader can have numbered before a restore is below that.
    fn floor(&self) -> u64 {
        u64::try_from(self.settings.clock.wall().as_second()).unwrap_or(0)
    }

    fn shard_name(&self, at: usize) -> String {
        names::journal_shard(&self.settings.name, at)
    }

    async fn turn(&self, at: usize) -> Result<tokio::sync::MutexGuard<'_, ()>> {
        match self.turns.get(at) {
            Some(turn) => Ok(turn.lock().await),
            None => Err(Failure::unavailable("the journal has no such shard")),
        }
    }

    async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<Result<T, kube::Error>> {
        tokio::time::timeout(self.settings.api_timeout, call).await.map_err(|_| {
            Failure::unavailable(format!(
                "the API server did not answer within {:?} (journal)",
                self.settings.api_timeout
            ))
        })
    }

    async fn read(&self, at: usize) -> Result<Option<ConfigMap>> {
        match self.within(self.api.get_opt(&self.shard_name(at))).await? {
            Ok(found) => Ok(found),
            Err(error) => Err(Failure::unavailable(describe(&error, "get", "configmaps")).caused_by(error)),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a compare-and-swap of the whole shard is what the journal rests on"
    )]
    async fn write(&self, at: usize, write: &Write<Record>) -> Answer {
        let name = self.shard_name(at);
        let object = {
            let state = self.lock();
            let base = state.bases.get(at).and_then(Option::as_ref);
            stored::object(base, &name, &self.settings.provisioner, write)
        };
        let parameters = PostParams::default();
        let (verb, answer) = if write.version.is_some() {
            ("update", self.within(self.api.replace(&name, &parameters, &object)).await)
        } else {
            ("create", self.within(self.api.create(&parameters, &object)).await)
        };
        let error = match answer {
            Ok(Ok(object)) => return Answer::Done(Box::new(object)),
            Ok(Err(error)) => error,
            Err(failure) => return Answer::Lost(failure),
        };
        let failure = Failure::unavailable(describe(&error, verb, "configmaps"));
        let code = if let kube::Error::Api(status) = &error { Some(status.code) } else { None };
        match code {
            Some(409) => Answer::Conflict,
            Some(404) if write.version.is_some() => Answer::Gone,
            Some(408) => Answer::Lost(failure.caused_by(error)),
            Some(400..=499) => Answer::Refused(failure.caused_by(error)),
            _ => Answer::Lost(failure.caused_by(error)),
        }
    }

    fn absorb(&self, at: usize, found: Option<ConfigMap>) {
        let image = found.as_ref().map(stored::image);
        self.change(|state| {
            if let Some(base) = state.bases.get_mut(at) {
                *base = found.map(bare);
            }
            state.ledger.absorb(at, image);
        });
    }

    /// One turn: writes what waits, until that is acknowledged. Only for who holds the turn of this shard.
    async fn settle(&self, at: usize) -> Result<()> {
        for _ in 0..CALLS {
            let step = self.change(|state| state.ledger.next(at));
            let write = match step {
                Step::Done => return Ok(()),
                Step::Unsound(soundness) => return Err(over(soundness)),
                Step::Read => {
                    let found = self.read(at).await?;
                    self.absorb(at, found);
                    continue;
                }
                Step::Count => {
                    let _turn = self.turn(0).await?;
                    let result = Box::pin(self.settle(0)).await;
                    self.end_turn(0, &result);
                    result?;
                    continue;
                }
                Step::Overtaken => {
                    self.change(|state| state.ledger.raise(fastrand::u64(..), self.floor()));
                    continue;
                }
                Step::Write(write) => write,
            };
            match self.write(at, &write).await {
                Answer::Done(object) => {
                    let counted = self.change(|state| {
                        state.changed = Instant::now();
                        let version: Version = stored::version(&object);
                        if let Some(base) = state.bases.get_mut(at) {
                            *base = Some(bare(*object));
                        }
                        state.ledger.acknowledged(at, &write, version);
                        state.ledger.is_counted(at)
                    });
                    if counted {
                        return Ok(());
                    }
                }
                Answer::Conflict => {}
                Answer::Gone => self.change(|state| state.ledger.gone(at)),
                Answer::Refused(failure) => {
                    self.change(|state| state.ledger.refused(at, *write));
                    return Err(failure);
                }
                Answer::Lost(failure) => {
                    self.change(|state| {
                        state.changed = Instant::now();
                        state.ledger.lost(at, *write);
                    });
                    self.stirred.notify_one();
                    return Err(failure);
                }
            }
        }
        Err(Failure::unavailable("the journal is changed by others all the time; trying again"))
    }

    fn end_turn(&self, at: usize, result: &Result<()>) {
        let mut state = self.lock();
        let Some(turns) = state.turns.get_mut(at) else { return };
        turns.ended += 1;
        if let Err(failure) = result {
            turns.failed = Some((turns.ended, failure.class(), failure.message().to_owned()));
        }
    }

    async fn settle_in_turn(&self, at: usize) -> Result<()> {
        let _turn = self.turn(at).await?;
        let result = self.settle(at).await;
        self.end_turn(at, &result);
        result
    }

    /// Reads a shard, whether or not there is anything to write.
    async fn look(&self, at: usize) -> Result<()> {
        let _turn = self.turn(at).await?;
        self.change(|state| state.ledger.doubt(at));
        let found = self.read(at).await?;
        self.absorb(at, found);
        Ok(())
    }

    /// Records an entry: on success it is acknowledged.
    async fn record(&self, key: String, text: String, record: Record) -> Result<()> {
        let mut opened = self.change(|state| state.ledger.open(&key, &text, record.clone()));
        if let Err(Refusal::Unreadable(at)) = opened {
            // Perhaps an operator has mended it.
            self.look(at).await?;
            opened = self.change(|state| state.ledger.open(&key, &text, record));
        }
        let (at, id) = match opened {
            Ok(Opened::Already) => return Ok(()),
            Ok(Opened::Waits { at, id }) => (at, id),
            Err(refusal) => return Err(self.refused(&key, refusal)),
        };
        let _waits = Waits { journal: self, at, key: &key, id };
        let (before, term) = {
            let state = self.lock();
            (state.turns.get(at).map_or(0, |turns| turns.ended), state.term)
        };
        let _turn = self.turn(at).await?;
        if self.lock().term != term {
            return Err(over(Soundness::Sound));
        }
        let standing = self.lock().ledger.standing(at, &key, &text);
        match standing {
            Standing::Recorded => return Ok(()),
            Standing::Waiting => {}
            // Submitted by an earlier turn: its failure is ours. One that was dropped has left none.
            Standing::InDoubt | Standing::Other => {
                let failed = self.lock().turns.get(at).and_then(|turns| turns.failed.clone());
                if let Some((_, class, message)) = failed.filter(|(turn, ..)| *turn > before) {
                    return Err(Failure::new(class, message));
                }
            }
        }
        let result = self.settle(at).await;
        self.end_turn(at, &result);
        result?;
        // Another caller may have replaced or ended it; then nobody can say.
        let standing = self.lock().ledger.standing(at, &key, &text);
        if standing == Standing::Recorded {
            return Ok(());
        }
        Err(Failure::unavailable("the journal has not acknowledged this entry"))
    }

    fn refused(&self, key: &str, refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Full => Failure::blocked(
                Until::After(FULL),
                "the journal is full: too many operations are under way; this one begins when some of them have ended",
            ),
            Refusal::TooBig(bytes) => Failure::invalid(format!(
                "what must be recorded of it has {bytes} bytes, and at most {} fit into the journal: remove labels \
                 and annotations from the claim, or parameters from its class",
                self.settings.bounds.entry_bytes
            )),
            Refusal::Unreadable(at) => Failure::blocked(
                Until::OperatorActs,
                format!(
                    "the journal has an entry for it that this release cannot read: upgrade, or look at the key {key} \
                     of ConfigMap {}/{} and remove it if nothing was made",
                    self.settings.namespace,
                    self.shard_name(at)
                ),
            ),
            Refusal::NotBegun => Failure::unavailable("the journal's term has not begun"),
            Refusal::Unsound(soundness) => over(soundness),
        }
    }

    fn end(&self, key: &str) {
        let ended = self.change(|state| {
            state.changed = Instant::now();
            state.ledger.close(key)
        });
        if ended {
            self.stirred.notify_one();
        }
    }

    async fn load_all(&self) -> Result<Found> {
        // Nobody of an earlier term writes meanwhile. Shard 0 last: who has another's turn may wait for it.
        let mut held = Vec::new();
        for turn in self.turns.iter().rev() {
            held.push(turn.lock().await);
        }
        let first = self.read(0).await?;
        let told = first.as_ref().and_then(|first| stored::image(first).shards);
        let count = told.map_or(self.settings.bounds.shards, |told| told.clamp(1, SHARDS_READ));
        let rest = join_all((1..count).map(|at| self.read(at))).await;
        let mut found = vec![first];
        for object in rest {
            found.push(object?);
        }
        // Where nothing tells how many there are, all that are there count.
        let last = found.iter().rposition(Option::is_some).unwrap_or(0);
        if told.is_none() {
            found.truncate(last + 1);
        }
        let images: Vec<Option<Image>> =
            found.iter().map(|object| object.as_ref().map(stored::image)).collect();
        let verdict = self.change(|state| {
            for (at, base) in state.bases.iter_mut().enumerate() {
                *base = found.get_mut(at).and_then(Option::take).map(bare);
            }
            let bugs = state.ledger.bugs();
            let (ledger, verdict) = Ledger::load(self.settings.bounds, bugs, images, Some(&state.ledger));
            state.ledger = ledger;
            state.term += 1;
            verdict
        });
        self.warn_of_unreadable();
        Ok(verdict)
    }

    fn warn_of_unreadable(&self) {
        let state = self.lock();
        for (at, key) in state.ledger.unreadable() {
            let (namespace, name) = (&self.settings.namespace, self.shard_name(at));
            warn!(
                namespace,
                name, key, "The journal has an entry that this release cannot read; it is kept as it is."
            );
        }
    }

    async fn raise_all(&self, recovered: Vec<Intent>, above: u64) -> Result<()> {
        let floor = self.floor().max(above.saturating_add(1));
        self.change(|state| state.ledger.raise(fastrand::u64(..), floor));
        // Each overtaking starts anew: two candidates that both believe to lead give up at some point.
        for _ in 0..SHARDS_READ * 4 {
            let Some(at) = self.unraised() else { break };
            self.settle_in_turn(at).await?;
        }
        if self.unraised().is_some() {
            return Err(Failure::unavailable("others raise the journal's epoch all the time; trying again"));
        }
        let epoch = self.epoch();
        info!(name = self.settings.name, number = epoch.number, "The journal's epoch was raised.");
        let mut writes = Vec::new();
        for intent in recovered {
            let (key, text) = entry::encode_intent(&intent)?;
            // What the journal itself says of a claim is more than what was found on the storage.
            if self.lock().ledger.knows(&key) {
                continue;
            }
            writes.push(self.record(key, text, Record::Intent(Arc::new(intent))));
        }
        join_all(writes).await.into_iter().collect()
    }

    fn unraised(&self) -> Option<usize> {
        self.lock().ledger.unraised()
    }

    /// Writes what was left, once it has been quiet.
    async fn clear(&self) {
        loop {
            self.stirred.notified().await;
            loop {
                let quiet = self.lock().changed + IDLE;
                if Instant::now() >= quiet {
                    break;
                }
                tokio::time::sleep_until(quiet).await;
            }
            let left = self.lock().ledger.unsettled();
            for at in left {
                // Whoever has something to write meets the same failure, and reports it.
                if self.settle_in_turn(at).await.is_err() && *self.soundness.borrow() == Soundness::Sound {
                    self.lock().changed = Instant::now();
                    self.stirred.notify_one();
                }
            }
        }
    }

    /// Looks whether an operator has acknowledged.
    async fn watch_stop(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            let sound = *self.soundness.borrow() == Soundness::Sound;
            if !sound || self.deletes_stopped().is_none() {
                continue;
            }
            // The next look is soon enough.
            if self.look(0).await.is_ok() {
                match self.deletes_stopped() {
                    None => info!(name = self.settings.name, "An operator has acknowledged: deletes go on."),
                    Some(_) => self.stirred.notify_one(),
                }
            }
        }
    }
}

/// Takes back an entry whose caller is dropped before it was submitted.
struct Waits<'a> {
    journal: &'a ConfigMapJournal,
    at: usize,
    key: &'a str,
    id: u64,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.journal.lock().ledger.withdraw(self.at, self.key, self.id);
    }
}

/// Without the entries: the ledger has them.
fn bare(mut object: ConfigMap) -> ConfigMap {
    object.data = None;
    object
}

fn over(soundness: Soundness) -> Failure {
    Failure::unavailable(match soundness {
        Soundness::Sound => "the journal is being read again",
        Soundness::Deposed => "no longer the leader",
        Soundness::Vanished => "the journal was deleted; a new term compares it with the storage first",
        Soundness::RolledBack => "the journal is older than what was written: etcd was restored",
    })
}

impl Journal for ConfigMapJournal {
    fn load(&self) -> BoxFuture<'_, Result<Found>> {
        Box::pin(self.load_all())
    }

    fn raise(&self, recovered: Vec<Intent>, above: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.raise_all(recovered, above))
    }

    fn epoch(&self) -> Epoch {
        self.lock().ledger.epoch()
    }

    fn soundness(&self) -> watch::Receiver<Soundness> {
        self.soundness.subscribe()
    }

    fn tend(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // What an earlier term has left.
            self.stirred.notify_one();
            join(self.clear(), self.watch_stop()).await;
        })
    }

    fn open(&self, mut intent: Intent) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            if intent.epoch == Epoch::default() {
                intent.epoch = self.epoch();
            }
            let (key, text) = entry::encode_intent(&intent)?;
            self.record(key, text, Record::Intent(Arc::new(intent))).await
        })
    }

    fn close<'a>(&'a self, claim: &'a ClaimUid) -> BoxFuture<'a, Result<()>> {
        self.end(&entry::claim_key(claim));
        Box::pin(std::future::ready(Ok(())))
    }

    fn intent(&self, claim: &ClaimUid) -> Option<Arc<Intent>> {
        match self.lock().ledger.get(&entry::claim_key(claim)) {
            Some(Record::Intent(intent)) => Some(Arc::clone(intent)),
            _ => None,
        }
    }

    fn claims(&self) -> Vec<ClaimUid> {
        let state = self.lock();
        let open = state.ledger.open_entries();
        open.filter_map(|(_, record)| match record {
            Record::Intent(intent) => Some(intent.request.claim.uid.clone()),
            Record::Delete { .. } => None,
        })
        .collect()
    }

    fn begin_delete<'a>(&'a self, pv: &'a str, begun: Begun) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let first = self.begun(pv).filter(|first| first.uid == begun.uid).unwrap_or(begun);
            let (key, text) = entry::encode_delete(pv, &first)?;
            self.record(key, text, Record::Delete { pv: pv.to_owned(), begun: Arc::new(first) }).await
        })
    }

    fn begun(&self, pv: &str) -> Option<Begun> {
        match self.lock().ledger.get(&entry::delete_key(pv)) {
            Some(Record::Delete { begun, .. }) => Some(Begun::clone(begun)),
            _ => None,
        }
    }

    fn end_delete<'a>(&'a self, pv: &'a str) -> BoxFuture<'a, Result<()>> {
        self.end(&entry::delete_key(pv));
        Box::pin(std::future::ready(Ok(())))
    }

    fn deletes(&self) -> Vec<String> {
        let state = self.lock();
        let open = state.ledger.open_entries();
        open.filter_map(|(_, record)| match record {
            Record::Delete { pv, .. } => Some(pv.clone()),
            Record::Intent(_) => None,
        })
        .collect()
    }

    fn stop_deletes<'a>(&'a self, reason: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.change(|state| state.ledger.stop(reason)) {
                return Ok(());
            }
            if self.unraised().is_some() {
                return Err(self.refused("", Refusal::NotBegun));
            }
            self.settle_in_turn(0).await
        })
    }

    fn deletes_stopped(&self) -> Option<String> {
        self.lock().ledger.stopped().map(str::to_owned)
    }
}

#[cfg(test)]
#[path = "config_map_tests.rs"]
mod tests;
