//! Every deliberate bug is noticed. Each safety rule is switched off on its own (`Rules::without(rule)`), and some run of the
//! simulation must break an invariant by it. `cargo xtask mutants` tells how soon.

use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_controller::decide::{Rule, Rules};
use volwright_controller::names;
use volwright_testkit::sim::{
    CLASSES, FIXED_CLASSES, Fault, Mutant, NAMESPACE, Planned, Point, Scenario, Setup, Users, World, cores,
    each, run, simulated,
};

/// Seeds of each scenario that are tried for a bug; most show within the first twenty, a few within a hundred.
const SEEDS: u64 = 600;

fn notices(mutant: Mutant) -> bool {
    let scenarios: Vec<&Scenario> =
        mutant.scenarios().iter().filter_map(|name| Scenario::named(name)).collect();
    (0..SEEDS)
        .any(|seed| scenarios.iter().any(|scenario| !run(scenario, seed, Some(mutant)).violations.is_empty()))
}

#[test]
#[ignore = "takes minutes: cargo xtask mutants plays the same"]
fn every_deliberate_bug_is_noticed() {
    let mutants = Mutant::all();
    assert!(mutants.len() >= 25);
    let noticed = each(&mutants, cores(), |mutant| notices(*mutant));
    let missed: Vec<String> = mutants
        .iter()
        .zip(noticed)
        .filter(|(_, noticed)| !noticed)
        .map(|(mutant, _)| mutant.to_string())
        .collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

/// Those of the trash, which show soon: a purge or a restore that should not be is seen at the call.
#[test]
fn every_deliberate_bug_of_the_trash_is_noticed() {
    let rules = [Rule::TrashTime, Rule::TrashClock, Rule::TrashOurs, Rule::TrashUnnamed, Rule::RestoreParted];
    let noticed = each(&rules, cores(), |rule| notices(Mutant::Without(*rule)));
    let missed: Vec<_> = rules.iter().zip(noticed).filter(|(_, noticed)| !noticed).collect();
    assert!(missed.is_empty(), "not noticed: {missed:?}");
}

#[test]
fn every_rule_is_a_mutant_or_a_second_line() {
    let mutants = Mutant::all().into_iter().filter_map(|mutant| match mutant {
        Mutant::Without(rule) => Some(rule),
        Mutant::Lease(_) | Mutant::Journal(_) => None,
    });
    let known: BTreeSet<Rule> = mutants.chain(Mutant::SECOND_LINES).collect();
    assert_eq!(known, Rule::ALL.into_iter().collect());
}

/// What etcd has of the intents after a process died just before it took a volume back.
fn recorded(rules: Rules) -> String {
    simulated(11, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, 11);
        let before_the_delete = Planned { at: Point::Next("backend delete"), fault: Fault::KillBefore };
        world.chaos().plan(before_the_delete);
        world.start_all();
        let mut users = Users::new(&world, 0);
        sleep(Duration::from_secs(2)).await;
        world.store().once("provision", volwright_testkit::Trick::Slow(Duration::from_secs(2)));
        let claim = users.claim(CLASSES[0]);
        sleep(Duration::from_millis(500)).await;
        users.delete_claim(&claim);
        while world.chaos().met().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        format!("{:?}", world.cluster(0).api.list("configmaps", NAMESPACE))
    })
    .unwrap_or_default()
}

#[test]
fn that_an_undo_has_begun_is_recorded_before_it_takes_anything_back() {
    let says_so = |text: &str| text.contains("undoing");
    assert!(says_so(&recorded(Rules::default())));
    assert!(!says_so(&recorded(Rules::without(Rule::UndoRecorded))));
}

/// How long after a new leader's first word a volume goes that a dead one had made, and whose claim has gone.
fn undone_after(rules: Rules) -> Duration {
    simulated(12, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, 12);
        let once_made = Planned { at: Point::Next("backend provision"), fault: Fault::KillAfter };
        world.chaos().plan(once_made);
        world.start_all();
        let mut users = Users::new(&world, 0);
        let claim = users.claim(CLASSES[0]);
        while world.store().volumes().is_empty() {
            sleep(Duration::from_millis(10)).await;
        }
        users.delete_claim(&claim);
        let epoch = || {
            let map = world.cluster(0).api.get("configmaps", NAMESPACE, "volwright-journal-0").ok()?;
            map.pointer("/metadata/annotations")?.get(names::JOURNAL_EPOCH).cloned()
        };
        let before = epoch();
        while epoch() == before {
            sleep(Duration::from_millis(100)).await;
        }
        let since = Instant::now();
        while !world.store().volumes().is_empty() {
            sleep(Duration::from_millis(100)).await;
        }
        since.elapsed()
    })
    .unwrap_or_default()
}

/// A lease (15 s) and the longest call (20 s): until then a call of the dead leader may still take effect.
#[test]
fn what_an_earlier_leader_began_is_taken_back_only_when_its_calls_are_over() {
    let over = Duration::from_secs(35);
    assert!(undone_after(Rules::default()) + Duration::from_secs(1) > over);
    assert!(undone_after(Rules::without(Rule::Grace)) < over / 2);
}

fn epoch_on_the_storage(rules: Rules) -> u64 {
    simulated(13, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, 13);
        world.start_all();
        Users::new(&world, 0).claim(CLASSES[0]);
        sleep(Duration::from_secs(10)).await;
        let volumes = world.store().volumes();
        volumes.values().filter_map(|volume| volume.mark.as_ref()).map(|mark| mark.epoch.number).sum()
    })
    .unwrap_or_default()
}

#[test]
fn marks_bear_the_epoch_of_their_leader() {
    assert!(epoch_on_the_storage(Rules::default()) > 0);
    assert_eq!(epoch_on_the_storage(Rules::without(Rule::EpochInMark)), 0);
}

/// How many classes are known after one went while the watch was cut and its place was forgotten.
fn classes_after_one_went_unseen(rules: Rules) -> usize {
    simulated(14, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, 14);
        world.start_all();
        sleep(Duration::from_secs(10)).await;
        let api = &world.cluster(0).api;
        world.set_down(0, true);
        api.cut_watches();
        api.delete("storageclasses", "", CLASSES[0].name).ok();
        api.compact();
        sleep(Duration::from_secs(3)).await;
        world.set_down(0, false);
        sleep(Duration::from_secs(30)).await;
        world.tables().get("classes").copied().unwrap_or_default()
    })
    .unwrap_or_default()
}

#[test]
fn what_a_new_list_does_not_show_has_gone() {
    let all = CLASSES.len() + FIXED_CLASSES.len();
    assert_eq!(classes_after_one_went_unseen(Rules::default()), all - 1);
    assert_eq!(classes_after_one_went_unseen(Rules::without(Rule::RelistDrops)), all);
}
