//! Ten thousand claims whose names, labels and annotations mean harm.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{Fixture, block_on, mark, snapshot, wanted};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use volwright_provisioner::{ClaimInfo, Class, Pattern, Progress, RelativePath};
use volwright_volume_tree::Place;

/// Pieces that lead somewhere, if anything follows them.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => prop::sample::select(vec![
            "..", "/", ".", "\0", "\n", "../../outside", "/etc", "out", "here", "up", "file", "full", "loop", "ns",
            ".volwright", ".VOLWRIGHT", ".volwright/records", ".volwright/trash", "%2F", "=", "$(id)", "${pvc.name}", "~",
            "-rf", "*", " ", "\\", "é", "\u{202e}", "data",
        ])
        .prop_map(str::to_owned),
        1 => "\\PC{0,20}",
        1 => "[a-z0-9-]{1,12}",
        1 => "a{250,270}",
    ];
    prop::collection::vec(piece, 1..4).prop_map(|pieces| pieces.concat())
}

fn pattern() -> impl Strategy<Value = String> {
    let tokens =
        ["${pvc.name}", "${pvc.namespace}", "${pvc.labels['l']}", "${pvc.annotations['a']}", "${pv.name}"];
    let piece = prop_oneof![
        5 => prop::sample::select(tokens.to_vec()).prop_map(str::to_owned),
        3 => Just("/".to_owned()),
        1 => Just("-".to_owned()),
        1 => prop::sample::select(vec!["out/", "here/", "up/", "file/", "full/", "full", "ns/out"]).prop_map(str::to_owned),
        1 => text(),
    ];
    prop::collection::vec(piece, 1..6).prop_map(|pieces| pieces.concat())
}

#[test]
fn whatever_a_claim_says_nothing_outside_its_volume_changes() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    // What a user with a shell on a volume's neighbour could have planted.
    symlink(fixture.outside(), fixture.path("out")).unwrap();
    symlink(".", fixture.path("here")).unwrap();
    symlink("..", fixture.path("up")).unwrap();
    symlink("loop", fixture.path("loop")).unwrap();
    std::fs::write(fixture.path("file"), "x").unwrap();
    std::fs::create_dir_all(fixture.path("full/data")).unwrap();
    std::fs::write(fixture.path("full/data/file"), "x").unwrap();
    std::fs::create_dir(fixture.path("ns")).unwrap();
    symlink("../../outside/deep", fixture.path("ns/out")).unwrap();
    let before = fixture.snapshot();
    let (made, refused, tree_refused) = (Cell::new(0_u32), Cell::new(0_u32), Cell::new(0_u32));
    let causes = std::cell::RefCell::new(BTreeMap::<String, u32>::new());

    let mut runner =
        TestRunner::new(Config { cases: 10_000, failure_persistence: None, ..Config::default() });
    let inputs = (pattern(), text(), text(), text(), text());
    runner
        .run(&inputs, |(pattern, namespace, name, label, annotation)| {
            let claim = ClaimInfo {
                namespace,
                name,
                uid: mark("u").owner,
                labels: [("l".to_owned(), label)].into(),
                annotations: [("a".to_owned(), annotation)].into(),
            };
            let filled: Result<RelativePath, String> = Pattern::parse(&pattern)
                .map_err(|e| e.to_string())
                .and_then(|p| p.fill(&claim, &mark("u").pv_name).map_err(|e| e.to_string()));
            let path = match filled {
                Ok(path) => path,
                Err(cause) => {
                    prop_assert!(cause.len() > 20, "a refusal names its cause: {cause}");
                    *causes.borrow_mut().entry(cause.chars().take(30).collect()).or_default() += 1;
                    refused.set(refused.get() + 1);
                    return Ok(());
                }
            };
            let place = Place::new(path, &mark("u"));
            match block_on(volumes.provision(&place, &mark("u"), &wanted())) {
                Ok(_) => {
                    made.set(made.get() + 1);
                    let now = fixture.snapshot();
                    for (path, was) in &before {
                        prop_assert_eq!(now.get(path), Some(was), "{:?} changed", path);
                    }
                    let at = fixture.root().join(place.path.to_string());
                    prop_assert!(at.symlink_metadata().unwrap().is_dir());
                    prop_assert!(at.canonicalize().unwrap().starts_with(fixture.root()));
                    symlink(fixture.outside(), at.join("link")).unwrap();
                    std::fs::write(at.join("file"), "x").unwrap();
                }
                Err(failure) => {
                    prop_assert_eq!(failure.class(), Class::NotOurs, "{:?}", failure);
                    prop_assert!(failure.message().contains("pathPattern"), "{:?}", failure);
                    tree_refused.set(tree_refused.get() + 1);
                    prop_assert_eq!(&before, &fixture.snapshot());
                    return Ok(());
                }
            }
            let deleted = block_on(volumes.delete(&place, &mark("u")));
            prop_assert!(matches!(deleted, Ok(Progress::Done(()))), "{:?}", deleted);
            prop_assert_eq!(&before, &fixture.snapshot());
            Ok(())
        })
        .unwrap();
    let counts = (made.get(), refused.get(), tree_refused.get());
    assert!(
        counts.0 > 500 && counts.1 > 1000 && counts.2 > 50,
        "made, refused, refused by the tree: {counts:?}"
    );
    assert!(causes.borrow().len() >= 8, "{causes:?}");
    assert_eq!(before.len(), snapshot(fixture.root().parent().unwrap()).len());
}
