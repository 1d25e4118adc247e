//! A btrfs subvolume for each claim, on the server that exports them by NFS: `docs/write-a-backend.md` explains it.
#![allow(missing_docs, clippy::wildcard_imports, reason = "an example: the page says what is what")]

use rustix::fs::{Mode, XattrFlags, chmod, fstatvfs, lgetxattr, lsetxattr, syncfs};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{self, Command};
use std::sync::{Mutex, PoisonError};
use volwright_provisioner::*;

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory on btrfs below which volumes are made
    #[arg(long)]
    pub path: String,
    /// Id of the file system that must be mounted there, as `stat -f -c %i` prints it
    #[arg(long)]
    pub fsid: String,
    /// Name of the NFS server that exports the directory under the same path
    #[arg(long)]
    pub server: String,
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    /// May only root write (mode 0700), and not every pod (0777)? Default: false
    private: Option<bool>,
}

#[derive(Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle {
    pub fsid: String,
    pub server: String,
    pub path: String,
}

fn look(at: &Path) -> Result<Option<Observed>> {
    let mut text = [0; 4096];
    let mark = match lgetxattr(at, "trusted.volwright", &mut text) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::NODATA) => None,
        read => Some(serde_json::from_slice(&text[..read.map_err(unknown)?]).map_err(unknown)?),
    };
    let empty = fs::read_dir(at).is_ok_and(|mut entries| entries.next().is_none());
    let pristine = if empty { Pristine::Yes } else { Pristine::No };
    Ok(Some(Observed { mark, size: None, pristine, users: Vec::new() }))
}

fn write(at: &Path, mark: &Mark) -> Result<()> {
    let text = serde_json::to_vec(mark).map_err(unknown)?;
    lsetxattr(at, "trusted.volwright", &text, XattrFlags::empty()).map_err(unknown)
}

fn subvolume(what: &str, at: &Path) -> Result<()> {
    let ran = Command::new("btrfs").args(["subvolume", what]).arg(at).output().map_err(unknown)?;
    if ran.status.success() { Ok(()) } else { Err(unknown(String::from_utf8_lossy(&ran.stderr))) }
}

fn unknown(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failure {
    Failure::unknown("work on the file system failed; the log says how").caused_by(cause)
}

fn kept(why: &str) -> Failure {
    Failure::blocked(Until::OperatorActs, format!("the volume is kept: {why}. Somebody must look"))
}

type Work<T> = Box<dyn FnOnce(&Path) -> Result<T> + Send>;

/// Work that was cut off goes on, whatever becomes of who asked for it: one thing at a time.
static ALONE: Mutex<()> = Mutex::new(());

pub struct Btrfs(Args);

impl Btrfs {
    async fn at<T: Send + 'static>(&self, handle: &Handle, work: Work<T>) -> Result<T> {
        let (top, handle) = (self.0.path.clone(), handle.clone());
        let task = tokio::task::spawn_blocking(move || {
            let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            let lost = |why: String| Failure::unavailable("the root is not there; mount it").caused_by(why);
            let root = File::open(&top).map_err(|e| lost(e.to_string()))?;
            let fsid = format!("{:x}", fstatvfs(&root).map_err(unknown)?.f_fsid.rotate_left(32));
            let path = Path::new(&handle.path);
            let done = match path.file_name() {
                _ if fsid != handle.fsid => Err(lost(format!("the file system {fsid} is there"))),
                Some(name) if path.parent() == Some(Path::new(&top)) => {
                    work(&Path::new(&format!("/proc/{}/fd/{}", process::id(), root.as_raw_fd())).join(name))
                }
                _ => Err(kept("its handle names nothing of ours")),
            };
            done.and_then(|done| syncfs(root).map(|()| done).map_err(unknown))
        });
        task.await.map_err(unknown)?
    }
}

impl Provisioner for Btrfs {
    const BACKEND: &'static str = "btrfs";
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

    fn capabilities(&self, _: &Parameters) -> Result<Capabilities> {
        Ok(Capabilities { sees_contents: true, ..Capabilities::filesystem(&AccessMode::ALL) })
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        VolumeSource::Nfs { server: handle.server.clone(), path: handle.path.clone() }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        if let VolumeSource::Nfs { path, .. } = source { vec![Key::of_path("nfs", path)] } else { Vec::new() }
    }

    async fn plan(&self, r: &Request<Parameters>) -> Result<Handle> {
        let Args { path, fsid, server } = self.0.clone();
        let handle = Handle { fsid, server, path: format!("{path}/{}-{}", r.claim.uid, r.attempt) };
        self.at(&handle, Box::new(|_| Ok(()))).await.map(|()| handle)
    }

    async fn observe(&self, h: &Handle) -> Result<Option<Observed>> {
        self.at(h, Box::new(look)).await
    }

    async fn provision(&self, r: &Request<Parameters>, h: &Handle) -> Result<Progress<Provisioned<Handle>>> {
        let (mark, private) = (r.mark.clone(), r.parameters.private == Some(true));
        let make = move |at: &Path| {
            match look(at)? {
                None => subvolume("create", at)?,
                Some(Observed { mark: Some(found), .. }) if found.same_owner(&mark) => return Ok(()),
                Some(Observed { mark: None, pristine: Pristine::Yes, .. }) => {} // ours: cut off before its mark
                Some(_) => return Err(Failure::not_ours("something else is at the volume's place")),
            }
            chmod(at, Mode::from_raw_mode(if private { 0o700 } else { 0o777 })).map_err(unknown)?;
            write(at, &mark)
        };
        self.at(h, Box::new(make)).await?;
        Ok(Progress::Done(Provisioned { handle: h.clone(), size: r.size, topology: Topology::new() }))
    }

    async fn delete(&self, h: &Handle, asked: &Mark) -> Result<Progress<()>> {
        let (asked, undo) = (asked.clone(), asked.state == MarkState::Unpublished);
        let remove = move |at: &Path| match look(at)?.map(|seen| seen.mark) {
            None => Ok(()),
            Some(None) if !undo => Err(kept("it has no mark, so nobody can tell whose it is")),
            Some(Some(mark)) if !mark.same_owner(&asked) => Err(Failure::not_ours("another owner's volume")),
            Some(Some(mark)) if !mark.yields_to(&asked) => {
                Err(Failure::unavailable("a later leader's volume"))
            }
            Some(_) if undo => fs::remove_dir(at).map_err(|e| kept("it is not empty").caused_by(e)),
            Some(_) => subvolume("delete", at),
        };
        self.at(h, Box::new(remove)).await.map(Progress::Done)
    }

    async fn set_mark(&self, h: &Handle, mark: &Mark) -> Result<()> {
        let mark = mark.clone();
        let set = move |at: &Path| match look(at)?.and_then(|seen| seen.mark) {
            Some(found) if found.same_owner(&mark) => write(at, &mark),
            Some(_) => Err(Failure::not_ours("another owner's volume")),
            None => Err(kept("it is gone, or has lost its mark")),
        };
        self.at(h, Box::new(set)).await
    }
}
