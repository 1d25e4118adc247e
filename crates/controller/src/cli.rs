//! The command line of every provisioner: `run` and `doctor`, the shared flags and the backend's own.

mod args; // flags
mod run; // flags to engine
#[cfg(test)]
pub(crate) mod shelf; // a backend for tests

pub use self::args::{ClusterArgs, EngineArgs, RunOptions};
pub use self::run::{RunError, serve, serve_with};
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

/// What the process may take beyond the drain of the engine: the last events and HTTP answers. Then it ends regardless,
/// before the kubelet's SIGKILL if terminationGracePeriodSeconds is set as the help says.
const BEYOND_DRAIN: Duration = Duration::from_secs(5);

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
    logs: LogArgs,
    /// How findings are written to standard output
    #[arg(long, env = "VOLWRIGHT_OUTPUT", value_enum, default_value_t = Output::Text)]
    output: Output,
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
    let DoctorCommand { cluster, logs: _, output, backend } = command;
    let report = match connect(cluster.kubeconfig.as_deref(), P::BACKEND).await {
        Ok(clients) => doctor::examine::<P>(&cluster, backend, &clients).await?,
        Err(error) => return Err(error.into()),
    };
    report.write(output, &mut io::stdout().lock()).map_err(RunError::System)?;
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
