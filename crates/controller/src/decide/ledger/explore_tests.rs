//! Every order of events, for a few candidates and a few entries: requests and replies delayed, lost and reordered,
//! candidates that crash, give up waiting, or lead on without knowing that they are deposed.
//!
//! Checked after each event:
//! 1. No write of an earlier epoch is accepted once a later one was raised.
//! 2. An entry whose `open` succeeded is stored until somebody who leads asks to close it.
//! 3. What was never submitted is never stored.
//! 4. A leader's table has all that is stored under its epoch: when in doubt it is recorded.
//! 5. What cannot be read stays.
//! 6. Success is told only of what was stored.
//! 7. A leader whose journal vanished or went back writes no more.

use super::{
    Bounds, Bugs, Image, JournalBug, Ledger, Opened, Payload, Soundness, Standing, Step, Version, Write,
};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use volwright_provisioner::Epoch;

impl Payload for () {
    fn decode(_: &str, text: &str) -> Option<()> {
        (!text.starts_with('?')).then_some(())
    }
}

const PLANTED: (&str, &str) = ("planted", "?");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Budget {
    /// Of one candidate.
    terms: u8,
    opens: u8,
    closes: u8,
    /// Of all.
    timeouts: u8,
    crashes: u8,
    cancels: u8,
    vanishings: u8,
    restores: u8,
}

