//! Against a server in this file that keeps ConfigMaps, with a paused clock. Every call takes 10 ms.

use super::*;
use crate::backend::Envelope;
use crate::decide::{ClaimRef, OnDelete, ReclaimPolicy};
use crate::names;
use http::{Method, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use tower::BoxError;
use volwright_provisioner::{
    AccessMode, ClaimInfo, InstallationId, Mark, MarkState, PvName, Request, VolumeMode, VolumeSource,
};

/// A clock that says nothing: epochs are numbered from one.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn boot(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> k8s_openapi::jiff::Timestamp {
        k8s_openapi::jiff::Timestamp::UNIX_EPOCH
    }
}

/// What the server does with the next write.
#[derive(Debug, Clone, Copy)]
enum Fault {
    SilentBefore,
    SilentAfter,
    Error,
    Forbidden,
}

#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    revision: u64,
    writes: usize,
    reads: usize,
    faults: VecDeque<Fault>,
}

impl Store {
    fn put(&mut self, name: &str, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        self.objects.insert(name.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, name: &str, body: Value) -> (u16, Value) {
        let status = |code: u16, reason: &str| {
            (
                code,
                json!({ "kind": "Status", "status": "Failure", "message": reason, "reason": reason, "code": code }),
            )
        };
        let known = self.objects.get(name).cloned();
        match (method, known) {
            (&Method::GET, Some(object)) => (200, object),
            (&Method::GET | &Method::PUT, None) => status(404, "NotFound"),
            (&Method::POST, Some(_)) => status(409, "AlreadyExists"),
            (&Method::POST, None) => {
                let mut body = body;
                body["metadata"]["uid"] = json!(format!("uid-{}", self.revision));
                (201, self.put(name, body))
            }
            (&Method::PUT, Some(object)) => {
                let meta = |object: &Value, key: &str| object["metadata"][key].clone();
                let stale = ["uid", "resourceVersion"]
                    .iter()
                    .any(|key| !meta(&body, key).is_null() && meta(&body, key) != meta(&object, key));
                if stale { status(409, "Conflict") } else { (200, self.put(name, body)) }
            }
            _ => status(405, "MethodNotAllowed"),
        }
    }
}

#[derive(Clone, Default)]
struct Server(Arc<Mutex<Store>>);

impl Server {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap()
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let server = server.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let body: Value = serde_json::from_slice(&body).unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(10)).await;
                let path = head.uri.path().to_owned();
                let last = path.rsplit('/').next().unwrap_or_default();
                let name = if head.method == Method::POST {
                    body["metadata"]["name"].as_str().unwrap_or_default().to_owned()
                } else {
                    last.to_owned()
                };
                let writes = head.method != Method::GET;
                let fault = {
                    let mut store = server.store();
                    if writes {
                        store.writes += 1;
                    } else {
                        store.reads += 1;
                    }
                    if writes { store.faults.pop_front() } else { None }
                };
                let (code, answer) = match fault {
                    Some(Fault::SilentBefore) => std::future::pending().await,
                    Some(Fault::SilentAfter) => {
                        server.store().answer(&head.method, &name, body);
                        std::future::pending().await
                    }
                    Some(Fault::Error) => (
                        500,
                        json!({ "kind": "Status", "status": "Failure", "message": "etcd", "reason": "InternalError", "code": 500 }),
                    ),
                    Some(Fault::Forbidden) => (
                        403,
                        json!({ "kind": "Status", "status": "Failure", "message": "no", "reason": "Forbidden", "code": 403 }),
                    ),
                    None => server.store().answer(&head.method, &name, body),
                };
                let mut response = http::Response::new(Body::from(serde_json::to_vec(&answer)?));
                *response.status_mut() = StatusCode::from_u16(code)?;
                Ok::<_, BoxError>(response)
            }
        });
        Client::new(service, "default")
    }

    fn journal_within(&self, bounds: Bounds) -> Arc<ConfigMapJournal> {
        let settings = ConfigMapSettings {
            namespace: "storage".to_owned(),
            name: "journal".to_owned(),
            provisioner: "nfs.volwright.io".to_owned(),
            api_timeout: Duration::from_secs(10),
            bounds,
            clock: Arc::new(Still),
        };
        Arc::new(ConfigMapJournal::new(self.client(), settings))
    }

    fn journal(&self) -> Arc<ConfigMapJournal> {
        self.journal_within(Bounds::default())
    }

    /// A journal whose term has begun.
    async fn leading(&self) -> Arc<ConfigMapJournal> {
        let journal = self.journal();
        journal.load().await.unwrap();
        journal.raise(Vec::new(), 0).await.unwrap();
        journal
    }

    fn data(&self, at: usize) -> BTreeMap<String, String> {
        let object = self.store().objects[&format!("journal-{at}")].clone();
        serde_json::from_value(object["data"].clone()).unwrap_or_default()
    }

    fn edit(&self, at: usize, edit: impl FnOnce(&mut Value)) {
        let name = format!("journal-{at}");
        let mut store = self.store();
        let mut object = store.objects[&name].clone();
        edit(&mut object);
        store.put(&name, object);
    }

    fn writes(&self) -> usize {
        std::mem::take(&mut self.store().writes)
    }
}

