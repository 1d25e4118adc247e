//! Deliberate bugs, one at a time: a simulation that does not notice one of them proves nothing.

use std::fmt;
use volwright_controller::decide::lease::{LeaseBug, LeaseBugs};
use volwright_controller::decide::ledger::{Bugs, JournalBug};
use volwright_controller::decide::{Rule, Rules};

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutant {
    /// The engine without one of its rules.
    Without(Rule),
    /// A leader election with a mistake.
    Lease(LeaseBug),
    /// A journal with a mistake.
    Journal(JournalBug),
}

impl Mutant {
    /// All that the simulation notices. Where another rule is missing, a second one or the backend's last look still holds, and
    /// tables show what it stops by itself. The rest of the lease's and all of the journal's mistakes need schedules that are
    /// found only by trying all of them, which their own explorations do.
    pub fn all() -> Vec<Self> {
        let rules = NOTICED.map(Self::Without);
        let lease =
            [LeaseBug::BlindWrite, LeaseBug::TakeUnexpired, LeaseBug::ActAfterDeadline].map(Self::Lease);
        rules.into_iter().chain(lease).collect()
    }

    /// Rules that the simulation does not miss: where one is switched off, another rule or the backend's own last look still
    /// holds. Tests of their own show what each stops by itself.
    pub const SECOND_LINES: [Rule; 16] = [
        Rule::ClaimGone,
        Rule::SameVolume,
        Rule::NotBound,
        Rule::SourceMatchesHandle,
        Rule::MarkIsOurs,
        Rule::Fence,
        Rule::Unused,
        Rule::PlaceIsFree,
        Rule::PvIsOurs,
        Rule::Grace,
        Rule::UndoRecorded,
        Rule::RelistDrops,
        Rule::EpochInMark,
        Rule::OwnClaim,
        // No scenario has a class with a budget; `sim_budget` has.
        Rule::BudgetKept,
        Rule::PromiseCounts,
    ];

    /// Scenarios that show it, the quickest first.
    pub fn scenarios(self) -> &'static [&'static str] {
        match self {
            Self::Lease(_)
            | Self::Without(Rule::LeaderActs | Rule::Grace | Rule::Sweep | Rule::EpochInMark) => {
                &["leaders", "everything"]
            }
            Self::Journal(_) | Self::Without(Rule::VanishedCompared) => &["leaders", "crashes", "everything"],
            Self::Without(Rule::StopAfterRestore) => &["restore"],
            Self::Without(
                Rule::TrashTime
                | Rule::TrashClock
                | Rule::TrashOurs
                | Rule::TrashUnnamed
                | Rule::RestoreParted,
            ) => &["trash"],
            Self::Without(Rule::Doubt | Rule::UntilFinal | Rule::Unused) => &["storage", "everything"],
            Self::Without(Rule::IntentFirst | Rule::IntentStays | Rule::UndoRecorded) => {
                &["crashes", "leaders", "storage", "everything"]
            }
            Self::Without(Rule::RelistDrops) => &["watches", "everything"],
            Self::Without(Rule::MarkIsOurs | Rule::PlaceIsFree) => &["neighbours", "editors", "everything"],
            Self::Without(Rule::PolicyDelete | Rule::NotBound | Rule::ClaimGone | Rule::SameVolume) => {
                &["races", "everything"]
            }
            Self::Without(
                Rule::OwnClaim
                | Rule::AllocatedFirst
                | Rule::AskedNow
                | Rule::GrownFirst
                | Rule::PvBeforeClaim,
            ) => &["growth", "everything"],
            Self::Without(_) => &["editors", "watches", "neighbours", "storage", "everything"],
        }
    }

    /// The rules of an engine with this bug.
    pub(super) fn rules(self) -> Rules {
        match self {
            Self::Without(rule) => Rules::without(rule),
            Self::Lease(_) | Self::Journal(_) => Rules::default(),
        }
    }

    pub(super) fn lease_bugs(self) -> LeaseBugs {
        match self {
            Self::Lease(bug) => LeaseBugs::only(bug),
            Self::Without(_) | Self::Journal(_) => LeaseBugs::default(),
        }
    }

    pub(super) fn journal_bugs(self) -> Bugs {
        match self {
            Self::Journal(bug) => Bugs::one(bug),
            Self::Without(_) | Self::Lease(_) => Bugs::default(),
        }
    }
}

/// Rules that the simulation misses when they are switched off.
const NOTICED: [Rule; 31] = [
    Rule::NoClaimNamesIt,
    Rule::PolicyDelete,
    Rule::NoAlias,
    Rule::Pristine,
    Rule::IntentFirst,
    Rule::IntentStays,
    Rule::LiveClaim,
    Rule::LiveVolume,
    Rule::LeaderActs,
    Rule::Doubt,
    Rule::FinalizerFirst,
    Rule::FinalizerLast,
    Rule::ConflictCompared,
    Rule::ProvisionedBy,
    Rule::UntilFinal,
    Rule::StopAfterRestore,
    Rule::MarkBeforePv,
    Rule::VanishedCompared,
    Rule::SourceRespected,
    Rule::Sweep,
    Rule::OrphanReported,
    Rule::RetainMarked,
    Rule::AllocatedFirst,
    Rule::AskedNow,
    Rule::GrownFirst,
    Rule::PvBeforeClaim,
    Rule::TrashTime,
    Rule::TrashClock,
    Rule::TrashOurs,
    Rule::TrashUnnamed,
    Rule::RestoreParted,
];

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Without(rule) => write!(f, "without {rule:?}"),
            Self::Lease(bug) => write!(f, "lease: {bug:?}"),
            Self::Journal(bug) => write!(f, "journal: {bug:?}"),
        }
    }
}
