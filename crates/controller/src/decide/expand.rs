//! A bound claim that asks for more than it has: is it our turn, and what comes next?
//!
//! ```text
//! Begin: allocatedResources, so that a quota counts it -> Grow: the volume, then its PV, then the claim's status
//! ```
//! In this order a crash anywhere leaves `request > status.capacity`, so that the next look goes on, and neither PV nor
//! status ever promises what the volume has not. The status is written as external-resizer writes it, which kubelet,
//! quotas and users know (KEP-1790; RecoverVolumeExpansionFailure, GA since Kubernetes 1.34).

use super::volume::{HandleState, concerns_us};
use super::{ClaimCondition, ClaimView, Identity, Phase, Rule, SizeView, VolumeView};
use volwright_provisioner::{Failure, Growth, Mark, MarkState, Observed, Until, format_bytes, parse_bytes};

/// The storage system is at work, or is asked again.
pub const IN_PROGRESS: &str = "ControllerResizeInProgress";
/// It will never be that large. The owner can ask for less.
pub const INFEASIBLE: &str = "ControllerResizeInfeasible";
/// The volume has grown; its node has to grow the file system.
pub const NODE_PENDING: &str = "NodeResizePending";
/// What kubelet makes of [`NODE_PENDING`].
const NODE: [&str; 3] = [NODE_PENDING, "NodeResizeInProgress", "NodeResizeInfeasible"];

const RESIZING: &str = "Resizing";
const FAILED: &str = "ControllerResizeError";
const FILE_SYSTEM: &str = "FileSystemResizePending";
/// Conditions that end with the growth.
const OURS: [&str; 4] = [RESIZING, FAILED, FILE_SYSTEM, "NodeResizeError"];

/// What a claim that asks for more needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing from us.
    Nothing(Why),
    /// It cannot grow until somebody acts: one Warning with this text. The claim is not touched.
    Refuse(String),
    /// `allocatedResources` (bytes) goes on the claim, and that it has begun. Nothing else may happen before.
    Begin {
        /// At least what is asked for.
        allocated: u64,
    },
    /// The volume, its PV and the claim get so many bytes.
    Grow {
        /// What is asked for now.
        size: u64,
    },
    /// It has what it asks for, and still says that it grows.
    Clear,
}

/// Why nothing is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The PV is another provisioner's, another node's, or its handle cannot be read.
    NotOurs,
    /// Claim or PV is being deleted.
    Terminating,
    /// Claim and PV do not name each other, or are not bound yet.
    NotBound,
    /// It has what it asks for.
    LargeEnough,
    /// The CSI driver's own resizer does it.
    Driver,
    /// The node grows the file system.
    Node,
}

impl Step {
    /// Every answer of [`step`], for the coverage of tests.
    pub const ARMS: [&str; 10] = [
        "nothing: not ours",
        "nothing: terminating",
        "nothing: not bound",
        "nothing: large enough",
        "nothing: driver",
        "nothing: node",
        "refuse",
        "begin",
        "grow",
        "clear",
    ];

    fn arm(&self) -> &'static str {
        match self {
            Self::Nothing(Why::NotOurs) => "nothing: not ours",
            Self::Nothing(Why::Terminating) => "nothing: terminating",
            Self::Nothing(Why::NotBound) => "nothing: not bound",
            Self::Nothing(Why::LargeEnough) => "nothing: large enough",
            Self::Nothing(Why::Driver) => "nothing: driver",
            Self::Nothing(Why::Node) => "nothing: node",
            Self::Refuse(_) => "refuse",
            Self::Begin { .. } => "begin",
            Self::Grow { .. } => "grow",
            Self::Clear => "clear",
        }
    }
}

/// From a bound claim alone: may there be something to do? Asked for every claim of the cluster.
pub fn may_want(claim: &ClaimView) -> bool {
    let Some(capacity) = claim.size.capacity.filter(|_| claim.glance.volume_name.is_some()) else {
        return false;
    };
    claim.request.as_ref().is_ok_and(|request| *request > capacity) || is_marked(&claim.size)
}

