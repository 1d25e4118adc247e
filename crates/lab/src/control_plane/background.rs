//! The one control plane that `cargo xtask cluster up` leaves running.
//!
//! ```text
//! up  ── starts ──>  supervisor (a session of its own) ── holds ──> ControlPlane ──> servers
//!                        └─ writes <cache>/cluster/state.json once they serve
//! down ── SIGTERM ──>  supervisor: stops the servers, removes the state
//! ```
//! A supervisor rather than orphaned servers: whatever ends it, the keeper ends them.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{ControlPlane, Options};
use crate::{ProcessId, cache_dir};

/// What `up` hands to `down` and `status`. Every process stands with its start time: none of them signals a
/// stranger that was given a number later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// Who holds the control plane.
    pub supervisor: ProcessId,
    /// When it served, in seconds since 1970.
    pub since: u64,
    /// The administrator's kubeconfig.
    pub kubeconfig: PathBuf,
    /// The kubectl of the servers' version.
    pub kubectl: PathBuf,
    /// `https://127.0.0.1:port`.
    pub server_url: String,
    /// The folder of the servers' logs.
    pub logs: PathBuf,
    /// What runs.
    pub servers: Vec<ServerState>,
}

/// One running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// The program's name.
    pub name: String,
    /// Its process.
    pub process: ProcessId,
    /// The loopback port it serves, if any.
    pub port: Option<u16>,
}

impl State {
    /// Who runs, by the state file; `None` where there is none, or its supervisor has died.
    pub fn load() -> anyhow::Result<Option<Self>> {
        let file = state_file()?;
        let text = match fs::read_to_string(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("failed to read {}", file.display())),
        };
        let state = Self::parse(&text)
            .with_context(|| format!("{} is damaged: end what still runs, then remove it", file.display()))?;
        Ok(state.supervisor.is_alive().then_some(state))
    }

    /// How long it has been up.
    pub fn uptime(&self) -> Duration {
        Duration::from_secs(unix_seconds().saturating_sub(self.since))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    fn of(cluster: &ControlPlane) -> anyhow::Result<Self> {
        let processes = cluster.processes().into_iter();
        Ok(Self {
            supervisor: ProcessId::current()?,
            since: unix_seconds(),
            kubeconfig: cluster.kubeconfig().to_owned(),
            kubectl: cluster.kubectl().to_owned(),
            server_url: cluster.server_url().to_owned(),
            logs: cluster.log_dir()?,
            servers: processes.map(|(name, process, port)| ServerState { name, process, port }).collect(),
        })
    }

    /// Renamed into place: a reader sees all of it or nothing.
    fn save(&self, file: &Path) -> anyhow::Result<()> {
        let draft = file.with_extension("json.new");
        fs::write(&draft, serde_json::to_string_pretty(self)? + "\n")
            .and_then(|()| fs::rename(&draft, file))
            .with_context(|| format!("failed to write {}", file.display()))
    }
}

/// The folder of the state file and of the supervisor's log. It need not exist yet.
pub fn dir() -> anyhow::Result<PathBuf> {
    Ok(cache_dir()?.join("cluster"))
}

fn state_file() -> anyhow::Result<PathBuf> {
    Ok(dir()?.join("state.json"))
}

/// The supervisor's whole life: start, write the state, wait for SIGTERM, stop, remove the state. Ends with an
/// error when a server ends by itself.
pub async fn supervise(options: Options) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let file = state_file()?;
    let cluster = ControlPlane::start(options).await?;
    let state = State::of(&cluster)?;
    state.save(&file)?;
    let lost = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        name = first_to_end(&state) => Some(name),
    };
    // The logs go with the cluster, so the end of the one that tells why is shown first.
    let log = lost.as_ref().and_then(|name| fs::read_to_string(state.logs.join(format!("{name}.log"))).ok());
    cluster.stop().await;
    fs::remove_file(&file).with_context(|| format!("failed to remove {}", file.display()))?;
    match lost {
        None => Ok(()),
        Some(name) => {
            bail!(
                "{name} ended by itself; the end of its log:\n{}",
                crate::server::tail(&log.unwrap_or_default(), 20)
            )
        }
    }
}

async fn first_to_end(state: &State) -> String {
    loop {
        if let Some(server) = state.servers.iter().find(|server| !server.process.is_alive()) {
            return server.name.clone();
        }
        sleep(Duration::from_secs(1)).await;
    }
}

/// Ends what `state` describes and waits until it is gone: politely first, then by force, which leaves the
/// cleaning to the keeper.
pub async fn stop(state: &State) -> anyhow::Result<()> {
    state.supervisor.terminate().context("failed to signal the supervisor")?;
    if !all_gone(state, Duration::from_secs(15)).await {
        state.supervisor.kill().context("failed to kill the supervisor")?;
        if !all_gone(state, Duration::from_secs(15)).await {
            bail!("some servers do not end: {:?}", state.servers);
        }
    }
    match fs::remove_file(state_file()?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()), // the supervisor removes it unless it was killed
    }
}

async fn all_gone(state: &State, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let alive = || {
        let servers = state.servers.iter().map(|server| server.process);
        servers.chain([state.supervisor]).any(ProcessId::is_alive)
    };
    while alive() {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(50)).await;
    }
    true
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let supervisor = ProcessId { pid: 42, started: 7 };
        let process = ProcessId { pid: 43, started: 8 };
        State {
            supervisor,
            since: 1_700_000_000,
            kubeconfig: "/k".into(),
            kubectl: "/bin/kubectl".into(),
            server_url: "https://127.0.0.1:1".to_owned(),
            logs: "/l".into(),
            servers: vec![ServerState { name: "etcd".to_owned(), process, port: Some(2379) }],
        }
    }

    #[test]
    fn a_saved_state_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.json");
        state().save(&file).unwrap();
        assert_eq!(State::parse(&fs::read_to_string(&file).unwrap()).unwrap(), state());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn half_a_state_is_refused() {
        let text = serde_json::to_string(&state()).unwrap();
        assert!(State::parse(&text[..text.len() / 2]).is_err());
        assert!(State::parse("{}").is_err());
    }
}
