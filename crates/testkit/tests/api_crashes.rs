//! Real processes, real signals, a real control plane: whatever happens to a provisioner's processes, nothing is lost and
//! nothing is left over. The processes are `volwright-testbed`, which halts where a test wants to catch it.
#![allow(clippy::expect_used, clippy::print_stderr, reason = "a test: its helpers may fail it, and show why")]

mod common;

use common::{SOON, World, a_while, phase, terminating, uid};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::Future;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{RwLock, Semaphore};
use tokio::task::JoinSet;
use tokio::time::sleep;
use volwright_controller::names;
use volwright_lab::control_plane::{Component, ControlPlane, Options as ControlPlaneOptions};
use volwright_lab::{Keeper, Server};
use volwright_testkit::harness::eventually;

/// What is left over after everything else is found at the next comparison with the storage, a minute away, and then
/// settled.
const SWEPT: Duration = Duration::from_secs(150);

/// After a leader that did not release its lease, and for what it began to be settled.
const TAKEN_OVER: Duration = Duration::from_secs(90);

const UNDONE: &str = "Removed what was made and never published.";

/// Messages of a leader that has changed something.
const ACTS: [&str; 4] = ["Provisioned.", "Deleted.", UNDONE, "The PV of this volume was there already."];

const LEADS: &str = "Became leader.";
const RESIGNED: &str = "No longer leader.";

/// Cases at a time: each has up to three processes, which mostly wait.
static CASES: Semaphore = Semaphore::const_new(16);

/// Held for writing by whoever measures.
static QUIET: RwLock<()> = RwLock::const_new(());

/// One test's folder, namespace and provisioner name.
struct Case {
    world: World,
    dir: PathBuf,
    class: String,
    started: AtomicU32,
    logs: Mutex<Vec<PathBuf>>,
}

/// How a process differs from the others of its case.
#[derive(Clone, Copy)]
struct Start<'a> {
    hostname: &'a str,
    namespace: &'a str,
    kubeconfig: &'a Path,
    slow: u32,
}

/// One process.
struct Instance {
    server: Server,
    log: PathBuf,
}

fn keeper() -> &'static Keeper {
    static KEEPER: OnceLock<Keeper> = OnceLock::new();
    KEEPER.get_or_init(|| Keeper::new("volwright-crashes-").expect("a keeper"))
}

impl Case {
    async fn new(test: &str) -> Self {
        Self::of(World::new(test).await, false).await
    }

    /// With `opaque` nobody sees whether a volume was written to.
    async fn of(world: World, opaque: bool) -> Self {
        let parameters = if opaque { json!({ "opaque": "true" }) } else { json!({}) };
        let class = world.class("delete", json!({ "parameters": parameters })).await;
        let dir = keeper().dir().join(&world.namespace);
        for part in ["root", "control", "logs"] {
            fs::create_dir_all(dir.join(part)).expect("a folder");
        }
        Self { world, dir, class, started: AtomicU32::new(0), logs: Mutex::default() }
    }

    fn usual<'a>(&'a self, hostname: &'a str) -> Start<'a> {
        Start { hostname, namespace: &self.world.namespace, kubeconfig: &self.world.kubeconfig, slow: 0 }
    }

    fn start(&self, hostname: &str) -> Instance {
        self.start_as(self.usual(hostname))
    }

    fn start_as(&self, start: Start<'_>) -> Instance {
        let name = format!("{}-{}", start.hostname, self.started.fetch_add(1, Ordering::Relaxed));
        let mut command = Command::new(env!("CARGO_BIN_EXE_volwright-testbed"));
        command.env_clear().env("HOSTNAME", start.hostname);
        command.arg("run").arg("--kubeconfig").arg(start.kubeconfig);
        command.args(["--provisioner-name", &self.world.name, "--namespace", start.namespace]);
        command.args(["--http-address", "127.0.0.1:0", "--log-format", "json"]);
        command.args(["--lease-duration", "5s", "--lease-renew-deadline", "3s"]);
        command.args(["--lease-retry-period", "500ms", "--backend-timeout", "3s", "--api-timeout", "3s"]);
        command.args(["--backoff-base", "100ms", "--backoff-max", "2s", "--resync", "1m", "--drain", "2s"]);
        command.arg("--root").arg(self.dir.join("root")).arg("--control").arg(self.dir.join("control"));
        command.args(["--slow", &start.slow.to_string()]);
        let logs = self.dir.join("logs");
        let server = Server::start(keeper(), &name, &logs, &mut command).expect("the process starts");
        let log = logs.join(format!("{name}.log"));
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(log.clone());
        Instance { server, log }
    }

