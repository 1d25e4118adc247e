//! Claims that wait for us, and for what: by the same decisions that the engine makes.

use crate::backend::Backend;
use crate::decide::claim::{Route, Why, route, terms};
use crate::decide::expand::{Step, Why as Grown, may_want, step};
use crate::decide::volume::HandleState;
use crate::decide::{ClaimView, ClassView, Identity};
use crate::engine::OurVolume;
use crate::names;
use crate::objects::{Claim, Volume};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use volwright_provisioner::{Growth, format_bytes};

use super::volumes::readable;
use super::{Finding, Report, Status, pages, within};

/// A younger claim is being worked on.
const YOUNG: i64 = 10;

/// Told one by one; more would bury the rest of the report.
const TOLD: usize = 20;

/// A claim without a volume.
struct Waiting {
    view: ClaimView,
    seconds: i64,
}

pub(super) async fn look(
    report: &mut Report,
    client: &Client,
    identity: &Identity,
    classes: &[ClassView],
    backend: Option<&dyn Backend>,
) {
    let (mut waiting, mut growing, mut served) = (Vec::new(), Vec::new(), 0_usize);
    let now = Timestamp::now().as_second();
    let listed = pages::each(&Api::<Claim>::all(client.clone()), |claim: Claim| {
        let view = claim.view();
        if view.glance.terminating || !is_ours(identity, &view, classes) {
            return;
        }
        if view.glance.volume_name.is_some() {
            served += 1;
            if may_want(&view) {
                growing.push(view);
            }
            return;
        }
        let since = claim.metadata.creation_timestamp.map_or(now, |time| time.0.as_second());
        waiting.push(Waiting { view, seconds: now.saturating_sub(since).max(0) });
    })
    .await;
    if let Err(error) = listed {
        report.add("claims", Status::Note, error.text("list", "persistentvolumeclaims"));
        return;
    }
    for claim in growing.iter().take(TOLD) {
        if let Some(finding) = why_no_larger(client, identity, claim, class_of(claim, classes), backend).await
        {
            report.findings.push(Finding { check: report.check, ..finding });
        }
    }
    waiting.retain(|claim| claim.seconds >= YOUNG);
    waiting.sort_by_key(|claim| std::cmp::Reverse(claim.seconds));
    if waiting.is_empty() {
        report.ok("claims", format!("{served} have their volumes, none waits"));
        return;
    }
    for claim in waiting.iter().take(TOLD) {
        let finding = why(client, identity, claim, classes, backend).await;
        report.findings.push(Finding { check: report.check, ..finding });
    }
    if let Some(more) = waiting.len().checked_sub(TOLD).filter(|more| *more > 0) {
        report.add("claims", Status::Warn, format!("{more} more wait, shorter than those above"));
    }
}

fn is_ours(identity: &Identity, claim: &ClaimView, classes: &[ClassView]) -> bool {
    match &claim.glance.provisioner {
        Some(asked) => identity.answers_to(asked),
        None => class_of(claim, classes).is_some_and(|class| identity.answers_to(&class.provisioner)),
    }
}

fn class_of<'a>(claim: &ClaimView, classes: &'a [ClassView]) -> Option<&'a ClassView> {
    classes.iter().find(|class| claim.class.as_deref() == Some(&class.name))
}

