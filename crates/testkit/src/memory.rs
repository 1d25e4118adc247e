//! A Central backend in memory: Immediate binding, every access and volume mode, and failures by script.
//!
//! The [`Store`] is the storage system: it outlives the [`Memory`] backends that are connected to it, as a real one
//! outlives the provisioner's process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use volwright_provisioner::{
    AccessMode, Binding, Capabilities, Class, CsiSource, Failure, Growth, InventoryItem, Key, Mark,
    MarkState, Observed, Pattern, Placement, Pristine, Progress, Provisioned, Provisioner, Request, Result,
    SharedContext, Topology, Trashed, Until, VolumeMode, VolumeSource,
};

/// Connects by itself to nothing: tests make it with [`Memory::new`].
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Name of the server that the volumes' sources say.
    #[arg(long, default_value = "memory.test")]
    pub server: String,
}

/// What the PVs of a class look like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// `spec.nfs`
    #[default]
    Nfs,
    /// `spec.csi`, for what only CSI volumes may have.
    Csi,
}

/// Who makes volumes larger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Resizer {
    /// We do.
    #[default]
    Ours,
    /// Nobody.
    Nobody,
    /// The CSI driver's own.
    Driver,
    /// We do, and the CSI driver's own tries as well.
    Both,
}

/// No volume is larger: a pebibyte.
pub const LARGEST: u64 = 1 << 50;

/// Class parameters.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    /// Folder below the root; volumes of different pools never meet.
    #[serde(default)]
    pub pool: Option<String>,
    /// Path below the pool.
    #[serde(default)]
    pub path_pattern: Option<String>,
    /// Kind of PV.
    #[serde(default)]
    pub shape: Option<Shape>,
    /// Offer file system volumes only.
    #[serde(default)]
    pub filesystem_only: Option<bool>,
    /// Refuse Immediate binding.
    #[serde(default)]
    pub late_only: Option<bool>,
    /// Do not see whether a volume was written to, as where only its client can look inside.
    #[serde(default)]
    pub opaque: Option<bool>,
    /// Who makes volumes larger.
    #[serde(default)]
    pub resizer: Option<Resizer>,
}

/// All that later calls need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handle {
    /// Server in the source.
    pub server: String,
    /// Absolute path.
    pub path: String,
    /// CSI-shaped.
    #[serde(default)]
    pub csi: bool,
    /// Where it was planned.
    #[serde(default)]
    pub node: Option<String>,
    /// Nobody sees what is in it.
    #[serde(default)]
    pub opaque: bool,
}

/// One volume in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredVolume {
    /// Its mark; `None` for what somebody else put there.
    pub mark: Option<Mark>,
    /// Bytes.
    pub size: u64,
    /// Somebody has written to it.
    pub written: bool,
    /// Who uses it now.
    pub users: Vec<String>,
    /// As its handle says.
    pub csi: bool,
    /// As its handle says.
    pub node: Option<String>,
    /// As its handle says.
    pub opaque: bool,
}

impl StoredVolume {
    /// Empty, of nobody.
    pub fn unmarked() -> Self {
        Self { mark: None, size: 0, written: false, users: Vec::new(), csi: false, node: None, opaque: false }
    }

    fn pristine(&self, opaque: bool) -> Pristine {
        match (opaque, self.written) {
            (true, _) => Pristine::Unknown,
            (false, true) => Pristine::No,
            (false, false) => Pristine::Yes,
        }
    }
}

/// A volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashedVolume {
    /// Where it was.
    pub path: String,
    /// As it was, with the mark `trashed`.
    pub volume: StoredVolume,
    /// What was recorded with it.
    pub trashed: Trashed,
}

impl TrashedVolume {
    fn is_of(&self, mark: &Mark) -> bool {
        self.volume.mark.as_ref().is_some_and(|found| found.same_owner(mark))
    }

    /// Fails unless a call with this mark may touch it.
    fn check(&self, mark: &Mark) -> Result<()> {
        if self.volume.mark.as_ref().is_some_and(|found| found.yields_to(mark)) {
            return Ok(());
        }
        Err(Failure::unavailable("a later leader has marked the volume in the trash since"))
    }
}

