//! The real control plane: it starts, takes blows, and leaves nothing behind.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};
use volwright_lab::{
    ControlPlane, ProcessId,
    control_plane::{Component, Options},
};

/// Runs kubectl to its end; standard output, or standard error as the error.
fn kubectl(cluster: &ControlPlane, arguments: &[&str]) -> Result<String, String> {
    run(cluster.kubectl_command().args(arguments))
}

fn kubectl_as(cluster: &ControlPlane, kubeconfig: &Path, arguments: &[&str]) -> Result<String, String> {
    run(cluster.kubectl_command().env("KUBECONFIG", kubeconfig).args(arguments))
}

fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap())
    } else {
        Err(String::from_utf8(output.stderr).unwrap())
    }
}

async fn wait_until(what: &str, limit: u64, mut done: impl FnMut() -> bool) {
    let poll = async {
        while !done() {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(Duration::from_secs(limit), poll).await.is_ok(), "not so after {limit} s: {what}");
}

#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn serves_restarts_and_keeps_its_data() {
    let start = Instant::now();
    let options = Options { audit: true, ..Options::default() };
    let mut cluster = ControlPlane::start(options).await.unwrap();
    eprintln!("started in {:.1} s", start.elapsed().as_secs_f32());
    assert_eq!(cluster.processes().len(), 4);
    let version = kubectl(&cluster, &["version", "-o", "json"]).unwrap();
    let version: Value = serde_json::from_str(&version).unwrap();
    assert_eq!(version["serverVersion"]["gitVersion"], version["clientVersion"]["gitVersion"]);
    assert_eq!(version["serverVersion"]["major"], "1");
    kubectl(&cluster, &["create", "configmap", "kept", "--from-literal=a=b"]).unwrap();

    // A user without rights is known by name and refused; a role changes that.
    let reader = cluster.client_for(
        "system:serviceaccount:default:reader",
        &["system:serviceaccounts", "system:serviceaccounts:default"],
    );
    let reader = reader.unwrap();
    let refused = kubectl_as(&cluster, &reader, &["get", "configmaps"]).unwrap_err();
    assert!(refused.contains(r#"User "system:serviceaccount:default:reader" cannot list"#), "{refused}");
    let whoami = kubectl_as(&cluster, &reader, &["auth", "whoami", "-o", "json"]).unwrap();
    for group in ["system:serviceaccounts\"", "system:serviceaccounts:default\"", "system:authenticated\""] {
        assert!(whoami.contains(group), "{group} is missing from {whoami}");
    }
    let grant = ["create", "rolebinding", "r", "--clusterrole=view", "--serviceaccount=default:reader"];
    kubectl(&cluster, &grant).unwrap();
    wait_until("the role counts", 10, || kubectl_as(&cluster, &reader, &["get", "configmaps"]).is_ok()).await;

    // The audit log tells who asked for what.
    let audit = fs::read_to_string(cluster.audit_log().unwrap()).unwrap();
    let lists = audit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).filter(|event| {
        event["user"]["username"] == "system:serviceaccount:default:reader" && event["verb"] == "list"
    });
    let codes: Vec<u64> = lists.map(|event| event["responseStatus"]["code"].as_u64().unwrap()).collect();
    assert!(codes.contains(&403) && codes.contains(&200), "{codes:?}");

    // The API server goes away and comes back with its data, then with other arguments.
    let url = cluster.server_url().to_owned();
    cluster.stop_api_server().unwrap();
    assert!(cluster.stop_api_server().is_err());
    let refused = kubectl(&cluster, &["get", "configmap", "kept"]).unwrap_err();
    assert!(refused.contains("refused"), "{refused}");
    let start = Instant::now();
    cluster.start_api_server().await.unwrap();
    eprintln!("API server restarted in {:.1} s", start.elapsed().as_secs_f32());
    assert_eq!(cluster.server_url(), url);
    kubectl(&cluster, &["get", "configmap", "kept"]).unwrap();
    let extra = ["--disable-admission-plugins=StorageObjectInUseProtection".to_owned()];
    cluster.restart_api_server_with(&extra).await.unwrap();
    kubectl(&cluster, &["get", "configmap", "kept"]).unwrap();
    let error =
        format!("{:#}", cluster.restart_api_server_with(&["--no-such-flag".to_owned()]).await.unwrap_err());
    assert!(error.contains("kube-apiserver ended") && error.contains("no-such-flag"), "{error}");
    cluster.restart_api_server_with(&[]).await.unwrap();

    let start = Instant::now();
    cluster.restart_etcd().await.unwrap();
    eprintln!("etcd restarted in {:.1} s", start.elapsed().as_secs_f32());
    kubectl(&cluster, &["label", "configmap", "kept", "read=and-written"]).unwrap();

    // A frozen API server answers nobody, and goes on afterwards.
    cluster.pause(Component::ApiServer).unwrap();
    assert!(kubectl(&cluster, &["get", "--raw", "/readyz", "--request-timeout=1s"]).is_err());
    cluster.resume(Component::ApiServer).unwrap();
    kubectl(&cluster, &["get", "--raw", "/readyz", "--request-timeout=10s"]).unwrap();

    let gone: Vec<ProcessId> = cluster.processes().into_iter().map(|(_, process, _)| process).collect();
    let folder = cluster.log_dir().unwrap();
    let start = Instant::now();
    cluster.stop().await;
    eprintln!("stopped in {:.2} s", start.elapsed().as_secs_f32());
    assert!(gone.iter().all(|process| !process.is_alive()));
    assert!(!folder.exists());
}

/// A claim for a volume we make ourselves: the volume controller binds it, the scheduler places its pod.
#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn claims_bind_and_pods_are_scheduled() {
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let manifest = cluster.log_dir().unwrap().join("manifest.json");
    fs::write(&manifest, MANIFEST).unwrap();
    kubectl(&cluster, &["apply", "-f", manifest.to_str().unwrap()]).unwrap();
    let node = r#"{"status":{"conditions":[{"type":"Ready","status":"True"}],
        "allocatable":{"cpu":"4","memory":"4Gi","pods":"10"},"capacity":{"cpu":"4","memory":"4Gi","pods":"10"}}}"#;
    kubectl(&cluster, &["patch", "node", "n1", "--subresource=status", "--type=merge", "-p", node]).unwrap();
    let field = |what: &str, path: &str| {
        kubectl(&cluster, &["get", what, "-o", &format!("jsonpath={path}")]).unwrap_or_else(|error| error)
    };
    wait_until("the claim is bound", 30, || field("pvc/c", "{.status.phase}") == "Bound").await;
    wait_until("the pod has its node", 30, || field("pod/p", "{.spec.nodeName}") == "n1").await;
}

