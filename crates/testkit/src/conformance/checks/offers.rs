//! What a backend may offer or not.

use super::create::others;
use crate::conformance::bench::{Bench, done, refused};
use crate::conformance::fixture::{Fixture, HandleOf};
use crate::conformance::verdict::{Checked, expect, failed, not_offered};
use std::collections::BTreeSet;
use volwright_provisioner::{Class, Mark, MarkState, Provisioner, Trashed};

pub(super) async fn expand_grows<F: Fixture>(bench: &Bench<F>) -> Checked {
    if !bench.offered()?.expand.is_ours() {
        return not_offered("expand");
    }
    let (request, handle) = bench.published().await?;
    let mark = request.mark.with_state(MarkState::Published);
    let written = bench.fixture.write_into(&handle).await.is_ok();
    let wanted = request.size * 2;
    let grown = done(bench.expand(&handle, &mark, wanted).await?, "a volume grows")?;
    expect(grown >= wanted, "it is at least as large as asked for", || {
        format!("{grown} instead of {wanted}")
    })?;
    for _ in 0..2 {
        let again = done(bench.expand(&handle, &mark, wanted).await?, "the same call is Done again")?;
        expect(again == grown, "the same call changes nothing", || format!("{again} instead of {grown}"))?;
        let size = bench.seen(&handle).await?.and_then(|seen| seen.size);
        expect(size.is_none_or(|size| size >= wanted), "observe sees the new size", || format!("{size:?}"))?;
        if written {
            let kept = bench.fixture.is_written(&handle).await?;
            expect(kept, "the data is still there", || "it is not".to_owned())?;
        }
        bench.restart().await?;
    }
    Ok(())
}

pub(super) async fn expand_never_shrinks<F: Fixture>(bench: &Bench<F>) -> Checked {
    if !bench.offered()?.expand.is_ours() {
        return not_offered("expand");
    }
    let (request, handle) = bench.published().await?;
    let mark = request.mark.with_state(MarkState::Published);
    let grown = done(bench.expand(&handle, &mark, request.size * 2).await?, "a volume grows")?;
    for smaller in [request.size, 1] {
        let now =
            done(bench.expand(&handle, &mark, smaller).await?, "a volume that is large enough is Done")?;
        expect(now >= grown, "a volume never shrinks", || format!("{now} bytes, where there were {grown}"))?;
        let size = bench.seen(&handle).await?.and_then(|seen| seen.size);
        expect(size.is_none_or(|size| size >= request.size * 2), "a volume never shrinks", || {
            format!("observe sees {size:?}, where there were {grown}")
        })?;
    }
    Ok(())
}

pub(super) async fn expand_other_owner<F: Fixture>(bench: &Bench<F>) -> Checked {
    if !bench.offered()?.expand.is_ours() {
        return not_offered("expand");
    }
    let (request, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    for (what, mark) in others(&request.mark.with_state(MarkState::Published)) {
        let answer = bench.expand(&handle, &mark, request.size * 2).await?;
        refused(&answer, Class::NotOurs, &format!("NotOurs for the volume of {what}"))?;
        bench.unchanged(&handle, &before).await?;
    }
    Ok(())
}

/// A volume with data in it, and its mark.
async fn full<F: Fixture>(bench: &Bench<F>) -> Checked<(HandleOf<F>, Mark)> {
    if !bench.offered()?.trash {
        return not_offered("trash");
    }
    let (request, handle) = bench.published().await?;
    bench.write(&handle).await?;
    Ok((handle, request.mark.with_state(MarkState::Published)))
}

/// A record whose time is `until`.
fn record(until: u64) -> Trashed {
    Trashed {
        at: 1_700_000_000,
        until,
        namespace: "ns".to_owned(),
        claim: "data".to_owned(),
        class_name: "class".to_owned(),
        size: 1 << 30,
        note: "{\"what\":\"it was\"}".to_owned(),
    }
}

const FIRST: u64 = 1_700_000_600;

/// Trashes it, as often as that may be asked.
async fn trashed<F: Fixture>(bench: &Bench<F>, handle: &HandleOf<F>, mark: &Mark, until: u64) -> Checked {
    let found = done(
        bench.trash(handle, mark, &record(until)).await?,
        "a volume of ours goes into the trash, and is Done again",
    )?;
    expect(found.is_some(), "trash answers with the record", || "None".to_owned())
}

pub(super) async fn trash_restores<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (handle, mark) = full(bench).await?;
    for _ in 0..2 {
        for _ in 0..2 {
            trashed(bench, &handle, &mark, FIRST).await?;
            bench.restart().await?;
        }
        let there = bench.seen(&handle).await?;
        expect(there.is_none(), "observe answers None: its place is free", || format!("{there:?}"))?;
        for _ in 0..2 {
            done(
                bench.restore(&handle, &mark).await?,
                "what is in the trash is brought back, and is Done again",
            )?;
        }
        let kept = bench.fixture.is_written(&handle).await?;
        expect(kept, "its data has come back with it", || "it has not".to_owned())?;
        let found = bench.seen(&handle).await?.and_then(|seen| seen.mark);
        expect(
            found.as_ref().is_some_and(|found| found.same_owner(&mark) && found.state == MarkState::Retained),
            "it bears its owner's mark, and is retained until a PV speaks for it",
            || format!("{found:?}"),
        )?;
        bench.is_one(&mark).await?;
    }
    Ok(())
}

