//! `doctor`: everything that serving claims needs, looked at one by one, with what to do about what is missing.
//!
//! Changes nothing: the questions about permissions are the API's own reviews, which are not stored.

mod access; // permissions
mod claims; // claims that wait, and for what
mod clock; // this clock and the API server's
mod config; // flags and class files, without a cluster
mod leadership; // lease and journal
mod pages; // long lists
mod volumes; // volumes that wait to be deleted, drivers that others need

pub use self::access::{Access, required_access};
pub use self::config::check_config;
pub(crate) use self::leadership::live_holder;

use self::access::{Flags, INSTALLATION_FLAG, look_at_access};
use crate::backend::{Backend, Typed};
use crate::cli::{ClusterArgs, LeaseArgs, RunError};
use crate::client::{Clients, chain, describe};
use crate::decide::budget::budget;
use crate::decide::claim::on_delete;
use crate::decide::{ClassView, Identity};
use crate::engine::context::{EngineContext, fetch_installation, fetch_node};
use crate::names::{CLAIMS_CHECK, CLASSES_CHECK, VOLUMES_CHECK};
use crate::objects::Class;
use clap::ValueEnum;
use kube::api::{Api, ListParams};
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
    /// Claims are served, and something waits for an operator.
    Warn,
    /// Serving claims suffers.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check that looked: one of [`CHECKS`], which Warning events name too.
    pub check: &'static str,
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

/// The checks, in the order of looking.
pub const CHECKS: [&str; 10] = [
    "api-server",
    "clock",
    "access",
    "leader",
    "installation",
    "node",
    "backend",
    CLASSES_CHECK,
    CLAIMS_CHECK,
    VOLUMES_CHECK,
];

