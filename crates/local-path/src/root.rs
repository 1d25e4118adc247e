//! A configured root: opened when it can be, and again when something else is mounted there.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle as Runtime;
use tokio::sync::Semaphore;
use tracing::{info, warn};
use volwright_provisioner::{Context, Failure, Result, VolumeSource};
use volwright_volume_tree::{
    LocalOptions, LocalTree, Look, OpenError, Volumes, look, make_identity, make_own_directory,
};

/// Threads that may wait for one disk at a time. When it hangs, those of the other disks are left.
const THREADS: usize = 16;

/// One `--path`.
#[derive(Debug)]
pub(crate) struct Root {
    path: String,
    options: LocalOptions,
    /// For the lock file: who serves it.
    holder: String,
    threads: Arc<Semaphore>,
    /// Held while the first identity is made.
    first: tokio::sync::Mutex<()>,
    opened: tokio::sync::Mutex<Option<Arc<Volumes<LocalTree>>>>,
    /// It has shown an identity to this process: if it looks fresh now, its disk is not mounted.
    shown: AtomicBool,
}

/// What came of opening.
enum Opened {
    Ready(Arc<Volumes<LocalTree>>),
    Unmarked(LocalTree, Look),
}

impl Root {
    pub(crate) fn new(path: String, options: LocalOptions, holder: String) -> Arc<Self> {
        Arc::new(Self {
            path,
            options,
            holder,
            threads: Arc::new(Semaphore::new(THREADS)),
            first: tokio::sync::Mutex::default(),
            opened: tokio::sync::Mutex::default(),
            shown: AtomicBool::new(false),
        })
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn options(&self) -> LocalOptions {
        self.options
    }

    /// Does file work on a thread that may block. It goes on when the caller is dropped.
    pub(crate) async fn run<R, F, W>(&self, work: W) -> Result<R>
    where
        R: Send + 'static,
        F: Future<Output = Result<R>>,
        W: FnOnce() -> F + Send + 'static,
    {
        let permit = Arc::clone(&self.threads).acquire_owned().await;
        let permit = permit.map_err(|e| Failure::unavailable("the agent is stopping").caused_by(e))?;
        let runtime = Runtime::current();
        let task = tokio::task::spawn_blocking(move || {
            let result = runtime.block_on(work());
            drop(permit);
            result
        });
        task.await.map_err(|e| Failure::unknown("the agent's file work was cut off").caused_by(e))?
    }

    /// The root's volumes, where it shows an identity.
    pub(crate) async fn volumes(self: &Arc<Self>) -> Result<Arc<Volumes<LocalTree>>> {
        match self.open().await? {
            Opened::Ready(volumes) => Ok(volumes),
            Opened::Unmarked(..) => Err(Failure::unavailable(
                "the root on the node does not show its identity; is the disk mounted? Nothing is done there until it does",
            )),
        }
    }

    /// The root's volumes; a root on which none of ours are known gets its first identity.
    pub(crate) async fn volumes_or_first(
        self: &Arc<Self>,
        context: &dyn Context,
    ) -> Result<Arc<Volumes<LocalTree>>> {
        if let Opened::Ready(volumes) = self.open().await? {
            return Ok(volumes);
        }
        let _first = self.first.lock().await;
        let tree = match self.open().await? {
            Opened::Ready(volumes) => return Ok(volumes),
            Opened::Unmarked(tree, Look::Fresh) => tree,
            Opened::Unmarked(..) => return Err(lost("it has records, but no identity")),
        };
        self.is_unknown(context).await?;
        let root = Arc::clone(self);
        self.run(move || async move { root.mark(&tree).await }).await?;
        info!(root = self.path, "Gave the root its identity.");
        self.volumes().await
    }

    /// The root's volumes; `None` for one that never had any. It is left as it is: that a process starts is no reason to
    /// write to what may be a bare mount point.
    pub(crate) async fn volumes_if_any(
        self: &Arc<Self>,
        context: &dyn Context,
    ) -> Result<Option<Arc<Volumes<LocalTree>>>> {
        match self.open().await? {
            Opened::Ready(volumes) => Ok(Some(volumes)),
            Opened::Unmarked(_, Look::Fresh) if !self.shown.load(Ordering::Relaxed) => {
                self.is_unknown(context).await.map(|()| None)
            }
            Opened::Unmarked(..) => self.volumes().await.map(Some),
        }
    }

    /// No PV of ours names a volume on it.
    pub(crate) async fn is_unknown(&self, context: &dyn Context) -> Result<()> {
        let known = context.our_volumes().await?;
        if known.iter().any(|source| self.holds(source)) {
            return Err(lost("PVs name volumes on it, but it shows no identity"));
        }
        Ok(())
    }

    /// Gives the root an identity because an operator says so.
    pub(crate) async fn init(self: &Arc<Self>) -> Result<()> {
        let root = Arc::clone(self);
        self.run(move || async move {
            let path = Path::new(&root.path);
            let invalid = |e: OpenError| Failure::invalid(format!("--init-root: {e}")).caused_by(e);
            LocalTree::make_root(path).map_err(invalid)?;
            let tree = LocalTree::open(path, root.options).map_err(invalid)?;
            if let Look::Shown(id) = look(&tree).await? {
                warn!(root = root.path, %id, "The root has its identity already; take --init-root away.");
                return Ok(());
            }
            root.mark(&tree).await?;
            warn!(root = root.path, "Gave the root a new identity as told; take --init-root away now.");
            Ok(())
        })
        .await
    }

    /// Does the PV's path lie on this root, or the other way round?
    fn holds(&self, source: &VolumeSource) -> bool {
        let path = match source {
            VolumeSource::Local { path } | VolumeSource::HostPath { path } => PathBuf::from(path),
            VolumeSource::Nfs { .. } | VolumeSource::Csi(_) | VolumeSource::Other { .. } => return false,
        };
        path.starts_with(&self.path) || Path::new(&self.path).starts_with(path)
    }

    async fn open(self: &Arc<Self>) -> Result<Opened> {
        let root = Arc::clone(self);
        self.run(move || async move { root.open_here().await }).await
    }

    /// On the thread of the caller, which may block.
    async fn open_here(&self) -> Result<Opened> {
        let mut opened = self.opened.lock().await;
        if let Some(volumes) = opened.as_ref().filter(|volumes| volumes.tree().is_current()) {
            return Ok(Opened::Ready(Arc::clone(volumes)));
        }
        // Its lock goes with the last call that still works on it.
        *opened = None;
        let tree = LocalTree::open(Path::new(&self.path), self.options).map_err(OpenError::failure)?;
        match look(&tree).await? {
            Look::Shown(id) => {
                self.lock(&tree)?;
                let volumes = Arc::new(Volumes::new(tree, id));
                *opened = Some(Arc::clone(&volumes));
                self.shown.store(true, Ordering::Relaxed);
                Ok(Opened::Ready(volumes))
            }
            other => Ok(Opened::Unmarked(tree, other)),
        }
    }

    /// Makes the identity, alone: of two agents that find a fresh root, one waits for the other to be gone.
    async fn mark(&self, tree: &LocalTree) -> Result<()> {
        // The lock lies in it, and nothing else is touched before the lock is ours.
        make_own_directory(tree).await?;
        self.lock(tree)?;
        if let Err(error) = tree.close_if_empty() {
            warn!(
                root = self.path,
                error = &error as &dyn std::error::Error,
                "Failed to close the root to other users."
            );
        }
        make_identity(tree).await?;
        Ok(())
    }

    fn lock(&self, tree: &LocalTree) -> Result<()> {
        tree.lock(&self.holder).map_err(|e| Failure::unavailable(e.to_string()).caused_by(e))
    }
}

fn lost(why: &str) -> Failure {
    Failure::unavailable(format!(
        "the root on the node is not the one it was: {why}. Is the disk mounted? If it was replaced on purpose, start the \
         agent with --init-root"
    ))
}
