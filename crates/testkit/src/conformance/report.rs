//! What came out, for people.

use std::fmt;

/// How one check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Passed,
    /// Not as it should be.
    Failed {
        /// What should have been.
        expected: String,
        /// What was.
        seen: String,
    },
    /// The backend does not offer it, by its capabilities or its answer; nothing to check.
    NotOffered {
        /// What it does not offer.
        what: String,
    },
    /// The fixture cannot do what the check needs.
    NotChecked {
        /// Its reason.
        why: String,
    },
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Its name.
    pub name: &'static str,
    /// The rule behind it, with its reason.
    pub rule: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// The calls that were made, with their answers.
    pub calls: Vec<String>,
}

/// All checks of one backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// `Provisioner::BACKEND`
    pub backend: &'static str,
    /// In the order in which they were made.
    pub outcomes: Vec<Outcome>,
}

impl Report {
    /// Names of the checks that failed.
    pub fn failed(&self) -> Vec<&'static str> {
        self.names(|verdict| matches!(verdict, Verdict::Failed { .. }))
    }

    /// Names of the checks that the fixture made impossible.
    pub fn not_checked(&self) -> Vec<&'static str> {
        self.names(|verdict| matches!(verdict, Verdict::NotChecked { .. }))
    }

    /// Names of the checks of what the backend does not offer.
    pub fn not_offered(&self) -> Vec<&'static str> {
        self.names(|verdict| matches!(verdict, Verdict::NotOffered { .. }))
    }

    /// Names of the checks that passed.
    pub fn passed(&self) -> Vec<&'static str> {
        self.names(|verdict| *verdict == Verdict::Passed)
    }

    fn names(&self, such: impl Fn(&Verdict) -> bool) -> Vec<&'static str> {
        self.outcomes.iter().filter(|outcome| such(&outcome.verdict)).map(|outcome| outcome.name).collect()
    }

    /// Nothing failed, and everything that the backend offers was checked.
    ///
    /// # Panics
    /// If not, with the report.
    #[track_caller]
    pub fn assert(&self) {
        self.assert_but_for(&[]);
    }

    /// Nothing failed, and exactly the named checks could not be made: what is not checked is written down in the test.
    ///
    /// # Panics
    /// If not, with the report.
    #[track_caller]
    pub fn assert_but_for(&self, not_checked: &[&str]) {
        assert!(self.failed().is_empty(), "\n{self}");
        let mut left_out = self.not_checked();
        let mut named = not_checked.to_vec();
        left_out.sort_unstable();
        named.sort_unstable();
        assert!(
            left_out == named,
            "\n{self}\nNot checked are {left_out:?}, and named as left out {named:?}. Make the fixture do what they need, or \
             name exactly those in assert_but_for."
        );
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Conformance of the backend {:?}:", self.backend)?;
        for outcome in &self.outcomes {
            write!(f, "{outcome}")?;
        }
        write!(
            f,
            "{} passed, {} failed, {} not offered, {} not checked",
            self.passed().len(),
            self.failed().len(),
            self.not_offered().len(),
            self.not_checked().len()
        )
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.verdict {
            Verdict::Passed => writeln!(f, "  passed       {name}"),
            Verdict::NotOffered { what } => writeln!(f, "  not offered  {name}: {what}"),
            Verdict::NotChecked { why } => writeln!(f, "  NOT CHECKED  {name}: {why}"),
            Verdict::Failed { expected, seen } => {
                writeln!(f, "  FAILED       {name}")?;
                writeln!(f, "      expected: {expected}")?;
                writeln!(f, "      seen:     {seen}")?;
                writeln!(f, "      why:      {}", self.rule)?;
                writeln!(f, "      calls:")?;
                self.calls.iter().try_for_each(|call| writeln!(f, "        {call}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdict: Verdict) -> Report {
        let calls = vec!["delete(claim 1) -> Done(())".to_owned()];
        Report {
            backend: "shelf",
            outcomes: vec![Outcome { name: "delete-removes", rule: "Room is given back.", verdict, calls }],
        }
    }

    #[test]
    fn a_failure_tells_what_was_expected_and_seen_and_why_and_the_calls() {
        let failed = Verdict::Failed { expected: "it is gone".into(), seen: "it is there".into() };
        let text = report(failed).to_string();
        for part in [
            "FAILED",
            "delete-removes",
            "it is gone",
            "it is there",
            "Room is given back.",
            "delete(claim 1)",
            "1 failed",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }

    #[test]
    #[should_panic(expected = "named as left out []")]
    fn what_was_not_checked_does_not_pass_silently() {
        report(Verdict::NotChecked { why: "no disk".into() }).assert();
    }

    #[test]
    #[should_panic(expected = "Not checked are []")]
    fn what_is_named_as_left_out_and_was_checked_is_told() {
        report(Verdict::Passed).assert_but_for(&["delete-removes"]);
    }

    #[test]
    fn what_is_not_offered_passes_and_is_shown() {
        let report = report(Verdict::NotOffered { what: "trash".into() });
        report.assert();
        assert!(report.to_string().contains("not offered  delete-removes: trash"));
    }
}
