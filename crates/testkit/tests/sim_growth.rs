//! Claims that ask for more and less, under simulated time with everything that can go wrong: every answer of the decisions
//! is visited, and every rule of a growth is missed when it is off. (`sim_seeds` plays the same scenario for violations.)

use std::collections::BTreeSet;
use volwright_controller::decide::Rule;
use volwright_testkit::sim::{Coverage, Mutant, Scenario, arms, cores, each, run};

const SEEDS: u64 = 120;

fn growth() -> &'static Scenario {
    Scenario::named("growth").unwrap_or_else(|| unreachable!("there is such a scenario"))
}

#[test]
fn every_answer_about_a_growth_is_visited_and_breaks_nothing() {
    let seeds: Vec<u64> = (1000..1000 + SEEDS).collect();
    let outcomes = each(&seeds, cores(), |seed| run(growth(), *seed, None));
    let mut all = Coverage::default();
    for (seed, outcome) in seeds.iter().zip(&outcomes) {
        assert!(
            outcome.violations.is_empty(),
            "seed {seed}\n{}\n{:#?}",
            outcome.story.join("\n"),
            outcome.violations
        );
        all.add(&outcome.coverage);
    }
    let wanted = arms().into_iter().filter(|(decision, _)| ["expand", "may grow"].contains(decision));
    let missed: BTreeSet<_> = wanted.filter(|arm| !all.arms.contains(arm)).collect();
    assert!(missed.is_empty(), "never answered: {missed:?}");
}

#[test]
fn every_rule_of_a_growth_is_missed_when_it_is_off() {
    for rule in [Rule::AllocatedFirst, Rule::AskedNow, Rule::GrownFirst, Rule::PvBeforeClaim] {
        let noticed = (0..SEEDS).find(|seed| {
            let outcome = run(growth(), *seed, Some(Mutant::Without(rule)));
            outcome.violations.iter().any(|violation| violation.invariant == "I12")
        });
        assert!(noticed.is_some(), "{SEEDS} seeds did not notice that {rule:?} was off");
    }
}
