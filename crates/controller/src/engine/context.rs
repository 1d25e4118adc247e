//! What a backend may ask for, over the API server; and what the process must know of the cluster before it starts.

use crate::client::{chain, describe};
use crate::names;
use crate::objects::Volume;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret as SecretObject};
use kube::api::{Api, ListParams};
use kube::{Client, Error};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::timeout;
use volwright_provisioner::{
    BoxFuture, Context, Failure, InstallationId, NodeInfo, Result, Secret, SecretRef, VolumeSource,
};

/// PVs per page. One page is about 1 MiB of JSON, which is the peak of memory that a listing costs.
const PAGE: u32 = 500;

/// Listings begun anew because the API server forgot the place between two pages (etcd compaction, every 5 min). More
/// than a few in a row mean that it cannot answer now.
const MAX_RESTARTS: u32 = 3;

/// [`Context`] over a client.
pub struct EngineContext {
    client: Client,
    installation: InstallationId,
    node: Option<NodeInfo>,
    names: Vec<String>,
    deadline: Duration,
}

impl EngineContext {
    /// `names` are the provisioner names that are served, `deadline` bounds each request.
    pub fn new(
        client: Client,
        installation: InstallationId,
        node: Option<NodeInfo>,
        names: Vec<String>,
        deadline: Duration,
    ) -> Self {
        Self { client, installation, node, names, deadline }
    }

    async fn read_secret(&self, wanted: &SecretRef) -> Result<BTreeMap<String, Secret>> {
        let api: Api<SecretObject> = Api::namespaced(self.client.clone(), &wanted.namespace);
        let found = within(self.deadline, "get", "secrets", api.get_opt(&wanted.name)).await?;
        let Some(found) = found else {
            let SecretRef { namespace, name } = wanted;
            return Err(Failure::unavailable(format!(
                "the secret {namespace}/{name} does not exist: create it"
            )));
        };
        Ok(found
            .data
            .unwrap_or_default()
            .into_iter()
            .map(|(key, value)| (key, Secret::new(value.0)))
            .collect())
    }

    async fn list_volumes(&self) -> Result<Vec<VolumeSource>> {
        for _ in 0..MAX_RESTARTS {
            if let Some(sources) = self.list_once().await? {
                return Ok(sources);
            }
        }
        Err(Failure::unavailable(
            "list persistentvolumes: the API server forgot the place between pages, repeatedly",
        ))
    }

    /// `None`: begin anew. Never a part of the list, since what is missing in it would count as absent.
    async fn list_once(&self) -> Result<Option<Vec<VolumeSource>>> {
        let api: Api<Volume> = Api::all(self.client.clone());
        let mut parameters = ListParams::default().limit(PAGE);
        if let Some(node) = &self.node {
            parameters =
                parameters.labels(&format!("{}={}", names::NODE_LABEL, names::node_hash(&node.name)));
        }
        let mut sources = Vec::new();
        loop {
            let page = match timeout(self.deadline, api.list(&parameters)).await {
                Ok(Err(Error::Api(status))) if status.code == 410 && parameters.continue_token.is_some() => {
                    return Ok(None);
                }
                answer => settle("list", "persistentvolumes", answer)?,
            };
            sources.extend(page.items.iter().map(Volume::view).filter(|v| self.is_ours(v)).map(|v| v.source));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters.continue_token = Some(token),
                None => return Ok(Some(sources)),
            }
        }
    }

    /// In doubt it is: one volume too many only keeps a root from getting its first identity.
    fn is_ours(&self, volume: &crate::decide::VolumeView) -> bool {
        let elsewhere = match (&self.node, &volume.node_name) {
            // The label is a hash, so another node's volume may come along.
            (Some(node), Some(name)) => node.name != *name,
            _ => false,
        };
        let maker = match &volume.provisioned_by {
            Some(maker) => self.names.contains(maker),
            // Stripped by somebody.
            None => volume.handle.is_some(),
        };
        maker && !elsewhere
    }
}

impl Context for EngineContext {
    fn installation(&self) -> &InstallationId {
        &self.installation
    }

    fn node(&self) -> Option<&NodeInfo> {
        self.node.as_ref()
    }

    fn secret<'a>(&'a self, secret: &'a SecretRef) -> BoxFuture<'a, Result<BTreeMap<String, Secret>>> {
        Box::pin(self.read_secret(secret))
    }

    fn our_volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeSource>>> {
        Box::pin(self.list_volumes())
    }
}

