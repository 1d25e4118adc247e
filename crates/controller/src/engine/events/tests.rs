//! Against a scripted API server, with a paused clock.

use super::*;
use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tower::BoxError;

/// What the server answers to the next requests; `None` never. When empty, success.
type Script = Arc<Mutex<VecDeque<Option<(u16, Value)>>>>;

struct Fixture {
    events: Events,
    metrics: Arc<Metrics>,
    writer: JoinHandle<()>,
    seen: Arc<Mutex<Vec<(Method, String, Value)>>>,
    script: Script,
}

fn start() -> Fixture {
    let (seen, script) = (Arc::new(Mutex::new(Vec::new())), Script::default());
    let (recorded, answers) = (Arc::clone(&seen), Arc::clone(&script));
    let service = tower::service_fn(move |request: Request<Body>| {
        let (recorded, answers) = (Arc::clone(&recorded), Arc::clone(&answers));
        async move {
            let (head, body) = request.into_parts();
            let body: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
            recorded.lock().unwrap().push((head.method, head.uri.path().to_owned(), body.clone()));
            let answer = answers.lock().unwrap().pop_front();
            let (code, answer) = match answer {
                Some(Some(answer)) => answer,
                Some(None) => std::future::pending().await,
                None => (200, json!({ "metadata": { "name": "x", "namespace": "y" } })),
            };
            let response = Response::builder().status(StatusCode::from_u16(code)?);
            Ok::<_, BoxError>(response.body(Body::from(serde_json::to_vec(&answer)?))?)
        }
    });
    let metrics = Metrics::new();
    let client = Client::new(service, "default");
    let (events, writer) =
        Events::new(client, "nfs.volwright.io".into(), "pod-1".into(), Arc::clone(&metrics));
    Fixture { events, metrics, writer: tokio::spawn(writer), seen, script }
}

impl Fixture {
    fn count(&self, outcome: &str) -> usize {
        let start = format!("volwright_events_total{{outcome=\"{outcome}\"}} ");
        let text = self.metrics.render();
        text.lines().find_map(|l| l.strip_prefix(&start)).and_then(|n| n.parse().ok()).unwrap()
    }

    fn seen(&self) -> Vec<(Method, String, Value)> {
        self.seen.lock().unwrap().clone()
    }

    fn answer(&self, code: u16, reason: &str, cause: Option<&str>) {
        let causes: Vec<Value> = cause.iter().map(|c| json!({ "reason": c })).collect();
        let status = json!({ "status": "Failure", "code": code, "reason": reason, "message": reason,
                             "details": { "causes": causes } });
        self.script.lock().unwrap().push_back(Some((code, status)));
    }
}

fn claim(uid: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("PersistentVolumeClaim".into()),
        namespace: Some("ns".into()),
        name: Some("data".into()),
        uid: Some(uid.into()),
        ..ObjectReference::default()
    }
}

fn failed(uid: &str, note: &str) -> Happening {
    Happening {
        regarding: claim(uid),
        warning: true,
        reason: "ProvisioningFailed",
        action: "Provision",
        note: note.into(),
    }
}

