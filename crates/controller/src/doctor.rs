//! `doctor`: everything that serving claims needs, looked at one by one, with what to do about what is missing.
//!
//! Changes nothing: the questions about permissions are the API's own reviews, which are not stored.

use crate::backend::{Backend, Typed};
use crate::cli::{ClusterArgs, RunError};
use crate::client::{Clients, chain, describe};
use crate::decide::ClassView;
use crate::engine::context::{EngineContext, fetch_installation, fetch_node};
use crate::objects::Class;
use clap::ValueEnum;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, Error};
use serde::Serialize;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use volwright_provisioner::{Binding, InstallationId, NodeInfo, Placement, Provisioner};

/// Deadline of one question. Somebody is waiting at a terminal.
const DEADLINE: Duration = Duration::from_secs(10);

/// Deadline of what the backend does: several servers may each take their time to time out.
const BACKEND_DEADLINE: Duration = Duration::from_secs(60);

/// Storage classes that are looked at. There are fewer everywhere; more would only make the report unreadable.
const MAX_CLASSES: usize = 200;

/// One permission that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Access {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name.
    pub resource: &'static str,
    /// As RBAC spells it.
    pub verb: &'static str,
    /// What does not work without it.
    pub why: &'static str,
    /// The flag that makes it needless.
    pub unless: Option<&'static str>,
}

impl Access {
    /// Resource and group, as `kubectl auth can-i` spells them.
    pub fn resource_and_group(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

/// The flag that names the installation.
const INSTALLATION_FLAG: &str = "--installation-id";

/// What the engine must be allowed to do, cluster-wide. The charts' ClusterRoles are checked against it.
pub fn required_access(placement: &Placement) -> Vec<Access> {
    let access = |group, resource, verb, why| Access { group, resource, verb, why, unless: None };
    let mut all = vec![
        access(
            "",
            "persistentvolumeclaims",
            "get",
            "no volume is made, since each claim is read once more just before",
        ),
        access("", "persistentvolumeclaims", "list", "claims are not seen at all"),
        access("", "persistentvolumeclaims", "watch", "new claims are not seen"),
        access(
            "",
            "persistentvolumeclaims",
            "patch",
            "the scheduler cannot be asked for another node when one is full",
        ),
        access(
            "",
            "persistentvolumes",
            "get",
            "nothing is deleted, since each volume is read once more just before",
        ),
        access("", "persistentvolumes", "list", "volumes are not seen at all"),
        access("", "persistentvolumes", "watch", "released volumes are not seen"),
        access("", "persistentvolumes", "create", "no claim gets its volume"),
        access(
            "",
            "persistentvolumes",
            "patch",
            "finalizers cannot be put on or taken off, so deletes never end",
        ),
        access("", "persistentvolumes", "delete", "released volumes stay"),
        access("storage.k8s.io", "storageclasses", "get", "a single class cannot be read again"),
        access("storage.k8s.io", "storageclasses", "list", "classes are not seen at all"),
        access("storage.k8s.io", "storageclasses", "watch", "new classes are not seen"),
        access(
            "",
            "nodes",
            "get",
            "late binding does not work, since the chosen node's labels are not known",
        ),
        access("events.k8s.io", "events", "create", "users do not see why their claims wait"),
        access("events.k8s.io", "events", "patch", "repeated events are not counted"),
        Access {
            unless: Some(INSTALLATION_FLAG),
            ..access(
                "",
                "namespaces",
                "get",
                "there is no uid of kube-system to mark volumes as this cluster's",
            )
        },
    ];
    if let Placement::PerNode { .. } = placement {
        let why = "a class with Immediate binding is not told of, or by every node at once";
        all.push(access("events.k8s.io", "events", "list", why));
    }
    if *placement == Placement::Central {
        let why = "nothing is deleted, since it might still be attached somewhere";
        all.push(access("storage.k8s.io", "volumeattachments", "list", why));
    }
    all
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people: a line each, and a line with the remedy.
    Text,
    /// For programs.
    Json,
}

/// How something was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it must be.
    Ok,
    /// Nothing is wrong, but the reader may have expected something else.
    Note,
    /// Serving claims suffers.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// How it was found.
    pub status: Status,
    /// In words.
    pub detail: String,
    /// What to do, where something must be done and the detail does not say so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// All that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of looking.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Did nothing fail?
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.status != Status::Fail)
    }

    /// Writes it.
    pub fn write(&self, output: Output, to: &mut impl Write) -> io::Result<()> {
        if output == Output::Json {
            serde_json::to_writer_pretty(
                &mut *to,
                &serde_json::json!({ "well": self.is_well(), "findings": self.findings }),
            )?;
            return writeln!(to);
        }
        for Finding { subject, status, detail, remedy } in &self.findings {
            let word = match status {
                Status::Ok => "ok  ",
                Status::Note => "note",
                Status::Fail => "FAIL",
            };
            writeln!(to, "{word}  {subject}: {detail}")?;
            if let Some(remedy) = remedy {
                writeln!(to, "      -> {remedy}")?;
            }
        }
        let failed = self.findings.iter().filter(|finding| finding.status == Status::Fail).count();
        match failed {
            0 => writeln!(to, "\nAll is well."),
            1 => writeln!(to, "\n1 thing is wrong."),
            n => writeln!(to, "\n{n} things are wrong."),
        }
    }

    fn add(&mut self, subject: impl Into<String>, status: Status, detail: impl Into<String>) {
        self.findings.push(Finding { subject: subject.into(), status, detail: detail.into(), remedy: None });
    }

    fn ok(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        self.add(subject, Status::Ok, detail);
    }

    fn fail(&mut self, subject: impl Into<String>, detail: impl Into<String>) {
        self.add(subject, Status::Fail, detail);
    }

    fn remedy(&mut self, text: impl Into<String>) {
        if let Some(last) = self.findings.last_mut() {
            last.remedy = Some(text.into());
        }
    }
}