/// The installation's id where no flag gives one: the uid of `kube-system`, which lives as long as the cluster does.
pub async fn fetch_installation(client: &Client, deadline: Duration) -> Result<InstallationId> {
    let api: Api<Namespace> = Api::all(client.clone());
    let answer = timeout(deadline, api.get("kube-system")).await;
    let denied = matches!(&answer, Ok(Err(Error::Api(status))) if status.is_forbidden());
    let namespace = settle("get", "namespaces", answer).map_err(|failure| {
        if denied { Failure::unavailable(format!("{failure}; or give --installation-id")) } else { failure }
    })?;
    match namespace.metadata.uid {
        Some(uid) if !uid.is_empty() => Ok(InstallationId::new(uid)),
        _ => Err(Failure::unavailable("the namespace kube-system has no uid")),
    }
}

/// The node that an agent serves.
pub async fn fetch_node(client: &Client, name: &str, deadline: Duration) -> Result<NodeInfo> {
    let api: Api<Node> = Api::all(client.clone());
    let Some(node) = within(deadline, "get", "nodes", api.get_opt(name)).await? else {
        return Err(Failure::unavailable(format!(
            "there is no node {name:?}: give the agent its metadata.name, by fieldRef spec.nodeName"
        )));
    };
    match node.metadata.uid {
        Some(uid) if !uid.is_empty() => {
            Ok(NodeInfo { name: name.to_owned(), uid, labels: node.metadata.labels.unwrap_or_default() })
        }
        _ => Err(Failure::unavailable(format!("the node {name:?} has no uid"))),
    }
}

