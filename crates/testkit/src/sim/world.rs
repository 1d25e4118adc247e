//! One or two clusters on one storage system, the processes that serve them, and how all of it comes to rest.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use volwright_controller::backend::{Backend, Typed};
use volwright_controller::client::Clients;
use volwright_controller::decide::lease::{LeaseBugs, Timing};
use volwright_controller::decide::ledger::Bugs;
use volwright_controller::decide::{Rules, expand};
use volwright_controller::engine::clock::Clock;
use volwright_controller::engine::events::Events;
use volwright_controller::engine::health::{Health, observed};
use volwright_controller::engine::lease::{Elector, LeaseSettings};
use volwright_controller::engine::metrics::Metrics;
use volwright_controller::engine::{
    Bounds, ConfigMapJournal, ConfigMapSettings, Engine, Journal, Orphans, Parts, Probe, Settings, Spawner,
};
use volwright_controller::names;
use volwright_provisioner::{InstallationId, Mark, MarkState, Placement};

use super::chaos::Chaos;
use super::link::{Link, path_of};
use super::process::Process;
use super::storage::Storage;
use super::story::Story;
use super::watchtower::{Watchtower, bytes};
use crate::apiserver::cluster;
use crate::apiserver::{ApiServer, Options as ServerOptions};
use crate::memory::{LARGEST, StoredVolume};
use crate::{Memory, Store};

/// Where the provisioner lives.
pub const NAMESPACE: &str = "volwright";
/// What it answers to.
pub const PROVISIONER: &str = "memory.volwright.io";
const LEASE: Duration = Duration::from_secs(15);
const BACKEND_TIMEOUT: Duration = Duration::from_secs(20);
const API_TIMEOUT: Duration = Duration::from_secs(10);
/// The simulated day begins here; nothing depends on it.
const MORNING: i64 = 1_767_225_600;

/// How a world is set up.
#[derive(Clone)]
pub struct Setup {
    /// Clusters that share the storage system.
    pub clusters: usize,
    /// Processes a cluster.
    pub processes: usize,
    /// Claims and volumes that are worked on at once, each.
    pub workers: usize,
    /// Safety rules in force.
    pub rules: Rules,
    /// Changes that the API server remembers.
    pub history: usize,
    /// kube-controller-manager and the scheduler run.
    pub controllers: bool,
    /// Mistakes of the leader election.
    pub lease_bugs: LeaseBugs,
    /// Mistakes of the journal.
    pub journal_bugs: Bugs,
    /// Names that the provisioner had before, and still answers to.
    pub former_names: Vec<String>,
    /// Longest delay after a failure.
    pub backoff_max: Duration,
    /// How often everything is looked at again.
    pub resync: Duration,
    /// How often the trash is looked through; zero where there is none.
    pub trash_interval: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            clusters: 1,
            processes: 1,
            workers: 4,
            rules: Rules::default(),
            history: 200,
            controllers: true,
            lease_bugs: LeaseBugs::default(),
            journal_bugs: Bugs::default(),
            former_names: Vec::new(),
            backoff_max: Duration::from_secs(20),
            resync: Duration::from_secs(120),
            trash_interval: Duration::ZERO,
        }
    }
}

/// Cheap to clone.
#[derive(Clone)]
pub struct World(Arc<Inner>);

struct Inner {
    setup: Setup,
    seed: u64,
    story: Story,
    chaos: Chaos,
    store: Store,
    clock: SimClock,
    clusters: Vec<Cluster>,
    state: Mutex<State>,
}

/// One cluster.
pub struct Cluster {
    /// Its API server.
    pub api: ApiServer,
    /// Who watches over it.
    pub tower: Watchtower,
    /// Part of its marks.
    pub installation: InstallationId,
    orphans: Orphans,
    down: Arc<AtomicBool>,
    /// By how many seconds the clocks of the machines that run the provisioner are off.
    off: Arc<AtomicI64>,
}

#[derive(Default)]
struct State {
    running: BTreeMap<(usize, usize), Running>,
    generation: u64,
    /// What must be as it was at the end: volumes of nobody we know.
    foreign: BTreeMap<String, StoredVolume>,
    ending: bool,
}

