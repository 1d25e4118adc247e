//! The way between a process and the API server: requests that are under way arrive whatever becomes of the process.

use axum::body::{Body, Bytes};
use futures::StreamExt;
use http::{Request, Response};
use serde_json::{Value, json};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower::{BoxError, Service};

use super::chaos::{Chaos, Fault};
use super::course::Course;
use super::process::Process;
use super::watchtower::Watchtower;
use crate::Store;
use crate::apiserver::{self, ApiServer};

/// Of a request to the API server; what is slow is a little slower than that.
const API_DEADLINE: Duration = Duration::from_secs(10);

/// A watch that says nothing more is given up by the client after its own deadline (225 s), or when the faults end.
const SILENCE_CHECK: Duration = Duration::from_secs(5);

/// The connection of one process. Cheap to clone.
#[derive(Clone)]
pub struct Link {
    inner: apiserver::Service,
    api: ApiServer,
    store: Store,
    process: Process,
    tower: Watchtower,
    down: Arc<AtomicBool>,
}

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    verb: &'static str,
    resource: String,
    namespace: String,
    name: String,
}

impl Asked {
    fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        let mut parts = path.trim_start_matches('/').split('/');
        // api/v1, or apis/GROUP/VERSION
        let depth = if parts.next() == Some("api") { 1 } else { 2 };
        let rest: Vec<_> = parts.skip(depth).collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            rest => ("", rest),
        };
        let (resource, name) = match rest {
            [resource, name, "status"] => (format!("{resource}/status"), *name),
            [resource, name, ..] => ((*resource).to_owned(), *name),
            [resource] => ((*resource).to_owned(), ""),
            [] => (String::new(), ""),
        };
        let verb = match request.method().as_str() {
            "GET" if query.contains("watch=true") => "watch",
            "GET" if name.is_empty() => "list",
            "GET" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            _ => "delete",
        };
        let own = |text: &str| text.to_owned();
        if path == "/version" {
            return Self { verb: "get", resource: own("version"), namespace: own(""), name: own("") };
        }
        Self { verb, resource, namespace: own(namespace), name: own(name) }
    }

    /// Its name as a step.
    fn step(&self) -> &'static str {
        macro_rules! steps {
            ($($verb:literal $resource:literal),* $(,)?) => {
                match (self.verb, self.resource.as_str()) {
                    $(($verb, $resource) => concat!($verb, " ", $resource),)*
                    _ => "other",
                }
            };
        }
        steps![
            "get" "persistentvolumeclaims", "get" "persistentvolumes", "get" "nodes", "get" "leases",
            "get" "configmaps", "list" "persistentvolumeclaims", "list" "persistentvolumes",
            "list" "storageclasses", "list" "volumeattachments", "list" "leases", "list" "configmaps",
            "list" "events", "watch" "persistentvolumeclaims", "watch" "persistentvolumes",
            "watch" "storageclasses", "watch" "leases", "create" "persistentvolumes", "create" "leases",
            "create" "configmaps", "create" "events", "update" "leases", "update" "configmaps",
            "patch" "persistentvolumes", "patch" "persistentvolumeclaims", "patch" "persistentvolumeclaims/status",
            "patch" "events",
            "patch" "configmaps", "delete" "persistentvolumes", "get" "version", "delete" "configmaps",
        ]
    }

    fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    fn meddling(&self) -> &'static [Fault] {
        if self.resource == "persistentvolumes" && !self.name.is_empty() { &Fault::MEDDLING } else { &[] }
    }

    fn possible(&self) -> &'static [Fault] {
        match self.verb {
            "watch" => &Fault::WATCHES,
            "get" | "list" => &Fault::READS,
            "create" => &Fault::CREATES,
            _ => &Fault::WRITES,
        }
    }
}

impl Link {
    /// The connection of `process` to `api`.
    pub fn new(
        api: &ApiServer,
        store: Store,
        process: Process,
        tower: Watchtower,
        down: Arc<AtomicBool>,
    ) -> Self {
        let inner = api.service().labelled(process.name());
        Self { inner, api: api.clone(), store, process, tower, down }
    }