/// One read under a deadline; every failure is `Unavailable`, since a read starts nothing.
async fn within<T>(
    deadline: Duration,
    verb: &str,
    resource: &str,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T> {
    settle(verb, resource, timeout(deadline, request).await)
}

fn settle<T>(
    verb: &str,
    resource: &str,
    answer: Result<kube::Result<T>, tokio::time::error::Elapsed>,
) -> Result<T> {
    match answer {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let text = describe(&error, verb, resource);
            // The cause of an undecodable answer may quote it, and the answer may be a Secret.
            let cause = match &error {
                Error::SerdeError(_) | Error::FromUtf8(_) => "undecodable".to_owned(),
                other => chain(other),
            };
            Err(Failure::unavailable(text).caused_by(cause))
        }
        Err(_) => {
            Err(Failure::unavailable(format!("{verb} {resource}: the API server did not answer in time")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::sync::{Arc, Mutex};
    use tower::BoxError;
    use volwright_provisioner::Class;

    type Seen = Arc<Mutex<Vec<String>>>;

    /// A client whose server answers by path and query; `Value::Null` means never.
    fn client(answer: impl Fn(&str) -> (u16, Value) + Send + Sync + 'static) -> (Client, Seen) {
        let (seen, answer) = (Seen::default(), Arc::new(answer));
        let recorded = Arc::clone(&seen);
        let service = tower::service_fn(move |request: Request<Body>| {
            let target = request.uri().to_string();
            recorded.lock().unwrap().push(target.clone());
            let (code, body) = answer(&target);
            async move {
                if body.is_null() {
                    std::future::pending::<()>().await;
                }
                let body = Body::from(serde_json::to_vec(&body)?);
                Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
            }
        });
        (Client::new(service, "default"), seen)
    }

    fn context(client: Client, node: Option<&str>) -> EngineContext {
        let node = node.map(|name| NodeInfo { name: name.into(), uid: "n1".into(), labels: BTreeMap::new() });
        let names = vec!["nfs.volwright.io".to_owned(), "old/nfs".to_owned()];
        EngineContext::new(client, InstallationId::new("i"), node, names, Duration::from_secs(30))
    }

    fn refusal(code: u16) -> (u16, Value) {
        let reason = match code {
            403 => "Forbidden",
            404 => "NotFound",
            410 => "Expired",
            _ => "InternalError",
        };
        (
            code,
            json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no" }),
        )
    }

    fn pv(path: &str, annotations: &Value) -> Value {
        json!({ "metadata": { "name": path, "annotations": annotations },
                "spec": { "nfs": { "server": "s", "path": path } } })
    }

    fn page(items: &[Value], next: &str) -> (u16, Value) {
        (
            200,
            json!({ "kind": "PersistentVolumeList", "apiVersion": "v1", "metadata": { "continue": next },
                      "items": items }),
        )
    }

    fn paths(sources: &[VolumeSource]) -> Vec<&str> {
        let mut paths = Vec::new();
        for source in sources {
            match source {
                VolumeSource::Nfs { path, .. } => paths.push(path.as_str()),
                other => panic!("{other:?}"),
            }
        }
        paths
    }

    #[tokio::test]
    async fn secrets_are_read_and_their_lack_is_unavailable() {
        let wanted = SecretRef { namespace: "ns".into(), name: "key".into() };
        let (ok, seen) = client(|_| (200, json!({ "metadata": {}, "data": { "k": "aHVudGVyMg==" } })));
        let read = context(ok, None).secret(&wanted).await.unwrap();
        assert_eq!(read["k"].expose(), b"hunter2");
        assert_eq!(*seen.lock().unwrap(), ["/api/v1/namespaces/ns/secrets/key"]);
        for (code, expected) in [
            (404, "the secret ns/key does not exist: create it"),
            (403, "needs the verb get on secrets"),
            (500, "answered 500"),
        ] {
            let error = context(client(move |_| refusal(code)).0, None).secret(&wanted).await.unwrap_err();
            assert_eq!(error.class(), Class::Unavailable);
            assert!(error.message().contains(expected), "{error}");
        }
        let (odd, _) = client(|_| (200, json!({ "metadata": {}, "data": "hunter2" })));
        let error = context(odd, None).secret(&wanted).await.unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_api_server_is_given_up() {
        let error = context(client(|_| (200, Value::Null)).0, None).our_volumes().await.unwrap_err();
        assert_eq!(error.class(), Class::Unavailable);
    }

    #[tokio::test]
    async fn volumes_are_listed_to_the_end_and_in_doubt_count_as_ours() {
        let (client, seen) = client(|target| {
            if target.contains("continue=next") {
                page(&[pv("/old", &json!({ names::PROVISIONED_BY: "old/nfs" }))], "")
            } else {
                let stripped = json!({ names::HANDLE: "{}" });
                page(
                    &[
                        pv("/ours", &json!({ names::PROVISIONED_BY: "nfs.volwright.io" })),
                        pv(
                            "/theirs",
                            &json!({ names::PROVISIONED_BY: "ebs.csi.aws.com", names::HANDLE: "{}" }),
                        ),
                        pv("/by-hand", &Value::Null),
                        pv("/stripped", &stripped),
                    ],
                    "next",
                )
            }
        });
        let sources = context(client, None).our_volumes().await.unwrap();
        assert_eq!(paths(&sources), ["/ours", "/stripped", "/old"]);
        assert_eq!(seen.lock().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn agents_ask_by_label_and_compare_the_full_name() {
        let (client, seen) = client(|_| {
            let by =
                |node: &str| json!({ names::PROVISIONED_BY: "nfs.volwright.io", names::NODE_NAME: node });
            page(&[pv("/mine", &by("worker-1")), pv("/same-hash", &by("worker-2"))], "")
        });
        let sources = context(client, Some("worker-1")).our_volumes().await.unwrap();
        assert_eq!(paths(&sources), ["/mine"]);
        let target = seen.lock().unwrap()[0].clone();
        assert!(target.contains(&names::node_hash("worker-1")), "{target}");
    }

    #[tokio::test]
    async fn a_list_that_lost_its_place_begins_anew_and_is_never_partial() {
        let tries = Arc::new(Mutex::new(0));
        let counter = Arc::clone(&tries);
        let ours = || pv("/ours", &json!({ names::PROVISIONED_BY: "nfs.volwright.io" }));
        let (flaky, _) = client(move |target| {
            let mut tries = counter.lock().unwrap();
            if !target.contains("continue=next") {
                return page(&[ours()], "next");
            }
            *tries += 1;
            if *tries == 1 { refusal(410) } else { page(&[], "") }
        });
        assert_eq!(paths(&context(flaky, None).our_volumes().await.unwrap()), ["/ours"]);
        let (lost, seen) =
            client(
                move |target| {
                    if target.contains("continue=next") { refusal(410) } else { page(&[ours()], "next") }
                },
            );
        assert_eq!(context(lost, None).our_volumes().await.unwrap_err().class(), Class::Unavailable);
        assert_eq!(seen.lock().unwrap().len(), 2 * MAX_RESTARTS as usize);
    }

    #[tokio::test]
    async fn the_start_asks_for_the_installation_and_the_node() {
        let meta = |_: &str| (200, json!({ "metadata": { "uid": "u", "labels": { "a": "b" } } }));
        let (ok, _) = client(meta);
        let deadline = Duration::from_secs(1);
        assert_eq!(fetch_installation(&ok, deadline).await.unwrap().as_str(), "u");
        let node = fetch_node(&ok, "worker-1", deadline).await.unwrap();
        assert_eq!(
            (node.name.as_str(), node.uid.as_str(), node.labels["a"].as_str()),
            ("worker-1", "u", "b")
        );
        let (missing, _) = client(|_| refusal(404));
        let error = fetch_node(&missing, "worker-1", deadline).await.unwrap_err();
        assert!(error.message().contains("spec.nodeName"), "{error}");
        let (forbidden, _) = client(|_| refusal(403));
        let error = fetch_installation(&forbidden, deadline).await.unwrap_err();
        assert!(error.message().contains("needs the verb get on namespaces"), "{error}");
        assert!(error.message().ends_with("or give --installation-id"), "{error}");
    }
}
