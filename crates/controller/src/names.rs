//! Every annotation, label, finalizer and name that is read or written, once.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// On a claim, set by kube-controller-manager: which provisioner is asked. Wins over [`STORAGE_PROVISIONER_BETA`].
pub const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The older spelling, still set beside the other.
pub const STORAGE_PROVISIONER_BETA: &str = "volume.beta.kubernetes.io/storage-provisioner";
/// On a claim, set by kube-scheduler with late binding; removed by us to make it choose again.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// On claims and PVs: the class, before `spec.storageClassName` existed. Read first, as the library does.
pub const STORAGE_CLASS_BETA: &str = "volume.beta.kubernetes.io/storage-class";
/// On a PV: who made it. In the create call and never lost (another driver would take the volume).
pub const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// On a PV: to whom the in-tree plugin's volumes went.
pub const MIGRATED_TO: &str = "pv.kubernetes.io/migrated-to";
/// On a PV, exactly while its policy is Delete. The library's name, so that each honours the other's.
pub const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
/// On a PV: the envelope with the backend's handle, JSON.
pub const HANDLE: &str = "volwright.io/handle";
/// On a PV: what to do with the data, since the class may be gone by then.
pub const ON_DELETE: &str = "volwright.io/on-delete";
/// On a PV: how long its data stays in the trash, as its class said it.
pub const TRASH_FOR: &str = "volwright.io/trash-for";
/// On a PV of a node agent: [`node_hash`] of the node's name, so that an agent watches only its own.
pub const NODE_LABEL: &str = "volwright.io/node";
/// On a PV of a node agent: the node's full name, which the hash only abbreviates.
pub const NODE_NAME: &str = "volwright.io/node-name";
/// On a PV: the provisioner that made it, once more. Who finds [`PROVISIONED_BY`] stripped must not take another's PV
/// for its own: two provisioners of one kind read each other's handles.
pub const PROVISIONER: &str = "volwright.io/provisioner";
/// On a PV: uid of the claim it was made for; part of the volume's mark. `spec.claimRef` may be re-pointed by a populator.
pub const OWNER: &str = "volwright.io/owner";
/// On a PV that `release-finalizers` let go of: when. Its data is nobody's business until the provisioner runs again.
pub const RELEASED: &str = "volwright.io/finalizer-released";
/// On a ConfigMap of the journal: whose it is. A label, so that an operator finds all of them.
pub const JOURNAL_PROVISIONER: &str = "volwright.io/provisioner";
/// On a ConfigMap of the journal: number and token of the leader that wrote it.
pub const JOURNAL_EPOCH: &str = "volwright.io/journal-epoch";
/// On a ConfigMap of the journal: how many commits it has had.
pub const JOURNAL_COMMITS: &str = "volwright.io/journal-commits";
/// On the journal's first ConfigMap: how many there are.
pub const JOURNAL_SHARDS: &str = "volwright.io/journal-shards";
/// On the journal's first ConfigMap: why nothing is deleted. An operator takes it off to acknowledge.
pub const DELETES_STOPPED: &str = "volwright.io/deletes-stopped";
/// On a StorageClass: how many bytes its volumes may be promised together, such as `500Gi`; for node agents on each node.
pub const CAPACITY_BUDGET: &str = "volwright.io/capacity-budget";
/// Kubernetes' own label for what made an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Class parameter that the engine itself reads.
pub const ON_DELETE_PARAMETER: &str = "onDelete";
/// Class parameter that the engine itself reads: how long the trash keeps data.
pub const TRASH_FOR_PARAMETER: &str = "trashFor";
/// On a ConfigMap that lists what is in the trash, `list`; on an operator's request about it, `request`.
pub const TRASH_LABEL: &str = "volwright.io/trash";
/// Values of [`TRASH_LABEL`].
pub const TRASH_LIST: &str = "list";
/// See [`TRASH_LIST`].
pub const TRASH_REQUEST: &str = "request";

/// The check of `doctor` that a Warning on a claim names.
pub const CLAIMS_CHECK: &str = "claims";
/// The check of `doctor` that a Warning on a class names.
pub const CLASSES_CHECK: &str = "classes";
/// The check of `doctor` that a Warning on a PV names.
pub const VOLUMES_CHECK: &str = "volumes";

/// The value of [`NODE_LABEL`]. Node names have up to 253 bytes, label values 63. Sixteen hex digits are enough: an agent
/// that sees a PV of another node by collision still compares the full name.
pub fn node_hash(node: &str) -> String {
    Sha256::digest(node.as_bytes()).iter().take(8).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// The value of [`PROVISIONER`] where it is a label, on a lease: the name itself if a label can hold it, else its hash.
pub fn provisioner_label(provisioner: &str) -> String {
    const LONGEST: usize = 63;
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let fits = provisioner.len() <= LONGEST
        && edge(provisioner.chars().next())
        && edge(provisioner.chars().last())
        && provisioner.chars().all(good);
    if fits { provisioner.to_owned() } else { node_hash(provisioner) }
}

/// Base of the names of the journal's ConfigMaps.
pub fn journal(provisioner: &str) -> String {
    format!("{provisioner}-journal")
}

/// Name of the journal's ConfigMap with this number. `journal` is as [`journal`] makes it.
pub fn journal_shard(journal: &str, number: usize) -> String {
    format!("{journal}-{number}")
}

/// Name of the ConfigMap that lists the trash of a provisioner, or of its agent on `node`.
pub fn trash_list(provisioner: &str, node: Option<&str>) -> String {
    match node {
        Some(node) => format!("{provisioner}-trash-{}", node_hash(node)),
        None => format!("{provisioner}-trash"),
    }
}

/// Labels of a ConfigMap about the trash; `kind` is [`TRASH_LIST`] or [`TRASH_REQUEST`].
pub fn trash_labels(provisioner: &str, kind: &str, node: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::from([
        (JOURNAL_PROVISIONER.to_owned(), provisioner_label(provisioner)),
        (TRASH_LABEL.to_owned(), kind.to_owned()),
    ]);
    labels.extend(node.map(|node| (NODE_LABEL.to_owned(), node_hash(node))));
    labels
}

/// What lists the objects with all of these labels.
pub fn selector(labels: &BTreeMap<String, String>) -> String {
    labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",")
}

/// Name of the PV for a claim: the library's default.
pub fn pv_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}
