//! Which directory is a root, and which root is the right one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{ANYWHERE, Fixture, assert_refused, block_on, delete, fill, mark, place, provision, wanted};
use std::os::unix::fs::{PermissionsExt, symlink};
use volwright_provisioner::Class;
use volwright_volume_tree::{
    LocalOptions, LocalTree, Look, OpenError, Tree, Volumes, look, make_identity, make_own_directory,
};

fn assert_does_nothing<T: Tree>(fixture: &Fixture, volumes: &Volumes<T>, text: &str) {
    let before = fixture.snapshot();
    assert_refused(block_on(volumes.observe(&place("v", "u"))), Class::Unavailable, text);
    assert_refused(delete(volumes, "v", "u"), Class::Unavailable, text);
    assert_refused(provision(volumes, "w", "w"), Class::Unavailable, text);
    assert_refused(block_on(volumes.set_mark(&place("v", "u"), &mark("u"))), Class::Unavailable, text);
    assert_refused(block_on(volumes.inventory(&mark("u").installation)), Class::Unavailable, text);
    assert_eq!(before, fixture.snapshot());
}

#[test]
fn a_root_without_its_identity_deletes_and_creates_nothing() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    fill(&fixture.path("v"), &fixture.outside());
    // The identity alone is lost.
    std::fs::rename(fixture.path(".volwright/root.json"), fixture.path(".volwright/gone")).unwrap();
    assert_eq!(block_on(look(volumes.tree())).unwrap(), Look::Lost);
    assert_does_nothing(&fixture, &volumes, "is the disk mounted?");
    // All of it: an empty mount point.
    std::fs::rename(fixture.path(".volwright"), fixture.outside().join("own")).unwrap();
    assert_eq!(block_on(look(volumes.tree())).unwrap(), Look::Fresh);
    assert_does_nothing(&fixture, &volumes, "is the disk mounted?");
}

#[test]
fn a_root_with_another_identity_deletes_and_creates_nothing() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    provision(&volumes, "v", "u").unwrap();
    std::fs::rename(fixture.path(".volwright/root.json"), fixture.path(".volwright/gone")).unwrap();
    let other = block_on(make_identity(&fixture.tree())).unwrap();
    assert_ne!(other, *volumes.root_id());
    assert_does_nothing(&fixture, &volumes, "mount the right disk");
}

#[test]
fn an_identity_that_cannot_be_read_is_no_identity() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    for content in ["", "{", "{\"version\":1}"] {
        std::fs::write(fixture.path(".volwright/root.json"), content).unwrap();
        assert_does_nothing(&fixture, &volumes, "cannot be read");
        assert_refused(block_on(make_identity(volumes.tree())), Class::Unavailable, "cannot be read");
    }
    std::fs::write(fixture.path(".volwright/root.json"), "{\"version\":9,\"rootId\":\"x\"}").unwrap();
    assert_does_nothing(&fixture, &volumes, "newer version");
}

#[test]
fn a_root_is_a_real_directory_of_its_own() {
    let fixture = Fixture::new();
    drop(fixture.volumes());
    let link = fixture.outside().join("link");
    symlink(fixture.root(), &link).unwrap();
    std::fs::create_dir(fixture.path("inner")).unwrap();
    std::fs::create_dir(fixture.path("inner/most")).unwrap();
    std::fs::create_dir(link.join("x")).unwrap();
    let open = |path: &std::path::Path| LocalTree::open(path, ANYWHERE).map(drop).unwrap_err();
    assert!(matches!(open("relative".as_ref()), OpenError::NotAbsolute(_)));
    assert!(matches!(open("/".as_ref()), OpenError::NotAbsolute(_)));
    assert!(matches!(open(&fixture.outside().join("../root")), OpenError::NotAbsolute(_)));
    assert!(matches!(open(&fixture.path("nothing")), OpenError::Missing(_)));
    assert!(matches!(open(&fixture.outside().join("a")), OpenError::NotADirectory(_)));
    assert!(matches!(open(&fixture.path("inner/most")), OpenError::InsideRoot { .. }));
    for path in [&link, &link.join("x")] {
        let error = open(path);
        assert!(
            matches!(&error, OpenError::Link { real: Some(real), .. } if real.starts_with(fixture.root())),
            "{error}"
        );
    }
    let failure = open(&link).failure();
    assert_refused::<()>(Err(failure), Class::Unavailable, "no directory of its own");
    LocalTree::open(&fixture.root().join("./"), ANYWHERE).unwrap();
}

#[test]
fn records_that_others_can_write_are_not_believed() {
    let fixture = Fixture::new();
    drop(fixture.volumes());
    std::fs::set_permissions(fixture.path(".volwright"), PermissionsExt::from_mode(0o777)).unwrap();
    let error = LocalTree::open(&fixture.root(), ANYWHERE).unwrap_err();
    assert!(matches!(error, OpenError::Untrusted(_)), "{error}");
    let other = Fixture::new();
    symlink(fixture.path(".volwright"), other.path(".volwright")).unwrap();
    let error = LocalTree::open(&other.root(), ANYWHERE).unwrap_err();
    assert!(matches!(error, OpenError::Untrusted(_)), "{error}");
}

