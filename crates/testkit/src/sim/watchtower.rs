//! Sees everything and asserts the invariants (docs/design, section 8) as things happen: what a process has looked at, what it
//! then does, and what the storage and the API server really hold at that moment.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use volwright_controller::backend::{Backend, Envelope};
use volwright_provisioner::{
    InstallationId, Mark, MarkState, ParameterMap, Progress, Provisioned, Request, Result, format_bytes,
    parse_bytes,
};

use super::process::Process;
use super::story::Story;
use crate::apiserver::ApiServer;
use crate::memory::{Store, StoredVolume, TrashedVolume};

/// A look at the API server is old after this long: an answer takes at most the API deadline (10 s), and a process that was
/// stopped since may act for the rest of its renew deadline (10 s).
const LOOK_AGE: Duration = Duration::from_secs(25);

/// A watch that is good has told of a claim after this long.
const NAMED_FOR: Duration = Duration::from_secs(3);

/// Cheap to clone.
#[derive(Clone)]
pub struct Watchtower(Arc<Mutex<Inner>>);

struct Inner {
    api: ApiServer,
    story: Story,
    /// Lease duration; zero where there is no lease.
    lease: Duration,
    violations: Vec<Violation>,
    looks: BTreeMap<(String, String), Look>,
    claim_looks: BTreeMap<(String, String), ClaimLook>,
    /// When a process's last successful renewal was sent.
    renewed: BTreeMap<String, Instant>,
    /// Volumes (by path) that the storage has destroyed, with what was in them.
    destroyed: BTreeMap<String, StoredVolume>,
    /// PVs and claims of which a test knows that they cannot end by themselves, with why.
    excused: BTreeSet<String>,
    writes: BTreeMap<(String, String), u64>,
    /// PVs that a restore of etcd took back in time, until it is acknowledged.
    back: BTreeSet<String>,
    /// PVs that a claim names in `spec.volumeName`, and since when.
    named: BTreeMap<String, Instant>,
    /// Watches tell everything within a second.
    watches_are_good: bool,
    /// Volumes (by PV) of which somebody has asked that they leave the trash for good.
    emptied: BTreeSet<String>,
    /// Part of the marks of this cluster.
    installation: InstallationId,
    restored: Option<Instant>,
    /// When the API server was stopped for it: who began later has not seen what was before.
    stopped: Option<Instant>,
}

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which, as the design numbers them.
    pub invariant: &'static str,
    /// What happened.
    pub what: String,
}

/// A PV as a process saw it when it asked the API server.
#[derive(Debug, Clone)]
struct Look {
    at: Instant,
    pv: Option<PvTruth>,
}

#[derive(Debug, Clone)]
struct ClaimLook {
    at: Instant,
    claim: Option<ClaimTruth>,
}

/// What matters of a claim.
#[derive(Debug, Clone)]
struct ClaimTruth {
    uid: String,
    volume: String,
    /// Bytes that it asks for.
    request: u64,
    /// Bytes that a quota counts at least.
    allocated: u64,
}

/// A size in an object, in bytes; 0 where there is none.
pub(super) fn bytes(object: &Value, path: &str) -> u64 {
    object.pointer(path).and_then(Value::as_str).and_then(|size| parse_bytes(size).ok()).unwrap_or(0)
}

/// What matters of a PV.
#[derive(Debug, Clone)]
struct PvTruth {
    terminating: bool,
    policy_delete: bool,
    phase: String,
    has_finalizer: bool,
    handle: Option<String>,
    claim: Option<(String, String, String)>,
}

impl PvTruth {
    fn of(object: &Value) -> Self {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
        Self {
            terminating: object.pointer("/metadata/deletionTimestamp").is_some(),
            policy_delete: text("/spec/persistentVolumeReclaimPolicy") == "Delete",
            phase: text("/status/phase"),
            has_finalizer: finalizers
                .is_some_and(|all| all.iter().any(|f| f == volwright_controller::names::FINALIZER)),
            handle: object
                .pointer("/metadata/annotations")
                .and_then(|all| all.get(volwright_controller::names::HANDLE))
                .and_then(Value::as_str)
                .map(str::to_owned),
            claim: object.pointer("/spec/claimRef").map(|_| {
                (text("/spec/claimRef/namespace"), text("/spec/claimRef/name"), text("/spec/claimRef/uid"))
            }),
        }
    }
}

/// With what right a destroying call was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warrant {
    /// Something that was never published is taken back.
    Undo,
    /// A released volume goes.
    Released,
}

