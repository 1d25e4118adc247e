//! What is remembered between two runs on one object. It does not survive the process: losing it costs time, not data.

use crate::decide::ClaimView;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::error;
use volwright_provisioner::{ClaimUid, NodeInfo, Result};

use super::Shared;
use super::world::OurVolume;

/// An agent's own node is read again after this long: labels change seldom, and a node made anew under the same name
/// restarts its agent.
const NODE_AGE: Duration = Duration::from_secs(60);

/// What is remembered between two runs on one object; bounded by the objects that exist.
#[derive(Default)]
pub(super) struct Memory {
    attempts: HashMap<ClaimUid, u32>,
    announced: BTreeSet<ClaimUid>,
    /// Claims whose PV we made and the watch has not shown yet.
    published: BTreeSet<ClaimUid>,
    /// Claim -> the node whose choice is to be taken back, and when.
    reschedules: HashMap<ClaimUid, (String, Instant)>,
    orphans: BTreeMap<String, String>,
    /// PVs (by uid) that we let go without their data, told of, and that the watch still shows.
    pub(super) let_go: BTreeSet<String>,
    /// PVs with a policy that keeps the data, gone by another's hand: their data is to be marked.
    pub(super) parted: HashMap<String, OurVolume>,
    node: Option<(NodeInfo, Instant)>,
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

    pub(super) fn raise_attempt(&self, uid: &ClaimUid) {
        *self.memory().attempts.entry(uid.clone()).or_default() += 1;
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
        self.memory().published.remove(uid);
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
        let mut memory = self.memory();
        memory.orphans.insert(name.to_owned(), reason.to_owned());
        self.metrics.orphans(memory.orphans.len());
    }

    /// A PV of this name has come (back): an orphan of that name is none any more.
    pub(super) fn spoken_for(&self, name: &str) {
        let mut memory = self.memory();
        if memory.orphans.remove(name).is_some() {
            self.metrics.orphans(memory.orphans.len());
        }
    }
}
