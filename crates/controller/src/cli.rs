//! The command line of every provisioner: `run` and `doctor`, the shared flags and the backend's own.

mod args; // flags
mod calls; // requests and output of commands
mod coordination; // which journal, and who leads
mod release; // an uninstall for good
mod run; // flags to engine
#[cfg(test)]
pub(crate) mod shelf; // a backend for tests
mod trash; // what is in the trash, and requests about it

pub use self::args::{ClusterArgs, EngineArgs, LeaseArgs, RunOptions};
pub use self::release::{ReleaseArgs, release_finalizers};
pub use self::run::{RunError, serve};
pub use self::trash::{
    CommonArgs as TrashCommonArgs, EmptyArgs, Format, ListArgs, RestoreArgs, TrashCommand, WaitArgs, trash,
};
pub use crate::logs::{LogArgs, LogFormat};

use crate::client::{chain, connect};
use crate::doctor::{self, Output};
use crate::logs;
use clap::{CommandFactory, FromArgMatches};
use std::ffi::OsString;
use std::io;
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::sleep;
use tracing::{error, info};
use volwright_provisioner::Provisioner;

/// Threads that run tasks. One would do for the load; the second keeps health and the lease alive while the first is held
/// up by a backend that blocks by mistake.
const WORKER_THREADS: usize = 2;

/// Most threads for blocking file operations of backends. They go away after 10 idle seconds; tokio's default of 512
/// would let a burst of deletes take 512 stacks.
const BLOCKING_THREADS: usize = 64;

/// What the process may take beyond the drain of the engine: to release the lease (2 s), then for the last events and HTTP
/// answers (3 s), and some air. Then it ends regardless, before the kubelet's SIGKILL if terminationGracePeriodSeconds is
/// set as the help says.
const BEYOND_DRAIN: Duration = Duration::from_secs(7);

#[derive(clap::Parser)]
#[command(
    version,
    about = "Turns Kubernetes claims into volumes, without a CSI driver",
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit codes: 0 stopped as told (doctor: all is well); 1 failed, or stopped before running calls had ended \
                  (doctor: something is wrong); 2 the flags or the configuration are wrong."
)]
struct Cli<A: clap::Args> {
    #[command(subcommand)]
    command: Command<A>,
}

#[derive(clap::Subcommand)]
enum Command<A: clap::Args> {
    /// Serve claims until SIGTERM or SIGINT. A second signal ends the process at once
    Run(Box<RunCommand<A>>),
    /// Look at everything that serving claims needs, and say what is wrong and how to mend it. Changes nothing
    Doctor(Box<DoctorCommand<A>>),
    /// Take the finalizers of this provisioner off its PVs, when it is uninstalled for good. No data is touched: each
    /// line says where it stays
    ReleaseFinalizers(Box<ReleaseCommand<A>>),
    /// Look into the trash of classes with onDelete: trash, bring volumes back, or destroy them
    #[command(subcommand)]
    Trash(TrashCommand),
    /// Look at flags and storage classes without a cluster
    #[command(subcommand)]
    Config(ConfigCommand<A>),
}

#[derive(clap::Subcommand)]
enum ConfigCommand<A: clap::Args> {
    /// Say what is wrong with the flags of `run`, given here, and with the storage classes in files. Asks nobody
    Check(Box<CheckCommand<A>>),
}

#[derive(clap::Args)]
struct CheckCommand<A: clap::Args> {
    /// A YAML file with storage classes; other objects in it are passed over. May be given several times
    #[arg(long = "class", value_name = "FILE")]
    classes: Vec<std::path::PathBuf>,
    /// How findings are written to standard output
    #[arg(long, env = "VOLWRIGHT_OUTPUT", value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten, next_help_heading = "Storage system")]
    backend: A,
}

#[derive(clap::Args)]
struct RunCommand<A: clap::Args> {
    #[command(flatten)]
    options: RunOptions,
    #[command(flatten, next_help_heading = "Storage system")]
    backend: A,
}

#[derive(clap::Args)]
struct DoctorCommand<A: clap::Args> {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    logs: LogArgs,
    /// How findings are written to standard output
    #[arg(long, env = "VOLWRIGHT_OUTPUT", value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Only what this check found. May be given several times; Warning events name the one that explains them. The exit
    /// code is of what is shown
    #[arg(long, env = "VOLWRIGHT_CHECK", value_name = "CHECK", value_delimiter = ',', value_parser = doctor::CHECKS)]
    check: Vec<String>,
    #[command(flatten, next_help_heading = "Storage system")]
    backend: A,
}

#[derive(clap::Args)]
struct ReleaseCommand<A: clap::Args> {
    #[command(flatten)]
    release: ReleaseArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    logs: LogArgs,
    #[command(flatten, next_help_heading = "Storage system")]
    backend: A,
}

