//! Starting the engine, its workers, and its way out.

use crate::backend::Backend;
use crate::client::Clients;
use crate::decide::{Identity, Rules};
use futures::FutureExt;
use std::collections::BTreeSet;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch as channel;
use tokio::task::JoinSet;
use tracing::info;
use volwright_provisioner::Failure;

use super::api::ApiServer;
use super::events::Events;
use super::health::{Health, WATCHES};
use super::metrics::Metrics;
use super::queue::Queue;
use super::report::jittered;
use super::world::World;
use super::{Flow, Journal, Settings, Shared, claim, volume, watch};

/// Why the engine ended other than by being told to.
#[derive(Debug, Error)]
pub enum EngineError {
    /// Calls were still running when the drain's time was up. What they do is recorded, and the next process goes on.
    #[error(
        "{0} operations were still running when the drain's time was up; the next process carries on with them"
    )]
    DrainTimedOut(usize),
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
    /// Takes what users should know.
    pub events: Events,
    /// Takes the numbers.
    pub metrics: Arc<Metrics>,
    /// Takes what the probes ask for.
    pub health: Arc<Health>,
    /// All of them, but in a test that shows what one is good for.
    pub rules: Rules,
}

/// The engine of one provisioner.
pub struct Engine {
    shared: Arc<Shared>,
    clients: Clients,
}

impl Engine {
    /// Puts the parts together; nothing runs yet.
    pub fn new(parts: Parts) -> Self {
        let Parts { settings, backend, clients, journal, events, metrics, health, rules } = parts;
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
