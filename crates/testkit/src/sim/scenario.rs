//! What is played.

use std::time::Duration;
use tokio::time::sleep;

use super::chaos::{Fault, Planned, Point};
use super::coverage::pairs;
use super::users::{Deed, Users};
use super::world::{CLASSES, Setup, TRASH, World};
use crate::Trick;
use volwright_provisioner::Class;

/// A kind of run.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// As it is asked for.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// Users do things from a table, while faults of some families happen.
    Random { processes: usize, clusters: usize, faults: &'static [&'static [Fault]], deeds: Deeds },
    /// A short story, with a fault at one step or await.
    Short { story: Short, at: Option<Planned>, kill_at: Option<u64> },
    /// A story that takes every step, with a fault at one.
    Errands { at: Option<Planned> },
    /// The same, where the seed says which fault meets which step.
    Pairs,
}

/// Short stories, for every point of which a crash is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Short {
    /// One claim, which stays.
    OneClaim,
    /// One claim, which goes while it is being served.
    ClaimGoes,
    /// Two claims.
    TwoClaims,
    /// A claim is served, and goes.
    Delete,
    /// A claim with policy Retain is served, goes, and its PV is deleted.
    Retain,
    /// A claim goes and comes again under its name, with a path made of that name.
    SameName,
}

impl Short {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::OneClaim, Self::ClaimGoes, Self::TwoClaims, Self::Delete, Self::Retain, Self::SameName];
}

use Deed::{
    Alias, AskLess, AskMore, AskTooMuch, Backup, BadOnDelete, Claim, Clear, ClockOff, ClockStep, Clone,
    Compact, CutWatches, Delete, DeleteClaim, DeletePv, DropClass, DropJournal, DropNode, EditJournal,
    FixedClaim, ForeignClass, Kill, Name, NameAgain, NodeGrows, Obstacle, Populated, Reclaim, RemakeClass,
    Repoint, Reselect, Restore, Retain, SameName, Squatter, Stop, Strip, StripFinalizer, Suspend, Tamper,
    Terminate, TrashAgain, TrashClaim, TrashEmpty, TrashFor, TrashRemake, TrashRestore, Unalias, Unask, Use,
    Write,
};

/// Tables of what people do, each with its weight.
type Deeds = &'static [&'static [(Deed, usize)]];

const CALM_USERS: &[(Deed, usize)] =
    &[(Claim, 8), (SameName, 4), (DeleteClaim, 8), (Write, 6), (Reselect, 1), (Unask, 1), (Use, 1)];

const EDITORS: &[(Deed, usize)] = &[
    (Claim, 6),
    (SameName, 3),
    (DeleteClaim, 6),
    (Write, 4),
    (Clone, 1),
    (Populated, 1),
    (Repoint, 1),
    (DeletePv, 2),
    (Retain, 2),
    (Delete, 2),
    (Strip, 1),
    (StripFinalizer, 1),
    (Alias, 1),
    (Unalias, 1),
    (Name, 1),
    (RemakeClass, 1),
    (DropClass, 1),
    (DropNode, 1),
    (Reselect, 1),
    (Obstacle, 1),
    (Clear, 1),
    (Squatter, 1),
    (Tamper, 1),
    (Use, 2),
    (Reclaim, 2),
    (NameAgain, 2),
    (ForeignClass, 1),
    (Unask, 1),
    (BadOnDelete, 1),
];

const OPERATORS: &[(Deed, usize)] = &[
    (Claim, 6),
    (SameName, 2),
    (DeleteClaim, 6),
    (Write, 3),
    (Retain, 1),
    (Delete, 1),
    (Terminate, 1),
    (Kill, 2),
    (Stop, 2),
    (Compact, 1),
    (CutWatches, 1),
    (ClockStep, 1),
    (Suspend, 1),
    (EditJournal, 1),
    (DropJournal, 1),
];

