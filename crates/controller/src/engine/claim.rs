//! One claim, from a look to a PV: [`decide::claim`](crate::decide::claim) says what, this does it.
//!
//! ```text
//! route -> terms -> plan -> intent recorded -> live re-read -> observe -> provision -> mark published
//!       -> create PV -> intent ended                        claim gone, exhausted, refused -> undo -> intent ended
//! ```

use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::claim::{
    Route, Terms, Why, asks_no_agent, attributes_class, concerns_us, place, route, terms,
};
use crate::decide::settle::{Settle, settle};
use crate::decide::{ClaimGlance, ClaimView, ClassView, OnDelete, Rule};
use crate::names;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use volwright_provisioner::{
    ClaimUid, Class, Failure, Mark, MarkState, NodeInfo, Observed, ParameterMap, Progress, Provisioned,
    PvName, Request, Result, Until, VolumeSource,
};

use super::api::Created;
use super::happening::{ABOUT_CLAIM, Subject};
use super::journal::{Intent, encode_blob};
use super::pv::{Publication, persistent_volume};
use super::volume::other_names_of;
use super::{Flow, Shared};

/// Works on one claim until there is nothing to do, or something to wait for.
pub(super) async fn run(shared: &Shared, uid: &ClaimUid) -> Flow {
    match serve(shared, uid).await {
        Ok(flow) => flow,
        Err(failure) => Flow::Failed(failure),
    }
}

async fn serve(shared: &Shared, uid: &ClaimUid) -> Result<Flow> {
    let intent = shared.journal.intent(uid);
    if let Some(found) = &intent {
        // One whose record is in doubt shows too: nothing is done on it that is not recorded.
        shared.journal.open(Intent::clone(found)).await?;
    }
    let cached = shared.world.claim(uid);
    let concerned = cached.as_ref().is_some_and(|c| concerns_us(&shared.identity, &c.glance));
    if intent.is_none() && !concerned {
        return match cached {
            Some(cached) if asks_no_agent(&shared.identity, &cached.glance) => {
                refuse_once(shared, &cached.glance).await
            }
            _ => Ok(Flow::Parked),
        };
    }
    // An agent's watch does not tell it which claims are bound, so it looks whether they have their PV before it asks.
    let pv_name = names::pv_name(uid.as_str());
    if intent.is_none() && shared.settings.node().is_some() && has_volume(shared, &pv_name) {
        return Ok(Flow::Settled);
    }
    let (seen, from_cache) = match cached.as_ref().and_then(|c| c.full.clone()) {
        Some(full) => (Some(full), true),
        None => (live_claim(shared, uid, intent.as_deref()).await?, false),
    };
    let Some(claim) = seen else { return abandon(shared, uid, intent).await };
    if let Some(undone) = intent.as_ref().filter(|intent| intent.undoing) {
        let flow = abandon(shared, uid, intent.clone()).await?;
        shared.raise_attempt(uid, undone.request.attempt);
        // Whatever the claim needs now is another plan.
        return Ok(if flow.is_final() { Flow::After(Duration::ZERO) } else { flow });
    }
    let subject = Subject::claim(&claim);
    let class = shared.world.class(claim.class.as_deref().unwrap_or_default());
    let existing = existing_volume(shared, uid, &pv_name).await?;
    let known = existing.as_ref().map(|(view, readable)| (view, *readable));
    match route(&shared.identity, &claim, class.as_deref(), known) {
        Route::Serve => {}
        Route::Done => return published(shared, uid).await,
        Route::Refuse(text) => {
            let undone = abandon(shared, uid, intent).await?;
            return if undone.is_final() { Err(Failure::invalid(text)) } else { Ok(undone) };
        }
        // A class that went under an open intent: the intent has all that is needed.
        Route::Wait(Why::ClassMissing, _) | Route::Nothing(Why::ClassOfAnother) if intent.is_some() => {}
        Route::Wait(why, note) => {
            debug!(claim = %subject, ?why, "Claim waits.");
            if let Some(note) = note {
                shared.tell(&subject, why == Why::ClassMissing, reason_to_wait(why), ABOUT_CLAIM, note);
            }
            return abandon(shared, uid, intent).await;
        }
        Route::Nothing(why) => {
            debug!(claim = %subject, ?why, "Nothing to do for this claim.");
            let flow = abandon(shared, uid, intent).await?;
            return Ok(if flow.is_final() && why == Why::Bound { Flow::Settled } else { flow });
        }
    }
    if let Some(flow) = due_reschedule(shared, &claim).await? {
        return Ok(flow);
    }
    let Some(node) = node_for(shared, &claim, class.as_deref()).await? else {
        return node_gone(shared, &claim, intent).await;
    };
    let had_intent = intent.is_some();
    let intent = match planned(shared, &claim, class.as_deref(), node, intent).await {
        Ok(Planned::Ready(intent)) => intent,
        Ok(Planned::Not(flow)) => return Ok(flow),
        Err(failure) => return no_room_or(shared, &claim, failure).await,
    };
    // The record may have waited for its turn: what was decided on must still be so. An agent that has just read the
    // claim, and whose record is a local file, need not ask twice.
    if from_cache && shared.identity.rules.holds(Rule::LiveClaim) {
        let live = live_claim(shared, uid, Some(&intent)).await?;
        let still = live.as_ref().is_some_and(|live| {
            concerns_us(&shared.identity, &live.glance)
                && live.glance.selected_node == claim.glance.selected_node
        });
        if !still {
            return abandon(shared, uid, Some(intent)).await;
        }
    }
    match make(shared, &claim, &intent, had_intent).await {
        Ok(flow) => Ok(flow),
        Err(failure) => match failure.class() {
            // Nothing will come of this plan: it goes, and the next one is planned elsewhere.
            Class::Exhausted | Class::Invalid | Class::NotOurs => {
                let attempt = intent.request.attempt;
                let undone = abandon(shared, uid, Some(intent)).await?;
                shared.raise_attempt(uid, attempt);
                if !undone.is_final() {
                    // By then nothing would tell why it was undone, and the next plan would be for the same node.
                    if is_elsewhere(&claim, &failure) {
                        put_off(shared, &claim, &failure);
                    }
                    return Ok(undone);
                }
                no_room_or(shared, &claim, failure).await
            }
            Class::Unavailable | Class::Unknown | Class::Blocked(_) => Err(failure),
        },
    }
}

