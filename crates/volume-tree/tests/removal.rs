//! Removing what users made: any depth, any width, under their hands.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{Fixture, delete, fill, provision, snapshot};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, mkdirat, openat, renameat_with, symlinkat};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use volwright_volume_tree::Slice;

fn open(path: &Path) -> OwnedFd {
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn all_kinds_of_files_go_and_what_links_name_stays() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let outside = snapshot(&fixture.outside());
    provision(&volumes, "v", "u").unwrap();
    fill(&fixture.path("v"), &fixture.outside());
    assert_eq!(delete(&volumes, "v", "u").unwrap(), 1);
    fixture.assert_clean("deleted");
    assert_eq!(outside, snapshot(&fixture.outside()));
    assert_eq!(delete(&volumes, "v", "u").unwrap(), 1, "gone already");
}

#[test]
fn a_tree_3000_levels_deep_goes() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    // No path is that long: only one directory after the other reaches it.
    let mut dir = open(&fixture.path("v"));
    for level in 0..3000 {
        let name = format!("level-{level}");
        mkdirat(&dir, &name, Mode::RWXU).unwrap();
        symlinkat(fixture.outside(), &dir, "link").unwrap();
        dir = openat(&dir, &name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    drop(dir);
    let outside = snapshot(&fixture.outside());
    delete(&volumes, "v", "u").unwrap();
    fixture.assert_clean("deleted");
    assert_eq!(outside, snapshot(&fixture.outside()));
}

#[test]
fn a_wide_tree_goes_in_slices_that_each_get_further() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes().with_slice(Slice { entries: 500, time: Duration::from_secs(60) });
    provision(&volumes, "v", "u").unwrap();
    let mut entries = 0;
    for n in 0..1000 {
        let dir = fixture.path("v").join(format!("d{n}/inner/most"));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("f"), "x").unwrap();
        std::fs::write(fixture.path("v").join(format!("f{n}")), "x").unwrap();
        entries += 5;
    }
    let calls = delete(&volumes, "v", "u").unwrap();
    // Each entry is removed once; each directory below the first level that is not empty is moved once.
    let steps = entries + 1000;
    assert!(calls >= steps / 500 && calls <= steps / 500 + 4, "{calls} calls");
    fixture.assert_clean("deleted");
}

#[test]
fn a_slice_in_time_ends_as_well() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes().with_slice(Slice { entries: u64::MAX, time: Duration::ZERO });
    provision(&volumes, "v", "u").unwrap();
    for n in 0..1000 {
        std::fs::write(fixture.path("v").join(format!("f{n}")), "x").unwrap();
    }
    let calls = delete(&volumes, "v", "u").unwrap();
    assert!((10..=20).contains(&calls), "{calls} calls");
}

#[test]
fn a_directory_swapped_for_a_link_while_it_is_removed_leads_nowhere() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes().with_slice(Slice { entries: 50, time: Duration::from_secs(60) });
    let outside = snapshot(&fixture.outside());
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut rounds = 0;
    let most = if std::env::var_os("VOLWRIGHT_TEST_DIR").is_some() { 100 } else { 2000 };
    while swaps.load(Ordering::Relaxed) < 20_000 && rounds < most {
        rounds += 1;
        provision(&volumes, "v", "u").unwrap();
        let volume = fixture.path("v");
        for n in 0..20 {
            std::fs::create_dir_all(volume.join("x/sub")).unwrap();
            std::fs::write(volume.join(format!("x/f{n}")), "x").unwrap();
            std::fs::write(volume.join(format!("x/sub/f{n}")), "x").unwrap();
        }
        std::os::unix::fs::symlink(fixture.outside(), volume.join("y")).unwrap();
        std::os::unix::fs::symlink(fixture.outside(), volume.join("x/z")).unwrap();
        // As a pod would that still runs: it holds the directory, wherever that is moved.
        let held = open(&volume);
        let inner = open(&volume.join("x"));
        stop.store(false, Ordering::Relaxed);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    for (dir, one, two) in [(&held, "x", "y"), (&inner, "sub", "z")] {
                        if renameat_with(dir, one, dir, two, RenameFlags::EXCHANGE).is_ok() {
                            swaps.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
            delete(&volumes, "v", "u").unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(outside, snapshot(&fixture.outside()), "round {rounds}");
        fixture.assert_clean("deleted");
    }
    assert!(swaps.load(Ordering::Relaxed) > most / 2, "{} swaps", swaps.load(Ordering::Relaxed));
}

#[test]
fn the_volume_itself_swapped_for_a_link_leads_nowhere() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let outside = snapshot(&fixture.outside());
    let rounds = if std::env::var_os("VOLWRIGHT_TEST_DIR").is_some() { 30 } else { 300 };
    for round in 0..rounds {
        let owner = format!("u{round}");
        let path = format!("v{round}");
        provision(&volumes, &path, &owner).unwrap();
        fill(&fixture.path(&path), &fixture.outside());
        let root = open(&fixture.root());
        symlinkat(fixture.outside(), &root, "swap").unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    renameat_with(&root, path.as_str(), &root, "swap", RenameFlags::EXCHANGE).ok();
                }
            });
            // Done, or kept because it is a link now: both are right, following it is not.
            delete(&volumes, &path, &owner).ok();
        });
        assert_eq!(outside, snapshot(&fixture.outside()), "round {round}");
        let swap = fixture.path("swap");
        if swap.is_symlink() {
            std::fs::remove_file(&swap).unwrap();
        } else {
            std::fs::rename(&swap, fixture.path(&format!("left{round}"))).unwrap();
        }
    }
}
