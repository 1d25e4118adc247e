//! The Kubernetes objects we watch, decoded into types that hold only what is read.
//!
//! `managedFields` and the rest of a real object are several times larger than what a decision needs: decoding into
//! these types and then into the plain data of [`crate::decide`] is what keeps memory proportional to what matters.

use crate::decide::{
    ClaimCondition, ClaimGlance, ClaimRef, ClaimView, ClassView, DataSource, Phase, ReclaimPolicy, SizeView,
    VolumeView,
};
use crate::names;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use volwright_provisioner::{ClaimUid, CsiSource, SecretRef, VolumeMode, VolumeSource, parse_bytes};

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, Serialize, Deserialize, Resource)]
#[resource(inherit = PersistentVolumeClaim)]
pub struct Claim {
    /// Object metadata.
    pub metadata: ObjectMeta,
    /// `None` only for an object that the API server would never store.
    #[serde(default)]
    pub spec: ClaimSpec,
    /// See [`ClaimStatus`].
    #[serde(default)]
    pub status: ClaimStatus,
}

/// The part of a claim's status that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    capacity: BTreeMap<String, String>,
    allocated_resources: BTreeMap<String, String>,
    allocated_resource_statuses: BTreeMap<String, String>,
    conditions: Vec<ClaimCondition>,
}

