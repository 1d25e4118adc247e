//! Removing a volume: into the trash, record, contents, trash entry. An undo: only where it is empty, and in its place.

use super::Volumes;
use super::create::as_wanted;
use super::empty::Emptied;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, NEW, TRASH, TRASH_DATA, TRASH_RECORD};
use crate::walk::{Found, find};
use crate::{ErrorKind, FileKind, Name, Place, Record, Stat, Tree, prefix, record};
use std::time::Duration;
use volwright_provisioner::{Failure, Mark, MarkState, Progress, Result, Trashed, Until};

/// The rest of a long removal is to go on soon, behind whatever else waits for the worker.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

impl<T: Tree> Volumes<T> {
    /// Destroys the volume. Its path is free as soon as it is in the trash; removing what is in it may take several
    /// calls. `Done` when it is already gone.
    ///
    /// A mark that says `unpublished` asks for an undo, which takes nothing that anybody has written: the directory goes
    /// only if it is empty, in the one step that finds that out.
    pub async fn delete(&self, place: &Place, mark: &Mark) -> Result<Progress<()>> {
        let _busy = self.enter(place).await?;
        match record::at(&self.tree, &place.path).await? {
            // A restore of it was cut off: what was trashed goes by `purge` alone.
            Some(found) if found.is_of(place, mark) && found.is_trashed() => return Ok(Progress::Done(())),
            Some(found) if found.is_of(place, mark) => self.stage(place, mark, None).await?,
            found => {
                if self.trash_record(place).await?.is_none() {
                    self.check_absent(place, found.as_ref()).await?;
                }
            }
        }
        if self.trash_record(place).await?.is_some_and(|record| record.is_trashed()) {
            return Ok(Progress::Done(()));
        }
        self.destroy(place, mark).await
    }

    /// Without a record of ours there must be nothing that could be the volume.
    pub(super) async fn check_absent(&self, place: &Place, other: Option<&Record>) -> Result<()> {
        if other.is_some() {
            return Err(Failure::not_ours(format!("the path {} is another volume's", place.path)));
        }
        if prefix::recorded_ancestor(&self.tree, &place.path).await?.is_some() {
            return Ok(()); // it lies in another volume, and is that one's data
        }
        match find(&self.tree, &place.path).await? {
            Found::Missing | Found::InTheWay { .. } => Ok(()),
            Found::At { stat, .. } => Err(Failure::blocked(
                Until::OperatorActs,
                format!(
                    "{} is at the path {} and has no record, so nobody can tell whose it is; remove it by hand, or \
                     restore its record. It is kept",
                    stat.kind.as_str(),
                    place.path
                ),
            )),
        }
    }

    /// Takes the volume out of its place: into the trash, to be kept there where `keep` says so.
    pub(super) async fn stage(&self, place: &Place, mark: &Mark, keep: Option<&Trashed>) -> Result<()> {
        if let Some(outer) = prefix::recorded_ancestor(&self.tree, &place.path).await? {
            return Err(blocked(place, &format!("it lies in the volume at {outer}; look at both")));
        }
        let mounts = self.tree.mounts_below(&place.path).await;
        let mounts = mounts.or_failure(Changed::Nothing, "reading the mount table")?;
        if let Some(first) = mounts.first() {
            return Err(mounted(first));
        }
        let undo = mark.state == MarkState::Unpublished;
        let _paths = self.paths.lock().await;
        let there = find(&self.tree, &place.path).await?;
        // Read once more, last of all: what is said here decides.
        let found = self.read_once_more(place, mark).await?;
        if undo && matches!(found.mark.state, MarkState::Retained | MarkState::Trashed) {
            return Err(blocked(place, "it was kept on purpose since"));
        }
        match there {
            Found::Missing => {}
            Found::InTheWay { path, what } => {
                if found.mark.state != MarkState::Planned {
                    return Err(blocked(place, &format!("{path} on its path has become {what}")));
                }
            }
            Found::At { parent, name, stat } => {
                if found.mark.state == MarkState::Planned {
                    self.remove_unused(place, mark, &parent, &name, &stat, &found).await?;
                } else if stat.kind != FileKind::Directory {
                    return Err(blocked(place, &format!("it has become {}", stat.kind.as_str())));
                } else if undo {
                    self.remove_empty(place, &parent, &name).await?;
                } else {
                    self.move_to_trash(place, mark, &found, keep, &parent, &name, &stat).await?;
                }
            }
        }
        self.remove_private(place).await?;
        self.prune_parents(&place.path).await?;
        record::remove(&self.tree, &place.path).await
    }

