//! Absence, and roots that are lost.

use crate::conformance::bench::{Bench, refused};
use crate::conformance::fixture::Fixture;
use crate::conformance::verdict::{Checked, expect, failed, not_offered};
use volwright_provisioner::{Class, MarkState};

pub(super) async fn absence_observed<F: Fixture>(bench: &Bench<F>) -> Checked {
    let handle = bench.planned(&bench.request()?).await?;
    let seen = bench.seen(&handle).await?;
    expect(seen.is_none(), "observe answers None for what was never made", || format!("{seen:?}"))
}

async fn lose<F: Fixture>(bench: &Bench<F>) -> Checked {
    bench.fixture.lose_root().await?;
    bench.log("(the root is lost)", "it shows nothing");
    Ok(())
}

async fn find<F: Fixture>(bench: &Bench<F>) -> Checked {
    bench.fixture.find_root().await?;
    bench.log("(the root is back)", "as it was");
    Ok(())
}

pub(super) async fn lost_observe<F: Fixture>(bench: &Bench<F>) -> Checked {
    let nothing = bench.planned(&bench.request()?).await?;
    let (_, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    lose(bench).await?;
    for (what, handle) in [("a volume", &handle), ("a plan", &nothing)] {
        let answer = bench.observe(handle).await?;
        refused(&answer, Class::Unavailable, &format!("observe of {what} on a lost root is Unavailable"))?;
    }
    find(bench).await?;
    bench.unchanged(&handle, &before).await
}

pub(super) async fn lost_delete<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    lose(bench).await?;
    for state in [MarkState::Published, MarkState::Unpublished] {
        let answer = bench.delete(&handle, &request.mark.with_state(state)).await?;
        refused(&answer, Class::Unavailable, "delete on a lost root is Unavailable")?;
    }
    find(bench).await?;
    bench.unchanged(&handle, &before).await
}

pub(super) async fn lost_writes<F: Fixture>(bench: &Bench<F>) -> Checked {
    let planned_only = bench.request()?;
    let planned = bench.planned(&planned_only).await?;
    let (request, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    lose(bench).await?;
    for (what, request, handle) in [("a plan", &planned_only, &planned), ("a volume", &request, &handle)] {
        let answer = bench.provision(request, handle).await?;
        refused(&answer, Class::Unavailable, &format!("provision of {what} on a lost root is Unavailable"))?;
        if let Ok(exists) = bench.fixture.exists(handle).await {
            expect(!exists, "nothing is made where the root does not show itself", || {
                "the fixture finds something there".to_owned()
            })?;
        }
    }
    let answer = bench.set_mark(&handle, &request.mark.with_state(MarkState::Retained)).await?;
    refused(&answer, Class::Unavailable, "set_mark on a lost root is Unavailable")?;
    find(bench).await?;
    bench.unchanged(&handle, &before).await?;
    let seen = bench.seen(&planned).await?;
    expect(seen.is_none(), "nothing was made meanwhile", || format!("{seen:?}"))
}

pub(super) async fn lost_inventory<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, _) = bench.published().await?;
    bench.is_one(&request.mark).await?;
    if bench.listed().await?.is_none() {
        return not_offered("an inventory");
    }
    lose(bench).await?;
    let answer = bench.inventory().await?;
    refused(
        &answer,
        Class::Unavailable,
        "the inventory of a lost root is Unavailable, and not an empty list",
    )?;
    find(bench).await?;
    bench.is_one(&request.mark).await
}

pub(super) async fn lost_restart<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    lose(bench).await?;
    bench.restart().await?;
    let answer = bench.observe(&handle).await?;
    refused(&answer, Class::Unavailable, "observe on a lost root is Unavailable, also for a new process")?;
    // A new claim is no reason to make a new root of what is there, while PVs name the old one.
    let next = bench.request()?;
    if let Ok(planned) = bench.plan(&next).await? {
        let answer = bench.provision(&next, &planned).await?;
        refused(&answer, Class::Unavailable, "nothing is made on a lost root, also for a new claim")?;
    }
    let answer = bench.delete(&handle, &request.mark.with_state(MarkState::Published)).await?;
    refused(&answer, Class::Unavailable, "delete on a lost root is Unavailable, also for a new process")?;
    if bench.inventory().await?.is_ok() {
        return failed(
            "the inventory of a lost root is refused, or not offered",
            "a list, from which the volume counts as gone",
        );
    }
    find(bench).await?;
    bench.unchanged(&handle, &before).await
}