impl Watchtower {
    /// Watches over one API server. `lease` is the lease's duration, zero where there is none.
    pub fn new(api: ApiServer, story: Story, lease: Duration, installation: InstallationId) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            api,
            story,
            lease,
            violations: Vec::new(),
            looks: BTreeMap::new(),
            claim_looks: BTreeMap::new(),
            renewed: BTreeMap::new(),
            destroyed: BTreeMap::new(),
            excused: BTreeSet::new(),
            writes: BTreeMap::new(),
            back: BTreeSet::new(),
            named: BTreeMap::new(),
            watches_are_good: false,
            emptied: BTreeSet::new(),
            installation,
            restored: None,
            stopped: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was broken so far.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// An invariant is broken.
    pub fn broken(&self, invariant: &'static str, what: String) {
        let mut inner = self.lock();
        inner.story.tell(format_args!("!! {invariant} {what}"));
        inner.violations.push(Violation { invariant, what });
    }

    /// This PV or claim (by name or uid) cannot end by itself, and that is as it should be.
    pub fn excuse(&self, name: impl Into<String>) {
        self.lock().excused.insert(name.into());
    }

    /// Was it excused?
    pub fn is_excused(&self, name: &str) -> bool {
        self.lock().excused.contains(name)
    }

    /// What the storage destroyed.
    pub fn destroyed(&self) -> BTreeMap<String, StoredVolume> {
        self.lock().destroyed.clone()
    }

    /// A claim names this PV from now on.
    pub fn named(&self, pv: &str) {
        self.lock().named.insert(pv.to_owned(), Instant::now());
    }

    /// Watches tell everything within a second: what they have told counts as known.
    pub fn watches_are_good(&self) {
        self.lock().watches_are_good = true;
    }

    /// etcd was restored, and these PVs are older than they were.
    pub fn went_back(&self, pvs: Vec<String>, stopped: Instant) {
        let mut inner = self.lock();
        inner.back.extend(pvs);
        inner.stopped = Some(stopped);
        inner.restored = Some(Instant::now());
    }

    /// Was etcd ever restored?
    pub fn was_restored(&self) -> bool {
        self.lock().restored.is_some()
    }

    /// An operator has looked.
    pub fn acknowledged(&self) {
        self.lock().back.clear();
    }

    /// Writes that arrived, by verb and resource.
    pub fn writes(&self) -> BTreeMap<(String, String), u64> {
        self.lock().writes.clone()
    }

    /// The API server has answered a read of one object.
    pub fn looked(&self, process: &Process, resource: &str, namespace: &str, name: &str) {
        let mut inner = self.lock();
        let (at, by) = (Instant::now(), process.name().to_owned());
        let found = inner.api.get(resource, namespace, name).ok();
        if resource == "persistentvolumes" {
            let pv = found.map(|object| PvTruth::of(&object));
            inner.looks.insert((by, name.to_owned()), Look { at, pv });
        } else {
            let claim = found.map(|object| {
                let text =
                    |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
                ClaimTruth {
                    uid: text("/metadata/uid"),
                    volume: text("/spec/volumeName"),
                    request: bytes(&object, "/spec/resources/requests/storage"),
                    allocated: bytes(&object, "/status/allocatedResources/storage"),
                }
            });
            inner.claim_looks.insert((by, format!("{namespace}/{name}")), ClaimLook { at, claim });
        }
    }

    /// A write has arrived at the API server; `sent` is when the process began it.
    pub fn wrote(&self, process: &Process, verb: &str, resource: &str, sent: Instant, accepted: bool) {
        let mut inner = self.lock();
        *inner.writes.entry((verb.to_owned(), resource.to_owned())).or_default() += 1;
        if resource == "leases" && accepted {
            inner.renewed.insert(process.name().to_owned(), sent);
        }
    }

    /// I9: our finalizer goes off a PV only after its data, or when its policy keeps them.
    pub fn finalizer_left(&self, process: &Process, pv: &Value, volume: Option<&StoredVolume>) {
        let truth = PvTruth::of(pv);
        let name = pv.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let Some(volume) = volume else { return };
        let marked_for_it = volume.mark.as_ref().is_some_and(|mark| mark.pv_name.as_str() == name);
        let kept = volume.mark.as_ref().is_some_and(|mark| mark.state == MarkState::Retained);
        if truth.policy_delete && marked_for_it && !kept && truth.terminating && truth.phase != "Available" {
            self.broken(
                "I9",
                format!("{} took the finalizer off {name} while its data is there", process.name()),
            );
        }
    }

