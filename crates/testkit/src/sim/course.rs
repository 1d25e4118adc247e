//! A call under way: once it has left its process it takes effect, whatever becomes of the process.

use std::future::Future;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::chaos::Fault;
use super::process::Process;

/// How a call goes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Course {
    /// Before it takes effect.
    pub first: Duration,
    /// Between effect and answer.
    pub then: Duration,
    /// It takes effect, and the answer does not arrive.
    pub lost: bool,
    /// The effect waits until the process is resumed.
    on_resume: bool,
    /// The process dies with the effect.
    kill: bool,
    /// The process stops with the effect.
    stop: bool,
}

impl Course {
    /// As long as calls take where nothing goes wrong.
    pub fn usual(process: &Process) -> Self {
        let chaos = process.chaos();
        Self { first: chaos.transit(), then: chaos.transit(), ..Self::default() }
    }

    /// One of [`Fault::PROCESS`] meets the process at this call. All others make no difference here.
    pub async fn meet(&mut self, fault: Fault, process: &Process) {
        match fault {
            Fault::KillBefore => process.kill().await,
            Fault::KillAfter => self.kill = true,
            Fault::StopBefore => process.stop_here().await,
            Fault::StopAfter => self.stop = true,
            Fault::StopWithin => {
                self.on_resume = true;
                process.stop_for_a_while();
            }
            _ => {}
        }
    }

    /// The call, on the other side. Its answer comes at the caller's next await, which is where a stop takes hold.
    pub fn take<T: Send + 'static>(
        self,
        process: Process,
        effect: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (send, receive) = oneshot::channel();
        tokio::spawn(async move {
            if self.on_resume {
                process.resumed().await;
            }
            if !self.first.is_zero() {
                sleep(self.first).await;
            }
            let done = effect.await;
            if self.kill {
                process.gate().kill();
            }
            if self.stop {
                process.stop_for_a_while();
            }
            if !self.then.is_zero() {
                sleep(self.then).await;
            }
            // Nobody may be left to hear it.
            send.send(done).ok();
        });
        receive
    }
}
