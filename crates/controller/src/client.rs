//! The two clients to the API server, and what its failures mean to an operator.
//!
//! kube's defaults are made for tools: an ordinary request on a half-open connection hangs for ever, and a write may be
//! repeated behind the caller's back for minutes. The engine's own deadlines and retries come instead, and watches get a
//! client of their own, since they are the only requests that may be silent for minutes.

use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::error::Error as StdError;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tower::{BoxError, Layer, Service};

/// Time to open a TCP and TLS connection. Within a cluster this takes milliseconds; a dead address of a
/// multi-address API server costs this much before the next one is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest silence within an answer to an ordinary request. The API server itself gives up on a request after 60 s; a
/// page of 500 PVs takes well under a second to come.
const REQUEST_SILENCE: Duration = Duration::from_secs(30);

/// Longest time from a watch or list request to the headers of its answer. A watch answers at once, a list when its page
/// has been read from etcd. kube's watcher guards only what comes after the headers.
const HEADERS_DEADLINE: Duration = Duration::from_secs(30);

/// Longest silence on a watch. The server ends a watch after 220 s (`engine/watch.rs`) and sends bookmarks about once a
/// minute, so this never cuts a living one; it is what ends a list whose body stops half way, which the watcher does not guard either.
const WATCH_SILENCE: Duration = Duration::from_secs(310);

/// Longest part of the API server's own message that is passed on: it goes into events of at most 1024 bytes.
const MESSAGE_LIMIT: usize = 300;

/// Clients for the two kinds of requests. Cheap to clone.
#[derive(Clone)]
pub struct Clients {
    /// For all but watches: bounded silence, no retries of its own.
    pub requests: Client,
    /// For watches and the lists before them: bounded time to headers.
    pub watches: Client,
}

impl Clients {
    /// The same client for both: for tests against an in-process API server, which has no connections to hang.
    pub fn same(client: Client) -> Self {
        Self { requests: client.clone(), watches: client }
    }

    /// Clients over something else than connections, such as a simulated network, with the deadlines that those of
    /// [`connect`] have.
    pub fn over<S, B>(service: S, namespace: &str) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: axum::body::HttpBody<Data = axum::body::Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Self {
            requests: Client::new(service.clone(), namespace),
            watches: Client::new(HeadersWithin(HEADERS_DEADLINE).layer(service), namespace),
        }
    }
}

/// Why no client could be made. An API server that is down is not among the reasons.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The file given by the flag.
    #[error(
        "the kubeconfig {path:?} cannot be used; check the path and its current-context, or leave out --kubeconfig \
         to use the pod's service account"
    )]
    Kubeconfig {
        /// As given.
        path: PathBuf,
        /// What is wrong with it.
        source: kube::config::KubeconfigError,
    },
    /// `KUBECONFIG` or `~/.kube/config`, outside a cluster.
    #[error(
        "there is no way to the API server: run in a pod with a service account (automountServiceAccountToken: true), \
         or give --kubeconfig PATH"
    )]
    NoConfig {
        /// Why the default kubeconfig does not do.
        source: kube::config::KubeconfigError,
    },
    /// In a pod.
    #[error(
        "the pod's service account cannot be used: its token and CA are read from \
         /var/run/secrets/kubernetes.io/serviceaccount; set automountServiceAccountToken: true, or give --kubeconfig PATH"
    )]
    ServiceAccount {
        /// What is wrong with it.
        source: kube::config::InClusterError,
    },
    /// Certificates, tokens, an exec plugin, a proxy.
    #[error("the credentials or certificates of the API server's configuration cannot be used")]
    Client {
        /// What is wrong with them.
        source: kube::Error,
    },
    /// A proxy that only a kubeconfig can ask for.
    #[error(
        "the kubeconfig asks for the proxy {proxy}, which is not supported: remove proxy-url, or run in the cluster"
    )]
    Proxy {
        /// Its address, without credentials.
        proxy: String,
    },
}

/// Makes the clients: from `kubeconfig` if given, else from `KUBECONFIG`, else from the pod's service account, else from
/// `~/.kube/config`. Sends nothing: whether the API server is up is found out by the calls.
pub async fn connect(kubeconfig: Option<&Path>, backend: &str) -> Result<Clients, ConnectError> {
    let mut config = load(kubeconfig).await?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.reset_reader_on_write = true;
    config.default_retry = false;
    let agent = format!("volwright-{backend}/{}", env!("CARGO_PKG_VERSION"));
    if let Ok(agent) = http::HeaderValue::from_str(&agent) {
        config.headers.push((http::header::USER_AGENT, agent));
    }

    let mut watches = config.clone();
    watches.read_timeout = Some(WATCH_SILENCE);
    config.read_timeout = Some(REQUEST_SILENCE);
    let client = |source| ConnectError::Client { source };
    Ok(Clients {
        requests: ClientBuilder::try_from(config).map_err(client)?.build(),
        watches: ClientBuilder::try_from(watches)
            .map_err(client)?
            .with_layer(&HeadersWithin(HEADERS_DEADLINE))
            .build(),
    })
}

