//! `volwright-testbed`: a whole provisioner whose storage system is a folder, for tests that kill and stop processes.
//!
//! Before and after the effect of each operation it looks into the control folder: while `halt-<op>-<before|after>` is
//! there it waits, and shows that by `at-<op>-<before|after>-<pid>`. So a test can send a signal exactly there.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::sleep;
use volwright_provisioner::{
    AccessMode, Capabilities, Failure, InventoryItem, Key, Mark, MarkState, Observed, Placement, Pristine,
    Progress, Provisioned, Provisioner, Request, Result, SharedContext, Topology, Until, VolumeSource,
};

/// What the sources of the PVs name.
const SERVER: &str = "testbed.test";

fn main() -> ExitCode {
    volwright_controller::main::<Testbed>()
}

#[derive(Debug, clap::Args)]
struct Args {
    /// Folder with one file for each volume
    #[arg(long, value_name = "DIR")]
    root: PathBuf,

    /// Folder in which a test says where to halt
    #[arg(long, value_name = "DIR")]
    control: PathBuf,

    /// Milliseconds that each operation takes before and after its effect
    #[arg(long, value_name = "MS", default_value_t = 0)]
    slow: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Parameters {
    /// Do not see whether a volume was written to.
    #[serde(default)]
    opaque: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Handle {
    name: String,
    opaque: bool,
}

/// What a volume's file holds. A test sets `written`, as a pod would.
#[derive(Debug, Serialize, Deserialize)]
struct Volume {
    mark: Option<Mark>,
    size: u64,
    written: bool,
    opaque: bool,
}

impl Volume {
    fn observed(self) -> Observed {
        let pristine = match (self.opaque, self.written) {
            (true, _) => Pristine::Unknown,
            (false, true) => Pristine::No,
            (false, false) => Pristine::Yes,
        };
        Observed { mark: self.mark, size: Some(self.size), pristine, users: Vec::new() }
    }
}

struct Testbed(Args);

/// Shows where this process halts, while it does.
struct At(PathBuf);

impl Drop for At {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

impl Testbed {
    /// One operation. Its effect has no await: a process that is stopped while it halts carries on with the whole effect
    /// when it is resumed, whatever has happened meanwhile.
    async fn step<T>(&self, op: &str, effect: impl FnOnce() -> Result<T>) -> Result<T> {
        self.halt(op, "before").await;
        let done = effect();
        self.halt(op, "after").await;
        done
    }

    async fn halt(&self, op: &str, when: &str) {
        if self.0.slow > 0 {
            sleep(Duration::from_millis(self.0.slow)).await;
        }
        let halt = self.0.control.join(format!("halt-{op}-{when}"));
        if !halt.exists() {
            return;
        }
        let at = At(self.0.control.join(format!("at-{op}-{when}-{}", std::process::id())));
        fs::write(&at.0, "").ok();
        while halt.exists() {
            sleep(Duration::from_millis(5)).await;
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.root.join(format!("{name}.json"))
    }

    fn read(&self, name: &str) -> Result<Option<Volume>> {
        match fs::read(self.file(name)) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|error| Failure::blocked(Until::OperatorActs, error.to_string())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(&error)),
        }
    }

    /// Whole or not at all. With `fresh` only where there is none: another process may do the same now.
    fn write(&self, name: &str, volume: &Volume, fresh: bool) -> Result<()> {
        let new = self.0.root.join(format!(".{name}.{}", std::process::id()));
        let bytes = serde_json::to_vec(volume).map_err(|error| Failure::invalid(error.to_string()))?;
        fs::write(&new, bytes).map_err(|error| failed(&error))?;
        if !fresh {
            return fs::rename(&new, self.file(name)).map_err(|error| failed(&error));
        }
        let made = fs::hard_link(&new, self.file(name));
        fs::remove_file(&new).ok();
        match made {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(failed(&error)),
            _ => Ok(()),
        }
    }
}

fn failed(error: &Error) -> Failure {
    Failure::unknown(error.to_string())
}

fn not_ours() -> Failure {
    Failure::not_ours("the volume bears another mark")
}

impl Provisioner for Testbed {
    const BACKEND: &'static str = "testbed";
    const HANDLE_VERSION: u16 = 1;
    type Args = Args;
    type Parameters = Parameters;
    type Handle = Handle;

    fn placement(_: &Args) -> Result<Placement> {
        Ok(Placement::Central)
    }

    async fn connect(args: Args, _: SharedContext) -> Result<Self> {
        Ok(Self(args))
    }

    fn capabilities(&self, parameters: &Parameters) -> Result<Capabilities> {
        let sees_contents = parameters.opaque != Some(true);
        Ok(Capabilities { sees_contents, ..Capabilities::filesystem(&AccessMode::ALL) })
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        VolumeSource::Nfs { server: SERVER.to_owned(), path: format!("/{}", handle.name) }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        match source {
            VolumeSource::Nfs { server, path } => vec![Key::of_path(server, path)],
            _ => Vec::new(),
        }
    }

    async fn plan(&self, request: &Request<Parameters>) -> Result<Handle> {
        let name = format!("{}-{}", request.claim.uid, request.attempt);
        let opaque = request.parameters.opaque == Some(true);
        self.step("plan", || Ok(Handle { name, opaque })).await
    }

    async fn observe(&self, handle: &Handle) -> Result<Option<Observed>> {
        self.step("observe", || Ok(self.read(&handle.name)?.map(Volume::observed))).await
    }

    async fn provision(
        &self,
        request: &Request<Parameters>,
        handle: &Handle,
    ) -> Result<Progress<Provisioned<Handle>>> {
        let make = || {
            let (mark, opaque) = (request.mark.with_state(MarkState::Unpublished), handle.opaque);
            let fresh = Volume { mark: Some(mark), size: request.size, written: false, opaque };
            self.write(&handle.name, &fresh, true)?;
            match self.read(&handle.name)? {
                Some(Volume { mark: Some(mark), size, .. }) if mark.same_owner(&request.mark) => {
                    let made = Provisioned { handle: handle.clone(), size, topology: Topology::new() };
                    Ok(Progress::Done(made))
                }
                Some(_) => Err(not_ours()),
                None => Err(Failure::unknown("the volume went at once")),
            }
        };
        self.step("provision", make).await
    }

    async fn delete(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let delete = || {
            let Some(volume) = self.read(&handle.name)? else { return Ok(Progress::Done(())) };
            let Some(found) = volume.mark.filter(|found| found.same_owner(mark)) else {
                return Err(not_ours());
            };
            if mark.state == MarkState::Unpublished && volume.written && !volume.opaque {
                return Err(Failure::blocked(Until::OperatorActs, "the volume is not empty any more"));
            }
            if !found.yields_to(mark) {
                return Err(Failure::unavailable("a later leader has marked the volume since"));
            }
            fs::remove_file(self.file(&handle.name)).map_err(|error| failed(&error))?;
            Ok(Progress::Done(()))
        };
        self.step("delete", delete).await
    }

    async fn set_mark(&self, handle: &Handle, mark: &Mark) -> Result<()> {
        let set = || match self.read(&handle.name)? {
            Some(volume) if volume.mark.as_ref().is_none_or(|found| found.same_owner(mark)) => {
                self.write(&handle.name, &Volume { mark: Some(mark.clone()), ..volume }, false)
            }
            Some(_) => Err(not_ours()),
            None => Err(Failure::unavailable("the volume is not there")),
        };
        self.step("set_mark", set).await
    }

    async fn inventory(&self) -> Result<Vec<InventoryItem<Handle>>> {
        let list = || {
            let mut items = Vec::new();
            for entry in fs::read_dir(&self.0.root).map_err(|error| failed(&error))? {
                let file = entry.map_err(|error| failed(&error))?.file_name();
                let name = file.to_str().and_then(|file| file.strip_suffix(".json"));
                // It may have gone since it was listed.
                let Some((name, volume)) = name.and_then(|name| Some((name, self.read(name).transpose()?)))
                else {
                    continue;
                };
                let volume = volume?;
                let handle = Handle { name: name.to_owned(), opaque: volume.opaque };
                items.push(InventoryItem {
                    handle,
                    observed: volume.observed(),
                    intent: None,
                    trashed: None,
                });
            }
            Ok(items)
        };
        self.step("inventory", list).await
    }
}
