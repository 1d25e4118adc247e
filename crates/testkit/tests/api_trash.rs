//! The trash on a real control plane: into it, listed, back out of it with the printed manifests, and gone at its time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::{SOON, World, a_while, clients, name, uid};
use serde_json::{Value, json};
use std::time::Duration;
use volwright_controller::cli::{
    EmptyArgs, Format, ListArgs, RestoreArgs, TrashCommand, TrashCommonArgs, WaitArgs,
};
use volwright_testkit::harness::{Options, eventually};

fn options(world: &World) -> Options {
    Options {
        namespace: world.namespace.clone(),
        trash_interval: Duration::from_secs(2),
        ..world.options.clone()
    }
}

fn common(world: &World) -> TrashCommonArgs {
    let mut common = TrashCommonArgs { namespace: Some(world.namespace.clone()), ..Default::default() };
    common.cluster.provisioner_name = Some(world.name.clone());
    common
}

/// Runs the command; what it printed, or why it failed.
async fn run(world: &World, command: TrashCommand) -> Result<String, String> {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let clients = clients(&world.kubeconfig).await;
    let done = volwright_controller::cli::trash("memory", &command, &clients, &mut out, &mut notes).await;
    let out = String::from_utf8(out).unwrap();
    match done {
        Ok(true) => Ok(out),
        Ok(false) => Err(out),
        Err(error) => Err(error.to_string()),
    }
}

async fn list(world: &World) -> String {
    run(world, TrashCommand::List(ListArgs { common: common(world), ..Default::default() })).await.unwrap()
}

async fn restore(world: &World, name: &str) -> Result<String, String> {
    let args = RestoreArgs {
        name: name.to_owned(),
        wait: WaitArgs { wait: Duration::from_secs(60) },
        common: common(world),
    };
    run(world, TrashCommand::Restore(args)).await
}

async fn empty(world: &World, name: Option<&str>, yes: bool) -> Result<String, String> {
    let args = EmptyArgs {
        name: name.map(str::to_owned),
        all: name.is_none(),
        yes,
        common: common(world),
        ..Default::default()
    };
    run(world, TrashCommand::Empty(args)).await
}

async fn listed(world: &World, name: &str) -> String {
    eventually(&format!("{name} is listed"), SOON, || list(world), |text| text.contains(name)).await
}

