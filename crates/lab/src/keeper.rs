//! Children that die with their caller, and the folder they leave nothing in.
//!
//! A caller can get SIGKILL at any moment (a test runner's timeout, the kernel out of memory), so the cleaning
//! is not the caller's: a small shell waits for the end of a pipe whose only other end the caller holds. The
//! kernel closes that end however the caller dies; the shell then kills one process group and removes one folder.
//!
//! ```text
//! caller ==pipe==> keeper (sh) ==pipe==> anchor (cat), leader of the group the servers are in
//! ```
//!
//! - The anchor lives exactly as long as the keeper, so the group's number cannot be recycled, even while no
//!   server runs. It gets the end of file when the keeper dies.
//! - A server joins the group between fork and exec, so there is no moment when it runs unseen.
//! - Neither is in the terminal's foreground group: Ctrl-C reaches the caller alone.
//!
//! Rejected: `PR_SET_PDEATHSIG` (also as `setpriv --pdeathsig`). It fires when the *thread* that forked ends, not
//! the process, which for a worker thread of an async runtime is any time; it leaves the files; and setting it in
//! the child needs unsafe code.

use std::{
    env,
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::Context as _;
use rustix::process::Pid;
use tempfile::TempDir;

/// Waits for the caller's end of the pipe to close, then cleans up.
///
/// The wait for the group is bounded (100 times 0.05 s): where the caller lives on without having reaped its
/// children, or PID 1 reaps nothing, dead processes stay members of the group. They no longer write files.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
read -r group
cat > /dev/null
if [ -n "$group" ]; then
    kill -KILL "-$group"
    tries=0
    while kill -0 "-$group" 2> /dev/null && [ $tries -lt 100 ]; do
        tries=$((tries + 1))
        sleep 0.05
    done
fi
rm -rf -- "$1"
"#;

/// Owns a temporary folder and a process group. Dropping it, or dying, ends both.
#[derive(Debug)]
pub struct Keeper {
    /// The folder is the keeper's to remove, so this is a path, not a [`TempDir`].
    dir: PathBuf,
    shell: Child,
    anchor: Child,
}

impl Keeper {
    /// A keeper of a new folder: in memory (`/dev/shm`) where there is room, else in the system's temporary folder.
    pub fn new(prefix: &str) -> anyhow::Result<Self> {
        let memory = Path::new("/dev/shm");
        if has_room(memory)
            && let Ok(keeper) = Self::new_in(memory, prefix)
        {
            return Ok(keeper);
        }
        Self::new_in(&env::temp_dir(), prefix)
    }

    /// A keeper of a new folder below `parent`, for files that will be renamed within one file system.
    pub fn new_in(parent: &Path, prefix: &str) -> anyhow::Result<Self> {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent).with_context(|| {
            format!("failed to create a folder in {}: can it be written to?", parent.display())
        })?;
        Self::of(dir)
    }

    fn of(dir: TempDir) -> anyhow::Result<Self> {
        let mut shell = Command::new("sh")
            .args(["-c", SCRIPT, "volwright-keeper"])
            .arg(dir.path())
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start the shell that cleans up: is `sh` on the PATH?")?;
        let dir = dir.keep(); // from here on the shell removes it

        let alive = shell.stdout.take().map_or_else(Stdio::null, Stdio::from);
        let anchor = Command::new("cat")
            .current_dir("/")
            .stdin(alive)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .context("failed to start `cat`, which the process group is named after: is it on the PATH?")?;

        let keeper = Self { dir, shell, anchor };
        if let Some(mut pipe) = keeper.shell.stdin.as_ref() {
            writeln!(pipe, "{}", keeper.anchor.id())
                .context("failed to tell the keeper its process group")?;
        }
        Ok(keeper)
    }

    /// The folder that goes away with the keeper.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts a child in the keeper's process group, with nothing to read from.
    pub fn spawn(&self, command: &mut Command) -> anyhow::Result<Child> {
        let program = command.get_program().to_string_lossy().into_owned();
        command
            .stdin(Stdio::null())
            .process_group(Pid::from_child(&self.anchor).as_raw_nonzero().get())
            .spawn()
            .with_context(|| format!("failed to start {program}"))
    }
}

/// Containers often have a `/dev/shm` of 64 MiB, which one etcd fills before its first key: two log segments of
/// 64 MiB each are set aside at once, and a load test writes hundreds more.
fn has_room(dir: &Path) -> bool {
    const ENOUGH: u64 = 1 << 30;
    rustix::fs::statvfs(dir).is_ok_and(|fs| fs.f_bavail.saturating_mul(fs.f_frsize) >= ENOUGH)
}

impl Drop for Keeper {
    /// Waits for the cleaning, so that whoever dropped the keeper finds no file and no process.
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // The anchor first: it stays a member of the group that the shell waits for until it is reaped here.
        self.anchor.wait().ok();
        self.shell.wait().ok();
    }
}
