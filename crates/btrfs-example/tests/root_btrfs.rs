//! The backend against every promise of the trait, on a real btrfs file system.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use volwright_btrfs_example::{Args, Btrfs, Handle};
use volwright_provisioner::{Key, Provisioner, Result, SharedContext};
use volwright_testkit::conformance::{self, Can, Fixture, cannot};

/// A btrfs in a file, mounted.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Self {
        let disk = Self(tempfile::tempdir().unwrap());
        let image = disk.0.path().join("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        fs::create_dir(disk.root()).unwrap();
        assert!(run("mkfs.btrfs", &["-q"], &image));
        assert!(run("mount", &["-o", "loop", image.to_str().unwrap()], &disk.root()));
        disk
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn args(&self) -> Args {
        let stat = Command::new("stat").args(["-f", "-c", "%i"]).arg(self.root()).output().unwrap();
        let fsid = String::from_utf8(stat.stdout).unwrap().trim().to_owned();
        Args { path: self.root().to_str().unwrap().to_owned(), fsid, server: "nas.example.com".to_owned() }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["-l"], &self.root());
    }
}

fn run(program: &str, words: &[&str], path: &Path) -> bool {
    Command::new(program).args(words).arg(path).output().is_ok_and(|ran| ran.status.success())
}

/// What is outside of the backend: a pod that writes, an administrator, an accident.
struct Nas {
    disk: Disk,
    args: Args,
}

impl Nas {
    fn new() -> Self {
        let disk = Disk::new();
        let args = disk.args();
        Self { disk, args }
    }
}

impl Fixture for Nas {
    type Backend = Btrfs;

    async fn connect(&self, context: SharedContext) -> Result<Btrfs> {
        Btrfs::connect(self.args.clone(), context).await
    }

    fn bounds(&self) -> Option<Key> {
        Some(Key::of_path("nfs", &self.args.path))
    }

    async fn outside(&self) -> Can<String> {
        let names = fs::read_dir(self.disk.0.path()).map_err(|e| cannot(e.to_string()))?;
        Ok(format!("{} names", names.count()))
    }

    async fn exists(&self, handle: &Handle) -> Can<bool> {
        Ok(Path::new(&handle.path).symlink_metadata().is_ok())
    }

    async fn write_into(&self, handle: &Handle) -> Can<()> {
        fs::write(Path::new(&handle.path).join("data"), "data").map_err(|e| cannot(e.to_string()))
    }

    async fn is_written(&self, handle: &Handle) -> Can<bool> {
        Ok(fs::read(Path::new(&handle.path).join("data")).is_ok_and(|data| data == b"data"))
    }

    async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
        fs::create_dir(&handle.path).map_err(|e| cannot(e.to_string()))?;
        self.write_into(handle).await
    }

    async fn lose_root(&self) -> Can<()> {
        let mounted = run("mount", &["-t", "tmpfs", "none"], &self.disk.root());
        if mounted { Ok(()) } else { Err(cannot("nothing can be mounted over it")) }
    }

    async fn find_root(&self) -> Can<()> {
        let gone = run("umount", &[], &self.disk.root());
        if gone { Ok(()) } else { Err(cannot("what was mounted over it is busy")) }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs root, mkfs.btrfs and loop devices: cargo xtask test"]
async fn the_backend_keeps_every_promise_of_the_trait() {
    let report = conformance::check(Nas::new).await;
    println!("{report}");
    report.assert();
}
