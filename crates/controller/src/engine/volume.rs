//! One PV: [`decide::volume`](crate::decide::volume) says what, this does it.
//!
//! ```text
//! released, policy Delete:
//!   live PV and claim -> observe, mark -> delete recorded -> finalizer on? -> DELETE the PV (our fence)
//!   the watch shows it terminating -> live PV and claim again -> aliases, attachments, mark -> delete -> finalizer off
//! ```

use crate::backend::Envelope;
use crate::decide::volume::{Begun, Step, aliases, may_destroy, may_go_on, step};
use crate::decide::{ClaimView, OnDelete, VolumeView};
use crate::names;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};
use volwright_provisioner::{
    Class, ClaimUid, Failure, Key, Mark, MarkState, Observed, Progress, PvName, Result,
};

use super::api::Deleted;
use super::happening::{ABOUT_VOLUME, Subject};
use super::pv::manifest;
use super::world::OurVolume;
use super::{Flow, Shared};

/// Events' notes are at most this long (kubernetes-facts 10); a longer manifest goes to the log alone.
const NOTE_MAX: usize = 1024;

/// Works on one PV until there is nothing to do, or something to wait for.
pub(super) async fn run(shared: &Shared, name: &str) -> Flow {
    match work(shared, name).await {
        Ok(flow) => flow,
        Err(failure) => Flow::Failed(failure),
    }
}

async fn work(shared: &Shared, name: &str) -> Result<Flow> {
    let Some(cached) = shared.world.volume(name) else { return vanished(shared, name).await };
    let Some(ours) = &cached.ours else { return Ok(Flow::Settled) };
    act(shared, ours).await
}

async fn act(shared: &Shared, ours: &OurVolume) -> Result<Flow> {
    let view = &ours.view;
    match step(&shared.identity, view, &ours.state) {
        Step::Nothing => Ok(Flow::Settled),
        Step::Blocked(text) => Err(Failure::blocked(volwright_provisioner::Until::OperatorActs, text)),
        Step::Repair => repair(shared, view).await,
        Step::AddFinalizer => set_finalizer(shared, view, true).await.map(|_| Flow::Settled),
        Step::RemoveFinalizer => set_finalizer(shared, view, false).await.map(|_| Flow::Settled),
        Step::Keep => keep(shared, ours).await,
        Step::Delete(on_delete) => delete(shared, &view.name, on_delete).await,
        Step::Orphan(reason) => {
            shared.orphaned(&view.name, &reason);
            shared.tell(&Subject::volume(view), true, "VolumeFailedDelete", ABOUT_VOLUME, reason);
            Ok(Flow::Settled)
        }
    }
}

/// It left the watch. For an agent that can also mean that somebody took its label off: then it is put back.
async fn vanished(shared: &Shared, name: &str) -> Result<Flow> {
    if shared.settings.node().is_some() {
        if let Some(live) = shared.api.volume(name).await? {
            let ours = OurVolume::new(shared.backend.as_ref(), live);
            let named = shared.settings.node() == ours.view.node_name.as_deref();
            if named && ours.handle.is_some() && ours.view.node_label.is_none() && !ours.view.terminating {
                return repair(shared, &ours.view).await;
            }
            return Ok(Flow::Settled);
        }
    }
    shared.journal.end_delete(name).await?;
    Ok(Flow::Settled)
}

async fn repair(shared: &Shared, view: &VolumeView) -> Result<Flow> {
    let mut change = json!({ "annotations": { (names::PROVISIONED_BY): shared.provisioner() } });
    if let Some(node) = shared.settings.node() {
        change["labels"] = json!({ (names::NODE_LABEL): names::node_hash(node) });
    }
    if shared.api.patch_volume(view, change).await?.is_some() {
        let text = "an annotation or label of the provisioner was taken off this PV and has been put back; without it \
                    another driver could take the volume, or nobody would delete it";
        warn!(pv = view.name, "Put back what was stripped from a PV of ours.");
        shared.tell(&Subject::volume(view), true, "VolumeRepaired", ABOUT_VOLUME, text.to_owned());
    }
    Ok(Flow::Settled)
}