fn reason_to_wait(why: Why) -> &'static str {
    match why {
        Why::ClassMissing => "ProvisioningFailed",
        Why::Populator => "Provisioning",
        _ => "WaitForVolume",
    }
}

/// The claim as it is now, if it still is the one of this uid.
async fn live_claim(shared: &Shared, uid: &ClaimUid, intent: Option<&Intent>) -> Result<Option<ClaimView>> {
    let (namespace, name) = match (shared.world.claim(uid), intent) {
        (Some(cached), _) => (cached.glance.namespace.clone(), cached.glance.name.clone()),
        // Found on the storage by its mark, which does not say the names: the watch knows every claim.
        (None, Some(intent)) if intent.request.claim.name.is_empty() => return Ok(None),
        (None, Some(intent)) => (intent.request.claim.namespace.clone(), intent.request.claim.name.clone()),
        (None, None) => return Ok(None),
    };
    let live = shared.api.claim(&namespace, &name).await?;
    Ok(live.filter(|live| live.glance.uid == *uid))
}

/// The PV of the claim's name, and whether we can read its handle. Where all PVs are watched the cache answers: a PV that
/// it does not show yet is found by the 409 of our own create, or, where we have just made it, by asking: the backend
/// need not work twice because the watch is slower than a change of the claim. An agent's watch shows only PVs with its
/// label, so it asks.
async fn existing_volume(
    shared: &Shared,
    uid: &ClaimUid,
    name: &str,
) -> Result<Option<(crate::decide::VolumeView, bool)>> {
    let readable = |ours: &super::world::OurVolume| (ours.view.clone(), ours.handle.is_some());
    let cached = shared.world.volume(name);
    if let Some(ours) = cached.as_ref().and_then(|volume| volume.ours.as_ref()) {
        return Ok(Some(readable(ours)));
    }
    if cached.is_none() && shared.settings.node().is_none() && !shared.has_just_published(uid) {
        return Ok(None);
    }
    let live = shared.api.volume(name).await?;
    if live.is_none() {
        shared.publication_seen(uid);
    }
    Ok(live
        .map(|view| readable(&super::world::OurVolume::new(&shared.identity, shared.backend.as_ref(), view))))
}

