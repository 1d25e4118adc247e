//! What the engine lives through: an API server that goes and comes, watches that are cut, expire or fall silent, and
//! its own death at any moment. Outages have a control plane of their own, one at a time.
#![allow(clippy::expect_used, reason = "a test: its helpers may fail it")]

mod common;

use common::{SOON, World, a_while, name, phase, policy};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, MutexGuard, broadcast, watch};
use tokio::time::{Instant, sleep};
use volwright_controller::client::Clients;
use volwright_controller::names;
use volwright_lab::control_plane::{Component, ControlPlane, Options as ControlPlaneOptions};
use volwright_provisioner::MarkState;
use volwright_testkit::harness::eventually;
use volwright_testkit::{Harness, Options, Store, Trick};

/// After an outage everything may come with the watches' longest backoff, and on two cores.
const RECOVERY: Duration = Duration::from_secs(120);

static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());

/// A control plane of the test's own, while no other test breaks one.
async fn own_plane(args: &[&str]) -> (ControlPlane, MutexGuard<'static, ()>) {
    let turn = ONE_AT_A_TIME.lock().await;
    let options = ControlPlaneOptions {
        audit: true,
        scheduler: false,
        api_server_args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..ControlPlaneOptions::default()
    };
    (ControlPlane::start(options).await.expect("a control plane starts"), turn)
}

/// Does it until it succeeds, as a user who is not put off.
async fn insist<T, E, F: Future<Output = Result<T, E>>>(mut action: impl FnMut() -> F) -> T {
    loop {
        if let Ok(Ok(done)) = tokio::time::timeout(Duration::from_secs(5), action()).await {
            return done;
        }
        sleep(Duration::from_millis(200)).await;
    }
}

/// Creates claims `prefix-0`.. one after the other, through outages.
async fn create_claims(world: &World, class: &str, prefix: &str, count: usize, gap: Duration) {
    for number in 0..count {
        let claim = common::from(json!({
            "metadata": { "name": format!("{prefix}-{number}") },
            "spec": {
                "storageClassName": class,
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        }));
        let exists = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 409);
        insist(|| async {
            match world.claims().create(&PostParams::default(), &claim).await {
                Err(error) if !exists(&error) => Err(error),
                _ => Ok(()),
            }
        })
        .await;
        sleep(gap).await;
    }
}

/// Waits until `count` claims are Bound and looks that each has one volume, and none is left over.
async fn all_bound(world: &World, count: usize, limit: Duration) {
    let look = || async {
        let claims = insist(|| async { world.claims().list(&ListParams::default()).await }).await;
        let bound = |c: &&k8s_openapi::api::core::v1::PersistentVolumeClaim| {
            c.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound")
        };
        claims.items.iter().filter(bound).count()
    };
    eventually(&format!("{count} claims are bound"), limit, look, |bound| *bound == count).await;
    let volumes = ours(world).await;
    let paths: BTreeSet<_> = volumes.iter().map(World::path_of).collect();
    let stored: BTreeSet<_> = world.store.volumes().into_keys().collect();
    assert_eq!(volumes.len(), count, "one PV a claim");
    assert_eq!(paths, stored, "one volume a PV, and none besides");
}

/// The PVs that this world's provisioner has made.
async fn ours(world: &World) -> Vec<PersistentVolume> {
    let all = insist(|| async { world.volumes().list(&ListParams::default()).await }).await;
    let made =
        |v: &PersistentVolume| common::annotation(v, names::PROVISIONED_BY).as_ref() == Some(&world.name);
    all.items.into_iter().filter(made).collect()
}

