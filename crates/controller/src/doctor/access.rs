//! Permissions: which are needed, why, and whether they are there.

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use serde::Serialize;
use volwright_provisioner::Placement;

use super::{Report, within};

/// One permission that is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Access {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Plural name, as RBAC spells it: `persistentvolumeclaims/status` for a subresource.
    pub resource: &'static str,
    /// As RBAC spells it.
    pub verb: &'static str,
    /// What does not work without it.
    pub why: &'static str,
    /// The flag that makes it needless.
    pub unless: Option<&'static str>,
    /// Only in the namespace of the lease and the journal: a Role there is enough.
    pub own_namespace: bool,
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
pub(super) const INSTALLATION_FLAG: &str = "--installation-id";

/// The flag that leaves it to the operator that only one process runs.
const ALONE_FLAG: &str = "--leader-elect=false";

/// What the engine must be allowed to do. The charts' roles are checked against it.
pub fn required_access(placement: &Placement) -> Vec<Access> {
    let access = |group, resource, verb, why| Access {
        group,
        resource,
        verb,
        why,
        unless: None,
        own_namespace: false,
    };
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
            "persistentvolumeclaims/status",
            "patch",
            "claims that ask for more stay as large as they are",
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
        all.push(Access { own_namespace: true, ..access("", "configmaps", "create", NO_LIST) });
    }
    all.extend(trash());
    if *placement == Placement::Central {
        let why = "nothing is deleted, since it might still be attached somewhere";
        all.push(access("storage.k8s.io", "volumeattachments", "list", why));
        all.extend(coordination());
    }
    all
}

const NO_LIST: &str = "what is in the trash is not shown, and cannot be restored";

/// ConfigMaps of the trash: the list of what is in it, and operators' requests.
fn trash() -> impl Iterator<Item = Access> {
    [
        ("list", "requests to restore from the trash are not seen"),
        ("patch", NO_LIST),
        ("delete", "requests that were answered and that nobody fetched stay"),
    ]
    .into_iter()
    .map(|(verb, why)| Access {
        group: "",
        resource: "configmaps",
        verb,
        why,
        unless: None,
        own_namespace: true,
    })
}

/// The lease, which says who works, and the ConfigMaps, which say at what.
fn coordination() -> impl Iterator<Item = Access> {
    let lease = |verb, why| ("coordination.k8s.io", "leases", verb, why, Some(ALONE_FLAG));
    let journal = |verb, why| ("", "configmaps", verb, why, None);
    let own = [
        lease("get", "no process becomes leader, and nothing is done"),
        lease("create", "the first process does not become leader, and nothing is done"),
        lease("update", "no process becomes or stays leader, and nothing is done"),
        lease("watch", "a lease that was released is taken later, by --lease-retry-period"),
        journal("get", "what an earlier process was at is not known, so nothing is begun"),
        journal("create", "what is begun cannot be recorded, so nothing is begun"),
        journal("update", "what is begun cannot be recorded, so nothing is begun"),
    ];
    let everywhere =
        lease("list", "nobody becomes leader, since another namespace may serve this provisioner");
    let access = |(group, resource, verb, why, unless), own_namespace| Access {
        group,
        resource,
        verb,
        why,
        unless,
        own_namespace,
    };
    own.map(|one| access(one, true)).into_iter().chain([access(everywhere, false)])
}

/// Of the flags, what permissions depend on.
pub(super) struct Flags<'a> {
    pub has_installation: bool,
    pub leader_elect: bool,
    /// Of the lease and the journal.
    pub namespace: &'a str,
}

impl Flags<'_> {
    fn make_needless(&self, access: &Access) -> bool {
        self.has_installation && access.unless == Some(INSTALLATION_FLAG)
            || !self.leader_elect && access.unless == Some(ALONE_FLAG)
    }
}

/// Asks the API server about each of them.
pub(super) async fn look_at_access(
    report: &mut Report,
    client: &Client,
    placement: &Placement,
    flags: &Flags<'_>,
) {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    for access in required_access(placement) {
        if flags.make_needless(&access) {
            continue;
        }
        let (resource, subresource) = match access.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (access.resource, None),
        };
        let namespace = access.own_namespace.then(|| flags.namespace.to_owned());
        let place = namespace.as_ref().map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let subject = format!("may {} {}{place}", access.verb, access.resource_and_group());
        let review = SelfSubjectAccessReview {
            spec: SelfSubjectAccessReviewSpec {
                resource_attributes: Some(ResourceAttributes {
                    group: Some(access.group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.map(str::to_owned),
                    verb: Some(access.verb.to_owned()),
                    namespace: namespace.clone(),
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
                    Some(flag) => format!("{}, or give {flag}", rule(&access, namespace.as_deref())),
                    None => rule(&access, namespace.as_deref()),
                });
            }
            Err(error) => {
                report.fail(subject, error.text("create", "selfsubjectaccessreviews.authorization.k8s.io"));
            }
        }
    }
}

fn rule(access: &Access, namespace: Option<&str>) -> String {
    let role =
        namespace.map_or_else(|| "the ClusterRole".to_owned(), |namespace| format!("a Role in {namespace}"));
    format!(
        "add to {role}: {{apiGroups: [{:?}], resources: [{}], verbs: [{}]}}",
        access.group, access.resource, access.verb
    )
}
