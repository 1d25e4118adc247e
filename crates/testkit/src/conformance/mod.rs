//! Does a backend keep what the trait promises? One call asks, for any [`Provisioner`], ours or a stranger's.
//!
//! The engine keeps data safe on the strength of what backends promise: that calls may be repeated and cut off, that a lost
//! root is never an empty one, that nothing of another owner is touched. Each promise of the trait that can be observed is
//! a named check here. A [`Fixture`] says how to reach the storage system past the backend: what is really there, how a pod
//! writes, how a root is lost.
//!
//! ```
//! use std::sync::Arc;
//! use volwright_provisioner::{Result, SharedContext};
//! use volwright_testkit::conformance::{self, Can, Fixture, cannot};
//! use volwright_testkit::memory::{Handle, Memory, Store, StoredVolume};
//!
//! /// The storage system, which outlives the backend's process.
//! #[derive(Default)]
//! struct Shelf(Store);
//!
//! impl Fixture for Shelf {
//!     type Backend = Memory;
//!
//!     async fn connect(&self, _: SharedContext) -> Result<Memory> {
//!         Ok(Memory::new("shelf", self.0.clone()))
//!     }
//!     async fn exists(&self, handle: &Handle) -> Can<bool> {
//!         Ok(self.0.get(&handle.path).is_some())
//!     }
//!     async fn write_into(&self, handle: &Handle) -> Can<()> {
//!         self.0.edit(&handle.path, |volume| volume.written = true);
//!         Ok(())
//!     }
//!     async fn is_written(&self, handle: &Handle) -> Can<bool> {
//!         Ok(self.0.get(&handle.path).is_some_and(|volume| volume.written))
//!     }
//!     async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
//!         self.0.put(&handle.path, StoredVolume { written: true, ..StoredVolume::unmarked() });
//!         Ok(())
//!     }
//!     async fn lose_root(&self) -> Can<()> {
//!         Err(cannot("there is nothing to unplug"))
//!     }
//!     async fn find_root(&self) -> Can<()> {
//!         Ok(())
//!     }
//! }
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // In a `#[tokio::test]`:
//! let report = conformance::check(Shelf::default).await;
//! println!("{report}");
//! report.assert_but_for(&["root-lost-observe", "root-lost-delete", "root-lost-writes", "root-lost-inventory",
//!     "root-lost-restart"]);
//! # });
//! ```
//!
//! What a fixture cannot do is told with the reason, and its checks have to be named as left out: nothing passes by not
//! having been tried. What a class does not offer by its capabilities is shown as not offered.
//!
//! [`Provisioner`]: volwright_provisioner::Provisioner

mod bench; // one check's storage system, process and calls
mod checks; // the checks, by what they protect
mod context; // the engine of cardboard
mod cut; // calls that are dropped
mod fixture; // the storage system past the backend
mod report; // what came out
mod stored; // handles of years ago
mod verdict; // how a check ends

pub use self::checks::{NAMES, check};
pub use self::fixture::{Can, Cannot, Fixture, HandleOf, cannot};
pub use self::report::{Outcome, Report, Verdict};
pub use self::stored::stored_handles;