const RESTORERS: &[(Deed, usize)] = &[
    (Claim, 6),
    (SameName, 1),
    (DeleteClaim, 6),
    (Write, 3),
    (Retain, 3),
    (Delete, 1),
    (Backup, 1),
    (Restore, 2),
    (Terminate, 1),
];

const GROWERS: &[(Deed, usize)] = &[
    (Claim, 6),
    (SameName, 1),
    (FixedClaim, 1),
    (AskMore, 12),
    (AskLess, 4),
    (AskTooMuch, 2),
    (NodeGrows, 2),
    (DeleteClaim, 4),
    (Write, 2),
    (DeletePv, 1),
    (Retain, 1),
    (Delete, 1),
    (Tamper, 1),
    (DropClass, 1),
    (Kill, 1),
];

const TRASHERS: &[(Deed, usize)] = &[
    (TrashClaim, 8),
    (TrashAgain, 4),
    (Claim, 1),
    (DeleteClaim, 8),
    (Write, 6),
    (TrashRestore, 5),
    (TrashEmpty, 1),
    (TrashFor, 2),
    (TrashRemake, 1),
    (Retain, 1),
    (Delete, 1),
    (Use, 1),
    (ClockOff, 1),
    (Terminate, 1),
    (Kill, 1),
    (Stop, 1),
];

/// All random scenarios.
pub const SCENARIOS: [Scenario; 13] = [
    random("api", "the API server fails in every way", 1, 1, &[&Fault::READS, &Fault::WRITES], &[CALM_USERS]),
    random(
        "watches",
        "watches end, lag, lie and repeat",
        1,
        1,
        &[&Fault::WATCHES, &Fault::READS],
        &[EDITORS],
    ),
    random(
        "crashes",
        "the process dies at any call and await",
        1,
        1,
        &[&[Fault::KillBefore, Fault::KillAfter]],
        &[CALM_USERS],
    ),
    random("leaders", "leaders stop, go on, and hand over", 2, 1, &[&Fault::PROCESS], &[OPERATORS]),
    random(
        "storage",
        "the storage system is slow, fails and lies",
        1,
        1,
        &[
            &Fault::BACKEND_READS,
            &Fault::BACKEND_WRITES,
            &[Fault::BackendFull, Fault::BackendBusy, Fault::BackendPending],
        ],
        &[CALM_USERS],
    ),
    random("editors", "people edit everything", 1, 1, &[], &[EDITORS]),
    random("races", "people are quicker than a request", 1, 1, &[&Fault::MEDDLING], &[EDITORS]),
    random(
        "growth",
        "claims ask for more, and for less again",
        2,
        1,
        &[
            &Fault::READS,
            &Fault::WRITES,
            &Fault::PROCESS,
            &Fault::BACKEND_READS,
            &Fault::BACKEND_WRITES,
            &[Fault::BackendFull, Fault::BackendPending],
        ],
        &[GROWERS],
    ),
    random("restore", "etcd is restored from a backup", 1, 1, &[], &[RESTORERS]),
    random(
        "neighbours",
        "two installations on one storage system",
        1,
        2,
        &[&Fault::BACKEND_WRITES, &[Fault::KillAfter]],
        &[EDITORS],
    ),
    random(
        "trash",
        "people delete, restore and empty, and two installations share the storage",
        2,
        2,
        &[
            &Fault::READS,
            &Fault::WRITES,
            &Fault::PROCESS,
            &Fault::BACKEND_READS,
            &Fault::BACKEND_WRITES,
            &[Fault::BackendBusy, Fault::BackendPending],
        ],
        &[TRASHERS],
    ),
    random(
        "everything",
        "all of it at once",
        2,
        1,
        &[
            &Fault::READS,
            &Fault::WRITES,
            &Fault::WATCHES,
            &Fault::PROCESS,
            &Fault::BACKEND_READS,
            &Fault::BACKEND_WRITES,
            &Fault::MEDDLING,
            &[Fault::BackendFull, Fault::BackendBusy, Fault::BackendPending],
        ],
        &[EDITORS, OPERATORS, GROWERS],
    ),
    Scenario {
        name: "pairs",
        about: "each fault at each step in turn, then two of them together",
        kind: Kind::Pairs,
    },
];

