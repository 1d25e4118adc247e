//! What a PV says about where its data is, and when two PVs mean the same data.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The volume source of a PersistentVolume, as far as backends of this project make or adopt them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum VolumeSource {
    /// `spec.local`
    Local {
        /// Absolute path on the node.
        path: String,
    },
    /// `spec.hostPath`
    HostPath {
        /// Absolute path on the node.
        path: String,
    },
    /// `spec.nfs`
    Nfs {
        /// Name or address.
        server: String,
        /// Absolute path on the server.
        path: String,
    },
    /// `spec.csi`: a static volume of somebody's node plugin.
    Csi(CsiSource),
    /// Any other kind. Never ours, never an alias of ours.
    Other {
        /// The field name, such as `iscsi`.
        kind: String,
    },
}

impl VolumeSource {
    /// Does the volume go through a CSI node plugin (and so through attachers and resizers)?
    pub fn is_csi(&self) -> bool {
        matches!(self, Self::Csi(_))
    }
}

/// `spec.csi`
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiSource {
    /// Name of the CSI driver whose node plugin mounts it.
    pub driver: String,
    /// The driver's id for the volume.
    pub volume_handle: String,
    /// File system to make on first use; `None` for block volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_type: Option<String>,
    /// Passed to the node plugin.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub volume_attributes: BTreeMap<String, String>,
    /// Secret for staging on the node: namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_stage_secret: Option<SecretRef>,
}

/// A secret by reference. Its content never leaves the context that reads it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SecretRef {
    /// Namespace of the secret.
    pub namespace: String,
    /// Name of the secret.
    pub name: String,
}

/// One name of the data behind a volume: a root (server and export, pool, node) and a path below it (or an image id).
///
/// Two keys mean the same data when their roots are equal and one path begins with the other: a parent or child
/// directory is the same data, since deleting one takes the other along.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    root: String,
    path: Vec<String>,
}

impl Key {
    /// A key below `root`.
    pub fn new<S: Into<String>>(root: impl Into<String>, path: impl IntoIterator<Item = S>) -> Self {
        Self { root: root.into(), path: path.into_iter().map(Into::into).collect() }
    }

    /// A key whose path is a slash-separated one, taken lexically: empty and `.` parts vanish, `..` goes up.
    pub fn of_path(root: impl Into<String>, path: &str) -> Self {
        let mut parts: Vec<String> = Vec::new();
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => {
                    parts.pop();
                }
                other => parts.push(other.to_owned()),
            }
        }
        Self { root: root.into(), path: parts }
    }

    /// Do both name the same data, or a part of it?
    pub fn overlaps(&self, other: &Key) -> bool {
        self.root == other.root && self.path.iter().zip(&other.path).all(|(a, b)| a == b)
    }

    /// What the path is below.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// The parts of the path.
    pub fn path(&self) -> &[String] {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_or_child_is_the_same_data() {
        let cases = [
            ("/a/b", "/a/b", true),
            ("/a/b", "/a/b/", true),
            ("/a/b", "/a//b/.", true),
            ("/a/b", "/a/c/../b", true),
            ("/a", "/a/b", true),
            ("/a/b/c", "/a/b", true),
            ("/", "/a/b", true),
            ("/a/b", "/a/bc", false),
            ("/a/b", "/a/c", false),
        ];
        for (one, two, expected) in cases {
            let (one, two) = (Key::of_path("r", one), Key::of_path("r", two));
            assert_eq!(one.overlaps(&two), expected, "{one:?} {two:?}");
            assert_eq!(two.overlaps(&one), expected, "{two:?} {one:?}");
        }
        assert!(!Key::of_path("r", "/a").overlaps(&Key::of_path("s", "/a")));
    }
}
