//! A tree that stops working at a chosen operation, as if the process had been killed there.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use volwright_provisioner::RelativePath;
use volwright_volume_tree::{
    Cursor, ErrorKind, LocalTree, Name, Page, Space, Stat, Tree, TreeError, TreeResult,
};

/// When the process dies: before or after the operation took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Die {
    Before,
    After,
}

pub struct Faulty {
    pub inner: LocalTree,
    pub at: usize,
    pub die: Die,
    pub done: AtomicUsize,
    /// Done by somebody else after the chosen operation, which then does not fail.
    pub meanwhile: Option<Box<dyn Fn() + Send + Sync>>,
    /// Let other calls in before each operation.
    pub yields: bool,
}

fn dead() -> TreeError {
    TreeError {
        operation: "live",
        name: "on".into(),
        kind: ErrorKind::Other,
        source: io::Error::other("killed by the test"),
    }
}

impl Faulty {
    pub fn new(inner: LocalTree, at: usize, die: Die) -> Self {
        Self { inner, at, die, done: AtomicUsize::new(0), meanwhile: None, yields: false }
    }

    pub fn died(&self) -> bool {
        self.done.load(Ordering::Relaxed) > self.at
    }

    async fn step<T>(&self, operation: impl Future<Output = TreeResult<T>>) -> TreeResult<T> {
        if self.yields {
            tokio::task::yield_now().await;
        }
        let number = self.done.fetch_add(1, Ordering::Relaxed);
        if let Some(meanwhile) = &self.meanwhile {
            let result = operation.await;
            if number == self.at {
                meanwhile();
            }
            return result;
        }
        if number > self.at || (number == self.at && self.die == Die::Before) {
            return Err(dead());
        }
        let result = operation.await;
        if number == self.at { Err(dead()) } else { result }
    }
}

impl Tree for Faulty {
    type Dir = <LocalTree as Tree>::Dir;

    async fn root(&self) -> TreeResult<Self::Dir> {
        self.step(self.inner.root()).await
    }
    async fn open_dir(&self, dir: &Self::Dir, name: &Name) -> TreeResult<Self::Dir> {
        self.step(self.inner.open_dir(dir, name)).await
    }
    async fn make_dir(&self, dir: &Self::Dir, name: &Name) -> TreeResult<Self::Dir> {
        self.step(self.inner.make_dir(dir, name)).await
    }
    async fn stat(&self, dir: &Self::Dir, name: &Name) -> TreeResult<Stat> {
        self.step(self.inner.stat(dir, name)).await
    }
    async fn stat_dir(&self, dir: &Self::Dir) -> TreeResult<Stat> {
        self.step(self.inner.stat_dir(dir)).await
    }
    async fn list(&self, dir: &Self::Dir, from: Cursor) -> TreeResult<Page> {
        self.step(self.inner.list(dir, from)).await
    }
    async fn set_owner(&self, dir: &Self::Dir, uid: Option<u32>, gid: Option<u32>) -> TreeResult<()> {
        self.step(self.inner.set_owner(dir, uid, gid)).await
    }
    async fn set_mode(&self, dir: &Self::Dir, mode: u32) -> TreeResult<()> {
        self.step(self.inner.set_mode(dir, mode)).await
    }
    async fn rename(&self, from: &Self::Dir, old: &Name, to: &Self::Dir, new: &Name) -> TreeResult<()> {
        self.step(self.inner.rename(from, old, to, new)).await
    }
    async fn unlink(&self, dir: &Self::Dir, name: &Name) -> TreeResult<()> {
        self.step(self.inner.unlink(dir, name)).await
    }
    async fn remove_dir(&self, dir: &Self::Dir, name: &Name) -> TreeResult<()> {
        self.step(self.inner.remove_dir(dir, name)).await
    }
    async fn read_file(&self, dir: &Self::Dir, name: &Name, limit: usize) -> TreeResult<Vec<u8>> {
        self.step(self.inner.read_file(dir, name, limit)).await
    }
    async fn write_file(&self, dir: &Self::Dir, name: &Name, bytes: &[u8]) -> TreeResult<()> {
        self.step(self.inner.write_file(dir, name, bytes)).await
    }
    async fn sync(&self, dir: &Self::Dir) -> TreeResult<()> {
        self.step(self.inner.sync(dir)).await
    }
    async fn space(&self) -> TreeResult<Space> {
        self.step(self.inner.space()).await
    }
    async fn mounts_below(&self, path: &RelativePath) -> TreeResult<Vec<String>> {
        self.step(self.inner.mounts_below(path)).await
    }
}
