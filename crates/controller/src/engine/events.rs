//! Events: what users see under `kubectl describe`. Best effort, and never in anybody's way.
//!
//! ```text
//! publish -> bounded queue -> one writer: known? count it : allowed? POST : drop
//!                                    each minute, per counted event: allowed? PATCH series
//! ```
//! An event is the same as an earlier one if object, type, reason and note are: a changed error text is never swallowed,
//! a repeated one only raises a count. Everything is bounded: the queue, what is remembered, the time of a call, and how
//! much one object may write. What does not fit is dropped and counted in `volwright_events_total`.

use super::metrics::Metrics;
use crate::client::{cut, describe};
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::{Client, Error};
use serde_json::json;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

/// Happenings that wait for the writer. At 1 to 2 ms a write these are one or two seconds of a burst, and at 1.5 KiB each
/// at most 1.5 MiB.
const QUEUE: usize = 1000;

/// Longest time for one write. One that takes longer is lost, and meanwhile the queue takes up what comes.
const CALL_DEADLINE: Duration = Duration::from_secs(5);

/// How long the writer goes on after it was closed.
const DRAIN: Duration = Duration::from_secs(2);

/// A repeat within this time raises the count of the earlier event; later it is an event of its own. Longer than the
/// longest backoff (5 min) with its jitter, so that a claim that fails for a day shows one event and not hundreds.
const SERIES_WINDOW: Duration = Duration::from_secs(15 * 60);

/// At most one PATCH of a series in this time.
const SERIES_PERIOD: Duration = Duration::from_secs(60);

/// Writes that an object may do at once, and how long it takes to earn another: client-go's numbers.
const BURST: u32 = 25;
/// See [`BURST`].
const REFILL: Duration = Duration::from_secs(5 * 60);

/// Events and objects that are remembered, each. When full, the least recently seen is forgotten, which costs at worst
/// one event too many.
const MEMORY: usize = 1024;

/// After the API server forbade events (a missing RBAC rule), how long not to ask again.
const MUTED: Duration = Duration::from_secs(60);

/// Failures are logged at most this often.
const LOG_PERIOD: Duration = Duration::from_secs(60);

/// What events.k8s.io/v1 accepts, in bytes; above that an event is refused as a whole.
pub(super) const NOTE_LIMIT: usize = 1024;
/// See [`NOTE_LIMIT`]; also for `reportingInstance`.
const WORD_LIMIT: usize = 128;
/// `reportingController` must be a qualified name, whose last part has at most so many bytes.
const QUALIFIED_LIMIT: usize = 63;
/// Longest name of an object; the event's name has a dot and 16 hex digits after the regarded object's.
const NAME_LIMIT: usize = 253 - 17;

/// Something that a user of an object should know.
#[derive(Debug, Clone, PartialEq)]
pub struct Happening {
    /// What it is about. With its uid, or `kubectl describe` does not show the event.
    pub regarding: ObjectReference,
    /// `Warning`, else `Normal`.
    pub warning: bool,
    /// Machine-readable, upper camel case, such as `ProvisioningFailed`.
    pub reason: &'static str,
    /// What was being done, such as `Provision`.
    pub action: &'static str,
    /// For people. Cut at 1024 bytes.
    pub note: String,
}

/// Takes happenings. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    queue: mpsc::Sender<(Happening, Timestamp)>,
    closed: Arc<watch::Sender<bool>>,
    metrics: Arc<Metrics>,
}

impl Events {
    /// The sender, and the writer to be spawned. `reporter` is the provisioner's name, `instance` the process: pod or node.
    /// The writer ends soon after [`Events::close`], or when every sender is gone.
    pub fn new(
        client: Client,
        reporter: String,
        instance: String,
        metrics: Arc<Metrics>,
    ) -> (Events, impl Future<Output = ()> + Send + 'static) {
        let (queue, incoming) = mpsc::channel(QUEUE);
        let (closed, closing) = watch::channel(false);
        let writer = Writer {
            client,
            reporter: tidy(clip(reporter, QUALIFIED_LIMIT)),
            instance: clip(instance, WORD_LIMIT),
            metrics: Arc::clone(&metrics),
            known: BTreeMap::new(),
            buckets: BTreeMap::new(),
            muted_until: None,
            last_log: None,
        };
        (Events { queue, closed: Arc::new(closed), metrics }, writer.run(incoming, closing))
    }

