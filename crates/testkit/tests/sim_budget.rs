//! A class promises no more than its budget, however many claims are served at once, and whatever fails meanwhile.

#![allow(clippy::unwrap_used, reason = "a test: its helpers may fail it")]

use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::decide::{Rule, Rules};
use volwright_controller::names;
use volwright_provisioner::parse_bytes;
use volwright_testkit::sim::{Fault, PROVISIONER, Setup, World, cores, each, simulated};

const CLASS: &str = "scarce";
const BUDGET: u64 = 3 << 30;
const CLAIMS: usize = 9;
const STEP: Duration = Duration::from_millis(20);

fn class(budget: &str) -> Value {
    json!({
        "metadata": { "name": CLASS, "annotations": { (names::CAPACITY_BUDGET): budget } },
        "provisioner": PROVISIONER,
    })
}

fn claim(number: usize) -> Value {
    json!({
        "metadata": { "name": format!("s{number}"), "namespace": "users" },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

/// What the class's PVs have together.
fn promised(world: &World) -> u64 {
    let volumes = world.cluster(0).api.list("persistentvolumes", "").unwrap();
    let of_class = volumes.iter().filter(|pv| pv["spec"]["storageClassName"] == CLASS);
    of_class.map(|pv| parse_bytes(pv["spec"]["capacity"]["storage"].as_str().unwrap()).unwrap()).sum()
}

fn bound(world: &World) -> Vec<String> {
    let claims = world.cluster(0).api.list("persistentvolumeclaims", "users").unwrap();
    let is_bound = |claim: &&Value| claim["status"]["phase"] == "Bound";
    claims
        .iter()
        .filter(is_bound)
        .map(|claim| claim["metadata"]["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Nine claims want what three can have; some go; in the end the budget is raised. What was broken on the way?
fn broken(seed: u64, rules: Rules) -> Vec<String> {
    simulated(seed, async || {
        let world = World::new(Setup { rules, workers: 8, ..Setup::default() }, seed);
        let api = &world.cluster(0).api;
        api.create("storageclasses", class("3Gi")).unwrap();
        if seed.is_multiple_of(2) {
            world.chaos().with_delays();
            for fault in [
                Fault::KillBefore,
                Fault::KillAfter,
                Fault::LostReply,
                Fault::BackendLostReply,
                Fault::WatchLate,
            ] {
                world.chaos().rate(fault, 8);
            }
        }
        world.start_all();
        sleep(Duration::from_secs(5)).await;
        for number in 0..CLAIMS {
            api.create("persistentvolumeclaims", claim(number)).unwrap();
        }
        let mut broken = Vec::new();
        for step in 0..6000 {
            sleep(STEP).await;
            let sum = promised(&world);
            if sum > BUDGET {
                broken.push(format!("{sum} bytes are promised"));
                return broken;
            }
            if step % 1000 == 999
                && let Some(name) = bound(&world).first()
            {
                api.delete("persistentvolumeclaims", "users", name).unwrap();
            }
        }
        api.patch(
            "storageclasses",
            "",
            CLASS,
            &json!({ "metadata": { "annotations": { (names::CAPACITY_BUDGET): "100Gi" } } }),
        )
        .unwrap();
        world.rest(Duration::from_secs(900)).await;
        broken.extend(world.violations().iter().map(|violation| format!("{violation:?}")));
        broken
    })
    .unwrap()
}

fn over_seeds(rules: &Rules) -> Vec<String> {
    let seeds: Vec<u64> = (0..16).collect();
    each(&seeds, cores(), |seed| broken(*seed, rules.clone())).concat()
}

#[test]
fn claims_that_are_served_at_once_do_not_share_the_last_room_and_all_are_served_once_there_is_more() {
    assert_eq!(over_seeds(&Rules::default()), Vec::<String>::new());
}

#[test]
fn without_the_rule_a_budget_is_only_a_wish() {
    assert!(!over_seeds(&Rules::without(Rule::BudgetKept)).is_empty());
}

#[test]
fn a_promise_that_did_not_count_at_once_would_be_given_twice() {
    assert!(!over_seeds(&Rules::without(Rule::PromiseCounts)).is_empty());
}
