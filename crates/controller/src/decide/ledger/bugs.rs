//! Mistakes that a test can make the ledger commit, to show that it would notice them.

/// A mistake. Each has a test that fails with it.
#[cfg(any(test, feature = "switchable-rules"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum JournalBug {
    /// A commit does not name the version that it replaces.
    NoVersion,
    /// A read after a conflict does not look at the epoch.
    IgnoreEpoch,
    /// An entry counts as recorded once it was sent.
    AcknowledgeEarly,
    /// What cannot be read is left out of the next write.
    DropForeign,
    /// An ended entry is forgotten before a write has left it out.
    ForgetAtClose,
    /// A vanished shard is made again by a running leader.
    RemakeVanished,
    /// An entry in doubt is dropped when a read does not show it, though its write may still arrive.
    DropDoubt,
    /// Silence counts as a refusal.
    LostIsRefused,
    /// A shard's age is not looked at.
    IgnoreAge,
    /// A read counts as proof of what is recorded, though an earlier write may still arrive.
    TrustUnfencedRead,
}

/// The mistakes that are made: none, but in tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Bugs {
    #[cfg(any(test, feature = "switchable-rules"))]
    made: Option<JournalBug>,
}

macro_rules! questions {
    ($($name:ident => $bug:ident),+ $(,)?) => {
        impl Bugs {
            $(
                #[cfg(any(test, feature = "switchable-rules"))]
                pub(super) fn $name(self) -> bool {
                    self.made == Some(JournalBug::$bug)
                }

                #[cfg(not(any(test, feature = "switchable-rules")))]
                pub(super) const fn $name(self) -> bool {
                    false
                }
            )+
        }
    };
}

questions! {
    has_no_version => NoVersion,
    has_ignored_epoch => IgnoreEpoch,
    has_early_acknowledgement => AcknowledgeEarly,
    has_dropped_foreign => DropForeign,
    has_forgetting_close => ForgetAtClose,
    has_remake => RemakeVanished,
    has_dropped_doubt => DropDoubt,
    has_lost_is_refused => LostIsRefused,
    has_ignored_age => IgnoreAge,
    has_trusted_read => TrustUnfencedRead,
}

#[cfg(any(test, feature = "switchable-rules"))]
impl Bugs {
    /// One mistake.
    pub fn one(bug: JournalBug) -> Self {
        Self { made: Some(bug) }
    }
}
