//! One real control plane for all tests of a binary; each test has its own provisioner name, server, class prefix and
//! namespace, so that they run side by side.
#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]
#![allow(dead_code, reason = "each test binary uses its part")]

use k8s_openapi::api::core::v1::{Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{Mutex, OnceCell};
use volwright_controller::client::{self, Clients};
use volwright_lab::control_plane::{ControlPlane, Options as ControlPlaneOptions};
use volwright_testkit::harness::eventually;
use volwright_testkit::{Harness, Options, Store};

/// How long anything may take that should happen at once; generous, since two cores run four servers and the tests.
pub const SOON: Duration = Duration::from_secs(30);

/// Set by the scheduler, taken back by us.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

static PLANE: OnceCell<Mutex<ControlPlane>> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The shared control plane. It dies with this process, however that ends.
pub async fn plane() -> &'static Mutex<ControlPlane> {
    PLANE
        .get_or_init(|| async {
            let options = ControlPlaneOptions { audit: true, ..ControlPlaneOptions::default() };
            Mutex::new(ControlPlane::start(options).await.expect("a control plane starts"))
        })
        .await
}

/// One test's corner of the cluster.
pub struct World {
    pub client: Client,
    pub kubeconfig: PathBuf,
    /// Own provisioner name, and prefix of class names.
    pub name: String,
    pub namespace: String,
    pub options: Options,
    pub store: Store,
}

impl World {
    /// `test` only makes names readable.
    pub async fn new(test: &str) -> Self {
        let kubeconfig = plane().await.lock().await.kubeconfig().to_owned();
        Self::on(test, kubeconfig).await
    }

    /// On a control plane of the test's own.
    pub async fn on(test: &str, kubeconfig: PathBuf) -> Self {
        let client = clients(&kubeconfig).await.requests;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("{test}-{number}");
        let name = format!("{namespace}.test.volwright.io");
        let object: Namespace = from(json!({ "metadata": { "name": namespace } }));
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .expect("a namespace");
        let options = Options::central(name.clone());
        Self { client, kubeconfig, name, namespace, options, store: Store::default() }
    }

    /// Starts the engine with this world's options and store.
    pub async fn start(&self) -> Harness {
        self.start_with(&self.options).await
    }

    pub async fn start_with(&self, options: &Options) -> Harness {
        Harness::start(options, &self.server(), clients(&self.kubeconfig).await, self.store.clone())
    }

    /// What the sources of this world's PVs name.
    pub fn server(&self) -> String {
        format!("{}.server", self.namespace)
    }

    pub fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn volumes(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    /// A class `<namespace>-<suffix>` of this world's provisioner; `change` is merged in. Returns its name.
    pub async fn class(&self, suffix: &str, change: Value) -> String {
        let name = format!("{}-{suffix}", self.namespace);
        let mut object = json!({ "metadata": { "name": name }, "provisioner": self.name });
        merge(&mut object, change);
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        classes.create(&PostParams::default(), &from(object)).await.expect("a class");
        name
    }

    pub async fn delete_class(&self, name: &str) {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        classes.delete(name, &DeleteParams::default()).await.expect("the class goes");
    }

    /// A claim for 1Gi, RWO; `change` is merged in.
    pub async fn claim(&self, name: &str, class: &str, change: Value) -> PersistentVolumeClaim {
        let mut object = json!({
            "metadata": { "name": name },
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        merge(&mut object, change);
        self.claims().create(&PostParams::default(), &from(object)).await.expect("a claim")
    }

    pub async fn patch_claim(&self, name: &str, change: Value) {
        self.claims()
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .expect("the claim is patched");
    }

    pub async fn delete_claim(&self, name: &str) {
        self.claims().delete(name, &DeleteParams::default()).await.expect("the claim goes");
    }

    pub async fn volume(&self, name: &str) -> Option<PersistentVolume> {
        self.volumes().get_opt(name).await.expect("PVs can be read")
    }

    pub async fn patch_volume(&self, name: &str, change: Value) {
        self.volumes()
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .expect("the PV is patched");
    }

    pub async fn delete_volume(&self, name: &str) {
        self.volumes().delete(name, &DeleteParams::default()).await.expect("the PV goes");
    }

    /// Waits until the claim is Bound; returns its PV.
    pub async fn bound(&self, claim: &str) -> PersistentVolume {
        let look = || async {
            let claim = self.claims().get(claim).await.expect("the claim is there");
            (
                claim.status.and_then(|s| s.phase),
                claim.spec.and_then(|s| s.volume_name),
                self.events(claim.metadata.uid.as_deref().unwrap_or_default()).await,
            )
        };
        let what = format!("claim {claim} is bound");
        let (_, volume, _) =
            eventually(&what, SOON, look, |(phase, _, _)| phase.as_deref() == Some("Bound")).await;
        self.volumes().get(&volume.expect("a bound claim has a volume")).await.expect("the PV is there")
    }

    /// Starts the engine as another user, with this world's options and store.
    pub async fn start_as(&self, kubeconfig: &std::path::Path) -> Harness {
        Harness::start(&self.options, &self.server(), clients(kubeconfig).await, self.store.clone())
    }

    /// The claim as it is now.
    pub async fn claim_now(&self, name: &str) -> PersistentVolumeClaim {
        self.claims().get(name).await.expect("the claim is there")
    }

    /// As the scheduler does it with late binding.
    pub async fn select_node(&self, claim: &str, node: &str) {
        self.patch_claim(claim, json!({ "metadata": { "annotations": { SELECTED_NODE: node } } })).await;
    }

    /// Waits until the claim has no selected node.
    pub async fn unselected(&self, claim: &str) {
        let look = || async { annotation(&self.claim_now(claim).await, SELECTED_NODE) };
        eventually(&format!("the node of {claim} is taken back"), SOON, look, Option::is_none).await;
    }

    /// A node `<namespace>-<suffix>`, of which only the object exists. Returns its name.
    pub async fn node(&self, suffix: &str) -> String {
        let name = format!("{}-{suffix}", self.namespace);
        self.create(json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } })).await;
        name
    }

