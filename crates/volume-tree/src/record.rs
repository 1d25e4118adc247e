//! What is known of a volume: the mark on it, and what was asked for.

use crate::failure::{Changed, ResultExt};
use crate::layout::{self, RECORDS};
use crate::{ErrorKind, Name, Place, Tree, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use volwright_provisioner::{Failure, Mark, MarkState, RelativePath, Result, Until};

/// One volume's record: a small file, written whole and durably.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Of the format.
    pub(crate) version: u16,
    /// Whose it is, and where in its life.
    pub mark: Mark,
    /// Its path below the root.
    pub path: String,
    /// Its private name.
    pub volume: VolumeId,
    /// What was asked for.
    #[serde(flatten)]
    pub wanted: Wanted,
}

/// What is asked of a new volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wanted {
    /// Bytes promised.
    pub size: u64,
    /// Permission bits of the directory.
    pub mode: u32,
    /// Its owner; `None` leaves it to the provisioner's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// Its group; `None` leaves it to the provisioner's group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// What the backend wants to find again: its node, the claim's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<String, String>,
}

const VERSION: u16 = 1;
/// A record has a few hundred bytes; paths and notes may add some thousand.
const SIZE_MAX: usize = 64 * 1024;

impl Record {
    pub(crate) fn new(place: &Place, mark: &Mark, state: MarkState, wanted: &Wanted) -> Self {
        Self {
            version: VERSION,
            mark: mark.with_state(state),
            path: place.path.to_string(),
            volume: place.id.clone(),
            wanted: wanted.clone(),
        }
    }

    /// The place it speaks of. `None` for a path that could never have been given out.
    pub fn place(&self) -> Option<Place> {
        let path = RelativePath::parse(&self.path).ok()?;
        Some(Place { path, id: self.volume.clone() })
    }

    /// Is it the record of this volume? The path is compared too: a file system that folds cases shows one file under
    /// two names.
    pub(crate) fn is_of(&self, place: &Place, mark: &Mark) -> bool {
        self.is_at(place) && self.mark.same_owner(mark)
    }

    pub(crate) fn is_at(&self, place: &Place) -> bool {
        self.volume == place.id && self.path == place.path.to_string()
    }
}

/// Reads the record in the file `name`, if there is one.
pub(crate) async fn read<T: Tree>(tree: &T, dir: &T::Dir, name: &Name) -> Result<Option<Record>> {
    let bytes = match tree.read_file(dir, name, SIZE_MAX).await {
        Err(error) if error.kind == ErrorKind::Missing => return Ok(None),
        result => result.or_failure(Changed::Nothing, "reading the volume's record")?,
    };
    match serde_json::from_slice::<Record>(&bytes) {
        Ok(record) if record.version <= VERSION => Ok(Some(record)),
        Ok(_) => Err(Failure::blocked(
            Until::OperatorActs,
            format!(
                "the record {name} was written by a newer version; upgrade the provisioner. The volume is kept"
            ),
        )),
        Err(error) => Err(Failure::blocked(
            Until::OperatorActs,
            format!("the record {name} cannot be read; restore it from a backup. The volume is kept"),
        )
        .caused_by(error)),
    }
}

/// Reads the record of a path.
pub(crate) async fn at<T: Tree>(tree: &T, path: &RelativePath) -> Result<Option<Record>> {
    let records = layout::own_dir(tree, &RECORDS).await?;
    read(tree, &records, &layout::file_name(path)).await
}

pub(crate) async fn write<T: Tree>(
    tree: &T,
    dir: &T::Dir,
    name: &Name,
    record: &Record,
    changed: Changed,
) -> Result<()> {
    let bytes = serde_json::to_vec(record)
        .map_err(|e| Failure::unavailable("the volume's record cannot be encoded").caused_by(e))?;
    tree.write_file(dir, name, &bytes).await.or_failure(changed, "writing the volume's record")
}

/// Writes the record of a path, durably.
pub(crate) async fn put<T: Tree>(
    tree: &T,
    path: &RelativePath,
    record: &Record,
    changed: Changed,
) -> Result<()> {
    let records = layout::own_dir(tree, &RECORDS).await?;
    write(tree, &records, &layout::file_name(path), record, changed).await
}

/// Takes the record of a path away, durably.
pub(crate) async fn remove<T: Tree>(tree: &T, path: &RelativePath) -> Result<()> {
    const DOING: &str = "removing the volume's record";
    let records = layout::own_dir(tree, &RECORDS).await?;
    match tree.unlink(&records, &layout::file_name(path)).await {
        Err(error) if error.kind == ErrorKind::Missing => {}
        result => result.or_failure(Changed::Maybe, DOING)?,
    }
    tree.sync(&records).await.or_failure(Changed::Maybe, DOING)
}
