//! The table of a PV's steps, and each safety rule shown to be what protects.

use super::*;
use crate::decide::{ClaimGlance, Rules};
use crate::names::FINALIZER;
use std::collections::{BTreeMap, BTreeSet};
use volwright_provisioner::{
    ClaimUid, Class, Epoch, InstallationId, MarkState, Pristine, PvName, VolumeMode, VolumeSource,
};

const NAME: &str = "nfs.volwright.io";

fn identity() -> Identity {
    Identity { names: vec![NAME.to_owned(), "old/nfs".to_owned()], ..Identity::default() }
}

fn agent() -> Identity {
    Identity { node: Some("worker-1".to_owned()), ..identity() }
}

fn without(rule: Rule) -> Identity {
    Identity { rules: Rules::without(rule), ..identity() }
}

/// A PV of ours in phase Bound: policy Delete, finalizer on.
fn pv() -> VolumeView {
    VolumeView {
        name: "pvc-u".to_owned(),
        uid: "pv-uid".to_owned(),
        resource_version: "7".to_owned(),
        terminating: false,
        finalizers: vec!["kubernetes.io/pv-protection".to_owned(), FINALIZER.to_owned()],
        provisioned_by: Some(NAME.to_owned()),
        provisioner: Some(NAME.to_owned()),
        handle: Some("{}".to_owned()),
        on_delete: Some("delete".to_owned()),
        trash_for: None,
        owner: Some("u".to_owned()),
        node_label: None,
        node_name: None,
        phase: Phase::Bound,
        policy: ReclaimPolicy::Delete,
        claim: Some(ClaimRef { namespace: "ns".to_owned(), name: "data".to_owned(), uid: "u".to_owned() }),
        source: VolumeSource::Nfs { server: "s".to_owned(), path: "/p".to_owned() },
        capacity: "1Gi".to_owned(),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        class: "c".to_owned(),
        block: false,
        mount_options: Vec::new(),
        topology: BTreeMap::new(),
    }
}

/// What tests change of [`pv`], one word each.
trait Change: Sized {
    fn phase(self, phase: Phase) -> Self;
    fn policy(self, policy: ReclaimPolicy) -> Self;
    fn terminating(self) -> Self;
    fn stripped(self) -> Self;
    fn on_delete(self, text: &str) -> Self;
    fn by(self, name: Option<&str>) -> Self;
    fn on_node(self, label: bool, node: &str) -> Self;
}

impl Change for VolumeView {
    fn phase(self, phase: Phase) -> Self {
        Self { phase, ..self }
    }

    fn policy(self, policy: ReclaimPolicy) -> Self {
        Self { policy, ..self }
    }

    fn terminating(self) -> Self {
        Self { terminating: true, ..self }
    }

    fn stripped(mut self) -> Self {
        self.finalizers.retain(|finalizer| finalizer != FINALIZER);
        self
    }

    fn on_delete(self, text: &str) -> Self {
        Self { on_delete: Some(text.to_owned()), ..self }
    }

    fn by(self, name: Option<&str>) -> Self {
        Self { provisioned_by: name.map(str::to_owned), ..self }
    }

    fn on_node(self, label: bool, node: &str) -> Self {
        let node_label = label.then(|| crate::names::node_hash(node));
        Self { node_label, node_name: Some(node.to_owned()), ..self }
    }
}

fn released() -> VolumeView {
    pv().phase(Phase::Released)
}

/// A claim `ns/data` with this uid that names this PV, if any.
fn claim(uid: &str, volume: Option<&str>) -> ClaimView {
    ClaimView {
        glance: ClaimGlance {
            uid: ClaimUid::new(uid),
            namespace: "ns".to_owned(),
            name: "data".to_owned(),
            provisioner: Some(NAME.to_owned()),
            selected_node: None,
            volume_name: volume.map(str::to_owned),
            terminating: false,
        },
        resource_version: "1".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        class: Some("c".to_owned()),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        volume_mode: Ok(VolumeMode::Filesystem),
        request: Ok(1),
        has_selector: false,
        data_source: None,
        attributes_class: None,
        size: crate::decide::SizeView::default(),
    }
}