pub(super) async fn trash_record_kept<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (handle, mark) = full(bench).await?;
    for until in [FIRST, FIRST + 60] {
        let kept = done(bench.trash(&handle, &mark, &record(until)).await?, "trash is Done")?;
        expect(
            kept == Some(record(FIRST)),
            "the record of the first call stays, and is the answer of the second",
            || format!("{kept:?}"),
        )?;
        bench.restart().await?;
    }
    let Some(items) = bench.listed_of(&mark).await? else { return not_offered("an inventory") };
    let states: Vec<_> = items
        .iter()
        .map(|item| (item.observed.mark.as_ref().map(|mark| mark.state), item.trashed.clone()))
        .collect();
    expect(
        states == [(Some(MarkState::Trashed), Some(record(FIRST)))],
        "the inventory lists it once, as trashed, with its record",
        || format!("{states:?}"),
    )?;
    done(bench.restore(&handle, &mark).await?, "what is in the trash is brought back")?;
    trashed(bench, &handle, &mark, FIRST + 120).await?;
    let answer = bench.purge(&handle, &mark, &record(FIRST)).await?;
    refused(&answer, Class::Unavailable, "Unavailable where it was trashed anew since it was judged")?;
    done(bench.restore(&handle, &mark).await?, "and it is still there to be brought back")?;
    let kept = bench.fixture.is_written(&handle).await?;
    expect(kept, "its data has come back with it", || "it has not".to_owned())
}

pub(super) async fn trash_purges<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (handle, mark) = full(bench).await?;
    done(bench.purge(&handle, &mark, &record(FIRST)).await?, "what is not in the trash is Done")?;
    let kept = bench.fixture.is_written(&handle).await?;
    expect(kept, "a volume in its place is left alone", || "it is gone".to_owned())?;
    trashed(bench, &handle, &mark, FIRST).await?;
    let state = mark.with_state(MarkState::Trashed);
    for _ in 0..2 {
        done(
            bench.purge(&handle, &state, &record(FIRST)).await?,
            "what is in the trash is purged, and is Done again",
        )?;
        bench.is_gone(&handle).await?;
        bench.restart().await?;
    }
    if let Some(items) = bench.listed_of(&mark).await? {
        expect(items.is_empty(), "the inventory does not list it any more", || format!("{}", items.len()))?;
    }
    let answer = bench.restore(&handle, &state).await?;
    expect(answer.is_err(), "what is purged does not come back", || "restore answers Done".to_owned())?;
    let again = done(bench.trash(&handle, &mark, &record(FIRST)).await?, "what has gone is Done")?;
    expect(again.is_none(), "there is no record of what has gone", || format!("{again:?}"))
}

pub(super) async fn trash_other_owner<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (handle, mark) = full(bench).await?;
    let before = bench.facts(&handle).await?;
    for (what, mark) in others(&mark) {
        let answer = bench.trash(&handle, &mark, &record(FIRST)).await?;
        refused(&answer, Class::NotOurs, &format!("NotOurs for the volume of {what}"))?;
        bench.unchanged(&handle, &before).await?;
    }
    trashed(bench, &handle, &mark, FIRST).await?;
    for (what, mark) in others(&mark.with_state(MarkState::Trashed)) {
        refused(
            &bench.restore(&handle, &mark).await?,
            Class::NotOurs,
            &format!("restore is NotOurs for {what}"),
        )?;
        refused(
            &bench.purge(&handle, &mark, &record(FIRST)).await?,
            Class::NotOurs,
            &format!("purge is NotOurs for {what}"),
        )?;
    }
    done(bench.restore(&handle, &mark).await?, "what is in the trash is brought back")?;
    let kept = bench.fixture.is_written(&handle).await?;
    expect(kept, "its data has come back with it", || "it has not".to_owned())
}

