//! Which process is meant, after its number may have been given to another.

use std::{fs, io};

use anyhow::Context as _;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// A process by number and start time, so that a recycled number is never mistaken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number.
    pub pid: u32,
    /// When it started, in the kernel's clock ticks since boot.
    pub started: u64,
}

impl ProcessId {
    /// The process that has this number now; `None` where there is none, or only its unreaped remains.
    pub fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        Some(Self { pid, started: start_ticks(&stat)? })
    }

    /// The calling process.
    pub fn current() -> anyhow::Result<Self> {
        Self::of(std::process::id()).context("failed to read /proc/self/stat: is /proc mounted?")
    }

    /// Whether this very process still runs.
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Asks it to end (SIGTERM). Fine when it has ended.
    pub fn terminate(self) -> io::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Ends it (SIGKILL). Fine when it has ended.
    pub fn kill(self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// The descriptor is opened before the start time is compared: from then on the number cannot change hands.
    fn signal(self, signal: Signal) -> io::Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        let handle = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Leaves the terminal's session, so that closing the terminal does not end the caller.
pub fn become_session_leader() -> anyhow::Result<()> {
    rustix::process::setsid().context("failed to leave the terminal's session")?;
    Ok(())
}

/// Field 22 of `/proc/PID/stat`. The name in field 2 may hold spaces and parentheses, so count from its end.
fn start_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_is_read_past_a_name_with_parentheses() {
        let stat = "42 (a (b) c) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 2";
        assert_eq!(start_ticks(stat), Some(98765));
    }

    #[test]
    fn a_dead_process_that_nobody_reaped_is_not_alive() {
        let stat = "42 (sleep) Z 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 2";
        assert_eq!(start_ticks(stat), None);
    }

    #[test]
    fn another_start_time_is_another_process() {
        let me = ProcessId::current().unwrap();
        assert!(me.is_alive());
        let earlier = ProcessId { started: me.started - 1, ..me };
        assert!(!earlier.is_alive());
        earlier.kill().unwrap(); // we survive it
    }
}
