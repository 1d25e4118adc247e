//! What a claim costs and what is heard of it, against a real API server: calls, events, retries, and permissions that
//! are missing.
#![allow(clippy::expect_used, clippy::type_complexity, reason = "helpers of tests, and tables of cases")]

mod common;

use common::{SELECTED_NODE, SOON, World, a_while, annotation, plane, uid};
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, ObjectList};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;
use volwright_provisioner::Class;
use volwright_testkit::Trick;
use volwright_testkit::harness::eventually;

/// API group, resource, verbs: all that the engine needs.
const RULES: [(&str, &str, &[&str]); 6] = [
    ("", "persistentvolumeclaims", &["get", "list", "watch", "patch"]),
    ("", "persistentvolumes", &["get", "list", "watch", "create", "patch", "delete"]),
    ("storage.k8s.io", "storageclasses", &["list", "watch"]),
    ("storage.k8s.io", "volumeattachments", &["list"]),
    ("", "nodes", &["get"]),
    ("events.k8s.io", "events", &["create", "patch"]),
];

/// A user with [`RULES`], without `verb` on `resource` (or, if `verb` is `*`, without all of them).
async fn user_without(world: &World, verb: &str, resource: &str) -> (String, PathBuf) {
    let user = format!("user-{}", world.namespace);
    let rules = RULES.map(|(group, known, verbs)| {
        let missing = |v: &str| known == resource && (verb == "*" || v == verb);
        let verbs: Vec<_> = verbs.iter().filter(|v| !missing(v)).collect();
        json!({ "apiGroups": [group], "resources": [known], "verbs": verbs })
    });
    let rules: Vec<_> = rules.into_iter().filter(|rule| rule["verbs"] != json!([])).collect();
    grant(world, &user, "base", &rules).await;
    let kubeconfig = plane().await.lock().await.client_for(&user, &[]).expect("a client");
    (user, kubeconfig)
}

async fn grant(world: &World, user: &str, suffix: &str, rules: &[Value]) {
    let name = format!("{}-{suffix}", world.namespace);
    let group = "rbac.authorization.k8s.io";
    let version = format!("{group}/v1");
    world
        .create(json!({
            "apiVersion": version, "kind": "ClusterRole", "metadata": { "name": name }, "rules": rules,
        }))
        .await;
    world
        .create(json!({
            "apiVersion": version, "kind": "ClusterRoleBinding", "metadata": { "name": name },
            "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": name },
            "subjects": [{ "apiGroup": group, "kind": "User", "name": user }],
        }))
        .await;
}

/// Grants what [`user_without`] left out.
async fn grant_the_rest(world: &World, user: &str, verb: &str, resource: &str) {
    let rule = RULES.iter().find(|(_, known, _)| *known == resource).expect("one of ours");
    grant(world, user, "rest", &[json!({ "apiGroups": [rule.0], "resources": [resource], "verbs": [verb] })])
        .await;
}

