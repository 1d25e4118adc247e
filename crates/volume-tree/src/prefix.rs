//! Paths given out never contain each other: a volume inside a volume would be deleted with it.

use crate::failure::{Changed, ResultExt};
use crate::layout::{self, RECORDS};
use crate::{Cursor, Tree, record, walk};
use volwright_provisioner::{Failure, RelativePath, Result};

/// Fails if a recorded path lies in `path`, or `path` in a recorded one.
pub(crate) async fn check_free<T: Tree>(tree: &T, path: &RelativePath) -> Result<()> {
    if let Some(outer) = recorded_ancestor(tree, path).await? {
        return Err(Failure::not_ours(format!(
            "the path {path} lies in the volume at {outer}; choose another pathPattern"
        )));
    }
    match recorded_inside(tree, path).await? {
        None => Ok(()),
        Some(inner) => Err(Failure::not_ours(format!(
            "the path {path} would contain the volume at {inner}; choose another pathPattern"
        ))),
    }
}

/// The recorded path that `path` lies in, if any.
pub(crate) async fn recorded_ancestor<T: Tree>(
    tree: &T,
    path: &RelativePath,
) -> Result<Option<RelativePath>> {
    for ancestor in walk::ancestors(path) {
        if record::at(tree, &ancestor).await?.is_some() {
            return Ok(Some(ancestor));
        }
    }
    Ok(None)
}

/// A recorded path that lies in `path`, if any. Reads names only, but for paths so long that their record is named by a
/// hash.
async fn recorded_inside<T: Tree>(tree: &T, path: &RelativePath) -> Result<Option<String>> {
    const DOING: &str = "reading the records";
    let records = layout::own_dir(tree, &RECORDS).await?;
    let prefix = layout::file_name_prefix_of_inner(path);
    let inside = format!("{path}/");
    let mut cursor = Some(Cursor::default());
    while let Some(from) = cursor {
        let page = tree.list(&records, from).await.or_failure(Changed::Nothing, DOING)?;
        for name in page.entries.iter().map(|entry| &entry.name) {
            let text = name.to_str().unwrap_or_default();
            let candidate = text.starts_with(&prefix) || layout::is_hashed(text);
            if candidate
                && let Some(record) = record::read(tree, &records, name).await?
                && record.path.starts_with(&inside)
            {
                return Ok(Some(record.path));
            }
        }
        cursor = page.next;
    }
    Ok(None)
}
