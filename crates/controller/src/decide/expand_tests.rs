//! The table of a growth's steps, the statuses it writes, and each safety rule shown to be what protects.

use super::*;
use crate::decide::Rules;
use crate::names;
use crate::objects::{Claim, Volume};
use serde_json::json;
use std::collections::BTreeSet;
use volwright_provisioner::{ClaimUid, Class, Epoch, InstallationId, Pristine, PvName};

const NAME: &str = "nfs.volwright.io";
const GI: u64 = 1 << 30;
const NOW: &str = "2026-01-01T00:00:00Z";

fn identity() -> Identity {
    Identity { names: vec![NAME.to_owned()], ..Identity::default() }
}

fn without_rule(rule: Rule) -> Identity {
    Identity { rules: Rules::without(rule), ..identity() }
}

/// `ns/data`, bound to `pvc-u`, which has 1Gi and asks for so much.
fn claim(request: &str) -> ClaimView {
    let object = json!({
        "metadata": { "name": "data", "namespace": "ns", "uid": "u", "resourceVersion": "7" },
        "spec": {
            "volumeName": "pvc-u", "storageClassName": "fast",
            "resources": { "requests": { "storage": request } },
        },
        "status": { "capacity": { "storage": "1Gi" } },
    });
    serde_json::from_value::<Claim>(object).unwrap().view()
}

/// What tests change of [`claim`], one word each.
trait Change {
    fn with(self, change: impl FnOnce(&mut ClaimView)) -> ClaimView;
}

impl Change for ClaimView {
    fn with(mut self, change: impl FnOnce(&mut ClaimView)) -> ClaimView {
        change(&mut self);
        self
    }
}

/// A claim that asks for `request`, counted as `allocated` Gi, in this progress.
fn growing(request: &str, allocated: u64, progress: &str) -> ClaimView {
    claim(request).with(|claim| {
        claim.size.allocated = Some(allocated * GI);
        claim.size.progress = Some(progress.to_owned());
    })
}

fn pv_of(source: &serde_json::Value) -> VolumeView {
    let mut object = json!({
        "metadata": {
            "name": "pvc-u", "uid": "pv-uid",
            "annotations": { names::PROVISIONED_BY: NAME, names::HANDLE: "{}" },
        },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast",
            "claimRef": { "namespace": "ns", "name": "data", "uid": "u" },
        },
        "status": { "phase": "Bound" },
    });
    for (field, value) in source.as_object().unwrap() {
        object["spec"][field] = value.clone();
    }
    serde_json::from_value::<Volume>(object).unwrap().view()
}

fn pv() -> VolumeView {
    pv_of(&json!({ "nfs": { "server": "s", "path": "/p" } }))
}

fn csi(mode: &str) -> VolumeView {
    pv_of(&json!({ "csi": { "driver": "d", "volumeHandle": "h" }, "volumeMode": mode }))
}

