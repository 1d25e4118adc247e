//! `delete`, and the undo.

use super::create::others;
use crate::conformance::bench::{Bench, done, json, refused};
use crate::conformance::cut::{self, CUTS};
use crate::conformance::fixture::Fixture;
use crate::conformance::verdict::{Checked, expect, failed, not_offered};
use std::sync::Arc;
use volwright_provisioner::{Class, Epoch, Failure, Mark, MarkState, Provisioner, Until};

/// The mark that a delete of a released PV is asked with.
fn published(mark: &Mark) -> Mark {
    mark.with_state(MarkState::Published)
}

pub(super) async fn removes<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    bench.fixture.write_into(&handle).await.ok();
    done(bench.delete(&handle, &published(&request.mark)).await?, "a volume of ours is deleted")?;
    bench.is_gone(&handle).await?;
    bench.restart().await?;
    bench.is_gone(&handle).await
}

pub(super) async fn idempotent<F: Fixture>(bench: &Bench<F>) -> Checked {
    let never = bench.request()?;
    let nothing = bench.planned(&never).await?;
    let (request, handle) = bench.published().await?;
    done(bench.delete(&handle, &published(&request.mark)).await?, "a volume of ours is deleted")?;
    for (handle, mark) in
        [(&handle, published(&request.mark)), (&handle, request.mark), (&nothing, never.mark)]
    {
        done(bench.delete(handle, &mark).await?, "to delete what is not there is Done")?;
        bench.is_gone(handle).await?;
    }
    Ok(())
}

pub(super) async fn lost_reply<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    bench.delete_once(&handle, &published(&request.mark)).await?.ok();
    bench.restart().await?;
    done(bench.delete(&handle, &published(&request.mark)).await?, "a new process ends the delete")?;
    bench.is_gone(&handle).await
}

pub(super) async fn cut_off<F: Fixture>(bench: &Bench<F>) -> Checked {
    for (number, cut) in CUTS.into_iter().enumerate() {
        // An undo as well as a delete.
        let undo = number % 4 < 2;
        let (request, handle) = if undo { bench.made().await? } else { bench.published().await? };
        let mark = if undo { request.mark.clone() } else { published(&request.mark) };
        let backend = bench.backend()?;
        let answer = cut::run(cut, backend.delete(&handle, &mark)).await;
        let ended = if answer.is_some() { "it had answered" } else { "dropped" };
        bench.log(&format!("delete({}), cut {cut:?}", json(&handle)), ended);
        drop((answer, backend));
        if number % 2 == 1 {
            bench.restart().await?;
        }
        bench.delete_again(&handle, &mark).await?;
        bench.is_gone(&handle).await?;
    }
    Ok(())
}

pub(super) async fn concurrent<F: Fixture>(bench: &Bench<F>) -> Checked {
    for _ in 0..4 {
        let (request, handle) = bench.published().await?;
        let mark = published(&request.mark);
        let mut calls = Vec::new();
        for _ in 0..3 {
            let (backend, handle, mark) = (bench.backend()?, handle.clone(), mark.clone());
            calls.push(tokio::spawn(async move {
                Arc::clone(&backend).delete(&handle, &mark).await.map_err(|failure| format!("{failure:?}"))
            }));
        }
        for call in calls {
            bench.log("delete, one of three at once", &format!("{:?}", call.await));
        }
        bench.delete_again(&handle, &mark).await?;
        bench.is_gone(&handle).await?;
    }
    Ok(())
}

pub(super) async fn other_owner<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    bench.fixture.write_into(&handle).await.ok();
    let before = bench.facts(&handle).await?;
    for (what, mark) in others(&request.mark) {
        for mark in [mark.clone(), published(&mark)] {
            let answer = bench.delete(&handle, &mark).await?;
            refused(&answer, Class::NotOurs, &format!("NotOurs for the volume of {what}"))?;
            bench.unchanged(&handle, &before).await?;
        }
    }
    Ok(())
}

