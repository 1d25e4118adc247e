//! The trait that a storage system implements to become a Kubernetes volume provisioner, and its vocabulary.
//!
//! There is no Kubernetes client and no async runtime here. A backend describes volumes and obeys; the engine
//! (`volwright-controller`) watches claims, decides, keeps the journal and writes to the API server.
//!
//! A whole backend, whose "storage system" is a map in memory:
//!
//! ```
//! use std::{collections::BTreeMap, sync::Mutex};
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//! use volwright_provisioner::*;
//!
//! #[derive(clap::Args)]
//! struct Args { /** Where volumes are served from. */ #[arg(long, default_value = "shelf")] server: String }
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(rename_all = "camelCase", deny_unknown_fields)]
//! struct Parameters { #[serde(default)] shelf: Option<String> }
//! #[derive(Serialize, Deserialize, Clone, PartialEq, Eq)]
//! struct Handle { server: String, path: String }
//! struct Shelf { server: String, volumes: Mutex<BTreeMap<String, (Mark, u64)>> }
//!
//! impl Provisioner for Shelf {
//!     const BACKEND: &'static str = "shelf";
//!     const HANDLE_VERSION: u16 = 1;
//!     type Args = Args;
//!     type Parameters = Parameters;
//!     type Handle = Handle;
//!     fn placement(_: &Args) -> Result<Placement> { Ok(Placement::Central) }
//!     async fn connect(args: Args, _: SharedContext) -> Result<Self> {
//!         Ok(Shelf { server: args.server, volumes: Mutex::default() })
//!     }
//!     fn capabilities(&self, _: &Parameters) -> Result<Capabilities> {
//!         Ok(Capabilities::filesystem(&AccessMode::ALL))
//!     }
//!     fn source(&self, h: &Handle) -> VolumeSource {
//!         VolumeSource::Nfs { server: h.server.clone(), path: h.path.clone() }
//!     }
//!     fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
//!         match source { VolumeSource::Nfs { server, path } => vec![Key::of_path(server, path)], _ => vec![] }
//!     }
//!     async fn plan(&self, r: &Request<Parameters>) -> Result<Handle> {
//!         let shelf = r.parameters.shelf.as_deref().unwrap_or("top");
//!         Ok(Handle { server: self.server.clone(), path: format!("/{shelf}/{}", r.claim.uid) })
//!     }
//!     async fn observe(&self, h: &Handle) -> Result<Option<Observed>> {
//!         let volumes = self.volumes.lock().map_err(|_| Failure::unavailable("the shelf is broken"))?;
//!         Ok(volumes.get(&h.path).map(|(mark, size)| Observed {
//!             mark: Some(mark.clone()), size: Some(*size), pristine: Pristine::Unknown, users: vec![] }))
//!     }
//!     async fn provision(&self, r: &Request<Parameters>, h: &Handle) -> Result<Progress<Provisioned<Handle>>> {
//!         let mut volumes = self.volumes.lock().map_err(|_| Failure::unavailable("the shelf is broken"))?;
//!         let (mark, size) = volumes.entry(h.path.clone()).or_insert((r.mark.clone(), r.size));
//!         if !mark.same_owner(&r.mark) { return Err(Failure::not_ours("this place on the shelf is taken")); }
//!         Ok(Progress::Done(Provisioned { handle: h.clone(), size: *size, topology: Topology::new() }))
//!     }
//!     async fn delete(&self, h: &Handle, mark: &Mark) -> Result<Progress<()>> {
//!         let mut volumes = self.volumes.lock().map_err(|_| Failure::unavailable("the shelf is broken"))?;
//!         match volumes.get(&h.path) {
//!             Some((found, _)) if !found.same_owner(mark) => Err(Failure::not_ours("another owner's volume")),
//!             _ => { volumes.remove(&h.path); Ok(Progress::Done(())) }
//!         }
//!     }
//!     async fn set_mark(&self, h: &Handle, mark: &Mark) -> Result<()> {
//!         let mut volumes = self.volumes.lock().map_err(|_| Failure::unavailable("the shelf is broken"))?;
//!         match volumes.get_mut(&h.path) {
//!             Some((found, _)) if found.same_owner(mark) => { *found = mark.clone(); Ok(()) }
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

pub use self::capabilities::{Binding, Capabilities};
pub use self::context::{BoxFuture, Context, Secret, SharedContext};
pub use self::failure::{Class, Failure, Progress, Result, Until};
pub use self::identity::{ClaimUid, Epoch, InstallationId, Mark, MarkState, PvName};
pub use self::observed::{Capacity, Check, InventoryItem, Observed, Pristine, Provisioned, Topology};
pub use self::parameters::{ParameterError, ParameterMap, parse_parameters};
pub use self::pattern::{ComponentError, FillError, Pattern, PatternError, RESERVED, RelativePath};
pub use self::provisioner::{Placement, Provisioner};
pub use self::quantity::{QuantityError, format_bytes, parse_bytes};
pub use self::request::{AccessMode, ClaimInfo, NodeInfo, Request, VolumeMode};
pub use self::source::{CsiSource, Key, SecretRef, VolumeSource};
