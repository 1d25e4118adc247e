//! An open create intent whose claim is gone, bound elsewhere or no longer wants it.

use super::{Identity, Rule};
use volwright_provisioner::{Mark, MarkState, Observed, Pristine};

/// What becomes of the intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settle {
    /// A PV carries its handle: it is published, and its end is the PV's business.
    Published,
    /// Nobody can have written to it, or nothing is there: `delete` it, also when absent, until that is final.
    Delete,
    /// It stays, and is reported with this reason.
    Orphan(String),
    /// What is there was never ours: it stays, and the intent has ended.
    Foreign,
}

impl Settle {
    /// Every answer of [`settle`], for the coverage of tests.
    pub const ARMS: [&str; 4] = ["published", "delete", "orphan", "foreign"];

    fn arm(&self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Delete => "delete",
            Self::Orphan(_) => "orphan",
            Self::Foreign => "foreign",
        }
    }
}

/// `carried`: a live PV names this volume. `observed`: what the backend sees of it now.
pub fn settle(identity: &Identity, mark: &Mark, carried: bool, observed: Option<&Observed>) -> Settle {
    let settled = settled(identity, mark, carried, observed);
    identity.rules.visit("settle", settled.arm());
    settled
}

fn settled(identity: &Identity, mark: &Mark, carried: bool, observed: Option<&Observed>) -> Settle {
    if carried {
        return Settle::Published;
    }
    // After an unknown answer only a final delete ends an intent: absence now may be presence later.
    let Some(observed) = observed else { return Settle::Delete };
    let pristine = is_pristine(observed) || !identity.rules.holds(Rule::Pristine);
    match &observed.mark {
        Some(found) if !found.same_owner(mark) => Settle::Foreign,
        Some(Mark { state: MarkState::Retained | MarkState::Trashed, .. }) => {
            Settle::Orphan("it was kept on purpose, though it may be empty".to_owned())
        }
        // Every volume is marked before its PV is made: what has no mark and is not empty was put there by others.
        None if !pristine => Settle::Foreign,
        Some(_) if !pristine => Settle::Orphan(
            "no PV speaks for it, and it is not empty: its PV may have existed and been removed".to_owned(),
        ),
        _ => Settle::Delete,
    }
}

/// Can nobody have written to it? Seen so; or, where that cannot be seen, never published: then its mark came off before
/// its PV was made.
fn is_pristine(observed: &Observed) -> bool {
    match observed.pristine {
        Pristine::Yes => true,
        Pristine::No => false,
        Pristine::Unknown => observed
            .mark
            .as_ref()
            .is_some_and(|mark| matches!(mark.state, MarkState::Planned | MarkState::Unpublished)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Rules;
    use volwright_provisioner::{ClaimUid, Epoch, InstallationId, PvName};

    fn mark(owner: &str) -> Mark {
        Mark {
            installation: InstallationId::new("i"),
            owner: ClaimUid::new(owner),
            pv_name: PvName::new("pvc-u"),
            epoch: Epoch::default(),
            state: MarkState::Unpublished,
        }
    }

    fn seen(owner: Option<&str>, pristine: Pristine) -> Observed {
        Observed { mark: owner.map(mark), size: None, pristine, users: Vec::new() }
    }

    #[test]
    fn an_unpublished_volume_goes_only_if_nobody_can_have_written_to_it() {
        let all = Identity::default();
        let off = Identity { rules: Rules::without(Rule::Pristine), ..Identity::default() };
        let ours = mark("u");
        assert_eq!(settle(&all, &ours, true, Some(&seen(Some("u"), Pristine::No))), Settle::Published);
        assert_eq!(settle(&all, &ours, false, None), Settle::Delete);
        assert_eq!(settle(&all, &ours, false, Some(&seen(Some("u"), Pristine::Yes))), Settle::Delete);
        assert_eq!(settle(&all, &ours, false, Some(&seen(None, Pristine::Yes))), Settle::Delete);
        let published =
            |pristine| Observed { mark: Some(ours.with_state(MarkState::Published)), ..seen(None, pristine) };
        assert_eq!(settle(&all, &ours, false, Some(&seen(Some("u"), Pristine::Unknown))), Settle::Delete);
        for seen in [seen(Some("u"), Pristine::No), published(Pristine::No), published(Pristine::Unknown)] {
            assert!(matches!(settle(&all, &ours, false, Some(&seen)), Settle::Orphan(_)));
            assert_eq!(settle(&off, &ours, false, Some(&seen)), Settle::Delete, "the rule is what keeps it");
        }
        let foreign = seen(Some("v"), Pristine::Yes);
        assert_eq!(settle(&all, &ours, false, Some(&foreign)), Settle::Foreign);
        assert_eq!(settle(&all, &ours, false, Some(&seen(None, Pristine::No))), Settle::Foreign);
    }

    #[test]
    fn what_was_kept_on_purpose_stays_though_it_is_empty() {
        let (all, ours) = (Identity::default(), mark("u"));
        let marked = |state| Observed { mark: Some(ours.with_state(state)), ..seen(None, Pristine::Yes) };
        for state in [MarkState::Retained, MarkState::Trashed] {
            let settled = settle(&all, &ours, false, Some(&marked(state)));
            assert!(matches!(settled, Settle::Orphan(_)), "{state:?} {settled:?}");
        }
        for state in [MarkState::Planned, MarkState::Unpublished, MarkState::Published] {
            assert_eq!(settle(&all, &ours, false, Some(&marked(state))), Settle::Delete, "{state:?}");
        }
    }
}
