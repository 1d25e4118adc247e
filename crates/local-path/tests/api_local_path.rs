//! The agent's binary against a real API server, controller manager and scheduler.

mod cluster;

use cluster::{A_WHILE, Corner};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use tokio::time::sleep;

fn name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_pod_gets_a_directory_of_its_own_and_it_goes_with_the_claim() {
    let corner = Corner::new("way").await;
    let mut agent = corner.agent();
    let class =
        corner.class("plain", &json!({ "parameters": { "mode": "0750" }, "mountOptions": ["noatime"] }));
    corner.claim("data", &class, &json!({}));
    let volume = corner.bound("data").await;
    let directory = Corner::directory(&volume);
    assert!(directory.starts_with(&corner.disk), "{directory:?}");
    let metadata = std::fs::metadata(&directory).expect("the directory");
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o750);
    assert_eq!(metadata.uid(), std::fs::metadata(&corner.disk).expect("the disk").uid());
    let affinity = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    let hostname = format!("host-of-{}", corner.name);
    assert_eq!(affinity, &json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [hostname] }));
    assert_eq!(volume["metadata"]["annotations"]["volwright.io/node-name"], corner.name.as_str());
    assert_eq!(volume["spec"]["mountOptions"], json!(["noatime"]));
    std::fs::write(directory.join("file"), "data").expect("a pod writes");
    corner.remove("data");
    corner.gone(&name(&volume)).await;
    assert!(!directory.exists(), "the directory goes with its claim");
    assert!(agent.terminate().success(), "SIGTERM ends it with 0: {}", agent.log());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_immediate_class_is_refused_with_the_reason_although_no_node_is_asked() {
    let corner = Corner::new("immediate").await;
    let _agent = corner.agent();
    let class = corner.class("now", &json!({ "volumeBindingMode": "Immediate" }));
    corner.claim("data", &class, &json!({}));
    corner.event("data", &["Warning ProvisioningFailed", "Immediate", "WaitForFirstConsumer"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_that_cannot_be_served_is_told_why() {
    let corner = Corner::new("refused").await;
    let _agent = corner.agent();
    let plain = corner.class("plain", &json!({}));
    let typo = corner.class("typo", &json!({ "parameters": { "onDelte": "retain" } }));
    let by_label =
        corner.class("label", &json!({ "parameters": { "pathPattern": "${pvc.annotations['dir']}" } }));
    let huge = json!({ "spec": { "resources": { "requests": { "storage": "4Ei" } } } });
    corner.claim("many", &plain, &json!({ "spec": { "accessModes": ["ReadWriteMany"] } }));
    corner.claim("block", &plain, &json!({ "spec": { "volumeMode": "Block" } }));
    corner.claim("typo", &typo, &json!({}));
    corner.claim("huge", &plain, &huge);
    corner.claim("escape", &by_label, &json!({ "metadata": { "annotations": { "dir": "../../etc" } } }));
    corner.claim("dots", &by_label, &json!({ "metadata": { "annotations": { "dir": ".." } } }));
    corner.claim("ours", &by_label, &json!({ "metadata": { "annotations": { "dir": ".VOLWRIGHT" } } }));
    corner.claim("control", &by_label, &json!({ "metadata": { "annotations": { "dir": "a\u{1}b" } } }));
    corner.event("many", &["Warning ProvisioningFailed", "ReadWriteMany", "offers ReadWriteOnce"]).await;
    corner.event("block", &["Warning ProvisioningFailed", "does not offer volumeMode Block"]).await;
    corner.event("typo", &["Warning ProvisioningFailed", "unknown field `onDelte`", "pathPattern"]).await;
    corner.event("huge", &["Warning ProvisioningFailed"]).await;
    corner.event("escape", &["Warning ProvisioningFailed", "has a slash"]).await;
    corner.event("dots", &["Warning ProvisioningFailed", "leave its place"]).await;
    corner.event("ours", &["Warning ProvisioningFailed", "kept for the provisioner"]).await;
    corner.event("control", &["Warning ProvisioningFailed", "control character"]).await;
    let made: Vec<_> = std::fs::read_dir(&corner.disk)
        .expect("the disk")
        .filter_map(|entry| entry.ok().map(|entry| entry.file_name()))
        .filter(|entry| entry != ".volwright")
        .collect();
    assert!(made.is_empty(), "nothing was made: {made:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_disk_that_is_not_mounted_deletes_and_creates_nothing() {
    let corner = Corner::new("unmounted").await;
    let _agent = corner.agent();
    let class = corner.class("plain", &json!({}));
    corner.claim("old", &class, &json!({}));
    let volume = corner.bound("old").await;
    // What an unmounted disk looks like: the mount point is there, and empty.
    let (disk, away) = (corner.disk.clone(), corner.disk.with_file_name("away"));
    std::fs::rename(&disk, &away).expect("the disk goes");
    std::fs::create_dir(&disk).expect("the bare mount point");
    corner.remove("old");
    corner.claim("new", &class, &json!({}));
    corner.event("new", &["Warning ProvisioningFailed"]).await;
    corner.event(&name(&volume), &["Warning VolumeFailedDelete"]).await;
    sleep(A_WHILE).await;
    assert!(!corner.get("pv", &name(&volume)).is_null(), "the PV waits for its disk");
    assert_eq!(
        std::fs::read_dir(&disk).expect("the mount point").count(),
        0,
        "nothing is made on the bare mount point"
    );
    std::fs::remove_dir(&disk).expect("the bare mount point goes");
    std::fs::rename(&away, &disk).expect("the disk comes back");
    corner.gone(&name(&volume)).await;
    assert!(!Corner::directory(&volume).exists());
    corner.bound("new").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_deleted_claim_comes_back_from_the_trash_with_its_data() {
    let corner = Corner::new("trash").await;
    let _agent = corner.agent_with(&corner.name, &["--namespace", &corner.name, "--trash-interval", "2s"]);
    let class = corner.class("kept", &json!({ "parameters": { "onDelete": "trash", "trashFor": "1h" } }));
    let brief = corner.class("brief", &json!({ "parameters": { "onDelete": "trash", "trashFor": "5s" } }));
    corner.claim("data", &class, &json!({}));
    corner.claim("brief", &brief, &json!({}));
    let (volume, short) = (corner.bound("data").await, corner.bound("brief").await);
    let directory = Corner::directory(&volume);
    std::fs::write(directory.join("file"), "precious").expect("a pod writes");
    corner.remove("data");
    corner.remove("brief");
    corner.gone(&name(&volume)).await;
    corner.gone(&name(&short)).await;
    assert!(!directory.exists(), "its place is free");
    let trash = |args: &[&str]| {
        let common = ["--provisioner-name", &corner.provisioner, "--namespace", &corner.name, "--kubeconfig"];
        std::process::Command::new(env!("CARGO_BIN_EXE_volwright-local-path"))
            .arg("trash")
            .args(args)
            .args(common)
            .arg(corner.plane.kubeconfig())
            .output()
            .expect("the command runs")
    };
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    let until = tokio::time::Instant::now() + cluster::SOON;
    let table = loop {
        let table = text(trash(&["list"]).stdout);
        if table.contains(&name(&volume)) && !table.contains(&name(&short)) {
            break table;
        }
        assert!(tokio::time::Instant::now() < until, "one is listed, the other has gone: {table}");
        sleep(std::time::Duration::from_millis(500)).await;
    };
    println!("{table}");
    assert!(table.contains(&format!("{}/data", corner.name)), "{table}");
    let restored = trash(&["restore", &name(&volume)]);
    let (manifests, notes) = (text(restored.stdout), text(restored.stderr));
    println!("{manifests}\n{notes}");
    assert!(restored.status.success(), "{notes}");
    assert_eq!(std::fs::read_to_string(directory.join("file")).expect("the data is back"), "precious");
    for manifest in manifests.split("---").filter(|part| !part.trim().is_empty()) {
        corner.apply(&serde_json::from_str(manifest).expect("JSON"));
    }
    let again = corner.bound("data").await;
    assert_eq!((name(&again), Corner::directory(&again)), (name(&volume), directory.clone()));
    // No pod was made for it this time.
    corner.kubectl(&["-n", &corner.name, "delete", "pvc", "data", "--wait=false"]);
    corner.gone(&name(&volume)).await;
    let until = tokio::time::Instant::now() + cluster::SOON;
    loop {
        let emptied = trash(&["empty", "--all", "--yes"]);
        let said = text(emptied.stdout);
        println!("{said}");
        if said.contains("is destroyed") {
            break;
        }
        assert!(tokio::time::Instant::now() < until, "{said}");
        sleep(std::time::Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_directory_that_another_pv_names_is_kept() {
    let corner = Corner::new("alias").await;
    let _agent = corner.agent();
    let class = corner.class("plain", &json!({}));
    corner.claim("data", &class, &json!({}));
    let volume = corner.bound("data").await;
    let directory = Corner::directory(&volume);
    let foreign = format!("{}-foreign", corner.name);
    // A parent of ours, by hand, without any label: our own watch never shows it.
    corner.apply(&json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": { "name": foreign },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "hostPath": { "path": directory.parent().map(Path::to_owned) },
        },
    }));
    std::fs::write(directory.join("file"), "data").expect("a pod writes");
    corner.remove("data");
    corner.event(&name(&volume), &["Warning VolumeFailedDelete", &foreign]).await;
    sleep(A_WHILE).await;
    assert!(directory.join("file").exists(), "what another PV names is kept");
    corner.kubectl(&["delete", "pv", &foreign]);
    corner.gone(&name(&volume)).await;
    assert!(!directory.exists());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_label_that_somebody_takes_off_is_put_back() {
    let corner = Corner::new("label").await;
    let _agent = corner.agent();
    let class = corner.class("plain", &json!({}));
    corner.claim("data", &class, &json!({}));
    let pv = name(&corner.bound("data").await);
    corner.kubectl(&["label", "pv", &pv, "volwright.io/node-"]);
    corner
        .until("the label is back", || {
            let volume = corner.get("pv", &pv);
            let label = volume["metadata"]["labels"]["volwright.io/node"].clone();
            if label.is_string() { Ok(()) } else { Err(volume.to_string()) }
        })
        .await;
    corner.event(&pv, &["Warning VolumeRepaired"]).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn each_agent_serves_its_own_node_and_no_other() {
    let corner = Corner::new("two").await;
    let other = format!("{}-other", corner.name);
    corner.node(&other);
    // The claim's pod can only go to `other`, whose agent does not run yet.
    corner.kubectl(&["label", "node", &corner.name, "test-"]);
    let _here = corner.agent();
    let class = corner.class("plain", &json!({}));
    corner.claim("data", &class, &json!({}));
    sleep(A_WHILE).await;
    assert_ne!(corner.get("pvc", "data")["status"]["phase"], "Bound", "nobody serves another's node");
    let second = corner.with_disk("disk-of-other");
    let _there = second.agent_with(&other, &[]);
    let volume = second.bound("data").await;
    assert!(Corner::directory(&volume).starts_with(&second.disk));
    assert_eq!(volume["metadata"]["annotations"]["volwright.io/node-name"], other.as_str());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn retained_data_stays_and_its_manifest_brings_it_back() {
    let corner = Corner::new("retain").await;
    let agent = corner.agent();
    let class = corner.class("keep", &json!({ "parameters": { "onDelete": "retain" } }));
    corner.claim("data", &class, &json!({}));
    let volume = corner.bound("data").await;
    let directory = Corner::directory(&volume);
    std::fs::write(directory.join("file"), "data").expect("a pod writes");
    corner.remove("data");
    corner.gone(&name(&volume)).await;
    assert!(directory.join("file").exists());
    let event = corner.event(&name(&volume), &["VolumeRetained"]).await;
    let manifest = event
        .split("kubectl create:\n")
        .nth(1)
        .unwrap_or_else(|| panic!("no manifest in {event}; the log: {}", agent.log()));
    let again: Value = serde_yaml::from_str(manifest).expect("YAML");
    corner.apply(&again);
    let back = corner.get("pv", &name(&volume));
    assert_eq!(back["spec"]["local"], volume["spec"]["local"]);
    assert_eq!(back["spec"]["persistentVolumeReclaimPolicy"], "Retain");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_agent_that_is_killed_and_started_again_goes_on() {
    let corner = Corner::new("killed").await;
    let class = corner.class("plain", &json!({}));
    for round in 0..3 {
        let agent = corner.agent();
        for number in 0..4 {
            corner.claim(&format!("data-{round}-{number}"), &class, &json!({}));
        }
        // At whatever it is doing now.
        drop(agent);
    }
    let _agent = corner.agent();
    let mut directories = Vec::new();
    for round in 0..3 {
        for number in 0..4 {
            directories.push(Corner::directory(&corner.bound(&format!("data-{round}-{number}")).await));
        }
    }
    directories.sort();
    directories.dedup();
    assert_eq!(directories.len(), 12, "each claim has a directory of its own");
    let mut found: Vec<_> = std::fs::read_dir(&corner.disk)
        .expect("the disk")
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| !path.ends_with(".volwright"))
        .collect();
    found.sort();
    assert_eq!(found, directories, "and there are no others");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn doctor_finds_the_setup_right_and_names_what_is_wrong() {
    let corner = Corner::new("doctor").await;
    corner.class("plain", &json!({}));
    std::fs::set_permissions(&corner.disk, std::fs::Permissions::from_mode(0o700))
        .expect("the disk is closed");
    let fine = corner.command("doctor", &corner.name, &[]).output().expect("doctor runs");
    let text = String::from_utf8_lossy(&fine.stdout).into_owned();
    assert!(fine.status.success(), "{text}{}", String::from_utf8_lossy(&fine.stderr));
    corner.class("typo", &json!({ "parameters": { "pathPatern": "x" } }));
    let wrong = corner.command("doctor", &corner.name, &[]).output().expect("doctor runs");
    let text = String::from_utf8_lossy(&wrong.stdout).into_owned();
    assert_eq!(wrong.status.code(), Some(1), "{text}");
    assert!(text.contains("pathPatern") && text.contains("pathPattern"), "{text}");
    let kubeconfig = corner.plane.client_for("nobody", &[]).expect("a user without rights");
    let denied = corner
        .command_as("doctor", &corner.name, &kubeconfig, &["--installation-id", "x"])
        .output()
        .expect("doctor runs");
    let text = String::from_utf8_lossy(&denied.stdout).into_owned();
    assert_eq!(denied.status.code(), Some(1), "{text}");
    assert!(text.contains("persistentvolumes") && text.contains("ClusterRole"), "{text}");
}

/// What doctor asks for is enough, and what a claim costs is known.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_agent_with_exactly_the_rights_that_doctor_lists_serves_claims_with_a_few_calls() {
    const CLAIMS: usize = 10;
    let corner = Corner::new("calls").await;
    let kubeconfig = corner.user_with_required_access();
    let mut agent = corner.agent_as(&corner.name, &kubeconfig, &[]);
    let class = corner.class("plain", &json!({}));
    for number in 0..CLAIMS {
        corner.claim(&format!("data-{number}"), &class, &json!({}));
    }
    let mut volumes = Vec::new();
    for number in 0..CLAIMS {
        volumes.push(name(&corner.bound(&format!("data-{number}")).await));
    }
    let served = corner.calls();
    for number in 0..CLAIMS {
        corner.remove(&format!("data-{number}"));
    }
    for volume in &volumes {
        corner.gone(volume).await;
    }
    assert!(agent.terminate().success(), "{}", agent.log());
    let all = corner.calls();
    println!("{CLAIMS} claims served: {served:#?}\nand deleted, all calls: {all:#?}");
    let count = |calls: &BTreeMap<String, usize>, call: &str| calls.get(call).copied().unwrap_or_default();
    assert_eq!(count(&all, "create persistentvolumes"), CLAIMS);
    assert_eq!(count(&all, "delete persistentvolumes"), CLAIMS);
    assert_eq!(
        count(&all, "patch persistentvolumes"),
        CLAIMS,
        "the finalizer goes, and nothing else is written"
    );
    assert!(!all.keys().any(|call| call.ends_with("pods") || call.ends_with("secrets")), "{all:?}");
}

/// Under a running agent, with the rights that doctor lists and no others.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_that_asks_for_more_gets_it_by_its_record() {
    let corner = Corner::new("grows").await;
    let kubeconfig = corner.user_with_required_access();
    let mut agent = corner.agent_as(&corner.name, &kubeconfig, &[]);
    let class = corner.class("grows", &json!({ "allowVolumeExpansion": true }));
    corner.claim("data", &class, &json!({}));
    let volume = name(&corner.bound("data").await);
    let more = r#"{"spec":{"resources":{"requests":{"storage":"5Mi"}}}}"#;
    corner.kubectl(&["-n", &corner.name, "patch", "pvc", "data", "--type=merge", "-p", more]);
    corner
        .until("the claim has 5Mi", || {
            let status = corner.get("pvc", "data")["status"].clone();
            let is_done = status["capacity"]["storage"] == "5Mi"
                && status["allocatedResources"]["storage"] == "5Mi"
                && status["conditions"].is_null();
            if is_done {
                Ok(())
            } else {
                Err(format!("{status:#}\n{:#?}\n{}", corner.events("data"), agent.log()))
            }
        })
        .await;
    assert_eq!(corner.get("pv", &volume)["spec"]["capacity"]["storage"], "5Mi");
    let records = std::fs::read_dir(corner.disk.join(".volwright/records")).expect("the records");
    let texts: Vec<_> = records
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        .filter(|text| text.contains(&volume))
        .collect();
    assert!(texts.len() == 1 && texts[0].contains("\"size\":5242880"), "{texts:?}");
    assert!(agent.terminate().success(), "{}", agent.log());
}
