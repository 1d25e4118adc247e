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
}

impl Settings {
    /// The delays between tries.
    pub fn backoff(&self) -> Backoff {
        Backoff { base: self.backoff_base, max: self.backoff_max }
    }

    /// The node, for agents.
    pub fn node(&self) -> Option<&str> {
        match &self.placement {
            Placement::Central => None,
            Placement::PerNode { node } => Some(node),
        }
    }
}
