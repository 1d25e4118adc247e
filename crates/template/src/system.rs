//! The storage system, by narrow calls. Here it is a directory with a file for each volume; put your client in its place.

use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use volwright_provisioner::{Failure, Mark, Result};

/// One volume, as the storage system knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Whose it is; `None` for what somebody else made.
    pub mark: Option<Mark>,
    /// Bytes.
    pub size: u64,
    /// What is in it.
    #[serde(default)]
    pub data: String,
}

/// A connection.
#[derive(Debug, Clone)]
pub struct System {
    directory: PathBuf,
}

/// In a file of this name the root says which one it is.
const IDENTITY: &str = "identity";

impl System {
    /// Connects. Asks nothing yet: a storage system that is down must not stop the process.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Which root it is; `None` for one that does not say.
    pub fn identity(&self) -> Result<Option<String>> {
        read(&self.directory.join(IDENTITY))
    }

    /// Gives the root its first identity, or leaves the one it has.
    pub fn make_identity(&self, identity: &str) -> Result<()> {
        if self.identity()?.is_some() {
            return Ok(());
        }
        self.write(IDENTITY, identity)
    }

    /// The volume, if there is one.
    pub fn get(&self, name: &str) -> Result<Option<Volume>> {
        let Some(text) = read(&self.path(name))? else { return Ok(None) };
        let volume = serde_json::from_str(&text);
        volume
            .map(Some)
            .map_err(|e| Failure::unknown("the storage system's answer cannot be read").caused_by(e))
    }

    /// Makes or changes a volume, in one step.
    pub fn put(&self, name: &str, volume: &Volume) -> Result<()> {
        let text = serde_json::to_string(volume).map_err(unknown)?;
        self.write(&format!("{name}.volume"), &text)
    }

    /// Destroys a volume. One that is gone already is no failure.
    pub fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(unknown(error)),
            _ => Ok(()),
        }
    }

    /// The names of all volumes.
    pub fn list(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(unavailable)? {
            let name = entry.map_err(unavailable)?.file_name();
            names.extend(name.to_str().and_then(|name| name.strip_suffix(".volume")).map(str::to_owned));
        }
        Ok(names)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.volume"))
    }

    /// Whole or not at all.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let new = self.directory.join(format!(".{file}.new"));
        fs::write(&new, text).and_then(|()| fs::rename(&new, self.directory.join(file))).map_err(unknown)
    }
}

fn read(path: &Path) -> Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unavailable(error)),
    }
}

/// A read that failed has changed nothing.
fn unavailable(error: io::Error) -> Failure {
    Failure::unavailable("the storage system does not answer").caused_by(error)
}

/// A write that failed may have happened.
fn unknown(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::unknown("the storage system did not say what became of the call").caused_by(error)
}
