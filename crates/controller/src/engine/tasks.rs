//! Starting the tasks of an engine.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use tokio::task::JoinSet;
use volwright_provisioner::BoxFuture;

/// Starts tasks. A test can put something around each of them: whatever it does not poll stands still, as a process does
/// that was sent SIGSTOP, and whatever it drops is gone, as after SIGKILL.
#[derive(Clone, Default)]
pub struct Spawner(Option<Wrap>);

type Wrap = Arc<dyn Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync>;

impl Spawner {
    /// Tasks are started within `wrap`.
    pub fn within(
        wrap: impl Fn(BoxFuture<'static, ()>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Self(Some(Arc::new(wrap)))
    }

    /// Starts a task that ends with its set.
    pub fn spawn(&self, set: &mut JoinSet<()>, task: impl Future<Output = ()> + Send + 'static) {
        match &self.0 {
            Some(wrap) => set.spawn(wrap(Box::pin(task))),
            None => set.spawn(task),
        };
    }
}

impl fmt::Debug for Spawner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Spawner(wrapped)" } else { "Spawner" })
    }
}
