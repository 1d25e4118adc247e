//! Where things are kept that are built once per machine.

use std::{
    env,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

/// `volwright` below `$XDG_CACHE_HOME`, or below `~/.cache`. It need not exist yet.
pub fn cache_dir() -> anyhow::Result<PathBuf> {
    // The XDG specification says to ignore a relative path; an empty one is one too.
    let xdg = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let base =
        xdg.or(home).context("neither XDG_CACHE_HOME nor HOME is set: set one to say where to cache")?;
    Ok(base.join("volwright"))
}
