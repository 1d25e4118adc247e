//! A tree on a local disk, through `openat2`.
//!
//! The kernel refuses what must not happen: each lookup is of one component, below its directory, without symbolic or
//! magic links, within one mount. Calls block the thread, so they belong on one that may (`spawn_blocking`).

mod errno; // what Linux answers
mod lock; // keeping a second agent out
mod mounts; // the mount table
mod open; // what may be a root

pub use self::lock::LockError;
pub use self::open::{LocalOptions, OpenError};

use self::errno::{failed, failed_on_dir};
use crate::{Cursor, Entry, ErrorKind, FileKind, Name, Page, Space, Stat, Tree, TreeError, TreeResult};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, SeekFrom, Uid, fchmod, fchown,
    fstat, fstatvfs, fsync, mkdirat, openat2, renameat, renameat_with, seek, statat, unlinkat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use volwright_provisioner::RelativePath;

/// What no lookup below a root may do.
const CONFINED: ResolveFlags = ResolveFlags::BENEATH
    .union(ResolveFlags::NO_SYMLINKS)
    .union(ResolveFlags::NO_MAGICLINKS)
    .union(ResolveFlags::NO_XDEV);
/// Entries are read in chunks of this many bytes: some hundred names, one system call.
const LIST_BUFFER: usize = 32 * 1024;
/// Prefix of files that are being written. No record's name begins so.
const TEMPORARY: &str = "=tmp-";

/// A directory of this host as a [`Tree`].
#[derive(Debug)]
pub struct LocalTree {
    path: PathBuf,
    root: OwnedFd,
    lock: OnceLock<OwnedFd>,
}

