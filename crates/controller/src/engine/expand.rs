//! A bound claim that asks for more than it has: [`decide::expand`](crate::decide::expand) says what, this does it.
//!
//! ```text
//! allocatedResources on the claim -> lock -> observe -> live claim and PV -> expand -> PV's capacity -> claim's status
//! ```
//! Nothing is recorded elsewhere: after a crash the claim still asks for more than its status has, every step may be made
//! again, and it begins with the first that does not show yet.

use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::expand::{
    IN_PROGRESS, INFEASIBLE, Step, begun, capacity_of, ends_on_node, failed, finished, left_to_node,
    may_grow, may_want, remedy, step,
};
use crate::decide::volume::Begun;
use crate::decide::{ClaimView, Phase, Rule, SizeView, VolumeView};
use crate::objects::api_time;
use k8s_openapi::jiff::Timestamp;
use std::time::Duration;
use tracing::{info, warn};
use volwright_provisioner::{ClaimUid, Class, Failure, Growth, Progress, Result, Until, format_bytes};

use super::happening::{ABOUT_SIZE, Subject};
use super::report::jittered;
use super::volume::mark_of;
use super::world::OurVolume;
use super::{Flow, Shared};

/// Somebody else wrote the claim or the PV meanwhile; the watch brings it, this is for the case that it does not.
const CHANGED_AGAIN: Duration = Duration::from_secs(1);

/// Looks whether the claim of this PV asks for more, and does the next steps until it has it, or must wait.
pub(super) async fn run(shared: &Shared, ours: &OurVolume) -> Flow {
    let flow = look(shared, ours).await;
    if matches!(flow, Flow::Settled) {
        shared.growth_lapsed(&ClaimUid::new(ours.view.owner()));
    }
    flow
}

async fn look(shared: &Shared, ours: &OurVolume) -> Flow {
    let claim = match seen_claim(shared, ours).await {
        Ok(Some(claim)) => claim,
        Ok(None) => return Flow::Settled,
        Err(failure) => return Flow::Failed(failure),
    };
    match next(shared, ours, &claim).await {
        Ok(flow) => flow,
        Err(failure) => told(shared, &ours.view, &claim, failure).await,
    }
}

/// The claim of a bound PV, if it may want something. Where whole claims are watched the cache knows. An agent's watch
/// shows only that a claim has changed, so it reads the claims of its own PVs, each once a change.
async fn seen_claim(shared: &Shared, ours: &OurVolume) -> Result<Option<ClaimView>> {
    let view = &ours.view;
    let is_bound = view.phase == Phase::Bound && !view.terminating && ours.handle.is_some();
    let Some(reference) = view.claim.as_ref().filter(|_| is_bound) else { return Ok(None) };
    let Some(cached) = shared.world.claim(&ClaimUid::new(reference.uid.clone())) else { return Ok(None) };
    if shared.settings.node().is_none() {
        return Ok(cached.full.clone().filter(may_want));
    }
    if shared.memory().looked.get(&view.name) == Some(&cached.version) {
        return Ok(None);
    }
    let live = shared.api.claim(&reference.namespace, &reference.name).await?;
    let wants = live.filter(|live| live.glance.uid == cached.glance.uid && may_want(live));
    if wants.is_none() {
        shared.memory().looked.insert(view.name.clone(), cached.version.clone());
    }
    Ok(wants)
}

/// What the class offers; `None` where it is gone.
fn growth_of(shared: &Shared, claim: &ClaimView) -> Result<Option<Growth>> {
    let class = shared.world.class(claim.class.as_deref().unwrap_or_default());
    class.map(|class| Ok(shared.backend.capabilities(&class.parameters)?.expand)).transpose()
}

async fn next(shared: &Shared, ours: &OurVolume, claim: &ClaimView) -> Result<Flow> {
    let Some(handle) = &ours.handle else { return Ok(Flow::Settled) };
    let growth = growth_of(shared, claim).map_err(not_the_claims)?;
    match step(&shared.identity, claim, &ours.view, &ours.state, growth) {
        Step::Nothing(_) => Ok(Flow::Settled),
        Step::Refuse(text) => Err(Failure::blocked(Until::OperatorActs, text)),
        Step::Begin { allocated } => match begin(shared, claim, &ours.view, allocated).await? {
            Some(claim) => grow(shared, ours, handle, &claim, growth).await,
            None => Ok(Flow::After(CHANGED_AGAIN)),
        },
        Step::Grow { .. } => grow(shared, ours, handle, claim, growth).await,
        Step::Clear => {
            let cleared = finished(&claim.size, claim.size.capacity.unwrap_or(0));
            let written = shared.api.patch_claim_size(claim, &cleared).await?;
            Ok(written.map_or(Flow::After(CHANGED_AGAIN), |_| Flow::Settled))
        }
    }
}

