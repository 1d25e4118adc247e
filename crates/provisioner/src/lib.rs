//! The trait that a storage system implements to become a Kubernetes volume provisioner, and its vocabulary.
//!
//! There is no Kubernetes client and no async runtime here. A backend describes volumes and obeys; the engine
//! (`volwright-controller`) watches claims, decides, keeps the journal and writes to the API server.
//!
//! A whole backend, whose "storage system" is a map in memory:
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::{Mutex, MutexGuard, PoisonError};
//! use volwright_provisioner::*;
//!
//! #[derive(clap::Args)]
//! struct Args {} // flags
//! #[derive(serde::Deserialize, schemars::JsonSchema)]
//! #[serde(rename_all = "camelCase", deny_unknown_fields)]
//! struct Parameters {} // of a storage class
//! type Volumes = BTreeMap<String, (Mark, u64)>; // path -> mark, bytes
//! #[derive(Default)]
//! struct Shelf(Mutex<Volumes>);
//! impl Shelf {
//!     fn look(&self) -> MutexGuard<'_, Volumes> { self.0.lock().unwrap_or_else(PoisonError::into_inner) }
//! }
//! impl Provisioner for Shelf {
//!     const BACKEND: &'static str = "shelf";
//!     const HANDLE_VERSION: u16 = 1;
//!     type Args = Args;
//!     type Parameters = Parameters;
//!     type Handle = String; // the path
//!     fn placement(_: &Args) -> Result<Placement> { Ok(Placement::Central) }
//!     async fn connect(_: Args, _: SharedContext) -> Result<Self> { Ok(Self::default()) }
//!     fn capabilities(&self, _: &Parameters) -> Result<Capabilities> { Ok(Capabilities::filesystem(&AccessMode::ALL)) }
//!     fn source(&self, path: &String) -> VolumeSource { VolumeSource::Nfs { server: "shelf".into(), path: path.clone() } }
//!     fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
//!         match source { VolumeSource::Nfs { server, path } => vec![Key::of_path(server, path)], _ => vec![] }
//!     }
//!     async fn plan(&self, r: &Request<Parameters>) -> Result<String> { Ok(format!("/{}-{}", r.claim.uid, r.attempt)) }
//!     async fn observe(&self, path: &String) -> Result<Option<Observed>> {
//!         Ok(self.look().get(path).map(|(mark, size)| Observed {
//!             mark: Some(mark.clone()), size: Some(*size), pristine: Pristine::Unknown, users: vec![] }))
//!     }
//!     async fn provision(&self, r: &Request<Parameters>, path: &String) -> Result<Progress<Provisioned<String>>> {
//!         let mut volumes = self.look();
//!         let (mark, size) = volumes.entry(path.clone()).or_insert((r.mark.clone(), r.size));
//!         if !mark.same_owner(&r.mark) { return Err(Failure::not_ours("this place on the shelf is taken")); }
//!         Ok(Progress::Done(Provisioned { handle: path.clone(), size: *size, topology: Topology::new() }))
//!     }
//!     async fn delete(&self, path: &String, mark: &Mark) -> Result<Progress<()>> {
//!         let mut volumes = self.look();
//!         match volumes.get(path) {
//!             Some((found, _)) if !found.same_owner(mark) => return Err(Failure::not_ours("another owner's volume")),
//!             Some((found, _)) if !found.yields_to(mark) => return Err(Failure::unavailable("a later leader's now")),
//!             _ => {}
//!         }
//!         volumes.remove(path);
//!         Ok(Progress::Done(()))
//!     }
//!     async fn set_mark(&self, path: &String, mark: &Mark) -> Result<()> {
//!         match self.look().get_mut(path) {
//!             Some((found, _)) if found.same_owner(mark) => Ok(*found = mark.clone()),
//!             _ => Err(Failure::not_ours("no volume of that owner here")),
//!         }
//!     }
//! }
//! ```

mod capabilities; // what a class offers
mod context; // what a backend may ask the engine for
mod failure; // failures by class, progress
mod identity; // installation, owner, mark
mod observed; // what is seen of a volume
mod parameters; // class parameters from strings
mod pattern; // path patterns, contained by construction
mod provisioner; // the trait
mod quantity; // sizes
mod request; // what is asked for
mod source; // what a PV says, alias keys

pub use self::capabilities::{Binding, Capabilities, Growth};
pub use self::context::{BoxFuture, Context, Secret, SharedContext};
pub use self::failure::{Class, Failure, Progress, Result, Until};
pub use self::identity::{ClaimUid, Epoch, InstallationId, Mark, MarkState, PvName};
pub use self::observed::{
    Capacity, Check, InventoryItem, Observed, Pristine, Provisioned, Topology, Trashed,
};
pub use self::parameters::{ParameterError, ParameterMap, parameter_problems, parse_parameters};
pub use self::pattern::{ComponentError, FillError, Pattern, PatternError, RESERVED, RelativePath};
pub use self::provisioner::{Placement, Provisioner};
pub use self::quantity::{QuantityError, format_bytes, parse_bytes};
pub use self::request::{AccessMode, ClaimInfo, NodeInfo, Request, VolumeMode};
pub use self::source::{CsiSource, Key, SecretRef, VolumeSource};
