//! The watches: from the API server's events to the `World`, and from what changed to the queues.

use crate::decide::retry::Backoff;
use crate::decide::{ClassView, Rule};
use crate::names;
use crate::objects::{Claim, Class, Volume, glance};
use futures::{Stream, StreamExt, pin_mut};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::core::{DeserializeGuard, PartialObjectMeta, Status};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::{debug, warn};
use volwright_provisioner::ClaimUid;

use super::Shared;
use super::report::jittered;
use super::world::{CachedClaim, CachedVolume, Change};

/// Load balancers drop idle connections after 240 s and more, often without a word. Below that, the server ends a watch
/// before they do.
const WATCH_SECONDS: u32 = 220;

/// After a failed watch or list.
const WATCH_BACKOFF: Backoff = Backoff { base: Duration::from_millis(800), max: Duration::from_secs(10) };

fn config() -> watcher::Config {
    watcher::Config::default().any_semantic().timeout(WATCH_SECONDS)
}

/// What a watch does with what it sees.
trait Table: Send + Sync {
    /// What objects are told apart by.
    type Key: Ord + Clone + Send;
    type Object: Send;
    fn key(&self, object: &Self::Object) -> Self::Key;
    fn put(&self, object: Self::Object);
    fn drop(&self, key: &Self::Key);
    fn known(&self) -> Vec<Self::Key>;
}

/// Longest time that the API server may ask a watch to wait.
const RETRY_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// Delays after failures of a watch: growing, and capped lower than kube's, whose gaps reach a minute. A claim made just
/// after an outage waits for the last of them.
struct Delays {
    failures: u32,
}

impl Iterator for Delays {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(jittered(WATCH_BACKOFF.delay(self.failures)))
    }
}

