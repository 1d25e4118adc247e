//! A PV: the finalizer that follows its policy, the way back for what is retained, and the way out for what is deleted.

use super::trash::kept_for;
use super::{ClaimRef, ClaimView, Identity, OnDelete, Phase, ReclaimPolicy, Rule, VolumeView};
use serde::{Deserialize, Serialize};
use volwright_provisioner::{Failure, Key, Mark, Observed, Until};

/// What we know of a PV's handle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandleState {
    /// Readable, and its source is the PV's.
    Good,
    /// There is none.
    Missing,
    /// Unreadable, of another backend, too new, or of another source: why.
    Bad(String),
}

/// What a PV needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing from us.
    Nothing,
    /// Nothing until somebody acts: one Warning with this text.
    Blocked(String),
    /// `provisioned-by` or our label is gone: put it back, with a Warning.
    Repair,
    /// The policy is Delete: our finalizer goes on.
    AddFinalizer,
    /// The policy is no longer Delete: our finalizer goes off.
    RemoveFinalizer,
    /// It goes, but its data stays: mark it retained, then take the finalizer off and say how it can come back.
    Keep,
    /// It was deleted before it was bound, and nobody binds a terminating PV: it goes, so that its claim gets another. Its
    /// data goes where nobody can have written to it, and is kept elsewhere.
    Unbound,
    /// It and its data go.
    Delete(OnDelete),
    /// A terminating PV without our finalizer cannot get it any more: reported.
    Orphan(String),
}

impl Step {
    /// Every answer of [`step`], for the coverage of tests.
    pub const ARMS: [&str; 11] = [
        "nothing",
        "blocked",
        "repair",
        "add finalizer",
        "remove finalizer",
        "keep",
        "unbound",
        "delete",
        "delete, retain",
        "delete, trash",
        "orphan",
    ];

    fn arm(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Blocked(_) => "blocked",
            Self::Repair => "repair",
            Self::AddFinalizer => "add finalizer",
            Self::RemoveFinalizer => "remove finalizer",
            Self::Keep => "keep",
            Self::Unbound => "unbound",
            Self::Delete(OnDelete::Delete) => "delete",
            Self::Delete(OnDelete::Retain) => "delete, retain",
            Self::Delete(OnDelete::Trash) => "delete, trash",
            Self::Orphan(_) => "orphan",
        }
    }
}

/// Is this PV one of ours? By `provisioned-by`; where that was stripped, by our own annotation and a handle that we read.
pub fn concerns_us(identity: &Identity, volume: &VolumeView, handle: &HandleState) -> bool {
    // Another provisioner of the same kind reads the handle just as well, so that alone does not make it ours.
    let name = volume.provisioned_by.as_deref();
    let left = volume.provisioner.as_deref().filter(|_| *handle == HandleState::Good);
    let ours = name.or(left).is_some_and(|name| identity.answers_to(name));
    // A label can collide or be forged: the full name decides.
    let here = identity.node.is_none() || volume.node_name.is_none() || identity.node == volume.node_name;
    ours && here
}

/// What to do with one of our PVs.
pub fn step(identity: &Identity, volume: &VolumeView, handle: &HandleState) -> Step {
    let step = next_step(identity, volume, handle);
    identity.rules.visit("step", step.arm());
    step
}

fn next_step(identity: &Identity, volume: &VolumeView, handle: &HandleState) -> Step {
    let policy_delete = volume.policy == ReclaimPolicy::Delete;
    match handle {
        HandleState::Good => {}
        // Without a handle nothing is done to data. A PV whose policy keeps the data may go.
        HandleState::Missing | HandleState::Bad(_) if !policy_delete && volume.has_finalizer() => {
            return Step::RemoveFinalizer;
        }
        HandleState::Missing | HandleState::Bad(_) if !policy_delete => return Step::Nothing,
        HandleState::Missing => {
            return Step::Blocked(
                "the annotation volwright.io/handle is missing, so nothing will be deleted: put it back (it is in \
                 backups of the PV), or set the reclaim policy to Retain"
                    .to_owned(),
            );
        }
        HandleState::Bad(why) => {
            return Step::Blocked(format!(
                "{why}; nothing will be deleted. Correct it, or set the policy to Retain"
            ));
        }
    }
    let label_lost = identity.node.is_some() && volume.node_label.is_none();
    if (volume.provisioned_by.is_none() || label_lost) && !volume.terminating {
        return Step::Repair;
    }
    if volume.terminating { terminating(volume, policy_delete) } else { living(volume, policy_delete) }
}