    async fn read_once_more(&self, place: &Place, mark: &Mark) -> Result<Record> {
        let found = record::at(&self.tree, &place.path).await?;
        let found = found
            .ok_or_else(|| Failure::unavailable("the volume's record went away just now; looking again"))?;
        found.check_yields(place, mark)?;
        Ok(found)
    }

    /// A plan may have got as far as a directory in its place. Anything else there is foreign and stays.
    async fn remove_unused(
        &self,
        place: &Place,
        mark: &Mark,
        parent: &T::Dir,
        name: &Name,
        stat: &Stat,
        found: &Record,
    ) -> Result<()> {
        let new = layout::own_dir(&self.tree, &NEW).await?;
        if stat.kind != FileKind::Directory || self.exists(&new, &place.id.name()).await? {
            return Ok(()); // ours is a directory, and has left its private name when it is here
        }
        if !self.is_empty_at(place).await? {
            if mark.state == MarkState::Unpublished {
                // Ours, and written into before its record said that it is made, or somebody else's.
                return Err(not_empty(place));
            }
            return Ok(());
        }
        if !as_wanted(stat, &found.wanted) {
            return Ok(());
        }
        self.read_once_more(place, mark).await?;
        self.remove_empty(place, parent, name).await
    }

    /// Removes the directory in its place if it is empty, which nobody but the file system can say for sure: between a
    /// look and a move to the trash somebody may write.
    async fn remove_empty(&self, place: &Place, parent: &T::Dir, name: &Name) -> Result<()> {
        const DOING: &str = "removing an unused volume";
        match self.tree.remove_dir(parent, name).await {
            Ok(()) => {}
            Err(error) => match error.kind {
                ErrorKind::Missing => {}
                ErrorKind::NotEmpty => return Err(not_empty(place).caused_by(error)),
                ErrorKind::NotADirectory => {
                    return Err(blocked(place, "it has become a link or a file").caused_by(error));
                }
                ErrorKind::Busy | ErrorKind::CrossesMount => {
                    return Err(mounted(&place.path.to_string()).caused_by(error));
                }
                _ => return Err(error).or_failure(Changed::Maybe, DOING),
            },
        }
        // Before its record goes: a directory that came back after a power failure would be nobody's.
        self.tree.sync(parent).await.or_failure(Changed::Maybe, DOING)
    }

    #[expect(clippy::too_many_arguments, reason = "all that was found at the place, each once")]
    async fn move_to_trash(
        &self,
        place: &Place,
        mark: &Mark,
        found: &Record,
        keep: Option<&Trashed>,
        parent: &T::Dir,
        name: &Name,
        stat: &Stat,
    ) -> Result<()> {
        const DOING: &str = "moving the volume to the trash";
        match self.tree.open_dir(parent, name).await {
            Ok(_) => {}
            Err(error) if matches!(error.kind, ErrorKind::CrossesMount) => {
                return Err(mounted(&place.path.to_string()).caused_by(error));
            }
            Err(error) if error.kind == ErrorKind::NotADirectory => {
                return Err(blocked(place, "it has become a link or a file").caused_by(error));
            }
            Err(error) => return Err(error).or_failure(Changed::Nothing, DOING),
        }
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let entry = layout::open_or_make(&self.tree, &trash, &place.id.name()).await;
        let entry = entry.or_failure(Changed::FirstStep, DOING)?;
        // The record goes along before the volume moves: from then on the trash entry speaks for it.
        let record = match keep {
            Some(trashed) => found.clone().into_trash(mark, trashed),
            None => found.clone().without_intent(),
        };
        record::write(&self.tree, &entry, &TRASH_RECORD, &record, Changed::FirstStep).await?;
        self.read_once_more(place, mark).await?;
        match self.tree.rename(parent, name, &entry, &TRASH_DATA).await {
            Err(error) if error.kind == ErrorKind::Exists => {
                return Err(blocked(place, "a part of it is in the trash already").caused_by(error));
            }
            Err(error) if matches!(error.kind, ErrorKind::Busy | ErrorKind::CrossesMount) => {
                return Err(mounted(&place.path.to_string()).caused_by(error));
            }
            result => result.or_failure(Changed::Maybe, DOING)?,
        }
        let moved = self.tree.stat(&entry, &TRASH_DATA).await.or_failure(Changed::Maybe, DOING)?;
        if moved.inode != stat.inode {
            return Err(blocked(place, "it was swapped for something else just now, which is in the trash"));
        }
        self.tree.sync(&entry).await.or_failure(Changed::Maybe, DOING)?;
        self.tree.sync(parent).await.or_failure(Changed::Maybe, DOING)
    }