    /// I7: no call begins after its process could know that it leads no more.
    pub fn call_begins(&self, process: &Process, op: &str) {
        let (lease, renewed) = {
            let inner = self.lock();
            (inner.lease, inner.renewed.get(process.name()).copied())
        };
        if lease.is_zero() {
            return;
        }
        let ago = renewed.map(|at| at.elapsed());
        if ago.is_none_or(|ago| ago > lease) {
            self.broken(
                "I7",
                format!("{} began {op}; its lease was last renewed {ago:?} ago", process.name()),
            );
        }
    }

    /// I4 and I7.
    pub fn provision_begins(&self, process: &Process, request: &Request<ParameterMap>) {
        self.call_begins(process, "provision");
        let claim = {
            let inner = self.lock();
            inner.api.get("persistentvolumeclaims", &request.claim.namespace, &request.claim.name).ok()
        };
        let key = (process.name().to_owned(), format!("{}/{}", request.claim.namespace, request.claim.name));
        let looked = self.lock().claim_looks.get(&key).is_some_and(|look| look.at.elapsed() <= LOOK_AGE);
        if !looked {
            self.broken(
                "I3",
                format!("{} makes a volume for a claim that it did not look at", process.name()),
            );
        }
        let Some(claim) = claim else { return };
        let is_it =
            claim.pointer("/metadata/uid").and_then(Value::as_str) == Some(request.claim.uid.as_str());
        let source = claim.pointer("/spec/dataSource").or(claim.pointer("/spec/dataSourceRef"));
        if is_it && source.is_some_and(|source| !source.is_null()) {
            self.broken("I4", format!("{} makes an empty volume for a claim with a source", process.name()));
        }
    }

    /// The storage has made a volume, or refused.
    pub fn provisioned(
        &self,
        process: &Process,
        request: &Request<ParameterMap>,
        made: &Result<Progress<Provisioned<Envelope>>>,
    ) {
        if let Ok(Progress::Done(made)) = made {
            process
                .tell(format_args!("storage made {} for {}", made.handle.handle["path"], request.claim.uid));
        }
    }

    /// I3, as far as the caller's knowledge goes.
    pub fn delete_begins(
        &self,
        process: &Process,
        backend: &dyn Backend,
        handle: &Envelope,
        mark: &Mark,
    ) -> Warrant {
        self.call_begins(process, "delete");
        let name = mark.pv_name.as_str();
        if mark.state != MarkState::Published {
            let published = self.lock().api.get("persistentvolumes", "", name).ok();
            // One that terminates and was never bound is taken back with its PV.
            let truth = published.as_ref().map(PvTruth::of);
            // Its claim may have gone since that was seen: then it is released as well.
            let taken_back =
                |pv: &PvTruth| pv.terminating && matches!(pv.phase.as_str(), "" | "Pending" | "Released");
            let living = truth.filter(|pv| !taken_back(pv));
            let same = living.and_then(|pv| pv.handle).is_some_and(|text| {
                Envelope::parse(&text).is_ok_and(|found| backend.same_volume(handle, &found))
            });
            if same {
                self.broken("I3", format!("{} undoes {name}, which is published", process.name()));
            }
            return Warrant::Undo;
        }
        if let Err(why) = self.is_released(process, name, handle) {
            self.broken("I3", format!("{} destroys the data of {name}: {why}", process.name()));
        }
        Warrant::Released
    }

    fn is_released(&self, process: &Process, name: &str, handle: &Envelope) -> Result<(), String> {
        let inner = self.lock();
        let look = inner.looks.get(&(process.name().to_owned(), name.to_owned()));
        let Some(look) = look.filter(|look| look.at.elapsed() <= LOOK_AGE) else {
            return Err("it was not looked at just before".to_owned());
        };
        if inner.back.contains(name)
            && inner.restored.is_some_and(|restored| {
                look.at >= restored && inner.stopped.is_some_and(|stopped| process.began() < stopped)
            })
        {
            return Err("etcd was restored, and nobody has looked at it yet".to_owned());
        }
        let Some(pv) = &look.pv else { return Err("it had gone".to_owned()) };
        let handle_there = pv.handle.as_deref().and_then(|text| Envelope::parse(text).ok());
        if !pv.terminating || !pv.has_finalizer {
            return Err(format!("it was not fenced: {pv:?}"));
        }
        if !pv.policy_delete {
            return Err("its policy was not Delete".to_owned());
        }
        if !matches!(pv.phase.as_str(), "Released" | "Failed") {
            return Err(format!("its phase was {}", pv.phase));
        }
        if handle_there.as_ref() != Some(handle) {
            return Err("it named another volume".to_owned());
        }
        let named =
            inner.named.get(name).filter(|since| inner.watches_are_good && since.elapsed() > NAMED_FOR);
        if named.is_some() && process.began().elapsed() > NAMED_FOR {
            let claims = inner.api.list("persistentvolumeclaims", "").unwrap_or_default();
            let still = claims.iter().any(|claim| {
                claim.pointer("/spec/volumeName").is_some_and(|volume| volume == name)
                    && claim.pointer("/metadata/deletionTimestamp").is_none()
            });
            if still {
                return Err("another claim named it".to_owned());
            }
        }
        let Some((namespace, claim, uid)) = &pv.claim else { return Err("it had no claim".to_owned()) };
        let key = (process.name().to_owned(), format!("{namespace}/{claim}"));
        let claim_look = inner.claim_looks.get(&key).filter(|look| look.at.elapsed() <= LOOK_AGE);
        match claim_look.map(|look| &look.claim) {
            None => Err("its claim was not looked for just before".to_owned()),
            Some(Some(found)) if found.volume == name => Err("a claim named it".to_owned()),
            Some(Some(found)) if found.uid == *uid && found.volume.is_empty() => {
                Err("its claim was there".to_owned())
            }
            Some(_) => Ok(()),
        }
    }

