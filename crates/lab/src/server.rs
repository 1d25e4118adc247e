//! One server: a child process with a log file.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::Duration,
};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use crate::{Keeper, ProcessId};

/// How much of a log an error shows.
const TAIL_LINES: usize = 20;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where this run's part of the log begins: restarts append.
    log_start: u64,
}

impl Server {
    /// Starts `command`, with its output appended to `<log_dir>/<name>.log`.
    pub fn start(keeper: &Keeper, name: &str, log_dir: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = log_dir.join(format!("{name}.log"));
        let out = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("failed to open {}", log.display()))?;
        let log_start = out.metadata()?.len();
        let child = keeper.spawn(command.stdout(out.try_clone()?).stderr(out))?;
        Ok(Self { name: name.to_owned(), child, log, log_start })
    }

    /// The name, which is that of the log file as well.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process, for a state file; `None` when it has ended.
    pub fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.child.id())
    }

    /// Fails with the end of the log when the server has ended by itself.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}); the end of {}:\n{}", self.name, self.log.display(), self.log_tail());
        }
        Ok(())
    }

    /// Whether this run could not have its port.
    pub fn lost_its_port(&self) -> bool {
        self.log_of_this_run().contains("address already in use")
    }

    /// The last lines this run has logged.
    pub fn log_tail(&self) -> String {
        tail(&self.log_of_this_run(), TAIL_LINES)
    }

    /// Stops it in its tracks (SIGSTOP): connections stay open and nothing is answered.
    pub fn pause(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on after [`Self::pause`].
    pub fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Ends it at once, as a crash would, and waits for that.
    pub fn kill(&mut self) {
        self.child.kill().ok(); // fails only when it has been reaped
        self.child.wait().ok();
    }

    /// Asks it to end and waits, up to `limit`; then kills it.
    pub async fn terminate(&mut self, limit: Duration) -> anyhow::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)?; // a paused process does not see the first
        let deadline = Instant::now() + limit;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.kill();
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Waits, up to `limit`, until it has ended by itself or by a signal, and says how.
    pub async fn ended(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("{} still runs after {limit:?}; the end of its log:\n{}", self.name, self.log_tail());
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The number is safe to use: it is not given away before we reap the child.
    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("failed to send {signal:?} to {}: has it ended?", self.name))
    }

    fn log_of_this_run(&self) -> String {
        let Ok(file) = fs::File::open(&self.log) else { return String::new() };
        // The last 64 KiB hold more than any tail shown.
        let end = file.metadata().map_or(0, |metadata| metadata.len());
        let start = self.log_start.max(end.saturating_sub(64 << 10));
        let mut bytes = vec![0; usize::try_from(end.saturating_sub(start)).unwrap_or(0)];
        match file.read_exact_at(&mut bytes, start) {
            Ok(()) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(_) => String::new(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The last `count` lines.
pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_is_the_end_of_a_text_or_all_of_it() {
        assert_eq!(tail("a\nb\nc\n", 2), "b\nc");
        assert_eq!(tail("a\n", 2), "a");
        assert_eq!(tail("", 2), "");
    }

    #[tokio::test]
    async fn a_server_that_ended_shows_the_end_of_this_runs_log() {
        let keeper = Keeper::new("volwright-test-").unwrap();
        fs::write(keeper.dir().join("it.log"), "of an earlier run\n").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo bind: address already in use >&2; exit 3"]);
        let mut server = Server::start(&keeper, "it", keeper.dir(), &mut command).unwrap();
        let error = loop {
            match server.check() {
                Ok(()) => sleep(Duration::from_millis(5)).await,
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("it ended (exit status: 3)"), "{error}");
        assert!(error.contains("already in use") && !error.contains("earlier"), "{error}");
        assert!(server.lost_its_port());
    }

    #[tokio::test]
    async fn how_a_server_ended_can_be_waited_for() {
        let keeper = Keeper::new("volwright-test-").unwrap();
        let mut command = Command::new("sh");
        let mut server = Server::start(&keeper, "it", keeper.dir(), command.args(["-c", "exit 3"])).unwrap();
        assert_eq!(server.ended(Duration::from_secs(30)).await.unwrap().code(), Some(3));
        let mut command = Command::new("sleep");
        let mut server = Server::start(&keeper, "sleep", keeper.dir(), command.arg("1000")).unwrap();
        let error = server.ended(Duration::ZERO).await.unwrap_err().to_string();
        assert!(error.contains("sleep still runs"), "{error}");
    }

    #[tokio::test]
    async fn a_paused_server_can_be_terminated() {
        let keeper = Keeper::new("volwright-test-").unwrap();
        let mut command = Command::new("sleep");
        let mut server = Server::start(&keeper, "sleep", keeper.dir(), command.arg("1000")).unwrap();
        server.pause().unwrap();
        server.terminate(Duration::from_secs(5)).await.unwrap();
        assert!(server.check().is_err());
    }
}