/// Looks at everything. Only wrong flags are an error; all else is in the report.
pub async fn examine<P: Provisioner>(
    cluster: &ClusterArgs,
    args: P::Args,
    clients: &Clients,
) -> Result<Report, RunError> {
    let placement = P::placement(&args).map_err(|failure| RunError::Config(chain(&failure)))?;
    let names = cluster.names(P::BACKEND);
    let client = &clients.requests;
    let mut report = Report::default();
    if !look_at_server(&mut report, client).await {
        return Ok(report);
    }
    look_at_access(&mut report, client, &placement, cluster.installation_id.is_some()).await;
    let installation = look_at_installation(&mut report, client, cluster).await;
    let node = look_at_node(&mut report, client, &placement).await;
    let backend = if let (Some(installation), Some(node)) = (installation, node) {
        let context = EngineContext::new(client.clone(), installation, node, names.clone(), DEADLINE);
        connect_backend::<P>(&mut report, args, context).await
    } else {
        report.add("backend", Status::Note, "not looked at, since it needs what failed above");
        None
    };
    look_at_classes(&mut report, client, &names, backend.as_deref()).await;
    if let Some(backend) = backend {
        look_at_backend(&mut report, &*backend).await;
    }
    Ok(report)
}

/// Without the API server nothing else can be looked at.
async fn look_at_server(report: &mut Report, client: &Client) -> bool {
    match within(client.apiserver_version()).await {
        Ok(version) => report.ok("API server", format!("answers, version {}", version.git_version)),
        Err(error) => {
            report.fail("API server", error.text("get", "the version"));
            report.remedy(
                "check the address in the kubeconfig, or network policies and KUBERNETES_SERVICE_HOST in a pod",
            );
            return false;
        }
    }
    true
}

async fn look_at_access(report: &mut Report, client: &Client, placement: &Placement, has_installation: bool) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for access in required_access(placement) {
        if has_installation && access.unless == Some(INSTALLATION_FLAG) {
            continue;
        }
        let subject = format!("may {} {}", access.verb, access.resource_and_group());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(access.group.to_owned()),
                    resource: Some(access.resource.to_owned()),
                    verb: Some(access.verb.to_owned()),
                    ..ResourceAttributes::default()
                }),
                ..SelfSubjectAccessReviewSpec::default()
            },
            ..SelfSubjectAccessReview::default()
        };
        match within(reviews.create(&PostParams::default(), &review)).await {
            Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => {
                report.ok(subject, "yes");
            }
            Ok(_) => {
                report.fail(subject, format!("no; without it {}", access.why));
                report.remedy(match access.unless {
                    Some(flag) => format!("{}, or give {flag}", rule(&access)),
                    None => rule(&access),
                });
            }
            Err(error) => {
                report.fail(subject, error.text("create", "selfsubjectaccessreviews.authorization.k8s.io"));
            }
        }
    }
}

fn rule(access: &Access) -> String {
    format!(
        "add to the ClusterRole: {{apiGroups: [{:?}], resources: [{}], verbs: [{}]}}",
        access.group, access.resource, access.verb
    )
}

async fn look_at_installation(
    report: &mut Report,
    client: &Client,
    cluster: &ClusterArgs,
) -> Option<InstallationId> {
    let subject = "installation";
    if let Some(given) = cluster.installation() {
        report.ok(subject, format!("{given}, by {INSTALLATION_FLAG}"));
        return Some(given);
    }
    match fetch_installation(client, DEADLINE).await {
        Ok(found) => {
            report.ok(subject, format!("{found}, the uid of the namespace kube-system"));
            Some(found)
        }
        Err(failure) => {
            report.fail(subject, failure.message());
            None
        }
    }
}