    /// I12: a volume grows only for the claim that it is bound to, to what that asks for, and counted by then.
    pub fn expand_begins(&self, process: &Process, handle: &Envelope, mark: &Mark, size: u64) {
        self.call_begins(process, "expand");
        let name = mark.pv_name.as_str();
        if let Err(why) = self.is_asked_for(process, name, handle, size) {
            self.broken(
                "I12",
                format!("{} grows the volume of {name} to {}: {why}", process.name(), format_bytes(size)),
            );
        }
    }

    /// I13: nothing comes back from the trash while a PV of its name is there, whose delete would find it.
    pub fn restore_begins(&self, process: &Process, pv: &str) {
        self.call_begins(process, "restore");
        let looked = {
            let inner = self.lock();
            let look = inner.looks.get(&(process.name().to_owned(), pv.to_owned()));
            look.is_some_and(|look| look.at.elapsed() <= LOOK_AGE && look.pv.is_none())
        };
        if !looked {
            self.broken(
                "I13",
                format!("{} restores {pv} and did not see that its PV is gone", process.name()),
            );
        }
    }

    fn is_asked_for(
        &self,
        process: &Process,
        name: &str,
        handle: &Envelope,
        size: u64,
    ) -> Result<(), String> {
        let inner = self.lock();
        let by = process.name().to_owned();
        let look = inner.looks.get(&(by.clone(), name.to_owned()));
        let Some(look) = look.filter(|look| look.at.elapsed() <= LOOK_AGE) else {
            return Err("it was not looked at just before".to_owned());
        };
        let Some(pv) = look.pv.as_ref().filter(|pv| !pv.terminating) else {
            return Err("it was going".to_owned());
        };
        if pv.handle.as_deref().and_then(|text| Envelope::parse(text).ok()).as_ref() != Some(handle) {
            return Err("it named another volume".to_owned());
        }
        let Some((namespace, claim, uid)) = &pv.claim else { return Err("it had no claim".to_owned()) };
        let look = inner.claim_looks.get(&(by, format!("{namespace}/{claim}")));
        let Some(look) = look.filter(|look| look.at.elapsed() <= LOOK_AGE) else {
            return Err("its claim was not looked at just before".to_owned());
        };
        match &look.claim {
            Some(found) if found.uid != *uid || found.volume != name => {
                Err("the claim was another, or had another PV".to_owned())
            }
            Some(found) if found.request != size => {
                Err(format!("the claim asked for {}", format_bytes(found.request)))
            }
            Some(found) if found.allocated < size => {
                Err(format!("a quota counted {}", format_bytes(found.allocated)))
            }
            Some(_) => Ok(()),
            None => Err("its claim had gone".to_owned()),
        }
    }

    /// I11 and I12, as the storage sees it.
    pub fn expanded(
        &self,
        process: &Process,
        path: &str,
        before: Option<&StoredVolume>,
        after: Option<&StoredVolume>,
        asked: &Mark,
    ) {
        let (Some(before), Some(after)) = (before, after) else { return };
        if before == after {
            return;
        }
        process.tell(format_args!("storage grew {path} to {}", format_bytes(after.size)));
        if after.size < before.size {
            self.broken("I12", format!("{path} has shrunk from {} to {}", before.size, after.size));
        }
        if !before.mark.as_ref().is_some_and(|mark| mark.same_owner(asked)) {
            self.broken("I11", format!("{path} of another owner has grown"));
        }
    }

