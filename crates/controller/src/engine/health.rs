//! Is the process ready, and is it alive?
//!
//! Two questions with different answers. *Ready*: does it see the cluster as it is now? *Alive*: would a restart help? An
//! API server that is away makes us unready and not dead: restarting would only add load to the day it comes back.

use http::Request;
use kube::Client;
use kube::client::Body;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What every engine watches, by the names that it reports them under.
pub const WATCHES: [&str; 3] = ["persistentvolumeclaims", "persistentvolumes", "storageclasses"];

/// A watch for which the API server answered nothing for so long has stalled. Watches are asked anew every few minutes
/// (the engine asks for 220 s, kube's default is 290 s), also where nothing changes; the rest is room for a slow relist.
const STALLED_AFTER: Duration = Duration::from_secs(360);

/// The engine's loop beats every few seconds; after this long without a beat it is stuck, and a restart does help.
const STUCK_AFTER: Duration = Duration::from_secs(120);

/// Most details that are kept: their keys are in our code, so this only guards against a mistake there.
const MAX_DETAILS: usize = 64;

/// Shared by the engine, which writes, and the HTTP server, which reads.
#[derive(Debug)]
pub struct Health {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    watches: BTreeMap<&'static str, Watch>,
    last_beat: Option<Instant>,
    draining: bool,
    /// Another leads; we would take over.
    standby: bool,
    details: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    synced: bool,
    /// Since its last error nothing good has come.
    failing: bool,
    last_progress: Option<Instant>,
    /// Known only where the client is [`observed`]; then it alone counts.
    last_answer: Option<Instant>,
}

impl Watch {
    fn state(self, now: Instant) -> &'static str {
        match self.last_answer.or(self.last_progress) {
            _ if !self.synced => "not synced",
            _ if self.failing => "failing",
            Some(last) if now.saturating_duration_since(last) > STALLED_AFTER => "stalled",
            _ => "synced",
        }
    }
}

impl Health {
    /// Not ready until all of [`WATCHES`] have synced.
    pub fn new() -> Arc<Self> {
        Self::expecting(&WATCHES)
    }

