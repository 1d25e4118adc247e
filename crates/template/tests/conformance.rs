//! Every promise of the trait.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

use std::fs;
use std::path::{Path, PathBuf};
use volwright_provisioner::{Key, ParameterMap, Provisioner, Result, SharedContext};
use volwright_template::{Args, Handle, System, Template, Volume};
use volwright_testkit::conformance::{self, Can, Fixture, cannot};
use volwright_testkit::harness::map;

/// The storage system, and what can be done to it without the backend.
struct Outside {
    directory: tempfile::TempDir,
}

impl Outside {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("root")).unwrap();
        Self { directory }
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    fn system(&self) -> System {
        System::new(self.root())
    }

    fn put(&self, handle: &Handle, volume: &Volume) -> Can<()> {
        self.system().put(&handle.name, volume).map_err(|failure| cannot(failure.to_string()))
    }
}

impl Fixture for Outside {
    type Backend = Template;

    async fn connect(&self, context: SharedContext) -> Result<Template> {
        Template::connect(Args { path: self.root(), server: "server".to_owned() }, context).await
    }

    fn parameters(&self) -> ParameterMap {
        map(&[("prefix", "fast")])
    }

    fn bounds(&self) -> Option<Key> {
        Some(Key::of_path("volumes", "/"))
    }

    async fn outside(&self) -> Can<String> {
        let entries = fs::read_dir(self.directory.path()).map_err(|e| cannot(e.to_string()))?;
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.sort();
        Ok(format!("{names:?}"))
    }

    async fn exists(&self, handle: &Handle) -> Can<bool> {
        Ok(self.system().get(&handle.name).unwrap().is_some())
    }

    async fn write_into(&self, handle: &Handle) -> Can<()> {
        let volume = self.system().get(&handle.name).unwrap().ok_or_else(|| cannot("there is no volume"))?;
        self.put(handle, &Volume { data: "data".to_owned(), ..volume })
    }

    async fn is_written(&self, handle: &Handle) -> Can<bool> {
        Ok(self.system().get(&handle.name).unwrap().is_some_and(|volume| volume.data == "data"))
    }

    async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
        self.put(handle, &Volume { mark: None, size: 1, data: "data".to_owned() })
    }

    async fn lose_root(&self) -> Can<()> {
        let moved = fs::rename(self.root(), self.directory.path().join("away"));
        moved.and_then(|()| fs::create_dir(self.root())).map_err(|e| cannot(e.to_string()))
    }

    async fn find_root(&self) -> Can<()> {
        let moved = fs::remove_dir(self.root());
        moved
            .and_then(|()| fs::rename(self.directory.path().join("away"), self.root()))
            .map_err(|e| cannot(e.to_string()))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backend_keeps_every_promise_of_the_trait() {
    let report = conformance::check(Outside::new).await;
    println!("{report}");
    report.assert();
}

#[tokio::test]
async fn handles_of_every_release_are_read_and_todays_is_written_as_it_was() {
    let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stored");
    conformance::stored_handles(Outside::new(), &stored).await.unwrap();
}