    /// Whoever gets there waits.
    fn halt(&self, op: &str, when: &str) {
        fs::write(self.dir.join(format!("control/halt-{op}-{when}")), "").expect("written");
    }

    fn release(&self, op: &str, when: &str) {
        fs::remove_file(self.dir.join(format!("control/halt-{op}-{when}"))).expect("it was halted");
    }

    /// Waits until the process halts there.
    async fn at(&self, op: &str, when: &str, instance: &Instance) {
        let pid = instance.pid();
        let file = self.dir.join(format!("control/at-{op}-{when}-{pid}"));
        eventually(&format!("{pid} is at {op} {when}"), SOON, || async { file.exists() }, |there| *there)
            .await;
    }

    async fn claim(&self, name: &str) -> String {
        uid(&self.world.claim(name, &self.class, json!({})).await)
    }

    /// Deletes the claim and waits until it is gone.
    async fn unclaim(&self, name: &str) {
        self.world.delete_claim(name).await;
        let look =
            || async { self.world.claims().get_opt(name).await.expect("claims can be read").is_some() };
        eventually(&format!("claim {name} is gone"), SOON, look, |there| !there).await;
    }

    /// What is on the storage, by path in the source.
    fn volumes(&self) -> BTreeMap<String, Value> {
        let files = fs::read_dir(self.dir.join("root")).expect("the root");
        let files = files.map(|file| file.expect("an entry").path());
        let read = |file: PathBuf| {
            let name = file.file_name()?.to_str()?.strip_suffix(".json")?.to_owned();
            // It may go while we look.
            let bytes = fs::read(&file).ok()?;
            Some((format!("/{name}"), serde_json::from_slice(&bytes).expect("whole")))
        };
        files.filter_map(read).collect()
    }

    /// As a pod would.
    fn write_to(&self, path: &str) {
        let file = self.dir.join("root").join(format!("{}.json", path.trim_start_matches('/')));
        let mut volume = self.volumes().remove(path).expect("the volume is there");
        volume["written"] = json!(true);
        let new = file.with_extension("new");
        fs::write(&new, volume.to_string()).expect("written");
        fs::rename(&new, &file).expect("renamed");
    }

    /// PVs of this case.
    async fn pvs(&self) -> Vec<PersistentVolume> {
        let all = self.world.volumes().list(&ListParams::default()).await.expect("PVs can be read");
        let ours = |pv: &PersistentVolume| {
            common::annotation(pv, names::PROVISIONED_BY).as_ref() == Some(&self.world.name)
        };
        all.items.into_iter().filter(ours).collect()
    }

    fn maps(&self) -> Api<ConfigMap> {
        Api::namespaced(self.world.client.clone(), &self.world.namespace)
    }

    /// The journal's objects.
    async fn journal(&self) -> Vec<ConfigMap> {
        let label = format!("{}={}", names::MANAGED_BY, "volwright");
        let maps = self.maps().list(&ListParams::default().labels(&label)).await;
        maps.expect("ConfigMaps can be read").items
    }

    /// As somebody who tidies up.
    async fn delete_journal(&self) -> Vec<String> {
        let maps = self.journal().await;
        assert!(!maps.is_empty(), "there is a journal");
        for map in &maps {
            self.maps().delete(&common::name(map), &DeleteParams::default()).await.expect("deleted");
        }
        maps.iter().map(uid).collect()
    }

    /// Waits until nothing is recorded as being made or deleted.
    async fn nothing_open(&self) {
        let look = || async {
            let entries = self.journal().await.into_iter().filter_map(|map| map.data).flatten();
            entries.collect::<Vec<_>>()
        };
        eventually("no intent is left", TAKEN_OVER, look, Vec::is_empty).await;
    }

