//! PersistentVolumes of ours that wait to be deleted, and the CSI drivers that the others need.

use crate::backend::Backend;
use crate::decide::volume::{Step, concerns_us, step};
use crate::decide::{Identity, Phase, ReclaimPolicy, VolumeView};
use crate::engine::OurVolume;
use crate::objects::Volume;
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use std::collections::BTreeMap;
use volwright_provisioner::VolumeSource;

use super::{Report, Status, pages, within};

/// A detach takes half a minute; deleting a large tree, much longer.
const YOUNG: i64 = 60;

/// Told one by one.
const TOLD: usize = 20;

/// Do we read its handle?
pub(super) fn readable(identity: &Identity, backend: &dyn Backend, view: VolumeView) -> bool {
    OurVolume::new(identity, backend, view).handle.is_some()
}

pub(super) async fn look(
    report: &mut Report,
    client: &Client,
    identity: &Identity,
    backend: Option<&dyn Backend>,
) {
    let Some(backend) = backend else {
        report.add("volumes", Status::Note, "not looked at, since the backend did not start");
        return;
    };
    let now = Timestamp::now().as_second();
    let (mut count, mut stuck) = (0_usize, Vec::new());
    let mut drivers: BTreeMap<String, usize> = BTreeMap::new();
    let listed = pages::each(&Api::<Volume>::all(client.clone()), |volume: Volume| {
        let since = volume.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second());
        let ours = OurVolume::new(identity, backend, volume.view());
        if !concerns_us(identity, &ours.view, &ours.state) {
            return;
        }
        count += 1;
        if let VolumeSource::Csi(source) = &ours.view.source {
            *drivers.entry(source.driver.clone()).or_default() += 1;
        }
        let seconds = since.map(|since| now.saturating_sub(since).max(0));
        let is_released = matches!(ours.view.phase, Phase::Released | Phase::Failed)
            && ours.view.policy == ReclaimPolicy::Delete;
        if seconds.is_some_and(|seconds| seconds >= YOUNG) || (seconds.is_none() && is_released) {
            stuck.push((ours, seconds));
        }
    })
    .await;
    if let Err(error) = listed {
        report.add("volumes", Status::Note, error.text("list", "persistentvolumes"));
        return;
    }
    stuck.sort_by_key(|(_, seconds)| std::cmp::Reverse(*seconds));
    for (ours, seconds) in stuck.iter().take(TOLD) {
        tell(report, identity, ours, *seconds);
    }
    if let Some(more) = stuck.len().checked_sub(TOLD).filter(|more| *more > 0) {
        report.add("volumes", Status::Warn, format!("{more} more wait to be deleted"));
    }
    if stuck.is_empty() {
        report.ok("volumes", format!("{count} of this provisioner, none waits to be deleted"));
    }
    for (driver, count) in drivers {
        look_at_driver(report, client, &driver, count).await;
    }
}

fn tell(report: &mut Report, identity: &Identity, ours: &OurVolume, seconds: Option<i64>) {
    let view = &ours.view;
    let name = &view.name;
    let what = match seconds {
        Some(seconds) => format!("is being deleted since {seconds} s"),
        None => "is released, and its policy is Delete".to_owned(),
    };
    let events = format!("see its events: kubectl describe pv {name}");
    let (status, reason, remedy) = match step(identity, view, &ours.state) {
        Step::Blocked(reason) => (Status::Fail, reason, None),
        Step::Orphan(reason) => (
            Status::Fail,
            reason,
            Some(format!(
                "its data is kept; it goes when others' finalizers are off: {}",
                view.finalizers.join(", ")
            )),
        ),
        Step::Nothing if view.phase == Phase::Bound => {
            let claim = view.claim.as_ref().map(|claim| format!("{}/{}", claim.namespace, claim.name));
            let text = format!("it is bound to claim {}", claim.unwrap_or_default());
            (Status::Note, text, Some("it goes when that claim is deleted".to_owned()))
        }
        _ if view.has_finalizer() => {
            (Status::Warn, "nothing in the PersistentVolume keeps it".to_owned(), Some(events))
        }
        _ => (Status::Note, "not by a finalizer of ours".to_owned(), Some(events)),
    };
    report.add(format!("volume {name}"), status, format!("{what}: {reason}"));
    if let Some(remedy) = remedy {
        report.remedy(remedy);
    }
}

/// Pods mount these volumes by the driver's node plugin.
async fn look_at_driver(report: &mut Report, client: &Client, driver: &str, count: usize) {
    let subject = format!("CSI driver {driver}");
    let api: Api<PartialObjectMeta<CSIDriver>> = Api::all(client.clone());
    match within(api.get_metadata_opt(driver)).await {
        Ok(Some(_)) => report.ok(subject, format!("is installed; {count} volumes need it")),
        Ok(None) => {
            report.fail(subject, format!("is not installed; pods with one of {count} volumes cannot start"));
            report.remedy("install its node plugin; its controller is not needed");
        }
        Err(error) => report.add(subject, Status::Note, error.text("get", "csidrivers.storage.k8s.io")),
    }
}