    /// Removes what is in the trash of this volume.
    pub(super) async fn destroy(&self, place: &Place, mark: &Mark) -> Result<Progress<()>> {
        const DOING: &str = "removing the volume from the trash";
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let entry = match self.tree.open_dir(&trash, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => {
                self.expect_root(&self.root_id).await?;
                return Ok(Progress::Done(()));
            }
            result => result.or_failure(Changed::Maybe, DOING)?,
        };
        let data = match self.tree.open_dir(&entry, &TRASH_DATA).await {
            Ok(data) => Some(data),
            Err(error) => match error.kind {
                ErrorKind::Missing => None,
                ErrorKind::NotADirectory => {
                    return Err(blocked(place, "it was swapped for something else, which is in the trash")
                        .caused_by(error));
                }
                ErrorKind::CrossesMount => return Err(mounted(&place.path.to_string()).caused_by(error)),
                _ => return Err(error).or_failure(Changed::Maybe, DOING),
            },
        };
        if let Some(data) = data {
            // The mark, read as the last thing before what cannot be taken back.
            match record::read(&self.tree, &entry, &TRASH_RECORD).await? {
                Some(found) => found.check_yields(place, mark)?,
                None => return Err(blocked(place, "its record in the trash is missing")),
            }
            if let Emptied::NotYet { removed } = self.empty(&data).await? {
                return Ok(Progress::Pending {
                    after: AGAIN_AFTER,
                    note: format!("removing the volume's files, {removed} more are gone"),
                });
            }
            drop(data);
            match self.tree.remove_dir(&entry, &TRASH_DATA).await {
                Err(error) if error.kind == ErrorKind::NotEmpty => {
                    // Somebody still has it open and makes files.
                    let note = "removing the volume's files, while somebody makes new ones".to_owned();
                    return Ok(Progress::Pending { after: Duration::from_secs(1), note });
                }
                Err(error) if error.kind == ErrorKind::Missing => {}
                result => result.or_failure(Changed::Maybe, DOING)?,
            }
        }
        self.remove_entry(place, &trash, &entry, DOING).await?;
        Ok(Progress::Done(()))
    }

    /// Removes an entry of the trash in which no data is left.
    pub(super) async fn remove_entry(
        &self,
        place: &Place,
        trash: &T::Dir,
        entry: &T::Dir,
        doing: &'static str,
    ) -> Result<()> {
        for name in self.names(entry).await? {
            match self.tree.unlink(entry, &name).await {
                Err(error) if error.kind == ErrorKind::Missing => {}
                result => result.or_failure(Changed::Maybe, doing)?,
            }
        }
        match self.tree.remove_dir(trash, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => {}
            result => result.or_failure(Changed::Maybe, doing)?,
        }
        self.tree.sync(trash).await.or_failure(Changed::Maybe, doing)
    }
}

pub(super) fn blocked(place: &Place, why: &str) -> Failure {
    let path = &place.path;
    Failure::blocked(Until::OperatorActs, format!("the volume {path} is kept: {why}. Somebody must look"))
}

fn not_empty(place: &Place) -> Failure {
    blocked(place, "it is not empty any more, and no PV is known to speak for it")
}

pub(super) fn mounted(what: &str) -> Failure {
    Failure::blocked(
        Until::Unused,
        format!(
            "another file system is mounted at {what} in the volume; unmount it, and the removal goes on"
        ),
    )
}
