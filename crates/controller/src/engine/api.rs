//! Every call to the API server that the engine makes: each with a deadline, counted, and its failure classed.

use crate::client::describe;
use crate::decide::{ClaimView, SizeView, VolumeView};
use crate::names;
use crate::objects::{Claim, Volume};
use http::{Request, header};
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::client::Body;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use volwright_provisioner::{Class, Failure, NodeInfo, Result, Until, format_bytes};

use super::lease::Leadership;
use super::metrics::Metrics;
use super::shared::deposed;

/// Lists in pages of this many, as client-go does; a page of 500 PVs is about a megabyte.
const PAGE: u32 = 500;

/// See the module.
pub struct ApiServer {
    client: Client,
    deadline: Duration,
    leadership: Leadership,
    metrics: Arc<Metrics>,
}

/// What came of creating a PV.
pub enum Created {
    /// It is there now.
    New,
    /// One of that name was there.
    Exists,
}

/// What came of deleting a PV.
pub enum Deleted {
    /// It is terminating; this is what the server showed.
    Terminating(Box<VolumeView>),
    /// It went at once.
    Gone,
    /// It changed since it was read: read it again.
    Changed,
}

/// How a call failed, before it has a class.
enum CallError {
    Api(Box<kube::Error>),
    Deadline,
    /// A write that was not begun.
    Deposed,
}

impl CallError {
    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(error) => match error.as_ref() {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            Self::Deadline | Self::Deposed => None,
        }
    }
}

impl ApiServer {
    /// Calls go through `client`, which must not retry by itself.
    pub fn new(client: Client, deadline: Duration, leadership: Leadership, metrics: Arc<Metrics>) -> Self {
        Self { client, deadline, leadership, metrics }
    }