/// Does it say that a controller works on its size?
fn is_marked(size: &SizeView) -> bool {
    size.progress.as_deref().is_some_and(|progress| [IN_PROGRESS, INFEASIBLE].contains(&progress))
        || size.conditions.iter().any(|condition| [RESIZING, FAILED].contains(&condition.kind.as_str()))
}

/// What a claim and its PV need. `growth` is what the backend offers for the claim's class, `None` where the class is gone.
pub fn step(
    identity: &Identity,
    claim: &ClaimView,
    volume: &VolumeView,
    handle: &HandleState,
    growth: Option<Growth>,
) -> Step {
    let step = next_step(identity, claim, volume, handle, growth);
    identity.rules.visit("expand", step.arm());
    step
}

fn next_step(
    identity: &Identity,
    claim: &ClaimView,
    volume: &VolumeView,
    handle: &HandleState,
    growth: Option<Growth>,
) -> Step {
    if !concerns_us(identity, volume, handle) || *handle != HandleState::Good {
        return Step::Nothing(Why::NotOurs);
    }
    if volume.terminating || claim.glance.terminating {
        return Step::Nothing(Why::Terminating);
    }
    let name_each_other = claim.glance.volume_name.as_ref() == Some(&volume.name)
        && volume.claim.as_ref().is_some_and(|reference| reference.uid == claim.glance.uid.as_str());
    let is_bound = volume.phase == Phase::Bound && name_each_other;
    if !is_bound && identity.rules.holds(Rule::OwnClaim) {
        return Step::Nothing(Why::NotBound);
    }
    let (Some(capacity), Ok(request)) = (claim.size.capacity, &claim.request) else {
        return Step::Nothing(Why::NotBound);
    };
    if *request <= capacity {
        let is_ours = growth.is_some_and(Growth::is_ours);
        return if is_ours && is_marked(&claim.size) { Step::Clear } else { Step::Nothing(Why::LargeEnough) };
    }
    let class = claim.class.as_deref().unwrap_or_default();
    match growth {
        None => Step::Refuse(format!(
            "StorageClass {class:?} does not exist any more, so it is not known whether the volume can grow; make it again"
        )),
        Some(Growth::No) => Step::Refuse(format!(
            "volumes of StorageClass {class:?} cannot grow: make a larger claim and copy the data, and take \
             allowVolumeExpansion off the class"
        )),
        Some(Growth::Driver) => Step::Nothing(Why::Driver),
        Some(Growth::Ours | Growth::Both) => grow(identity, &claim.size, *request, volume),
    }
}

fn grow(identity: &Identity, claim: &SizeView, request: u64, volume: &VolumeView) -> Step {
    let progress = claim.progress.as_deref().unwrap_or_default();
    let allocated = claim.allocated.unwrap_or(0);
    let is_told = capacity_of(volume) >= request && allocated >= request;
    if ends_on_node(volume) && is_told && NODE.contains(&progress) {
        return Step::Nothing(Why::Node);
    }
    if !identity.rules.holds(Rule::AllocatedFirst) {
        return Step::Grow { size: request };
    }
    match progress {
        // Only then surely nothing of the larger size is under way, and a quota need not count it any more.
        INFEASIBLE if request < allocated => Step::Begin { allocated: request },
        IN_PROGRESS | INFEASIBLE if allocated >= request => Step::Grow { size: request },
        _ => Step::Begin { allocated: allocated.max(request) },
    }
}

/// What the PV promises, in bytes; 0 where it cannot be read.
pub fn capacity_of(volume: &VolumeView) -> u64 {
    parse_bytes(&volume.capacity).unwrap_or(0)
}

/// Is it for the node to grow the file system? It is on CSI-shaped PVs: kubelet asks the driver there. Of the others it
/// asks nobody, or knows that a directory needs nothing (kubernetes-facts 1).
pub fn ends_on_node(volume: &VolumeView) -> bool {
    volume.source.is_csi() && !volume.block
}

/// The answers of [`may_grow`], for the coverage of tests.
pub const MAY_GROW_ARMS: [&str; 5] = ["absent", "another's mark", "no mark", "kept", "yes"];

