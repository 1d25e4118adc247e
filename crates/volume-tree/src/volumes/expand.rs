//! A volume that is to hold more. Without a quota a size is a promise, so what grows is the record.

use super::Volumes;
use crate::failure::Changed;
use crate::walk::{Found, find};
use crate::{FileKind, Place, Record, Tree, Wanted, record};
use volwright_provisioner::{Failure, Mark, MarkState, Result, Until};

impl<T: Tree> Volumes<T> {
    /// Records that the volume is to hold at least `size` bytes, durably, and answers what it then may hold. A volume that
    /// may hold as much already is left as it is. `Exhausted` where the disk has no room for what is added.
    pub async fn expand(&self, place: &Place, mark: &Mark, size: u64) -> Result<u64> {
        let _busy = self.enter(place).await?;
        let found = self.own_record(place, mark).await?;
        match found.mark.state {
            MarkState::Unpublished | MarkState::Published => {}
            MarkState::Planned => {
                return Err(Failure::unavailable(format!("the volume at {} is not made yet", place.path)));
            }
            MarkState::Retained | MarkState::Trashed => {
                return Err(Failure::blocked(
                    Until::OperatorActs,
                    format!("the volume at {} is kept for whoever brings its PV back", place.path),
                ));
            }
        }
        match find(&self.tree, &place.path).await? {
            Found::At { stat, .. } if stat.kind == FileKind::Directory => {}
            Found::At { .. } | Found::Missing | Found::InTheWay { .. } => {
                return Err(Failure::blocked(
                    Until::OperatorActs,
                    format!("the directory {} is gone or replaced; bring it back", place.path),
                ));
            }
        }
        let had = found.wanted.size;
        if had >= size {
            // Whoever wrote it may have been cut off before it was durable.
            record::settle(&self.tree).await?;
            return Ok(had);
        }
        self.check_room(size - had).await?;
        let grown = Record { wanted: Wanted { size, ..found.wanted.clone() }, ..found };
        record::put(&self.tree, &place.path, &grown, Changed::Maybe).await?;
        Ok(size)
    }
}
