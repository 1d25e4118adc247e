//! The in-memory backend, with and without sight of contents.

use volwright_provisioner::{Key, ParameterMap, Result, SharedContext};
use volwright_testkit::conformance::{self, Can, Fixture, cannot};
use volwright_testkit::harness::map;
use volwright_testkit::memory::{Handle, Memory, Store, StoredVolume};

struct Table {
    store: Store,
    parameters: ParameterMap,
}

impl Fixture for Table {
    type Backend = Memory;

    async fn connect(&self, _: SharedContext) -> Result<Memory> {
        Ok(Memory::new("table", self.store.clone()))
    }

    fn parameters(&self) -> ParameterMap {
        self.parameters.clone()
    }

    fn hostile_parameters(&self) -> Vec<ParameterMap> {
        let patterns =
            ["${pvc.annotations['dir']}", "${pvc.namespace}/${pvc.name}", "a-${.PVC.labels.dir}/${pvc.uid}"];
        patterns.map(|pattern| map(&[("pathPattern", pattern), ("pool", "other")])).to_vec()
    }

    fn bounds(&self) -> Option<Key> {
        Some(Key::of_path("table", "/"))
    }

    async fn exists(&self, handle: &Handle) -> Can<bool> {
        Ok(!self.store.is_root_hidden() && self.store.get(&handle.path).is_some())
    }

    async fn write_into(&self, handle: &Handle) -> Can<()> {
        if self.store.edit(&handle.path, |volume| volume.written = true) {
            return Ok(());
        }
        Err(cannot("there is no volume to write to"))
    }

    async fn is_written(&self, handle: &Handle) -> Can<bool> {
        Ok(self.store.get(&handle.path).is_some_and(|volume| volume.written))
    }

    async fn plant_foreign(&self, handle: &Handle) -> Can<()> {
        self.store.put(&handle.path, StoredVolume { written: true, ..StoredVolume::unmarked() });
        Ok(())
    }

    async fn lose_root(&self) -> Can<()> {
        self.store.hide_root(true);
        Ok(())
    }

    async fn find_root(&self) -> Can<()> {
        self.store.hide_root(false);
        Ok(())
    }
}

#[tokio::test]
async fn the_in_memory_backend_passes() {
    for (parameters, not_offered) in [
        (map(&[]), vec!["intent-kept"]),
        (map(&[("opaque", "true")]), vec!["undo-keeps-written"]),
        (map(&[("shape", "csi"), ("pool", "p")]), vec!["alias-nested"]),
    ] {
        let make = || Table { store: Store::default(), parameters: parameters.clone() };
        let report = conformance::check(make).await;
        println!("{report}");
        report.assert();
        for name in not_offered {
            assert!(report.not_offered().contains(&name), "{name}\n{report}");
        }
    }
}

#[tokio::test]
async fn a_handle_whose_json_changed_without_a_new_version_is_told_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let compare = async |text: Option<&str>| {
        if let Some(text) = text {
            std::fs::write(dir.path().join("handle-v1.json"), text).unwrap();
        }
        let table = Table { store: Store::default(), parameters: map(&[]) };
        conformance::stored_handles(table, dir.path()).await
    };
    let stored = |handle: &str| format!(r#"{{"version":1,"backend":"memory","handle":{{{handle}}}}}"#);
    let today = stored(r#""server":"s","path":"/p","csi":false,"node":null,"opaque":false"#);
    let cases = [
        (None, "put the annotation of a PV with that version there"),
        (Some(today.replace("memory", "other")), "it is of version 1 of \"other\""),
        (Some(stored(r#""server":"s""#)), "they cannot be read any more"),
        (Some(today.replace("/p", "/p\",\"old\":\"")), "raise HANDLE_VERSION"),
    ];
    for (text, expected) in cases {
        let refusal = compare(text.as_deref()).await.unwrap_err();
        assert!(refusal.contains(expected), "{expected:?} not in {refusal:?}");
    }
    assert_eq!(compare(Some(&today)).await, Ok(()));
}