pub(super) async fn inventory_complete<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (unpublished, _) = bench.made().await?;
    let (published, _) = bench.published().await?;
    let (retained, handle) = bench.published().await?;
    let mark = retained.mark.with_state(MarkState::Retained);
    done(bench.set_mark(&handle, &mark).await?, "a published volume is marked retained")?;
    let (deleted, handle) = bench.published().await?;
    done(
        bench.delete(&handle, &deleted.mark.with_state(MarkState::Published)).await?,
        "a volume of ours is deleted",
    )?;
    let wanted = [
        (unpublished.mark, MarkState::Unpublished),
        (published.mark, MarkState::Published),
        (retained.mark, MarkState::Retained),
    ];
    for _ in 0..2 {
        let Some(items) = bench.listed().await? else { return not_offered("an inventory") };
        for (mark, state) in &wanted {
            let found: Vec<_> = items
                .iter()
                .filter(|item| item.observed.mark.as_ref().is_some_and(|found| found.same_owner(mark)))
                .collect();
            let [item] = found.as_slice() else {
                return failed(
                    format!("the inventory lists the volume of {} once", mark.pv_name),
                    format!("{} times", found.len()),
                );
            };
            let is = item.observed.mark.as_ref().map(|found| found.state);
            expect(is == Some(*state), "the inventory shows its state", || {
                format!("{is:?} instead of {state:?}")
            })?;
            let seen = bench.seen(&item.handle).await?;
            expect(
                seen.as_ref().is_some_and(|seen| seen.mark == item.observed.mark),
                "a volume is reached by the handle in the inventory",
                || format!("observe with it answers {seen:?}"),
            )?;
        }
        let gone =
            items.iter().any(|item| item.observed.mark.as_ref().is_some_and(|m| m.same_owner(&deleted.mark)));
        expect(!gone, "a volume that was deleted is not listed", || "it is".to_owned())?;
        bench.restart().await?;
    }
    Ok(())
}

pub(super) async fn capacity_sane<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let planned = bench.planned(&request).await?;
    let rooms = match bench.capacity().await? {
        Ok(rooms) => rooms,
        Err(failure) if failure.class() == Class::Invalid => return not_offered("capacity"),
        Err(failure) => return failed("the room can be told", format!("{failure:?}")),
    };
    let made = done(bench.provision(&request, &planned).await?, "an ordinary volume is made")?;
    let topology: BTreeSet<_> = made.topology.keys().collect();
    let mut seen = BTreeSet::new();
    for room in &rooms {
        let keys: BTreeSet<_> = room.topology.keys().collect();
        expect(keys == topology, "room is told by the same labels as volumes are placed by", || {
            format!("{keys:?}, and volumes by {topology:?}")
        })?;
        expect(seen.insert(&room.topology), "the room of each place is told once", || format!("{rooms:?}"))?;
        let most = room.largest.unwrap_or(room.available);
        expect(
            room.available <= i64::MAX.unsigned_abs() && most <= room.available,
            "no volume is larger than all the room, and all the room fits a Kubernetes quantity",
            || format!("{room:?}"),
        )?;
    }
    expect(
        rooms.iter().any(|room| room.largest.unwrap_or(room.available) >= request.size),
        "where a volume was made there was room for it",
        || format!("{} bytes were made, and the room was {rooms:?}", request.size),
    )
}

pub(super) async fn doctor_lines<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, handle) = bench.published().await?;
    let before = bench.facts(&handle).await?;
    let lines = bench.backend()?.check().await;
    bench.log("check()", &format!("{lines:?}"));
    if lines.is_empty() {
        return not_offered("lines for doctor");
    }
    let shown = format!("{lines:?}");
    for (name, secret) in bench.fixture.secrets().into_iter().flat_map(|(_, content)| content) {
        let leaks = std::str::from_utf8(secret.expose()).is_ok_and(|text| shown.contains(text));
        expect(!leaks, "doctor shows no secret", || format!("the secret {name:?} is in it"))?;
    }
    for line in &lines {
        expect(!line.subject.is_empty(), "each line names what was looked at", || format!("{line:?}"))?;
        if let Err(text) = &line.outcome {
            return failed(
                "all is well where the storage system is in order",
                format!("{}: {text}", line.subject),
            );
        }
    }
    bench.unchanged(&handle, &before).await
}
