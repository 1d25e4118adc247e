//! Against a scripted API server.

use super::*;
use crate::cli::shelf::{Args, Shelf};
use http::{Method, Request, Response};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

/// A cluster where all is well, but for what `denied` says about (verb, resource) and the given classes.
fn cluster(denied: &'static [(&'static str, &'static str)], classes: Value) -> Clients {
    cluster_with(denied, classes, json!({}))
}

/// The same, with a journal that has these annotations.
fn cluster_with(denied: &'static [(&'static str, &'static str)], classes: Value, journal: Value) -> Clients {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (classes, journal) = (classes.clone(), journal.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let (code, answer) = match (head.method, head.uri.path()) {
                (Method::GET, "/version") => (
                    200,
                    json!({ "major": "1", "minor": "35", "gitVersion": "v1.35.4", "gitCommit": "", "gitTreeState": "",
                            "buildDate": "", "goVersion": "", "compiler": "", "platform": "" }),
                ),
                (Method::POST, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") => {
                    let mut review: Value = serde_json::from_slice(&body)?;
                    let asked = &review["spec"]["resourceAttributes"];
                    let pair = (asked["verb"].as_str().unwrap(), asked["resource"].as_str().unwrap());
                    review["status"] = json!({ "allowed": !denied.contains(&pair) });
                    (201, review)
                }
                (Method::GET, "/api/v1/namespaces/kube-system" | "/api/v1/nodes/worker-1") => (
                    200,
                    json!({ "metadata": { "uid": "u-1", "labels": { "kubernetes.io/hostname": "w1" } } }),
                ),
                (
                    Method::GET,
                    "/apis/coordination.k8s.io/v1/namespaces/default/leases/shelf.volwright.io",
                ) => {
                    let spec = json!({ "holderIdentity": "shelf-0_1", "renewTime": MicroTime(Timestamp::now()),
                                       "leaseDurationSeconds": 15 });
                    (200, json!({ "metadata": {}, "spec": spec }))
                }
                (Method::GET, "/api/v1/namespaces/default/configmaps/shelf.volwright.io-journal-0") => {
                    (200, json!({ "metadata": { "annotations": journal } }))
                }
                (Method::GET, "/apis/storage.k8s.io/v1/storageclasses") => {
                    (200, json!({ "metadata": {}, "items": classes }))
                }
                (
                    Method::GET,
                    "/apis/coordination.k8s.io/v1/leases"
                    | "/api/v1/persistentvolumeclaims"
                    | "/api/v1/persistentvolumes",
                ) => (200, json!({ "metadata": {}, "items": [] })),
                _ => (
                    404,
                    json!({ "status": "Failure", "code": 404, "reason": "NotFound", "message": "no such thing" }),
                ),
            };
            let body = Body::from(serde_json::to_vec(&answer)?);
            let date = Timestamp::now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            Ok::<_, BoxError>(Response::builder().status(code).header(http::header::DATE, date).body(body)?)
        }
    });
    Clients::same(Client::new(service, "default"))
}

fn class(name: &str, provisioner: &str, parameters: &Value) -> Value {
    json!({ "metadata": { "name": name, "uid": name }, "provisioner": provisioner, "parameters": parameters })
}

async fn examine_with(clients: Clients, node: Option<&str>, mood: &str) -> Report {
    let args = Args { node: node.map(str::to_owned), mood: mood.to_owned() };
    examine::<Shelf>(&ClusterArgs::default(), &LeaseArgs::default(), args, &clients).await.unwrap()
}

#[track_caller]
fn finding<'a>(report: &'a Report, subject: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("no finding on {subject:?} in {report:#?}"))
}

