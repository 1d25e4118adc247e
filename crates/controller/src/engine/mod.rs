//! The imperative shell: watches feed the `World`, `decide` says what to do, workers do it.
//!
//! Invariant: only this module writes to the API server; a backend describes a volume and creates no PV.
//! Invariant: on one claim or PV at most one task works at a time, and on overlapping data too (`locks`).

mod api; // calls to the API server: deadline, count, class
mod claim; // a claim's way
pub mod context; // what backends may ask for
pub mod events; // events, best effort
mod happening; // whom events are about
pub mod health; // alive, ready
pub mod http; // /healthz /readyz /metrics
mod journal; // what is about to be done
mod locks; // one operation on overlapping data
pub mod metrics; // numbers
mod pv; // the PV object
mod queue; // keyed work queue
mod settings; // how it is set up
mod volume; // a PV's way
mod watch; // from watch events to the world
mod world; // what the watches told

pub use self::journal::{Intent, Journal, MemoryJournal};
pub use self::settings::Settings;

use crate::backend::Backend;
use crate::client::{Clients, chain};
use crate::decide::claim::{asks_no_agent, concerns_us};
use crate::decide::retry::{Next, next};
use crate::decide::{ClaimView, Identity, ReclaimPolicy, Rules};
use futures::FutureExt;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tracing::{error, info, warn};
use volwright_provisioner::{
    ClaimUid, Class, Epoch, Failure, Key, Mark, MarkState, NodeInfo, PvName, Result, Until,
};

use self::api::ApiServer;
use self::events::{Events, Happening};
use self::happening::{ABOUT_CLAIM, ABOUT_VOLUME, Subject};
use self::health::{Health, WATCHES};
use self::locks::KeyLocks;
use self::metrics::Metrics;
use self::queue::Queue;
use self::world::World;

/// An agent's own node is read again after this long: labels change seldom, and a node made anew under the same name
/// restarts its agent.
const NODE_AGE: Duration = Duration::from_secs(60);

/// Why the engine ended other than by being told to.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Calls were still running when the drain's time was up. What they do is recorded, and the next process goes on.
    #[error(
        "{0} operations were still running when the drain's time was up; the next process carries on with them"
    )]
    DrainTimedOut(usize),
}

/// The engine of one provisioner.
pub struct Engine {
    shared: Arc<Shared>,
    clients: Clients,
}

/// What all tasks of the engine share.
struct Shared {
    settings: Settings,
    identity: Identity,
    backend: Arc<dyn Backend>,
    api: ApiServer,
    journal: Arc<dyn Journal>,
    events: Events,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    world: World,
    claims: Queue<ClaimUid>,
    volumes: Queue<String>,
    locks: Arc<KeyLocks>,
    synced: channel::Sender<BTreeSet<&'static str>>,
    memory: Mutex<Memory>,
}

/// What is remembered between two runs on one object; bounded by the objects that exist.
#[derive(Default)]
struct Memory {
    attempts: HashMap<ClaimUid, u32>,
    announced: BTreeSet<ClaimUid>,
    /// Claims whose PV we made and the watch has not shown yet.
    published: BTreeSet<ClaimUid>,
    /// Claim -> the node whose choice is to be taken back, and when.
    reschedules: HashMap<ClaimUid, (String, Instant)>,
    orphans: BTreeMap<String, String>,
    /// PVs (by uid) that we let go without their data, told of, and that the watch still shows.
    let_go: BTreeSet<String>,
    /// PVs with a policy that keeps the data, gone by another's hand: their data is to be marked.
    parted: HashMap<String, world::OurVolume>,
    node: Option<(NodeInfo, Instant)>,
}

/// How a run on one object ended.
enum Flow {
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
    fn is_final(&self) -> bool {
        matches!(self, Self::Settled | Self::Parked)
    }
}

impl Engine {
    /// Puts the parts together; nothing runs yet.
    pub fn new(
        settings: Settings,
        backend: Arc<dyn Backend>,
        clients: Clients,
        journal: Arc<dyn Journal>,
        events: Events,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self::with_rules(settings, backend, clients, journal, events, metrics, health, Rules::default())
    }

