//! A root in a temporary directory with things around it that must never change.
#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is to stop")]

pub mod faulty;

use self::faulty::{Die, Faulty};
use std::collections::BTreeMap;
use std::future::Future;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use volwright_provisioner::{
    ClaimUid, Class, Epoch, InstallationId, Mark, MarkState, Progress, PvName, RelativePath, Result,
};
use volwright_volume_tree::{
    LocalOptions, LocalTree, Look, Place, Tree, Volumes, Wanted, look, make_identity,
};

pub const ANYWHERE: LocalOptions = LocalOptions { require_mount: false, allow_volatile: true };

/// `outside/` and `root/` side by side.
pub struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        // In memory where that is possible: thousands of durable writes are free there. A disk shows other things.
        let chosen = std::env::var_os("VOLWRIGHT_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        let made = tempfile::tempdir_in(chosen).or_else(|_| tempfile::tempdir()).unwrap();
        let fixture = Self { dir: made };
        std::fs::DirBuilder::new().mode(0o700).create(fixture.root()).unwrap();
        std::fs::create_dir_all(fixture.outside().join("deep/er")).unwrap();
        for file in ["a", "deep/b", "deep/er/c"] {
            std::fs::write(fixture.outside().join(file), format!("precious {file}")).unwrap();
        }
        fixture
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    pub fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    pub fn tree(&self) -> LocalTree {
        LocalTree::open(&self.root(), ANYWHERE).unwrap()
    }

    pub fn volumes(&self) -> Volumes<LocalTree> {
        let tree = self.tree();
        let id = block_on(make_identity(&tree)).unwrap();
        tree.lock("a test").unwrap();
        Volumes::new(tree, id)
    }

    pub fn path(&self, below_root: &str) -> PathBuf {
        self.root().join(below_root)
    }

    /// Everything, or everything below the root but our own files.
    pub fn snapshot(&self) -> Snapshot {
        snapshot(self.dir.path())
    }

    /// The names at the top of the root, without our own, then what is left in records, parents, new and trash.
    pub fn assert_clean(&self, context: &str) {
        let mut left: Vec<_> = snapshot(&self.root()).into_keys().collect();
        let ours = ["", ".volwright", ".volwright/root.json", ".volwright/lock"];
        let dirs = [".volwright/records", ".volwright/parents", ".volwright/new", ".volwright/trash"];
        left.retain(|path| !ours.iter().chain(&dirs).any(|known| path == Path::new(known)));
        assert!(left.is_empty(), "{context}: left over: {left:?}");
    }
}

pub type Snapshot = BTreeMap<PathBuf, String>;

/// What a tree is, down to modes, owners and contents. Follows nothing.
pub fn snapshot(top: &Path) -> Snapshot {
    let mut seen = Snapshot::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_dir() {
            for entry in std::fs::read_dir(&path).unwrap() {
                todo.push(entry.unwrap().path());
            }
            String::new()
        } else if meta.is_symlink() {
            format!("-> {}", std::fs::read_link(&path).unwrap().display())
        } else if meta.is_file() {
            String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()
        } else {
            String::new()
        };
        let text = format!("{:o} {}:{} {content}", meta.mode(), meta.uid(), meta.gid());
        seen.insert(path.strip_prefix(top).unwrap().to_owned(), text);
    }
    seen
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub fn mark(owner: &str) -> Mark {
    Mark {
        installation: InstallationId::new("installation"),
        owner: ClaimUid::new(owner),
        pv_name: PvName::new(format!("pvc-{owner}")),
        epoch: Epoch::default(),
        state: MarkState::Planned,
    }
}

/// What a call bears that undoes a create.
pub fn undoing(owner: &str) -> Mark {
    mark(owner).with_state(MarkState::Unpublished)
}

/// What a call bears that deletes the volume of a released PV.
pub fn released(owner: &str) -> Mark {
    mark(owner).with_state(MarkState::Published)
}

/// The same mark, under the leader of that number.
pub fn under(mark: &Mark, number: u64) -> Mark {
    Mark { epoch: Epoch { number, token: 0 }, ..mark.clone() }
}

