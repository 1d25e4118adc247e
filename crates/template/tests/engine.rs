//! A claim's way through the real engine, on an API server in this process: claim, volume, PV, and all gone again.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use volwright_controller::backend::Typed;
use volwright_controller::client::Clients;
use volwright_controller::engine::MemoryJournal;
use volwright_provisioner::{
    BoxFuture, Context, Failure, InstallationId, NodeInfo, Provisioner, Result, Secret, SecretRef,
    VolumeSource,
};
use volwright_template::{Args, System, Template};
use volwright_testkit::apiserver::{self, ApiServer};
use volwright_testkit::harness::eventually;
use volwright_testkit::{Harness, Options, Store};

const SOON: Duration = Duration::from_secs(60);

/// What the backend may ask the engine for.
struct Asked(InstallationId);

impl Context for Asked {
    fn installation(&self) -> &InstallationId {
        &self.0
    }
    fn node(&self) -> Option<&NodeInfo> {
        None
    }
    fn secret<'a>(&'a self, _: &'a SecretRef) -> BoxFuture<'a, Result<BTreeMap<String, Secret>>> {
        Box::pin(async { Err(Failure::unavailable("there are no secrets here")) })
    }
    fn our_volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeSource>>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

fn volumes(api: &ApiServer) -> Vec<Value> {
    api.list("persistentvolumes", "").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_a_volume_that_goes_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let api = ApiServer::new(apiserver::Options::default());
    let controllers = tokio::spawn(apiserver::cluster::run(api.clone(), Duration::from_millis(20)));
    let options = Options::central("template.volwright.io");
    let context = Arc::new(Asked(options.installation.clone()));
    let args = Args { path: directory.path().to_owned(), server: "server".to_owned() };
    let backend = Arc::new(Typed::new(Arc::new(Template::connect(args, context).await.unwrap())));
    let clients = Clients::same(api.client());
    let engine =
        Harness::start_on(&options, backend, clients, Store::default(), Arc::new(MemoryJournal::new()));

    let class = json!({
        "metadata": { "name": "fast" },
        "provisioner": "template.volwright.io",
        "parameters": { "prefix": "fast" },
    });
    api.create("storageclasses", class).unwrap();
    let claim = json!({
        "metadata": { "name": "data", "namespace": "default" },
        "spec": {
            "storageClassName": "fast",
            "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    api.create("persistentvolumeclaims", claim).unwrap();
    let phase =
        async || api.get("persistentvolumeclaims", "default", "data").unwrap()["status"]["phase"].clone();
    eventually("the claim is bound", SOON, phase, |phase| phase == "Bound").await;
    let listed = System::new(directory.path()).list().unwrap();
    let [volume] = volumes(&api).try_into().unwrap();
    assert_eq!(volume["spec"]["nfs"], json!({ "server": "server", "path": format!("/{}", listed[0]) }));

    api.delete("persistentvolumeclaims", "default", "data").unwrap();
    eventually("the PV goes", SOON, async || volumes(&api).len(), |count| *count == 0).await;
    assert!(System::new(directory.path()).list().unwrap().is_empty(), "the volume has gone with it");
    engine.stop().await;
    controllers.abort();
}