    /// As [`new`](Self::new), for tests that switch a safety rule off to show what it is good for.
    #[expect(clippy::too_many_arguments, reason = "the parts of an engine, named once")]
    pub fn with_rules(
        settings: Settings,
        backend: Arc<dyn Backend>,
        clients: Clients,
        journal: Arc<dyn Journal>,
        events: Events,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
        rules: Rules,
    ) -> Self {
        let identity =
            Identity { names: settings.names.clone(), node: settings.node().map(str::to_owned), rules };
        let shared = Shared {
            api: ApiServer::new(clients.requests.clone(), settings.api_timeout, Arc::clone(&metrics)),
            claims: Queue::new("claims", Arc::clone(&metrics)),
            volumes: Queue::new("volumes", Arc::clone(&metrics)),
            synced: channel::Sender::new(BTreeSet::new()),
            world: World::default(),
            locks: Arc::default(),
            memory: Mutex::default(),
            settings,
            identity,
            backend,
            journal,
            events,
            metrics,
            health,
        };
        Self { shared: Arc::new(shared), clients }
    }

    /// Runs until `stop` turns true, then lets running calls end for at most the drain's time.
    pub async fn run(self, stop: channel::Receiver<bool>) -> Result<(), EngineError> {
        let Self { shared, clients } = self;
        let mut watching = JoinSet::new();
        watching.spawn(watch::run(Arc::clone(&shared), clients.watches, stop.clone()));
        watching.spawn(beat(Arc::clone(&shared)));
        let mut workers = JoinSet::new();
        let mut stopped = stop.clone();
        let mut synced = shared.synced.subscribe();
        // Deciding with half a picture would make a volume for a claim whose PV is not listed yet.
        tokio::select! {
            _ = synced.wait_for(|seen| WATCHES.iter().all(|watch| seen.contains(watch))) => {
                info!("Watches are complete, work begins.");
                for _ in 0..shared.settings.workers {
                    workers.spawn(claim_worker(Arc::clone(&shared)));
                    workers.spawn(volume_worker(Arc::clone(&shared)));
                }
                watching.spawn(resync(Arc::clone(&shared)));
            }
            _ = stopped.wait_for(|stop| *stop) => {}
        }
        // An error means that whoever could tell us to stop is gone, which is the same.
        stopped.wait_for(|stop| *stop).await.ok();
        shared.health.set_draining();
        shared.claims.close();
        shared.volumes.close();
        let running = shared.claims.running() + shared.volumes.running();
        info!(running, "Stopping: nothing new is begun, what runs may end.");
        let drained = tokio::time::timeout(shared.settings.drain, async {
            while workers.join_next().await.is_some() {}
        });
        let result = match drained.await {
            Ok(()) => Ok(()),
            Err(_) => Err(EngineError::DrainTimedOut(shared.claims.running() + shared.volumes.running())),
        };
        watching.shutdown().await;
        result
    }
}

/// Shows the liveness probe that tasks of this process still run.
async fn beat(shared: Arc<Shared>) {
    loop {
        shared.health.beat();
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

/// Looks at everything again now and then, in case a change was missed.
async fn resync(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(jittered(shared.settings.resync)).await;
        for uid in shared.world.waiting_claims(&shared.identity) {
            shared.claims.add_after(uid, spread());
        }
        for name in shared.world.our_volume_names() {
            shared.volumes.add_after(name, spread());
        }
    }
}

/// Spreads a resync over a minute, so that it is no burst.
fn spread() -> Duration {
    Duration::from_millis(fastrand::u64(0..60_000))
}

/// Up to a fifth more: many that failed together do not come back together.
fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(1.0 + fastrand::f64() * 0.2)
}

async fn claim_worker(shared: Arc<Shared>) {
    while let Some(uid) = shared.claims.take().await {
        let flow = guarded(Box::pin(claim::run(&shared, &uid))).await;
        shared.finish_claim(&uid, flow);
        shared.claims.done(&uid);
    }
}

async fn volume_worker(shared: Arc<Shared>) {
    while let Some(name) = shared.volumes.take().await {
        let flow = guarded(Box::pin(volume::run(&shared, &name))).await;
        shared.finish_volume(&name, flow);
        shared.volumes.done(&name);
    }
}

/// A panic ends one run, not the process: it is a bug, but other claims are none of its business.
async fn guarded(run: impl Future<Output = Flow>) -> Flow {
    AssertUnwindSafe(run)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| Flow::Failed(Failure::unknown("an internal error; the log has more")))
}

