//! What is on the storage and in no record.
//!
//! A process that was stopped while a call ran can make a volume long after it was deposed. Nobody can prevent that, but it
//! shows: the volume bears the mark `unpublished` of an earlier epoch, no PV names it and no intent speaks of it. Its intent
//! is opened again, to be undone.

use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::Rule;
use crate::decide::sweep::{Left, left};
use std::sync::Arc;
use tracing::{debug, warn};
use volwright_provisioner::{Class, InventoryItem, PvName, Result};

use super::Shared;
use super::claim::is_named;
use super::journal::recovered;
use super::report::jittered;

/// Looks once what a deposed leader can have left, and then as often as everything is looked at again.
pub(super) async fn run(shared: Arc<Shared>) {
    // Without a lease there is no earlier leader; an agent's own records are read at its start, and nobody else writes them.
    if shared.settings.lease.is_zero() || !shared.identity.rules.holds(Rule::Sweep) {
        return;
    }
    tokio::time::sleep(shared.settings.grace()).await;
    loop {
        match once(&shared).await {
            Ok(()) => {}
            Err(failure) if failure.class() == Class::Invalid => {
                debug!("This storage system cannot list what is on it.");
                return;
            }
            Err(failure) => {
                warn!(error = %chain(&failure), "The storage could not be compared with the cluster.");
            }
        }
        tokio::time::sleep(jittered(shared.settings.resync)).await;
    }
}

async fn once(shared: &Shared) -> Result<()> {
    let items = shared.backend_call("inventory", shared.backend.inventory()).await?;
    for item in items {
        let Some(mark) = item.observed.mark.clone() else { continue };
        // A PV of that name that somebody else made does not speak for it.
        let spoken_for = shared.world.names_it(mark.pv_name.as_str(), &item.handle)
            || shared.journal.intent(&mark.owner).is_some();
        match left(&shared.settings.installation, shared.journal.epoch(), &mark, spoken_for) {
            Left::Nothing => {}
            Left::Unfinished => reopen(shared, item).await?,
            Left::Orphan(reason) => confirm_orphan(shared, &item, &mark.pv_name, reason).await?,
        }
    }
    Ok(())
}

/// The watch may not show yet what is there: asked once more before an operator is told.
async fn confirm_orphan(
    shared: &Shared,
    item: &InventoryItem<Envelope>,
    name: &PvName,
    reason: &str,
) -> Result<()> {
    if !is_named(shared, name, &item.handle).await? && !shared.is_orphan(name.as_str()) {
        shared.orphaned(name.as_str(), reason);
    }
    Ok(())
}

async fn reopen(shared: &Shared, item: InventoryItem<Envelope>) -> Result<()> {
    let mark = item.observed.mark.clone();
    // The watch may not show the PV yet.
    if let Some(mark) = &mark
        && is_named(shared, &mark.pv_name, &item.handle).await?
    {
        return Ok(());
    }
    for intent in recovered(vec![item], &|_| false) {
        let uid = intent.request.claim.uid.clone();
        if shared.journal.intent(&uid).is_some() {
            continue;
        }
        warn!(uid = %uid, pv = %intent.request.pv_name, "An earlier leader made a volume after it was deposed; it is undone.");
        shared.journal.open(intent).await?;
        shared.claims.add(uid);
    }
    Ok(())
}
