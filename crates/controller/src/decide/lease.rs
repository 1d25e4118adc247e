//! Who leads: client-go's leader election as a step function, `client-go/tools/leaderelection/leaderelection.go`.
//!
//! [`Candidate::step`] takes what was observed of the lease and says what to do next. Time is that of a local clock that
//! counts suspend. It is all that two processes have in common, and only its rate: the times that stand *in* the lease
//! are another machine's, and are compared for being the same, never with ours.
//!
//! The rules, and why two never act at once:
//! - Every write names the `resourceVersion` it replaces, so of two writes upon one state one fails.
//! - Who leads may act until the renew deadline, counted from *before* its last successful write was sent.
//! - A lease is taken from its holder once it was *seen* unchanged for its duration, which is longer. It was seen after
//!   it was written, so by then its holder has stopped, paused or not.
//! - What became of a write without an answer is read before anything else is decided.
//!
//! Beyond client-go: a lost lease does not end the process; a leader that sees another holder, or no lease at all, stops
//! at once; a lease that vanishes under its holder (deleted by hand) is waited out by all that knew it. A process that
//! never saw it cannot know, and takes it: whoever deletes a lease stops its holders first.
//!
//! *Invariant: identities are unique per process.* A name equal to ours that this process never wrote is another's.

use std::time::Duration;
use thiserror::Error;

/// How long what may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Timing {
    duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
}

/// Times that would let two lead at once, or none for long.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TimingError {
    /// The API server keeps whole seconds.
    #[error("the lease duration must be whole seconds, 1s or more, and not {0:?}")]
    Duration(Duration),
    /// A leader would still act when another takes its lease.
    #[error("the renew deadline ({deadline:?}) must be shorter than the lease duration ({duration:?})")]
    Deadline {
        /// As given.
        deadline: Duration,
        /// As given.
        duration: Duration,
    },
    /// One late try would be the end of the leader.
    #[error(
        "the retry period ({retry:?}), lengthened by a fifth, must be shorter than the renew deadline ({deadline:?})"
    )]
    Retry {
        /// As given.
        retry: Duration,
        /// As given.
        deadline: Duration,
    },
    /// It would ask without a pause.
    #[error("the retry period must not be zero")]
    NoRetry,
}

impl Timing {
    /// `duration`: how long a lease that nobody renews stands. `renew_deadline`: how long a leader that cannot renew goes
    /// on acting. `retry_period`: between two tries, and between two renewals.
    pub fn new(
        duration: Duration,
        renew_deadline: Duration,
        retry_period: Duration,
    ) -> Result<Self, TimingError> {
        if duration < Duration::from_secs(1) || duration.subsec_nanos() != 0 {
            return Err(TimingError::Duration(duration));
        }
        if renew_deadline >= duration {
            return Err(TimingError::Deadline { deadline: renew_deadline, duration });
        }
        if retry_period.is_zero() {
            return Err(TimingError::NoRetry);
        }
        // A fifth: client-go's JitterFactor.
        if retry_period.saturating_mul(6) / 5 >= renew_deadline {
            return Err(TimingError::Retry { retry: retry_period, deadline: renew_deadline });
        }
        Ok(Self { duration, renew_deadline, retry_period })
    }

    /// What stands in the lease.
    pub fn duration(&self) -> Duration {
        self.duration
    }

    /// From before a renewal was sent.
    pub fn renew_deadline(&self) -> Duration {
        self.renew_deadline
    }

    /// Between two tries.
    pub fn retry_period(&self) -> Duration {
        self.retry_period
    }
}

impl Default for Timing {
    /// client-go's, which all of Kubernetes' own controllers use.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A lease as the API server showed it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// Empty: released.
    pub holder: String,
    /// How long its holder wants it to stand. Zero: it does not say.
    pub duration: Duration,
    /// As text, since another's clock is good for nothing but seeing that something changed.
    pub renew_time: String,
    /// How often it changed hands.
    pub transitions: i32,
    /// What a write upon it must name.
    pub resource_version: String,
    /// How old its renew time would be by *our* wall clock: what [`LeaseBug::TrustRemoteTime`] goes by.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub claimed_age: Duration,
}

impl Record {
    /// Did its holder do nothing between the two? Others may change labels, hence no `resource_version`.
    pub fn same_as(&self, other: &Self) -> bool {
        self.holder == other.holder
            && self.duration == other.duration
            && self.renew_time == other.renew_time
            && self.transitions == other.transitions
    }

