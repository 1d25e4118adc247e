//! `cargo xtask cluster`: a control plane that stays until it is told to go.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use tokio::time::{Instant, sleep};
use volwright_lab::{
    ControlPlane, become_session_leader,
    control_plane::{
        Options,
        background::{self, State},
        binaries::{Binaries, Binary},
    },
};

/// Start, stop or inspect a Kubernetes control plane on this machine.
///
/// It is etcd, kube-apiserver, kube-controller-manager and kube-scheduler on 127.0.0.1, with RBAC, as your own
/// user and without containers. There is no node: claims get provisioned and bound, pods get scheduled, nothing
/// runs in them. The data is in memory and gone after `down`.
///
/// The first `up` builds the programs from source, which takes Go, some minutes and 4 GB of disk; they are kept
/// in ~/.cache/volwright. After that it takes some seconds.
///
/// If KUBEBUILDER_ASSETS names a folder, as setup-envtest makes it, etcd, kube-apiserver and kubectl are taken from there
/// and must be there; kube-controller-manager and kube-scheduler are if they are there, and else built (Kubernetes allows
/// them to be older than the API server, and not newer).
#[derive(Debug, Parser)]
#[command(after_help = "Example:\n  \
    cargo xtask cluster up\n  \
    export KUBECONFIG=...   # the line that `up` prints\n  \
    kubectl get storageclasses\n  \
    cargo xtask cluster down")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start it in the background, and say how to use it
    Up {
        /// Use the cluster of this kubeconfig instead: start nothing, check that it answers
        ///
        /// KUBECONFIG is not looked at: your everyday cluster is never taken by accident.
        #[arg(long, value_name = "FILE", env = "VOLWRIGHT_KUBECONFIG")]
        kubeconfig: Option<PathBuf>,
    },
    /// Stop it and remove its data
    Down,
    /// Say what runs: addresses, processes, for how long
    Status,
    /// What `up` leaves in the background
    #[command(hide = true)]
    Supervise,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    match args.action {
        Action::Up { kubeconfig: Some(file) } => use_existing(&file).await,
        Action::Up { kubeconfig: None } => up().await,
        Action::Down => down().await,
        Action::Status => status(),
        Action::Supervise => {
            become_session_leader()?;
            background::supervise(Options::default()).await
        }
    }
}

async fn use_existing(file: &Path) -> anyhow::Result<()> {
    let cluster = ControlPlane::external(file).await?;
    println!("The cluster at {} answers.", cluster.server_url());
    print_hints(cluster.kubeconfig(), cluster.kubectl());
    println!("It was not started here: `cargo xtask cluster down` does not touch it.");
    Ok(())
}

async fn up() -> anyhow::Result<()> {
    let dir = background::dir()?;
    fs::create_dir_all(&dir).with_context(|| format!("failed to create {}", dir.display()))?;
    // Held until we return; two that start at once would each leave a cluster behind, and one state file.
    let lock = File::create(dir.join("lock"))?;
    if lock.try_lock().is_err() {
        bail!("another `cargo xtask cluster up` is at work: wait for it");
    }
    if let Some(state) = State::load()? {
        println!("It is up already, at {} for {}.", state.server_url, duration(state.uptime()));
        print_hints(&state.kubeconfig, &state.kubectl);
        println!("To stop it:  cargo xtask cluster down");
        return Ok(());
    }
    Binaries::ensure(&Binary::ALL).await?; // here, where the progress is seen

    let start = Instant::now();
    let log = dir.join("supervisor.log");
    let mut supervisor = spawn_supervisor(&log)?;
    let state = wait_for_state(&mut supervisor, &log).await?;
    println!("It is up, at {} ({:.1} s).", state.server_url, start.elapsed().as_secs_f32());
    print_hints(&state.kubeconfig, &state.kubectl);
    println!("To stop it:  cargo xtask cluster down");
    Ok(())
}

async fn down() -> anyhow::Result<()> {
    let Some(state) = State::load()? else {
        println!("Nothing runs.");
        return Ok(());
    };
    background::stop(&state).await?;
    println!("Stopped after {}.", duration(state.uptime()));
    Ok(())
}

fn status() -> anyhow::Result<()> {
    let Some(state) = State::load()? else {
        println!("Nothing runs. To start it:  cargo xtask cluster up");
        let log = background::dir()?.join("supervisor.log");
        if fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0) {
            println!("Why the last one ended stands in {}.", log.display());
        }
        return Ok(());
    };
    println!("Up for {}, at {}.", duration(state.uptime()), state.server_url);
    println!("{:<26} {:>8}  {:<15}  state", "server", "pid", "address");
    for server in &state.servers {
        let address = server.port.map_or_else(|| "-".to_owned(), |port| format!("127.0.0.1:{port}"));
        let running = if server.process.is_alive() { "runs" } else { "ended" };
        println!("{:<26} {:>8}  {address:<15}  {running}", server.name, server.process.pid);
    }
    println!("{:<26} {:>8}  {:<15}  runs", "supervisor", state.supervisor.pid, "-");
    println!("Logs:        {}", state.logs.display());
    print_hints(&state.kubeconfig, &state.kubectl);
    Ok(())
}

fn print_hints(kubeconfig: &Path, kubectl: &Path) {
    println!("To use it:   export KUBECONFIG={}", quoted(kubeconfig));
    println!("kubectl:     {}", quoted(kubectl));
}

/// This very program again. Its log replaces the last one's, and holds its error if it fails.
fn spawn_supervisor(log: &Path) -> anyhow::Result<Child> {
    let out = File::create(log).with_context(|| format!("failed to create {}", log.display()))?;
    Command::new(env::current_exe()?)
        .args(["cluster", "supervise"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()
        .context("failed to start the supervisor")
}

/// The control plane has its own limit for every server, so this only waits for its word.
async fn wait_for_state(supervisor: &mut Child, log: &Path) -> anyhow::Result<State> {
    loop {
        if let Some(status) = supervisor.try_wait()? {
            let said = fs::read_to_string(log).unwrap_or_default();
            bail!("the control plane did not start ({status}):\n{}", said.trim());
        }
        if let Some(state) = State::load()?.filter(|state| state.supervisor.pid == supervisor.id()) {
            return Ok(state);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// As a word of a shell command.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, seconds) => format!("{seconds} s"),
        (0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_the_shell_where_they_must_be() {
        assert_eq!(quoted(Path::new("/a/b-c.d")), "/a/b-c.d");
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn durations_show_two_units() {
        let cases = [(5, "5 s"), (65, "1 min 5 s"), (3600, "1 h 0 min"), (90_000, "25 h 0 min")];
        for (seconds, expected) in cases {
            assert_eq!(duration(Duration::from_secs(seconds)), expected);
        }
    }
}