/// Is a living PV of ours there for the claim?
fn has_volume(shared: &Shared, pv_name: &str) -> bool {
    let volume = shared.world.volume(pv_name);
    volume
        .as_ref()
        .and_then(|volume| volume.ours.as_ref())
        .is_some_and(|ours| ours.handle.is_some() && !ours.view.terminating)
}

/// A claim of a class with Immediate binding, where agents serve claims by node: none of them would ever feel asked, and
/// the claim would wait without a word. Every agent waits for a while of its own, so that one speaks and the rest find
/// that it has.
async fn refuse_once(shared: &Shared, glance: &ClaimGlance) -> Result<Flow> {
    if shared.first_try(&glance.uid) {
        return Ok(Flow::After(Duration::from_millis(fastrand::u64(0..SPEAKERS_SPREAD))));
    }
    if shared.api.event_exists(&glance.namespace, glance.uid.as_str(), "ProvisioningFailed").await? {
        return Ok(Flow::Parked);
    }
    let live =
        shared.api.claim(&glance.namespace, &glance.name).await?.filter(|live| live.glance.uid == glance.uid);
    let Some(live) = live.filter(|live| asks_no_agent(&shared.identity, &live.glance)) else {
        return Ok(Flow::Parked);
    };
    let Some(class) = shared.world.class(live.class.as_deref().unwrap_or_default()) else {
        return Ok(Flow::Parked);
    };
    if class.late_binding {
        return Ok(Flow::Parked);
    }
    let offers = shared.backend.capabilities(&class.parameters)?;
    match terms(&live, &class, &offers) {
        Ok(_) => Ok(Flow::Parked),
        Err(text) => Err(Failure::invalid(text)),
    }
}

/// Milliseconds over which agents spread their first look at a claim that names no node.
const SPEAKERS_SPREAD: u64 = 10_000;

/// The claim has its PV: the intent has served.
async fn published(shared: &Shared, uid: &ClaimUid) -> Result<Flow> {
    match shared.journal.intent(uid) {
        Some(intent) => abandon(shared, uid, Some(intent)).await,
        None => Ok(Flow::Settled),
    }
}

/// The node to make the volume on: `Some(None)` where none is wanted, `None` where the chosen one is gone.
async fn node_for(
    shared: &Shared,
    claim: &ClaimView,
    class: Option<&ClassView>,
) -> Result<Option<Option<NodeInfo>>> {
    if let Some(own) = shared.settings.node() {
        return Ok(shared.own_node(own).await?.map(Some));
    }
    let late = class.is_none_or(|class| class.late_binding);
    match claim.glance.selected_node.as_deref().filter(|_| late) {
        None => Ok(Some(None)),
        Some(name) => Ok(shared.api.node(name).await?.map(Some)),
    }
}

/// Nobody else takes the choice of a node back that is gone (kubernetes-facts 8): the pod would wait for ever.
async fn node_gone(shared: &Shared, claim: &ClaimView, intent: Option<Arc<Intent>>) -> Result<Flow> {
    let undone = abandon(shared, &claim.glance.uid, intent).await?;
    if !undone.is_final() {
        return Ok(undone);
    }
    let node = claim.glance.selected_node.clone().unwrap_or_default();
    let text =
        format!("the selected node {node:?} does not exist any more; the scheduler will choose another");
    reschedule(shared, claim, Failure::exhausted(text)).await
}

