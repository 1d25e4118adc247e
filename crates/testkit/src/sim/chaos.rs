//! What goes wrong, when: by script at a named point, or by chance from a seed. Every pair of a fault and the step it met is
//! counted, since a fault that never happens proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// 429 with Retry-After, nothing done.
    TooMany,
    /// 500, nothing done.
    Internal,
    /// 503, nothing done.
    Away,
    /// 409 on a write, nothing done: somebody else was quicker.
    Conflict,
    /// The request never arrives, and no answer comes.
    LostRequest,
    /// It takes effect, and the connection breaks before the answer.
    LostReply,
    /// It takes effect or not within its deadline, and the answer comes when it likes.
    Slow,
    /// A watch ends.
    WatchCut,
    /// A watch stays open and says nothing more.
    WatchSilent,
    /// A watch is late.
    WatchLate,
    /// A watch says things twice.
    WatchTwice,
    /// SIGKILL before the step has an effect.
    KillBefore,
    /// SIGKILL after it had its effect, before the answer.
    KillAfter,
    /// SIGSTOP before the step has an effect, SIGCONT later.
    StopBefore,
    /// SIGSTOP after it had its effect.
    StopAfter,
    /// SIGSTOP while the call runs: it takes effect only once the process is resumed.
    StopWithin,
    /// The backend surely did nothing.
    BackendAway,
    /// The backend did nothing, and cannot say so.
    BackendUnknown,
    /// The backend did it, and its answer is lost.
    BackendLostReply,
    /// The backend does not answer, and does nothing.
    BackendHangs,
    /// The backend says that it does not know, and does it before the call's deadline.
    BackendLate,
    /// The backend takes longer than the deadline.
    BackendSlow,
    /// The backend says: ask again.
    BackendPending,
    /// No room.
    BackendFull,
    /// In use.
    BackendBusy,
    /// The root does not show itself for a while.
    RootHidden,
    /// Somebody turns the policy of this PV to Retain, just now.
    NowRetain,
    /// Somebody puts another PV's handle on this one, just now.
    NowHandle,
    /// A broken controller says that a bound PV is released.
    NowReleased,
}

impl Fault {
    /// What may happen to a read of the API server.
    pub const READS: [Self; 6] =
        [Self::TooMany, Self::Internal, Self::Away, Self::LostRequest, Self::LostReply, Self::Slow];
    /// What may happen to a write.
    pub const WRITES: [Self; 7] = [
        Self::TooMany,
        Self::Internal,
        Self::Away,
        Self::Conflict,
        Self::LostRequest,
        Self::LostReply,
        Self::Slow,
    ];
    /// What may happen to a watch.
    pub const WATCHES: [Self; 7] = [
        Self::TooMany,
        Self::Internal,
        Self::Away,
        Self::WatchCut,
        Self::WatchSilent,
        Self::WatchLate,
        Self::WatchTwice,
    ];
    /// What may happen to a create: that its name is taken already would be a lie.
    pub const CREATES: [Self; 6] = Self::READS;
    /// What may happen to a PV just before a request about it arrives.
    pub const MEDDLING: [Self; 3] = [Self::NowRetain, Self::NowHandle, Self::NowReleased];
    /// What may happen to the process at any step.
    pub const PROCESS: [Self; 5] =
        [Self::KillBefore, Self::KillAfter, Self::StopBefore, Self::StopAfter, Self::StopWithin];
    /// What may happen to a backend's read.
    pub const BACKEND_READS: [Self; 4] =
        [Self::BackendAway, Self::BackendUnknown, Self::BackendHangs, Self::RootHidden];
    /// What may happen to a backend's write.
    pub const BACKEND_WRITES: [Self; 7] = [
        Self::BackendAway,
        Self::BackendUnknown,
        Self::BackendLostReply,
        Self::BackendHangs,
        Self::BackendLate,
        Self::BackendSlow,
        Self::RootHidden,
    ];
}

/// A fault by script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// Where.
    pub at: Point,
    /// What happens there, if it can.
    pub fault: Fault,
}

/// A step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Counting all steps of all processes from 0.
    Step(u64),
    /// The next of this name that can meet the fault.
    Next(&'static str),
}

/// The source of all faults of a run. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Chaos(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    rng: fastrand::Rng,
    /// Of a thousand steps, how many meet which fault.
    rates: BTreeMap<Fault, u32>,
    planned: Vec<Planned>,
    slow: BTreeMap<&'static str, Duration>,
    pace: Option<Pace>,
    active: bool,
    steps: u64,
    met: BTreeSet<(Fault, &'static str)>,
    delays: bool,
}