pub(super) async fn later_epoch<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    let at = |number, token| Mark { epoch: Epoch { number, token }, ..published(&request.mark) };
    done(bench.set_mark(&handle, &at(3, 5)).await?, "a later leader marks the volume")?;
    let before = bench.facts(&handle).await?;
    for earlier in [at(1, 1), at(2, 9), at(3, 4)] {
        let answer = bench.delete(&handle, &earlier).await?;
        refused(&answer, Class::Unavailable, "an earlier leader's delete is Unavailable (Mark::yields_to)")?;
        bench.unchanged(&handle, &before).await?;
    }
    done(bench.delete(&handle, &at(4, 0)).await?, "a later leader's delete is done")?;
    bench.is_gone(&handle).await
}

pub(super) async fn unmarked<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    bench.fixture.plant_foreign(&handle).await?;
    bench.log("(somebody puts a thing at the place)", &json(&handle));
    for mark in [request.mark.clone(), published(&request.mark)] {
        let answer = bench.delete(&handle, &mark).await?;
        let kept = bench.fixture.is_written(&handle).await?;
        expect(kept, "an unmarked thing with data in it is kept", || "it is gone".to_owned())?;
        let class = answer.as_ref().err().map(Failure::class);
        // NotOurs ends a delete. An undo ends rightly where what was made could not be without its mark.
        let is_undo = mark.state == MarkState::Unpublished;
        let as_told = matches!(class, Some(Class::Blocked(_))) || (is_undo && class == Some(Class::NotOurs));
        expect(as_told, "whose it is cannot be told: Blocked; or NotOurs to an undo", || {
            format!("{answer:?}")
        })?;
    }
    let seen = bench.seen(&handle).await?;
    expect(
        seen.as_ref().is_some_and(|seen| seen.mark.is_none()),
        "observe shows an unmarked thing at the volume's place",
        || format!("{seen:?}"),
    )
}

pub(super) async fn leaves_others<F: Fixture>(bench: &Bench<F>) -> Checked {
    let mut volumes = Vec::new();
    for _ in 0..3 {
        let (request, handle) = bench.published().await?;
        bench.write(&handle).await?;
        let before = bench.facts(&handle).await?;
        volumes.push((request, handle, before));
    }
    let (request, handle, _) = volumes.remove(1);
    done(bench.delete(&handle, &published(&request.mark)).await?, "a volume of ours is deleted")?;
    for (_, handle, before) in &volumes {
        bench.unchanged(handle, before).await?;
    }
    Ok(())
}

pub(super) async fn undo_empty<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.made().await?;
    done(bench.delete(&handle, &request.mark).await?, "an empty volume is undone")?;
    bench.is_gone(&handle).await
}

pub(super) async fn undo_keeps_written<F: Fixture>(bench: &Bench<F>) -> Checked {
    if !bench.offered()?.sees_contents {
        return not_offered("to see contents; there the mark alone says that a volume is not published");
    }
    // Also where the PV existed, and the undo comes from a process that does not know.
    for was_published in [false, true] {
        let (request, handle) = if was_published { bench.published().await? } else { bench.made().await? };
        bench.write(&handle).await?;
        let answer = bench.delete(&handle, &request.mark).await?;
        let kept = bench.fixture.is_written(&handle).await?;
        expect(kept, "an undo leaves a volume with data in it", || "the data is gone".to_owned())?;
        match answer {
            Err(failure) if failure.class() == Class::Blocked(Until::OperatorActs) => {}
            Err(failure) => return failed("the undo is Blocked on an operator", format!("{failure:?}")),
            Ok(()) => return failed("the undo is Blocked on an operator", "Done, and the data is there"),
        }
        done(bench.delete(&handle, &published(&request.mark)).await?, "a delete that is asked for takes it")?;
        bench.is_gone(&handle).await?;
    }
    Ok(())
}
