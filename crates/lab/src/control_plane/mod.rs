//! A Kubernetes control plane of one's own: etcd, kube-apiserver, kube-controller-manager, kube-scheduler.
//!
//! No root and no containers: four programs that [`binaries`] builds from source or is given, on loopback, below one temporary
//! folder, ready in seconds. There is no node: a test makes `Node` objects itself, and pods get scheduled but
//! never run.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use volwright_lab::control_plane::{ControlPlane, Options};
//!
//! let mut cluster = ControlPlane::start(Options { audit: true, ..Options::default() }).await?;
//! let restricted = cluster.client_for("system:serviceaccount:ns:reader", &[])?; // a kubeconfig
//! cluster.stop_api_server()?;
//! cluster.start_api_server().await?; // same port, same data
//! cluster.stop().await;
//! # Ok(())
//! # }
//! ```
//!
//! | module | what it knows |
//! |---|---|
//! | `options` | what a caller may choose |
//! | `versions`, `binaries` | the pinned sources, and building them once |
//! | `certificates`, `kubeconfig` | who is who |
//! | `arguments` | the command lines |
//! | `servers` | starting, stopping and waiting; ports that were lost |
//! | `cluster` | the handle that tests hold: a control plane of ours, or somebody's kubeconfig |
//! | `background` | the one that `cargo xtask cluster` leaves running |

mod arguments;
pub mod background;
pub mod binaries;
mod certificates;
mod cluster;
mod kubeconfig;
mod options;
mod servers;
mod versions;

pub use self::{cluster::ControlPlane, options::Options, servers::Component};
