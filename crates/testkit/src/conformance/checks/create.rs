//! `provision`.

use crate::conformance::bench::{Bench, done, json, refused};
use crate::conformance::cut::{self, CUTS};
use crate::conformance::fixture::Fixture;
use crate::conformance::verdict::{Checked, expect, failed};
use std::sync::Arc;
use volwright_provisioner::{ClaimUid, Class, InstallationId, Mark, MarkState, Provisioner, PvName};

/// Marks that differ from `mark` in one part of its owner.
pub(super) fn others(mark: &Mark) -> [(&'static str, Mark); 3] {
    let uid = ClaimUid::new("d0d0d0d0-0000-4000-8000-00000000000d");
    [
        ("another claim", Mark { owner: uid, ..mark.clone() }),
        ("another installation", Mark { installation: InstallationId::new("another"), ..mark.clone() }),
        ("another PV", Mark { pv_name: PvName::new("pvc-another"), ..mark.clone() }),
    ]
}

pub(super) async fn makes<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    let made = done(bench.provision(&request, &handle).await?, "an ordinary volume is made")?;
    expect(made.size >= request.size, "the volume is at least as large as asked for", || {
        format!("{} bytes instead of {}", made.size, request.size)
    })?;
    let Some(seen) = bench.seen(&made.handle).await? else {
        return failed("observe sees what was made", "None");
    };
    expect(
        seen.mark.as_ref().is_some_and(|mark| {
            mark.same_owner(&request.mark)
                && matches!(mark.state, MarkState::Planned | MarkState::Unpublished)
        }),
        "the volume bears the mark of its owner, and is not published yet",
        || format!("{:?}", seen.mark),
    )?;
    expect(
        seen.size.is_none_or(|size| size >= request.size),
        "observe sees the size that was asked for",
        || format!("{:?}", seen.size),
    )?;
    bench.is_one(&request.mark).await?;
    let exists = bench.fixture.exists(&made.handle).await?;
    expect(exists, "the volume is there", || "the fixture does not find it".to_owned())
}

pub(super) async fn not_redirected<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let planned = bench.planned(&request).await?;
    let made = done(bench.provision(&request, &planned).await?, "an ordinary volume is made")?.handle;
    let backend = bench.backend()?;
    expect(backend.same_volume(&planned, &made), "a handle is completed, never redirected", || {
        format!("planned {}, made {}", json(&planned), json(&made))
    })?;
    expect(
        backend.source(&planned) == backend.source(&made) || planned != made,
        "equal handles have equal sources",
        || format!("{:?} and {:?}", backend.source(&planned), backend.source(&made)),
    )?;
    let seen = bench.seen(&planned).await?;
    expect(seen.is_some(), "the volume is found by the handle that was planned", || "None".to_owned())
}

pub(super) async fn idempotent<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let planned = bench.planned(&request).await?;
    let first = done(bench.provision(&request, &planned).await?, "an ordinary volume is made")?;
    let before = bench.facts(&first.handle).await?;
    let again = done(bench.provision(&request, &planned).await?, "a volume that is there is Done again")?;
    expect(
        again.handle == first.handle && again.size == first.size,
        "the second answer is the first",
        || {
            format!(
                "{} of {} bytes, then {} of {} bytes",
                json(&first.handle),
                first.size,
                json(&again.handle),
                again.size
            )
        },
    )?;
    bench.unchanged(&first.handle, &before).await?;
    bench.is_one(&request.mark).await?;
    bench.write(&first.handle).await?;
    done(bench.provision(&request, &first.handle).await?, "a volume that is in use is Done again")?;
    let kept = bench.fixture.is_written(&first.handle).await?;
    expect(kept, "data that was written is still there after the call was repeated", || {
        "it is not".to_owned()
    })
}

pub(super) async fn lost_reply<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let planned = bench.planned(&request).await?;
    bench.provision(&request, &planned).await?.ok();
    bench.restart().await?;
    let made = done(bench.provision(&request, &planned).await?, "a new process finds the volume made")?;
    expect(
        bench.backend()?.same_volume(&planned, &made.handle),
        "it is the volume that was planned",
        || format!("{} instead of {}", json(&made.handle), json(&planned)),
    )?;
    bench.is_one(&request.mark).await?;
    done(bench.delete(&made.handle, &request.mark).await?, "it can be deleted")?;
    bench.is_gone(&made.handle).await
}

