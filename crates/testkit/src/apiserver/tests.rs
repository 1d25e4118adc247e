//! What a client sees.

use super::*;
use futures::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Event as CoreEvent, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{DynamicObject, PartialObjectMeta, WatchEvent};
use kube::runtime::watcher::{self, watcher};
use std::time::Duration;
use tokio::time::Instant;

fn server() -> ApiServer {
    let clock = Arc::new(|| Timestamp::from_second(1_800_000_000).unwrap());
    ApiServer::new(Options { history: 100, clock, seed: 7 })
}

fn pv(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "nfs": { "server": "s", "path": "/p" },
        },
    })
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn code<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> u16 {
    match result.unwrap_err() {
        kube::Error::Api(status) => status.code,
        other => panic!("{other:?}"),
    }
}

fn volumes(server: &ApiServer) -> Api<PersistentVolume> {
    Api::all(server.client())
}

#[tokio::test(start_paused = true)]
async fn an_object_is_created_read_changed_and_deleted() {
    let server = server();
    let api = volumes(&server);
    let made = api.create(&PostParams::default(), &typed(pv("a"))).await.unwrap();
    assert_eq!(made.metadata.finalizers.as_deref(), Some(&["kubernetes.io/pv-protection".to_owned()][..]));
    assert_eq!(made.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(code(api.create(&PostParams::default(), &typed(pv("a"))).await), 409);
    let label = json!({ "metadata": { "labels": { "x": "y" } } });
    let patched = api.patch("a", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    assert_ne!(patched.metadata.resource_version, made.metadata.resource_version);
    let again = api.patch("a", &PatchParams::default(), &Patch::Merge(&label)).await.unwrap();
    assert_eq!(again.metadata.resource_version, patched.metadata.resource_version, "nothing changed");
    let deleted = api.delete("a", &DeleteParams::default()).await.unwrap().left().unwrap();
    assert!(deleted.metadata.deletion_timestamp.is_some());
    assert_eq!(deleted.metadata.deletion_grace_period_seconds, Some(0));
    let free =
        json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": ["kubernetes.io/pv-protection"] } });
    api.patch("a", &PatchParams::default(), &Patch::Strategic(&free)).await.unwrap();
    assert_eq!(code(api.get("a").await), 404);
}

#[tokio::test(start_paused = true)]
#[expect(clippy::disallowed_methods, reason = "PUT is what is tested")]
async fn preconditions_are_kept() {
    let server = server();
    let api = volumes(&server);
    let made = api.create(&PostParams::default(), &typed(pv("a"))).await.unwrap();
    let params = PatchParams::default();
    for (metadata, expected) in [
        (json!({ "resourceVersion": "1" }), 409),
        (json!({ "uid": "other" }), 422),
        (json!({ "resourceVersion": made.metadata.resource_version, "labels": { "a": "b" } }), 200),
    ] {
        let change = json!({ "metadata": metadata });
        let result = api.patch("a", &params, &Patch::Merge(&change)).await;
        let found = if result.is_ok() { 200 } else { code(result) };
        assert_eq!(found, expected, "{change}");
    }
    for preconditions in [
        Preconditions { uid: Some("other".into()), resource_version: None },
        Preconditions { uid: None, resource_version: made.metadata.resource_version.clone() },
    ] {
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        assert_eq!(code(api.delete("a", &params).await), 409);
    }
    assert_eq!(code(api.replace("a", &PostParams::default(), &made).await), 409, "it has changed");
}

#[tokio::test(start_paused = true)]
async fn a_terminating_object_gets_no_new_finalizer_and_goes_with_its_last() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    server.delete("persistentvolumes", "", "a").unwrap();
    let more = json!({ "metadata": { "finalizers": ["kubernetes.io/pv-protection", "x.io/y"] } });
    let refused = server.patch("persistentvolumes", "", "a", &more).unwrap_err();
    assert_eq!((refused.code, refused.reason), (422, "Invalid"));
    assert!(
        refused.message.contains("no new finalizers can be added if the object is being deleted"),
        "{refused}"
    );
    let gone =
        server.patch("persistentvolumes", "", "a", &json!({ "metadata": { "finalizers": null } })).unwrap();
    assert_eq!(gone["metadata"]["name"], "a");
    assert_eq!(server.get("persistentvolumes", "", "a").unwrap_err().code, 404);
}

#[tokio::test(start_paused = true)]
async fn the_status_is_written_through_its_own_door() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let both =
        json!({ "spec": { "persistentVolumeReclaimPolicy": "Delete" }, "status": { "phase": "Bound" } });
    let main = server.patch("persistentvolumes", "", "a", &both).unwrap();
    assert_eq!(
        (main["spec"]["persistentVolumeReclaimPolicy"].as_str(), main["status"]["phase"].as_str()),
        (Some("Delete"), Some("Pending"))
    );
    let both =
        json!({ "spec": { "persistentVolumeReclaimPolicy": "Retain" }, "status": { "phase": "Bound" } });
    let status = server.patch_status("persistentvolumes", "", "a", &both).unwrap();
    assert_eq!(
        (status["spec"]["persistentVolumeReclaimPolicy"].as_str(), status["status"]["phase"].as_str()),
        (Some("Delete"), Some("Bound"))
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_immutable_stays() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let class = json!({ "metadata": { "name": "c" }, "provisioner": "x" });
    server.create("storageclasses", class).unwrap();
    for (resource, name, change) in [
        ("persistentvolumes", "a", json!({ "spec": { "nfs": { "path": "/q" } } })),
        ("storageclasses", "c", json!({ "provisioner": "y" })),
        ("storageclasses", "c", json!({ "parameters": { "a": "b" } })),
    ] {
        assert_eq!(server.patch(resource, "", name, &change).unwrap_err().code, 422, "{change}");
    }
    assert_eq!(
        server
            .create("configmaps", json!({ "metadata": { "name": "c", "namespace": "no" } }))
            .unwrap_err()
            .code,
        404
    );
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_the_default_class() {
    let server = server();
    let class = json!({ "metadata": { "name": "c", "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } },
        "provisioner": "x" });
    server.create("storageclasses", class).unwrap();
    let claim = |name: &str| {
        json!({ "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } } })
    };
    let made = server.create("persistentvolumeclaims", claim("a")).unwrap();
    assert_eq!(made["spec"]["storageClassName"], "c");
    assert_eq!(made["status"]["phase"], "Pending");
    let mut none = claim("b");
    none["spec"]["storageClassName"] = json!("");
    assert_eq!(server.create("persistentvolumeclaims", none).unwrap()["spec"]["storageClassName"], "");
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(server.client(), "default");
    claims
        .patch("a", &PatchParams::default(), &Patch::Merge(json!({ "spec": { "volumeName": "v" } })))
        .await
        .unwrap();
    let again = Patch::Merge(json!({ "spec": { "volumeName": "w" } }));
    assert_eq!(code(claims.patch("a", &PatchParams::default(), &again).await), 422);
}

#[tokio::test(start_paused = true)]
async fn pages_show_one_moment_until_it_is_forgotten() {
    let server = server();
    for name in ["a", "b", "c", "d"] {
        server.create("persistentvolumes", pv(name)).unwrap();
    }
    let api = volumes(&server);
    let names = |list: &kube::core::ObjectList<PersistentVolume>| -> Vec<String> {
        list.items.iter().map(|pv| pv.metadata.name.clone().unwrap()).collect()
    };
    let page = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!((names(&page), page.metadata.remaining_item_count), (vec!["a".into(), "b".into()], Some(2)));
    let token = page.metadata.continue_.unwrap();
    server.patch("persistentvolumes", "", "c", &json!({ "metadata": { "finalizers": null } })).unwrap();
    server.delete("persistentvolumes", "", "c").unwrap();
    let rest = api.list(&ListParams::default().limit(2).continue_token(&token)).await.unwrap();
    assert_eq!(names(&rest), ["c", "d"]);
    assert_eq!(rest.metadata.resource_version, page.metadata.resource_version);
    server.compact();
    assert_eq!(code(api.list(&ListParams::default().limit(2).continue_token(&token)).await), 410);
}

#[tokio::test(start_paused = true)]
async fn metadata_alone_can_be_read_patched_and_watched() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let api: Api<PartialObjectMeta<PersistentVolume>> = Api::all(server.client());
    assert_eq!(api.get("a").await.unwrap().metadata.name.as_deref(), Some("a"));
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    let change = Patch::Merge(json!({ "metadata": { "labels": { "l": "m" } } }));
    let patched = api.patch_metadata("a", &PatchParams::default(), &change).await.unwrap();
    assert_eq!(patched.metadata.labels.unwrap()["l"], "m");
    let mut watch = std::pin::pin!(watcher(api, watcher::Config::default().any_semantic()).take(3));
    let mut seen = Vec::new();
    while let Some(event) = watch.next().await {
        seen.push(shown(event));
    }
    assert_eq!(seen, ["init", "init a", "ready"]);
}

#[tokio::test(start_paused = true)]
async fn events_are_one_store_with_two_shapes() {
    let server = server();
    let event = json!({
        "metadata": { "name": "e", "namespace": "default" }, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x.io/y", "reportingInstance": "i", "action": "A", "reason": "R", "type": "Normal",
        "note": "n", "regarding": { "kind": "PersistentVolume", "name": "a", "uid": "u" },
    });
    let new: Api<Event> = Api::namespaced(server.client(), "default");
    new.create(&PostParams::default(), &typed(event)).await.unwrap();
    let core: Api<CoreEvent> = Api::namespaced(server.client(), "default");
    let found = core.list(&ListParams::default().fields("involvedObject.uid=u,reason=R")).await.unwrap();
    assert_eq!(found.items[0].message.as_deref(), Some("n"));
    let series = json!({ "series": { "count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z" } });
    let patched = new.patch("e", &PatchParams::default(), &Patch::Merge(series)).await.unwrap();
    assert_eq!(patched.series.unwrap().count, 2);
    let wanted = ListParams::default().fields("regarding.uid=u,reason=R").limit(1);
    assert_eq!(new.list_metadata(&wanted).await.unwrap().items.len(), 1);
}

/// What a watcher says of an object, in short.
fn shown<K: kube::ResourceExt>(event: Result<watcher::Event<K>, watcher::Error>) -> String {
    match event {
        Ok(watcher::Event::Init) => "init".into(),
        Ok(watcher::Event::InitApply(object)) => format!("init {}", object.name_any()),
        Ok(watcher::Event::InitDone) => "ready".into(),
        Ok(watcher::Event::Apply(object)) => format!("apply {}", object.name_any()),
        Ok(watcher::Event::Delete(object)) => format!("delete {}", object.name_any()),
        Err(watcher::Error::WatchError(status)) => format!("event {}", status.code),
        Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) => format!("status {}", status.code),
        Err(other) => format!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_watcher_lists_follows_survives_a_cut_and_lists_again_after_410() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let mut watch =
        Box::pin(watcher(volumes(&server), watcher::Config::default().any_semantic().timeout(220)));
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(shown(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["init", "init a", "ready"]);
    server.patch("persistentvolumes", "", "a", &json!({ "metadata": { "labels": { "x": "y" } } })).unwrap();
    assert_eq!(shown(watch.next().await.unwrap()), "apply a");
    // Bookmarks and the end of the watch pass without a word; it goes on from the last bookmark.
    let quiet = tokio::time::timeout(Duration::from_secs(500), watch.next()).await;
    assert!(quiet.is_err(), "{:?}", quiet.map(|event| event.map(shown)));
    assert!(server.count(|entry| entry.verb == "watch") >= 3);
    assert_eq!(server.count(|entry| entry.verb == "list"), 1);
    server.cut_watches();
    server.create("persistentvolumes", pv("b")).unwrap();
    assert_eq!(shown(watch.next().await.unwrap()), "apply b");
    assert_eq!(server.count(|entry| entry.verb == "list"), 1);
    // Cut, and the past is gone before it comes back.
    server.cut_watches();
    server.create("persistentvolumes", pv("c")).unwrap();
    server.compact();
    assert_eq!(shown(watch.next().await.unwrap()), "event 410");
    let mut seen = Vec::new();
    for _ in 0..5 {
        seen.push(shown(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["init", "init a", "init b", "init c", "ready"]);
}

#[tokio::test(start_paused = true)]
async fn an_old_place_is_refused_in_the_status_if_so_set() {
    let server = server();
    server.refuse_old_watches(true);
    server.create("persistentvolumes", pv("a")).unwrap();
    server.compact();
    let refused = volumes(&server).watch(&kube::api::WatchParams::default(), "1").await;
    assert_eq!(refused.err().map(|error| code::<()>(Err(error))), Some(410));
}

#[tokio::test(start_paused = true)]
async fn a_watcher_with_streaming_lists_gets_its_initial_bookmark() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let mut watch = Box::pin(watcher(volumes(&server), watcher::Config::default().streaming_lists()));
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(shown(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["init", "init a", "ready"]);
}

/// Opens a watch and reads what comes within a time.
async fn watched(
    api: &Api<DynamicObject>,
    params: kube::api::WatchParams,
    version: &str,
    wait: Duration,
    then: impl FnOnce(),
) -> Vec<String> {
    let mut stream = Box::pin(api.watch(&params, version).await.unwrap());
    then();
    let end = Instant::now() + wait;
    let mut seen = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout_at(end, stream.next()).await {
        let name = |object: DynamicObject| object.metadata.name.unwrap();
        seen.push(match event.unwrap() {
            WatchEvent::Added(object) => format!("ADDED {}", name(object)),
            WatchEvent::Modified(object) => format!("MODIFIED {}", name(object)),
            WatchEvent::Deleted(object) => format!("DELETED {}", name(object)),
            WatchEvent::Bookmark(bookmark) => format!("BOOKMARK {}", bookmark.metadata.resource_version),
            WatchEvent::Error(status) => format!("ERROR {}", status.code),
        });
    }
    seen
}

fn config_maps(server: &ApiServer) -> Api<DynamicObject> {
    Api::namespaced_with(server.client(), "default", &kube::core::ApiResource::erase::<ConfigMap>(&()))
}

fn config_map(name: &str, label: &str) -> Value {
    json!({ "metadata": { "name": name, "namespace": "default", "labels": { "l": label } } })
}

#[tokio::test(start_paused = true)]
async fn what_enters_a_selection_is_added_and_what_leaves_it_is_deleted() {
    let server = server();
    server.create("configmaps", config_map("a", "no")).unwrap();
    let label = |label: &str| {
        server
            .patch("configmaps", "default", "a", &json!({ "metadata": { "labels": { "l": label } } }))
            .unwrap();
    };
    let params = kube::api::WatchParams::default().labels("l=yes");
    let version = server.resource_version().to_string();
    let seen = watched(&config_maps(&server), params, &version, Duration::from_secs(1), || {
        label("yes");
        server.patch("configmaps", "default", "a", &json!({ "data": { "k": "v" } })).unwrap();
        label("no");
        label("never");
        label("yes");
        server.delete("configmaps", "default", "a").unwrap();
    })
    .await;
    assert_eq!(seen, ["ADDED a", "MODIFIED a", "DELETED a", "ADDED a", "DELETED a"]);
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_each_minute_and_before_the_end() {
    let server = server();
    let params = kube::api::WatchParams::default().timeout(130);
    let version = server.resource_version().to_string();
    let start = Instant::now();
    let seen = watched(&config_maps(&server), params, &version, Duration::from_secs(1000), || ()).await;
    assert_eq!(seen, vec![format!("BOOKMARK {version}"); 3]);
    assert_eq!(start.elapsed(), Duration::from_secs(130));
}

#[tokio::test(start_paused = true)]
async fn after_a_restore_versions_are_old_again_and_a_client_from_the_future_hears_nothing() {
    let server = server();
    server.create("configmaps", config_map("a", "x")).unwrap();
    let backup = server.snapshot();
    for name in ["b", "c"] {
        server.create("configmaps", config_map(name, "x")).unwrap();
    }
    let future = server.resource_version().to_string();
    server.restore(&backup);
    assert_eq!(server.resource_version(), backup.resource_version());
    let params = kube::api::WatchParams::default().timeout(10);
    let seen = watched(&config_maps(&server), params, &future, Duration::from_secs(20), || {
        for name in ["d", "e", "f"] {
            server.create("configmaps", config_map(name, "x")).unwrap();
        }
    })
    .await;
    assert_eq!(seen.first().map(String::as_str), Some("ADDED f"), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_denies_and_the_log_tells() {
    let server = server();
    server.set_hook(|request| {
        (request.verb == "create" && request.resource.plural == "persistentvolumes")
            .then(|| Status::forbidden(request.resource, &request.name, "not today"))
    });
    let client = kube::Client::new(server.service().labelled("me"), "default");
    let api: Api<PersistentVolume> = Api::all(client);
    assert_eq!(code(api.create(&PostParams::default(), &typed(pv("a"))).await), 403);
    assert!(api.get_opt("a").await.unwrap().is_none());
    let log: Vec<String> = server.audit().iter().map(ToString::to_string).collect();
    assert_eq!(log, ["me: create persistentvolumes/a 403", "me: get persistentvolumes/a 404"]);
    assert_eq!(server.count(AuditEntry::is_write), 1);
    server.clear_audit();
    server.clear_hook();
    api.create(&PostParams::default(), &typed(pv("a"))).await.unwrap();
    assert_eq!(server.audit().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_makes_the_same_objects() {
    let objects = || {
        let server = server();
        let made = json!({ "metadata": { "generateName": "x-", "namespace": "default" } });
        (server.create("configmaps", made).unwrap(), server.list("namespaces", "").unwrap())
    };
    assert_eq!(objects(), objects());
}

#[tokio::test(start_paused = true)]
async fn a_change_wakes_who_waits_for_it() {
    let server = server();
    let seen = server.changes();
    let waiting = tokio::spawn(server.changed(seen));
    tokio::task::yield_now().await;
    server.create("configmaps", config_map("a", "x")).unwrap();
    assert_eq!(waiting.await.unwrap(), seen + 1);
}

/// The engine itself, with all controllers, in simulated time.
#[tokio::test(start_paused = true)]
async fn the_engine_makes_and_deletes_volumes_on_it() {
    let server = server();
    let cluster = tokio::spawn(cluster::run(server.clone(), Duration::from_millis(10)));
    let clients =
        volwright_controller::client::Clients { requests: server.client(), watches: server.client() };
    let options = crate::Options::central("p.x.io");
    let engine = crate::Harness::start(&options, "s", clients, crate::Store::default());
    let class = json!({ "metadata": { "name": "c" }, "provisioner": "p.x.io" });
    server.create("storageclasses", class).unwrap();
    let claims = 100;
    for index in 0..claims {
        let claim = json!({ "metadata": { "name": format!("a{index}"), "namespace": "default" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "c",
                      "resources": { "requests": { "storage": "1Gi" } } } });
        server.create("persistentvolumeclaims", claim).unwrap();
    }
    let phase = |phase: &str| {
        let all = server.list("persistentvolumes", "").unwrap();
        all.iter().filter(|pv| pv["status"]["phase"] == phase).count()
    };
    let limit = Duration::from_secs(60);
    crate::harness::eventually("all are bound", limit, || async { phase("Bound") }, |bound| *bound == claims)
        .await;
    for index in 0..claims {
        server.delete("persistentvolumeclaims", "default", &format!("a{index}")).unwrap();
    }
    let left = || async { server.list("persistentvolumes", "").unwrap().len() };
    crate::harness::eventually("all are gone", limit, left, |left| *left == 0).await;
    assert!(engine.store.volumes().is_empty());
    engine.stop().await;
    cluster.abort();
}

/// Not under a paused clock: there are sockets.
#[tokio::test]
async fn it_serves_over_http_and_ends_with_its_watches() {
    let server = server();
    server.create("persistentvolumes", pv("a")).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = {
        let server = server.clone();
        tokio::spawn(async move {
            let stop = async {
                stopped.await.ok();
            };
            server.serve(listener, stop).await
        })
    };
    let client = kube::Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
    let api: Api<PersistentVolume> = Api::all(client.clone());
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 1);
    assert_eq!(client.apiserver_version().await.unwrap().minor, "35");
    let mut watch = Box::pin(watcher(api, watcher::Config::default()));
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(shown(watch.next().await.unwrap()));
    }
    assert_eq!(seen, ["init", "init a", "ready"]);
    server.create("persistentvolumes", pv("b")).unwrap();
    assert_eq!(shown(watch.next().await.unwrap()), "apply b");
    stop.send(()).unwrap();
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap().unwrap();
}

/// `cargo test --release -p volwright-testkit --lib cost -- --ignored --nocapture`
#[tokio::test]
#[ignore = "a measurement"]
async fn cost_of_requests() {
    let server = server();
    let api = volumes(&server);
    let measure = |what: &'static str, count: u32, start: std::time::SystemTime| {
        println!("{what}: {:?} each", start.elapsed().unwrap() / count);
    };
    let now = std::time::SystemTime::now;
    let start = now();
    for index in 0..1000 {
        server.create("persistentvolumes", pv(&format!("d{index}"))).unwrap();
    }
    measure("create, direct", 1000, start);
    let start = now();
    for index in 0..1000 {
        api.create(&PostParams::default(), &typed(pv(&format!("v{index}")))).await.unwrap();
    }
    measure("create, client", 1000, start);
    let start = now();
    for _ in 0..1000 {
        api.get("v1").await.unwrap();
    }
    measure("get, client", 1000, start);
    let start = now();
    for index in 0..1000 {
        let change = json!({ "metadata": { "labels": { "x": index.to_string() } } });
        api.patch("v1", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    }
    measure("patch, client", 1000, start);
    let start = now();
    for _ in 0..100 {
        assert_eq!(api.list(&ListParams::default().limit(500)).await.unwrap().items.len(), 500);
    }
    measure("list of 500, client", 100, start);
    let mut watch = Box::pin(
        api.watch(&kube::api::WatchParams::default(), &server.resource_version().to_string()).await.unwrap(),
    );
    for index in 0..100 {
        server
            .patch(
                "persistentvolumes",
                "",
                "v2",
                &json!({ "metadata": { "labels": { "x": index.to_string() } } }),
            )
            .unwrap();
    }
    let start = now();
    for _ in 0..100 {
        watch.next().await.unwrap().unwrap();
    }
    measure("watch event, client", 100, start);
}
