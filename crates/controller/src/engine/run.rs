//! Starting the engine, its terms, and its way out.
//!
//! ```text
//! standby -> leading: watches, journal read, epoch raised -> work -> told to stop: drain
//!    ^                                                        |
//!    +------ lease lost, journal gone: bounded calls end <-----+
//! ```

use crate::backend::Backend;
use crate::client::Clients;
use crate::decide::{Identity, Rules};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::api::ApiServer;
use super::clock::Clock;
use super::events::Events;
use super::health::Health;
use super::history::History;
use super::lease::{Leadership, Standing};
use super::metrics::Metrics;
use super::queue::Queue;
use super::shared::Term;
use super::world::World;
use super::{Journal, Orphans, Settings, Shared, Soundness, Spawner, prepare, watch, work};

/// Why the engine ended other than by being told to.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Calls were still running when the drain's time was up. What they do is recorded, and the next process goes on.
    #[error(
        "{0} operations were still running when the drain's time was up; the next process carries on with them"
    )]
    DrainTimedOut(usize),
    /// The lease cannot be had, and waiting does not help.
    #[error("{0}")]
    Refused(String),
}

/// What an engine is put together from.
pub struct Parts {
    /// From the flags.
    pub settings: Settings,
    /// The storage system.
    pub backend: Arc<dyn Backend>,
    /// Connections to the API server.
    pub clients: Clients,
    /// Where intents are kept.
    pub journal: Arc<dyn Journal>,
    /// Whether this process may act.
    pub leadership: Leadership,
    /// Takes what users should know.
    pub events: Events,
    /// Takes the numbers.
    pub metrics: Arc<Metrics>,
    /// Takes what the probes ask for.
    pub health: Arc<Health>,
    /// Takes what stays on the storage without a PV.
    pub orphans: Orphans,
    /// Starts the tasks.
    pub spawner: Spawner,
    /// What is kept for a time goes by it, as far as it agrees with the API server's.
    pub clock: Arc<dyn Clock>,
    /// All of them, but in a test that shows what one is good for.
    pub rules: Rules,
}

/// The engine of one provisioner.
pub struct Engine {
    parts: Parts,
    history: Arc<History>,
    current: Arc<Mutex<Weak<Shared>>>,
}

/// Looks into a running engine.
#[derive(Clone)]
pub struct Probe(Arc<Mutex<Weak<Shared>>>);

impl Probe {
    /// How much is remembered, by table. Empty between terms.
    pub fn tables(&self) -> BTreeMap<&'static str, usize> {
        let current = self.0.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        current.map(|shared| shared.tables()).unwrap_or_default()
    }
}

/// How a term ended.
enum Ended {
    Stopped(Result<(), EngineError>),
    /// Another leads, or nobody.
    Lost,
    /// We lead, and cannot trust what is recorded.
    Unsound(Soundness),
}

/// After a term that ended by itself. Standing again at once would only find the same.
const BETWEEN_TERMS: Duration = Duration::from_secs(1);

/// What a term may take longer than its calls' own deadlines before they are dropped.
const BEYOND_CALLS: Duration = Duration::from_secs(1);

impl Engine {
    /// Puts the parts together; nothing runs yet.
    pub fn new(parts: Parts) -> Self {
        Self { parts, history: Arc::default(), current: Arc::default() }
    }

    /// To look into it while it runs.
    pub fn probe(&self) -> Probe {
        Probe(Arc::clone(&self.current))
    }