fn living(volume: &VolumeView, policy_delete: bool) -> Step {
    match (policy_delete, volume.phase, volume.has_finalizer()) {
        (true, Phase::Released | Phase::Failed, _) => delete(volume),
        (true, _, false) => Step::AddFinalizer,
        (true, _, true) | (false, _, false) => Step::Nothing,
        (false, _, true) => Step::RemoveFinalizer,
    }
}

fn terminating(volume: &VolumeView, policy_delete: bool) -> Step {
    match (volume.has_finalizer(), policy_delete, volume.phase) {
        (false, true, Phase::Released | Phase::Failed) => Step::Orphan(
            "it was deleted without our finalizer, which cannot be put on any more; its data stays"
                .to_owned(),
        ),
        (true, false, _) | (true, true, Phase::Available) => Step::Keep,
        (true, true, Phase::Released | Phase::Failed) => delete(volume),
        // kube-controller-manager leaves a PV that is reserved for a claim and not bound without a phase.
        (true, true, Phase::Pending) => Step::Unbound,
        // Its claim is still there.
        (true, true, Phase::Bound) | (false, _, _) => Step::Nothing,
    }
}

fn delete(volume: &VolumeView) -> Step {
    match volume.on_delete.as_deref().map(OnDelete::parse) {
        None => Step::Delete(OnDelete::default()),
        Some(Some(OnDelete::Trash)) => match kept_for(volume.trash_for.as_deref()) {
            Ok(_) => Step::Delete(OnDelete::Trash),
            Err(why) => Step::Blocked(format!(
                "the annotation volwright.io/trash-for {why}. Nothing is deleted until it is corrected"
            )),
        },
        Some(Some(on_delete)) => Step::Delete(on_delete),
        Some(None) => Step::Blocked(format!(
            "the annotation volwright.io/on-delete is {:?}, so nothing will be deleted; use {}",
            volume.on_delete.as_deref().unwrap_or_default(),
            OnDelete::KNOWN
        )),
    }
}

/// The answers of [`may_go_on`] and [`unnamed`] that stop a delete, for the coverage of tests.
pub const GO_ON_ARMS: [&str; 6] =
    ["changed", "policy", "bound", "claim exists", "named by its claim", "named by another"];

/// The answers of [`may_destroy`], for the coverage of tests.
pub const DESTROY_ARMS: [&str; 6] = ["no fence", "another's mark", "no mark", "alias", "used", "yes"];

/// With what a delete began; every later look must show the same.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Begun {
    /// `metadata.uid` of the PV.
    pub uid: String,
    /// `spec.claimRef`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<ClaimRef>,
    /// The handle annotation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<String>,
    /// The source.
    pub source: volwright_provisioner::VolumeSource,
}

impl Begun {
    /// From the PV as it is now.
    pub fn of(volume: &VolumeView) -> Self {
        Self {
            uid: volume.uid.clone(),
            claim: volume.claim.clone(),
            handle: volume.handle.clone(),
            source: volume.source.clone(),
        }
    }
}

