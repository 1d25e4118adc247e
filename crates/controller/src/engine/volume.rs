//! One PV: [`decide::volume`](crate::decide::volume) says what, this does it.
//!
//! ```text
//! released, policy Delete:
//!   observe, mark -> live claim and PV -> delete recorded -> finalizer on? -> DELETE the PV (our fence)
//!   the watch shows it terminating -> observe, aliases, attachments -> live claim and PV -> delete -> finalizer off
//! ```

use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::trash::kept_for;
use crate::decide::volume::{Begun, Step, aliases, concerns_us, may_destroy, may_go_on, step, unnamed};
use crate::decide::{ClaimView, OnDelete, Rule, VolumeView};
use crate::names;
use serde_json::json;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};
use volwright_provisioner::{
    ClaimUid, Class, Failure, Key, Mark, MarkState, Observed, Pristine, Progress, PvName, Result, Trashed,
    Until, parse_bytes,
};

use super::api::Deleted;
use super::happening::{ABOUT_VOLUME, Subject};
use super::pv::{manifest, restorable};
use super::world::OurVolume;
use super::{Flow, Shared, expand};

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
    shared.memory().parted.remove(name);
    let Some(ours) = &cached.ours else { return Ok(Flow::Settled) };
    act(shared, ours).await
}

async fn act(shared: &Shared, ours: &OurVolume) -> Result<Flow> {
    let view = &ours.view;
    let step = step(&shared.identity, view, &ours.state);
    if step != Step::Nothing {
        shared.growth_lapsed(&ClaimUid::new(view.owner()));
    }
    match step {
        Step::Nothing => Ok(expand::run(shared, ours).await),
        Step::Blocked(text) => Err(Failure::blocked(Until::OperatorActs, text)),
        Step::Repair => repair(shared, view).await,
        Step::AddFinalizer => set_finalizer(shared, view, true).await.map(|_| Flow::Settled),
        Step::RemoveFinalizer => set_finalizer(shared, view, false).await.map(|_| Flow::Settled),
        Step::Keep => keep(shared, ours).await,
        Step::Unbound => unbound(shared, ours).await,
        Step::Delete(on_delete) => delete(shared, ours, on_delete).await,
        Step::Orphan(reason) => orphan(shared, ours, reason).await,
    }
}

/// It terminates without our finalizer. Where we took that off ourselves, and it stays for somebody else's finalizer,
/// this is as it should be: the data has gone, is marked as kept, or is another's.
async fn orphan(shared: &Shared, ours: &OurVolume, reason: String) -> Result<Flow> {
    let (view, Some(handle)) = (&ours.view, &ours.handle) else { return Ok(Flow::Settled) };
    let mark = mark_of(shared, view);
    let left = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    let unspoken_for = left.and_then(|seen| seen.mark).is_some_and(|found| {
        found.same_owner(&mark) && !matches!(found.state, MarkState::Retained | MarkState::Trashed)
    });
    if unspoken_for {
        shared.orphaned(&view.name, &reason);
        shared.tell(&Subject::volume(view), true, "VolumeFailedDelete", ABOUT_VOLUME, reason);
    }
    Ok(Flow::Settled)
}

/// It left the watch. For an agent that can also mean that somebody took its label off: then it is put back.
async fn vanished(shared: &Shared, name: &str) -> Result<Flow> {
    if shared.settings.node().is_some()
        && let Some(live) = shared.api.volume(name).await?
    {
        let ours = OurVolume::new(&shared.identity, shared.backend.as_ref(), live);
        let named = shared.settings.node() == ours.view.node_name.as_deref();
        // A terminating one too: nobody else would ever end it.
        if named && ours.handle.is_some() && ours.view.node_label.is_none() {
            return repair(shared, &ours.view).await;
        }
        return Ok(Flow::Settled);
    }
    shared.journal.end_delete(name).await?;
    let parted = shared.memory().parted.get(name).cloned();
    if let Some(ours) = parted {
        record(shared, &ours).await?;
        shared.memory().parted.remove(name);
    }
    Ok(Flow::Settled)
}

