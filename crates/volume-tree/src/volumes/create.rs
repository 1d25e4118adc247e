//! Making a volume: record, private directory, into place, record.

use super::Volumes;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, NEW, TRASH};
use crate::walk::{Found, find};
use crate::{ErrorKind, FileKind, Place, Record, Stat, Tree, Wanted, identity, prefix, record};
use volwright_provisioner::{Class, Failure, Mark, MarkState, Result, Until};

impl<T: Tree> Volumes<T> {
    /// Makes the volume, or finishes what an earlier call began. Answers its size. A directory that is there already and
    /// not recorded is refused, even an empty one. What is wanted, the intent with it, is recorded durably before anything
    /// else is made.
    pub async fn provision(&self, place: &Place, mark: &Mark, wanted: &Wanted) -> Result<u64> {
        let _busy = self.enter(place).await?;
        match record::at(&self.tree, &place.path).await? {
            None => self.record_plan(place, mark, wanted).await?,
            Some(found) if !found.is_of(place, mark) => {
                return Err(another_volumes(place));
            }
            Some(found) => {
                found.check_yields(place, mark)?;
                let planned = Record::new(place, mark, MarkState::Planned, wanted);
                match found.mark.state {
                    MarkState::Planned if found == planned => record::settle(&self.tree).await?,
                    MarkState::Planned => self.put(place, mark, MarkState::Planned, wanted).await?,
                    MarkState::Unpublished | MarkState::Published => {
                        if let Some(size) = self.made_already(place, mark, &found, wanted).await? {
                            return Ok(size);
                        }
                    }
                    MarkState::Retained | MarkState::Trashed => {
                        return Err(Failure::not_ours(format!(
                            "a volume that was kept is at the path {}; move it away, or choose another pathPattern",
                            place.path
                        )));
                    }
                }
            }
        }
        self.make(place, mark, wanted).await?;
        Ok(wanted.size)
    }

    /// Gives the path out: the first thing that is written, and the last that is checked.
    async fn record_plan(&self, place: &Place, mark: &Mark, wanted: &Wanted) -> Result<()> {
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        if self.trash_record(place).await?.is_some_and(|record| record.is_trashed()) {
            // Never an empty volume in place of data.
            return Err(Failure::blocked(
                Until::OperatorActs,
                "an earlier volume of this claim is in the trash; restore it, or make the claim anew",
            ));
        }
        if self.exists(&trash, &place.id.name()).await? {
            return Err(Failure::blocked(
                Until::Settled,
                "an earlier volume of this claim is still being removed",
            ));
        }
        let _paths = self.paths.lock().await;
        // Nobody had the path when the call began, but only now nobody else can be given it.
        if record::at(&self.tree, &place.path).await?.is_some() {
            return Err(another_volumes(place));
        }
        match find(&self.tree, &place.path).await? {
            Found::Missing => {}
            Found::At { stat, .. } => return Err(taken(place, stat.kind.as_str())),
            Found::InTheWay { path, what } => return Err(in_the_way(place, &path, what)),
        }
        prefix::check_free(&self.tree, &place.path).await?;
        self.check_room(wanted.size).await?;
        self.put(place, mark, MarkState::Planned, wanted).await
    }

    /// For a record that says the volume is made. `None`: it is gone and was never used, so make it anew.
    async fn made_already(
        &self,
        place: &Place,
        mark: &Mark,
        found: &Record,
        wanted: &Wanted,
    ) -> Result<Option<u64>> {
        match find(&self.tree, &place.path).await? {
            Found::At { stat, .. } if stat.kind == FileKind::Directory => {
                // Without a quota a promise is all that a size is.
                let size = found.wanted.size.max(wanted.size);
                let promised = Wanted { size, intent: wanted.intent.clone(), ..found.wanted.clone() };
                let now = Record::new(place, mark, found.mark.state, &promised);
                if now != *found {
                    record::put(&self.tree, &place.path, &now, Changed::Maybe).await?;
                }
                Ok(Some(size))
            }
            Found::Missing if found.mark.state == MarkState::Unpublished => {
                self.put(place, mark, MarkState::Planned, wanted).await?;
                Ok(None)
            }
            Found::At { .. } | Found::Missing | Found::InTheWay { .. } => Err(Failure::blocked(
                Until::OperatorActs,
                format!(
                    "the directory {} is gone or replaced, and its record says that it may have held data; bring it \
                     back, or remove the claim",
                    place.path
                ),
            )),
        }
    }

