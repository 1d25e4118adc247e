//! The table of a claim's routes, its terms and its place, and each safety rule shown to be what protects.

use super::*;
use crate::decide::{ClaimRef, DataSource, Phase, ReclaimPolicy, Rules};
use std::collections::BTreeMap;
use volwright_provisioner::{ClaimUid, CsiSource, Epoch, InstallationId, PvName};

const NAME: &str = "nfs.volwright.io";
const OLD: &str = "example.com/nfs";
const NODE: &str = "worker-1";

fn identity() -> Identity {
    Identity { names: vec![NAME.to_owned(), OLD.to_owned()], ..Identity::default() }
}

fn agent() -> Identity {
    Identity { node: Some(NODE.to_owned()), ..identity() }
}

fn without(rule: Rule) -> Identity {
    Identity { rules: Rules::without(rule), ..identity() }
}

/// A claim of ours that waits: 1 GiB, RWO, Filesystem, class `fast`.
fn claim() -> ClaimView {
    ClaimView {
        glance: ClaimGlance {
            uid: ClaimUid::new("u"),
            namespace: "ns".to_owned(),
            name: "data".to_owned(),
            provisioner: Some(NAME.to_owned()),
            selected_node: None,
            volume_name: None,
            terminating: false,
        },
        resource_version: "7".to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        class: Some("fast".to_owned()),
        access_modes: vec!["ReadWriteOnce".to_owned()],
        volume_mode: Ok(VolumeMode::Filesystem),
        request: Ok(1 << 30),
        has_selector: false,
        data_source: None,
        attributes_class: None,
        size: crate::decide::SizeView::default(),
    }
}

/// What tests change of [`claim`], one word each.
trait ClaimChange: Sized {
    fn with(self, change: impl FnOnce(&mut ClaimView)) -> ClaimView;

    fn asked(self, provisioner: Option<&str>) -> ClaimView {
        self.with(|claim| claim.glance.provisioner = provisioner.map(str::to_owned))
    }
    fn on(self, node: &str) -> ClaimView {
        self.with(|claim| claim.glance.selected_node = Some(node.to_owned()))
    }
    fn bound(self) -> ClaimView {
        self.with(|claim| claim.glance.volume_name = Some("pvc-u".to_owned()))
    }
    fn terminating(self) -> ClaimView {
        self.with(|claim| claim.glance.terminating = true)
    }
    fn modes(self, modes: &[&str]) -> ClaimView {
        self.with(|claim| claim.access_modes = modes.iter().map(|mode| (*mode).to_owned()).collect())
    }
    fn filled_from(self, group: &str, kind: &str) -> ClaimView {
        let source = DataSource { group: group.to_owned(), kind: kind.to_owned(), name: "origin".to_owned() };
        self.with(|claim| claim.data_source = Some(source))
    }
}

impl ClaimChange for ClaimView {
    fn with(mut self, change: impl FnOnce(&mut ClaimView)) -> ClaimView {
        change(&mut self);
        self
    }
}

/// Class `fast` of ours, Immediate, Delete.
fn class() -> ClassView {
    ClassView {
        name: "fast".to_owned(),
        uid: "class-uid".to_owned(),
        provisioner: NAME.to_owned(),
        parameters: BTreeMap::new(),
        reclaim_policy: ReclaimPolicy::Delete,
        late_binding: false,
        mount_options: Vec::new(),
        budget: None,
    }
}

fn late() -> ClassView {
    ClassView { late_binding: true, ..class() }
}

fn class_of(provisioner: &str) -> ClassView {
    ClassView { provisioner: provisioner.to_owned(), ..class() }
}

fn class_with(key: &str, value: &str) -> ClassView {
    ClassView { parameters: BTreeMap::from([(key.to_owned(), value.to_owned())]), ..class() }
}

/// The PV of [`claim`], made by us. Decoded, so that a field that only PVs care about is none of this file's business.
fn pv() -> VolumeView {
    let object = serde_json::json!({
        "metadata": { "name": "pvc-u", "uid": "pv-uid", "annotations": { names::PROVISIONED_BY: NAME } },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Delete",
            "storageClassName": "fast",
            "nfs": { "server": "s", "path": "/p" },
            "claimRef": { "namespace": "ns", "name": "data", "uid": "u" },
        },
    });
    let volume: crate::objects::Volume = serde_json::from_value(object).unwrap();
    volume.view()
}

