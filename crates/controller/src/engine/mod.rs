//! The imperative shell: watches feed the `World`, `decide` says what to do, workers do it.
//!
//! Invariant: only this module writes to the API server; a backend describes a volume and creates no PV.
//! Invariant: on one claim or PV at most one task works at a time, and on overlapping data too (`locks`).

mod api; // calls to the API server: deadline, count, class
mod claim; // a claim's way
pub mod context; // what backends may ask for
pub mod events; // events, best effort
mod happening; // whom events are about
pub mod health; // alive, ready
pub mod http; // /healthz /readyz /metrics
mod journal; // what is about to be done
mod locks; // one operation on overlapping data
mod memory; // what is remembered between two runs
pub mod metrics; // numbers
mod pv; // the PV object
mod queue; // keyed work queue
mod report; // a failure: log, metric and event from one place
mod run; // start, workers, drain
mod settings; // how it is set up
mod shared; // what all tasks share
mod volume; // a PV's way
mod watch; // from watch events to the world
mod world; // what the watches told

pub use self::journal::{Intent, Journal, MemoryJournal};
pub use self::run::{Engine, EngineError, Parts};
pub use self::settings::Settings;

use self::shared::{Flow, Shared};