    /// Never blocks and never fails: what does not fit is dropped and counted.
    pub fn publish(&self, happening: Happening) {
        if self.queue.try_send((happening, Timestamp::now())).is_err() {
            self.metrics.event("dropped");
        }
    }

    /// Asks the writer to write what it has, for a couple of seconds, and to end. Later happenings are dropped.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }
}

/// What makes an event the same as an earlier one. The note only as a hash: it is long, and a collision costs one event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    object: String,
    warning: bool,
    reason: &'static str,
    note: u64,
}

/// An event that was written, and how often it happened since.
struct Series {
    namespace: String,
    name: String,
    /// To write it again, if somebody removed it.
    event: Event,
    count: i32,
    written_count: i32,
    last_seen: Instant,
    last_time: Timestamp,
    last_write: Instant,
}

/// Allowance of one object.
struct Bucket {
    tokens: u32,
    since: Instant,
}

struct Writer {
    client: Client,
    reporter: String,
    instance: String,
    metrics: Arc<Metrics>,
    known: BTreeMap<Key, Series>,
    buckets: BTreeMap<String, Bucket>,
    muted_until: Option<Instant>,
    last_log: Option<Instant>,
}

impl Writer {
    async fn run(
        mut self,
        mut incoming: mpsc::Receiver<(Happening, Timestamp)>,
        mut closing: watch::Receiver<bool>,
    ) {
        let mut end = None;
        loop {
            if end.is_some() {
                incoming.close();
            }
            let due = self.next_due();
            let step = tokio::select! {
                biased;
                () = closed(&mut closing), if end.is_none() => Step::Close,
                happening = incoming.recv() => happening.map_or(Step::End, |(h, at)| Step::Happened(Box::new(h), at)),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => Step::Flush,
            };
            let done = match step {
                Step::Close => {
                    end = Some(Instant::now() + DRAIN);
                    Some(())
                }
                Step::Happened(happening, at) => {
                    bounded(&mut end, &mut closing, self.happened(*happening, at)).await
                }
                Step::Flush => bounded(&mut end, &mut closing, self.flush(false)).await,
                Step::End => None,
            };
            if done.is_none() {
                break;
            }
        }
        // The counts that were still to be told. Past the end of the drain this is left at once.
        let _complete: Option<()> = bounded(&mut end, &mut closing, self.flush(true)).await;
        while incoming.try_recv().is_ok() {
            self.metrics.event("dropped");
        }
    }

    async fn happened(&mut self, happening: Happening, at: Timestamp) {
        let now = Instant::now();
        let key = Key::of(&happening);
        if let Some(series) = self.known.get_mut(&key)
            && now.duration_since(series.last_seen) < SERIES_WINDOW
        {
            series.count = series.count.saturating_add(1);
            series.last_seen = now;
            series.last_time = at;
            self.metrics.event("aggregated");
            // `next_due` brings the writer back to it when it may be told.
            return;
        }
        if !self.allow(&key.object, now) {
            self.metrics.event("limited");
            return;
        }
        let event = self.event(happening, at);
        if let Some(series) = self.post(event, at, now).await {
            make_room(&mut self.known, |series| series.last_seen);
            self.known.insert(key, series);
        }
    }

    /// When the next count may be told.
    fn next_due(&self) -> Option<Instant> {
        self.known.values().filter(|s| s.count > s.written_count).map(|s| s.last_write + SERIES_PERIOD).min()
    }

