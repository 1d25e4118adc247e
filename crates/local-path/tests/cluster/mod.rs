//! Agents as processes, on a real control plane: nodes without kubelets, pods that the real scheduler places.

#![allow(clippy::expect_used, clippy::panic, reason = "a failed test is to stop")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};
use volwright_controller::doctor::required_access;
use volwright_lab::control_plane::{ControlPlane, Options};
use volwright_provisioner::Placement;

/// Two cores run four servers, the agents and the other tests.
pub const SOON: Duration = Duration::from_secs(60);
/// The engine has had its chance many times over.
pub const A_WHILE: Duration = Duration::from_secs(4);

static PLANE: OnceCell<ControlPlane> = OnceCell::const_new();
static NEXT: AtomicU32 = AtomicU32::new(0);

pub async fn plane() -> &'static ControlPlane {
    PLANE
        .get_or_init(|| async {
            let options = Options { audit: true, ..Options::default() };
            ControlPlane::start(options).await.expect("a control plane starts")
        })
        .await
}

/// A node with its disk, a namespace and a class, all of one test.
pub struct Corner {
    pub plane: &'static ControlPlane,
    /// Name of the namespace and the node, and prefix of the rest.
    pub name: String,
    pub provisioner: String,
    /// The agent's root; everything beside it in this folder must never change.
    pub disk: PathBuf,
    folder: tempfile::TempDir,
}

/// A running agent; killed when dropped.
pub struct Agent {
    pub process: Child,
    pub log: PathBuf,
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

impl Agent {
    /// As Kubernetes stops a pod.
    pub fn terminate(&mut self) -> std::process::ExitStatus {
        let pid = self.process.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().expect("kill runs");
        assert!(sent.success(), "the agent is there to be stopped");
        self.process.wait().expect("the agent ends")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Corner {
    pub async fn new(test: &str) -> Self {
        let plane = plane().await;
        let name = format!("{test}-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = tempfile::tempdir().expect("a folder");
        let disk = folder.path().join("disk");
        std::fs::create_dir(&disk).expect("a disk");
        let corner = Self { plane, provisioner: format!("{name}.test.volwright.io"), disk, folder, name };
        corner
            .apply(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": corner.name } }));
        corner.node(&corner.name);
        corner
    }

    /// The same corner with another disk: of another node.
    pub fn with_disk(self, name: &str) -> Self {
        let disk = self.folder.path().join(name);
        std::fs::create_dir(&disk).expect("a disk");
        Self { disk, ..self }
    }

    /// A node without a kubelet, with room for pods. Its hostname label differs from its name, as it may.
    pub fn node(&self, node: &str) {
        let labels = json!({ "kubernetes.io/hostname": format!("host-of-{node}"), "test": self.name });
        self.apply(
            &json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } }),
        );
        let room = json!({ "pods": "110", "cpu": "8", "memory": "16Gi" });
        let status = json!({ "status": { "capacity": room, "allocatable": room } }).to_string();
        self.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &status]);
    }

    pub fn command(&self, subcommand: &str, node: &str, more: &[&str]) -> Command {
        self.command_as(subcommand, node, self.plane.kubeconfig(), more)
    }

    pub fn command_as(&self, subcommand: &str, node: &str, kubeconfig: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_volwright-local-path"));
        command
            .args([
                subcommand,
                "--node-name",
                node,
                "--provisioner-name",
                &self.provisioner,
                "--allow-volatile",
            ])
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--path")
            .arg(&self.disk)
            .args(more)
            .stdin(Stdio::null());
        command
    }

    pub fn agent(&self) -> Agent {
        self.agent_with(&self.name, &[])
    }

    pub fn agent_with(&self, node: &str, more: &[&str]) -> Agent {
        self.agent_as(node, self.plane.kubeconfig(), more)
    }

    pub fn agent_as(&self, node: &str, kubeconfig: &Path, more: &[&str]) -> Agent {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let log = self.folder.path().join(format!("agent-{number}.log"));
        let file = std::fs::File::create(&log).expect("a log");
        let mut flags = vec!["--http-address", "127.0.0.1:0", "--backoff-max", "2s"];
        flags.extend(more);
        let process = self
            .command_as("run", node, kubeconfig, &flags)
            .stdout(file.try_clone().expect("a log"))
            .stderr(file)
            .spawn()
            .expect("the agent starts");
        Agent { process, log }
    }

