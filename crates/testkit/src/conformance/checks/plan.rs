//! The plan, and what is pure: handle, source, aliases.

use crate::conformance::bench::{Bench, Wanted, done, json};
use crate::conformance::fixture::{Fixture, HandleOf};
use crate::conformance::verdict::{Checked, expect, failed, not_offered, same};
use std::collections::BTreeMap;
use volwright_provisioner::{Key, Provisioner, VolumeSource};

/// At most this, as JSON.
const HANDLE_MAX: usize = 2048;

pub(super) async fn deterministic<F: Fixture>(bench: &Bench<F>) -> Checked {
    const EXPECTED: &str = "the same claim is always given the same handle";
    let request = bench.request()?;
    let first = bench.planned(&request).await?;
    for after in ["at once", "after a restart", "after the volume was made"] {
        match after {
            "after a restart" => bench.restart().await?,
            "after the volume was made" => {
                done(bench.provision(&request, &first).await?, "an ordinary volume is made")?;
            }
            _ => {}
        }
        let again = bench.planned(&request).await?;
        // A plan cannot know what `provision` completes.
        let equal = again == first || bench.backend()?.same_volume(&again, &first);
        expect(equal, EXPECTED, || format!("{after} {}, and first {}", json(&again), json(&first)))?;
    }
    Ok(())
}

pub(super) async fn changes_nothing<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    let seen = bench.seen(&handle).await?;
    expect(seen.is_none(), "nothing is there after the plan", || format!("{seen:?}"))?;
    if let Some(items) = bench.listed_of(&request.mark).await? {
        expect(items.is_empty(), "the inventory knows nothing of a plan", || {
            format!("it lists {} of it", items.len())
        })?;
    }
    let exists = bench.fixture.exists(&handle).await?;
    expect(!exists, "nothing is there after the plan", || "the fixture finds something".to_owned())
}

pub(super) async fn apart<F: Fixture>(bench: &Bench<F>) -> Checked {
    let mut all: Vec<(String, Vec<Key>)> = Vec::new();
    for _ in 0..8 {
        let request = bench.request()?;
        let handle = bench.planned(&request).await?;
        let keys = bench.keys(&handle)?;
        for (other, others) in &all {
            let meet = keys.iter().any(|key| others.iter().any(|other| key.overlaps(other)));
            expect(!meet, "two claims are planned apart from each other", || {
                format!("{} and {other} have keys that overlap: {keys:?}, {others:?}", json(&handle))
            })?;
        }
        all.push((json(&handle), keys));
    }
    Ok(())
}

pub(super) async fn fits<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = bench.request()?;
    let handle = bench.planned(&request).await?;
    let fits = bench.backend()?.fits(&Bench::<F>::typed(&request)?, &handle);
    expect(fits, "a plan fits the request that it was made for", || format!("{} does not", json(&handle)))
}

pub(super) async fn handle_round_trip<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, made) = bench.made().await?;
    let planned = bench.planned(&bench.request()?).await?;
    for handle in [planned, made] {
        let value = match serde_json::to_value(&handle) {
            Ok(value) => value,
            Err(error) => return failed("a handle can be written as JSON", error.to_string()),
        };
        match serde_json::from_value::<HandleOf<F>>(value.clone()) {
            Ok(read) if read == handle => {}
            Ok(read) => {
                return failed(
                    "a handle read from its JSON is the same",
                    format!("{value} becomes {}", json(&read)),
                );
            }
            Err(error) => return failed("a handle can be read from its JSON", format!("{value}: {error}")),
        }
    }
    Ok(())
}

/// A claim with names as long as Kubernetes allows.
fn longest(request: &Wanted) -> Wanted {
    let mut longest = request.clone();
    longest.claim.namespace = "n".repeat(63);
    longest.claim.name = format!("{}.{}", "c".repeat(120), "d".repeat(132));
    longest
}

pub(super) async fn handle_size<F: Fixture>(bench: &Bench<F>) -> Checked {
    let request = longest(&bench.request()?);
    let handle = done(bench.plan(&request).await?, "a claim with the longest names is given a place")?;
    let made = done(bench.provision(&request, &handle).await?, "a claim with the longest names is served")?;
    for handle in [handle, made.handle] {
        let bytes = json(&handle).len();
        expect(bytes <= HANDLE_MAX, "a handle has at most 2 KiB as JSON", || format!("{bytes} bytes"))?;
    }
    Ok(())
}

pub(super) async fn handle_no_secrets<F: Fixture>(bench: &Bench<F>) -> Checked {
    let secrets: Vec<_> = bench.fixture.secrets().into_iter().flat_map(|(_, content)| content).collect();
    if secrets.is_empty() {
        return not_offered("secrets, by the fixture");
    }
    let (_, handle) = bench.made().await?;
    let shown = format!("{} {:?}", json(&handle), bench.backend()?.source(&handle));
    for (name, secret) in secrets {
        let leaks = std::str::from_utf8(secret.expose()).is_ok_and(|text| shown.contains(text));
        expect(!leaks, "handle and source hold no secret", || format!("the secret {name:?} is in it"))?;
    }
    Ok(())
}