/// The whole `main` of a provisioner's binary.
///
/// | exit code | `run` | `doctor` |
/// |---|---|---|
/// | 0 | stopped as told, nothing was cut off | all is well |
/// | 1 | failed, or stopped before running calls had ended (drain too long, second signal) | something is wrong |
/// | 2 | the flags or the configuration are wrong: a restart does not help | the same |
pub fn main<P: Provisioner>() -> ExitCode {
    let command = match parse::<P>(std::env::args_os()) {
        Ok(command) => command,
        Err(error) => {
            // Nobody is left to tell if standard error is closed.
            error.print().ok();
            return u8::try_from(error.exit_code()).map_or(ExitCode::from(2), ExitCode::from);
        }
    };
    logs::init(match &command {
        Command::Run(command) => &command.options.logs,
        Command::Doctor(command) => &command.logs,
        Command::ReleaseFinalizers(command) => &command.logs,
        Command::Trash(command) => &command.common().logs,
        Command::Config(ConfigCommand::Check(command)) => &command.options.logs,
    });
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("volwright")
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&RunError::System(error)),
    };
    let result = runtime.block_on(async {
        match command {
            Command::Run(command) => run::<P>(*command).await.map(|()| ExitCode::SUCCESS),
            Command::Doctor(command) => diagnose::<P>(*command).await,
            Command::ReleaseFinalizers(command) => let_go::<P>(*command).await,
            Command::Trash(command) => look_into_trash::<P>(&command).await,
            Command::Config(ConfigCommand::Check(command)) => check::<P>(&command),
        }
    });
    // A blocking call that does not end must not keep the process.
    runtime.shutdown_background();
    result.unwrap_or_else(|error| failed(&error))
}

fn parse<P: Provisioner>(args: impl IntoIterator<Item = OsString>) -> Result<Command<P::Args>, clap::Error> {
    // clap wants a name that lives as long as the process, and this is made once.
    let name: &'static str = format!("volwright-{}", P::BACKEND).leak();
    let matches = Cli::<P::Args>::command().name(name).try_get_matches_from(args)?;
    Ok(Cli::<P::Args>::from_arg_matches(&matches)?.command)
}

fn failed(error: &RunError) -> ExitCode {
    error!(error = %chain(error), "Cannot go on.");
    ExitCode::from(error.exit_code())
}

async fn run<P: Provisioner>(command: RunCommand<P::Args>) -> Result<(), RunError> {
    let RunCommand { options, backend } = command;
    let mut signals = Signals::listen().map_err(RunError::System)?;
    let clients = connect(options.cluster.kubeconfig.as_deref(), P::BACKEND).await?;
    let (stop, stopped) = watch::channel(false);
    let limit = options.engine.drain + BEYOND_DRAIN;
    tokio::select! {
        result = serve::<P>(options, backend, clients, stopped) => result,
        cut = async {
            let first = signals.next().await;
            info!(signal = first, "Stopping: nothing new is begun, running calls may end.");
            stop.send_replace(true);
            tokio::select! {
                _ = signals.next() => "by a second signal",
                () = sleep(limit) => "the drain's time was up",
            }
        } => Err(RunError::Cut(cut)),
    }
}

async fn diagnose<P: Provisioner>(command: DoctorCommand<P::Args>) -> Result<ExitCode, RunError> {
    let DoctorCommand { cluster, lease, logs: _, output, check, backend } = command;
    let mut report = match connect(cluster.kubeconfig.as_deref(), P::BACKEND).await {
        Ok(clients) => doctor::examine::<P>(&cluster, &lease, backend, &clients).await?,
        Err(error) => return Err(error.into()),
    };
    report.only(&check);
    report.write(output, &mut io::stdout().lock()).map_err(RunError::System)?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn let_go<P: Provisioner>(command: ReleaseCommand<P::Args>) -> Result<ExitCode, RunError> {
    let ReleaseCommand { release, cluster, lease, logs: _, backend } = command;
    let clients = connect(cluster.kubeconfig.as_deref(), P::BACKEND).await?;
    let mut out = io::stdout().lock();
    let all = release_finalizers::<P>(&cluster, &lease, release, &backend, &clients, &mut out).await?;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

async fn look_into_trash<P: Provisioner>(command: &TrashCommand) -> Result<ExitCode, RunError> {
    let clients = connect(command.common().cluster.kubeconfig.as_deref(), P::BACKEND).await?;
    let (mut out, mut notes) = (io::stdout().lock(), io::stderr().lock());
    let all = trash(P::BACKEND, command, &clients, &mut out, &mut notes).await?;
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn check<P: Provisioner>(command: &CheckCommand<P::Args>) -> Result<ExitCode, RunError> {
    let read = |path: &std::path::PathBuf| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path);
        text.map(|text| (name.clone(), text))
            .map_err(|error| RunError::Config(format!("cannot read {name}: {error}")))
    };
    let files = command.classes.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let report = doctor::check_config::<P>(&command.options, &command.backend, &files);
    report.write(command.output, &mut io::stdout().lock()).map_err(RunError::System)?;
    Ok(if report.is_well() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The signals that end us. Ours from here on: the process no longer dies of them by itself.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(test)]
mod tests;