fn intent(uid: &str) -> Intent {
    let uid = ClaimUid::new(uid);
    let pv_name = PvName::new(names::pv_name(uid.as_str()));
    let mark = Mark {
        installation: InstallationId::new("i"),
        owner: uid.clone(),
        pv_name: pv_name.clone(),
        epoch: Epoch::default(),
        state: MarkState::Unpublished,
    };
    Intent {
        request: Request {
            claim: ClaimInfo {
                namespace: "ns".to_owned(),
                name: "data".to_owned(),
                uid,
                labels: BTreeMap::new(),
                annotations: BTreeMap::new(),
            },
            pv_name,
            size: 1 << 30,
            access_modes: vec![AccessMode::ReadWriteOnce],
            volume_mode: VolumeMode::Filesystem,
            class_name: "nfs".to_owned(),
            parameters: [("share".to_owned(), "/srv".to_owned())].into(),
            node: None,
            attempt: 0,
            mark,
            intent: Some("only for agents".to_owned()),
        },
        class_uid: "c".to_owned(),
        provisioner: "nfs.volwright.io".to_owned(),
        policy: ReclaimPolicy::Delete,
        mount_options: Vec::new(),
        on_delete: OnDelete::Delete,
        handle: Envelope { version: 1, backend: "nfs".to_owned(), handle: json!({ "path": "/srv/a" }) },
        undoing: false,
        epoch: Epoch::default(),
    }
}

fn begun(uid: &str) -> Begun {
    Begun {
        uid: uid.to_owned(),
        claim: Some(ClaimRef { namespace: "ns".to_owned(), name: "data".to_owned(), uid: "u".to_owned() }),
        handle: None,
        source: VolumeSource::Nfs { server: "s".to_owned(), path: "/srv/a".to_owned() },
    }
}

async fn open_many(journal: &Arc<ConfigMapJournal>, count: usize) -> Vec<Result<()>> {
    join_all((0..count).map(|n| journal.open(intent(&format!("u{n}"))))).await
}

