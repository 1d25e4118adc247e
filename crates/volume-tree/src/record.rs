//! What is known of a volume: the mark on it, and what was asked for.

use crate::failure::{Changed, ResultExt};
use crate::layout::{self, RECORDS};
use crate::{ErrorKind, Name, Place, Tree, VolumeId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use volwright_provisioner::{Failure, Mark, MarkState, RelativePath, Result, Trashed, Until};

/// One volume's record: a small file, written whole and durably, before anything else of the volume. So it is the journal
/// of a create as well: after a crash it says what was being made, and why.
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
    /// By when it may go, while its mark says `trashed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trashed: Option<Trashed>,
    /// It is being taken out of the trash for good, so what is there may be a part of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) purging: bool,
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
    /// The engine's note about the create ([`Request::intent`](volwright_provisioner::Request::intent)). Kept while the
    /// volume is planned or unpublished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
}

const VERSION: u16 = 1;
/// A record has a few hundred bytes; paths and notes may add some thousand, and an intent 16 KiB, which are six times as
/// many where each byte has to be escaped. What is longer is never written.
const SIZE_MAX: usize = 128 * 1024;

impl Record {
    pub(crate) fn new(place: &Place, mark: &Mark, state: MarkState, wanted: &Wanted) -> Self {
        Self {
            version: VERSION,
            mark: mark.clone(),
            path: place.path.to_string(),
            volume: place.id.clone(),
            wanted: wanted.clone(),
            trashed: None,
            purging: false,
        }
        .marked(mark.with_state(state))
    }

    /// The same record with another mark. A volume that is published, retained or trashed is no longer being made.
    pub(crate) fn marked(self, mark: Mark) -> Self {
        match mark.state {
            MarkState::Planned | MarkState::Unpublished => Self { mark, trashed: None, ..self },
            MarkState::Published | MarkState::Retained => {
                Self { mark, trashed: None, ..self.without_intent() }
            }
            MarkState::Trashed => Self { mark, ..self.without_intent() },
        }
    }

    /// The same record of a volume that is in the trash.
    pub(crate) fn into_trash(self, mark: &Mark, trashed: &Trashed) -> Self {
        let trashed = Some(trashed.clone());
        Self { trashed, ..self.marked(mark.with_state(MarkState::Trashed)) }
    }

    /// Is it in the trash to be kept there, rather than on its way out?
    pub(crate) fn is_trashed(&self) -> bool {
        self.mark.state == MarkState::Trashed
    }

    pub(crate) fn without_intent(self) -> Self {
        Self { wanted: Wanted { intent: None, ..self.wanted }, ..self }
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

    /// Fails unless a call with the mark `asked` may change this volume.
    pub(crate) fn check_yields(&self, place: &Place, asked: &Mark) -> Result<()> {
        if !self.is_of(place, asked) {
            return Err(Failure::not_ours(format!("the path {} is another volume's", place.path)));
        }
        if !self.mark.yields_to(asked) {
            return Err(Failure::unavailable(format!(
                "a later leader of the provisioner has marked the volume {} since; this call comes too late",
                place.path
            )));
        }
        Ok(())
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
    if bytes.len() > SIZE_MAX {
        return Err(Failure::invalid(format!(
            "the volume's record would have {} bytes and could not be read again; shorten its path or notes",
            bytes.len()
        )));
    }
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

/// Makes a record durable that was found: whoever wrote it may have been cut off between moving the file into place and
/// syncing the directory.
pub(crate) async fn settle<T: Tree>(tree: &T) -> Result<()> {
    let records = layout::own_dir(tree, &RECORDS).await?;
    tree.sync(&records).await.or_failure(Changed::FirstStep, "writing the volume's record")
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

#[cfg(test)]
mod tests {
    use super::*;
    use volwright_provisioner::{ClaimUid, Epoch, InstallationId, PvName};

    /// What version 0.1.0 wrote before there were intents: it must be read for ever, and is still written without one.
    const OLD: &str = r#"{"version":1,"mark":{"installation":"i","owner":"u","pvName":"pvc-u","epoch":{"number":0,"token":0},"state":"unpublished"},"path":"ns/v","volume":"0123456789abcdef0123456789abcdef","size":1048576,"mode":511,"uid":7,"notes":{"claim":"v"}}"#;

    #[test]
    fn records_without_an_intent_are_read_and_written_as_they_were() {
        let record: Record = serde_json::from_str(OLD).unwrap();
        assert_eq!((record.wanted.intent.as_deref(), record.wanted.size), (None, 1 << 20));
        assert_eq!(serde_json::to_string(&record).unwrap(), OLD);
        let wanted = Wanted { intent: Some(r#"{"a":1}"#.into()), ..record.wanted.clone() };
        let with = serde_json::to_string(&Record { wanted, ..record }).unwrap();
        assert_eq!(with, OLD.replace(r#"{"claim":"v"}}"#, r#"{"claim":"v"},"intent":"{\"a\":1}"}"#));
        assert_eq!(
            serde_json::from_str::<Record>(&with).unwrap().wanted.intent.as_deref(),
            Some(r#"{"a":1}"#)
        );
    }

    #[test]
    fn an_intent_of_the_longest_always_fits() {
        let record: Record = serde_json::from_str(OLD).unwrap();
        let wanted = Wanted { intent: Some("\u{1}".repeat(16 * 1024)), ..record.wanted.clone() };
        let path = "\u{1}".repeat(4000);
        let record = Record { path, wanted, ..record };
        assert!(serde_json::to_vec(&record).unwrap().len() < SIZE_MAX);
    }

    #[test]
    fn an_intent_ends_with_the_create() {
        let mark = |state| Mark {
            installation: InstallationId::new("i"),
            owner: ClaimUid::new("u"),
            pv_name: PvName::new("pvc-u"),
            epoch: Epoch::default(),
            state,
        };
        let record: Record = serde_json::from_str(OLD).unwrap();
        let wanted = Wanted { intent: Some("making".into()), ..record.wanted.clone() };
        let record = Record { wanted, ..record };
        for (state, kept) in [
            (MarkState::Planned, true),
            (MarkState::Unpublished, true),
            (MarkState::Published, false),
            (MarkState::Retained, false),
            (MarkState::Trashed, false),
        ] {
            let marked = record.clone().marked(mark(state));
            assert_eq!((marked.mark.state, marked.wanted.intent.is_some()), (state, kept));
            assert_eq!(marked.wanted.notes, record.wanted.notes);
        }
    }
}