    /// The claim is bound, and its volume, marked as published, is the only one. Returns its path.
    async fn one_bound(&self, claim: &str) -> String {
        let bound = || async { self.world.claim_now(claim).await.status.and_then(|status| status.phase) };
        let is_bound = |phase: &Option<String>| phase.as_deref() == Some("Bound");
        eventually(&format!("claim {claim} is bound"), TAKEN_OVER, bound, is_bound).await;
        let path = World::path_of(&self.world.bound(claim).await);
        let look = || async { self.volumes() };
        let published = |volumes: &BTreeMap<String, Value>| {
            volumes.len() == 1 && volumes.get(&path).is_some_and(|v| v["mark"]["state"] == "published")
        };
        eventually("one volume, published", TAKEN_OVER, look, published).await;
        assert_eq!(self.pvs().await.len(), 1, "one PV");
        path
    }

    /// Waits until neither volume, PV nor intent is left.
    async fn nothing_left(&self, limit: Duration) {
        let look = || async {
            let pvs = self.pvs().await;
            let pvs = pvs.iter().map(|pv| format!("{} {} {}", common::name(pv), phase(pv), terminating(pv)));
            (pvs.collect::<Vec<_>>(), self.volumes())
        };
        eventually("nothing is left", limit, look, |(pvs, volumes)| pvs.is_empty() && volumes.is_empty())
            .await;
        self.nothing_open().await;
        assert_eq!(self.volumes(), BTreeMap::new());
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        for log in self.logs.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            eprintln!("-- {}\n{}", log.display(), fs::read_to_string(log).unwrap_or_default());
        }
    }
}

impl Instance {
    fn pid(&self) -> u32 {
        self.server.process().expect("it runs").pid
    }

    /// What it has logged.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).expect("a log");
        // The last line may be half written.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn said(&self, message: &str) -> Vec<Value> {
        self.lines().into_iter().filter(|line| line["message"] == message).collect()
    }

    /// Waits until it has logged that `times`; returns the last such line.
    async fn says(&self, message: &str, times: usize) -> Value {
        let what = format!("{} says {message:?}", self.log.display());
        let look = || async { self.said(message) };
        let said = eventually(&what, TAKEN_OVER, look, |said| said.len() >= times).await;
        said.into_iter().next_back().unwrap_or_default()
    }

    /// What it has done as leader since its log had so many lines, until it led again.
    fn acts_since(&self, lines: usize) -> Vec<Value> {
        let since = self.lines().into_iter().skip(lines).take_while(|line| line["message"] != LEADS);
        since.filter(|line| ACTS.iter().any(|act| line["message"] == *act)).collect()
    }

    /// SIGTERM.
    fn terminate(&self) {
        self.server.process().expect("it runs").terminate().expect("signalled");
    }

    /// SIGTERM, and how it ended.
    async fn stop(mut self) -> Option<i32> {
        self.terminate();
        self.server.ended(SOON).await.expect("it ends").code()
    }

    async fn metrics(&self) -> String {
        let line = self.says("Serving health and metrics.", 1).await;
        let address: SocketAddr = line["address"].as_str().expect("an address").parse().expect("an address");
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        answer
    }

    async fn orphans(&self) -> u32 {
        let metrics = self.metrics().await;
        let line = metrics.lines().find_map(|line| line.strip_prefix("volwright_orphans "));
        line.expect("a metric").trim().parse().expect("a number")
    }
}

fn time_of(line: &Value) -> Timestamp {
    line["timestamp"].as_str().expect("a timestamp").parse().expect("a timestamp")
}

/// Runs the cases side by side, and fails with the names of all that failed.
async fn side_by_side<F: Future<Output = ()> + Send + 'static>(cases: Vec<(String, F)>) {
    let _loud = QUIET.read().await;
    let mut running = JoinSet::new();
    for (name, case) in cases {
        running.spawn(async move {
            let _turn = CASES.acquire().await;
            (name, tokio::spawn(case).await.is_ok())
        });
    }
    let outcomes = running.join_all().await;
    let failed: Vec<_> = outcomes.into_iter().filter(|(_, passed)| !passed).map(|(name, _)| name).collect();
    assert!(failed.is_empty(), "{failed:#?}");
}

/// What a leader is doing.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// A volume for a claim.
    Making,
    /// A volume goes with its claim.
    Deleting,
    /// A volume goes whose claim went while it was made.
    Undoing,
}

