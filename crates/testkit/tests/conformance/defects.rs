//! A backend that offers everything, and can have one deliberate defect.

use crate::shelf::{Boards, Contents, Volume};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::task::yield_now;
use volwright_provisioner::{
    AccessMode, Capabilities, Capacity, Check, Failure, Growth, InventoryItem, Key, Mark, MarkState,
    Observed, Pattern, Placement, Pristine, Progress, Provisioned, Provisioner, Request, Result,
    SharedContext, Topology, Trashed, Until, VolumeSource,
};

/// What is wrong with the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    None,
    AbsenceOnLostRoot,
    AdoptsElsewhere,
    AliasByLetters,
    AllKindsAreOurs,
    AllVolumesAreSame,
    AlwaysPristine,
    CapacityOfTheMoon,
    DeleteForgets,
    DeleteIgnoresEpoch,
    DeleteIgnoresMark,
    DeleteTwiceFails,
    DeletesWhatItRemembers,
    DeletedOnLostRoot,
    DeletesByPrefix,
    DeletesUnmarked,
    DoctorTellsSecret,
    EmptyInventoryOnLostRoot,
    ExpandIgnoresMark,
    ExpandOnce,
    FitsNothing,
    HalfDeleted,
    HalfMade,
    HandleForgets,
    HandleHasSecret,
    HandleIsLarge,
    IntentInMemoryOnly,
    IntentStays,
    InventoryLeavesOneOut,
    LateDeleteIsNotOurs,
    LeavesTombstones,
    MakesOnLostRoot,
    MarkInMemoryOnly,
    MarkTornApart,
    MarkTwiceFails,
    MarksNothing,
    NeverPristine,
    NewRootAtStart,
    NoAliasKeys,
    NoLock,
    PathEscapes,
    PlanAnewEachTime,
    PlanMakesIt,
    PlansTogether,
    ProvisionIgnoresMark,
    ProvisionTwiceEmpties,
    ProvisionTwiceFails,
    PurgeForgets,
    Redirects,
    RemembersInMemoryOnly,
    RestoresEmpty,
    RetainedIsPublished,
    SeesWhatIsNot,
    SetMarkIgnoresMark,
    Shrinks,
    SourceOfTheDay,
    TakesUnmarked,
    TooSmall,
    TrashIgnoresMark,
    TrashRenews,
    TrashUnrecorded,
    PurgesTheLiving,
    PurgeJudgesNot,
    UndoOnlyWithData,
    UndoTakesData,
    Unpublishes,
}
use Defect as D;

/// Parameters of a class.
pub trait Parameters: serde::de::DeserializeOwned + JsonSchema + Send + Sync + 'static {
    fn kind(&self) -> &str;
    fn pattern(&self) -> Option<&str>;
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Strict {
    /// Kind of wood.
    kind: String,
    /// Path of a volume.
    #[serde(default)]
    path_pattern: Option<String>,
}

impl Parameters for Strict {
    fn kind(&self) -> &str {
        &self.kind
    }
    fn pattern(&self) -> Option<&str> {
        self.path_pattern.as_deref()
    }
}

/// As [`Strict`], but for one line.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Loose {
    /// Kind of wood.
    kind: String,
    /// Path of a volume.
    #[serde(default)]
    path_pattern: Option<String>,
}

impl Parameters for Loose {
    fn kind(&self) -> &str {
        &self.kind
    }
    fn pattern(&self) -> Option<&str> {
        self.path_pattern.as_deref()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub path: String,
    pub root: u32,
    #[serde(default)]
    pub more: String,
    /// What is not stored.
    #[serde(skip)]
    pub forgotten: u64,
}

#[derive(clap::Args)]
pub struct Args {}

pub struct Shelf<P = Strict> {
    boards: Boards,
    defect: Defect,
    context: SharedContext,
    /// Of this process.
    number: u64,
    remembered: Mutex<BTreeMap<String, Volume>>,
    busy: tokio::sync::Mutex<()>,
    parameters: PhantomData<P>,
}

static PROCESSES: AtomicU64 = AtomicU64::new(1);

impl<P> Shelf<P> {
    pub fn new(boards: Boards, defect: Defect, context: SharedContext) -> Self {
        boards.with(|contents| {
            for volume in contents.volumes.values_mut() {
                if defect == D::MarkInMemoryOnly {
                    volume.mark = volume.mark.as_ref().map(|mark| mark.with_state(MarkState::Unpublished));
                }
                if defect == D::IntentInMemoryOnly {
                    volume.intent = None;
                }
            }
            if defect == D::NewRootAtStart && contents.root.is_none() {
                contents.root = Some(7);
            }
        });
        Self {
            boards,
            defect,
            context,
            number: PROCESSES.fetch_add(1, Ordering::Relaxed),
            remembered: Mutex::default(),
            busy: tokio::sync::Mutex::default(),
            parameters: PhantomData,
        }
    }

