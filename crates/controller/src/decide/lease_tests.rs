use super::*;

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn record(holder: &str, renewed: &str, version: &str) -> Record {
    Record {
        holder: holder.to_owned(),
        duration: secs(if holder.is_empty() { 1 } else { 15 }),
        renew_time: renewed.to_owned(),
        transitions: if holder == "us" { 4 } else { 3 },
        resource_version: version.to_owned(),
        claimed_age: Duration::ZERO,
    }
}

fn read(give_up: u64) -> Action {
    Action::Read { give_up: secs(give_up) }
}

fn wait(until: u64) -> Action {
    Action::Wait { until: secs(until) }
}

fn write(kind: WriteKind, base: &str, transitions: i32, give_up: u64) -> Action {
    let base = (!base.is_empty()).then(|| base.to_owned());
    Action::Write(Write { kind, base, transitions, give_up: secs(give_up) })
}

/// At which second what is observed, what to do then, and until when we may act from then on (0: not at all).
type Row = (u64, Observed, Action, u64);

fn tell(name: &str, candidate: &mut Candidate, rows: impl IntoIterator<Item = Row>) {
    for (at, observed, action, until) in rows {
        let did = candidate.step(observed.clone(), secs(at));
        assert_eq!(did, action, "{name}, at {at}: {observed:?}\n{candidate:#?}");
        assert_eq!(candidate.acts_until(), secs(until), "{name}, at {at}: {observed:?}");
    }
}

fn us() -> Candidate {
    Candidate::new("us", Timing::default(), LeaseBugs::default())
}

/// Leads since second 100, version 8.
fn leader() -> Candidate {
    let mut us = us();
    tell(
        "leader",
        &mut us,
        [
            (100, Observed::Nothing, read(105), 0),
            (100, Observed::Record(record("", "t0", "7")), write(WriteKind::Acquire, "7", 4, 105), 0),
            (100, Observed::Written(record("us", "t100", "8")), wait(102), 110),
        ],
    );
    us
}