/// Lets the writer work off its queue: with a paused clock, sleeping ends when nothing else can run.
async fn settle() {
    sleep(Duration::from_millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn an_event_says_who_what_and_where() {
    let f = start();
    f.events.publish(failed("u1", "no room"));
    let volume = ObjectReference { namespace: None, ..claim("u2") };
    f.events.publish(Happening { regarding: volume, warning: false, ..failed("", "done") });
    settle().await;
    let seen = f.seen();
    let (method, path, event) = &seen[0];
    assert_eq!((method, path.as_str()), (&Method::POST, "/apis/events.k8s.io/v1/namespaces/ns/events"));
    for (pointer, expected) in [
        ("/type", "Warning"),
        ("/reason", "ProvisioningFailed"),
        ("/action", "Provision"),
        ("/note", "no room"),
        ("/reportingController", "nfs.volwright.io"),
        ("/reportingInstance", "pod-1"),
        ("/regarding/uid", "u1"),
        ("/metadata/namespace", "ns"),
    ] {
        assert_eq!(event.pointer(pointer).and_then(Value::as_str), Some(expected), "{pointer} in {event:#}");
    }
    assert!(event["metadata"]["name"].as_str().unwrap().starts_with("data."), "{event:#}");
    assert!(event["eventTime"].is_string(), "{event:#}");
    assert_eq!(seen[1].1, "/apis/events.k8s.io/v1/namespaces/default/events", "cluster-scoped");
    assert_eq!(seen[1].2["type"], "Normal");
}

#[tokio::test(start_paused = true)]
async fn repeats_raise_a_count_once_a_minute_and_a_changed_note_is_told() {
    let f = start();
    for _ in 0..10 {
        f.events.publish(failed("u1", "no room"));
        sleep(Duration::from_secs(3)).await;
    }
    f.events.publish(failed("u1", "no server"));
    settle().await;
    assert_eq!(f.seen().len(), 2, "two notes, no PATCH yet");
    sleep(SERIES_PERIOD).await;
    let seen = f.seen();
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[2].0, Method::PATCH);
    let name = seen[0].2["metadata"]["name"].as_str().unwrap();
    assert!(seen[2].1.ends_with(name), "{} is not about {name}", seen[2].1);
    assert_eq!(seen[2].2["series"]["count"], 10);
    assert!(seen[2].2["series"]["lastObservedTime"].is_string());
    sleep(SERIES_PERIOD * 10).await;
    assert_eq!(f.seen().len(), 3, "nothing new, nothing written");
    sleep(SERIES_WINDOW).await;
    f.events.publish(failed("u1", "no room"));
    settle().await;
    assert_eq!(f.seen()[3].0, Method::POST, "after the window it is an event of its own");
}

#[tokio::test(start_paused = true)]
async fn an_event_that_somebody_removed_is_written_again() {
    let f = start();
    f.events.publish(failed("u1", "no room"));
    f.events.publish(failed("u1", "no room"));
    settle().await;
    f.answer(404, "NotFound", None);
    sleep(SERIES_PERIOD).await;
    let methods: Vec<Method> = f.seen().into_iter().map(|(method, ..)| method).collect();
    assert_eq!(methods, [Method::POST, Method::PATCH, Method::POST]);
    assert_ne!(f.seen()[0].2["metadata"]["name"], f.seen()[2].2["metadata"]["name"]);
}

#[tokio::test(start_paused = true)]
async fn one_object_cannot_flood() {
    let f = start();
    for n in 0..100 {
        f.events.publish(failed("u1", &format!("attempt {n}")));
    }
    f.events.publish(failed("u2", "another object has its own allowance"));
    settle().await;
    assert_eq!(f.seen().len(), BURST as usize + 1);
    assert_eq!(f.count("limited"), 75);
    sleep(REFILL * 2).await;
    for n in 100..110 {
        f.events.publish(failed("u1", &format!("attempt {n}")));
    }
    settle().await;
    assert_eq!(f.seen().len(), BURST as usize + 1 + 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts_and_never_blocks() {
    let f = start();
    f.script.lock().unwrap().push_back(None);
    for n in 0..QUEUE + 50 {
        f.events.publish(failed(&format!("u{n}"), "x"));
    }
    assert_eq!(f.count("dropped"), 50);
    sleep(CALL_DEADLINE * 2).await;
    assert_eq!(f.count("failed"), 1, "the silent call was given up");
    assert_eq!(f.count("written"), QUEUE - 1);
}

#[tokio::test(start_paused = true)]
async fn missing_rbac_mutes_for_a_while_but_a_namespace_that_ends_does_not() {
    let f = start();
    f.answer(403, "Forbidden", Some("NamespaceTerminating"));
    f.answer(403, "Forbidden", None);
    for n in 0..5 {
        f.events.publish(failed(&format!("u{n}"), "x"));
    }
    settle().await;
    assert_eq!((f.seen().len(), f.count("failed"), f.count("refused")), (2, 2, 3));
    sleep(MUTED).await;
    f.events.publish(failed("u9", "x"));
    settle().await;
    assert_eq!((f.seen().len(), f.count("written")), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn closing_writes_what_waits_with_its_counts_and_ends() {
    let f = start();
    for _ in 0..3 {
        f.events.publish(failed("u1", "no room"));
    }
    f.events.close();
    f.writer.await.unwrap();
    let seen = f.seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1].2["series"]["count"], 3);
    f.events.publish(failed("u1", "too late"));
    assert!(f.metrics.render().contains("volwright_events_total{outcome=\"dropped\"} 1"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_does_not_hold_up_the_end() {
    let f = start();
    f.script.lock().unwrap().extend([None, None, None]);
    for n in 0..10 {
        f.events.publish(failed(&format!("u{n}"), "x"));
    }
    settle().await;
    let before = Instant::now();
    drop(f.events);
    f.writer.await.unwrap();
    assert!(before.elapsed() <= DRAIN, "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_remembered_is_bounded() {
    let mut table = BTreeMap::new();
    for n in 0..MEMORY * 3 {
        make_room(&mut table, |at| *at);
        table.insert(n, Instant::now() + Duration::from_secs(n as u64));
    }
    assert_eq!(table.len(), MEMORY);
    assert!(!table.contains_key(&0) && table.contains_key(&(MEMORY * 3 - 1)));
}

#[test]
fn texts_keep_to_the_apis_limits() {
    assert_eq!(clip("ö".repeat(600), NOTE_LIMIT).len(), 1024);
    assert_eq!(clip(format!("x{}", "ö".repeat(600)), NOTE_LIMIT).len(), 1023);
    assert_eq!(tidy(clip("a.b-c".into(), 4)), "a.b");
    assert_eq!(tidy("name".into()), "name");
}
