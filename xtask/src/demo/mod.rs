//! `cargo xtask demo`: the product's story on a cluster, told as it happens.
//!
//! ```text
//! mod        flags, the build, the end
//!   story      what is done and said
//!     cluster    which cluster, and asking it
//!     manifests  what is put into it
//!     table      printing what it answers
//! ```

mod cluster;
mod manifests;
mod story;
mod table;

use anyhow::{Context as _, bail};
use clap::ValueEnum;
use std::path::PathBuf;
use tokio::signal::unix::{SignalKind, signal};

use self::story::Story;

/// Show a claim become a volume, and what happens to the data afterwards.
///
/// Builds the local-path agent, starts it for one node of a cluster, tells the story, and removes everything again. Needs
/// neither root nor containers.
///
/// The agent is the real one and speaks HTTP. The cluster is by default a Kubernetes API server in this process, with models
/// of the controllers, the scheduler and the kubelet: that takes a second and needs nothing but Rust. It listens on a port
/// of 127.0.0.1, without TLS and without users. With `--cluster real` it is etcd, kube-apiserver, kube-controller-manager
/// and kube-scheduler, built from source with Go the first time; there is no kubelet then, so pods get scheduled and do
/// not run.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// Leave it running afterwards, say how to go on by hand, and end on Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Which cluster to start
    #[arg(long, value_enum, default_value_t = Which::Embedded, conflicts_with = "kubeconfig")]
    cluster: Which,
    /// Use the cluster of this kubeconfig instead of starting one; the demo makes and removes its own namespace, node and
    /// classes there
    #[arg(long, value_name = "FILE", env = "VOLWRIGHT_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    /// An API server in this process, and models of what else a cluster has
    Embedded,
    /// The real control plane, as `cargo xtask cluster` starts it
    Real,
}

/// How the telling ended.
enum End {
    Told(anyhow::Result<()>),
    Interrupted,
}

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let binary = build()?;
    let story = Story::begin(&args, &binary).await?;
    let end = tokio::select! {
        told = story.tell() => End::Told(told),
        interrupted = interrupted() => interrupted.map(|()| End::Interrupted)?,
    };
    match &end {
        End::Told(Ok(())) if args.keep => {
            story.how_to_go_on();
            interrupted().await?;
        }
        End::Told(Err(_)) => story.show_log(),
        End::Told(Ok(())) | End::Interrupted => {}
    }
    story.end().await;
    match end {
        End::Told(told) => told,
        End::Interrupted => bail!("interrupted; everything is removed"),
    }
}

/// Somebody wants us to end. Cleaning up is then ours: in a cluster that stays, nobody else does it.
async fn interrupted() -> anyhow::Result<()> {
    let listen = |kind| signal(kind).context("cannot listen for signals");
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

fn build() -> anyhow::Result<PathBuf> {
    eprintln!("Building the local-path agent ...");
    let status = crate::cargo::cargo()
        .args(["build", "--quiet", "-p", "volwright-local-path"])
        .status()
        .context("cargo cannot be run")?;
    if !status.success() {
        bail!("the agent cannot be built; cargo has said why");
    }
    Ok(super::test::target_dir().join("debug/volwright-local-path"))
}
