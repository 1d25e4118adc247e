//! The engine under every Volwright provisioner: watches claims, classes and volumes, decides, and acts.
//!
//! ```text
//! watch events -> World -> decide -> what to do -> engine -> API server, backend
//! PersistentVolumeClaim -> StorageClass -> provision      PersistentVolume (Released) -> delete
//! ```
//!
//! A backend's whole `main` is `volwright_controller::main::<MyBackend>()`.

pub mod backend; // Provisioner without its types
pub mod cli; // flags, construction, main
pub mod client; // connections to the API server
pub mod decide; // pure: what to do
pub mod doctor; // what is wrong with the set-up
pub mod engine; // the shell: watch, queue, act
mod logs; // log output
pub mod names; // annotations, labels, finalizers
pub mod objects; // trimmed Kubernetes objects

pub use self::cli::main;
