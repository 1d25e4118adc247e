//! The storage system of the backend with defects: what it holds, and how accidents reach it.

use crate::defects::{Defect, Handle, Parameters, Shelf};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use volwright_provisioner::{
    Key, Mark, NodeInfo, ParameterMap, Result, Secret, SecretRef, SharedContext, Trashed,
};
use volwright_testkit::conformance::{Can, Fixture};
use volwright_testkit::harness::map;

/// One volume.
#[derive(Debug, Clone, Default)]
pub struct Volume {
    pub mark: Option<Mark>,
    pub size: u64,
    pub written: bool,
    pub intent: Option<String>,
    pub trashed: Option<Trashed>,
    /// Broken by a call that was cut off.
    pub torn: bool,
}

/// What is mounted now.
#[derive(Debug, Default)]
pub struct Contents {
    /// The root's identity.
    pub root: Option<u32>,
    pub volumes: BTreeMap<String, Volume>,
    pub tombstones: Vec<String>,
}

#[derive(Debug, Default)]
struct State {
    mounted: Contents,
    away: Option<Contents>,
    outside: Vec<String>,
}

/// The storage system; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Boards(Arc<Mutex<State>>);

impl Boards {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut Contents) -> T) -> T {
        work(&mut self.lock().mounted)
    }

    /// What a path that leaves the root does.
    pub fn harm(&self, what: &str) {
        self.lock().outside.push(what.to_owned());
    }
}

/// The fixture. `B` is the backend, with strict or loose parameters.
pub struct Cupboard<B> {
    boards: Boards,
    defect: Defect,
    backend: std::marker::PhantomData<B>,
}

impl<B> Cupboard<B> {
    pub fn new(defect: Defect) -> Self {
        let boards = Boards::default();
        boards.with(|contents| contents.root = Some(7));
        Self { boards, defect, backend: std::marker::PhantomData }
    }

    fn volume(&self, handle: &Handle) -> Option<Volume> {
        self.boards.with(|contents| contents.volumes.get(&handle.path).cloned())
    }
}

impl<P: Parameters> Fixture for Cupboard<Shelf<P>> {
    type Backend = Shelf<P>;

    async fn connect(&self, context: SharedContext) -> Result<Shelf<P>> {
        Ok(Shelf::new(self.boards.clone(), self.defect, context))
    }

    fn parameters(&self) -> ParameterMap {
        map(&[("kind", "oak")])
    }

    fn hostile_parameters(&self) -> Vec<ParameterMap> {
        ["${pvc.annotations['dir']}", "${pvc.namespace}/${pvc.name}"]
            .map(|pattern| map(&[("pathPattern", pattern)]))
            .to_vec()
    }

    fn node(&self) -> Option<NodeInfo> {
        None
    }

    fn secrets(&self) -> Vec<(SecretRef, BTreeMap<String, Secret>)> {
        let reference = SecretRef { namespace: "ns".into(), name: "key".into() };
        vec![(reference, [("key".to_owned(), Secret::new("hunter2-of-the-shelf"))].into())]
    }

    /// What a defect keeps from ending is not to be waited for long.
    fn patience(&self) -> Duration {
        if self.defect == Defect::None { Duration::from_secs(30) } else { Duration::from_millis(400) }
    }

    fn bounds(&self) -> Option<Key> {
        Some(Key::of_path("shelf", "/oak"))
    }

    async fn outside(&self) -> Can<String> {
        Ok(format!("{:?}", self.boards.lock().outside))
    }

    async fn exists(&self, handle: &Handle) -> Can<bool> {
        Ok(self.volume(handle).is_some_and(|volume| volume.trashed.is_none()))
    }

    async fn write_into(&self, handle: &Handle) -> Can<()> {
        self.boards.with(|contents| {
            if let Some(volume) = contents.volumes.get_mut(&handle.path) {
                volume.written = true;
            }
        });
        Ok(())
    }

    async fn is_written(&self, handle: &Handle) -> Can<bool> {
        Ok(self.volume(handle).is_some_and(|volume| volume.written && volume.trashed.is_none()))
    }

    async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
        let thing = Volume { written: true, ..Volume::default() };
        self.boards.with(|contents| contents.volumes.insert(handle.path.clone(), thing));
        Ok(())
    }

    async fn lose_root(&self) -> Can<()> {
        let mut state = self.boards.lock();
        state.away = Some(std::mem::take(&mut state.mounted));
        Ok(())
    }

    async fn find_root(&self) -> Can<()> {
        let mut state = self.boards.lock();
        if let Some(away) = state.away.take() {
            state.mounted = away;
        }
        Ok(())
    }
}
