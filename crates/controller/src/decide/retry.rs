//! When to try again, from the class of a failure alone.

use std::time::Duration;
use volwright_provisioner::{Class, Until};

/// Capped exponential backoff.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub base: Duration,
    /// Never more.
    pub max: Duration,
}

impl Backoff {
    /// The delay after `failures` failures in a row (1 is the first), before jitter.
    pub fn delay(self, failures: u32) -> Duration {
        // 2^20 seconds is over 12 days: no cap is above that.
        let doublings = failures.saturating_sub(1).min(20);
        self.base.saturating_mul(1 << doublings).min(self.max)
    }
}

/// What the engine does about a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this long.
    Again(Duration),
    /// With late binding: undo the plan, and after this long make the scheduler choose again; else try again then.
    Reschedule(Duration),
    /// Again when the claim or its class changes, and very slowly in case that was missed.
    WhenChanged(Duration),
}

/// `failures` counts the failures of this object in a row, this one included.
pub fn next(class: Class, failures: u32, backoff: Backoff) -> Next {
    match class {
        Class::Unavailable | Class::Unknown => Next::Again(backoff.delay(failures)),
        // The first removal is at once: the pod waits. From then on each is later, or a full cluster would have the
        // scheduler and us write the claim in turns for ever.
        Class::Exhausted => Next::Reschedule(match failures {
            0 | 1 => Duration::ZERO,
            more => backoff.delay(more - 1),
        }),
        Class::Blocked(Until::After(delay)) => Next::Again(delay),
        Class::Blocked(Until::Unused | Until::Settled) => {
            Next::Again(backoff.delay(failures).min(UNUSED_POLL))
        }
        Class::Blocked(Until::OperatorActs) | Class::Invalid | Class::NotOurs => {
            Next::WhenChanged(backoff.max)
        }
    }
}

/// Detaching takes seconds; asking more seldom than this would make a delete visibly late.
const UNUSED_POLL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) };

    #[test]
    fn the_class_alone_decides() {
        let secs = Duration::from_secs;
        let cases = [
            (Class::Unavailable, 1, Next::Again(secs(1))),
            (Class::Unavailable, 4, Next::Again(secs(8))),
            (Class::Unknown, 100, Next::Again(secs(300))),
            (Class::Exhausted, 1, Next::Reschedule(secs(0))),
            (Class::Exhausted, 2, Next::Reschedule(secs(1))),
            (Class::Exhausted, 50, Next::Reschedule(secs(300))),
            (Class::Invalid, 1, Next::WhenChanged(secs(300))),
            (Class::NotOurs, 1, Next::WhenChanged(secs(300))),
            (Class::Blocked(Until::After(secs(7))), 9, Next::Again(secs(7))),
            (Class::Blocked(Until::Unused), 9, Next::Again(secs(5))),
            (Class::Blocked(Until::OperatorActs), 1, Next::WhenChanged(secs(300))),
        ];
        for (class, failures, expected) in cases {
            assert_eq!(next(class, failures, BACKOFF), expected, "{class:?} {failures}");
        }
    }

    #[test]
    fn it_is_retried_for_ever_and_never_more_seldom_than_the_cap() {
        for failures in 0..10_000 {
            assert!(BACKOFF.delay(failures) <= BACKOFF.max);
        }
        assert_eq!(BACKOFF.delay(u32::MAX), BACKOFF.max);
    }
}
