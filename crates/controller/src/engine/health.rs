//! Is the process ready, and is it alive?
//!
//! Two questions with different answers. *Ready*: does it see the cluster as it is now? *Alive*: would a restart help? An
//! API server that is away makes us unready and not dead: restarting would only add load to the day it comes back.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What every engine watches, by the names that it reports them under.
pub const WATCHES: [&str; 3] = ["persistentvolumeclaims", "persistentvolumes", "storageclasses"];

/// A watch from which nothing came for so long has stalled. The server ends every watch after 290 s and sends bookmarks
/// about once a minute, so a living one is heard of more often; the rest is room for a slow relist.
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
    details: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    synced: bool,
    last_progress: Option<Instant>,
}

impl Watch {
    fn state(self, now: Instant) -> &'static str {
        match self.last_progress {
            _ if !self.synced => "not synced",
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
        let state = State { watches, last_beat: None, draining: false, details: BTreeMap::new() };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// A watch has delivered its first list, or has lost its place and lists again. Counts as progress.
    pub fn set_synced(&self, resource: &'static str, synced: bool) {
        let now = Instant::now();
        let mut state = self.lock();
        let watch = state.watches.entry(resource).or_default();
        *watch = Watch { synced, last_progress: Some(now) };
    }

    /// Something came from a watch: an event or a bookmark.
    pub fn watch_progress(&self, resource: &'static str, now: Instant) {
        self.lock().watches.entry(resource).or_default().last_progress = Some(now);
    }

    /// The engine's main loop is turning.
    pub fn beat(&self) {
        self.lock().last_beat = Some(Instant::now());
    }

    /// The process is about to stop: no longer ready, and for the rest of its life never dead.
    pub fn set_draining(&self) {
        self.lock().draining = true;
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
        let ready = !state.draining && watches.values().all(|state| state == "synced");
        let text = json!({
            "ready": ready,
            "draining": state.draining,
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

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::advance;

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
        assert!(text.contains(r#""persistentvolumes":"synced""#) && text.contains(r#""leader":"yes""#), "{text}");

        advance(STALLED_AFTER / 2).await;
        health.watch_progress(WATCHES[0], Instant::now());
        health.watch_progress(WATCHES[1], Instant::now());
        advance(STALLED_AFTER / 2 + Duration::from_secs(1)).await;
        let text = health.ready().unwrap_err();
        assert!(text.contains(r#""storageclasses":"stalled""#), "{text}");
        assert!(text.contains(r#""persistentvolumes":"synced""#), "{text}");

        health.watch_progress(WATCHES[2], Instant::now());
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
