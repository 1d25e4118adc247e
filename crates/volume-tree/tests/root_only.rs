//! What only root can try: mounts, owners, full and read-only disks. `cargo xtask test` runs these.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{
    ANYWHERE, Fixture, assert_refused, block_on, delete, fill, mark, place, provision, snapshot, wanted,
};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use volwright_provisioner::{Class, Pristine, Until};
use volwright_volume_tree::{LocalOptions, LocalTree, Volumes, Wanted, make_identity};

/// A mount that goes with its scope.
struct Mounted(PathBuf);

impl Mounted {
    fn new(arguments: &[&str], at: &Path) -> Self {
        std::fs::create_dir_all(at).unwrap();
        assert!(Command::new("mount").args(arguments).arg(at).status().unwrap().success());
        Self(at.to_owned())
    }

    fn memory(size: &str, at: &Path) -> Self {
        Self::new(&["-t", "tmpfs", "-o", &format!("size={size},mode=0700"), "none"], at)
    }

    fn bind(what: &Path, at: &Path) -> Self {
        Self::new(&["--bind", what.to_str().unwrap()], at)
    }

    fn remount_read_only(&self) {
        assert!(Command::new("mount").args(["-o", "remount,ro"]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_mount_in_a_volume_stops_the_delete_before_anything_is_lost() {
    for inside in ["mnt", "a/b/mnt"] {
        for bind in [false, true] {
            let fixture = Fixture::new();
            let volumes = fixture.volumes();
            provision(&volumes, "ns/v", "u").unwrap();
            fill(&fixture.path("ns/v"), &fixture.outside());
            let at = fixture.path("ns/v").join(inside);
            let mounted =
                if bind { Mounted::bind(&fixture.outside(), &at) } else { Mounted::memory("1m", &at) };
            std::fs::write(at.join("precious"), "x").unwrap();
            let before = fixture.snapshot();
            assert_refused(
                delete(&volumes, "ns/v", "u"),
                Class::Blocked(Until::Unused),
                &format!("ns/v/{inside}"),
            );
            assert_eq!(before, fixture.snapshot());
            drop(mounted);
            delete(&volumes, "ns/v", "u").unwrap();
            fixture.assert_clean("deleted");
            assert_eq!(fixture.outside().join("precious").exists(), bind);
        }
    }
}

/// The mount table is read once; what is mounted later must stop the walk itself.
#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_mount_that_appears_during_the_delete_is_not_crossed() {
    for inside in ["mnt", "a/mnt", "a/b/mnt"] {
        let fixture = Fixture::new();
        let volumes = fixture.volumes().with_slice(volwright_volume_tree::Slice {
            entries: 1,
            time: std::time::Duration::from_secs(60),
        });
        provision(&volumes, "v", "u").unwrap();
        for n in 0..5 {
            std::fs::create_dir_all(fixture.path("v").join(inside)).unwrap();
            std::fs::write(fixture.path("v").join(format!("f{n}")), "x").unwrap();
        }
        block_on(volumes.delete(&place("v", "u"), &mark("u"))).unwrap();
        let data = fixture.path(".volwright/trash").join(place("v", "u").id.as_str()).join("data");
        let at = data.join(inside);
        if !at.exists() {
            continue; // that one went first
        }
        let mounted = Mounted::bind(&fixture.outside(), &at);
        let outside = snapshot(&fixture.outside());
        let failure = delete(&volumes, "v", "u").unwrap_err();
        assert_eq!(failure.class(), Class::Blocked(Until::Unused), "{failure:?}");
        assert!(failure.message().contains("mnt"), "{failure:?}");
        assert_eq!(outside, snapshot(&fixture.outside()));
        // It is moved up by now, and the mount with it.
        drop(mounted);
        let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
        for line in table.lines().filter(|line| line.contains(data.to_str().unwrap())) {
            Command::new("umount").arg("-q").arg(line.split(' ').nth(1).unwrap()).status().unwrap();
        }
        delete(&volumes, "v", "u").unwrap();
        assert_eq!(outside, snapshot(&fixture.outside()));
        fixture.assert_clean("deleted");
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_path_never_leads_into_another_file_system() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let mounted = Mounted::memory("1m", &fixture.path("disk"));
    assert_refused(provision(&volumes, "disk/v", "u"), Class::NotOurs, "mount point");
    assert_refused(provision(&volumes, "disk", "u"), Class::NotOurs, "already");
    assert!(std::fs::read_dir(fixture.path("disk")).unwrap().next().is_none());
    drop(mounted);
    // Mounted over a volume.
    provision(&volumes, "v", "u").unwrap();
    std::fs::write(fixture.path("v/precious"), "x").unwrap();
    let mounted = Mounted::memory("1m", &fixture.path("v"));
    assert_refused(delete(&volumes, "v", "u"), Class::Blocked(Until::Unused), "v in the volume");
    let seen = block_on(volumes.observe(&place("v", "u"))).unwrap().unwrap();
    assert_eq!(seen.pristine, Pristine::No);
    drop(mounted);
    assert!(fixture.path("v/precious").exists());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn owner_and_mode_are_as_asked_for_whatever_the_umask() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let old = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let cases = [
        (0o777, None, None),
        (0o2770, Some(1000), Some(2000)),
        (0o1777, None, Some(5)),
        (0o700, Some(7), None),
    ];
    for (n, (mode, uid, gid)) in cases.into_iter().enumerate() {
        let owner = format!("u{n}");
        let wanted = Wanted { mode, uid, gid, ..wanted() };
        block_on(volumes.provision(&place(&format!("ns{n}/v"), &owner), &mark(&owner), &wanted)).unwrap();
        let stat = fixture.path(&format!("ns{n}/v")).metadata().unwrap();
        assert_eq!(
            (stat.mode() & 0o7777, stat.uid(), stat.gid()),
            (mode, uid.unwrap_or(0), gid.unwrap_or(0))
        );
        assert_eq!(fixture.path(&format!("ns{n}")).metadata().unwrap().mode() & 0o7777, 0o755);
    }
    rustix::process::umask(old);
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn a_disk_is_a_mount_and_a_directory_bound_over_itself_is_none() {
    let fixture = Fixture::new();
    let required = LocalOptions { require_mount: true, ..ANYWHERE };
    let disk = Mounted::memory("1m", &fixture.path("disk"));
    LocalTree::open(&fixture.path("disk"), required).unwrap();
    drop(disk);
    let _bound = Mounted::bind(&fixture.path("disk"), &fixture.path("disk"));
    LocalTree::open(&fixture.path("disk"), required).unwrap_err();
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn an_unmounted_disk_deletes_and_creates_nothing() {
    let fixture = Fixture::new();
    let at = fixture.path("disk");
    let disk = Mounted::memory("4m", &at);
    let tree = LocalTree::open(&at, ANYWHERE).unwrap();
    let id = block_on(make_identity(&tree)).unwrap();
    let volumes = Volumes::new(tree, id.clone());
    provision(&volumes, "v", "u").unwrap();
    drop(volumes);
    drop(disk);

    let tree = LocalTree::open(&at, ANYWHERE).unwrap();
    let volumes = Volumes::new(tree, id);
    let before = fixture.snapshot();
    assert_refused(block_on(volumes.observe(&place("v", "u"))), Class::Unavailable, "is the disk mounted?");
    assert_refused(delete(&volumes, "v", "u"), Class::Unavailable, "is the disk mounted?");
    assert_refused(provision(&volumes, "w", "w"), Class::Unavailable, "is the disk mounted?");
    assert_eq!(before, fixture.snapshot());
    // A disk mounted over an open root is noticed.
    assert!(volumes.tree().is_current());
    let _disk = Mounted::memory("1m", &at);
    assert!(!volumes.tree().is_current());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn full_and_read_only_disks_have_their_class() {
    let fixture = Fixture::new();
    let at = fixture.path("disk");
    let disk = Mounted::new(&["-t", "tmpfs", "-o", "size=8m,nr_inodes=14,mode=0700", "none"], &at);
    let tree = LocalTree::open(&at, ANYWHERE).unwrap();
    let id = block_on(make_identity(&tree)).unwrap();
    let volumes = Volumes::new(tree, id);
    let mut full = 0;
    for n in 0..10 {
        let owner = format!("u{n}");
        if let Err(failure) = provision(&volumes, &owner, &owner) {
            assert_eq!(failure.class(), Class::Exhausted, "{failure:?}");
            delete(&volumes, &owner, &owner).unwrap_or_else(|e| panic!("undone even when full: {e:?}"));
            full += 1;
        }
    }
    assert!(full > 3 && full < 10, "{full}");
    disk.remount_read_only();
    assert_refused(delete(&volumes, "u0", "u0"), Class::Unavailable, "read-only");
    assert_refused(provision(&volumes, "new", "new"), Class::Unavailable, "read-only");
    block_on(volumes.observe(&place("u0", "u0"))).unwrap().unwrap();
}
