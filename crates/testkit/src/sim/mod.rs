//! The engine under simulated time: clusters, processes, people and storage in one thread, and everything that can go wrong
//! with them, from a seed. The same seed is the same run, to the last call.
//!
//! ```text
//! users -> ApiServer <- Link (faults) <- Process (stopped, killed at any await) -> Storage (faults) -> Store
//!             ^                                                                            |
//!             +---------------- Watchtower: every invariant, at every effect ---------------+
//! ```
//! [`run()`] plays one seed of one [`Scenario`]; [`Outcome`] says what was broken, and what was visited.

mod chaos; // what goes wrong, when
mod course; // a call under way
mod coverage; // what must be visited
mod gate; // stop, resume, kill
mod link; // from a process to the API server
mod many; // runs on all cores
mod mutant; // deliberate bugs
mod process; // one process
mod run; // one seed of one scenario
mod scenario; // what is played
mod storage; // from a process to the storage
mod story; // what happened
mod users; // what people do
mod watchtower; // the invariants
mod world; // clusters, processes, rest

pub use self::chaos::{Chaos, Fault, Planned, Point};
pub use self::coverage::{arms, pairs};
pub use self::gate::Gate;
pub use self::many::{cores, each};
pub use self::mutant::Mutant;
pub use self::process::Process;
pub use self::run::{Coverage, Outcome, run, simulated};
pub use self::scenario::{SCENARIOS, Scenario, Short, errands, short};
pub use self::story::Story;
pub use self::users::{Deed, Users};
pub use self::watchtower::{Violation, Watchtower};
pub use self::world::{CLASSES, FIXED_CLASSES, NAMESPACE, PROVISIONER, Setup, SimClass, TRASH, World};
