//! A call of ours whose answer was lost comes late. It must not meet what was done after it.

use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::decide::{Rule, Rules};
use volwright_testkit::sim::{
    CLASSES, Fault, Planned, Point, Setup, SimClass, Users, World, cores, each, simulated,
};

/// How late a call comes is drawn by the seed; some of these come after the next step, if nothing waits for them.
const SEEDS: std::ops::Range<u64> = 0..24;

const STEP: Duration = Duration::from_millis(1);

/// A claim of the class, whose next call of this kind comes late, if its PV is deleted as soon as it is there or its claim
/// as soon as it is bound. What was broken once all of that is over?
fn broken(
    seed: u64,
    rules: Rules,
    class: SimClass,
    call: &'static str,
    before_it_is_bound: bool,
) -> Vec<String> {
    simulated(seed, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, seed);
        world.start_all();
        let mut users = Users::new(&world, 0);
        sleep(Duration::from_secs(10)).await;
        world.chaos().plan(Planned { at: Point::Next(call), fault: Fault::BackendLate });
        let claim = users.claim(class);
        let api = &world.cluster(0).api;
        loop {
            let volumes = api.list("persistentvolumes", "").unwrap_or_default();
            if let Some(pv) =
                volumes.first().filter(|pv| before_it_is_bound || pv["status"]["phase"] == "Bound")
            {
                if before_it_is_bound {
                    api.delete("persistentvolumes", "", pv["metadata"]["name"].as_str().unwrap_or_default())
                        .ok();
                } else {
                    users.delete_claim(&claim);
                }
                break;
            }
            sleep(STEP).await;
        }
        world.rest(Duration::from_secs(900)).await;
        assert_eq!(world.chaos().met().len(), 1, "the call came late");
        world.violations().iter().map(|violation| format!("{violation:?}")).collect()
    })
    .unwrap_or_default()
}

fn over_all_seeds(
    rules: &Rules,
    class: SimClass,
    call: &'static str,
    before_it_is_bound: bool,
) -> Vec<String> {
    let seeds: Vec<u64> = SEEDS.collect();
    each(&seeds, cores(), |seed| broken(*seed, rules.clone(), class, call, before_it_is_bound)).concat()
}

/// The claim of a PV that was deleted before it was bound gets another volume, in the same place and of the same owner.
#[test]
fn a_late_delete_never_meets_the_next_volume_of_the_claim() {
    let play = |rules: &Rules| over_all_seeds(rules, CLASSES[0], "backend delete", true);
    assert_eq!(play(&Rules::default()), Vec::<String>::new());
    assert!(!play(&Rules::without(Rule::Doubt)).is_empty(), "some seed shows what the rule is good for");
}

/// `published` of a volume that is marked as retained by then would make it an orphan.
#[test]
fn a_late_mark_never_overwrites_a_later_one() {
    let play = |rules: &Rules| over_all_seeds(rules, CLASSES[2], "backend set_mark", false);
    assert_eq!(play(&Rules::default()), Vec::<String>::new());
    assert!(!play(&Rules::without(Rule::Doubt)).is_empty(), "some seed shows what the rule is good for");
}