#[tokio::test]
async fn a_good_cluster_is_only_let_down_by_the_wall() {
    let classes =
        json!([class("fast", "shelf.volwright.io", &json!({})), class("ebs", "ebs.csi.aws.com", &json!({}))]);
    let report = examine_with(cluster(&[], classes), None, "well").await;
    let failed: Vec<_> =
        report.findings.iter().filter(|f| f.status != Status::Ok).map(|f| &f.subject).collect();
    assert_eq!(failed, ["wall"], "{report:#?}");
    assert!(!report.is_well());
    assert_eq!(finding(&report, "API server").detail, "answers, version v1.35.4");
    assert_eq!(finding(&report, "storage class fast").status, Status::Ok);
    let mut text = Vec::new();
    report.write(Output::Text, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(text.contains("ok    may create persistentvolumes: yes\n"), "{text}");
    assert!(text.contains("FAIL  wall: has a crack: see a mason\n"), "{text}");
    assert!(text.ends_with("\n1 thing is wrong.\n"), "{text}");
    let mut text = Vec::new();
    report.write(Output::Json, &mut text).unwrap();
    let value: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(value["well"], false);
    assert_eq!(value["findings"][0]["status"], "ok");
}

#[tokio::test]
async fn a_missing_permission_names_the_rule() {
    let denied = &[("patch", "persistentvolumes"), ("get", "namespaces"), ("create", "events")];
    let report = examine_with(cluster(denied, json!([])), None, "well").await;
    let one = finding(&report, "may patch persistentvolumes");
    assert_eq!(one.status, Status::Fail);
    assert!(one.detail.contains("deletes never end"), "{one:?}");
    let remedy = one.remedy.as_deref().unwrap();
    assert!(
        remedy.ends_with(r#"{apiGroups: [""], resources: [persistentvolumes], verbs: [patch]}"#),
        "{remedy}"
    );
    let remedy = finding(&report, "may get namespaces").remedy.as_deref().unwrap();
    assert!(remedy.ends_with("or give --installation-id"), "{remedy}");
    assert_eq!(finding(&report, "may create events.events.k8s.io").status, Status::Fail);
    assert_eq!(finding(&report, "storage classes").status, Status::Note);
}

#[tokio::test]
async fn leadership_needs_rights_in_its_namespace_and_names_the_leader() {
    let denied = &[("update", "leases"), ("list", "leases"), ("create", "configmaps")];
    let report = examine_with(cluster(denied, json!([])), None, "well").await;
    for (subject, role) in [
        ("may update leases.coordination.k8s.io in default", "add to a Role in default:"),
        ("may list leases.coordination.k8s.io", "add to the ClusterRole:"),
        ("may create configmaps in default", "add to a Role in default:"),
    ] {
        let one = finding(&report, subject);
        assert_eq!(one.status, Status::Fail, "{one:?}");
        assert!(one.remedy.as_deref().unwrap().starts_with(role), "{one:?}");
    }
    let remedy = finding(&report, "may list leases.coordination.k8s.io").remedy.clone().unwrap();
    assert!(remedy.ends_with("or give --leader-elect=false"), "{remedy}");
    let leader = finding(&report, "leader, by the lease default/shelf.volwright.io");
    assert!(leader.detail.starts_with("shelf-0_1, renewed "), "{leader:?}");

    let alone =
        LeaseArgs { leader_elect: false, namespace: Some("elsewhere".to_owned()), ..LeaseArgs::default() };
    let args = Args { node: None, mood: "well".to_owned() };
    let clients = cluster(denied, json!([]));
    let report = examine::<Shelf>(&ClusterArgs::default(), &alone, args, &clients).await.unwrap();
    assert!(report.findings.iter().all(|f| !f.subject.contains("lease")), "{report:#?}");
    assert_eq!(finding(&report, "may create configmaps in elsewhere").status, Status::Fail);
    assert!(finding(&report, "deletes").detail.contains("no journal elsewhere/"), "{report:#?}");
}

#[tokio::test]
async fn stopped_deletes_are_a_warning_with_the_command_that_acknowledges() {
    let journal = json!({ crate::names::DELETES_STOPPED: "etcd was restored" });
    let report = examine_with(cluster_with(&[], json!([]), journal), None, "well").await;
    let deletes = finding(&report, "deletes");
    assert_eq!((deletes.status, deletes.detail.as_str()), (Status::Warn, "stopped: etcd was restored"));
    assert_eq!(
        deletes.remedy.as_deref(),
        Some(
            "kubectl annotate configmap -n default shelf.volwright.io-journal-0 volwright.io/deletes-stopped-"
        )
    );
    let mut only = Report { findings: vec![deletes.clone()], ..Report::default() };
    let mut text = Vec::new();
    only.write(Output::Text, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().ends_with("\nClaims are served, but mind the warnings.\n"));
    assert!(only.is_well());
    only.fail("x", "y");
    assert!(!only.is_well());
}

#[tokio::test]
async fn classes_are_read_as_the_engine_reads_them() {
    let classes = json!([
        class("typo", "shelf.volwright.io", &json!({ "lat": "true" })),
        class("early", "shelf.volwright.io", &json!({ "late": "true" })),
    ]);
    let report = examine_with(cluster(&[], classes.clone()), None, "well").await;
    let typo = finding(&report, "storage class typo");
    assert!(typo.detail.contains("unknown field `lat`, expected `late`"), "{typo:?}");
    let early = finding(&report, "storage class early");
    assert!(early.detail.contains("a shelf hangs on one node"), "{early:?}");
    assert!(early.remedy.as_deref().unwrap().contains("WaitForFirstConsumer"), "{early:?}");

    let report = examine_with(cluster(&[], classes), None, "unavailable").await;
    assert_eq!(finding(&report, "backend").detail, "the shelf has fallen");
    assert_eq!(finding(&report, "storage class typo").status, Status::Note);
}

#[tokio::test]
async fn an_agent_needs_its_node() {
    let report = examine_with(cluster(&[], json!([])), Some("worker-1"), "well").await;
    assert_eq!(finding(&report, "node worker-1").status, Status::Ok);
    for central in ["volumeattachments", "leases", "leader", "deletes"] {
        assert!(report.findings.iter().all(|f| !f.subject.contains(central)), "{central}: {report:#?}");
    }
    let report = examine_with(cluster(&[], json!([])), Some("worker-2"), "well").await;
    assert!(finding(&report, "node worker-2").detail.contains("spec.nodeName"), "{report:#?}");
    assert_eq!(finding(&report, "backend").status, Status::Note);
    let empty = Args { node: Some(String::new()), mood: String::new() };
    let clients = cluster(&[], json!([]));
    let error =
        examine::<Shelf>(&ClusterArgs::default(), &LeaseArgs::default(), empty, &clients).await.unwrap_err();
    assert_eq!(error.exit_code(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_ends_the_looking() {
    let silent =
        tower::service_fn(|_: Request<Body>| std::future::pending::<Result<Response<Body>, BoxError>>());
    let report = examine_with(Clients::same(Client::new(silent, "default")), None, "well").await;
    assert_eq!(report.findings.len(), 1);
    assert!(report.findings[0].detail.contains("no answer within 10 s"), "{report:#?}");
}

#[test]
fn the_table_has_no_doubles_and_gives_reasons() {
    for placement in [Placement::Central, Placement::PerNode { node: "n".into() }] {
        let all = required_access(&placement);
        let keys: std::collections::BTreeSet<_> =
            all.iter().map(|a| (a.group, a.resource, a.verb, a.own_namespace)).collect();
        assert_eq!(keys.len(), all.len());
        assert!(all.iter().all(|a| !a.why.is_empty()));
    }
}
