//! `run`: from flags to a running engine, and back.
//!
//! ```text
//! placement -> http -> installation id, node (asked until answered) -> backend -> engine -> drain -> events -> http
//! ```
//! HTTP comes up before the API server is asked anything: while we wait for it, the liveness probe must find us alive.

use super::args::RunOptions;
use super::coordination::Coordination;
use crate::backend::{Backend, Typed};
use crate::client::{Clients, ConnectError, chain};
use crate::decide::Rules;
use crate::engine::clock::SystemClock;
use crate::engine::context::{EngineContext, fetch_installation, fetch_node};
use crate::engine::events::Events;
use crate::engine::health::{self, Health};
use crate::engine::metrics::Metrics;
use crate::engine::{Engine, EngineError, Orphans, Parts, Settings, Spawner, http};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use volwright_provisioner::{Class, Failure, InstallationId, NodeInfo, Placement, Provisioner};

/// First and longest delay between two questions at the start. Quick, since the usual case is an API server that is
/// being restarted together with us; at most 30 s, since that is how late we may be when it is back.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// How long the last events and HTTP answers may take once the engine has ended. The events' own drain takes 2 s.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// Why the process ends other than by being told to.
#[derive(Debug, Error)]
pub enum RunError {
    /// The flags are wrong, and a restart will not mend them.
    #[error("{0}")]
    Config(String),
    /// No client could be made from the configuration.
    #[error(transparent)]
    Client(#[from] ConnectError),
    /// The port is taken, most likely.
    #[error("cannot serve health and metrics on {address}: choose another --http-address")]
    Listen {
        /// As given.
        address: SocketAddr,
        /// What the kernel says.
        source: std::io::Error,
    },
    /// The backend could not be made ready.
    #[error("the backend cannot start")]
    Backend(#[source] Failure),
    /// The engine ended by itself or its drain took too long.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The process was told to end at once, or could not end in time.
    #[error("stopped before running calls had ended ({0}); the next process takes them up")]
    Cut(&'static str),
    /// A command's own request to the API server failed.
    #[error("{0}")]
    Request(String),
    /// The operating system refused threads, signals or the like.
    #[error("the process cannot be set up")]
    System(#[source] std::io::Error),
}

impl RunError {
    /// See [`crate::cli::main`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) | Self::Client(_) => 2,
            Self::Listen { .. }
            | Self::Backend(_)
            | Self::Engine(_)
            | Self::Cut(_)
            | Self::Request(_)
            | Self::System(_) => 1,
        }
    }
}

/// Serves claims until `stop` turns true (or its sender is gone), then drains. Everything that it starts ends with it,
/// also when it is dropped. `options.logs` and `options.cluster.kubeconfig` are the caller's business.
pub async fn serve<P: Provisioner>(
    options: RunOptions,
    args: P::Args,
    clients: Clients,
    mut stop: watch::Receiver<bool>,
) -> Result<(), RunError> {
    let placement = P::placement(&args).map_err(|failure| RunError::Config(chain(&failure)))?;
    let names = options.cluster.names(P::BACKEND);
    let (metrics, health) = (Metrics::new(), Health::new());
    metrics.build_info(P::BACKEND);
    info!(
        backend = P::BACKEND,
        version = env!("CARGO_PKG_VERSION"),
        provisioners = names.join(","),
        node = node_name(&placement).unwrap_or_default(),
        "Starting."
    );

    // Dropping the set aborts what is left in it.
    let mut tasks = JoinSet::new();
    // Dropping the sender ends the server.
    let (serving, until) = watch::channel(false);
    if let Some(address) = options.engine.http_address {
        let listener = http::listen(address).await.map_err(|source| RunError::Listen { address, source })?;
        let address = listener.local_addr().unwrap_or(address);
        info!(%address, "Serving health and metrics.");
        let server = http::serve(listener, Arc::clone(&health), Arc::clone(&metrics), until);
        tasks.spawn(async move {
            if let Err(error) = server.await {
                warn!(error = %chain(&error), "Health and metrics are no longer served.");
            }
        });
    }

    let Some((installation, node)) = patiently(&options, &clients, &placement, &health, &mut stop).await
    else {
        return Ok(());
    };
    info!(installation = %installation, "The cluster answers.");
    let instance = instance(&placement, P::BACKEND);
    let reporter = names.first().cloned().unwrap_or_default();
    let (events, writer) =
        Events::new(clients.requests.clone(), reporter, instance.clone(), Arc::clone(&metrics));
    tasks.spawn(writer);

    let context = EngineContext::new(
        clients.requests.clone(),
        installation.clone(),
        node,
        names.clone(),
        options.engine.api_timeout,
    );
    let connected = tokio::select! {
        biased;
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
        connected = timeout(options.engine.backend_timeout, P::connect(args, Arc::new(context))) => connected,
    };
    let provisioner = match connected {
        Ok(Ok(provisioner)) => provisioner,
        Ok(Err(failure)) if failure.class() == Class::Invalid => {
            return Err(RunError::Config(chain(&failure)));
        }
        Ok(Err(failure)) => return Err(RunError::Backend(failure)),
        Err(_) => {
            return Err(RunError::Backend(Failure::unavailable(
                "it did not get ready within --backend-timeout",
            )));
        }
    };

    let backend: Arc<dyn Backend> = Arc::new(Typed::new(Arc::new(provisioner)));
    let name = names.first().map_or("", String::as_str);
    let Coordination { leadership, journal, elector, lease } =
        Coordination::new(&options, &placement, &clients, &backend, name, &instance)?;
    let mut election = JoinSet::new();
    // Dropping the sender ends the election.
    let (candidacy, over) = watch::channel(false);
    if let Some(elector) = elector {
        election.spawn(elector.run(over));
    }
    let namespace = options.lease.namespace_or(&clients.requests).to_owned();
    let settings = Settings { namespace, ..settings(&options, names, placement, installation, lease) };
    let watches = health::observed(clients.watches, Arc::clone(&health));
    let clients = Clients { requests: clients.requests, watches };
    let engine = Engine::new(Parts {
        settings,
        backend,
        clients,
        journal,
        leadership,
        orphans: Orphans::default(),
        clock: Arc::new(SystemClock),
        spawner: Spawner::default(),
        events: events.clone(),
        metrics,
        health,
        rules: Rules::default(),
    });
    let result = engine.run(stop).await;
    // Not before: what was under way has ended or is recorded.
    drop(candidacy);
    while election.join_next().await.is_some() {}

    events.close();
    drop((events, serving));
    let ended = timeout(AFTERWARDS, async { while tasks.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        warn!("Some events or HTTP answers were cut off at the end.");
    }
    info!("Stopped.");
    Ok(result?)
}

fn settings(
    options: &RunOptions,
    names: Vec<String>,
    placement: Placement,
    installation: InstallationId,
    lease: Duration,
) -> Settings {
    let engine = &options.engine;
    Settings {
        names,
        placement,
        installation,
        workers: usize::from(engine.workers),
        api_timeout: engine.api_timeout,
        backend_timeout: engine.backend_timeout,
        backoff_base: engine.backoff_base,
        backoff_max: engine.backoff_max.max(engine.backoff_base),
        resync: engine.resync,
        drain: engine.drain,
        lease,
        namespace: String::new(),
        trash_interval: engine.trash_interval,
    }
}

/// Who we are in the cluster, asked until there is an answer; `None` when we are to stop instead.
async fn patiently(
    options: &RunOptions,
    clients: &Clients,
    placement: &Placement,
    health: &Health,
    stop: &mut watch::Receiver<bool>,
) -> Option<(InstallationId, Option<NodeInfo>)> {
    let deadline = options.engine.api_timeout;
    let mut delay = ASK_AGAIN.0;
    loop {
        let ask = async {
            let installation = match options.cluster.installation() {
                Some(given) => given,
                None => fetch_installation(&clients.requests, deadline).await?,
            };
            let node = match node_name(placement) {
                Some(name) => Some(fetch_node(&clients.requests, name, deadline).await?),
                None => None,
            };
            Ok::<_, Failure>((installation, node))
        };
        let failure = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => return None,
            answer = ask => match answer {
                Ok(answer) => {
                    health.set_detail("start", "done");
                    return Some(answer);
                }
                Err(failure) => failure,
            },
        };
        health.set_detail("start", failure.message());
        warn!(error = %failure, "The cluster does not answer what is needed to start, will ask again.");
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return None,
            // Agents on all nodes start together; they should not all ask together.
            () = sleep(delay.mul_f64(0.5 + fastrand::f64() / 2.0)) => {}
        }
        delay = (delay * 2).min(ASK_AGAIN.1);
    }
}

pub(super) fn node_name(placement: &Placement) -> Option<&str> {
    match placement {
        Placement::Central => None,
        Placement::PerNode { node } => Some(node),
    }
}

/// Which process an event comes from: the pod, whose name is its hostname, unless it is on the host's network.
fn instance(placement: &Placement, backend: &str) -> String {
    node_name(placement)
        .map(str::to_owned)
        .or_else(|| std::env::var("HOSTNAME").ok().filter(|name| !name.is_empty()))
        .unwrap_or_else(|| format!("volwright-{backend}"))
}
