//! `cargo xtask new-backend`: a crate for a new storage system, from the one in `crates/template`, which is compiled, linted
//! and tested with all others.

use anyhow::{Context as _, ensure};
use std::fs;
use std::path::{Path, PathBuf};

/// Begin a backend for a storage system: a crate with its tests and a page, which compiles and passes as it is.
///
/// Writes crates/NAME and docs/NAME.md, and adds them to the workspace and to the book's index. Nothing that is there is
/// overwritten. docs/write-a-backend.md says what a backend owes.
#[derive(Debug, clap::Parser)]
#[command(after_help = "Example:\n  \
    cargo xtask new-backend zfs\n  \
    cargo test -p volwright-zfs\n\n\
    NAME becomes the crate volwright-NAME and the provisioner NAME.volwright.io. It begins with a letter and has only \
    a-z, 0-9 and single dashes between them, 30 characters at most.")]
pub(crate) struct Args {
    /// Short name of the storage system
    name: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let root = super::tidy::root();
    let written = generate(&root, &args.name)?;
    let package = format!("volwright-{}", args.name);
    // Names have other lengths now, and lines with them.
    let formatted = super::cargo::cargo().args(["fmt", "--package", &package]).status();
    ensure!(
        formatted.is_ok_and(|status| status.success()),
        "the crate is written, and `cargo fmt` failed on it"
    );
    for path in written {
        println!("{}", path.strip_prefix(&root).unwrap_or(&path).display());
    }
    println!("\nIt works as it is: cargo test -p {package}");
    println!(
        "Then put your storage system in the place of src/system.rs; docs/write-a-backend.md says what it owes."
    );
    Ok(())
}

/// Where the template is, and by what it is called there.
const TEMPLATE: &str = "template";

/// What a crate has.
const FILES: [&str; 8] = [
    "Cargo.toml",
    "src/lib.rs",
    "src/main.rs",
    "src/backend.rs",
    "src/system.rs",
    "tests/conformance.rs",
    "tests/engine.rs",
    "tests/stored/handle-v1.json",
];

/// The longest name: a PV's name and labels have it in them.
const LENGTH_MAX: usize = 30;

/// Why a name will not do.
fn check(name: &str) -> Result<(), String> {
    let rule = |what: &str| {
        format!(
            "{name:?} {what}. A name begins with a letter and has only a-z, 0-9 and single dashes between them, \
             {LENGTH_MAX} characters at most, such as zfs or dell-isilon"
        )
    };
    if name.len() > LENGTH_MAX {
        return Err(rule(&format!("has {} characters", name.len())));
    }
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(rule("does not begin with one of a-z"));
    }
    if let Some(wrong) = name.chars().find(|c| !c.is_ascii_lowercase() && !c.is_ascii_digit() && *c != '-') {
        return Err(rule(&format!("has {wrong:?} in it")));
    }
    if name.ends_with('-') || name.contains("--") {
        return Err(rule("has a dash that is not between two others"));
    }
    if name.contains(TEMPLATE) {
        return Err(format!(
            "{name:?} has the word {TEMPLATE:?} in it, which is the template's own; choose another"
        ));
    }
    Ok(())
}

/// The template's text under another name.
fn renamed(text: &str, name: &str) -> String {
    let type_name: String = name.split('-').map(capital).collect();
    text.replace("volwright_template", &format!("volwright_{}", name.replace('-', "_")))
        .replace("Template", &type_name)
        .replace(TEMPLATE, name)
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_uppercase().to_string() + letters.as_str())
}

/// Writes the crate and the page into the workspace at `root`; answers what was written or changed.
fn generate(root: &Path, name: &str) -> anyhow::Result<Vec<PathBuf>> {
    check(name).map_err(anyhow::Error::msg)?;
    let (target, page) = (root.join("crates").join(name), root.join("docs").join(format!("{name}.md")));
    for path in [&target, &page] {
        ensure!(!path.exists(), "{} is there already; choose another name, or move it away", path.display());
    }
    let manifest = root.join("Cargo.toml");
    let changed_manifest = with_dependency(&read(&manifest)?, name)?;
    let index = root.join("docs/README.md");
    let changed_index = with_page(&read(&index)?, name)?;

    let mut written = Vec::new();
    for file in FILES {
        let text = renamed(&read(&root.join("crates").join(TEMPLATE).join(file))?, name);
        // The template is for nobody to publish.
        let text = text
            .replace("publish = false\n", "")
            .replace("Volwright's template backend", "A Volwright backend");
        write(&target.join(file), &text, &mut written)?;
    }
    let text = renamed(&read(&root.join("crates").join(TEMPLATE).join("BACKEND.md"))?, name);
    write(&page, &text, &mut written)?;
    write(&manifest, &changed_manifest, &mut written)?;
    write(&index, &changed_index, &mut written)?;
    Ok(written)
}

