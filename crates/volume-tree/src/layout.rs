//! Where our own files are: `.volwright` at the top of every root.
//!
//! ```text
//! .volwright/root.json          the root's identity, made once
//! .volwright/lock               held by the agent that serves the root (local disks)
//! .volwright/records/<path>     one file for each volume path that is given out
//! .volwright/parents/<path>     one file for each directory that we made above volumes
//! .volwright/new/<id>           a volume that is being made, under a private name
//! .volwright/trash/<id>/        a volume on its way out, or kept for a time: record.json and data
//! ```

use crate::failure::{Changed, ResultExt};
use crate::{ErrorKind, Name, Tree, TreeResult};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use volwright_provisioner::{RelativePath, Result};

pub(crate) const OWN: Name = Name::fixed(volwright_provisioner::RESERVED);
pub(crate) const IDENTITY: Name = Name::fixed("root.json");
pub(crate) const RECORDS: Name = Name::fixed("records");
pub(crate) const PARENTS: Name = Name::fixed("parents");
pub(crate) const NEW: Name = Name::fixed("new");
pub(crate) const TRASH: Name = Name::fixed("trash");
pub(crate) const TRASH_RECORD: Name = Name::fixed("record.json");
pub(crate) const TRASH_DATA: Name = Name::fixed("data");

/// Longer escaped paths are named by their hash: a name has at most 255 bytes, and the suffix wants some.
const ESCAPED_MAX: usize = 240;
const SUFFIX: &str = ".json";

/// Opens one of our own directories, making it where it is missing.
pub(crate) async fn own_dir<T: Tree>(tree: &T, name: &Name) -> Result<T::Dir> {
    let root = tree.root().await.or_failure(Changed::Nothing, "opening the root")?;
    let own =
        tree.open_dir(&root, &OWN).await.or_failure(Changed::Nothing, "opening the root's own directory")?;
    open_or_make(tree, &own, name).await.or_failure(Changed::Nothing, "opening the root's own directory")
}

pub(crate) async fn open_or_make<T: Tree>(tree: &T, dir: &T::Dir, name: &Name) -> TreeResult<T::Dir> {
    match tree.open_dir(dir, name).await {
        Err(error) if error.kind == ErrorKind::Missing => match tree.make_dir(dir, name).await {
            // Another call of ours was faster.
            Err(error) if error.kind == ErrorKind::Exists => tree.open_dir(dir, name).await,
            Ok(made) => {
                tree.sync(dir).await?;
                Ok(made)
            }
            Err(error) => Err(error),
        },
        result => result,
    }
}

/// The file name that stands for a path: readable where it can be, unambiguous always, and computed from the path alone,
/// so that "is this path given out?" is one lookup.
pub(crate) fn file_name(path: &RelativePath) -> Name {
    let escaped = escape(&path.to_string());
    if escaped.len() <= ESCAPED_MAX {
        Name::component(&format!("{escaped}{SUFFIX}"))
    } else {
        Name::component(&format!("={}{SUFFIX}", hex(&Sha256::digest(path.to_string()))))
    }
}

/// The paths that begin with `path` and more have file names that begin so; or that begin with `=`.
pub(crate) fn file_name_prefix_of_inner(path: &RelativePath) -> String {
    format!("{}%2F", escape(&path.to_string()))
}

/// Does the record of a path too long to be escaped have this name?
pub(crate) fn is_hashed(name: &str) -> bool {
    name.starts_with('=') && name.ends_with(SUFFIX)
}

/// Is it the name of a record? Files that are being written have others.
pub(crate) fn is_record(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// Everything but letters, digits, dot, dash and underscore as `%` and two hex digits.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").ok();
        }
    }
    escaped
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// A text of at most `max` bytes (at least 20) in place of one that may be longer: the beginning, and a hash of the whole.
/// The same text always gives the same result, and two texts never share one.
pub fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let hash = hex(&Sha256::digest(text)[..8]);
    let mut end = max.saturating_sub(hash.len() + 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> RelativePath {
        RelativePath::parse(text).unwrap()
    }

    #[test]
    fn record_names_are_readable_and_unambiguous() {
        assert_eq!(file_name(&path("ns-data-pvc-1")).to_string(), "ns-data-pvc-1.json");
        assert_eq!(file_name(&path("ns/a b")).to_string(), "ns%2Fa%20b.json");
        assert_ne!(file_name(&path("a%2Fb")), file_name(&path("a/b")));
        assert_ne!(file_name(&path("=a")), Name::fixed("=a.json"));
        let long = file_name(&path(&"é".repeat(127)));
        assert!(long.to_string().starts_with('=') && long.as_bytes().len() <= 255, "{long}");
    }

    #[test]
    fn shortening_keeps_long_names_apart() {
        let (one, two) = (format!("{}1", "x".repeat(300)), format!("{}2", "x".repeat(300)));
        assert_eq!(shorten("abc", 20), "abc");
        assert_eq!(shorten(&one, 255).len(), 255);
        assert_ne!(shorten(&one, 255), shorten(&two, 255));
        assert_eq!(shorten(&one, 255), shorten(&one, 255));
        assert!(shorten(&"é".repeat(200), 255).len() <= 255);
    }

    proptest! {
        #[test]
        fn two_paths_never_share_a_record(one in "[aA/%=.é ]{1,400}", two in "[aA/%=.é ]{1,400}") {
            if let (Ok(one), Ok(two)) = (RelativePath::parse(&one), RelativePath::parse(&two)) {
                prop_assert_eq!(one == two, file_name(&one) == file_name(&two));
                prop_assert!(Name::new(file_name(&one).as_bytes()).is_some());
                prop_assert!(file_name(&one).as_bytes().len() <= 255);
            }
        }
    }
}