    fn is(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    /// Works on what is mounted, if it is the handle's root.
    fn on<T>(&self, handle: &Handle, work: impl FnOnce(&mut Contents) -> Result<T>) -> Result<T> {
        self.boards.with(|contents| {
            if contents.root == Some(handle.root) {
                return work(contents);
            }
            Err(Failure::unavailable("the root does not show its identity"))
        })
    }

    async fn alone(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        yield_now().await;
        if self.is(D::NoLock) { None } else { Some(self.busy.lock().await) }
    }

    fn seen(&self, volume: &Volume) -> Observed {
        let pristine = if self.is(D::NeverPristine) {
            Pristine::Unknown
        } else if volume.written && !self.is(D::AlwaysPristine) {
            Pristine::No
        } else {
            Pristine::Yes
        };
        Observed { mark: volume.mark.clone(), size: Some(volume.size), pristine, users: Vec::new() }
    }

    /// The volume that `mark` may act on.
    fn owned<'a>(
        &self,
        contents: &'a mut Contents,
        handle: &Handle,
        mark: &Mark,
        ignores: Defect,
    ) -> Result<&'a mut Volume> {
        let volume = contents.volumes.get_mut(&handle.path);
        let volume = volume.ok_or_else(|| Failure::unavailable("the volume is not there"))?;
        if !self.is(ignores) && !volume.mark.as_ref().is_some_and(|found| found.same_owner(mark)) {
            return Err(Failure::not_ours("another owner's volume"));
        }
        Ok(volume)
    }
}

impl<P: Parameters> Provisioner for Shelf<P> {
    const BACKEND: &'static str = "shelf";
    const HANDLE_VERSION: u16 = 1;
    type Args = Args;
    type Parameters = P;
    type Handle = Handle;

    fn placement(_: &Args) -> Result<Placement> {
        Ok(Placement::Central)
    }

    async fn connect(_: Args, context: SharedContext) -> Result<Self> {
        Ok(Self::new(Boards::default(), D::None, context))
    }

    fn capabilities(&self, _: &P) -> Result<Capabilities> {
        let modes = Capabilities::filesystem(&AccessMode::ALL);
        Ok(Capabilities { expand: Growth::Ours, trash: true, sees_contents: true, ..modes })
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        let server =
            if self.is(D::SourceOfTheDay) { format!("shelf-{}", self.number) } else { "shelf".into() };
        VolumeSource::Nfs { server, path: handle.path.clone() }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        match source {
            _ if self.is(D::NoAliasKeys) => Vec::new(),
            VolumeSource::Nfs { server, path } if self.is(D::AliasByLetters) => {
                vec![Key::new(server, path.chars().filter(|c| *c != '/').map(String::from))]
            }
            VolumeSource::Nfs { server, path } => vec![Key::of_path(server, path)],
            VolumeSource::Other { kind } if self.is(D::AllKindsAreOurs) => vec![Key::of_path("shelf", kind)],
            _ => Vec::new(),
        }
    }

    fn same_volume(&self, planned: &Handle, completed: &Handle) -> bool {
        self.is(D::AllVolumesAreSame) || planned.path == completed.path
    }

    fn fits(&self, _: &Request<P>, _: &Handle) -> bool {
        !self.is(D::FitsNothing)
    }

    fn adopt(&self, source: &VolumeSource, _: &BTreeMap<String, String>) -> Option<Handle> {
        let VolumeSource::Nfs { path, .. } = source else { return None };
        let path = if self.is(D::AdoptsElsewhere) { format!("{path}/sub") } else { path.clone() };
        Some(Handle { path, root: 7, more: String::new(), forgotten: 0 })
    }

