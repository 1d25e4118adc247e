//! The [`Provisioner`]: which root, whose volume, then the storage system's work on it.

use crate::{System, Volume};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use volwright_provisioner::{
    AccessMode, Capabilities, Check, Failure, InstallationId, InventoryItem, Key, Mark, MarkState, Observed,
    Placement, Pristine, Progress, Provisioned, Provisioner, Request, Result, SharedContext, Topology, Until,
    VolumeSource,
};

/// The backend's own flags.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where the storage system is.
    #[arg(long, env = "VOLWRIGHT_PATH", default_value = "/srv/volumes")]
    pub path: PathBuf,

    /// Name of the server in the volumes' PVs.
    #[arg(long, env = "VOLWRIGHT_SERVER", default_value = "server.example.com")]
    pub server: String,
}

/// Parameters of a storage class.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    /// Begins the names of volumes; only letters and digits. Default: `volume`.
    #[serde(default)]
    pub prefix: Option<String>,
}

/// Where a volume is: all that later calls need. What is stored must be readable by every later version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Handle {
    /// Which root it was made on.
    pub root: String,
    /// Server in the PV.
    pub server: String,
    /// The storage system's name for it.
    pub name: String,
}

/// The backend.
pub struct Template {
    system: System,
    server: String,
    context: SharedContext,
    /// A call that was dropped at its deadline may still be at work; the next one waits for it.
    busy: Arc<Mutex<()>>,
}

impl Template {
    fn installation(&self) -> &InstallationId {
        self.context.installation()
    }

    /// Work on a thread that may block. It goes on when the call is dropped.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&System) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (system, busy) = (self.system.clone(), Arc::clone(&self.busy));
        let task = tokio::task::spawn_blocking(move || {
            let _alone = busy.lock().unwrap_or_else(PoisonError::into_inner);
            work(&system)
        });
        task.await.map_err(|e| Failure::unknown("the work was cut off").caused_by(e))?
    }

    /// Work on a volume, if the root is the handle's.
    async fn on<T: Send + 'static>(
        &self,
        handle: &Handle,
        work: impl FnOnce(&System, &str) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let handle = handle.clone();
        self.run(move |system| {
            // Handles come from PVs, which others can edit.
            if !handle.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
                return Err(kept("its handle has no proper name"));
            }
            if system.identity()?.as_ref() != Some(&handle.root) {
                return Err(lost());
            }
            work(system, &handle.name)
        })
        .await
    }
}

impl Provisioner for Template {
    const BACKEND: &'static str = "template";
    const HANDLE_VERSION: u16 = 1;
    type Args = Args;
    type Parameters = Parameters;
    type Handle = Handle;

    fn placement(_: &Args) -> Result<Placement> {
        Ok(Placement::Central)
    }

    async fn connect(args: Args, context: SharedContext) -> Result<Self> {
        Ok(Self { system: System::new(args.path), server: args.server, context, busy: Arc::default() })
    }

    fn capabilities(&self, parameters: &Parameters) -> Result<Capabilities> {
        prefix(parameters)?;
        Ok(Capabilities { sees_contents: true, ..Capabilities::filesystem(&AccessMode::ALL) })
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        VolumeSource::Nfs { server: handle.server.clone(), path: format!("/{}", handle.name) }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        match source {
            VolumeSource::Nfs { path, .. } => vec![Key::of_path("volumes", path)],
            VolumeSource::Local { .. }
            | VolumeSource::HostPath { .. }
            | VolumeSource::Csi(_)
            | VolumeSource::Other { .. } => Vec::new(),
        }
    }

    async fn plan(&self, request: &Request<Parameters>) -> Result<Handle> {
        let name = format!("{}-{}-{}", prefix(&request.parameters)?, request.claim.uid, request.attempt);
        // A root is given its first identity only if no volume of ours is known: else it is another one, or not mounted.
        let is_first = self.context.our_volumes().await?.is_empty();
        let first = format!("root-of-{}", request.claim.uid);
        let root = self.run(move |system| {
            if is_first {
                system.make_identity(&first)?;
            }
            system.identity()?.ok_or_else(lost)
        });
        Ok(Handle { root: root.await?, server: self.server.clone(), name })
    }