    async fn serve(mut self, request: Request<kube::client::Body>) -> Result<Response<Body>, BoxError> {
        let asked = Asked::of(&request);
        let chaos = self.process.chaos().clone();
        let step = asked.step();
        let mut course = Course::usual(&self.process);
        let lag = if asked.verb == "watch" { chaos.lag(step) } else { Duration::ZERO };
        if asked.verb != "watch" {
            course.first += chaos.wait(step);
        }
        let mut watch_fault = None;
        if let Some(fault) = chaos.at(step, &[asked.possible(), &Fault::PROCESS, asked.meddling()]) {
            self.process.tell(format_args!("{step} {}: {fault:?}", asked.name));
            match fault {
                Fault::TooMany => return Ok(refusal(429, "TooManyRequests", "simulated: too many requests")),
                Fault::Internal => return Ok(refusal(500, "InternalError", "simulated")),
                Fault::Away => return Ok(refusal(503, "ServiceUnavailable", "simulated")),
                Fault::Conflict => {
                    return Ok(refusal(409, "Conflict", "simulated: the object has been modified"));
                }
                Fault::LostRequest => return std::future::pending().await,
                Fault::LostReply => course.lost = true,
                Fault::Slow => {
                    course.first += chaos.between(Duration::ZERO, API_DEADLINE);
                    course.then = chaos.between(Duration::ZERO, API_DEADLINE);
                }
                Fault::NowRetain | Fault::NowHandle | Fault::NowReleased => self.meddle(&asked.name, fault),
                Fault::WatchCut | Fault::WatchSilent | Fault::WatchLate | Fault::WatchTwice => {
                    watch_fault = Some(fault);
                }
                other => course.meet(other, &self.process).await,
            }
        }
        let sent = Instant::now();
        let process = self.process.clone();
        let effect = async move { self.arrive(&asked, request, sent).await };
        let answer = course.take(process, effect).await??;
        if course.lost {
            return Err("simulated: the connection broke before the answer".into());
        }
        Ok(match watch_fault {
            Some(fault) => faulty_watch(answer, fault, &chaos),
            None if !lag.is_zero() => late_watch(answer, lag),
            None => answer,
        })
    }

    /// Somebody is quicker than the request.
    fn meddle(&self, name: &str, fault: Fault) {
        let change = match fault {
            Fault::NowRetain => json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" } }),
            Fault::NowHandle => {
                let others = self.api.list("persistentvolumes", "").unwrap_or_default();
                let handles =
                    others.iter().filter(|pv| pv.pointer("/metadata/name").is_some_and(|n| n != name));
                let mut handle = handles.filter_map(|pv| {
                    pv.pointer("/metadata/annotations")?.get(volwright_controller::names::HANDLE).cloned()
                });
                let Some(handle) = handle.next_back() else { return };
                self.tower.excuse(name);
                json!({ "metadata": { "annotations": { (volwright_controller::names::HANDLE): handle } } })
            }
            _ => {
                for pv in self.api.list("persistentvolumes", "").unwrap_or_default() {
                    if pv.pointer("/status/phase").is_some_and(|phase| phase == "Bound") {
                        let name = pv.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                        let status = json!({ "status": { "phase": "Released" } });
                        self.api.patch_status("persistentvolumes", "", name, &status).ok();
                    }
                }
                return;
            }
        };
        self.api.patch("persistentvolumes", "", name, &change).ok();
    }

    /// The request is there.
    async fn arrive(
        &mut self,
        asked: &Asked,
        request: Request<kube::client::Body>,
        sent: Instant,
    ) -> Result<Response<Body>, BoxError> {
        if self.down.load(Ordering::SeqCst) {
            return Err("simulated: connection refused".into());
        }
        let had_finalizer = self.finalizer_of(asked);
        let answer = self.inner.call(request).await?;
        let accepted = answer.status().is_success();
        if asked.verb == "get"
            && matches!(asked.resource.as_str(), "persistentvolumes" | "persistentvolumeclaims")
        {
            self.tower.looked(&self.process, &asked.resource, &asked.namespace, &asked.name);
        }
        if asked.is_write() {
            self.tower.wrote(&self.process, asked.verb, &asked.resource, sent, accepted);
            if asked.resource != "leases" && asked.resource != "events" {
                self.process.tell(format_args!(
                    "{} {} {} -> {}",
                    asked.verb,
                    asked.resource,
                    asked.name,
                    answer.status().as_u16()
                ));
            }
            if let (Some(before), None, true) = (had_finalizer, self.finalizer_of(asked), accepted) {
                let path = path_of(&before);
                let volume = path.and_then(|path| self.store.get(path));
                self.tower.finalizer_left(&self.process, &before, volume.as_ref());
            }
            if accepted && asked.verb == "patch" {
                self.look_at_promise(asked);
            }
        }
        Ok(answer)
    }

