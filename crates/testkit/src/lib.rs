//! For the tests of provisioners: ours, and those of a backend's author elsewhere.
//!
//! [`memory`] is a Central backend whose storage system is a table: it has every mode, obeys a script of failures and
//! logs its calls. [`conformance`] checks any backend against what the trait promises. [`harness`] runs the engine on any backend against any API server, and waits for what should happen.

pub mod apiserver; // a Kubernetes API server in this process
pub mod conformance; // does a backend keep the trait's promises
pub mod harness; // the engine under test, and how to wait
pub mod memory; // a backend in memory
pub mod sim; // the engine under simulated time

pub use self::harness::{Harness, Options};
pub use self::memory::{Memory, Store, Trick};
