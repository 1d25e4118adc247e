//! Who leads, and whether the journal holds deletes back. Only Central provisioners have either.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams, PartialObjectMeta};

use super::{Report, Status, within};
use crate::names;

/// `name` is the provisioner's, and so the lease's.
pub(super) async fn look(
    report: &mut Report,
    client: &Client,
    namespace: &str,
    name: &str,
    leader_elect: bool,
) {
    if leader_elect {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        match within(leases.get_opt(name)).await {
            Ok(lease) => {
                let spec = lease.and_then(|lease| lease.spec);
                judge_lease(report, namespace, name, spec.as_ref(), Timestamp::now());
            }
            // If it is the permission, that has been told above, with the remedy.
            Err(error) => report.add("leader", Status::Note, error.text("get", "leases")),
        }
    }
    if leader_elect {
        look_for_rivals(report, client, namespace, name).await;
    }
    let journal = names::journal_shard(&names::journal(name), 0);
    let shards: Api<PartialObjectMeta<ConfigMap>> = Api::namespaced(client.clone(), namespace);
    match within(shards.get_opt(&journal)).await {
        Ok(None) => {
            report.ok("deletes", format!("not stopped; there is no journal {namespace}/{journal} yet"));
        }
        Ok(Some(shard)) => {
            let notes = shard.metadata.annotations.unwrap_or_default();
            let Some(reason) = notes.get(names::DELETES_STOPPED) else {
                report.ok("deletes", "not stopped");
                return;
            };
            report.add("deletes", Status::Warn, format!("stopped: {reason}"));
            let note = names::DELETES_STOPPED;
            report.remedy(format!("kubectl annotate configmap -n {namespace} {journal} {note}-"));
        }
        Err(error) => report.add("deletes", Status::Note, error.text("get", "configmaps")),
    }
}

/// A provisioner is served from one namespace; a process in a second one is refused at its start.
async fn look_for_rivals(report: &mut Report, client: &Client, namespace: &str, name: &str) {
    let label = format!("{}={}", names::PROVISIONER, names::provisioner_label(name));
    let leases: Api<Lease> = Api::all(client.clone());
    let found = match within(leases.list(&ListParams::default().labels(&label))).await {
        Ok(found) => found,
        Err(error) => return report.add("other installations", Status::Note, error.text("list", "leases")),
    };
    let now = Timestamp::now();
    let others = found.items.iter().filter(|lease| lease.metadata.namespace.as_deref() != Some(namespace));
    let mut alone = true;
    for lease in others {
        let Some(spec) = &lease.spec else { continue };
        let Some(holder) = holder(spec) else { continue };
        alone = false;
        let place = lease.metadata.namespace.as_deref().unwrap_or_default();
        if stands(spec, now) {
            report.fail(
                format!("installation in namespace {place}"),
                format!("it serves {name} too ({holder}), so a process in {namespace} is refused"),
            );
            report.remedy("uninstall one of the two, or give one another --provisioner-name");
        } else {
            report.add(
                format!("installation in namespace {place}"),
                Status::Note,
                format!("it served {name} once; its lease has expired and does no harm"),
            );
            let lease = lease.metadata.name.as_deref().unwrap_or_default();
            report.remedy(format!("if it is gone: kubectl delete lease -n {place} {lease}"));
        }
    }
    if alone {
        report.ok("other installations", format!("none serves {name}"));
    }
}

/// Seconds since it was renewed, by our clock, which is not the holder's: a word for people, while processes go by what they
/// see change.
fn age(lease: &LeaseSpec, now: Timestamp) -> Option<i64> {
    lease.renew_time.as_ref().map(|time| now.as_second().saturating_sub(time.0.as_second()).max(0))
}

fn holder(lease: &LeaseSpec) -> Option<&str> {
    lease.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

fn stands(lease: &LeaseSpec, now: Timestamp) -> bool {
    let duration = i64::from(lease.lease_duration_seconds.unwrap_or_default());
    age(lease, now).is_some_and(|age| age <= duration)
}

/// Who holds a lease that has not expired, by our clock.
pub(crate) fn live_holder(lease: &LeaseSpec, now: Timestamp) -> Option<&str> {
    holder(lease).filter(|_| stands(lease, now))
}

fn judge_lease(report: &mut Report, namespace: &str, name: &str, lease: Option<&LeaseSpec>, now: Timestamp) {
    let subject = format!("leader, by the lease {namespace}/{name}");
    let Some(lease) = lease else {
        report.add(
            subject,
            Status::Note,
            "none yet: there is no such lease, so nothing has run in this namespace",
        );
        return;
    };
    let Some((holder, age)) = holder(lease).zip(age(lease, now)) else {
        report.add(subject, Status::Warn, "none: the lease was released, and nobody has taken it");
        report.remedy(NOBODY);
        return;
    };
    let text = format!("{holder}, renewed {age} s ago by this machine's clock");
    if stands(lease, now) {
        report.ok(subject, text);
    } else {
        report.add(subject, Status::Warn, format!("{text}: it has expired"));
        report.remedy(NOBODY);
    }
}

const NOBODY: &str =
    "see whether a process of this provisioner runs here, and what its log says of the lease";

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    #[test]
    fn a_lease_is_held_free_or_left_behind() {
        let now: Timestamp = "2026-01-10T00:01:00Z".parse().unwrap();
        let lease = |holder: &str, renewed: &str| LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(MicroTime(renewed.parse().unwrap())),
            lease_duration_seconds: Some(15),
            ..LeaseSpec::default()
        };
        for (lease, status, expected) in [
            (None, Status::Note, "none yet"),
            (Some(LeaseSpec::default()), Status::Warn, "released"),
            (Some(lease("", "2026-01-10T00:00:58Z")), Status::Warn, "released"),
            (Some(lease("p_1", "2026-01-10T00:00:58Z")), Status::Ok, "p_1, renewed 2 s ago"),
            // Their clock is ahead of ours.
            (Some(lease("p_1", "2026-01-10T00:01:07Z")), Status::Ok, "p_1, renewed 0 s ago"),
            (
                Some(lease("p_1", "2026-01-10T00:00:44Z")),
                Status::Warn,
                "16 s ago by this machine's clock: it has expired",
            ),
        ] {
            let mut report = Report::default();
            judge_lease(&mut report, "ns", "nfs.volwright.io", lease.as_ref(), now);
            let [finding] = &report.findings[..] else { panic!("{report:#?}") };
            assert_eq!(finding.status, status, "{finding:?}");
            assert!(finding.detail.contains(expected), "{finding:?}");
            assert_eq!(finding.remedy.is_some(), status == Status::Warn, "{finding:?}");
        }
    }
}
