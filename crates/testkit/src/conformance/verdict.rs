//! How a check ends before its end: found wanting, not offered, or not possible here.

use super::fixture::Cannot;
use super::report::Verdict;
use std::fmt::Debug;

/// Ends a check.
pub(super) type Stop = Verdict;

/// What a check comes to.
pub(super) type Checked<T = ()> = Result<T, Stop>;

impl From<Cannot> for Verdict {
    fn from(Cannot(why): Cannot) -> Self {
        Verdict::NotChecked { why }
    }
}

/// The check failed.
pub(super) fn failed<T>(expected: impl Into<String>, seen: impl Into<String>) -> Checked<T> {
    Err(Verdict::Failed { expected: expected.into(), seen: seen.into() })
}

/// The backend does not offer what is checked.
pub(super) fn not_offered<T>(what: impl Into<String>) -> Checked<T> {
    Err(Verdict::NotOffered { what: what.into() })
}

/// Fails unless `holds`.
pub(super) fn expect(holds: bool, expected: &str, seen: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { failed(expected, seen()) }
}

/// Fails unless both are equal.
pub(super) fn same<T: PartialEq + Debug>(seen: &T, wanted: &T, expected: &str) -> Checked {
    expect(seen == wanted, expected, || format!("{seen:?} instead of {wanted:?}"))
}
