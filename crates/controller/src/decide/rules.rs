//! The safety rules by name, so that a test can show that each is needed.

#[cfg(any(test, feature = "switchable-rules"))]
use std::collections::BTreeSet;
#[cfg(any(test, feature = "switchable-rules"))]
use std::sync::{Arc, Mutex};

/// A rule whose absence would lose or leak data. Each has a test that fails without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rule {
    /// Nothing is destroyed while the claim that the PV names still exists.
    ClaimGone,
    /// Nothing is destroyed while any claim names the PV: it can still bind, terminating or not.
    NoClaimNamesIt,
    /// The live PV is still the one that the delete began with: uid, claim, handle, source.
    SameVolume,
    /// The live policy is Delete at every step.
    PolicyDelete,
    /// The live PV is not Bound.
    NotBound,
    /// The PV's source is the handle's.
    SourceMatchesHandle,
    /// The mark on the volume names this installation, owner and PV.
    MarkIsOurs,
    /// No other PV names the same volume, a parent or a child.
    NoAlias,
    /// The PV is terminating and bears our finalizer before the data goes.
    Fence,
    /// Nothing uses the volume.
    Unused,
    /// What was never published is destroyed only if nobody can have written to it.
    Pristine,
    /// Something found at a planned place is ours only if it is marked so, or empty under an open intent.
    PlaceIsFree,
    /// A PV of the claim's name that another made is never taken for ours.
    PvIsOurs,
    /// The intent is recorded before the backend is touched.
    IntentFirst,
    /// The intent stays until a PV carries its handle, or its own delete is final.
    IntentStays,
    /// The claim is read live once the intent is recorded.
    LiveClaim,
    /// The PV is read live before its data is destroyed.
    LiveVolume,
    /// No call is begun by a process that may not act any more.
    LeaderActs,
    /// What an earlier leader recorded ends only when none of its calls can still take effect.
    Grace,
    /// After a call that was given up nothing is taken back until that call cannot take effect any more.
    Doubt,
    /// That an intent is being undone is recorded before anything is taken back.
    UndoRecorded,
    /// Our finalizer is on the PV from its creation while its policy is Delete.
    FinalizerFirst,
    /// Our finalizer goes only when the data has gone.
    FinalizerLast,
    /// A PV of that name that was there before is compared by its volume.
    ConflictCompared,
    /// A class promises no more than its budget.
    BudgetKept,
    /// A promise counts from the moment it is given, before a PV or an intent shows it.
    PromiseCounts,
    /// `provisioned-by` is on the PV from its creation.
    ProvisionedBy,
    /// A delete has ended only when the backend says so.
    UntilFinal,
    /// Nothing is destroyed after etcd was restored until somebody has acknowledged it.
    StopAfterRestore,
    /// Where emptiness cannot be seen, the mark `unpublished` comes off before the PV is made.
    MarkBeforePv,
    /// A journal that has vanished is not begun anew without a look at the storage.
    VanishedCompared,
    /// A claim that is to be filled from somewhere gets no empty volume.
    SourceRespected,
    /// What a deposed leader left is looked for.
    Sweep,
    /// What is kept without a PV is reported.
    OrphanReported,
    /// What a new list does not show any more has gone.
    RelistDrops,
    /// Kept data is marked as kept before its PV goes.
    RetainMarked,
    /// Marks bear the epoch of the leader that writes them.
    EpochInMark,
    /// A volume grows only for the claim that it is bound to.
    OwnClaim,
    /// What a claim will have is on its status, where quotas count it, before the volume grows.
    AllocatedFirst,
    /// Claim and PV are read live before the volume grows: less may be asked for by now.
    AskedNow,
    /// A PV promises a size only once the volume has it.
    GrownFirst,
    /// A claim's status promises a size only once its PV does.
    PvBeforeClaim,
    /// Nothing leaves the trash before its time.
    TrashTime,
    /// Nothing leaves the trash while our clock is not the API server's.
    TrashClock,
    /// Nothing of another installation's leaves the trash.
    TrashOurs,
    /// Nothing leaves the trash while a PV of its name is there.
    TrashUnnamed,
    /// A volume is not restored while a PV of its name is there: its delete would find it.
    RestoreParted,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 47] = [
        Self::ClaimGone,
        Self::NoClaimNamesIt,
        Self::SameVolume,
        Self::PolicyDelete,
        Self::NotBound,
        Self::SourceMatchesHandle,
        Self::MarkIsOurs,
        Self::NoAlias,
        Self::Fence,
        Self::Unused,
        Self::Pristine,
        Self::PlaceIsFree,
        Self::PvIsOurs,
        Self::IntentFirst,
        Self::IntentStays,
        Self::LiveClaim,
        Self::LiveVolume,
        Self::LeaderActs,
        Self::Grace,
        Self::Doubt,
        Self::UndoRecorded,
        Self::FinalizerFirst,
        Self::FinalizerLast,
        Self::ConflictCompared,
        Self::ProvisionedBy,
        Self::UntilFinal,
        Self::StopAfterRestore,
        Self::MarkBeforePv,
        Self::VanishedCompared,
        Self::SourceRespected,
        Self::Sweep,
        Self::OrphanReported,
        Self::RelistDrops,
        Self::RetainMarked,
        Self::EpochInMark,
        Self::TrashTime,
        Self::TrashClock,
        Self::TrashOurs,
        Self::TrashUnnamed,
        Self::RestoreParted,
        Self::BudgetKept,
        Self::PromiseCounts,
        Self::OwnClaim,
        Self::AllocatedFirst,
        Self::AskedNow,
        Self::GrownFirst,
        Self::PvBeforeClaim,
    ];
}

/// Which rules hold, and in test builds which arms of the decisions were visited.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    #[cfg(any(test, feature = "switchable-rules"))]
    off: Option<Rule>,
    #[cfg(any(test, feature = "switchable-rules"))]
    visited: Arc<Mutex<BTreeSet<(&'static str, &'static str)>>>,
}

impl Rules {
    /// Does the rule hold? Always, but in test builds.
    #[cfg(not(any(test, feature = "switchable-rules")))]
    pub const fn holds(&self, _: Rule) -> bool {
        true
    }

    /// Does the rule hold?
    #[cfg(any(test, feature = "switchable-rules"))]
    pub fn holds(&self, rule: Rule) -> bool {
        self.off != Some(rule)
    }

    /// Every rule but one.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub fn without(rule: Rule) -> Self {
        Self { off: Some(rule), ..Self::default() }
    }

    /// `decision` was answered with `arm`. Remembered in test builds only.
    #[cfg(not(any(test, feature = "switchable-rules")))]
    pub const fn visit(&self, _decision: &'static str, _arm: &'static str) {}

    /// `decision` was answered with `arm`.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub fn visit(&self, decision: &'static str, arm: &'static str) {
        if let Ok(mut visited) = self.visited.lock() {
            visited.insert((decision, arm));
        }
    }

    /// Which arms were visited.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub fn visited(&self) -> BTreeSet<(&'static str, &'static str)> {
        self.visited.lock().map(|visited| visited.clone()).unwrap_or_default()
    }
}