    async fn plan(&self, request: &Request<P>) -> Result<Handle> {
        let _alone = self.alone().await;
        let known = self.context.our_volumes().await?;
        let root = self.boards.with(|contents| {
            if contents.root.is_none() && known.is_empty() {
                contents.root = Some(7);
            }
            contents.root.ok_or_else(|| Failure::unavailable("the root is lost"))
        })?;
        let claim = &request.claim;
        let below = match request.parameters.pattern() {
            Some(_) if self.is(D::PathEscapes) => claim.annotations.get("dir").cloned().unwrap_or_default(),
            Some(pattern) => Pattern::parse(pattern)
                .map_err(|e| Failure::invalid(e.to_string()))?
                .fill(claim, &request.pv_name)
                .map_err(|e| Failure::invalid(e.to_string()))?
                .to_string(),
            None if self.is(D::PlansTogether) => "together".to_owned(),
            None if self.is(D::PlanAnewEachTime) => format!("{}-{}", claim.uid, fastrand::u64(..)),
            None => format!("{}-{}", claim.uid, request.attempt),
        };
        let path = format!("/{}/{below}", request.parameters.kind());
        let more = match self.defect {
            D::HandleIsLarge => claim.name.repeat(20),
            D::HandleHasSecret => "hunter2-of-the-shelf".to_owned(),
            _ => String::new(),
        };
        if self.is(D::PlanMakesIt) {
            let made = Volume { mark: Some(request.mark.clone()), size: request.size, ..Volume::default() };
            self.boards.with(|contents| contents.volumes.insert(path.clone(), made));
        }
        Ok(Handle { path, root, more, forgotten: u64::from(self.is(D::HandleForgets)) })
    }

    async fn observe(&self, handle: &Handle) -> Result<Option<Observed>> {
        let _alone = self.alone().await;
        let seen = self.on(handle, |contents| {
            Ok(contents
                .volumes
                .get(&handle.path)
                .filter(|volume| !volume.torn && volume.trashed.is_none())
                .map(|volume| self.seen(volume)))
        });
        if self.is(D::SeesWhatIsNot) && seen.as_ref().is_ok_and(Option::is_none) {
            return Ok(Some(self.seen(&Volume::default())));
        }
        if self.is(D::AbsenceOnLostRoot) && seen.is_err() { Ok(None) } else { seen }
    }

    async fn provision(
        &self,
        request: &Request<P>,
        handle: &Handle,
    ) -> Result<Progress<Provisioned<Handle>>> {
        let _alone = self.alone().await;
        let mut handle = handle.clone();
        if self.is(D::Redirects) {
            handle.path.push_str("-elsewhere");
        }
        if self.is(D::MakesOnLostRoot) {
            self.boards.with(|contents| contents.root = Some(handle.root));
        }
        if self.is(D::PathEscapes) && handle.path.contains("..") {
            self.boards.harm(&handle.path);
        }
        if self.is(D::LeavesTombstones)
            && self
                .boards
                .with(|contents| contents.tombstones.iter().any(|uid| *uid == *request.claim.uid.as_str()))
        {
            return Err(Failure::invalid("that claim had a volume before"));
        }
        let mark = request.mark.with_state(MarkState::Unpublished);
        let size = if self.is(D::TooSmall) { request.size - 1 } else { request.size };
        let new = Volume { mark: Some(mark), size, intent: request.intent.clone(), ..Volume::default() };
        let known = self.remembered.lock().unwrap().contains_key(&handle.path);
        let found = self.on(&handle, |contents| match contents.volumes.get_mut(&handle.path) {
            None => Ok(None),
            Some(_) if self.is(D::ProvisionTwiceFails) => Err(Failure::invalid("there is one already")),
            Some(_) if self.is(D::RemembersInMemoryOnly) && !known => Err(Failure::not_ours("never seen it")),
            Some(volume) => {
                match &mut volume.mark {
                    Some(mark) if mark.same_owner(&request.mark) || self.is(D::ProvisionIgnoresMark) => {
                        if self.is(D::Unpublishes) {
                            *mark = mark.with_state(MarkState::Unpublished);
                        }
                        let open = matches!(mark.state, MarkState::Planned | MarkState::Unpublished);
                        if open || self.is(D::IntentStays) {
                            volume.intent.clone_from(&request.intent);
                        }
                    }
                    None if self.is(D::TakesUnmarked) => volume.mark = Some(request.mark.clone()),
                    _ => return Err(Failure::not_ours("the place is taken")),
                }
                if self.is(D::ProvisionTwiceEmpties) {
                    volume.written = false;
                }
                volume.size = volume.size.max(size);
                Ok(Some(volume.size))
            }
        })?;
        if let Some(size) = found {
            return Ok(Progress::Done(Provisioned { handle, size, topology: Topology::new() }));
        }
        if self.is(D::HalfMade) {
            let half = Volume { written: true, ..Volume::default() };
            self.on(&handle, |contents| Ok(contents.volumes.insert(handle.path.clone(), half)))?;
        }
        // The place was free; by now another call may have come.
        yield_now().await;
        self.remembered.lock().unwrap().insert(handle.path.clone(), new.clone());
        let mut path = handle.path.clone();
        if self.is(D::NoLock) && self.on(&handle, |contents| Ok(contents.volumes.contains_key(&path)))? {
            path.push_str("-2");
        }
        self.on(&handle, |contents| Ok(contents.volumes.insert(path, new)))?;
        Ok(Progress::Done(Provisioned { handle, size, topology: Topology::new() }))
    }