/// The workspace's manifest with the crate among those that others may depend on, in order.
fn with_dependency(manifest: &str, name: &str) -> anyhow::Result<String> {
    let line = format!("volwright-{name} = {{ path = \"crates/{name}\", version = \"0.1.0\" }}");
    let mut lines: Vec<_> = manifest.lines().collect();
    let ours = |line: &&str| line.starts_with("volwright-") && line.contains("path = \"crates/");
    let first =
        lines.iter().position(ours).context("Cargo.toml has no crates of this workspace to add to")?;
    let count = lines[first..].iter().take_while(|line| ours(line)).count();
    let place = lines[first..first + count].iter().position(|other| *other > line.as_str()).unwrap_or(count);
    lines.insert(first + place, &line);
    Ok(lines.join("\n") + "\n")
}

/// The book's index with the page among the backends.
fn with_page(index: &str, name: &str) -> anyhow::Result<String> {
    let line = index.lines().find(|line| line.starts_with("- Backends: "));
    let line = line.context("docs/README.md has no line \"- Backends: \" to add the page to")?;
    Ok(index.replace(line, &format!("{line}, [{name}]({name}.md)")))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn write(path: &Path, text: &str, written: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let shown = || format!("cannot write {}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(path)).with_context(shown)?;
    fs::write(path, text).with_context(shown)?;
    written.push(path.to_owned());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with what the generator looks at.
    fn workspace() -> tempfile::TempDir {
        let (dir, from) = (tempfile::tempdir().unwrap(), crate::tidy::root());
        let mut copied = Vec::new();
        let own = FILES.into_iter().chain(["BACKEND.md"]).map(|file| format!("crates/{TEMPLATE}/{file}"));
        for file in own.chain(["Cargo.toml", "docs/README.md"].map(str::to_owned)) {
            write(&dir.path().join(&file), &read(&from.join(&file)).unwrap(), &mut copied).unwrap();
        }
        dir
    }

    #[test]
    fn names_that_will_not_do_are_refused_with_the_rule() {
        for name in ["zfs", "dell-isilon", "s3", "a"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        let cases = [
            ("", "begin with one of a-z"),
            ("3par", "begin with one of a-z"),
            ("-x", "begin with one of a-z"),
            ("ZFS", "begin with one of a-z"),
            ("zFs", "has 'F' in it"),
            ("z_fs", "has '_' in it"),
            ("../x", "begin with one of a-z"),
            ("a/../b", "has '/' in it"),
            ("a b", "has ' ' in it"),
            ("zfs-", "a dash that is not between"),
            ("z--fs", "a dash that is not between"),
            ("a-name-of-more-than-thirty-letters", "has 34 characters"),
            ("my-template", "the template's own"),
        ];
        for (name, why) in cases {
            let refusal = check(name).unwrap_err();
            assert!(refusal.contains(why), "{name:?}: {refusal}");
        }
    }

    #[test]
    fn a_new_backend_is_the_tested_template_under_its_own_name() {
        let dir = workspace();
        let written = generate(dir.path(), "dell-isilon").unwrap();
        assert_eq!(written.len(), 11);
        for path in &written {
            let text = read(path).unwrap();
            let own = path.starts_with(dir.path().join("crates/dell-isilon"));
            assert!(!own || !text.to_lowercase().contains(TEMPLATE), "{}:\n{text}", path.display());
        }
        let file = |path: &str| read(&dir.path().join(path)).unwrap();
        assert!(
            file("crates/dell-isilon/Cargo.toml")
                .starts_with("[package]\nname = \"volwright-dell-isilon\"\n")
        );
        assert!(!file("crates/dell-isilon/Cargo.toml").contains("publish"));
        assert!(file("crates/dell-isilon/src/main.rs").contains("use volwright_dell_isilon::DellIsilon;"));
        assert!(
            file("crates/dell-isilon/src/backend.rs")
                .contains("const BACKEND: &'static str = \"dell-isilon\";")
        );
        assert!(file("docs/dell-isilon.md").contains("provisioner: dell-isilon.volwright.io"));
        assert!(file("docs/README.md").contains("[dell-isilon](dell-isilon.md)"));
        let manifest = file("Cargo.toml");
        let at = |name: &str| manifest.find(&format!("\nvolwright-{name} = {{ path")).unwrap();
        assert!(at("controller") < at("dell-isilon") && at("dell-isilon") < at("lab"), "{manifest}");
    }

    #[test]
    fn nothing_that_is_there_is_overwritten() {
        let dir = workspace();
        generate(dir.path(), "zfs").unwrap();
        let manifest = read(&dir.path().join("Cargo.toml")).unwrap();
        let refusal = generate(dir.path(), "zfs").unwrap_err().to_string();
        assert!(refusal.contains("crates/zfs is there already"), "{refusal}");
        fs::write(dir.path().join("docs/nas.md"), "mine").unwrap();
        assert!(
            generate(dir.path(), "nas").unwrap_err().to_string().contains("docs/nas.md is there already")
        );
        assert!(!dir.path().join("crates/nas").exists());
        assert_eq!(read(&dir.path().join("Cargo.toml")).unwrap(), manifest);
    }
}