/// Somebody deleted a PV whose policy keeps the data: no finalizer of ours held it up, so this comes after the fact.
async fn record(shared: &Shared, ours: &OurVolume) -> Result<()> {
    let (view, Some(handle)) = (&ours.view, &ours.handle) else { return Ok(()) };
    let _held = shared.locks.acquire(shared.backend.alias_keys(&view.source)).await;
    // Made again meanwhile: it speaks for the data.
    if shared.api.volume(&view.name).await?.is_none() && mark_retained(shared, view, handle).await? {
        tell_retained(shared, view);
    }
    Ok(())
}

async fn repair(shared: &Shared, view: &VolumeView) -> Result<Flow> {
    let maker = view.provisioned_by.as_deref().or(view.provisioner.as_deref());
    let maker = maker.unwrap_or_else(|| shared.provisioner());
    let mut change = json!({ "annotations": { (names::PROVISIONED_BY): maker } });
    if let Some(node) = shared.settings.node() {
        change["labels"] = json!({ (names::NODE_LABEL): names::node_hash(node) });
    }
    if shared.api.patch_volume(view, change).await?.is_none() {
        // The watch does not tell of a PV that it no longer shows.
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let text = "an annotation or label of the provisioner was taken off this PV and has been put back; without it \
                another driver could take the volume, or nobody would delete it";
    warn!(pv = view.name, "Put back what was stripped from a PV of ours.");
    shared.tell(&Subject::volume(view), true, "VolumeRepaired", ABOUT_VOLUME, text.to_owned());
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

/// It was deleted before its claim was bound to it. The claim waits for it to go, and then gets another.
async fn unbound(shared: &Shared, ours: &OurVolume) -> Result<Flow> {
    let (seen, Some(handle)) = (&ours.view, &ours.handle) else { return Ok(Flow::Settled) };
    let keys = shared.backend.alias_keys(&seen.source);
    let _held = shared.locks.acquire(keys.clone()).await;
    let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    let others = other_names_of(shared, &seen.name, &keys).await?;
    let claim = live_claim(shared, seen).await?;
    let Some(live) = shared.api.volume(&seen.name).await? else { return Ok(Flow::Settled) };
    let live = OurVolume::new(&shared.identity, shared.backend.as_ref(), live);
    let is_named = claim.is_some_and(|claim| claim.glance.volume_name.as_ref() == Some(&seen.name))
        || !shared.world.claims_that_name(&seen.name, &ClaimUid::new("")).is_empty();
    let as_seen = step(&shared.identity, &live.view, &live.state) == Step::Unbound
        && Begun::of(&live.view) == Begun::of(seen);
    if is_named || !as_seen || !shared.history.is_checked() {
        return Ok(Flow::After(WATCH_GRACE));
    }
    if let Some(reason) = shared.journal.deletes_stopped() {
        return Err(Failure::blocked(Until::OperatorActs, reason));
    }
    let live = &live.view;
    let mark = mark_of(shared, live).with_state(MarkState::Unpublished);
    let is_empty = observed.as_ref().is_none_or(|seen| {
        seen.pristine == Pristine::Yes
            && seen.users.is_empty()
            && seen.mark.as_ref().is_some_and(|found| found.same_owner(&mark))
    });
    if !is_empty || !others.is_empty() {
        return retain(shared, live, handle).await;
    }
    match shared.backend_write("delete", &mark.owner, shared.backend.delete(handle, &mark)).await {
        Ok(Progress::Done(())) => {}
        Ok(Progress::Pending { after, .. }) => return Ok(Flow::After(after)),
        Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
        Err(failure) => return Err(failure),
    }
    // Once the PV is gone its claim gets another volume, by the same owner and in the same place: a delete of ours that
    // comes late must have come before.
    let in_doubt = shared.in_doubt(&mark.owner);
    if !in_doubt.is_zero() {
        return Ok(Flow::After(in_doubt));
    }
    shared.settle_doubt(&mark.owner);
    info!(pv = live.name, "Removed a PV that was deleted before it was bound, and its empty volume.");
    drop_finalizer(shared, live).await
}

/// Marks the data retained, lets the PV go and says how it comes back.
async fn retain(shared: &Shared, live: &VolumeView, handle: &Envelope) -> Result<Flow> {
    // A late mark `published` must not come after ours.
    let in_doubt = shared.in_doubt(&ClaimUid::new(live.owner()));
    if !in_doubt.is_zero() {
        return Ok(Flow::After(in_doubt));
    }
    let is_there = mark_retained(shared, live, handle).await?;
    // Before the patch: the watch may show its effect sooner than we see the reply.
    shared.memory().let_go.insert(live.uid.clone());
    let patched = set_finalizer(shared, live, false).await;
    if !matches!(patched, Ok(Some(_))) {
        shared.memory().let_go.remove(&live.uid);
        return patched.map(|_| Flow::After(CHANGED_AGAIN));
    }
    let tell = if is_there { tell_retained } else { tell_absent };
    tell(shared, live);
    shared.settle_doubt(&ClaimUid::new(live.owner()));
    shared.journal.end_delete(&live.name).await?;
    Ok(Flow::Settled)
}

/// `false`: there is nothing to keep.
async fn mark_retained(shared: &Shared, view: &VolumeView, handle: &Envelope) -> Result<bool> {
    if shared.backend_call("observe", shared.backend.observe(handle)).await?.is_none() {
        return Ok(false);
    }
    let mark = mark_of(shared, view).with_state(MarkState::Retained);
    if !shared.identity.rules.holds(Rule::RetainMarked) {
        return Ok(true);
    }
    match shared.write_mark(handle, &mark).await {
        Ok(()) => {}
        // Another's data is not ours to mark; it is kept in any case.
        Err(failure) if failure.class() == Class::NotOurs => {
            warn!(pv = view.name, error = %chain(&failure), "Left unmarked.");
        }
        Err(failure) => return Err(failure),
    }
    Ok(true)
}

fn tell_retained(shared: &Shared, view: &VolumeView) {
    let manifest = manifest(view);
    info!(pv = view.name, manifest, "Kept the data of a deleted PV; the manifest brings it back.");
    let mut note = format!("data kept; to restore, kubectl create:\n{manifest}");
    if note.len() > NOTE_MAX {
        "data kept; the manifest that brings the PV back is in the provisioner's log".clone_into(&mut note);
    }
    shared.tell(&Subject::volume(view), false, "VolumeRetained", ABOUT_VOLUME, note);
}

fn tell_absent(shared: &Shared, view: &VolumeView) {
    let text = "the volume was already gone from the storage system";
    shared.tell(&Subject::volume(view), false, "VolumeAbsent", ABOUT_VOLUME, text.to_owned());
}

/// Somebody else wrote the PV meanwhile; the watch brings it, this is for the case that it does not.
const CHANGED_AGAIN: Duration = Duration::from_secs(1);

async fn delete(shared: &Shared, ours: &OurVolume, on_delete: OnDelete) -> Result<Flow> {
    let started = Instant::now();
    let (seen, Some(handle)) = (&ours.view, &ours.handle) else { return Ok(Flow::Settled) };
    let keys = shared.backend.alias_keys(&seen.source);
    let _held = shared.locks.acquire(keys.clone()).await;
    let begun = begun(shared, seen).await?;
    // What may take its time comes first: what the API server says must be fresh when it counts.
    let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    let (mut in_use, mut others) = (observed.clone(), Vec::new());
    // Once the watch has delivered our DELETE, it has delivered every PV that was made before. What is kept harms no
    // other PV.
    if seen.terminating && on_delete != OnDelete::Retain {
        others = other_names_of(shared, &seen.name, &keys).await?;
        if let Some(in_use) = in_use.as_mut().filter(|_| seen.source.is_csi()) {
            in_use.users.extend(shared.api.attachments(&seen.name).await?);
        }
    }
    // No decision to destroy rests on a cache alone.
    let claim = live_claim(shared, seen).await?;
    let live = if shared.identity.rules.holds(Rule::LiveVolume) {
        shared.api.volume(&seen.name).await?
    } else {
        Some(seen.clone())
    };
    let Some(live) = live else { return Ok(Flow::Settled) };
    if older(&live.resource_version, &seen.resource_version) {
        shared.history.interrupted();
    }
    if let Some(reason) = shared.journal.deletes_stopped() {
        return Err(Failure::blocked(Until::OperatorActs, reason));
    }
    if !shared.history.is_checked() {
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let live = OurVolume::new(&shared.identity, shared.backend.as_ref(), live);
    // Without one of these rules, in a test, the first look at the live PV does not ask for it either.
    let rules = &shared.identity.rules;
    let is_unchecked = !rules.holds(Rule::PolicyDelete) || !rules.holds(Rule::NotBound);
    let as_seen = concerns_us(&shared.identity, &live.view, &live.state)
        && (is_unchecked || step(&shared.identity, &live.view, &live.state) == Step::Delete(on_delete))
        && live.view.terminating == seen.terminating
        && Begun::of(&live.view) == Begun::of(seen);
    if !as_seen {
        // It is about to be shown to us as it is now.
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    let live = &live.view;
    may_go_on(&shared.identity, &begun, live, claim.as_ref())?;
    let owner = ClaimUid::new(live.claim.as_ref().map_or("", |claim| claim.uid.as_str()));
    unnamed(&shared.identity, live, &shared.world.claims_that_name(&live.name, &owner))?;
    let mark = mark_of(shared, live);
    if !live.terminating {
        return fence(shared, live, begun, &mark, observed.as_ref()).await;
    }
    match may_destroy(&shared.identity, live, &mark, in_use.as_ref(), &others) {
        Ok(()) => {}
        Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
        Err(failure) => return Err(failure),
    }
    if on_delete == OnDelete::Retain {
        return retain(shared, live, handle).await;
    }
    if !shared.identity.rules.holds(Rule::FinalizerLast) {
        drop_finalizer(shared, live).await?;
    }
    if on_delete == OnDelete::Trash {
        return trash(shared, live, handle, &mark, started).await;
    }
    match shared.backend_call("delete", shared.backend.delete(handle, &mark)).await {
        Ok(Progress::Done(())) => {}
        Err(failure)
            if failure.class() == Class::Unknown && !shared.identity.rules.holds(Rule::UntilFinal) => {}
        Ok(Progress::Pending { after, .. }) => return Ok(Flow::After(after)),
        Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
        Err(failure) => return Err(failure),
    }
    if observed.is_none() {
        tell_absent(shared, live);
    }
    gone(shared, live, started).await
}

/// In place of a delete, after the same looks: the data is moved aside, and the PV goes.
async fn trash(
    shared: &Shared,
    live: &VolumeView,
    handle: &Envelope,
    mark: &Mark,
    started: Instant,
) -> Result<Flow> {
    // A restore that was given up must not come after this, nor an earlier call to trash after the PV.
    let in_doubt = shared.in_doubt(&mark.owner);
    if !in_doubt.is_zero() {
        return Ok(Flow::After(in_doubt));
    }
    let kept_for = kept_for(live.trash_for.as_deref()).map_err(|why| {
        Failure::blocked(Until::OperatorActs, format!("the annotation volwright.io/trash-for {why}"))
    })?;
    let now = shared.clocks().await?.latest();
    let claim = live.claim.clone().unwrap_or_default();
    let record = Trashed {
        at: now,
        until: now.saturating_add(kept_for.as_secs()),
        namespace: claim.namespace,
        claim: claim.name,
        class_name: live.class.clone(),
        size: parse_bytes(&live.capacity).unwrap_or_default(),
        note: json!(restorable(live)).to_string(),
    };
    let kept =
        match shared.backend_write("trash", &mark.owner, shared.backend.trash(handle, mark, &record)).await {
            Ok(Progress::Done(kept)) => kept,
            Ok(Progress::Pending { after, .. }) => return Ok(Flow::After(after)),
            Err(failure) if failure.class() == Class::NotOurs => return let_go(shared, live, &failure).await,
            Err(failure) => return Err(failure),
        };
    shared.settle_doubt(&mark.owner);
    shared.trash_changed.store(true, Ordering::Relaxed);
    let Some(kept) = kept else {
        tell_absent(shared, live);
        return gone(shared, live, started).await;
    };
    // Its PV is about to go.
    let counted = (kept.class_name.clone(), kept.size);
    shared.trash_counts([(mark.owner.to_string(), counted)], false);
    let flow = gone(shared, live, started).await?;
    if flow.is_final() {
        let (until, backend) = (super::trash::keys::date(kept.until), shared.backend.name());
        info!(pv = live.name, until, "Moved to the trash.");
        let note = format!(
            "data moved to the trash and kept until {until}; to restore it: volwright-{backend} trash restore {}",
            live.name
        );
        shared.tell(&Subject::volume(live), false, "VolumeTrashed", ABOUT_VOLUME, note);
    }
    Ok(flow)
}

/// Is a live version older than one that the watch has shown? Then either is not what it seems.
fn older(live: &str, seen: &str) -> bool {
    matches!((live.parse::<u64>(), seen.parse::<u64>()), (Ok(live), Ok(seen)) if live < seen)
}

/// With what the delete of this PV began. It begins with what cannot be taken back: our DELETE, which [`fence`] records,
/// or somebody else's, which is recorded here.
async fn begun(shared: &Shared, seen: &VolumeView) -> Result<Begun> {
    let now = Begun::of(seen);
    if !seen.terminating {
        return Ok(now);
    }
    // Another uid: the PV that was being deleted has gone, and this one's delete begins now.
    if let Some(begun) = shared.journal.begun(&seen.name).filter(|begun| begun.uid == seen.uid) {
        return Ok(begun);
    }
    shared.journal.begin_delete(&seen.name, now.clone()).await?;
    Ok(now)
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
    let would_be =
        VolumeView { terminating: true, finalizers: vec![names::FINALIZER.to_owned()], ..live.clone() };
    match may_destroy(&shared.identity, &would_be, mark, observed, &[]) {
        Ok(()) => {}
        // The PV goes, the data stays: the same fence comes first.
        Err(failure) if failure.class() == Class::NotOurs => {}
        Err(failure) => return Err(failure),
    }
    // A record of an earlier try, whose DELETE was refused: the PV may have had another claim since.
    if shared.journal.begun(&live.name).is_some_and(|earlier| earlier != begun) {
        shared.journal.end_delete(&live.name).await?;
    }
    shared.journal.begin_delete(&live.name, begun).await?;
    let fenced = if live.has_finalizer() {
        live.clone()
    } else {
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
    shared.tell(
        &Subject::volume(live),
        true,
        "VolumeFailedDelete",
        ABOUT_VOLUME,
        failure.message().to_owned(),
    );
    warn!(pv = live.name, error = %chain(failure), "The PV goes, the data stays.");
    // Before the patch: the watch may show its effect sooner than we see the reply.
    shared.memory().let_go.insert(live.uid.clone());
    drop_finalizer(shared, live).await
}

/// Nothing is left but our finalizer. Whatever else changes now (others take their own finalizers off, just then) makes
/// no difference.
async fn drop_finalizer(shared: &Shared, live: &VolumeView) -> Result<Flow> {
    if shared.api.drop_finalizer(live).await?.is_none()
        && shared.api.volume(&live.name).await?.is_some_and(|there| there.uid == live.uid)
    {
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    shared.journal.end_delete(&live.name).await?;
    Ok(Flow::Settled)
}

async fn gone(shared: &Shared, live: &VolumeView, started: Instant) -> Result<Flow> {
    let flow = drop_finalizer(shared, live).await?;
    if !flow.is_final() {
        return Ok(flow);
    }
    shared.metrics.deleted(&live.class, started.elapsed());
    info!(pv = live.name, class = live.class, "Deleted.");
    Ok(flow)
}

async fn live_claim(shared: &Shared, live: &VolumeView) -> Result<Option<ClaimView>> {
    match &live.claim {
        Some(claim) => shared.api.claim(&claim.namespace, &claim.name).await,
        None => Ok(None),
    }
}

/// Other PVs of the same data. An agent's watch shows only labelled PVs of its node, and labelled PVs of other nodes
/// cannot alias: what is left to look at is listed.
pub(super) async fn other_names_of(shared: &Shared, name: &str, keys: &[Key]) -> Result<Vec<String>> {
    let mut found = shared.world.aliases(name, keys);
    if shared.settings.node().is_some() {
        shared
            .api
            .visit_unlabelled_volumes(|other| {
                let theirs = shared.backend.alias_keys(&other.source);
                if other.name != name {
                    found.extend(aliases(keys, [(other.name.as_str(), theirs.as_slice())]));
                }
            })
            .await?;
    }
    found.sort();
    found.dedup();
    Ok(found)
}

pub(super) fn mark_of(shared: &Shared, live: &VolumeView) -> Mark {
    shared.mark(ClaimUid::new(live.owner()), PvName::new(live.name.clone()), MarkState::Published)
}
