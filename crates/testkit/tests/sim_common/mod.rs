//! One cluster under simulated time, played by hand: each case is a short story whose end is counted.

#![allow(clippy::unwrap_used, reason = "a test: its helpers may fail it")]
#![allow(dead_code, reason = "each file of cases uses its part")]

use serde_json::{Value, json};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_testkit::Store;
use volwright_testkit::apiserver::{ApiServer, RequestInfo, Status};
use volwright_testkit::sim::{CLASSES, PROVISIONER, Process, Setup, SimClass, Users, World};

/// The class of most claims: Immediate binding, policy Delete.
pub const FAST: SimClass = CLASSES[0];
/// Late binding.
pub const LATE: SimClass = CLASSES[3];
/// PVs of CSI's shape.
pub const CSI: SimClass = CLASSES[6];

pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
pub const ASKED: &str = "volume.kubernetes.io/storage-provisioner";
pub const ASKED_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";

/// Plays a case in a runtime of its own, with the clock paused and one seed.
pub fn play<T>(case: impl Future<Output = T>) -> T {
    fastrand::seed(7);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(case)
}

pub const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A request that arrived, whatever became of it.
#[derive(Debug, Clone)]
pub struct Asked {
    pub at: Instant,
    pub client: String,
    pub verb: &'static str,
    pub resource: &'static str,
    pub name: String,
    pub body: Value,
}

impl Asked {
    pub fn is(&self, verb: &str, resource: &str) -> bool {
        self.verb == verb && self.resource == resource
    }

    /// Takes the choice of a node off a claim.
    pub fn unselects(&self) -> bool {
        self.is("patch", "persistentvolumeclaims") && self.body.to_string().contains("selected-node")
    }

    pub fn is_write(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }
}

type Denial = Box<dyn Fn(&RequestInfo) -> Option<Status> + Send>;

/// A world with one cluster.
pub struct Scene {
    pub world: World,
    pub users: Users,
    pub api: ApiServer,
    pub store: Store,
    log: Arc<Mutex<Vec<Asked>>>,
    denial: Arc<Mutex<Option<Denial>>>,
}

impl Scene {
    /// Nothing runs yet.
    pub fn new(setup: Setup) -> Self {
        let world = World::new(setup, 7);
        let api = world.cluster(0).api.clone();
        let (log, denial) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(None::<Denial>)));
        let (asked, denies) = (Arc::clone(&log), Arc::clone(&denial));
        api.set_hook(move |request| {
            asked.lock().unwrap().push(Asked {
                at: Instant::now(),
                client: request.client.clone(),
                verb: request.verb,
                resource: request.resource.plural,
                name: request.name.clone(),
                body: request.body.clone(),
            });
            denies.lock().unwrap().as_ref().and_then(|denies| denies(request))
        });
        Self { users: Users::new(&world, 0), store: world.store().clone(), api, world, log, denial }
    }

    /// One process, which leads.
    pub async fn begin() -> Self {
        Self::begin_with(Setup::default()).await
    }

    pub async fn begin_with(setup: Setup) -> Self {
        let scene = Self::new(setup);
        scene.world.start_all();
        sleep(secs(5)).await;
        scene
    }

    /// From now on these requests are denied.
    pub fn deny(&self, denies: impl Fn(&RequestInfo) -> Option<Status> + Send + 'static) {
        *self.denial.lock().unwrap() = Some(Box::new(denies));
    }

    pub fn allow(&self) {
        *self.denial.lock().unwrap() = None;
    }

    /// Requests so far that were such.
    pub fn asked(&self, such: impl Fn(&Asked) -> bool) -> Vec<Asked> {
        self.log.lock().unwrap().iter().filter(|asked| such(asked)).cloned().collect()
    }

    pub fn count(&self, verb: &str, resource: &str) -> usize {
        self.asked(|asked| asked.is(verb, resource)).len()
    }

    /// Calls of the storage so far.
    pub fn calls(&self, op: &str) -> usize {
        self.store.count(op, "")
    }

    pub fn claim_of(&self, name: &str) -> Value {
        self.api.get("persistentvolumeclaims", "users", name).unwrap()
    }

    pub fn is_bound(&self, name: &str) -> bool {
        self.api
            .get("persistentvolumeclaims", "users", name)
            .is_ok_and(|claim| claim.pointer("/status/phase") == Some(&json!("Bound")))
    }

    pub fn uid_of(&self, name: &str) -> String {
        self.claim_of(name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The name that the PV of this claim has, or will have.
    pub fn pv_of(&self, name: &str) -> String {
        format!("pvc-{}", self.uid_of(name))
    }

    pub fn pv(&self, name: &str) -> Option<Value> {
        self.api.get("persistentvolumes", "", name).ok()
    }

    /// A claim with what a story needs.
    pub fn make_claim(&self, name: &str, class: &str, annotations: &Value, spec: &Value) {
        let mut claim = json!({
            "metadata": { "name": name, "namespace": "users", "annotations": annotations },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        for (key, value) in spec.as_object().into_iter().flatten() {
            claim["spec"][key] = value.clone();
        }
        self.api.create("persistentvolumeclaims", claim).unwrap();
    }

    /// A bound claim of the class.
    pub async fn bound(&mut self, class: SimClass) -> String {
        let name = self.users.claim(class);
        self.until(secs(60), "the claim is bound", |scene| scene.is_bound(&name)).await;
        name
    }

    /// Waits until it is so; when it became so.
    pub async fn until(&self, limit: Duration, what: &str, is: impl Fn(&Self) -> bool) -> Duration {
        let began = Instant::now();
        while !is(self) {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}\n{}", self.story());
            sleep(Duration::from_millis(10)).await;
        }
        began.elapsed()
    }

    fn story(&self) -> String {
        self.world.story().lines().join("\n")
    }

    /// Events of a type (`Warning` or `Normal`) about an object, as they are now.
    pub fn events(&self, kind: &str, about: &str) -> Vec<Value> {
        let all = self.api.list("events.events.k8s.io", "").unwrap();
        let such = |event: &Value| event["type"] == kind && event["regarding"]["name"] == about;
        all.into_iter().filter(such).collect()
    }

    /// The process of this index.
    pub fn process(&self, index: usize) -> Process {
        self.world.processes()[index].clone()
    }

    /// Who holds the lease.
    pub fn holder(&self) -> String {
        let leases = self.api.list("leases", "").unwrap();
        let holder = leases.first().and_then(|lease| lease["spec"]["holderIdentity"].as_str());
        holder.unwrap_or_default().to_owned()
    }

    /// Everything comes to rest, and nothing was broken on the way.
    pub async fn rest(&self) {
        self.allow();
        self.world.rest(secs(900)).await;
        let violations = self.world.violations();
        assert!(violations.is_empty(), "{violations:#?}\n{}", self.story());
    }

    /// As [`Self::rest`], and neither volumes nor PVs are left.
    pub async fn nothing_is_left(&self) {
        self.rest().await;
        assert_eq!(self.store.volumes(), std::collections::BTreeMap::new(), "{}", self.story());
        assert_eq!(self.api.list("persistentvolumes", "").unwrap(), Vec::<Value>::new());
    }
}

/// Seconds between each two.
pub fn gaps(times: &[Instant]) -> Vec<f64> {
    times.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
}

/// The annotations of a claim that asks us.
pub fn asks() -> Value {
    json!({ (ASKED): PROVISIONER, (ASKED_BETA): PROVISIONER })
}

/// As RBAC denies it.
pub fn forbidden(request: &RequestInfo) -> Status {
    Status::forbidden(request.resource, &request.name, "not in this test")
}
