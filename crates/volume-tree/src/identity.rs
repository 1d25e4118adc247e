//! Which root this is.
//!
//! An unmounted disk and an empty replica look like a root without volumes. So a root has an id, made once, kept in every
//! handle, and no absence counts where it is not shown.

use crate::failure::{Changed, ResultExt};
use crate::layout::{IDENTITY, NEW, OWN, PARENTS, RECORDS, TRASH, hex, open_or_make};
use crate::{Cursor, ErrorKind, Tree, TreeResult};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::Read;
use volwright_provisioner::{Failure, Result};

/// The id of a root: 128 random bits as hex digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RootId(String);

impl RootId {
    fn random() -> std::io::Result<Self> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Self(hex(&bytes)))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a root says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Look {
    /// It has an identity.
    Shown(RootId),
    /// It has none, and nothing says that it ever had one. Whether it may get its first is for the caller to say, who
    /// knows the PVs.
    Fresh,
    /// It has none, but records: it had one. Only an operator may give it another.
    Lost,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdentityFile {
    version: u16,
    root_id: RootId,
}

const VERSION: u16 = 1;
const SIZE_MAX: usize = 4096;

/// Reads a root's identity. Changes nothing.
pub async fn look<T: Tree>(tree: &T) -> Result<Look> {
    const DOING: &str = "reading the root's identity";
    let root = tree.root().await.or_failure(Changed::Nothing, DOING)?;
    let own = match tree.open_dir(&root, &OWN).await {
        Err(error) if error.kind == ErrorKind::Missing => return Ok(Look::Fresh),
        result => result.or_failure(Changed::Nothing, DOING)?,
    };
    match tree.read_file(&own, &IDENTITY, SIZE_MAX).await {
        Ok(bytes) => match serde_json::from_slice::<IdentityFile>(&bytes) {
            Ok(file) if file.version <= VERSION => Ok(Look::Shown(file.root_id)),
            Ok(_) => Err(Failure::unavailable("the root was made by a newer version; upgrade the provisioner")),
            Err(error) => Err(Failure::unavailable(
                "the root's identity cannot be read; restore .volwright/root.json, or remove it and use init-root",
            )
            .caused_by(error)),
        },
        Err(error) if error.kind == ErrorKind::Missing => {
            let mut lost = false;
            for name in [RECORDS, TRASH] {
                lost |= match tree.open_dir(&own, &name).await {
                    Err(error) if error.kind == ErrorKind::Missing => false,
                    result => {
                        let dir = result.or_failure(Changed::Nothing, DOING)?;
                        !is_empty(tree, &dir).await.or_failure(Changed::Nothing, DOING)?
                    }
                };
            }
            Ok(if lost { Look::Lost } else { Look::Fresh })
        }
        Err(error) => Err(error).or_failure(Changed::Nothing, DOING),
    }
}

/// Gives a root its identity, or finds the one it has. Only for a root that is surely the right one: see [`Look`].
pub async fn make_identity<T: Tree>(tree: &T) -> Result<RootId> {
    const DOING: &str = "making the root's identity";
    if let Look::Shown(id) = look(tree).await? {
        return Ok(id);
    }
    let root = tree.root().await.or_failure(Changed::Nothing, DOING)?;
    let own = open_or_make(tree, &root, &OWN).await.or_failure(Changed::Nothing, DOING)?;
    for name in [RECORDS, PARENTS, NEW, TRASH] {
        open_or_make(tree, &own, &name).await.or_failure(Changed::Nothing, DOING)?;
    }
    let root_id = RootId::random().map_err(|e| Failure::unavailable("no random numbers").caused_by(e))?;
    let file = IdentityFile { version: VERSION, root_id };
    let bytes = serde_json::to_vec(&file).map_err(|e| Failure::unavailable(DOING).caused_by(e))?;
    // Last, so that whoever sees the identity sees the rest as well.
    tree.write_file(&own, &IDENTITY, &bytes).await.or_failure(Changed::Nothing, DOING)?;
    tree.sync(&root).await.or_failure(Changed::Nothing, DOING)?;
    Ok(file.root_id)
}

/// Makes our own directory, which says nothing yet: where the lock is, to be taken before anything else is made.
pub async fn make_own_directory<T: Tree>(tree: &T) -> Result<()> {
    const DOING: &str = "making the root's own directory";
    let root = tree.root().await.or_failure(Changed::Nothing, DOING)?;
    open_or_make(tree, &root, &OWN).await.or_failure(Changed::Nothing, DOING)?;
    Ok(())
}

/// Fails unless the root shows `expected` now.
pub(crate) async fn expect<T: Tree>(tree: &T, expected: &RootId) -> Result<()> {
    match look(tree).await? {
        Look::Shown(id) if id == *expected => Ok(()),
        Look::Shown(_) => Err(Failure::unavailable(
            "the root is another one than the volume was made on; mount the right disk there",
        )),
        Look::Fresh | Look::Lost => Err(Failure::unavailable(
            "the root does not show its identity; is the disk mounted? Nothing is done there until it does",
        )),
    }
}

pub(crate) async fn is_empty<T: Tree>(tree: &T, dir: &T::Dir) -> TreeResult<bool> {
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        let page = tree.list(dir, from).await?;
        if !page.entries.is_empty() {
            return Ok(false);
        }
        cursor = page.next;
    }
    Ok(true)
}