const NOTHING: Budget =
    Budget { terms: 0, opens: 0, closes: 0, timeouts: 0, crashes: 0, cancels: 0, vanishings: 0, restores: 0 };

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Ask {
    Load(usize),
    Read(usize),
    Write(usize, Box<Write<()>>),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reply {
    Image(Option<Image>),
    Done(Version),
    Conflict,
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Message {
    from: usize,
    /// The sender still waits for it.
    live: bool,
    /// The sender should have stopped before it sent this.
    late: bool,
    ask: Ask,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Call {
    ask: Ask,
    reply: Option<Reply>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Candidate {
    ledger: Option<Ledger<()>>,
    loading: Vec<Option<Image>>,
    call: Option<Call>,
    terms: u8,
    opens: u8,
    closes: u8,
    must_stop: bool,
    /// Opens that have not been answered: shard, key, number.
    wants: BTreeSet<(usize, String, u64)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    registers: Vec<Option<Image>>,
    accepted: Vec<u32>,
    made: u32,
    backup: Option<Image>,
    candidates: Vec<Candidate>,
    network: Vec<Message>,
    owed: BTreeSet<String>,
    /// Who has asked for it, and so may do so again.
    closed: BTreeSet<(String, usize)>,
    submitted: BTreeSet<String>,
    stored: BTreeSet<String>,
    /// Went with what vanished or went back: not the ledger's fault.
    excused: BTreeSet<String>,
    budget: Budget,
    planted: bool,
}

#[derive(Debug, Clone)]
enum Event {
    Begin(usize),
    Advance(usize, usize),
    Deliver(usize),
    TimeOut(usize),
    Crash(usize),
    Open(usize, String),
    Close(usize, String),
    Cancel(usize, usize, String, u64),
    Process(usize),
    Vanish,
    BackUp,
    Restore,
}

struct Setting {
    candidates: usize,
    budget: Budget,
    bounds: Bounds,
    bugs: Bugs,
    /// Something is recorded at the start: an entry of an earlier leader, and one that cannot be read.
    planted: bool,
}

type Checked<T> = Result<T, String>;

fn world(setting: &Setting) -> World {
    let data = [(PLANTED.0.to_owned(), PLANTED.1.to_owned()), ("old".to_owned(), "t".to_owned())];
    let image = Image {
        version: Version { uid: "0".to_owned(), resource: "0".to_owned() },
        epoch: Epoch { number: 1, token: 0 },
        counter: 1,
        shards: Some(1),
        stop: None,
        data: data.into(),
    };
    let mut registers = vec![None; setting.bounds.shards];
    let old = setting.planted.then(|| "old".to_owned());
    if setting.planted {
        registers[0] = Some(image);
    }
    let candidate = Candidate {
        ledger: None,
        loading: Vec::new(),
        call: None,
        terms: setting.budget.terms,
        opens: setting.budget.opens,
        closes: setting.budget.closes,
        must_stop: false,
        wants: BTreeSet::new(),
    };
    World {
        accepted: vec![0; registers.len()],
        registers,
        made: 0,
        backup: None,
        candidates: vec![candidate; setting.candidates],
        network: Vec::new(),
        owed: old.iter().cloned().collect(),
        closed: BTreeSet::new(),
        submitted: old.iter().cloned().chain([PLANTED.0.to_owned()]).collect(),
        stored: old.into_iter().collect(),
        excused: BTreeSet::new(),
        budget: setting.budget,
        planted: setting.planted,
    }
}

fn leads(candidate: &Candidate) -> Option<&Ledger<()>> {
    candidate.ledger.as_ref().filter(|ledger| ledger.begun && ledger.soundness() == Soundness::Sound)
}

fn events(world: &World) -> Vec<Event> {
    let mut events = Vec::new();
    for (who, candidate) in world.candidates.iter().enumerate() {
        let up = candidate.ledger.is_some() || candidate.call.is_some();
        if !up && candidate.terms > 0 {
            events.push(Event::Begin(who));
        }
        if up && world.budget.crashes > 0 {
            events.push(Event::Crash(who));
        }
        if let Some(call) = &candidate.call {
            if call.reply.is_some() {
                events.push(Event::Deliver(who));
            }
            if world.budget.timeouts > 0 {
                events.push(Event::TimeOut(who));
            }
        }
        let Some(ledger) = &candidate.ledger else { continue };
        if candidate.call.is_none() {
            let due =
                ledger.unraised().filter(|_| !ledger.begun).map_or_else(|| ledger.unsettled(), |at| vec![at]);
            events.extend(due.into_iter().map(|at| Event::Advance(who, at)));
        }
        if leads(candidate).is_none() {
            continue;
        }
        if candidate.opens > 0 {
            // A key of its own, or once more one that it closed.
            let key = format!("{who}{}{}", candidate.terms, candidate.opens);
            let closed = world.closed.iter().filter(|(_, by)| *by == who).map(|(key, _)| key.clone());
            for key in [key].into_iter().chain(closed) {
                if ledger.home(&key).is_none_or(|_| ledger.get(&key).is_none()) {
                    events.push(Event::Open(who, key));
                }
            }
        }
        if candidate.closes > 0 {
            events.extend(ledger.open_entries().map(|(key, ())| Event::Close(who, key.to_owned())));
        }
        for (at, key, id) in &candidate.wants {
            let waits = ledger.standing(*at, key, "t") == Standing::Waiting;
            if waits && world.budget.cancels > 0 {
                events.push(Event::Cancel(who, *at, key.clone(), *id));
            }
        }
    }
    events.extend((0..world.network.len()).map(Event::Process));
    if world.budget.vanishings > 0 && world.registers[0].is_some() {
        events.push(Event::Vanish);
    }
    if world.budget.restores > 0 && world.registers[0].is_some() {
        events.push(if world.backup.is_some() { Event::Restore } else { Event::BackUp });
    }
    events
}

fn send(world: &mut World, who: usize, ask: Ask) {
    if let Ask::Write(_, write) = &ask {
        world.submitted.extend(write.data.keys().cloned());
    }
    let candidate = &mut world.candidates[who];
    candidate.call = Some(Call { ask: ask.clone(), reply: None });
    world.network.push(Message { from: who, live: true, late: candidate.must_stop, ask });
}

/// The candidate waits no longer; a write may still arrive.
fn abandon(world: &mut World, who: usize) {
    world
        .network
        .retain(|message| message.from != who || !message.live || matches!(message.ask, Ask::Write(..)));
    for message in world.network.iter_mut().filter(|message| message.from == who) {
        message.live = false;
    }
    world.candidates[who].call = None;
}

fn down(candidate: &mut Candidate) {
    candidate.ledger = None;
    candidate.loading.clear();
    candidate.must_stop = false;
    candidate.wants.clear();
}

fn apply(setting: &Setting, world: &mut World, event: &Event) -> Checked<()> {
    match event {
        Event::Begin(who) => {
            world.candidates[*who].terms -= 1;
            send(world, *who, Ask::Load(0));
        }
        Event::Advance(who, at) => advance(world, *who, *at),
        Event::Deliver(who) => deliver(setting, world, *who)?,
        Event::TimeOut(who) => {
            world.budget.timeouts -= 1;
            let call = world.candidates[*who].call.clone();
            abandon(world, *who);
            let candidate = &mut world.candidates[*who];
            match (call.map(|call| call.ask), &mut candidate.ledger) {
                (Some(Ask::Write(at, write)), Some(ledger)) => ledger.lost(at, *write),
                (Some(Ask::Load(_)), _) => candidate.loading.clear(),
                _ => {}
            }
        }
        Event::Crash(who) => {
            world.budget.crashes -= 1;
            abandon(world, *who);
            down(&mut world.candidates[*who]);
        }
        Event::Open(who, key) => {
            let candidate = &mut world.candidates[*who];
            candidate.opens -= 1;
            let ledger = candidate.ledger.as_mut().unwrap();
            if let Ok(Opened::Waits { at, id }) = ledger.open(key, "t", ()) {
                candidate.wants.insert((at, key.clone(), id));
            }
        }
        Event::Close(who, key) => {
            let candidate = &mut world.candidates[*who];
            candidate.closes -= 1;
            let ledger = candidate.ledger.as_mut().unwrap();
            ledger.close(key);
            candidate.wants.retain(|(_, wanted, _)| wanted != key);
            let epoch = ledger.epoch();
            if world.registers.iter().flatten().any(|image| image.epoch == epoch) {
                world.owed.remove(key);
                world.closed.insert((key.clone(), *who));
            }
        }
        Event::Cancel(who, at, key, id) => {
            world.budget.cancels -= 1;
            let candidate = &mut world.candidates[*who];
            candidate.ledger.as_mut().unwrap().withdraw(*at, key, *id);
            candidate.wants.remove(&(*at, key.clone(), *id));
        }
        Event::Process(index) => process(world, *index)?,
        Event::Vanish => {
            world.budget.vanishings -= 1;
            world.registers[0] = None;
            stop_who_knows_more(world, None);
        }
        Event::BackUp => world.backup.clone_from(&world.registers[0]),
        Event::Restore => {
            world.budget.restores -= 1;
            world.accepted[0] += 1;
            let mut image = world.backup.take().unwrap();
            image.version.resource = world.accepted[0].to_string();
            stop_who_knows_more(world, Some(&image));
            world.registers[0] = Some(image);
        }
    }
    told(world)?;
    forget_dead_letters(world);
    check(world)
}

/// Shard 0 has gone, or back to this.
fn stop_who_knows_more(world: &mut World, image: Option<&Image>) {
    let data = image.map(|image| image.data.clone()).unwrap_or_default();
    for candidate in &mut world.candidates {
        let Some(shard) = candidate.ledger.as_ref().map(|ledger| &ledger.shards[0]) else { continue };
        candidate.must_stop |= shard.raised && image.is_none_or(|image| image.counter < shard.counter);
    }
    world.planted = data.contains_key(PLANTED.0);
    world.excused = world.stored.iter().filter(|key| !data.contains_key(*key)).cloned().collect();
    world.owed.clear();
    world.closed.clear();
}

fn advance(world: &mut World, who: usize, at: usize) {
    let candidate = &mut world.candidates[who];
    let ledger = candidate.ledger.as_mut().unwrap();
    match ledger.next(at) {
        Step::Done => {}
        Step::Read => send(world, who, Ask::Read(at)),
        Step::Write(write) => send(world, who, Ask::Write(at, write)),
        Step::Count => advance(world, who, 0),
        Step::Overtaken => ledger.raise(u64::try_from(who).unwrap(), 0),
        Step::Unsound(_) => down(candidate),
    }
}

fn deliver(setting: &Setting, world: &mut World, who: usize) -> Checked<()> {
    let candidate = &mut world.candidates[who];
    let Some(Call { ask, reply: Some(reply) }) = candidate.call.take() else { return Ok(()) };
    match (ask, reply) {
        (Ask::Load(at), Reply::Image(image)) => {
            let count = image.as_ref().filter(|_| at == 0).and_then(|image| image.shards);
            candidate.loading.push(image);
            let first = candidate.loading[0].as_ref().and_then(|image| image.shards);
            if candidate.loading.len() < count.or(first).unwrap_or(1) {
                send(world, who, Ask::Load(at + 1));
                return Ok(());
            }
            let images = std::mem::take(&mut candidate.loading);
            let (mut ledger, _) = Ledger::load(setting.bounds, setting.bugs, images, None);
            ledger.raise(u64::try_from(who).unwrap(), 0);
            candidate.ledger = Some(ledger);
        }
        (Ask::Read(at), Reply::Image(image)) => candidate.ledger.as_mut().unwrap().absorb(at, image),
        (Ask::Write(at, write), Reply::Done(version)) => {
            candidate.ledger.as_mut().unwrap().acknowledged(at, &write, version);
        }
        (Ask::Write(..), Reply::Conflict) => {}
        (Ask::Write(at, _), Reply::Gone) => candidate.ledger.as_mut().unwrap().gone(at),
        (ask, reply) => return Err(format!("{reply:?} to {ask:?}")),
    }
    Ok(())
}

fn process(world: &mut World, index: usize) -> Checked<()> {
    let message = world.network.remove(index);
    let reply = match &message.ask {
        Ask::Load(at) | Ask::Read(at) => Reply::Image(world.registers[*at].clone()),
        Ask::Write(at, write) => write_register(world, *at, write, message.late)?,
    };
    if message.live
        && let Some(call) = &mut world.candidates[message.from].call
    {
        call.reply = Some(reply);
    }
    Ok(())
}

fn write_register(world: &mut World, at: usize, write: &Write<()>, late: bool) -> Checked<Reply> {
    let uid = match (&write.version, &world.registers[at]) {
        (None, None) => {
            world.made += 1;
            world.made.to_string()
        }
        (Some(_), None) => return Ok(Reply::Gone),
        (Some(version), Some(image)) if version.resource.is_empty() || *version == image.version => {
            image.version.uid.clone()
        }
        _ => return Ok(Reply::Conflict),
    };
    if let Some(image) = &world.registers[at] {
        let later = write.epoch.number > image.epoch.number || write.epoch == image.epoch;
        if !later {
            return Err(format!("1: a write of {:?} was accepted after {:?}", write.epoch, image.epoch));
        }
    }
    if late {
        return Err("7: a leader that should have stopped has written".to_owned());
    }
    world.accepted[at] += 1;
    world.stored.extend(write.data.keys().cloned());
    world.excused.retain(|key| !write.data.contains_key(key));
    let resource = world.accepted[at].to_string();
    let version = Version { uid, resource };
    world.registers[at] = Some(Image {
        version: version.clone(),
        epoch: write.epoch,
        counter: write.counter,
        shards: write.shards,
        stop: write.stop.clone(),
        data: write.data.clone(),
    });
    Ok(Reply::Done(version))
}

/// Callers are told of success as soon as the ledger says so.
fn told(world: &mut World) -> Checked<()> {
    for (who, candidate) in world.candidates.iter_mut().enumerate() {
        let Some(ledger) = &candidate.ledger else { continue };
        let leads = world.registers.iter().flatten().any(|image| image.epoch == ledger.epoch());
        let done = |(at, key, _): &(usize, String, u64)| ledger.standing(*at, key, "t") == Standing::Recorded;
        let recorded: Vec<_> = candidate.wants.iter().filter(|want| done(want)).cloned().collect();
        for want in recorded {
            candidate.wants.remove(&want);
            if !world.stored.contains(&want.1) {
                return Err(format!("6: success for {}, which was never stored", want.1));
            }
            // A later leader may have closed it before we heard of our success.
            let by_others = world.closed.iter().any(|(key, by)| *key == want.1 && *by != who);
            if (leads || !by_others) && !world.excused.contains(&want.1) {
                world.owed.insert(want.1);
            }
        }
    }
    Ok(())
}

/// Writes that can never be accepted any more need not be told apart.
fn forget_dead_letters(world: &mut World) {
    let World { network, registers, budget, .. } = world;
    network.retain(|message| match &message.ask {
        Ask::Write(at, write) if !message.live => match (&write.version, &registers[*at]) {
            (None, Some(_)) => budget.vanishings > 0,
            (Some(version), Some(image)) => version.resource.is_empty() || *version == image.version,
            (None, None) => true,
            (Some(_), None) => false,
        },
        _ => true,
    });
    // The order in which they were sent does not matter.
    network.sort_by_cached_key(|message| BuildHasherDefault::<DefaultHasher>::default().hash_one(message));
}

fn check(world: &World) -> Checked<()> {
    let stored: BTreeMap<&str, &str> = world
        .registers
        .iter()
        .flatten()
        .flat_map(|image| image.data.iter().map(|(key, text)| (key.as_str(), text.as_str())))
        .collect();
    if let Some(lost) = world.owed.iter().find(|key| !stored.contains_key(key.as_str())) {
        return Err(format!("2: {lost} was acknowledged and is lost"));
    }
    if let Some(key) = stored.keys().find(|key| !world.submitted.contains(**key)) {
        return Err(format!("3: {key} was never submitted"));
    }
    if world.planted && stored.get(PLANTED.0) != Some(&PLANTED.1) {
        return Err("5: what cannot be read is gone".to_owned());
    }
    for (who, candidate) in world.candidates.iter().enumerate() {
        let Some(ledger) = leads(candidate).filter(|_| !candidate.must_stop) else { continue };
        for (at, image) in world.registers.iter().enumerate() {
            let Some(image) = image.as_ref().filter(|image| image.epoch == ledger.epoch()) else { continue };
            let known = |key: &String| key == PLANTED.0 || ledger.shards[at].entries.contains_key(key);
            if let Some(key) = image.data.keys().find(|key| !known(key)) {
                return Err(format!("4: candidate {who} leads and does not know of {key}"));
            }
        }
    }
    Ok(())
}

/// How many states there are, or how a rule was broken.
fn explore(setting: &Setting) -> Checked<usize> {
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    let start = world(setting);
    let mut seen = HashSet::from([hasher.hash_one(&start)]);
    let mut stack: Vec<(usize, Option<Event>, World)> = vec![(0, None, start)];
    let mut path: Vec<Event> = Vec::new();
    while let Some((depth, event, world)) = stack.pop() {
        path.truncate(depth.saturating_sub(1));
        path.extend(event);
        for event in events(&world) {
            let mut next = world.clone();
            if let Err(broken) = apply(setting, &mut next, &event) {
                path.push(event);
                let story: Vec<String> = path.iter().map(|event| format!("{event:?}")).collect();
                return Err(format!("{broken}\nafter {}", story.join("\n      ")));
            }
            if seen.insert(hasher.hash_one(&next)) {
                stack.push((depth + 1, Some(event), next));
            }
        }
    }
    Ok(seen.len())
}

fn two(budget: Budget) -> Setting {
    let bounds = Bounds { shard_bytes: 1024, shards: 1, entry_bytes: 256 };
    Setting { candidates: 2, budget, bounds, bugs: Bugs::default(), planted: true }
}

/// Room for one entry per shard.
const GROWING: Bounds = Bounds { shard_bytes: 4, shards: 2, entry_bytes: 4 };

type Mistakes = Vec<(JournalBug, &'static str)>;

/// What is explored, each with mistakes that it must notice and the rule they break.
fn settings() -> Vec<(&'static str, Setting, Mistakes)> {
    use JournalBug::{
        AcknowledgeEarly, DropDoubt, DropForeign, ForgetAtClose, IgnoreAge, IgnoreEpoch, LostIsRefused,
        NoVersion, RemakeVanished, TrustUnfencedRead,
    };
    let leading = Budget { terms: 1, opens: 1, ..NOTHING };
    let one = |budget| Setting { candidates: 1, ..two(budget) };
    let silence = Budget { opens: 2, closes: 1, timeouts: 2, cancels: 1, ..leading };
    vec![
        (
            "two, one silent",
            two(Budget { timeouts: 1, ..leading }),
            vec![(NoVersion, "12"), (IgnoreEpoch, "12"), (AcknowledgeEarly, "6"), (DropForeign, "5")],
        ),
        ("two, closing", two(Budget { closes: 1, ..leading }), vec![]),
        ("two, crashing", two(Budget { terms: 2, crashes: 1, ..leading }), vec![]),
        ("two, from nothing", Setting { planted: false, ..two(Budget { timeouts: 1, ..leading }) }, vec![]),
        (
            "one, silent",
            one(silence),
            vec![(ForgetAtClose, "4"), (LostIsRefused, "4"), (DropDoubt, "4"), (TrustUnfencedRead, "2")],
        ),
        (
            "one, vanishing",
            one(Budget { terms: 2, closes: 1, vanishings: 1, timeouts: 1, ..leading }),
            vec![(RemakeVanished, "7")],
        ),
        (
            "one, restored",
            one(Budget { terms: 2, restores: 1, timeouts: 1, ..leading }),
            vec![(IgnoreAge, "7")],
        ),
        (
            "two, growing",
            Setting { bounds: GROWING, planted: false, ..two(Budget { opens: 2, ..leading }) },
            vec![],
        ),
        ("three", Setting { candidates: 3, ..two(leading) }, vec![(IgnoreEpoch, "12")]),
    ]
}

#[test]
fn no_order_of_events_breaks_a_rule() {
    let mut total = 0;
    for (name, setting, _) in settings() {
        let begun = std::time::SystemTime::now();
        let states = explore(&setting).unwrap_or_else(|broken| panic!("{name}: {broken}"));
        println!("{name}: {states} states in {:?}", begun.elapsed().unwrap());
        total += states;
    }
    println!("{total} states");
}

#[test]
fn every_mistake_is_noticed() {
    for (name, setting, mistakes) in settings() {
        for (bug, rule) in mistakes {
            let broken = explore(&Setting { bugs: Bugs::one(bug), ..setting });
            let broken = broken.expect_err(&format!("{name}: {bug:?} is not noticed"));
            assert!(rule.contains(&broken[..1]), "{name}: {bug:?}: {broken}");
        }
    }
}

/// Minutes in a debug build.
#[test]
#[ignore = "takes minutes; run it when the ledger changes"]
fn no_longer_order_of_events_breaks_a_rule() {
    let leading = Budget { terms: 1, opens: 1, closes: 1, timeouts: 1, ..NOTHING };
    let longer = [
        ("two", two(leading)),
        ("two, crashing", two(Budget { terms: 2, crashes: 1, timeouts: 1, closes: 0, ..leading })),
        (
            "one",
            Setting {
                candidates: 1,
                ..two(Budget { opens: 2, closes: 2, timeouts: 3, cancels: 1, ..leading })
            },
        ),
        ("three", Setting { candidates: 3, ..two(Budget { closes: 0, ..leading }) }),
        (
            "two, growing",
            Setting { bounds: GROWING, planted: false, ..two(Budget { opens: 2, closes: 0, ..leading }) },
        ),
    ];
    for (name, setting) in longer {
        let states = explore(&setting).unwrap_or_else(|broken| panic!("{name}: {broken}"));
        println!("{name}: {states} states");
    }
}
