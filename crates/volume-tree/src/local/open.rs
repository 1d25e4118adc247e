//! Opening a root on a local disk.

use super::{LocalTree, mounts, open_dir};
use crate::layout;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RawDir, ResolveFlags, fchmod, fstat, fstatfs, openat2, stat, statat,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;
use thiserror::Error;
use volwright_provisioner::Failure;

/// What a root must be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LocalOptions {
    /// It must be where a file system of its own is mounted.
    pub require_mount: bool,
    /// It may be on a file system that a reboot empties.
    pub allow_volatile: bool,
}

/// Why a path is no usable root. The texts have host paths in them: for logs and `doctor`.
/// [`OpenError::failure`] gives one for events.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Relative, or with `..` or the like in it.
    #[error("{0:?} is no absolute path without \"..\"; write it in full")]
    NotAbsolute(PathBuf),
    /// There is nothing.
    #[error("{0:?} does not exist; mount the disk, make the directory, or let --init-root make it")]
    Missing(PathBuf),
    /// A link on the way: the path in the PV would be another one than the one we guard.
    #[error("{path:?} is, or goes through, a symbolic link; give the real path{}", real.as_ref().map(|r| format!(" {}", r.display())).unwrap_or_default())]
    Link {
        /// The path as given.
        path: PathBuf,
        /// Where it leads, if it does.
        real: Option<PathBuf>,
    },
    /// A file.
    #[error("{0:?} is not a directory")]
    NotADirectory(PathBuf),
    /// Its parent's file system.
    #[error("no file system of its own is mounted at {0:?}, and a mount is required; is the disk mounted?")]
    NotMounted(PathBuf),
    /// tmpfs or ramfs.
    #[error(
        "{0:?} is on a file system that a reboot empties; choose a disk, or allow it with --allow-volatile"
    )]
    Volatile(PathBuf),
    /// A root inside a root.
    #[error("{path:?} lies inside {outer:?}, which is a root already; roots must not contain each other")]
    InsideRoot {
        /// The path as given.
        path: PathBuf,
        /// The other root.
        outer: PathBuf,
    },
    /// Others could forge our records.
    #[error(
        "{0:?} can be changed by others than us: chown it to the agent's user and chmod it to 0700, after a look at who changed it"
    )]
    Untrusted(PathBuf),
    /// Anything else.
    #[error("failed to open {path:?}")]
    Io {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl OpenError {
    /// As the class and text for users: nothing was started. No host path in it.
    pub fn failure(self) -> Failure {
        let text = match &self {
            Self::NotAbsolute(_) | Self::Link { .. } | Self::NotADirectory(_) => "is no directory of its own",
            Self::Missing(_) => "does not exist on the node; is the disk mounted?",
            Self::NotMounted(_) => {
                "is not mounted on the node, and a mount is required; is the disk mounted?"
            }
            Self::Volatile(_) => "is on a file system that a reboot empties",
            Self::InsideRoot { .. } => "lies inside another root",
            Self::Untrusted(_) => "has records that others could change",
            Self::Io { .. } => "cannot be opened",
        };
        Failure::unavailable(format!("the root {text}; the agent's log and `doctor` have its path"))
            .caused_by(self)
    }
}

impl LocalTree {
    /// Opens a root. Changes nothing.
    pub fn open(path: &Path, options: LocalOptions) -> Result<Self, OpenError> {
        let path = plain(path)?;
        let root = open_root(&path)?;
        if let Some(outer) = outer_root(&path) {
            return Err(OpenError::InsideRoot { path, outer });
        }
        let io_error = |source: io::Error| OpenError::Io { path: path.clone(), source };
        if options.require_mount && !mounts::is_whole_mount(&mounts::read().map_err(io_error)?, &path) {
            return Err(OpenError::NotMounted(path));
        }
        if !options.allow_volatile && is_volatile(&root).map_err(|e| io_error(e.into()))? {
            return Err(OpenError::Volatile(path));
        }
        let tree = Self { path, root, lock: OnceLock::new() };
        tree.check_trust()?;
        Ok(tree)
    }

    /// Makes the directory of a root, as an operator asked for. Its parent must exist.
    pub fn make_root(path: &Path) -> Result<(), OpenError> {
        let path = plain(path)?;
        match std::fs::create_dir(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(OpenError::Io { path, source })
            }
            Ok(()) => {
                let root = open_root(&path)?;
                fchmod(&root, Mode::RWXU).map_err(|e| OpenError::Io { path, source: e.into() })
            }
            Err(_) => Ok(()),
        }
    }

    /// Where it is on this host, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Does the path still lead to the directory that is open? Not after a disk was mounted over it, or replaced.
    pub fn is_current(&self) -> bool {
        match (stat(&self.path), fstat(&self.root)) {
            (Ok(now), Ok(open)) => (now.st_dev, now.st_ino) == (open.st_dev, open.st_ino),
            _ => false,
        }
    }

    /// Is it the same directory as `other`, perhaps by another path?
    pub fn is_same_directory(&self, other: &Self) -> bool {
        match (fstat(&self.root), fstat(&other.root)) {
            (Ok(one), Ok(two)) => (one.st_dev, one.st_ino) == (two.st_dev, two.st_ino),
            _ => false,
        }
    }

    /// The permission bits of the root, and whether it is ours.
    pub fn access(&self) -> io::Result<(u32, bool)> {
        let stat = fstat(&self.root)?;
        Ok((stat.st_mode & 0o7777, stat.st_uid == rustix::process::geteuid().as_raw()))
    }

    /// Closes a fresh root to everybody else: volumes are often open to all (mode 0777), and pods reach theirs through a
    /// mount of their own, not through the root. A root that has more in it than our own directory is left as it is.
    pub fn close_if_empty(&self) -> io::Result<()> {
        let (mode, ours) = self.access()?;
        if !ours || mode == 0o700 {
            return Ok(());
        }
        let listing = open_dir(&self.root, b".")?;
        let mut buffer = Vec::with_capacity(super::LIST_BUFFER);
        let mut entries = RawDir::new(&listing, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b".." | b"lost+found") && name != layout::OWN.as_bytes() {
                return Ok(());
            }
        }
        Ok(fchmod(&self.root, Mode::RWXU)?)
    }

    /// Nobody else may be able to write our records: they say what may be deleted.
    fn check_trust(&self) -> Result<(), OpenError> {
        let own = match statat(&self.root, layout::OWN.as_bytes(), AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(()),
            result => result.map_err(|e| OpenError::Io { path: self.path.clone(), source: e.into() })?,
        };
        let directory = super::stat_of(&own).kind == crate::FileKind::Directory;
        if directory && own.st_uid == rustix::process::geteuid().as_raw() && own.st_mode & 0o022 == 0 {
            return Ok(());
        }
        Err(OpenError::Untrusted(self.path.join(layout::OWN.to_string())))
    }
}