struct Running {
    process: Process,
    probe: Probe,
    stop: watch::Sender<bool>,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

/// Time in the simulation: tokio's, with steps of the wall clock and with suspends.
#[derive(Debug, Clone)]
pub struct SimClock(Arc<Mutex<Steps>>);

#[derive(Debug)]
struct Steps {
    began: Instant,
    wall: i64,
    suspended: Duration,
}

impl SimClock {
    fn begin() -> Self {
        Self(Arc::new(Mutex::new(Steps { began: Instant::now(), wall: 0, suspended: Duration::ZERO })))
    }

    fn lock(&self) -> MutexGuard<'_, Steps> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody sets the wall clock.
    pub fn step(&self, seconds: i64) {
        self.lock().wall += seconds;
    }

    /// The machine slept: the monotonic clock of most calls did not notice, the one that counts did.
    pub fn suspend(&self, time: Duration) {
        self.lock().suspended += time;
    }
}

impl Clock for SimClock {
    fn boot(&self) -> Duration {
        let steps = self.lock();
        steps.began.elapsed() + steps.suspended
    }

    fn wall(&self) -> Timestamp {
        let steps = self.lock();
        let elapsed = steps.began.elapsed() + steps.suspended;
        let elapsed = SignedDuration::try_from(elapsed).unwrap_or_default();
        Timestamp::from_second(MORNING + steps.wall)
            .and_then(|morning| morning.checked_add(elapsed))
            .unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// The clock of a machine that may be off.
#[derive(Debug)]
struct MachineClock {
    right: SimClock,
    off: Arc<AtomicI64>,
}

impl Clock for MachineClock {
    fn boot(&self) -> Duration {
        self.right.boot()
    }

    fn wall(&self) -> Timestamp {
        let right = self.right.wall();
        let off = SignedDuration::from_secs(self.off.load(Ordering::Relaxed));
        right.checked_add(off).unwrap_or(right)
    }
}

impl Cluster {
    /// The clocks of the machines that run the provisioner are off by so many seconds.
    pub fn set_clock_off(&self, seconds: i64) {
        self.off.store(seconds, Ordering::Relaxed);
    }
}

impl World {
    /// Makes the clusters, with classes and nodes. No process runs yet.
    #[expect(clippy::similar_names, reason = "each is the plain word for what it is")]
    pub fn new(setup: Setup, seed: u64) -> Self {
        let (story, chaos, store) = (Story::begin(), Chaos::new(seed), Store::default());
        let clock = SimClock::begin();
        let clusters = (0..setup.clusters)
            .map(|number| {
                let clock = clock.clone();
                let api = ApiServer::new(ServerOptions {
                    history: setup.history,
                    clock: Arc::new(move || clock.wall()),
                    seed: seed ^ (u64::try_from(number).unwrap_or_default() << 32),
                });
                let installation = InstallationId::new(format!("cluster-{number}"));
                Cluster {
                    tower: Watchtower::new(api.clone(), story.clone(), LEASE, installation.clone()),
                    api,
                    installation,
                    orphans: Orphans::default(),
                    down: Arc::default(),
                    off: Arc::default(),
                }
            })
            .collect();
        let world = Self(Arc::new(Inner {
            setup,
            seed,
            story,
            chaos,
            store,
            clock,
            clusters,
            state: Mutex::default(),
        }));
        for number in 0..world.0.clusters.len() {
            world.furnish(number);
            if world.0.setup.controllers {
                let cluster = world.clone();
                tokio::spawn(async move { cluster.controllers(number).await });
            }
        }
        world
    }

    fn furnish(&self, number: usize) {
        let api = &self.cluster(number).api;
        let namespace = |name: &str| json!({ "metadata": { "name": name } });
        for name in [NAMESPACE, "users"] {
            self.made(api.create("namespaces", namespace(name)));
        }
        for node in ["node-a", "node-b"] {
            self.made(api.create("nodes", node_named(node)));
        }
        for class in CLASSES.into_iter().chain(FIXED_CLASSES) {
            self.made(api.create("storageclasses", class.object()));
        }
        if !self.0.setup.trash_interval.is_zero() {
            for class in TRASH {
                self.made(api.create("storageclasses", class.object()));
            }
        }
    }

    /// Setting up cannot fail but by a mistake in the simulation, and then the run shows it.
    fn made<T>(&self, result: Result<T, crate::apiserver::Status>) {
        if let Err(status) = result {
            self.tell(format_args!("!! setting up: {status:?}"));
        }
    }

    /// A line of the story.
    pub fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.0.story.tell(what);
    }

    /// Everything that happened.
    pub fn story(&self) -> &Story {
        &self.0.story
    }

    /// The faults.
    pub fn chaos(&self) -> &Chaos {
        &self.0.chaos
    }

    /// The storage system.
    pub fn store(&self) -> &Store {
        &self.0.store
    }

    /// The clocks.
    pub fn clock(&self) -> &SimClock {
        &self.0.clock
    }

    /// One of the clusters.
    pub fn cluster(&self, number: usize) -> &Cluster {
        &self.0.clusters[number]
    }

    /// How many clusters there are.
    pub fn clusters(&self) -> usize {
        self.0.clusters.len()
    }

    /// The rules, which also know what was decided.
    pub fn rules(&self) -> &Rules {
        &self.0.setup.rules
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A volume of nobody's, or another installation's: it must be the same at the end.
    pub fn put_foreign(&self, path: &str, volume: StoredVolume) {
        self.0.store.put(path, volume.clone());
        self.state().foreign.insert(path.to_owned(), volume);
    }

    /// Takes away what [`put_foreign`](Self::put_foreign) put there, as its owner would.
    pub fn take_foreign(&self, path: &str) {
        if self.state().foreign.remove(path).is_some() {
            self.0.store.remove(path);
        }
    }

    /// The paths of such volumes.
    pub fn foreign(&self) -> Vec<String> {
        self.state().foreign.keys().cloned().collect()
    }

    /// kube-controller-manager and the scheduler of one cluster.
    async fn controllers(&self, number: usize) {
        let api = self.cluster(number).api.clone();
        let mut seen = 0;
        loop {
            while self.cluster(number).down.load(Ordering::SeqCst) {
                sleep(Duration::from_millis(100)).await;
            }
            while cluster::step(&api) > 0 {}
            seen = api.changed(seen.max(api.changes())).await;
            // Controllers are slow at times.
            let slow = self.0.chaos.is_active() && self.0.chaos.chance(30);
            let pause = if slow { Duration::from_secs(2) } else { self.0.chaos.transit() };
            if !pause.is_zero() {
                sleep(pause).await;
            }
        }
    }

    /// Starts every process.
    pub fn start_all(&self) {
        for cluster in 0..self.clusters() {
            for slot in 0..self.0.setup.processes {
                self.start(cluster, slot);
            }
        }
    }

    fn start(&self, cluster: usize, slot: usize) {
        let generation = {
            let mut state = self.state();
            state.generation += 1;
            state.generation
        };
        let process = Process::new(
            format!("p{cluster}{slot}.{generation}"),
            self.0.chaos.clone(),
            self.0.story.clone(),
        );
        process.tell(format_args!("starts"));
        let (stop, stopped) = watch::channel(false);
        let (health, metrics) = (Health::new(), Metrics::new());
        let (root, probe) = self.root(cluster, &process, stopped, Arc::clone(&health), Arc::clone(&metrics));
        let (gate, world) = (process.gate().clone(), self.clone());
        let task = tokio::spawn(gate.around(Box::pin(root)));
        self.state()
            .running
            .insert((cluster, slot), Running { process: process.clone(), probe, stop, health, metrics });
        tokio::spawn(async move {
            // Killed, or ended after SIGTERM.
            task.await.ok();
            process.gate().kill();
            process.tell(format_args!("has ended"));
            let pause = if world.0.chaos.is_active() {
                world.0.chaos.between(Duration::ZERO, Duration::from_secs(20))
            } else {
                Duration::from_secs(1)
            };
            sleep(pause).await;
            world.start(cluster, slot);
        });
    }

    /// All that a process does.
    fn root(
        &self,
        number: usize,
        process: &Process,
        stop: watch::Receiver<bool>,
        health: Arc<Health>,
        metrics: Arc<Metrics>,
    ) -> (impl Future<Output = ()> + Send + 'static, Probe) {
        let cluster = self.cluster(number);
        let link = Link::new(
            &cluster.api,
            self.0.store.clone(),
            process.clone(),
            cluster.tower.clone(),
            Arc::clone(&cluster.down),
        );
        let clients = Clients::over(link, NAMESPACE);
        // As the binaries do it: readiness goes by the API server's answers.
        let clients = Clients { watches: observed(clients.watches, Arc::clone(&health)), ..clients };
        let client = clients.requests.clone();
        let backend: Arc<dyn Backend> =
            Arc::new(Typed::new(Arc::new(Memory::new("server", self.0.store.clone()))));
        let storage = Storage::new(
            backend,
            self.0.store.clone(),
            process.clone(),
            cluster.tower.clone(),
            BACKEND_TIMEOUT,
        );
        let (events, writer) = Events::new(
            client.clone(),
            PROVISIONER.to_owned(),
            process.name().to_owned(),
            Arc::clone(&metrics),
        );
        let clock: Arc<dyn Clock> = Arc::new(self.0.clock.clone());
        let machine = Arc::new(MachineClock { right: self.0.clock.clone(), off: Arc::clone(&cluster.off) });
        let journal: Arc<dyn Journal> = Arc::new(ConfigMapJournal::with_bugs(
            client.clone(),
            ConfigMapSettings {
                namespace: NAMESPACE.to_owned(),
                name: "volwright-journal".to_owned(),
                provisioner: PROVISIONER.to_owned(),
                api_timeout: API_TIMEOUT,
                bounds: Bounds::default(),
                clock: Arc::clone(&clock),
            },
            self.0.setup.journal_bugs,
        ));
        let (elector, leadership) = Elector::new_with_bugs(
            client.clone(),
            LeaseSettings {
                namespace: NAMESPACE.to_owned(),
                name: PROVISIONER.to_owned(),
                provisioner: PROVISIONER.to_owned(),
                identity: process.name().to_owned(),
                timing: Timing::default(),
            },
            clock,
            self.0.setup.lease_bugs,
        );
        let gate = process.gate().clone();
        let spawner = Spawner::within(move |task| gate.around(task));
        let engine = Engine::new(Parts {
            settings: settings(cluster.installation.clone(), &self.0.setup),
            backend: Arc::new(storage),
            clients,
            journal,
            leadership,
            events: events.clone(),
            metrics,
            health,
            orphans: cluster.orphans.clone(),
            clock: machine,
            spawner: spawner.clone(),
            rules: self.0.setup.rules.clone(),
        });
        let probe = engine.probe();
        let process = process.clone();
        let root = async move {
            let (until, ends) = watch::channel(false);
            let mut beside = tokio::task::JoinSet::new();
            spawner.spawn(&mut beside, writer);
            let mut election = tokio::task::JoinSet::new();
            spawner.spawn(&mut election, elector.run(ends));
            if let Err(error) = engine.run(stop).await {
                process.tell(format_args!("ends: {error}"));
            }
            until.send_replace(true);
            while election.join_next().await.is_some() {}
            events.close();
            drop(events);
            while beside.join_next().await.is_some() {}
        };
        (root, probe)
    }

    /// How much the engines that run now remember.
    pub fn tables(&self) -> BTreeMap<&'static str, usize> {
        let mut all = BTreeMap::new();
        for running in self.state().running.values() {
            for (table, size) in running.probe.tables() {
                *all.entry(table).or_default() += size;
            }
        }
        all
    }

    /// Stops the API server of a cluster, or starts it.
    pub fn set_down(&self, cluster: usize, down: bool) {
        self.cluster(cluster).down.store(down, Ordering::SeqCst);
    }

    /// The processes that run now.
    pub fn processes(&self) -> Vec<Process> {
        self.state().running.values().map(|running| running.process.clone()).collect()
    }

    /// What the readiness probe of the first process hears.
    pub fn ready(&self) -> Result<String, String> {
        match self.state().running.values().next() {
            Some(running) => running.health.ready(),
            None => Err("nothing runs".to_owned()),
        }
    }

    /// The metrics of the first process.
    pub fn metrics(&self) -> String {
        self.state().running.values().next().map(|running| running.metrics.render()).unwrap_or_default()
    }

    /// SIGTERM to one of them.
    pub fn terminate(&self, index: usize) {
        if let Some(running) = self.state().running.values().nth(index) {
            running.process.tell(format_args!("SIGTERM"));
            running.stop.send_replace(true);
        }
    }

    /// Waits until a planned fault has happened, for at most `time`.
    pub async fn chaos_or(&self, time: Duration) {
        let until = Instant::now() + time;
        while Instant::now() < until
            && self.0.chaos.met().is_empty()
            && self.processes().iter().all(|p| !p.gate().is_dead())
        {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The faults end and everybody is well. Returns when all is as it should be, or it was given up.
    pub async fn rest(&self, limit: Duration) {
        self.tell(format_args!("-- the faults end"));
        self.0.chaos.calm();
        self.0.store.hide_root(false);
        for process in self.processes() {
            process.resume();
        }
        for cluster in &self.0.clusters {
            cluster.api.cut_watches();
        }
        self.state().ending = true;
        let began = Instant::now();
        if self.0.clusters.iter().any(|cluster| cluster.tower.was_restored()) {
            // Who has closed an intent before the restore does not see that it is open again.
            sleep(Duration::from_secs(60)).await;
            self.processes().iter().for_each(|process| process.gate().kill());
        }
        let mut good = 0;
        loop {
            sleep(Duration::from_secs(5)).await;
            let unmet = self.unmet();
            if unmet.is_empty() {
                good += 1;
                // Something that comes late would come now.
                if good > 1 {
                    return;
                }
            } else {
                good = 0;
                if began.elapsed() > limit {
                    for (invariant, cluster, what) in unmet {
                        self.cluster(cluster).tower.broken(invariant, what);
                    }
                    return;
                }
            }
        }
    }

    /// What is not yet as it should be at rest.
    pub fn unmet(&self) -> Vec<(&'static str, usize, String)> {
        let mut unmet = Vec::new();
        for number in 0..self.clusters() {
            let mut found = Vec::new();
            self.look_at_claims(number, &mut found);
            self.look_at_volumes(number, &mut found);
            self.look_at_sizes(number, &mut found);
            unmet.extend(found.into_iter().map(|(invariant, what)| (invariant, number, what)));
        }
        for number in 0..self.clusters() {
            self.look_at_trash(number, &mut unmet);
        }
        let volumes = self.0.store.volumes();
        for (path, before) in &self.state().foreign {
            if volumes.get(path) != Some(before) {
                unmet.push(("I11", 0, format!("{path} of nobody we know is not what it was")));
            }
        }
        unmet
    }

    fn look_at_claims(&self, number: usize, unmet: &mut Vec<(&'static str, String)>) {
        let (cluster, volumes) = (self.cluster(number), self.0.store.volumes());
        for claim in cluster.api.list("persistentvolumeclaims", "").unwrap_or_default() {
            let name = text(&claim, "/metadata/name");
            let uid = text(&claim, "/metadata/uid");
            // Where somebody broke its PV, it has to be looked at by hand as well.
            if [name, uid, &names::pv_name(uid)].iter().any(|name| cluster.tower.is_excused(name)) {
                continue;
            }
            if claim.pointer("/metadata/deletionTimestamp").is_some() {
                unmet.push(("I6", format!("claim {name} is still being deleted")));
            } else if text(&claim, "/status/phase") == "Pending" {
                // What others put into the place of its volume keeps it from being made.
                let is_kept = volumes.values().filter_map(|volume| volume.mark.as_ref()).any(|mark| {
                    mark.owner.as_str() == uid
                        && matches!(mark.state, MarkState::Retained | MarkState::Trashed)
                });
                if is_kept {
                    // A claim that came back with a restored etcd, after its volume was retained.
                    continue;
                }
                let place = match text(&claim, "/spec/storageClassName") {
                    "path" | "trash-path" => format!("/pool/users/{name}"),
                    _ => format!("/pool/{uid}"),
                };
                let is_its_own = |mark: &Mark| {
                    mark.installation == cluster.installation
                        && mark.owner.as_str() == uid
                        && mark.pv_name.as_str() == names::pv_name(uid)
                };
                let there = volumes.get(&place);
                if there.is_none_or(|volume| volume.mark.as_ref().is_some_and(is_its_own)) {
                    unmet.push(("I6", format!("claim {name} is not bound")));
                }
            }
        }
    }

    /// I12: what a claim has is what its PV promises and its volume holds, and all that it asks for where that can be.
    fn look_at_sizes(&self, number: usize, unmet: &mut Vec<(&'static str, String)>) {
        let (cluster, volumes) = (self.cluster(number), self.0.store.volumes());
        for claim in cluster.api.list("persistentvolumeclaims", "").unwrap_or_default() {
            let name = text(&claim, "/metadata/name");
            let Ok(pv) = cluster.api.get("persistentvolumes", "", text(&claim, "/spec/volumeName")) else {
                continue;
            };
            let excused = [name, text(&claim, "/metadata/uid"), text(&pv, "/metadata/name")];
            let is_going = |object: &Value| object.pointer("/metadata/deletionTimestamp").is_some();
            let is_bound = text(&claim, "/status/phase") == "Bound"
                && text(&pv, "/spec/claimRef/uid") == text(&claim, "/metadata/uid");
            let fixed =
                FIXED_CLASSES.iter().any(|class| class.name == text(&claim, "/spec/storageClassName"));
            let volume = path_of(&pv).and_then(|path| volumes.get(path)).filter(|volume| {
                volume.mark.as_ref().is_some_and(|mark| mark.pv_name.as_str() == text(&pv, "/metadata/name"))
            });
            let Some(volume) = volume else { continue };
            if excused.iter().any(|name| cluster.tower.is_excused(name))
                || is_going(&claim)
                || is_going(&pv)
                || !is_bound
                || fixed
            {
                continue;
            }
            let asks = bytes(&claim, "/spec/resources/requests/storage");
            let has = bytes(&claim, "/status/capacity/storage");
            let promise = bytes(&pv, "/spec/capacity/storage");
            let progress = text(&claim, "/status/allocatedResourceStatuses/storage");
            let is_met = match progress {
                "" => asks <= has && has == promise && claim.pointer("/status/conditions").is_none(),
                // An earlier growth may have been cut off between PV and claim; it is told with the next that can be.
                expand::INFEASIBLE => asks > LARGEST && has <= promise,
                expand::NODE_PENDING => asks <= promise && has <= promise && is_csi(&pv),
                _ => false,
            };
            if !is_met || promise > volume.size {
                unmet.push((
                    "I12",
                    format!(
                        "claim {name} asks for {asks} and has {has} ({progress:?}), its PV promises {promise}, its volume \
                         has {}: {}",
                        volume.size, claim["status"]
                    ),
                ));
            }
        }
    }

    /// What is due has gone, and all else has its record and no PV.
    fn look_at_trash(&self, number: usize, unmet: &mut Vec<(&'static str, usize, String)>) {
        let cluster = self.cluster(number);
        let now = cluster.api.time();
        for entry in self.0.store.trash() {
            let Some(mark) = entry.volume.mark.as_ref().filter(|m| m.installation == cluster.installation)
            else {
                continue;
            };
            let name = mark.pv_name.as_str();
            if mark.state != MarkState::Trashed || !entry.trashed.note.contains(name) {
                unmet.push(("I13", number, format!("{name} is in the trash without its record: {entry:?}")));
            }
            let is_named = cluster.api.get("persistentvolumes", "", name).is_ok();
            if is_named && !cluster.tower.is_excused(name) {
                unmet.push(("I13", number, format!("{name} is in the trash, and its PV is there")));
            }
            if !is_named && entry.trashed.until < now {
                unmet.push(("I13", number, format!("{name} is in the trash, and its time is over")));
            }
        }
    }

    fn look_at_volumes(&self, number: usize, unmet: &mut Vec<(&'static str, String)>) {
        let cluster = self.cluster(number);
        let volumes = self.0.store.volumes();
        let pvs = cluster.api.list("persistentvolumes", "").unwrap_or_default();
        let mut named: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for pv in &pvs {
            let name = text(pv, "/metadata/name");
            let Some(path) = path_of(pv) else { continue };
            named.entry(name).or_default().insert(path);
            let ours = pv
                .pointer("/metadata/annotations")
                .and_then(|all| all.get(names::PROVISIONED_BY))
                .is_some_and(|by| by == PROVISIONER);
            if !ours || cluster.tower.is_excused(name) {
                continue;
            }
            let deletes = text(pv, "/spec/persistentVolumeReclaimPolicy") == "Delete";
            let phase = text(pv, "/status/phase");
            if pv.pointer("/metadata/deletionTimestamp").is_some() {
                // One that was given to another claim while it terminated: nobody can bind it, and while that claim is
                // there only its owner can say what becomes of the data.
                let given_away = text(pv, "/spec/claimRef/uid");
                let waits = matches!(phase, "Released" | "Failed")
                    && name != names::pv_name(given_away)
                    && self.is_claim(number, given_away);
                // One whose data a living PV names as well: a restore of etcd brought that one back, and somebody chose to
                // keep it.
                let is_named = pvs.iter().any(|other| {
                    text(other, "/metadata/name") != name
                        && other.pointer("/metadata/deletionTimestamp").is_none()
                        && path_of(other) == Some(path)
                });
                if phase != "Bound" && !waits && !(is_named && cluster.tower.was_restored()) {
                    unmet.push(("I6", format!("{name} is still being deleted")));
                }
            } else if deletes && matches!(phase, "Released" | "Failed") {
                unmet.push(("I6", format!("{name} is released and still there")));
            } else if !volumes.contains_key(path) {
                unmet.push(("I3", format!("{name} is there, and its volume {path} is not")));
            }
        }
        let intents = self.intents(number);
        let orphans = cluster.orphans.list();
        let mut of_owner: BTreeMap<&str, usize> = BTreeMap::new();
        for (path, volume) in &volumes {
            let Some(mark) = volume.mark.as_ref().filter(|mark| mark.installation == cluster.installation)
            else {
                continue;
            };
            if matches!(mark.state, MarkState::Retained | MarkState::Trashed)
                || self.state().foreign.contains_key(path)
            {
                continue;
            }
            if orphans.contains_key(mark.pv_name.as_str()) || cluster.tower.is_excused(mark.pv_name.as_str())
            {
                continue;
            }
            *of_owner.entry(mark.owner.as_str()).or_default() += 1;
            let spoken_for =
                named.get(mark.pv_name.as_str()).is_some_and(|paths| paths.contains(path.as_str()));
            if !spoken_for {
                let open = intents.contains(mark.owner.as_str());
                let invariant = if open { "I6" } else { "I2" };
                unmet.push((invariant, format!("nothing speaks for {path} of {} ({mark:?})", mark.pv_name)));
            }
        }
        for (owner, count) in of_owner.into_iter().filter(|(_, count)| *count > 1) {
            unmet.push(("I1", format!("{count} volumes of claim {owner}")));
        }
        for owner in intents {
            unmet.push(("I6", format!("the intent of {owner} is still open")));
        }
    }

    fn is_claim(&self, number: usize, uid: &str) -> bool {
        let claims = self.cluster(number).api.list("persistentvolumeclaims", "").unwrap_or_default();
        claims.iter().any(|claim| text(claim, "/metadata/uid") == uid)
    }

    /// Uids of claims with an open intent, as etcd has them.
    fn intents(&self, number: usize) -> BTreeSet<String> {
        let maps = self.cluster(number).api.list("configmaps", NAMESPACE).unwrap_or_default();
        let keys =
            maps.iter().filter_map(|map| map.pointer("/data")?.as_object()).flat_map(|data| data.keys());
        keys.filter_map(|key| key.strip_prefix("claim.")).map(str::to_owned).collect()
    }

    /// All broken invariants.
    pub fn violations(&self) -> Vec<super::watchtower::Violation> {
        self.0.clusters.iter().flat_map(|cluster| cluster.tower.violations()).collect()
    }

    /// A number of this run that differs from other seeds'.
    pub fn seed(&self) -> u64 {
        self.0.seed
    }
}

fn is_csi(pv: &Value) -> bool {
    pv.pointer("/spec/csi").is_some()
}

/// A node of this name.
pub fn node_named(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } })
}

/// A string in an object, or nothing.
pub fn text<'a>(object: &'a Value, path: &str) -> &'a str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn settings(installation: InstallationId, setup: &Setup) -> Settings {
    let mut names = vec![PROVISIONER.to_owned()];
    names.extend(setup.former_names.iter().cloned());
    Settings {
        names,
        placement: Placement::Central,
        installation,
        workers: setup.workers,
        api_timeout: API_TIMEOUT,
        backend_timeout: BACKEND_TIMEOUT,
        backoff_base: Duration::from_millis(500),
        backoff_max: setup.backoff_max,
        resync: setup.resync,
        drain: Duration::from_secs(20),
        lease: LEASE,
        namespace: NAMESPACE.to_owned(),
        trash_interval: setup.trash_interval,
    }
}

/// A storage class of the simulation.
#[derive(Debug, Clone, Copy)]
pub struct SimClass {
    /// Its name.
    pub name: &'static str,
    retain: bool,
    late: bool,
    parameters: &'static [(&'static str, &'static str)],
}

/// All classes.
pub const CLASSES: [SimClass; 7] = [
    SimClass { name: "fast", retain: false, late: false, parameters: &[] },
    SimClass { name: "keep", retain: true, late: false, parameters: &[] },
    SimClass { name: "kept", retain: false, late: false, parameters: &[("onDelete", "retain")] },
    SimClass { name: "late", retain: false, late: true, parameters: &[] },
    SimClass {
        name: "path",
        retain: false,
        late: false,
        parameters: &[("pathPattern", "${.PVC.namespace}/${.PVC.name}")],
    },
    SimClass { name: "opaque", retain: false, late: false, parameters: &[("opaque", "true")] },
    SimClass { name: "csi", retain: false, late: false, parameters: &[("shape", "csi")] },
];

/// Classes whose volumes do not grow, or not by us.
pub const FIXED_CLASSES: [SimClass; 2] = [
    SimClass { name: "fixed", retain: false, late: false, parameters: &[("resizer", "nobody")] },
    SimClass {
        name: "driven",
        retain: false,
        late: false,
        parameters: &[("shape", "csi"), ("resizer", "driver")],
    },
];

/// Classes whose data goes into the trash; there where the trash is looked after.
pub const TRASH: [SimClass; 2] = [
    SimClass {
        name: "trash",
        retain: false,
        late: false,
        parameters: &[("onDelete", "trash"), ("trashFor", "30s")],
    },
    SimClass {
        name: "trash-path",
        retain: false,
        late: false,
        parameters: &[
            ("onDelete", "trash"),
            ("trashFor", "1m"),
            ("pathPattern", "${.PVC.namespace}/${.PVC.name}"),
        ],
    },
];

impl SimClass {
    /// As the API has it.
    pub fn object(&self) -> Value {
        json!({
            "metadata": { "name": self.name },
            "provisioner": PROVISIONER,
            "allowVolumeExpansion": true,
            "reclaimPolicy": if self.retain { "Retain" } else { "Delete" },
            "volumeBindingMode": if self.late { "WaitForFirstConsumer" } else { "Immediate" },
            "parameters": self.parameters.iter().copied().collect::<BTreeMap<_, _>>(),
        })
    }

    /// Does it bind late?
    pub fn is_late(&self) -> bool {
        self.late
    }
}