/// How often the engine has listed PVs, by the audit log.
fn lists_of_volumes(plane: &ControlPlane) -> usize {
    let log = std::fs::read_to_string(plane.audit_log().expect("an audit log")).expect("readable");
    let lists = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).filter(|entry| {
        entry["verb"] == "list"
            && entry["objectRef"]["resource"] == "persistentvolumes"
            && entry["userAgent"].as_str().is_some_and(|agent| agent.starts_with("volwright"))
    });
    lists.count()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_api_server_away_for_a_minute_under_load_costs_nothing_but_the_minute() {
    let (mut plane, _turn) = own_plane(&[]).await;
    let world = Arc::new(World::on("minute", plane.kubeconfig().to_owned()).await);
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    let creator = {
        let (world, class) = (Arc::clone(&world), class.clone());
        tokio::spawn(
            async move { create_claims(&world, &class, "load", 100, Duration::from_millis(50)).await },
        )
    };
    sleep(Duration::from_secs(2)).await;
    plane.stop_api_server().expect("stopped");
    sleep(Duration::from_secs(60)).await;
    engine.health.alive().expect("waiting is not being stuck");
    plane.start_api_server().await.expect("started");
    let back = Instant::now();
    eventually("it is ready", RECOVERY, || async { engine.health.ready().is_ok() }, |ready| *ready).await;
    eprintln!("ready again after 60 s without API server: {:?}", back.elapsed());
    creator.await.expect("all are created");
    // kube-controller-manager has been away as well, and takes its time to ask for the volumes.
    let asked = || async {
        let claims = insist(|| async { world.claims().list(&ListParams::default()).await }).await;
        let asks = |claim: &&_| common::annotation(*claim, names::STORAGE_PROVISIONER).is_some();
        claims.items.iter().filter(asks).count()
    };
    eventually("100 volumes are asked for", RECOVERY, asked, |asked| *asked == 100).await;
    eprintln!("all volumes asked for by kube-controller-manager: {:?}", back.elapsed());
    let look = || async { world.store.volumes().len() };
    eventually("100 volumes are made", RECOVERY, look, |made| *made == 100).await;
    eprintln!("all volumes made: {:?}", back.elapsed());
    all_bound(&world, 100, RECOVERY).await;
    eprintln!("recovery after 60 s without API server, 100 claims around it: {:?}", back.elapsed());
    for number in 0..100 {
        world.delete_claim(&format!("load-{number}")).await;
    }
    eventually("all PVs are gone", RECOVERY, || ours(&world), Vec::is_empty).await;
    assert!(world.store.volumes().is_empty());
    engine.stop().await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_engine_started_without_api_server_waits_and_an_etcd_restart_is_ridden_out() {
    let (mut plane, _turn) = own_plane(&[]).await;
    let world = Arc::new(World::on("etcd", plane.kubeconfig().to_owned()).await);
    let class = world.class("delete", json!({})).await;
    plane.stop_api_server().expect("stopped");
    let engine = world.start().await;
    sleep(Duration::from_secs(5)).await;
    engine.health.alive().expect("waiting is not being stuck");
    assert!(engine.health.ready().is_err());
    plane.start_api_server().await.expect("started");
    create_claims(&world, &class, "first", 5, Duration::ZERO).await;
    all_bound(&world, 5, RECOVERY).await;
    let creator = {
        let (world, class) = (Arc::clone(&world), class.clone());
        tokio::spawn(
            async move { create_claims(&world, &class, "load", 30, Duration::from_millis(50)).await },
        )
    };
    sleep(Duration::from_millis(500)).await;
    plane.restart_etcd().await.expect("restarted");
    let back = Instant::now();
    creator.await.expect("all are created");
    all_bound(&world, 35, RECOVERY).await;
    eprintln!("recovery after a restart of etcd, 30 claims around it: {:?}", back.elapsed());
    plane.pause(Component::ApiServer).expect("paused");
    sleep(Duration::from_secs(15)).await;
    plane.resume(Component::ApiServer).expect("resumed");
    let back = Instant::now();
    create_claims(&world, &class, "after", 5, Duration::ZERO).await;
    all_bound(&world, 40, RECOVERY).await;
    eprintln!("recovery after 15 s of a frozen API server: {:?}", back.elapsed());
    engine.stop().await;
    plane.stop().await;
}

/// A way to an API server that can be cut, or fall silent.
struct Proxy {
    port: u16,
    cut: broadcast::Sender<()>,
    refuse: Arc<AtomicBool>,
    silent: watch::Sender<u64>,
}

impl Proxy {
    async fn to(target: &str) -> Self {
        let target: SocketAddr = target.trim_start_matches("https://").parse().expect("an address");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (cut, refuse) = (broadcast::Sender::new(1), Arc::new(AtomicBool::new(false)));
        let silent = watch::Sender::new(0);
        let proxy = Self { port, cut: cut.clone(), refuse: Arc::clone(&refuse), silent: silent.clone() };
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                if refuse.load(Ordering::SeqCst) {
                    continue;
                }
                let (mut cuts, mut silences) = (cut.subscribe(), silent.subscribe());
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cuts.recv() => {}
                        // Both ends stay open, and nothing passes any more.
                        _ = silences.changed() => { cuts.recv().await.ok(); }
                    }
                });
            }
        });
        proxy
    }

    /// Ends all connections. With `refuse`, new ones end at once too.
    fn cut(&self, refuse: bool) {
        self.refuse.store(refuse, Ordering::SeqCst);
        self.cut.send(()).ok();
    }

    /// What is connected now hears nothing any more, as behind a load balancer that dropped the connection; new
    /// connections work.
    fn silence(&self) {
        self.silent.send_modify(|count| *count += 1);
    }

    fn kubeconfig(&self, original: &Path, url: &str) -> PathBuf {
        let text = std::fs::read_to_string(original).expect("a kubeconfig");
        let text = text.replace(url, &format!("https://127.0.0.1:{}", self.port));
        let file = original.with_file_name(format!("proxy-{}.kubeconfig", self.port));
        std::fs::write(&file, text).expect("written");
        file
    }

    async fn engine(&self, plane: &ControlPlane, world: &World) -> Harness {
        let clients = common::clients(&self.kubeconfig(plane.kubeconfig(), plane.server_url())).await;
        Harness::start(&world.options, &world.server(), clients, world.store.clone())
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_expired_watch_lists_again_and_sees_what_went_meanwhile() {
    // Without its cache the API server forgets with etcd, and etcd is compacted every few seconds.
    let (plane, _turn) = own_plane(&["--watch-cache=false", "--etcd-compaction-interval=2s"]).await;
    let world = World::on("expired", plane.kubeconfig().to_owned()).await;
    let proxy = Proxy::to(plane.server_url()).await;
    let engine = proxy.engine(&plane, &world).await;
    let class = world.class("delete", json!({})).await;
    let (released, released_path) = world.made("released", &class).await;
    let (kept, kept_path) = world.made("kept", &class).await;
    world.patch_volume(&name(&kept), policy("Retain")).await;
    world.volume_is("no finalizer with Retain", &name(&kept), |v| !common::has_finalizer(v)).await;
    let lists = lists_of_volumes(&plane);
    proxy.cut(true);
    world.delete_claim("released").await;
    world.delete_claim("kept").await;
    world.volume_is("released", &name(&kept), |v| phase(v) == "Released").await;
    world.delete_volume(&name(&kept)).await;
    world.gone(&name(&kept)).await;
    world.claim("new", &class, json!({})).await;
    let maps: Api<ConfigMap> = Api::namespaced(world.client.clone(), &world.namespace);
    // Compaction keeps the last interval: make revisions until the old ones are gone.
    for number in 0..40 {
        let map = common::from(json!({ "metadata": { "name": format!("filler-{number}") } }));
        maps.create(&PostParams::default(), &map).await.expect("created");
        sleep(Duration::from_millis(250)).await;
    }
    proxy.cut(false);
    let back = Instant::now();
    let look = || async { lists_of_volumes(&plane) };
    eventually("it lists again", RECOVERY, look, |now| *now > lists).await;
    world.bound("new").await;
    world.gone(&name(&released)).await;
    world.data_gone(&released_path).await;
    let look = || async { world.store.volumes()[&kept_path].mark.clone().map(|mark| mark.state) };
    eventually("the PV that went is recorded", SOON, look, |state| *state == Some(MarkState::Retained)).await;
    eprintln!("recovery after an expired watch: {:?}", back.elapsed());
    engine.stop().await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn watches_cut_again_and_again_lose_nothing() {
    let (plane, _turn) = own_plane(&[]).await;
    let world = Arc::new(World::on("cut", plane.kubeconfig().to_owned()).await);
    let proxy = Proxy::to(plane.server_url()).await;
    let engine = proxy.engine(&plane, &world).await;
    let class = world.class("delete", json!({})).await;
    let creator = {
        let (world, class) = (Arc::clone(&world), class.clone());
        tokio::spawn(
            async move { create_claims(&world, &class, "load", 40, Duration::from_millis(50)).await },
        )
    };
    for _ in 0..5 {
        sleep(Duration::from_millis(400)).await;
        proxy.cut(false);
    }
    creator.await.expect("all are created");
    all_bound(&world, 40, RECOVERY).await;
    engine.stop().await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_silent_watch_is_started_again() {
    // Not one at a time: it breaks nothing but its own connections, and takes four minutes of waiting.
    let plane =
        ControlPlane::start(ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() });
    let plane = plane.await.expect("a control plane starts");
    let world = World::on("silent", plane.kubeconfig().to_owned()).await;
    let proxy = Proxy::to(plane.server_url()).await;
    let engine = proxy.engine(&plane, &world).await;
    let class = world.class("delete", json!({})).await;
    world.made("before", &class).await;
    proxy.silence();
    let silent = Instant::now();
    world.claim("after", &class, json!({})).await;
    all_bound(&world, 2, Duration::from_secs(330)).await;
    eprintln!("recovery from watches that fell silent: {:?}", silent.elapsed());
    engine.stop().await;
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_engine_killed_at_any_moment_makes_one_volume_a_claim_and_deletes_each() {
    let world = World::new("killed").await;
    let class = world.class("delete", json!({})).await;
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    eprintln!("seed {seed}");
    // Slow enough that kills meet calls under way.
    for op in ["plan", "observe", "provision", "set_mark", "delete"] {
        world.store.always(op, Trick::Slow(Duration::from_millis(15)));
    }
    create_claims(&world, &class, "data", 30, Duration::ZERO).await;
    for _ in 0..12 {
        let engine = world.start().await;
        sleep(Duration::from_millis(random.u64(20..400))).await;
        engine.kill();
    }
    let engine = world.start().await;
    all_bound(&world, 30, RECOVERY).await;
    engine.kill();
    for number in 0..30 {
        world.delete_claim(&format!("data-{number}")).await;
    }
    for _ in 0..12 {
        let engine = world.start().await;
        sleep(Duration::from_millis(random.u64(20..400))).await;
        engine.kill();
    }
    let engine = world.start().await;
    eventually("all PVs are gone", RECOVERY, || ours(&world), Vec::is_empty).await;
    let left = world.store.volumes();
    assert!(left.is_empty(), "seed {seed}: {left:#?}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_stop_lets_a_running_create_end_and_save_its_pv() {
    let world = World::new("drain").await;
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    world.store.once("provision", Trick::Slow(Duration::from_secs(3)));
    world.claim("slow", &class, json!({})).await;
    let look = || async { world.store.count("provision", "") };
    eventually("provision is called", SOON, look, |count| *count == 1).await;
    engine.stop().await;
    let volumes = ours(&world).await;
    assert_eq!(volumes.len(), 1, "its PV is saved before the process may end");
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volumes[0])]);
    world.claim("late", &class, json!({})).await;
    a_while().await;
    assert_eq!(ours(&world).await.len(), 1, "nothing is begun after a stop");
    assert_eq!(volumes[0].name_any(), name(&world.bound("slow").await));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn workers_bound_what_runs_at_once() {
    let mut world = World::new("workers").await;
    world.options = Options { workers: 4, ..world.options.clone() };
    let engine = world.start().await;
    let class = world.class("delete", json!({})).await;
    for op in ["plan", "observe", "provision", "set_mark", "delete"] {
        world.store.always(op, Trick::Slow(Duration::from_millis(20)));
    }
    create_claims(&world, &class, "data", 60, Duration::ZERO).await;
    all_bound(&world, 60, RECOVERY).await;
    let most = world.store.most_running();
    assert!((2..=4).contains(&most), "{most} calls at once");
    for number in 0..60 {
        world.delete_claim(&format!("data-{number}")).await;
    }
    eventually("all PVs are gone", RECOVERY, || ours(&world), Vec::is_empty).await;
    let most = world.store.most_running();
    assert!(most <= 4, "{most} calls at once while deleting");
    engine.stop().await;
}

#[tokio::test]
async fn a_watch_refused_with_status_410_lists_again() {
    // The API server tells of a forgotten place in an event of the watch; others, and proxies, by refusing the watch.
    let lists = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&lists);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let watches = request.uri().query().is_some_and(|query| query.contains("watch"));
        if !watches && request.uri().path().ends_with("persistentvolumes") {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        let (code, answer) = if watches {
            let refusal = json!({ "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old" });
            (410, refusal)
        } else {
            (
                200,
                json!({ "kind": "List", "apiVersion": "v1", "metadata": { "resourceVersion": "100" }, "items": [] }),
            )
        };
        let body = kube::client::Body::from(answer.to_string().into_bytes());
        let answer = http::Response::builder().status(code).body(body);
        async move { answer }
    });
    let clients = Clients::same(kube::Client::new(service, "default"));
    let engine = Harness::start(&Options::central("fake"), "server", clients, Store::default());
    let look = || async { lists.load(Ordering::SeqCst) };
    eventually("it lists again and again", SOON, look, |lists| *lists >= 4).await;
    engine.stop().await;
}