enum Planned {
    Ready(Arc<Intent>),
    Not(Flow),
}

/// An intent that fits this claim: the open one, or a new one.
async fn planned(
    shared: &Shared,
    claim: &ClaimView,
    class: Option<&ClassView>,
    node: Option<NodeInfo>,
    open: Option<Arc<Intent>>,
) -> Result<Planned> {
    let uid = &claim.glance.uid;
    let Some(class) = class else {
        return Ok(match open {
            Some(intent) => Planned::Ready(intent),
            None => Planned::Not(Flow::Parked),
        });
    };
    let offers = shared.backend.capabilities(&class.parameters)?;
    let Terms { size, access_modes, volume_mode, on_delete } =
        terms(claim, class, &offers).map_err(Failure::invalid)?;
    let pv_name = PvName::new(names::pv_name(uid.as_str()));
    let mark = shared.mark(uid.clone(), pv_name.clone(), MarkState::Unpublished);
    let request = Request {
        claim: claim.info(),
        pv_name,
        size,
        access_modes,
        volume_mode,
        class_name: class.name.clone(),
        parameters: class.parameters.clone(),
        node,
        attempt: shared.attempt(uid),
        mark,
        intent: None,
    };
    if let Some(intent) = open {
        if shared.backend.fits(&request, &intent.handle) {
            return Ok(Planned::Ready(intent));
        }
        let attempt = intent.request.attempt;
        let undone = abandon(shared, uid, Some(intent)).await?;
        shared.raise_attempt(uid, attempt);
        // Planned anew in the next run, with the next attempt number.
        return Ok(Planned::Not(if undone.is_final() { Flow::After(Duration::ZERO) } else { undone }));
    }
    let subject = Subject::claim(claim);
    let text = format!("External provisioner is provisioning volume for claim \"{subject}\"");
    if shared.first_try(uid) {
        shared.tell(&subject, false, "Provisioning", ABOUT_CLAIM, text);
    }
    shared.promise(uid, class, size)?;
    let recorded = record(shared, claim, class, request, on_delete).await;
    if recorded.is_err() && shared.journal.intent(uid).is_none() {
        shared.promise_ended(uid);
    }
    recorded
}

/// Plans, and records the plan.
async fn record(
    shared: &Shared,
    claim: &ClaimView,
    class: &ClassView,
    request: Request<ParameterMap>,
    on_delete: OnDelete,
) -> Result<Planned> {
    let handle = shared.backend_call("plan", shared.backend.plan(&request)).await?;
    attributes_class(claim, &source_of(shared, &handle)?).map_err(Failure::invalid)?;
    let intent = Intent {
        request,
        class_uid: class.uid.clone(),
        provisioner: class.provisioner.clone(),
        policy: class.reclaim_policy,
        mount_options: class.mount_options.clone(),
        on_delete,
        handle,
        undoing: false,
        epoch: shared.journal.epoch(),
    };
    // A read, and so before the record: a claim whose place is taken is refused again and again, and writes nothing.
    let observed = shared.backend_call("observe", shared.backend.observe(&intent.handle)).await?;
    place(&shared.identity, &intent.request.mark, observed.as_ref(), false).map_err(Failure::not_ours)?;
    let intent = noted(shared, intent);
    if shared.identity.rules.holds(Rule::IntentFirst) {
        shared.journal.open(intent.clone()).await?;
    }
    Ok(Planned::Ready(Arc::new(intent)))
}

/// Where the storage's own records are the journal, the intent goes with the request.
fn noted(shared: &Shared, mut intent: Intent) -> Intent {
    if shared.settings.node().is_some() {
        intent.request.intent = encode_blob(&intent).ok();
    }
    intent
}

