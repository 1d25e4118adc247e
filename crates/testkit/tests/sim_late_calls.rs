//! A call of ours whose answer was lost comes late. It must not meet what was done after it.

use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::decide::{Rule, Rules};
use volwright_provisioner::MarkState;
use volwright_testkit::memory::StoredVolume;
use volwright_testkit::sim::{CLASSES, Fault, Planned, Point, Setup, Users, World, cores, each, simulated};

/// How late a call comes is drawn by the seed; some of these come after the next step, if nothing waits for them.
const SEEDS: std::ops::Range<u64> = 0..24;

const STEP: Duration = Duration::from_millis(1);

/// The mark `published` of a claim's volume comes late, and its claim is deleted as soon as it is bound, so that the volume
/// is retained. What was broken once all of that is over?
fn broken(seed: u64, rules: Rules) -> Vec<String> {
    simulated(seed, async || {
        let world = World::new(Setup { rules, ..Setup::default() }, seed);
        world.start_all();
        let mut users = Users::new(&world, 0);
        sleep(Duration::from_secs(10)).await;
        world.chaos().plan(Planned { at: Point::Next("backend set_mark"), fault: Fault::BackendLate });
        let claim = users.claim(CLASSES[2]);
        let api = &world.cluster(0).api;
        let volumes = || api.list("persistentvolumes", "").unwrap_or_default();
        while !volumes().iter().any(|pv| pv["status"]["phase"] == "Bound") {
            sleep(STEP).await;
        }
        users.delete_claim(&claim);
        // Nothing goes wrong any more once the world is to come to rest.
        sleep(Duration::from_secs(60)).await;
        assert_eq!(world.chaos().met().len(), 1, "the mark came late");
        world.rest(Duration::from_secs(900)).await;
        let mut broken: Vec<_> =
            world.violations().iter().map(|violation| format!("{violation:?}")).collect();
        let is_published = |volume: &StoredVolume| {
            volume.mark.as_ref().is_some_and(|mark| mark.state == MarkState::Published)
        };
        if volumes().is_empty() {
            let left = world.store().volumes().into_iter().filter(|(_, volume)| is_published(volume));
            broken.extend(left.map(|(path, _)| format!("{path} is marked published, and no PV is there")));
        }
        broken
    })
    .unwrap_or_default()
}

fn over_all_seeds(rules: &Rules) -> Vec<String> {
    let seeds: Vec<u64> = SEEDS.collect();
    each(&seeds, cores(), |seed| broken(*seed, rules.clone())).concat()
}

#[test]
fn a_late_mark_never_overwrites_a_later_one() {
    assert_eq!(over_all_seeds(&Rules::default()), Vec::<String>::new());
    let without = over_all_seeds(&Rules::without(Rule::Doubt));
    assert!(!without.is_empty(), "some seed shows what the rule is good for");
}
