//! What is seen of a volume's contents.

use crate::conformance::bench::Bench;
use crate::conformance::fixture::Fixture;
use crate::conformance::verdict::{Checked, expect, failed};
use volwright_provisioner::{Pristine, Provisioner};

pub(super) async fn new<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, handle) = bench.made().await?;
    let transparent = bench.offered()?.sees_contents;
    for _ in 0..2 {
        let Some(seen) = bench.seen(&handle).await? else {
            return failed("observe sees what was made", "None");
        };
        expect(
            seen.pristine == Pristine::Yes || (!transparent && seen.pristine == Pristine::Unknown),
            if transparent {
                "a new volume is pristine"
            } else {
                "a new volume is pristine, or not known to be"
            },
            || format!("{:?}", seen.pristine),
        )?;
        bench.restart().await?;
    }
    Ok(())
}

pub(super) async fn written<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, handle) = bench.published().await?;
    let transparent = bench.offered()?.sees_contents;
    bench.write(&handle).await?;
    for _ in 0..2 {
        let Some(seen) = bench.seen(&handle).await? else {
            return failed("observe sees a volume that is used", "None");
        };
        expect(
            seen.pristine == Pristine::No || (!transparent && seen.pristine == Pristine::Unknown),
            "a published volume with data in it is never pristine",
            || format!("{:?}", seen.pristine),
        )?;
        bench.restart().await?;
    }
    let Some(items) = bench.listed().await? else { return Ok(()) };
    let backend = bench.backend()?;
    let item = items.iter().find(|item| backend.same_volume(&handle, &item.handle));
    expect(
        item.is_none_or(|item| item.observed.pristine != Pristine::Yes),
        "the inventory says the same as observe",
        || "it says that the volume is pristine".to_owned(),
    )
}
