//! A volume grows by its record: durably, never back, and only its owner's.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed test is to stop")]

mod common;

use common::faulty::Die;
use common::{
    Fixture, assert_refused, block_on, faulty, fill, mark, place, provision, released, under, wanted,
};
use volwright_provisioner::{Class, MarkState, Pristine, Until};

const PATH: &str = "ns/app/data";
const MORE: u64 = 8 << 20;

fn size(fixture: &Fixture) -> Option<u64> {
    block_on(fixture.volumes().observe(&place(PATH, "u"))).unwrap().and_then(|seen| seen.size)
}

#[test]
fn a_volume_grows_and_never_back_and_keeps_what_is_in_it() {
    let fixture = Fixture::new();
    provision(&fixture.volumes(), PATH, "u").unwrap();
    fill(&fixture.path(PATH), &fixture.outside());
    let grow = |bytes| block_on(fixture.volumes().expand(&place(PATH, "u"), &released("u"), bytes));
    assert_eq!(grow(MORE).unwrap(), MORE);
    assert_eq!(grow(MORE).unwrap(), MORE, "the same call again");
    assert_eq!(grow(1).unwrap(), MORE, "never back");
    let seen = block_on(fixture.volumes().observe(&place(PATH, "u"))).unwrap().unwrap();
    assert_eq!((seen.size, seen.pristine), (Some(MORE), Pristine::No));
    assert_eq!(seen.mark.unwrap().state, MarkState::Published, "the mark is as it was");
}

#[test]
fn only_a_volume_that_is_there_and_the_callers_grows() {
    let fixture = Fixture::new();
    let volumes = fixture.volumes();
    let grow = |mark: &_, bytes| block_on(volumes.expand(&place(PATH, "u"), mark, bytes));
    assert_refused(grow(&released("u"), MORE), Class::Blocked(Until::OperatorActs), "no record");
    provision(&volumes, PATH, "u").unwrap();
    assert_refused(grow(&released("other"), MORE), Class::NotOurs, "another volume's");
    assert_refused(grow(&released("u"), 1 << 62), Class::Exhausted, "free some space");
    let later = under(&mark("u").with_state(MarkState::Published), 2);
    block_on(volumes.set_mark(&place(PATH, "u"), &later)).unwrap();
    assert_refused(grow(&released("u"), MORE), Class::Unavailable, "a later leader");
    let kept = later.with_state(MarkState::Retained);
    block_on(volumes.set_mark(&place(PATH, "u"), &kept)).unwrap();
    assert_refused(grow(&later, MORE), Class::Blocked(Until::OperatorActs), "is kept");
    drop(volumes);
    assert_eq!(size(&fixture), Some(wanted().size), "none of these changed it");
}

#[test]
fn killed_at_any_step_it_has_grown_or_not_and_the_same_call_ends_it() {
    let mut steps = 0;
    for die in [Die::Before, Die::After] {
        for at in 0.. {
            let fixture = Fixture::new();
            provision(&fixture.volumes(), PATH, "u").unwrap();
            let volumes = faulty(&fixture, at, die);
            let first = block_on(volumes.expand(&place(PATH, "u"), &released("u"), MORE));
            let died = volumes.tree().died();
            drop(volumes);
            assert_eq!(first.is_err(), died, "step {at} {die:?}: {first:?}");
            let now = size(&fixture).unwrap();
            assert!([wanted().size, MORE].contains(&now), "step {at} {die:?}: {now}");
            let again = block_on(fixture.volumes().expand(&place(PATH, "u"), &released("u"), MORE));
            assert_eq!((again.unwrap(), size(&fixture)), (MORE, Some(MORE)), "step {at} {die:?}");
            if !died {
                break;
            }
            steps += 1;
        }
    }
    assert!(steps > 10, "{steps} steps only");
}