/// From a recorded intent to a PV.
async fn make(shared: &Shared, claim: &ClaimView, intent: &Intent, had_intent: bool) -> Result<Flow> {
    let started = Instant::now();
    let uid = &claim.glance.uid;
    let handle = &intent.handle;
    // An earlier leader may have recorded it; what is made now is ours.
    let mark = shared.mark(uid.clone(), intent.request.pv_name.clone(), MarkState::Unpublished);
    let request = Request { mark: mark.clone(), ..intent.request.clone() };
    let source = source_of(shared, handle)?;
    let _held = shared.locks.acquire(shared.backend.alias_keys(&source)).await;
    if had_intent {
        let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
        place(&shared.identity, &mark, observed.as_ref(), true).map_err(Failure::not_ours)?;
    }
    let provisioned = shared.backend.provision(&request, handle);
    let made = match shared.backend_write("provision", uid, provisioned).await? {
        Progress::Done(made) => made,
        Progress::Pending { after, note } => {
            shared.tell(&Subject::claim(claim), false, "Provisioning", ABOUT_CLAIM, note);
            return Ok(Flow::After(after));
        }
    };
    complete(shared, intent, &made).await?;
    // Making it may have taken minutes. If nobody waits for it any more, the next run undoes it.
    if shared.world.claim(uid).is_none_or(|cached| cached.glance.terminating) {
        return Ok(Flow::After(Duration::ZERO));
    }
    // Where the backend cannot see whether a volume was used, the mark `unpublished` is all that tells that it was not, so
    // it goes before anybody can use it. Else it stays until the PV is there: it tells that there may be none.
    let sees_contents =
        shared.backend.capabilities(&request.parameters).is_ok_and(|offers| offers.sees_contents);
    let published = mark.with_state(MarkState::Published);
    if !sees_contents && shared.identity.rules.holds(Rule::MarkBeforePv) {
        shared.write_mark(&made.handle, &published).await?;
    }
    if !shared.identity.rules.holds(Rule::IntentStays) {
        shared.end_intent(uid).await?;
    }
    if let Some(flow) = publish(shared, claim, intent, &made, started).await? {
        return Ok(flow);
    }
    if sees_contents {
        shared.write_mark(&made.handle, &published).await?;
    }
    let unsettled = shared.unsettled(intent);
    if !unsettled.is_zero() {
        return Ok(Flow::After(unsettled));
    }
    shared.end_intent(uid).await?;
    Ok(Flow::Settled)
}

fn source_of(shared: &Shared, handle: &Envelope) -> Result<VolumeSource> {
    shared.backend.source(handle).map_err(|error| Failure::blocked(Until::OperatorActs, error.to_string()))
}

/// What was made must be what was meant; a handle that `provision` completed is recorded before it is published.
async fn complete(shared: &Shared, intent: &Intent, made: &Provisioned<Envelope>) -> Result<()> {
    let text = |what: &str| {
        Failure::blocked(Until::OperatorActs, format!("the backend made {what}; nothing is published"))
    };
    if !shared.backend.same_volume(&intent.handle, &made.handle) {
        return Err(text("another volume than was planned"));
    }
    if made.size < intent.request.size {
        return Err(text("a smaller volume than was asked for"));
    }
    if made.handle != intent.handle {
        shared.journal.open(Intent { handle: made.handle.clone(), ..intent.clone() }).await?;
    }
    Ok(())
}

