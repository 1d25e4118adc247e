//! How the engine is set up.

use std::time::Duration;
use volwright_provisioner::{InstallationId, Placement};

use crate::decide::retry::Backoff;

/// Everything that flags decide about the engine.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The provisioner name, then the names that are served as well.
    pub names: Vec<String>,
    /// One process for the cluster, or one on each node.
    pub placement: Placement,
    /// Part of every mark.
    pub installation: InstallationId,
    /// Claims and PVs that are worked on at once, each.
    pub workers: usize,
    /// Deadline of a call to the API server.
    pub api_timeout: Duration,
    /// Deadline of a call to the backend; when it passes the outcome is unknown, and the call is repeated.
    pub backend_timeout: Duration,
    /// Delay after a first failure.
    pub backoff_base: Duration,
    /// Longest delay between two tries.
    pub backoff_max: Duration,
    /// Everything is looked at again after this long, in case a change was missed.
    pub resync: Duration,
    /// How long running calls may take to finish after SIGTERM.
    pub drain: Duration,
    /// How long a leader that was stopped may believe that it still leads; zero where there is no lease.
    pub lease: Duration,
    /// Where the lease, the journal and operators' requests are.
    pub namespace: String,
    /// How often the trash is looked through for what is due, and not before the first time has passed. Zero: never, and
    /// no requests about it are served.
    pub trash_interval: Duration,
}

impl Settings {
    /// The delays between tries.
    pub fn backoff(&self) -> Backoff {
        Backoff { base: self.backoff_base, max: self.backoff_max }
    }

    /// After the start of a term, how long something can still happen that an earlier leader began: it stops when its
    /// lease is over, and its last call when that one's deadline is. Nothing without a lease: there the lock goes with
    /// the process, and the calls with it.
    pub fn grace(&self) -> Duration {
        if self.lease.is_zero() {
            return Duration::ZERO;
        }
        self.lease + self.backend_timeout.max(self.api_timeout)
    }

    /// The node, for agents.
    pub fn node(&self) -> Option<&str> {
        match &self.placement {
            Placement::Central => None,
            Placement::PerNode { node } => Some(node),
        }
    }
}
