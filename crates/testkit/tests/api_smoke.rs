//! The shortest way through: a claim becomes a volume, and goes.

mod common;

use common::{SOON, World, name};
use serde_json::json;
use volwright_testkit::harness::eventually;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_becomes_a_volume_and_goes() {
    let world = World::new("smoke").await;
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.claim("data", &class, json!({})).await;
    let volume = world.bound("data").await;
    let path = World::path_of(&volume);
    assert!(world.store.volumes().contains_key(&path), "{:?}", world.store.volumes());
    world.delete_claim("data").await;
    world.gone(&name(&volume)).await;
    eventually(
        "the volume is gone",
        SOON,
        || async { world.store.volumes() },
        std::collections::BTreeMap::is_empty,
    )
    .await;
    engine.stop().await;
}
