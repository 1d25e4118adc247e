//! What is there.

use super::Volumes;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, TRASH, TRASH_DATA, TRASH_RECORD};
use crate::walk::{Found, find};
use crate::{ErrorKind, Place, Record, Tree, identity, prefix, record};
use volwright_provisioner::{Failure, MarkState, Observed, Pristine, Result, Until};

impl<T: Tree> Volumes<T> {
    /// The volume as it is now. `None` is a statement: the root is the right one, and the volume is not there.
    pub async fn observe(&self, place: &Place) -> Result<Option<Observed>> {
        let _busy = self.enter(place).await?;
        let seen = self.look_at(place).await?;
        if seen.is_none() {
            // Absence counts only where the root shows its identity, and it may have gone since.
            self.expect_root(&self.root_id).await?;
        }
        Ok(seen)
    }

    async fn look_at(&self, place: &Place) -> Result<Option<Observed>> {
        let found = record::at(&self.tree, &place.path).await?;
        if let Some(found) = found.as_ref().filter(|found| found.is_at(place)) {
            if found.is_trashed() {
                return Ok(None); // a restore of it was cut off
            }
            return self.recorded(place, found).await.map(Some);
        }
        // What is kept in the trash has left its place; what is on its way out has not gone yet.
        if let Some(trashed) = self.trash_record(place).await?.filter(|record| !record.is_trashed()) {
            let pristine = self.trash_pristine(place).await?;
            return Ok(Some(observed(&trashed, pristine)));
        }
        if found.is_some() || prefix::recorded_ancestor(&self.tree, &place.path).await?.is_some() {
            // The path is given out to another volume, or lies in one: what is there is that one's.
            return Ok(None);
        }
        match find(&self.tree, &place.path).await? {
            Found::Missing | Found::InTheWay { .. } => Ok(None),
            Found::At { .. } => {
                let pristine = if self.is_empty_at(place).await? { Pristine::Yes } else { Pristine::No };
                Ok(Some(Observed { mark: None, size: None, pristine, users: Vec::new() }))
            }
        }
    }

    pub(super) async fn recorded(&self, place: &Place, found: &Record) -> Result<Observed> {
        let pristine = match find(&self.tree, &place.path).await? {
            Found::At { .. } if self.is_empty_at(place).await? => Pristine::Yes,
            Found::At { .. } => Pristine::No,
            // A delete that was cut off may have moved it already.
            Found::Missing => self.trash_pristine(place).await?,
            Found::InTheWay { .. } if found.mark.state == MarkState::Planned => Pristine::Yes,
            Found::InTheWay { path, what } => {
                return Err(Failure::blocked(
                    Until::OperatorActs,
                    format!(
                        "{path} on the path of the volume {} has become {what}; bring the directory back. The volume is \
                         kept",
                        place.path
                    ),
                ));
            }
        };
        Ok(observed(found, pristine))
    }

    /// The record of a volume on its way out.
    pub(super) async fn trash_record(&self, place: &Place) -> Result<Option<Record>> {
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        match self.tree.open_dir(&trash, &place.id.name()).await {
            Ok(entry) => record::read(&self.tree, &entry, &TRASH_RECORD).await,
            Err(error) if error.kind == ErrorKind::Missing => Ok(None),
            Err(error) => Err(error).or_failure(Changed::Nothing, "looking into the trash"),
        }
    }

    /// Is there nothing left of a volume, or only its empty directory?
    pub(super) async fn trash_pristine(&self, place: &Place) -> Result<Pristine> {
        const DOING: &str = "looking into the trash";
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        let entry = match self.tree.open_dir(&trash, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => return Ok(Pristine::Yes),
            result => result.or_failure(Changed::Nothing, DOING)?,
        };
        match self.tree.open_dir(&entry, &TRASH_DATA).await {
            Err(error) if error.kind == ErrorKind::Missing => Ok(Pristine::Yes),
            Err(error) if matches!(error.kind, ErrorKind::NotADirectory | ErrorKind::CrossesMount) => {
                Ok(Pristine::No)
            }
            result => {
                let data = result.or_failure(Changed::Nothing, DOING)?;
                let empty =
                    identity::is_empty(&self.tree, &data).await.or_failure(Changed::Nothing, DOING)?;
                Ok(if empty { Pristine::Yes } else { Pristine::No })
            }
        }
    }
}

pub(super) fn observed(record: &Record, pristine: Pristine) -> Observed {
    Observed { mark: Some(record.mark.clone()), size: Some(record.wanted.size), pristine, users: Vec::new() }
}
