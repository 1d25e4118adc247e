//! An uninstall for good: which PVs are let go of, and what becomes of each without us.

use super::{Identity, Phase, ReclaimPolicy, VolumeView};
use volwright_provisioner::VolumeSource;

/// What is said of a PV that is let go of. `None`: it is not ours to let go, or does not bear our finalizer.
///
/// A PV of a provisioner whose name we also answer to counts only if it bears a handle: the Go library's finalizer has the
/// same name, and its controller may still run.
pub fn release(identity: &Identity, volume: &VolumeView) -> Option<String> {
    let by = volume.provisioned_by.as_deref().or(volume.provisioner.as_deref())?;
    if !identity.answers_to(by) || volume.handle.is_none() || !volume.has_finalizer() {
        return None;
    }
    let place = place(&volume.source);
    let claim = volume.claim.as_ref().map(|claim| format!("{}/{}", claim.namespace, claim.name));
    let claim = claim.unwrap_or_else(|| "no claim".to_owned());
    Some(match (volume.terminating, volume.phase) {
        (true, Phase::Bound) => {
            format!("is being deleted, and goes when claim {claim} does; the data stays at {place}")
        }
        (true, _) => format!("is being deleted, and goes now; what is left of the data stays at {place}"),
        (false, Phase::Bound) => {
            format!("stays, bound to claim {claim}; when that goes, the data stays at {place}")
        }
        (false, Phase::Released | Phase::Failed) if volume.policy == ReclaimPolicy::Delete => {
            format!("was to be deleted for claim {claim}; it stays, and the data at {place}")
        }
        (false, _) => format!("stays, and the data at {place}"),
    })
}

/// Where the data is, for people.
pub fn place(source: &VolumeSource) -> String {
    match source {
        VolumeSource::Local { path } | VolumeSource::HostPath { path } => format!("{path} of its node"),
        VolumeSource::Nfs { server, path } => format!("{server}:{path}"),
        VolumeSource::Csi(source) => format!("{} of {}", source.volume_handle, source.driver),
        VolumeSource::Other { .. } => "where its PersistentVolume says".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names;
    use crate::objects::Volume;
    use serde_json::{Value, json};

    const NAME: &str = "shelf.volwright.io";

    fn pv(change: &Value) -> VolumeView {
        let mut object = json!({
            "metadata": { "name": "pvc-u", "uid": "p", "finalizers": [names::FINALIZER],
                "annotations": { names::PROVISIONED_BY: NAME, names::HANDLE: "{}" } },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": [], "persistentVolumeReclaimPolicy": "Delete",
                "storageClassName": "c", "nfs": { "server": "s", "path": "/p" },
                "claimRef": { "namespace": "n", "name": "c", "uid": "u" } },
            "status": { "phase": "Bound" },
        });
        for (pointer, value) in change.as_object().unwrap() {
            *object.pointer_mut(pointer).unwrap() = value.clone();
        }
        serde_json::from_value::<Volume>(object).unwrap().view()
    }

    #[test]
    fn only_our_own_pvs_with_our_finalizer_are_let_go() {
        let identity = Identity {
            names: vec![NAME.to_owned(), "rancher.io/local-path".to_owned()],
            ..Identity::default()
        };
        assert!(release(&identity, &pv(&json!({}))).is_some());
        for change in [
            json!({ "/metadata/finalizers": ["kubernetes.io/pv-protection"] }),
            json!({ "/metadata/annotations": { names::PROVISIONED_BY: "another.io", names::HANDLE: "{}" } }),
            // Not adopted: the Go provisioner's own.
            json!({ "/metadata/annotations": { names::PROVISIONED_BY: "rancher.io/local-path" } }),
        ] {
            assert_eq!(release(&identity, &pv(&change)), None, "{change}");
        }
    }

    #[test]
    fn what_becomes_of_the_data_is_said_and_is_never_its_end() {
        let identity = Identity { names: vec![NAME.to_owned()], ..Identity::default() };
        for (phase, terminating, expected) in [
            ("Bound", false, "stays, bound to claim n/c; when that goes, the data stays at s:/p"),
            ("Bound", true, "is being deleted, and goes when claim n/c does; the data stays at s:/p"),
            ("Released", false, "was to be deleted for claim n/c; it stays, and the data at s:/p"),
            ("Released", true, "is being deleted, and goes now; what is left of the data stays at s:/p"),
            ("Available", false, "stays, and the data at s:/p"),
        ] {
            let mut pv = pv(&json!({ "/status/phase": phase }));
            pv.terminating = terminating;
            assert_eq!(release(&identity, &pv).as_deref(), Some(expected));
        }
    }
}
