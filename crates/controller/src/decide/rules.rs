//! The safety rules by name, so that a test can show that each is needed.

/// A rule whose absence would lose or leak data. Each has a test that fails without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
}

/// Which rules hold.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    #[cfg(any(test, feature = "switchable-rules"))]
    off: std::sync::Arc<std::sync::Mutex<Vec<Rule>>>,
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
        !self.off.lock().is_ok_and(|off| off.contains(&rule))
    }

    /// Every rule but one.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub fn without(rule: Rule) -> Self {
        Self { off: std::sync::Arc::new(std::sync::Mutex::new(vec![rule])) }
    }
}
