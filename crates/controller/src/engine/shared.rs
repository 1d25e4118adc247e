//! What all tasks of the engine share, and what a change that a watch shows means for the queues.

use crate::backend::{Backend, Envelope};
use crate::decide::claim::{asks_no_agent, concerns_us};
use crate::decide::{Identity, ReclaimPolicy, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch as channel;
use tokio::time::Instant;
use volwright_provisioner::{ClaimUid, Class, Epoch, Failure, Key, Mark, MarkState, PvName, Result, Until};

use super::api::ApiServer;
use super::clock::Clock;
use super::events::Events;
use super::health::Health;
use super::history::History;
use super::lease::Leadership;
use super::locks::KeyLocks;
use super::memory::Memory;
use super::metrics::Metrics;
use super::orphans::Orphans;
use super::queue::Queue;
use super::world::{CachedVolume, World};
use super::{Intent, Journal, Settings};

/// What all tasks of the engine share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) identity: Identity,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) api: ApiServer,
    pub(super) journal: Arc<dyn Journal>,
    pub(super) leadership: Leadership,
    pub(super) history: Arc<History>,
    pub(super) term: Term,
    pub(super) events: Events,
    pub(super) metrics: Arc<Metrics>,
    pub(super) health: Arc<Health>,
    pub(super) world: World,
    pub(super) claims: Queue<ClaimUid>,
    pub(super) volumes: Queue<String>,
    pub(super) locks: Arc<KeyLocks>,
    pub(super) synced: channel::Sender<BTreeSet<&'static str>>,
    pub(super) memory: Mutex<Memory>,
    pub(super) orphans: Orphans,
    pub(super) clock: Arc<dyn Clock>,
    /// Something went into the trash or came out of it.
    pub(super) trash_changed: AtomicBool,
}

/// The time that one leadership of this process begins with.
pub(super) struct Term {
    /// From when on nothing can happen any more that an earlier leader began: it knows that it is deposed, and its last
    /// call has ended.
    settled: Instant,
}

impl Term {
    pub(super) fn beginning(now: Instant, settings: &Settings) -> Self {
        Self { settled: now + settings.grace() }
    }
}

/// How a run on one object ended.
pub(super) enum Flow {
    /// Nothing more to do; its failures are forgotten.
    Settled,
    /// Nothing to do now; a change will wake us.
    Parked,
    /// Again after this long.
    After(Duration),
    /// Failed; the class decides.
    Failed(Failure),
}

impl Flow {
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Settled | Self::Parked)
    }
}

impl Shared {
    pub(super) fn provisioner(&self) -> &str {
        self.settings.names.first().map_or("", String::as_str)
    }

    pub(super) fn mark(&self, owner: ClaimUid, pv_name: PvName, state: MarkState) -> Mark {
        Mark {
            installation: self.settings.installation.clone(),
            owner,
            pv_name,
            epoch: if self.identity.rules.holds(Rule::EpochInMark) {
                self.journal.epoch()
            } else {
                Epoch::default()
            },
            state,
        }
    }

    /// A claim was added, changed in what is read, or has gone.
    pub(super) fn claim_changed(&self, uid: &ClaimUid) {
        let cached = self.world.claim(uid);
        let concerned = cached.as_ref().is_some_and(|c| {
            concerns_us(&self.identity, &c.glance) || asks_no_agent(&self.identity, &c.glance)
        });
        if cached.is_none() {
            self.forget_claim(uid);
        }
        if concerned || self.journal.intent(uid).is_some() {
            self.claims.add(uid.clone());
        }
        let growing = cached.as_ref().and_then(|cached| cached.growing());
        if let Some(name) = growing.filter(|name| self.world.volume(name).is_some_and(|pv| pv.ours.is_some()))
        {
            self.volumes.add(name.to_owned());
        }
    }

    /// An agent's watch has shown that a claim changed, and not in what: if it has a PV of ours, the claim is read.
    pub(super) fn claim_may_grow(&self, uid: &ClaimUid) {
        if let Some(name) = self.world.volume_of(uid) {
            self.volumes.add(name);
        }
    }

    /// A PV was added, changed in what is read, or has gone.
    pub(super) fn volume_changed(&self, name: &str) {
        let cached = self.world.volume(name);
        if cached.as_ref().is_none_or(|volume| volume.ours.is_some()) {
            self.volumes.add(name.to_owned());
        }
        if cached.is_some() {
            self.spoken_for(name);
        } else {
            self.memory().looked.remove(name);
        }
        // A claim may wait for the PV of its name to go.
        if let Some(uid) = name.strip_prefix("pvc-").map(ClaimUid::new) {
            self.publication_seen(&uid);
            if cached.is_none() {
                self.claim_changed_if_known(&uid);
            }
        }
    }