    /// Tells the counts that are due, or all of them.
    async fn flush(&mut self, all: bool) {
        let now = Instant::now();
        let due: Vec<Key> = self
            .known
            .iter()
            .filter(|(_, s)| s.count > s.written_count && (all || now >= s.last_write + SERIES_PERIOD))
            .map(|(key, _)| key.clone())
            .collect();
        for key in due {
            let allowed = self.allow(&key.object, now);
            let Some(series) = self.known.get_mut(&key) else { continue };
            // Whatever comes of it, the next attempt is a period away.
            series.last_write = now;
            if !allowed {
                self.metrics.event("limited");
                continue;
            }
            let (count, last) = (series.count, series.last_time);
            let patch = json!({ "series": { "count": count, "lastObservedTime": MicroTime(last) } });
            let api: Api<Event> = Api::namespaced(self.client.clone(), &series.namespace);
            let name = series.name.clone();
            let answer =
                self.call("patch", api.patch(&name, &PatchParams::default(), &Patch::Merge(patch))).await;
            match answer {
                Written::Yes => {
                    if let Some(series) = self.known.get_mut(&key) {
                        series.written_count = count;
                    }
                }
                // Events live for an hour, or as long as somebody lets them.
                Written::Gone => {
                    let Some(series) = self.known.remove(&key) else { continue };
                    if let Some(again) = self.post(series.event, last, now).await {
                        self.known.insert(key, Series { last_seen: series.last_seen, ..again });
                    }
                }
                Written::No => {}
            }
        }
        self.known.retain(|_, series| now.duration_since(series.last_seen) < SERIES_WINDOW);
    }

    async fn post(&mut self, mut event: Event, at: Timestamp, now: Instant) -> Option<Series> {
        let object = event.regarding.as_ref().and_then(|r| r.name.clone()).unwrap_or_default();
        let name = format!("{}.{:016x}", tidy(clip(object, NAME_LIMIT)), fastrand::u64(..));
        event.metadata.name = Some(name.clone());
        event.event_time = Some(MicroTime(at));
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        match self.call("create", api.create(&PostParams::default(), &event)).await {
            Written::Yes => Some(Series {
                namespace,
                name,
                event,
                count: 1,
                written_count: 1,
                last_seen: now,
                last_time: at,
                last_write: now,
            }),
            Written::Gone | Written::No => None,
        }
    }

    /// One request under its deadline, counted.
    async fn call(
        &mut self,
        verb: &'static str,
        request: impl Future<Output = Result<Event, Error>>,
    ) -> Written {
        let now = Instant::now();
        if self.muted_until.is_some_and(|until| now < until) {
            self.metrics.event("refused");
            return Written::No;
        }
        let answer = timeout(CALL_DEADLINE, request).await;
        let outcome = match &answer {
            Ok(Ok(_)) => "ok",
            Ok(Err(error)) => crate::client::outcome(error),
            Err(_) => "timeout",
        };
        self.metrics.api_call(verb, "events", outcome);
        match answer {
            Ok(Ok(_)) => {
                self.muted_until = None;
                self.metrics.event("written");
                Written::Yes
            }
            Ok(Err(Error::Api(status))) if verb == "patch" && status.code == 404 => Written::Gone,
            Ok(Err(error)) => {
                if is_forbidden_everywhere(&error) {
                    self.muted_until = Some(now + MUTED);
                }
                self.failed(&describe(&error, verb, "events.events.k8s.io"));
                Written::No
            }
            Err(_) => {
                self.failed("the API server did not answer in time");
                Written::No
            }
        }
    }

    fn failed(&mut self, error: &str) {
        self.metrics.event("failed");
        let now = Instant::now();
        if self.last_log.is_none_or(|last| now.duration_since(last) >= LOG_PERIOD) {
            self.last_log = Some(now);
            tracing::warn!(error, "Events cannot be written; users see less, nothing else suffers.");
        }
    }

