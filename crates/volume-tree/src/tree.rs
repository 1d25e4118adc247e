//! The narrow file tree that everything else here is written over.

use crate::Name;
use std::future::Future;
use std::io;
use thiserror::Error;
use volwright_provisioner::RelativePath;

/// A tree of files below one root.
///
/// Every operation names one entry of an open directory, so an implementation never resolves a path. None follows a
/// symbolic link, leaves the root or crosses into another file system; each tries once.
///
/// Futures may block the thread where the implementation says so ([`LocalTree`](crate::LocalTree)). They may be dropped
/// at any await, as after a crash: everything written over this trait finishes what it finds half done.
pub trait Tree: Send + Sync + 'static {
    /// An open directory.
    type Dir: Send + Sync + 'static;

    /// The root itself.
    fn root(&self) -> impl Future<Output = TreeResult<Self::Dir>> + Send;

    /// Opens the directory `name` in `dir`. A link or a file is [`NotADirectory`](ErrorKind::NotADirectory), another file
    /// system [`CrossesMount`](ErrorKind::CrossesMount).
    fn open_dir(&self, dir: &Self::Dir, name: &Name) -> impl Future<Output = TreeResult<Self::Dir>> + Send;

    /// Makes the directory `name` in `dir`, accessible to us only, and opens it. [`Exists`](ErrorKind::Exists) where
    /// there is anything, be it an empty directory.
    fn make_dir(&self, dir: &Self::Dir, name: &Name) -> impl Future<Output = TreeResult<Self::Dir>> + Send;

    /// What `name` in `dir` is; for a link the link itself.
    fn stat(&self, dir: &Self::Dir, name: &Name) -> impl Future<Output = TreeResult<Stat>> + Send;

    /// What an open directory is now.
    fn stat_dir(&self, dir: &Self::Dir) -> impl Future<Output = TreeResult<Stat>> + Send;

    /// Some of the entries, a bounded number at a time. Entries removed since the cursor was given out disturb nothing.
    fn list(&self, dir: &Self::Dir, from: Cursor) -> impl Future<Output = TreeResult<Page>> + Send;

    /// Sets the owner; `None` leaves it. May clear the set-id bits, so the mode comes after.
    fn set_owner(
        &self,
        dir: &Self::Dir,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> impl Future<Output = TreeResult<()>> + Send;

    /// Sets the permission bits exactly, whatever the process's umask.
    fn set_mode(&self, dir: &Self::Dir, mode: u32) -> impl Future<Output = TreeResult<()>> + Send;

    /// Moves an entry in one atomic step. [`Exists`](ErrorKind::Exists) if there is anything at the target. Where the
    /// protocol cannot refuse by itself (NFSv3), look first: callers hold the root's lock, and no protocol replaces a
    /// directory that has something in it.
    fn rename(
        &self,
        from: &Self::Dir,
        old: &Name,
        to: &Self::Dir,
        new: &Name,
    ) -> impl Future<Output = TreeResult<()>> + Send;

    /// Removes what is no directory. [`IsADirectory`](ErrorKind::IsADirectory) for a directory.
    fn unlink(&self, dir: &Self::Dir, name: &Name) -> impl Future<Output = TreeResult<()>> + Send;

    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Self::Dir, name: &Name) -> impl Future<Output = TreeResult<()>> + Send;

    /// Reads a regular file of at most `limit` bytes.
    fn read_file(
        &self,
        dir: &Self::Dir,
        name: &Name,
        limit: usize,
    ) -> impl Future<Output = TreeResult<Vec<u8>>> + Send;

    /// Writes a small file: atomically in place of an older one, and durable before it returns.
    fn write_file(
        &self,
        dir: &Self::Dir,
        name: &Name,
        bytes: &[u8],
    ) -> impl Future<Output = TreeResult<()>> + Send;

    /// Makes the directory's entries durable.
    fn sync(&self, dir: &Self::Dir) -> impl Future<Output = TreeResult<()>> + Send;

    /// Room on the file system.
    fn space(&self) -> impl Future<Output = TreeResult<Space>> + Send;

    /// Other file systems that are mounted at or below `path`, as far as this process can see.
    fn mounts_below(&self, path: &RelativePath) -> impl Future<Output = TreeResult<Vec<String>>> + Send {
        let _ = path;
        async { Ok(Vec::new()) }
    }
}

/// The result of one operation on a tree.
pub type TreeResult<T> = Result<T, TreeError>;

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
    /// A socket, a pipe, a device.
    Other,
}

impl FileKind {
    /// In words, with an article.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Directory => "a directory",
            Self::File => "a file",
            Self::Link => "a symbolic link",
            Self::Other => "a special file",
        }
    }
}

/// Attributes of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, set-id and sticky bits included.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Tells entries of one file system apart.
    pub inode: u64,
}

/// One entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: Name,
    /// What it was, where the listing says so. A hint: it may have been swapped since.
    pub kind: Option<FileKind>,
}

/// Where a listing goes on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor(pub u64);

/// A part of a listing. It may be empty and yet not the last one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page {
    /// The entries, without `.` and `..`.
    pub entries: Vec<Entry>,
    /// Where to go on; `None` after the last page.
    pub next: Option<Cursor>,
}

/// Room on a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All of it.
    pub total: u64,
    /// What can still be written.
    pub available: u64,
}

/// A failed operation on a tree.
#[derive(Debug, Error)]
#[error("failed to {operation} {name}")]
pub struct TreeError {
    /// What was tried: a verb, such as `open`.
    pub operation: &'static str,
    /// On what: one name, never a path.
    pub name: String,
    /// Why, as far as anything is decided by it.
    pub kind: ErrorKind,
    /// What the system said.
    pub source: io::Error,
}

/// Why an operation on a tree failed, as far as anything is decided by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// There is nothing by that name.
    Missing,
    /// There is something by that name.
    Exists,
    /// It is a link or a file where a directory was expected.
    NotADirectory,
    /// It is a directory where something else was expected.
    IsADirectory,
    /// The directory has entries.
    NotEmpty,
    /// Another file system is mounted there.
    CrossesMount,
    /// It is in use, mostly as a mount point.
    Busy,
    /// The disk or a quota is full.
    Full,
    /// The file system is mounted read-only.
    ReadOnly,
    /// Not permitted, or immutable.
    Denied,
    /// Anything else. It may have happened.
    Other,
}
