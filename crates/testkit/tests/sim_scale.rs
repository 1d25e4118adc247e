//! Much, and for long: what a claim costs in writes, that ten thousand claims at once fit into the journal, and that a month
//! leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::names;
use volwright_testkit::Trick;
use volwright_testkit::sim::{CLASSES, NAMESPACE, PROVISIONER, Setup, Users, World, simulated};

fn writes(world: &World, verb: &str, resource: &str) -> u64 {
    let writes = world.cluster(0).tower.writes();
    writes.get(&(verb.to_owned(), resource.to_owned())).copied().unwrap_or(0)
}

/// A claim that already asks for us, so that no controller manager is needed.
fn asking(number: usize) -> Value {
    json!({
        "metadata": {
            "name": format!("c{number}"), "namespace": "users",
            "annotations": { (names::STORAGE_PROVISIONER): PROVISIONER },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    })
}

/// The cost in writes of claims of which so many are made at a time.
fn cost(in_flight: usize) -> (f64, f64) {
    simulated(1, async || {
        let setup = Setup { controllers: false, workers: in_flight, ..Setup::default() };
        let world = World::new(setup, 1);
        // An answer of the storage system takes its time, as it does; else there is never more than one in flight.
        world.store().always("provision", Trick::Slow(Duration::from_millis(200)));
        world.start_all();
        sleep(Duration::from_secs(5)).await;
        let before = writes(&world, "update", "configmaps");
        let claims = 200;
        for number in 0..claims {
            world.cluster(0).api.create("persistentvolumeclaims", asking(number)).unwrap();
        }
        sleep(Duration::from_secs(120)).await;
        let made = world.cluster(0).api.list("persistentvolumes", "").unwrap().len();
        assert_eq!(made, claims);
        let journal = writes(&world, "update", "configmaps") - before;
        #[expect(clippy::cast_precision_loss, reason = "a few hundred")]
        (writes(&world, "create", "persistentvolumes") as f64 / claims as f64, journal as f64 / claims as f64)
    })
    .unwrap()
}

#[test]
fn a_claim_costs_one_pv_create_and_its_share_of_journal_commits() {
    let costs: BTreeMap<usize, (f64, f64)> = [1, 10, 100].map(|n| (n, cost(n))).into();
    println!("claims in flight -> PV creates, journal commits per claim: {costs:?}");
    for (in_flight, (creates, commits)) in costs {
        assert!((creates - 1.0).abs() < f64::EPSILON, "{in_flight} in flight: {creates} creates");
        let most = match in_flight {
            1 => 2.0,
            10 => 0.7,
            _ => 0.2,
        };
        assert!(commits <= most, "{in_flight} in flight: {commits} commits per claim");
    }
}

/// The storage system says "ask again" to all of them for a while, so that each has an open intent.
#[test]
#[ignore = "takes minutes: cargo test -p volwright-testkit --test sim_scale -- --ignored"]
fn ten_thousand_claims_at_once_stay_within_the_journal_and_all_get_on() {
    let largest = simulated(2, async || {
        let setup = Setup { controllers: false, workers: 32, history: 2000, ..Setup::default() };
        let world = World::new(setup, 2);
        world.store().always("provision", Trick::Pending(Duration::from_secs(60)));
        world.start_all();
        sleep(Duration::from_secs(5)).await;
        for number in 0..10_000 {
            world.cluster(0).api.create("persistentvolumeclaims", asking(number)).unwrap();
        }
        let (mut largest, mut shards) = (0, 0);
        let mut measure = || {
            let maps = world.cluster(0).api.list("configmaps", NAMESPACE).unwrap();
            shards = shards.max(maps.len());
            largest = maps.iter().map(|map| map.to_string().len()).max().unwrap_or(0).max(largest);
        };
        for _ in 0..20 {
            sleep(Duration::from_secs(15)).await;
            measure();
        }
        // Some are made while others wait.
        world.store().never("provision");
        let mut made = 0;
        for _ in 0..120 {
            sleep(Duration::from_secs(10)).await;
            measure();
            made = world.cluster(0).api.list("persistentvolumes", "").unwrap().len();
            if made == 10_000 {
                break;
            }
        }
        assert_eq!(made, 10_000);
        assert!(world.violations().is_empty(), "{:?}", world.violations());
        (largest, shards)
    });
    let (largest, shards) = largest.unwrap();
    println!("10000 claims: at most {shards} shards, the largest {largest} bytes");
    assert!(shards <= 16 && largest < 400_000, "{shards} shards, the largest {largest} bytes");
}

/// What a day leaves behind must not be more than what the first day left.
#[test]
#[ignore = "takes minutes: cargo test -p volwright-testkit --test sim_scale -- --ignored"]
fn a_month_of_a_thousand_claims_a_day_leaves_nothing_behind() {
    let tables = simulated(3, async || {
        let setup = Setup { resync: Duration::from_secs(3600), history: 500, ..Setup::default() };
        let world = World::new(setup, 3);
        world.start_all();
        let mut users = Users::new(&world, 0);
        let mut tables = Vec::new();
        for _day in 0..DAYS {
            for _batch in 0..50 {
                let claims: Vec<String> =
                    (0..20).map(|number| users.claim(CLASSES[[0, 1, 4, 5, 6][number % 5]])).collect();
                sleep(Duration::from_secs(864)).await;
                for claim in &claims {
                    users.delete_claim(claim);
                }
                sleep(Duration::from_secs(864)).await;
                // Retained volumes are their users' business, and these users clear up.
                users.clear_released();
            }
            world.cluster(0).api.clear_audit();
            world.story().forget();
            tables.push(world.tables());
        }
        assert!(world.violations().is_empty(), "{:?}", world.violations());
        tables
    });
    let tables = tables.unwrap();
    println!("tables on the first and the last day: {:?} {:?}", tables[0], tables[tables.len() - 1]);
    let sum = |tables: &BTreeMap<&'static str, usize>| tables.values().sum::<usize>();
    assert!(sum(&tables[tables.len() - 1]) <= sum(&tables[0]) + 5, "{tables:#?}");
}

const DAYS: usize = 30;