#[test]
fn stories() {
    use Observed::{Absent, Hint, Nothing, ReadFailed, Record as Saw, WriteFailed, Written};
    use WriteKind::{Acquire, Create, Release, Renew};
    let them = |renewed, version| Saw(record("them", renewed, version));
    let ours = |renewed, version| record("us", renewed, version);
    let stories: [(&str, Candidate, Vec<Row>); 17] = [
        (
            "no lease: it is made, and renewed every retry period",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (101, Absent, write(Create, "", 0, 106), 0),
                (102, Written(ours("t101", "1")), wait(103), 111),
                (103, Nothing, write(Renew, "1", 4, 108), 111),
                (104, Written(ours("t103", "2")), wait(105), 113),
            ],
        ),
        (
            "another's lease: read again and again, and taken once it was seen unchanged for its duration",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (100, them("t1", "1"), wait(102), 0),
                (102, Nothing, read(107), 0),
                (103, them("t2", "2"), wait(105), 0),
                (105, Nothing, read(110), 0),
                (116, them("t2", "2"), wait(118), 0),
                (117, Nothing, wait(118), 0),
                (118, Nothing, read(123), 0),
                (118, them("t2", "2"), write(Acquire, "2", 4, 123), 0),
                (119, Written(ours("t118", "3")), wait(120), 128),
            ],
        ),
        (
            "a label on it is no renewal, but its version counts",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (100, them("t1", "1"), wait(102), 0),
                (110, them("t1", "2"), wait(112), 0),
                (115, them("t1", "3"), write(Acquire, "3", 4, 120), 0),
            ],
        ),
        (
            "released: a hint makes us look, and it is taken at once",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (100, them("t1", "1"), wait(102), 0),
                (101, Hint, read(106), 0),
                (101, Saw(record("", "t2", "2")), write(Acquire, "2", 4, 106), 0),
                (101, WriteFailed, read(106), 0),
                (101, them("t3", "3"), wait(103), 0),
            ],
        ),
        (
            "our name from a process before us is another's",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (100, Saw(ours("t1", "1")), wait(102), 0),
                (114, Saw(ours("t1", "1")), wait(115), 0),
                (115, Nothing, write(Acquire, "1", 5, 120), 0),
            ],
        ),
        (
            "no answer to reads: asked every retry period",
            us(),
            vec![(100, Nothing, read(105), 0), (105, ReadFailed, wait(107), 0), (107, Nothing, read(112), 0)],
        ),
        (
            "no answer to a renewal that was done: it counts from when it was sent",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (107, WriteFailed, read(110), 110),
                (108, Saw(ours("t102", "9")), write(Renew, "9", 4, 112), 112),
            ],
        ),
        (
            "no answer to a renewal that was not done, or not yet: it does not count",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (107, WriteFailed, read(110), 110),
                (108, Saw(ours("t100", "8")), write(Renew, "8", 4, 110), 110),
                // Either of the two may have been done, so it counts as the first.
                (109, WriteFailed, read(110), 110),
                (109, Saw(ours("t102", "9")), wait(110), 112),
                (110, Nothing, write(Renew, "9", 4, 112), 112),
            ],
        ),
        (
            "no answers at all: over at the deadline, and ours again if nobody took it",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (107, WriteFailed, read(110), 110),
                (110, ReadFailed, wait(112), 0),
                (112, Nothing, read(117), 0),
                (112, Saw(ours("t100", "8")), write(Renew, "8", 4, 117), 0),
                (113, Written(ours("t112", "9")), wait(114), 122),
            ],
        ),
        (
            "paused for longer than the term: what was written long ago does not count",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (112, Written(ours("t102", "9")), write(Renew, "9", 4, 117), 0),
                (113, Written(ours("t112", "10")), wait(114), 122),
            ],
        ),
        (
            "another took it",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (102, WriteFailed, read(107), 110),
                (102, them("t102", "9"), wait(104), 0),
            ],
        ),
        (
            "it is gone: whoever may hold it now is waited out, ourselves included",
            leader(),
            vec![
                (101, Hint, read(106), 110),
                (101, Absent, wait(103), 0),
                (115, Absent, wait(116), 0),
                (116, Nothing, write(Create, "", 0, 121), 0),
            ],
        ),
        (
            "an unanswered create is done later",
            us(),
            vec![
                (100, Nothing, read(105), 0),
                (100, Absent, write(Create, "", 0, 105), 0),
                (105, WriteFailed, read(110), 0),
                (105, Absent, write(Create, "", 0, 110), 0),
                (106, WriteFailed, read(111), 0),
                (106, Saw(ours("t100", "1")), wait(107), 110),
            ],
        ),
        (
            "refused writes are not repeated without a pause",
            leader(),
            vec![
                (102, Nothing, write(Renew, "8", 4, 107), 110),
                (102, WriteFailed, read(107), 110),
                (102, Saw(ours("t100", "8")), wait(104), 110),
                (104, Nothing, write(Renew, "8", 4, 109), 110),
            ],
        ),
        (
            "leaving: released, and nothing more",
            {
                let mut us = leader();
                us.leave(secs(103));
                us
            },
            vec![
                (101, Nothing, write(Release, "8", 4, 103), 0),
                (101, Written(record("", "t101", "9")), Action::Rest, 0),
            ],
        ),
        (
            "leaving while a renewal is under way: read, then released",
            {
                let mut us = leader();
                us.step(Nothing, secs(102));
                us.leave(secs(104));
                us
            },
            vec![
                (102, WriteFailed, read(104), 0),
                (102, Saw(ours("t102", "9")), write(Release, "9", 4, 104), 0),
                (104, WriteFailed, Action::Rest, 0),
            ],
        ),
        (
            "leaving with nothing to release",
            {
                let mut us = us();
                us.leave(secs(103));
                us
            },
            vec![(101, Nothing, Action::Rest, 0)],
        ),
    ];
    for (name, mut candidate, rows) in stories {
        tell(name, &mut candidate, rows);
    }
}

#[test]
fn who_leads_may_act_until_the_deadline_and_not_then() {
    let us = leader();
    assert!(us.may_act(secs(100)));
    assert!(us.may_act(Duration::from_millis(109_999)));
    assert!(!us.may_act(secs(110)));
}

#[test]
fn times_that_do_not_go_together_are_refused() {
    let millis = Duration::from_millis;
    let cases = [
        ((15_000, 10_000, 2_000), None),
        ((3_000, 2_000, 1_000), None),
        ((1_500, 1_000, 100), Some("whole seconds")),
        ((0, 0, 0), Some("whole seconds")),
        ((10_000, 10_000, 2_000), Some("shorter than the lease duration")),
        ((15_000, 10_000, 8_334), Some("shorter than the renew deadline")),
        ((15_000, 10_000, 8_333), None),
        ((15_000, 10_000, 0), Some("not be zero")),
    ];
    for ((duration, deadline, retry), expected) in cases {
        let timing = Timing::new(millis(duration), millis(deadline), millis(retry));
        match expected {
            None => assert!(timing.is_ok(), "{timing:?}"),
            Some(text) => assert!(timing.unwrap_err().to_string().contains(text)),
        }
    }
    assert_eq!(Timing::new(secs(15), secs(10), secs(2)), Ok(Timing::default()));
}
