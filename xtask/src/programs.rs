//! Programs that some tests need and that a machine may lack.

use anyhow::{Context as _, ensure};
use std::process::Command;

/// Programs of the tests that need root, and the Debian packages that they are in.
const OF_ROOT_TESTS: [(&str, &str); 1] = [("mkfs.btrfs", "btrfs-progs")];

/// Where a program may be; a user's PATH often lacks the last ones.
const MORE_PLACES: [&str; 2] = ["/usr/sbin", "/sbin"];

/// Installs what the tests that need root lack, where this is Debian and we are root.
pub(crate) fn install_for_root_tests() -> anyhow::Result<()> {
    let missing = missing(&OF_ROOT_TESTS, is_there);
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    println!("installing {packages}");
    for words in
        [vec!["update", "-q"], [vec!["install", "-y", "-q", "--no-install-recommends"], missing].concat()]
    {
        let mut apt = Command::new("apt-get");
        let ran = apt.args(words).env("DEBIAN_FRONTEND", "noninteractive").status();
        let ran = ran.with_context(|| format!("there is no apt-get here; install {packages} yourself"))?;
        ensure!(ran.success(), "apt-get failed; install {packages} yourself");
    }
    Ok(())
}

fn missing(programs: &[(&str, &'static str)], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    programs.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect()
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = MORE_PLACES.iter().map(std::path::PathBuf::from);
    std::env::split_paths(&path).chain(more).any(|place| place.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_packages_of_missing_programs_are_installed() {
        let programs = [("a", "package-a"), ("b", "package-b")];
        assert_eq!(missing(&programs, |program| program == "a"), ["package-b"]);
        assert!(missing(&programs, |_| true).is_empty());
        assert!(is_there("sh") && !is_there("volwright-no-such-program"));
    }
}
