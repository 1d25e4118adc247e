//! The conformance suite: sound backends pass all of it, and each broken one is caught by the check that is named for it.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

mod defects; // one backend, sound or with one deliberate defect
mod memory; // the in-memory backend
mod shelf; // the storage system of the defective backend, and its fixture

use self::defects::{Defect, Loose, Shelf};
use self::shelf::Cupboard;
use std::collections::BTreeSet;
use volwright_testkit::conformance::{self, NAMES};

#[tokio::test]
async fn the_sound_backend_passes_every_check() {
    let report = conformance::check(|| Cupboard::<Shelf>::new(Defect::None)).await;
    println!("{report}");
    report.assert();
    assert_eq!(report.not_offered(), Vec::<&str>::new(), "it offers everything that can be checked");
}

/// Which defect is caught by which check. The first is the one that is named for it; there may be more.
const CAUGHT: &[(Defect, &str)] = &[
    (Defect::PlanAnewEachTime, "plan-deterministic"),
    (Defect::PlanMakesIt, "plan-changes-nothing"),
    (Defect::PlansTogether, "plan-apart"),
    (Defect::FitsNothing, "plan-fits"),
    (Defect::HandleForgets, "handle-round-trip"),
    (Defect::HandleIsLarge, "handle-size"),
    (Defect::HandleHasSecret, "handle-no-secrets"),
    (Defect::SourceOfTheDay, "source-deterministic"),
    (Defect::AllVolumesAreSame, "same-volume"),
    (Defect::NoAliasKeys, "alias-own"),
    (Defect::AliasByLetters, "alias-nested"),
    (Defect::AllKindsAreOurs, "alias-foreign-kind"),
    (Defect::SeesWhatIsNot, "absence-observed"),
    (Defect::DeletesWhatItRemembers, "delete-lost-reply"),
    (Defect::AdoptsElsewhere, "adopt-round-trip"),
    (Defect::TooSmall, "provision-makes"),
    (Defect::Redirects, "provision-not-redirected"),
    (Defect::ProvisionTwiceFails, "provision-idempotent"),
    (Defect::ProvisionTwiceEmpties, "provision-idempotent"),
    (Defect::RemembersInMemoryOnly, "provision-lost-reply"),
    (Defect::HalfMade, "provision-cut-off"),
    (Defect::NoLock, "provision-concurrent"),
    (Defect::Unpublishes, "provision-keeps-published"),
    (Defect::ProvisionIgnoresMark, "provision-other-owner"),
    (Defect::TakesUnmarked, "provision-unmarked"),
    (Defect::LeavesTombstones, "provision-after-delete"),
    (Defect::NeverPristine, "pristine-new"),
    (Defect::AlwaysPristine, "pristine-written"),
    (Defect::MarkInMemoryOnly, "set-mark-published"),
    (Defect::MarkTwiceFails, "set-mark-idempotent"),
    (Defect::RetainedIsPublished, "set-mark-retained"),
    (Defect::MarkTornApart, "set-mark-cut-off"),
    (Defect::SetMarkIgnoresMark, "set-mark-other-owner"),
    (Defect::MarksNothing, "set-mark-needs-volume"),
    (Defect::IntentInMemoryOnly, "intent-kept"),
    (Defect::IntentStays, "intent-ends"),
    (Defect::DeleteForgets, "delete-removes"),
    (Defect::DeleteTwiceFails, "delete-idempotent"),
    (Defect::HalfDeleted, "delete-cut-off"),
    (Defect::DeleteIgnoresMark, "delete-other-owner"),
    (Defect::DeleteIgnoresEpoch, "delete-later-epoch"),
    (Defect::LateDeleteIsNotOurs, "delete-later-epoch"),
    (Defect::DeletesUnmarked, "delete-unmarked"),
    (Defect::DeletesByPrefix, "delete-leaves-others"),
    (Defect::UndoOnlyWithData, "undo-empty"),
    (Defect::UndoTakesData, "undo-keeps-written"),
    (Defect::AbsenceOnLostRoot, "root-lost-observe"),
    (Defect::DeletedOnLostRoot, "root-lost-delete"),
    (Defect::MakesOnLostRoot, "root-lost-writes"),
    (Defect::EmptyInventoryOnLostRoot, "root-lost-inventory"),
    (Defect::NewRootAtStart, "root-lost-restart"),
    (Defect::PathEscapes, "hostile-claims"),
    (Defect::ExpandOnce, "expand-grows"),
    (Defect::Shrinks, "expand-never-shrinks"),
    (Defect::ExpandIgnoresMark, "expand-other-owner"),
    (Defect::RestoresEmpty, "trash-restores"),
    (Defect::PurgeForgets, "trash-purges"),
    (Defect::TrashIgnoresMark, "trash-other-owner"),
    (Defect::TrashRenews, "trash-record-kept"),
    (Defect::TrashUnrecorded, "trash-record-kept"),
    (Defect::PurgesTheLiving, "trash-purges"),
    (Defect::PurgeJudgesNot, "trash-record-kept"),
    (Defect::InventoryLeavesOneOut, "inventory-complete"),
    (Defect::CapacityOfTheMoon, "capacity-sane"),
    (Defect::DoctorTellsSecret, "doctor-lines"),
];

#[tokio::test]
async fn every_broken_backend_is_caught_by_the_check_that_is_named_for_it() {
    let runs = CAUGHT.iter().map(async |(defect, name)| {
        let report = conformance::check(|| Cupboard::<Shelf>::new(*defect)).await;
        let failed = report.failed();
        assert!(failed.contains(name), "{defect:?} is to be caught by {name}, and was by {failed:?}");
        let outcome = report.outcomes.iter().find(|outcome| outcome.name == *name).unwrap();
        let text = outcome.to_string();
        assert!(text.contains(outcome.rule) && text.contains("expected: "), "{text}");
        println!("{defect:?}: {failed:?}\n{text}");
    });
    futures::future::join_all(runs).await;
}

#[tokio::test]
async fn a_backend_that_accepts_unknown_parameters_is_caught() {
    let report = conformance::check(|| Cupboard::<Shelf<Loose>>::new(Defect::None)).await;
    assert_eq!(report.failed(), ["parameters-unknown-refused", "parameters-schema"], "{report}");
}

#[test]
fn every_check_catches_something() {
    let caught: BTreeSet<_> = CAUGHT.iter().map(|(_, name)| *name).collect();
    // Those without a defect of their own: what breaks them breaks another one with it.
    let with_others = [
        "names",                      // constants of the type
        "parameters-accepted",        // the fixture's own
        "parameters-unknown-refused", // the loose backend
        "parameters-schema",          // the loose backend
        "delete-concurrent",
    ];
    let missing: Vec<_> =
        NAMES.iter().filter(|name| !caught.contains(*name) && !with_others.contains(name)).collect();
    assert!(missing.is_empty(), "no broken backend shows what these are good for: {missing:?}");
}