    async fn make(&self, place: &Place, mark: &Mark, wanted: &Wanted) -> Result<()> {
        match find(&self.tree, &place.path).await? {
            Found::Missing => {}
            Found::At { stat, .. } if self.is_our_new_one(place, &stat, wanted).await? => {
                // An earlier call moved it into place and got no further.
                return self.put(place, mark, MarkState::Unpublished, wanted).await;
            }
            Found::At { stat, .. } => {
                return self.give_up(place, mark, taken(place, stat.kind.as_str())).await;
            }
            Found::InTheWay { path, what } => {
                return self.give_up(place, mark, in_the_way(place, &path, what)).await;
            }
        }
        self.make_private(place, mark, wanted).await?;
        let moved = {
            let _paths = self.paths.lock().await;
            self.move_into_place(place).await
        };
        match moved {
            Err(failure) if failure.class() == Class::NotOurs => {
                return self.give_up(place, mark, failure).await;
            }
            moved => moved?,
        }
        self.put(place, mark, MarkState::Unpublished, wanted).await
    }

    /// Is the thing at a planned path the one that we moved there? It is then as wanted, empty, and no longer under its
    /// private name.
    async fn is_our_new_one(&self, place: &Place, stat: &Stat, wanted: &Wanted) -> Result<bool> {
        let new = layout::own_dir(&self.tree, &NEW).await?;
        Ok(as_wanted(stat, wanted)
            && !self.exists(&new, &place.id.name()).await?
            && self.is_empty_at(place).await?)
    }

    /// Makes the directory where nobody else can reach it, so that it appears with owner and mode or not at all.
    async fn make_private(&self, place: &Place, mark: &Mark, wanted: &Wanted) -> Result<()> {
        const DOING: &str = "making the volume's directory";
        let (new, name) = (layout::own_dir(&self.tree, &NEW).await?, place.id.name());
        let dir = match self.tree.make_dir(&new, &name).await {
            Err(error) if error.kind == ErrorKind::Exists => self.tree.open_dir(&new, &name).await,
            result => result,
        }
        .or_failure(Changed::Maybe, DOING)?;
        if wanted.uid.is_some() || wanted.gid.is_some() {
            self.tree
                .set_owner(&dir, wanted.uid, wanted.gid)
                .await
                .or_failure(Changed::Maybe, "setting the owner of the volume's directory")?;
        }
        self.tree
            .set_mode(&dir, wanted.mode)
            .await
            .or_failure(Changed::Maybe, "setting the mode of the volume's directory")?;
        let stat = self.tree.stat_dir(&dir).await.or_failure(Changed::Maybe, DOING)?;
        if !as_wanted(&stat, wanted) {
            let failure = Failure::invalid(format!(
                "the file system does not keep what was set: mode {:04o}, uid {}, gid {} instead of mode {:04o}, uid {}, \
                 gid {}; change the class's mode, uid or gid, or the mount or export options",
                stat.mode,
                stat.uid,
                stat.gid,
                wanted.mode,
                shown(wanted.uid),
                shown(wanted.gid),
            ));
            return self.give_up(place, mark, failure).await;
        }
        self.tree.sync(&dir).await.or_failure(Changed::Maybe, DOING)
    }