    pub async fn delete_node(&self, name: &str) {
        let nodes: Api<Node> = Api::all(self.client.clone());
        nodes.delete(name, &DeleteParams::default()).await.expect("the node goes");
    }

    /// Waits until the PV of a claim's uid is there.
    pub async fn published(&self, uid: &str) -> PersistentVolume {
        let what = format!("a PV for claim {uid}");
        let look = || self.volume_of(uid);
        eventually(&what, SOON, look, Option::is_some).await.expect("just seen")
    }

    /// The PV of a claim's uid.
    pub async fn volume_of(&self, uid: &str) -> Option<PersistentVolume> {
        self.volume(&format!("pvc-{uid}")).await
    }

    /// Waits until the backend was asked for `op` at least `times`.
    pub async fn called(&self, op: &str, times: usize) {
        let look = || async { self.store.count(op, "") };
        eventually(&format!("{op} is called {times} times"), SOON, look, |count| *count >= times).await;
    }

    /// Waits until the PV is gone.
    pub async fn gone(&self, volume: &str) {
        eventually(&format!("PV {volume} is gone"), SOON, || self.volume(volume), Option::is_none).await;
    }

    /// Events on an object: "type reason xcount: note".
    pub async fn events(&self, uid: &str) -> Vec<String> {
        let events: Api<Event> = Api::all(self.client.clone());
        let list = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let events = events.list(&list).await.expect("events can be read");
        events
            .items
            .into_iter()
            .map(|event| {
                let count = event.series.and_then(|s| s.count).or(event.count).unwrap_or(1);
                let text = |value: Option<String>| value.unwrap_or_default();
                format!("{} {} x{count}: {}", text(event.type_), text(event.reason), text(event.message))
            })
            .collect()
    }

    /// Waits for an event on the object whose line has all of `parts`.
    pub async fn event(&self, uid: &str, parts: &[&str]) -> String {
        let what = format!("an event with {parts:?} on {uid}");
        let found =
            |events: &Vec<String>| events.iter().any(|event| parts.iter().all(|part| event.contains(part)));
        let events = eventually(&what, SOON, || self.events(uid), found).await;
        events.into_iter().find(|event| parts.iter().all(|part| event.contains(part))).unwrap_or_default()
    }

    /// Any kind of object, by JSON.
    pub async fn create(&self, object: Value) -> DynamicObject {
        let object: DynamicObject = from(object);
        let types = object.types.clone().expect("apiVersion and kind");
        let (group, version) = types.api_version.split_once('/').unwrap_or(("", &types.api_version));
        let kind = kube::core::GroupVersionKind::gvk(group, version, &types.kind);
        let resource = kube::core::ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match &object.metadata.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        api.create(&PostParams::default(), &object).await.expect("the object is created")
    }

    /// A claim of the class, bound: its PV and its path in the store.
    pub async fn made(&self, claim: &str, class: &str) -> (PersistentVolume, String) {
        self.claim(claim, class, json!({})).await;
        let volume = self.bound(claim).await;
        let path = Self::path_of(&volume);
        assert!(self.store.volumes().contains_key(&path), "{path}: {:#?}", self.store.volumes());
        (volume, path)
    }