async fn load(kubeconfig: Option<&Path>) -> Result<Config, ConnectError> {
    let options = KubeConfigOptions::default();
    if let Some(path) = kubeconfig {
        let wrong = |source| ConnectError::Kubeconfig { path: path.to_owned(), source };
        let file = Kubeconfig::read_from(path).map_err(wrong)?;
        return without_proxy(
            &file,
            Config::from_custom_kubeconfig(file.clone(), &options).await.map_err(wrong)?,
        );
    }
    // In a pod, the service account goes before a file that the image happens to bring, but not before a variable that
    // somebody set on purpose.
    let in_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if in_pod && std::env::var_os("KUBECONFIG").is_none() {
        return Config::incluster().map_err(|source| ConnectError::ServiceAccount { source });
    }
    let wrong = |source| ConnectError::NoConfig { source };
    let file = Kubeconfig::read().map_err(wrong)?;
    without_proxy(&file, Config::from_custom_kubeconfig(file.clone(), &options).await.map_err(wrong)?)
}

/// kube takes a proxy from `HTTPS_PROXY` too, which in practice is meant for the internet and not for the API server; we
/// are built without proxies, so it would only be an error. One that the kubeconfig itself names is refused.
fn without_proxy(file: &Kubeconfig, mut config: Config) -> Result<Config, ConnectError> {
    let named = file.clusters.iter().any(|c| c.cluster.as_ref().is_some_and(|c| c.proxy_url.is_some()));
    match config.proxy_url.take() {
        Some(proxy) if named => {
            Err(ConnectError::Proxy { proxy: proxy.host().unwrap_or("(unreadable)").to_owned() })
        }
        _ => Ok(config),
    }
}

/// Bounds the time from a request to the headers of its answer.
#[derive(Debug, Clone, Copy)]
struct HeadersWithin(Duration);

impl<S> Layer<S> for HeadersWithin {
    type Service = HeadersDeadline<S>;

    fn layer(&self, inner: S) -> Self::Service {
        HeadersDeadline { inner, within: self.0 }
    }
}

#[derive(Debug, Clone)]
struct HeadersDeadline<S> {
    inner: S,
    within: Duration,
}

/// The answer's headers did not come.
#[derive(Debug, Error)]
#[error("the API server sent no answer within {} s", .0.as_secs())]
struct NoAnswer(Duration);

impl<S, R> Service<http::Request<Body>> for HeadersDeadline<S>
where
    S: Service<http::Request<Body>, Response = R>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    R: Send + 'static,
{
    type Response = R;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<R, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let (answer, within) = (self.inner.call(request), self.within);
        Box::pin(async move {
            match tokio::time::timeout(within, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(_) => Err(NoAnswer(within).into()),
            }
        })
    }
}

/// A failed API call for an operator: what is wrong and what to do. `verb` and `resource` as RBAC spells them, such as
/// `patch` and `persistentvolumes`. Holds nothing of the objects themselves, so it may go into an event.
pub fn describe(error: &kube::Error, verb: &str, resource: &str) -> String {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => format!(
                "the API server does not accept our credentials for {verb} {resource}: the token has expired, or \
                 belongs to another cluster"
            ),
            403 => format!(
                "needs the verb {verb} on {resource}: add it to the ClusterRole of this service account ({})",
                clip(&status.message)
            ),
            404 => format!("{verb} {resource}: not found ({})", clip(&status.message)),
            429 => format!("{verb} {resource}: the API server asks to come back later"),
            code => format!("{verb} {resource}: the API server answered {code}: {}", clip(&status.message)),
        },
        // The text of a decode error can quote the object, and the object may be a Secret.
        kube::Error::SerdeError(error) => format!(
            "{verb} {resource}: the answer cannot be read (at line {}, column {})",
            error.line(),
            error.column()
        ),
        kube::Error::FromUtf8(_) => format!("{verb} {resource}: the answer cannot be read (it is not UTF-8)"),
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => {
            format!("{verb} {resource}: the API server cannot be reached: {}", clip(&chain(root(error))))
        }
        other => format!("{verb} {resource}: {}", clip(&chain(other))),
    }
}

/// A failed API call as a label of `volwright_api_requests_total`: one of a closed set.
pub fn outcome(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => "unauthorized",
            403 => "forbidden",
            404 => "not_found",
            409 => "conflict",
            410 => "gone",
            422 => "invalid",
            429 => "throttled",
            500.. => "server_error",
            _ => "rejected",
        },
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_) => "unreachable",
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => "undecodable",
        _ => "other",
    }
}