/// Where a leader is caught.
#[derive(Clone, Copy, Debug)]
struct Moment {
    way: Way,
    op: &'static str,
    when: &'static str,
    /// Nobody sees whether the volume was written to.
    opaque: bool,
    /// The claim is deleted before there is another leader.
    unclaimed: bool,
}

impl Moment {
    /// Every operation, before and after its effect.
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for when in ["before", "after"] {
            for unclaimed in [false, true] {
                let making = |op| Self { way: Way::Making, op, when, opaque: false, unclaimed };
                all.extend(["inventory", "plan", "observe", "provision", "set_mark"].map(making));
                all.push(Self { opaque: true, ..making("set_mark") });
            }
            for way in [Way::Deleting, Way::Undoing] {
                let deleting = |op| Self { way, op, when, opaque: false, unclaimed: true };
                all.extend(["observe", "delete"].map(deleting));
            }
        }
        all
    }

    fn name(self) -> String {
        // Short: a provisioner's name has at most 63 characters.
        let way = format!("{:?}", self.way).to_lowercase();
        let op = self.op.replace('_', "");
        let opaque = if self.opaque { "-opaque" } else { "" };
        let unclaimed = if self.unclaimed { "-un" } else { "" };
        format!("{way}-{op}-{}{opaque}{unclaimed}", self.when)
    }

    /// It was marked as published and the PV was not made yet. Where nobody sees what is in it, the PV may as well have
    /// been there, used and deleted: it is kept and reported.
    fn may_hold_data(self) -> bool {
        self.opaque && self.op == "set_mark" && self.when == "after" && self.unclaimed
    }

    /// A leader stopped there makes a volume once it is resumed, when its successor has undone everything.
    fn ends_late(self) -> bool {
        matches!(self.way, Way::Making) && self.op == "provision" && self.when == "before" && self.unclaimed
    }

    /// A leader that halts there.
    async fn reach(self, case: &Case) -> Instance {
        let Self { op, when, .. } = self;
        match self.way {
            Way::Making => {
                case.halt(op, when);
                case.claim("data").await;
                let leader = case.start("first");
                case.at(op, when, &leader).await;
                leader
            }
            Way::Deleting => {
                let leader = case.start("first");
                case.claim("data").await;
                let path = case.one_bound("data").await;
                case.write_to(&path);
                case.halt(op, when);
                case.unclaim("data").await;
                case.at(op, when, &leader).await;
                leader
            }
            Way::Undoing => {
                case.halt("provision", "after");
                case.claim("data").await;
                let leader = case.start("first");
                case.at("provision", "after", &leader).await;
                case.halt(op, when);
                case.unclaim("data").await;
                case.release("provision", "after");
                case.at(op, when, &leader).await;
                leader
            }
        }
    }

    /// After the leader was caught: the claim may go.
    async fn unclaim(self, case: &Case) {
        if self.unclaimed && matches!(self.way, Way::Making) {
            case.unclaim("data").await;
        }
    }

    /// What the next leader makes of it.
    async fn settled(self, case: &Case, next: &Instance) {
        if self.may_hold_data() {
            let orphans = || next.orphans();
            eventually("an orphan is reported", TAKEN_OVER, orphans, |orphans| *orphans == 1).await;
            case.nothing_open().await;
            assert_eq!((case.volumes().len(), case.pvs().await.len()), (1, 0), "kept, without a PV");
            return;
        }
        if self.unclaimed {
            next.says("Watches are complete, work begins.", 1).await;
            case.nothing_left(TAKEN_OVER).await;
        } else {
            case.one_bound("data").await;
            case.nothing_open().await;
        }
        assert_eq!(next.orphans().await, 0);
    }
}

