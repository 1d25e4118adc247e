//! `set_mark`, and intents.

use super::create::others;
use crate::conformance::bench::{Bench, INTENT, done, refused};
use crate::conformance::cut::{self, CUTS};
use crate::conformance::fixture::{Fixture, HandleOf};
use crate::conformance::verdict::{Checked, expect, failed, not_offered};
use volwright_provisioner::{Class, Mark, MarkState, Provisioner};

pub(super) async fn published<F: Fixture>(bench: &Bench<F>) -> Checked {
    becomes(bench, &[MarkState::Published]).await
}

pub(super) async fn retained<F: Fixture>(bench: &Bench<F>) -> Checked {
    becomes(bench, &[MarkState::Published, MarkState::Retained]).await
}

async fn becomes<F: Fixture>(bench: &Bench<F>, states: &[MarkState]) -> Checked {
    let (request, handle) = bench.made().await?;
    let before = bench.facts(&handle).await?;
    for state in states {
        let mark = request.mark.with_state(*state);
        done(bench.set_mark(&handle, &mark).await?, "the mark of a volume that was made is written")?;
        bears(bench, &handle, &mark).await?;
        bench.restart().await?;
        bears(bench, &handle, &mark).await?;
        if let Some(items) = bench.listed_of(&mark).await? {
            let listed: Vec<_> = items.iter().map(|item| &item.observed.mark).collect();
            expect(listed == [&Some(mark)], "the inventory shows the mark", || format!("{listed:?}"))?;
        }
    }
    let now = bench.facts(&handle).await?;
    expect(
        (now.size, now.exists, now.written) == (before.size, before.exists, before.written),
        "a mark changes nothing else of the volume",
        || format!("{now:?}, where there was {before:?}"),
    )
}

async fn bears<F: Fixture>(bench: &Bench<F>, handle: &HandleOf<F>, mark: &Mark) -> Checked {
    let found = bench.seen(handle).await?.and_then(|seen| seen.mark);
    expect(found.as_ref() == Some(mark), "observe shows the mark that was written", || {
        format!("{found:?} instead of {mark:?}")
    })
}

pub(super) async fn idempotent<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    let mark = request.mark.with_state(MarkState::Published);
    let before = bench.facts(&handle).await?;
    done(bench.set_mark(&handle, &mark).await?, "a mark that is there already is Ok")?;
    bench.restart().await?;
    done(bench.set_mark(&handle, &mark).await?, "a mark that is there already is Ok after a restart")?;
    bench.unchanged(&handle, &before).await
}

pub(super) async fn cut_off<F: Fixture>(bench: &Bench<F>) -> Checked {
    for (number, cut) in CUTS.into_iter().enumerate() {
        let (request, handle) = bench.made().await?;
        let mark = request.mark.with_state(MarkState::Published);
        let backend = bench.backend()?;
        let answer = cut::run(cut, backend.set_mark(&handle, &mark)).await;
        let ended = if answer.is_some() { "it had answered" } else { "dropped" };
        bench.log(&format!("set_mark, cut {cut:?}"), ended);
        drop((answer, backend));
        if number % 2 == 1 {
            bench.restart().await?;
        }
        let found = bench.seen_again(&handle).await?.and_then(|seen| seen.mark);
        let whole = found.as_ref().is_some_and(|found| {
            found.same_owner(&mark) && matches!(found.state, MarkState::Unpublished | MarkState::Published)
        });
        expect(whole, "the mark is the old one or the new one", || format!("{found:?}"))?;
        bench.set_mark_again(&handle, &mark).await?;
        bears(bench, &handle, &mark).await?;
    }
    Ok(())
}

pub(super) async fn other_owner<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.published().await?;
    bench.fixture.write_into(&handle).await.ok();
    let before = bench.facts(&handle).await?;
    for (what, mark) in others(&request.mark) {
        let answer = bench.set_mark(&handle, &mark.with_state(MarkState::Retained)).await?;
        refused(&answer, Class::NotOurs, &format!("NotOurs for the volume of {what}"))?;
        bench.unchanged(&handle, &before).await?;
    }
    Ok(())
}

pub(super) async fn needs_volume<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    let answer = bench.set_mark(&handle, &request.mark.with_state(MarkState::Published)).await?;
    expect(answer.is_err(), "no mark is written where there is no volume", || "Ok".to_owned())?;
    let seen = bench.seen(&handle).await?;
    expect(seen.is_none(), "there is still nothing", || format!("{seen:?}"))
}

/// The intent as the inventory gives it back.
async fn intent_of<F: Fixture>(bench: &Bench<F>, mark: &Mark) -> Checked<Option<String>> {
    let Some(items) = bench.listed_of(mark).await? else { return not_offered("an inventory") };
    match items.as_slice() {
        [item] => Ok(item.intent.clone()),
        _ => failed("the inventory lists the volume once", format!("{} times", items.len())),
    }
}

pub(super) async fn intent_kept<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (mut request, handle) = bench.made().await?;
    let Some(kept) = intent_of(bench, &request.mark).await? else {
        return not_offered("a record of intents; the engine keeps its own journal");
    };
    expect(kept == INTENT, "the inventory gives the intent back byte for byte", || kept.clone())?;
    bench.restart().await?;
    let kept = intent_of(bench, &request.mark).await?;
    expect(kept.as_deref() == Some(INTENT), "the intent survives a restart", || format!("{kept:?}"))?;
    let later = format!("{{\"note\":\"{}\"}}", "é".repeat(8000));
    request.intent = Some(later.clone());
    done(bench.provision(&request, &handle).await?, "a volume that is there is Done again")?;
    let kept = intent_of(bench, &request.mark).await?;
    expect(
        kept == Some(later),
        "a later call's intent, of almost 16 KiB, takes the earlier one's place",
        || format!("{:?}", kept.map(|text| text.chars().take(80).collect::<String>())),
    )
}

pub(super) async fn intent_ends<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (request, handle) = bench.made().await?;
    if intent_of(bench, &request.mark).await?.is_none() {
        return not_offered("a record of intents; the engine keeps its own journal");
    }
    bench.publish(&request, &handle).await?;
    for again in [false, true] {
        let intent = intent_of(bench, &request.mark).await?;
        expect(intent.is_none(), "a published volume has no intent", || format!("{intent:?}"))?;
        if !again {
            bench.provision(&request, &handle).await?.ok();
        }
    }
    Ok(())
}