    /// A user that may do what doctor says an agent must, and nothing else.
    pub fn user_with_required_access(&self) -> PathBuf {
        let group = "rbac.authorization.k8s.io";
        let rules: Vec<_> = required_access(&Placement::PerNode { node: self.name.clone() })
            .iter()
            .map(|access| json!({ "apiGroups": [access.group], "resources": [access.resource], "verbs": [access.verb] }))
            .collect();
        self.apply(&json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRole",
            "metadata": { "name": self.name },
            "rules": rules,
        }));
        self.apply(&json!({
            "apiVersion": format!("{group}/v1"),
            "kind": "ClusterRoleBinding",
            "metadata": { "name": self.name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": self.name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": self.name }],
        }));
        self.plane.client_for(&self.name, &[]).expect("a user")
    }

    /// What [`user_with_required_access`](Self::user_with_required_access) asked the API server, and how often.
    pub fn calls(&self) -> BTreeMap<String, usize> {
        let log =
            std::fs::read_to_string(self.plane.audit_log().expect("an audit log")).expect("it can be read");
        let mut calls = BTreeMap::new();
        // The last line may be half written.
        for entry in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default();
            let started = text("/stage") == "ResponseStarted";
            if text("/user/username") == self.name && started == (text("/verb") == "watch") {
                *calls.entry(format!("{} {}", text("/verb"), text("/objectRef/resource"))).or_default() += 1;
            }
        }
        calls
    }

    pub fn class(&self, suffix: &str, change: &Value) -> String {
        let name = format!("{}-{suffix}", self.name);
        let mut class = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": { "name": name },
            "provisioner": self.provisioner,
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        if let (Value::Object(class), Value::Object(change)) = (&mut class, change) {
            class.extend(change.clone());
        }
        self.apply(&class);
        name
    }

    /// A claim, and a pod that makes the scheduler choose a node for it.
    pub fn claim(&self, name: &str, class: &str, change: &Value) {
        let mut spec = json!({
            "storageClassName": class,
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Mi" } },
        });
        if let (Value::Object(spec), Value::Object(change)) = (&mut spec, &change["spec"]) {
            spec.extend(change.clone());
        }
        let mut metadata = json!({ "name": name, "namespace": self.name });
        if let (Value::Object(metadata), Value::Object(change)) = (&mut metadata, &change["metadata"]) {
            metadata.extend(change.clone());
        }
        self.apply(&json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec,
        }));
        self.apply(&json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": self.name },
            "spec": {
                "nodeSelector": { "test": self.name },
                "tolerations": [{ "operator": "Exists" }],
                "containers": [{ "name": "app", "image": "none", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": name } }],
            },
        }));
    }

    pub fn remove(&self, name: &str) {
        self.kubectl(&["-n", &self.name, "delete", "pod", name, "--force", "--grace-period=0"]);
        self.kubectl(&["-n", &self.name, "delete", "pvc", name, "--wait=false"]);
    }

    /// Waits until the claim is bound; returns its PV.
    pub async fn bound(&self, name: &str) -> Value {
        let claim = self
            .until("the claim is bound", || {
                let claim = self.get("pvc", name);
                let bound = claim["status"]["phase"] == "Bound";
                if bound { Ok(claim) } else { Err(format!("{claim:#}\n{:#?}", self.events(name))) }
            })
            .await;
        self.get("pv", claim["spec"]["volumeName"].as_str().unwrap_or_default())
    }

    pub async fn gone(&self, pv: &str) {
        self.until("the PV is gone", || {
            let volume = self.get("pv", pv);
            if volume.is_null() { Ok(()) } else { Err(format!("{volume:#}\n{:#?}", self.events(pv))) }
        })
        .await;
    }

    /// Waits for an event on the object of this name that has all of `parts`.
    pub async fn event(&self, name: &str, parts: &[&str]) -> String {
        self.until(&format!("an event on {name} with {parts:?}"), || {
            let events = self.events(name);
            let found = events.iter().find(|event| parts.iter().all(|part| event.contains(part)));
            found.cloned().ok_or_else(|| format!("{events:#?}"))
        })
        .await
    }

    pub fn events(&self, name: &str) -> Vec<String> {
        let filter = format!("--field-selector=involvedObject.name={name}");
        let list = self.kubectl(&["get", "events", "-A", &filter, "-o", "json"]);
        let list: Value = serde_json::from_slice(&list.stdout).expect("JSON");
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        items
            .iter()
            .map(|e| format!("{} {}: {}", text(e, "type"), text(e, "reason"), text(e, "message")))
            .collect()
    }

    /// The object, or null.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let found = self.kubectl(&["-n", &self.name, "get", kind, name, "--ignore-not-found", "-o", "json"]);
        serde_json::from_slice(&found.stdout).unwrap_or(Value::Null)
    }

    pub fn apply(&self, object: &Value) {
        let mut child = self
            .plane
            .kubectl_command()
            .args(["create", "-f", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("kubectl runs");
        let written = child.stdin.take().expect("its input").write_all(object.to_string().as_bytes());
        written.expect("kubectl reads");
        assert!(child.wait().expect("kubectl ends").success(), "not accepted: {object:#}");
    }

    pub fn kubectl(&self, words: &[&str]) -> Output {
        let output = self.plane.kubectl_command().args(words).output().expect("kubectl runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {words:?}: {errors}");
        output
    }

    #[track_caller]
    #[expect(clippy::unused_self, reason = "reads better beside the other questions to the cluster")]
    pub fn until<T>(
        &self,
        what: &str,
        mut look: impl FnMut() -> Result<T, String>,
    ) -> impl Future<Output = T> {
        let (what, caller) = (what.to_owned(), std::panic::Location::caller());
        async move {
            let deadline = Instant::now() + SOON;
            loop {
                match look() {
                    Ok(found) => return found,
                    Err(seen) => {
                        assert!(Instant::now() < deadline, "{caller}: not in time: {what}; last: {seen}");
                    }
                }
                sleep(Duration::from_millis(200)).await;
            }
        }
    }

    /// Where the PV's directory is.
    pub fn directory(volume: &Value) -> PathBuf {
        Path::new(volume["spec"]["local"]["path"].as_str().expect("a local PV")).to_owned()
    }
}