    /// Waits until the data at `path` is gone.
    pub async fn data_gone(&self, path: &str) {
        let look = || async { self.store.volumes().contains_key(path) };
        eventually(&format!("the data at {path} is gone"), SOON, look, |there| !there).await;
    }

    /// Waits until the PV is as `expected` says.
    pub async fn volume_is(&self, what: &str, name: &str, expected: impl Fn(&PersistentVolume) -> bool) {
        let look = || self.volume(name);
        eventually(&format!("PV {name}: {what}"), SOON, look, |v| v.as_ref().is_some_and(&expected)).await;
    }

    /// Makes an object of a manifest, as a user would.
    pub async fn apply(&self, manifest: &str) {
        let mut command = plane().await.lock().await.kubectl_command();
        let mut child = command
            .args(["apply", "-f", "-"])
            .stdin(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("kubectl starts");
        let mut input = child.stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut input, manifest.as_bytes()).expect("kubectl reads");
        drop(input);
        let output =
            tokio::task::spawn_blocking(|| child.wait_with_output()).await.expect("joined").expect("ended");
        assert!(output.status.success(), "{}\n{manifest}", String::from_utf8_lossy(&output.stderr));
    }

    /// Writes to the object of this name that the engine (or the test, with the same client) has made, as
    /// "verb code", oldest first. The audit log may come a moment after the answer.
    pub async fn writes(name: &str) -> Vec<String> {
        let log = plane().await.lock().await.audit_log().expect("an audit log");
        let lines = std::fs::read_to_string(log).expect("the audit log can be read");
        lines
            .lines()
            .filter(|line| line.contains(name) && line.contains("volwright-testkit"))
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|entry| entry["objectRef"]["name"] == name)
            .filter(|entry| matches!(entry["verb"].as_str(), Some("create" | "delete" | "patch" | "update")))
            .map(|entry| {
                format!("{} {}", entry["verb"].as_str().unwrap_or_default(), entry["responseStatus"]["code"])
            })
            .collect()
    }

    /// Path in the store of a PV of the default pool.
    pub fn path_of(volume: &PersistentVolume) -> String {
        let spec = volume.spec.clone().expect("a spec");
        spec.nfs.map(|nfs| nfs.path).or_else(|| spec.csi.map(|csi| csi.volume_handle)).expect("nfs or csi")
    }
}

/// For tests that must see that something does not happen: long enough for the engine to have done it many times over.
pub async fn a_while() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

pub async fn clients(kubeconfig: &std::path::Path) -> Clients {
    client::connect(Some(kubeconfig), "testkit").await.expect("clients")
}

pub fn uid(object: &impl kube::Resource) -> String {
    object.meta().uid.clone().unwrap_or_default()
}

pub fn name(object: &impl kube::Resource) -> String {
    object.meta().name.clone().unwrap_or_default()
}

/// Is the provisioner's finalizer on it?
pub fn has_finalizer(object: &impl kube::Resource) -> bool {
    let finalizers = object.meta().finalizers.as_deref().unwrap_or_default();
    finalizers.iter().any(|finalizer| finalizer == volwright_controller::names::FINALIZER)
}

/// Is it being deleted?
pub fn terminating(object: &impl kube::Resource) -> bool {
    object.meta().deletion_timestamp.is_some()
}

/// `status.phase` of a PV.
pub fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// A change of a PV's reclaim policy.
pub fn policy(policy: &str) -> Value {
    json!({ "spec": { "persistentVolumeReclaimPolicy": policy } })
}

/// What somebody needs to make a PV again that was deleted: as a backup has it.
pub fn copy_of(volume: &PersistentVolume) -> Value {
    let mut copy = serde_json::to_value(volume).expect("a PV is JSON");
    copy["apiVersion"] = json!("v1");
    copy["kind"] = json!("PersistentVolume");
    let metadata = copy["metadata"].as_object_mut().expect("metadata");
    metadata.retain(|key, _| ["name", "annotations", "labels"].contains(&key.as_str()));
    copy.as_object_mut().expect("an object").remove("status");
    copy
}

pub fn annotation(object: &impl kube::Resource, key: &str) -> Option<String> {
    object.meta().annotations.as_ref()?.get(key).cloned()
}

pub fn from<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("a well-formed object")
}

/// JSON merge, as the API server's merge patch.
pub fn merge(target: &mut Value, change: Value) {
    match (target, change) {
        (Value::Object(target), Value::Object(change)) => {
            for (key, value) in change {
                if value.is_null() {
                    target.remove(&key);
                } else {
                    merge(target.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (target, change) => *target = change,
    }
}
