//! From a path to a directory entry, one open directory at a time.

use crate::failure::{Changed, ResultExt};
use crate::{ErrorKind, Name, Stat, Tree};
use volwright_provisioner::{RelativePath, Result};

/// What is at a path.
pub(crate) enum Found<D> {
    /// Something.
    At {
        /// The directory it is in.
        parent: D,
        /// Its name there.
        name: Name,
        /// What it is.
        stat: Stat,
    },
    /// Nothing, or not even all the directories on the way.
    Missing,
    /// A component on the way is no directory that we may enter.
    InTheWay {
        /// The path up to it.
        path: String,
        /// What it is.
        what: &'static str,
    },
}

/// Looks for a path. Never follows a link, never leaves the file system.
pub(crate) async fn find<T: Tree>(tree: &T, path: &RelativePath) -> Result<Found<T::Dir>> {
    const DOING: &str = "looking for the volume's directory";
    let mut parent = tree.root().await.or_failure(Changed::Nothing, DOING)?;
    let (last, above) = split(path);
    for (depth, component) in above.iter().enumerate() {
        let name = Name::component(component);
        parent = match tree.open_dir(&parent, &name).await {
            Ok(dir) => dir,
            Err(error) => match error.kind {
                ErrorKind::Missing => return Ok(Found::Missing),
                ErrorKind::CrossesMount => {
                    let path = above[..=depth].join("/");
                    return Ok(Found::InTheWay { path, what: "the mount point of another file system" });
                }
                ErrorKind::NotADirectory => {
                    let what = tree.stat(&parent, &name).await.or_failure(Changed::Nothing, DOING)?.kind;
                    return Ok(Found::InTheWay { path: above[..=depth].join("/"), what: what.as_str() });
                }
                _ => return Err(error).or_failure(Changed::Nothing, DOING),
            },
        };
    }
    let name = Name::component(last);
    match tree.stat(&parent, &name).await {
        Ok(stat) => Ok(Found::At { parent, name, stat }),
        Err(error) if error.kind == ErrorKind::Missing => Ok(Found::Missing),
        Err(error) => Err(error).or_failure(Changed::Nothing, DOING),
    }
}

/// The last component, and those above it.
pub(crate) fn split(path: &RelativePath) -> (&str, &[String]) {
    match path.components().split_last() {
        Some((last, above)) => (last, above),
        None => ("", &[]), // a RelativePath has at least one
    }
}

/// The paths that `path` lies in, the longest first. The root is not among them.
pub(crate) fn ancestors(path: &RelativePath) -> Vec<RelativePath> {
    let above = split(path).1;
    (1..=above.len()).rev().filter_map(|n| RelativePath::parse(&above[..n].join("/")).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_nobodys_ancestor() {
        let shown = |text: &str| -> Vec<String> {
            ancestors(&RelativePath::parse(text).unwrap()).iter().map(ToString::to_string).collect()
        };
        assert_eq!(shown("a/b/c"), ["a/b", "a"]);
        assert!(shown("a").is_empty());
    }
}
