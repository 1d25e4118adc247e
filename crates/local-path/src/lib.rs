//! The local-path backend: a directory per claim, on the node that uses it. No helper pods: an agent on each node.
//!
//! ```text
//! <root>/<namespace>-<claim>-<PV>/     the volume: a `local` PV names this path, and this node
//! <root>/.volwright/                   the root's identity, a record per volume, the trash
//! ```
//!
//! **Naming**: below one of the roots given by `--path`, by the class's `pathPattern`. **What marks a volume as ours** is
//! its record in the root, not the directory: that is the user's. **What is atomic**: a volume appears with its mode and
//! owner, and goes into the trash, by one rename each; each record is written whole. **What is not**: the removal of
//! what is in a volume, which goes on where it stopped.
//!
//! There is no quota: a volume can grow until the disk is full. See `docs/local-path.md`.

mod agent; // the Provisioner
mod args; // flags
mod check; // lines for doctor
mod handle; // what later calls need
mod parameters; // of a class
mod path; // from a claim to a path
mod root; // a configured root, opened when it can be
#[cfg(test)]
mod tests;

pub use self::agent::LocalPath;
pub use self::args::Args;
pub use self::handle::Handle;
pub use self::parameters::{Mode, Parameters, PathPattern};
