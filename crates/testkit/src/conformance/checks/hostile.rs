//! Claims whose names, labels and annotations try to choose a place.

use crate::conformance::bench::{Bench, Wanted, done, json};
use crate::conformance::fixture::{Fixture, HandleOf};
use crate::conformance::verdict::{Checked, expect, failed};
use volwright_provisioner::{Class, Key, MarkState, Provisioner, VolumeSource};

/// What the API server lets into annotations; labels take less. Some are only hostile to shells or to a tool's own syntax.
const VALUES: [&str; 26] = [
    "..",
    ".",
    "",
    "/",
    "../../etc",
    "a/../../b",
    "/etc/passwd",
    "..\\..\\x",
    "a/b",
    "a//b",
    ".volwright",
    ".VOLWRIGHT",
    "-rf",
    "--help",
    "$(touch x)",
    "`id`",
    "a;b",
    "a|b",
    "a'b\"c",
    "%2e%2e%2f",
    "a\nb",
    "a\0b",
    "\u{1b}[2J",
    "\u{202e}x",
    "a@b",
    "${pv.name}",
];

pub(super) async fn claims<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, victim) = bench.published().await?;
    let victims = bench.keys(&victim)?;
    bench.fixture.write_into(&victim).await.ok();
    let before = bench.facts(&victim).await?;
    let outside = bench.fixture.outside().await.ok();

    let long = "x".repeat(4096);
    for parameters in bench.hostile_classes() {
        for value in VALUES.into_iter().chain([long.as_str()]) {
            let mut request = bench.request()?;
            request.parameters = parameters.clone();
            for key in ["dir", "app"] {
                request.claim.labels.insert(key.to_owned(), value.to_owned());
                request.claim.annotations.insert(key.to_owned(), value.to_owned());
            }
            one(bench, &request, value, &victims).await?;
        }
        // What Kubernetes allows in names, and a file system may take amiss.
        for (namespace, name) in [
            ("a", "b-c"),
            ("a-b", "c"),
            ("x--y", "z"),
            ("0", "0"),
            ("volwright", "a.b-c.d"),
            ("conformance", &"c".repeat(253)),
        ] {
            let mut request = bench.request()?;
            request.parameters = parameters.clone();
            namespace.clone_into(&mut request.claim.namespace);
            name.clone_into(&mut request.claim.name);
            for key in ["dir", "app"] {
                request.claim.labels.insert(key.to_owned(), "plain".to_owned());
                request.claim.annotations.insert(key.to_owned(), "plain".to_owned());
            }
            one(bench, &request, name, &victims).await?;
        }
        bench.unchanged(&victim, &before).await?;
    }
    let now = bench.fixture.outside().await.ok();
    expect(now == outside, "nothing outside the root has changed", || {
        format!("{now:?}, where there was {outside:?}")
    })
}

async fn one<F: Fixture>(bench: &Bench<F>, request: &Wanted, value: &str, victims: &[Key]) -> Checked {
    let handle = match bench.plan(request).await? {
        Ok(handle) => handle,
        Err(failure) if matches!(failure.class(), Class::Invalid | Class::NotOurs) => return Ok(()),
        Err(failure) => {
            return failed(
                "a hostile claim is served or refused as Invalid",
                format!("{value:?}: {failure:?}"),
            );
        }
    };
    let keys = contained(bench, &handle, value)?;
    let meets = keys.iter().any(|key| victims.iter().any(|victim| key.overlaps(victim)));
    expect(!meets, "a claim never gets a place in or above another volume", || {
        format!("{value:?} gets {}", json(&handle))
    })?;
    let made = match bench.provision(request, &handle).await? {
        Ok(made) => made,
        Err(failure) if matches!(failure.class(), Class::Invalid | Class::NotOurs) => return Ok(()),
        Err(failure) => {
            return failed(
                "a hostile claim is served or refused as Invalid",
                format!("{value:?}: {failure:?}"),
            );
        }
    };
    contained(bench, &made.handle, value)?;
    bench.fixture.write_into(&made.handle).await.ok();
    let mark = request.mark.with_state(MarkState::Published);
    done(bench.set_mark(&made.handle, &mark).await?, "its volume is published as any other")?;
    done(bench.delete(&made.handle, &mark).await?, "its volume is deleted as any other")?;
    bench.is_gone(&made.handle).await
}

/// The keys of a handle that lies below the root, by every account.
fn contained<F: Fixture>(bench: &Bench<F>, handle: &HandleOf<F>, value: &str) -> Checked<Vec<Key>> {
    let source = bench.backend()?.source(handle);
    let path = match &source {
        VolumeSource::Local { path } | VolumeSource::HostPath { path } | VolumeSource::Nfs { path, .. } => {
            path
        }
        VolumeSource::Csi(csi) => &csi.volume_handle,
        VolumeSource::Other { kind } => kind,
    };
    expect(
        !path.split('/').any(|part| part == "..") && !path.chars().any(char::is_control),
        "a source has neither \"..\" nor control characters in it",
        || format!("{value:?} gets {path:?}"),
    )?;
    let keys = bench.keys(handle)?;
    if let Some(bounds) = bench.fixture.bounds() {
        let below = |key: &Key| {
            key.root() == bounds.root()
                && key.path().len() > bounds.path().len()
                && key.path().starts_with(bounds.path())
        };
        expect(keys.iter().all(below), "every volume lies below the root", || {
            format!("{value:?} gets {keys:?}, and the root is {bounds:?}")
        })?;
    }
    Ok(keys)
}
