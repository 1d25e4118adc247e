//! Is the same provisioner served from elsewhere? Two installations would each provision the same claims.
//!
//! Leases of one provisioner bear one label, in whatever namespace. Another one's lease that is still being renewed is
//! refused; one that is left over from an installation that ended is not. As with our own lease, only a change that we
//! see tells the two apart.

use super::lease::Record;
use std::collections::BTreeMap;
use std::time::Duration;

/// Where a lease is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What the others' leases mean for us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody else serves this provisioner.
    Clear,
    /// Somebody may: look again, and go by what has changed.
    Watch,
    /// Somebody does.
    Refused(Place),
}

#[derive(Debug, Clone)]
struct Rival {
    record: Record,
    since: Duration,
    renewed: bool,
}

/// The others' leases, as they were seen so far.
#[derive(Debug, Clone, Default)]
pub struct Rivals {
    seen: BTreeMap<Place, Rival>,
}

impl Rivals {
    /// `leases` are all of this provisioner but our own. `duration` counts where a lease does not say how long it stands.
    pub fn judge(
        &mut self,
        leases: impl IntoIterator<Item = (Place, Record)>,
        duration: Duration,
        now: Duration,
    ) -> Verdict {
        let mut before = std::mem::take(&mut self.seen);
        // A released lease is nobody's.
        for (place, record) in leases.into_iter().filter(|(_, record)| !record.holder.is_empty()) {
            let rival = match before.remove(&place) {
                Some(rival) if rival.record.same_as(&record) => rival,
                known => Rival { record, since: now, renewed: known.is_some() },
            };
            self.seen.insert(place, rival);
        }
        let mut alive =
            self.seen.iter().filter(|(_, rival)| !rival.is_dead(duration, now)).collect::<Vec<_>>();
        alive.sort_by_key(|(_, rival)| !rival.renewed);
        match alive.first() {
            None => Verdict::Clear,
            Some((place, rival)) if rival.renewed => Verdict::Refused((*place).clone()),
            Some(_) => Verdict::Watch,
        }
    }

    /// Leases whose holders went without releasing them.
    pub fn dead(&self, duration: Duration, now: Duration) -> impl Iterator<Item = (&Place, &str)> {
        self.seen
            .iter()
            .filter(move |(_, rival)| rival.is_dead(duration, now))
            .map(|(place, rival)| (place, rival.record.holder.as_str()))
    }
}

impl Rival {
    fn is_dead(&self, duration: Duration, now: Duration) -> bool {
        now >= self.since.saturating_add(self.record.stands_for(duration))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATION: Duration = Duration::from_secs(15);

    fn lease(namespace: &str, holder: &str, renewed: u32) -> (Place, Record) {
        let place = Place { namespace: namespace.to_owned(), name: "lease".to_owned() };
        let record = Record {
            holder: holder.to_owned(),
            duration: DURATION,
            renew_time: renewed.to_string(),
            transitions: 0,
            resource_version: renewed.to_string(),
            claimed_age: Duration::ZERO,
        };
        (place, record)
    }

    /// Seconds since the first look, what is there, and what it means.
    type Row = (u64, Vec<(Place, Record)>, Verdict);

    #[test]
    fn only_what_changes_is_alive() {
        let place = |namespace: &str| lease(namespace, "", 0).0;
        let stories: [(&str, Vec<Row>); 6] = [
            ("nobody else", vec![(0, vec![], Verdict::Clear)]),
            ("released", vec![(0, vec![lease("b", "", 1)], Verdict::Clear)]),
            (
                "left over: dead after its duration, and stays dead",
                vec![
                    (0, vec![lease("b", "x", 1)], Verdict::Watch),
                    (14, vec![lease("b", "x", 1)], Verdict::Watch),
                    (15, vec![lease("b", "x", 1)], Verdict::Clear),
                    (99, vec![lease("b", "x", 1)], Verdict::Clear),
                    (100, vec![lease("b", "x", 2)], Verdict::Refused(place("b"))),
                ],
            ),
            (
                "alive, and then it goes",
                vec![
                    (0, vec![lease("b", "x", 1)], Verdict::Watch),
                    (2, vec![lease("b", "x", 2)], Verdict::Refused(place("b"))),
                    (4, vec![lease("b", "x", 2)], Verdict::Refused(place("b"))),
                    (17, vec![lease("b", "x", 2)], Verdict::Clear),
                ],
            ),
            (
                "released while watched",
                vec![
                    (0, vec![lease("b", "x", 1)], Verdict::Watch),
                    (2, vec![lease("b", "", 2)], Verdict::Clear),
                    (4, vec![lease("b", "y", 3)], Verdict::Watch),
                ],
            ),
            (
                "a dead one does not hide a living one",
                vec![
                    (0, vec![lease("b", "x", 1), lease("c", "y", 1)], Verdict::Watch),
                    (9, vec![lease("b", "x", 1), lease("c", "y", 2)], Verdict::Refused(place("c"))),
                    (15, vec![lease("b", "x", 1), lease("c", "y", 3)], Verdict::Refused(place("c"))),
                    (15, vec![lease("b", "x", 1)], Verdict::Clear),
                ],
            ),
        ];
        for (name, rows) in stories {
            let mut rivals = Rivals::default();
            for (at, leases, expected) in rows {
                let verdict = rivals.judge(leases, DURATION, Duration::from_secs(at));
                assert_eq!(verdict, expected, "{name}, after {at} s");
            }
        }
    }
}
