//! Which paths are given out, and whose a thing at a path is.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{Fixture, assert_refused, block_on, delete, fill, mark, place, provision, snapshot, wanted};
use std::os::unix::fs::{PermissionsExt, symlink};
use volwright_provisioner::{Class, InstallationId, MarkState, Pristine, Until};
use volwright_volume_tree::Wanted;

type Plant = fn(&Fixture);

const OPERATOR: Class = Class::Blocked(Until::OperatorActs);

#[test]
fn paths_never_contain_each_other() {
    let cases = [
        // first, second, refused with
        ("a", "a", Some("another volume's")),
        ("a", "a/b", Some("lies in the volume at a")),
        ("a", "a/b/c", Some("lies in the volume at a")),
        ("a/b", "a", Some("already")),
        ("a/b/c", "a/b", Some("already")),
        ("a/b", "a/c", None),
        ("a", "b", None),
        ("a/b", "ab", None),
        ("a", "a%2Fb", None),
    ];
    for (first, second, refused) in cases {
        let fixture = Fixture::new();
        let volumes = fixture.volumes();
        provision(&volumes, first, "u").unwrap();
        fill(&fixture.path(first), &fixture.outside());
        let before = fixture.snapshot();
        match refused {
            None => provision(&volumes, second, "v").unwrap(),
            Some(text) => {
                assert_refused(provision(&volumes, second, "v"), Class::NotOurs, text);
                assert_eq!(before, fixture.snapshot(), "{first} {second}");
            }
        }
    }
}

#[test]
fn a_path_that_would_contain_a_recorded_one_is_refused_even_where_its_directory_is_lost() {
    for inner in ["a/b", &format!("a/{}", "é".repeat(125))] {
        let fixture = Fixture::new();
        let volumes = fixture.volumes();
        provision(&volumes, inner, "u").unwrap();
        std::fs::remove_dir(fixture.path(inner)).unwrap();
        std::fs::remove_dir(fixture.path("a")).unwrap();
        assert_refused(provision(&volumes, "a", "v"), Class::NotOurs, "would contain the volume at a/");
    }
}

#[test]
fn what_is_there_and_not_recorded_is_refused_and_kept() {
    let cases: [(&str, Plant); 5] = [
        ("a directory", |f| std::fs::create_dir(f.path("v")).unwrap()),
        ("a directory", |f| {
            std::fs::create_dir(f.path("v")).unwrap();
            std::fs::set_permissions(f.path("v"), PermissionsExt::from_mode(0o777)).unwrap();
        }),
        ("a file", |f| std::fs::write(f.path("v"), "x").unwrap()),
        ("a symbolic link", |f| symlink(f.outside(), f.path("v")).unwrap()),
        ("a symbolic link", |f| symlink("nowhere", f.path("v")).unwrap()),
    ];
    for (what, plant) in cases {
        let fixture = Fixture::new();
        let volumes = fixture.volumes();
        plant(&fixture);
        let before = fixture.snapshot();
        assert_refused(provision(&volumes, "v", "u"), Class::NotOurs, what);
        assert_refused(delete(&volumes, "v", "u"), OPERATOR, "no record");
        let seen = block_on(volumes.observe(&place("v", "u"))).unwrap().unwrap();
        assert_eq!(seen.mark, None);
        assert_eq!(before, fixture.snapshot(), "{what}");
    }
}

#[test]
fn links_and_files_on_the_way_are_never_followed() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    symlink(fixture.outside(), fixture.path("out")).unwrap();
    symlink(".", fixture.path("here")).unwrap();
    std::fs::write(fixture.path("file"), "x").unwrap();
    let before = fixture.snapshot();
    for (path, what) in [
        ("out/v", "a symbolic link"),
        ("here/v", "a symbolic link"),
        ("file/v", "a file"),
        ("out/deep/er/v", "a symbolic link"),
    ] {
        assert_refused(provision(&volumes, path, "u"), Class::NotOurs, what);
        assert_eq!(block_on(volumes.observe(&place(path, "u"))).unwrap(), None);
        delete(&volumes, path, "u").unwrap();
        assert_eq!(before, fixture.snapshot(), "{path}");
    }
}