    /// I12: a PV promises no more than its volume has, and a claim's status no more than its PV. Asked as soon as one of
    /// them was written.
    pub fn promised(
        &self,
        process: &Process,
        pv: &Value,
        claim: Option<&Value>,
        volume: Option<&StoredVolume>,
    ) {
        let name = pv.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let promise = bytes(pv, "/spec/capacity/storage");
        let is_its =
            |volume: &&StoredVolume| volume.mark.as_ref().is_some_and(|mark| mark.pv_name.as_str() == name);
        if let Some(volume) = volume.filter(is_its)
            && volume.size < promise
            && !self.is_excused(name)
        {
            let (promise, has) = (format_bytes(promise), format_bytes(volume.size));
            self.broken(
                "I12",
                format!("{}: {name} promises {promise}, its volume has {has}", process.name()),
            );
        }
        let told = claim.map_or(0, |claim| bytes(claim, "/status/capacity/storage"));
        if told > promise {
            let (told, promise) = (format_bytes(told), format_bytes(promise));
            self.broken(
                "I12",
                format!("{}: the claim of {name} has {told}, the PV {promise}", process.name()),
            );
        }
    }

    /// I13: what was in the trash is in its place again, as it was.
    pub fn restored(&self, process: &Process, before: &[TrashedVolume], store: &Store, mark: &Mark) {
        let is_its =
            |entry: &&TrashedVolume| entry.volume.mark.as_ref().is_some_and(|found| found.same_owner(mark));
        let now = store.trash();
        let Some(entry) = before.iter().find(is_its).filter(|_| !now.iter().any(|e| is_its(&e))) else {
            return;
        };
        process.tell(format_args!("storage restored {}", mark.pv_name));
        let there = store.get(&entry.path);
        if there.as_ref().map(|volume| volume.written) != Some(entry.volume.written) {
            self.broken("I13", format!("{} came back as {there:?}, and was {entry:?}", mark.pv_name));
        }
    }

    /// I13 and I11: only our own leaves the trash for good, and only at its time, or because somebody asked for it.
    pub fn purged(&self, process: &Process, before: &[TrashedVolume], store: &Store) {
        let after = store.trash();
        for entry in before.iter().filter(|entry| !after.contains(entry)) {
            let Some(mark) = &entry.volume.mark else { continue };
            process.tell(format_args!("storage purged {} until {}", mark.pv_name, entry.trashed.until));
            let (installation, now) = {
                let inner = self.lock();
                (inner.installation.clone(), inner.api.time())
            };
            if mark.installation != installation {
                self.broken("I11", format!("{} of another installation was purged", mark.pv_name));
            }
            let was_asked = self.lock().emptied.contains(mark.pv_name.as_str());
            if entry.trashed.until > now && !was_asked {
                self.broken(
                    "I13",
                    format!("{} was purged {} s before its time", mark.pv_name, entry.trashed.until - now),
                );
            }
            let pv = self.lock().api.get("persistentvolumes", "", mark.pv_name.as_str()).ok();
            if pv.is_some_and(|pv| PvTruth::of(&pv).claim.is_some()) {
                self.broken("I13", format!("{} was purged while its PV was there", mark.pv_name));
            }
        }
    }

    /// Somebody asks that this volume leaves the trash for good.
    pub fn emptied(&self, pv: &str) {
        self.lock().emptied.insert(pv.to_owned());
    }

    /// I3 and I11, as the storage sees it.
    pub fn deleted(
        &self,
        process: &Process,
        warrant: Warrant,
        path: &str,
        before: Option<StoredVolume>,
        after: Option<&StoredVolume>,
        asked: &Mark,
    ) {
        let Some(before) = before.filter(|_| after.is_none()) else { return };
        process.tell(format_args!("storage destroyed {path}"));
        if before.mark.as_ref().is_some_and(|mark| mark.installation != asked.installation) {
            self.broken("I11", format!("{path} of another installation was destroyed"));
        }
        if before.mark.is_none() {
            self.broken("I11", format!("{path} was nobody's, and was destroyed"));
        }
        if warrant == Warrant::Undo && before.written {
            self.broken("I3", format!("{path} was never published as far as anybody knew, and it held data"));
        }
        let others = self.lock().api.list("persistentvolumes", "").unwrap_or_default();
        for pv in &others {
            let names_it = [pv.pointer("/spec/nfs/path"), pv.pointer("/spec/csi/volumeHandle")]
                .into_iter()
                .flatten()
                .any(|found| found == path);
            let truth = PvTruth::of(pv);
            if names_it && !truth.terminating {
                let name = pv.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                if !self.is_excused(name) {
                    self.broken("I3", format!("{path} was destroyed while {name} names it ({truth:?})"));
                }
            }
        }
        self.lock().destroyed.insert(path.to_owned(), before);
    }
}
