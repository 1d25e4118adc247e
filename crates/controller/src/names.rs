//! Every annotation, label, finalizer and name that is read or written, once.

use sha2::{Digest, Sha256};
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
/// On a PV of a node agent: [`node_hash`] of the node's name, so that an agent watches only its own.
pub const NODE_LABEL: &str = "volwright.io/node";
/// On a PV of a node agent: the node's full name, which the hash only abbreviates.
pub const NODE_NAME: &str = "volwright.io/node-name";
/// On a PV: the provisioner that made it, once more. Who finds [`PROVISIONED_BY`] stripped must not take another's PV
/// for its own: two provisioners of one kind read each other's handles.
pub const PROVISIONER: &str = "volwright.io/provisioner";
/// On a PV: uid of the claim it was made for; part of the volume's mark. `spec.claimRef` may be re-pointed by a populator.
pub const OWNER: &str = "volwright.io/owner";
/// Class parameter that the engine itself reads.
pub const ON_DELETE_PARAMETER: &str = "onDelete";

/// The value of [`NODE_LABEL`]. Node names have up to 253 bytes, label values 63. Sixteen hex digits are enough: an agent
/// that sees a PV of another node by collision still compares the full name.
pub fn node_hash(node: &str) -> String {
    Sha256::digest(node.as_bytes()).iter().take(8).fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// Name of the PV for a claim: the library's default.
pub fn pv_name(claim_uid: &str) -> String {
    format!("pvc-{claim_uid}")
}
