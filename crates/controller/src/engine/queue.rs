//! A keyed work queue: each key is worked on by one task at a time, a change during work causes one more run, and a
//! failure waits for its delay.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::metrics::Metrics;

/// See the module.
pub struct Queue<K> {
    name: &'static str,
    inner: Mutex<Inner<K>>,
    wake: Notify,
    metrics: Arc<Metrics>,
}

struct Inner<K> {
    ready: VecDeque<(K, Instant)>,
    queued: BTreeSet<K>,
    running: BTreeSet<K>,
    /// Changed while running.
    again: BTreeSet<K>,
    /// The number only orders equal instants.
    later: BTreeMap<(Instant, u64), K>,
    due: BTreeMap<K, (Instant, u64)>,
    failures: BTreeMap<K, u32>,
    sequence: u64,
    closed: bool,
}

impl<K: Clone + Ord> Queue<K> {
    /// An empty queue; `name` labels its metrics.
    pub fn new(name: &'static str, metrics: Arc<Metrics>) -> Self {
        let inner = Inner {
            ready: VecDeque::new(),
            queued: BTreeSet::new(),
            running: BTreeSet::new(),
            again: BTreeSet::new(),
            later: BTreeMap::new(),
            due: BTreeMap::new(),
            failures: BTreeMap::new(),
            sequence: 0,
            closed: false,
        };
        Self { name, inner: Mutex::new(inner), wake: Notify::new(), metrics }
    }

    /// The tables stay consistent at every point where a panic could happen.
    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be worked on now; takes the place of a delay.
    pub fn add(&self, key: K) {
        let mut inner = self.lock();
        inner.cancel_delay(&key);
        if inner.running.contains(&key) {
            inner.again.insert(key);
            return;
        }
        if inner.queued.insert(key.clone()) {
            inner.ready.push_back((key, Instant::now()));
            self.metrics.queue_depth(self.name, inner.ready.len());
            drop(inner);
            self.wake.notify_one();
        }
    }

    /// To be worked on after `delay`, unless [`add`](Self::add) comes first. An earlier delay stays.
    pub fn add_after(&self, key: K, delay: Duration) {
        let mut inner = self.lock();
        let at = Instant::now() + delay;
        if inner.queued.contains(&key) || inner.due.get(&key).is_some_and(|(due, _)| *due <= at) {
            return;
        }
        inner.cancel_delay(&key);
        inner.sequence += 1;
        let slot = (at, inner.sequence);
        inner.later.insert(slot, key.clone());
        inner.due.insert(key, slot);
        drop(inner);
        self.wake.notify_one();
    }

    /// The next key; `None` once closed. The caller owes a [`done`](Self::done).
    pub async fn take(&self) -> Option<K> {
        loop {
            let notified = self.wake.notified();
            let next_due = {
                let mut inner = self.lock();
                if inner.closed {
                    return None;
                }
                inner.promote(Instant::now());
                if let Some((key, since)) = inner.ready.pop_front() {
                    inner.queued.remove(&key);
                    inner.running.insert(key.clone());
                    self.metrics.queue_depth(self.name, inner.ready.len());
                    self.metrics.queue_wait(self.name, since.elapsed());
                    if !inner.ready.is_empty() {
                        self.wake.notify_one();
                    }
                    return Some(key);
                }
                inner.later.keys().next().map(|(at, _)| *at)
            };
            match next_due {
                Some(at) => {
                    tokio::select! {
                        biased;
                        () = notified => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                None => notified.await,
            }
        }
    }

    /// Work on the key has ended.
    pub fn done(&self, key: &K) {
        let mut inner = self.lock();
        inner.running.remove(key);
        if inner.again.remove(key) {
            drop(inner);
            self.add(key.clone());
        }
    }

    /// Counts a failure; returns how many there were in a row.
    pub fn failed(&self, key: &K) -> u32 {
        let mut inner = self.lock();
        let failures = inner.failures.entry(key.clone()).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }

    /// Forgets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.lock().failures.remove(key);
    }

    /// How many keys are remembered: waiting, running, or with failures.
    pub fn len(&self) -> usize {
        let inner = self.lock();
        inner.queued.len() + inner.running.len() + inner.due.len() + inner.failures.len()
    }

    /// How many keys are being worked on.
    pub fn running(&self) -> usize {
        self.lock().running.len()
    }

    /// Nothing is handed out from now on.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_waiters();
        self.wake.notify_one();
    }
}

impl<K: Clone + Ord> Inner<K> {
    fn cancel_delay(&mut self, key: &K) {
        if let Some(slot) = self.due.remove(key) {
            self.later.remove(&slot);
        }
    }

    fn promote(&mut self, now: Instant) {
        while let Some(entry) = self.later.first_entry().filter(|entry| entry.key().0 <= now) {
            let key = entry.remove();
            self.due.remove(&key);
            if self.running.contains(&key) {
                self.again.insert(key);
            } else if self.queued.insert(key.clone()) {
                self.ready.push_back((key, now));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<u8> {
        Queue::new("test", Metrics::new())
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_worked_on_once_at_a_time_and_once_more_after_a_change() {
        let queue = queue();
        queue.add(1);
        queue.add(1);
        assert_eq!(queue.take().await, Some(1));
        queue.add(1);
        queue.add(1);
        assert!(tokio::time::timeout(Duration::from_secs(9), queue.take()).await.is_err(), "it is running");
        queue.done(&1);
        assert_eq!(queue.take().await, Some(1));
        queue.done(&1);
        assert!(tokio::time::timeout(Duration::from_secs(9), queue.take()).await.is_err(), "nothing is left");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_is_kept_and_a_change_ends_it() {
        let queue = queue();
        let start = Instant::now();
        queue.add_after(1, Duration::from_secs(60));
        queue.add_after(2, Duration::from_secs(10));
        queue.add_after(2, Duration::from_secs(90));
        assert_eq!(queue.take().await, Some(2));
        assert_eq!(start.elapsed().as_secs(), 10);
        queue.add(1);
        assert_eq!(queue.take().await, Some(1));
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_queue_hands_out_nothing_and_wakes_all_who_wait() {
        let queue = Arc::new(queue());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.take().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.close();
        for task in waiting {
            assert_eq!(task.await.unwrap(), None);
        }
    }
}