pub(super) async fn cut_off<F: Fixture>(bench: &Bench<F>) -> Checked {
    for (number, cut) in CUTS.into_iter().enumerate() {
        let request = bench.request()?;
        let planned = bench.planned(&request).await?;
        let (backend, typed) = (bench.backend()?, Bench::<F>::typed(&request)?);
        let answer = cut::run(cut, backend.provision(&typed, &planned)).await;
        let ended = if answer.is_some() { "it had answered" } else { "dropped" };
        bench.log(&format!("provision({}), cut {cut:?}", request.claim.name), ended);
        drop((answer, backend));
        // Every other time by the next process.
        if number % 2 == 1 {
            bench.restart().await?;
        }
        let made = bench.provision_again(&request, &planned).await?;
        let mark = bench.seen(&made.handle).await?.and_then(|seen| seen.mark);
        expect(
            mark.as_ref().is_some_and(|mark| mark.same_owner(&request.mark)),
            "the volume is marked",
            || format!("{mark:?}"),
        )?;
        bench.is_one(&request.mark).await?;
        bench.delete_again(&made.handle, &request.mark).await?;
        bench.is_gone(&made.handle).await?;
    }
    Ok(())
}

pub(super) async fn concurrent<F: Fixture>(bench: &Bench<F>) -> Checked {
    for _ in 0..4 {
        let request = bench.request()?;
        let planned = bench.planned(&request).await?;
        let mut calls = Vec::new();
        for _ in 0..3 {
            let (backend, typed, handle) = (bench.backend()?, Bench::<F>::typed(&request)?, planned.clone());
            calls.push(tokio::spawn(async move {
                let answer = Arc::clone(&backend).provision(&typed, &handle).await;
                answer.map(drop).map_err(|failure| format!("{failure:?}"))
            }));
        }
        for call in calls {
            bench.log("provision, one of three at once", &format!("{:?}", call.await));
        }
        let made = bench.provision_again(&request, &planned).await?;
        bench.is_one(&request.mark).await?;
        done(bench.delete(&made.handle, &request.mark).await?, "the volume can be deleted")?;
        bench.is_gone(&made.handle).await?;
    }
    Ok(())
}

pub(super) async fn keeps_published<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    // The call of a process that had stood still: final or refused, but nothing goes back.
    bench.provision(&request, &handle).await?.ok();
    let state = bench.seen(&handle).await?.and_then(|seen| seen.mark).map(|mark| mark.state);
    expect(state == Some(MarkState::Published), "a published volume stays published", || format!("{state:?}"))
}

pub(super) async fn other_owner<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    bench.fixture.write_into(&handle).await.ok();
    let before = bench.facts(&handle).await?;
    for (what, mark) in others(&request.mark) {
        let mut foreign = request.clone();
        foreign.claim.uid = mark.owner.clone();
        foreign.pv_name = mark.pv_name.clone();
        foreign.mark = mark;
        let answer = bench.provision(&foreign, &handle).await?;
        refused(&answer, Class::NotOurs, &format!("NotOurs for the volume of {what}"))?;
        bench.unchanged(&handle, &before).await?;
    }
    Ok(())
}

pub(super) async fn unmarked<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    bench.fixture.plant_foreign(&handle).await?;
    bench.log("(somebody puts a thing at the place)", &json(&handle));
    let answer = bench.provision(&request, &handle).await?;
    refused(&answer, Class::NotOurs, "NotOurs where an unmarked thing with data in it is")?;
    let kept = bench.fixture.is_written(&handle).await?;
    expect(kept, "the thing is as it was", || "it is not".to_owned())
}

pub(super) async fn after_delete<F: Fixture>(bench: &Bench<F>) -> Checked {
    let mut request = bench.request()?;
    for attempt in 0..3 {
        request.attempt = attempt;
        let handle = bench.made_for(&request).await?;
        bench.is_one(&request.mark).await?;
        done(bench.delete(&handle, &request.mark).await?, "an undo ends")?;
        bench.is_gone(&handle).await?;
    }
    Ok(())
}