fn mark(owner: &str) -> Mark {
    Mark {
        installation: InstallationId::new("i"),
        owner: ClaimUid::new(owner),
        pv_name: PvName::new("pvc-u"),
        epoch: Epoch::default(),
        state: MarkState::Published,
    }
}

fn seen(mark: Option<Mark>, users: &[&str]) -> Observed {
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    Observed { mark, size: None, pristine: Pristine::No, users }
}

/// What a step is, without its texts.
fn word(step: &Step) -> &'static str {
    match step {
        Step::Nothing => "nothing",
        Step::Blocked(_) => "blocked",
        Step::Repair => "repair",
        Step::AddFinalizer => "add",
        Step::RemoveFinalizer => "remove",
        Step::Keep => "keep",
        Step::Unbound => "unbound",
        Step::Delete(OnDelete::Delete) => "delete",
        Step::Delete(OnDelete::Retain) => "delete, retain",
        Step::Delete(OnDelete::Trash) => "delete, trash",
        Step::Orphan(_) => "orphan",
    }
}

const ALL_STEPS: [&str; 11] = [
    "nothing",
    "blocked",
    "repair",
    "add",
    "remove",
    "keep",
    "unbound",
    "delete",
    "delete, retain",
    "delete, trash",
    "orphan",
];

#[test]
fn every_step_of_a_pv() {
    use HandleState::{Bad, Good, Missing};
    use Phase::{Available, Failed, Pending};
    use ReclaimPolicy::{Recycle, Retain};
    let (id, agent) = (identity(), agent());
    let bad = || Bad("it is not readable".to_owned());
    // name, who, PV, handle, expected
    let living = [
        ("bound needs nothing", &id, pv(), Good, "nothing"),
        ("bound without finalizer gets it", &id, pv().stripped(), Good, "add"),
        ("available without finalizer gets it", &id, pv().phase(Available).stripped(), Good, "add"),
        ("pending without finalizer gets it", &id, pv().phase(Pending).stripped(), Good, "add"),
        ("the finalizer goes with Retain", &id, pv().policy(Retain), Good, "remove"),
        ("Recycle counts as Retain", &id, released().policy(Recycle), Good, "remove"),
        ("Retain needs nothing", &id, released().policy(Retain).stripped(), Good, "nothing"),
        ("available needs nothing", &id, pv().phase(Available), Good, "nothing"),
        ("released goes", &id, released(), Good, "delete"),
        ("released without finalizer goes", &id, released().stripped(), Good, "delete"),
        ("failed goes", &id, pv().phase(Failed), Good, "delete"),
        ("onDelete: retain", &id, released().on_delete("retain"), Good, "delete, retain"),
        ("onDelete: trash", &id, released().on_delete("trash"), Good, "delete, trash"),
        (
            "a time that nobody can read blocks",
            &id,
            VolumeView { trash_for: Some("a week".to_owned()), ..released().on_delete("trash") },
            Good,
            "blocked",
        ),
        ("no on-delete is delete", &id, VolumeView { on_delete: None, ..released() }, Good, "delete"),
        ("an unknown on-delete blocks", &id, released().on_delete("Retain"), Good, "blocked"),
        ("an empty on-delete blocks", &id, released().on_delete(""), Good, "blocked"),
        (
            "an unknown on-delete blocks a terminating PV",
            &id,
            released().terminating().on_delete("x"),
            Good,
            "blocked",
        ),
    ];
    let ending = vec![
        ("terminating and bound waits for its claim", &id, pv().terminating(), Good, "nothing"),
        ("terminating and never bound goes", &id, pv().phase(Pending).terminating(), Good, "unbound"),
        ("terminating and released goes", &id, released().terminating(), Good, "delete"),
        ("terminating and failed goes", &id, pv().phase(Failed).terminating(), Good, "delete"),
        ("terminating and available is kept", &id, pv().phase(Available).terminating(), Good, "keep"),
        ("terminating and Retain is kept", &id, released().policy(Retain).terminating(), Good, "keep"),
        ("terminating, bound and Retain is kept", &id, pv().policy(Retain).terminating(), Good, "keep"),
        (
            "terminating without finalizer is an orphan",
            &id,
            released().terminating().stripped(),
            Good,
            "orphan",
        ),
        ("failed without finalizer too", &id, pv().phase(Failed).terminating().stripped(), Good, "orphan"),
        ("not while its claim is there", &id, pv().terminating().stripped(), Good, "nothing"),
        ("nor with Retain", &id, released().policy(Retain).terminating().stripped(), Good, "nothing"),
        ("stripped of provisioned-by", &id, pv().by(None), Good, "repair"),
        ("released and stripped: first repaired", &id, released().by(None), Good, "repair"),
        ("terminating and stripped: it goes", &id, released().by(None).terminating(), Good, "delete"),
        ("no handle blocks", &id, released(), Missing, "blocked"),
        ("no handle blocks while bound", &id, pv(), Missing, "blocked"),
        ("a bad handle blocks", &id, released(), bad(), "blocked"),
        ("a bad handle blocks a terminating PV", &id, released().terminating(), bad(), "blocked"),
        ("without handle, Retain lets go", &id, released().policy(Retain), Missing, "remove"),
        ("with a bad handle, Retain lets go", &id, released().policy(Retain).terminating(), bad(), "remove"),
        (
            "without handle and finalizer nothing",
            &id,
            released().policy(Retain).stripped(),
            Missing,
            "nothing",
        ),
        ("an agent's label is put back", &agent, pv().on_node(false, "worker-1"), Good, "repair"),
        ("an agent's PV needs nothing", &agent, pv().on_node(true, "worker-1"), Good, "nothing"),
        ("an agent's PV goes", &agent, released().on_node(true, "worker-1"), Good, "delete"),
        (
            "a terminating one without label too",
            &agent,
            released().on_node(false, "worker-1").terminating(),
            Good,
            "delete",
        ),
    ];
    let mut visited = BTreeSet::new();
    for (name, who, volume, handle, expected) in living.into_iter().chain(ending) {
        let step = step(who, &volume, &handle);
        visited.insert(word(&step));
        assert_eq!(word(&step), expected, "case: {name}\n{step:?}\n{volume:#?}");
    }
    assert_eq!(visited, ALL_STEPS.into_iter().collect(), "every kind of step is in the table");
}