/// `None`: the PV is there.
async fn publish(
    shared: &Shared,
    claim: &ClaimView,
    intent: &Intent,
    made: &Provisioned<Envelope>,
    started: Instant,
) -> Result<Option<Flow>> {
    let uid = &claim.glance.uid;
    let subject = Subject::claim(claim);
    let source = source_of(shared, &made.handle)?;
    let mut volume = persistent_volume(&Publication {
        intent,
        handle: &made.handle,
        source: &source,
        size: made.size,
        topology: &made.topology,
        attributes_class: claim.attributes_class.as_deref(),
        node: shared.settings.node(),
    })?;
    if !shared.identity.rules.holds(Rule::FinalizerFirst) {
        volume.metadata.finalizers = None;
    }
    if !shared.identity.rules.holds(Rule::ProvisionedBy) {
        volume.metadata.annotations.get_or_insert_default().remove(names::PROVISIONED_BY);
    }
    let name = intent.request.pv_name.as_str();
    match shared.api.create_volume(&volume).await? {
        Created::New => {
            shared.metrics.provisioned(&intent.request.class_name, claim.source_kind(), started.elapsed());
            info!(claim = %subject, uid = %uid, pv = name, class = intent.request.class_name, "Provisioned.");
            let text = format!("Successfully provisioned volume {name}");
            shared.tell(&subject, false, "ProvisioningSucceeded", ABOUT_CLAIM, text);
            shared.forget_claim(uid);
            shared.just_published(uid);
            shared.promise_made(uid, &intent.request.class_name, made.size);
            Ok(None)
        }
        // Compared by the volume, never by claimRef: a populator re-points it.
        Created::Exists
            if !shared.identity.rules.holds(Rule::ConflictCompared)
                || is_named(shared, &intent.request.pv_name, &made.handle).await? =>
        {
            info!(claim = %subject, uid = %uid, pv = name, "The PV of this volume was there already.");
            Ok(None)
        }
        Created::Exists => Err(Failure::not_ours(format!(
            "a PersistentVolume named {name} with another volume exists; the volume made for this claim is removed \
             again"
        ))),
    }
}

/// Does the live PV of this name name the volume of this handle?
pub(super) async fn is_named(shared: &Shared, pv: &PvName, handle: &Envelope) -> Result<bool> {
    let Some(live) = shared.api.volume(pv.as_str()).await? else { return Ok(false) };
    let same_source = source_of(shared, handle)? == live.source;
    let same_handle = live
        .handle
        .as_deref()
        .and_then(|text| Envelope::parse(text).ok())
        .is_some_and(|found| shared.backend.same_volume(handle, &found) || found == *handle);
    Ok(same_source && same_handle)
}

/// Ends an open intent that leads nowhere: nothing unpublished stays unrecorded. Final when there is none (any more).
///
/// It does not end while something can still happen that the intent speaks of: a call that an earlier leader began, or one
/// of ours that was given up. What such a call makes afterwards would be nobody's.
async fn abandon(shared: &Shared, uid: &ClaimUid, intent: Option<Arc<Intent>>) -> Result<Flow> {
    let Some(intent) = intent else { return Ok(Flow::Parked) };
    let handle = &intent.handle;
    let mark = shared.mark(uid.clone(), intent.request.pv_name.clone(), MarkState::Unpublished);
    let source = source_of(shared, handle)?;
    let keys = shared.backend.alias_keys(&source);
    let _held = shared.locks.acquire(keys.clone()).await;
    // In this order: a PV that a late call makes is seen.
    let unsettled = shared.unsettled(&intent);
    // Asked once the lock is ours: it may have been waited for.
    let is_carried = is_named(shared, &intent.request.pv_name, handle).await?;
    if !is_carried && !intent.undoing && shared.identity.rules.holds(Rule::UndoRecorded) {
        // Recorded before anything is taken back: whoever comes after us must not go on with a volume that a late call of
        // ours may still remove.
        shared.journal.open(Intent { undoing: true, ..(*intent).clone() }).await?;
    }
    if !unsettled.is_zero() {
        return Ok(Flow::After(unsettled));
    }
    let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    let claim = &intent.request.claim;
    let subject = Subject::of_claim(&claim.namespace, &claim.name, uid.as_str());
    let settled = match settle(&shared.identity, &mark, is_carried, observed.as_ref()) {
        Settle::Delete => {
            let others = other_names_of(shared, mark.pv_name.as_str(), &keys).await?;
            if others.is_empty() || !shared.identity.rules.holds(Rule::NoAlias) {
                Settle::Delete
            } else {
                Settle::Orphan(format!("PersistentVolume {} names the same data", others.join(", ")))
            }
        }
        settled => settled,
    };
    match settled {
        Settle::Published => mark_published(shared, handle, &mark, observed.as_ref()).await?,
        Settle::Delete => {
            if let Some(reason) = shared.journal.deletes_stopped() {
                return Err(Failure::blocked(Until::OperatorActs, reason));
            }
            match shared.backend_call("delete", shared.backend.delete(handle, &mark)).await {
                Ok(Progress::Done(())) => {
                    info!(claim = %subject, uid = %uid, "Removed what was made and never published.");
                }
                Ok(Progress::Pending { after, .. }) => return Ok(Flow::After(after)),
                Err(failure) if failure.class() == Class::NotOurs => {
                    warn!(claim = %subject, uid = %uid, error = %chain(&failure), "Left what was found in the volume's place.");
                }
                Err(failure) => return Err(failure),
            }
        }
        Settle::Foreign => warn!(claim = %subject, uid = %uid, "Left what was found in the volume's place."),
        Settle::Orphan(reason) => {
            shared.orphaned(intent.request.pv_name.as_str(), &reason);
            let text =
                format!("Error cleaning provisioned volume for claim {subject}: {reason}. It is kept.");
            shared.tell(&subject, true, "ProvisioningCleanupFailed", ABOUT_CLAIM, text);
        }
    }
    shared.end_intent(uid).await?;
    if !is_carried {
        shared.promise_ended(uid);
        shared.room_came_free(&intent.request.class_name);
    }
    Ok(Flow::Parked)
}

