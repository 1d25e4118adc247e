//! Which cluster the story is told on, and what it is asked. Whatever it is, it is asked over HTTP, as the agent asks it.

use anyhow::{Context as _, bail};
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use volwright_lab::{ControlPlane, control_plane};
use volwright_testkit::apiserver::{self, ApiServer};

use super::{Args, Which};

/// Between two passes of the controllers: they are never immediate, and here it should feel so.
const PACE: Duration = Duration::from_millis(20);

/// A kind of object, by its place in the API.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    group: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const fn kind(group: &'static str, plural: &'static str, namespaced: bool) -> Kind {
    Kind { group, plural, namespaced }
}

pub(super) const NAMESPACES: Kind = kind("api/v1", "namespaces", false);
pub(super) const NODES: Kind = kind("api/v1", "nodes", false);
pub(super) const VOLUMES: Kind = kind("api/v1", "persistentvolumes", false);
pub(super) const CLASSES: Kind = kind("apis/storage.k8s.io/v1", "storageclasses", false);
pub(super) const CLAIMS: Kind = kind("api/v1", "persistentvolumeclaims", true);
pub(super) const PODS: Kind = kind("api/v1", "pods", true);
const SERVICE_ACCOUNTS: Kind = kind("api/v1", "serviceaccounts", true);
/// Of all namespaces: a PV's are in `default`.
const EVENTS: Kind = kind("api/v1", "events", false);

impl Kind {
    fn path(self, namespace: &str, name: &str) -> String {
        let Self { group, plural, namespaced } = self;
        let place = if namespaced { format!("namespaces/{namespace}/") } else { String::new() };
        let name = if name.is_empty() { String::new() } else { format!("/{name}") };
        format!("/{group}/{place}{plural}{name}")
    }
}

enum Runs {
    /// In this process; the tasks are all of it.
    Embedded {
        url: String,
        tasks: JoinSet<()>,
    },
    Real(ControlPlane),
    /// Somebody else's.
    Given,
}

/// A cluster that answers.
pub(super) struct Cluster {
    runs: Runs,
    kubeconfig: PathBuf,
    namespace: &'static str,
    client: Client,
}

impl Cluster {
    /// Starts the one that is wanted. `dir` is for its files; the story's own things are put into `namespace`.
    pub(super) async fn start(args: &Args, dir: &Path, namespace: &'static str) -> anyhow::Result<Self> {
        let (runs, kubeconfig) = match (&args.kubeconfig, args.cluster) {
            (Some(kubeconfig), _) => (Runs::Given, std::path::absolute(kubeconfig)?),
            (None, Which::Embedded) => embedded(dir).await?,
            (None, Which::Real) => {
                let plane = ControlPlane::start(control_plane::Options::default()).await?;
                let kubeconfig = plane.kubeconfig().to_owned();
                (Runs::Real(plane), kubeconfig)
            }
        };
        let clients = volwright_controller::client::connect(Some(&kubeconfig), "demo").await?;
        let client = clients.requests;
        client
            .apiserver_version()
            .await
            .with_context(|| format!("the cluster of {} does not answer", kubeconfig.display()))?;
        Ok(Self { runs, kubeconfig, namespace, client })
    }

    /// The administrator's.
    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// In a sentence.
    pub(super) fn is_what(&self) -> String {
        match &self.runs {
            Runs::Embedded { url, .. } => format!(
                "The cluster is an API server in this process, at {url}, with models of controllers, scheduler and kubelet."
            ),
            Runs::Real(plane) => format!("The cluster is a real control plane, at {}.", plane.server_url()),
            Runs::Given => format!("The cluster is that of {}.", self.kubeconfig.display()),
        }
    }

    /// Lines for a shell.
    pub(super) fn how_to_reach_it(&self) -> Vec<String> {
        let mut lines = vec![format!("export KUBECONFIG={}", self.kubeconfig.display())];
        match &self.runs {
            Runs::Embedded { url, .. } => lines.push(format!("# or: kubectl --server {url} ...")),
            Runs::Real(plane) => lines.push(format!("alias kubectl={}", plane.kubectl().display())),
            Runs::Given => {}
        }
        lines
    }

    /// Must what the story has made be removed one by one?
    pub(super) fn stays(&self) -> bool {
        matches!(self.runs, Runs::Given)
    }

    /// Real controllers give a new namespace its service account, without which no pod can be made there; ours do not,
    /// and need none.
    pub(super) async fn is_ready_for_pods(&self) -> anyhow::Result<bool> {
        Ok(matches!(self.runs, Runs::Embedded { .. })
            || self.get(SERVICE_ACCOUNTS, "default").await?.is_some())
    }

    /// Ends what was started.
    pub(super) async fn stop(self) {
        match self.runs {
            Runs::Embedded { mut tasks, .. } => tasks.shutdown().await,
            Runs::Real(plane) => plane.stop().await,
            Runs::Given => {}
        }
    }

    /// Makes an object. One that is there already was left by a demo that was killed, and will do.
    pub(super) async fn create(&self, kind: Kind, object: &Value) -> anyhow::Result<()> {
        let path = kind.path(self.namespace, "");
        match self.ask(Method::POST, &path, "application/json", Some(object)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(told(error, "create", kind)),
        }
    }

