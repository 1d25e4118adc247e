//! Claims, classes and volumes as plain data: what the decisions read, and nothing else.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use volwright_provisioner::{ClaimInfo, ClaimUid, ParameterMap, VolumeMode, VolumeSource};

/// As much of a claim as the watch keeps for every claim of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimGlance {
    /// `metadata.uid`
    pub uid: ClaimUid,
    /// `metadata.namespace`
    pub namespace: String,
    /// `metadata.name`
    pub name: String,
    /// The storage-provisioner annotation, GA before beta.
    pub provisioner: Option<String>,
    /// The selected-node annotation; an empty one counts as none.
    pub selected_node: Option<String>,
    /// `spec.volumeName`; always `None` where only metadata is watched.
    pub volume_name: Option<String>,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
}

/// A whole claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimView {
    /// What the watch also knows.
    pub glance: ClaimGlance,
    /// `metadata.resourceVersion`
    pub resource_version: String,
    /// `metadata.labels`
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`
    pub annotations: BTreeMap<String, String>,
    /// Beta annotation, else `spec.storageClassName`.
    pub class: Option<String>,
    /// `spec.accessModes` as written.
    pub access_modes: Vec<String>,
    /// `spec.volumeMode`, or why it is none that we know.
    pub volume_mode: Result<VolumeMode, String>,
    /// `spec.resources.requests.storage` in bytes, or why it cannot be read.
    pub request: Result<u64, String>,
    /// `spec.selector` with at least one requirement; `{}` counts as none.
    pub has_selector: bool,
    /// `spec.dataSourceRef`, else `spec.dataSource`.
    pub data_source: Option<DataSource>,
    /// `spec.volumeAttributesClassName`; an empty one counts as none.
    pub attributes_class: Option<String>,
    /// What it was promised, and how far it has grown.
    pub size: SizeView,
}

/// A claim's status, as far as its size goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SizeView {
    /// `status.capacity.storage` in bytes; `None` before it is bound, and where it cannot be read.
    pub capacity: Option<u64>,
    /// `status.allocatedResources.storage` in bytes: what a quota counts, however far the growth has come.
    pub allocated: Option<u64>,
    /// `status.allocatedResourceStatuses.storage`: how far it has come.
    pub progress: Option<String>,
    /// `status.conditions`, all of them: a patch replaces the list.
    pub conditions: Vec<ClaimCondition>,
}

/// One of `status.conditions` of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimCondition {
    /// Such as `Resizing`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// As its writer left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<String>,
    /// As its writer left it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<String>,
    /// For machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl ClaimView {
    /// As a backend may see it.
    pub fn info(&self) -> ClaimInfo {
        ClaimInfo {
            namespace: self.glance.namespace.clone(),
            name: self.glance.name.clone(),
            uid: self.glance.uid.clone(),
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
        }
    }

    /// Kind of the data source, empty without one: the `source` label of the library's metrics.
    pub fn source_kind(&self) -> &str {
        self.data_source.as_ref().map_or("", |source| source.kind.as_str())
    }
}

/// What a claim wants to be filled from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataSource {
    /// `""` for the core group.
    pub group: String,
    /// Such as `PersistentVolumeClaim`.
    pub kind: String,
    /// Name of the object.
    pub name: String,
}

/// A storage class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassView {
    /// `metadata.name`
    pub name: String,
    /// A class made again under the same name is another class.
    pub uid: String,
    /// `provisioner`
    pub provisioner: String,
    /// `parameters`
    pub parameters: ParameterMap,
    /// `reclaimPolicy`; the API's default is Delete.
    pub reclaim_policy: ReclaimPolicy,
    /// `volumeBindingMode: WaitForFirstConsumer`
    pub late_binding: bool,
    /// `mountOptions`
    pub mount_options: Vec<String>,
    /// Annotation `volwright.io/capacity-budget`, unread.
    pub budget: Option<String>,
}

/// `persistentVolumeReclaimPolicy`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReclaimPolicy {
    /// The volume goes with its claim.
    Delete,
    /// It stays.
    Retain,
    /// Deprecated; counts as Retain.
    Recycle,
}

impl ReclaimPolicy {
    /// Reads the API's spelling. What is unknown keeps the data.
    pub fn parse(text: &str) -> Self {
        match text {
            "Delete" => Self::Delete,
            "Recycle" => Self::Recycle,
            _ => Self::Retain,
        }
    }

    /// The API's spelling.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "Delete",
            Self::Retain => "Retain",
            Self::Recycle => "Recycle",
        }
    }
}

/// `status.phase` of a PV
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not yet looked at by kube-controller-manager (also: no phase).
    Pending,
    /// No claim.
    Available,
    /// A claim has it.
    Bound,
    /// The claim is gone.
    Released,
    /// Reclaim failed, in kube-controller-manager's eyes.
    Failed,
}

impl Phase {
    /// Reads the API's spelling. What is unknown is waited for.
    pub fn parse(text: &str) -> Self {
        match text {
            "Available" => Self::Available,
            "Bound" => Self::Bound,
            "Released" => Self::Released,
            "Failed" => Self::Failed,
            _ => Self::Pending,
        }
    }
}

/// `spec.claimRef`
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ClaimRef {
    /// Namespace of the claim.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// Empty for a PV that is reserved for any claim of that name.
    pub uid: String,
}

/// A persistent volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeView {
    /// `metadata.name`
    pub name: String,
    /// `metadata.uid`
    pub uid: String,
    /// `metadata.resourceVersion`
    pub resource_version: String,
    /// `metadata.deletionTimestamp` is set.
    pub terminating: bool,
    /// `metadata.finalizers`
    pub finalizers: Vec<String>,
    /// Annotation `pv.kubernetes.io/provisioned-by`
    pub provisioned_by: Option<String>,
    /// Annotation `volwright.io/provisioner`
    pub provisioner: Option<String>,
    /// Annotation `volwright.io/handle`, unread.
    pub handle: Option<String>,
    /// Annotation `volwright.io/on-delete`, unread.
    pub on_delete: Option<String>,
    /// Annotation `volwright.io/trash-for`, unread.
    pub trash_for: Option<String>,
    /// Annotation `volwright.io/owner`
    pub owner: Option<String>,
    /// Label `volwright.io/node`
    pub node_label: Option<String>,
    /// Annotation `volwright.io/node-name`
    pub node_name: Option<String>,
    /// `status.phase`
    pub phase: Phase,
    /// `spec.persistentVolumeReclaimPolicy`
    pub policy: ReclaimPolicy,
    /// `spec.claimRef`
    pub claim: Option<ClaimRef>,
    /// Where the data is.
    pub source: VolumeSource,
    /// `spec.capacity.storage` as written.
    pub capacity: String,
    /// `spec.accessModes` as written.
    pub access_modes: Vec<String>,
    /// `spec.storageClassName`
    pub class: String,
    /// `spec.volumeMode` is Block.
    pub block: bool,
    /// `spec.mountOptions`
    pub mount_options: Vec<String>,
    /// Hostname values of the node affinity, for the manifest that brings a volume back.
    pub topology: BTreeMap<String, Vec<String>>,
}

impl VolumeView {
    /// The uid of the claim that it was made for: the annotation, else what its name says.
    pub fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or_else(|| self.name.strip_prefix("pvc-").unwrap_or(&self.name))
    }

    /// The same in all that is read, whatever its version?
    pub fn says_the_same(&self, other: &VolumeView) -> bool {
        VolumeView { resource_version: other.resource_version.clone(), ..self.clone() } == *other
    }

    /// Is our finalizer on it?
    pub fn has_finalizer(&self) -> bool {
        self.finalizers.iter().any(|f| f == crate::names::FINALIZER)
    }
}
