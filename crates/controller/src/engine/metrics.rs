//! Metrics: the library's names and labels where it has them, `volwright_*` for the rest.
//!
//! Labels come from closed sets. The only names of users' making are those of storage classes, and of these the first
//! hundred are told apart. Series that mean "all is well" exist from the start, so that a rate can be taken before
//! the first failure.

use prometheus::core::Collector;
use prometheus::{
    Encoder as _, HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Storage classes that get a label value of their own; later ones share [`OTHER`]. A class costs two histograms of 14
/// series and four counters. Real clusters have fewer than 20 classes for one provisioner; only something that makes
/// classes by the hundred (a test suite) gets beyond this.
const MAX_CLASSES: usize = 100;

/// The label value for everything outside a closed set.
const OTHER: &str = "other";

/// Kinds of data sources that are told apart. The kind is written by whoever may make a claim, so it is not taken over.
const SOURCES: [&str; 3] = ["", "PersistentVolumeClaim", "VolumeSnapshot"];

/// What a backend may answer: the classes of `Failure`, and the two kinds of `Progress`.
const BACKEND_OUTCOMES: [&str; 8] =
    ["done", "pending", "invalid", "exhausted", "unavailable", "unknown", "blocked", "not_ours"];

/// What a backend is asked.
const BACKEND_OPERATIONS: [&str; 12] = [
    "plan",
    "observe",
    "provision",
    "delete",
    "set_mark",
    "expand",
    "trash",
    "restore",
    "purge",
    "inventory",
    "capacity",
    "check",
];

/// What becomes of an event. `aggregated`: counted into an earlier one. `limited`: its object had too many lately.
/// `dropped`: the queue was full. `refused`: not sent, since the API server has just forbidden events altogether.
const EVENT_OUTCOMES: [&str; 6] = ["written", "aggregated", "limited", "dropped", "failed", "refused"];

/// Seconds. A directory takes a millisecond, an EBS volume tens of seconds, and two minutes is the default deadline.
const BACKEND_BUCKETS: [f64; 12] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

/// Seconds. Usually nothing waits; what waits behind a backoff of minutes is meant to.
const QUEUE_BUCKETS: [f64; 9] = [0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0];

/// Every metric, with its name and help. The one place where a name is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// The library's.
    Provisioned,
    /// The library's.
    ProvisionFailed,
    /// The library's.
    ProvisionSeconds,
    /// The library's.
    Deleted,
    /// The library's.
    DeleteFailed,
    /// The library's.
    DeleteSeconds,
    /// Labels: queue.
    QueueDepth,
    /// Labels: queue.
    QueueWaitSeconds,
    /// Labels: kind.
    Intents,
    /// No labels.
    Orphans,
    /// No labels.
    TrashVolumes,
    /// No labels.
    TrashBytes,
    /// Labels: operation, outcome.
    BackendCallSeconds,
    /// Labels: verb, resource, outcome.
    ApiRequests,
    /// Labels: outcome.
    Events,
    /// Labels: resource.
    WatchRestarts,
    /// Labels: reason.
    ClaimsRefused,
    /// Labels: class.
    BudgetBytes,
    /// Labels: class.
    PromisedBytes,
    /// No labels.
    Ready,
    /// Labels: version, backend.
    BuildInfo,
}

impl Metric {
    /// Every metric there is, for documents and dashboards that are checked against it.
    pub const ALL: [Self; 21] = [
        Self::Provisioned,
        Self::ProvisionFailed,
        Self::ProvisionSeconds,
        Self::Deleted,
        Self::DeleteFailed,
        Self::DeleteSeconds,
        Self::QueueDepth,
        Self::QueueWaitSeconds,
        Self::Intents,
        Self::Orphans,
        Self::TrashVolumes,
        Self::TrashBytes,
        Self::BackendCallSeconds,
        Self::ApiRequests,
        Self::Events,
        Self::WatchRestarts,
        Self::ClaimsRefused,
        Self::BudgetBytes,
        Self::PromisedBytes,
        Self::Ready,
        Self::BuildInfo,
    ];

