//! Claims that ask for more and less, under simulated time with everything that can go wrong: every answer of the decisions
//! is visited, and every rule of a growth is missed when it is off. (`sim_seeds` plays the same scenario for violations.)

#![allow(clippy::unwrap_used, reason = "a test: its helpers may fail it")]

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::decide::Rule;
use volwright_controller::names;
use volwright_testkit::sim::{
    Coverage, Mutant, PROVISIONER, Scenario, Setup, Users, World, arms, cores, each, run, simulated,
};

const SEEDS: u64 = 120;

fn growth() -> &'static Scenario {
    Scenario::named("growth").unwrap()
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

/// What a claim of a class with a budget has after it asked for more than the budget has left, and once that is raised.
#[test]
fn a_growth_takes_from_the_budget_of_its_class() {
    let (before, told, after) = simulated(3, async || {
        let world = World::new(Setup::default(), 3);
        let api = &world.cluster(0).api;
        let budget =
            |size: &str| json!({ "metadata": { "annotations": { (names::CAPACITY_BUDGET): size } } });
        let mut class = budget("4Gi");
        class["metadata"]["name"] = json!("scarce");
        class["provisioner"] = json!(PROVISIONER);
        class["allowVolumeExpansion"] = json!(true);
        api.create("storageclasses", class).unwrap();
        world.start_all();
        for name in ["one", "two"] {
            let claim = json!({
                "metadata": { "name": name, "namespace": "users" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"], "storageClassName": "scarce",
                    "resources": { "requests": { "storage": "1Gi" } },
                },
            });
            api.create("persistentvolumeclaims", claim).unwrap();
        }
        sleep(Duration::from_secs(5)).await;
        Users::new(&world, 0).ask("one", "4Gi");
        sleep(Duration::from_secs(60)).await;
        let look = || api.get("persistentvolumeclaims", "users", "one").unwrap()["status"].clone();
        let refused = look();
        api.patch("storageclasses", "", "scarce", &budget("5Gi")).unwrap();
        sleep(Duration::from_secs(60)).await;
        let capacity = |status: &Value| status["capacity"]["storage"].as_str().unwrap().to_owned();
        (capacity(&refused), refused["conditions"].to_string(), capacity(&look()))
    })
    .unwrap();
    assert_eq!((before.as_str(), after.as_str()), ("1Gi", "4Gi"));
    assert!(told.contains("ControllerResizeError") && told.contains("raise the annotation"), "{told}");
}