    /// How long it stands unchanged; `ours` where it does not say.
    pub fn stands_for(&self, ours: Duration) -> Duration {
        if self.duration.is_zero() { ours } else { self.duration }
    }
}

/// What came of the last [`Action`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Observed {
    /// Time has passed.
    Nothing,
    /// Something says that the lease was released, changed hands or is gone. Not to be relied on: it is read.
    Hint,
    /// The lease was read.
    Record(Record),
    /// There is no lease.
    Absent,
    /// Reading failed, or had no answer in time.
    ReadFailed,
    /// Our write was done; this is what the lease is now.
    Written(Record),
    /// Our write failed or had no answer in time. Whether it was done is read, not guessed from the failure.
    WriteFailed,
}

/// What to do, and report back.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// Read the lease from the API server, not from a cache.
    Read {
        /// When to stop waiting for the answer.
        give_up: Duration,
    },
    /// Write the lease.
    Write(Write),
    /// Nothing until then, but for a hint.
    Wait {
        /// By the local clock.
        until: Duration,
    },
    /// After [`Candidate::leave`]: there is nothing to release any more.
    Rest,
}

/// A write of the lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Write {
    /// What for.
    pub kind: WriteKind,
    /// The resource version it must replace. `None`: the lease must not exist.
    pub base: Option<String>,
    /// What to write as `leaseTransitions`.
    pub transitions: i32,
    /// When to stop waiting for the answer.
    pub give_up: Duration,
}

/// What a write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// Make the lease, ours.
    Create,
    /// Take it: released, or its holder did not renew it.
    Acquire,
    /// It is ours and stays so.
    Renew,
    /// It is nobody's from now on.
    Release,
}

/// A mistake that would let two act at once. Each is caught by the exploration of all schedules; see the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseBug {
    /// Writes do not name the resource version that they replace.
    BlindWrite,
    /// The renew deadline counts from the answer, not from before the request.
    DeadlineFromReply,
    /// A lease's age is taken from the time in it and our wall clock.
    TrustRemoteTime,
    /// A lease is taken before its time is up.
    TakeUnexpired,
    /// A leader acts until it learns better, not until its deadline.
    ActAfterDeadline,
    /// A renewal without an answer counts as done.
    CountUnanswered,
    /// Our name in the lease counts as proof that the unanswered renewal was done.
    OwnNameIsEnough,
    /// A leader acts until its release is confirmed, not until it is sent.
    ActWhileReleasing,
    /// A lease that vanished is made anew at once, though its holder may still act.
    CreateAtOnce,
}

/// Which mistakes are made: none, but in a test that shows that it would be caught.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LeaseBugs {
    #[cfg(any(test, feature = "switchable-rules"))]
    made: Option<LeaseBug>,
}

impl LeaseBugs {
    /// Is this mistake made? Never, but in test builds.
    #[cfg(not(any(test, feature = "switchable-rules")))]
    #[expect(clippy::unused_self, reason = "the test build's looks into it")]
    const fn has(self, _: LeaseBug) -> bool {
        false
    }

    /// Is this mistake made?
    #[cfg(any(test, feature = "switchable-rules"))]
    fn has(self, bug: LeaseBug) -> bool {
        self.made == Some(bug)
    }

    /// This one mistake.
    #[cfg(any(test, feature = "switchable-rules"))]
    pub const fn only(bug: LeaseBug) -> Self {
        Self { made: Some(bug) }
    }
}

/// What is known of the lease. `since`: when it was first seen so, by our clock and after the answer had come.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Known {
    Nothing,
    Present { record: Record, since: Duration },
    // It vanished: whoever held it may act until then.
    Absent { until: Duration },
}

/// A write that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pending {
    kind: WriteKind,
    started: Duration,
}

/// One process that stands for election.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Candidate {
    identity: String,
    timing: Timing,
    bugs: LeaseBugs,
    known: Known,
    /// What is known does not do to decide upon: read first.
    stale: bool,
    /// Earliest time of the next read.
    look_at: Duration,
    /// Earliest time of the next write of our name.
    write_at: Duration,
    /// Did this process ever write its name?
    wrote: bool,
    pending: Option<Pending>,
    /// When the first of our writes upon what is known was sent, of those without an answer. One of them may be done,
    /// or be done yet.
    doubt: Option<Duration>,
    /// We lead; our last successful write was sent then.
    lead: Option<Duration>,
    /// We are giving it up, and stop trying then.
    leaving: Option<Duration>,
}