    fn event(&self, happening: Happening, at: Timestamp) -> Event {
        let namespace = happening.regarding.namespace.clone().filter(|n| !n.is_empty());
        Event {
            metadata: ObjectMeta {
                // The API demands the object's namespace, and `default` for objects that have none.
                namespace: Some(namespace.unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            regarding: Some(happening.regarding),
            type_: Some(if happening.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(clip(happening.reason.to_owned(), WORD_LIMIT)),
            action: Some(clip(happening.action.to_owned(), WORD_LIMIT)),
            note: Some(clip(happening.note, NOTE_LIMIT)),
            event_time: Some(MicroTime(at)),
            reporting_controller: Some(self.reporter.clone()),
            reporting_instance: Some(self.instance.clone()),
            ..Event::default()
        }
    }

    /// Takes one write off the object's allowance, if it has one left.
    fn allow(&mut self, object: &str, now: Instant) -> bool {
        if !self.buckets.contains_key(object) {
            make_room(&mut self.buckets, |bucket| bucket.since);
        }
        match self.buckets.entry(object.to_owned()) {
            Entry::Vacant(entry) => {
                entry.insert(Bucket { tokens: BURST - 1, since: now });
                true
            }
            Entry::Occupied(mut entry) => entry.get_mut().take(now),
        }
    }
}

impl Bucket {
    fn take(&mut self, now: Instant) -> bool {
        while self.tokens < BURST && now.duration_since(self.since) >= REFILL {
            self.tokens += 1;
            self.since += REFILL;
        }
        if self.tokens == BURST {
            self.since = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}

impl Key {
    fn of(happening: &Happening) -> Self {
        let object = &happening.regarding;
        let mut note = DefaultHasher::new();
        happening.note.hash(&mut note);
        Self {
            object: object.uid.clone().filter(|uid| !uid.is_empty()).unwrap_or_else(|| {
                let part = |text: &Option<String>| text.clone().unwrap_or_default();
                format!("{}/{}/{}", part(&object.kind), part(&object.namespace), part(&object.name))
            }),
            warning: happening.warning,
            reason: happening.reason,
            note: note.finish(),
        }
    }
}

enum Step {
    Close,
    End,
    Happened(Box<Happening>, Timestamp),
    Flush,
}

enum Written {
    Yes,
    /// It was there, and is no more.
    Gone,
    No,
}

/// Forbidden by RBAC, and not only because the one namespace is being deleted, which is forbidden by admission.
fn is_forbidden_everywhere(error: &Error) -> bool {
    let Error::Api(status) = error else { return false };
    let terminating =
        status.details.iter().flat_map(|d| &d.causes).any(|c| c.reason == "NamespaceTerminating");
    status.is_forbidden() && !terminating
}

/// Returns when the writer was asked to end, or nobody is left to ask it for anything.
async fn closed(closing: &mut watch::Receiver<bool>) {
    closing.wait_for(|closed| *closed).await.ok();
}

/// Does `work` until the end; `None` when the end came first. The end may become known only on the way.
async fn bounded<T>(
    end: &mut Option<Instant>,
    closing: &mut watch::Receiver<bool>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    if end.is_none() {
        tokio::select! {
            biased;
            done = &mut work => return Some(done),
            () = closed(closing) => {}
        }
    }
    timeout_at(*end.get_or_insert_with(|| Instant::now() + DRAIN), work).await.ok()
}

/// Forgets the least recent entry of a full table. A scan of a thousand entries, and only when one is added.
fn make_room<K: Clone + Ord, V>(table: &mut BTreeMap<K, V>, age: impl Fn(&V) -> Instant) {
    if table.len() < MEMORY {
        return;
    }
    if let Some(oldest) = table.iter().min_by_key(|(_, value)| age(value)).map(|(key, _)| key.clone()) {
        table.remove(&oldest);
    }
}

/// Cuts at a character.
fn clip(mut text: String, limit: usize) -> String {
    text.truncate(cut(&text, limit).len());
    text
}

/// A name that was cut must still end in a letter or digit.
fn tidy(mut name: String) -> String {
    name.truncate(name.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len());
    name
}

#[cfg(test)]
mod tests;