    async fn delete(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let _alone = self.alone().await;
        let undo = mark.state == MarkState::Unpublished;
        let staged = self.on(handle, |contents| {
            let known = self.remembered.lock().unwrap().contains_key(&handle.path);
            let Some(volume) = contents.volumes.get_mut(&handle.path) else {
                if self.is(D::DeletesWhatItRemembers) && !known {
                    return Err(Failure::not_ours("never seen it"));
                }
                return if self.is(D::DeleteTwiceFails) {
                    Err(Failure::invalid("there is none"))
                } else {
                    Ok(false)
                };
            };
            if volume.torn && self.is(D::HalfDeleted) {
                return Err(Failure::not_ours("what is left bears no mark"));
            }
            match &volume.mark {
                None if self.is(D::DeletesUnmarked) => {}
                None => return Err(Failure::blocked(Until::OperatorActs, "nobody can tell whose it is")),
                Some(found) if !found.same_owner(mark) && !self.is(D::DeleteIgnoresMark) => {
                    return Err(Failure::not_ours("another owner's volume"));
                }
                Some(found) if found.same_owner(mark) && !found.yields_to(mark) => match self.defect {
                    D::DeleteIgnoresEpoch => {}
                    D::LateDeleteIsNotOurs => return Err(Failure::not_ours("a later leader's")),
                    _ => return Err(Failure::unavailable("a later leader has marked it")),
                },
                Some(_) => {}
            }
            if undo && self.is(D::UndoOnlyWithData) && !volume.written {
                return Err(Failure::blocked(Until::Settled, "not in this case"));
            }
            if undo && volume.written && !self.is(D::UndoTakesData) {
                return Err(Failure::blocked(Until::OperatorActs, "it is not empty any more"));
            }
            volume.torn = self.is(D::HalfDeleted);
            if self.is(D::LeavesTombstones) {
                contents.tombstones.push(mark.owner.to_string());
            }
            Ok(true)
        });
        if self.is(D::DeletedOnLostRoot)
            && staged.is_err()
            && self.boards.with(|contents| contents.root.is_none())
        {
            return Ok(Progress::Done(()));
        }
        if !staged? || self.is(D::DeleteForgets) {
            return Ok(Progress::Done(()));
        }
        yield_now().await;
        self.on(handle, |contents| {
            if self.is(D::DeletesByPrefix) {
                let prefix = &handle.path[..handle.path.len().min(8)];
                contents.volumes.retain(|path, _| !path.starts_with(prefix));
            }
            contents.volumes.remove(&handle.path);
            Ok(Progress::Done(()))
        })
    }

    async fn set_mark(&self, handle: &Handle, mark: &Mark) -> Result<()> {
        let _alone = self.alone().await;
        let mark = match mark.state {
            MarkState::Retained if self.is(D::RetainedIsPublished) => mark.with_state(MarkState::Published),
            _ => mark.clone(),
        };
        let torn = self.on(handle, |contents| {
            if self.is(D::MarksNothing) && !contents.volumes.contains_key(&handle.path) {
                return Ok(false);
            }
            let volume = self.owned(contents, handle, &mark, D::SetMarkIgnoresMark)?;
            if self.is(D::MarkTwiceFails) && volume.mark.as_ref() == Some(&mark) {
                return Err(Failure::invalid("it is marked already"));
            }
            if self.is(D::MarkTornApart) {
                volume.mark = None;
            }
            Ok(true)
        })?;
        if !torn {
            return Ok(());
        }
        yield_now().await;
        self.on(handle, |contents| {
            let ignores = if self.is(D::MarkTornApart) { self.defect } else { D::SetMarkIgnoresMark };
            let volume = self.owned(contents, handle, &mark, ignores)?;
            if !self.is(D::IntentStays) && !matches!(mark.state, MarkState::Planned | MarkState::Unpublished)
            {
                volume.intent = None;
            }
            volume.mark = Some(mark);
            Ok(())
        })
    }

