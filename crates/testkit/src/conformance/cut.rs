//! Calls that are dropped before they have answered.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

/// Where a call is cut off.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cut {
    /// After it was polled this often: at its first, second, ... await.
    Polls(u32),
    /// After this long.
    After(Duration),
}

/// Awaits near the beginning one by one, then later and later.
pub(super) const CUTS: [Cut; 16] = [
    Cut::Polls(0),
    Cut::Polls(1),
    Cut::Polls(2),
    Cut::Polls(3),
    Cut::Polls(4),
    Cut::Polls(5),
    Cut::Polls(6),
    Cut::Polls(8),
    Cut::Polls(10),
    Cut::Polls(13),
    Cut::Polls(17),
    Cut::Polls(24),
    Cut::After(Duration::from_millis(1)),
    Cut::After(Duration::from_millis(4)),
    Cut::After(Duration::from_millis(15)),
    Cut::After(Duration::from_millis(60)),
];

/// Runs `call` until the cut. `None`: it was dropped.
pub(super) async fn run<T>(cut: Cut, call: impl Future<Output = T>) -> Option<T> {
    match cut {
        Cut::Polls(left) => Polled { call: pin!(call), left }.await,
        Cut::After(time) => tokio::time::timeout(time, call).await.ok(),
    }
}

struct Polled<'a, C> {
    call: Pin<&'a mut C>,
    left: u32,
}

impl<C: Future> Future for Polled<'_, C> {
    type Output = Option<C::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        let last = self.left == 0;
        match self.call.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if last => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_cut_off_at_the_await_that_was_named() {
        for (polls, steps) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
            let mut done = 0;
            let cut = run(Cut::Polls(polls), async {
                done = 1;
                tokio::task::yield_now().await;
                done = 2;
                tokio::task::yield_now().await;
                done = 3;
            });
            assert_eq!(cut.await.is_some(), polls == 3);
            assert_eq!(done, steps);
        }
    }
}
