use super::*;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::JoinHandle;
use tower::BoxError;

/// tokio's paused clock; what is added is a suspend, which tokio's clock does not see.
#[derive(Debug)]
struct TestClock {
    start: Instant,
    suspended: AtomicU64,
}

impl Clock for TestClock {
    fn boot(&self) -> Duration {
        self.start.elapsed() + Duration::from_secs(self.suspended.load(Ordering::SeqCst))
    }

    fn wall(&self) -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap() + self.boot()
    }
}

/// An API server that knows leases alone.
#[derive(Default)]
struct Server {
    leases: BTreeMap<(String, String), Lease>,
    version: u64,
    events: Vec<(u64, String)>,
    watching: Vec<futures::channel::mpsc::UnboundedSender<Result<String, Infallible>>>,
    writes: usize,
    /// Requests hang.
    silent: bool,
    /// So many writes are done, and their answers lost.
    lost_answers: usize,
    /// Watches and lists of a namespace hang.
    no_watch: bool,
    /// The cluster-wide list is denied.
    no_list: bool,
}

type Shared = Arc<Mutex<Server>>;

impl Server {
    fn store(&mut self, kind: &str, key: (String, String), mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        lease.metadata.uid.get_or_insert_with(|| "u".to_owned());
        let event = format!("{}\n", json!({ "type": kind, "object": lease }));
        self.events.push((self.version, event.clone()));
        self.watching.retain(|watching| watching.unbounded_send(Ok(event.clone())).is_ok());
        if kind == "DELETED" {
            self.leases.remove(&key);
        } else {
            self.leases.insert(key, lease.clone());
        }
        lease
    }

    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: &[u8],
    ) -> (StatusCode, axum::body::Body) {
        let parts = path.trim_start_matches("/apis/coordination.k8s.io/v1/").split('/').collect::<Vec<_>>();
        let refused = |code: StatusCode| {
            let reason = if code == StatusCode::NOT_FOUND { "NotFound" } else { "Another" };
            (
                code,
                json!({ "status": "Failure", "code": code.as_u16(), "message": "no", "reason": reason, "metadata": {} }),
            )
        };
        let (code, value) = match (method, parts.as_slice()) {
            (&Method::GET, ["leases"]) if self.no_list => refused(StatusCode::FORBIDDEN),
            (&Method::GET, ["leases"]) => {
                assert!(
                    query.contains("labelSelector=volwright.io%2Fprovisioner%3Dtest.volwright.io"),
                    "{query}"
                );
                (StatusCode::OK, self.list(|_| true))
            }
            (&Method::GET, ["namespaces", namespace, "leases"]) => {
                assert!(query.contains("fieldSelector=metadata.name%3Dlease"), "{query}");
                if query.contains("watch=true") {
                    let (sender, receiver) = futures::channel::mpsc::unbounded();
                    let from = query.split("resourceVersion=").nth(1).unwrap();
                    let from: u64 = from.split('&').next().unwrap().parse().unwrap();
                    let old = self.events.iter().filter(|(version, _)| *version > from);
                    old.for_each(|(_, event)| sender.unbounded_send(Ok(event.clone())).unwrap());
                    self.watching.push(sender);
                    return (StatusCode::OK, axum::body::Body::from_stream(receiver));
                }
                (StatusCode::OK, self.list(|place| place == *namespace))
            }
            (&Method::GET, ["namespaces", namespace, "leases", name]) => {
                match self.leases.get(&((*namespace).to_owned(), (*name).to_owned())) {
                    Some(lease) => (StatusCode::OK, json!(lease)),
                    None => refused(StatusCode::NOT_FOUND),
                }
            }
            (&Method::POST | &Method::PUT, ["namespaces", namespace, "leases", ..]) => {
                self.writes += 1;
                let lease: Lease = serde_json::from_slice(body).unwrap();
                let key = ((*namespace).to_owned(), lease.metadata.name.clone().unwrap());
                let there = self.leases.get(&key).map(|lease| lease.metadata.resource_version.clone());
                if there.unwrap_or_default() == lease.metadata.resource_version {
                    let kind = if method == Method::POST { "ADDED" } else { "MODIFIED" };
                    (StatusCode::OK, json!(self.store(kind, key, lease)))
                } else {
                    refused(StatusCode::CONFLICT)
                }
            }
            other => panic!("unexpected: {other:?}"),
        };
        (code, axum::body::Body::from(value.to_string()))
    }

    fn list(&self, of: impl Fn(&str) -> bool) -> Value {
        let items = self.leases.iter().filter(|((namespace, _), _)| of(namespace));
        let items = items.map(|(_, lease)| lease).collect::<Vec<_>>();
        json!({ "kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": items,
                "metadata": { "resourceVersion": self.version.to_string() } })
    }
}