    /// As scraped.
    pub const fn name(self) -> &'static str {
        self.spelled().0
    }

    /// For people.
    pub const fn help(self) -> &'static str {
        self.spelled().1
    }

    /// The labels, in order.
    pub const fn labels(self) -> &'static [&'static str] {
        match self {
            Self::Provisioned | Self::ProvisionFailed | Self::ProvisionSeconds => &["class", "source"],
            Self::Deleted
            | Self::DeleteFailed
            | Self::DeleteSeconds
            | Self::BudgetBytes
            | Self::PromisedBytes => &["class"],
            Self::QueueDepth | Self::QueueWaitSeconds => &["queue"],
            Self::Intents => &["kind"],
            Self::BackendCallSeconds => &["operation", "outcome"],
            Self::ApiRequests => &["verb", "resource", "outcome"],
            Self::Events => &["outcome"],
            Self::WatchRestarts => &["resource"],
            Self::ClaimsRefused => &["reason"],
            Self::BuildInfo => &["version", "backend"],
            Self::Orphans | Self::TrashVolumes | Self::TrashBytes | Self::Ready => &[],
        }
    }

    const fn spelled(self) -> (&'static str, &'static str) {
        match self {
            Self::Provisioned => (
                "controller_persistentvolumeclaim_provision_total",
                "Volumes provisioned, by class and kind of data source.",
            ),
            Self::ProvisionFailed => (
                "controller_persistentvolumeclaim_provision_failed_total",
                "Failed attempts to provision a volume, by class and kind of data source.",
            ),
            Self::ProvisionSeconds => (
                "controller_persistentvolumeclaim_provision_duration_seconds",
                "Time from taking up a claim to its volume, where that succeeded.",
            ),
            Self::Deleted => ("controller_persistentvolume_delete_total", "Volumes deleted, by class."),
            Self::DeleteFailed => (
                "controller_persistentvolume_delete_failed_total",
                "Failed attempts to delete a volume, by class.",
            ),
            Self::DeleteSeconds => (
                "controller_persistentvolume_delete_duration_seconds",
                "Time from taking up a volume to its end, where that succeeded.",
            ),
            Self::QueueDepth => ("volwright_queue_depth", "Objects waiting for a worker."),
            Self::QueueWaitSeconds => {
                ("volwright_queue_wait_seconds", "Time from being due to being taken up by a worker.")
            }
            Self::Intents => ("volwright_intents", "Open intents: volumes being made or deleted, by kind."),
            Self::Orphans => (
                "volwright_orphans",
                "Volumes of ours that no PV, intent or record speaks for. They are kept until an operator decides.",
            ),
            Self::TrashVolumes => ("volwright_trash_volumes", "Volumes of ours in the trash."),
            Self::TrashBytes => (
                "volwright_trash_bytes",
                "What the volumes in the trash were promised; what they hold may be less, or more.",
            ),
            Self::BackendCallSeconds => (
                "volwright_backend_call_duration_seconds",
                "Calls to the storage system, by operation and outcome.",
            ),
            Self::ApiRequests => {
                ("volwright_api_requests_total", "Requests to the API server, by verb, resource and outcome.")
            }
            Self::Events => ("volwright_events_total", "Events for users, by what became of them."),
            Self::WatchRestarts => {
                ("volwright_watch_restarts_total", "Watches that were begun anew after an error or silence.")
            }
            Self::ClaimsRefused => {
                ("volwright_claims_refused_total", "Claims that cannot be served as they are, by reason.")
            }
            Self::BudgetBytes => (
                "volwright_class_budget_bytes",
                "What a storage class may promise in all, where it has a budget.",
            ),
            Self::PromisedBytes => (
                "volwright_class_promised_bytes",
                "What a storage class with a budget has promised: its volumes, whatever their phase, and those being made.",
            ),
            Self::Ready => ("volwright_ready", "1 while /readyz says yes."),
            Self::BuildInfo => ("volwright_build_info", "Always 1; the labels say what runs."),
        }
    }
}