#[test]
fn a_volume_that_became_a_link_or_a_file_is_kept() {
    let cases: [(&str, Plant); 3] = [
        ("has become a symbolic link", |f| symlink(f.outside(), f.path("ns/v")).unwrap()),
        ("has become a file", |f| std::fs::write(f.path("ns/v"), "x").unwrap()),
        ("ns on its path has become a symbolic link", |f| {
            std::fs::remove_dir(f.path("ns")).unwrap();
            symlink(f.outside(), f.path("ns")).unwrap();
        }),
    ];
    for (text, swap) in cases {
        let fixture = Fixture::new();
        let volumes = fixture.volumes();
        provision(&volumes, "ns/v", "u").unwrap();
        std::fs::create_dir(fixture.outside().join("v")).unwrap();
        std::fs::remove_dir(fixture.path("ns/v")).unwrap();
        swap(&fixture);
        let before = fixture.snapshot();
        assert_refused(delete(&volumes, "ns/v", "u"), OPERATOR, text);
        assert_eq!(before, fixture.snapshot(), "{text}");
    }
}

#[test]
fn another_owners_volume_is_not_touched() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    fill(&fixture.path("v"), &fixture.outside());
    let before = fixture.snapshot();
    // By another claim, by another installation under our id, by a forged id.
    let foreign = volwright_provisioner::Mark { installation: InstallationId::new("other"), ..mark("u") };
    let mut forged = place("v", "u");
    forged.id = place("w", "u").id;
    for (place, mark) in [(place("v", "w"), mark("w")), (place("v", "u"), foreign), (forged, mark("u"))] {
        assert_refused(block_on(volumes.delete(&place, &mark)), Class::NotOurs, "another volume's");
        assert_refused(block_on(volumes.set_mark(&place, &mark)), Class::NotOurs, "another volume's");
        assert_refused(
            block_on(volumes.provision(&place, &mark, &wanted())),
            Class::NotOurs,
            "another volume's",
        );
        assert_eq!(before, fixture.snapshot());
    }
    let seen = block_on(volumes.observe(&place("v", "u"))).unwrap().unwrap();
    assert_eq!((seen.mark.unwrap().state, seen.pristine), (MarkState::Published, Pristine::No));
}

#[test]
fn a_planned_volume_with_something_in_its_place_is_foreign() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    // The record is written and nothing else yet, as after a crash.
    provision(&volumes, "v", "u").unwrap();
    std::fs::remove_dir(fixture.path("v")).unwrap();
    let record = fixture.path(".volwright/records/v.json");
    let text = std::fs::read_to_string(&record).unwrap().replace("published", "planned");
    std::fs::write(&record, text).unwrap();
    std::fs::create_dir(fixture.path("v")).unwrap();
    std::fs::set_permissions(fixture.path("v"), PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::write(fixture.path("v/file"), "somebody's").unwrap();
    let before = snapshot(&fixture.path("v"));

    let seen = block_on(volumes.observe(&place("v", "u"))).unwrap().unwrap();
    assert_eq!((seen.mark.unwrap().state, seen.pristine), (MarkState::Planned, Pristine::No));
    assert_refused(provision(&volumes, "v", "u"), Class::NotOurs, "already");
    delete(&volumes, "v", "u").unwrap_err();
    assert_eq!(before, snapshot(&fixture.path("v")));
    assert!(!record.exists(), "the place is given up");
}

#[test]
fn a_published_volume_that_is_gone_is_never_made_anew() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    std::fs::remove_dir(fixture.path("v")).unwrap();
    assert_refused(provision(&volumes, "v", "u"), OPERATOR, "may have held data");
    assert!(!fixture.path("v").exists());
    delete(&volumes, "v", "u").unwrap();
    fixture.assert_clean("deleted");
}

#[test]
fn a_kept_volume_keeps_its_path() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    block_on(volumes.set_mark(&place("v", "u"), &mark("u").with_state(MarkState::Retained))).unwrap();
    assert_refused(provision(&volumes, "v", "u"), Class::NotOurs, "was kept");
    assert_refused(provision(&volumes, "v", "w"), Class::NotOurs, "another volume's");
    let listed = block_on(volumes.inventory(&mark("u").installation)).unwrap();
    assert_eq!(listed.volumes[0].observed.mark.as_ref().unwrap().state, MarkState::Retained);
    assert!(block_on(volumes.inventory(&InstallationId::new("other"))).unwrap().volumes.is_empty());
}