/// All that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order of looking.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    check: &'static str,
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
        for Finding { check: _, subject, status, detail, remedy } in &self.findings {
            let word = match status {
                Status::Ok => "ok  ",
                Status::Note => "note",
                Status::Warn => "warn",
                Status::Fail => "FAIL",
            };
            writeln!(to, "{word}  {subject}: {detail}")?;
            if let Some(remedy) = remedy {
                writeln!(to, "      -> {remedy}")?;
            }
        }
        let count = |status| self.findings.iter().filter(|finding| finding.status == status).count();
        match count(Status::Fail) {
            0 if count(Status::Warn) > 0 => writeln!(to, "\nClaims are served, but mind the warnings."),
            0 => writeln!(to, "\nAll is well."),
            1 => writeln!(to, "\n1 thing is wrong."),
            n => writeln!(to, "\n{n} things are wrong."),
        }
    }

    /// Leaves out what other checks found; an empty list leaves all.
    pub fn only(&mut self, checks: &[String]) {
        self.findings
            .retain(|finding| checks.is_empty() || checks.iter().any(|check| check == finding.check));
    }

    /// What is found from here on was found by this check.
    fn begin(&mut self, check: &'static str) {
        self.check = check;
    }

    fn add(&mut self, subject: impl Into<String>, status: Status, detail: impl Into<String>) {
        let (subject, detail) = (subject.into(), detail.into());
        self.findings.push(Finding { check: self.check, subject, status, detail, remedy: None });
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
    lease: &LeaseArgs,
    args: P::Args,
    clients: &Clients,
) -> Result<Report, RunError> {
    let placement = P::placement(&args).map_err(|failure| RunError::Config(chain(&failure)))?;
    let names = cluster.names(P::BACKEND);
    let client = &clients.requests;
    let mut report = Report::default();
    report.begin("api-server");
    if !look_at_server(&mut report, client).await {
        return Ok(report);
    }
    report.begin("clock");
    clock::look(&mut report, client).await;
    let namespace = lease.namespace_or(client);
    let flags = Flags {
        has_installation: cluster.installation_id.is_some(),
        leader_elect: lease.leader_elect,
        namespace,
    };
    report.begin("access");
    look_at_access(&mut report, client, &placement, &flags).await;
    report.begin("leader");
    if placement == Placement::Central {
        let name = names.first().map_or("", String::as_str);
        leadership::look(&mut report, client, namespace, name, lease.leader_elect).await;
    }
    report.begin("installation");
    let installation = look_at_installation(&mut report, client, cluster).await;
    report.begin("node");
    let node = look_at_node(&mut report, client, &placement).await;
    report.begin("backend");
    let backend = if let (Some(installation), Some(node)) = (installation, node) {
        let context = EngineContext::new(client.clone(), installation, node, names.clone(), DEADLINE);
        connect_backend::<P>(&mut report, args, context).await
    } else {
        report.add("backend", Status::Note, "not looked at, since it needs what failed above");
        None
    };
    if let Some(backend) = &backend {
        look_at_backend(&mut report, &**backend).await;
    }
    report.begin(CLASSES_CHECK);
    let classes = look_at_classes(&mut report, client, &names, backend.as_deref()).await;
    let node = match placement {
        Placement::PerNode { node } => Some(node),
        Placement::Central => None,
    };
    let identity = Identity { names, node, ..Identity::default() };
    report.begin(CLAIMS_CHECK);
    claims::look(&mut report, client, &identity, &classes, backend.as_deref()).await;
    report.begin(VOLUMES_CHECK);
    volumes::look(&mut report, client, &identity, backend.as_deref()).await;
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

/// Returns all classes, whosever they are.
async fn look_at_classes(
    report: &mut Report,
    client: &Client,
    names: &[String],
    backend: Option<&dyn Backend>,
) -> Vec<ClassView> {
    let api: Api<Class> = Api::all(client.clone());
    let classes: Vec<_> = match within(api.list(&ListParams::default())).await {
        Ok(list) => list.items.iter().map(Class::view).collect(),
        Err(error) => {
            report.fail("storage classes", error.text("list", "storageclasses.storage.k8s.io"));
            return Vec::new();
        }
    };
    let before = report.findings.len();
    for class in classes.iter().filter(|class| names.contains(&class.provisioner)).take(MAX_CLASSES) {
        look_at_class(report, class, backend);
    }
    if report.findings.len() == before {
        report.add(
            "storage classes",
            Status::Note,
            format!("none names the provisioner {}", names.join(" or ")),
        );
        report.remedy("make one, or install the chart with a class");
    }
    for class in classes.iter().filter(|class| is_nearly_ours(&class.provisioner, names)).take(MAX_CLASSES) {
        report.add(
            format!("storage class {}", class.name),
            Status::Warn,
            format!("names the provisioner {:?}, which is not {}", class.provisioner, names.join(" or ")),
        );
        report.remedy(
            "if this provisioner was meant: delete the class, make it again with that name, and make its claims anew",
        );
    }
    classes
}

/// A slip of the hand? Its claims would wait for ever, and nobody would say why.
fn is_nearly_ours(provisioner: &str, names: &[String]) -> bool {
    let slip = |name: &String| strsim::damerau_levenshtein(name, provisioner) == 1;
    names.iter().all(|name| name != provisioner) && names.iter().any(slip)
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
    // An annotation can be changed.
    if let Err(text) = budget(class) {
        report.fail(subject.clone(), text);
    }
    // All at once: a class cannot be changed, only made anew.
    let mut problems = backend.parameter_problems(&class.parameters);
    problems.extend(on_delete(class).err());
    match backend.capabilities(&class.parameters) {
        Ok(offered) if problems.is_empty() => match offered.binding {
            Binding::LateOnly { reason } if !class.late_binding => {
                report.fail(
                    subject,
                    format!("has volumeBindingMode Immediate, which does not work here: {reason}"),
                );
                report.remedy("delete it and make it again with volumeBindingMode: WaitForFirstConsumer");
            }
            _ => report.ok(subject, "its parameters are understood"),
        },
        _ => {
            report.fail(subject, problems.join("; "));
            report.remedy(
                "classes cannot be changed: delete this one and make it again with the right parameters",
            );
        }
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
