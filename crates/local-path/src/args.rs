//! Flags of the node agent.

use std::path::PathBuf;

/// Flags of the node agent.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the node this agent runs on: `metadata.name`, not the hostname label. In a pod take it from the downward
    /// API: `env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]`. Required.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,

    /// A root: a directory of the node, at the same path in the pod, below which volumes are made. Repeat it, or separate
    /// by commas, for several disks. A class chooses one by its parameter `path`; else each volume goes to the first with
    /// room. No root may contain another, or be reached through a link.
    #[arg(
        long,
        env = "VOLWRIGHT_PATHS",
        value_name = "PATH",
        value_delimiter = ',',
        default_value = "/opt/volwright"
    )]
    pub path: Vec<PathBuf>,

    /// Serve a root only while a file system of its own is mounted there. With it, an unmounted disk stops its volumes
    /// from being made on the node's system disk, even before the root has its identity. In a pod, mount the parent
    /// directory with `mountPropagation: HostToContainer`, so that a disk mounted later shows up.
    #[arg(long, env = "VOLWRIGHT_REQUIRE_MOUNT")]
    pub require_mount: bool,

    /// Allow roots on tmpfs or ramfs. Their volumes are gone after a reboot, while their PVs stay: for tests only.
    #[arg(long, env = "VOLWRIGHT_ALLOW_VOLATILE")]
    pub allow_volatile: bool,

    /// Give this root an identity even though volumes of ours are known on it, and make its directory if it is missing.
    /// For a disk that was replaced on purpose. An empty root without known volumes gets its identity by itself. Does
    /// nothing where there is an identity. Take the flag away afterwards: with it, an agent that starts while the disk is
    /// not mounted would mark the empty mount point.
    #[arg(long, value_name = "PATH")]
    pub init_root: Vec<PathBuf>,
}
