//! Accidents that operators have, staged on the API server in this process: the event and `doctor` name the remedy. Those of a
//! node's disk are with the local-path backend.

#![allow(clippy::expect_used, clippy::panic, reason = "a test: its helpers may fail it")]

use serde_json::{Value, json};
use std::time::Duration;
use volwright_controller::cli::{ClusterArgs, LeaseArgs, ReleaseArgs, release_finalizers};
use volwright_controller::client::Clients;
use volwright_controller::doctor::{Finding, Report, Status, examine};
use volwright_controller::names;
use volwright_provisioner::Class;
use volwright_testkit::apiserver::{self, ApiServer, RequestInfo, Status as Refusal, cluster};
use volwright_testkit::memory::{Args, StoredVolume};
use volwright_testkit::{Harness, Memory, Options, Store, Trick};

const NAME: &str = "memory.volwright.io";
const SERVER: &str = "accident.server";

/// A cluster with controllers, an engine on it, and a class.
struct Accident {
    server: ApiServer,
    store: Store,
    engine: Option<Harness>,
    models: tokio::task::JoinHandle<()>,
}

impl Drop for Accident {
    fn drop(&mut self) {
        self.models.abort();
    }
}

impl Accident {
    /// Objects are a minute old when they are made: `doctor` leaves alone what is being worked on.
    fn new() -> Self {
        let clock = || k8s_openapi::jiff::Timestamp::now() - k8s_openapi::jiff::SignedDuration::from_secs(60);
        let server = ApiServer::new(apiserver::Options {
            clock: std::sync::Arc::new(clock),
            ..apiserver::Options::default()
        });
        let models = tokio::spawn(cluster::run(server.clone(), Duration::from_millis(5)));
        let accident = Self { server, store: Store::default(), engine: None, models };
        let namespace = json!({ "metadata": { "name": "kube-system" } });
        if accident.server.get("namespaces", "", "kube-system").is_err() {
            accident.server.create("namespaces", namespace).expect("a namespace");
        }
        accident
    }

    fn clients(&self) -> Clients {
        Clients::same(self.server.client())
    }

    fn begin(&mut self) {
        let engine = Harness::start(&Options::central(NAME), SERVER, self.clients(), self.store.clone());
        self.engine = Some(engine);
    }

    fn class(&self, name: &str, change: &Value) {
        let mut class = json!({ "metadata": { "name": name }, "provisioner": NAME });
        for (key, value) in change.as_object().into_iter().flatten() {
            class[key] = value.clone();
        }
        self.server.create("storageclasses", class).expect("a class");
    }