/// A claim with data in it that has gone: the name of its PV, and its path.
async fn trashed(world: &World, claim: &str, class: &str) -> (String, String) {
    let (volume, path) = world.made(claim, class).await;
    world.store.edit(&path, |volume| volume.written = true);
    world.delete_claim(claim).await;
    world.gone(&name(&volume)).await;
    assert_eq!(world.store.get(&path), None, "its place is free");
    world.event(&uid(&volume), &["Normal VolumeTrashed", "kept until", "trash restore"]).await;
    (name(&volume), path)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_deleted_claim_comes_back_with_its_data_by_the_printed_manifests() {
    let world = World::new("trash").await;
    let engine = world.start_with(&options(&world)).await;
    assert_eq!(list(&world).await, "The trash is empty.\n");
    let parameters =
        json!({ "parameters": { "onDelete": "trash", "trashFor": "1h" }, "mountOptions": ["hard"] });
    let class = world.class("kept", parameters).await;
    let (pv, path) = trashed(&world, "data", &class).await;
    let table = listed(&world, &pv).await;
    println!("{table}");
    assert!(table.contains(&format!("{}/data", world.namespace)) && table.contains("1Gi"), "{table}");
    let json = ListArgs { output: Format::Json, common: common(&world) };
    let json: Value = serde_json::from_str(&run(&world, TrashCommand::List(json)).await.unwrap()).unwrap();
    assert_eq!(json["volumes"][0]["name"], pv.as_str());
    let kept = json["volumes"][0]["until"].as_u64().unwrap() - json["volumes"][0]["at"].as_u64().unwrap();
    assert_eq!(kept, 3600);

    let manifests = restore(&world, &pv).await.unwrap();
    println!("{manifests}");
    assert!(world.store.get(&path).is_some_and(|volume| volume.written), "its data is in its place again");
    world.apply(&manifests).await;
    let volume = world.bound("data").await;
    assert_eq!((name(&volume), World::path_of(&volume)), (pv.clone(), path.clone()));
    assert_eq!(volume.spec.clone().and_then(|spec| spec.mount_options), Some(vec!["hard".to_owned()]));
    let empty_list = |text: &String| text == "The trash is empty.\n";
    eventually("the list is empty", SOON, || list(&world), empty_list).await;
    // It is an ordinary volume of its class again.
    world.delete_claim("data").await;
    world.gone(&pv).await;
    listed(&world, &pv).await;
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn what_is_trashed_goes_at_its_time_or_when_told_and_not_before() {
    let world = World::new("expiry").await;
    let engine = world.start_with(&options(&world)).await;
    let kept = world.class("kept", json!({ "parameters": { "onDelete": "trash" } })).await;
    let brief =
        world.class("brief", json!({ "parameters": { "onDelete": "trash", "trashFor": "8s" } })).await;
    let (long, _) = trashed(&world, "long", &kept).await;
    let (short, _) = trashed(&world, "short", &brief).await;
    let held = |name: &str| {
        world
            .store
            .trash()
            .iter()
            .any(|e| e.volume.mark.as_ref().is_some_and(|mark| mark.pv_name.as_str() == name))
    };
    assert!(held(&short) && held(&long));
    eventually("its time is over", SOON, || async { held(&short) }, |held| !held).await;
    assert!(held(&long), "a week is not over");
    listed(&world, &long).await;
    let shown = empty(&world, Some(&long), false).await.unwrap();
    assert!(shown.contains("would be destroyed") && shown.contains("--yes"), "{shown}");
    assert!(held(&long));
    let done = empty(&world, None, true).await.unwrap();
    assert!(done.contains(&long) && done.contains("is destroyed"), "{done}");
    assert!(!held(&long));
    eventually("the list is empty", SOON, || list(&world), |text| text == "The trash is empty.\n").await;
    let refused = restore(&world, &long).await.unwrap_err();
    assert!(refused.contains("is not in the trash") && refused.contains("trash list"), "{refused}");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_restore_is_refused_while_another_volume_is_in_its_place() {
    let world = World::new("place").await;
    let engine = world.start_with(&options(&world)).await;
    let pattern = "${pvc.namespace}/${pvc.name}";
    let class =
        world.class("path", json!({ "parameters": { "onDelete": "trash", "pathPattern": pattern } })).await;
    let (pv, path) = trashed(&world, "data", &class).await;
    let (_, again) = world.made("data", &class).await;
    assert_eq!(path, again, "the path is free for a claim of the same name");
    listed(&world, &pv).await;
    let refused = restore(&world, &pv).await.unwrap_err();
    assert!(
        refused.contains("another volume is in its place") && refused.contains("restore this one again"),
        "{refused}"
    );
    assert_eq!(world.store.trash().len(), 1, "it stays in the trash");
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn times_that_nobody_can_read_are_refused_with_the_remedy() {
    let world = World::new("times").await;
    let engine = world.start_with(&options(&world)).await;
    let slip = json!({ "parameters": { "onDelete": "trash", "trashFor": "a week" } });
    let slip = world.class("slip", slip).await;
    let alone = world.class("alone", json!({ "parameters": { "trashFor": "7d" } })).await;
    for (claim, class, parts) in
        [("slip", slip, ["\"a week\"", "12h or 7d"]), ("alone", alone, ["trashFor", "set onDelete to trash"])]
    {
        let claim = world.claim(claim, &class, json!({})).await;
        world.event(&uid(&claim), &[&["Warning ProvisioningFailed"], &parts[..]].concat()).await;
    }
    let good = world.class("good", json!({ "parameters": { "onDelete": "trash" } })).await;
    let (volume, path) = world.made("data", &good).await;
    let annotate = |time: &str| json!({ "metadata": { "annotations": { "volwright.io/trash-for": time } } });
    world.patch_volume(&name(&volume), annotate("soon")).await;
    world.delete_claim("data").await;
    world.event(&uid(&volume), &["Warning VolumeFailedDelete", "volwright.io/trash-for", "\"soon\""]).await;
    a_while().await;
    assert!(world.store.get(&path).is_some() && world.store.trash().is_empty());
    world.patch_volume(&name(&volume), annotate("1d")).await;
    world.gone(&name(&volume)).await;
    assert_eq!(world.store.trash().len(), 1);
    engine.stop().await;
}
