//! Running cargo from a program that cargo runs.

use std::process::Command;

/// Cargo, as if it were started from the terminal. `cargo run` tells its program which package it is of; some build scripts
/// (ring's) look at just these variables, so cargo within cargo would compile half of all crates anew, and the next one
/// outside them again.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_of_our_package) {
            command.env_remove(name);
        }
    }
    command.current_dir(super::tidy::root()).env("CARGO_TARGET_DIR", super::test::target_dir());
    command
}

fn is_of_our_package(name: &str) -> bool {
    ["CARGO_PKG_", "CARGO_MANIFEST_"].iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::is_of_our_package;

    #[test]
    fn what_cargo_says_of_our_package_is_not_passed_on_and_settings_are() {
        assert!(is_of_our_package("CARGO_MANIFEST_DIR") && is_of_our_package("CARGO_PKG_VERSION_PRE"));
        assert!(!is_of_our_package("CARGO_TARGET_DIR") && !is_of_our_package("CARGO_HOME"));
    }
}
