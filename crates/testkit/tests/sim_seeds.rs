//! The engine under simulated time: no fault at any step, no crash at any await, and none of many seeds breaks an invariant.
//! `cargo xtask simulate` plays more of the same.

use std::collections::BTreeMap;
use volwright_testkit::sim::{
    Coverage, Fault, Outcome, Planned, Point, SCENARIOS, Scenario, Short, cores, each, errands, pairs, run,
    short,
};

/// Of each scenario; each is played twice.
const SEEDS: u64 = 40;

#[track_caller]
fn well(what: &str, outcome: &Outcome) {
    assert!(outcome.violations.is_empty(), "{what}\n{}\n{:#?}", outcome.story.join("\n"), outcome.violations);
}

#[test]
fn seeds_break_nothing_and_replay_exactly() {
    let runs: Vec<(&Scenario, u64)> =
        SCENARIOS.iter().flat_map(|scenario| (0..SEEDS).map(move |seed| (scenario, seed))).collect();
    let outcomes =
        each(&runs, cores(), |(scenario, seed)| (run(scenario, *seed, None), run(scenario, *seed, None)));
    for ((scenario, seed), (one, two)) in runs.iter().zip(&outcomes) {
        well(&format!("scenario {} seed {seed}", scenario.name), one);
        let differs = one.story.iter().zip(&two.story).find(|(one, two)| one != two);
        assert_eq!(
            one.digest, two.digest,
            "scenario {} seed {seed} does not replay: {differs:?}",
            scenario.name
        );
    }
}

#[test]
fn every_fault_meets_every_step_and_breaks_nothing() {
    let pairs: Vec<(Fault, &'static str)> = pairs().into_iter().collect();
    let outcomes = each(&pairs, cores(), |(fault, step)| {
        run(&errands(Some(Planned { at: Point::Next(step), fault: *fault })), 7, None)
    });
    let mut all = Coverage::default();
    for ((fault, step), outcome) in pairs.iter().zip(&outcomes) {
        well(&format!("{fault:?} at {step}"), outcome);
        all.add(&outcome.coverage);
    }
    let missed: Vec<_> = pairs.iter().filter(|pair| !all.faults.contains(pair)).collect();
    assert!(missed.is_empty(), "never met: {missed:?}");
}

/// Every call of every short story, before and after its effect.
#[test]
fn a_crash_at_any_call_of_a_short_story_loses_nothing() {
    let mut points = Vec::new();
    for story in Short::ALL {
        let steps = run(&short(story, None, None), 1, None).steps;
        for at in 0..steps {
            points.extend([Fault::KillBefore, Fault::KillAfter].map(|fault| (story, at, fault)));
        }
    }
    let outcomes = each(&points, cores(), |(story, at, fault)| {
        run(&short(*story, Some(Planned { at: Point::Step(*at), fault: *fault }), None), 1, None)
    });
    let mut crashed: BTreeMap<String, usize> = BTreeMap::new();
    for ((story, at, fault), outcome) in points.iter().zip(&outcomes) {
        well(&format!("{story:?}, {fault:?} at step {at}"), outcome);
        *crashed.entry(format!("{story:?}")).or_default() += outcome.coverage.faults.len();
    }
    println!("crashes at calls: {crashed:?}");
    assert!(crashed.values().all(|crashes| *crashes > 40), "{crashed:?}");
}

/// Every await of every task of the process.
#[test]
fn a_crash_at_any_await_of_a_short_story_loses_nothing() {
    let mut points = Vec::new();
    for story in Short::ALL {
        let polls = run(&short(story, None, None), 1, None).busy_polls;
        points.extend((1..=polls).map(|at| (story, at)));
    }
    let outcomes = each(&points, cores(), |(story, at)| run(&short(*story, None, Some(*at)), 1, None));
    println!("crashes at awaits: {}", points.len());
    for ((story, at), outcome) in points.iter().zip(&outcomes) {
        well(&format!("{story:?}, killed at await {at}"), outcome);
    }
}
