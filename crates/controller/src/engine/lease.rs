//! The lease: who may act. [`crate::decide::lease`] decides; here are its calls, its clock and its watch.
//!
//! ```text
//! run: another namespace serves this provisioner? -> stand -> (step down, pause) -> stand ... -> release
//! stand: step -> read | write | wait for a hint or the time -> step ...
//! ```
//! One request at a time, each with a deadline. The lease is watched beside that, but what the watch tells is only a hint
//! to read at once: that is how a released lease is taken within milliseconds. Without a watch it takes a retry period.

use crate::client::{chain, describe};
use crate::decide::lease::{Action, Candidate, LeaseBugs, Observed, Record, Timing, Write, WriteKind};
use crate::decide::retry::Backoff;
use crate::decide::rivals::{Place, Rivals, Verdict};
use crate::names;
use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tracing::{debug, error, info, warn};

use super::clock::Clock;
use super::report::jittered;

/// A release that takes longer is not worth the wait: the others take the lease when it expires.
const RELEASE_WITHIN: Duration = Duration::from_secs(2);

/// As in `engine/watch.rs`: the server ends the watch before a load balancer drops it.
const WATCH_SECONDS: u32 = 220;

/// Longest time between two questions for other namespaces' leases while the API server refuses to tell.
const ASK_AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Whether this process may act. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Post>);

/// How this process stands to the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Another acts, or nobody does yet.
    Standby {
        /// Whose the lease is. `None`: nobody's, or the API server does not tell.
        holder: Option<String>,
    },
    /// This process acts.
    Leading {
        /// Which time that is, in this process.
        term: u64,
    },
    /// The same provisioner is served from elsewhere, and what to do about that.
    Refused(String),
}

#[derive(Debug)]
struct Post {
    /// `None`: no lease, always leading.
    clock: Option<Arc<dyn Clock>>,
    term: Mutex<Term>,
    standing: watch::Sender<Standing>,
    asked: Notify,
    /// The lease is older than it was, and nobody has taken note yet.
    went_back: AtomicBool,
    noticed: Notify,
}

#[derive(Debug, Default)]
struct Term {
    until: Duration,
    stepping_down: bool,
}

impl Leadership {
    /// For who needs no lease: node agents, and tests. Leads for ever.
    pub fn always() -> Self {
        Self::new(None, Standing::Leading { term: 0 })
    }

    fn new(clock: Option<Arc<dyn Clock>>, standing: Standing) -> Self {
        let standing = watch::Sender::new(standing);
        let (asked, noticed) = (Notify::new(), Notify::new());
        let (term, went_back) = (Mutex::default(), AtomicBool::default());
        Self(Arc::new(Post { clock, term, standing, asked, went_back, noticed }))
    }

    /// To be asked right before every call of the backend and every write to the API server. A process that was paused
    /// for longer than its term finds out here, before it has heard of anything.
    pub fn may_act(&self) -> bool {
        match &self.0.clock {
            None => true,
            Some(clock) => clock.boot() < self.term().until,
        }
    }