fn changed(mut volume: VolumeView, change: impl FnOnce(&mut VolumeView)) -> VolumeView {
    change(&mut volume);
    volume
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn every_step_of_a_growth() {
    let ours = Some(Growth::Ours);
    let nothing = Step::Nothing;
    let large = |volume: VolumeView| changed(volume, |volume| volume.capacity = "4Gi".to_owned());
    let foreign = |volume| changed(volume, |pv| pv.provisioned_by = Some("other.io".to_owned()));
    let cases = vec![
        ("asks for what it has", claim("1Gi"), pv(), ours, nothing(Why::LargeEnough)),
        ("asks for less than it has", claim("1Mi"), pv(), ours, nothing(Why::LargeEnough)),
        ("another provisioner's PV", claim("2Gi"), foreign(pv()), ours, nothing(Why::NotOurs)),
        (
            "the PV goes",
            claim("2Gi"),
            changed(pv(), |pv| pv.terminating = true),
            ours,
            nothing(Why::Terminating),
        ),
        (
            "the claim goes",
            claim("2Gi").with(|claim| claim.glance.terminating = true),
            pv(),
            ours,
            nothing(Why::Terminating),
        ),
        (
            "another claim of the name",
            claim("2Gi").with(|claim| claim.glance.uid = ClaimUid::new("other")),
            pv(),
            ours,
            nothing(Why::NotBound),
        ),
        (
            "the claim has another PV",
            claim("2Gi").with(|claim| claim.glance.volume_name = Some("other".to_owned())),
            pv(),
            ours,
            nothing(Why::NotBound),
        ),
        (
            "released",
            claim("2Gi"),
            changed(pv(), |pv| pv.phase = Phase::Released),
            ours,
            nothing(Why::NotBound),
        ),
        (
            "no status yet",
            claim("2Gi").with(|claim| claim.size.capacity = None),
            pv(),
            ours,
            nothing(Why::NotBound),
        ),
        ("a driver grows it", claim("2Gi"), csi("Filesystem"), Some(Growth::Driver), nothing(Why::Driver)),
        ("it begins", claim("2Gi"), pv(), ours, Step::Begin { allocated: 2 * GI }),
        ("it has begun", growing("2Gi", 2, IN_PROGRESS), pv(), ours, Step::Grow { size: 2 * GI }),
        ("more is asked for", growing("3Gi", 2, IN_PROGRESS), pv(), ours, Step::Begin { allocated: 3 * GI }),
        (
            "less is asked for: that much, and a quota counts what may be on its way",
            growing("2Gi", 4, IN_PROGRESS),
            pv(),
            ours,
            Step::Grow { size: 2 * GI },
        ),
        (
            "again after an earlier growth that was taken back half way",
            claim("2Gi").with(|claim| claim.size.allocated = Some(4 * GI)),
            pv(),
            ours,
            Step::Begin { allocated: 4 * GI },
        ),
        ("it was too much", growing("2Gi", 2, INFEASIBLE), pv(), ours, Step::Grow { size: 2 * GI }),
        (
            "it was too much, and less is asked for: only that counts now",
            growing("2Gi", 4, INFEASIBLE),
            pv(),
            ours,
            Step::Begin { allocated: 2 * GI },
        ),
        (
            "it was too much, and more is asked for",
            growing("8Gi", 4, INFEASIBLE),
            pv(),
            ours,
            Step::Begin { allocated: 8 * GI },
        ),
        (
            "cut off between PV and claim: the storage is asked once more",
            growing("4Gi", 4, IN_PROGRESS),
            large(pv()),
            ours,
            Step::Grow { size: 4 * GI },
        ),
        ("it still says so", growing("1Gi", 2, IN_PROGRESS), pv(), ours, Step::Clear),
        (
            "it still says so, and that is the driver's business",
            growing("1Gi", 2, IN_PROGRESS),
            csi("Block"),
            Some(Growth::Driver),
            nothing(Why::LargeEnough),
        ),
        (
            "the node's turn",
            growing("4Gi", 4, NODE_PENDING),
            large(csi("Filesystem")),
            ours,
            nothing(Why::Node),
        ),
        (
            "the node is at it",
            growing("4Gi", 4, "NodeResizeInProgress"),
            large(csi("Filesystem")),
            Some(Growth::Both),
            nothing(Why::Node),
        ),
        (
            "the driver's resizer has written over it",
            growing("4Gi", 4, INFEASIBLE),
            large(csi("Filesystem")),
            Some(Growth::Both),
            Step::Grow { size: 4 * GI },
        ),
        (
            "the node's turn, and more is asked for",
            growing("5Gi", 4, NODE_PENDING),
            large(csi("Filesystem")),
            ours,
            Step::Begin { allocated: 5 * GI },
        ),
        (
            "a block volume is not the node's",
            growing("4Gi", 4, NODE_PENDING),
            large(csi("Block")),
            ours,
            Step::Begin { allocated: 4 * GI },
        ),
    ];
    let identity = identity();
    for (name, claim, volume, growth, expected) in cases {
        let found = step(&identity, &claim, &volume, &HandleState::Good, growth);
        assert_eq!(found, expected, "case: {name}\n{claim:#?}\n{volume:#?}");
    }
    let refusals = [(None, "does not exist any more"), (Some(Growth::No), "cannot grow")];
    for (growth, part) in refusals {
        let found = step(&identity, &claim("2Gi"), &pv(), &HandleState::Good, growth);
        assert!(
            matches!(&found, Step::Refuse(text) if text.contains(part) && text.contains("\"fast\"")),
            "{found:?}"
        );
    }
    assert_eq!(
        step(&identity, &claim("2Gi"), &pv(), &HandleState::Missing, ours),
        Step::Nothing(Why::NotOurs)
    );
    let visited: BTreeSet<_> = identity
        .rules
        .visited()
        .into_iter()
        .filter(|(what, _)| *what == "expand")
        .map(|(_, arm)| arm)
        .collect();
    assert_eq!(visited, Step::ARMS.into_iter().collect(), "every arm has a case");
}

#[test]
fn only_claims_that_may_want_something_are_looked_at() {
    assert!(may_want(&claim("2Gi")) && may_want(&growing("1Gi", 1, IN_PROGRESS)));
    assert!(!may_want(&claim("1Gi")) && !may_want(&growing("1Gi", 2, "")));
    assert!(!may_want(&claim("2Gi").with(|claim| claim.glance.volume_name = None)));
}

#[test]
fn without_its_rule_another_claim_makes_the_volume_grow() {
    let other = growing("2Gi", 2, IN_PROGRESS).with(|claim| claim.glance.uid = ClaimUid::new("other"));
    let found = |identity: &Identity| step(identity, &other, &pv(), &HandleState::Good, Some(Growth::Ours));
    assert_eq!(found(&identity()), Step::Nothing(Why::NotBound));
    assert_eq!(found(&without_rule(Rule::OwnClaim)), Step::Grow { size: 2 * GI });
}

#[test]
fn without_its_rule_a_quota_does_not_count_what_grows() {
    let found =
        |identity: &Identity| step(identity, &claim("2Gi"), &pv(), &HandleState::Good, Some(Growth::Ours));
    assert_eq!(found(&identity()), Step::Begin { allocated: 2 * GI });
    assert_eq!(found(&without_rule(Rule::AllocatedFirst)), Step::Grow { size: 2 * GI });
}

fn mark(owner: &str, state: MarkState) -> Mark {
    Mark {
        installation: InstallationId::new("i"),
        owner: ClaimUid::new(owner),
        pv_name: PvName::new("pvc-u"),
        epoch: Epoch::default(),
        state,
    }
}

fn seen(mark: Option<Mark>) -> Observed {
    Observed { mark, size: None, pristine: Pristine::No, users: Vec::new() }
}

#[test]
fn only_what_bears_our_mark_grows() {
    let ours = mark("u", MarkState::Published);
    let blocked = Some(Class::Blocked(Until::OperatorActs));
    let cases = [
        (None, blocked),
        (Some(seen(Some(mark("other", MarkState::Published)))), Some(Class::NotOurs)),
        (Some(seen(None)), Some(Class::NotOurs)),
        (Some(seen(Some(mark("u", MarkState::Retained)))), blocked),
        (Some(seen(Some(mark("u", MarkState::Published)))), None),
        // Where emptiness can be seen, it is published just after its PV is made.
        (Some(seen(Some(mark("u", MarkState::Unpublished)))), None),
    ];
    let identity = identity();
    for (observed, expected) in cases {
        let found = may_grow(&identity, &ours, observed.as_ref());
        assert_eq!(found.err().map(|failure| failure.class()), expected, "{observed:?}");
    }
    let visited: BTreeSet<_> = identity.rules.visited().into_iter().map(|(_, arm)| arm).collect();
    assert_eq!(visited, MAY_GROW_ARMS.into_iter().collect());
    let others = seen(Some(mark("other", MarkState::Published)));
    assert!(may_grow(&without_rule(Rule::MarkIsOurs), &ours, Some(&others)).is_ok());
}

fn kinds(size: &SizeView) -> Vec<&str> {
    size.conditions.iter().map(|condition| condition.kind.as_str()).collect()
}

/// A claim with a condition of somebody else's.
fn with_theirs() -> SizeView {
    let theirs =
        ClaimCondition { kind: "Theirs".to_owned(), status: "False".to_owned(), ..ClaimCondition::default() };
    SizeView { capacity: Some(GI), conditions: vec![theirs], ..SizeView::default() }
}

#[test]
fn the_status_tells_where_it_is_and_keeps_what_others_wrote() {
    let begins = begun(&with_theirs(), 2 * GI, NOW);
    assert_eq!((begins.allocated, begins.progress.as_deref()), (Some(2 * GI), Some(IN_PROGRESS)));
    assert_eq!(kinds(&begins), ["Theirs", RESIZING]);
    assert_eq!(begun(&begins, 2 * GI, "later"), begins, "what is said already is not said again");

    let waits = failed(&begins, false, "no room", NOW);
    assert_eq!(
        (waits.progress.as_deref(), kinds(&waits)),
        (Some(IN_PROGRESS), vec!["Theirs", RESIZING, FAILED])
    );
    let never = failed(&waits, true, "too large", NOW);
    assert_eq!(never.progress.as_deref(), Some(INFEASIBLE));
    assert_eq!(never.conditions.last().unwrap().message.as_deref(), Some("too large"));
    assert_eq!(kinds(&begun(&never, 2 * GI, NOW)), ["Theirs", RESIZING], "a new try");

    let on_node = left_to_node(&never, NOW);
    assert_eq!((on_node.capacity, on_node.progress.as_deref()), (Some(GI), Some(NODE_PENDING)));
    assert_eq!(kinds(&on_node), ["Theirs", FILE_SYSTEM]);

    let done = finished(&on_node, 2 * GI);
    assert_eq!((done.capacity, done.allocated, done.progress.as_deref()), (Some(2 * GI), Some(2 * GI), None));
    assert_eq!(kinds(&done), ["Theirs"]);
    assert_eq!(finished(&done, GI).capacity, Some(2 * GI), "nothing ever shrinks");
}
