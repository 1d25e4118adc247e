//! `docs/write-a-backend.md` shows this crate, and all of it.
#![allow(clippy::unwrap_used, reason = "a failed test is to stop")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn here(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

/// The page's blocks, by the file that they are a piece of.
fn pieces() -> BTreeMap<String, String> {
    let mut pieces: BTreeMap<String, String> = BTreeMap::new();
    for block in here("../../docs/write-a-backend.md").split("\n```rust file=").skip(1) {
        let (file, rest) = block.split_once('\n').unwrap();
        let (code, _) = rest.split_once("\n```").unwrap();
        let whole = pieces.entry(file.to_owned()).or_default();
        whole.push_str(code);
        whole.push('\n');
    }
    pieces
}

fn lines(code: &str) -> Vec<&str> {
    code.lines().filter(|line| !line.trim().is_empty()).collect()
}

#[test]
fn the_page_shows_the_code_that_is_tested() {
    let pieces = pieces();
    assert_eq!(pieces.keys().collect::<Vec<_>>(), ["src/lib.rs", "src/main.rs", "tests/root_btrfs.rs"]);
    for (file, shown) in pieces {
        let code = here(&file);
        let (shown, code) = (lines(&shown), lines(&code));
        for (number, line) in code.iter().enumerate() {
            assert_eq!(shown.get(number), Some(line), "{file}: the page goes its own way here");
        }
        assert_eq!(shown.len(), code.len(), "{file}: the page has more");
    }
}

#[test]
fn the_whole_backend_has_less_than_150_lines() {
    let code = here("src/lib.rs") + &here("src/main.rs");
    let count = lines(&code).iter().filter(|line| !line.trim_start().starts_with("//")).count();
    assert!(count < 150, "{count} lines that are neither blank nor comments");
}