    /// An object, if it is there.
    pub(super) async fn get(&self, kind: Kind, name: &str) -> anyhow::Result<Option<Value>> {
        match self.ask(Method::GET, &kind.path(self.namespace, name), "", None).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(told(error, "get", kind)),
        }
    }

    /// All of a kind as the server would have them printed.
    pub(super) async fn table(&self, kind: Kind) -> anyhow::Result<Value> {
        let request = Request::get(kind.path(self.namespace, ""))
            .header(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")
            .body(Vec::new())?;
        let table: Value = self.client.request(request).await.map_err(|error| told(error, "list", kind))?;
        if table["kind"] != "Table" {
            bail!("the API server sends no tables; is there a proxy before it?");
        }
        Ok(table)
    }

    /// The events of an object, the first one first.
    pub(super) async fn events(&self, about: &str) -> anyhow::Result<Vec<Value>> {
        let path = format!("{}?fieldSelector=involvedObject.name%3D{about}", EVENTS.path("", ""));
        let list =
            self.ask(Method::GET, &path, "", None).await.map_err(|error| told(error, "list", EVENTS))?;
        let mut events = list["items"].as_array().cloned().unwrap_or_default();
        // Lists come in the order of names, and these are random.
        let time = |event: &Value| {
            let time = event["eventTime"].as_str().or(event["firstTimestamp"].as_str());
            time.unwrap_or_default().to_owned()
        };
        events.sort_by_key(time);
        Ok(events)
    }

    /// Changes a status, which is otherwise its component's.
    pub(super) async fn patch_status(&self, kind: Kind, name: &str, change: &Value) -> anyhow::Result<()> {
        let path = format!("{}/status", kind.path(self.namespace, name));
        let patched = self.ask(Method::PATCH, &path, "application/merge-patch+json", Some(change)).await;
        patched.map(drop).map_err(|error| told(error, "patch", kind))
    }

    /// Deletes an object. A pod goes at once: where there is no kubelet, nobody ends it.
    pub(super) async fn delete(&self, kind: Kind, name: &str) -> anyhow::Result<()> {
        let options = json!({ "gracePeriodSeconds": 0 });
        let path = kind.path(self.namespace, name);
        match self.ask(Method::DELETE, &path, "application/json", Some(&options)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(told(error, "delete", kind)),
        }
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, kube::Error> {
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request =
            Request::builder().method(method).uri(path).header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, content);
        }
        let request = request.body(bytes).map_err(kube::Error::HttpError)?;
        self.client.request(request).await
    }
}

fn told(error: kube::Error, verb: &str, kind: Kind) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("{verb} {}", kind.plural))
}

/// Serves on a port that the kernel chooses, to whoever is on this machine.
async fn embedded(dir: &Path) -> anyhow::Result<(Runs, PathBuf)> {
    let server = ApiServer::new(apiserver::Options::default());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("no port of 127.0.0.1 can be had")?;
    let url = format!("http://{}", listener.local_addr()?);
    let mut tasks = JoinSet::new();
    let serving = server.clone();
    tasks.spawn(async move {
        if let Err(error) = serving.serve(listener, std::future::pending()).await {
            eprintln!("the API server has ended: {error}");
        }
    });
    tasks.spawn(apiserver::cluster::run(server, PACE));
    let kubeconfig = dir.join("kubeconfig");
    // JSON is YAML too.
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "volwright-demo",
        "clusters": [{ "name": "volwright-demo", "cluster": { "server": url } }],
        "users": [{ "name": "anybody", "user": {} }],
        "contexts": [{ "name": "volwright-demo", "context": { "cluster": "volwright-demo", "user": "anybody" } }],
    });
    std::fs::write(&kubeconfig, format!("{config:#}\n"))
        .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    Ok((Runs::Embedded { url, tasks }, kubeconfig))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_the_namespace_where_there_is_one() {
        assert_eq!(CLAIMS.path("n", "c"), "/api/v1/namespaces/n/persistentvolumeclaims/c");
        assert_eq!(CLASSES.path("n", ""), "/apis/storage.k8s.io/v1/storageclasses");
    }

    #[tokio::test]
    async fn the_embedded_cluster_is_reached_by_its_kubeconfig() {
        let dir = std::env::temp_dir().join(format!("volwright-demo-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let args = Args { keep: false, cluster: Which::Embedded, kubeconfig: None };
        let cluster = Cluster::start(&args, &dir, "n").await.unwrap();
        let class = json!({ "metadata": { "name": "c" }, "provisioner": "p.example.com" });
        cluster.create(CLASSES, &class).await.unwrap();
        cluster.create(CLASSES, &class).await.unwrap();
        assert_eq!(cluster.table(CLASSES).await.unwrap()["rows"].as_array().unwrap().len(), 1);
        cluster.delete(CLASSES, "c").await.unwrap();
        cluster.delete(CLASSES, "c").await.unwrap();
        assert!(cluster.get(CLASSES, "c").await.unwrap().is_none());
        assert!(cluster.events("c").await.unwrap().is_empty());
        cluster.stop().await;
        std::fs::remove_file(dir.join("kubeconfig")).unwrap();
        std::fs::remove_dir(&dir).unwrap();
    }
}