/// `None`: there must be one, and it cannot be had.
async fn look_at_node(
    report: &mut Report,
    client: &Client,
    placement: &Placement,
) -> Option<Option<NodeInfo>> {
    let Placement::PerNode { node } = placement else { return Some(None) };
    match fetch_node(client, node, DEADLINE).await {
        Ok(found) => {
            report.ok(format!("node {node}"), "is there");
            if !found.labels.contains_key("kubernetes.io/hostname") {
                report.fail(
                    format!("node {node}"),
                    "has no label kubernetes.io/hostname, by which volumes are bound to it",
                );
                report.remedy(format!("kubectl label node {node} kubernetes.io/hostname={node}"));
            }
            Some(Some(found))
        }
        Err(failure) => {
            report.fail(format!("node {node}"), failure.message());
            None
        }
    }
}

async fn connect_backend<P: Provisioner>(
    report: &mut Report,
    args: P::Args,
    context: EngineContext,
) -> Option<Box<dyn Backend>> {
    match timeout(BACKEND_DEADLINE, P::connect(args, Arc::new(context))).await {
        Ok(Ok(provisioner)) => {
            report.ok("backend", format!("{} can start", P::BACKEND));
            return Some(Box::new(Typed::new(Arc::new(provisioner))));
        }
        Ok(Err(failure)) => report.fail("backend", chain(&failure)),
        Err(_) => {
            report.fail("backend", format!("did not get ready within {} s", BACKEND_DEADLINE.as_secs()));
        }
    }
    None
}

async fn look_at_classes(
    report: &mut Report,
    client: &Client,
    names: &[String],
    backend: Option<&dyn Backend>,
) {
    let api: Api<Class> = Api::all(client.clone());
    let classes = match within(api.list(&ListParams::default())).await {
        Ok(list) => list.items,
        Err(error) => {
            report.fail("storage classes", error.text("list", "storageclasses.storage.k8s.io"));
            return;
        }
    };
    let ours = classes.iter().map(Class::view).filter(|class| names.contains(&class.provisioner));
    let before = report.findings.len();
    for class in ours.take(MAX_CLASSES) {
        look_at_class(report, &class, backend);
    }
    if report.findings.len() == before {
        report.add(
            "storage classes",
            Status::Note,
            format!("none names the provisioner {}", names.join(" or ")),
        );
        report.remedy("make one, or install the chart with a class");
    }
}

fn look_at_class(report: &mut Report, class: &ClassView, backend: Option<&dyn Backend>) {
    let subject = format!("storage class {}", class.name);
    let Some(backend) = backend else {
        report.add(
            subject,
            Status::Note,
            "its parameters are not looked at, since the backend did not start",
        );
        return;
    };
    match backend.capabilities(&class.parameters) {
        Err(failure) => {
            report.fail(subject, chain(&failure));
            report.remedy(
                "classes cannot be changed: delete this one and make it again with the right parameters",
            );
        }
        Ok(offered) => match offered.binding {
            Binding::LateOnly { reason } if !class.late_binding => {
                report.fail(
                    subject,
                    format!("has volumeBindingMode Immediate, which does not work here: {reason}"),
                );
                report.remedy("delete it and make it again with volumeBindingMode: WaitForFirstConsumer");
            }
            _ => report.ok(subject, "its parameters are understood"),
        },
    }
}

async fn look_at_backend(report: &mut Report, backend: &dyn Backend) {
    let Ok(checks) = timeout(BACKEND_DEADLINE, backend.check()).await else {
        report.fail("backend", format!("its own checks did not end within {} s", BACKEND_DEADLINE.as_secs()));
        return;
    };
    for check in checks {
        match check.outcome {
            Ok(detail) => report.ok(check.subject, detail),
            Err(detail) => report.fail(check.subject, detail),
        }
    }
}

enum CallError {
    Api(Box<Error>),
    Deadline,
}

impl CallError {
    fn text(&self, verb: &str, resource: &str) -> String {
        match self {
            Self::Api(error) => describe(error, verb, resource),
            Self::Deadline => format!("{verb} {resource}: no answer within {} s", DEADLINE.as_secs()),
        }
    }
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, CallError> {
    match timeout(DEADLINE, request).await {
        Ok(answer) => answer.map_err(|error| CallError::Api(Box::new(error))),
        Err(_) => Err(CallError::Deadline),
    }
}

#[cfg(test)]
mod tests;