/// An API server that answers so many requests a second, one after the other.
#[derive(Debug, Clone, Copy)]
struct Pace {
    each: Duration,
    free: Instant,
}

impl Chaos {
    /// No faults yet.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(Inner {
            rng: fastrand::Rng::with_seed(seed),
            rates: BTreeMap::new(),
            planned: Vec::new(),
            slow: BTreeMap::new(),
            pace: None,
            active: true,
            steps: 0,
            met: BTreeSet::new(),
            delays: false,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of a thousand steps that could meet it, so many do.
    pub fn rate(&self, fault: Fault, per_thousand: u32) {
        self.lock().rates.insert(fault, per_thousand);
    }

    /// Happens by script, once. Several queue up.
    pub fn plan(&self, planned: Planned) {
        self.lock().planned.push(planned);
    }

    /// Every request of this step takes so long to arrive; where it is a watch, each of its events does.
    pub fn slow(&self, step: &'static str, time: Duration) {
        self.lock().slow.insert(step, time);
    }

    /// The API server answers so many requests a second, and the rest wait for their turn. (Open watches do not count.)
    pub fn pace(&self, per_second: u32) {
        let each = Duration::from_secs(1) / per_second.max(1);
        self.lock().pace = Some(Pace { each, free: Instant::now() });
    }

    /// How long a request of this step waits before it is served.
    pub fn wait(&self, step: &'static str) -> Duration {
        let mut inner = self.lock();
        let slow = inner.slow.get(step).copied().unwrap_or_default();
        let Some(pace) = &mut inner.pace else { return slow };
        let now = Instant::now();
        let turn = pace.free.max(now);
        pace.free = turn + pace.each;
        slow + (turn - now)
    }

    /// How late the events of a watch come.
    pub fn lag(&self, step: &'static str) -> Duration {
        self.lock().slow.get(step).copied().unwrap_or_default()
    }

    /// Requests and answers take their time, a little more or less each.
    pub fn with_delays(&self) {
        self.lock().delays = true;
    }

    /// From now on nothing goes wrong.
    pub fn calm(&self) {
        let mut inner = self.lock();
        inner.active = false;
        inner.delays = false;
        inner.slow.clear();
        inner.pace = None;
    }

    /// Can anything still go wrong?
    pub fn is_active(&self) -> bool {
        self.lock().active
    }

    /// The next step is `step`, and could meet one of `possible`. Does it?
    pub fn at(&self, step: &'static str, possible: &[&[Fault]]) -> Option<Fault> {
        let mut inner = self.lock();
        let number = inner.steps;
        inner.steps += 1;
        if !inner.active {
            return None;
        }
        let can = |fault: &Fault| possible.iter().any(|kinds| kinds.contains(fault));
        let is_here = |planned: &Planned| match planned.at {
            Point::Step(at) => at == number,
            Point::Next(name) => name == step && can(&planned.fault),
        };
        let scripted = inner.planned.iter().position(is_here).map(|index| inner.planned.remove(index).fault);
        let fault = scripted.filter(can).or_else(|| {
            if inner.rates.is_empty() {
                return None;
            }
            let dice = inner.rng.u32(0..1000);
            let mut from = 0;
            for (fault, rate) in &inner.rates {
                if can(fault) {
                    from += rate;
                    if dice < from {
                        return Some(*fault);
                    }
                }
            }
            None
        })?;
        inner.met.insert((fault, step));
        Some(fault)
    }

    /// How many steps there were.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Which faults met which steps.
    pub fn met(&self) -> BTreeSet<(Fault, &'static str)> {
        self.lock().met.clone()
    }

    /// A duration from the seed.
    pub fn between(&self, least: Duration, most: Duration) -> Duration {
        let (least, most) = (millis(least), millis(most));
        Duration::from_millis(self.lock().rng.u64(least..=most.max(least)))
    }

    /// A number from the seed, below `limit`.
    pub fn below(&self, limit: usize) -> usize {
        self.lock().rng.usize(0..limit.max(1))
    }

    /// True in so many of a thousand cases.
    pub fn chance(&self, per_thousand: u32) -> bool {
        self.lock().rng.u32(0..1000) < per_thousand
    }

    /// How long a request or an answer is under way: mostly no time that counts.
    pub fn transit(&self) -> Duration {
        let mut inner = self.lock();
        if !inner.delays || inner.rng.u32(0..4) > 0 {
            return Duration::ZERO;
        }
        Duration::from_millis(inner.rng.u64(1..40))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
