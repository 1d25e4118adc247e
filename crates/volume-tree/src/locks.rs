//! One call at a time on one volume.
//!
//! The engine sees to that as well, but it drops a call at its deadline, while a thread that works for it goes on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::OwnedMutexGuard;

/// Locks by name, made when asked for.
#[derive(Debug, Default)]
pub(crate) struct Locks(Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>);

impl Locks {
    pub(crate) async fn lock(&self, name: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            // Nobody waits for a lock that only the map knows. Bounds the map by the calls that are running.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(name.to_owned()).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lock_is_forgotten_when_nobody_wants_it() {
        let locks = Locks::default();
        drop(locks.lock("a").await);
        let held = locks.lock("b").await;
        assert!(tokio::time::timeout(std::time::Duration::from_millis(10), locks.lock("b")).await.is_err());
        drop(held);
        drop(locks.lock("c").await);
        assert_eq!(locks.0.lock().unwrap().len(), 1);
    }
}