impl Candidate {
    /// Knows nothing yet.
    pub fn new(identity: impl Into<String>, timing: Timing, bugs: LeaseBugs) -> Self {
        Self {
            identity: identity.into(),
            timing,
            bugs,
            known: Known::Nothing,
            stale: true,
            look_at: Duration::ZERO,
            write_at: Duration::ZERO,
            wrote: false,
            pending: None,
            doubt: None,
            lead: None,
            leaving: None,
        }
    }

    /// When what we may do as leader ends. Zero: we do not lead.
    pub fn acts_until(&self) -> Duration {
        match self.lead {
            Some(_) if self.bugs.has(LeaseBug::ActAfterDeadline) => Duration::MAX,
            Some(renewed) => renewed.saturating_add(self.timing.renew_deadline),
            None => Duration::ZERO,
        }
    }

    /// May this process act now?
    pub fn may_act(&self, now: Duration) -> bool {
        now < self.acts_until()
    }

    /// Who holds the lease, as far as is known.
    pub fn holder(&self) -> Option<&str> {
        match &self.known {
            Known::Present { record, .. } if !record.holder.is_empty() => Some(&record.holder),
            _ => None,
        }
    }

    /// Does the lease bear a name that this process wrote?
    pub fn holds(&self) -> bool {
        self.own().is_some()
    }

    /// Gives the lease up from now on. The next steps release it, until [`Action::Rest`], `by` then at the latest.
    pub fn leave(&mut self, by: Duration) {
        self.leaving = Some(by);
        if !self.bugs.has(LeaseBug::ActWhileReleasing) {
            self.lead = None;
        }
    }

    /// After [`Action::Rest`]: stands for election again.
    pub fn stand(&mut self, now: Duration) {
        self.leaving = None;
        self.lead = None;
        self.stale = true;
        self.look_at = now;
    }

    /// Takes in what was observed, and says what to do.
    pub fn step(&mut self, observed: Observed, now: Duration) -> Action {
        self.take_in(observed, now);
        if !self.may_act(now) {
            self.lead = None;
        }
        let action = self.next(now);
        match &action {
            Action::Write(write) => {
                self.pending = Some(Pending { kind: write.kind, started: now });
                if write.kind != WriteKind::Release {
                    self.wrote = true;
                    self.doubt.get_or_insert(now);
                    self.write_at = now.saturating_add(self.timing.retry_period);
                }
            }
            Action::Rest => self.lead = None,
            Action::Read { .. } | Action::Wait { .. } => {}
        }
        action
    }

    fn take_in(&mut self, observed: Observed, now: Duration) {
        match observed {
            Observed::Nothing => {}
            Observed::Hint => {
                self.stale = true;
                self.look_at = now;
            }
            Observed::Record(record) => self.saw(record, now),
            Observed::Absent => self.saw_none(now),
            Observed::ReadFailed => {
                self.stale = true;
                self.look_at = now.saturating_add(self.timing.retry_period);
            }
            Observed::Written(record) => self.written(record, now),
            Observed::WriteFailed => {
                self.stale = true;
                self.look_at = now;
                let sent = self.pending.take().filter(|sent| sent.kind != WriteKind::Release);
                if let Some(sent) = sent.filter(|_| self.bugs.has(LeaseBug::CountUnanswered)) {
                    self.lead_from(sent.started);
                }
            }
        }
    }

    fn saw(&mut self, record: Record, now: Duration) {
        let before = match &self.known {
            Known::Present { record, since } => Some((record, *since)),
            _ => None,
        };
        let unmoved = before.is_some_and(|(old, _)| old.resource_version == record.resource_version);
        let since = before.filter(|(old, _)| old.same_as(&record)).map_or(now, |(_, since)| since);
        // Only we write our name, and each time with another renew time: one of our writes was done. Which one cannot be
        // told, so it counts as the first.
        let renewed = before.is_none_or(|(old, _)| old.renew_time != record.renew_time);
        #[cfg(any(test, feature = "switchable-rules"))]
        let since = if self.bugs.has(LeaseBug::TrustRemoteTime) {
            now.saturating_sub(record.claimed_age)
        } else {
            since
        };
        if self.wrote && record.holder == self.identity {
            if let Some(started) = self.doubt
                && (renewed || self.bugs.has(LeaseBug::OwnNameIsEnough))
            {
                self.lead_from(started);
            }
        } else {
            self.lead = None;
        }
        if !unmoved {
            // What was written upon the former state is done or never will be.
            self.doubt = None;
        }
        self.known = Known::Present { record, since };
        self.looked(now);
    }