async fn serve(server: Shared, request: Request<Body>) -> Result<Response<axum::body::Body>, BoxError> {
    sleep(Duration::from_millis(3)).await;
    let (parts, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let query = parts.uri.query().unwrap_or_default();
    let answer = {
        let mut server = server.lock().unwrap();
        let watch = query.contains("fieldSelector");
        if server.silent || (watch && server.no_watch) {
            None
        } else {
            let answer = server.answer(&parts.method, parts.uri.path(), query, &body);
            let lost = parts.method != Method::GET && server.lost_answers > 0;
            server.lost_answers -= usize::from(lost);
            (!lost).then_some(answer)
        }
    };
    match answer {
        Some((code, body)) => Ok(Response::builder().status(code).body(body)?),
        None => std::future::pending().await,
    }
}

struct Cluster {
    server: Shared,
    clock: Arc<TestClock>,
}

struct Process {
    leadership: Leadership,
    standing: watch::Receiver<Standing>,
    until: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Cluster {
    fn new() -> Self {
        Self {
            server: Shared::default(),
            clock: Arc::new(TestClock { start: Instant::now(), suspended: AtomicU64::new(0) }),
        }
    }

    fn start(&self, namespace: &str, identity: &str) -> Process {
        let server = Arc::clone(&self.server);
        let service = tower::service_fn(move |request| serve(Arc::clone(&server), request));
        let settings = LeaseSettings {
            namespace: namespace.to_owned(),
            name: "lease".to_owned(),
            provisioner: "test.volwright.io".to_owned(),
            identity: identity.to_owned(),
            timing: Timing::default(),
        };
        let clock = Arc::clone(&self.clock);
        let (elector, leadership) = Elector::new(Client::new(service, namespace), settings, clock);
        let (until, told) = watch::channel(false);
        let task = tokio::spawn(elector.run(told));
        Process { standing: leadership.standing(), leadership, until, task }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn spec(&self, namespace: &str) -> LeaseSpec {
        let key = (namespace.to_owned(), "lease".to_owned());
        self.server().leases[&key].spec.clone().unwrap()
    }

    /// Another's lease, renewed just now.
    fn foreign(&self, namespace: &str) {
        let spec = LeaseSpec {
            holder_identity: Some("foreign".to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(self.clock.wall())),
            ..LeaseSpec::default()
        };
        let mut lease = Lease { spec: Some(spec), ..Lease::default() };
        lease.metadata.namespace = Some(namespace.to_owned());
        lease.metadata.name = Some("lease".to_owned());
        self.server().store("MODIFIED", (namespace.to_owned(), "lease".to_owned()), lease);
    }
}

impl Process {
    /// Waits for the standing, and says how long it took.
    async fn becomes(&mut self, expected: impl Fn(&Standing) -> bool) -> Duration {
        let started = Instant::now();
        let wait = self.standing.wait_for(|standing| expected(standing));
        timeout(Duration::from_secs(120), wait).await.expect("it never does").unwrap();
        started.elapsed()
    }

    async fn leads(&mut self, term: u64) -> Duration {
        let took = self.becomes(|standing| *standing == Standing::Leading { term }).await;
        assert!(self.leadership.may_act());
        took
    }

    async fn stands_by(&mut self) -> Duration {
        self.becomes(|standing| matches!(standing, Standing::Standby { .. })).await
    }
}

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[tokio::test(start_paused = true)]
async fn it_is_taken_renewed_and_released() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    assert!(!one.leadership.may_act());
    assert!(one.leads(1).await < secs(1));
    let first = cluster.spec("here");
    assert_eq!(first.holder_identity.as_deref(), Some("one"));
    assert_eq!((first.lease_duration_seconds, first.lease_transitions), (Some(15), Some(0)));
    let labels = cluster.server().leases[&("here".to_owned(), "lease".to_owned())].metadata.labels.clone();
    assert_eq!(labels.unwrap()[names::PROVISIONER], "test.volwright.io");

    for _ in 0..600 {
        sleep(Duration::from_millis(100)).await;
        assert!(one.leadership.may_act());
    }
    assert_eq!(*one.standing.borrow(), Standing::Leading { term: 1 });
    let later = cluster.spec("here");
    assert_eq!(later.acquire_time, first.acquire_time);
    assert!(later.renew_time > first.renew_time);
    let writes = cluster.server().writes;
    assert!((29..=31).contains(&writes), "{writes} writes in a minute");

    one.until.send(true).unwrap();
    one.task.await.unwrap();
    assert!(!one.leadership.may_act());
    assert_eq!(*one.standing.borrow(), Standing::Standby { holder: None });
    let released = cluster.spec("here");
    assert_eq!(released.holder_identity.as_deref(), Some(""));
    assert_eq!(released.lease_duration_seconds, Some(1));
}

#[tokio::test(start_paused = true)]
async fn a_released_lease_is_taken_at_once_through_the_watch() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    let mut two = cluster.start("here", "two");
    sleep(secs(31)).await;
    assert_eq!(*two.standing.borrow(), Standing::Standby { holder: Some("one".to_owned()) });
    assert!(!two.leadership.may_act());
    one.until.send(true).unwrap();
    let took = two.leads(1).await;
    assert!(took < Duration::from_millis(50), "{took:?}");
    assert!(!one.leadership.may_act());
    assert_eq!(cluster.spec("here").lease_transitions, Some(1));
}

#[tokio::test(start_paused = true)]
async fn without_a_watch_it_takes_a_retry_period() {
    let cluster = Cluster::new();
    cluster.server().no_watch = true;
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    let mut two = cluster.start("here", "two");
    sleep(secs(300)).await;
    assert_eq!(*one.standing.borrow(), Standing::Leading { term: 1 });
    one.until.send(true).unwrap();
    let took = two.leads(1).await;
    assert!(took < Duration::from_millis(2500), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_dead_process_is_taken_when_it_expires() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    let mut two = cluster.start("here", "two");
    sleep(secs(10)).await;
    one.task.abort();
    let took = two.leads(1).await;
    assert!(took > secs(12) && took < secs(18), "{took:?}");
    assert!(!one.leadership.may_act());
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_in_time_and_leads_again_later() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    sleep(secs(5)).await;
    let renewed = cluster.spec("here").renew_time.unwrap().0;
    cluster.server().silent = true;
    one.stands_by().await;
    assert!(!one.leadership.may_act());
    let since = cluster.clock.wall().duration_since(renewed).as_secs_f64();
    assert!((9.9..10.1).contains(&since), "{since} s after the last renewal");
    sleep(secs(100)).await;
    assert!(!one.leadership.may_act());
    cluster.server().silent = false;
    assert!(one.leads(2).await < secs(8));
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_no_lost_lease() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    for _ in 0..5 {
        cluster.server().lost_answers = 1;
        sleep(secs(20)).await;
        assert_eq!(cluster.server().lost_answers, 0);
        assert!(one.leadership.may_act());
    }
    assert_eq!(*one.standing.borrow(), Standing::Leading { term: 1 });
}

#[tokio::test(start_paused = true)]
async fn a_suspended_leader_sees_at_once_that_its_term_is_over() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    cluster.clock.suspended.store(60, Ordering::SeqCst);
    assert!(!one.leadership.may_act());
    one.stands_by().await;
    // Nobody else was there.
    one.leads(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_steps_down_lets_another_go_first() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leadership.step_down();
    one.leads(1).await;
    one.leadership.step_down();
    assert!(!one.leadership.may_act());
    one.stands_by().await;
    assert!(one.leads(2).await >= secs(2), "alone, it comes back after a retry period");

    let mut two = cluster.start("here", "two");
    sleep(secs(10)).await;
    one.leadership.step_down();
    assert!(two.leads(1).await < Duration::from_millis(50));
    sleep(secs(10)).await;
    assert_eq!(*one.standing.borrow(), Standing::Standby { holder: Some("two".to_owned()) });
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_lease_is_another_s_stops_at_once() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    sleep(secs(5)).await;
    cluster.foreign("here");
    assert!(one.stands_by().await < Duration::from_millis(50));
    assert!(!one.leadership.may_act());
}

#[tokio::test(start_paused = true)]
async fn a_deleted_lease_is_waited_out() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    let mut two = cluster.start("here", "two");
    sleep(secs(5)).await;
    let key = ("here".to_owned(), "lease".to_owned());
    let lease = cluster.server().leases[&key].clone();
    cluster.server().store("DELETED", key, lease);
    assert!(one.stands_by().await < Duration::from_millis(50));
    sleep(secs(14)).await;
    assert!(!one.leadership.may_act() && !two.leadership.may_act());
    tokio::select! {
        took = one.leads(2) => assert!(took < secs(4)),
        took = two.leads(1) => assert!(took < secs(4)),
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_server_does_not_hold_up_the_end() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    cluster.server().silent = true;
    sleep(secs(4)).await;
    let started = Instant::now();
    one.until.send(true).unwrap();
    one.task.await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(2100), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_older_than_it_was_tells_of_a_restored_etcd() {
    let cluster = Cluster::new();
    let mut one = cluster.start("here", "one");
    one.leads(1).await;
    let key = ("here".to_owned(), "lease".to_owned());
    let backup = cluster.server().leases[&key].clone();
    sleep(secs(9)).await;
    assert!(!one.leadership.take_went_back(), "its own renewals are no step back");
    cluster.server().leases.insert(key, backup);
    timeout(secs(9), one.leadership.may_have_gone_back()).await.unwrap();
    assert!(one.leadership.take_went_back());
    sleep(secs(9)).await;
    assert!(!one.leadership.take_went_back(), "told once");
}

#[tokio::test(start_paused = true)]
async fn a_second_namespace_is_refused_while_the_first_is_alive() {
    let cluster = Cluster::new();
    let mut there = cluster.start("there", "a");
    there.leads(1).await;
    let mut here = cluster.start("here", "b");
    here.becomes(|standing| matches!(standing, Standing::Refused(_))).await;
    let Standing::Refused(text) = here.standing.borrow().clone() else { unreachable!() };
    for part in ["test.volwright.io", "namespace there", "from here", "--provisioner-name"] {
        assert!(text.contains(part), "{text}");
    }
    sleep(secs(120)).await;
    assert!(!here.leadership.may_act() && there.leadership.may_act());
    assert_eq!(cluster.server().leases.len(), 1);

    there.until.send(true).unwrap();
    assert!(here.leads(1).await < secs(19));
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_installation_left_is_ignored() {
    let cluster = Cluster::new();
    cluster.foreign("there");
    let mut here = cluster.start("here", "b");
    let took = here.leads(1).await;
    assert!(took > secs(15) && took < secs(19), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn two_namespaces_that_start_together_do_not_both_act() {
    for seed in 0..20 {
        fastrand::seed(seed);
        let cluster = Cluster::new();
        let (one, two) = (cluster.start("here", "one"), cluster.start("there", "two"));
        for _ in 0..6000 {
            sleep(Duration::from_millis(10)).await;
            assert!(!(one.leadership.may_act() && two.leadership.may_act()), "seed {seed}");
        }
        assert!(one.leadership.may_act() || two.leadership.may_act(), "seed {seed}: nobody acts");
    }
}

#[tokio::test(start_paused = true)]
async fn who_may_not_look_for_other_namespaces_waits_for_the_right() {
    let cluster = Cluster::new();
    cluster.server().no_list = true;
    let mut one = cluster.start("here", "one");
    sleep(secs(300)).await;
    assert!(!one.leadership.may_act());
    cluster.server().no_list = false;
    assert!(one.leads(1).await < secs(80));
}

#[tokio::test(start_paused = true)]
async fn without_a_lease_one_always_leads() {
    let leadership = Leadership::always();
    leadership.step_down();
    assert!(leadership.may_act());
    assert_eq!(*leadership.standing().borrow(), Standing::Leading { term: 0 });
}

#[test]
fn no_two_writes_bear_the_same_time() {
    let now = Timestamp::from_microsecond(5).unwrap();
    assert_eq!(another_time(now, None), now);
    assert_eq!(another_time(now, Some(&MicroTime(now))).as_microsecond(), 6);
}
