//! Accidents of a node's disk, staged on real directories and the API server in this process: the event and `doctor` name the
//! remedy, and nothing is lost.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use volwright_controller::backend::{Backend, Typed};
use volwright_controller::cli::{ClusterArgs, LeaseArgs};
use volwright_controller::client::Clients;
use volwright_controller::doctor::{Report, Status, examine};
use volwright_controller::engine::RecordJournal;
use volwright_controller::engine::context::{EngineContext, fetch_node};
use volwright_controller::names;
use volwright_local_path::{Args, LocalPath};
use volwright_provisioner::{InstallationId, Placement, Provisioner};
use volwright_testkit::apiserver::{self, ApiServer, cluster};
use volwright_testkit::{Harness, Options, Store};

const NAME: &str = "local-path.volwright.io";
const NODE: &str = "node-a";
const PAUSE: Duration = Duration::from_millis(20);

/// A cluster with one node, whose disk is `root`.
struct Node {
    disk: TempDir,
    server: ApiServer,
    models: tokio::task::JoinHandle<()>,
    engine: Option<Harness>,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.models.abort();
    }
}

impl Node {
    fn new() -> Self {
        let chosen = std::env::var_os("VOLWRIGHT_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        let disk = tempfile::tempdir_in(chosen).or_else(|_| tempfile::tempdir()).unwrap();
        std::fs::create_dir(disk.path().join("root")).unwrap();
        // Objects are a minute old when they are made: `doctor` leaves alone what is being worked on.
        let clock = || k8s_openapi::jiff::Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(60);
        let server =
            ApiServer::new(apiserver::Options { clock: Arc::new(clock), ..apiserver::Options::default() });
        if server.get("namespaces", "", "kube-system").is_err() {
            server.create("namespaces", json!({ "metadata": { "name": "kube-system" } })).unwrap();
        }
        let labels = json!({ "kubernetes.io/hostname": "host-of-node-a" });
        server.create("nodes", json!({ "metadata": { "name": NODE, "labels": labels } })).unwrap();
        let models = tokio::spawn(cluster::run(server.clone(), Duration::from_millis(5)));
        Self { disk, server, models, engine: None }
    }

    fn root(&self) -> PathBuf {
        self.disk.path().join("root")
    }

    fn args(&self) -> Args {
        Args {
            node_name: Some(NODE.to_owned()),
            path: vec![self.root()],
            require_mount: false,
            allow_volatile: true,
            init_root: Vec::new(),
        }
    }

    fn clients(&self) -> Clients {
        Clients::same(self.server.client())
    }

    /// The agent, as its binary sets it up.
    async fn begin(&mut self) {
        let installation = InstallationId::new("the-cluster");
        let client = self.server.client();
        let deadline = Duration::from_secs(5);
        let node = fetch_node(&client, NODE, deadline).await.unwrap();
        let names = vec![NAME.to_owned()];
        let context = EngineContext::new(client, installation.clone(), Some(node), names.clone(), deadline);
        let agent = LocalPath::connect(self.args(), Arc::new(context)).await.unwrap();
        let backend: Arc<dyn Backend> = Arc::new(Typed::new(Arc::new(agent)));
        let placement = Placement::PerNode { node: NODE.to_owned() };
        let options = Options { names, placement, installation, ..Options::central(NAME) };
        let journal = Arc::new(RecordJournal::new(Arc::clone(&backend)));
        self.engine = Some(Harness::start_on(&options, backend, self.clients(), Store::default(), journal));
    }

    fn class(&self, name: &str, parameters: &Value) {
        let class = json!({
            "metadata": { "name": name }, "provisioner": NAME, "parameters": parameters,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        self.server.create("storageclasses", class).unwrap();
    }

    /// A claim whose pod was placed on the node. Returns its uid.
    fn claim(&self, name: &str, class: &str, size: &str) -> String {
        let claim = json!({
            "metadata": {
                "name": name, "namespace": "default",
                "annotations": { (names::STORAGE_PROVISIONER): NAME, (names::SELECTED_NODE): NODE },
            },
            "spec": { "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": size } } },
        });
        let made = self.server.create("persistentvolumeclaims", claim).unwrap();
        made["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    async fn until(&self, what: &str, such: impl Fn(&ApiServer) -> bool) {
        for _ in 0..1000 {
            if such(&self.server) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("not within 20 s: {what}");
    }

    /// Waits until the claim has its volume; returns the directory.
    async fn bound(&self, uid: &str) -> PathBuf {
        let name = format!("pvc-{uid}");
        let is_bound = |server: &ApiServer| {
            server.get("persistentvolumes", "", &name).is_ok_and(|pv| pv["status"]["phase"] == "Bound")
        };
        self.until("the PV is bound", is_bound).await;
        let volume = self.server.get("persistentvolumes", "", &name).unwrap();
        PathBuf::from(volume["spec"]["local"]["path"].as_str().unwrap())
    }

    /// Waits for a Warning on this object that says `text`, and names the check to read on.
    async fn warned(&self, uid: &str, text: &str, check: &str) {
        let mut notes = Vec::new();
        for _ in 0..1000 {
            let events = self.server.list("events", "").unwrap();
            notes = events
                .iter()
                .filter(|event| event["type"] == "Warning" && event["involvedObject"]["uid"] == uid)
                .filter_map(|event| event["message"].as_str().map(str::to_owned))
                .collect();
            if let Some(note) = notes.iter().find(|note| note.contains(text)) {
                assert!(note.ends_with(&format!("(doctor: {check})")), "{note}");
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
        panic!("no Warning that says {text:?}: {notes:#?}");
    }

    async fn doctor(&self) -> Report {
        let clients = self.clients();
        examine::<LocalPath>(&ClusterArgs::default(), &LeaseArgs::default(), self.args(), &clients)
            .await
            .unwrap()
    }

    #[track_caller]
    fn told(&self, report: &Report, part: &str, status: Status, text: &str) {
        let subject = format!("root {}{part}", self.root().display());
        let found = report.findings.iter().find(|finding| finding.subject == subject);
        let found = found.unwrap_or_else(|| panic!("nothing on {subject:?} in {report:#?}"));
        assert!(found.status == status && found.detail.contains(text), "{text:?} not in {found:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_class_that_names_a_path_which_the_node_lacks_is_told_the_flag() {
    let mut node = Node::new();
    node.class("wrong", &json!({ "path": "/srv/typo" }));
    let uid = node.claim("data", "wrong", "1Mi");
    node.begin().await;
    node.warned(
        &uid,
        "\"/srv/typo\" is not among the roots of node node-a; see the agent's --path",
        "claims",
    )
    .await;
    node.told(&node.doctor().await, "", Status::Ok, "a directory");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_does_not_exist_is_told_with_the_ways_to_make_it() {
    let mut node = Node::new();
    node.class("fast", &json!({}));
    std::fs::remove_dir(node.root()).unwrap();
    let uid = node.claim("data", "fast", "1Mi");
    node.begin().await;
    node.warned(&uid, "the root does not exist on the node; is the disk mounted?", "claims").await;
    node.told(&node.doctor().await, "", Status::Fail, "does not exist; mount the disk, make the directory");
    std::fs::create_dir(node.root()).unwrap();
    assert!(node.bound(&uid).await.is_dir(), "nothing has to be started again");
}

/// What is below an unmounted disk is an empty directory. It must not pass for a volume that is gone, nor become a root.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_not_mounted_is_told_and_its_volumes_wait_for_it() {
    let mut node = Node::new();
    node.class("fast", &json!({}));
    let first = node.claim("first", "fast", "1Mi");
    node.begin().await;
    let volume = node.bound(&first).await;
    std::fs::write(volume.join("file"), "data").unwrap();
    let away = node.disk.path().join("unmounted");
    std::fs::rename(node.root(), &away).unwrap();
    std::fs::create_dir(node.root()).unwrap();

    let second = node.claim("second", "fast", "1Mi");
    node.warned(&second, "Is the disk mounted? If it was replaced on purpose", "claims").await;
    node.told(
        &node.doctor().await,
        ", identity",
        Status::Fail,
        "PVs name volumes on it, but it shows no identity",
    );
    node.server.delete("persistentvolumeclaims", "default", "first").unwrap();
    let pv = node.server.get("persistentvolumes", "", &format!("pvc-{first}")).unwrap();
    node.warned(pv["metadata"]["uid"].as_str().unwrap(), "is the disk mounted?", "volumes").await;
    assert!(node.server.get("persistentvolumes", "", &format!("pvc-{first}")).is_ok(), "it waits");
    assert_eq!(
        std::fs::read_dir(node.root()).unwrap().count(),
        0,
        "nothing was written below the mount point"
    );

    std::fs::remove_dir(node.root()).unwrap();
    std::fs::rename(&away, node.root()).unwrap();
    node.bound(&second).await;
    let name = format!("pvc-{first}");
    node.until("the first PV is gone", |server| server.get("persistentvolumes", "", &name).is_err()).await;
    assert!(!volume.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_room_lets_the_pod_go_elsewhere_and_says_how_much_there_is() {
    let mut node = Node::new();
    node.class("fast", &json!({}));
    let uid = node.claim("data", "fast", "4Ei");
    node.begin().await;
    node.warned(&uid, "4Ei is asked for", "claims").await;
    node.until("the pod is scheduled anew", |server| {
        let claim = server.get("persistentvolumeclaims", "default", "data").unwrap();
        claim["metadata"]["annotations"].get(names::SELECTED_NODE).is_none()
    })
    .await;
    node.told(&node.doctor().await, ", free space", Status::Ok, " of ");
}
