//! What is kept in the trash: put there, brought back, or destroyed for good.
//!
//! ```text
//! trash:   entry with its record (trashed) -> renamed into it -> record of the path gone (the path is free)
//! restore: record of the path (trashed) -> renamed into place -> record (retained) -> entry gone
//! purge:   record compared -> record (purging) -> emptied -> entry gone
//! ```
//! While both records are there, that of the path speaks for the volume; while it says `trashed`, the volume counts as in
//! the trash wherever its data is.

use super::Volumes;
use super::remove::blocked;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, TRASH, TRASH_DATA, TRASH_RECORD};
use crate::walk::{Found, find};
use crate::{ErrorKind, Name, Place, Record, Tree, prefix, record, walk};
use volwright_provisioner::{Class, Failure, Mark, MarkState, Progress, Result, Trashed, Until};

impl<T: Tree> Volumes<T> {
    /// Moves the volume into the trash, to be kept there. Answers with the record as it stands: that of an earlier call
    /// stays. `None`: there is nothing of it, here or there.
    pub async fn trash(
        &self,
        place: &Place,
        mark: &Mark,
        trashed: &Trashed,
    ) -> Result<Progress<Option<Trashed>>> {
        let _busy = self.enter(place).await?;
        match record::at(&self.tree, &place.path).await? {
            Some(found) if found.is_of(place, mark) => {
                // Of a call that was cut off once the data had moved; or of a restore that was.
                let earlier = self.trash_record(place).await?.filter(Record::is_trashed);
                let is_there = matches!(find(&self.tree, &place.path).await?, Found::At { .. });
                let kept = match (&found.trashed, earlier) {
                    (Some(kept), _) => kept.clone(),
                    (None, Some(entry)) if !is_there => entry.trashed.unwrap_or_else(|| trashed.clone()),
                    (None, _) => trashed.clone(),
                };
                self.stage(place, mark, Some(&kept)).await?;
            }
            found => {
                if self.trash_record(place).await?.is_none() {
                    self.check_absent(place, found.as_ref()).await?;
                }
            }
        }
        let Some(entry) = self.trash_record(place).await? else {
            self.expect_root(&self.root_id).await?;
            return Ok(Progress::Done(None));
        };
        entry.check_yields(place, mark)?;
        if entry.is_trashed() && entry.trashed.is_some() {
            return Ok(Progress::Done(entry.trashed));
        }
        // It was being deleted, and is to be kept now: what is left of it is.
        let entry = entry.into_trash(mark, trashed);
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let dir = self.tree.open_dir(&trash, &place.id.name()).await;
        let dir = dir.or_failure(Changed::Maybe, "opening the trash")?;
        record::write(&self.tree, &dir, &TRASH_RECORD, &entry, Changed::FirstStep).await?;
        Ok(Progress::Done(entry.trashed))
    }

    /// Brings it back into its place.
    pub async fn restore(&self, place: &Place, mark: &Mark) -> Result<Progress<()>> {
        let _busy = self.enter(place).await?;
        let found = record::at(&self.tree, &place.path).await?;
        let entry = self.trash_record(place).await?;
        if let Some(entry) = &entry {
            entry.check_yields(place, mark)?;
        }
        let own = found.as_ref().filter(|found| found.is_of(place, mark));
        if let Some(own) = own {
            own.check_yields(place, mark)?;
        }
        match (own, entry) {
            // Back, but for an entry without data that was not cleared away.
            (Some(own), entry) if !own.is_trashed() => {
                if entry.is_some_and(|entry| entry.is_trashed()) {
                    self.clear_entry(place).await?;
                }
                return Ok(Progress::Done(()));
            }
            (Some(_), _) => {}
            (None, Some(entry)) if entry.purging => return Err(is_going(place)),
            (None, Some(entry)) if entry.is_trashed() => {
                if found.is_some() {
                    return Err(in_its_place(place, "another volume"));
                }
                self.claim_path(place, mark, &entry).await?;
            }
            (None, Some(_)) => return Err(is_going(place)),
            (None, None) => {
                self.expect_root(&self.root_id).await?;
                return Err(Failure::invalid(format!(
                    "the volume {} is not in the trash any more: it was purged. Restore its data from a backup",
                    place.path
                )));
            }
        }
        self.move_back(place).await?;
        let Some(own) = record::at(&self.tree, &place.path).await? else {
            return Err(Failure::unavailable("the volume's record went away just now; looking again"));
        };
        own.check_yields(place, mark)?;
        let retained = own.marked(mark.with_state(MarkState::Retained));
        record::put(&self.tree, &place.path, &retained, Changed::Maybe).await?;
        self.clear_entry(place).await?;
        Ok(Progress::Done(()))
    }

