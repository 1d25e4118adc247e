//! What a control plane is started with.

use std::time::Duration;

/// What runs, and how fast. `Options::default()` is everything, fast, without an audit log.
#[derive(Debug, Clone)]
pub struct Options {
    /// Run kube-controller-manager: binding, namespaces, service accounts, garbage collection.
    pub kcm: bool,
    /// Run kube-scheduler, which picks the node of a claim that waits for its first consumer.
    pub scheduler: bool,
    /// Write an audit log of every request, without bodies; see
    /// [`ControlPlane::audit_log`](super::ControlPlane::audit_log).
    pub audit: bool,
    /// Requests a second that kube-controller-manager and kube-scheduler allow themselves, with bursts of twice
    /// as many. Theirs by default are 20 and 50, which decides how fast claims get their provisioner annotation
    /// and bind, whatever the provisioner does; 5000 takes them out of a measurement.
    pub kcm_qps: u32,
    /// How often the volume controller looks at every claim and volume without being told (15 s by default). A
    /// binding that lost a race waits for this, so tests want it short; at thousands of claims it costs CPU.
    pub binder_sync: Duration,
    /// How long events are kept; `None` leaves the API server's default of one hour.
    pub event_ttl: Option<Duration>,
    /// Arguments for kube-apiserver after ours; where both name a flag, the last one counts.
    pub api_server_args: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kcm: true,
            scheduler: true,
            audit: false,
            kcm_qps: 5000,
            binder_sync: Duration::from_secs(2),
            event_ttl: None,
            api_server_args: Vec::new(),
        }
    }
}
