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
    /// Made, but no PV was created for it yet: nobody can have written to it.
    Unpublished,
    /// Comes just before the PV is created: from now on it may hold data.
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

    /// The same mark in another state.
    #[must_use]
    pub fn with_state(&self, state: MarkState) -> Mark {
        Mark { state, ..self.clone() }
    }
}
