//! Time that counts while we do not: a leader that was suspended must see on waking that its term is over.

use k8s_openapi::jiff::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Debug;
use std::time::Duration;

/// The time, asked where the lease is concerned. All else goes by tokio's clock, which a suspended machine stops.
pub trait Clock: Debug + Send + Sync + 'static {
    /// Since some start. Never goes back, and goes on during suspend.
    fn boot(&self) -> Duration;
    /// For people to read: it may jump, and is nothing to decide upon.
    fn wall(&self) -> Timestamp;
}

/// The machine's.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn boot(&self) -> Duration {
        let time = clock_gettime(ClockId::Boottime);
        // The kernel gives neither a negative time since the boot nor a second of more than its nanoseconds.
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
        Duration::new(seconds, nanos)
    }

    fn wall(&self) -> Timestamp {
        Timestamp::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let first = SystemClock.boot();
        assert!(first > Duration::ZERO && SystemClock.boot() >= first);
        assert!(SystemClock.wall().as_second() > 1_700_000_000);
    }
}