const fn random(
    name: &'static str,
    about: &'static str,
    processes: usize,
    clusters: usize,
    faults: &'static [&'static [Fault]],
    deeds: Deeds,
) -> Scenario {
    Scenario { name, about, kind: Kind::Random { processes, clusters, faults, deeds } }
}

/// A short story with a fault `at` a step, or killed at the await `kill_at`.
pub fn short(story: Short, at: Option<Planned>, kill_at: Option<u64>) -> Scenario {
    Scenario { name: "short", about: "one fault in a short story", kind: Kind::Short { story, at, kill_at } }
}

/// A story that takes every step, with a fault at one.
pub fn errands(at: Option<Planned>) -> Scenario {
    Scenario {
        name: "errands",
        about: "one fault in a story that takes every step",
        kind: Kind::Errands { at },
    }
}

impl Scenario {
    /// The random scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        SCENARIOS.iter().find(|scenario| scenario.name == name)
    }

    pub(super) fn setup(&self) -> Setup {
        match self.kind {
            Kind::Random { processes, clusters, .. } => {
                // Elsewhere nobody looks after a trash, and nobody asks what the time is.
                let trash_interval = if self.name == "trash" { TRASH_LOOK } else { Duration::ZERO };
                Setup { clusters, processes, trash_interval, ..Setup::default() }
            }
            Kind::Short { .. } => Setup::default(),
            Kind::Errands { .. } | Kind::Pairs => {
                Setup { processes: 2, trash_interval: TRASH_LOOK, ..Setup::default() }
            }
        }
    }

    pub(super) async fn play(&self, world: &World, seed: u64) {
        match self.kind {
            Kind::Random { faults, deeds, .. } => play_random(world, faults, deeds).await,
            Kind::Short { story, at, kill_at } => play_short(world, story, at, kill_at).await,
            Kind::Errands { at } => play_errands(world, at).await,
            Kind::Pairs => play_pairs(world, seed).await,
        }
    }
}

/// Chance visits some pairs of fault and step once in a hundred thousand runs: a claim is patched rarely, and a process
/// killed just then more rarely still. Here each has its turn; once all had theirs, requests take their time, and every
/// second run plans another pair.
async fn play_pairs(world: &World, seed: u64) {
    let chaos = world.chaos();
    let pairs: Vec<Planned> =
        pairs().into_iter().map(|(fault, step)| Planned { at: Point::Next(step), fault }).collect();
    let count = pairs.len();
    let (round, turn) = match usize::try_from(seed) {
        Ok(seed) => (seed / count, seed % count),
        Err(_) => (1, chaos.below(count)),
    };
    if round > 0 {
        chaos.with_delays();
        if chaos.chance(500) {
            chaos.plan(pairs[chaos.below(count)]);
        }
    }
    play_errands(world, Some(pairs[turn])).await;
}

/// How often the trash is looked through.
const TRASH_LOOK: Duration = Duration::from_secs(10);

/// How long people are busy.
const BUSY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(70));

async fn play_random(world: &World, faults: &[&[Fault]], deeds: Deeds) {
    let deeds = deeds.concat();
    let chaos = world.chaos();
    let all: Vec<Fault> = faults.iter().flat_map(|kinds| kinds.iter().copied()).collect();
    if !all.is_empty() {
        // A few kinds a run, often: what goes wrong together shows more than everything a little.
        for _ in 0..=chaos.below(4) {
            let rate = [5, 20, 60, 150][chaos.below(4)];
            chaos.rate(all[chaos.below(all.len())], rate);
        }
    }
    if chaos.chance(700) {
        chaos.with_delays();
    }
    if all.is_empty() {
        for number in 0..world.clusters() {
            world.cluster(number).tower.watches_are_good();
        }
    }
    world.start_all();
    let time = chaos.between(BUSY.0, BUSY.1);
    let pause = Duration::from_millis([500, 1500, 4000][chaos.below(3)]);
    let mut people: Vec<Users> = (0..world.clusters()).map(|number| Users::new(world, number)).collect();
    futures::future::join_all(people.iter_mut().map(|users| users.act(&deeds, time, pause))).await;
    for users in &mut people {
        users.mend();
        users.acknowledge();
    }
    spawn_operators(world);
}