    /// Not ready until the named watches have synced.
    pub fn expecting(watches: &[&'static str]) -> Arc<Self> {
        let watches = watches.iter().map(|name| (*name, Watch::default())).collect();
        let state =
            State { watches, last_beat: None, draining: false, standby: false, details: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A watch has delivered its first list, or has lost its place and lists again. Counts as progress.
    pub fn set_synced(&self, resource: &'static str, synced: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        let watch = state.watches.entry(resource).or_default();
        watch.synced = synced;
        watch.failing = false;
        watch.last_progress = Some(now);
    }

    /// Something came out of a watch. It is not enough to go by: where nothing changes, kube's watcher yields nothing for
    /// days, and while the API server is away it yields errors. See [`observed`].
    pub fn watch_progress(&self, resource: &'static str, now: Instant) {
        let mut state = self.lock();
        let watch = state.watches.entry(resource).or_default();
        watch.last_progress = Some(now);
        watch.failing = false;
    }

    /// The API server answered a list or watch well: what was said of an earlier failure is over.
    fn answered(&self, resource: &'static str) {
        let mut state = self.lock();
        let watch = state.watches.entry(resource).or_default();
        watch.last_answer = Some(Instant::now());
        watch.failing = false;
        state.details.remove(resource);
    }

    /// A watch has failed and is being started again: what we know may be old from now on.
    pub fn watch_failed(&self, resource: &'static str) {
        self.lock().watches.entry(resource).or_default().failing = true;
    }

    /// The engine's main loop is turning.
    pub fn beat(&self) {
        self.lock().last_beat = Some(Instant::now());
    }

    /// The process is about to stop: no longer ready, and for the rest of its life never dead.
    pub fn set_draining(&self) {
        self.lock().draining = true;
    }

    /// Another process leads. A standby that would take over is ready: a rolling update waits for it before it stops the
    /// leader.
    pub fn set_standby(&self, standby: bool) {
        self.lock().standby = standby;
    }

    /// A line for people in `/readyz`, such as `leader: yes`.
    pub fn set_detail(&self, key: &'static str, text: impl Into<String>) {
        let mut state = self.lock();
        if state.details.len() < MAX_DETAILS || state.details.contains_key(key) {
            state.details.insert(key, text.into());
        }
    }

    /// Do we see the cluster as it is? Either way with details as JSON.
    pub fn ready(&self) -> Result<String, String> {
        let now = Instant::now();
        let state = self.lock();
        let watches: Map<String, Value> =
            state.watches.iter().map(|(name, watch)| ((*name).to_owned(), watch.state(now).into())).collect();
        let ready = !state.draining && (state.standby || watches.values().all(|state| state == "synced"));
        let text = json!({
            "ready": ready,
            "draining": state.draining,
            "standby": state.standby,
            "watches": watches,
            "details": state.details,
        })
        .to_string();
        if ready { Ok(text) } else { Err(text) }
    }

    /// Would a restart not help? Before the first beat we wait for the API server, which it would not hurry.
    pub fn alive(&self) -> Result<(), String> {
        let state = self.lock();
        match state.last_beat {
            Some(last) if !state.draining && last.elapsed() > STUCK_AFTER => {
                Err(format!("the engine's loop has been silent for {} s", last.elapsed().as_secs()))
            }
            _ => Ok(()),
        }
    }

    /// Every change is a single assignment, so what a panicking holder left is whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same client; what the API server answers well to its lists and watches is what [`Health`] goes by.
pub fn observed(client: Client, health: Arc<Health>) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = tower::service_fn(move |request: Request<Body>| {
        let (client, health) = (client.clone(), Arc::clone(&health));
        async move {
            let last = request.uri().path().rsplit('/').next().unwrap_or_default();
            let resource = WATCHES.into_iter().find(|watch| *watch == last);
            let answer = client.send(request).await?;
            if let Some(resource) = resource
                && answer.status().is_success()
            {
                health.answered(resource);
            }
            Ok::<_, kube::Error>(answer)
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Response;
    use std::sync::atomic::{AtomicU16, Ordering};
    use tokio::time::advance;
    use tower::BoxError;

    #[tokio::test(start_paused = true)]
    async fn a_watch_lives_by_the_servers_answers_not_by_changes() {
        let code = Arc::new(AtomicU16::new(200));
        let answered = Arc::clone(&code);
        let server = tower::service_fn(move |_: Request<Body>| {
            let response = Response::builder().status(answered.load(Ordering::SeqCst)).body(Body::empty());
            async { response.map_err(BoxError::from) }
        });
        let health = Health::expecting(&[WATCHES[2]]);
        health.set_synced(WATCHES[2], true);
        let client = observed(Client::new(server, "default"), Arc::clone(&health));
        let watch = async || {
            let request =
                Request::get("/apis/storage.k8s.io/v1/storageclasses?watch=true").body(Body::empty());
            client.send(request.unwrap()).await.unwrap();
        };
        for _ in 0..10 {
            advance(STALLED_AFTER / 2).await;
            health.set_detail(WATCHES[2], "was away");
            watch().await;
            let text = health.ready().unwrap();
            assert!(!text.contains("was away"), "{text}");
        }
        code.store(503, Ordering::SeqCst);
        for _ in 0..3 {
            advance(STALLED_AFTER / 2).await;
            watch().await;
            health.watch_progress(WATCHES[2], Instant::now());
        }
        assert!(health.ready().unwrap_err().contains("stalled"));
    }

    #[tokio::test(start_paused = true)]
    async fn ready_needs_every_watch_synced_and_moving() {
        let health = Health::new();
        assert!(health.ready().is_err());
        for watch in WATCHES {
            assert!(health.ready().is_err(), "before {watch}");
            health.set_synced(watch, true);
        }
        health.set_detail("leader", "yes");
        let text = health.ready().unwrap();
        assert!(
            text.contains(r#""persistentvolumes":"synced""#) && text.contains(r#""leader":"yes""#),
            "{text}"
        );

        advance(STALLED_AFTER / 2).await;
        health.watch_progress(WATCHES[0], Instant::now());
        health.watch_progress(WATCHES[1], Instant::now());
        advance(STALLED_AFTER / 2 + Duration::from_secs(1)).await;
        let text = health.ready().unwrap_err();
        assert!(text.contains(r#""storageclasses":"stalled""#), "{text}");
        assert!(text.contains(r#""persistentvolumes":"synced""#), "{text}");

        health.watch_progress(WATCHES[2], Instant::now());
        health.watch_progress(WATCHES[0], Instant::now());
        assert!(health.ready().is_ok());
        health.watch_failed(WATCHES[0]);
        assert!(health.ready().unwrap_err().contains("failing"));
        health.watch_progress(WATCHES[0], Instant::now());
        assert!(health.ready().is_ok());
        health.set_synced(WATCHES[1], false);
        assert!(health.ready().unwrap_err().contains("not synced"));
        health.set_synced(WATCHES[1], true);
        health.set_draining();
        assert!(health.ready().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_stuck_loop_is_dead() {
        let health = Health::new();
        advance(Duration::from_secs(86_400)).await;
        assert_eq!(health.alive(), Ok(()), "waiting for the API server for a day");
        health.beat();
        advance(STUCK_AFTER).await;
        assert_eq!(health.alive(), Ok(()));
        advance(Duration::from_secs(1)).await;
        assert!(health.alive().unwrap_err().contains("121 s"));
        health.beat();
        assert_eq!(health.alive(), Ok(()));
        health.set_draining();
        advance(STUCK_AFTER * 2).await;
        assert_eq!(health.alive(), Ok(()), "the drain has its own deadline");
    }
}
