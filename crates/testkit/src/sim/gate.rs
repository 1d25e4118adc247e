//! A process in the simulation: it can be stopped and resumed at any await, and killed there.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::watch;
use volwright_provisioner::BoxFuture;

/// Stands between a process's tasks and the executor. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Gate {
    inner: Arc<Mutex<Inner>>,
    dead: Arc<watch::Sender<bool>>,
}

#[derive(Debug, Default)]
struct Inner {
    frozen: bool,
    dead: bool,
    polls: u64,
    /// Dies when its tasks were polled so often.
    dies_at: Option<u64>,
    wakers: BTreeMap<u64, Waker>,
    next: u64,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A process that runs.
    pub fn new() -> Self {
        Self { inner: Arc::default(), dead: Arc::new(watch::Sender::new(false)) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a task behind the gate.
    pub fn around(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        let id = {
            let mut inner = self.lock();
            inner.next += 1;
            inner.next
        };
        Box::pin(Gated { gate: self.clone(), id, task: Some(task) })
    }

    /// SIGKILL: no task is polled again, and each is dropped.
    pub fn kill(&self) {
        self.lock().dead = true;
        self.wake_all();
        self.dead.send_replace(true);
    }

    /// Killed when its tasks have been polled `polls` times: at an await of the code, wherever that is.
    pub fn kill_at_poll(&self, polls: u64) {
        self.lock().dies_at = Some(polls);
    }

    /// How often its tasks have been polled.
    pub fn polls(&self) -> u64 {
        self.lock().polls
    }

    /// SIGSTOP.
    pub fn freeze(&self) {
        self.lock().frozen = true;
    }

    /// SIGCONT.
    pub fn thaw(&self) {
        self.lock().frozen = false;
        self.wake_all();
    }

    /// Is it stopped?
    pub fn is_frozen(&self) -> bool {
        self.lock().frozen
    }

    /// Was it killed?
    pub fn is_dead(&self) -> bool {
        self.lock().dead
    }

    /// Returns when it was killed.
    pub async fn died(&self) {
        // The sender lives as long as we do.
        self.dead.subscribe().wait_for(|dead| *dead).await.ok();
    }

    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.lock().wakers);
        wakers.into_values().for_each(Waker::wake);
    }
}

struct Gated {
    gate: Gate,
    id: u64,
    task: Option<BoxFuture<'static, ()>>,
}

impl Future for Gated {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let dies = {
            let mut inner = self.gate.lock();
            if !inner.dead {
                let id = self.id;
                inner.wakers.insert(id, context.waker().clone());
            }
            if inner.frozen && !inner.dead {
                return Poll::Pending;
            }
            inner.polls += 1;
            inner.dies_at.is_some_and(|at| inner.polls >= at) && !inner.dead
        };
        if dies {
            self.gate.kill();
        }
        if self.gate.is_dead() {
            self.task = None;
            return Poll::Ready(());
        }
        let Some(task) = &mut self.task else { return Poll::Ready(()) };
        task.as_mut().poll(context)
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        self.gate.lock().wakers.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;
    use tokio::time::sleep;

    #[tokio::test(start_paused = true)]
    async fn a_stopped_process_stands_still_and_a_killed_one_is_gone() {
        let (gate, count) = (Gate::new(), Arc::new(AtomicU32::new(0)));
        let counted = Arc::clone(&count);
        let task = tokio::spawn(gate.around(Box::pin(async move {
            loop {
                sleep(Duration::from_secs(1)).await;
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })));
        sleep(Duration::from_millis(3500)).await;
        assert_eq!(count.load(Ordering::SeqCst), 3);
        gate.freeze();
        sleep(Duration::from_secs(10)).await;
        assert_eq!(count.load(Ordering::SeqCst), 3);
        gate.thaw();
        sleep(Duration::from_millis(1500)).await;
        assert_eq!(count.load(Ordering::SeqCst), 5, "its timers have run out meanwhile");
        gate.freeze();
        gate.kill();
        task.await.unwrap();
        gate.died().await;
        assert!(Arc::strong_count(&count) == 1, "what it held is dropped");
    }

    #[tokio::test(start_paused = true)]
    async fn it_dies_at_the_await_that_was_named() {
        for at in 1..6 {
            let (gate, count) = (Gate::new(), Arc::new(AtomicU32::new(0)));
            gate.kill_at_poll(at);
            let counted = Arc::clone(&count);
            tokio::spawn(gate.around(Box::pin(async move {
                for _ in 0..10 {
                    counted.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            })))
            .await
            .unwrap();
            assert_eq!(u64::from(count.load(Ordering::SeqCst)), at - 1);
        }
    }
}
