//! One operation at a time on overlapping data: a claim's provision and the delete of a PV below the same directory
//! exclude each other, whatever they are called.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use volwright_provisioner::Key;

/// The keys that are held now. At most one entry a worker, so a list is searched.
#[derive(Default)]
pub struct KeyLocks {
    held: Mutex<Vec<(u64, Vec<Key>)>>,
    released: Notify,
}

/// Holds its keys until dropped.
pub struct Held {
    locks: Arc<KeyLocks>,
    ticket: u64,
}

impl KeyLocks {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Vec<Key>)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody holds an overlapping key. No keys, no waiting.
    pub async fn acquire(self: &Arc<Self>, keys: Vec<Key>) -> Held {
        loop {
            // Created before looking: a release in between is not missed.
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            {
                let mut held = self.lock();
                let taken =
                    held.iter().any(|(_, other)| other.iter().any(|o| keys.iter().any(|k| k.overlaps(o))));
                if !taken {
                    let ticket = held.iter().map(|(ticket, _)| ticket + 1).max().unwrap_or(0);
                    held.push((ticket, keys));
                    return Held { locks: Arc::clone(self), ticket };
                }
            }
            released.await;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.locks.lock().retain(|(ticket, _)| *ticket != self.ticket);
        self.locks.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn overlapping_data_excludes_and_other_data_does_not() {
        let locks = Arc::new(KeyLocks::default());
        let parent = locks.acquire(vec![Key::of_path("r", "/a")]).await;
        let _other = locks.acquire(vec![Key::of_path("r", "/b")]).await;
        let child = locks.acquire(vec![Key::of_path("r", "/a/x")]);
        tokio::pin!(child);
        assert!(tokio::time::timeout(Duration::from_secs(5), &mut child).await.is_err());
        drop(parent);
        child.await;
    }
}
