//! The trait.

use crate::failure::{Failure, Progress, Result};
use crate::{
    Capabilities, Capacity, Check, InventoryItem, Key, Mark, Observed, Provisioned, Request, SharedContext,
    Trashed, VolumeSource,
};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::future::Future;

/// Where the process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// One active process for the cluster.
    Central,
    /// One process on each node; each serves the claims whose pod was scheduled there.
    PerNode {
        /// `metadata.name` of the node.
        node: String,
    },
}

/// A storage system. See the [crate's documentation](crate) for a whole one in 50 lines.
///
/// # Flow
/// `plan` -> (the intent is recorded) -> `observe` -> `provision` until `Done` -> `set_mark(published)` -> the engine
/// creates the PV; where the backend [sees what is in a volume](Capabilities::sees_contents) the last two change places.
/// Later: `observe` -> (the delete is recorded, the PV is terminating) -> `delete` until `Done`.
///
/// # Guarantees
/// The engine never runs two calls on overlapping [`Key`]s at once within a process. It records the handle durably
/// before the first call that changes anything, and calls again with the same handle after a crash, until an answer is
/// final. For a node agent the backend's own record is that journal: see [`Request::intent`]. The engine bounds each call with a deadline, after which the future is dropped and the outcome counts as
/// [`Unknown`](crate::Class::Unknown).
///
/// # Assumptions
/// All calls but the pure ones may be repeated and dropped at any await. `provision`, `delete` and `set_mark` are
/// idempotent: called on what is already as asked, they answer `Done` (or `Ok`). Nothing that bears another owner's mark
/// is ever changed: answer [`NotOurs`](crate::Class::NotOurs). Where the root cannot be shown to be the right one (not
/// mounted, another replica), every call answers [`Unavailable`](crate::Class::Unavailable), above all `observe` and
/// `delete`: absence counts only where the root shows its identity.
///
/// # Errors
/// Choose the [class](crate::Class) by what may have happened, not by the error's name.
pub trait Provisioner: Send + Sync + Sized + 'static {
    /// Short name: `<BACKEND>.volwright.io` is the default provisioner name, `volwright-<BACKEND>` the binary.
    const BACKEND: &'static str;
    /// The version of `Handle` that is written. Raise it when the JSON changes, one release after
    /// [`upgrade`](Self::upgrade) has learnt to read it: then a cluster can go back one release with its volumes.
    const HANDLE_VERSION: u16;

    /// The backend's own flags.
    type Args: clap::Args + Send + Sync;
    /// Class parameters. Derive with `#[serde(rename_all = "camelCase", deny_unknown_fields)]`.
    type Parameters: DeserializeOwned + JsonSchema + Send + Sync;
    /// All that later calls need to find the volume, whatever happened to claim, class and node. At most 2 KiB as JSON;
    /// it is stored on the PV and in the journal, so it holds no secrets.
    type Handle: Serialize + DeserializeOwned + Clone + Eq + Send + Sync;

    /// Where this process runs, from its flags.
    fn placement(args: &Self::Args) -> Result<Placement>;

    /// Makes the backend ready. A mistake in the flags is `Invalid` and stops the process with its message; a storage
    /// system that is down must not fail here, but in the calls.
    fn connect(args: Self::Args, context: SharedContext) -> impl Future<Output = Result<Self>> + Send;

    // Pure.

    /// What a class with these parameters offers. `Err(Invalid)` for parameters that parse and yet make no sense.
    fn capabilities(&self, parameters: &Self::Parameters) -> Result<Capabilities>;

    /// What the PV says. The same handle always gives the same source.
    fn source(&self, handle: &Self::Handle) -> VolumeSource;

    /// The names of the data behind a source, whoever made it. Empty for kinds that can never be ours. A server name
    /// that cannot be compared counts as the same: give it the same root.
    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key>;

    /// Is `completed` the volume that `planned` meant? `provision` may complete a handle, never redirect it.
    fn same_volume(&self, planned: &Self::Handle, completed: &Self::Handle) -> bool {
        planned == completed
    }

    /// Is this plan still right for this request (node, zone, size)? If not, it is undone and made anew.
    fn fits(&self, request: &Request<Self::Parameters>, handle: &Self::Handle) -> bool {
        let _ = (request, handle);
        true
    }

    /// Takes over a PV that another provisioner made. `source(adopt(source(h))) == source(h)`.
    fn adopt(&self, source: &VolumeSource, annotations: &BTreeMap<String, String>) -> Option<Self::Handle> {
        let _ = (source, annotations);
        None
    }

    // Reads.

    /// Where the volume will be. Changes nothing that a user could see, and records nothing of the volume; may make the
    /// root's first identity. Deterministic from the claim's uid and `attempt` once chosen.
    fn plan(&self, request: &Request<Self::Parameters>) -> impl Future<Output = Result<Self::Handle>> + Send;

    /// What is there now. `Ok(None)` is a statement: the root is the right one, and the volume is not there.
    fn observe(&self, handle: &Self::Handle) -> impl Future<Output = Result<Option<Observed>>> + Send;

    // Idempotent writes.

    /// Makes the volume, with `request.mark` on it, or finishes what an earlier call began. Something there that is not
    /// ours (no or another mark, and not empty) is `NotOurs`. A backend that records volumes writes the record, with
    /// [`Request::intent`], durably before it makes anything else, and again where a later call brings another intent.
    fn provision(
        &self,
        request: &Request<Self::Parameters>,
        handle: &Self::Handle,
    ) -> impl Future<Output = Result<Progress<Provisioned<Self::Handle>>>> + Send;

    /// Destroys the volume. Re-reads the mark as the last thing before the irrevocable step, and answers `NotOurs` if it
    /// is not [`same_owner`](Mark::same_owner) as `mark`, `Unavailable` if it is and yet does not
    /// [yield](Mark::yields_to): a later leader goes on with the volume, and `NotOurs` would let its PV go. `Done` when it
    /// is already gone.
    ///
    /// What bears no mark at all is kept: `Blocked` on an operator, since nobody can tell whose it is. To an undo answer
    /// `NotOurs` where a volume is marked in the very step that makes it, for then it was never ours.
    ///
    /// A `mark` that says `unpublished` asks for an undo: a backend that sees what is in a volume destroys it then only
    /// while it is empty, in one atomic step, and else answers `Blocked` on an operator.
    fn delete(&self, handle: &Self::Handle, mark: &Mark)
    -> impl Future<Output = Result<Progress<()>>> + Send;

    /// Writes the mark (published, retained). `NotOurs` where another owner's mark is. Where the intent is kept, it ends
    /// with the mark `unpublished`: a published, retained or trashed volume has none.
    fn set_mark(&self, handle: &Self::Handle, mark: &Mark) -> impl Future<Output = Result<()>> + Send;

    // Optional, by capability.

    /// Grows the volume to at least `size` bytes and says how large it is now. Never shrinks: a volume that is large
    /// enough is `Done`. Asked only where [`Capabilities::expand`] says so, for a published volume, and again after a crash
    /// or a lost answer, perhaps with another `size`: the claim's owner may have changed their mind.
    ///
    /// `NotOurs` for what does not bear the owner's mark. `Invalid` where it can never be that large, which lets the owner
    /// ask for less; `Exhausted` where there is no room for it now.
    fn expand(
        &self,
        handle: &Self::Handle,
        mark: &Mark,
        size: u64,
    ) -> impl Future<Output = Result<Progress<u64>>> + Send {
        let _ = (handle, mark, size);
        async { Err(unsupported("expand")) }
    }

    /// Moves the volume aside instead of destroying it: its place is free afterwards ([`observe`](Self::observe) answers
    /// `None`), its data and the record `trashed` are kept until [`purge`](Self::purge), and
    /// [`restore`](Self::restore) brings it back. Data, record and the mark `trashed` change in one atomic step, durably;
    /// from then on the [inventory](Self::inventory) lists it once, with the record.
    ///
    /// Answers with the record as it stands: that of an earlier call stays, so that a repeated call does not lengthen its
    /// time. `None`: there is nothing, neither in the place nor in the trash. Marks are compared as by `delete`, as the
    /// last thing before the step; what is in the trash does not go by `delete`.
    fn trash(
        &self,
        handle: &Self::Handle,
        mark: &Mark,
        trashed: &Trashed,
    ) -> impl Future<Output = Result<Progress<Option<Trashed>>>> + Send {
        let _ = (handle, mark, trashed);
        async { Err(unsupported("trash")) }
    }

    /// Undoes `trash`: the volume is in its place again, with its data and the mark `retained`. `Done` when it is there
    /// already.
    ///
    /// # Errors
    /// `NotOurs` where the mark in the trash is another owner's; `Unavailable` where it does not
    /// [yield](Mark::yields_to); `Blocked` on an operator while something else is in its place; `Invalid` when it was
    /// purged, or a [`purge`](Self::purge) has begun: that is recorded before anything goes, since a part of a volume must
    /// never come back for the whole.
    fn restore(
        &self,
        handle: &Self::Handle,
        mark: &Mark,
    ) -> impl Future<Output = Result<Progress<()>>> + Send {
        let _ = (handle, mark);
        async { Err(unsupported("restore")) }
    }

    /// Destroys what `trash` moved aside, and nothing else: a volume that is in its place is left alone. `Done` when it
    /// is not in the trash. `judged` is the record by which somebody decided that it may go; it is compared, with the
    /// mark, as the last thing before the irrevocable step.
    ///
    /// # Errors
    /// `NotOurs` where the mark in the trash is another owner's; `Unavailable` where it does not
    /// [yield](Mark::yields_to), or the record is another than `judged`: it was restored and trashed anew since.
    fn purge(
        &self,
        handle: &Self::Handle,
        mark: &Mark,
        judged: &Trashed,
    ) -> impl Future<Output = Result<Progress<()>>> + Send {
        let _ = (handle, mark, judged);
        async { Err(unsupported("purge")) }
    }

    /// Every volume of this installation that can be found, trash included, those that are planned and not yet made as
    /// well; each with its [intent](InventoryItem::intent) or its [record of the trash](InventoryItem::trashed) where there
    /// is one. After a crash a node agent's engine learns
    /// from it what was being made.
    fn inventory(&self) -> impl Future<Output = Result<Vec<InventoryItem<Self::Handle>>>> + Send {
        async { Err(unsupported("inventory")) }
    }

    /// Room for volumes of a class.
    fn capacity(&self, parameters: &Self::Parameters) -> impl Future<Output = Result<Vec<Capacity>>> + Send {
        let _ = parameters;
        async { Err(unsupported("capacity")) }
    }

    /// The backend's own lines for `doctor`: roots, servers, credentials. Changes nothing.
    fn check(&self) -> impl Future<Output = Vec<Check>> + Send {
        async { Vec::new() }
    }

    /// Reads a handle of another version (its JSON): an older one, or the next, which a later release begins to write. `None`:
    /// that version cannot be read, and its volumes are left alone.
    fn upgrade(version: u16, handle: serde_json::Value) -> Option<Self::Handle> {
        let _ = (version, handle);
        None
    }
}

fn unsupported(operation: &str) -> Failure {
    Failure::invalid(format!("this backend does not offer {operation}"))
}