#[test]
fn only_claims_that_ask_us_here_and_wait_are_worth_a_look() {
    let cases = [
        ("waits for us", identity(), claim(), true),
        ("by the old name", identity(), claim().asked(Some(OLD)), true),
        ("nobody is asked yet", identity(), claim().asked(None), false),
        ("another is asked", identity(), claim().asked(Some("other")), false),
        ("bound", identity(), claim().bound(), false),
        ("terminating", identity(), claim().terminating(), false),
        ("a node is chosen", identity(), claim().on("worker-9"), true),
        ("an agent's own node", agent(), claim().on(NODE), true),
        ("another agent's node", agent(), claim().on("worker-9"), false),
        ("no node, and we are an agent", agent(), claim(), false),
    ];
    for (case, identity, claim, expected) in cases {
        assert_eq!(concerns_us(&identity, &claim.glance), expected, "case: {case}");
    }
}

#[test]
fn only_agents_look_for_claims_that_no_agent_would_feel_asked_by() {
    let cases = [
        ("an agent sees no node", agent(), claim(), true),
        ("central serves it", identity(), claim(), false),
        ("its node is asked", agent(), claim().on(NODE), false),
        ("another node is asked", agent(), claim().on("worker-9"), false),
        ("another is asked", agent(), claim().asked(Some("other")), false),
        ("nobody is asked", agent(), claim().asked(None), false),
        ("terminating", agent(), claim().terminating(), false),
    ];
    for (case, identity, claim, expected) in cases {
        assert_eq!(asks_no_agent(&identity, &claim.glance), expected, "case: {case}");
    }
}

#[test]
fn a_claims_route() {
    let waits = |why, note: &str| Route::Wait(why, Some(note.to_owned()));
    let missing = "StorageClass \"fast\" does not exist; the claim is served as soon as it does";
    let unnamed = "StorageClass \"\" does not exist; the claim is served as soon as it does";
    // name, identity, claim, class, expected
    let cases = [
        ("waits for us", identity(), claim(), Some(class()), Route::Serve),
        ("bound", identity(), claim().bound(), Some(class()), Route::Nothing(Why::Bound)),
        ("terminating", identity(), claim().terminating(), Some(class()), Route::Nothing(Why::Terminating)),
        (
            "bound and terminating",
            identity(),
            claim().bound().terminating(),
            None,
            Route::Nothing(Why::Bound),
        ),
        ("nobody is asked", identity(), claim().asked(None), Some(class()), Route::Nothing(Why::NotAsked)),
        (
            "another is asked",
            identity(),
            claim().asked(Some("x")),
            Some(class()),
            Route::Nothing(Why::NotAsked),
        ),
        (
            "another is asked, no class",
            identity(),
            claim().asked(Some("x")),
            None,
            Route::Nothing(Why::NotAsked),
        ),
        ("no class object", identity(), claim(), None, waits(Why::ClassMissing, missing)),
        (
            "no class name",
            identity(),
            claim().with(|c| c.class = None),
            None,
            waits(Why::ClassMissing, unnamed),
        ),
        ("class of another", identity(), claim(), Some(class_of("x")), Route::Nothing(Why::ClassOfAnother)),
        ("asked by the old name", identity(), claim().asked(Some(OLD)), Some(class_of(OLD)), Route::Serve),
        ("asked by one name, class of the other", identity(), claim(), Some(class_of(OLD)), Route::Serve),
        ("late, no node", identity(), claim(), Some(late()), Route::Wait(Why::NoNodeYet, None)),
        ("late, node chosen", identity(), claim().on("worker-9"), Some(late()), Route::Serve),
        ("agent, its node", agent(), claim().on(NODE), Some(late()), Route::Serve),
        ("agent, other node", agent(), claim().on("worker-9"), Some(late()), Route::Nothing(Why::OtherNode)),
        ("agent, late, no node", agent(), claim(), Some(late()), Route::Wait(Why::NoNodeYet, None)),
        ("agent, Immediate", agent(), claim(), Some(class()), Route::Nothing(Why::OtherNode)),
        (
            "a populator's",
            identity(),
            claim().filled_from("example.com", "Book"),
            Some(class()),
            waits(Why::Populator, "assuming that a populator for Book (example.com) will provide the volume"),
        ),
        (
            "a kind of that name in another group is a populator's",
            identity(),
            claim().filled_from("example.com", "PersistentVolumeClaim"),
            Some(class()),
            waits(
                Why::Populator,
                "assuming that a populator for PersistentVolumeClaim (example.com) will provide the volume",
            ),
        ),
    ];
    for (case, identity, claim, class, expected) in cases {
        assert_eq!(route(&identity, &claim, class.as_ref(), None), expected, "case: {case}\n{claim:#?}");
    }
}