pub fn place(path: &str, owner: &str) -> Place {
    Place::new(RelativePath::parse(path).unwrap(), &mark(owner))
}

pub fn wanted() -> Wanted {
    Wanted { size: 1 << 20, mode: 0o777, uid: None, gid: None, notes: BTreeMap::new(), intent: None }
}

/// The same, with the engine's note.
pub fn wanted_for(intent: &str) -> Wanted {
    Wanted { intent: Some(intent.to_owned()), ..wanted() }
}

/// Provisions and publishes.
pub fn provision<T: Tree>(volumes: &Volumes<T>, path: &str, owner: &str) -> Result<()> {
    block_on(async {
        volumes.provision(&place(path, owner), &mark(owner), &wanted()).await?;
        volumes.set_mark(&place(path, owner), &mark(owner).with_state(MarkState::Published)).await
    })
}

/// Deletes until it is done.
pub fn delete<T: Tree>(volumes: &Volumes<T>, path: &str, owner: &str) -> Result<u32> {
    delete_as(volumes, path, &released(owner))
}

/// Deletes with this mark until it is done.
pub fn delete_as<T: Tree>(volumes: &Volumes<T>, path: &str, mark: &Mark) -> Result<u32> {
    block_on(async {
        for calls in 1..1_000_000 {
            if let Progress::Done(()) = volumes.delete(&place(path, mark.owner.as_str()), mark).await? {
                return Ok(calls);
            }
        }
        panic!("a delete without end");
    })
}

#[track_caller]
pub fn assert_refused<V: std::fmt::Debug>(result: Result<V>, class: Class, text: &str) {
    let failure = result.expect_err(text);
    assert_eq!(failure.class(), class, "{failure:?}");
    assert!(failure.message().contains(text), "{text:?} not in {failure:?}");
    assert!(
        !failure.message().contains("/tmp") && !failure.message().contains("/dev/shm"),
        "host path: {failure:?}"
    );
}

/// A user's files: all kinds, odd names, links to `outside`.
pub fn fill(volume: &Path, outside: &Path) {
    use std::os::unix::ffi::OsStrExt;
    std::fs::create_dir_all(volume.join("a/b/c")).unwrap();
    std::fs::create_dir_all(volume.join("empty/empty")).unwrap();
    for file in ["f", "a/f", "a/b/f", "a/b/c/f"] {
        std::fs::write(volume.join(file), "data").unwrap();
    }
    symlink(outside, volume.join("link")).unwrap();
    symlink(outside.join("a"), volume.join("a/b/link")).unwrap();
    symlink("../../../..", volume.join("a/b/c/up")).unwrap();
    symlink(volume, volume.join("self")).unwrap();
    std::fs::write(volume.join(std::ffi::OsStr::from_bytes(b"\xff\xfe \n")), "odd").unwrap();
    std::fs::create_dir(volume.join(".volwright-moved-1")).unwrap();
    std::os::unix::net::UnixListener::bind(volume.join("socket")).unwrap();
    std::fs::set_permissions(volume.join("f"), std::fs::Permissions::from_mode(0o400)).unwrap();
}

/// Volumes over a tree that something is done to.
pub fn with(fixture: &Fixture, make: impl FnOnce(LocalTree) -> Faulty) -> Volumes<Faulty> {
    let tree = fixture.tree();
    let Look::Shown(id) = block_on(look(&tree)).unwrap() else { panic!("no identity") };
    Volumes::new(make(tree), id)
}

/// Volumes over a tree that dies at the chosen operation.
pub fn faulty(fixture: &Fixture, at: usize, die: Die) -> Volumes<Faulty> {
    with(fixture, |tree| Faulty::new(tree, at, die))
}

/// Runs `scenario` once for each step that it has, killed before and after it.
pub fn at_every_step(scenario: impl Fn(usize, Die) -> bool) -> usize {
    let mut runs = 0;
    for die in [Die::Before, Die::After] {
        let mut at = 0;
        while scenario(at, die) {
            at += 1;
            runs += 1;
        }
    }
    runs
}
