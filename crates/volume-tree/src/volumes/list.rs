//! Every volume that can be found.

use super::Volumes;
use super::observe::observed;
use crate::failure::{Changed, ResultExt};
use crate::layout::{self, RECORDS, TRASH, TRASH_RECORD};
use crate::{Cursor, Place, Record, Tree, record};
use volwright_provisioner::{InstallationId, Observed, Result};

/// One volume of an inventory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Where.
    pub place: Place,
    /// What is known of it.
    pub record: Record,
    /// As it is now.
    pub observed: Observed,
}

/// The volumes of one installation on a root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Inventory {
    /// Those that can be read.
    pub volumes: Vec<Listed>,
    /// Records that cannot be read, with why. Their volumes are kept and block their paths.
    pub unreadable: Vec<String>,
}

impl<T: Tree> Volumes<T> {
    /// Every volume of an installation, those on their way out included.
    pub async fn inventory(&self, installation: &InstallationId) -> Result<Inventory> {
        self.expect_root(&self.root_id).await?;
        let mut inventory = Inventory::default();
        let records = layout::own_dir(&self.tree, &RECORDS).await?;
        for name in self.names(&records).await? {
            if !name.to_str().is_some_and(layout::is_record) {
                continue;
            }
            let found = record::read(&self.tree, &records, &name).await;
            let Some((place, record)) = inventory.sort(found, installation, &name) else { continue };
            match self.recorded(&place, &record).await {
                Ok(observed) => inventory.volumes.push(Listed { place, record, observed }),
                Err(failure) => inventory.unreadable.push(failure.to_string()),
            }
        }
        let trash = layout::own_dir(&self.tree, &TRASH).await?;
        for name in self.names(&trash).await? {
            let Ok(entry) = self.tree.open_dir(&trash, &name).await else { continue };
            let found = record::read(&self.tree, &entry, &TRASH_RECORD).await;
            let Some((place, record)) = inventory.sort(found, installation, &name) else { continue };
            if inventory.volumes.iter().any(|listed| listed.place == place) {
                continue; // cut off between the move and the end of its record
            }
            let observed = observed(&record, self.trash_pristine(&place).await?);
            inventory.volumes.push(Listed { place, record, observed });
        }
        // What is missing from the list is taken to be gone: say so only of the right root.
        self.expect_root(&self.root_id).await?;
        Ok(inventory)
    }

    /// All the names in one of our own directories.
    pub(super) async fn names(&self, dir: &T::Dir) -> Result<Vec<crate::Name>> {
        let mut names = Vec::new();
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.tree.list(dir, from).await.or_failure(Changed::Nothing, "reading the records")?;
            names.extend(page.entries.into_iter().map(|entry| entry.name));
            cursor = page.next;
        }
        Ok(names)
    }
}

impl Inventory {
    fn sort(
        &mut self,
        found: Result<Option<Record>>,
        installation: &InstallationId,
        name: &crate::Name,
    ) -> Option<(Place, Record)> {
        match found {
            Ok(None) => None, // ended while we listed
            Ok(Some(record)) if record.mark.installation != *installation => None,
            Ok(Some(record)) => {
                let place = record.place();
                if place.is_none() {
                    self.unreadable.push(format!("the record {name} names a path that is never given out"));
                }
                place.map(|place| (place, record))
            }
            Err(failure) => {
                self.unreadable.push(failure.to_string());
                None
            }
        }
    }
}