    /// Returns its uid.
    fn claim(&self, name: &str, class: &str, annotations: &Value) -> String {
        let claim = json!({
            "metadata": { "name": name, "namespace": "default", "annotations": annotations },
            "spec": { "storageClassName": class, "accessModes": ["ReadWriteOnce"],
                      "resources": { "requests": { "storage": "1Gi" } } },
        });
        let made = self.server.create("persistentvolumeclaims", claim).expect("a claim");
        made["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
    }

    /// Begins, and serves the claim `data`. Returns its uid and the name of its PV.
    async fn with_a_bound_claim(&mut self) -> (String, String) {
        self.class("fast", &json!({}));
        let uid = self.claim("data", "fast", &json!({}));
        self.begin();
        let name = format!("pvc-{uid}");
        self.until("the PV is bound", |server| {
            server.get("persistentvolumes", "", &name).is_ok_and(|pv| pv["status"]["phase"] == "Bound")
        })
        .await;
        (uid, name)
    }

    /// Waits for a Warning on this object that says `text`; every one of them must name the check to read on.
    async fn warned(&self, uid: &str, text: &str, check: &str) {
        let mut seen = Vec::new();
        for _ in 0..1000 {
            seen = self
                .server
                .list("events", "")
                .expect("events")
                .into_iter()
                .filter(|e| e["type"] == "Warning")
                .collect::<Vec<_>>();
            let found = seen.iter().find(|event| {
                event["involvedObject"]["uid"] == uid
                    && event["message"].as_str().unwrap_or_default().contains(text)
            });
            if let Some(event) = found {
                let note = event["message"].as_str().unwrap_or_default();
                assert!(note.ends_with(&format!("(doctor: {check})")), "{note}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("no Warning that says {text:?}: {seen:#?}");
    }

    async fn until(&self, what: &str, such: impl Fn(&ApiServer) -> bool) {
        for _ in 0..1000 {
            if such(&self.server) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("not within 20 s: {what}");
    }

    async fn doctor(&self) -> Report {
        let args = Args { server: SERVER.to_owned() };
        let lease = LeaseArgs { namespace: Some("volwright".to_owned()), ..LeaseArgs::default() };
        examine::<Memory>(&ClusterArgs::default(), &lease, args, &self.clients()).await.expect("a report")
    }
}

#[track_caller]
fn finding<'a>(report: &'a Report, subject: &str) -> &'a Finding {
    let found = report.findings.iter().find(|finding| finding.subject == subject);
    found.unwrap_or_else(|| panic!("nothing on {subject:?} in {report:#?}"))
}

#[track_caller]
fn says(finding: &Finding, status: Status, detail: &str, remedy: &str) {
    let told = finding.remedy.as_deref().unwrap_or_default();
    assert!(
        finding.status == status && finding.detail.contains(detail) && told.contains(remedy),
        "expected {status:?} {detail:?} -> {remedy:?}, found {finding:#?}"
    );
}

#[tokio::test]
async fn a_claim_whose_class_was_deleted_is_told_so() {
    let mut accident = Accident::new();
    accident.class("fast", &json!({}));
    let uid = accident.claim("data", "fast", &json!({ names::STORAGE_PROVISIONER: NAME }));
    accident.server.delete("storageclasses", "", "fast").expect("the class goes");
    accident.begin();
    accident.warned(&uid, "StorageClass \"fast\" does not exist", "claims").await;
    let report = accident.doctor().await;
    says(finding(&report, "claim default/data"), Status::Fail, "StorageClass \"fast\" does not exist", "");
    says(finding(&report, "storage classes"), Status::Note, "none names the provisioner", "make one");
}

#[tokio::test]
async fn a_claim_whose_node_is_gone_is_scheduled_anew_and_told_so() {
    let mut accident = Accident::new();
    accident.class("late", &json!({ "volumeBindingMode": "WaitForFirstConsumer" }));
    let asked = json!({ names::STORAGE_PROVISIONER: NAME, names::SELECTED_NODE: "gone" });
    let uid = accident.claim("data", "late", &asked);
    accident.begin();
    accident.warned(&uid, "the selected node \"gone\" does not exist any more", "claims").await;
    let report = accident.doctor().await;
    let claim = finding(&report, "claim default/data");
    assert_eq!(claim.status, Status::Note, "its pod is scheduled anew: {claim:#?}");
}

#[tokio::test]
async fn a_missing_right_is_named_with_its_rule() {
    let mut accident = Accident::new();
    accident.class("fast", &json!({}));
    accident.server.set_hook(|request: &RequestInfo| {
        let denied = request.verb == "create" && request.resource.plural == "persistentvolumes";
        denied.then(|| Refusal::forbidden(request.resource, &request.name, "no rule allows it"))
    });
    let uid = accident.claim("data", "fast", &json!({}));
    accident.begin();
    accident.warned(&uid, "needs the verb create on persistentvolumes", "claims").await;
    let report = accident.doctor().await;
    let right = finding(&report, "may create persistentvolumes");
    says(right, Status::Fail, "no claim gets its volume", "verbs: [create]");
    says(finding(&report, "claim default/data"), Status::Warn, "it can be served", "what else is wrong");
}

#[tokio::test]
async fn an_api_server_that_cannot_be_reached_is_the_only_finding() {
    let accident = Accident::new();
    let nobody = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, tower::BoxError>("connection refused".into())
    });
    let clients = Clients::same(kube::Client::new(nobody, "default"));
    let args = Args { server: SERVER.to_owned() };
    let report = examine::<Memory>(&ClusterArgs::default(), &LeaseArgs::default(), args, &clients)
        .await
        .expect("a report");
    drop(accident);
    let [only] = &report.findings[..] else { panic!("{report:#?}") };
    says(only, Status::Fail, "connection refused", "check the address in the kubeconfig");
}

#[tokio::test]
async fn a_storage_system_that_is_down_is_told_in_its_own_words() {
    let mut accident = Accident::new();
    accident.class("fast", &json!({}));
    accident
        .store
        .always("plan", Trick::Fail(Class::Unavailable, "no route to the filer; see its power cord"));
    let uid = accident.claim("data", "fast", &json!({}));
    accident.begin();
    accident.warned(&uid, "see its power cord", "claims").await;
    let report = accident.doctor().await;
    says(
        finding(&report, "claim default/data"),
        Status::Warn,
        "it can be served",
        "kubectl describe pvc -n default data",
    );
}

#[tokio::test]
async fn a_foreign_volume_in_the_way_is_told_with_both_ways_out() {
    let mut accident = Accident::new();
    accident.class("path", &json!({ "parameters": { "pathPattern": "${pvc.name}" } }));
    accident.store.put("/pool/data", StoredVolume { size: 1, ..StoredVolume::unmarked() });
    let uid = accident.claim("data", "path", &json!({}));
    accident.begin();
    accident.warned(&uid, "move it away, or choose another pathPattern", "claims").await;
}

#[tokio::test]
async fn a_foreign_pv_under_the_claims_name_is_told_by_event_and_doctor() {
    let mut accident = Accident::new();
    accident.class("fast", &json!({}));
    let uid = accident.claim("data", "fast", &json!({}));
    let foreign = json!({ "metadata": { "name": format!("pvc-{uid}") }, "spec": { "capacity": { "storage": "1Gi" },
        "accessModes": ["ReadWriteOnce"], "nfs": { "server": "elsewhere", "path": "/x" } } });
    accident.server.create("persistentvolumes", foreign).expect("a PV");
    accident.begin();
    accident.warned(&uid, "that this provisioner did not make", "claims").await;
    let report = accident.doctor().await;
    says(finding(&report, "claim default/data"), Status::Fail, "remove it or make the claim anew", "");
}

#[tokio::test]
async fn a_second_installation_is_told_where_the_first_is() {
    let accident = Accident::new();
    accident.class("fast", &json!({}));
    let lease = json!({
        "metadata": { "name": NAME, "namespace": "elsewhere", "labels": { names::PROVISIONER: names::provisioner_label(NAME) } },
        "spec": { "holderIdentity": "pod_1", "leaseDurationSeconds": 600,
                  "renewTime": k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime(k8s_openapi::jiff::Timestamp::now()) },
    });
    accident
        .server
        .create("namespaces", json!({ "metadata": { "name": "elsewhere" } }))
        .expect("a namespace");
    accident.server.create("leases", lease).expect("a lease");
    let report = accident.doctor().await;
    let other = finding(&report, "installation in namespace elsewhere");
    says(other, Status::Fail, "it serves memory.volwright.io too (pod_1)", "uninstall one of the two");
}

#[tokio::test]
async fn a_class_with_a_slip_in_its_provisioner_is_pointed_out() {
    let accident = Accident::new();
    accident
        .server
        .create(
            "storageclasses",
            json!({ "metadata": { "name": "slip" }, "provisioner": "memory.volwrigth.io" }),
        )
        .expect("a class");
    let report = accident.doctor().await;
    says(
        finding(&report, "storage class slip"),
        Status::Warn,
        "which is not memory.volwright.io",
        "make its claims anew",
    );
}

#[tokio::test]
async fn a_volume_that_waits_to_be_deleted_is_told_with_what_keeps_it() {
    let mut accident = Accident::new();
    let (_, name) = accident.with_a_bound_claim().await;
    let shred = json!({ "metadata": { "annotations": { names::ON_DELETE: "shred" } } });
    accident.server.patch("persistentvolumes", "", &name, &shred).expect("an edit");
    accident.server.delete("persistentvolumeclaims", "default", "data").expect("the claim goes");
    let pv = accident.server.get("persistentvolumes", "", &name).expect("the PV");
    let pv_uid = pv["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    accident.warned(&pv_uid, "nothing will be deleted; use", "volumes").await;
    let report = accident.doctor().await;
    says(
        finding(&report, &format!("volume {name}")),
        Status::Fail,
        "is \"shred\", so nothing will be deleted",
        "",
    );
}

#[tokio::test]
async fn an_uninstall_for_good_takes_the_finalizers_off_and_touches_no_data() {
    let mut accident = Accident::new();
    let (uid, name) = accident.with_a_bound_claim().await;
    accident.engine = None;
    let held = |server: &ApiServer| {
        let pv = server.get("persistentvolumes", "", &name).expect("the PV");
        pv["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|f| f == names::FINALIZER))
    };
    let release = async |apply: bool, stopped: bool| {
        let lease = LeaseArgs { leader_elect: false, ..LeaseArgs::default() };
        let (args, clients) = (ReleaseArgs { apply, stopped }, accident.clients());
        let backend = Args { server: SERVER.to_owned() };
        let mut out = Vec::new();
        let done =
            release_finalizers::<Memory>(&ClusterArgs::default(), &lease, args, &backend, &clients, &mut out)
                .await;
        (done.map_err(|error| error.to_string()), String::from_utf8(out).expect("text"))
    };
    let (done, text) = release(false, false).await;
    assert!(done == Ok(true) && held(&accident.server), "shown only: {text}");
    let line = format!(
        "{name} stays, bound to claim default/data; when that goes, the data stays at {SERVER}:/pool/{uid}\n"
    );
    assert!(text.starts_with(&line), "{text}");
    let (refused, _) = release(true, false).await;
    assert!(
        refused.is_err_and(|text| text.contains("uninstall it, and give --stopped"))
            && held(&accident.server)
    );
    let (done, text) = release(true, true).await;
    assert!(done == Ok(true) && !held(&accident.server), "{text}");
    let pv = accident.server.get("persistentvolumes", "", &name).expect("the PV");
    assert!(pv["metadata"]["annotations"][names::RELEASED].is_string(), "why is recorded: {pv:#}");
    assert_eq!(accident.store.volumes().len(), 1);
    accident.begin();
    accident.until("the finalizer is back with the provisioner", held).await;
}

#[tokio::test]
async fn a_class_whose_budget_is_spent_says_so_before_and_then_and_serves_again_when_it_is_raised() {
    let mut accident = Accident::new();
    let with = |budget: &str| json!({ "metadata": { "name": "scarce", "annotations": { (names::CAPACITY_BUDGET): budget } } });
    accident.class("scarce", &with("1Gi"));
    accident.begin();
    let first = accident.claim("first", "scarce", &json!({}));
    let is_bound = |uid: &str| {
        let name = format!("pvc-{uid}");
        move |server: &ApiServer| {
            server.get("persistentvolumes", "", &name).is_ok_and(|pv| pv["status"]["phase"] == "Bound")
        }
    };
    accident.until("the first is bound", is_bound(&first)).await;
    let class = accident.server.get("storageclasses", "", "scarce").expect("the class");
    accident.warned(class["metadata"]["uid"].as_str().unwrap_or_default(), "0 are left", "classes").await;
    let second = accident.claim("second", "scarce", &json!({}));
    let text = "1Gi are promised to 1 volumes, and 1Gi are asked for; delete volumes of the class, empty its trash, or raise the annotation";
    accident.warned(&second, text, "claims").await;
    accident.server.patch("storageclasses", "", "scarce", &with("2Gi")).expect("the budget is raised");
    accident.until("the second is bound", is_bound(&second)).await;
    accident.server.patch("storageclasses", "", "scarce", &with("some")).expect("a slip");
    let report = accident.doctor().await;
    says(finding(&report, "storage class scarce"), Status::Fail, "\"some\", which is no size", "");
}