impl kube::runtime::utils::Backoff for Delays {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Feeds a table from a watch until told to stop. `synced` turns true after the first complete list.
///
/// When the API server has forgotten our place in its history, the watch is made anew, which lists at once: kube's own
/// does so only if it is told in an event, and for ever asks for the same place where the watch is refused with status 410.
async fn feed<T: Table, S: Stream<Item = watcher::Result<Event<T::Object>>> + Send>(
    resource: &'static str,
    shared: &Shared,
    table: T,
    watch: impl Fn() -> S,
    mut stop: watch::Receiver<bool>,
) {
    while follow(resource, shared, &table, watch().backoff(Delays { failures: 0 }), &mut stop).await {
        tokio::select! {
            biased;
            () = tokio::time::sleep(jittered(WATCH_BACKOFF.base)) => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// `true`: the place is forgotten, list again. `false`: told to stop.
async fn follow<T: Table>(
    resource: &'static str,
    shared: &Shared,
    table: &T,
    events: impl Stream<Item = watcher::Result<Event<T::Object>>> + Send,
    stop: &mut watch::Receiver<bool>,
) -> bool {
    pin_mut!(events);
    // What the list under way has shown; whatever else is known when it ends has gone meanwhile.
    let mut listed: BTreeSet<T::Key> = BTreeSet::new();
    loop {
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            _ = stop.wait_for(|stop| *stop) => return false,
        };
        let Some(event) = event else { return true };
        match &event {
            Ok(_) => shared.health.watch_progress(resource, tokio::time::Instant::now()),
            Err(_) => shared.health.watch_failed(resource),
        }
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(object)) => {
                listed.insert(table.key(&object));
                table.put(object);
            }
            Ok(Event::InitDone) => {
                let drops = shared.identity.rules.holds(Rule::RelistDrops);
                for key in table.known().into_iter().filter(|key| drops && !listed.contains(key)) {
                    table.drop(&key);
                }
                listed = BTreeSet::new();
                shared.history.interrupted();
                shared.health.set_synced(resource, true);
                shared.synced.send_modify(|synced| {
                    synced.insert(resource);
                });
            }
            Ok(Event::Apply(object)) => table.put(object),
            Ok(Event::Delete(object)) => table.drop(&table.key(&object)),
            Err(error) => {
                shared.history.interrupted();
                shared.metrics.watch_restarted(resource);
                let text = describe(&error, resource);
                warn!(resource, error = %text, "Watch failed, will start it again.");
                shared.health.set_detail(resource, &text);
                if is_forgotten(&error) {
                    return true;
                }
                // The delay after the failure runs meanwhile.
                tokio::select! {
                    biased;
                    () = tokio::time::sleep(asked_to_wait(&error)) => {}
                    _ = stop.wait_for(|stop| *stop) => return false,
                }
            }
        }
    }
}

/// Did the API server say that it does not know our place in its history any more, or (after etcd was restored from a
/// backup) not yet?
fn is_forgotten(error: &watcher::Error) -> bool {
    if matches!(error, watcher::Error::InitialListFailed(_)) {
        return false;
    }
    let Some(status) = refusal(error) else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 410 || causes.any(|cause| cause.reason == "ResourceVersionTooLarge")
}

/// How long the API server asks to stay away, as when it has too many requests.
fn asked_to_wait(error: &watcher::Error) -> Duration {
    let details = refusal(error).and_then(|status| status.details.as_ref());
    let seconds = details.map_or(0, |details| details.retry_after_seconds);
    Duration::from_secs(seconds.into()).min(RETRY_AFTER_AT_MOST)
}

fn refusal(error: &watcher::Error) -> Option<&Status> {
    match error {
        watcher::Error::WatchError(status)
        | watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// A denied verb is named with its resource; the rest as kube tells it.
fn describe(error: &watcher::Error, resource: &str) -> String {
    match error {
        watcher::Error::InitialListFailed(error) => crate::client::describe(error, "list", resource),
        watcher::Error::WatchStartFailed(error) | watcher::Error::WatchFailed(error) => {
            crate::client::describe(error, "watch", resource)
        }
        other => other.to_string(),
    }
}

struct Claims<'a>(&'a Shared);

impl Claims<'_> {
    fn put(&self, claim: CachedClaim) {
        let uid = claim.glance.uid.clone();
        if self.0.world.put_claim(claim) == Change::Real {
            self.0.claim_changed(&uid);
        }
    }

    fn drop(&self, uid: &ClaimUid) {
        self.0.world.drop_claim(uid);
        self.0.claim_changed(uid);
    }
}

struct FullClaims<'a>(Claims<'a>);

impl Table for FullClaims<'_> {
    type Key = ClaimUid;
    type Object = DeserializeGuard<Claim>;

    fn key(&self, object: &Self::Object) -> ClaimUid {
        ClaimUid::new(object.meta().uid.clone().unwrap_or_default())
    }

    fn put(&self, object: Self::Object) {
        match object.0 {
            Ok(claim) => {
                let view = claim.view();
                self.0.0.history.seen(&view.resource_version);
                self.0.put(CachedClaim::new(&self.0.0.identity, view.glance.clone(), Some(view)));
            }
            Err(error) => undecodable("persistentvolumeclaims", &error.metadata, &error.error),
        }
    }

    fn drop(&self, key: &ClaimUid) {
        self.0.drop(key);
    }

    fn known(&self) -> Vec<ClaimUid> {
        self.0.0.world.claim_uids()
    }
}

/// Agents watch metadata only: the spec of every claim of the cluster on every node would be most of the traffic.
struct ClaimMetadata<'a>(Claims<'a>);

impl Table for ClaimMetadata<'_> {
    type Key = ClaimUid;
    type Object = PartialObjectMeta<PersistentVolumeClaim>;

    fn key(&self, object: &Self::Object) -> ClaimUid {
        ClaimUid::new(object.metadata.uid.clone().unwrap_or_default())
    }

    fn put(&self, object: Self::Object) {
        self.0.0.history.seen(object.metadata.resource_version.as_deref().unwrap_or_default());
        self.0.put(CachedClaim::new(&self.0.0.identity, glance(&object.metadata), None));
    }

    fn drop(&self, key: &ClaimUid) {
        self.0.drop(key);
    }

    fn known(&self) -> Vec<ClaimUid> {
        self.0.0.world.claim_uids()
    }
}