/// Puts our finalizer on or takes it off, if the PV is still as it was seen. `None`: it is not, and the watch will tell.
async fn set_finalizer(shared: &Shared, view: &VolumeView, on: bool) -> Result<Option<VolumeView>> {
    let mut finalizers: Vec<&str> =
        view.finalizers.iter().map(String::as_str).filter(|name| *name != names::FINALIZER).collect();
    if on {
        finalizers.push(names::FINALIZER);
    }
    shared.api.patch_volume(view, json!({ "finalizers": finalizers })).await
}

/// It was deleted by hand while its data stays.
async fn keep(shared: &Shared, ours: &OurVolume) -> Result<Flow> {
    let Some(handle) = &ours.handle else { return Ok(Flow::Settled) };
    let _held = shared.locks.acquire(shared.backend.alias_keys(&ours.view.source)).await;
    retain(shared, &ours.view, handle).await
}

/// Marks the data retained, lets the PV go and says how it comes back.
async fn retain(shared: &Shared, live: &VolumeView, handle: &Envelope) -> Result<Flow> {
    let mark = mark_of(shared, live).with_state(MarkState::Retained);
    match shared.backend_call("set_mark", shared.backend.set_mark(handle, &mark)).await {
        Ok(()) => {}
        // Another's data is not ours to mark; it is kept in any case.
        Err(failure) if failure.class() == Class::NotOurs => warn!(pv = live.name, error = ?failure, "Left unmarked."),
        Err(failure) => return Err(failure),
    }
    if set_finalizer(shared, live, false).await?.is_none() {
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let manifest = manifest(live);
    info!(pv = live.name, manifest, "Kept the data of a deleted PV; the manifest brings it back.");
    let mut note = format!("data kept; to bring it back apply:\n{manifest}");
    if note.len() > NOTE_MAX {
        "data kept; the manifest that brings the PV back is in the provisioner's log".clone_into(&mut note);
    }
    shared.tell(&Subject::volume(live), false, "VolumeRetained", ABOUT_VOLUME, note);
    shared.journal.end_delete(&live.name).await?;
    Ok(Flow::Settled)
}

/// Somebody else wrote the PV meanwhile; the watch brings it, this is for the case that it does not.
const CHANGED_AGAIN: Duration = Duration::from_secs(1);

async fn delete(shared: &Shared, name: &str, on_delete: OnDelete) -> Result<Flow> {
    let started = Instant::now();
    let cached_terminating =
        shared.world.volume(name).and_then(|v| v.ours.as_ref().map(|ours| ours.view.terminating)).unwrap_or(false);
    // No decision to destroy rests on a cache alone.
    let Some(live) = shared.api.volume(name).await? else { return Ok(Flow::Settled) };
    let ours = OurVolume::new(shared.backend.as_ref(), live);
    if step(&shared.identity, &ours.view, &ours.state) != Step::Delete(on_delete) {
        // It is about to be shown to us as it is now.
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let (live, Some(handle)) = (&ours.view, &ours.handle) else { return Ok(Flow::Settled) };
    let keys = shared.backend.alias_keys(&live.source);
    let _held = shared.locks.acquire(keys.clone()).await;
    let claim = live_claim(shared, live).await?;
    let begun = shared.journal.begun(name).unwrap_or_else(|| Begun::of(live));
    may_go_on(&shared.identity, &begun, live, claim.as_ref())?;
    let mark = mark_of(shared, live);
    let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    if !live.terminating {
        return fence(shared, live, begun, &mark, observed.as_ref()).await;
    }
    if !cached_terminating {
        // Once the watch has delivered our DELETE, it has delivered every PV that was made before.
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let others = other_names_of(shared, live, &keys).await?;
    let mut seen = observed.clone();
    if let Some(seen) = seen.as_mut().filter(|_| live.source.is_csi()) {
        seen.users.extend(shared.api.attachments(name).await?);
    }
    match may_destroy(&shared.identity, live, &mark, seen.as_ref(), &others) {
        Ok(()) => {}
        Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
        Err(failure) => return Err(failure),
    }
    if on_delete == OnDelete::Retain {
        return retain(shared, live, handle).await;
    }
    match shared.backend_call("delete", shared.backend.delete(handle, &mark)).await {
        Ok(Progress::Done(())) => {}
        Ok(Progress::Pending { after, .. }) => return Ok(Flow::After(after)),
        Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
        Err(failure) => return Err(failure),
    }
    if observed.is_none() {
        let text = "the volume was already gone from the storage system";
        shared.tell(&Subject::volume(live), false, "VolumeAbsent", ABOUT_VOLUME, text.to_owned());
    }
    gone(shared, live, started).await
}

/// The PV's deletionTimestamp is our fence: attachers refuse a terminating PV, and from then on it can only go. Before
/// it is raised, everything that would stop us later is looked at.
async fn fence(
    shared: &Shared,
    live: &VolumeView,
    begun: Begun,
    mark: &Mark,
    observed: Option<&Observed>,
) -> Result<Flow> {
    let would_be = VolumeView {
        terminating: true,
        finalizers: vec![names::FINALIZER.to_owned()],
        ..live.clone()
    };
    match may_destroy(&shared.identity, &would_be, mark, observed, &[]) {
        Ok(()) => {}
        // The PV goes, the data stays: the same fence comes first.
        Err(failure) if failure.class() == Class::NotOurs => {}
        Err(failure) => return Err(failure),
    }
    shared.journal.begin_delete(&live.name, begun).await?;
    let fenced = if live.has_finalizer() { live.clone() } else {
        match set_finalizer(shared, live, true).await? {
            Some(fenced) => fenced,
            None => return Ok(Flow::After(CHANGED_AGAIN)),
        }
    };
    match shared.api.delete_volume(&fenced).await? {
        Deleted::Terminating(shown) if shown.has_finalizer() => Ok(Flow::After(WATCH_GRACE)),
        Deleted::Terminating(_) | Deleted::Gone => {
            shared.orphaned(&live.name, "its PV went without our finalizer; its data stays");
            shared.journal.end_delete(&live.name).await?;
            Ok(Flow::Settled)
        }
        Deleted::Changed => Ok(Flow::After(CHANGED_AGAIN)),
    }
}

/// The watch wakes us with the terminating PV in milliseconds; this is for the case that it does not.
const WATCH_GRACE: Duration = Duration::from_secs(5);

/// The data is another's: the PV goes, the data stays.
async fn let_go(shared: &Shared, live: &VolumeView, failure: &Failure) -> Result<Flow> {
    shared.tell(&Subject::volume(live), true, "VolumeFailedDelete", ABOUT_VOLUME, failure.message().to_owned());
    warn!(pv = live.name, error = ?failure, "The PV goes, the data stays.");
    match set_finalizer(shared, live, false).await? {
        Some(_) => shared.journal.end_delete(&live.name).await.map(|()| Flow::Settled),
        None => Ok(Flow::After(CHANGED_AGAIN)),
    }
}

async fn gone(shared: &Shared, live: &VolumeView, started: Instant) -> Result<Flow> {
    // A conflict here is common: others take their own finalizers off. The volume is gone, so only the finalizer is left.
    if set_finalizer(shared, live, false).await?.is_none() && shared.api.volume(&live.name).await?.is_some() {
        return Ok(Flow::After(Duration::from_millis(50)));
    }
    shared.journal.end_delete(&live.name).await?;
    shared.metrics.deleted(&live.class, started.elapsed());
    info!(pv = live.name, class = live.class, "Deleted.");
    Ok(Flow::Settled)
}

async fn live_claim(shared: &Shared, live: &VolumeView) -> Result<Option<ClaimView>> {
    match &live.claim {
        Some(claim) => shared.api.claim(&claim.namespace, &claim.name).await,
        None => Ok(None),
    }
}

/// Other PVs of the same data. An agent's watch shows only labelled PVs of its node, and labelled PVs of other nodes
/// cannot alias: what is left to look at is listed.
async fn other_names_of(shared: &Shared, live: &VolumeView, keys: &[Key]) -> Result<Vec<String>> {
    let mut found = shared.world.aliases(&live.name, keys);
    if shared.settings.node().is_some() {
        shared
            .api
            .visit_unlabelled_volumes(|other| {
                let theirs = shared.backend.alias_keys(&other.source);
                if other.name != live.name {
                    found.extend(aliases(keys, [(other.name.as_str(), theirs.as_slice())]));
                }
            })
            .await?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

fn mark_of(shared: &Shared, live: &VolumeView) -> Mark {
    shared.mark(ClaimUid::new(live.owner()), PvName::new(live.name.clone()), MarkState::Published)
}
