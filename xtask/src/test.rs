//! `cargo xtask test`: everything, cheapest refusal first, on a machine where nothing is prepared.

use anyhow::Context as _;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::time::Instant;

/// Run every check and test: formatting, tidy, clippy, documentation, unit and property tests, and the tests against a real
/// control plane.
///
/// Nothing has to be prepared but Rust and Go: the control plane is built from Go modules on the first run (some minutes)
/// and kept below ~/.cache/volwright, as are the compiled crates. The tests that need root also need btrfs-progs, which is
/// installed where this runs as root on Debian. A part that is missing is a failure; leave one out by name with --skip.
///
/// The last line is `N passed, N failed`.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// Leave tiers out, separated by commas: fmt, tidy, clippy, doc, unit, root, api
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// Run only these tiers
    #[arg(long, value_delimiter = ',', conflicts_with = "skip")]
    only: Vec<String>,
}

struct Tier {
    name: &'static str,
    what: &'static str,
    /// Several, run one after the other. Always the whole workspace: with fewer packages cargo resolves other features, and
    /// compiles the dependencies once more.
    commands: Vec<Vec<&'static str>>,
}

fn tiers() -> Vec<Tier> {
    let tier = |name, what, commands: &[&[&'static str]]| Tier {
        name,
        what,
        commands: commands.iter().map(|words| words.to_vec()).collect(),
    };
    vec![
        tier("fmt", "formatting", &[&["fmt", "--all", "--check"]]),
        tier("tidy", "layering, versions, links", &[&["run", "-q", "-p", "xtask", "--", "tidy"]]),
        tier("clippy", "lints", &[&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]]),
        tier("doc", "documentation", &[&["doc", "--workspace", "--no-deps", "--document-private-items"]]),
        tier("unit", "unit and property tests, doc tests", &[&["test", "--workspace", "--no-fail-fast"]]),
        tier(
            "root",
            "tests that need root",
            &[&["test", "--workspace", "--no-fail-fast", "--test", "root_*", "--", "--ignored"]],
        ),
        tier(
            "api",
            "tests against a real control plane",
            &[&["test", "--workspace", "--no-fail-fast", "--test", "api_*", "--", "--ignored"]],
        ),
    ]
}

/// How a tier went.
struct Outcome {
    name: &'static str,
    passed: usize,
    failed: usize,
    took: Duration,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let known: Vec<_> = tiers().iter().map(|tier| tier.name).collect();
    for name in args.skip.iter().chain(&args.only) {
        anyhow::ensure!(
            known.contains(&name.as_str()),
            "there is no tier {name:?}; there are {}",
            known.join(", ")
        );
    }
    let mut outcomes = Vec::new();
    for tier in tiers() {
        let wanted = if args.only.is_empty() {
            !args.skip.iter().any(|name| name == tier.name)
        } else {
            args.only.iter().any(|name| name == tier.name)
        };
        if wanted {
            println!("\n== {}: {}", tier.name, tier.what);
            outcomes.push(run_tier(&tier)?);
        }
    }
    println!();
    for outcome in &outcomes {
        let Outcome { name, passed, failed, took } = outcome;
        println!("{name:8} {passed:5} passed {failed:4} failed {:6.1} s", took.as_secs_f64());
    }
    let passed: usize = outcomes.iter().map(|outcome| outcome.passed).sum();
    let failed: usize = outcomes.iter().map(|outcome| outcome.failed).sum();
    println!("{passed} passed, {failed} failed");
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}

fn run_tier(tier: &Tier) -> anyhow::Result<Outcome> {
    let started = Instant::now();
    let (mut passed, mut failed) = (0, 0);
    if tier.name == "root"
        && let Err(error) = crate::programs::install_for_root_tests()
    {
        // The tests that need them say so as well, by failing.
        println!("{error:#}");
    }
    for words in &tier.commands {
        let (tests_passed, tests_failed, success) = cargo(words)?;
        passed += tests_passed;
        failed += tests_failed;
        if words.first() != Some(&"test") && success {
            // A check that is no test counts as one.
            passed += 1;
        }
        if !success && tests_failed == 0 {
            failed += 1;
        }
    }
    Ok(Outcome { name: tier.name, passed, failed, took: started.elapsed() })
}

/// Runs cargo, passes its output on, and adds up the tests' own closing lines.
fn cargo(words: &[&str]) -> anyhow::Result<(usize, usize, bool)> {
    let mut command = crate::cargo::cargo();
    command.args(words).env("RUSTDOCFLAGS", "-D warnings").stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo cannot be started")?;
    let (mut passed, mut failed) = (0, 0);
    if let Some(output) = child.stdout.take() {
        for line in BufReader::new(output).lines() {
            let line = line.context("cargo's output cannot be read")?;
            println!("{line}");
            if let Some((more_passed, more_failed)) = closing_line(&line) {
                passed += more_passed;
                failed += more_failed;
            }
        }
    }
    let status = child.wait().context("cargo cannot be waited for")?;
    Ok((passed, failed, status.success()))
}

/// Reads `test result: ok. 3 passed; 0 failed; ...`.
fn closing_line(line: &str) -> Option<(usize, usize)> {
    let rest = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut counts = rest.split("; ").map(|part| part.split(' ').next().and_then(|count| count.parse().ok()));
    Some((counts.next()??, counts.next()??))
}

/// Below the cache, so that a fresh clone finds what an earlier one has compiled.
pub(crate) fn target_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("CARGO_TARGET_DIR") {
        return dir.into();
    }
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .unwrap_or_else(|| "target".into());
    cache.join("volwright/target")
}

#[cfg(test)]
mod tests {
    use super::closing_line;

    #[test]
    fn the_tests_own_closing_lines_are_counted() {
        let line = "test result: FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.01s";
        assert_eq!(closing_line(line), Some((12, 3)));
        assert_eq!(closing_line("test result_is ... ok"), None);
        assert_eq!(closing_line("12 passed, 3 failed"), None);
    }
}