/// The part of a claim's spec that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    volume_name: Option<String>,
    storage_class_name: Option<String>,
    access_modes: Vec<String>,
    volume_mode: Option<String>,
    resources: Resources,
    selector: Option<Selector>,
    data_source: Option<SourceRef>,
    data_source_ref: Option<SourceRef>,
    volume_attributes_class_name: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Resources {
    requests: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Selector {
    match_labels: BTreeMap<String, String>,
    match_expressions: Vec<Value>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct SourceRef {
    #[serde(default)]
    api_group: Option<String>,
    kind: String,
    name: String,
}

/// A PersistentVolume.
#[derive(Debug, Clone, Serialize, Deserialize, Resource)]
#[resource(inherit = PersistentVolume)]
pub struct Volume {
    /// Object metadata.
    pub metadata: ObjectMeta,
    /// See [`VolumeSpec`].
    #[serde(default)]
    pub spec: VolumeSpec,
    /// See [`VolumeStatus`].
    #[serde(default)]
    pub status: VolumeStatus,
}

/// The part of a PV's spec that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSpec {
    capacity: BTreeMap<String, String>,
    access_modes: Vec<String>,
    persistent_volume_reclaim_policy: String,
    storage_class_name: String,
    volume_mode: Option<String>,
    mount_options: Vec<String>,
    claim_ref: Option<ClaimReference>,
    local: Option<PathSource>,
    host_path: Option<PathSource>,
    nfs: Option<NfsSource>,
    csi: Option<CsiFields>,
    node_affinity: Option<Value>,
}

/// The part of a PV's status that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VolumeStatus {
    phase: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct ClaimReference {
    namespace: String,
    name: String,
    uid: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct PathSource {
    path: String,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NfsSource {
    server: String,
    path: String,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CsiFields {
    driver: String,
    volume_handle: String,
    fs_type: Option<String>,
    volume_attributes: BTreeMap<String, String>,
    node_stage_secret_ref: Option<SecretFields>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct SecretFields {
    namespace: String,
    name: String,
}

/// A StorageClass.
#[derive(Debug, Clone, Serialize, Deserialize, Resource)]
#[resource(inherit = StorageClass)]
#[serde(rename_all = "camelCase")]
pub struct Class {
    /// Object metadata.
    pub metadata: ObjectMeta,
    #[serde(default)]
    provisioner: String,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    reclaim_policy: Option<String>,
    #[serde(default)]
    volume_binding_mode: Option<String>,
    #[serde(default)]
    mount_options: Vec<String>,
}

/// As the API writes times: in whole seconds.
pub fn api_time(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

fn text(value: Option<&String>) -> String {
    value.cloned().unwrap_or_default()
}

fn some_text(value: Option<&String>) -> Option<String> {
    value.filter(|text| !text.is_empty()).cloned()
}

/// The part of a claim that its metadata tells.
pub fn glance(metadata: &ObjectMeta) -> ClaimGlance {
    let annotation = |key: &str| some_text(metadata.annotations.as_ref().and_then(|a| a.get(key)));
    ClaimGlance {
        uid: ClaimUid::new(text(metadata.uid.as_ref())),
        namespace: text(metadata.namespace.as_ref()),
        name: text(metadata.name.as_ref()),
        provisioner: annotation(names::STORAGE_PROVISIONER)
            .or_else(|| annotation(names::STORAGE_PROVISIONER_BETA)),
        selected_node: annotation(names::SELECTED_NODE),
        volume_name: None,
        terminating: metadata.deletion_timestamp.is_some(),
    }
}

impl Claim {
    /// As plain data.
    pub fn view(&self) -> ClaimView {
        let spec = &self.spec;
        let annotations = self.metadata.annotations.clone().unwrap_or_default();
        let data_source = spec.data_source_ref.as_ref().or(spec.data_source.as_ref());
        let mut glance = glance(&self.metadata);
        glance.volume_name = some_text(spec.volume_name.as_ref());
        ClaimView {
            glance,
            resource_version: text(self.metadata.resource_version.as_ref()),
            labels: self.metadata.labels.clone().unwrap_or_default(),
            class: some_text(annotations.get(names::STORAGE_CLASS_BETA))
                .or_else(|| some_text(spec.storage_class_name.as_ref())),
            annotations,
            access_modes: spec.access_modes.clone(),
            volume_mode: match spec.volume_mode.as_deref() {
                None | Some("" | "Filesystem") => Ok(VolumeMode::Filesystem),
                Some("Block") => Ok(VolumeMode::Block),
                Some(other) => Err(format!("the volume mode {other:?} is unknown")),
            },
            request: spec
                .resources
                .requests
                .get("storage")
                .ok_or_else(|| "the claim has no spec.resources.requests.storage".to_owned())
                .and_then(|size| parse_bytes(size).map_err(|error| error.to_string())),
            has_selector: spec
                .selector
                .as_ref()
                .is_some_and(|s| !s.match_labels.is_empty() || !s.match_expressions.is_empty()),
            data_source: data_source.map(|source| DataSource {
                group: text(source.api_group.as_ref()),
                kind: source.kind.clone(),
                name: source.name.clone(),
            }),
            attributes_class: some_text(spec.volume_attributes_class_name.as_ref()),
            size: self.status.view(),
        }
    }
}

impl ClaimStatus {
    fn view(&self) -> SizeView {
        let bytes = |sizes: &BTreeMap<String, String>| parse_bytes(sizes.get("storage")?).ok();
        SizeView {
            capacity: bytes(&self.capacity),
            allocated: bytes(&self.allocated_resources),
            progress: some_text(self.allocated_resource_statuses.get("storage")),
            conditions: self.conditions.clone(),
        }
    }
}

impl Class {
    /// As plain data.
    pub fn view(&self) -> ClassView {
        ClassView {
            name: text(self.metadata.name.as_ref()),
            uid: text(self.metadata.uid.as_ref()),
            provisioner: self.provisioner.clone(),
            parameters: self.parameters.clone(),
            reclaim_policy: self
                .reclaim_policy
                .as_deref()
                .map_or(ReclaimPolicy::Delete, ReclaimPolicy::parse),
            late_binding: self.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"),
            mount_options: self.mount_options.clone(),
            budget: self.metadata.annotations.as_ref().and_then(|a| a.get(names::CAPACITY_BUDGET)).cloned(),
        }
    }
}

impl Volume {
    /// As plain data.
    pub fn view(&self) -> VolumeView {
        let spec = &self.spec;
        let annotation = |key: &str| self.metadata.annotations.as_ref().and_then(|a| a.get(key)).cloned();
        VolumeView {
            name: text(self.metadata.name.as_ref()),
            uid: text(self.metadata.uid.as_ref()),
            resource_version: text(self.metadata.resource_version.as_ref()),
            terminating: self.metadata.deletion_timestamp.is_some(),
            finalizers: self.metadata.finalizers.clone().unwrap_or_default(),
            provisioned_by: annotation(names::PROVISIONED_BY),
            provisioner: annotation(names::PROVISIONER),
            handle: annotation(names::HANDLE),
            on_delete: annotation(names::ON_DELETE),
            trash_for: annotation(names::TRASH_FOR),
            owner: annotation(names::OWNER),
            node_label: self.metadata.labels.as_ref().and_then(|l| l.get(names::NODE_LABEL)).cloned(),
            node_name: annotation(names::NODE_NAME),
            phase: Phase::parse(&self.status.phase),
            policy: ReclaimPolicy::parse(&spec.persistent_volume_reclaim_policy),
            claim: spec.claim_ref.as_ref().map(|claim| ClaimRef {
                namespace: claim.namespace.clone(),
                name: claim.name.clone(),
                uid: claim.uid.clone(),
            }),
            source: spec.source(),
            capacity: text(spec.capacity.get("storage")),
            access_modes: spec.access_modes.clone(),
            class: spec.storage_class_name.clone(),
            block: spec.volume_mode.as_deref() == Some("Block"),
            mount_options: spec.mount_options.clone(),
            topology: spec.topology(),
        }
    }
}

impl VolumeSpec {
    fn source(&self) -> VolumeSource {
        if let Some(local) = &self.local {
            VolumeSource::Local { path: local.path.clone() }
        } else if let Some(host) = &self.host_path {
            VolumeSource::HostPath { path: host.path.clone() }
        } else if let Some(nfs) = &self.nfs {
            VolumeSource::Nfs { server: nfs.server.clone(), path: nfs.path.clone() }
        } else if let Some(csi) = &self.csi {
            VolumeSource::Csi(CsiSource {
                driver: csi.driver.clone(),
                volume_handle: csi.volume_handle.clone(),
                fs_type: some_text(csi.fs_type.as_ref()),
                volume_attributes: csi.volume_attributes.clone(),
                node_stage_secret: csi
                    .node_stage_secret_ref
                    .as_ref()
                    .map(|s| SecretRef { namespace: s.namespace.clone(), name: s.name.clone() }),
            })
        } else {
            VolumeSource::Other { kind: "unknown".to_owned() }
        }
    }

    /// The `In` requirements of the first term: the only shape that we write.
    fn topology(&self) -> BTreeMap<String, Vec<String>> {
        let requirements = self
            .node_affinity
            .as_ref()
            .and_then(|affinity| affinity.pointer("/required/nodeSelectorTerms/0/matchExpressions"))
            .and_then(Value::as_array);
        requirements
            .into_iter()
            .flatten()
            .filter_map(|requirement| {
                let key = requirement.get("key")?.as_str()?.to_owned();
                let values = requirement.get("values")?.as_array()?;
                Some((key, values.iter().filter_map(Value::as_str).map(str::to_owned).collect()))
            })
            .collect()
    }
}