fn open_below(dir: impl AsFd, name: &[u8], flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    // EAGAIN: something was renamed while the kernel looked; it cannot tell whether we would have escaped.
    for _ in 0..100 {
        match openat2(&dir, name, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode, CONFINED) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
    Err(Errno::AGAIN)
}

fn open_dir(dir: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    open_below(dir, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())
}

fn file_kind(kind: FileType) -> Option<FileKind> {
    match kind {
        FileType::Directory => Some(FileKind::Directory),
        FileType::RegularFile => Some(FileKind::File),
        FileType::Symlink => Some(FileKind::Link),
        FileType::Unknown => None,
        _ => Some(FileKind::Other),
    }
}

/// The fields differ in width between architectures.
#[allow(clippy::useless_conversion, clippy::unnecessary_cast, reason = "widths differ between architectures")]
fn stat_of(stat: &rustix::fs::Stat) -> Stat {
    let kind = file_kind(FileType::from_raw_mode(stat.st_mode)).unwrap_or(FileKind::Other);
    let mode = Mode::from_raw_mode(stat.st_mode).bits() & 0o7777;
    Stat { kind, mode, uid: stat.st_uid, gid: stat.st_gid, inode: stat.st_ino as u64 }
}

/// Whether anything is there at all, for file systems that cannot refuse to replace by themselves.
fn rename_looking_first(from: &OwnedFd, old: &Name, to: &OwnedFd, new: &Name) -> Result<(), Errno> {
    match statat(to, new.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Err(Errno::EXIST),
        Err(Errno::NOENT) => renameat(from, old.as_bytes(), to, new.as_bytes()),
        Err(other) => Err(other),
    }
}

impl Tree for LocalTree {
    type Dir = OwnedFd;

    async fn root(&self) -> TreeResult<OwnedFd> {
        // A description of its own: listings share a position with whoever shares the description.
        open_dir(&self.root, b".").map_err(failed_on_dir("open"))
    }

    async fn open_dir(&self, dir: &OwnedFd, name: &Name) -> TreeResult<OwnedFd> {
        open_dir(dir, name.as_bytes()).map_err(failed("open", name))
    }

    async fn make_dir(&self, dir: &OwnedFd, name: &Name) -> TreeResult<OwnedFd> {
        mkdirat(dir, name.as_bytes(), Mode::RWXU).map_err(failed("make", name))?;
        open_dir(dir, name.as_bytes()).map_err(failed("open", name))
    }

    async fn stat(&self, dir: &OwnedFd, name: &Name) -> TreeResult<Stat> {
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        statat(dir, name.as_bytes(), flags).map(|stat| stat_of(&stat)).map_err(failed("look at", name))
    }

    async fn stat_dir(&self, dir: &OwnedFd) -> TreeResult<Stat> {
        fstat(dir).map(|stat| stat_of(&stat)).map_err(failed_on_dir("look at"))
    }

    async fn list(&self, dir: &OwnedFd, from: Cursor) -> TreeResult<Page> {
        seek(dir, SeekFrom::Start(from.0)).map_err(failed_on_dir("list"))?;
        let mut buffer = Vec::with_capacity(LIST_BUFFER);
        let mut raw = RawDir::new(dir, buffer.spare_capacity_mut());
        let mut page = Page::default();
        while let Some(entry) = raw.next() {
            let entry = entry.map_err(failed_on_dir("list"))?;
            page.next = Some(Cursor(entry.next_entry_cookie()));
            if let Some(name) = Name::new(entry.file_name().to_bytes()) {
                page.entries.push(Entry { name, kind: file_kind(entry.file_type()) });
            }
            if raw.is_buffer_empty() {
                return Ok(page);
            }
        }
        page.next = None;
        Ok(page)
    }

    async fn set_owner(&self, dir: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> TreeResult<()> {
        fchown(dir, uid.map(Uid::from_raw), gid.map(Gid::from_raw)).map_err(failed_on_dir("set the owner of"))
    }

    async fn set_mode(&self, dir: &OwnedFd, mode: u32) -> TreeResult<()> {
        fchmod(dir, Mode::from_raw_mode(mode)).map_err(failed_on_dir("set the mode of"))
    }

    async fn rename(&self, from: &OwnedFd, old: &Name, to: &OwnedFd, new: &Name) -> TreeResult<()> {
        match renameat_with(from, old.as_bytes(), to, new.as_bytes(), RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => rename_looking_first(from, old, to, new),
            result => result,
        }
        .map_err(failed("rename", old))
    }

    async fn unlink(&self, dir: &OwnedFd, name: &Name) -> TreeResult<()> {
        unlinkat(dir, name.as_bytes(), AtFlags::empty()).map_err(failed("remove", name))
    }

    async fn remove_dir(&self, dir: &OwnedFd, name: &Name) -> TreeResult<()> {
        let removed = unlinkat(dir, name.as_bytes(), AtFlags::REMOVEDIR);
        // POSIX lets a file system say EXIST for a directory with entries.
        removed
            .map_err(|e| if e == Errno::EXIST { Errno::NOTEMPTY } else { e })
            .map_err(failed("remove", name))
    }

    async fn read_file(&self, dir: &OwnedFd, name: &Name, limit: usize) -> TreeResult<Vec<u8>> {
        // NONBLOCK: a pipe in the file's place must not hang us.
        let fd = open_below(dir, name.as_bytes(), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty())
            .map_err(failed("open", name))?;
        let stat = fstat(&fd).map_err(failed("look at", name))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(failed("read", name)(Errno::INVAL));
        }
        let mut bytes = Vec::new();
        let read = File::from(fd).take(limit as u64 + 1).read_to_end(&mut bytes);
        read.map_err(|source| io_failed("read", name, source))?;
        if bytes.len() > limit { Err(failed("read", name)(Errno::FBIG)) } else { Ok(bytes) }
    }

    async fn write_file(&self, dir: &OwnedFd, name: &Name, bytes: &[u8]) -> TreeResult<()> {
        // A record is a journal entry, so the order counts: contents durable under a temporary name (fsync), then the name
        // (one rename: the old file or the new one, never half of either), then the rename durable (fsync of the
        // directory). Whoever is answered Ok finds the file after a power failure.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{TEMPORARY}{}-{number}", std::process::id());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let fd = open_below(dir, temporary.as_bytes(), flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("write", name))?;
        let mut file = File::from(fd);
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        let renamed = match written {
            Ok(()) => {
                renameat(dir, temporary.as_bytes(), dir, name.as_bytes()).map_err(failed("rename", name))
            }
            Err(source) => Err(io_failed("write", name, source)),
        };
        if renamed.is_err() {
            // Best effort; what stays is removed at the next start.
            unlinkat(dir, temporary.as_bytes(), AtFlags::empty()).ok();
        }
        renamed?;
        fsync(dir).map_err(failed("sync", name))
    }

    async fn sync(&self, dir: &OwnedFd) -> TreeResult<()> {
        fsync(dir).map_err(failed_on_dir("sync"))
    }

    async fn space(&self) -> TreeResult<Space> {
        let room = fstatvfs(&self.root).map_err(failed_on_dir("ask the size of"))?;
        let bytes = |blocks: u64| blocks.saturating_mul(room.f_frsize);
        Ok(Space { total: bytes(room.f_blocks), available: bytes(room.f_bavail) })
    }

    async fn mounts_below(&self, path: &RelativePath) -> TreeResult<Vec<String>> {
        let below = self.path.join(path.to_string());
        let mounts = mounts::read().map_err(|source| TreeError {
            operation: "read",
            name: "the mount table".to_owned(),
            kind: ErrorKind::Other,
            source,
        })?;
        let shown = |mount: &mounts::Mount| {
            let inside = mount.point.strip_prefix(&self.path).unwrap_or(&mount.point);
            inside.display().to_string()
        };
        Ok(mounts.iter().filter(|mount| mount.point.starts_with(&below)).map(shown).collect())
    }
}

fn io_failed(operation: &'static str, name: &Name, source: std::io::Error) -> TreeError {
    match Errno::from_io_error(&source) {
        Some(errno) => failed(operation, name)(errno),
        None => TreeError { operation, name: name.to_string(), kind: ErrorKind::Other, source },
    }
}
