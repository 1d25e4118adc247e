//! Lines for `doctor`.

use crate::root::Root;
use std::path::Path;
use volwright_provisioner::{Check, Context, Failure, Result, format_bytes};
use volwright_volume_tree::{LocalTree, Look, Tree, look};

/// What can be said of one root. Changes nothing, and takes no lock.
pub(crate) async fn check_root(root: &std::sync::Arc<Root>, context: &dyn Context) -> Vec<Check> {
    let shared = std::sync::Arc::clone(root);
    // A bare mount point looks like a root that never had a volume; the PVs tell them apart.
    let known = root.is_unknown(context).await;
    let lines = root.run(move || async move { Ok(lines(&shared, known).await) }).await;
    lines.unwrap_or_else(|failure| vec![line(root.path(), "", Err(failure.to_string()))])
}

async fn lines(root: &Root, known: Result<()>) -> Vec<Check> {
    let path = root.path();
    let tree = match LocalTree::open(Path::new(path), root.options()) {
        Ok(tree) => tree,
        Err(error) => return vec![line(path, "", Err(error.to_string()))],
    };
    let opened = if root.options().require_mount { "a mounted file system" } else { "a directory" };
    vec![
        line(path, "", Ok(opened.to_owned())),
        line(path, ", identity", identity(&tree, known).await.map_err(|failure| failure.to_string())),
        line(path, ", access", access(&tree)),
        line(path, ", free space", space(&tree).await),
    ]
}

fn line(path: &str, part: &str, outcome: Result<String, String>) -> Check {
    Check { subject: format!("root {path}{part}"), outcome }
}

async fn identity(tree: &LocalTree, known: Result<()>) -> Result<String> {
    match look(tree).await? {
        Look::Shown(id) => Ok(id.to_string()),
        Look::Fresh => known.map(|()| "none yet; the first claim makes it".to_owned()),
        Look::Lost => Err(Failure::unavailable(
            "it has records, but no identity: restore .volwright/root.json with the rootId from the annotation \
             volwright.io/handle of one of its PVs, or start the agent with --init-root",
        )),
    }
}

fn access(tree: &LocalTree) -> Result<String, String> {
    let path = tree.path().display();
    match tree.access() {
        Ok((_, false)) => Err(format!("owned by another user than the agent's; chown {path}")),
        Ok((mode, true)) if mode & 0o022 != 0 => {
            Err(format!("mode {mode:04o}: others can move volumes and records away; chmod 0700 {path}"))
        }
        Ok((mode, true)) if mode & 0o011 != 0 => Err(format!(
            "mode {mode:04o}: other users of the node reach volumes, which are often open to all; chmod 0700 {path}"
        )),
        Ok((mode, true)) => Ok(format!("mode {mode:04o}")),
        Err(error) => Err(error.to_string()),
    }
}

async fn space(tree: &LocalTree) -> Result<String, String> {
    let space = tree.space().await.map_err(|error| error.to_string())?;
    let shown = |bytes: u64| format_bytes(bytes >> 20 << 20);
    Ok(format!("{} of {}", shown(space.available), shown(space.total)))
}
