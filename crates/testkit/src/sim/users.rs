//! What people do to claims, PVs, classes and nodes, and what operators break and mend.

use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_controller::decide::expand;
use volwright_controller::engine::{Answer, Asked, TrashRequest};
use volwright_controller::names;
use volwright_provisioner::{ClaimUid, Epoch, InstallationId, Mark, MarkState, PvName, format_bytes};

use super::link::path_of;
use super::watchtower::bytes;
use super::world::{
    CLASSES, FIXED_CLASSES, NAMESPACE, PROVISIONER, SimClass, TRASH, World, node_named, text,
};
use crate::apiserver::{ApiServer, Snapshot};
use crate::memory::{StoredVolume, TrashedVolume};

/// Something that somebody does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Deed {
    /// A new claim, of any class.
    Claim,
    /// A claim under a name that was used before.
    SameName,
    /// A claim that is to be filled from another.
    Clone,
    /// A claim that a populator fills.
    Populated,
    /// The populator gives a claim's volume to the claim that waits for it.
    Repoint,
    /// A pod writes to a bound volume.
    Write,
    /// A claim goes.
    DeleteClaim,
    /// A PV is deleted by hand.
    DeletePv,
    /// Policy to Retain.
    Retain,
    /// Policy to Delete.
    Delete,
    /// `provisioned-by` is stripped.
    Strip,
    /// Our finalizer is stripped.
    StripFinalizer,
    /// Another PV of the same data.
    Alias,
    /// That one goes.
    Unalias,
    /// A claim names a PV in `spec.volumeName`.
    Name,
    /// A class is made anew.
    RemakeClass,
    /// A class goes for a while.
    DropClass,
    /// A node goes for a while.
    DropNode,
    /// Somebody chooses another node.
    Reselect,
    /// Something stands where a volume is to go.
    Obstacle,
    /// It is taken away.
    Clear,
    /// A PV of the claim's name that another made.
    Squatter,
    /// The journal is deleted.
    DropJournal,
    /// The journal is edited.
    EditJournal,
    /// SIGTERM to a process.
    Terminate,
    /// SIGKILL at one of the next awaits.
    Kill,
    /// SIGSTOP.
    Stop,
    /// The API server forgets its history.
    Compact,
    /// All watches end.
    CutWatches,
    /// Somebody sets the clock.
    ClockStep,
    /// The machine sleeps.
    Suspend,
    /// Something else is restored into a volume's place.
    Tamper,
    /// Somebody has a volume open for a while.
    Use,
    /// A released PV's claimRef is edited.
    Reclaim,
    /// A claim of the name that a PV's claimRef has, and that names the PV.
    NameAgain,
    /// A class is another provisioner's for a while.
    ForeignClass,
    /// The annotation that asks for us is taken off.
    Unask,
    /// A PV's on-delete says what nobody knows, for a while.
    BadOnDelete,
    /// A claim whose data goes into the trash.
    TrashClaim,
    /// The same under a name, and at a path, that was used before.
    TrashAgain,
    /// Somebody asks for a volume in the trash, and makes its PV and claim again.
    TrashRestore,
    /// Somebody asks that a volume in the trash goes.
    TrashEmpty,
    /// Somebody edits how long the trash is to keep a volume.
    TrashFor,
    /// Somebody makes the PV of a volume in the trash again, without asking for its data.
    TrashRemake,
    /// The clocks of the machines are off for a while.
    ClockOff,
    /// A backup of etcd.
    Backup,
    /// It is restored.
    Restore,
    /// A claim of a class whose volumes do not grow, or not by us.
    FixedClaim,
    /// A bound claim asks for more.
    AskMore,
    /// One that asks for more than it has asks for less, and still for more than it has.
    AskLess,
    /// A bound claim asks for more than there can be.
    AskTooMuch,
    /// kubelet has grown file systems; where it is not its turn, as an older one writes it.
    NodeGrows,
}

/// The people of one cluster.
pub struct Users {
    world: World,
    cluster: usize,
    names: usize,
    backup: Option<Snapshot>,
}

impl Users {
    /// Nobody has done anything yet.
    pub fn new(world: &World, cluster: usize) -> Self {
        Self { world: world.clone(), cluster, names: 0, backup: None }
    }

    fn api(&self) -> &ApiServer {
        &self.world.cluster(self.cluster).api
    }

    fn list(&self, resource: &str) -> Vec<Value> {
        self.api().list(resource, "").unwrap_or_default()
    }