    /// Runs until `stop` turns true, then lets running calls end for at most the drain's time. Everything that it starts
    /// ends with it, also when it is dropped.
    pub async fn run(self, mut stop: channel::Receiver<bool>) -> Result<(), EngineError> {
        let mut standing = self.parts.leadership.standing();
        let mut standby = JoinSet::new();
        let parts = &self.parts;
        let beat = beat(Arc::clone(&parts.health), Arc::clone(&parts.metrics), Arc::clone(&parts.journal));
        parts.spawner.spawn(&mut standby, beat);
        loop {
            let term = tokio::select! {
                biased;
                // An error means that whoever could tell us to stop is gone, which is the same.
                _ = stop.wait_for(|stop| *stop) => {
                    self.parts.health.set_draining();
                    return Ok(());
                }
                term = self.next_term(&mut standing) => term?,
            };
            self.parts.health.set_standby(false);
            match self.term(term, stop.clone(), standing.clone()).await {
                Ended::Stopped(result) => return result,
                Ended::Lost => info!("No longer the leader: what ran has ended, nothing new is begun."),
                Ended::Unsound(why) => {
                    warn!(
                        ?why,
                        "The journal cannot be trusted any more; the work begins anew from what is there."
                    );
                    self.parts.leadership.step_down();
                }
            }
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => {}
                () = sleep(BETWEEN_TERMS) => {}
            }
        }
    }

    /// Waits until this process leads.
    async fn next_term(&self, standing: &mut channel::Receiver<Standing>) -> Result<u64, EngineError> {
        loop {
            match standing.borrow_and_update().clone() {
                Standing::Leading { term } if self.parts.leadership.may_act() => return Ok(term),
                Standing::Refused(text) => return Err(EngineError::Refused(text)),
                Standing::Leading { .. } => {}
                Standing::Standby { holder } => {
                    // Who sees no leader cannot take over from one: it may not reach the API server at all.
                    self.parts.health.set_standby(holder.is_some());
                    let leader = holder
                        .map_or("nobody is, as far as is known".to_owned(), |holder| format!("{holder} is"));
                    self.parts.health.set_detail("leader", format!("no; {leader}"));
                }
            }
            // Without a sender nothing will ever change; the caller still sees its stop.
            if standing.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn shared(&self) -> Arc<Shared> {
        let parts = &self.parts;
        let identity = Identity {
            names: parts.settings.names.clone(),
            node: parts.settings.node().map(str::to_owned),
            rules: parts.rules.clone(),
        };
        let api = ApiServer::new(
            parts.clients.requests.clone(),
            parts.settings.api_timeout,
            parts.leadership.clone(),
            Arc::clone(&parts.metrics),
        );
        Arc::new(Shared {
            api,
            claims: Queue::new("claims", Arc::clone(&parts.metrics)),
            volumes: Queue::new("volumes", Arc::clone(&parts.metrics)),
            synced: channel::Sender::default(),
            world: World::default(),
            locks: Arc::default(),
            memory: Mutex::default(),
            orphans: parts.orphans.clone(),
            clock: Arc::clone(&parts.clock),
            trash_changed: AtomicBool::new(true),
            settings: parts.settings.clone(),
            identity,
            backend: Arc::clone(&parts.backend),
            journal: Arc::clone(&parts.journal),
            leadership: parts.leadership.clone(),
            history: Arc::clone(&self.history),
            term: Term::beginning(Instant::now(), &parts.settings),
            events: parts.events.clone(),
            metrics: Arc::clone(&parts.metrics),
            health: Arc::clone(&parts.health),
        })
    }

    async fn term(
        &self,
        term: u64,
        mut stop: channel::Receiver<bool>,
        mut standing: channel::Receiver<Standing>,
    ) -> Ended {
        let (shared, spawner) = (self.shared(), &self.parts.spawner);
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&shared);
        let (mut beside, mut workers) = (JoinSet::new(), JoinSet::new());
        let (ending, ended) = channel::channel(false);
        shared.health.set_detail("leader", "yes");
        let watches = self.parts.clients.watches.clone();
        spawner.spawn(&mut beside, watch::run(Arc::clone(&shared), watches, ended));
        let reason = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => Ended::Stopped(Ok(())),
            () = lost(&mut standing, term) => Ended::Lost,
            why = async {
                prepare::begin(&shared).await;
                shared.show_budgets();
                work::start(&shared, spawner, &mut workers, &mut beside);
                // Only now: what was wrong before is what reading the journal anew has mended.
                let mut soundness = shared.journal.soundness();
                tokio::select! {
                    biased;
                    why = unsound(&mut soundness) => {
                        if why == Soundness::RolledBack {
                            shared.history.went_back("the journal is older than what was written");
                        }
                        why
                    }
                    () = prepare::until_time_goes_back(&shared) => Soundness::RolledBack,
                }
            } => Ended::Unsound(why),
        };
        // Dropping what was being prepared is safe: nothing had begun.
        let is_stopped = matches!(reason, Ended::Stopped(_));
        if is_stopped {
            shared.health.set_draining();
        }
        shared.claims.close();
        shared.volumes.close();
        let running = shared.claims.running() + shared.volumes.running();
        info!(running, "Stopping: nothing new is begun, what runs may end.");
        let settings = &shared.settings;
        let limit = if is_stopped {
            settings.drain
        } else {
            settings.api_timeout.max(settings.backend_timeout) + BEYOND_CALLS
        };
        let drained = timeout(limit, async { while workers.join_next().await.is_some() {} }).await.is_ok();
        let left = shared.claims.running() + shared.volumes.running();
        workers.shutdown().await;
        drop(ending);
        beside.shutdown().await;
        match reason {
            Ended::Stopped(_) if !drained => Ended::Stopped(Err(EngineError::DrainTimedOut(left))),
            reason => reason,
        }
    }
}

/// Returns when this term is over.
async fn lost(standing: &mut channel::Receiver<Standing>, term: u64) {
    // Without a sender nothing will ever change.
    if standing.wait_for(|now| *now != Standing::Leading { term }).await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn unsound(soundness: &mut channel::Receiver<Soundness>) -> Soundness {
    let why = soundness.wait_for(|now| *now != Soundness::Sound).await.map(|why| *why).ok();
    match why {
        Some(why) => why,
        None => std::future::pending().await,
    }
}

/// Shows the liveness probe that tasks of this process still run, and what is open in the journal.
async fn beat(health: Arc<Health>, metrics: Arc<Metrics>, journal: Arc<dyn Journal>) {
    loop {
        health.beat();
        metrics.intents("provision", journal.claims().len());
        metrics.intents("delete", journal.deletes().len());
        sleep(Duration::from_secs(5)).await;
    }
}