#[test]
fn a_claim_is_never_given_an_empty_volume_in_place_of_a_copy() {
    let cases = [
        ("", "PersistentVolumeClaim", "cannot clone"),
        ("snapshot.storage.k8s.io", "VolumeSnapshot", "restore"),
    ];
    for (group, kind, expected) in cases {
        let route = route(&identity(), &claim().filled_from(group, kind), Some(&class()), None);
        assert!(
            matches!(&route, Route::Refuse(text) if text.contains(expected) && text.contains("\"origin\"")),
            "{kind}: {route:?}"
        );
    }
}

#[test]
fn a_pv_of_the_claims_name_is_ours_only_with_our_name_and_handle() {
    let by = |name: Option<&str>| VolumeView { provisioned_by: name.map(str::to_owned), ..pv() };
    let go = |existing: &VolumeView, handle| {
        route(&identity(), &claim(), Some(&class()), Some((existing, handle)))
    };
    let refused = |route: &Route| matches!(route, Route::Refuse(text) if text.contains("pvc-u exists that"));
    // name, the PV, its handle can be read, is it ours
    let cases = [
        ("made by us", pv(), true, true),
        ("made by us under the old name", by(Some(OLD)), true, true),
        ("without a handle", pv(), false, false),
        ("made by another", by(Some("x")), true, false),
        ("made by nobody", by(None), true, false),
        ("made by another, without a handle", by(Some("x")), false, false),
    ];
    for (case, volume, handle, ours) in cases {
        let found = go(&volume, handle);
        assert!(if ours { found == Route::Done } else { refused(&found) }, "case: {case}: {found:?}");
        // Without the rule the claim would be left waiting for a PV that is not its own.
        let found = route(&without(Rule::PvIsOurs), &claim(), Some(&class()), Some((&volume, handle)));
        assert_eq!(found, Route::Done, "case: {case}, without the rule");
    }
}

#[test]
fn a_terminating_pv_is_waited_for_and_a_re_pointed_one_counts_as_done() {
    let terminating = VolumeView { terminating: true, phase: Phase::Released, ..pv() };
    let found = route(&identity(), &claim(), Some(&class()), Some((&terminating, true)));
    assert!(matches!(found, Route::Wait(Why::VolumeTerminating, Some(text)) if text.contains("pvc-u")));

    let other = ClaimRef { namespace: "ns".to_owned(), name: "other".to_owned(), uid: "v".to_owned() };
    let re_pointed = VolumeView { claim: Some(other), ..pv() };
    assert_eq!(route(&identity(), &claim(), Some(&class()), Some((&re_pointed, true))), Route::Done);
    // Whatever the source says: what is there is there.
    let cloned = claim().filled_from("", "PersistentVolumeClaim");
    assert_eq!(route(&identity(), &cloned, Some(&class()), Some((&pv(), true))), Route::Done);
}

fn everything() -> Capabilities {
    let mut offers = Capabilities::filesystem(&AccessMode::ALL);
    offers.modes.push((VolumeMode::Block, AccessMode::ReadWriteOnce));
    offers
}