/// A PV speaks for the volume from now on. Where its mark did not say so before the PV was made, it does now.
async fn mark_published(
    shared: &Shared,
    handle: &Envelope,
    mark: &Mark,
    observed: Option<&Observed>,
) -> Result<()> {
    let found = observed.and_then(|seen| seen.mark.as_ref()).filter(|found| found.same_owner(mark));
    match found.map(|found| found.state) {
        Some(MarkState::Planned | MarkState::Unpublished) => {
            let mark = mark.with_state(MarkState::Published);
            shared.write_mark(handle, &mark).await
        }
        // It is marked, or its PV is on its way out and what is left is that one's business.
        Some(MarkState::Published | MarkState::Retained | MarkState::Trashed) | None => Ok(()),
    }
}

/// With late binding, no room here means: elsewhere.
fn is_elsewhere(claim: &ClaimView, failure: &Failure) -> bool {
    failure.class() == Class::Exhausted && claim.glance.selected_node.is_some()
}

/// Every failure but this one is told as it is.
async fn no_room_or(shared: &Shared, claim: &ClaimView, failure: Failure) -> Result<Flow> {
    if is_elsewhere(claim, &failure) {
        return reschedule(shared, claim, failure).await;
    }
    Err(failure)
}

/// Takes the scheduler's choice back: at once the first time, then after growing delays.
async fn reschedule(shared: &Shared, claim: &ClaimView, failure: Failure) -> Result<Flow> {
    let delay = put_off(shared, claim, &failure);
    if delay.is_zero() { unselect(shared, claim).await } else { Ok(Flow::After(delay)) }
}

/// Tells the failure, and when the choice is to be taken back for it.
fn put_off(shared: &Shared, claim: &ClaimView, failure: &Failure) -> Duration {
    let delay = shared.report_claim_failure(claim, failure);
    shared.reschedule_at(claim, Instant::now() + delay);
    delay
}

/// A choice that is to be taken back when its delay has passed, unless the scheduler has chosen another node.
async fn due_reschedule(shared: &Shared, claim: &ClaimView) -> Result<Option<Flow>> {
    let Some(at) = shared.reschedule_due(claim) else { return Ok(None) };
    let left = at.saturating_duration_since(Instant::now());
    if left.is_zero() { unselect(shared, claim).await.map(Some) } else { Ok(Some(Flow::After(left))) }
}

async fn unselect(shared: &Shared, claim: &ClaimView) -> Result<Flow> {
    if shared.api.unselect_node(claim).await? {
        shared.reschedule_done(&claim.glance.uid);
        return Ok(Flow::Parked);
    }
    // The claim has changed since it was read. The watch brings the newer one, but wakes us only if something that we
    // read has changed, so it stays due.
    Ok(Flow::After(shared.settings.backoff_base))
}
