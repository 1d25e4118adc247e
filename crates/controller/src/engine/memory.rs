//! What is remembered between two runs on one object. It does not survive the process: losing it costs time, not data.

use crate::decide::{ClaimView, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::error;
use volwright_provisioner::{ClaimUid, NodeInfo, Result};

use super::Shared;
use super::budget::{Promises, Trash};
use super::world::OurVolume;

/// An agent's own node is read again after this long: labels change seldom, and a node made anew under the same name
/// restarts its agent.
const NODE_AGE: Duration = Duration::from_secs(60);

/// What is remembered between two runs on one object; bounded by the objects that exist.
#[derive(Default)]
pub(super) struct Memory {
    attempts: BTreeMap<ClaimUid, u32>,
    announced: BTreeSet<ClaimUid>,
    /// Claims whose PV we made and the watch has not shown yet.
    published: BTreeSet<ClaimUid>,
    /// Claim -> the node whose choice is to be taken back, and when.
    reschedules: BTreeMap<ClaimUid, (String, Instant)>,
    /// Claims of which a call to make a volume was given up, and until when it may still take effect.
    doubts: BTreeMap<ClaimUid, Instant>,
    /// Promised out of a class's budget, where neither PV nor intent shows it.
    pub(super) promises: Promises,
    /// What is in the trash, as far as budgets count it.
    pub(super) trashed: Trash,
    /// PVs (by uid) that we let go without their data, told of, and that the watch still shows.
    pub(super) let_go: BTreeSet<String>,
    /// PVs with a policy that keeps the data, gone by another's hand: their data is to be marked.
    pub(super) parted: BTreeMap<String, OurVolume>,
    /// Of an agent's PVs, with which version of its claim (by the watch) the claim was read and wanted nothing.
    pub(super) looked: BTreeMap<String, String>,
    node: Option<(NodeInfo, Instant)>,
}

impl Memory {
    /// How much is remembered, by table.
    pub(super) fn tables(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::from([
            ("attempts", self.attempts.len()),
            ("announced", self.announced.len()),
            ("published", self.published.len()),
            ("reschedules", self.reschedules.len()),
            ("doubts", self.doubts.len()),
            ("promises", self.promises.len()),
            ("trashed", self.trashed.as_ref().map_or(0, BTreeMap::len)),
            ("let go", self.let_go.len()),
            ("parted", self.parted.len()),
            ("looked", self.looked.len()),
        ])
    }
}

impl Shared {
    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An agent's own node, read now and then.
    pub(super) async fn own_node(&self, name: &str) -> Result<Option<NodeInfo>> {
        let known = self.memory().node.clone().filter(|(_, read_at)| read_at.elapsed() < NODE_AGE);
        if let Some((node, _)) = known {
            return Ok(Some(node));
        }
        let node = self.api.node(name).await?;
        self.memory().node = node.clone().map(|node| (node, Instant::now()));
        Ok(node)
    }

    pub(super) fn attempt(&self, uid: &ClaimUid) -> u32 {
        self.memory().attempts.get(uid).copied().unwrap_or(0)
    }

    /// The next plan of this claim is another than that of `attempt`.
    pub(super) fn raise_attempt(&self, uid: &ClaimUid, attempt: u32) {
        let mut memory = self.memory();
        let next = memory.attempts.entry(uid.clone()).or_default();
        *next = (*next).max(attempt.saturating_add(1));
    }

    /// A call to make or mark the volume was given up: what it does may show until it would have ended in any case.
    pub(super) fn set_doubt(&self, uid: &ClaimUid) {
        self.memory().doubts.insert(uid.clone(), Instant::now() + self.settings.backend_timeout);
    }

    pub(super) fn doubt(&self, uid: &ClaimUid) -> Option<Instant> {
        self.memory().doubts.get(uid).copied()
    }

    /// Nothing of the claim is under way any more.
    pub(super) fn settle_doubt(&self, uid: &ClaimUid) {
        self.memory().doubts.remove(uid);
    }

    /// The intent of a claim has served.
    pub(super) async fn end_intent(&self, uid: &ClaimUid) -> Result<()> {
        self.journal.close(uid).await?;
        self.settle_doubt(uid);
        Ok(())
    }

    /// Was this claim not announced yet?
    pub(super) fn first_try(&self, uid: &ClaimUid) -> bool {
        self.memory().announced.insert(uid.clone())
    }

    pub(super) fn forget_claim(&self, uid: &ClaimUid) {
        self.claims.forget(uid);
        let mut memory = self.memory();
        memory.attempts.remove(uid);
        memory.announced.remove(uid);
        memory.reschedules.remove(uid);
        memory.published.remove(uid);
    }

    /// We have made the PV of a claim. (A claim that has gone meanwhile is not remembered.)
    pub(super) fn just_published(&self, uid: &ClaimUid) {
        if self.world.claim(uid).is_some() {
            self.memory().published.insert(uid.clone());
        }
    }

    pub(super) fn has_just_published(&self, uid: &ClaimUid) -> bool {
        self.memory().published.contains(uid)
    }

    /// The watch has shown the PV of a claim, or it has gone.
    pub(super) fn publication_seen(&self, uid: &ClaimUid) {
        let mut memory = self.memory();
        memory.published.remove(uid);
        memory.promises.made_is_shown(uid);
    }

    pub(super) fn reschedule_at(&self, claim: &ClaimView, at: Instant) {
        let node = claim.glance.selected_node.clone().unwrap_or_default();
        self.memory().reschedules.insert(claim.glance.uid.clone(), (node, at));
    }

    /// When the choice that the claim has now is to be taken back.
    pub(super) fn reschedule_due(&self, claim: &ClaimView) -> Option<Instant> {
        let mut memory = self.memory();
        let (node, at) = memory.reschedules.get(&claim.glance.uid)?;
        let due = (claim.glance.selected_node.as_ref() == Some(node)).then_some(*at);
        if due.is_none() {
            memory.reschedules.remove(&claim.glance.uid);
        }
        due
    }

    pub(super) fn reschedule_done(&self, uid: &ClaimUid) {
        self.memory().reschedules.remove(uid);
    }

    /// Something of ours stays that no PV speaks for.
    pub(super) fn orphaned(&self, name: &str, reason: &str) {
        error!(pv = name, reason, "A volume stays behind without a PV; somebody must look at it.");
        if self.identity.rules.holds(Rule::OrphanReported) {
            self.metrics.orphans(self.orphans.add(name, reason));
        }
    }

    pub(super) fn is_orphan(&self, name: &str) -> bool {
        self.orphans.contains(name)
    }

    /// A PV of this name has come (back): an orphan of that name is none any more.
    pub(super) fn spoken_for(&self, name: &str) {
        if let Some(left) = self.orphans.remove(name) {
            self.metrics.orphans(left);
        }
    }
}
