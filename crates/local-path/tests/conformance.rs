//! The agent against every promise of the trait, on real directories.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use volwright_local_path::{Args, Handle, LocalPath};
use volwright_provisioner::{Key, NodeInfo, ParameterMap, Provisioner, Result, SharedContext};
use volwright_testkit::conformance::{self, Can, Cannot, Fixture, cannot};
use volwright_testkit::harness::map;

/// A directory with a root in it, and something of somebody else's beside it.
struct Disk {
    dir: TempDir,
    parameters: ParameterMap,
    lost: AtomicU32,
}

impl Disk {
    fn new(parameters: &[(&str, &str)]) -> Self {
        let chosen = std::env::var_os("VOLWRIGHT_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        let dir = tempfile::tempdir_in(chosen).or_else(|_| tempfile::tempdir()).unwrap();
        fs::create_dir(dir.path().join("root")).unwrap();
        fs::create_dir(dir.path().join("etc")).unwrap();
        fs::write(dir.path().join("etc/passwd"), "somebody else's").unwrap();
        Self { dir, parameters: map(parameters), lost: AtomicU32::new(0) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

fn volume(handle: &Handle) -> PathBuf {
    Path::new(&handle.root).join(&handle.path)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn no(error: io::Error) -> Cannot {
    cannot(error.to_string())
}

/// Every path below, but for what is in `but`, with the contents of files.
fn listing(top: &Path, but: &[PathBuf]) -> io::Result<Vec<String>> {
    let (mut seen, mut todo) = (Vec::new(), vec![top.to_owned()]);
    while let Some(path) = todo.pop() {
        let kind = path.symlink_metadata()?.file_type();
        let content = if kind.is_file() { fs::read_to_string(&path)? } else { format!("{kind:?}") };
        if kind.is_dir() && !but.contains(&path) {
            for entry in fs::read_dir(&path)? {
                todo.push(entry?.path());
            }
        }
        seen.push(format!("{} {content}", path.display()));
    }
    seen.sort();
    Ok(seen)
}

impl Fixture for Disk {
    type Backend = LocalPath;

    async fn connect(&self, context: SharedContext) -> Result<LocalPath> {
        let args = Args {
            node_name: Some("node-a".to_owned()),
            path: vec![self.path("root")],
            require_mount: false,
            allow_volatile: true,
            init_root: Vec::new(),
        };
        LocalPath::connect(args, context).await
    }

    fn parameters(&self) -> ParameterMap {
        self.parameters.clone()
    }

    fn hostile_parameters(&self) -> Vec<ParameterMap> {
        [
            "${pvc.annotations['dir']}",
            "x/${pvc.labels['dir']}/${pv.name}",
            "${pvc.namespace}/${pvc.name}",
            "${pvc.namespace}-${pvc.name}",
        ]
        .map(|pattern| map(&[("pathPattern", pattern)]))
        .to_vec()
    }

    fn node(&self) -> Option<NodeInfo> {
        let labels = map(&[("kubernetes.io/hostname", "host-of-node-a")]);
        Some(NodeInfo { name: "node-a".to_owned(), uid: "node-uid".to_owned(), labels })
    }

    fn size(&self) -> u64 {
        1 << 20
    }

    fn bounds(&self) -> Option<Key> {
        Some(Key::of_path("node", self.path("root").to_str()?))
    }

    async fn outside(&self) -> Can<String> {
        // Which volumes the root has is not outside; that it is there is.
        Ok(listing(self.dir.path(), &[self.path("root")]).map_err(no)?.join("\n"))
    }

    async fn exists(&self, handle: &Handle) -> Can<bool> {
        Ok(volume(handle).symlink_metadata().is_ok())
    }

    async fn write_into(&self, handle: &Handle) -> Can<()> {
        fs::create_dir_all(volume(handle).join("a/b")).map_err(no)?;
        fs::write(volume(handle).join("a/b/data"), "data").map_err(no)
    }

    async fn is_written(&self, handle: &Handle) -> Can<bool> {
        Ok(fs::read_to_string(volume(handle).join("a/b/data")).is_ok_and(|text| text == "data"))
    }

    async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
        self.write_into(handle).await
    }

    /// As a disk that is not mounted: its mount point is there, and empty.
    async fn lose_root(&self) -> Can<()> {
        fs::rename(self.path("root"), self.path("away")).map_err(no)?;
        fs::create_dir(self.path("root")).map_err(no)
    }

    async fn find_root(&self) -> Can<()> {
        let bare = format!("bare-{}", self.lost.fetch_add(1, Ordering::Relaxed));
        fs::rename(self.path("root"), self.path(&bare)).map_err(no)?;
        fs::rename(self.path("away"), self.path("root")).map_err(no)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_keeps_every_promise_of_the_trait() {
    for parameters in
        [&[][..], &[("mode", "2770"), ("pathPattern", "${pvc.namespace}/${pvc.name}/${pvc.uid}")]]
    {
        let report = conformance::check(|| Disk::new(parameters)).await;
        println!("{report}");
        report.assert();
    }
}

#[tokio::test]
async fn handles_of_every_release_are_read_and_todays_is_written_as_it_was() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stored");
    conformance::stored_handles(Disk::new(&[]), &stored).await.unwrap();
}