/// All metrics of one process, in a registry of their own: several engines in one test do not mix.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    classes: Mutex<BTreeSet<String>>,
    provisioned: IntCounterVec,
    provision_failed: IntCounterVec,
    provision_seconds: HistogramVec,
    deleted: IntCounterVec,
    delete_failed: IntCounterVec,
    delete_seconds: HistogramVec,
    queue_depth: IntGaugeVec,
    queue_wait: HistogramVec,
    intents: IntGaugeVec,
    orphans: IntGauge,
    trash_volumes: IntGauge,
    trash_bytes: IntGauge,
    backend_calls: HistogramVec,
    api_requests: IntCounterVec,
    events: IntCounterVec,
    watch_restarts: IntCounterVec,
    claims_refused: IntCounterVec,
    budget: IntGaugeVec,
    promised: IntGaugeVec,
    ready: IntGauge,
    build_info: IntGaugeVec,
}

impl Metrics {
    /// Registers everything.
    #[expect(clippy::missing_panics_doc, reason = "it cannot panic: see the expectation within")]
    pub fn new() -> Arc<Self> {
        #[expect(
            clippy::expect_used,
            reason = "only bad or double names can fail, they are constants, and tests call this"
        )]
        let metrics = Self::register().expect("the metrics' names are good and different");
        metrics.begin();
        Arc::new(metrics)
    }

    fn register() -> prometheus::Result<Self> {
        let registry = Registry::new();
        // CPU, memory, descriptors and start time of the process.
        #[cfg(target_os = "linux")]
        registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
        let counter = |metric: Metric| {
            keep(&registry, IntCounterVec::new(Opts::new(metric.name(), metric.help()), metric.labels())?)
        };
        let gauge = |metric: Metric| {
            keep(&registry, IntGaugeVec::new(Opts::new(metric.name(), metric.help()), metric.labels())?)
        };
        let plain = |metric: Metric| keep(&registry, IntGauge::new(metric.name(), metric.help())?);
        let histogram = |metric: Metric, buckets: &[f64]| {
            let options = HistogramOpts::new(metric.name(), metric.help()).buckets(buckets.to_vec());
            keep(&registry, HistogramVec::new(options, metric.labels())?)
        };
        Ok(Self {
            classes: Mutex::default(),
            provisioned: counter(Metric::Provisioned)?,
            provision_failed: counter(Metric::ProvisionFailed)?,
            provision_seconds: histogram(Metric::ProvisionSeconds, prometheus::DEFAULT_BUCKETS)?,
            deleted: counter(Metric::Deleted)?,
            delete_failed: counter(Metric::DeleteFailed)?,
            delete_seconds: histogram(Metric::DeleteSeconds, prometheus::DEFAULT_BUCKETS)?,
            queue_depth: gauge(Metric::QueueDepth)?,
            queue_wait: histogram(Metric::QueueWaitSeconds, &QUEUE_BUCKETS)?,
            intents: gauge(Metric::Intents)?,
            orphans: plain(Metric::Orphans)?,
            trash_volumes: plain(Metric::TrashVolumes)?,
            trash_bytes: plain(Metric::TrashBytes)?,
            backend_calls: histogram(Metric::BackendCallSeconds, &BACKEND_BUCKETS)?,
            api_requests: counter(Metric::ApiRequests)?,
            events: counter(Metric::Events)?,
            watch_restarts: counter(Metric::WatchRestarts)?,
            claims_refused: counter(Metric::ClaimsRefused)?,
            budget: gauge(Metric::BudgetBytes)?,
            promised: gauge(Metric::PromisedBytes)?,
            ready: plain(Metric::Ready)?,
            build_info: gauge(Metric::BuildInfo)?,
            registry,
        })
    }

    /// Makes the series whose labels are known beforehand, at zero.
    fn begin(&self) {
        for outcome in EVENT_OUTCOMES {
            self.events.with_label_values(&[outcome]);
        }
        for operation in BACKEND_OPERATIONS {
            self.backend_calls.with_label_values(&[operation, "done"]);
        }
        for resource in super::health::WATCHES {
            self.watch_restarts.with_label_values(&[resource]);
        }
    }

    /// What runs; said once at start.
    pub fn build_info(&self, backend: &str) {
        self.build_info.with_label_values(&[env!("CARGO_PKG_VERSION"), backend]).set(1);
    }

    /// A claim has its volume.
    pub fn provisioned(&self, class: &str, source: &str, took: Duration) {
        let class = self.class(class);
        let labels = [class, one_of(&SOURCES, source)];
        self.provisioned.with_label_values(&labels).inc();
        self.provision_seconds.with_label_values(&labels).observe(took.as_secs_f64());
        // Its counterpart, so that a failure rate of this class can be taken.
        self.provision_failed.with_label_values(&labels).inc_by(0);
    }

    /// An attempt to make a volume failed. As in the library, durations of failures are not observed.
    pub fn provision_failed(&self, class: &str, source: &str) {
        let class = self.class(class);
        self.provision_failed.with_label_values(&[class, one_of(&SOURCES, source)]).inc();
    }

    /// A volume is gone.
    pub fn deleted(&self, class: &str, took: Duration) {
        let class = self.class(class);
        self.deleted.with_label_values(&[class]).inc();
        self.delete_seconds.with_label_values(&[class]).observe(took.as_secs_f64());
        self.delete_failed.with_label_values(&[class]).inc_by(0);
    }

    /// An attempt to delete a volume failed.
    pub fn delete_failed(&self, class: &str) {
        let class = self.class(class);
        self.delete_failed.with_label_values(&[class]).inc();
    }

    /// The storage system answered, or its deadline passed (`unknown`).
    pub fn backend_call(&self, operation: &'static str, outcome: &'static str, took: Duration) {
        let labels = [operation, one_of(&BACKEND_OUTCOMES, outcome)];
        self.backend_calls.with_label_values(&labels).observe(took.as_secs_f64());
    }

    /// The API server answered or did not; `outcome` is `ok` or from [`crate::client::outcome`].
    pub fn api_call(&self, verb: &'static str, resource: &'static str, outcome: &'static str) {
        self.api_requests.with_label_values(&[verb, resource, outcome]).inc();
    }

    /// Objects waiting for a worker now.
    pub fn queue_depth(&self, queue: &'static str, depth: usize) {
        self.queue_depth.with_label_values(&[queue]).set(count(depth));
    }

    /// How long an object was due before a worker took it up.
    pub fn queue_wait(&self, queue: &'static str, waited: Duration) {
        self.queue_wait.with_label_values(&[queue]).observe(waited.as_secs_f64());
    }

    /// Open intents now.
    pub fn intents(&self, kind: &'static str, n: usize) {
        self.intents.with_label_values(&[kind]).set(count(n));
    }

    /// What is in the trash.
    pub fn trash(&self, volumes: usize, bytes: u64) {
        self.trash_volumes.set(count(volumes));
        self.trash_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
    }

    /// Orphans seen by the last sweep.
    pub fn orphans(&self, n: usize) {
        self.orphans.set(count(n));
    }

    /// What became of an event.
    pub fn event(&self, outcome: &'static str) {
        self.events.with_label_values(&[one_of(&EVENT_OUTCOMES, outcome)]).inc();
    }

    /// A watch was begun anew.
    pub fn watch_restarted(&self, resource: &'static str) {
        self.watch_restarts.with_label_values(&[resource]).inc();
    }

    /// A claim was refused; `reason` names the rule, such as `selector`.
    pub fn claim_refused(&self, reason: &'static str) {
        self.claims_refused.with_label_values(&[reason]).inc();
    }

    /// What a class may promise in all, and what it has promised, in bytes.
    pub fn budget(&self, class: &str, budget: u64, promised: u64) {
        let class = self.class(class);
        let gauge = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        self.budget.with_label_values(&[class]).set(gauge(budget));
        self.promised.with_label_values(&[class]).set(gauge(promised));
    }

    /// The class has no budget (any more).
    pub fn no_budget(&self, class: &str) {
        // Mostly it had none before, which is no error.
        self.budget.remove_label_values(&[class]).ok();
        self.promised.remove_label_values(&[class]).ok();
    }

    /// What `/readyz` says.
    pub fn ready(&self, ready: bool) {
        self.ready.set(i64::from(ready));
    }

    /// Everything, in Prometheus' text format.
    pub fn render(&self) -> String {
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            // What was written until then is whole lines, and is better than nothing.
            tracing::warn!(%error, "Metrics could not be written in full.");
        }
        String::from_utf8(text).unwrap_or_default()
    }

    fn class<'a>(&self, class: &'a str) -> &'a str {
        let mut known = self.classes.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(class) {
            return class;
        }
        if known.len() >= MAX_CLASSES {
            return OTHER;
        }
        known.insert(class.to_owned());
        class
    }
}