/// An error with its causes, each said once: kube's texts repeat their cause, so a part is left out where the text so
/// far already ends with it.
pub fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let part = inner.to_string();
        if !text.ends_with(&part) {
            // Writing to a String cannot fail.
            write!(text, ": {part}").ok();
        }
        cause = inner.source();
    }
    text
}

/// kube wraps what the connection says in "ServiceError: " and the like; the inside is what helps.
fn root(error: &kube::Error) -> &(dyn StdError + 'static) {
    match error.source() {
        Some(inner) => inner,
        None => error,
    }
}

fn clip(text: &str) -> String {
    if text.len() <= MESSAGE_LIMIT {
        return text.to_owned();
    }
    format!("{}...", cut(text, MESSAGE_LIMIT))
}

/// At most `limit` bytes of a text, cut at a character.
pub(crate) fn cut(text: &str, limit: usize) -> &str {
    let mut end = limit.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn api(code: u16, message: &str) -> kube::Error {
        kube::Error::Api(Status::failure(message, "Whatever").with_code(code).boxed())
    }

    fn unreadable() -> kube::Error {
        kube::Error::SerdeError(serde_json::from_str::<u32>("\"hunter2\"").unwrap_err())
    }

    #[test]
    fn every_failure_says_what_to_do_and_has_a_label() {
        let service = || kube::Error::Service(Box::new(NoAnswer(Duration::from_secs(30))));
        let cases = [
            (api(401, "Unauthorized"), "the token has expired", "unauthorized"),
            (
                api(403, "User \"x\" cannot"),
                "needs the verb patch on persistentvolumes: add it to",
                "forbidden",
            ),
            (api(404, "gone"), "not found", "not_found"),
            (api(409, "changed"), "answered 409: changed", "conflict"),
            (api(410, "too old"), "answered 410: too old", "gone"),
            (api(422, "bad"), "answered 422: bad", "invalid"),
            (api(429, "slow"), "come back later", "throttled"),
            (api(400, "bad"), "answered 400: bad", "rejected"),
            (api(503, "etcd"), "answered 503: etcd", "server_error"),
            (service(), "cannot be reached: the API server sent no answer within 30 s", "unreachable"),
            (unreadable(), "cannot be read (at line 1, column", "undecodable"),
        ];
        for (error, expected, label) in cases {
            let text = describe(&error, "patch", "persistentvolumes");
            assert!(text.contains(expected), "{text}");
            assert_eq!(outcome(&error), label, "{text}");
        }
    }

    #[test]
    fn an_unreadable_secret_is_not_quoted() {
        assert!(unreadable().to_string().contains("hunter2"), "the premise of this test");
        assert!(!describe(&unreadable(), "get", "secrets").contains("hunter2"));
    }

    #[test]
    fn long_messages_are_cut_at_a_character() {
        let text = describe(&api(500, &"ö".repeat(1000)), "get", "nodes");
        assert!(text.len() < MESSAGE_LIMIT + 100, "{}", text.len());
        assert!(text.ends_with("ö..."), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_whose_headers_never_come_is_given_up() {
        let silent = tower::service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, BoxError>>()
        });
        let client = Client::new(HeadersWithin(HEADERS_DEADLINE).layer(silent), "default");
        let error = client.apiserver_version().await.unwrap_err();
        assert_eq!(outcome(&error), "unreachable");
    }

    #[tokio::test]
    async fn clients_are_made_while_the_api_server_is_down() {
        let folder = std::env::temp_dir().join(format!("volwright-client-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("config");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \
                    'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: \
                    [{name: u, user: {token: t}}]\n";
        std::fs::write(&file, text).unwrap();
        let clients = connect(Some(&file), "nfs").await.map_err(|e| chain(&e)).unwrap();
        let error = clients.requests.apiserver_version().await.unwrap_err();
        assert_eq!(outcome(&error), "unreachable", "{error}");

        let missing = folder.join("missing");
        let error = connect(Some(&missing), "nfs").await.err().unwrap();
        assert!(error.to_string().contains("leave out --kubeconfig"), "{error}");

        let proxied =
            text.replace("'https://127.0.0.1:1'", "'https://127.0.0.1:1', proxy-url: 'http://proxy:3128'");
        std::fs::write(&file, proxied).unwrap();
        let error = connect(Some(&file), "nfs").await.err().unwrap();
        assert!(matches!(error, ConnectError::Proxy { .. }), "{error}");
        std::fs::remove_file(&file).unwrap();
        std::fs::remove_dir(&folder).unwrap();
    }
}