/// What the next call of an operation does instead of its work.
#[derive(Debug, Clone)]
pub enum Trick {
    /// Fails, nothing done.
    Fail(Class, &'static str),
    /// Does its work, and the reply is lost.
    LoseReply,
    /// Says pending, nothing done.
    Pending(Duration),
    /// Does its work after this long.
    Slow(Duration),
    /// Never answers, nothing done.
    Hang,
}

/// The storage system.
#[derive(Debug, Clone, Default)]
pub struct Store(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    volumes: BTreeMap<String, StoredVolume>,
    /// In the order in which they came.
    trash: Vec<TrashedVolume>,
    tricks: BTreeMap<&'static str, VecDeque<Trick>>,
    always: BTreeMap<&'static str, Trick>,
    calls: Vec<(&'static str, String)>,
    times: Vec<Instant>,
    root_hidden: bool,
    running: usize,
    most_running: usize,
}

impl Tables {
    /// Which entry of the trash is this owner's. Of those of the same place by others it is told that they are.
    fn entry(&self, handle: &Handle, mark: &Mark) -> Result<Option<usize>> {
        let of_path = || self.trash.iter().enumerate().filter(|(_, entry)| entry.path == handle.path);
        match of_path().find(|(_, entry)| entry.is_of(mark)) {
            Some((index, entry)) => entry.check(mark).map(|()| Some(index)),
            None if of_path().next().is_some() => {
                Err(Failure::not_ours("what is in the trash bears another mark"))
            }
            None => Ok(None),
        }
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next call of `op` does this instead; several queue up.
    pub fn once(&self, op: &'static str, trick: Trick) {
        self.lock().tricks.entry(op).or_default().push_back(trick);
    }

    /// Every call of `op` does this, until [`never`](Self::never).
    pub fn always(&self, op: &'static str, trick: Trick) {
        self.lock().always.insert(op, trick);
    }

    /// Ends all tricks of `op`.
    pub fn never(&self, op: &'static str) {
        let mut tables = self.lock();
        tables.always.remove(op);
        tables.tricks.remove(op);
    }

    /// The root's identity cannot be seen, as if its disk were not mounted; `false` shows it again.
    pub fn hide_root(&self, hidden: bool) {
        self.lock().root_hidden = hidden;
    }

    /// Is the root's identity hidden?
    pub fn is_root_hidden(&self) -> bool {
        self.lock().root_hidden
    }

    /// All volumes by path.
    pub fn volumes(&self) -> BTreeMap<String, StoredVolume> {
        self.lock().volumes.clone()
    }

    /// All that is in the trash.
    pub fn trash(&self) -> Vec<TrashedVolume> {
        self.lock().trash.clone()
    }

    /// The volume at a path.
    pub fn get(&self, path: &str) -> Option<StoredVolume> {
        self.lock().volumes.get(path).cloned()
    }

    /// Changes or adds a volume behind the provisioner's back.
    pub fn put(&self, path: &str, volume: StoredVolume) {
        self.lock().volumes.insert(path.to_owned(), volume);
    }

    /// Changes a volume behind the provisioner's back. `false`: there is none.
    pub fn edit(&self, path: &str, change: impl FnOnce(&mut StoredVolume)) -> bool {
        self.lock().volumes.get_mut(path).map(change).is_some()
    }

    /// Removes a volume behind the provisioner's back.
    pub fn remove(&self, path: &str) {
        self.lock().volumes.remove(path);
    }

    /// How often `op` was called for a path that ends with `path_end`.
    pub fn count(&self, op: &str, path_end: &str) -> usize {
        self.lock().calls.iter().filter(|(called, path)| *called == op && path.ends_with(path_end)).count()
    }

    /// All calls so far: operation and path (or claim uid, for `plan`).
    pub fn calls(&self) -> Vec<(&'static str, String)> {
        self.lock().calls.clone()
    }

    /// When `op` was called.
    pub fn times(&self, op: &str) -> Vec<Instant> {
        let tables = self.lock();
        let calls = tables.calls.iter().zip(&tables.times);
        calls.filter(|((called, _), _)| *called == op).map(|(_, at)| *at).collect()
    }

    /// The most calls that ran at once.
    pub fn most_running(&self) -> usize {
        self.lock().most_running
    }
}

/// The backend.
pub struct Memory {
    server: String,
    store: Store,
}

/// Counts a running call, also one that is dropped at its deadline.
struct Running(Store);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

impl Memory {
    /// A backend on `store`. PVs of different `server`s never name the same data.
    pub fn new(server: impl Into<String>, store: Store) -> Self {
        Self { server: server.into(), store }
    }

    /// Runs one call: counts it, plays the next trick, looks for the root.
    async fn call<T>(
        &self,
        op: &'static str,
        path: &str,
        work: impl FnOnce(&mut Tables) -> Result<T>,
    ) -> Result<T> {
        self.call_or(op, path, work, |_| Err(Failure::unknown("scripted: pending where nothing can pend")))
            .await
    }

    async fn call_or<T>(
        &self,
        op: &'static str,
        path: &str,
        work: impl FnOnce(&mut Tables) -> Result<T>,
        pending: impl FnOnce(Duration) -> Result<T>,
    ) -> Result<T> {
        let trick = {
            let mut tables = self.store.lock();
            tables.calls.push((op, path.to_owned()));
            tables.times.push(Instant::now());
            tables.running += 1;
            tables.most_running = tables.most_running.max(tables.running);
            let next = tables.tricks.get_mut(op).and_then(VecDeque::pop_front);
            next.or_else(|| tables.always.get(op).cloned())
        };
        let _running = Running(self.store.clone());
        let mut lose = false;
        match trick {
            None => {}
            Some(Trick::Fail(class, text)) => return Err(Failure::new(class, text)),
            Some(Trick::Pending(after)) => return pending(after),
            Some(Trick::Slow(delay)) => tokio::time::sleep(delay).await,
            Some(Trick::Hang) => std::future::pending().await,
            Some(Trick::LoseReply) => lose = true,
        }
        let mut tables = self.store.lock();
        if tables.root_hidden {
            return Err(Failure::unavailable("the root does not show its identity; is the storage there?"));
        }
        let result = work(&mut tables);
        if lose { Err(Failure::unknown("scripted: the reply is lost")) } else { result }
    }
}

impl Provisioner for Memory {
    const BACKEND: &'static str = "memory";
    const HANDLE_VERSION: u16 = 1;
    type Args = Args;
    type Parameters = Parameters;
    type Handle = Handle;

    fn placement(_: &Args) -> Result<Placement> {
        Ok(Placement::Central)
    }

    async fn connect(args: Args, _: SharedContext) -> Result<Self> {
        Ok(Self::new(args.server, Store::default()))
    }

    fn capabilities(&self, parameters: &Parameters) -> Result<Capabilities> {
        if let Some(pattern) = &parameters.path_pattern {
            Pattern::parse(pattern).map_err(|error| Failure::invalid(error.to_string()))?;
        }
        let mut offers = Capabilities::filesystem(&AccessMode::ALL);
        if parameters.filesystem_only != Some(true) {
            offers.modes.extend(AccessMode::ALL.map(|mode| (VolumeMode::Block, mode)));
        }
        if parameters.late_only == Some(true) {
            offers.binding = Binding::LateOnly { reason: "the volume must be made where its pod runs" };
        }
        offers.sees_contents = parameters.opaque != Some(true);
        offers.expand = match parameters.resizer.unwrap_or_default() {
            Resizer::Ours => Growth::Ours,
            Resizer::Nobody => Growth::No,
            Resizer::Driver => Growth::Driver,
            Resizer::Both => Growth::Both,
        };
        offers.trash = true;
        Ok(offers)
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        if handle.csi {
            return VolumeSource::Csi(CsiSource {
                driver: format!("csi.{}", handle.server),
                volume_handle: handle.path.clone(),
                ..CsiSource::default()
            });
        }
        VolumeSource::Nfs { server: handle.server.clone(), path: handle.path.clone() }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        match source {
            VolumeSource::Nfs { server, path } => vec![Key::of_path(server, path)],
            VolumeSource::Csi(csi) => {
                let server = csi.driver.strip_prefix("csi.").unwrap_or(&csi.driver);
                vec![Key::of_path(server, &csi.volume_handle)]
            }
            _ => Vec::new(),
        }
    }

    fn fits(&self, request: &Request<Parameters>, handle: &Handle) -> bool {
        request.node.as_ref().map(|node| &node.name) == handle.node.as_ref()
    }

    async fn plan(&self, request: &Request<Parameters>) -> Result<Handle> {
        let parameters = &request.parameters;
        let below = match &parameters.path_pattern {
            None if request.attempt == 0 => request.claim.uid.to_string(),
            None => format!("{}-{}", request.claim.uid, request.attempt),
            Some(pattern) => Pattern::parse(pattern)
                .map_err(|error| Failure::invalid(error.to_string()))?
                .fill(&request.claim, &request.pv_name)
                .map_err(|error| Failure::invalid(error.to_string()))?
                .to_string(),
        };
        let pool = parameters.pool.as_deref().unwrap_or("pool");
        let handle = Handle {
            server: self.server.clone(),
            path: format!("/{pool}/{below}"),
            csi: parameters.shape == Some(Shape::Csi),
            node: request.node.as_ref().map(|node| node.name.clone()),
            opaque: parameters.opaque == Some(true),
        };
        self.call("plan", request.claim.uid.as_str(), |_| Ok(handle)).await
    }

    async fn observe(&self, handle: &Handle) -> Result<Option<Observed>> {
        self.call("observe", &handle.path, |tables| {
            Ok(tables.volumes.get(&handle.path).map(|volume| Observed {
                mark: volume.mark.clone(),
                size: Some(volume.size),
                pristine: volume.pristine(handle.opaque),
                users: volume.users.clone(),
            }))
        })
        .await
    }

    async fn provision(
        &self,
        request: &Request<Parameters>,
        handle: &Handle,
    ) -> Result<Progress<Provisioned<Handle>>> {
        let make = |tables: &mut Tables| {
            // Never an empty volume in place of data.
            if tables.trash.iter().any(|entry| entry.path == handle.path && entry.is_of(&request.mark)) {
                let text =
                    "an earlier volume of this claim is in the trash; restore it, or make the claim anew";
                return Err(Failure::blocked(Until::OperatorActs, text));
            }
            let fresh = StoredVolume {
                mark: Some(request.mark.with_state(MarkState::Unpublished)),
                size: request.size,
                csi: handle.csi,
                node: handle.node.clone(),
                opaque: handle.opaque,
                ..StoredVolume::unmarked()
            };
            let volume = tables.volumes.entry(handle.path.clone()).or_insert(fresh);
            match &volume.mark {
                Some(mark) if mark.same_owner(&request.mark) => {}
                None if !volume.written => volume.mark = Some(request.mark.clone()),
                _ => return Err(Failure::not_ours("the volume's place is taken")),
            }
            Ok(Progress::Done(Provisioned {
                handle: handle.clone(),
                size: volume.size,
                topology: Topology::new(),
            }))
        };
        self.call_or("provision", &handle.path, make, pending).await
    }

    async fn delete(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let remove = |tables: &mut Tables| match tables.volumes.get(&handle.path) {
            None => Ok(Progress::Done(())),
            Some(volume) if volume.mark.as_ref().is_some_and(|found| !found.same_owner(mark)) => {
                Err(Failure::not_ours("the volume bears another mark"))
            }
            Some(volume) if !volume.users.is_empty() => {
                Err(Failure::blocked(Until::Unused, "the volume is used"))
            }
            // The last look before what cannot be taken back, as every backend owes it.
            Some(volume) if mark.state == MarkState::Unpublished && volume.written && !handle.opaque => {
                Err(Failure::blocked(Until::OperatorActs, "the volume is not empty any more"))
            }
            Some(volume) if volume.mark.as_ref().is_some_and(|found| found.yields_to(mark)) => {
                tables.volumes.remove(&handle.path);
                Ok(Progress::Done(()))
            }
            // `NotOurs` would end the delete; these are only too late, or not to be told.
            Some(volume) if volume.mark.is_some() => {
                Err(Failure::unavailable("a later leader has marked the volume since"))
            }
            // A volume is marked in the step that makes it, so what has no mark was not made here.
            Some(_) if mark.state == MarkState::Unpublished => {
                Err(Failure::not_ours("what is there was not made by this provisioner"))
            }
            // It was marked and published once, and somebody has put another thing there, or taken the mark off.
            Some(_) => {
                Err(Failure::blocked(Until::OperatorActs, "nobody can tell whose the unmarked volume is"))
            }
        };
        self.call_or("delete", &handle.path, remove, pending).await
    }

    async fn set_mark(&self, handle: &Handle, mark: &Mark) -> Result<()> {
        self.call("set_mark", &handle.path, |tables| match tables.volumes.get_mut(&handle.path) {
            Some(volume) if volume.mark.as_ref().is_none_or(|found| found.same_owner(mark)) => {
                volume.mark = Some(mark.clone());
                Ok(())
            }
            Some(_) => Err(Failure::not_ours("the volume bears another mark")),
            None => Err(Failure::unavailable("the volume is not there")),
        })
        .await
    }

    async fn expand(&self, handle: &Handle, mark: &Mark, size: u64) -> Result<Progress<u64>> {
        let grow = |tables: &mut Tables| match tables.volumes.get_mut(&handle.path) {
            None => Err(Failure::unavailable("the volume is not there")),
            Some(volume) if !volume.mark.as_ref().is_some_and(|found| found.same_owner(mark)) => {
                Err(Failure::not_ours("the volume bears another mark"))
            }
            Some(volume) if !volume.mark.as_ref().is_some_and(|found| found.yields_to(mark)) => {
                Err(Failure::unavailable("a later leader has marked the volume since"))
            }
            Some(_) if size > LARGEST => Err(Failure::invalid("no volume can have more than 1Pi")),
            Some(volume) => {
                volume.size = volume.size.max(size);
                Ok(Progress::Done(volume.size))
            }
        };
        self.call_or("expand", &handle.path, grow, pending).await
    }

    async fn trash(
        &self,
        handle: &Handle,
        mark: &Mark,
        trashed: &Trashed,
    ) -> Result<Progress<Option<Trashed>>> {
        let aside = |tables: &mut Tables| {
            let own = tables.trash.iter().find(|entry| entry.path == handle.path && entry.is_of(mark));
            if let Some(entry) = own {
                entry.check(mark)?;
                return Ok(Progress::Done(Some(entry.trashed.clone())));
            }
            let Some(volume) = tables.volumes.get(&handle.path) else { return Ok(Progress::Done(None)) };
            match &volume.mark {
                Some(found) if !found.same_owner(mark) => {
                    return Err(Failure::not_ours("the volume bears another mark"));
                }
                Some(found) if !found.yields_to(mark) => {
                    return Err(Failure::unavailable("a later leader has marked the volume since"));
                }
                None => {
                    let text = "nobody can tell whose the unmarked volume is";
                    return Err(Failure::blocked(Until::OperatorActs, text));
                }
                Some(_) if !volume.users.is_empty() => {
                    return Err(Failure::blocked(Until::Unused, "the volume is used"));
                }
                Some(_) => {}
            }
            let volume = StoredVolume { mark: Some(mark.with_state(MarkState::Trashed)), ..volume.clone() };
            tables.volumes.remove(&handle.path);
            let (path, trashed) = (handle.path.clone(), trashed.clone());
            tables.trash.push(TrashedVolume { path, volume, trashed: trashed.clone() });
            Ok(Progress::Done(Some(trashed)))
        };
        self.call_or("trash", &handle.path, aside, pending).await
    }

    async fn restore(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let back = |tables: &mut Tables| {
            let there = tables.volumes.get(&handle.path);
            let is_back = there.and_then(|volume| volume.mark.as_ref()).is_some_and(|m| m.same_owner(mark));
            let Some(index) = tables.entry(handle, mark)? else {
                if is_back {
                    return Ok(Progress::Done(()));
                }
                return Err(Failure::invalid("the volume is not in the trash any more: it was purged"));
            };
            if there.is_some() {
                let text = "another volume is in its place; move that one away, and restore this one again";
                return Err(Failure::blocked(Until::OperatorActs, text));
            }
            let TrashedVolume { path, volume, .. } = tables.trash.remove(index);
            let mark = Some(mark.with_state(MarkState::Retained));
            tables.volumes.insert(path, StoredVolume { mark, ..volume });
            Ok(Progress::Done(()))
        };
        self.call_or("restore", &handle.path, back, pending).await
    }

    async fn purge(&self, handle: &Handle, mark: &Mark, judged: &Trashed) -> Result<Progress<()>> {
        let end = |tables: &mut Tables| {
            if let Some(index) = tables.entry(handle, mark)? {
                if tables.trash.get(index).is_some_and(|entry| entry.trashed != *judged) {
                    return Err(Failure::unavailable("the volume was restored and trashed anew since"));
                }
                tables.trash.remove(index);
            }
            Ok(Progress::Done(()))
        };
        self.call_or("purge", &handle.path, end, pending).await
    }

    async fn inventory(&self) -> Result<Vec<InventoryItem<Handle>>> {
        let server = self.server.clone();
        self.call("inventory", "", |tables| {
            let item = |path: &String, volume: &StoredVolume, trashed: Option<&Trashed>| InventoryItem {
                handle: Handle {
                    server: server.clone(),
                    path: path.clone(),
                    csi: volume.csi,
                    node: volume.node.clone(),
                    opaque: volume.opaque,
                },
                observed: Observed {
                    mark: volume.mark.clone(),
                    size: Some(volume.size),
                    pristine: volume.pristine(volume.opaque),
                    users: volume.users.clone(),
                },
                intent: None,
                trashed: trashed.cloned(),
            };
            let live = tables.volumes.iter().map(|(path, volume)| item(path, volume, None));
            let trash =
                tables.trash.iter().map(|entry| item(&entry.path, &entry.volume, Some(&entry.trashed)));
            Ok(live.chain(trash).collect())
        })
        .await
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that a scripted call wants")]
fn pending<T>(after: Duration) -> Result<Progress<T>> {
    Ok(Progress::Pending { after, note: "scripted: it takes its time".to_owned() })
}