/// What a user asked the API server: "verb resource" and how often, watches by their start.
async fn calls_of(user: &str) -> BTreeMap<String, usize> {
    let log = plane().await.lock().await.audit_log().expect("there is an audit log");
    let mut calls = BTreeMap::new();
    for line in std::fs::read_to_string(log).expect("it can be read").lines() {
        // The last line may be half written.
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        let text = |path: &str| entry.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let watch = text("/verb") == "watch";
        if text("/user/username") != user || (text("/stage") == "ResponseStarted") != watch {
            continue;
        }
        *calls.entry(format!("{} {}", text("/verb"), text("/objectRef/resource"))).or_default() += 1;
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_costs_one_pv_create_one_read_and_two_events() {
    const CLAIMS: usize = 20;
    let world = World::new("cost").await;
    let (user, kubeconfig) = user_without(&world, "", "").await;
    let engine = world.start_as(&kubeconfig).await;
    let class = world.class("plain", json!({})).await;
    for number in 0..CLAIMS {
        world.claim(&format!("data-{number}"), &class, json!({})).await;
    }
    for number in 0..CLAIMS {
        world.bound(&format!("data-{number}")).await;
    }
    engine.stop().await;
    let done = |calls: &BTreeMap<String, usize>| calls.get("create events").is_some_and(|n| *n >= 2 * CLAIMS);
    let calls = eventually("the audit log is complete", SOON, || calls_of(&user), done).await;
    println!("{CLAIMS} claims: {calls:#?}");
    let writes = ["create", "update", "patch", "delete"];
    let written: BTreeMap<_, _> = calls
        .iter()
        .filter(|(call, _)| writes.contains(&call.split(' ').next().unwrap_or_default()))
        .collect();
    println!("writes per claim: {}", written.values().copied().sum::<usize>() / CLAIMS);
    assert_eq!(
        written,
        BTreeMap::from([
            (&"create persistentvolumes".to_owned(), &CLAIMS),
            (&"create events".to_owned(), &(2 * CLAIMS)),
        ])
    );
    let read = calls.get("get persistentvolumeclaims").copied().unwrap_or_default();
    assert!(read <= CLAIMS, "one live read a claim: {read}");
    let asked = calls.get("get persistentvolumes").copied().unwrap_or_default();
    assert!(asked <= CLAIMS / 2, "what the watch shows is not asked for: {asked}");
    // Nothing but what it needs: no pods, no secrets, no objects one by one that the watch shows.
    let expected: BTreeSet<_> = [
        "get persistentvolumeclaims",
        "list persistentvolumeclaims",
        "watch persistentvolumeclaims",
        "list persistentvolumes",
        "watch persistentvolumes",
        "list storageclasses",
        "watch storageclasses",
        "create persistentvolumes",
        "create events",
        // Only of a claim that changed while its volume was made, and while the watch lagged.
        "get persistentvolumes",
    ]
    .into_iter()
    .map(str::to_owned)
    .collect();
    let unexpected: Vec<_> = calls.keys().filter(|call| !expected.contains(*call)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");
    assert_eq!(world.store.count("provision", ""), CLAIMS);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_served_claim_shows_the_librarys_two_events() {
    let world = World::new("events").await;
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    let claim = world.claim("data", &class, json!({})).await;
    world.bound("data").await;
    engine.stop().await;
    let events: Api<Event> = Api::namespaced(world.client.clone(), &world.namespace);
    let events: ObjectList<Event> = events.list(&ListParams::default()).await.expect("events");
    let ours = events.items.iter().filter(|event| {
        event.reporting_controller.as_deref() == Some(&world.name[..63.min(world.name.len())])
    });
    let mut lines: Vec<_> = ours
        .map(|event| {
            // `kubectl describe` asks by uid.
            let about = event.regarding.clone().expect("what it is about");
            assert_eq!(
                (about.uid.as_deref(), about.kind.as_deref()),
                (Some(&*uid(&claim)), Some("PersistentVolumeClaim"))
            );
            assert_eq!(event.metadata.namespace.as_deref(), Some(world.namespace.as_str()));
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            (
                event.event_time.clone(),
                format!("{} {}: {}", text(&event.type_), text(&event.reason), text(&event.note)),
            )
        })
        .collect();
    lines.sort();
    let lines: Vec<_> = lines.into_iter().map(|(_, line)| line).collect();
    let expected = [
        format!(
            "Normal Provisioning: External provisioner is provisioning volume for claim \"{}/data\"",
            world.namespace
        ),
        format!("Normal ProvisioningSucceeded: Successfully provisioned volume pvc-{}", uid(&claim)),
    ];
    assert_eq!(lines, expected);
    let describe = {
        let plane = plane().await.lock().await;
        let mut kubectl = plane.kubectl_command();
        kubectl
            .args(["describe", "pvc", "data", "--namespace", &world.namespace])
            .output()
            .expect("kubectl runs")
    };
    let shown = String::from_utf8_lossy(&describe.stdout);
    assert!(shown.contains("Successfully provisioned volume pvc-"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_claim_that_fails_again_and_again_shows_few_events_with_a_count() {
    let mut world = World::new("flood").await;
    (world.options.backoff_base, world.options.backoff_max) =
        (Duration::from_millis(10), Duration::from_millis(50));
    let engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("provision", Trick::Fail(Class::Unavailable, "the shelf is locked"));
    let claim = world.claim("data", &class, json!({})).await;
    world.called("provision", 60).await;
    engine.stop().await;
    let made = world.store.count("provision", "");
    let events = world.events(&uid(&claim)).await;
    let failed: Vec<_> = events.iter().filter(|event| event.contains("ProvisioningFailed")).collect();
    assert_eq!(failed.len(), 1, "{events:#?}");
    let expected = format!("Warning ProvisioningFailed x{made}: the shelf is locked (doctor: claims)");
    assert_eq!(*failed[0], expected, "the count is told at the end");
    assert_eq!(
        events.iter().filter(|event| event.contains("Normal Provisioning ")).count(),
        1,
        "{events:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_failing_claim_is_tried_for_ever_and_served_in_the_end() {
    let mut world = World::new("forever").await;
    (world.options.backoff_base, world.options.backoff_max) =
        (Duration::from_millis(10), Duration::from_millis(50));
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    for (op, failure) in [
        ("plan", Class::Unavailable),
        ("observe", Class::Unavailable),
        ("provision", Class::Unavailable),
        ("provision", Class::Unknown),
        ("provision", Class::Exhausted),
        ("provision", Class::Invalid),
        ("set_mark", Class::Unavailable),
    ] {
        world.store.always(op, Trick::Fail(failure, "not yet"));
        let (before, name) =
            (world.store.count(op, ""), format!("{op}-{failure:?}").to_lowercase().replace('_', "-"));
        let claim = world.claim(&name, &class, json!({})).await;
        // More often than the library's threshold of 15.
        world.called(op, before + 20).await;
        world.store.never(op);
        world.bound(&name).await;
        let volumes = world.store.volumes();
        let own: Vec<_> = volumes.keys().filter(|path| path.contains(&uid(&claim))).collect();
        assert_eq!(own.len(), 1, "{op} {failure:?}: {own:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn first_failures_end_in_one_volume_and_no_delete() {
    let mut world = World::new("first").await;
    world.options.backend_timeout = Duration::from_millis(500);
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.once("provision", Trick::Fail(Class::Unavailable, "not now"));
    world.store.once("provision", Trick::Hang);
    world.store.once("provision", Trick::LoseReply);
    world.store.once("provision", Trick::Fail(Class::Unknown, "who knows"));
    world.store.once("provision", Trick::Pending(Duration::from_millis(50)));
    let claim = world.claim("data", &class, json!({})).await;
    let volume = world.bound("data").await;
    assert_eq!(world.store.volumes().into_keys().collect::<Vec<_>>(), [World::path_of(&volume)]);
    assert_eq!(world.store.count("delete", ""), 0, "{:#?}", world.store.calls());
    assert_eq!(world.store.count("plan", ""), 1, "one place");
    assert_eq!(world.store.count("provision", &uid(&claim)), 6);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn claims_are_served_though_events_are_forbidden() {
    let world = World::new("noevents").await;
    let (_, kubeconfig) = user_without(&world, "*", "events").await;
    let engine = world.start_as(&kubeconfig).await;
    let class = world.class("plain", json!({})).await;
    for number in 0..5 {
        world.claim(&format!("data-{number}"), &class, json!({})).await;
    }
    for number in 0..5 {
        world.bound(&format!("data-{number}")).await;
    }
    engine.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_verb_that_is_denied_is_named_on_the_claim_and_missed_no_longer_than_it_is() {
    // verb, resource, the claim's class binds late
    let cases = [
        ("create", "persistentvolumes", false),
        ("get", "persistentvolumeclaims", false),
        ("get", "nodes", true),
    ];
    for (verb, resource, late) in cases {
        let world = World::new("denied").await;
        let (user, kubeconfig) = user_without(&world, verb, resource).await;
        let engine = world.start_as(&kubeconfig).await;
        let mode = if late { "WaitForFirstConsumer" } else { "Immediate" };
        let class = world.class("plain", json!({ "volumeBindingMode": mode })).await;
        let claim = world.claim("data", &class, json!({})).await;
        if late {
            let node = world.node("a").await;
            world.select_node("data", &node).await;
        }
        let named = format!("needs the verb {verb} on {resource}");
        world.event(&uid(&claim), &["Warning ProvisioningFailed", &named]).await;
        if late {
            let immediate = world.class("immediate", json!({})).await;
            world.claim("other", &immediate, json!({})).await;
            world.bound("other").await;
            assert!(
                annotation(&world.claim_now("data").await, SELECTED_NODE).is_some(),
                "nobody knows that it is gone"
            );
        }
        grant_the_rest(&world, &user, verb, resource).await;
        world.bound("data").await;
        assert_eq!(world.store.count("delete", ""), 0, "{verb} {resource}");
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_choice_of_node_that_may_not_be_taken_back_is_told_and_taken_back_later() {
    let world = World::new("nopatch").await;
    let (user, kubeconfig) = user_without(&world, "patch", "persistentvolumeclaims").await;
    let _engine = world.start_as(&kubeconfig).await;
    let class = world.class("late", json!({ "volumeBindingMode": "WaitForFirstConsumer" })).await;
    let claim = world.claim("data", &class, json!({})).await;
    world.select_node("data", "ghost").await;
    world
        .event(
            &uid(&claim),
            &["Warning ProvisioningFailed", "needs the verb patch on persistentvolumeclaims"],
        )
        .await;
    grant_the_rest(&world, &user, "patch", "persistentvolumeclaims").await;
    world.unselected("data").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_watch_that_is_denied_is_named_by_readiness_and_nothing_is_made_without_it() {
    // Longer than the watcher's longest backoff.
    const LIMIT: Duration = Duration::from_secs(90);
    for resource in ["storageclasses", "persistentvolumes", "persistentvolumeclaims"] {
        let world = World::new("unseen").await;
        let (user, kubeconfig) = user_without(&world, "list", resource).await;
        let class = world.class("plain", json!({})).await;
        world.claim("data", &class, json!({})).await;
        let engine = world.start_as(&kubeconfig).await;
        let named = format!("needs the verb list on {resource}");
        let ready = || async { engine.health.ready() };
        eventually(&named, SOON, ready, |ready| ready.as_ref().is_err_and(|text| text.contains(&named)))
            .await
            .ok();
        assert_eq!(engine.health.alive(), Ok(()), "a restart would not help");
        assert_eq!(world.store.calls(), Vec::new(), "nothing is decided with half a picture");
        grant_the_rest(&world, &user, "list", resource).await;
        eventually("ready", LIMIT, ready, |ready| {
            ready.as_ref().is_ok_and(|text| !text.contains("needs the verb"))
        })
        .await
        .ok();
        world.bound("data").await;
        engine.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn an_operation_that_takes_its_time_frees_its_worker() {
    let mut world = World::new("pending").await;
    world.options.workers = 1;
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.once("provision", Trick::Pending(Duration::from_secs(3600)));
    let claim = world.claim("slow", &class, json!({})).await;
    world.called("provision", 1).await;
    world.event(&uid(&claim), &["Normal Provisioning", "it takes its time"]).await;
    world.claim("quick", &class, json!({})).await;
    world.bound("quick").await;
    a_while().await;
    assert!(world.volume_of(&uid(&claim)).await.is_none());
    // A change of the claim asks at once.
    world.patch_claim("slow", json!({ "metadata": { "labels": { "wake": "up" } } })).await;
    world.bound("slow").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the control plane: cargo xtask test"]
async fn a_class_wakes_its_own_claims_only() {
    let mut world = World::new("wakes").await;
    (world.options.backoff_base, world.options.backoff_max) =
        (Duration::from_hours(1), Duration::from_hours(1));
    let _engine = world.start().await;
    let class = world.class("plain", json!({})).await;
    world.store.always("plan", Trick::Fail(Class::Unavailable, "not now"));
    world.claim("data", &class, json!({})).await;
    world.called("plan", 1).await;
    a_while().await;
    let before = world.store.count("plan", "");
    world.class("other", json!({})).await;
    a_while().await;
    assert_eq!(world.store.count("plan", ""), before);
}