#[test]
fn a_claim_is_served_on_its_own_terms() {
    let gib = 1 << 30;
    let plain = Terms {
        size: gib,
        access_modes: vec![AccessMode::ReadWriteOnce],
        volume_mode: VolumeMode::Filesystem,
        on_delete: OnDelete::Delete,
    };
    let late_only = Capabilities { binding: Binding::LateOnly { reason: "r" }, ..everything() };
    let rwop = vec![AccessMode::ReadWriteOncePod];
    let many = vec![AccessMode::ReadWriteMany, AccessMode::ReadOnlyMany];
    let block = |claim: &mut ClaimView| claim.volume_mode = Ok(VolumeMode::Block);
    let cases = [
        ("plain", claim(), class(), everything(), plain.clone()),
        (
            "one byte",
            claim().with(|c| c.request = Ok(1)),
            class(),
            everything(),
            Terms { size: 1, ..plain.clone() },
        ),
        (
            "RWOP alone",
            claim().modes(&["ReadWriteOncePod"]),
            class(),
            everything(),
            Terms { access_modes: rwop, ..plain.clone() },
        ),
        (
            "in the claim's order",
            claim().modes(&["ReadWriteMany", "ReadOnlyMany"]),
            class(),
            everything(),
            Terms { access_modes: many, ..plain.clone() },
        ),
        (
            "Block",
            claim().with(block),
            class(),
            everything(),
            Terms { volume_mode: VolumeMode::Block, ..plain.clone() },
        ),
        (
            "kept",
            claim(),
            class_with("onDelete", "retain"),
            everything(),
            Terms { on_delete: OnDelete::Retain, ..plain.clone() },
        ),
        ("late where it must be", claim().on(NODE), late(), late_only, plain.clone()),
        ("late where it may be", claim().on(NODE), late(), everything(), plain),
    ];
    for (case, claim, class, offers, expected) in cases {
        assert_eq!(terms(&claim, &class, &offers), Ok(expected), "case: {case}");
    }
}

#[test]
fn what_cannot_be_served_is_told_with_its_remedy() {
    let late_only = Capabilities { binding: Binding::LateOnly { reason: "it is on a node" }, ..everything() };
    let nothing = Capabilities::filesystem(&[]);
    let files = Capabilities::filesystem(&[AccessMode::ReadWriteOnce, AccessMode::ReadWriteOncePod]);
    let block = |claim: &mut ClaimView| claim.volume_mode = Ok(VolumeMode::Block);
    let text = |text: &str| Err::<VolumeMode, _>(text.to_owned());
    // name, claim, class, what is offered, part of the text
    let cases = [
        ("selector", claim().with(|c| c.has_selector = true), class(), everything(), "remove the selector"),
        (
            "no size",
            claim().with(|c| c.request = Err("no size".to_owned())),
            class(),
            everything(),
            "no size",
        ),
        ("nothing", claim().with(|c| c.request = Ok(0)), class(), everything(), "at least one byte"),
        ("unknown mode", claim().with(|c| c.volume_mode = text("odd")), class(), everything(), "odd"),
        ("no Block", claim().with(block), class(), files.clone(), "does not offer volumeMode Block"),
        ("no mode at all", claim(), class(), nothing, "does not offer volumeMode Filesystem"),
        ("no access mode", claim().modes(&[]), class(), everything(), "spec.accessModes is empty"),
        ("unknown access mode", claim().modes(&["Odd"]), class(), everything(), "\"Odd\" is unknown"),
        (
            "an access mode that is not offered",
            claim().modes(&["ReadWriteOnce", "ReadWriteMany"]),
            class(),
            files,
            "ReadWriteOnce, ReadWriteMany cannot be had with volumeMode Filesystem; this provisioner offers \
             ReadWriteOnce, ReadWriteOncePod",
        ),
        (
            "offered, but not with Block",
            claim().modes(&["ReadWriteMany"]).with(block),
            class(),
            everything(),
            "with volumeMode Block; this provisioner offers ReadWriteOnce",
        ),
        ("Immediate", claim(), class(), late_only, "it is on a node; make the class anew with"),
        (
            "onDelete",
            claim(),
            class_with("onDelete", "Retain"),
            everything(),
            "\"Retain\"; use delete, retain or trash",
        ),
        (
            "no trash here",
            claim(),
            class_with("onDelete", "trash"),
            Capabilities { trash: false, ..everything() },
            "does not offer with its parameters; use delete or retain",
        ),
    ];
    for (case, claim, class, offers, expected) in cases {
        let found = terms(&claim, &class, &offers);
        assert!(matches!(&found, Err(text) if text.contains(expected)), "case: {case}: {found:?}");
    }
}