/// Operators acknowledge what they are asked to, now and then.
fn spawn_operators(world: &World) {
    for number in 0..world.clusters() {
        let users = Users::new(world, number);
        tokio::spawn(async move {
            loop {
                sleep(Duration::from_secs(20)).await;
                users.acknowledge();
            }
        });
    }
}

/// Everything that a central engine ever does, once.
async fn play_errands(world: &World, at: Option<Planned>) {
    if let Some(planned) = at {
        world.chaos().plan(planned);
    }
    world.start_all();
    let mut users = Users::new(world, 0);
    let pause = |seconds| sleep(Duration::from_secs(seconds));
    // No room where the pod was to go: the scheduler chooses anew.
    world.store().once("provision", Trick::Fail(Class::Exhausted, "simulated: no room on this node"));
    let late = users.claim(CLASSES[3]);
    pause(2).await;
    // Refused again and again, which is one event with a count.
    users.impossible();
    let csi = users.claim(CLASSES[6]);
    let kept = users.claim(CLASSES[1]);
    let trashed = [users.claim(TRASH[0]), users.claim(TRASH[0])];
    pause(4).await;
    users.perform(Write);
    users.delete_claim(&csi);
    users.delete_claim(&late);
    users.delete_claim(&kept);
    for claim in &trashed {
        users.delete_claim(claim);
    }
    pause(6).await;
    users.perform(TrashRestore);
    users.perform(DeletePv);
    // The finalizer follows the policy.
    let grows = users.claim(CLASSES[0]);
    pause(4).await;
    users.ask(&grows, "2Gi");
    pause(4).await;
    users.perform(Retain);
    pause(4).await;
    users.perform(Delete);
    // Until the count is told, and a leader that died is replaced.
    pause(80).await;
    users.forgive();
}

async fn play_short(world: &World, story: Short, at: Option<Planned>, kill_at: Option<u64>) {
    if let Some(planned) = at {
        world.chaos().plan(planned);
    }
    world.start_all();
    if let (Some(polls), Some(process)) = (kill_at, world.processes().first()) {
        process.gate().kill_at_poll(polls);
    }
    let mut users = Users::new(world, 0);
    let pause = || sleep(Duration::from_secs(3));
    match story {
        Short::OneClaim => {
            users.claim(CLASSES[0]);
            pause().await;
        }
        Short::ClaimGoes => {
            let claim = users.claim(CLASSES[0]);
            // The crash is long over when it goes: while the process is away.
            world.chaos_or(Duration::from_millis(300)).await;
            users.delete_claim(&claim);
            pause().await;
        }
        Short::TwoClaims => {
            users.claim(CLASSES[0]);
            users.claim(CLASSES[5]);
            pause().await;
        }
        Short::Delete => {
            let claim = users.claim(CLASSES[0]);
            pause().await;
            users.perform(Write);
            users.delete_claim(&claim);
            pause().await;
        }
        Short::Retain => {
            let claim = users.claim(CLASSES[1]);
            pause().await;
            users.perform(Write);
            users.delete_claim(&claim);
            pause().await;
            users.perform(DeletePv);
            pause().await;
        }
        Short::SameName => {
            users.perform(SameName);
            pause().await;
            users.perform(Write);
            users.delete_claim("same0");
            users.delete_claim("same1");
            users.perform(SameName);
            pause().await;
        }
    }
    sleep(Duration::from_secs(25)).await;
}