pub(super) async fn source_deterministic<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, handle) = bench.published().await?;
    let first = bench.backend()?.source(&handle);
    bench.restart().await?;
    let read = serde_json::to_value(&handle).and_then(serde_json::from_value::<HandleOf<F>>);
    let Ok(read) = read else { return failed("a handle can be read from its JSON", json(&handle)) };
    same(&bench.backend()?.source(&read), &first, "the same handle always gives the same source")
}

pub(super) async fn same_volume<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (one, two) = (bench.request()?, bench.request()?);
    let planned = bench.planned(&one).await?;
    let other = bench.planned(&two).await?;
    let made = done(bench.provision(&one, &planned).await?, "an ordinary volume is made")?.handle;
    let backend = bench.backend()?;
    expect(backend.same_volume(&planned, &planned), "a handle is the same volume as itself", || {
        json(&planned)
    })?;
    expect(backend.same_volume(&planned, &made), "what was made is the volume that was planned", || {
        format!("{} is not {}", json(&made), json(&planned))
    })?;
    expect(!backend.same_volume(&planned, &other), "two claims' volumes are two volumes", || {
        format!("{} counts as {}", json(&other), json(&planned))
    })
}

pub(super) async fn alias_own<F: Fixture>(bench: &Bench<F>) -> Checked {
    let handle = bench.planned(&bench.request()?).await?;
    let keys = bench.keys(&handle)?;
    expect(!keys.is_empty(), "the backend's own sources have alias keys", || {
        format!("{} has none", json(&handle))
    })?;
    same(&bench.keys(&handle)?, &keys, "the same source always has the same keys")
}

/// The source at another path, where it has one.
fn at(source: &VolumeSource, change: impl Fn(&str) -> String) -> Option<VolumeSource> {
    match source {
        VolumeSource::Local { path } => Some(VolumeSource::Local { path: change(path) }),
        VolumeSource::HostPath { path } => Some(VolumeSource::HostPath { path: change(path) }),
        VolumeSource::Nfs { server, path } => {
            Some(VolumeSource::Nfs { server: server.clone(), path: change(path) })
        }
        VolumeSource::Csi(_) | VolumeSource::Other { .. } => None,
    }
}

pub(super) async fn alias_nested<F: Fixture>(bench: &Bench<F>) -> Checked {
    type Change = fn(&str) -> String;
    let handle = bench.planned(&bench.request()?).await?;
    let backend = bench.backend()?;
    let source = backend.source(&handle);
    let keys = backend.alias_keys(&source);
    let cases: [(&str, Change, bool); 7] = [
        ("with a slash at its end", |path| format!("{path}/"), true),
        ("written in another way", |path| format!("{path}/x/../."), true),
        ("a directory in it", |path| format!("{path}/data"), true),
        (
            "the directory above it",
            |path| path.rsplit_once('/').map_or("/", |(above, _)| above).to_owned(),
            true,
        ),
        ("the root of everything", |_| "/".to_owned(), true),
        ("the same and a letter more", |path| format!("{path}x"), false),
        ("the same and another ending", |path| format!("{path}-1"), false),
    ];
    for (what, change, overlaps) in cases {
        let Some(other) = at(&source, change) else {
            return not_offered("sources with paths");
        };
        let others = backend.alias_keys(&other);
        let meet = keys.iter().any(|key| others.iter().any(|other| key.overlaps(other)));
        expect(
            meet == overlaps,
            if overlaps { "keys of the same data overlap" } else { "keys of other data do not overlap" },
            || format!("{what}: {source:?} has {keys:?}, {other:?} has {others:?}"),
        )?;
    }
    Ok(())
}

pub(super) async fn alias_foreign_kind<F: Fixture>(bench: &Bench<F>) -> Checked {
    let source = VolumeSource::Other { kind: "iscsi".to_owned() };
    let keys = bench.backend()?.alias_keys(&source);
    expect(keys.is_empty(), "a kind that can never be ours has no keys", || {
        format!("{source:?} has {keys:?}")
    })
}

pub(super) async fn adopt_round_trip<F: Fixture>(bench: &Bench<F>) -> Checked {
    let (_, handle) = bench.published().await?;
    let backend = bench.backend()?;
    let none = BTreeMap::new();
    let foreign = VolumeSource::Other { kind: "iscsi".to_owned() };
    expect(backend.adopt(&foreign, &none).is_none(), "a kind that can never be ours is not adopted", || {
        format!("{foreign:?} is")
    })?;
    let source = backend.source(&handle);
    match backend.adopt(&source, &none) {
        None => not_offered("to adopt volumes like its own"),
        Some(adopted) => same(
            &backend.source(&adopted),
            &source,
            "the adopted handle has the source that it was adopted from",
        ),
    }
}
