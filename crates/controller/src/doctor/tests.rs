//! Against a scripted API server.

use super::*;
use crate::cli::shelf::{Args, Shelf};
use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::BoxError;

/// A cluster where all is well, but for what `denied` says about (verb, resource) and the given classes.
fn cluster(denied: &'static [(&'static str, &'static str)], classes: Value) -> Clients {
    let service = tower::service_fn(move |request: Request<Body>| {
        let classes = classes.clone();
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
                (Method::GET, "/apis/storage.k8s.io/v1/storageclasses") => {
                    (200, json!({ "metadata": {}, "items": classes }))
                }
                _ => (
                    404,
                    json!({ "status": "Failure", "code": 404, "reason": "NotFound", "message": "no such thing" }),
                ),
            };
            let body = Body::from(serde_json::to_vec(&answer)?);
            Ok::<_, BoxError>(Response::builder().status(code).body(body)?)
        }
    });
    Clients::same(Client::new(service, "default"))
}

fn class(name: &str, provisioner: &str, parameters: &Value) -> Value {
    json!({ "metadata": { "name": name, "uid": name }, "provisioner": provisioner, "parameters": parameters })
}

async fn examine_with(clients: Clients, node: Option<&str>, mood: &str) -> Report {
    let args = Args { node: node.map(str::to_owned), mood: mood.to_owned() };
    examine::<Shelf>(&ClusterArgs::default(), args, &clients).await.unwrap()
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
    assert!(report.findings.iter().all(|f| !f.subject.contains("volumeattachments")), "{report:#?}");
    let report = examine_with(cluster(&[], json!([])), Some("worker-2"), "well").await;
    assert!(finding(&report, "node worker-2").detail.contains("spec.nodeName"), "{report:#?}");
    assert_eq!(finding(&report, "backend").status, Status::Note);
    let empty = Args { node: Some(String::new()), mood: String::new() };
    let error = examine::<Shelf>(&ClusterArgs::default(), empty, &cluster(&[], json!([]))).await.unwrap_err();
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
        let keys: std::collections::BTreeSet<_> = all.iter().map(|a| (a.group, a.resource, a.verb)).collect();
        assert_eq!(keys.len(), all.len());
        assert!(all.iter().all(|a| !a.why.is_empty()));
    }
}
