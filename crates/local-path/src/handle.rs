//! What later calls need to find a volume.

use serde::{Deserialize, Serialize};
use volwright_provisioner::{Failure, RelativePath, Result, Until};
use volwright_volume_tree::{Place, RootId, VolumeId};

/// Where a volume is. Stored on its PV.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handle {
    /// Identity of the root it was made on: what is mounted there now may be another.
    pub root_id: RootId,
    /// The root's path on the node.
    pub root: String,
    /// The volume's path below it.
    pub path: String,
    /// Its private name in the root's own directories.
    pub volume: VolumeId,
    /// `metadata.name` of the node.
    pub node_name: String,
    /// `metadata.uid` of the node.
    pub node_uid: String,
}

/// The trait allows 2 KiB; some of it is the envelope's.
pub(crate) const SIZE_MAX: usize = 1900;

impl Handle {
    /// The path in the PV.
    pub(crate) fn full_path(&self) -> String {
        format!("{}/{}", self.root, self.path)
    }

    pub(crate) fn place(&self) -> Result<Place> {
        // Handles come from PVs, which others can edit: nothing in one is believed to be a path.
        let path = RelativePath::parse(&self.path).map_err(|error| {
            Failure::blocked(Until::OperatorActs, format!("the volume's handle has no proper path: {error}"))
        })?;
        Ok(Place { path, id: self.volume.clone() })
    }
}