    async fn call<T>(
        &self,
        verb: &'static str,
        resource: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, CallError> {
        if !matches!(verb, "get" | "list") && !self.leadership.may_act() {
            return Err(CallError::Deposed);
        }
        let result = match tokio::time::timeout(self.deadline, call).await {
            Ok(result) => result.map_err(|error| CallError::Api(Box::new(error))),
            Err(_) => Err(CallError::Deadline),
        };
        let outcome = match &result {
            Ok(_) => "ok",
            Err(error) => match error.code() {
                Some(403) => "forbidden",
                Some(404) => "not_found",
                Some(409) => "conflict",
                Some(429) => "throttled",
                Some(400..=499) => "refused",
                Some(_) => "server_error",
                None => "no_answer",
            },
        };
        self.metrics.api_call(verb, resource, outcome);
        result
    }

    fn claims(&self, namespace: &str) -> Api<Claim> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn volumes(&self) -> Api<Volume> {
        Api::all(self.client.clone())
    }

    /// The claim as it is now.
    pub async fn claim(&self, namespace: &str, name: &str) -> Result<Option<ClaimView>> {
        let found = self.call("get", "persistentvolumeclaims", self.claims(namespace).get_opt(name)).await;
        found
            .map(|claim| claim.map(|claim| claim.view()))
            .map_err(|error| failure(error, "get", "persistentvolumeclaims"))
    }

    /// The PV as it is now.
    pub async fn volume(&self, name: &str) -> Result<Option<VolumeView>> {
        let found = self.call("get", "persistentvolumes", self.volumes().get_opt(name)).await;
        found
            .map(|volume| volume.map(|volume| volume.view()))
            .map_err(|error| failure(error, "get", "persistentvolumes"))
    }

    /// The node as it is now.
    pub async fn node(&self, name: &str) -> Result<Option<NodeInfo>> {
        let nodes: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let found = self.call("get", "nodes", nodes.get_opt(name)).await;
        let node = found.map_err(|error| failure(error, "get", "nodes"))?;
        Ok(node.map(|node| NodeInfo {
            name: name.to_owned(),
            uid: node.metadata.uid.unwrap_or_default(),
            labels: node.metadata.labels.unwrap_or_default(),
        }))
    }

    /// Creates a PV: the one unshared write of a claim. Safe to repeat: the name is the claim's.
    pub async fn create_volume(&self, volume: &PersistentVolume) -> Result<Created> {
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let parameters = PostParams::default();
        match self.call("create", "persistentvolumes", volumes.create(&parameters, volume)).await {
            Ok(_) => Ok(Created::New),
            Err(error) if error.code() == Some(409) => Ok(Created::Exists),
            Err(error) => Err(failure(error, "create", "persistentvolumes")),
        }
    }

    /// Merges `change` into a PV's metadata, if it still has this resource version. `None`: it is gone or has changed,
    /// and the watch will tell.
    pub async fn patch_volume(&self, seen: &VolumeView, change: Value) -> Result<Option<VolumeView>> {
        let mut metadata = change;
        metadata["resourceVersion"] = json!(seen.resource_version);
        metadata["uid"] = json!(seen.uid);
        self.patch(&seen.name, &Patch::Merge(json!({ "metadata": metadata })), &[404, 409]).await
    }

    /// Sets a PV's capacity (bytes), if it still has this resource version. `None`: it is gone or has changed.
    pub async fn patch_volume_capacity(
        &self,
        seen: &VolumeView,
        capacity: u64,
    ) -> Result<Option<VolumeView>> {
        let patch = json!({
            "metadata": { "resourceVersion": seen.resource_version, "uid": seen.uid },
            "spec": { "capacity": { "storage": format_bytes(capacity) } },
        });
        self.patch(&seen.name, &Patch::Merge(patch), &[404, 409]).await
    }

    /// Writes a claim's size to its status, if it still has this resource version. `None`: it is gone or has changed.
    pub async fn patch_claim_size(&self, seen: &ClaimView, size: &SizeView) -> Result<Option<ClaimView>> {
        let mut status = json!({
            "allocatedResourceStatuses": { "storage": size.progress },
            "conditions": if size.conditions.is_empty() { Value::Null } else { json!(size.conditions) },
        });
        for (field, bytes) in [("capacity", size.capacity), ("allocatedResources", size.allocated)] {
            if let Some(bytes) = bytes {
                status[field] = json!({ "storage": format_bytes(bytes) });
            }
        }
        let patch = Patch::Merge(json!({
            "metadata": { "resourceVersion": seen.resource_version, "uid": seen.glance.uid },
            "status": status,
        }));
        let (claims, parameters) = (self.claims(&seen.glance.namespace), PatchParams::default());
        let patched = claims.patch_status(&seen.glance.name, &parameters, &patch);
        match self.call("patch", "persistentvolumeclaims/status", patched).await {
            Ok(claim) => Ok(Some(claim.view())),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(None),
            Err(error) => Err(failure(error, "patch", "persistentvolumeclaims/status")),
        }
    }

    /// Patches a PV. `None` where the answer is one of `not_there`.
    async fn patch(&self, name: &str, patch: &Patch<Value>, not_there: &[u16]) -> Result<Option<VolumeView>> {
        let (volumes, parameters) = (self.volumes(), PatchParams::default());
        match self.call("patch", "persistentvolumes", volumes.patch(name, &parameters, patch)).await {
            Ok(volume) => Ok(Some(volume.view())),
            Err(error) if error.code().is_some_and(|code| not_there.contains(&code)) => Ok(None),
            Err(error) => Err(failure(error, "patch", "persistentvolumes")),
        }
    }

    /// Takes our finalizer off that PV, whatever else has changed of it: for when only that is left to do. `None`: it is
    /// gone.
    pub async fn drop_finalizer(&self, seen: &VolumeView) -> Result<Option<VolumeView>> {
        let patch = Patch::Strategic(json!({ "metadata": {
            "uid": seen.uid,
            "$deleteFromPrimitiveList/finalizers": [names::FINALIZER],
        }}));
        // A PV made again under the name has another uid, which no patch can change.
        self.patch(&seen.name, &patch, &[404, 409, 422]).await
    }

    /// Deletes exactly the PV that was seen.
    pub async fn delete_volume(&self, seen: &VolumeView) -> Result<Deleted> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(seen.uid.clone()),
                resource_version: Some(seen.resource_version.clone()),
            }),
            ..DeleteParams::default()
        };
        let volumes = self.volumes();
        match self.call("delete", "persistentvolumes", volumes.delete(&seen.name, &parameters)).await {
            Ok(reply) => Ok(match reply.left() {
                Some(volume) if volume.metadata.deletion_timestamp.is_some() => {
                    Deleted::Terminating(Box::new(volume.view()))
                }
                _ => Deleted::Gone,
            }),
            Err(error) if error.code() == Some(404) => Ok(Deleted::Gone),
            Err(error) if error.code() == Some(409) => Ok(Deleted::Changed),
            Err(error) => Err(failure(error, "delete", "persistentvolumes")),
        }
    }

    /// Takes the scheduler's choice back, if the claim is still as it was seen. The scheduler then chooses again.
    /// `false`: the claim has changed.
    pub async fn unselect_node(&self, claim: &ClaimView) -> Result<bool> {
        let patch = Patch::Merge(json!({ "metadata": {
            "resourceVersion": claim.resource_version,
            "uid": claim.glance.uid,
            "annotations": { (names::SELECTED_NODE): null },
        }}));
        let claims: Api<PartialObjectMeta<PersistentVolumeClaim>> =
            Api::namespaced(self.client.clone(), &claim.glance.namespace);
        let parameters = PatchParams::default();
        let patched = self
            .call(
                "patch",
                "persistentvolumeclaims",
                claims.patch_metadata(&claim.glance.name, &parameters, &patch),
            )
            .await;
        match patched {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(false),
            Err(error) => Err(failure(error, "patch", "persistentvolumeclaims")),
        }
    }

    /// Has anybody told of `reason` on the object of this uid?
    pub async fn event_exists(&self, namespace: &str, uid: &str, reason: &str) -> Result<bool> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let wanted = ListParams::default().fields(&format!("regarding.uid={uid},reason={reason}")).limit(1);
        let found = self.call("list", "events", events.list_metadata(&wanted)).await;
        found.map(|found| !found.items.is_empty()).map_err(|error| failure(error, "list", "events"))
    }

    /// Every PV that bears no node label: those that an agent's own watch cannot show, and that may yet name the same
    /// data.
    pub async fn visit_unlabelled_volumes(&self, mut visit: impl FnMut(VolumeView)) -> Result<()> {
        let unlabelled = ListParams::default().labels(&format!("!{}", names::NODE_LABEL));
        self.visit("persistentvolumes", &self.volumes(), unlabelled, |volume| visit(volume.view())).await
    }

    /// The version that etcd is at now. A list that names no version is answered from etcd, not from a cache.
    pub async fn history_version(&self) -> Result<u64> {
        let objects: Api<PersistentVolume> = Api::all(self.client.clone());
        let one = ListParams::default().limit(1);
        let found = self.call("list", "persistentvolumes", objects.list_metadata(&one)).await;
        let list = found.map_err(|error| failure(error, "list", "persistentvolumes"))?;
        // What is no number cannot be compared, and then nothing is said.
        Ok(list.metadata.resource_version.and_then(|version| version.parse().ok()).unwrap_or(u64::MAX))
    }

    /// The API server's own time, in seconds since 1970-01-01 UTC, to within the time of a call.
    pub async fn time(&self) -> Result<u64> {
        let unreadable = || Failure::unavailable("the API server's answer bears no date that can be read");
        let request = Request::get("/version").body(Body::empty()).map_err(|_| unreadable())?;
        let answer = self.call("get", "version", self.client.send(request)).await;
        let answer = answer.map_err(|error| failure(error, "get", "version"))?;
        let date = answer.headers().get(header::DATE).and_then(|date| date.to_str().ok());
        let date = date.and_then(|date| rfc2822::parse(date).ok()).ok_or_else(unreadable)?;
        u64::try_from(date.timestamp().as_second()).map_err(|_| unreadable())
    }

    fn maps(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The ConfigMaps with these labels. May be a moment old: whatever they lead to looks again.
    pub async fn maps_with(&self, namespace: &str, labels: &str) -> Result<Vec<ConfigMap>> {
        let wanted = ListParams::default().labels(labels).match_any();
        let found = self.call("list", "configmaps", self.maps(namespace).list(&wanted)).await;
        found.map(|list| list.items).map_err(|error| failure(error, "list", "configmaps"))
    }

    /// Merges `data` into exactly this ConfigMap. `false`: it is gone.
    pub async fn add_to_map(&self, map: &ConfigMap, data: Value) -> Result<bool> {
        let (namespace, name) = (map.metadata.namespace.as_deref(), map.metadata.name.as_deref());
        let maps = self.maps(namespace.unwrap_or_default());
        let patch = Patch::Merge(json!({ "metadata": { "uid": map.metadata.uid }, "data": data }));
        let parameters = PatchParams::default();
        match self
            .call("patch", "configmaps", maps.patch(name.unwrap_or_default(), &parameters, &patch))
            .await
        {
            Ok(_) => Ok(true),
            // One made again under the name has another uid, which no patch can change.
            Err(error) if matches!(error.code(), Some(404 | 409 | 422)) => Ok(false),
            Err(error) => Err(failure(error, "patch", "configmaps")),
        }
    }

    /// Writes a ConfigMap that is ours alone, whatever was in it. `or_create`: also where there is none.
    pub async fn put_map(&self, map: &ConfigMap, or_create: bool) -> Result<()> {
        let (namespace, name) = (map.metadata.namespace.as_deref(), map.metadata.name.as_deref());
        let maps = self.maps(namespace.unwrap_or_default());
        let change = json!({ "metadata": { "labels": map.metadata.labels }, "data": map.data });
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(change));
        match self
            .call("patch", "configmaps", maps.patch(name.unwrap_or_default(), &parameters, &patch))
            .await
        {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(404) && !or_create => return Ok(()),
            Err(error) if error.code() == Some(404) => {}
            Err(error) => return Err(failure(error, "patch", "configmaps")),
        }
        let made = self.call("create", "configmaps", maps.create(&PostParams::default(), map)).await;
        made.map(drop).map_err(|error| failure(error, "create", "configmaps"))
    }

    /// Deletes exactly this ConfigMap.
    pub async fn delete_map(&self, map: &ConfigMap) -> Result<()> {
        let (namespace, name) = (map.metadata.namespace.as_deref(), map.metadata.name.as_deref());
        let maps = self.maps(namespace.unwrap_or_default());
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: map.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.call("delete", "configmaps", maps.delete(name.unwrap_or_default(), &parameters)).await {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.code(), Some(404 | 409)) => Ok(()),
            Err(error) => Err(failure(error, "delete", "configmaps")),
        }
    }

    /// Nodes that a CSI-shaped PV is attached to.
    pub async fn attachments(&self, pv: &str) -> Result<Vec<String>> {
        let attachments: Api<VolumeAttachment> = Api::all(self.client.clone());
        let mut nodes = Vec::new();
        self.visit("volumeattachments", &attachments, ListParams::default(), |attachment| {
            if attachment.spec.source.persistent_volume_name.as_deref() == Some(pv) {
                nodes.push(format!("node {}", attachment.spec.node_name));
            }
        })
        .await?;
        Ok(nodes)
    }

    /// Reads a list in pages, and drops each page before the next.
    async fn visit<K: Clone + DeserializeOwned + Debug>(
        &self,
        resource: &'static str,
        objects: &Api<K>,
        wanted: ListParams,
        mut visit: impl FnMut(K),
    ) -> Result<()> {
        let mut parameters = wanted.limit(PAGE);
        loop {
            let page = self.call("list", resource, objects.list(&parameters)).await;
            let page = page.map_err(|error| failure(error, "list", resource))?;
            page.items.into_iter().for_each(&mut visit);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(()),
            }
        }
    }
}

/// All calls here are reads or safe to repeat (preconditions, names that are the claim's), so a lost answer needs no
/// other treatment than a refusal: ask again. What the server asks us to wait is waited.
fn failure(error: CallError, verb: &'static str, resource: &'static str) -> Failure {
    match error {
        CallError::Deposed => deposed(),
        CallError::Deadline => {
            Failure::unavailable(format!("the API server did not answer in time ({verb} {resource})"))
        }
        CallError::Api(error) => {
            let text = describe(&error, verb, resource);
            let class = match error.as_ref() {
                kube::Error::Api(status) if status.code == 429 => {
                    match status.details.as_ref().map_or(0, |details| details.retry_after_seconds) {
                        0 => Class::Unavailable,
                        seconds => Class::Blocked(Until::After(Duration::from_secs(seconds.into()))),
                    }
                }
                _ => Class::Unavailable,
            };
            Failure::new(class, text).caused_by(*error)
        }
    }
}