async fn why(
    client: &Client,
    identity: &Identity,
    waiting: &Waiting,
    classes: &[ClassView],
    backend: Option<&dyn Backend>,
) -> Finding {
    let Waiting { view: claim, seconds } = waiting;
    let glance = &claim.glance;
    let subject = format!("claim {}/{}", glance.namespace, glance.name);
    let found = |status, text: String, remedy: Option<String>| Finding {
        check: "",
        subject: subject.clone(),
        status,
        detail: format!("waits since {seconds} s: {text}"),
        remedy,
    };
    let class = class_of(claim, classes);
    if glance.provisioner.is_none() {
        return match class {
            Some(class) if class.late_binding && glance.selected_node.is_none() => found(
                Status::Note,
                "its class binds late, so it waits for a pod that uses it".to_owned(),
                None,
            ),
            _ => found(
                Status::Warn,
                "kube-controller-manager has not asked for a volume".to_owned(),
                Some("see whether kube-controller-manager runs".to_owned()),
            ),
        };
    }
    let existing = match existing(client, identity, claim, backend).await {
        Ok(existing) => existing,
        Err(text) => return found(Status::Note, text, None),
    };
    match route(identity, claim, class, existing.as_ref().map(|(view, readable)| (view, *readable))) {
        Route::Wait(Why::Populator, _) => {
            let text = "a populator has to fill it".to_owned();
            found(Status::Note, text, Some("see whether the populator of that kind is installed".to_owned()))
        }
        Route::Refuse(text) | Route::Wait(_, Some(text)) => found(Status::Fail, text, None),
        Route::Wait(Why::NoNodeYet, None) => {
            found(Status::Note, "kube-scheduler has not chosen a node for its pod".to_owned(), None)
        }
        Route::Nothing(Why::ClassOfAnother) => {
            let name = claim.class.as_deref().unwrap_or_default();
            let text = format!("it asks this provisioner, and its StorageClass {name:?} names another");
            found(Status::Fail, text, Some("make the class or the claim anew".to_owned()))
        }
        Route::Nothing(Why::OtherNode) => {
            let node = glance.selected_node.as_deref().unwrap_or_default();
            let text = format!("the agent on node {node} has to serve it");
            let pod = "see whether the agent's pod runs on that node".to_owned();
            match node_exists(client, node).await {
                Some(false) => {
                    found(Status::Fail, format!("node {node} was chosen, and does not exist"), Some(pod))
                }
                _ => found(Status::Note, text, Some(pod)),
            }
        }
        Route::Wait(why, None) | Route::Nothing(why) => found(Status::Note, format!("{why:?}"), None),
        Route::Done => {
            let text = "its PersistentVolume is there and not bound".to_owned();
            found(Status::Warn, text, Some("see whether kube-controller-manager runs".to_owned()))
        }
        Route::Serve => {
            let refused = class.zip(backend).and_then(|(class, backend)| {
                let offers = backend.capabilities(&class.parameters).ok()?;
                terms(claim, class, &offers).err()
            });
            match refused {
                Some(text) => found(Status::Fail, text, None),
                None => found(
                    Status::Warn,
                    "it can be served".to_owned(),
                    Some(format!(
                        "see what else is wrong in this report, then the claim's events: kubectl describe pvc -n {} {}",
                        glance.namespace, glance.name
                    )),
                ),
            }
        }
    }
}

/// A bound claim that asks for more than it has. `None`: it is not for us to say.
async fn why_no_larger(
    client: &Client,
    identity: &Identity,
    claim: &ClaimView,
    class: Option<&ClassView>,
    backend: Option<&dyn Backend>,
) -> Option<Finding> {
    let glance = &claim.glance;
    let api: Api<Volume> = Api::all(client.clone());
    let volume = within(api.get_opt(glance.volume_name.as_deref()?)).await.ok()??.view();
    let state = match backend {
        Some(backend) => OurVolume::new(identity, backend, volume.clone()).state,
        None => HandleState::Good,
    };
    // Without the backend it is not known, and then nothing is said against it.
    let offered = |class: &ClassView| match backend {
        Some(backend) => backend.capabilities(&class.parameters).map_or(Growth::No, |offers| offers.expand),
        None => Growth::Ours,
    };
    let problem = claim.size.conditions.iter().find(|condition| condition.kind == "ControllerResizeError");
    let told = problem.and_then(|condition| condition.message.clone());
    let (status, text) = match (step(identity, claim, &volume, &state, class.map(offered)), told) {
        (Step::Refuse(text), _) => (Status::Fail, text),
        (Step::Nothing(Grown::Node), _) => {
            (Status::Note, "its node grows the file system while a pod uses it".to_owned())
        }
        (Step::Nothing(Grown::Driver), _) => {
            (Status::Note, "the CSI driver's own resizer does it".to_owned())
        }
        (Step::Begin { .. } | Step::Grow { .. }, Some(text)) => (Status::Warn, text),
        (Step::Begin { .. } | Step::Grow { .. }, None) => {
            (Status::Note, "the provisioner is at it; its events tell how far".to_owned())
        }
        (Step::Nothing(_) | Step::Clear, _) => return None,
    };
    let size = |bytes: Option<u64>| format_bytes(bytes.unwrap_or(0));
    let (has, asks) = (size(claim.size.capacity), size(claim.request.as_ref().ok().copied()));
    Some(Finding {
        check: "",
        subject: format!("claim {}/{}", glance.namespace, glance.name),
        status,
        detail: format!("has {has} and asks for {asks}: {text}"),
        remedy: None,
    })
}

/// The PV of the claim's name, and whether we read its handle.
async fn existing(
    client: &Client,
    identity: &Identity,
    claim: &ClaimView,
    backend: Option<&dyn Backend>,
) -> Result<Option<(crate::decide::VolumeView, bool)>, String> {
    let api: Api<Volume> = Api::all(client.clone());
    let volume = within(api.get_opt(&names::pv_name(claim.glance.uid.as_str()))).await;
    let volume = volume.map_err(|error| error.text("get", "persistentvolumes"))?;
    Ok(volume.map(|volume| {
        let view = volume.view();
        let is_readable = backend.is_none_or(|backend| readable(identity, backend, view.clone()));
        (view, is_readable)
    }))
}

/// `None`: cannot be known.
async fn node_exists(client: &Client, name: &str) -> Option<bool> {
    let api: Api<PartialObjectMeta<Node>> = Api::all(client.clone());
    within(api.get_metadata_opt(name)).await.ok().map(|node| node.is_some())
}
