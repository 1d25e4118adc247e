//! The volumes of one root.

mod create; // provision
mod empty; // a directory of any size and depth made empty
mod expand; // more room
mod list; // inventory
mod observe; // what is there
mod parents; // directories above volumes
mod remove; // delete
mod trash; // trash, restore, purge

pub use self::empty::Slice;
pub use self::list::{Inventory, Listed};

use crate::failure::{Changed, ResultExt};
use crate::locks::Locks;
use crate::{Place, Record, RootId, Space, Tree, identity, record};
use tokio::sync::OwnedMutexGuard;
use volwright_provisioner::{Failure, Mark, MarkState, Result, Until, format_bytes};

/// The volumes of one root, which shows its identity.
#[derive(Debug)]
pub struct Volumes<T> {
    tree: T,
    root_id: RootId,
    slice: Slice,
    /// Held while a path is given out or taken back.
    paths: tokio::sync::Mutex<()>,
    busy: Locks,
}

impl<T: Tree> Volumes<T> {
    /// The volumes of the root that showed `root_id`. Each call looks again.
    pub fn new(tree: T, root_id: RootId) -> Self {
        Self {
            tree,
            root_id,
            slice: Slice::default(),
            paths: tokio::sync::Mutex::default(),
            busy: Locks::default(),
        }
    }

    /// How much one call of `delete` removes before it answers `Pending`.
    #[must_use]
    pub fn with_slice(self, slice: Slice) -> Self {
        Self { slice, ..self }
    }

    /// The tree below.
    pub fn tree(&self) -> &T {
        &self.tree
    }

    /// The root's identity.
    pub fn root_id(&self) -> &RootId {
        &self.root_id
    }

    /// Fails unless the root shows the identity that a handle carries.
    pub async fn expect_root(&self, expected: &RootId) -> Result<()> {
        identity::expect(&self.tree, expected).await
    }

    /// Room on the file system.
    pub async fn space(&self) -> Result<Space> {
        self.tree.space().await.or_failure(Changed::Nothing, "asking for the free space")
    }

    /// Fails `Exhausted` where there is no room for `size` bytes more.
    pub async fn check_room(&self, size: u64) -> Result<()> {
        let available = self.space().await?.available;
        if size <= available {
            return Ok(());
        }
        Err(Failure::exhausted(format!(
            "{} is asked for and {} is free on the disk; free some space, or let the pod go to another node",
            format_bytes(size),
            format_bytes(available >> 20 << 20),
        )))
    }

    /// Writes the mark into the volume's record. Nothing is written where it is there already. The intent in the record
    /// ends with the mark `unpublished`.
    pub async fn set_mark(&self, place: &Place, mark: &Mark) -> Result<()> {
        let _busy = self.enter(place).await?;
        let found = self.own_record(place, mark).await?;
        if found.mark == *mark {
            return Ok(());
        }
        if found.is_trashed() {
            // A restore that was cut off: its data may still be in the trash.
            return Err(Failure::unavailable(format!("the volume at {} is being restored", place.path)));
        }
        if found.mark.state == MarkState::Planned {
            return Err(Failure::unavailable(format!("the volume at {} is not made yet", place.path)));
        }
        record::put(&self.tree, &place.path, &found.marked(mark.clone()), Changed::FirstStep).await
    }

    /// The record of a volume that is there, and that `mark` may change.
    async fn own_record(&self, place: &Place, mark: &Mark) -> Result<Record> {
        let Some(found) = record::at(&self.tree, &place.path).await? else {
            return Err(Failure::blocked(
                Until::OperatorActs,
                format!("the volume at {} has no record; restore it from a backup", place.path),
            ));
        };
        found.check_yields(place, mark)?;
        Ok(found)
    }

    /// Begins a call on one volume: alone, and on the right root.
    async fn enter(&self, place: &Place) -> Result<OwnedMutexGuard<()>> {
        let busy = self.busy.lock(place.id.as_str()).await;
        self.expect_root(&self.root_id).await?;
        Ok(busy)
    }
}