#[test]
fn a_plain_directory_is_no_mount() {
    let fixture = Fixture::new();
    let error =
        LocalTree::open(&fixture.root(), LocalOptions { require_mount: true, ..ANYWHERE }).unwrap_err();
    assert!(error.to_string().contains("is the disk mounted?"), "{error}");
}

#[test]
fn memory_is_no_place_for_volumes_unless_allowed() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let strict = LocalOptions { allow_volatile: false, ..ANYWHERE };
    let error = LocalTree::open(dir.path(), strict).unwrap_err();
    assert!(matches!(error, OpenError::Volatile(_)), "{error}");
    LocalTree::open(dir.path(), ANYWHERE).unwrap();
}

#[test]
fn one_agent_serves_a_root() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let second = fixture.tree().lock("node b").unwrap_err().to_string();
    assert!(second.contains(&format!("process {} of a test", std::process::id())), "{second}");
    assert!(second.contains("stop it"), "{second}");
    drop(volumes);
    fixture.tree().lock("node b").unwrap();
}

/// Run by the next test in a process of its own: locks the root and waits to be killed.
#[test]
fn the_lock_is_held_until_the_process_is_killed() {
    let Some(root) = std::env::var_os("VOLWRIGHT_TEST_LOCK") else { return };
    let tree = LocalTree::open(root.as_ref(), ANYWHERE).unwrap();
    tree.lock("the one to be killed").unwrap();
    std::fs::write(std::path::Path::new(&root).join("locked"), "").unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
    drop(tree);
}

#[test]
fn the_lock_goes_with_its_process() {
    let fixture = Fixture::new();
    drop(fixture.volumes());
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_lock_is_held_until_the_process_is_killed"])
        .env("VOLWRIGHT_TEST_LOCK", fixture.root())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !fixture.path("locked").exists() {
        assert_eq!(child.try_wait().unwrap(), None, "it ended without the lock");
        std::thread::yield_now();
    }
    let refused = fixture.tree().lock("node b").unwrap_err().to_string();
    assert!(refused.contains(&format!("process {} of the one to be killed", child.id())), "{refused}");
    // As the kernel or a kubelet would: nothing of it runs any more.
    child.kill().unwrap();
    child.wait().unwrap();
    fixture.tree().lock("node b").unwrap();
}

#[test]
fn a_fresh_root_is_locked_before_anything_else_is_made() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.tree(), fixture.tree());
    for tree in [&first, &second] {
        block_on(make_own_directory(tree)).unwrap();
    }
    first.lock("the first").unwrap();
    let before = fixture.snapshot();
    assert!(second.lock("the second").unwrap_err().to_string().contains("of the first"));
    assert_eq!(before, fixture.snapshot(), "nor does who comes second write its name into the file");
    assert_eq!(std::fs::read_dir(fixture.path(".volwright")).unwrap().count(), 1, "only the lock");
    block_on(make_identity(&first)).unwrap();
}

#[test]
fn a_fresh_root_is_closed_to_others_and_a_used_one_left_alone() {
    let fixture = Fixture::new();
    let open_to_all = || std::fs::set_permissions(fixture.root(), PermissionsExt::from_mode(0o755)).unwrap();
    open_to_all();
    fixture.tree().close_if_empty().unwrap();
    assert_eq!(fixture.tree().access().unwrap(), (0o700, true));
    open_to_all();
    block_on(make_own_directory(&fixture.tree())).unwrap();
    fixture.tree().close_if_empty().unwrap();
    assert_eq!(fixture.tree().access().unwrap(), (0o700, true), "our own directory is nobody's data");
    open_to_all();
    std::fs::write(fixture.path("file"), "x").unwrap();
    fixture.tree().close_if_empty().unwrap();
    assert_eq!(fixture.tree().access().unwrap(), (0o755, true));
}

#[test]
fn a_root_that_was_replaced_is_noticed() {
    let fixture = Fixture::new();
    let tree = fixture.tree();
    assert!(tree.is_current() && tree.is_same_directory(&fixture.tree()));
    std::fs::rename(fixture.root(), fixture.outside().join("old")).unwrap();
    assert!(!tree.is_current());
    std::fs::create_dir(fixture.root()).unwrap();
    assert!(!tree.is_current() && !tree.is_same_directory(&fixture.tree()));
}

#[test]
fn sizes_and_marks_of_a_volume_are_found_again() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let mut wanted = wanted();
    wanted.notes.insert("node".into(), "n1".into());
    block_on(volumes.provision(&place("v", "u"), &mark("u"), &wanted)).unwrap();
    let listed = block_on(volumes.inventory(&mark("u").installation)).unwrap().volumes;
    assert_eq!((listed.len(), &listed[0].place, &listed[0].record.wanted), (1, &place("v", "u"), &wanted));
    assert_eq!(listed[0].observed.size, Some(wanted.size));
}