#[test]
fn only_our_own_empty_parents_are_pruned() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    std::fs::create_dir(fixture.path("admins")).unwrap();
    provision(&volumes, "ours/deep/v", "u").unwrap();
    provision(&volumes, "ours/w", "w").unwrap();
    provision(&volumes, "admins/v", "x").unwrap();
    provision(&volumes, "kept/v", "y").unwrap();
    std::fs::write(fixture.path("kept/note"), "an admin's").unwrap();
    for (path, owner) in [("ours/deep/v", "u"), ("admins/v", "x"), ("kept/v", "y")] {
        delete(&volumes, path, owner).unwrap();
    }
    assert!(!fixture.path("ours/deep").exists());
    assert!(fixture.path("ours/w").exists());
    assert!(fixture.path("admins").exists() && fixture.path("kept/note").exists());
    delete(&volumes, "ours/w", "w").unwrap();
    assert!(!fixture.path("ours").exists() && fixture.root().exists());
}

#[test]
fn an_unreadable_record_keeps_its_volume() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    for (content, text) in [("{broken", "cannot be read"), ("", "cannot be read")] {
        provision(&volumes, "v", "u").ok();
        std::fs::write(fixture.path(".volwright/records/v.json"), content).unwrap();
        let before = fixture.snapshot();
        assert_refused(delete(&volumes, "v", "u"), OPERATOR, text);
        assert_refused(provision(&volumes, "v", "u"), OPERATOR, text);
        assert_refused(block_on(volumes.observe(&place("v", "u"))), OPERATOR, text);
        assert_eq!(block_on(volumes.inventory(&mark("u").installation)).unwrap().unreadable.len(), 1);
        assert_eq!(before, fixture.snapshot());
    }
}

#[test]
fn no_room_is_said_before_anything_is_made() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let before = fixture.snapshot();
    let wanted = Wanted { size: 1 << 62, ..wanted() };
    let result = block_on(volumes.provision(&place("v", "u"), &mark("u"), &wanted));
    assert_refused(result, Class::Exhausted, "4Ei is asked for and ");
    assert_eq!(before, fixture.snapshot());
}

#[test]
fn every_concurrent_provision_gets_its_mode() {
    let fixture = Fixture::new();
    let volumes = std::sync::Arc::new(fixture.volumes());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    runtime.block_on(async {
        let calls: Vec<_> = (0..30)
            .map(|n| {
                let volumes = std::sync::Arc::clone(&volumes);
                tokio::spawn(async move {
                    // Three calls for each of ten claims.
                    let owner = format!("u{}", n % 10);
                    let wanted = Wanted { mode: 0o700 + n % 10, ..wanted() };
                    volumes.provision(&place(&format!("ns/{owner}"), &owner), &mark(&owner), &wanted).await
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap().unwrap();
        }
    });
    for n in 0..10 {
        let mode = fixture.path(&format!("ns/u{n}")).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o700 + n);
    }
}

#[test]
fn of_many_who_want_a_path_one_gets_it() {
    let fixture = Fixture::new();
    let volumes = std::sync::Arc::new(fixture.volumes());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let won = runtime.block_on(async {
        let calls: Vec<_> = (0..40)
            .map(|n| {
                let volumes = std::sync::Arc::clone(&volumes);
                tokio::spawn(async move {
                    let owner = format!("u{n}");
                    let path = ["a", "a/b", "a/b/c"][n % 3];
                    volumes.provision(&place(path, &owner), &mark(&owner), &wanted()).await
                })
            })
            .collect();
        let mut won = 0;
        for call in calls {
            match call.await.unwrap() {
                Ok(_) => won += 1,
                Err(failure) => assert_eq!(failure.class(), Class::NotOurs, "{failure:?}"),
            }
        }
        won
    });
    assert_eq!(won, 1);
}

#[test]
fn an_unknown_file_in_the_records_is_no_volume() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    std::fs::write(fixture.path(".volwright/records/=tmp-1-2"), "half").unwrap();
    assert!(block_on(volumes.inventory(&mark("u").installation)).unwrap().unreadable.is_empty());
    drop(volumes);
    let volumes = fixture.volumes();
    assert!(!fixture.path(".volwright/records/=tmp-1-2").exists(), "swept at the start");
    drop(volumes);
}