    /// To be told of changes. [`Self::may_act`] is ahead of it.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.0.standing.subscribe()
    }

    /// Gives it up of our own accord: from now on [`Self::may_act`] says no, and the elector releases the lease, waits a
    /// retry period, so that another can take it, and stands for election again. Nothing happens to who does not lead.
    pub fn step_down(&self) {
        let mut term = self.term();
        if term.until > Duration::ZERO {
            *term = Term { until: Duration::ZERO, stepping_down: true };
            self.0.asked.notify_one();
        }
    }

    /// Was the lease seen older than it was before? It is written every few seconds, so hardly any restore of etcd leaves it
    /// as it was. Asked, it is forgotten.
    pub(super) fn take_went_back(&self) -> bool {
        self.0.went_back.swap(false, Ordering::AcqRel)
    }

    /// Waits until [`Self::take_went_back`] may have changed.
    pub(super) async fn may_have_gone_back(&self) {
        self.0.noticed.notified().await;
    }

    fn note_went_back(&self) {
        self.0.went_back.store(true, Ordering::Release);
        self.0.noticed.notify_one();
    }

    async fn asked_to_step_down(&self) {
        while !self.term().stepping_down {
            self.0.asked.notified().await;
        }
    }

    fn set_until(&self, until: Duration) {
        let mut term = self.term();
        if !term.stepping_down {
            term.until = until;
        }
    }

    /// Every change is a single assignment, so what a panicking holder left is whole.
    fn term(&self) -> MutexGuard<'_, Term> {
        self.0.term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_standing(&self, standing: Standing) {
        self.0.standing.send_if_modified(|current| {
            let changed = *current != standing;
            *current = standing;
            changed
        });
    }
}

/// Which lease, and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseSettings {
    /// Where the lease is: the process's own namespace.
    pub namespace: String,
    /// The lease's name, the same for all replicas.
    pub name: String,
    /// Whose claims the leader serves. One provisioner is served from one namespace.
    pub provisioner: String,
    /// Who we are: the pod's name and something random, so that no other process ever has it.
    pub identity: String,
    /// How long what may take.
    pub timing: Timing,
}

/// Stands for election until told to stop.
pub struct Elector {
    client: Client,
    settings: LeaseSettings,
    clock: Arc<dyn Clock>,
    leadership: Leadership,
    candidate: Candidate,
    /// The lease as it was last seen: others' labels and the like are written back.
    lease: Option<Lease>,
    /// The newest of it that was seen: uid and version.
    newest: Option<(String, u64)>,
    leads: bool,
    terms: u64,
    rivals: Rivals,
    told_dead: BTreeSet<Place>,
    /// The last call failed: the next failure is no news.
    failing: bool,
}

/// Why [`Elector::stand`] ended.
enum Ended {
    Told,
    StandAgain,
}

/// What one turn led to.
enum Turn {
    Observed(Observed),
    /// The lease is ours, but the provisioner may be served from elsewhere.
    Rival,
}

impl Elector {
    /// Nothing is sent before [`Self::run`]. `client` must not retry by itself: an answer to a renewal that was sent long
    /// ago says nothing about now.
    pub fn new(client: Client, settings: LeaseSettings, clock: Arc<dyn Clock>) -> (Self, Leadership) {
        Self::with_bugs(client, settings, clock, LeaseBugs::default())
    }

    /// [`Self::new`] with a mistake that a test is to catch.
    #[cfg(feature = "switchable-rules")]
    pub fn new_with_bugs(
        client: Client,
        settings: LeaseSettings,
        clock: Arc<dyn Clock>,
        bugs: LeaseBugs,
    ) -> (Self, Leadership) {
        Self::with_bugs(client, settings, clock, bugs)
    }

    fn with_bugs(
        client: Client,
        settings: LeaseSettings,
        clock: Arc<dyn Clock>,
        bugs: LeaseBugs,
    ) -> (Self, Leadership) {
        let leadership = Leadership::new(Some(Arc::clone(&clock)), Standing::Standby { holder: None });
        let candidate = Candidate::new(settings.identity.clone(), settings.timing, bugs);
        let elector = Self {
            client,
            settings,
            clock,
            leadership: leadership.clone(),
            candidate,
            lease: None,
            newest: None,
            leads: false,
            terms: 0,
            rivals: Rivals::default(),
            told_dead: BTreeSet::new(),
            failing: false,
        };
        (elector, leadership)
    }

