//! The workers of a term, and what makes them look again.

use futures::FutureExt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::info;
use volwright_provisioner::Failure;

use super::report::jittered;
use super::{Flow, Shared, Spawner, claim, sweep, trash, volume};

/// Starts the workers, and beside them what keeps the journal and looks again now and then.
pub(super) fn start(
    shared: &Arc<Shared>,
    spawner: &Spawner,
    workers: &mut JoinSet<()>,
    beside: &mut JoinSet<()>,
) {
    info!("Watches are complete, work begins.");
    // What an earlier process left open.
    for uid in shared.journal.claims() {
        shared.claims.add(uid);
    }
    for name in shared.journal.deletes() {
        shared.volumes.add(name);
    }
    for _ in 0..shared.settings.workers {
        spawner.spawn(workers, claim_worker(Arc::clone(shared)));
        spawner.spawn(workers, volume_worker(Arc::clone(shared)));
    }
    spawner.spawn(beside, resync(Arc::clone(shared)));
    spawner.spawn(beside, sweep::run(Arc::clone(shared)));
    if !shared.settings.trash_interval.is_zero() {
        spawner.spawn(beside, trash::run(Arc::clone(shared)));
    }
    let shared = Arc::clone(shared);
    spawner.spawn(beside, async move { shared.journal.tend().await });
}

/// Looks at everything again now and then, in case a change was missed.
async fn resync(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(jittered(shared.settings.resync)).await;
        for uid in shared.world.waiting_claims(&shared.identity) {
            shared.claims.add_after(uid, spread());
        }
        for uid in shared.journal.claims() {
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