    /// A PV has left the watch. If somebody deleted one that keeps its data, that is recorded with the data.
    pub(super) fn volume_left(&self, name: &str, left: &CachedVolume) {
        if let Some(ours) = &left.ours {
            self.room_came_free(&ours.view.class);
        }
        let let_go = self.memory().let_go.remove(&left.uid);
        let deletes = left.ours.as_ref().is_some_and(|ours| ours.view.policy == ReclaimPolicy::Delete);
        // It was deleted with its data, and nobody can have waited for that. (Looking costs a walk over all PVs.)
        if deletes && !let_go {
            return;
        }
        self.wake_aliases(name, &left.keys);
        if let Some(ours) = left.ours.as_ref().filter(|ours| !let_go && ours.handle.is_some()) {
            self.memory().parted.insert(name.to_owned(), ours.clone());
        }
    }

    /// A delete may wait for this PV of the same data to go.
    pub(super) fn wake_aliases(&self, name: &str, keys: &[Key]) {
        for alias in self.world.aliases(name, keys) {
            self.volumes.add(alias);
        }
    }

    pub(super) fn claim_changed_if_known(&self, uid: &ClaimUid) {
        if self.world.claim(uid).is_some() {
            self.claim_changed(uid);
        }
    }

    /// A class came or was made anew: its claims may wait for it.
    pub(super) fn class_changed(&self, name: &str) {
        self.show_budget(name);
        for uid in self.world.waiting_claims_of(&self.identity, name) {
            self.claims.add(uid);
        }
        for volume in self.world.growing_of(name) {
            self.volumes.add(volume);
        }
    }

    /// How much is remembered, by table.
    pub(super) fn tables(&self) -> BTreeMap<&'static str, usize> {
        let mut tables = self.world.tables();
        tables.extend(self.memory().tables());
        tables.insert("claims queue", self.claims.len());
        tables.insert("volumes queue", self.volumes.len());
        tables.insert("intents", self.journal.claims().len());
        tables.insert("deletes", self.journal.deletes().len());
        tables.insert("history", self.history.len());
        tables.insert("orphans", self.orphans.list().len());
        tables
    }

    fn may_act(&self) -> bool {
        self.leadership.may_act() || !self.identity.rules.holds(Rule::LeaderActs)
    }

    /// How long until nothing of an intent can happen any more behind our back: a call of an earlier leader, or one of
    /// ours that was given up.
    pub(super) fn unsettled(&self, intent: &Intent) -> Duration {
        let now = Instant::now();
        let is_earlier = intent.epoch != self.journal.epoch() && self.identity.rules.holds(Rule::Grace);
        let earlier = is_earlier.then_some(self.term.settled);
        let doubt = self.doubt(&intent.request.claim.uid);
        let from = earlier.max(doubt).unwrap_or(now);
        from.saturating_duration_since(now)
    }

    /// How long a call of this process that was given up may still do something to the volume of this claim.
    pub(super) fn in_doubt(&self, owner: &ClaimUid) -> Duration {
        self.doubt(owner).map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Writes a mark. One that comes late would undo what was marked after it.
    pub(super) async fn write_mark(&self, handle: &Envelope, mark: &Mark) -> Result<()> {
        self.backend_write("set_mark", &mark.owner, self.backend.set_mark(handle, mark)).await
    }

    /// As [`backend_call`](Self::backend_call), for one that must not come after the next step on the owner's volume: where its
    /// answer is lost, it may still take effect, and the volume is in doubt for as long.
    pub(super) async fn backend_write<T>(
        &self,
        op: &'static str,
        owner: &ClaimUid,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let done = self.backend_call(op, call).await;
        let is_lost = done.as_ref().is_err_and(|failure| failure.class() == Class::Unknown);
        if is_lost && self.identity.rules.holds(Rule::Doubt) {
            self.set_doubt(owner);
        }
        done
    }

    /// One call of the backend: deadline and metrics. What was dropped at its deadline may have happened. None is begun
    /// once this process may not act any more.
    pub(super) async fn backend_call<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        if !self.may_act() {
            return Err(deposed());
        }
        let started = Instant::now();
        let result = match tokio::time::timeout(self.settings.backend_timeout, call).await {
            Ok(result) => result,
            Err(_) => Err(Failure::unknown(format!(
                "the storage system did not answer within {:?} ({op}); it is asked again",
                self.settings.backend_timeout
            ))),
        };
        let outcome = match &result {
            Ok(_) => "done",
            Err(failure) => match failure.class() {
                Class::Invalid => "invalid",
                Class::Exhausted => "exhausted",
                Class::Unavailable => "unavailable",
                Class::Unknown => "unknown",
                Class::Blocked(_) => "blocked",
                Class::NotOurs => "not_ours",
            },
        };
        self.metrics.backend_call(op, outcome, started.elapsed());
        result
    }
}

/// Nothing is begun any more by a process that may not be the leader. Quiet: the next leader carries on.
pub(super) fn deposed() -> Failure {
    Failure::blocked(Until::After(Duration::from_secs(1)), "this process is no longer the leader")
}
