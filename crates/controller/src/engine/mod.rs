//! The imperative shell: watches feed the `World`, `decide` says what to do, workers do it.
//!
//! Invariant: only this module writes to the API server; a backend describes a volume and creates no PV.
//! Invariant: on one claim or PV at most one task works at a time, and on overlapping data too (`locks`).

mod api; // calls to the API server: deadline, count, class
mod budget; // what classes have promised
mod claim; // a claim's way
pub mod clock; // time that two processes share
pub mod context; // what backends may ask for
pub mod events; // events, best effort
mod expand; // a claim that asks for more
mod happening; // whom events are about
pub mod health; // alive, ready
mod history; // has the API server's state gone back in time?
pub mod http; // /healthz /readyz /metrics
mod journal; // what is about to be done
pub mod lease; // who leads
mod locks; // one operation on overlapping data
mod memory; // what is remembered between two runs
pub mod metrics; // numbers
mod orphans; // what stays without a PV
mod prepare; // before a term's work
mod pv; // the PV object
mod queue; // keyed work queue
mod report; // a failure: log, metric and event from one place
mod run; // start, terms, drain
mod settings; // how it is set up
mod shared; // what all tasks share
mod sweep; // what is on the storage and in no record
mod tasks; // starting tasks
mod trash; // what is due, and operators' requests
mod volume; // a PV's way
mod watch; // from watch events to the world
mod work; // workers of a term
mod world; // what the watches told

#[cfg(any(test, feature = "switchable-rules"))]
pub use self::journal::JournalBug;
pub use self::journal::{
    Bounds, Bugs, ConfigMapJournal, ConfigMapSettings, Found, Intent, Journal, MemoryJournal, RecordJournal,
    Soundness, encode_blob, recovered,
};
pub use self::orphans::Orphans;
pub use self::run::{Engine, EngineError, Parts, Probe};
pub use self::settings::Settings;
pub use self::tasks::Spawner;
pub(crate) use self::trash::keys as trash_keys;
pub use self::trash::{Answer, Asked, Listing, TrashEntry, TrashRequest};
pub(crate) use self::world::OurVolume;

use self::shared::{Flow, Shared};