fn uid(text: &str) -> ClaimUid {
    ClaimUid::new(text)
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_share_a_write() {
    for (count, most) in [(1, 1), (10, 2), (100, 2)] {
        let server = Server::default();
        let journal = server.leading().await;
        server.writes();
        let results = open_many(&journal, count).await;
        assert!(results.iter().all(Result::is_ok));
        let writes = server.writes();
        println!("{count} at once: {writes} writes");
        assert!(writes <= most, "{count} at once: {writes} writes");
        assert_eq!(server.data(0).len(), count);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_recorded_is_found_by_the_next_leader() {
    let server = Server::default();
    let first = server.journal();
    assert_eq!(first.load().await.unwrap(), Found::Missing);
    first.raise(Vec::new(), 0).await.unwrap();
    first.open(intent("a")).await.unwrap();
    first.open(intent("b")).await.unwrap();
    first.begin_delete("pv", begun("1")).await.unwrap();
    first.close(&uid("b")).await.unwrap();
    first.open(intent("c")).await.unwrap();
    assert_eq!(first.claims(), [uid("a"), uid("c")]);

    let second = server.journal();
    assert_eq!(second.load().await.unwrap(), Found::Sound);
    second.raise(vec![intent("a"), intent("lost")], 0).await.unwrap();
    assert_eq!(second.claims(), [uid("a"), uid("c"), uid("lost")]);
    assert_eq!(second.deletes(), ["pv"]);
    assert_eq!(second.begun("pv"), Some(begun("1")));
    let found = second.intent(&uid("a")).unwrap();
    assert_eq!(found.epoch, first.epoch(), "an earlier leader's intents keep its epoch");
    assert_eq!(found.request.intent, None, "not written twice");
    assert_eq!(second.epoch().number, first.epoch().number + 1);
    assert_eq!(second.intent(&uid("lost")).unwrap().epoch, Epoch::default(), "nobody knows whose it was");

    // A replaced intent is still that leader's; a new one is ours. Both are asked for once only.
    let undone = Intent { undoing: true, ..Intent::clone(&found) };
    second.open(undone.clone()).await.unwrap();
    second.open(intent("new")).await.unwrap();
    server.writes();
    second.open(undone.clone()).await.unwrap();
    assert_eq!(server.writes(), 0, "the same is recorded already");
    assert_eq!(*second.intent(&uid("a")).unwrap(), undone);
    assert_eq!(second.intent(&uid("new")).unwrap().epoch, second.epoch());
    assert_eq!(server.store().objects["journal-0"]["metadata"]["labels"][names::MANAGED_BY], "volwright");
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_records_nothing_more() {
    let server = Server::default();
    let old = server.leading().await;
    let new = server.leading().await;
    let mut soundness = old.soundness();
    for _ in 0..2 {
        let failure = old.open(intent("a")).await.unwrap_err();
        assert_eq!((failure.class(), failure.message()), (Class::Unavailable, "no longer the leader"));
    }
    assert_eq!(*soundness.borrow_and_update(), Soundness::Deposed);
    assert!(server.data(0).is_empty());
    assert_eq!(*new.soundness().borrow(), Soundness::Sound);
    // In its next term it may lead again.
    old.load().await.unwrap();
    old.raise(Vec::new(), 0).await.unwrap();
    old.open(intent("a")).await.unwrap();
    assert_eq!(*soundness.borrow_and_update(), Soundness::Sound);
    assert_eq!(old.epoch().number, 3);
}

#[tokio::test(start_paused = true)]
async fn in_doubt_it_is_recorded() {
    let cases = [Fault::SilentBefore, Fault::SilentAfter, Fault::Error];
    for fault in cases {
        let server = Server::default();
        let journal = server.leading().await;
        server.store().faults.push_back(fault);
        let failures = join_all(["a", "b"].map(|uid| journal.open(intent(uid)))).await;
        assert_eq!(failures[0].as_ref().unwrap_err().class(), Class::Unavailable, "{fault:?}");
        assert!(failures[1].is_ok(), "{fault:?}: it came with the next write");
        assert!(journal.intent(&uid("a")).is_some(), "{fault:?}");
        let keys: Vec<String> = server.data(0).into_keys().collect();
        assert_eq!(keys, ["claim.a", "claim.b"], "{fault:?}: the next commit brings it");
        journal.open(intent("a")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_entry_is_not_shown() {
    let server = Server::default();
    let journal = server.leading().await;
    journal.open(intent("a")).await.unwrap();
    server.store().faults.push_back(Fault::Forbidden);
    let failure = journal.open(intent("b")).await.unwrap_err();
    assert!(failure.message().contains("needs the verb update on configmaps"), "{failure}");
    assert_eq!(journal.claims(), [uid("a")]);
    server.store().faults.push_back(Fault::Forbidden);
    journal.open(Intent { undoing: true, ..intent("a") }).await.unwrap_err();
    assert!(!journal.intent(&uid("a")).unwrap().undoing, "as it was before");
}

#[tokio::test(start_paused = true)]
async fn silence_is_resolved_by_tending() {
    let server = Server::default();
    let journal = server.leading().await;
    let tending = tokio::spawn({
        let journal = Arc::clone(&journal);
        async move { journal.tend().await }
    });
    server.store().faults.push_back(Fault::SilentBefore);
    journal.open(intent("a")).await.unwrap_err();
    tokio::time::sleep(IDLE * 2).await;
    assert!(server.data(0).contains_key("claim.a"));

    server.writes();
    journal.close(&uid("a")).await.unwrap();
    assert!(journal.intent(&uid("a")).is_none());
    tokio::time::sleep(IDLE / 2).await;
    assert_eq!(server.writes(), 0, "lazily");
    tokio::time::sleep(IDLE).await;
    assert_eq!(server.writes(), 1);
    assert!(server.data(0).is_empty());
    tokio::time::sleep(IDLE * 20).await;
    assert_eq!(server.writes(), 0, "an idle journal is quiet");
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_committer_leaves_no_doubt_behind() {
    let server = Server::default();
    let journal = server.leading().await;
    // It is dropped while its write is under way; those who wait behind it go on.
    let (first, second) = (journal.open(intent("a")), journal.open(intent("b")));
    let dropped = tokio::time::timeout(Duration::from_millis(5), first);
    let (dropped, second) = join(dropped, second).await;
    assert!(dropped.is_err());
    second.unwrap();
    assert!(journal.intent(&uid("a")).is_some(), "its write may have been done");
    assert!(server.data(0).contains_key("claim.b"));
    // One that is dropped before it was submitted was never there.
    let (first, second) = (journal.open(intent("c")), journal.open(intent("d")));
    let (first, dropped) = join(first, tokio::time::timeout(Duration::from_millis(5), second)).await;
    first.unwrap();
    assert!(dropped.is_err());
    journal.open(intent("e")).await.unwrap();
    assert!(journal.intent(&uid("d")).is_none());
    assert!(!server.data(0).contains_key("claim.d"));
}

#[tokio::test(start_paused = true)]
async fn a_deleted_journal_is_not_made_again_by_who_leads() {
    let server = Server::default();
    let journal = server.leading().await;
    journal.open(intent("a")).await.unwrap();
    server.store().objects.clear();
    journal.open(intent("b")).await.unwrap_err();
    assert_eq!(*journal.soundness().borrow(), Soundness::Vanished);
    assert!(server.store().objects.is_empty());
    assert_eq!(journal.load().await.unwrap(), Found::Missing);
    journal.raise(vec![intent("a")], 0).await.unwrap();
    assert_eq!(journal.claims(), [uid("a")]);
    assert_eq!(*journal.soundness().borrow(), Soundness::Sound);
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_went_back_stops_deletes_until_somebody_acknowledges() {
    let server = Server::default();
    let journal = server.leading().await;
    journal.open(intent("a")).await.unwrap();
    let backup = server.store().objects["journal-0"].clone();
    journal.open(intent("b")).await.unwrap();
    server.store().put("journal-0", backup);
    journal.open(intent("c")).await.unwrap_err();
    assert_eq!(*journal.soundness().borrow(), Soundness::RolledBack);
    // It cannot be recorded in this term, but it stands from now on, and goes with the next.
    journal.stop_deletes("etcd was restored").await.unwrap_err();
    assert_eq!(journal.deletes_stopped().as_deref(), Some("etcd was restored"));
    assert_eq!(journal.load().await.unwrap(), Found::Missing, "older than what this process has seen");
    journal.raise(Vec::new(), 0).await.unwrap();
    journal.stop_deletes("again").await.unwrap();
    let stopped = |server: &Server| {
        server.store().objects["journal-0"]["metadata"]["annotations"][names::DELETES_STOPPED].clone()
    };
    assert_eq!(stopped(&server), "etcd was restored");
    // The next leader knows.
    let next = server.leading().await;
    assert_eq!(next.deletes_stopped().as_deref(), Some("etcd was restored"));
    next.open(intent("d")).await.unwrap();
    assert_eq!(stopped(&server), "etcd was restored", "a commit does not take it off");
    let tending = tokio::spawn({
        let journal = Arc::clone(&next);
        async move { journal.tend().await }
    });
    server.edit(0, |object| {
        object["metadata"]["annotations"].as_object_mut().unwrap().remove(names::DELETES_STOPPED);
    });
    tokio::time::sleep(LOOK * 2).await;
    assert_eq!(next.deletes_stopped(), None);
    next.open(intent("e")).await.unwrap();
    assert_eq!(stopped(&server), Value::Null);
    tending.abort();
}

#[tokio::test(start_paused = true)]
async fn edits_by_hand_are_mended_and_what_others_put_there_stays() {
    let server = Server::default();
    let journal = server.leading().await;
    journal.open(intent("a")).await.unwrap();
    let odd = "{ \"from\": \"a later release\" }\n";
    server.edit(0, |object| {
        object["data"] = json!({ "claim.x": odd });
        object["metadata"]["annotations"]["example.com/team"] = json!("storage");
        object["binaryData"] = json!({ "blob": "AAE=" });
    });
    journal.open(intent("b")).await.unwrap();
    let data = server.data(0);
    assert_eq!(data.keys().collect::<Vec<_>>(), ["claim.a", "claim.b", "claim.x"]);
    assert_eq!(data["claim.x"], odd);
    let object = server.store().objects["journal-0"].clone();
    assert_eq!(object["metadata"]["annotations"]["example.com/team"], "storage");
    assert_eq!(object["binaryData"]["blob"], "AAE=");

    let failure = journal.open(intent("x")).await.unwrap_err();
    assert_eq!(failure.class(), Class::Blocked(Until::OperatorActs));
    assert!(failure.message().contains("key claim.x of ConfigMap storage/journal-0"), "{failure}");
    server.edit(0, |object| {
        object["data"].as_object_mut().unwrap().remove("claim.x");
    });
    journal.open(intent("x")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_journal_lets_the_rest_go_on() {
    let size = entry::encode_intent(&intent("u00")).map(|(key, text)| key.len() + text.len() + 40).unwrap();
    let bounds = Bounds { shard_bytes: size * 4, shards: 2, entry_bytes: size * 2 };
    let server = Server::default();
    let journal = server.journal_within(bounds);
    journal.load().await.unwrap();
    journal.raise(Vec::new(), 0).await.unwrap();
    let results = open_many(&journal, 12).await;
    let refused: Vec<&Failure> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!((5..=7).contains(&(results.len() - refused.len())), "{refused:?}");
    assert!(
        refused.iter().all(|failure| failure.class() == Class::Blocked(Until::After(FULL))),
        "{refused:?}"
    );
    for at in 0..2 {
        let bytes: usize = server.data(at).iter().map(|(key, text)| key.len() + text.len()).sum();
        assert!(bytes > 0 && bytes <= bounds.shard_bytes);
    }
    let notes = server.store().objects["journal-0"]["metadata"]["annotations"].clone();
    assert_eq!(notes[names::JOURNAL_SHARDS], "2");
    // What is there may grow, and room that becomes free is used.
    let open = journal.claims();
    let completed = Intent { undoing: true, ..Intent::clone(&journal.intent(&open[0]).unwrap()) };
    journal.open(completed).await.unwrap();
    journal.close(&open[0]).await.unwrap();
    journal.open(intent("u99")).await.unwrap();
    // The next leader finds both shards.
    let next = server.leading().await;
    assert_eq!(next.claims().len(), open.len());
    server.store().objects.remove("journal-1");
    assert_eq!(server.journal().load().await.unwrap(), Found::Missing);

    let mut fat = intent("fat");
    fat.request.claim.annotations = [("a".to_owned(), "x".repeat(size * 2))].into();
    let failure = journal.open(fat).await.unwrap_err();
    assert_eq!(failure.class(), Class::Invalid, "{failure}");
}

#[tokio::test(start_paused = true)]
async fn the_first_record_of_a_delete_stays() {
    let server = Server::default();
    let journal = server.leading().await;
    journal.begin_delete("pv", begun("1")).await.unwrap();
    journal.begin_delete("pv", Begun { handle: Some("h".to_owned()), ..begun("1") }).await.unwrap();
    assert_eq!(journal.begun("pv"), Some(begun("1")));
    journal.begin_delete("pv", begun("2")).await.unwrap();
    assert_eq!(journal.begun("pv"), Some(begun("2")), "a new PV of that name");
    journal.end_delete("pv").await.unwrap();
    assert_eq!(journal.deletes(), Vec::<String>::new());
    let long = "p".repeat(253);
    journal.begin_delete(&long, begun("3")).await.unwrap();
    assert!(server.data(0).keys().all(|key| key.len() <= 253));
    assert_eq!(server.leading().await.deletes(), [long]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_recorded_outside_a_term() {
    let server = Server::default();
    let journal = server.journal();
    journal.open(intent("a")).await.unwrap_err();
    journal.load().await.unwrap();
    journal.open(intent("a")).await.unwrap_err();
    assert!(server.store().objects.is_empty());
    // Who waits while a new term begins is not told of success.
    journal.raise(Vec::new(), 0).await.unwrap();
    let (opened, waited, loaded) =
        tokio::join!(journal.open(intent("a")), journal.open(intent("b")), journal.load());
    opened.unwrap();
    assert!(loaded.is_ok());
    let recorded = server.data(0).contains_key("claim.b");
    assert_eq!(waited.is_ok(), recorded);
}

#[tokio::test(start_paused = true)]
async fn two_who_raise_at_once_end_up_one_above_the_other() {
    let server = Server::default();
    let (one, two) = (server.journal(), server.journal());
    for journal in [&one, &two] {
        journal.load().await.unwrap();
    }
    let (first, second) = tokio::join!(one.raise(Vec::new(), 0), two.raise(Vec::new(), 0));
    first.unwrap();
    second.unwrap();
    let (one, two) = (one.open(intent("a")).await, two.open(intent("b")).await);
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
}