    async fn observe(&self, handle: &Handle) -> Result<Option<Observed>> {
        self.on(handle, |system, name| Ok(system.get(name)?.map(observed))).await
    }

    async fn provision(
        &self,
        request: &Request<Parameters>,
        handle: &Handle,
    ) -> Result<Progress<Provisioned<Handle>>> {
        let (mark, size) = (request.mark.clone(), request.size);
        let make = move |system: &System, name: &str| match system.get(name)? {
            None => {
                system.put(name, &Volume { mark: Some(mark), size, data: String::new() })?;
                Ok(size)
            }
            Some(found) if found.mark.as_ref().is_some_and(|found| found.same_owner(&mark)) => Ok(found.size),
            Some(_) => Err(Failure::not_ours("something that is not this claim's is at the volume's place")),
        };
        let size = self.on(handle, make).await?;
        Ok(Progress::Done(Provisioned { handle: handle.clone(), size, topology: Topology::new() }))
    }

    async fn delete(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let asked = mark.clone();
        let remove = move |system: &System, name: &str| {
            let Some(found) = system.get(name)? else { return Ok(Progress::Done(())) };
            let Some(mark) = found.mark else {
                return Err(kept("it has no mark, so nobody can tell whose it is"));
            };
            if !mark.same_owner(&asked) {
                return Err(Failure::not_ours("it is another owner's volume"));
            }
            if !mark.yields_to(&asked) {
                return Err(Failure::unavailable("a later leader has marked the volume since"));
            }
            if asked.state == MarkState::Unpublished && !found.data.is_empty() {
                return Err(kept("it is not empty any more, and no PV is known to speak for it"));
            }
            system.remove(name).map(Progress::Done)
        };
        self.on(handle, remove).await
    }

    async fn set_mark(&self, handle: &Handle, mark: &Mark) -> Result<()> {
        let mark = mark.clone();
        let set = move |system: &System, name: &str| match system.get(name)? {
            Some(found) if found.mark.as_ref().is_some_and(|found| found.same_owner(&mark)) => {
                system.put(name, &Volume { mark: Some(mark), ..found })
            }
            Some(Volume { mark: Some(_), .. }) => Err(Failure::not_ours("it is another owner's volume")),
            _ => Err(kept("it is gone, or has lost its mark")),
        };
        self.on(handle, set).await
    }

    async fn inventory(&self) -> Result<Vec<InventoryItem<Handle>>> {
        let (installation, server) = (self.installation().clone(), self.server.clone());
        self.run(move |system| {
            let root = system.identity()?.ok_or_else(lost)?;
            let mut items = Vec::new();
            for name in system.list()? {
                let found = system.get(&name)?.map(observed);
                let ours = |seen: &Observed| {
                    seen.mark.as_ref().is_some_and(|mark| mark.installation == installation)
                };
                items.extend(found.filter(ours).map(|observed| InventoryItem {
                    handle: Handle { root: root.clone(), server: server.clone(), name },
                    observed,
                    intent: None,
                    trashed: None,
                }));
            }
            Ok(items)
        })
        .await
    }

    async fn check(&self) -> Vec<Check> {
        let found = self.run(|system| system.identity()?.ok_or_else(lost)).await;
        vec![Check { subject: "root".to_owned(), outcome: found.map_err(|failure| failure.to_string()) }]
    }
}

fn prefix(parameters: &Parameters) -> Result<&str> {
    let prefix = parameters.prefix.as_deref().unwrap_or("volume");
    if prefix.is_empty() || !prefix.chars().all(|c| c.is_ascii_alphanumeric()) {
        return Err(Failure::invalid(format!(
            "parameter \"prefix\": {prefix:?} has other characters than letters and digits; choose another"
        )));
    }
    Ok(prefix)
}

fn observed(volume: Volume) -> Observed {
    let pristine = if volume.data.is_empty() { Pristine::Yes } else { Pristine::No };
    Observed { mark: volume.mark, size: Some(volume.size), pristine, users: Vec::new() }
}

fn lost() -> Failure {
    Failure::unavailable("the root does not show the identity that it should have; is it the right one?")
}

fn kept(why: &str) -> Failure {
    Failure::blocked(Until::OperatorActs, format!("the volume is kept: {why}. Somebody must look"))
}
