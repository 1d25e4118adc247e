//! What is asked of a backend.

use crate::{ClaimUid, Mark, PvName};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// How nodes may use a volume (`spec.accessModes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AccessMode {
    /// Read and write by one node.
    ReadWriteOnce,
    /// Read by many nodes.
    ReadOnlyMany,
    /// Read and write by many nodes.
    ReadWriteMany,
    /// Read and write by one pod. The API demands that it stands alone.
    ReadWriteOncePod,
}

impl AccessMode {
    /// Every mode there is.
    pub const ALL: [Self; 4] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    /// The API's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }

    /// Reads the API's spelling.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

impl fmt::Display for AccessMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// File system or raw device (`spec.volumeMode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum VolumeMode {
    /// Mounted into the pod.
    #[default]
    Filesystem,
    /// A device in the pod.
    Block,
}

impl fmt::Display for VolumeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Filesystem => "Filesystem",
            Self::Block => "Block",
        })
    }
}

/// The claim as a backend may see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimInfo {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// What distinguishes it from an earlier or later claim of that name.
    pub uid: ClaimUid,
    /// Labels, for path patterns. Written by the claim's owner: hostile until proven otherwise.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations, for path patterns. Hostile as well.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// The node a volume is wanted on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// `metadata.name`. May differ from the hostname label.
    pub name: String,
    /// `metadata.uid`: a node made again under the same name is another node.
    pub uid: String,
    /// Labels, for topology. The hostname label is `kubernetes.io/hostname`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// One claim to be served, with class parameters of type `P`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request<P> {
    /// For whom.
    pub claim: ClaimInfo,
    /// Name that the PV will have.
    pub pv_name: PvName,
    /// Bytes wanted; at least 1. A volume may be larger, never smaller.
    pub size: u64,
    /// As the claim says; never empty.
    pub access_modes: Vec<AccessMode>,
    /// As the claim says.
    pub volume_mode: VolumeMode,
    /// Name of the storage class.
    pub class_name: String,
    /// The class's parameters.
    pub parameters: P,
    /// The node chosen by the scheduler, with late binding; a node agent's own node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeInfo>,
    /// 0 at first. Raised after a plan was undone, so that `plan` can choose another place.
    pub attempt: u32,
    /// The mark to write on what is made.
    pub mark: Mark,
    /// The engine's own note about this request, at most 16 KiB; opaque to backends. A backend that records volumes
    /// durably before it makes them keeps the note with the record and gives it back in its
    /// [inventory](crate::InventoryItem); all others ignore it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
}

impl<P> Request<P> {
    /// The same request with other parameters.
    pub fn with_parameters<Q>(self, parameters: Q) -> Request<Q> {
        let Request {
            claim,
            pv_name,
            size,
            access_modes,
            volume_mode,
            class_name,
            node,
            attempt,
            mark,
            intent,
            parameters: _,
        } = self;
        Request {
            claim,
            pv_name,
            size,
            access_modes,
            volume_mode,
            class_name,
            parameters,
            node,
            attempt,
            mark,
            intent,
        }
    }
}
