//! What Linux answers, as an [`ErrorKind`].

use crate::{ErrorKind, Name, TreeError};
use rustix::io::Errno;

pub(super) fn failed(operation: &'static str, name: &Name) -> impl FnOnce(Errno) -> TreeError {
    let name = name.to_string();
    move |errno| error(operation, name, errno)
}

pub(super) fn failed_on_dir(operation: &'static str) -> impl FnOnce(Errno) -> TreeError {
    move |errno| error(operation, "the open directory".to_owned(), errno)
}

fn error(operation: &'static str, name: String, errno: Errno) -> TreeError {
    TreeError { operation, name, kind: kind(errno), source: errno.into() }
}

fn kind(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT => ErrorKind::Missing,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOTDIR | Errno::LOOP => ErrorKind::NotADirectory,
        Errno::ISDIR => ErrorKind::IsADirectory,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::XDEV => ErrorKind::CrossesMount,
        Errno::BUSY => ErrorKind::Busy,
        Errno::NOSPC | Errno::DQUOT => ErrorKind::Full,
        Errno::ROFS => ErrorKind::ReadOnly,
        Errno::ACCESS | Errno::PERM => ErrorKind::Denied,
        _ => ErrorKind::Other,
    }
}
