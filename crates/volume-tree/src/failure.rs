//! From what a tree answers to what the engine decides by.

use crate::{ErrorKind, TreeError};
use volwright_provisioner::{Class, Failure, Result};

/// What the call may have changed by the time something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Changed {
    /// Surely nothing.
    Nothing,
    /// Nothing but the failed step itself, if that: the first that changes anything.
    FirstStep,
    /// Perhaps something; the same call again finishes it.
    Maybe,
}

pub(crate) trait ResultExt<T> {
    /// Chooses the class. `doing` completes "... failed", for the user.
    fn or_failure(self, changed: Changed, doing: &str) -> Result<T>;
}

impl<T> ResultExt<T> for Result<T, TreeError> {
    fn or_failure(self, changed: Changed, doing: &str) -> Result<T> {
        self.map_err(|error| failure(error, changed, doing))
    }
}

fn failure(error: TreeError, changed: Changed, doing: &str) -> Failure {
    let class = match (error.kind, changed) {
        // Whatever was made so far is undone with the plan, which the engine does before it plans anew.
        (ErrorKind::Full, _) => Class::Exhausted,
        (_, Changed::Maybe) | (ErrorKind::Other, Changed::FirstStep) => Class::Unknown,
        (
            ErrorKind::Missing
            | ErrorKind::Exists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::NotEmpty
            | ErrorKind::CrossesMount
            | ErrorKind::Busy
            | ErrorKind::ReadOnly
            | ErrorKind::Denied,
            Changed::Nothing | Changed::FirstStep,
        )
        | (ErrorKind::Other, Changed::Nothing) => Class::Unavailable,
    };
    Failure::new(class, format!("{doing} failed: {}", remedy(error.kind))).caused_by(error)
}

fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Full => "the disk or a quota is full; free some space, or let the pod go to another node",
        ErrorKind::ReadOnly => {
            "the file system is mounted read-only; it may have found errors, see the node's kernel log"
        }
        ErrorKind::Denied => {
            "not permitted; the provisioner needs to own the root (on a node: root with CAP_CHOWN, CAP_FOWNER and CAP_DAC_OVERRIDE)"
        }
        ErrorKind::CrossesMount | ErrorKind::Busy => "another file system is mounted there; unmount it",
        ErrorKind::Missing
        | ErrorKind::Exists
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::NotEmpty => "somebody else changes files there; tried again by itself",
        ErrorKind::Other => {
            "the storage answered with an error, see the provisioner's log; tried again by itself"
        }
    }
}