#[test]
fn an_attributes_class_is_for_csi_volumes_only() {
    let nfs = VolumeSource::Nfs { server: "s".to_owned(), path: "/p".to_owned() };
    let csi = VolumeSource::Csi(CsiSource::default());
    let gold = claim().with(|claim| claim.attributes_class = Some("gold".to_owned()));
    assert_eq!(attributes_class(&claim(), &nfs), Ok(()));
    assert_eq!(attributes_class(&claim(), &csi), Ok(()));
    assert_eq!(attributes_class(&gold, &csi), Ok(()));
    let found = attributes_class(&gold, &nfs);
    assert!(
        matches!(&found, Err(text) if text.contains("\"gold\"") && text.contains("remove it")),
        "{found:?}"
    );
}

#[test]
fn the_fate_of_the_data_is_never_guessed() {
    let cases = [
        (class(), Some(OnDelete::Delete)),
        (class_with("onDelete", "delete"), Some(OnDelete::Delete)),
        (class_with("onDelete", "retain"), Some(OnDelete::Retain)),
        (class_with("onDelete", "trash"), Some(OnDelete::Trash)),
        // Whoever counts on the trash must not find the data destroyed.
        (class_with("trashFor", "7d"), None),
        (class_with("onDelete", "Delete"), None),
        (class_with("onDelete", ""), None),
        (class_with("onDelete", "retian"), None),
    ];
    for (class, expected) in cases {
        let found = on_delete(&class);
        assert_eq!(found.clone().ok(), expected, "{found:?}");
        assert!(
            found.is_ok()
                || found.is_err_and(|text| text.contains("\"fast\"") && text.contains("use delete")
                    || text.contains("set onDelete to trash"))
        );
    }
}

fn mark(installation: &str, owner: &str, state: MarkState) -> Mark {
    Mark {
        installation: InstallationId::new(installation),
        owner: ClaimUid::new(owner),
        pv_name: PvName::new(format!("pvc-{owner}")),
        epoch: Epoch::default(),
        state,
    }
}

fn seen(mark: Option<Mark>, pristine: Pristine) -> Observed {
    Observed { mark, size: None, pristine, users: Vec::new() }
}

#[test]
fn a_planned_place_is_taken_only_if_it_is_free_or_ours() {
    use MarkState::{Planned, Published, Retained, Trashed, Unpublished};
    use Pristine::{No, Unknown, Yes};
    let own = mark("i", "u", Unpublished);
    let ours = |state| Some(mark("i", "u", state));
    let cases = [
        // name, mark found, pristine, intent was open, part of the text if it is refused
        ("planned by us, empty", ours(Planned), Yes, false, None),
        ("planned by us, not empty", ours(Planned), No, true, Some("not empty stands")),
        ("planned by us, who knows", ours(Planned), Unknown, true, Some("not empty stands")),
        ("made by us", ours(Unpublished), Yes, false, None),
        ("made by us, and written to", ours(Unpublished), No, true, None),
        ("published by us", ours(Published), No, false, None),
        ("retained", ours(Retained), No, true, Some("was retained in this place")),
        ("in the trash", ours(Trashed), Yes, true, Some("was retained in this place")),
        ("another claim's", Some(mark("i", "v", Unpublished)), Yes, true, Some("another claim's volume")),
        ("another installation's", Some(mark("j", "u", Planned)), Yes, true, Some("another claim's volume")),
        ("unmarked and empty, as a crash leaves it", None, Yes, true, None),
        ("unmarked and empty, without an intent", None, Yes, false, Some("did not make stands")),
        ("unmarked, not empty", None, No, true, Some("did not make stands")),
        ("unmarked, who knows", None, Unknown, true, Some("did not make stands")),
    ];
    assert_eq!(place(&identity(), &own, None, false), Ok(()), "nothing is there");
    for (case, found, pristine, was_open, refused) in cases {
        let observed = seen(found, pristine);
        let result = place(&identity(), &own, Some(&observed), was_open);
        match refused {
            None => assert_eq!(result, Ok(()), "case: {case}"),
            Some(part) => {
                assert!(matches!(&result, Err(text) if text.contains(part)), "case: {case}: {result:?}");
            }
        }
        let result = place(&without(Rule::PlaceIsFree), &own, Some(&observed), was_open);
        assert_eq!(result, Ok(()), "case: {case}: the rule is what protects it");
    }
}
