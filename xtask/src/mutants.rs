//! `cargo xtask mutants`: deliberate bugs, and how soon the simulation notices each.

use anyhow::bail;
use tokio::time::Instant;
use volwright_testkit::sim::{Mutant, Scenario, cores, each, run};

/// Play the simulation with deliberate bugs, one at a time: each must break an invariant.
///
/// A bug is one safety rule of the engine switched off, or a mistake of the leader election or of the journal. The mistakes of
/// those two that need a rare order of messages are found by the explorations in `cargo test -p volwright-controller`.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// Only list them, with their numbers
    #[arg(long)]
    list: bool,
    /// Only this one, by its number
    #[arg(long)]
    only: Option<usize>,
    /// Seeds of each of its scenarios that are tried for a bug
    #[arg(long, default_value_t = 2000)]
    seeds: u64,
}

struct Found {
    scenario: &'static str,
    seed: u64,
    what: String,
}

pub(crate) fn execute(args: &Args) -> anyhow::Result<()> {
    let all: Vec<(usize, Mutant)> = Mutant::all().into_iter().enumerate().collect();
    if args.list {
        for (number, mutant) in &all {
            println!("{number:3} {mutant}");
        }
        return Ok(());
    }
    let chosen: Vec<_> =
        all.into_iter().filter(|(number, _)| args.only.is_none_or(|only| only == *number)).collect();
    let began = Instant::now();
    let found = each(&chosen, cores(), |(number, mutant)| {
        let found = look(*mutant, args.seeds);
        match &found {
            Some(Found { scenario, seed, what }) => {
                println!("{number:3} {mutant:32} noticed: {scenario} seed {seed}: {what}");
            }
            None => println!("{number:3} {mutant:32} NOT NOTICED"),
        }
        found.is_some()
    });
    let noticed = found.iter().filter(|noticed| **noticed).count();
    println!("{noticed} of {} bugs noticed in {:.0} s", found.len(), began.elapsed().as_secs_f64());
    if noticed < found.len() {
        bail!("a bug that is not noticed shows a hole in the simulation");
    }
    Ok(())
}

fn look(mutant: Mutant, seeds: u64) -> Option<Found> {
    let scenarios: Vec<&Scenario> =
        mutant.scenarios().iter().filter_map(|name| Scenario::named(name)).collect();
    for seed in 0..seeds {
        for scenario in &scenarios {
            let outcome = run(scenario, seed, Some(mutant));
            if let Some(first) = outcome.violations.into_iter().next() {
                let what = format!("{} {}", first.invariant, first.what.chars().take(90).collect::<String>());
                return Some(Found { scenario: scenario.name, seed, what });
            }
        }
    }
    None
}
