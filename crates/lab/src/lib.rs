//! Real systems for Volwright's tests and demo, started on loopback and gone when their user is.
//!
//! ```text
//! keeper          outlives the caller by a moment: kills what it started, removes its files
//!   server        one child process with a log; start, pause, kill, "why did it die"
//!     control_plane   etcd + kube-apiserver + kube-controller-manager + kube-scheduler
//! ```
//!
//! *Invariant: every child of this crate is started through a [`Keeper`].* Nothing is left behind then, not
//! even when the caller gets SIGKILL.
//!
//! *Invariant: servers listen on 127.0.0.1 only.*

mod cache;
pub mod control_plane;
mod keeper;
mod ports;
mod process;
mod server;

pub use self::{
    cache::cache_dir,
    control_plane::ControlPlane,
    keeper::Keeper,
    ports::{free_port, is_open},
    process::{ProcessId, become_session_leader},
    server::Server,
};
