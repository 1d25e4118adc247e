//! Volumes that are directories below one root, over a narrow [`Tree`] of files.
//!
//! ```text
//! <root>/.volwright/     identity, lock, records, volumes being made, volumes on their way out
//! <root>/<pattern ...>   one directory for each volume, of the mode and owner asked for
//!
//! provision: record planned -> made under a private name, owned, moded, read back -> moved into place -> unpublished
//! delete:    mark re-read -> moved to the trash (the path is free) -> record gone -> emptied -> trash entry gone
//! undo:      mark re-read -> removed in its place, if it is empty -> record gone
//! trash:     mark re-read -> moved to the trash with a record of its time -> record gone; purged or restored later
//! ```
//!
//! **What is atomic**: a record is written whole or not at all; a volume appears and disappears by one rename. Every call
//! can be cut off between any two steps and is finished by the same call again.
//!
//! **A record is the journal entry of a create**: written before anything else, with the engine's own note about it (the
//! intent), which stays until the volume is published. After a crash the inventory says what was being made.
//!
//! **Whose a volume is** stands in its record, never in the volume, which belongs to the user.
//!
//! **Absence counts** only where the root shows its identity: an empty mount point says nothing about volumes.
//!
//! *Invariant: no file operation leaves the root, follows a link or crosses a mount.* Only [`Tree`] implementations touch
//! files, one name in one open directory at a time. *Invariant: paths given out never contain each other.* They are given
//! out and taken back under one lock, against the records.

mod failure; // from tree errors to classes
mod identity; // which root this is
mod layout; // where our own files are
mod local; // a tree on a local disk
mod locks; // one call at a time on one volume
mod name; // one component of a path
mod place; // what names a volume below a root
mod prefix; // paths that never contain each other
mod record; // what is known of a volume
mod tree; // the trait
mod volumes; // provision, observe, delete, set_mark, inventory
mod walk; // from a path to a directory entry

pub use self::identity::{Look, RootId, look, make_identity, make_own_directory};
pub use self::layout::shorten;
pub use self::local::{LocalOptions, LocalTree, LockError, OpenError};
pub use self::name::Name;
pub use self::place::{Place, VolumeId};
pub use self::record::{Record, Wanted};
pub use self::tree::{Cursor, Entry, ErrorKind, FileKind, Page, Space, Stat, Tree, TreeError, TreeResult};
pub use self::volumes::{Inventory, Listed, Slice, Volumes};
