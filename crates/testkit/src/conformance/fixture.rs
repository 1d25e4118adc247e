//! What the suite must be able to do to a storage system, past the backend under test.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use volwright_provisioner::{
    Key, NodeInfo, ParameterMap, Provisioner, Result, Secret, SecretRef, SharedContext,
};

/// The handle of a fixture's backend.
pub type HandleOf<F> = <<F as Fixture>::Backend as Provisioner>::Handle;

/// What a fixture did, or why it cannot do it.
pub type Can<T> = Result<T, Cannot>;

/// Why a fixture cannot do something. The checks that need it are reported as not made, with this reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cannot(pub(super) String);

/// The answer of a fixture that cannot do what it was asked for.
pub fn cannot(why: impl Into<String>) -> Cannot {
    Cannot(why.into())
}

impl fmt::Display for Cannot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A storage system of its own, empty at first, for one check; and what can be done to it without the backend.
///
/// Everything but `connect` goes past the backend: what a pod, an administrator or an accident would do. None of it may use
/// the backend's own code where that is what is being checked. Drop it, and the storage system goes.
#[expect(async_fn_in_trait, reason = "a check drives its fixture from one task")]
pub trait Fixture {
    /// What is checked.
    type Backend: Provisioner;

    /// A new process of the backend on this storage system. The suite drops the one before first; what only that one's
    /// memory knew is lost then, as in a restart.
    async fn connect(&self, context: SharedContext) -> Result<Self::Backend>;

    /// Class parameters that work.
    fn parameters(&self) -> ParameterMap {
        ParameterMap::new()
    }

    /// Class parameters, to be added to those of `parameters`, that let a claim's names, labels or annotations reach the
    /// volume's name, such as path patterns. Hostile claims are tried with each. They may use `${pvc.labels['dir']}` and `${pvc.annotations['dir']}`.
    fn hostile_parameters(&self) -> Vec<ParameterMap> {
        Vec::new()
    }

    /// The node, for a node agent.
    fn node(&self) -> Option<NodeInfo> {
        None
    }

    /// The secrets that the backend may read, by their references.
    fn secrets(&self) -> Vec<(SecretRef, BTreeMap<String, Secret>)> {
        Vec::new()
    }

    /// Bytes of a volume. Twice that must fit as well.
    fn size(&self) -> u64 {
        16 << 20
    }

    /// How long a call may take until it is final, with all its repetitions.
    fn patience(&self) -> Duration {
        Duration::from_secs(30)
    }

    /// The key that all volumes lie below, where sources have paths: one elsewhere has escaped.
    fn bounds(&self) -> Option<Key> {
        None
    }

    /// Everything that must never change, whatever claims are named: what is beside the root, told as a text that is another
    /// after any change.
    async fn outside(&self) -> Can<String> {
        Err(cannot("the fixture sees nothing outside its volumes"))
    }

    /// Is there anything at the volume's place?
    async fn exists(&self, handle: &HandleOf<Self>) -> Can<bool>;

    /// Writes data into the volume, as a pod would.
    async fn write_into(&self, handle: &HandleOf<Self>) -> Can<()>;

    /// Is there what `write_into` wrote, or what came with `plant_foreign`, whole?
    async fn is_written(&self, handle: &HandleOf<Self>) -> Can<bool>;

    /// Puts something with data in it at the place of a volume that was planned and not made, as somebody would who knows
    /// nothing of provisioners: without a mark or a record.
    async fn plant_foreign(&self, handle: &HandleOf<Self>) -> Can<()>;

    /// The storage system answers, and yet the volumes are not there: the disk is not mounted, the server is another one.
    /// What shows there instead is empty.
    async fn lose_root(&self) -> Can<()>;

    /// Undoes `lose_root`: the volumes are there again as they were.
    async fn find_root(&self) -> Can<()>;
}