/// The class is wrong, not what the claim asks for: asking for less would not help.
fn not_the_claims(failure: Failure) -> Failure {
    Failure::blocked(Until::OperatorActs, failure.message().to_owned()).caused_by(failure)
}

/// Puts what the claim will have where quotas count it. `None`: the claim has changed.
async fn begin(
    shared: &Shared,
    claim: &ClaimView,
    volume: &VolumeView,
    allocated: u64,
) -> Result<Option<ClaimView>> {
    let status = begun(&claim.size, allocated, &now());
    let Some(written) = shared.api.patch_claim_size(claim, &status).await? else { return Ok(None) };
    if written.size.allocated.is_none_or(|kept| kept < allocated) {
        return Err(Failure::blocked(
            Until::OperatorActs,
            "the API server does not keep status.allocatedResources, so a quota would not count what is asked for: \
             volumes can grow from Kubernetes 1.32 on",
        ));
    }
    let note = format!("volume {} is being resized to {}", volume.name, requested(claim));
    shared.tell(&Subject::claim(claim), false, "Resizing", ABOUT_SIZE, note);
    Ok(Some(written))
}

fn requested(claim: &ClaimView) -> String {
    format_bytes(claim.request.as_ref().copied().unwrap_or(0))
}

/// From a claim that is counted to a volume of that size. `claim` is as it was seen last.
async fn grow(
    shared: &Shared,
    ours: &OurVolume,
    handle: &Envelope,
    claim: &ClaimView,
    growth: Option<Growth>,
) -> Result<Flow> {
    let rules = &shared.identity.rules;
    let seen = &ours.view;
    let _held = shared.locks.acquire(shared.backend.alias_keys(&seen.source)).await;
    let mark = mark_of(shared, seen);
    let observed = shared.backend_call("observe", shared.backend.observe(handle)).await?;
    // Once the lock is ours and the slow read is over: the request may have been lowered, or the claim have gone.
    let (claim, live) = if rules.holds(Rule::AskedNow) {
        let glance = &claim.glance;
        let claim = shared.api.claim(&glance.namespace, &glance.name).await?;
        let volume = shared.api.volume(&seen.name).await?;
        let (Some(claim), Some(volume)) = (claim, volume) else { return Ok(Flow::Settled) };
        (claim, OurVolume::new(&shared.identity, shared.backend.as_ref(), volume))
    } else {
        (claim.clone(), ours.clone())
    };
    let size = match step(&shared.identity, &claim, &live.view, &live.state, growth) {
        Step::Grow { size } if Begun::of(&live.view) == Begun::of(seen) => size,
        Step::Nothing(_) => return Ok(Flow::Settled),
        // More is asked for by now, or the PV has changed: that comes to us as well.
        _ => return Ok(Flow::After(CHANGED_AGAIN)),
    };
    may_grow(&shared.identity, &mark, observed.as_ref())?;
    let mut volume = live.view;
    // The class may have a budget, of which the volume takes more now.
    let owner = ClaimUid::new(volume.owner());
    if let Some(class) = shared.world.class(&volume.class) {
        shared.promise(&owner, &class, size)?;
    }
    if !rules.holds(Rule::GrownFirst) {
        match promised(shared, volume, size).await? {
            Some(patched) => volume = patched,
            None => return Ok(Flow::After(CHANGED_AGAIN)),
        }
    }
    match shared.backend_call("expand", shared.backend.expand(handle, &mark, size)).await? {
        Progress::Done(has) if has < size => {
            let text = format!(
                "the storage system was asked for {} and says that the volume has {}; nothing more is promised",
                format_bytes(size),
                format_bytes(has)
            );
            return Err(Failure::blocked(Until::OperatorActs, text));
        }
        Progress::Done(_) => {}
        Progress::Pending { after, note } => {
            shared.tell(&Subject::claim(&claim), false, "Resizing", ABOUT_SIZE, note);
            return Ok(Flow::After(after));
        }
    }
    if !rules.holds(Rule::PvBeforeClaim) {
        let early = VolumeView { capacity: format_bytes(size.max(capacity_of(&volume))), ..volume.clone() };
        if !finish(shared, claim.clone(), &early).await? {
            return Ok(Flow::After(CHANGED_AGAIN));
        }
    }
    let Some(volume) = promised(shared, volume, size).await? else { return Ok(Flow::After(CHANGED_AGAIN)) };
    if shared.world.class(&volume.class).is_some_and(|class| class.budget.is_some()) {
        shared.promise_made(&owner, &volume.class, size);
    }
    if rules.holds(Rule::PvBeforeClaim) && !finish(shared, claim, &volume).await? {
        return Ok(Flow::After(CHANGED_AGAIN));
    }
    Ok(Flow::Settled)
}