    /// Runs until `until` turns true or its sender is gone, then releases the lease, if it is ours, within two seconds.
    pub async fn run(mut self, mut until: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                () = told(&mut until) => return,
                () = self.until_clear() => {}
            }
            if let Ended::Told = self.stand(&mut until).await {
                return;
            }
            tokio::select! {
                biased;
                () = told(&mut until) => return,
                () = sleep(jittered(self.settings.timing.retry_period())) => {}
            }
        }
    }

    async fn stand(&mut self, until: &mut watch::Receiver<bool>) -> Ended {
        self.candidate.stand(self.clock.boot());
        let mut hints = Hints::new(&self.client, &self.settings);
        let mut ended = None;
        let mut observed = Observed::Nothing;
        loop {
            let action = self.candidate.step(observed, self.clock.boot());
            self.show();
            if action == Action::Rest {
                self.leadership.term().stepping_down = false;
                return ended.unwrap_or(Ended::StandAgain);
            }
            if ended.is_some() {
                observed = self.act(&action, &mut hints).await;
                continue;
            }
            let leadership = self.leadership.clone();
            let why = tokio::select! {
                biased;
                () = told(until) => Ended::Told,
                () = leadership.asked_to_step_down() => Ended::StandAgain,
                turn = self.turn(&action, &mut hints) => match turn {
                    Turn::Observed(seen) => {
                        observed = seen;
                        continue;
                    }
                    Turn::Rival => Ended::StandAgain,
                },
            };
            ended = Some(why);
            self.candidate.leave(self.clock.boot().saturating_add(RELEASE_WITHIN));
            self.leadership.set_until(self.candidate.acts_until());
            // A call that was broken off has an outcome that is not known; one that never was sent, too.
            observed = match action {
                Action::Write(_) => Observed::WriteFailed,
                Action::Read { .. } => Observed::Hint,
                Action::Wait { .. } | Action::Rest => Observed::Nothing,
            };
        }
    }

    async fn turn(&mut self, action: &Action, hints: &mut Hints) -> Turn {
        if self.candidate.acts_until() > Duration::ZERO && !self.leads {
            // Two that start at once in two namespaces saw no lease of each other. Each has written its own before it
            // looks again, so at least one of them sees the other now.
            let give_up = self.candidate.acts_until().min(self.half_a_deadline_from_now());
            match self.look_for_rivals(give_up).await {
                Ok(Verdict::Clear) => self.lead(),
                Ok(Verdict::Watch | Verdict::Refused(_)) => return Turn::Rival,
                Err(error) => {
                    self.failed(&error);
                    return Turn::Rival;
                }
            }
        }
        Turn::Observed(self.act(action, hints).await)
    }

    fn lead(&mut self) {
        self.leads = true;
        self.terms += 1;
        self.leadership.set_until(self.candidate.acts_until());
        self.leadership.set_standing(Standing::Leading { term: self.terms });
        let LeaseSettings { namespace, name, identity, .. } = &self.settings;
        info!(lease = %format_args!("{namespace}/{name}"), holder = identity, identity, term = self.terms, "Became leader.");
    }

    /// Makes known what the last step changed.
    fn show(&mut self) {
        let until = self.candidate.acts_until();
        // Who cannot ask knows only whose it was.
        let holder = self.candidate.holder().filter(|_| !self.failing).map(str::to_owned);
        if self.leads && until > Duration::ZERO {
            self.leadership.set_until(until);
            return;
        }
        self.leadership.set_until(Duration::ZERO);
        if self.leads {
            self.leads = false;
            let LeaseSettings { namespace, name, identity, .. } = &self.settings;
            let holder = holder.as_deref().unwrap_or_default();
            info!(lease = %format_args!("{namespace}/{name}"), holder, identity, "No longer leader.");
        }
        self.leadership.set_standing(Standing::Standby { holder });
    }

    /// Does what the candidate wants.
    async fn act(&mut self, action: &Action, hints: &mut Hints) -> Observed {
        match action {
            Action::Read { give_up } => self.read(*give_up).await,
            Action::Write(write) => self.write(write).await,
            Action::Wait { until } => {
                let mut wait = until.saturating_sub(self.clock.boot());
                if !self.leads {
                    // Standbys that all saw the same renewal should not all ask at once. The factor is client-go's.
                    wait += self.settings.timing.retry_period().mul_f64(fastrand::f64() * 0.2);
                }
                let leads = self.leads;
                tokio::select! {
                    biased;
                    () = hints.next(leads) => Observed::Hint,
                    () = sleep(wait) => Observed::Nothing,
                }
            }
            Action::Rest => Observed::Nothing,
        }
    }

    async fn read(&mut self, give_up: Duration) -> Observed {
        let leases = self.leases();
        match self.call(give_up, "get", leases.get_opt(&self.settings.name)).await {
            Ok(lease) => {
                self.failing = false;
                let record = lease.as_ref().map(|lease| self.record(lease));
                if lease.as_ref().is_some_and(|lease| is_older(lease, self.newest.as_ref())) {
                    warn!("The lease is older than it was: the API server's state went back in time.");
                    self.leadership.note_went_back();
                }
                self.newest = lease.as_ref().and_then(version_of).or(self.newest.take());
                self.lease = lease;
                record.map_or(Observed::Absent, Observed::Record)
            }
            Err(error) => {
                self.failed(&error);
                Observed::ReadFailed
            }
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the lease is the one object that is replaced, by its version"
    )]
    async fn write(&mut self, write: &Write) -> Observed {
        let (leases, parameters) = (self.leases(), PostParams::default());
        let lease = self.lease_for(write);
        let written = if write.kind == WriteKind::Create {
            self.call(write.give_up, "create", leases.create(&parameters, &lease)).await
        } else {
            let replace = leases.replace(&self.settings.name, &parameters, &lease);
            self.call(write.give_up, "update", replace).await
        };
        match written {
            Ok(lease) => {
                self.failing = false;
                let record = self.record(&lease);
                self.newest = version_of(&lease);
                self.lease = Some(lease);
                if write.kind == WriteKind::Release {
                    let LeaseSettings { namespace, name, identity, .. } = &self.settings;
                    info!(lease = %format_args!("{namespace}/{name}"), holder = "", identity, "Released the lease.");
                }
                Observed::Written(record)
            }
            Err(error) => {
                self.failed(&error);
                Observed::WriteFailed
            }
        }
    }

    /// What to write. Times are for people, but for being another with each write.
    fn lease_for(&self, write: &Write) -> Lease {
        let mut lease = self.lease.clone().filter(|_| write.kind != WriteKind::Create).unwrap_or_default();
        let LeaseSettings { namespace, name, provisioner, identity, timing } = &self.settings;
        lease.metadata.name = Some(name.clone());
        lease.metadata.namespace = Some(namespace.clone());
        lease.metadata.resource_version.clone_from(&write.base);
        lease.metadata.managed_fields = None;
        let labels = lease.metadata.labels.get_or_insert_default();
        labels.insert(names::PROVISIONER.to_owned(), names::provisioner_label(provisioner));
        let before = lease.spec.take().unwrap_or_default();
        let now = another_time(self.clock.wall(), before.renew_time.as_ref());
        let release = write.kind == WriteKind::Release;
        // As client-go does it: a lease that is free is not worth waiting for.
        let seconds = if release { 1 } else { timing.duration().as_secs() };
        let kept = before.acquire_time.filter(|_| write.kind == WriteKind::Renew);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(if release { String::new() } else { identity.clone() }),
            lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
            acquire_time: Some(kept.unwrap_or(MicroTime(now))),
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(write.transitions),
            ..before
        });
        lease
    }

    fn record(&self, lease: &Lease) -> Record {
        record(lease, self.clock.wall())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    /// One call, given up at that time. Dropping it may leave it done or not; the candidate knows.
    async fn call<T>(
        &self,
        give_up: Duration,
        verb: &str,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, String> {
        match timeout(give_up.saturating_sub(self.clock.boot()), call).await {
            Ok(result) => result.map_err(|error| describe(&error, verb, "leases")),
            Err(_) => Err(format!("{verb} leases: the API server did not answer in time")),
        }
    }

    fn failed(&mut self, error: &str) {
        let LeaseSettings { namespace, name, .. } = &self.settings;
        let lease = format_args!("{namespace}/{name}");
        if self.failing {
            debug!(%lease, error, "The lease's request failed again.");
        } else {
            warn!(%lease, error, leads = self.leads, "The lease's request failed, will try again.");
        }
        self.failing = true;
    }

    fn half_a_deadline_from_now(&self) -> Duration {
        self.clock.boot().saturating_add(self.settings.timing.renew_deadline() / 2)
    }

    /// Returns once nobody in another namespace serves our provisioner. While somebody does, our standing says so: it
    /// is a mistake of who installed it, but one that can be mended without us.
    async fn until_clear(&mut self) {
        let timing = self.settings.timing;
        let backoff = Backoff { base: timing.retry_period(), max: ASK_AGAIN_AT_MOST };
        let mut failures = 0;
        loop {
            let verdict = self.look_for_rivals(self.half_a_deadline_from_now()).await;
            let delay = match verdict {
                Ok(Verdict::Clear) => {
                    self.leadership.set_standing(Standing::Standby { holder: None });
                    return;
                }
                Ok(Verdict::Watch) => timing.retry_period(),
                Ok(Verdict::Refused(place)) => {
                    self.refuse(&place);
                    timing.duration()
                }
                Err(error) => {
                    failures += 1;
                    warn!(
                        error,
                        "Cannot see whether another namespace serves this provisioner, will ask again."
                    );
                    backoff.delay(failures)
                }
            };
            sleep(jittered(delay)).await;
        }
    }

    fn refuse(&self, place: &Place) {
        let LeaseSettings { namespace, provisioner, .. } = &self.settings;
        let text = format!(
            "the provisioner {provisioner} is already served from the namespace {} (lease {}), and must not be served \
             from {namespace} as well: uninstall one of the two, or give this one another --provisioner-name. It \
             starts by itself once the other is gone",
            place.namespace, place.name
        );
        let standing = Standing::Refused(text.clone());
        if *self.leadership.0.standing.borrow() != standing {
            error!(error = text, "Refusing to serve.");
        }
        self.leadership.set_standing(standing);
    }

    async fn look_for_rivals(&mut self, give_up: Duration) -> Result<Verdict, String> {
        let LeaseSettings { namespace, name, provisioner, timing, .. } = &self.settings;
        let all: Api<Lease> = Api::all(self.client.clone());
        let label = format!("{}={}", names::PROVISIONER, names::provisioner_label(provisioner));
        let found = self.call(give_up, "list", all.list(&ListParams::default().labels(&label))).await?;
        let (now, wall) = (self.clock.boot(), self.clock.wall());
        let others = found.items.iter().map(|lease| {
            let place = Place {
                namespace: lease.metadata.namespace.clone().unwrap_or_default(),
                name: lease.metadata.name.clone().unwrap_or_default(),
            };
            (place, record(lease, wall))
        });
        let others = others.filter(|(place, _)| place.namespace != *namespace || place.name != *name);
        let verdict = self.rivals.judge(others, timing.duration(), now);
        for (place, holder) in self.rivals.dead(timing.duration(), now) {
            if self.told_dead.insert(place.clone()) {
                let Place { namespace, name } = place;
                warn!(
                    lease = %format_args!("{namespace}/{name}"),
                    holder,
                    "A lease of this provisioner in another namespace is not renewed any more, and is ignored. Delete it \
                     if that installation is gone."
                );
            }
        }
        Ok(verdict)
    }
}

/// Uid and version, where the version is a number.
fn version_of(lease: &Lease) -> Option<(String, u64)> {
    let version = lease.metadata.resource_version.as_deref()?.parse().ok()?;
    Some((lease.metadata.uid.clone()?, version))
}

/// The same lease, from before what was seen of it last? A read asks etcd, so only a restore does that.
fn is_older(lease: &Lease, newest: Option<&(String, u64)>) -> bool {
    let found = version_of(lease);
    found.zip(newest).is_some_and(|(found, known)| found.0 == known.0 && found.1 < known.1)
}

/// What a watch says of the lease, started again whenever it fails or falls silent.
struct Hints {
    leases: Api<Lease>,
    fields: String,
    identity: String,
    retry: Duration,
    /// Whoever leads renews every few seconds; longer silence than this says that the watch is dead.
    silence: Duration,
    events: Option<BoxStream<'static, watcher::Result<Event<Lease>>>>,
    start_at: Instant,
    silent_at: Instant,
}

impl Hints {
    fn new(client: &Client, settings: &LeaseSettings) -> Self {
        Self {
            leases: Api::namespaced(client.clone(), &settings.namespace),
            fields: format!("metadata.name={}", settings.name),
            identity: settings.identity.clone(),
            retry: settings.timing.retry_period(),
            silence: settings.timing.duration() * 2,
            events: None,
            start_at: Instant::now(),
            silent_at: Instant::now(),
        }
    }

    /// Returns when there is reason to read the lease at once. May be dropped and asked again.
    async fn next(&mut self, leads: bool) {
        loop {
            let Some(events) = &mut self.events else {
                sleep_until(self.start_at).await;
                let config = watcher::Config::default().fields(&self.fields).timeout(WATCH_SECONDS);
                self.events = Some(watcher(self.leases.clone(), config).boxed());
                self.silent_at = Instant::now() + self.silence;
                continue;
            };
            let reason = match timeout_at(self.silent_at, events.next()).await {
                Ok(Some(Ok(event))) => {
                    self.silent_at = Instant::now() + self.silence;
                    if self.is_reason(leads, &event) {
                        return;
                    }
                    continue;
                }
                Ok(Some(Err(error))) => chain(&error),
                Ok(None) => "it ended".to_owned(),
                Err(_) => "it is silent".to_owned(),
            };
            debug!(error = reason, "The lease's watch is started again.");
            self.events = None;
            self.start_at = Instant::now() + jittered(self.retry);
        }
    }

    fn is_reason(&self, leads: bool, event: &Event<Lease>) -> bool {
        match event {
            Event::Apply(lease) | Event::InitApply(lease) => {
                let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
                let holder = holder.unwrap_or_default();
                holder.is_empty() || (leads && holder != self.identity)
            }
            Event::Delete(_) => true,
            Event::Init | Event::InitDone => false,
        }
    }
}

/// Returns when `until` is true, or when nobody can make it true any more.
async fn told(until: &mut watch::Receiver<bool>) {
    until.wait_for(|told| *told).await.ok();
}

/// `now` in microseconds, or the next one if that is what stands there: standbys go by seeing a change.
fn another_time(now: Timestamp, before: Option<&MicroTime>) -> Timestamp {
    let micros = now.as_microsecond();
    let micros =
        if before.is_some_and(|before| before.0.as_microsecond() == micros) { micros + 1 } else { micros };
    Timestamp::from_microsecond(micros).unwrap_or(now)
}

#[cfg_attr(
    not(any(test, feature = "switchable-rules")),
    expect(unused_variables, reason = "only a mistake that tests make looks at the clock")
)]
fn record(lease: &Lease, wall: Timestamp) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        holder: spec.holder_identity.unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        #[cfg(any(test, feature = "switchable-rules"))]
        claimed_age: spec.renew_time.as_ref().map_or(Duration::ZERO, |time| {
            Duration::try_from(wall.duration_since(time.0)).unwrap_or_default()
        }),
        renew_time: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        resource_version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
