//! Which journal a process keeps, and how it comes to lead.

use super::args::RunOptions;
use super::run::RunError;
use crate::backend::Backend;
use crate::client::Clients;
use crate::engine::clock::{Clock, SystemClock};
use crate::engine::lease::{Elector, Leadership, LeaseSettings};
use crate::engine::{Bounds, ConfigMapJournal, ConfigMapSettings, Journal, RecordJournal};
use crate::names;
use std::sync::Arc;
use std::time::Duration;
use volwright_provisioner::Placement;

/// See the module.
pub(super) struct Coordination {
    /// Whether this process may act.
    pub(super) leadership: Leadership,
    /// Where intents are kept.
    pub(super) journal: Arc<dyn Journal>,
    /// To be run beside the engine, and until after its end.
    pub(super) elector: Option<Elector>,
    /// See [`Settings::lease`](crate::engine::Settings).
    pub(super) lease: Duration,
}

impl Coordination {
    /// Agents: the storage's records are the journal, and a lock on the node keeps a second one out. Else a lease and
    /// ConfigMaps. `name` is the provisioner's, `instance` the pod's.
    pub(super) fn new(
        options: &RunOptions,
        placement: &Placement,
        clients: &Clients,
        backend: &Arc<dyn Backend>,
        name: &str,
        instance: &str,
    ) -> Result<Self, RunError> {
        if matches!(placement, Placement::PerNode { .. }) {
            return Ok(Self {
                leadership: Leadership::always(),
                journal: Arc::new(RecordJournal::new(Arc::clone(backend))),
                elector: None,
                lease: Duration::ZERO,
            });
        }
        let timing = options.lease.timing().map_err(|error| RunError::Config(error.to_string()))?;
        let client = &clients.requests;
        let namespace = options.lease.namespace_or(client).to_owned();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let journal = ConfigMapJournal::new(
            client.clone(),
            ConfigMapSettings {
                namespace: namespace.clone(),
                name: names::journal(name),
                provisioner: name.to_owned(),
                api_timeout: options.engine.api_timeout,
                bounds: Bounds::default(),
                clock: Arc::clone(&clock),
            },
        );
        let journal: Arc<dyn Journal> = Arc::new(journal);
        let lease = options.lease.lease_duration;
        if !options.lease.leader_elect {
            // A process that was killed a moment ago may still have a call under way.
            return Ok(Self { leadership: Leadership::always(), journal, elector: None, lease });
        }
        let settings = LeaseSettings {
            namespace,
            name: name.to_owned(),
            provisioner: name.to_owned(),
            identity: identity(instance),
            timing,
        };
        let (elector, leadership) = Elector::new(clients.watches.clone(), settings, clock);
        Ok(Self { leadership, journal, elector: Some(elector), lease })
    }
}

/// As whom a process stands for election. Pods on the host's network have the node's name, and a pod's container may start
/// again: what is random tells them apart.
fn identity(instance: &str) -> String {
    format!("{instance}_{:016x}", fastrand::u64(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_of_one_host_name_stand_for_election_under_two_names() {
        let (one, two) = (identity("worker-1"), identity("worker-1"));
        assert_ne!(one, two);
        assert!(one.starts_with("worker-1_") && two.starts_with("worker-1_"), "{one} {two}");
    }
}