/// The PV with at least this capacity. `None`: it has changed, or is gone.
async fn promised(shared: &Shared, volume: VolumeView, size: u64) -> Result<Option<VolumeView>> {
    if capacity_of(&volume) >= size {
        return Ok(Some(volume));
    }
    shared.api.patch_volume_capacity(&volume, size).await
}

/// The claim's status says what its PV has, or that the node's part is next. `false`: somebody else writes it all the time.
async fn finish(shared: &Shared, claim: ClaimView, volume: &VolumeView) -> Result<bool> {
    let mut claim = claim;
    let is_nodes = ends_on_node(volume);
    for _ in 0..2 {
        let status = if is_nodes {
            left_to_node(&claim.size, &now())
        } else {
            finished(&claim.size, capacity_of(volume))
        };
        if let Some(written) = shared.api.patch_claim_size(&claim, &status).await? {
            tell_finished(shared, &written, volume, is_nodes);
            return Ok(true);
        }
        // A pod that comes or goes changes the claim too. kubelet waits for this write, so it is made again at once.
        let glance = &claim.glance;
        let again = shared.api.claim(&glance.namespace, &glance.name).await?;
        match again.filter(|again| again.glance == claim.glance) {
            Some(again) => claim = again,
            None => return Ok(false),
        }
    }
    Ok(false)
}

fn tell_finished(shared: &Shared, claim: &ClaimView, volume: &VolumeView, is_nodes: bool) {
    let subject = Subject::claim(claim);
    info!(claim = %subject, pv = volume.name, capacity = volume.capacity, is_nodes, "Resized.");
    let (reason, note) = if is_nodes {
        ("FileSystemResizeRequired", "the volume has grown; its node has to grow the file system".to_owned())
    } else {
        ("VolumeResizeSuccessful", format!("volume {} has {} now", volume.name, volume.capacity))
    };
    shared.tell(&subject, false, reason, ABOUT_SIZE, note);
}

/// Tells of a failure: by an event, and where it will not pass by itself by the claim's status as well.
async fn told(shared: &Shared, volume: &VolumeView, claim: &ClaimView, failure: Failure) -> Flow {
    // Of these alone asking for less is a way out.
    let is_final = failure.class() == Class::Invalid;
    let stays = is_final
        || matches!(failure.class(), Class::Exhausted | Class::NotOurs | Class::Blocked(Until::OperatorActs));
    let failure = if is_final {
        let text = format!("{}; {}", failure.message(), remedy(&claim.size));
        Failure::new(failure.class(), text).caused_by(failure)
    } else {
        failure
    };
    if failure.class() != Class::Unknown {
        shared.promise_ended(&ClaimUid::new(volume.owner()));
    }
    let delay = shared.report_growth_failure(&volume.name, claim, &failure);
    if stays && let Err(error) = mark_failed(shared, claim, is_final, failure.message()).await {
        // The event has told of it, and the next try writes it again.
        warn!(pv = volume.name, error = %chain(&error), "Could not write to the claim why it does not grow.");
    }
    Flow::After(jittered(delay))
}

async fn mark_failed(shared: &Shared, claim: &ClaimView, is_final: bool, message: &str) -> Result<()> {
    let live = shared.api.claim(&claim.glance.namespace, &claim.glance.name).await?;
    let has_begun = |size: &SizeView| {
        size.progress.as_deref().is_some_and(|progress| [IN_PROGRESS, INFEASIBLE].contains(&progress))
    };
    // Of another request nothing is known yet.
    let same = |live: &ClaimView| live.glance.uid == claim.glance.uid && live.request == claim.request;
    let Some(live) = live.filter(|live| same(live) && has_begun(&live.size)) else { return Ok(()) };
    let status = failed(&live.size, is_final, message, &now());
    if status != live.size {
        shared.api.patch_claim_size(&live, &status).await?;
    }
    Ok(())
}

fn now() -> String {
    api_time(Timestamp::now())
}