struct Volumes<'a>(&'a Shared);

impl Table for Volumes<'_> {
    type Key = String;
    type Object = DeserializeGuard<Volume>;

    fn key(&self, object: &Self::Object) -> String {
        object.name_any()
    }

    fn put(&self, object: Self::Object) {
        let shared = self.0;
        match object.0 {
            Ok(volume) => {
                let view = volume.view();
                let version = view.resource_version.clone();
                let (name, cached) =
                    (view.name.clone(), CachedVolume::new(&shared.identity, shared.backend.as_ref(), view));
                shared.history.seen(&version);
                if cached.ours.is_some() {
                    shared.history.seen_volume(&name, &cached.uid, &version);
                }
                if shared.world.put_volume(name.clone(), cached) == Change::Real {
                    shared.volume_changed(&name);
                }
            }
            Err(error) => undecodable("persistentvolumes", &error.metadata, &error.error),
        }
    }

    fn drop(&self, name: &String) {
        if let Some(left) = self.0.world.drop_volume(name) {
            self.0.history.forget_volume(&left.uid);
            self.0.volume_left(name, &left);
        }
        self.0.volume_changed(name);
    }

    fn known(&self) -> Vec<String> {
        self.0.world.volume_names()
    }
}

struct Classes<'a>(&'a Shared);

impl Table for Classes<'_> {
    type Key = String;
    type Object = DeserializeGuard<Class>;

    fn key(&self, object: &Self::Object) -> String {
        object.name_any()
    }

    fn put(&self, object: Self::Object) {
        match object.0 {
            Ok(class) => {
                let view: ClassView = class.view();
                let name = view.name.clone();
                if self.0.world.put_class(view) == Change::Real {
                    self.0.class_changed(&name);
                }
            }
            Err(error) => undecodable("storageclasses", &error.metadata, &error.error),
        }
    }

    fn drop(&self, name: &String) {
        self.0.world.drop_class(name);
        self.0.show_budget(name);
    }

    fn known(&self) -> Vec<String> {
        self.0.world.class_names()
    }
}

/// Bad objects never stop the process: they are told of, and the rest goes on.
fn undecodable(
    resource: &'static str,
    metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    error: &str,
) {
    warn!(
        resource,
        name = metadata.name.as_deref().unwrap_or_default(),
        error,
        "An object cannot be read and is left out."
    );
}

/// Runs all watches until told to stop.
pub(super) async fn run(shared: Arc<Shared>, client: Client, stop: watch::Receiver<bool>) {
    let shared = shared.as_ref();
    let classes = || watcher(Api::<DeserializeGuard<Class>>::all(client.clone()), config());
    let classes = feed("storageclasses", shared, Classes(shared), classes, stop.clone());
    let volume_config = match shared.settings.node() {
        Some(node) => config().labels(&format!("{}={}", names::NODE_LABEL, names::node_hash(node))),
        None => config(),
    };
    let volumes = || watcher(Api::<DeserializeGuard<Volume>>::all(client.clone()), volume_config.clone());
    let volumes = feed("persistentvolumes", shared, Volumes(shared), volumes, stop.clone());
    let claims = async {
        let resource = "persistentvolumeclaims";
        if shared.settings.node().is_some() {
            let api = Api::<PartialObjectMeta<PersistentVolumeClaim>>::all(client.clone());
            let table = ClaimMetadata(Claims(shared));
            feed(resource, shared, table, || watcher(api.clone(), config()), stop).await;
        } else {
            let api = Api::<DeserializeGuard<Claim>>::all(client.clone());
            let table = FullClaims(Claims(shared));
            feed(resource, shared, table, || watcher(api.clone(), config()), stop).await;
        }
    };
    futures::join!(classes, volumes, claims);
    debug!("Watches have ended.");
}
