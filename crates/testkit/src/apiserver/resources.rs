//! The kinds of objects that are served.

/// One kind of object, in one API group.
#[derive(Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: &'static str,
    /// Upper camel case, singular.
    pub kind: &'static str,
    /// As in the URL.
    pub plural: &'static str,
    /// What kubectl also takes.
    pub short: &'static [&'static str],
    /// Is there one such collection per namespace?
    pub namespaced: bool,
    /// Has it a `/status`, which alone writes the status?
    pub has_status: bool,
    /// Does DELETE answer with the object, or with a Status?
    pub returns_deleted: bool,
    /// Does PUT make what is not there?
    pub create_on_update: bool,
    /// May PUT omit the resource version?
    pub unconditional_update: bool,
    /// Which table of the store holds it. Both groups of events share one.
    pub(super) table: usize,
}

const fn kind(
    table: usize,
    group: &'static str,
    kind: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    namespaced: bool,
) -> Resource {
    Resource {
        group,
        kind,
        plural,
        short,
        namespaced,
        has_status: false,
        returns_deleted: false,
        create_on_update: false,
        unconditional_update: true,
        table,
    }
}

const fn status(mut resource: Resource) -> Resource {
    resource.has_status = true;
    resource
}

const fn returned(mut resource: Resource) -> Resource {
    resource.returns_deleted = true;
    resource
}

const fn made_by_put(mut resource: Resource) -> Resource {
    resource.create_on_update = true;
    resource
}

const fn versioned(mut resource: Resource) -> Resource {
    resource.unconditional_update = false;
    resource
}

const STORAGE: &str = "storage.k8s.io";

/// All of them; the first of each table is the one whose shape is stored.
pub static RESOURCES: [Resource; 16] = [
    returned(status(kind(0, "", "Namespace", "namespaces", &["ns"], false))),
    returned(status(kind(1, "", "PersistentVolume", "persistentvolumes", &["pv"], false))),
    returned(status(kind(2, "", "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], true))),
    status(kind(3, "", "Node", "nodes", &["no"], false)),
    kind(4, "", "ConfigMap", "configmaps", &["cm"], true),
    kind(5, "", "Secret", "secrets", &[], true),
    made_by_put(kind(6, "", "Event", "events", &["ev"], true)),
    returned(status(kind(7, "", "Pod", "pods", &["po"], true))),
    returned(kind(8, "", "ServiceAccount", "serviceaccounts", &["sa"], true)),
    returned(kind(9, STORAGE, "StorageClass", "storageclasses", &["sc"], false)),
    versioned(returned(status(kind(10, STORAGE, "VolumeAttachment", "volumeattachments", &[], false)))),
    versioned(returned(kind(11, STORAGE, "CSIDriver", "csidrivers", &[], false))),
    kind(12, STORAGE, "CSIStorageCapacity", "csistoragecapacities", &[], true),
    versioned(made_by_put(kind(13, "coordination.k8s.io", "Lease", "leases", &[], true))),
    made_by_put(kind(6, "events.k8s.io", "Event", "events", &["ev"], true)),
    kind(NOWHERE, "authorization.k8s.io", "SelfSubjectAccessReview", "selfsubjectaccessreviews", &[], false),
];

/// The table of what is answered and never kept.
pub(super) const NOWHERE: usize = usize::MAX;

/// How many tables there are.
pub(super) const TABLES: usize = 14;

impl Resource {
    /// The resource of a URL. Every group is served in version v1.
    pub fn find(group: &str, plural: &str) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.group == group && resource.plural == plural)
    }

    /// The resource by a name as kubectl takes it: `persistentvolumes`, or `events.events.k8s.io`.
    pub fn named(name: &str) -> Option<&'static Self> {
        match name.split_once('.') {
            Some((plural, group)) => Self::find(group, plural),
            None => RESOURCES.iter().find(|resource| resource.plural == name),
        }
    }

    /// The one whose shape a table holds.
    pub(super) fn stored_in(table: usize) -> Option<&'static Self> {
        RESOURCES.iter().find(|resource| resource.table == table)
    }

    /// `v1`, or `storage.k8s.io/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", self.group) }
    }

    /// As messages name it: `persistentvolumes`, or `storageclasses.storage.k8s.io`.
    pub fn qualified(&self) -> String {
        Self::join(self.plural, self.group)
    }

    /// As messages of refused objects name it: `PersistentVolume`, or `StorageClass.storage.k8s.io`.
    pub fn qualified_kind(&self) -> String {
        Self::join(self.kind, self.group)
    }

    /// The stored events are core's; this is the other shape of them.
    pub(super) fn is_converted(&self) -> bool {
        self.group == "events.k8s.io"
    }

    fn join(name: &str, group: &str) -> String {
        if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
    }
}
