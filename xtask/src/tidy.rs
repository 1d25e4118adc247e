//! `cargo xtask tidy`: what no compiler checks. Layering by imports, versions in one place, links in the documents, and
//! that each test named in `docs/reliability.md` exists. Also a `#[test]`, so `cargo test` finds it first.

use anyhow::{Context as _, bail};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Check what no compiler checks: layering, versions, links in the documents, tests that the documents name.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {}

/// A folder, what its sources must not mention, and why.
const LAYERS: [(&str, &[&str], &str); 4] = [
    (
        "crates/controller/src/decide",
        &[
            "kube::",
            "k8s_openapi",
            "tokio",
            "async ",
            "await",
            "Instant",
            "SystemTime",
            "fastrand",
            "crate::engine",
        ],
        "decide is pure: no client, clock, randomness or async; time is an argument",
    ),
    (
        "crates/provisioner/src",
        &["kube::", "k8s_openapi", "use tokio", "volwright_controller"],
        "a backend's author needs no Kubernetes client and no runtime",
    ),
    (
        "crates/volume-tree/src",
        &["kube::", "k8s_openapi", "volwright_controller"],
        "volume-tree depends on the vocabulary alone",
    ),
    (
        "crates/local-path/src",
        &["kube::", "k8s_openapi", "remove_dir_all"],
        "only the engine talks to the API server, and only volume-tree removes",
    ),
];

/// Test files tell stories with times and clients of their own.
const TESTS: [&str; 2] = ["tests.rs", "_tests.rs"];

pub(crate) fn run(_: &Args) -> anyhow::Result<()> {
    let problems = problems(&root())?;
    if problems.is_empty() {
        println!("tidy: nothing to mend");
        return Ok(());
    }
    for problem in &problems {
        println!("{problem}");
    }
    bail!("{} things to mend", problems.len())
}

/// The workspace's folder.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(PathBuf::new, Path::to_owned)
}

fn problems(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = layering(root)?;
    problems.extend(manifests(root)?);
    problems.extend(links(root)?);
    problems.extend(named_tests(root)?);
    problems.extend(unproven_rules(root)?);
    Ok(problems)
}

fn files(folder: &Path, ending: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path();
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if entry.file_type()?.is_dir() && !hidden && entry.file_name() != "target" {
                folders.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn shown<'a>(root: &Path, path: &'a Path) -> std::path::Display<'a> {
    path.strip_prefix(root).unwrap_or(path).display()
}

fn layering(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for (folder, banned, why) in LAYERS {
        for path in files(&root.join(folder), ".rs")? {
            if TESTS.iter().any(|ending| path.to_string_lossy().ends_with(ending)) {
                continue;
            }
            let text = read(&path)?;
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for (number, line) in
                code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"))
            {
                for word in banned.iter().filter(|word| line.contains(**word)) {
                    problems.push(format!("{}:{}: {word:?} here: {why}", shown(root, &path), number + 1));
                }
            }
        }
    }
    Ok(problems)
}

/// Every crate inherits the lints, and takes its dependencies' versions from the root.
fn manifests(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in files(root, "Cargo.toml")?.into_iter().filter(|path| path.parent() != Some(root)) {
        let text = read(&path)?;
        if !text.contains("[lints]\nworkspace = true") {
            problems.push(format!("{}: does not inherit the workspace's lints", shown(root, &path)));
        }
        let mut dependencies = false;
        for line in text.lines() {
            if line.starts_with('[') {
                dependencies = line.contains("dependencies");
            } else if dependencies
                && line.contains('=')
                && !line.contains("workspace")
                && !line.contains("path =")
            {
                problems.push(format!("{}: {line:?}: versions stand in the root alone", shown(root, &path)));
            }
        }
    }
    Ok(problems)
}

/// Relative links of the documents lead to something.
fn links(root: &Path) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    for path in files(root, ".md")? {
        let text = read(&path)?;
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            let elsewhere = target.contains("://") || target.starts_with("mailto:") || file.is_empty();
            let base = path.parent().unwrap_or(root);
            if !elsewhere && !base.join(file).exists() {
                problems.push(format!("{}: the link {target:?} leads nowhere", shown(root, &path)));
            }
        }
    }
    Ok(problems)
}

/// All names of test functions.
fn test_names(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for path in files(root, ".rs")? {
        for line in read(&path)?.lines() {
            let name = line.trim_start().trim_start_matches("async ").strip_prefix("fn ");
            names.extend(name.and_then(|rest| rest.split(['(', '<']).next()).map(str::to_owned));
        }
    }
    Ok(names)
}

/// In `docs/reliability.md` the last column of every row names tests, and each exists.
fn named_tests(root: &Path) -> anyhow::Result<Vec<String>> {
    let path = root.join("docs/reliability.md");
    let known = test_names(root)?;
    let mut problems = Vec::new();
    for (number, line) in read(&path)?.lines().enumerate().filter(|(_, line)| line.starts_with("| ")) {
        let cells: Vec<_> = line.trim_matches('|').split('|').map(str::trim).collect();
        let last = cells.last().copied().unwrap_or_default();
        if last == "test" || last.starts_with("---") {
            continue;
        }
        let mut named = last.split('`').skip(1).step_by(2).peekable();
        if named.peek().is_none() {
            problems.push(format!("docs/reliability.md:{}: the row names no test", number + 1));
        }
        for name in named.filter(|name| !known.contains(*name)) {
            problems.push(format!("docs/reliability.md:{}: there is no test {name}", number + 1));
        }
    }
    Ok(problems)
}

/// Each safety rule is named by a test that switches rules off, or is among the mutants that the simulation plays.
fn unproven_rules(root: &Path) -> anyhow::Result<Vec<String>> {
    let rules = read(&root.join("crates/controller/src/decide/rules.rs"))?;
    let body =
        rules.split("pub enum Rule {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap_or_default();
    let names = body.lines().map(str::trim).filter(|line| !line.starts_with("//") && line.ends_with(','));
    let mut tests = String::new();
    for path in files(&root.join("crates"), ".rs")? {
        let text = read(&path)?;
        // Of a source file only its tests count.
        let shown = path.to_string_lossy().into_owned();
        let is_test = shown.contains("/tests/") || TESTS.iter().any(|ending| shown.ends_with(ending));
        let part = if is_test {
            Some(text.as_str())
        } else {
            text.split_once("#[cfg(test)]").map(|(_, tests)| tests)
        };
        tests.extend(part.filter(|part| part.contains("Rules::without(")));
    }
    let mutants = read(&root.join("crates/testkit/src/sim/mutant.rs"))?;
    tests.extend(mutants.split("const NOTICED").nth(1).and_then(|rest| rest.split("];").next()));
    Ok(names
        .map(|line| line.trim_end_matches(','))
        .filter(|name| !tests.contains(&format!("Rule::{name}")))
        .map(|name| format!("no test shows what Rule::{name} is good for: use Rules::without in one"))
        .collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_workspace_is_tidy() {
        let problems = super::problems(&super::root()).unwrap();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