    async fn move_into_place(&self, place: &Place) -> Result<()> {
        const DOING: &str = "moving the volume into place";
        if let Some(outer) = prefix::recorded_ancestor(&self.tree, &place.path).await? {
            return Err(Failure::not_ours(format!("the path {} lies in the volume at {outer}", place.path)));
        }
        let new = layout::own_dir(&self.tree, &NEW).await?;
        let parent = self.make_parents(&place.path).await?;
        let name = crate::Name::component(crate::walk::split(&place.path).0);
        match self.tree.rename(&new, &place.id.name(), &parent, &name).await {
            Err(error) if error.kind == ErrorKind::Exists => return Err(taken(place, "something")),
            result => result.or_failure(Changed::Maybe, DOING)?,
        }
        self.tree.sync(&parent).await.or_failure(Changed::Maybe, DOING)
    }

    /// Takes back what was begun for a place that is not to be had, and passes on why.
    async fn give_up<R>(&self, place: &Place, mark: &Mark, why: Failure) -> Result<R> {
        let _paths = self.paths.lock().await;
        if let Some(found) = record::at(&self.tree, &place.path).await? {
            found.check_yields(place, mark)?;
        }
        self.remove_private(place).await?;
        self.prune_parents(&place.path).await?;
        record::remove(&self.tree, &place.path).await?;
        Err(why)
    }

    /// Removes the private directory of a volume that was never moved into place.
    pub(super) async fn remove_private(&self, place: &Place) -> Result<()> {
        let new = layout::own_dir(&self.tree, &NEW).await?;
        match self.tree.remove_dir(&new, &place.id.name()).await {
            Err(error) if error.kind == ErrorKind::Missing => Ok(()),
            result => result.or_failure(Changed::Maybe, "removing an unfinished volume"),
        }
    }

    async fn put(&self, place: &Place, mark: &Mark, state: MarkState, wanted: &Wanted) -> Result<()> {
        // Planned comes before anything else, the other states after it.
        let changed = if state == MarkState::Planned { Changed::FirstStep } else { Changed::Maybe };
        record::put(&self.tree, &place.path, &Record::new(place, mark, state, wanted), changed).await
    }

    pub(super) async fn exists(&self, dir: &T::Dir, name: &crate::Name) -> Result<bool> {
        match self.tree.stat(dir, name).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::Missing => Ok(false),
            Err(error) => Err(error).or_failure(Changed::Nothing, "reading the records"),
        }
    }

    /// Is there an empty directory at the place?
    pub(super) async fn is_empty_at(&self, place: &Place) -> Result<bool> {
        let Found::At { parent, name, .. } = find(&self.tree, &place.path).await? else {
            return Ok(false);
        };
        match self.tree.open_dir(&parent, &name).await {
            Ok(dir) => identity::is_empty(&self.tree, &dir)
                .await
                .or_failure(Changed::Nothing, "looking into the volume's directory"),
            // A link, a file, a mount point: not empty, whatever it is.
            Err(error)
                if matches!(
                    error.kind,
                    ErrorKind::NotADirectory | ErrorKind::CrossesMount | ErrorKind::Missing
                ) =>
            {
                Ok(false)
            }
            Err(error) => Err(error).or_failure(Changed::Nothing, "looking into the volume's directory"),
        }
    }
}

/// Has the directory the mode and owner that were asked for?
pub(super) fn as_wanted(stat: &Stat, wanted: &Wanted) -> bool {
    stat.kind == FileKind::Directory
        && stat.mode == wanted.mode
        && wanted.uid.is_none_or(|uid| uid == stat.uid)
        && wanted.gid.is_none_or(|gid| gid == stat.gid)
}

fn shown(id: Option<u32>) -> String {
    id.map_or_else(|| "any".to_owned(), |id| id.to_string())
}

fn another_volumes(place: &Place) -> Failure {
    Failure::not_ours(format!("the path {} is another volume's; choose another pathPattern", place.path))
}

fn taken(place: &Place, what: &str) -> Failure {
    Failure::not_ours(format!(
        "{what} is at the path {} already and is not recorded as a volume; move it away, or choose another pathPattern",
        place.path
    ))
}

fn in_the_way(place: &Place, path: &str, what: &str) -> Failure {
    Failure::not_ours(format!(
        "{path} on the path {} is {what}, which is never followed; move it away, or choose another pathPattern",
        place.path
    ))
}
