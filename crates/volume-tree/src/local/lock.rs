//! Keeping a second agent out of a root.

use super::{LocalTree, TEMPORARY, open_below, open_dir};
use crate::layout;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RawDir, flock, ftruncate, unlinkat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use thiserror::Error;

/// Why a root could not be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// Somebody has it.
    #[error(
        "another agent ({holder}) serves this root already: stop it, or give each agent a root of its own; \
         the lock goes with its process, so never delete the lock file"
    )]
    Held {
        /// What it wrote into the lock file.
        holder: String,
    },
    /// Anything else.
    #[error("failed to lock the root")]
    Io(#[from] io::Error),
}

impl LocalTree {
    /// Keeps a second agent out of this root for as long as this tree lives. The root must have its identity already.
    /// Files that a crash left half written are removed.
    pub fn lock(&self, holder: &str) -> Result<(), LockError> {
        let own = open_dir(&self.root, layout::OWN.as_bytes()).map_err(io::Error::from)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NONBLOCK;
        let fd = open_below(&own, b"lock", flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from)?;
        let mut file = File::from(fd);
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                let read = (&mut file).take(200).read_to_string(&mut text);
                let holder = read.ok().map(|_| text.trim().to_owned()).filter(|text| !text.is_empty());
                return Err(LockError::Held { holder: holder.unwrap_or_else(|| "unknown".to_owned()) });
            }
            Err(other) => return Err(io::Error::from(other).into()),
        }
        // Only the lock itself keeps anybody out; the text helps who looks for the other agent.
        ftruncate(&file, 0).map_err(io::Error::from)?;
        writeln!(file, "process {} of {holder}", std::process::id())?;
        sweep_temporaries(&own)?;
        self.lock.set(OwnedFd::from(file)).ok();
        Ok(())
    }
}

fn sweep_temporaries(own: &OwnedFd) -> io::Result<()> {
    for dir in [&b"."[..], b"records", b"parents"] {
        let dir = match open_dir(own, dir) {
            Err(Errno::NOENT) => continue,
            result => result?,
        };
        let mut buffer = Vec::with_capacity(super::LIST_BUFFER);
        let mut left = Vec::new();
        let mut entries = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            if entry.file_name().to_bytes().starts_with(TEMPORARY.as_bytes()) {
                left.push(entry.file_name().to_owned());
            }
        }
        for name in left {
            unlinkat(&dir, name.as_c_str(), AtFlags::empty())?;
        }
    }
    Ok(())
}