async fn killed(moment: Moment) {
    let case = Case::of(World::new(&format!("kill-{}", moment.name())).await, moment.opaque).await;
    let mut first = moment.reach(&case).await;
    first.server.kill();
    case.release(moment.op, moment.when);
    moment.unclaim(&case).await;
    let second = case.start("second");
    moment.settled(&case, &second).await;
    if !moment.unclaimed {
        case.unclaim("data").await;
        case.nothing_left(SOON).await;
    }
    assert_eq!(second.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_process_killed_at_any_step_leaves_one_volume_or_none() {
    side_by_side(Moment::all().into_iter().map(|moment| (moment.name(), killed(moment))).collect()).await;
}

async fn stopped(moment: Moment) {
    let case = Case::of(World::new(&format!("stop-{}", moment.name())).await, moment.opaque).await;
    let first = moment.reach(&case).await;
    first.server.pause().expect("stopped");
    case.release(moment.op, moment.when);
    moment.unclaim(&case).await;
    let second = case.start("second");
    second.says(LEADS, 1).await;
    moment.settled(&case, &second).await;
    let written = if moment.unclaimed { None } else { Some(case.one_bound("data").await) };
    if let Some(path) = &written {
        case.write_to(path);
    }
    let lines = first.lines().len();
    first.server.resume().expect("resumed");
    first.says(RESIGNED, 1).await;
    a_while().await;
    match &written {
        Some(path) => {
            assert_eq!(&case.one_bound("data").await, path, "the same volume");
            assert_eq!(case.volumes()[path]["written"], true, "with what was written");
        }
        None if moment.may_hold_data() => {
            assert_eq!(case.volumes().len(), 1, "still kept");
            assert_eq!(second.orphans().await, 1, "and still reported");
        }
        // What the old leader's last call made is found and undone.
        None => {
            case.nothing_left(SWEPT).await;
            let undone = "An earlier leader made a volume after it was deposed; it is undone.";
            assert_eq!(second.said(undone).len(), usize::from(moment.ends_late()));
        }
    }
    let mut acts = first.acts_since(lines);
    // The end of the call that it was stopped in.
    acts.retain(|line| moment.op != "delete" || line["message"] != UNDONE);
    assert_eq!(acts, Vec::<Value>::new(), "it does nothing more");
    if written.is_some() {
        case.unclaim("data").await;
        case.nothing_left(SOON).await;
    }
    assert_eq!(first.stop().await, Some(0));
    assert_eq!(second.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_leader_stopped_at_any_step_and_resumed_after_its_successor_acted_harms_nothing() {
    side_by_side(Moment::all().into_iter().map(|moment| (moment.name(), stopped(moment))).collect()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_process_told_to_stop_without_an_api_server_ends_in_time_and_with_success() {
    let _loud = QUIET.read().await;
    let options = ControlPlaneOptions { scheduler: false, ..ControlPlaneOptions::default() };
    let mut plane = ControlPlane::start(options).await.expect("a control plane starts");
    let mut cases = Vec::new();
    for test in ["silent", "silent-for-long", "refused"] {
        let case = Case::of(World::on(test, plane.kubeconfig().to_owned()).await, false).await;
        let leader = case.start("leader");
        leader.says(LEADS, 1).await;
        case.claim("data").await;
        case.one_bound("data").await;
        let standby = case.start("standby");
        standby.says("The cluster answers.", 1).await;
        cases.push((case, leader, standby));
    }
    sleep(Duration::from_secs(1)).await;
    for (number, (case, leader, standby)) in cases.into_iter().enumerate() {
        match number {
            0 => plane.pause(Component::ApiServer).expect("paused"),
            // The one before has taken longer than the lease's deadline by now or will have.
            1 => sleep(Duration::from_secs(8)).await,
            _ => plane.stop_api_server().expect("stopped"),
        }
        let newcomer = case.start("newcomer");
        newcomer.says("Serving health and metrics.", 1).await;
        sleep(Duration::from_millis(500)).await;
        let mut ended = JoinSet::new();
        for instance in [leader, standby, newcomer] {
            ended.spawn(async move { (instance.log.clone(), instance.stop().await) });
        }
        // A process that takes longer than the drain and five seconds ends itself, and says so by its code.
        for (log, code) in ended.join_all().await {
            assert_eq!(code, Some(0), "{}", log.display());
        }
    }
    plane.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_second_installation_in_another_namespace_is_refused_and_told_where_the_first_is() {
    let _loud = QUIET.read().await;
    let (case, other) = (Case::new("installed").await, World::new("installed-again").await);
    let first = case.start("first");
    first.says(LEADS, 1).await;
    let elsewhere = Start { namespace: &other.namespace, ..case.usual("elsewhere") };
    let mut second = case.start_as(elsewhere);
    let code = second.server.ended(TAKEN_OVER).await.expect("it ends").code();
    assert_eq!(code, Some(1));
    let last = second.lines().pop().expect("it says why");
    let error = last["error"].as_str().expect("an error");
    eprintln!("{error}");
    assert_eq!(last["message"], "Cannot go on.");
    assert!(error.contains(&format!("namespace {} ", case.world.namespace)), "{error}");
    assert!(error.contains(&format!("from {} as well", other.namespace)), "{error}");
    assert!(second.said(LEADS).is_empty());
    case.claim("data").await;
    case.one_bound("data").await;
    assert_eq!(first.stop().await, Some(0));
    // It was said that it starts once the other is gone.
    let second = case.start_as(elsewhere);
    second.says(LEADS, 1).await;
    assert_eq!(second.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn two_processes_with_one_hostname_are_two_candidates_of_which_one_acts() {
    let _loud = QUIET.read().await;
    let case = Case::new("hostname").await;
    let (a, b) = (case.start("pod"), case.start("pod"));
    let look = || async { a.said(LEADS).len() + b.said(LEADS).len() };
    eventually("one leads", SOON, look, |leaders| *leaders > 0).await;
    let (leader, standby) = if a.said(LEADS).is_empty() { (b, a) } else { (a, b) };
    for number in 0..10 {
        case.claim(&format!("data-{number}")).await;
    }
    for number in 0..10 {
        case.world.bound(&format!("data-{number}")).await;
    }
    a_while().await;
    assert!(standby.said(LEADS).is_empty() && standby.acts_since(0).is_empty(), "one waits");
    assert_eq!((leader.said("Provisioned.").len(), case.volumes().len()), (10, 10), "one acts");
    let identity = |line: Value| line["identity"].as_str().expect("an identity").to_owned();
    let first = identity(leader.says(LEADS, 1).await);
    assert_eq!(leader.stop().await, Some(0));
    let second = identity(standby.says(LEADS, 1).await);
    assert!(first.starts_with("pod_") && second.starts_with("pod_"), "{first} {second}");
    assert_ne!(first, second);
    assert_eq!(standby.stop().await, Some(0));
}

/// One of several processes, taken out by surprise.
async fn whoever_leads(live: &mut Vec<Instance>) -> Instance {
    let leads = |instance: &Instance| {
        let lines = instance.lines();
        let news = lines.iter().rev().find(|line| line["message"] == LEADS || line["message"] == RESIGNED);
        news.is_some_and(|line| line["message"] == LEADS)
    };
    let look = || async { live.iter().position(leads) };
    let at = eventually("one leads", TAKEN_OVER, look, Option::is_some).await.expect("just seen");
    live.remove(at)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn leaders_killed_and_stopped_at_random_moments_under_load_lose_and_leave_nothing() {
    const CLAIMS: usize = 60;
    let _loud = QUIET.read().await;
    let case = Arc::new(Case::new("random").await);
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    eprintln!("seed {seed}");
    // Every other claim goes again, a moment after it came.
    let users = {
        let case = Arc::clone(&case);
        tokio::spawn(async move {
            for number in 0..CLAIMS {
                case.claim(&format!("data-{number}")).await;
                if number % 2 == 1 {
                    case.world.delete_claim(&format!("data-{}", number - 1)).await;
                }
                sleep(Duration::from_millis(500)).await;
            }
        })
    };
    let start = || case.start_as(Start { slow: 20, ..case.usual("pod") });
    let (mut live, mut stopped) = (vec![start(), start()], Vec::<Instance>::new());
    for _ in 0..5 {
        let mut leader = whoever_leads(&mut live).await;
        sleep(Duration::from_millis(random.u64(0..1500))).await;
        for instance in stopped.drain(..) {
            instance.server.resume().expect("resumed");
            live.push(instance);
        }
        if random.bool() {
            leader.server.kill();
            live.push(start());
        } else {
            leader.server.pause().expect("stopped");
            stopped.push(leader);
            live.push(start());
        }
    }
    for instance in stopped.drain(..) {
        instance.server.resume().expect("resumed");
        live.push(instance);
    }
    users.await.expect("all claims were made");
    let kept: Vec<_> = (0..CLAIMS).filter(|number| number % 2 == 1).map(|n| format!("data-{n}")).collect();
    let look = || async {
        let claims = case.world.claims().list(&ListParams::default()).await.expect("claims can be read");
        let bound = |claim: &PersistentVolumeClaim| {
            claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        claims.items.iter().filter(|claim| bound(claim)).count()
    };
    eventually("all claims are bound", TAKEN_OVER, look, |bound| *bound == kept.len()).await;
    let look = || async {
        let pvs = case.pvs().await.iter().map(World::path_of).collect::<BTreeSet<_>>();
        (pvs, case.volumes().into_keys().collect::<BTreeSet<_>>())
    };
    let one_each =
        |(pvs, volumes): &(BTreeSet<String>, BTreeSet<String>)| pvs == volumes && pvs.len() == kept.len();
    eventually("one volume and one PV a claim", SWEPT, look, one_each).await;
    case.nothing_open().await;
    for claim in &kept {
        case.world.delete_claim(claim).await;
    }
    case.nothing_left(SWEPT).await;
    for instance in live {
        assert_eq!(instance.orphans().await, 0, "seed {seed}");
        assert_eq!(instance.stop().await, Some(0), "seed {seed}");
    }
}

/// The journal is deleted while a volume is being made. With `kill`, the leader dies then.
async fn journal_lost(when: &'static str, unclaimed: bool, kill: bool) {
    let name =
        format!("journal-{when}{}{}", if unclaimed { "-un" } else { "" }, if kill { "-kill" } else { "" });
    let case = Case::new(&name).await;
    case.halt("provision", when);
    case.claim("data").await;
    let mut leader = case.start("leader");
    case.at("provision", when, &leader).await;
    let deleted = case.delete_journal().await;
    if unclaimed {
        case.unclaim("data").await;
    }
    if kill {
        leader.server.kill();
        case.release("provision", when);
        leader = case.start("next");
    } else {
        case.release("provision", when);
        let line = leader.says("The journal cannot be used any more in this term.", 1).await;
        assert_eq!(line["soundness"], "Vanished", "{line}");
    }
    leader.says("Watches are complete, work begins.", if kill { 1 } else { 2 }).await;
    if unclaimed {
        case.nothing_left(TAKEN_OVER).await;
        if when == "after" {
            leader.says("The journal was missing; volumes that no PV names are looked at again.", 1).await;
        }
    } else {
        case.one_bound("data").await;
        case.nothing_open().await;
    }
    let now = case.journal().await;
    assert!(!now.is_empty() && now.iter().all(|map| !deleted.contains(&uid(map))), "a new journal");
    if !unclaimed {
        case.unclaim("data").await;
        case.nothing_left(SOON).await;
    }
    assert_eq!(leader.orphans().await, 0);
    assert_eq!(leader.stop().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_journal_deleted_by_hand_while_a_volume_is_made_is_made_anew_and_nothing_leaks() {
    let mut cases = Vec::new();
    for when in ["before", "after"] {
        for unclaimed in [false, true] {
            for kill in [false, true] {
                let name = format!("provision {when}, unclaimed {unclaimed}, kill {kill}");
                cases.push((name, journal_lost(when, unclaimed, kill)));
            }
        }
    }
    side_by_side(cases).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn when_a_leader_is_told_to_stop_the_next_one_leads_within_a_second() {
    let case = Case::new("handover").await;
    let _quiet = QUIET.write().await;
    let mut leader = case.start("pod-0");
    leader.says(LEADS, 1).await;
    for round in 1..=3 {
        let next = case.start(&format!("pod-{round}"));
        // Its first look at the lease is over when it watches.
        next.says("The cluster answers.", 1).await;
        a_while().await;
        assert!(next.said(LEADS).is_empty());
        let claim = format!("data-{round}");
        case.claim(&claim).await;
        leader.terminate();
        let leads = time_of(&next.says(LEADS, 1).await);
        let told = leader.said("Stopping: nothing new is begun, running calls may end.");
        let told = time_of(told.first().expect("it was told"));
        let released = time_of(&leader.says("Released the lease.", 1).await);
        let took = leads.duration_since(told);
        let from_release = leads.duration_since(released);
        eprintln!("handover {round}: {took:?} after SIGTERM, {from_release:?} after the release");
        assert!(leads >= released, "never two at a time");
        assert!(took.as_millis() < 1000, "{took:?}");
        assert_eq!(leader.server.ended(SOON).await.expect("it ends").code(), Some(0));
        case.world.bound(&claim).await;
        leader = next;
    }
    assert_eq!(case.volumes().len(), 3, "one volume a claim");
    assert_eq!(leader.stop().await, Some(0));
}
