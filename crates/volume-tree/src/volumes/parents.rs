//! Directories above volumes: made when a pattern has slashes, removed with the last volume below.
//!
//! Which of them are ours is written down before one is made: an administrator's empty directory is not ours to remove.

use super::Volumes;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, PARENTS};
use crate::{ErrorKind, Name, Tree, walk};
use volwright_provisioner::{Failure, RelativePath, Result};

/// A directory above volumes is not part of any: everybody may pass, and nobody but us may write.
const MODE: u32 = 0o755;

impl<T: Tree> Volumes<T> {
    /// Opens the directory that `path` goes into, and makes what is missing on the way.
    pub(super) async fn make_parents(&self, path: &RelativePath) -> Result<T::Dir> {
        const DOING: &str = "making the directories above the volume";
        let mut parent = self.tree.root().await.or_failure(Changed::Nothing, DOING)?;
        let mut above = walk::ancestors(path);
        above.reverse();
        for outer in above {
            let name = Name::component(walk::split(&outer).0);
            parent = match self.tree.open_dir(&parent, &name).await {
                Ok(dir) => self.finish_parent(&outer, dir).await?,
                Err(error) => match error.kind {
                    ErrorKind::Missing => self.make_parent(&outer, &parent, &name).await?,
                    ErrorKind::NotADirectory | ErrorKind::CrossesMount => {
                        return Err(Failure::not_ours(format!(
                            "{outer} on the path {path} is no directory that may be entered (a link, a file or a mount \
                             point); move it away, or choose another pathPattern"
                        ))
                        .caused_by(error));
                    }
                    _ => return Err(error).or_failure(Changed::Maybe, DOING),
                },
            };
        }
        Ok(parent)
    }

    async fn make_parent(&self, path: &RelativePath, parent: &T::Dir, name: &Name) -> Result<T::Dir> {
        const DOING: &str = "making a directory above the volume";
        let notes = layout::own_dir(&self.tree, &PARENTS).await?;
        self.tree
            .write_file(&notes, &layout::file_name(path), b"{}")
            .await
            .or_failure(Changed::Maybe, DOING)?;
        let made = self.tree.make_dir(parent, name).await.or_failure(Changed::Maybe, DOING)?;
        self.tree.set_mode(&made, MODE).await.or_failure(Changed::Maybe, DOING)?;
        self.tree.sync(parent).await.or_failure(Changed::Maybe, DOING)?;
        Ok(made)
    }

    /// One that a crash left with the private mode it was made with.
    async fn finish_parent(&self, path: &RelativePath, dir: T::Dir) -> Result<T::Dir> {
        const DOING: &str = "opening a directory above the volume";
        let stat = self.tree.stat_dir(&dir).await.or_failure(Changed::Maybe, DOING)?;
        if stat.mode == 0o700 && self.is_our_parent(path).await? {
            self.tree.set_mode(&dir, MODE).await.or_failure(Changed::Maybe, DOING)?;
        }
        Ok(dir)
    }

    async fn is_our_parent(&self, path: &RelativePath) -> Result<bool> {
        let notes = layout::own_dir(&self.tree, &PARENTS).await?;
        match self.tree.stat(&notes, &layout::file_name(path)).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::Missing => Ok(false),
            Err(error) => Err(error).or_failure(Changed::Maybe, "reading the records"),
        }
    }

    /// Removes the directories above `path` that we made and that are empty now. Never the root: it is above every path.
    pub(super) async fn prune_parents(&self, path: &RelativePath) -> Result<()> {
        const DOING: &str = "removing an empty directory above the volume";
        for outer in walk::ancestors(path) {
            let found = walk::find(&self.tree, &outer).await?;
            if !self.is_our_parent(&outer).await? {
                // Not even begun, where a crash came first: those above it may have been.
                if matches!(found, walk::Found::Missing) {
                    continue;
                }
                return Ok(());
            }
            if let walk::Found::At { parent, name, .. } = found {
                match self.tree.remove_dir(&parent, &name).await {
                    Ok(()) => self.tree.sync(&parent).await.or_failure(Changed::Maybe, DOING)?,
                    Err(error) if error.kind == ErrorKind::Missing => {}
                    // Others are in there, or it is not a directory of ours any more: it stays.
                    Err(_) => return Ok(()),
                }
            }
            let notes = layout::own_dir(&self.tree, &PARENTS).await?;
            match self.tree.unlink(&notes, &layout::file_name(&outer)).await {
                Err(error) if error.kind == ErrorKind::Missing => {}
                result => result.or_failure(Changed::Maybe, DOING)?,
            }
        }
        Ok(())
    }
}
