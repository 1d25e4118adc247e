//! What is seen of a volume, and what comes back from the calls that change one.

use crate::Mark;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Has anybody written to the volume?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pristine {
    /// Seen to be empty, or marked unpublished by a mark that comes off just before the PV is created.
    Yes,
    /// There is something in it.
    No,
    /// Cannot be seen. Counts as `No` wherever data could be lost.
    Unknown,
}

/// A volume as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// The mark on it; `None` for an unmarked thing at the volume's place.
    pub mark: Option<Mark>,
    /// Bytes it can hold, where that is known.
    pub size: Option<u64>,
    /// Has anybody written to it?
    pub pristine: Pristine,
    /// Who uses it now, as far as the storage system knows (watchers, attachments): texts for an event.
    pub users: Vec<String>,
}

/// Where a volume can be used from: what becomes the PV's node affinity. Every entry must hold.
pub type Topology = BTreeMap<String, Vec<String>>;

/// A volume that has been made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Provisioned<H> {
    /// The handle, completed where `plan` could not know all of it (a volume id). It must be the
    /// [`same_volume`](crate::Provisioner::same_volume) as the planned one.
    pub handle: H,
    /// Bytes it really has; at least what was asked for.
    pub size: u64,
    /// From where it can be used; empty means from everywhere.
    pub topology: Topology,
}

/// One volume of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InventoryItem<H> {
    /// How to reach it.
    pub handle: H,
    /// As it is now.
    pub observed: Observed,
    /// The note that came with the [request](crate::Request::intent), while the volume is planned or unpublished and
    /// where the backend keeps it. What it says must survive a crash, and nobody needs it once the volume is published.
    pub intent: Option<String>,
    /// What came with [`trash`](crate::Provisioner::trash), exactly while the volume is in the trash.
    pub trashed: Option<Trashed>,
}

/// What is recorded with a volume in the trash: by when it may go, and all that bringing it back takes. Whose it is says
/// its [`Mark`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trashed {
    /// When it was trashed: seconds since 1970-01-01 UTC.
    pub at: u64,
    /// It is kept until then: seconds since 1970-01-01 UTC.
    pub until: u64,
    /// Namespace of the claim that it was bound to.
    pub namespace: String,
    /// Name of that claim.
    pub claim: String,
    /// Name of its storage class.
    pub class_name: String,
    /// Bytes that the PV promised.
    pub size: u64,
    /// The engine's own note, at most 16 KiB: what its PV was. Opaque to backends.
    pub note: String,
}

/// Room on one root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// From where the room can be used.
    pub topology: Topology,
    /// Bytes that new volumes can still be given.
    pub available: u64,
    /// The largest single volume, where it is less.
    pub largest: Option<u64>,
}

/// One line of `doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was looked at, such as `root /srv/volumes`.
    pub subject: String,
    /// What was found; for a failed check with the remedy.
    pub outcome: Result<String, String>,
}
