//! A directory of any width and depth made empty, in bounded memory and with three open directories.
//!
//! There is no recursion and no stack of what is still to be done: a directory two levels down that is not empty is moved
//! up beside its parent, until everything is one level deep. Each step is a step forward wherever a crash cuts in, the
//! moved directories stay inside the volume (where quotas and subvolumes let them be moved), and a link is removed or
//! moved like any other name, never followed.

use super::Volumes;
use super::remove::mounted;
use crate::failure::{Changed, ResultExt};
use crate::{Cursor, Entry, ErrorKind, FileKind, Name, Tree, TreeError};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;
use tokio::time::Instant;
use volwright_provisioner::{Failure, Result, Until};

/// How much one call removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// Entries.
    pub entries: u64,
    /// Time.
    pub time: Duration,
}

impl Default for Slice {
    /// Longer slices hold a worker that others wait for; shorter ones cost a look at the record each.
    fn default() -> Self {
        Self { entries: 100_000, time: Duration::from_secs(5) }
    }
}

/// How far it came.
pub(super) enum Emptied {
    /// Nothing is left.
    Done,
    /// The slice is used up.
    NotYet {
        /// Entries removed in this slice.
        removed: u64,
    },
}

struct Budget {
    /// Tells the names that this call gives from those of calls before it, of which thousands may be left.
    token: u64,
    removed: u64,
    moved: u64,
    entries: u64,
    until: Instant,
}

impl Budget {
    fn new(slice: Slice) -> Self {
        let token = RandomState::new().build_hasher().finish();
        Self { token, removed: 0, moved: 0, entries: slice.entries, until: Instant::now() + slice.time }
    }

    fn steps(&self) -> u64 {
        self.removed + self.moved
    }

    fn is_spent(&self) -> bool {
        // A look at the clock for every entry would be a good part of the work.
        self.steps() >= self.entries || (self.steps().is_multiple_of(64) && Instant::now() >= self.until)
    }
}

/// What became of one entry.
enum Step {
    Gone,
    /// A directory with something in it.
    NotEmpty,
}

/// Names that a directory gets when it is moved up. One that a user chose as well is skipped.
const MOVED: &str = ".volwright-moved-";

impl<T: Tree> Volumes<T> {
    /// Removes everything in `top`, but not `top` itself.
    pub(super) async fn empty(&self, top: &T::Dir) -> Result<Emptied> {
        let mut budget = Budget::new(self.slice);
        loop {
            let before = budget.steps();
            let mut cursor = Some(Cursor::default());
            let mut seen = false;
            while let Some(from) = cursor {
                let page = self.tree.list(top, from).await.map_err(|e| stuck(e, "the volume"))?;
                seen |= !page.entries.is_empty();
                for entry in &page.entries {
                    if let Step::NotEmpty = self.remove(top, entry, &mut budget).await?
                        && self.flatten(top, &entry.name, &mut budget).await?
                    {
                        // One pass over its entries is often all it took.
                        self.remove(top, entry, &mut budget).await?;
                    }
                    if budget.is_spent() {
                        return Ok(Emptied::NotYet { removed: budget.removed });
                    }
                }
                cursor = page.next;
            }
            if !seen {
                return Ok(Emptied::Done);
            }
            if budget.steps() == before {
                // Swapped under our hands again and again; whoever does that is still running.
                return Ok(Emptied::NotYet { removed: budget.removed });
            }
        }
    }

    /// Removes what is in the directory `name`; what is a directory with entries itself moves up into `top`. True when it
    /// came to the end.
    async fn flatten(&self, top: &T::Dir, name: &Name, budget: &mut Budget) -> Result<bool> {
        let dir = match self.tree.open_dir(top, name).await {
            Ok(dir) => dir,
            Err(error) => match error.kind {
                // Swapped since: the next pass meets it as what it is now.
                ErrorKind::Missing | ErrorKind::NotADirectory => return Ok(false),
                _ => return Err(stuck(error, &name.to_string())),
            },
        };
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.tree.list(&dir, from).await.map_err(|e| stuck(e, &name.to_string()))?;
            for entry in &page.entries {
                if let Step::NotEmpty = self.remove(&dir, entry, budget).await? {
                    self.move_up(&dir, &entry.name, top, budget).await?;
                }
                if budget.is_spent() {
                    return Ok(false);
                }
            }
            cursor = page.next;
        }
        Ok(true)
    }

    async fn move_up(&self, dir: &T::Dir, name: &Name, top: &T::Dir, budget: &mut Budget) -> Result<()> {
        loop {
            budget.moved += 1;
            let target = Name::component(&format!("{MOVED}{:x}-{}", budget.token, budget.moved));
            match self.tree.rename(dir, name, top, &target).await {
                Ok(()) => return Ok(()),
                Err(error) => match error.kind {
                    ErrorKind::Exists if !budget.is_spent() => {}
                    ErrorKind::Exists | ErrorKind::Missing => return Ok(()),
                    _ => return Err(stuck(error, &name.to_string())),
                },
            }
        }
    }

    async fn remove(&self, dir: &T::Dir, entry: &Entry, budget: &mut Budget) -> Result<Step> {
        let name = &entry.name;
        let mut as_directory = entry.kind == Some(FileKind::Directory);
        // The listing's word may be out of date by now, and again by the time that is noticed.
        for _ in 0..4 {
            let removed = if as_directory {
                self.tree.remove_dir(dir, name).await
            } else {
                self.tree.unlink(dir, name).await
            };
            match removed {
                Ok(()) => {
                    budget.removed += 1;
                    return Ok(Step::Gone);
                }
                Err(error) => match error.kind {
                    ErrorKind::Missing => return Ok(Step::Gone),
                    ErrorKind::NotEmpty => return Ok(Step::NotEmpty),
                    ErrorKind::IsADirectory => as_directory = true,
                    ErrorKind::NotADirectory => as_directory = false,
                    _ => return Err(stuck(error, &name.to_string())),
                },
            }
        }
        Ok(Step::Gone) // for this pass
    }
}

fn stuck(error: TreeError, what: &str) -> Failure {
    match error.kind {
        ErrorKind::CrossesMount | ErrorKind::Busy => mounted(what).caused_by(error),
        ErrorKind::Denied => Failure::blocked(
            Until::OperatorActs,
            format!("{what} in the volume cannot be removed, it may be immutable (lsattr, chattr -i); the rest is kept"),
        )
        .caused_by(error),
        _ => match Err::<(), _>(error).or_failure(Changed::Maybe, "removing the volume's files") {
            Err(failure) => failure,
            Ok(()) => Failure::unknown("removing the volume's files failed"),
        },
    }
}
