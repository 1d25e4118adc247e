//! One seed of one scenario, from an empty world to rest.

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use super::chaos::Fault;
use super::mutant::Mutant;
use super::scenario::Scenario;
use super::watchtower::Violation;
use super::world::{Setup, World};

/// What one run showed.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// What was broken.
    pub violations: Vec<Violation>,
    /// What happened, in order.
    pub story: Vec<String>,
    /// The same for the same story.
    pub digest: u64,
    /// What was visited.
    pub coverage: Coverage,
    /// Calls of all processes until the faults ended.
    pub steps: u64,
    /// Polls of the first process's tasks until the faults ended.
    pub busy_polls: u64,
}

/// What runs have visited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Which fault met which step.
    pub faults: BTreeSet<(Fault, &'static str)>,
    /// Which decision was answered how.
    pub arms: BTreeSet<(&'static str, &'static str)>,
}

impl Coverage {
    /// Adds what another run has visited.
    pub fn add(&mut self, other: &Self) {
        self.faults.extend(other.faults.iter().copied());
        self.arms.extend(other.arms.iter().copied());
    }
}

/// After the faults have ended, everything is as it should be within this time: a lease and the longest call (35 s), the
/// longest delays (20 s each for claim and volume), what a watch may be silent for, and one look at everything again.
const REST: Duration = Duration::from_secs(900);

/// Runs `play` under simulated time. The same seed is the same run.
pub fn simulated<F: Future>(seed: u64, play: impl FnOnce() -> F) -> Option<F::Output> {
    // Delays of the engine itself come from this thread's generator.
    fastrand::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // Without threads and sockets there is nothing that could be refused.
    Some(runtime.ok()?.block_on(async { play().await }))
}

/// Plays a seed. The same arguments give the same outcome.
pub fn run(scenario: &Scenario, seed: u64, mutant: Option<Mutant>) -> Outcome {
    simulated(seed, || played(scenario, seed, mutant)).unwrap_or_default()
}

async fn played(scenario: &Scenario, seed: u64, mutant: Option<Mutant>) -> Outcome {
    let setup = Setup {
        rules: mutant.map(Mutant::rules).unwrap_or_default(),
        lease_bugs: mutant.map(Mutant::lease_bugs).unwrap_or_default(),
        journal_bugs: mutant.map(Mutant::journal_bugs).unwrap_or_default(),
        ..scenario.setup()
    };
    let world = World::new(setup, seed);
    scenario.play(&world, seed).await;
    let steps = world.chaos().steps();
    let busy_polls = world.processes().first().map_or(0, |process| process.gate().polls());
    world.rest(REST).await;
    Outcome {
        violations: world.violations(),
        story: world.story().lines(),
        digest: world.story().digest(),
        steps,
        busy_polls,
        coverage: Coverage { faults: world.chaos().met(), arms: world.rules().visited() },
    }
}