    fn saw_none(&mut self, now: Duration) {
        self.lead = None;
        match &self.known {
            // Whoever held it last, and that may be another than we saw, held it until just now.
            Known::Present { record, .. } => {
                let longest = record.duration.max(self.timing.duration);
                self.known = Known::Absent { until: now.saturating_add(longest) };
                self.doubt = None;
            }
            Known::Nothing => self.known = Known::Absent { until: now },
            Known::Absent { .. } => {}
        }
        self.looked(now);
    }

    fn looked(&mut self, now: Duration) {
        self.stale = false;
        self.look_at = now.saturating_add(self.timing.retry_period);
    }

    fn written(&mut self, record: Record, now: Duration) {
        let sent = self.pending.take();
        self.known = Known::Present { record, since: now };
        // Nothing that was sent before can be done any more: the resource version has moved.
        self.doubt = None;
        self.looked(now);
        match sent {
            Some(Pending { kind: WriteKind::Release, .. }) | None => self.lead = None,
            Some(Pending { started, .. }) => {
                let from = if self.bugs.has(LeaseBug::DeadlineFromReply) { now } else { started };
                self.lead_from(from);
            }
        }
    }

    fn lead_from(&mut self, started: Duration) {
        if self.leaving.is_none() {
            self.lead = Some(started);
        }
    }

    fn own(&self) -> Option<&Record> {
        match &self.known {
            Known::Present { record, .. } if self.wrote && record.holder == self.identity => Some(record),
            _ => None,
        }
    }

    fn next(&self, now: Duration) -> Action {
        if let Some(by) = self.leaving {
            return self.next_leaving(now, by);
        }
        // A leader reads only if it must: its renewals tell it.
        if self.stale || (self.own().is_none() && now >= self.look_at) {
            return if now >= self.look_at {
                Action::Read { give_up: self.give_up(now) }
            } else {
                self.wait(self.look_at)
            };
        }
        if let Some(record) = self.own() {
            return if now >= self.write_at {
                self.write(WriteKind::Renew, Some(record), self.give_up(now))
            } else {
                self.wait(self.write_at)
            };
        }
        let (free_at, record) = self.free_at(now);
        if now < free_at {
            return self.wait(free_at.min(self.look_at));
        }
        if now < self.write_at {
            return self.wait(self.write_at.min(self.look_at));
        }
        let kind = if record.is_some() { WriteKind::Acquire } else { WriteKind::Create };
        self.write(kind, record, self.give_up(now))
    }

    fn next_leaving(&self, now: Duration, by: Duration) -> Action {
        // Who never wrote its name has nothing to release.
        if !self.wrote || now >= by {
            return Action::Rest;
        }
        if self.stale {
            return if now >= self.look_at {
                Action::Read { give_up: by }
            } else {
                Action::Wait { until: self.look_at.min(by) }
            };
        }
        match self.own() {
            Some(record) => self.write(WriteKind::Release, Some(record), by),
            None => Action::Rest,
        }
    }

    /// When the lease may be taken, and what has to be replaced.
    fn free_at(&self, now: Duration) -> (Duration, Option<&Record>) {
        let end =
            |record: &Record, since: Duration| since.saturating_add(record.stands_for(self.timing.duration));
        match &self.known {
            Known::Nothing => (Duration::MAX, None),
            Known::Present { record, since } => {
                let free = record.holder.is_empty() || self.bugs.has(LeaseBug::TakeUnexpired);
                (if free { now } else { end(record, *since) }, Some(record))
            }
            Known::Absent { .. } if self.bugs.has(LeaseBug::CreateAtOnce) => (now, None),
            Known::Absent { until } => (*until, None),
        }
    }

    fn write(&self, kind: WriteKind, record: Option<&Record>, give_up: Duration) -> Action {
        let before = record.map_or(0, |record| record.transitions);
        Action::Write(Write {
            kind,
            base: record
                .filter(|_| !self.bugs.has(LeaseBug::BlindWrite))
                .map(|record| record.resource_version.clone()),
            transitions: if kind == WriteKind::Acquire { before.saturating_add(1) } else { before },
            give_up,
        })
    }

    /// Half of the deadline, so that a leader whose request hangs can ask once more; never beyond the end of its term.
    fn give_up(&self, now: Duration) -> Duration {
        self.not_beyond_term(now.saturating_add(self.timing.renew_deadline / 2))
    }

    fn wait(&self, until: Duration) -> Action {
        Action::Wait { until: self.not_beyond_term(until) }
    }

    fn not_beyond_term(&self, then: Duration) -> Duration {
        if self.lead.is_some() { then.min(self.acts_until()) } else { then }
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "lease_schedules_tests.rs"]
mod schedules;