impl Shared {
    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn provisioner(&self) -> &str {
        self.settings.names.first().map_or("", String::as_str)
    }

    fn mark(&self, owner: ClaimUid, pv_name: PvName, state: MarkState) -> Mark {
        Mark {
            installation: self.settings.installation.clone(),
            owner,
            pv_name,
            epoch: Epoch::default(),
            state,
        }
    }

    /// A claim was added, changed in what is read, or has gone.
    fn claim_changed(&self, uid: &ClaimUid) {
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
    }

    /// A PV was added, changed in what is read, or has gone.
    fn volume_changed(&self, name: &str) {
        let cached = self.world.volume(name);
        if cached.as_ref().is_none_or(|volume| volume.ours.is_some()) {
            self.volumes.add(name.to_owned());
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
    fn volume_left(&self, name: &str, left: &world::CachedVolume) {
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
    fn wake_aliases(&self, name: &str, keys: &[Key]) {
        for alias in self.world.aliases(name, keys) {
            self.volumes.add(alias);
        }
    }

    fn claim_changed_if_known(&self, uid: &ClaimUid) {
        if self.world.claim(uid).is_some() {
            self.claim_changed(uid);
        }
    }

    /// A class came or was made anew: its claims may wait for it.
    fn class_changed(&self, name: &str) {
        for uid in self.world.waiting_claims_of(&self.identity, name) {
            self.claims.add(uid);
        }
    }

    fn finish_claim(&self, uid: &ClaimUid, flow: Flow) {
        match flow {
            Flow::Settled => self.claims.forget(uid),
            // What was remembered of it while it was still being undone.
            Flow::Parked if self.world.claim(uid).is_none() => self.forget_claim(uid),
            Flow::Parked => {}
            Flow::After(delay) => self.claims.add_after(uid.clone(), delay),
            Flow::Failed(failure) => {
                let cached = self.world.claim(uid);
                let subject = cached
                    .as_ref()
                    .map(|c| Subject::of_claim(&c.glance.namespace, &c.glance.name, uid.as_str()));
                let class = cached.as_ref().and_then(|c| c.full.as_ref()?.class.clone()).unwrap_or_default();
                let delay =
                    self.report(uid.as_str(), subject, &class, &failure, self.claims.failed(uid), true);
                self.claims.add_after(uid.clone(), jittered(delay));
            }
        }
    }

    fn finish_volume(&self, name: &str, flow: Flow) {
        match flow {
            Flow::Settled => self.volumes.forget(&name.to_owned()),
            Flow::Parked => {}
            Flow::After(delay) => self.volumes.add_after(name.to_owned(), delay),
            Flow::Failed(failure) => {
                let cached = self.world.volume(name);
                let view = cached.as_ref().and_then(|volume| volume.ours.as_ref()).map(|ours| &ours.view);
                let class = view.map(|view| view.class.clone()).unwrap_or_default();
                let failures = self.volumes.failed(&name.to_owned());
                let delay = self.report(name, view.map(Subject::volume), &class, &failure, failures, false);
                self.volumes.add_after(name.to_owned(), jittered(delay));
            }
        }
    }

    /// Tells of a failure: log, metric and event come from one place, so that they cannot disagree. Returns when to try
    /// again, before jitter.
    fn report(
        &self,
        key: &str,
        subject: Option<Subject>,
        class: &str,
        failure: &Failure,
        failures: u32,
        provisioning: bool,
    ) -> Duration {
        let (op, reason, action) = if provisioning {
            ("provision", "ProvisioningFailed", ABOUT_CLAIM)
        } else {
            ("delete", "VolumeFailedDelete", ABOUT_VOLUME)
        };
        let (delay, remark) = match next(failure.class(), failures, self.settings.backoff()) {
            Next::Again(delay) => (delay, ""),
            Next::Reschedule(delay) => (delay.max(self.settings.backoff_base), ""),
            Next::WhenChanged(delay) => (delay, " (tried again when it or its class changes)"),
        };
        warn!(key, op, attempt = failures, class = ?failure.class(), error = %chain(failure), "Failed, will try again.");
        // Waiting for a detach, or as long as the API server asked, is not the user's to mend.
        let quiet =
            matches!(failure.class(), Class::Blocked(Until::Unused | Until::Settled | Until::After(_)))
                && failures < 4;
        if !quiet {
            if provisioning {
                self.metrics.provision_failed(class, "");
            } else {
                self.metrics.delete_failed(class);
            }
            if let Some(subject) = subject {
                self.tell(&subject, true, reason, action, format!("{}{remark}", failure.message()));
            }
        }
        delay
    }

    /// As [`report`](Self::report), for a claim that is to be scheduled anew.
    fn report_claim_failure(&self, claim: &ClaimView, failure: &Failure) -> Duration {
        let uid = &claim.glance.uid;
        let failures = self.claims.failed(uid);
        let class = claim.class.as_deref().unwrap_or_default();
        self.report(uid.as_str(), Some(Subject::claim(claim)), class, failure, failures, true);
        match next(failure.class(), failures, self.settings.backoff()) {
            Next::Again(delay) | Next::Reschedule(delay) | Next::WhenChanged(delay) => delay,
        }
    }

    fn tell(
        &self,
        subject: &Subject,
        warning: bool,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        self.events.publish(Happening { regarding: subject.reference(), warning, reason, action, note });
    }

    /// One call of the backend: deadline and metrics. What was dropped at its deadline may have happened.
    async fn backend_call<T>(&self, op: &'static str, call: impl Future<Output = Result<T>>) -> Result<T> {
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

    /// An agent's own node, read now and then.
    async fn own_node(&self, name: &str) -> Result<Option<NodeInfo>> {
        let known = self.memory().node.clone();
        if let Some((node, read_at)) = known.filter(|(_, at)| at.elapsed() < NODE_AGE) {
            let _: Instant = read_at;
            return Ok(Some(node));
        }
        let node = self.api.node(name).await?;
        self.memory().node = node.clone().map(|node| (node, Instant::now()));
        Ok(node)
    }

    fn attempt(&self, uid: &ClaimUid) -> u32 {
        self.memory().attempts.get(uid).copied().unwrap_or(0)
    }

    fn raise_attempt(&self, uid: &ClaimUid) {
        *self.memory().attempts.entry(uid.clone()).or_default() += 1;
    }

    /// Was this claim not announced yet?
    fn first_try(&self, uid: &ClaimUid) -> bool {
        self.memory().announced.insert(uid.clone())
    }

    fn forget_claim(&self, uid: &ClaimUid) {
        self.claims.forget(uid);
        let mut memory = self.memory();
        memory.attempts.remove(uid);
        memory.announced.remove(uid);
        memory.reschedules.remove(uid);
        memory.published.remove(uid);
    }

    /// We have made the PV of a claim. (A claim that has gone meanwhile is not remembered.)
    fn just_published(&self, uid: &ClaimUid) {
        if self.world.claim(uid).is_some() {
            self.memory().published.insert(uid.clone());
        }
    }

    fn has_just_published(&self, uid: &ClaimUid) -> bool {
        self.memory().published.contains(uid)
    }

    /// The watch has shown the PV of a claim, or it has gone.
    fn publication_seen(&self, uid: &ClaimUid) {
        self.memory().published.remove(uid);
    }

    fn reschedule_at(&self, claim: &ClaimView, at: Instant) {
        let node = claim.glance.selected_node.clone().unwrap_or_default();
        self.memory().reschedules.insert(claim.glance.uid.clone(), (node, at));
    }

    /// When the choice that the claim has now is to be taken back.
    fn reschedule_due(&self, claim: &ClaimView) -> Option<Instant> {
        let mut memory = self.memory();
        let (node, at) = memory.reschedules.get(&claim.glance.uid)?;
        let due = (claim.glance.selected_node.as_ref() == Some(node)).then_some(*at);
        if due.is_none() {
            memory.reschedules.remove(&claim.glance.uid);
        }
        due
    }

    fn reschedule_done(&self, uid: &ClaimUid) {
        self.memory().reschedules.remove(uid);
    }

    /// Something of ours stays that no PV speaks for.
    fn orphaned(&self, name: &str, reason: &str) {
        error!(pv = name, reason, "A volume stays behind without a PV; somebody must look at it.");
        let mut memory = self.memory();
        memory.orphans.insert(name.to_owned(), reason.to_owned());
        self.metrics.orphans(memory.orphans.len());
    }
}
