//! Before a term's work: the picture is complete, what earlier leaders left open is known, and they can commit no more.

use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::Rule;
use crate::decide::retry::Backoff;
use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;
use tracing::{info, warn};
use volwright_provisioner::{ClaimUid, Class, Failure, InventoryItem, Result};

use super::happening::{ABOUT_CLAIM, Subject};
use super::health::WATCHES;
use super::journal::recovered;
use super::report::jittered;
use super::{Found, Shared};

/// Between tries. Quick: claims wait, and the journal is two small reads.
const AGAIN: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(10) };

/// Returns when work may begin.
pub(super) async fn begin(shared: &Shared) {
    // Deciding with half a picture would make a volume for a claim whose PV is not listed yet.
    let mut synced = shared.synced.subscribe();
    if synced.wait_for(|seen| WATCHES.iter().all(|watch| seen.contains(watch))).await.is_err() {
        std::future::pending::<()>().await;
    }
    let mut told = BTreeSet::new();
    until_done(
        "the journal cannot be begun",
        || raise(shared),
        |failure, failures| {
            if failures >= WORTH_TELLING {
                tell_waiting(shared, failure, &mut told);
            }
        },
    )
    .await;
    // What the watches show is new in any case.
    until_done(HISTORY, || compare(shared), |_, _| ()).await;
}

/// A claim that waits while nothing can begin would never hear why: it is not looked at.
fn tell_waiting(shared: &Shared, failure: &Failure, told: &mut BTreeSet<ClaimUid>) {
    for uid in shared.world.waiting_claims(&shared.identity) {
        let Some(claim) = shared.world.claim(&uid).filter(|_| told.insert(uid.clone())) else { continue };
        let subject = Subject::of_claim(&claim.glance.namespace, &claim.glance.name, uid.as_str());
        let text = format!("The provisioner cannot begin: {}", failure.message());
        shared.tell(&subject, true, "ProvisioningFailed", ABOUT_CLAIM, text);
    }
}

/// Failures in a row: what passes by itself within a second or two is nobody's business.
const WORTH_TELLING: u32 = 3;

const HISTORY: &str = "the API server's history cannot be compared";

/// Compares whenever a watch or list was interrupted. Returns when time has gone back: what the watches have told us is
/// then of no use, and they may not notice.
pub(super) async fn until_time_goes_back(shared: &Shared) {
    loop {
        tokio::select! {
            biased;
            () = shared.history.wait() => {}
            () = shared.leadership.may_have_gone_back() => {}
        }
        if until_done(HISTORY, || compare(shared), |_, _| ()).await {
            return;
        }
    }
}

/// Reads the journal anew at every try: it may have been made meanwhile.
async fn raise(shared: &Shared) -> Result<()> {
    let (found, above) = match shared.journal.load().await? {
        Found::Missing if shared.identity.rules.holds(Rule::VanishedCompared) => lost_intents(shared).await?,
        Found::Sound | Found::Missing => (Vec::new(), 0),
    };
    shared.journal.raise(found, above).await
}

/// Nothing is recorded: this is the first start, or somebody deleted the journal. What was begun and never published shows
/// on the storage. Returned with the highest epoch there: marks of a later one than ours could never be taken off.
async fn lost_intents(shared: &Shared) -> Result<(Vec<super::Intent>, u64)> {
    match shared.backend_call("inventory", shared.backend.inventory()).await {
        Ok(items) => {
            let mark = |item: &InventoryItem<Envelope>| item.observed.mark.clone();
            let ours = items
                .into_iter()
                .filter(|item| mark(item).is_some_and(|m| m.installation == shared.settings.installation));
            let ours: Vec<_> = ours.collect();
            let above = ours.iter().filter_map(mark).map(|mark| mark.epoch.number).max().unwrap_or(0);
            // A PV of that name that somebody else made does not speak for it.
            let found = recovered(ours, &|item| {
                mark(item).is_some_and(|mark| shared.world.names_it(mark.pv_name.as_str(), &item.handle))
            });
            if !found.is_empty() {
                warn!(
                    volumes = found.len(),
                    "The journal was missing; volumes that no PV names are looked at again."
                );
            }
            Ok((found, above))
        }
        Err(failure) if failure.class() == Class::Invalid => {
            info!("There is no journal yet, and this storage system cannot list what is on it.");
            Ok((Vec::new(), 0))
        }
        Err(failure) => Err(failure),
    }
}

/// Has the API server's state gone back in time? Then nothing is destroyed until somebody has looked, and everything is
/// read anew. `true`: it has.
async fn compare(shared: &Shared) -> Result<bool> {
    if shared.leadership.take_went_back() {
        shared.history.went_back("the lease is older than it was");
    }
    let before = shared.history.before();
    let now = shared.api.history_version().await?;
    let mut older = before.told.map(str::to_owned);
    if now < before.highest {
        older = Some(format!("it is at version {now} and was at {}", before.highest));
    }
    for (name, suspect) in &before.suspects {
        let live = shared.api.volume(name).await?.filter(|live| live.uid == suspect.uid);
        let version = live.and_then(|live| live.resource_version.parse::<u64>().ok());
        if let Some(version) = version.filter(|version| *version < suspect.version) {
            older = Some(format!("{name} has version {version} and had {}", suspect.version));
        }
    }
    let Some(older) = older.filter(|_| shared.identity.rules.holds(Rule::StopAfterRestore)) else {
        shared.history.is_whole(&before);
        return Ok(false);
    };
    let reason = format!(
        "the API server's state went back in time ({older}), as after etcd was restored from a backup: PVs say what was true \
         then. Compare them with the storage, then acknowledge"
    );
    warn!(reason, "Deletes are stopped.");
    shared.health.set_detail("deletes", format!("stopped: {reason}"));
    let stopped = shared.journal.stop_deletes(&reason).await;
    // One that could not be recorded now stands in memory, and goes into the next term's first write.
    if shared.journal.deletes_stopped().is_none() {
        stopped?;
    }
    shared.history.begin_anew(&before, now);
    Ok(true)
}

/// Tries until it succeeds.
async fn until_done<T, F: Future<Output = Result<T>>>(
    what: &'static str,
    mut step: impl FnMut() -> F,
    mut failed: impl FnMut(&Failure, u32),
) -> T {
    let mut failures = 0;
    loop {
        let failure = match step().await {
            Ok(done) => return done,
            Err(failure) => failure,
        };
        failures += 1;
        warn!(what, attempt = failures, error = %chain(&failure), "Cannot go on yet, will try again.");
        failed(&failure, failures);
        tokio::time::sleep(jittered(AGAIN.delay(failures))).await;
    }
}