const MANIFEST: &str = r#"{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}},
  {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "manual",
    "hostPath": {"path": "/nonexistent"}}},
  {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "default"}, "spec": {
    "storageClassName": "manual", "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}},
  {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "spec": {
    "containers": [{"name": "c", "image": "none"}],
    "tolerations": [{"operator": "Exists"}],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}
]}"#;

#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_kubeconfig_is_enough_and_is_never_stopped() {
    let small = Options { kcm: false, scheduler: false, ..Options::default() };
    let ours = ControlPlane::start(small).await.unwrap();
    let mut external = ControlPlane::external(ours.kubeconfig()).await.unwrap();
    assert_eq!(external.server_url(), ours.server_url());
    let error = external.stop_api_server().unwrap_err().to_string();
    assert!(error.contains("not ours"), "{error}");
    external.stop().await;
    kubectl(&ours, &["get", "namespaces"]).unwrap();
    let file = ours.kubeconfig().to_owned();
    let copy = tempfile::tempdir().unwrap();
    let kept = copy.path().join("config");
    fs::copy(&file, &kept).unwrap();
    ours.stop().await;
    assert!(ControlPlane::external(&kept).await.unwrap_err().to_string().contains("does not answer"));
}

#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn two_run_side_by_side_with_ports_and_data_of_their_own() {
    let start = || ControlPlane::start(Options::default());
    let (one, other) = tokio::try_join!(start(), start()).unwrap();
    assert_ne!(one.server_url(), other.server_url());
    assert_ne!(one.log_dir().unwrap(), other.log_dir().unwrap());
    let ports = |cluster: &ControlPlane| -> Vec<u16> {
        cluster.processes().into_iter().filter_map(|(_, _, port)| port).collect()
    };
    assert_eq!(ports(&one).len(), 2);
    assert!(ports(&one).iter().all(|port| !ports(&other).contains(port)));

    kubectl(&one, &["create", "namespace", "mine"]).unwrap();
    // Each has controllers of its own, which serve it alone.
    let account = ["-n", "mine", "get", "serviceaccount", "default"];
    wait_until("the namespace has its account", 30, || kubectl(&one, &account).is_ok()).await;
    let absent = kubectl(&other, &["get", "namespace", "mine"]).unwrap_err();
    assert!(absent.contains("NotFound"), "{absent}");

    one.stop().await;
    kubectl(&other, &["get", "namespace", "default"]).unwrap();
    other.stop().await;
}

const ROLE: &str = "VOLWRIGHT_TEST_CONTROL_PLANE_OF";

/// Not a test by itself: the caller that the test below kills. It is this program again.
#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn caller_that_gets_killed() {
    let Some(report) = env::var_os(ROLE) else { return };
    let cluster = ControlPlane::start(Options::default()).await.unwrap();
    let mut lines = vec![cluster.log_dir().unwrap().parent().unwrap().display().to_string()];
    lines.extend(cluster.processes().into_iter().map(|(_, process, _)| process.pid.to_string()));
    let report = PathBuf::from(report);
    fs::write(report.with_extension("new"), lines.join("\n")).unwrap();
    fs::rename(report.with_extension("new"), report).unwrap();
    sleep(Duration::from_secs(1000)).await;
}

#[tokio::test]
#[ignore = "needs the control plane: cargo xtask test"]
async fn killed_caller_leaves_no_server_and_no_data() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let mut caller = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "caller_that_gets_killed"])
        .env(ROLE, &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the caller has started a control plane", 120, || report.exists()).await;
    let text = fs::read_to_string(&report).unwrap();
    let mut lines = text.lines();
    let folder = PathBuf::from(lines.next().unwrap());
    let servers: Vec<ProcessId> = lines.map(|pid| ProcessId::of(pid.parse().unwrap()).unwrap()).collect();
    assert_eq!(servers.len(), 4);
    assert!(folder.is_dir());

    let start = Instant::now();
    caller.kill().unwrap(); // SIGKILL: it gets no chance to clean up
    caller.wait().unwrap();
    wait_until("the servers are gone", 20, || servers.iter().all(|server| !server.is_alive())).await;
    wait_until("the data is gone", 20, || !folder.exists()).await;
    eprintln!("cleaned up after SIGKILL in {:.2} s", start.elapsed().as_secs_f32());
}
