//! The engine under test: started in this process on any backend and API server, stopped or killed at will.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use volwright_controller::backend::{Backend, Typed};
use volwright_controller::client::Clients;
use volwright_controller::decide::Rules;
use volwright_controller::engine::clock::SystemClock;
use volwright_controller::engine::events::Events;
use volwright_controller::engine::health::{Health, observed};
use volwright_controller::engine::lease::Leadership;
use volwright_controller::engine::metrics::Metrics;
use volwright_controller::engine::{Engine, Journal, MemoryJournal, Orphans, Parts, Settings, Spawner};
use volwright_provisioner::{InstallationId, Placement};

use crate::{Memory, Store};

/// How an engine under test is set up. Delays are short, so that a test of retries ends.
#[derive(Clone)]
pub struct Options {
    /// Provisioner names, the own one first.
    pub names: Vec<String>,
    /// Central, or an agent of a node.
    pub placement: Placement,
    /// Part of every mark.
    pub installation: InstallationId,
    /// Safety rules in force.
    pub rules: Rules,
    /// Deadline of a backend call.
    pub backend_timeout: Duration,
    /// Deadline of an API call.
    pub api_timeout: Duration,
    /// First delay after a failure.
    pub backoff_base: Duration,
    /// Longest delay after a failure.
    pub backoff_max: Duration,
    /// Resync period.
    pub resync: Duration,
    /// Claims and volumes worked on at once, each.
    pub workers: usize,
    /// Where requests about the trash are made.
    pub namespace: String,
    /// How often the trash is looked through; zero for never.
    pub trash_interval: Duration,
}

impl Options {
    /// A Central engine that answers to `name`.
    pub fn central(name: impl Into<String>) -> Self {
        Self {
            names: vec![name.into()],
            placement: Placement::Central,
            installation: InstallationId::new("test-installation"),
            rules: Rules::default(),
            backend_timeout: Duration::from_secs(5),
            api_timeout: Duration::from_secs(10),
            backoff_base: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            resync: Duration::from_secs(600),
            workers: 8,
            namespace: "default".to_owned(),
            trash_interval: Duration::ZERO,
        }
    }

    fn settings(&self) -> Settings {
        Settings {
            names: self.names.clone(),
            placement: self.placement.clone(),
            installation: self.installation.clone(),
            workers: self.workers,
            api_timeout: self.api_timeout,
            backend_timeout: self.backend_timeout,
            backoff_base: self.backoff_base,
            backoff_max: self.backoff_max,
            resync: self.resync,
            drain: Duration::from_secs(10),
            lease: Duration::ZERO,
            namespace: self.namespace.clone(),
            trash_interval: self.trash_interval,
        }
    }
}

/// A running engine.
pub struct Harness {
    /// The storage system behind it.
    pub store: Store,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// Its health.
    pub health: Arc<Health>,
    stop: watch::Sender<bool>,
    engine: JoinHandle<()>,
    events: JoinHandle<()>,
}

impl Harness {
    /// Starts an engine on the in-memory backend; `server` is what its PVs' sources name.
    pub fn start(options: &Options, server: &str, clients: Clients, store: Store) -> Self {
        let backend: Arc<dyn Backend> = Arc::new(Typed::new(Arc::new(Memory::new(server, store.clone()))));
        Self::start_on(options, backend, clients, store, Arc::new(MemoryJournal::new()))
    }

    /// Starts an engine on any backend and journal.
    pub fn start_on(
        options: &Options,
        backend: Arc<dyn Backend>,
        clients: Clients,
        store: Store,
        journal: Arc<dyn Journal>,
    ) -> Self {
        let metrics = Metrics::new();
        let health = Health::new();
        // As the binaries do it: readiness goes by the API server's answers.
        let clients = Clients { watches: observed(clients.watches, Arc::clone(&health)), ..clients };
        let reporter = options.names.first().cloned().unwrap_or_default();
        let (events, writer) =
            Events::new(clients.requests.clone(), reporter, "test".to_owned(), Arc::clone(&metrics));
        let engine = Engine::new(Parts {
            settings: options.settings(),
            backend,
            clients,
            journal,
            leadership: Leadership::always(),
            orphans: Orphans::default(),
            clock: Arc::new(SystemClock),
            spawner: Spawner::default(),
            events,
            metrics: Arc::clone(&metrics),
            health: Arc::clone(&health),
            rules: options.rules.clone(),
        });
        let (stop, stopped) = watch::channel(false);
        let engine = tokio::spawn(async move {
            // A drain that timed out shows in the test's own expectations.
            engine.run(stopped).await.ok();
        });
        Self { store, metrics, health, stop, engine, events: tokio::spawn(writer) }
    }

    /// As on SIGTERM: running calls may end. Returns when all has stopped.
    pub async fn stop(self) {
        self.stop.send_replace(true);
        self.engine.await.ok();
        self.events.await.ok();
    }

    /// As on SIGKILL, at whatever await the engine is.
    pub fn kill(self) {
        self.engine.abort();
        self.events.abort();
    }
}

/// Waits until `look` shows what is expected; fails with what it showed last.
///
/// # Panics
/// After `limit`, with `what` and the last value.
#[track_caller]
pub fn eventually<T, F>(
    what: &str,
    limit: Duration,
    mut look: impl FnMut() -> F,
    expected: impl Fn(&T) -> bool,
) -> impl Future<Output = T>
where
    T: Debug,
    F: Future<Output = T>,
{
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + limit;
        loop {
            let value = look().await;
            if expected(&value) {
                return value;
            }
            assert!(
                Instant::now() < deadline,
                "{caller}: not within {limit:?}: {what}; last seen: {value:#?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Labels or annotations, short to write.
pub fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