    fn any(&self, objects: Vec<Value>) -> Option<Value> {
        let index = self.world.chaos().below(objects.len());
        objects.into_iter().nth(index)
    }

    fn claims(&self, such: impl Fn(&Value) -> bool) -> Option<Value> {
        self.any(self.list("persistentvolumeclaims").into_iter().filter(|claim| such(claim)).collect())
    }

    fn pvs(&self, such: impl Fn(&Value) -> bool) -> Option<Value> {
        let ours = |pv: &Value| {
            pv.pointer("/metadata/annotations").is_some_and(|all| all.get(names::HANDLE).is_some())
        };
        self.any(self.list("persistentvolumes").into_iter().filter(|pv| ours(pv) && such(pv)).collect())
    }

    fn tell(&self, what: std::fmt::Arguments<'_>) {
        self.world.tell(format_args!("user: {what}"));
    }

    /// Does something from the table every now and then.
    pub async fn act(&mut self, table: &[(Deed, usize)], time: Duration, pause: Duration) {
        let total: usize = table.iter().map(|(_, weight)| weight).sum();
        let until = Instant::now() + time;
        while Instant::now() < until {
            let mut dice = self.world.chaos().below(total);
            let deed = table.iter().find(|(_, weight)| {
                let hit = dice < *weight;
                dice = dice.saturating_sub(*weight);
                hit
            });
            if let Some((Deed::Restore, _)) = deed {
                self.restore().await;
            } else if let Some((deed, _)) = deed {
                self.perform(*deed);
            }
            let pause = self.world.chaos().between(Duration::ZERO, pause * 2);
            sleep(pause).await;
        }
    }

    /// After a while, what puts things back.
    fn later(&self, put_back: impl FnOnce(&ApiServer) + Send + 'static) {
        let time = self.world.chaos().between(Duration::ZERO, Duration::from_secs(20));
        let api = self.api().clone();
        tokio::spawn(async move {
            sleep(time).await;
            put_back(&api);
        });
    }

    /// A claim of this class; its name.
    pub fn claim(&mut self, class: SimClass) -> String {
        let name = format!("c{}", self.names);
        self.names += 1;
        self.claim_named(&name, class, Value::Null);
        name
    }

