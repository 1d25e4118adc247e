//! The trash: how long it keeps data, when anything may leave it, and what is due.

use super::{Identity, Rule};
use std::time::Duration;
use volwright_provisioner::{InstallationId, Mark, MarkState, Trashed};

/// How long the trash keeps data where a class does not say: a week. Long enough that somebody who was away over a long
/// weekend finds it, and short enough that a disk does not fill for good.
pub const DEFAULT_KEPT: Duration = Duration::from_secs(7 * DAY);

const DAY: u64 = 24 * 60 * 60;

/// Longer is a slip of the pen, or a wish for `onDelete: retain`.
const LONGEST: Duration = Duration::from_secs(10 * 365 * DAY);

/// Our clock and the API server's may differ by this much. What is kept is kept for days; NTP holds clocks together to
/// within a second, so a machine that is off by two minutes may be off by anything.
pub const CLOCKS_DIFFER: u64 = 120;

/// Reads `trashFor`. `Err` goes on from its name, and names the remedy.
pub fn kept_for(text: Option<&str>) -> Result<Duration, String> {
    let Some(text) = text else { return Ok(DEFAULT_KEPT) };
    let remedy = "write a number with its unit, such as 12h or 7d";
    let time = humantime::parse_duration(text).map_err(|error| format!("is {text:?}: {error}; {remedy}"))?;
    if time < Duration::from_secs(1) || time > LONGEST {
        return Err(format!(
            "is {text:?}; use 1s to 10 years, and onDelete: delete or retain for less or more"
        ));
    }
    Ok(time)
}

/// What the clocks say, in seconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// Ours.
    pub ours: u64,
    /// The API server's.
    pub theirs: u64,
}

impl Clocks {
    /// The later of the two: by it nothing is kept too short.
    pub fn latest(self) -> u64 {
        self.ours.max(self.theirs)
    }
}

/// Why nothing may leave the trash now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Deletes are stopped, with the reason.
    Stopped(String),
    /// The API server's history has not been looked at since something was interrupted.
    Unchecked,
    /// The clocks differ by so many seconds.
    Clocks(u64),
}

/// May anything leave the trash now?
pub fn may_expire(
    identity: &Identity,
    stopped: Option<String>,
    is_checked: bool,
    clocks: Clocks,
) -> Result<(), Hold> {
    if let Some(reason) = stopped {
        return Err(Hold::Stopped(reason));
    }
    if !is_checked {
        return Err(Hold::Unchecked);
    }
    let differ = clocks.ours.abs_diff(clocks.theirs);
    if identity.rules.holds(Rule::TrashClock) && differ > CLOCKS_DIFFER {
        return Err(Hold::Clocks(differ));
    }
    Ok(())
}

/// Is this volume in the trash, and our own?
pub fn is_ours(identity: &Identity, installation: &InstallationId, mark: &Mark) -> bool {
    let ours = mark.installation == *installation || !identity.rules.holds(Rule::TrashOurs);
    ours && mark.state == MarkState::Trashed
}

/// Is its time over, by both clocks?
pub fn is_due(identity: &Identity, trashed: &Trashed, clocks: Clocks) -> bool {
    let is_over = |now: u64| trashed.until <= now;
    // Without the rule about clocks, in a test, our own is believed.
    let theirs = is_over(clocks.theirs) || !identity.rules.holds(Rule::TrashClock);
    (is_over(clocks.ours) && theirs) || !identity.rules.holds(Rule::TrashTime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Rules;
    use volwright_provisioner::{ClaimUid, Epoch, PvName};

    fn without(rule: Rule) -> Identity {
        Identity { rules: Rules::without(rule), ..Identity::default() }
    }

    #[test]
    fn a_time_is_read_or_refused_with_the_remedy() {
        let days = |n| Duration::from_secs(n * DAY);
        for (text, expected) in [
            (None, DEFAULT_KEPT),
            (Some("7d"), days(7)),
            (Some("12h"), Duration::from_secs(12 * 3600)),
            (Some("1day 30m"), days(1) + Duration::from_secs(1800)),
        ] {
            assert_eq!(kept_for(text), Ok(expected), "{text:?}");
        }
        for text in ["", "7", "a week", "0s", "-1d", "100y", "7d;"] {
            let why = kept_for(Some(text)).unwrap_err();
            assert!(why.contains(&format!("{text:?}")) && why.contains("; "), "{why}");
        }
    }

    #[test]
    fn nothing_leaves_while_anything_is_in_doubt() {
        let all = Identity::default();
        let clocks = |ours, theirs| Clocks { ours, theirs };
        let good = clocks(1000, 1000 + CLOCKS_DIFFER);
        assert_eq!(may_expire(&all, None, true, good), Ok(()));
        let stopped = may_expire(&all, Some("restored".to_owned()), true, good);
        assert_eq!(stopped, Err(Hold::Stopped("restored".to_owned())));
        assert_eq!(may_expire(&all, None, false, good), Err(Hold::Unchecked));
        for off in [clocks(1000, 1121), clocks(1121, 1000)] {
            assert_eq!(may_expire(&all, None, true, off), Err(Hold::Clocks(121)));
            assert_eq!(may_expire(&without(Rule::TrashClock), None, true, off), Ok(()));
        }
    }

    #[test]
    fn what_is_ours_is_due_at_its_time_and_no_sooner() {
        let all = Identity::default();
        let trashed = Trashed {
            at: 100,
            until: 1000,
            namespace: String::new(),
            claim: String::new(),
            class_name: String::new(),
            size: 1,
            note: String::new(),
        };
        for (ours, theirs, due) in
            [(999, 1000, false), (1000, 1000, true), (1000, 999, false), (2000, 1500, true)]
        {
            assert_eq!(is_due(&all, &trashed, Clocks { ours, theirs }), due, "{ours} {theirs}");
        }
        assert!(is_due(&without(Rule::TrashTime), &trashed, Clocks { ours: 1, theirs: 1 }));
        let mark = |installation: &str, state| Mark {
            installation: InstallationId::new(installation),
            owner: ClaimUid::new("u"),
            pv_name: PvName::new("pvc-u"),
            epoch: Epoch::default(),
            state,
        };
        let ours = InstallationId::new("i");
        assert!(is_ours(&all, &ours, &mark("i", MarkState::Trashed)));
        assert!(!is_ours(&all, &ours, &mark("i", MarkState::Retained)));
        assert!(!is_ours(&all, &ours, &mark("j", MarkState::Trashed)));
        assert!(is_ours(&without(Rule::TrashOurs), &ours, &mark("j", MarkState::Trashed)));
    }
}