    /// A PV or the status of a claim was written: what do they say now?
    fn look_at_promise(&self, asked: &Asked) {
        let (pv, claim) = match asked.resource.as_str() {
            "persistentvolumes" => (asked.name.clone(), None),
            "persistentvolumeclaims/status" => {
                let claim = self.api.get("persistentvolumeclaims", &asked.namespace, &asked.name).ok();
                let volume = claim.as_ref().and_then(|claim| claim.pointer("/spec/volumeName")?.as_str());
                (volume.unwrap_or_default().to_owned(), claim)
            }
            _ => return,
        };
        let Ok(pv) = self.api.get("persistentvolumes", "", &pv) else { return };
        let volume = path_of(&pv).and_then(|path| self.store.get(path));
        self.tower.promised(&self.process, &pv, claim.as_ref(), volume.as_ref());
    }

    /// The PV that the request is about, if it bears our finalizer.
    fn finalizer_of(&self, asked: &Asked) -> Option<Value> {
        if asked.resource != "persistentvolumes" || !asked.is_write() || asked.name.is_empty() {
            return None;
        }
        let pv = self.api.get("persistentvolumes", "", &asked.name).ok()?;
        let finalizers = pv.pointer("/metadata/finalizers")?.as_array()?;
        finalizers.iter().any(|f| f == volwright_controller::names::FINALIZER).then_some(pv)
    }
}

/// Where a PV's data is.
pub fn path_of(pv: &Value) -> Option<&str> {
    pv.pointer("/spec/nfs/path").or(pv.pointer("/spec/csi/volumeHandle"))?.as_str()
}

fn faulty_watch(answer: Response<Body>, fault: Fault, chaos: &Chaos) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    let after = chaos.between(Duration::ZERO, Duration::from_secs(60));
    let until = Instant::now() + after;
    let events = body.into_data_stream();
    let chaos = chaos.clone();
    let stream = futures::stream::unfold((events, None::<Bytes>), move |(mut events, again)| {
        let chaos = chaos.clone();
        async move {
            if let Some(again) = again {
                return Some((Ok::<_, axum::Error>(again), (events, None)));
            }
            let next = match fault {
                Fault::WatchCut => tokio::time::timeout_at(until, events.next()).await.ok().flatten(),
                Fault::WatchSilent => {
                    if let Ok(next) = tokio::time::timeout_at(until, events.next()).await {
                        next
                    } else {
                        while chaos.is_active() {
                            sleep(SILENCE_CHECK).await;
                        }
                        None
                    }
                }
                _ => events.next().await,
            }?;
            match (fault, &next) {
                (Fault::WatchLate, _) if chaos.is_active() => {
                    sleep(chaos.between(Duration::ZERO, Duration::from_secs(8))).await;
                }
                (Fault::WatchTwice, Ok(bytes)) => {
                    let again = bytes.clone();
                    return Some((next, (events, Some(again))));
                }
                _ => {}
            }
            Some((next, (events, None)))
        }
    });
    Response::from_parts(parts, Body::from_stream(stream))
}

/// Each event comes so late; together they do not come later than that.
fn late_watch(answer: Response<Body>, lag: Duration) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    let (send, receive) = tokio::sync::mpsc::unbounded_channel();
    let mut events = body.into_data_stream();
    tokio::spawn(async move {
        while let Some(next) = events.next().await {
            // Whoever watched may have gone.
            if send.send((Instant::now() + lag, next)).is_err() {
                break;
            }
        }
    });
    let stream = futures::stream::unfold(receive, |mut receive| async move {
        let (due, next) = receive.recv().await?;
        tokio::time::sleep_until(due).await;
        Some((next, receive))
    });
    Response::from_parts(parts, Body::from_stream(stream))
}

fn refusal(code: u16, reason: &str, message: &str) -> Response<Body> {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    if code == 429 {
        status["details"] = json!({ "retryAfterSeconds": 1 });
    }
    let mut response = Response::new(Body::from(status.to_string()));
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
    response
}

impl Service<Request<kube::client::Body>> for Link {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        Box::pin(self.clone().serve(request))
    }
}