/// The last question before the volume grows: is what is there the one that we made?
pub fn may_grow(identity: &Identity, mark: &Mark, observed: Option<&Observed>) -> Result<(), Failure> {
    let (arm, answer) = match observed.map(|seen| &seen.mark) {
        None => (
            "absent",
            Err(Failure::blocked(
                Until::OperatorActs,
                "the volume is gone from the storage system, so it cannot grow; bring it back",
            )),
        ),
        Some(_) if !identity.rules.holds(Rule::MarkIsOurs) => ("yes", Ok(())),
        Some(Some(found)) if !found.same_owner(mark) => (
            "another's mark",
            Err(Failure::not_ours("the volume bears another owner's mark, so it is left alone")),
        ),
        Some(None) => {
            let text = "the volume bears no mark of this provisioner, so it is left alone";
            ("no mark", Err(Failure::not_ours(text)))
        }
        Some(Some(Mark { state: MarkState::Retained | MarkState::Trashed, .. })) => (
            "kept",
            Err(Failure::blocked(
                Until::OperatorActs,
                "the volume is marked as kept, and yet its PV is bound; see which of them is right",
            )),
        ),
        Some(Some(_)) => ("yes", Ok(())),
    };
    identity.rules.visit("may grow", arm);
    answer
}

/// The status with which a growth begins. `now` is the API's text of a time.
pub fn begun(size: &SizeView, allocated: u64, now: &str) -> SizeView {
    SizeView {
        allocated: Some(allocated),
        progress: Some(IN_PROGRESS.to_owned()),
        conditions: with(without(&size.conditions, &[FAILED]), RESIZING, None, now),
        ..size.clone()
    }
}

/// The status with which it ends, once the PV promises `capacity` bytes. `allocatedResources` stays, as external-resizer
/// leaves it: what was once counted may be on its way.
pub fn finished(size: &SizeView, capacity: u64) -> SizeView {
    SizeView {
        capacity: Some(size.capacity.unwrap_or(0).max(capacity)),
        progress: None,
        conditions: without(&size.conditions, &OURS),
        ..size.clone()
    }
}

/// The status with which our part ends where the node has to grow the file system: what the claim has is as it was.
pub fn left_to_node(size: &SizeView, now: &str) -> SizeView {
    let text = "waiting for the node to grow the file system; it does so while a pod uses the volume";
    SizeView {
        progress: Some(NODE_PENDING.to_owned()),
        conditions: with(without(&size.conditions, &OURS), FILE_SYSTEM, Some(text), now),
        ..size.clone()
    }
}

/// The status after a failure that will not pass by itself. `is_final`: it can never be that large, so less can be asked
/// for, and is then counted.
pub fn failed(size: &SizeView, is_final: bool, message: &str, now: &str) -> SizeView {
    let progress = if is_final { Some(INFEASIBLE.to_owned()) } else { size.progress.clone() };
    SizeView {
        progress,
        conditions: with(size.conditions.clone(), FAILED, Some(message), now),
        ..size.clone()
    }
}

/// Which sizes a claim may still be set to, for the user.
pub fn remedy(size: &SizeView) -> String {
    let had = format_bytes(size.capacity.unwrap_or(0));
    format!("lower spec.resources.requests.storage to what can be had, above the {had} that it has")
}

fn without(conditions: &[ClaimCondition], kinds: &[&str]) -> Vec<ClaimCondition> {
    conditions.iter().filter(|condition| !kinds.contains(&condition.kind.as_str())).cloned().collect()
}

/// A condition that says the same already keeps its time, and costs no write.
fn with(
    mut conditions: Vec<ClaimCondition>,
    kind: &str,
    message: Option<&str>,
    now: &str,
) -> Vec<ClaimCondition> {
    let says_so = |found: &ClaimCondition| {
        found.kind == kind && found.status == "True" && found.message.as_deref() == message
    };
    if conditions.iter().any(says_so) {
        return conditions;
    }
    conditions.retain(|found| found.kind != kind);
    conditions.push(ClaimCondition {
        kind: kind.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(now.to_owned()),
        message: message.map(str::to_owned),
        ..ClaimCondition::default()
    });
    conditions
}

#[cfg(test)]
#[path = "expand_tests.rs"]
mod tests;