#[test]
fn nothing_but_a_released_pv_with_policy_delete_and_a_good_handle_ever_goes() {
    let phases = [Phase::Pending, Phase::Available, Phase::Bound, Phase::Released, Phase::Failed];
    let policies = [ReclaimPolicy::Delete, ReclaimPolicy::Retain, ReclaimPolicy::Recycle];
    let handles = [HandleState::Good, HandleState::Missing, HandleState::Bad(String::new())];
    for phase in phases {
        for policy in policies {
            for handle in &handles {
                for (terminating, stripped) in [(false, false), (false, true), (true, false), (true, true)] {
                    let mut volume = pv().phase(phase).policy(policy);
                    volume = if terminating { volume.terminating() } else { volume };
                    volume = if stripped { volume.stripped() } else { volume };
                    let goes = matches!(step(&identity(), &volume, handle), Step::Delete(_));
                    let expected = policy == ReclaimPolicy::Delete
                        && matches!(phase, Phase::Released | Phase::Failed)
                        && *handle == HandleState::Good
                        && !(terminating && stripped);
                    assert_eq!(goes, expected, "{handle:?} {volume:#?}");
                }
            }
        }
    }
}

#[test]
fn blocked_texts_name_the_remedy() {
    let cases = [
        (released(), HandleState::Missing, ["put it back", "set the reclaim policy to Retain"]),
        (
            released(),
            HandleState::Bad("it is too new: upgrade".to_owned()),
            ["too new: upgrade", "nothing will be deleted"],
        ),
        (released().on_delete("retian"), HandleState::Good, ["\"retian\"", "use delete, retain or trash"]),
    ];
    for (volume, handle, parts) in cases {
        let Step::Blocked(text) = step(&identity(), &volume, &handle) else { panic!("{volume:#?}") };
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn whose_pv_it_is() {
    use HandleState::{Good, Missing};
    let other =
        |volume: VolumeView| VolumeView { provisioner: Some("other.volwright.io".to_owned()), ..volume };
    let unsaid = |volume: VolumeView| VolumeView { provisioner: None, ..volume };
    let cases = [
        ("ours by name", identity(), pv(), Missing, true),
        ("ours by a name that we also answer to", identity(), pv().by(Some("old/nfs")), Good, true),
        ("another's, whatever its handle", identity(), pv().by(Some("nfs.csi.k8s.io")), Good, false),
        ("stripped, and the handle is ours", identity(), pv().by(None), Good, true),
        ("stripped of both", identity(), pv().by(None), Missing, false),
        ("stripped, of another provisioner with such handles", identity(), other(pv().by(None)), Good, false),
        ("stripped, and nothing says whose", identity(), unsaid(pv().by(None)), Good, false),
        ("an agent's own", agent(), pv().on_node(true, "worker-1"), Good, true),
        ("another node's, by collision or forgery", agent(), pv().on_node(true, "worker-2"), Good, false),
        ("without a node's name: by the label it was seen", agent(), pv(), Good, true),
    ];
    for (name, who, volume, handle, expected) in cases {
        assert_eq!(concerns_us(&who, &volume, &handle), expected, "case: {name}");
    }
}

fn terminating() -> VolumeView {
    released().terminating()
}

#[test]
fn a_delete_goes_on_only_as_it_began() {
    let go = |live: &VolumeView, claim: Option<&ClaimView>| {
        may_go_on(&identity(), &Begun::of(&terminating()), live, claim)
    };
    go(&terminating(), None).unwrap();
    // The same name, another claim: it asks for a volume of its own, or has one.
    go(&terminating(), Some(&claim("v", None))).unwrap();
    go(&terminating(), Some(&claim("v", Some("pvc-v")))).unwrap();
    // Its own claim, bound to another volume: a populator's way.
    go(&terminating(), Some(&claim("u", Some("pvc-v")))).unwrap();
    // Versions, phases and finalizers of others change without meaning.
    go(&VolumeView { resource_version: "8".to_owned(), finalizers: Vec::new(), ..terminating() }, None)
        .unwrap();
    go(&terminating().phase(Phase::Failed), None).unwrap();
}

/// One row per rule: the PV, claim and start that only this rule stops.
#[test]
fn each_rule_of_going_on_is_what_stops_it() {
    let renamed = |change: &dyn Fn(&mut VolumeView)| {
        let mut live = terminating();
        change(&mut live);
        live
    };
    let cases = [
        (Rule::SameVolume, renamed(&|v| v.uid = "another".to_owned()), None, Until::OperatorActs),
        (Rule::SameVolume, renamed(&|v| v.claim = None), None, Until::OperatorActs),
        (Rule::SameVolume, renamed(&|v| v.handle = Some("{ }".to_owned())), None, Until::OperatorActs),
        (
            Rule::SameVolume,
            renamed(&|v| v.source = VolumeSource::Nfs { server: "s".to_owned(), path: "/q".to_owned() }),
            None,
            Until::OperatorActs,
        ),
        (Rule::PolicyDelete, terminating().policy(ReclaimPolicy::Retain), None, Until::Settled),
        (Rule::PolicyDelete, terminating().policy(ReclaimPolicy::Recycle), None, Until::Settled),
        (Rule::NotBound, terminating().phase(Phase::Bound), None, Until::Settled),
        (Rule::ClaimGone, terminating(), Some(claim("u", None)), Until::Settled),
        (Rule::NoClaimNamesIt, terminating(), Some(claim("v", Some("pvc-u"))), Until::Settled),
    ];
    for (rule, live, claim, until) in cases {
        let begun = Begun::of(&terminating());
        let failure = may_go_on(&identity(), &begun, &live, claim.as_ref()).unwrap_err();
        assert_eq!(failure.class(), Class::Blocked(until), "{rule:?}: {failure:?}");
        may_go_on(&without(rule), &begun, &live, claim.as_ref()).unwrap_or_else(|failure| {
            panic!("without {rule:?} the data would be gone: {failure:?}\n{live:#?}")
        });
    }
    // Both rules speak for a claim that is there and bound to this PV.
    let failure = may_go_on(
        &without(Rule::ClaimGone),
        &Begun::of(&terminating()),
        &terminating(),
        Some(&claim("u", Some("pvc-u"))),
    );
    assert!(failure.is_err());
}

#[test]
fn each_rule_of_destroying_is_what_keeps_the_data() {
    let ours = mark("u");
    let alias = vec!["static-pv".to_owned()];
    let foreign = [
        seen(Some(mark("v")), &[]),
        seen(Some(Mark { installation: InstallationId::new("j"), ..mark("u") }), &[]),
        seen(Some(Mark { pv_name: PvName::new("pvc-v"), ..mark("u") }), &[]),
        seen(None, &[]),
    ];
    let mine = seen(Some(mark("u")), &[]);
    let used = seen(Some(mark("u")), &["client a", "client b"]);
    let mut cases = vec![
        (Rule::Fence, released(), mine.clone(), &[][..], Class::Unavailable),
        (Rule::Fence, terminating().stripped(), mine.clone(), &[], Class::Unavailable),
        (Rule::NoAlias, terminating(), mine.clone(), &alias, Class::Blocked(Until::OperatorActs)),
        (Rule::Unused, terminating(), used, &[], Class::Blocked(Until::Unused)),
    ];
    cases.extend(foreign.map(|seen| (Rule::MarkIsOurs, terminating(), seen, &[][..], Class::NotOurs)));
    for (rule, live, seen, aliases, class) in cases {
        let failure = may_destroy(&identity(), &live, &ours, Some(&seen), aliases).unwrap_err();
        assert_eq!(failure.class(), class, "{rule:?}: {failure:?}");
        may_destroy(&without(rule), &live, &ours, Some(&seen), aliases).unwrap_or_else(|failure| {
            panic!("without {rule:?} the data would be gone: {failure:?}\n{seen:#?}")
        });
    }
    may_destroy(&identity(), &terminating(), &ours, Some(&mine), &[]).unwrap();
    may_destroy(&identity(), &terminating(), &ours, None, &[]).unwrap();
    // State and epoch change over a life.
    let older = seen(
        Some(Mark { state: MarkState::Retained, epoch: Epoch { number: 3, token: 9 }, ..mark("u") }),
        &[],
    );
    may_destroy(&identity(), &terminating(), &ours, Some(&older), &[]).unwrap();
}

#[test]
fn of_two_aliases_the_unmarked_one_is_let_go_rather_than_held_up() {
    let alias = ["pvc-u".to_owned()];
    let theirs = seen(Some(mark("v")), &["client a"]);
    let failure = may_destroy(&identity(), &terminating(), &mark("u"), Some(&theirs), &alias).unwrap_err();
    assert_eq!(failure.class(), Class::NotOurs);
}

#[test]
fn texts_say_who_stands_in_the_way() {
    let names = ["one".to_owned(), "two".to_owned()];
    let failure = may_destroy(&identity(), &terminating(), &mark("u"), None, &names).unwrap_err();
    assert!(failure.message().contains("one, two") && failure.message().contains("Retain"), "{failure}");
    let used = seen(Some(mark("u")), &["client a", "client b"]);
    let failure = may_destroy(&identity(), &terminating(), &mark("u"), Some(&used), &[]).unwrap_err();
    assert_eq!(failure.message(), "still used by client a, client b");
}

#[test]
fn aliases_are_the_same_a_parent_or_a_child() {
    let key = |path: &str| vec![Key::of_path("s", path)];
    let others = [
        ("same", key("/pool/a")),
        ("parent", key("/pool")),
        ("root", key("/")),
        ("child", key("/pool/a/b")),
        ("sibling", key("/pool/ab")),
        ("other server", vec![Key::of_path("t", "/pool/a")]),
        ("no keys", Vec::new()),
        ("by its second name", vec![Key::of_path("t", "/x"), Key::of_path("s", "/pool/a")]),
    ];
    let found = aliases(&key("/pool/a"), others.iter().map(|(name, keys)| (*name, keys.as_slice())));
    assert_eq!(found, ["same", "parent", "root", "child", "by its second name"]);
    assert!(aliases(&[], others.iter().map(|(name, keys)| (*name, keys.as_slice()))).is_empty());
}

#[test]
fn no_claim_names_it_whatever_the_claims_name() {
    let all = identity();
    let failure = unnamed(&all, &terminating(), &["other/rescue".to_owned()]).unwrap_err();
    assert_eq!(failure.class(), Class::Blocked(Until::Settled));
    assert!(failure.message().contains("other/rescue"), "{failure}");
    unnamed(&all, &terminating(), &[]).unwrap();
    unnamed(&without(Rule::NoClaimNamesIt), &terminating(), &["other/rescue".to_owned()]).unwrap();
}
