//! Who owns a volume: installation, owner, mark.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Takes the text as it is.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_newtype! {
    /// `metadata.uid` of a PersistentVolumeClaim. Names are reused, uids never.
    ClaimUid
}
text_newtype! {
    /// Name of a PersistentVolume, by default `pvc-<claim uid>`.
    PvName
}
text_newtype! {
    /// Which installation made a thing: the uid of the namespace `kube-system`, or a flag. Delete, expire, adopt and
    /// inventory act on our own installation; everything else is foreign.
    InstallationId
}

/// Raised by each new leader, so that what a deposed one left can be told apart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Counts leaders. Node agents have no leader and stay at 0.
    pub number: u64,
    /// Random, so that two leaders that took the same number by mistake still differ.
    pub token: u64,
}

/// Where in its life a volume is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MarkState {
    /// Recorded, not yet made. A thing found at this place that is not empty is foreign.
    Planned,
    /// Made, and its PV not known to exist: it is to be undone only if it is pristine.
    Unpublished,
    /// It may hold data. Written just before the PV is created, or just after it where the backend
    /// [sees what is in a volume](crate::Capabilities::sees_contents).
    Published,
    /// Kept on purpose; no PV speaks for it any more.
    Retained,
    /// Moved aside, restorable until it expires.
    Trashed,
}

/// What is written on a volume (a record, tags, image metadata) to say whose it is. Compared just before each
/// irrevocable step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mark {
    /// Which installation made it.
    pub installation: InstallationId,
    /// The claim it was made for. A populator may later give the PV to another claim; this stays.
    pub owner: ClaimUid,
    /// The PV that speaks for it.
    pub pv_name: PvName,
    /// Under which leader it was written last.
    pub epoch: Epoch,
    /// Where in its life it is.
    pub state: MarkState,
}

impl Mark {
    /// Do both name the same volume of the same owner? State and epoch change over a life and are not compared.
    pub fn same_owner(&self, other: &Mark) -> bool {
        self.installation == other.installation && self.owner == other.owner && self.pv_name == other.pv_name
    }

    /// May a call that is asked with the mark `asked` destroy the volume that bears this one? It is the same owner's,
    /// and no later leader has marked it since: a call of a leader that has been deposed comes too late then, because
    /// its successor goes on with the volume.
    pub fn yields_to(&self, asked: &Mark) -> bool {
        self.same_owner(asked) && self.epoch <= asked.epoch
    }

    /// The same mark in another state.
    #[must_use]
    pub fn with_state(&self, state: MarkState) -> Mark {
        Mark { state, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_yields_to_its_owners_calls_under_the_same_leader_or_a_later_one() {
        let mark = |owner: &str, number, token| Mark {
            installation: InstallationId::new("i"),
            owner: ClaimUid::new(owner),
            pv_name: PvName::new("p"),
            epoch: Epoch { number, token },
            state: MarkState::Published,
        };
        let found = mark("u", 2, 5);
        let cases = [
            (mark("u", 2, 5), true),
            (mark("u", 3, 1), true),
            (mark("u", 2, 6), true), // of two leaders by mistake, the same one wins everywhere
            (mark("u", 2, 4), false),
            (mark("u", 1, 9), false),
            (mark("w", 3, 1), false),
        ];
        for (asked, yields) in cases {
            assert_eq!(found.yields_to(&asked), yields, "{asked:?}");
            assert_eq!(
                found.yields_to(&asked.with_state(MarkState::Unpublished)),
                yields,
                "whatever the state"
            );
        }
    }
}