    /// Destroys what is kept in the trash, if it is still what was `judged`.
    pub async fn purge(&self, place: &Place, mark: &Mark, judged: &Trashed) -> Result<Progress<()>> {
        let _busy = self.enter(place).await?;
        let own = record::at(&self.tree, &place.path).await?.filter(|found| found.is_at(place));
        if let Some(own) = own {
            own.check_yields(place, mark)?;
            if !own.is_trashed() {
                return Ok(Progress::Done(())); // in its place, and none of our business
            }
            same_record(&own, judged)?;
            // A restore that was cut off is taken back first.
            self.stage(place, mark, Some(judged)).await?;
        }
        match self.trash_record(place).await? {
            None => {}
            Some(entry) => {
                entry.check_yields(place, mark)?;
                if !entry.is_trashed() {
                    return Ok(Progress::Done(())); // on its way out by a delete, which finishes it
                }
                same_record(&entry, judged)?;
                if !entry.purging {
                    self.begin_purge(place, entry).await?;
                }
            }
        }
        self.destroy(place, mark).await
    }

    /// Recorded before anything of it goes: a restore in between, or after a crash, must not bring a part back for the whole.
    async fn begin_purge(&self, place: &Place, entry: Record) -> Result<()> {
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let dir = self.tree.open_dir(&trash, &place.id.name()).await;
        let dir = dir.or_failure(Changed::Maybe, "opening the trash")?;
        let entry = Record { purging: true, ..entry };
        record::write(&self.tree, &dir, &TRASH_RECORD, &entry, Changed::FirstStep).await
    }

    /// Gives the path out again, to the volume that is in the trash.
    async fn claim_path(&self, place: &Place, mark: &Mark, entry: &Record) -> Result<()> {
        let _paths = self.paths.lock().await;
        if record::at(&self.tree, &place.path).await?.is_some() {
            return Err(in_its_place(place, "another volume"));
        }
        match find(&self.tree, &place.path).await? {
            Found::Missing => {}
            Found::At { stat, .. } => return Err(in_its_place(place, stat.kind.as_str())),
            Found::InTheWay { path, what } => return Err(in_its_place(place, &format!("{path}, {what},"))),
        }
        match prefix::check_free(&self.tree, &place.path).await {
            Err(failure) if failure.class() == Class::NotOurs => {
                return Err(in_its_place(place, "a volume above or below").caused_by(failure));
            }
            free => free?,
        }
        let record = entry.clone().marked(mark.with_state(MarkState::Trashed));
        record::put(&self.tree, &place.path, &record, Changed::FirstStep).await
    }

    /// From the trash into its place. Done already where a call was cut off after it.
    async fn move_back(&self, place: &Place) -> Result<()> {
        const DOING: &str = "moving the volume back into its place";
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let entry = match self.tree.open_dir(&trash, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(()),
            result => result.or_failure(Changed::Maybe, DOING)?,
        };
        let _paths = self.paths.lock().await;
        let parent = self.make_parents(&place.path).await?;
        let name = Name::component(walk::split(&place.path).0);
        match self.tree.rename(&entry, &TRASH_DATA, &parent, &name).await {
            Err(error) if error.kind == ErrorKind::Missing => {}
            Err(error) if error.kind == ErrorKind::Exists => {
                return Err(in_its_place(place, "something").caused_by(error));
            }
            result => result.or_failure(Changed::Maybe, DOING)?,
        }
        self.tree.sync(&parent).await.or_failure(Changed::Maybe, DOING)?;
        self.tree.sync(&entry).await.or_failure(Changed::Maybe, DOING)
    }

    /// Removes an entry of the trash whose data has left it.
    async fn clear_entry(&self, place: &Place) -> Result<()> {
        const DOING: &str = "clearing the volume's entry in the trash";
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let entry = match self.tree.open_dir(&trash, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(()),
            result => result.or_failure(Changed::Maybe, DOING)?,
        };
        if self.exists(&entry, &TRASH_DATA).await? {
            return Err(blocked(place, "it is in its place, and a part of it is in the trash as well"));
        }
        self.remove_entry(place, &trash, &entry, DOING).await
    }
}

fn same_record(found: &Record, judged: &Trashed) -> Result<()> {
    if found.trashed.as_ref() == Some(judged) {
        return Ok(());
    }
    Err(Failure::unavailable(format!(
        "the volume {} was restored and trashed anew since it was judged; looking again",
        found.path
    )))
}

fn is_going(place: &Place) -> Failure {
    Failure::invalid(format!(
        "the volume {} is being destroyed, and what is left of it is not brought back; restore its data from a backup",
        place.path
    ))
}

fn in_its_place(place: &Place, what: &str) -> Failure {
    let path = &place.path;
    Failure::blocked(
        Until::OperatorActs,
        format!(
            "{what} is at the path {path} now, where the volume was; delete or move that, then restore again. The \
             volume stays in the trash"
        ),
    )
}