    async fn expand(&self, handle: &Handle, mark: &Mark, size: u64) -> Result<Progress<u64>> {
        let _alone = self.alone().await;
        self.on(handle, |contents| {
            let volume = self.owned(contents, handle, mark, D::ExpandIgnoresMark)?;
            if self.is(D::ExpandOnce) && volume.size >= size {
                return Err(Failure::invalid("it is that large already"));
            }
            volume.size = if self.is(D::Shrinks) { size } else { volume.size.max(size) };
            Ok(Progress::Done(volume.size))
        })
    }

    async fn trash(
        &self,
        handle: &Handle,
        mark: &Mark,
        trashed: &Trashed,
    ) -> Result<Progress<Option<Trashed>>> {
        let _alone = self.alone().await;
        self.on(handle, |contents| {
            if !contents.volumes.contains_key(&handle.path) {
                return Ok(Progress::Done(None));
            }
            let renews = self.is(D::TrashRenews);
            let volume = self.owned(contents, handle, mark, D::TrashIgnoresMark)?;
            let kept = volume.trashed.clone().filter(|_| !renews).unwrap_or_else(|| trashed.clone());
            volume.trashed = Some(kept.clone());
            volume.mark = Some(mark.with_state(MarkState::Trashed));
            Ok(Progress::Done(Some(kept)))
        })
    }

    async fn restore(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let _alone = self.alone().await;
        self.on(handle, |contents| {
            if !contents.volumes.contains_key(&handle.path) {
                return Err(Failure::invalid("it was purged"));
            }
            let volume = self.owned(contents, handle, mark, D::TrashIgnoresMark)?;
            if volume.trashed.take().is_some() {
                volume.mark = Some(mark.with_state(MarkState::Retained));
            }
            if self.is(D::RestoresEmpty) {
                volume.written = false;
            }
            Ok(Progress::Done(()))
        })
    }

    async fn purge(&self, handle: &Handle, mark: &Mark, judged: &Trashed) -> Result<Progress<()>> {
        let _alone = self.alone().await;
        self.on(handle, |contents| {
            if !contents.volumes.contains_key(&handle.path) {
                return Ok(Progress::Done(()));
            }
            let volume = self.owned(contents, handle, mark, D::TrashIgnoresMark)?;
            match &volume.trashed {
                None if !self.is(D::PurgesTheLiving) => return Ok(Progress::Done(())),
                Some(found) if found != judged && !self.is(D::PurgeJudgesNot) => {
                    return Err(Failure::unavailable("it was trashed anew since"));
                }
                _ => {}
            }
            if !self.is(D::PurgeForgets) {
                contents.volumes.remove(&handle.path);
            }
            Ok(Progress::Done(()))
        })
    }

    async fn inventory(&self) -> Result<Vec<InventoryItem<Handle>>> {
        let _alone = self.alone().await;
        self.boards.with(|contents| {
            if contents.root.is_none() && !self.is(D::EmptyInventoryOnLostRoot) {
                return Err(Failure::unavailable("the root does not show its identity"));
            }
            let items = contents.volumes.iter().map(|(path, volume)| InventoryItem {
                handle: Handle { path: path.clone(), root: 7, more: String::new(), forgotten: 0 },
                observed: self.seen(volume),
                intent: volume.intent.clone(),
                trashed: volume.trashed.clone().filter(|_| !self.is(D::TrashUnrecorded)),
            });
            Ok(items.skip(usize::from(self.is(D::InventoryLeavesOneOut))).collect())
        })
    }

    async fn capacity(&self, _: &P) -> Result<Vec<Capacity>> {
        let available = if self.is(D::CapacityOfTheMoon) { u64::MAX } else { 1 << 40 };
        Ok(vec![Capacity { topology: Topology::new(), available, largest: None }])
    }

    async fn check(&self) -> Vec<Check> {
        let text = if self.is(D::DoctorTellsSecret) { "key hunter2-of-the-shelf works" } else { "there" };
        vec![Check { subject: "the shelf".into(), outcome: Ok(text.to_owned()) }]
    }
}
