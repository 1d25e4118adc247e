//! What happened in a run, in order, with the simulated time: told when an invariant broke, and compared to show that a seed
//! replays exactly.

use std::fmt;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Story(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    began: Instant,
    lines: Vec<String>,
    digest: DefaultHasher,
}

impl Story {
    /// Begins now.
    pub fn begin() -> Self {
        let inner = Inner { began: Instant::now(), lines: Vec::new(), digest: DefaultHasher::new() };
        Self(Arc::new(Mutex::new(inner)))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        let mut inner = self.lock();
        let at = inner.began.elapsed();
        let line = format!("{:>10.3} {what}", at.as_secs_f64());
        line.hash(&mut inner.digest);
        tracing::info!("{line}");
        inner.lines.push(line);
    }

    /// Lets go of what was told so far; the digest goes on.
    pub fn forget(&self) {
        self.lock().lines.clear();
    }

    /// All of it.
    pub fn lines(&self) -> Vec<String> {
        self.lock().lines.clone()
    }

    /// The same for the same story.
    pub fn digest(&self) -> u64 {
        self.lock().digest.finish()
    }
}
