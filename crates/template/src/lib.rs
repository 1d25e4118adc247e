//! The template backend. What is atomic, how volumes are named and what marks one as ours: say it here.
//!
//! Written by `cargo xtask new-backend`. It works as it is, on a storage system made of files that [`System`] stands for:
//! put yours in its place, piece by piece, and keep the tests green.

mod backend; // the Provisioner
mod system; // the storage system

pub use self::backend::{Args, Handle, Parameters, Template};
pub use self::system::{System, Volume};