fn keep<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

fn one_of<'a>(set: &[&'a str], value: &str) -> &'a str {
    set.iter().find(|known| **known == value).copied().unwrap_or(OTHER)
}

fn count(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn has(metrics: &Metrics, line: &str) {
        let text = metrics.render();
        assert!(text.lines().any(|l| l == line), "no line {line:?} in\n{text}");
    }

    #[test]
    fn the_librarys_series_keep_their_names_and_labels() {
        let metrics = Metrics::new();
        metrics.provisioned("fast", "", Duration::from_millis(3));
        metrics.provision_failed("fast", "VolumeSnapshot");
        metrics.deleted("fast", Duration::from_millis(3));
        metrics.delete_failed("fast");
        for line in [
            r#"controller_persistentvolumeclaim_provision_total{class="fast",source=""} 1"#,
            r#"controller_persistentvolumeclaim_provision_failed_total{class="fast",source=""} 0"#,
            r#"controller_persistentvolumeclaim_provision_failed_total{class="fast",source="VolumeSnapshot"} 1"#,
            r#"controller_persistentvolumeclaim_provision_duration_seconds_bucket{class="fast",source="",le="0.005"} 1"#,
            r#"controller_persistentvolume_delete_total{class="fast"} 1"#,
            r#"controller_persistentvolume_delete_failed_total{class="fast"} 1"#,
            r#"controller_persistentvolume_delete_duration_seconds_bucket{class="fast",le="0.005"} 1"#,
        ] {
            has(&metrics, line);
        }
    }

    #[test]
    fn labels_are_bounded_whatever_users_write() {
        let metrics = Metrics::new();
        for n in 0..1000 {
            metrics.provision_failed(&format!("class-{n}"), &format!("Kind{n}"));
        }
        metrics.backend_call("plan", "astonished", Duration::ZERO);
        let name = Metric::ProvisionFailed.name();
        let series = metrics.render().lines().filter(|l| l.starts_with(name)).count();
        assert_eq!(series, MAX_CLASSES + 1);
        has(&metrics, &format!(r#"{name}{{class="other",source="other"}} 900"#));
        has(&metrics, r#"volwright_backend_call_duration_seconds_count{operation="plan",outcome="other"} 1"#);
    }

    #[test]
    fn every_metric_is_rendered_once_it_was_used() {
        let metrics = Metrics::new();
        metrics.build_info("nfs");
        metrics.provisioned("a", "", Duration::ZERO);
        metrics.deleted("a", Duration::ZERO);
        metrics.queue_depth("claims", 2);
        metrics.queue_wait("claims", Duration::ZERO);
        metrics.intents("provision", 3);
        metrics.orphans(1);
        metrics.api_call("create", "persistentvolumes", "ok");
        metrics.claim_refused("selector");
        metrics.budget("a", 2, 1);
        metrics.ready(true);
        let text = metrics.render();
        for metric in Metric::ALL {
            assert!(
                text.contains(&format!("# HELP {} {}", metric.name(), metric.help())),
                "{metric:?}\n{text}"
            );
        }
        has(&metrics, r#"volwright_queue_depth{queue="claims"} 2"#);
        has(&metrics, "volwright_ready 1");
        has(&metrics, r#"volwright_events_total{outcome="dropped"} 0"#);
        has(&metrics, r#"volwright_watch_restarts_total{resource="persistentvolumes"} 0"#);
    }
}