/// An absolute path without `..`, written in one way only.
fn plain(path: &Path) -> Result<PathBuf, OpenError> {
    let proper = path.is_absolute()
        && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    let plain: PathBuf = path.components().collect();
    if proper && plain.parent().is_some() { Ok(plain) } else { Err(OpenError::NotAbsolute(path.to_owned())) }
}

fn open_root(path: &Path) -> Result<OwnedFd, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(CWD, path, flags, Mode::empty(), resolve).map_err(|errno| match errno {
        Errno::NOENT => OpenError::Missing(path.to_owned()),
        Errno::LOOP => OpenError::Link { path: path.to_owned(), real: std::fs::canonicalize(path).ok() },
        Errno::NOTDIR => OpenError::NotADirectory(path.to_owned()),
        other => OpenError::Io { path: path.to_owned(), source: other.into() },
    })
}

/// Looks upwards for a root that this one would lie in, be it another agent's.
fn outer_root(path: &Path) -> Option<PathBuf> {
    let own = layout::OWN.to_string();
    path.ancestors()
        .skip(1)
        .find(|outer| outer.join(&own).join(layout::IDENTITY.to_string()).symlink_metadata().is_ok())
        .map(Path::to_owned)
}

fn is_volatile(root: &OwnedFd) -> Result<bool, Errno> {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    #[allow(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "widths and signs differ between architectures; magic numbers have 32 bits"
    )]
    let kind = fstatfs(root)?.f_type as u64 & 0xffff_ffff;
    Ok(kind == TMPFS || kind == RAMFS)
}