/// May a delete of this PV go on? Asked before the PV is deleted and again before each destroying call, always with
/// what the API server says now. `claim` is the live claim under the name that the PV's claimRef has.
pub fn may_go_on(
    identity: &Identity,
    begun: &Begun,
    live: &VolumeView,
    claim: Option<&ClaimView>,
) -> Result<(), Failure> {
    let rules = &identity.rules;
    let wait = |text: &str| Err(Failure::blocked(Until::Settled, text));
    if rules.holds(Rule::SameVolume) && *begun != Begun::of(live) {
        rules.visit("go on", "changed");
        return Err(Failure::blocked(
            Until::OperatorActs,
            "the PV changed since its delete began (uid, claim, handle or source), so nothing is deleted",
        ));
    }
    if rules.holds(Rule::PolicyDelete) && live.policy != ReclaimPolicy::Delete {
        rules.visit("go on", "policy");
        return wait("the reclaim policy is no longer Delete");
    }
    if rules.holds(Rule::NotBound) && live.phase == Phase::Bound {
        rules.visit("go on", "bound");
        return wait("the PV is bound");
    }
    let Some(claim) = claim else { return Ok(()) };
    let same_claim = live.claim.as_ref().is_some_and(|reference| reference.uid == claim.glance.uid.as_str());
    let bound_elsewhere = claim.glance.volume_name.as_ref().is_some_and(|name| *name != live.name);
    if rules.holds(Rule::ClaimGone) && same_claim && !bound_elsewhere {
        rules.visit("go on", "claim exists");
        return wait("its claim still exists; if its data is not needed, delete the claim");
    }
    if rules.holds(Rule::NoClaimNamesIt) && claim.glance.volume_name.as_ref() == Some(&live.name) {
        rules.visit("go on", "named by its claim");
        return wait("a claim names it in spec.volumeName");
    }
    Ok(())
}

/// `claims` are other claims ("namespace/name") with `spec.volumeName` set to this PV, as far as is known. One of them
/// may yet get it: whoever clears `claimRef` makes it so.
pub fn unnamed(identity: &Identity, live: &VolumeView, claims: &[String]) -> Result<(), Failure> {
    if identity.rules.holds(Rule::NoClaimNamesIt) && !claims.is_empty() {
        identity.rules.visit("go on", "named by another");
        return Err(Failure::blocked(
            Until::Settled,
            format!(
                "claim {} names {} in spec.volumeName, so its data is kept; remove that claim to let it go",
                claims.join(", "),
                live.name
            ),
        ));
    }
    Ok(())
}

/// The last question before the data goes: is what is there ours, unused, and nobody else's as well?
/// `aliases` are names of other PVs with the same, a parent or a child volume.
pub fn may_destroy(
    identity: &Identity,
    live: &VolumeView,
    mark: &Mark,
    observed: Option<&Observed>,
    aliases: &[String],
) -> Result<(), Failure> {
    let rules = &identity.rules;
    if rules.holds(Rule::Fence) && !(live.terminating && live.has_finalizer()) {
        rules.visit("destroy", "no fence");
        return Err(Failure::unavailable("the PV is not terminating with our finalizer yet"));
    }
    // The mark first: of two released PVs of one volume the one that the mark does not name goes without the data, and
    // then no longer stands in the way of the other.
    if let Some(observed) = observed.filter(|_| rules.holds(Rule::MarkIsOurs)) {
        match &observed.mark {
            Some(found) if found.same_owner(mark) => {}
            Some(_) => {
                rules.visit("destroy", "another's mark");
                return Err(Failure::not_ours("the data bears another owner's mark, so it is kept"));
            }
            None => {
                rules.visit("destroy", "no mark");
                return Err(Failure::not_ours("the data bears no mark of this provisioner, so it is kept"));
            }
        }
    }
    if rules.holds(Rule::NoAlias) && !aliases.is_empty() {
        rules.visit("destroy", "alias");
        return Err(Failure::blocked(
            Until::OperatorActs,
            format!(
                "its data is also named by PersistentVolume {} (the same, a parent or a child), so it is kept; \
                 remove that PV, or set this one's policy to Retain",
                aliases.join(", ")
            ),
        ));
    }
    match observed {
        Some(seen) if rules.holds(Rule::Unused) && !seen.users.is_empty() => {
            rules.visit("destroy", "used");
            Err(Failure::blocked(Until::Unused, format!("still used by {}", seen.users.join(", "))))
        }
        _ => {
            rules.visit("destroy", "yes");
            Ok(())
        }
    }
}

/// Names of the PVs among `others` that name the same data as `keys`, a parent or a child of it.
pub fn aliases<'a>(keys: &[Key], others: impl IntoIterator<Item = (&'a str, &'a [Key])>) -> Vec<String> {
    others
        .into_iter()
        .filter(|(_, theirs)| keys.iter().any(|ours| theirs.iter().any(|key| key.overlaps(ours))))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[cfg(test)]
#[path = "volume_tests.rs"]
mod tests;
