//! `cargo xtask simulate`: many seeds of the simulation, on all cores.

use anyhow::{Context as _, bail};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use volwright_testkit::sim::{Coverage, Mutant, Outcome, SCENARIOS, Scenario, run};

/// Run the engine under simulated time, with everything that can go wrong, and assert the invariants.
///
/// Each seed is one run of a scenario: an API server, processes that crash and stop, people who edit everything, a storage
/// system that fails and lies. A seed that breaks an invariant prints its story, and is the same run whenever it is given
/// again: `cargo xtask simulate --scenario NAME --from SEED --seeds 1 --story`.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// How many seeds in all, shared equally by the scenarios. 100000 take about half an hour on two cores
    #[arg(long, default_value_t = 10_000)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only this scenario
    #[arg(long)]
    scenario: Option<String>,
    /// Play with a deliberate bug, by its number in `cargo xtask mutants --list`
    #[arg(long)]
    mutant: Option<usize>,
    /// Tell the story as it happens, with the engine's own log (RUST_LOG filters it)
    #[arg(long)]
    story: bool,
    /// Play every seed twice and compare
    #[arg(long)]
    twice: bool,
    /// Go on after a failure, and print only what was broken
    #[arg(long)]
    keep_going: bool,
    /// Threads
    #[arg(long, default_value_t = std::thread::available_parallelism().map_or(2, std::num::NonZero::get))]
    threads: usize,
}

/// From so many seeds in all on, whatever was not visited is a failure.
const ENOUGH: u64 = 50_000;

pub(crate) fn execute(args: &Args) -> anyhow::Result<()> {
    if args.story {
        let filter = tracing_subscriber::EnvFilter::try_from_default_env()
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("volwright=debug"));
        tracing_subscriber::fmt().without_time().with_env_filter(filter).init();
    }
    let scenarios: Vec<&'static Scenario> = match &args.scenario {
        None => SCENARIOS.iter().collect(),
        Some(name) => {
            let names: Vec<_> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
            let known = || format!("there is no scenario {name:?}; there are {}", names.join(", "));
            vec![Scenario::named(name).with_context(known)?]
        }
    };
    let mutant = args.mutant.and_then(|number| Mutant::all().get(number).copied());
    let mut coverage = Coverage::default();
    let mut broken = 0;
    let share = args.seeds.div_ceil(scenarios.len().max(1) as u64);
    for scenario in scenarios {
        let began = Instant::now();
        let result = play(scenario, args.from..args.from + share, args, mutant);
        let seconds = began.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let rate = result.runs as f64 / seconds * 60.0;
        println!(
            "{:12} {:7} seeds, {} broken, {seconds:.1} s, {rate:.0} a minute ({})",
            scenario.name,
            result.runs,
            result.failed.len(),
            scenario.about
        );
        for (what, seeds) in &result.kinds {
            println!("    {:5} x {what}, first with seed {}", seeds.len(), seeds[0]);
        }
        broken += result.failed.len();
        coverage.add(&result.coverage);
    }
    println!(
        "{} pairs of fault and step, {} answers of decisions",
        coverage.faults.len(),
        coverage.arms.len()
    );
    // Of one scenario, or of few seeds, the list would tell nothing.
    let expects_all = args.scenario.is_none() && args.seeds >= ENOUGH;
    let missing = if expects_all { coverage.missing() } else { Vec::new() };
    for unvisited in &missing {
        println!("    not visited: {unvisited}");
    }
    if !missing.is_empty() {
        bail!("so many seeds must visit every pair of fault and step, and every answer");
    }
    if broken > 0 {
        bail!("{broken} seeds broke an invariant");
    }
    Ok(())
}

#[derive(Default)]
struct Played {
    runs: u64,
    failed: Vec<u64>,
    kinds: BTreeMap<String, Vec<u64>>,
    coverage: Coverage,
}

fn play(scenario: &'static Scenario, seeds: Range<u64>, args: &Args, mutant: Option<Mutant>) -> Played {
    let next = Arc::new(AtomicU64::new(seeds.start));
    let over = Arc::new(AtomicBool::new(false));
    let all = Arc::new(Mutex::new(Played::default()));
    std::thread::scope(|scope| {
        for _ in 0..args.threads.max(1) {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    let began = std::time::SystemTime::now();
                    let mut outcome = run(scenario, seed, mutant);
                    if args.twice {
                        let again = run(scenario, seed, mutant);
                        compare(&mut outcome, &again);
                    }
                    let took = began.elapsed().unwrap_or_default();
                    if took > Duration::from_secs(5) {
                        println!("seed {seed} of {} took {took:?}", scenario.name);
                    }
                    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                    all.runs += 1;
                    all.coverage.add(&outcome.coverage);
                    if !args.story && !outcome.violations.is_empty() && !args.keep_going {
                        tell(scenario, seed, &outcome);
                    }
                    if let Some(first) = outcome.violations.first() {
                        all.failed.push(seed);
                        let kind = format!("{} {}", first.invariant, general(&first.what));
                        all.kinds.entry(kind).or_default().push(seed);
                        if !args.keep_going {
                            over.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut all)
}

fn compare(outcome: &mut Outcome, again: &Outcome) {
    if outcome.digest == again.digest {
        return;
    }
    let differs = outcome.story.iter().zip(&again.story).position(|(one, two)| one != two);
    let line = differs.unwrap_or_else(|| outcome.story.len().min(again.story.len()));
    outcome.violations.push(volwright_testkit::sim::Violation {
        invariant: "replay",
        what: format!(
            "the second run differs in line {line}: {:?} and {:?}",
            outcome.story.get(line),
            again.story.get(line)
        ),
    });
}

/// Without what differs from seed to seed.
fn general(what: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    for word in what.split(' ').take(14) {
        let has_digit = word.chars().any(|c| c.is_ascii_digit());
        words.push(if has_digit { "*".to_owned() } else { word.to_owned() });
    }
    words.join(" ")
}

fn tell(scenario: &Scenario, seed: u64, outcome: &Outcome) {
    println!("-- scenario {} seed {seed}", scenario.name);
    for line in &outcome.story {
        println!("{line}");
    }
    for violation in &outcome.violations {
        println!("!! {} {}", violation.invariant, violation.what);
    }
}