    fn claim_named(&self, name: &str, class: SimClass, source: Value) {
        let mut spec = json!({
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class.name,
            "resources": { "requests": { "storage": "1Gi" } },
        });
        if !source.is_null() {
            spec["dataSourceRef"] = source;
        }
        self.tell(format_args!("claim {name} of {}", class.name));
        let claim = json!({ "metadata": { "name": name, "namespace": "users" }, "spec": spec });
        self.api().create("persistentvolumeclaims", claim).ok();
        if class.is_late() {
            let pod = json!({
                "metadata": { "name": name, "namespace": "users" },
                "spec": {
                    "containers": [{ "name": "c", "image": "i" }],
                    "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": name } }],
                },
            });
            self.api().create("pods", pod).ok();
        }
    }

    /// A claim is to have so much.
    pub fn ask(&self, claim: &str, size: &str) {
        self.tell(format_args!("claim {claim} asks for {size}"));
        let change = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        self.api().patch("persistentvolumeclaims", "users", claim, &change).ok();
    }

    fn nodes_grow(&self) {
        for claim in self.list("persistentvolumeclaims") {
            let Ok(pv) = self.api().get("persistentvolumes", "", text(&claim, "/spec/volumeName")) else {
                continue;
            };
            let promise = text(&pv, "/spec/capacity/storage");
            if bytes(&pv, "/spec/capacity/storage") <= has(&claim) {
                continue;
            }
            let name = text(&claim, "/metadata/name");
            self.tell(format_args!("kubelet has grown {name} to {promise}"));
            let mut status = json!({ "capacity": { "storage": promise } });
            if text(&claim, "/status/allocatedResourceStatuses/storage") == expand::NODE_PENDING {
                status["allocatedResourceStatuses"] = Value::Null;
                status["conditions"] = Value::Null;
            }
            let change = json!({ "status": status });
            self.api().patch_status("persistentvolumeclaims", "users", name, &change).ok();
        }
    }

    /// A claim that can never be served as it is.
    pub fn impossible(&self) {
        self.world.cluster(self.cluster).tower.excuse("impossible");
        let claim = json!({
            "metadata": { "name": "impossible", "namespace": "users" },
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "resources": { "requests": { "storage": "1Gi" } },
                "selector": { "matchLabels": { "a": "b" } },
            },
        });
        self.api().create("persistentvolumeclaims", claim).ok();
    }

    /// Whoever kept volumes removes their PVs and their data.
    pub fn clear_released(&self) {
        for pv in self.list("persistentvolumes") {
            if text(&pv, "/status/phase") == "Released" {
                self.api().delete("persistentvolumes", "", text(&pv, "/metadata/name")).ok();
            }
        }
        for (path, volume) in self.world.store().volumes() {
            if volume.mark.is_some_and(|mark| mark.state == MarkState::Retained) {
                self.world.store().remove(&path);
            }
        }
    }

    /// It is given up.
    pub fn forgive(&self) {
        self.delete_claim("impossible");
    }

    /// The claim goes, and the pod that uses it.
    pub fn delete_claim(&self, name: &str) {
        self.tell(format_args!("delete claim {name}"));
        self.api().delete_now("pods", "users", name).ok();
        self.api().delete("persistentvolumeclaims", "users", name).ok();
    }

    /// A pod writes to the volume of a bound claim.
    pub fn write(&self, claim: &Value) {
        let Ok(pv) = self.api().get("persistentvolumes", "", text(claim, "/spec/volumeName")) else { return };
        if pv.pointer("/metadata/deletionTimestamp").is_some() {
            return;
        }
        if let Some(path) = path_of(&pv) {
            self.tell(format_args!("write to {path} of {}", text(claim, "/metadata/name")));
            self.world.store().edit(path, |volume| volume.written = true);
        }
    }

    fn policy(&self, pv: &Value, policy: &str) {
        let name = text(pv, "/metadata/name");
        self.tell(format_args!("policy of {name} to {policy}"));
        let change = json!({ "spec": { "persistentVolumeReclaimPolicy": policy } });
        self.api().patch("persistentvolumes", "", name, &change).ok();
    }

    /// Does one thing, if there is something to do it to.
    pub fn perform(&mut self, deed: Deed) {
        let tower = self.world.cluster(self.cluster).tower.clone();
        let bound = |claim: &Value| text(claim, "/status/phase") == "Bound";
        let mine = |claim: &Value| text(claim, "/metadata/namespace") == "users";
        // Many objects take many calls, and show nothing that a few do not.
        let is_crowded = matches!(deed, Deed::Claim | Deed::SameName | Deed::FixedClaim)
            && self.list("persistentvolumeclaims").len() >= CROWD;
        let deed = if is_crowded { Deed::DeleteClaim } else { deed };
        match deed {
            Deed::Claim => {
                let class = CLASSES[self.world.chaos().below(CLASSES.len())];
                self.claim(class);
            }
            Deed::SameName => {
                let name = format!("same{}", self.world.chaos().below(2));
                let class = if self.world.chaos().chance(700) { CLASSES[4] } else { CLASSES[0] };
                self.claim_named(&name, class, Value::Null);
            }
            Deed::Clone => {
                let name = format!("clone{}", self.names);
                self.names += 1;
                let source = json!({ "kind": "PersistentVolumeClaim", "name": "c0" });
                tower.excuse(name.clone());
                self.claim_named(&name, CLASSES[0], source);
            }
            Deed::Populated => {
                let name = format!("filled{}", self.names);
                self.names += 1;
                let source = json!({ "apiGroup": "example.com", "kind": "Fill", "name": "x" });
                tower.excuse(name.clone());
                self.claim_named(&name, CLASSES[0], source);
                self.claim_named(&format!("prime-{name}"), CLASSES[0], Value::Null);
            }
            Deed::Repoint => self.repoint(),
            Deed::Write => {
                if let Some(claim) = self.claims(|claim| bound(claim) && mine(claim)) {
                    self.write(&claim);
                }
            }
            Deed::DeleteClaim => {
                if let Some(claim) = self.claims(mine) {
                    self.delete_claim(text(&claim, "/metadata/name"));
                }
            }
            Deed::DeletePv => {
                if let Some(pv) = self.pvs(|_| true) {
                    let name = text(&pv, "/metadata/name").to_owned();
                    self.tell(format_args!("delete {name}"));
                    self.api().delete("persistentvolumes", "", &name).ok();
                }
            }
            Deed::Retain => {
                if let Some(pv) = self.pvs(|_| true) {
                    self.policy(&pv, "Retain");
                }
            }
            Deed::Delete => {
                if let Some(pv) = self.pvs(|_| true) {
                    self.policy(&pv, "Delete");
                }
            }
            Deed::Strip => {
                if let Some(pv) = self.pvs(|_| true) {
                    let name = text(&pv, "/metadata/name");
                    self.tell(format_args!("strip provisioned-by of {name}"));
                    let change = json!({ "metadata": { "annotations": { (names::PROVISIONED_BY): null } } });
                    self.api().patch("persistentvolumes", "", name, &change).ok();
                }
            }
            Deed::StripFinalizer => {
                if let Some(pv) = self.pvs(|_| true) {
                    let name = text(&pv, "/metadata/name");
                    self.tell(format_args!("strip the finalizers of {name}"));
                    let change = json!({ "metadata": { "finalizers": null } });
                    self.api().patch("persistentvolumes", "", name, &change).ok();
                }
            }
            Deed::Alias => self.alias(),
            Deed::Unalias => self.unalias(),
            Deed::Name => {
                if let Some(pv) = self.pvs(|_| true) {
                    let (pv, name) = (text(&pv, "/metadata/name"), format!("named{}", self.names));
                    self.names += 1;
                    self.tell(format_args!("claim {name} names {pv}"));
                    tower.excuse(name.clone());
                    tower.named(pv);
                    let claim = json!({
                        "metadata": { "name": name, "namespace": "users" },
                        "spec": {
                            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": pv,
                            "resources": { "requests": { "storage": "1Gi" } },
                        },
                    });
                    self.api().create("persistentvolumeclaims", claim).ok();
                }
            }
            Deed::RemakeClass | Deed::DropClass => {
                let class = CLASSES[self.world.chaos().below(CLASSES.len())];
                self.tell(format_args!("{deed:?} {}", class.name));
                self.api().delete("storageclasses", "", class.name).ok();
                if deed == Deed::RemakeClass {
                    self.api().create("storageclasses", class.object()).ok();
                } else {
                    self.later(move |api| drop(api.create("storageclasses", class.object())));
                }
            }
            Deed::Tamper => {
                if let Some(pv) = self.pvs(|_| true) {
                    let Some(path) = path_of(&pv) else { return };
                    self.tell(format_args!("something else is restored to {path}"));
                    tower.excuse(text(&pv, "/metadata/name"));
                    let mark = self.world.chaos().chance(500).then(theirs);
                    self.world.store().edit(path, |volume| volume.mark = mark);
                }
            }
            Deed::Use => {
                if let Some(pv) = self.pvs(|_| true) {
                    let Some(path) = path_of(&pv).map(str::to_owned) else { return };
                    self.tell(format_args!("{path} is opened"));
                    self.world.store().edit(&path, |volume| volume.users = vec!["a client".to_owned()]);
                    let store = self.world.store().clone();
                    self.later(move |_| {
                        store.edit(&path, |volume| volume.users.clear());
                    });
                }
            }
            Deed::Reclaim => {
                if let Some(pv) = self.pvs(|pv| pv.pointer("/metadata/deletionTimestamp").is_some()) {
                    let name = text(&pv, "/metadata/name");
                    self.tell(format_args!("the claimRef of {name} is edited"));
                    tower.excuse(name);
                    let change = json!({ "spec": { "claimRef": { "uid": "somebody-else" } } });
                    self.api().patch("persistentvolumes", "", name, &change).ok();
                }
            }
            Deed::NameAgain => {
                if let Some(pv) = self.pvs(|pv| text(pv, "/status/phase") == "Released") {
                    let name = text(&pv, "/spec/claimRef/name").to_owned();
                    self.tell(format_args!("claim {name} comes again and names its old PV"));
                    tower.excuse(name.clone());
                    let claim = json!({
                        "metadata": { "name": name, "namespace": "users", "labels": { "mends": "goes" } },
                        "spec": {
                            "accessModes": ["ReadWriteOnce"], "storageClassName": text(&pv, "/spec/storageClassName"),
                            "volumeName": text(&pv, "/metadata/name"),
                            "resources": { "requests": { "storage": "1Gi" } },
                        },
                    });
                    self.api().create("persistentvolumeclaims", claim).ok();
                }
            }
            Deed::ForeignClass => {
                let class = CLASSES[self.world.chaos().below(CLASSES.len())];
                self.tell(format_args!("class {} is another's for a while", class.name));
                self.api().delete("storageclasses", "", class.name).ok();
                let mut foreign = class.object();
                foreign["provisioner"] = json!("other.example.com");
                self.api().create("storageclasses", foreign).ok();
                self.later(move |api| remake(api, class));
            }
            Deed::Unask => {
                if let Some(claim) = self.claims(|claim| text(claim, "/status/phase") == "Pending") {
                    let name = text(&claim, "/metadata/name");
                    self.tell(format_args!("claim {name} asks no longer"));
                    let change = json!({ "metadata": { "annotations": {
                        (names::STORAGE_PROVISIONER): null, (names::STORAGE_PROVISIONER_BETA): null,
                    }}});
                    self.api().patch("persistentvolumeclaims", "users", name, &change).ok();
                }
            }
            Deed::BadOnDelete => {
                if let Some(pv) = self.pvs(|_| true) {
                    let name = text(&pv, "/metadata/name").to_owned();
                    self.tell(format_args!("on-delete of {name} is nonsense for a while"));
                    let set =
                        |value: &str| json!({ "metadata": { "annotations": { (names::ON_DELETE): value } } });
                    self.api().patch("persistentvolumes", "", &name, &set("shred")).ok();
                    let back = set("delete");
                    self.later(move |api| drop(api.patch("persistentvolumes", "", &name, &back)));
                }
            }
            Deed::DropNode => {
                let node = ["node-a", "node-b"][self.world.chaos().below(2)];
                self.tell(format_args!("node {node} goes for a while"));
                self.api().delete("nodes", "", node).ok();
                self.later(move |api| drop(api.create("nodes", node_named(node))));
            }
            Deed::Reselect => {
                if let Some(claim) = self.claims(|claim| {
                    text(claim, "/spec/storageClassName") == "late"
                        && text(claim, "/status/phase") == "Pending"
                }) {
                    let node = ["node-a", "node-b"][self.world.chaos().below(2)];
                    let name = text(&claim, "/metadata/name");
                    self.tell(format_args!("claim {name} is to go to {node}"));
                    let change = json!({ "metadata": { "annotations": { (names::SELECTED_NODE): node } } });
                    self.api().patch("persistentvolumeclaims", "users", name, &change).ok();
                }
            }
            Deed::TrashClaim => {
                let class = TRASH[self.world.chaos().below(TRASH.len())];
                self.claim(class);
            }
            Deed::TrashAgain => {
                let name = format!("again{}", self.world.chaos().below(2));
                self.claim_named(&name, TRASH[1], Value::Null);
            }
            Deed::TrashRestore => self.ask_of_trash(Asked::Restore),
            Deed::TrashEmpty => self.ask_of_trash(Asked::Purge),
            Deed::TrashFor => {
                if let Some(pv) = self.pvs(|_| true) {
                    let name = text(&pv, "/metadata/name").to_owned();
                    let time = ["5s", "2m", "soon"][self.world.chaos().below(3)];
                    self.tell(format_args!("trash-for of {name} is {time:?} for a while"));
                    let set =
                        |value: &str| json!({ "metadata": { "annotations": { (names::TRASH_FOR): value } } });
                    self.api().patch("persistentvolumes", "", &name, &set(time)).ok();
                    let back = set("30s");
                    self.later(move |api| drop(api.patch("persistentvolumes", "", &name, &back)));
                }
            }
            Deed::TrashRemake => {
                // One with a path of its own: a second PV of a path keeps both, which is as it should be and never ends.
                if let Some(entry) = self.trashed().filter(|entry| entry.trashed.class_name == TRASH[0].name)
                {
                    let made: Vec<Value> = serde_json::from_str(&entry.trashed.note).unwrap_or_default();
                    if let Some(pv) = made.into_iter().next() {
                        let name = text(&pv, "/metadata/name").to_owned();
                        self.tell(format_args!("{name} is made again without its data"));
                        tower.excuse(name.clone());
                        self.api().create("persistentvolumes", pv).ok();
                    }
                }
            }
            Deed::ClockOff => {
                let off = [-7200, 3600][self.world.chaos().below(2)];
                self.tell(format_args!("clocks are off by {off} s for a while"));
                let (world, cluster) = (self.world.clone(), self.cluster);
                world.cluster(cluster).set_clock_off(off);
                self.later(move |_| world.cluster(cluster).set_clock_off(0));
            }
            Deed::Obstacle => self.obstacle(),
            Deed::Clear => {
                for path in self.world.foreign() {
                    self.tell(format_args!("{path} is cleared"));
                    self.world.take_foreign(&path);
                }
            }
            Deed::Squatter => self.squatter(),
            Deed::DropJournal => {
                let maps = self.api().list("configmaps", NAMESPACE).unwrap_or_default();
                if let Some(map) = self.any(maps) {
                    let name = text(&map, "/metadata/name");
                    self.tell(format_args!("delete the journal {name}"));
                    self.api().delete("configmaps", NAMESPACE, name).ok();
                }
            }
            Deed::EditJournal => {
                let maps = self.api().list("configmaps", NAMESPACE).unwrap_or_default();
                if let Some(map) = self.any(maps) {
                    let name = text(&map, "/metadata/name");
                    self.tell(format_args!("edit the journal {name}"));
                    let change = json!({ "metadata": { "labels": { "edited": format!("{}", self.names) } } });
                    self.names += 1;
                    self.api().patch("configmaps", NAMESPACE, name, &change).ok();
                }
            }
            Deed::Terminate => {
                let processes = self.world.processes().len();
                self.world.terminate(self.world.chaos().below(processes));
            }
            Deed::Kill => {
                let processes = self.world.processes();
                if let Some(process) = processes.get(self.world.chaos().below(processes.len())) {
                    let at = process.gate().polls() + self.world.chaos().below(60) as u64 + 1;
                    process.tell(format_args!("is to be killed at await {at}"));
                    process.gate().kill_at_poll(at);
                }
            }
            Deed::Stop => {
                let processes = self.world.processes();
                if let Some(process) = processes.get(self.world.chaos().below(processes.len())) {
                    process.stop_for_a_while();
                }
            }
            Deed::Compact => {
                self.tell(format_args!("etcd is compacted"));
                self.api().compact();
            }
            Deed::CutWatches => {
                self.tell(format_args!("watches are cut"));
                self.api().cut_watches();
            }
            Deed::ClockStep => {
                let step = i64::try_from(self.world.chaos().below(7200)).unwrap_or_default() - 3600;
                self.tell(format_args!("the clock is set by {step} s"));
                self.world.clock().step(step);
            }
            Deed::Suspend => {
                let time = self.world.chaos().between(Duration::from_secs(1), Duration::from_secs(100));
                self.tell(format_args!("the machine sleeps for {time:?}"));
                self.world.clock().suspend(time);
            }
            Deed::Backup => {
                self.tell(format_args!("etcd is backed up"));
                self.backup = Some(self.api().snapshot());
            }
            Deed::FixedClaim => {
                let class = FIXED_CLASSES[self.world.chaos().below(FIXED_CLASSES.len())];
                self.claim(class);
            }
            Deed::AskMore => {
                if let Some(claim) =
                    self.claims(|claim| bound(claim) && mine(claim) && asks(claim) < TOO_MUCH)
                {
                    let more = asks(&claim) + ((1 + self.world.chaos().below(3) as u64) << 30);
                    self.ask(text(&claim, "/metadata/name"), &format_bytes(more));
                }
            }
            Deed::AskLess => {
                let wants = |claim: &Value| bound(claim) && mine(claim) && asks(claim) > has(claim);
                if let Some(claim) = self.claims(wants) {
                    let less = has(&claim) + ((asks(&claim) - has(&claim)) / 2).clamp(1, 1 << 30);
                    self.ask(text(&claim, "/metadata/name"), &format_bytes(less));
                }
            }
            Deed::AskTooMuch => {
                if let Some(claim) =
                    self.claims(|claim| bound(claim) && mine(claim) && asks(claim) < TOO_MUCH)
                {
                    self.ask(text(&claim, "/metadata/name"), &format_bytes(TOO_MUCH));
                }
            }
            Deed::NodeGrows => self.nodes_grow(),
            // Takes its time: see `act`.
            Deed::Restore => {}
        }
    }

    /// As lib-volume-populator does it: the PV of the prime claim is bound to the claim that waits.
    fn repoint(&self) {
        let Some(prime) = self.claims(|claim| {
            text(claim, "/metadata/name").starts_with("prime-") && text(claim, "/status/phase") == "Bound"
        }) else {
            return;
        };
        let name = text(&prime, "/metadata/name");
        let wanted = name.trim_start_matches("prime-");
        let Ok(claim) = self.api().get("persistentvolumeclaims", "users", wanted) else { return };
        if text(&claim, "/status/phase") != "Pending" {
            return;
        }
        let pv = text(&prime, "/spec/volumeName");
        self.tell(format_args!("the populator gives {pv} to {wanted}"));
        let change = json!({ "spec": { "claimRef": {
            "namespace": "users", "name": wanted, "uid": text(&claim, "/metadata/uid"),
            "resourceVersion": null,
        }}});
        if let Ok(patched) = self.api().patch("persistentvolumes", "", pv, &change) {
            let tower = &self.world.cluster(self.cluster).tower;
            tower.excuse(name);
            if patched.pointer("/metadata/deletionTimestamp").is_some() {
                // Its delete may have begun for the other claim, and then waits for an operator.
                tower.excuse(pv);
            }
            self.delete_claim(name);
        }
    }

    fn alias(&self) {
        let Some(pv) = self.pvs(|pv| pv.pointer("/metadata/deletionTimestamp").is_none()) else { return };
        let name = format!("alias-{}", text(&pv, "/metadata/name"));
        self.tell(format_args!("{name} names the same data"));
        let mut spec = pv["spec"].clone();
        spec["claimRef"] = Value::Null;
        spec["persistentVolumeReclaimPolicy"] = json!("Retain");
        spec["storageClassName"] = json!("static");
        self.api().create("persistentvolumes", json!({ "metadata": { "name": name }, "spec": spec })).ok();
    }

    fn unalias(&self) {
        for pv in self.list("persistentvolumes") {
            let name = text(&pv, "/metadata/name");
            if name.starts_with("alias-") {
                self.tell(format_args!("{name} goes"));
                self.api().delete("persistentvolumes", "", name).ok();
            }
        }
    }

    /// Something in the way of what is named after its claim: of nobody, or of another installation.
    fn obstacle(&self) {
        let path = format!("/pool/users/same{}", self.world.chaos().below(2));
        if self.world.store().get(&path).is_some() {
            return;
        }
        self.tell(format_args!("something is put at {path}"));
        let mark = self.world.chaos().chance(500).then(theirs);
        let written = self.world.chaos().chance(500);
        self.world.put_foreign(&path, StoredVolume { mark, written, ..StoredVolume::unmarked() });
    }

    /// A PV of the name that a claim's PV will have, with other data.
    fn squatter(&self) {
        let waits = |claim: &Value| text(claim, "/status/phase") == "Pending";
        let Some(claim) = self.claims(waits) else { return };
        let name = names::pv_name(text(&claim, "/metadata/uid"));
        self.tell(format_args!("somebody makes a PV named {name}"));
        let pv = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "storageClassName": "static", "nfs": { "server": "elsewhere", "path": "/other" },
            },
        });
        if self.api().create("persistentvolumes", pv).is_ok() {
            let tower = &self.world.cluster(self.cluster).tower;
            tower.excuse(text(&claim, "/metadata/uid"));
        }
    }

    /// As it is done: the API servers are stopped, etcd gets the backup, and they are started.
    async fn restore(&mut self) {
        let Some(backup) = self.backup.take() else { return };
        // What changes in the last second before the stop, no watch may have told.
        let before = self.list("persistentvolumes");
        sleep(Duration::from_secs(1)).await;
        self.tell(format_args!("the API server is stopped"));
        self.world.set_down(self.cluster, true);
        let stopped = Instant::now();
        self.api().cut_watches();
        sleep(self.world.chaos().between(Duration::from_secs(2), Duration::from_secs(40))).await;
        self.tell(format_args!("etcd is restored"));
        self.api().restore(&backup);
        let tower = &self.world.cluster(self.cluster).tower;
        let after = self.list("persistentvolumes");
        let mut back = Vec::new();
        for pv in &after {
            let name = text(pv, "/metadata/name");
            let same = before.iter().any(|old| old == pv);
            if !same {
                back.push(name.to_owned());
            }
            // Its data went with the PV that came back.
            if path_of(pv).is_some_and(|path| self.world.store().get(path).is_none()) {
                tower.excuse(name);
            }
        }
        tower.went_back(back, stopped);
        self.world.set_down(self.cluster, false);
    }

    /// Some volume of ours in the trash.
    fn trashed(&self) -> Option<TrashedVolume> {
        let ours = &self.world.cluster(self.cluster).installation;
        let mut all = self.world.store().trash();
        all.retain(|entry| entry.volume.mark.as_ref().is_some_and(|mark| mark.installation == *ours));
        let index = self.world.chaos().below(all.len());
        all.into_iter().nth(index)
    }

    /// As the command does it: a request, its answer, and after a restore the manifests.
    fn ask_of_trash(&mut self, asked: Asked) {
        let Some(entry) = self.trashed() else { return };
        let Some(mark) = &entry.volume.mark else { return };
        let pv = mark.pv_name.as_str();
        let name = format!("request-{}", self.names);
        self.names += 1;
        self.tell(format_args!("{name}: {asked:?} {pv}"));
        if asked == Asked::Purge {
            self.world.cluster(self.cluster).tower.emptied(pv);
        }
        let request =
            TrashRequest { asked, name: pv.to_owned(), owner: mark.owner.to_string(), at: entry.trashed.at };
        let map = json!({
            "metadata": { "name": name, "namespace": NAMESPACE, "labels": {
                (names::JOURNAL_PROVISIONER): names::provisioner_label(PROVISIONER),
                (names::TRASH_LABEL): names::TRASH_REQUEST,
            }},
            "data": { "request.json": json!(request).to_string() },
        });
        let api = self.api().clone();
        api.create("configmaps", map).ok();
        let world = self.world.clone();
        tokio::spawn(async move {
            for _ in 0..100 {
                sleep(Duration::from_secs(1)).await;
                let Ok(map) = api.get("configmaps", NAMESPACE, &name) else { return };
                let answer = map.pointer("/data").and_then(|data| data.get("answer.json"));
                let Some(answer) = answer.and_then(Value::as_str) else { continue };
                let answer: Option<Answer> = serde_json::from_str(answer).ok();
                let Some(answer) = answer else { return };
                world.tell(format_args!("user: {name} is answered: {}, {}", answer.done, answer.text));
                let kinds = ["persistentvolumes", "persistentvolumeclaims"];
                for (kind, manifest) in kinds.into_iter().zip(answer.manifests) {
                    if api.create(kind, manifest).is_err() {
                        break;
                    }
                }
                break;
            }
            api.delete("configmaps", NAMESPACE, &name).ok();
        });
    }

    /// Takes away what keeps things from ending: at the end of a run, before everybody is to come to rest.
    pub fn mend(&mut self) {
        self.unalias();
        self.world.cluster(self.cluster).set_clock_off(0);
        for claim in self.list("persistentvolumeclaims") {
            let name = text(&claim, "/metadata/name");
            let mends = claim.pointer("/metadata/labels").is_some_and(|labels| labels.get("mends").is_some());
            if name.starts_with("named") || mends {
                self.delete_claim(name);
            }
        }
        for class in CLASSES {
            remake(self.api(), class);
        }
        for node in ["node-a", "node-b"] {
            self.api().create("nodes", node_named(node)).ok();
        }
        for path in self.world.foreign() {
            if path.starts_with("/pool/users/") {
                self.world.take_foreign(&path);
            }
        }
    }

    /// An operator has looked, and lets deletes go on.
    pub fn acknowledge(&self) {
        self.world.cluster(self.cluster).tower.acknowledged();
        for map in self.api().list("configmaps", NAMESPACE).unwrap_or_default() {
            if map.pointer("/metadata/annotations").is_some_and(|all| all.get(STOPPED).is_some()) {
                self.tell(format_args!("the restore is acknowledged"));
                let change = json!({ "metadata": { "annotations": { (STOPPED): null } } });
                self.api().patch("configmaps", NAMESPACE, text(&map, "/metadata/name"), &change).ok();
            }
        }
    }
}

fn remake(api: &ApiServer, class: SimClass) {
    api.delete("storageclasses", "", class.name).ok();
    api.create("storageclasses", class.object()).ok();
}

fn theirs() -> Mark {
    Mark {
        installation: InstallationId::new("elsewhere"),
        owner: ClaimUid::new("theirs"),
        pv_name: PvName::new("pvc-theirs"),
        epoch: Epoch::default(),
        state: MarkState::Published,
    }
}

/// Twice what there can be.
const TOO_MUCH: u64 = 2 * crate::memory::LARGEST;

/// What a claim asks for, in bytes.
fn asks(claim: &Value) -> u64 {
    bytes(claim, "/spec/resources/requests/storage")
}

/// What its status says that it has.
fn has(claim: &Value) -> u64 {
    bytes(claim, "/status/capacity/storage")
}

/// Claims at a time.
const CROWD: usize = 8;

/// The annotation that an operator takes off.
const STOPPED: &str = "volwright.io/deletes-stopped";
