//! The budget of a class: how many bytes its volumes may be promised together.
//!
//! What is promised counts, not what is used: existing volumes whatever their phase (a retained one takes its room too),
//! those that are being made, and those in the trash. Each counts once, by the claim that it was made for. A node agent counts the volumes of its own
//! node, so there the budget is each node's.

use super::{ClassView, Rules};
use crate::names;
use std::collections::BTreeMap;
use volwright_provisioner::{format_bytes, parse_bytes};

/// Of a hundred parts of a budget: from here on people are warned.
const NEAR: u128 = 80;

/// Bytes promised, by the uid of the claim that each volume was made for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Promised(BTreeMap<String, u64>);

impl Promised {
    /// The same volume may be known from its PV and from its intent: it counts once, with the larger size.
    pub fn add(&mut self, owner: &str, bytes: u64) {
        let known = self.0.entry(owner.to_owned()).or_default();
        *known = (*known).max(bytes);
    }

    /// What is promised to all but this one.
    pub fn without(&self, owner: &str) -> u64 {
        let others = self.0.iter().filter(|(other, _)| *other != owner);
        others.fold(0, |sum, (_, bytes)| sum.saturating_add(*bytes))
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// How many volumes.
    pub fn volumes(&self) -> usize {
        self.0.len()
    }
}

/// May so much more be promised?
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Room {
    /// The class has no budget.
    Unlimited,
    /// Yes.
    Enough,
    /// Yes, and the text warns that little is left.
    Near(String),
    /// No: the text says what there is and what to do.
    Full(String),
}

impl Room {
    /// Every answer of [`room`], for the coverage of tests.
    pub const ARMS: [&str; 5] = ["unlimited", "enough", "near", "full", "unreadable"];

    fn arm(&self) -> &'static str {
        match self {
            Self::Unlimited => "unlimited",
            Self::Enough => "enough",
            Self::Near(_) => "near",
            Self::Full(_) => "full",
        }
    }
}

/// The budget that the class's annotation sets. `Err` is for its owner: a limit that cannot be read is not taken for none.
pub fn budget(class: &ClassView) -> Result<Option<u64>, String> {
    let Some(text) = &class.budget else { return Ok(None) };
    parse_bytes(text).map(Some).map_err(|error| {
        format!(
            "StorageClass {:?} has the annotation {}: {text:?}, which is no size ({error}); write one such as 500Gi, or remove it",
            class.name,
            names::CAPACITY_BUDGET
        )
    })
}

/// May the class promise `size` bytes to the volume of `owner`, which counts with that size whatever it had before?
pub fn room(
    rules: &Rules,
    class: &ClassView,
    promised: &Promised,
    owner: &str,
    size: u64,
) -> Result<Room, String> {
    let answer = answer(class, promised, owner, size);
    rules.visit("room", answer.as_ref().map_or("unreadable", Room::arm));
    answer
}

fn answer(class: &ClassView, promised: &Promised, owner: &str, size: u64) -> Result<Room, String> {
    let Some(budget) = budget(class)? else { return Ok(Room::Unlimited) };
    let others = promised.without(owner);
    let wanted = others.saturating_add(size);
    let spelled = |text: &str| {
        format!(
            "StorageClass {:?} may promise {} in all ({}): {text}",
            class.name,
            format_bytes(budget),
            names::CAPACITY_BUDGET
        )
    };
    if wanted > budget {
        return Ok(Room::Full(spelled(&format!(
            "{} are promised to {} volumes, and {} are asked for; delete volumes of the class, empty its trash, or raise the annotation",
            format_bytes(others),
            promised.volumes(),
            format_bytes(size)
        ))));
    }
    if u128::from(wanted) * 100 >= u128::from(budget) * NEAR {
        let left = budget.saturating_sub(wanted);
        return Ok(Room::Near(spelled(&format!("{} are left", format_bytes(left)))));
    }
    Ok(Room::Enough)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::ReclaimPolicy;

    fn class(budget: Option<&str>) -> ClassView {
        ClassView {
            name: "fast".to_owned(),
            uid: "u".to_owned(),
            provisioner: "p".to_owned(),
            parameters: BTreeMap::new(),
            reclaim_policy: ReclaimPolicy::Delete,
            late_binding: false,
            mount_options: Vec::new(),
            budget: budget.map(str::to_owned),
        }
    }

    fn promised(volumes: &[(&str, u64)]) -> Promised {
        let mut promised = Promised::default();
        for (owner, bytes) in volumes {
            promised.add(owner, *bytes);
        }
        promised
    }

    #[test]
    fn a_class_promises_what_its_budget_has() {
        const GI: u64 = 1 << 30;
        type Case<'a> = (&'a str, Option<&'a str>, &'a [(&'a str, u64)], u64, &'a str);
        let cases: [Case<'_>; 9] = [
            ("no budget", None, &[("a", u64::MAX)], u64::MAX, "unlimited"),
            ("the first", Some("10Gi"), &[], GI, "enough"),
            ("just below the warning", Some("10Gi"), &[("a", 7 * GI)], GI - 1, "enough"),
            ("at the warning", Some("10Gi"), &[("a", 7 * GI)], GI, "near"),
            ("exactly", Some("10Gi"), &[("a", 7 * GI), ("b", GI)], 2 * GI, "near"),
            ("one byte too many", Some("10Gi"), &[("a", 7 * GI), ("b", GI)], 2 * GI + 1, "full"),
            ("nothing at all", Some("0"), &[], 1, "full"),
            ("sums that do not fit", Some("10Gi"), &[("a", u64::MAX), ("b", u64::MAX)], 1, "full"),
            ("itself, growing", Some("10Gi"), &[("new", 3 * GI), ("a", GI)], 5 * GI, "enough"),
        ];
        for (name, budget, volumes, size, expected) in cases {
            let found = room(&Rules::default(), &class(budget), &promised(volumes), "new", size);
            assert_eq!(found.as_ref().map(Room::arm), Ok(expected), "case: {name}");
        }
    }

    #[test]
    fn a_budget_that_cannot_be_read_is_none_that_is_kept_to() {
        let refused = room(&Rules::default(), &class(Some("lots")), &Promised::default(), "new", 1);
        let text = refused.expect_err("nothing is promised");
        assert!(
            text.contains("\"lots\", which is no size") && text.contains("write one such as 500Gi"),
            "{text}"
        );
    }

    #[test]
    fn who_is_refused_learns_what_there_is_and_what_to_do() {
        let full = room(&Rules::default(), &class(Some("2Gi")), &promised(&[("a", 2 << 30)]), "new", 1 << 30);
        let text = "StorageClass \"fast\" may promise 2Gi in all (volwright.io/capacity-budget): 2Gi are promised to 1 volumes, \
                    and 1Gi are asked for; delete volumes of the class, empty its trash, or raise the annotation";
        assert_eq!(full, Ok(Room::Full(text.to_owned())));
    }

    #[test]
    fn a_volume_counts_once() {
        let mut one = promised(&[("a", 1), ("a", 3), ("a", 2)]);
        one.add("b", 4);
        assert_eq!((one.total(), one.without("a"), one.volumes()), (7, 4, 2));
    }
}
