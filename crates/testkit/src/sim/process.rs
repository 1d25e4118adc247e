//! One process of the provisioner: its gate, its faults, its voice.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::chaos::Chaos;
use super::gate::Gate;
use super::story::Story;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Process(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    gate: Gate,
    chaos: Chaos,
    story: Story,
    stopped: watch::Sender<bool>,
    began: Instant,
}

/// How long a process stays stopped: from less than a renewal to several leases.
const STOPPED: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(90));

impl Process {
    /// A process that runs.
    pub fn new(name: String, chaos: Chaos, story: Story) -> Self {
        let inner = Inner {
            name,
            gate: Gate::new(),
            chaos,
            story,
            stopped: watch::Sender::new(false),
            began: Instant::now(),
        };
        Self(Arc::new(inner))
    }

    /// As the lease names it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// When it was started: what happened before it cannot know.
    pub fn began(&self) -> Instant {
        self.0.began
    }

    /// Its gate.
    pub fn gate(&self) -> &Gate {
        &self.0.gate
    }

    /// Where its faults come from.
    pub fn chaos(&self) -> &Chaos {
        &self.0.chaos
    }

    /// A line of the story.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        self.0.story.tell(format_args!("{}: {what}", self.0.name));
    }

    /// Never returns: what would come next does not happen.
    pub async fn kill<T>(&self) -> T {
        self.0.gate.kill();
        std::future::pending().await
    }

    /// SIGSTOP now; SIGCONT after a while.
    pub fn stop_for_a_while(&self) {
        let time = self.0.chaos.between(STOPPED.0, STOPPED.1);
        self.tell(format_args!("stopped for {time:?}"));
        self.0.gate.freeze();
        self.0.stopped.send_replace(true);
        let process = self.clone();
        tokio::spawn(async move {
            sleep(time).await;
            process.resume();
        });
    }

    /// SIGCONT.
    pub fn resume(&self) {
        if self.0.gate.is_frozen() {
            self.tell(format_args!("resumed"));
            self.0.gate.thaw();
            self.0.stopped.send_replace(false);
        }
    }

    /// Stops at this very await.
    pub async fn stop_here(&self) {
        self.stop_for_a_while();
        tokio::task::yield_now().await;
    }

    /// Returns when the process runs.
    pub async fn resumed(&self) {
        // The sender lives as long as we do.
        self.0.stopped.subscribe().wait_for(|stopped| !stopped).await.ok();
    }
}
