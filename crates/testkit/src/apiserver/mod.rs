//! A Kubernetes API server in this process, for simulations under a paused clock and, over HTTP, for kubectl.
//!
//! ```text
//! kube::Client, or HTTP -> handle -> hook -> read | watch | write -> defaults, validate -> store
//!                             \-> audit                    store -> waiters -> watches
//! ```
//! It keeps objects as JSON and treats them as kube-apiserver 1.35 does: versions, conflicts, finalizers, selectors, lists
//! in pages, watches with bookmarks and 410. All of it is synchronous under one lock, so that a run is a function of its
//! seed; only watches wait, on tokio's clock. What it knowingly does otherwise: unknown fields are kept, managedFields
//! are not, server-side apply is refused, and garbage is not collected.

use axum::body::Body;
use http::{Request, Response};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

mod audit; // what was asked
pub mod cluster; // what controllers and the scheduler do
mod defaults; // what is filled in
mod discovery; // what is not objects
mod handle; // from a request to its answer
mod object; // JSON helpers, and the forms in which objects are sent
mod patch; // the kinds of patches
mod protobuf; // what kubectl writes otherwise
mod quantity; // sizes
mod read; // lists and pages
mod request; // from a URL to what is asked for
mod resources; // the kinds of objects
mod selectors; // label and field selectors
mod serve; // over HTTP
mod status; // refusals
mod store; // objects, versions, history
mod table; // objects as kubectl prints them
mod validate; // what is refused
mod waiters; // who waits for changes
mod watch; // watch bodies
mod write; // create, update, patch, delete

#[cfg(test)]
mod tests;

pub use self::audit::AuditEntry;
pub use self::request::RequestInfo;
pub use self::resources::{RESOURCES, Resource};
pub use self::status::Status;
pub use self::store::Snapshot;

use self::object::{Stored, namespace};
use self::store::{State, key};
use self::waiters::Waiters;
use self::write::{PatchKind, Write, Written};

/// The server's clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Looks at each request before it is served; an answer of its own denies it.
pub type Hook = dyn Fn(&RequestInfo) -> Option<Status> + Send + Sync;

/// How a server is set up.
#[derive(Clone)]
pub struct Options {
    /// Changes of each kind that are remembered for watches and for pages of lists.
    pub history: usize,
    /// For `creationTimestamp` and its like.
    pub clock: Clock,
    /// Decides uids and the ends of generated names.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { history: 1000, clock: Arc::new(Timestamp::now), seed: 0 }
    }
}

struct Shared {
    state: Mutex<State>,
    // A lock of its own: a watch that is dropped while the state is locked must still get it.
    waiters: Mutex<Waiters>,
    audit: Mutex<Vec<AuditEntry>>,
    knobs: Mutex<Knobs>,
    clock: Clock,
}

#[derive(Default)]
struct Knobs {
    hook: Option<Arc<Hook>>,
    refuse_old_watches: bool,
}

/// A panic elsewhere does not make what is kept here wrong: each change is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        lock(&self.waiters)
    }

    fn audit(&self) -> MutexGuard<'_, Vec<AuditEntry>> {
        lock(&self.audit)
    }

    fn hook(&self) -> Option<Arc<Hook>> {
        lock(&self.knobs).hook.clone()
    }

    fn refuses_old_watches(&self) -> bool {
        lock(&self.knobs).refuse_old_watches
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Changes the state, and then wakes those who wait for changes of the table.
    fn write<T>(&self, table: usize, change: impl FnOnce(&mut State) -> T) -> T {
        let (result, changed) = {
            let mut state = self.state();
            let before = state.changes;
            let result = change(&mut state);
            (result, state.changes != before)
        };
        if changed {
            self.wake(table);
        }
        result
    }

    fn wake(&self, table: usize) {
        let wakers = self.waiters().take(Some(table));
        wakers.into_iter().for_each(std::task::Waker::wake);
    }

    fn wake_all(&self) {
        let wakers = self.waiters().take(None);
        wakers.into_iter().for_each(std::task::Waker::wake);
    }
}

/// A server. Clones are the same server.
#[derive(Clone)]
pub struct ApiServer {
    shared: Arc<Shared>,
}

impl ApiServer {
    /// The server's time, in seconds since 1970-01-01 UTC.
    pub fn time(&self) -> u64 {
        u64::try_from(self.shared.now().as_second()).unwrap_or_default()
    }

    /// A server with the namespaces that every cluster has, and nothing else.
    pub fn new(options: Options) -> Self {
        let Options { history, clock, seed } = options;
        let shared = Shared {
            state: Mutex::new(State::new(history, seed)),
            waiters: Mutex::default(),
            audit: Mutex::default(),
            knobs: Mutex::default(),
            clock,
        };
        let server = Self { shared: Arc::new(shared) };
        for name in ["kube-system", "kube-public", "kube-node-lease", "default"] {
            // The names are well-formed and free.
            server.create("namespaces", json!({ "metadata": { "name": name } })).ok();
        }
        server
    }

    /// A client of this server, as a component in this process would have it.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.service(), "default")
    }

    /// What answers the requests: for decorators that put faults between it and a client.
    pub fn service(&self) -> Service {
        Service { shared: Arc::clone(&self.shared), label: None }
    }

    /// The newest version.
    pub fn resource_version(&self) -> u64 {
        self.shared.state().version
    }

    /// An object.
    pub fn get(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        let resource = find(resource)?;
        let state = self.shared.state();
        let found = state.get(resource.table, &key(namespace, name));
        found.map(|stored| shaped(resource, stored)).ok_or_else(|| Status::not_found(resource, name))
    }

    /// All objects of a kind, of one namespace or (empty) of all, in the order of their keys.
    pub fn list(&self, resource: &str, namespace: &str) -> Result<Vec<Value>, Status> {
        let resource = find(resource)?;
        let objects = self.objects(resource, namespace);
        Ok(objects.iter().map(|stored| shaped(resource, stored)).collect())
    }

    /// Makes an object, in the namespace that its metadata names.
    pub fn create(&self, resource: &str, object: Value) -> Result<Value, Status> {
        let place = namespace(&object).to_owned();
        self.write(resource, &place, "", false, |write, state| write.create(state, object))
    }

    /// Puts an object in the place of the one that its metadata names.
    pub fn replace(&self, resource: &str, object: Value) -> Result<Value, Status> {
        let (place, name) = (namespace(&object).to_owned(), object::name(&object).to_owned());
        self.write(resource, &place, &name, false, |write, state| write.replace(state, object))
    }

    /// Merges a change into an object.
    pub fn patch(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: &Value,
    ) -> Result<Value, Status> {
        self.write(resource, namespace, name, false, |write, state| {
            write.patch(state, PatchKind::Merge, change)
        })
    }

    /// Merges a change into an object's status.
    pub fn patch_status(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        change: &Value,
    ) -> Result<Value, Status> {
        self.write(resource, namespace, name, true, |write, state| {
            write.patch(state, PatchKind::Merge, change)
        })
    }

    /// Deletes an object: at once, or as soon as its finalizers are gone. Null where the server answers with a Status.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        self.write(resource, namespace, name, false, |write, state| write.delete(state, &Value::Null))
    }

    /// Deletes an object whatever would make it wait: a pod goes without its kubelet. Finalizers stay in force.
    pub fn delete_now(&self, resource: &str, namespace: &str, name: &str) -> Result<Value, Status> {
        let options = json!({ "gracePeriodSeconds": 0 });
        self.write(resource, namespace, name, false, |write, state| write.delete(state, &options))
    }

    /// Waits until something has changed since `seen` of [`ApiServer::changes`]; returns the present count.
    pub fn changed(&self, seen: u64) -> impl Future<Output = u64> + Send + 'static {
        Changed { id: self.shared.waiters().register(), shared: Arc::clone(&self.shared), seen }
    }

    /// How much has happened. Unlike the version it never goes back.
    pub fn changes(&self) -> u64 {
        self.shared.state().changes
    }

    /// Forgets the past, as etcd's compaction does: later watches, lists and pages from before now answer 410.
    /// Open watches go on.
    pub fn compact(&self) {
        let mut state = self.shared.state();
        state.compacted = state.version;
    }

    /// Ends every open watch.
    pub fn cut_watches(&self) {
        self.shared.state().epoch += 1;
        self.shared.wake_all();
    }

    /// All objects and the version.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.state().snapshot()
    }

    /// Back to what was: objects, and versions, which will name other states than before. Watches are cut.
    pub fn restore(&self, snapshot: &Snapshot) {
        self.shared.state().restore(snapshot);
        self.shared.wake_all();
    }

    /// Denies what `hook` says. It may ask the server, and is not called for direct access.
    pub fn set_hook(&self, hook: impl Fn(&RequestInfo) -> Option<Status> + Send + Sync + 'static) {
        lock(&self.shared.knobs).hook = Some(Arc::new(hook));
    }

    /// Denies nothing any more.
    pub fn clear_hook(&self) {
        lock(&self.shared.knobs).hook = None;
    }

    /// Whether a watch from a forgotten place is refused with status 410, as proxies and some servers do. The real server
    /// opens it, and tells the 410 in its first event.
    pub fn refuse_old_watches(&self, refuse: bool) {
        lock(&self.shared.knobs).refuse_old_watches = refuse;
    }

    /// All requests since the log was cleared. Direct access is not in it.
    pub fn audit(&self) -> Vec<AuditEntry> {
        self.shared.audit().clone()
    }

    /// How many requests were such.
    pub fn count(&self, such: impl Fn(&AuditEntry) -> bool) -> usize {
        self.shared.audit().iter().filter(|entry| such(entry)).count()
    }

    /// Empties the log.
    pub fn clear_audit(&self) {
        self.shared.audit().clear();
    }

    /// Without copies.
    fn objects(&self, resource: &Resource, namespace: &str) -> Vec<Arc<Stored>> {
        let state = self.shared.state();
        let objects = state.tables.get(resource.table).into_iter().flat_map(|table| table.objects.values());
        objects
            .filter(|stored| namespace.is_empty() || object::namespace(&stored.value) == namespace)
            .cloned()
            .collect()
    }

    /// All that waits for its end.
    fn terminating(&self) -> Vec<(&'static Resource, Arc<Stored>)> {
        let state = self.shared.state();
        let mut found = Vec::new();
        for (index, table) in state.tables.iter().enumerate() {
            let Some(resource) = Resource::stored_in(index) else { continue };
            let objects = table.objects.values().filter(|stored| object::is_terminating(&stored.value));
            found.extend(objects.map(|stored| (resource, Arc::clone(stored))));
        }
        found
    }

    fn write(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        to_status: bool,
        change: impl FnOnce(Write<'_>, &mut State) -> Result<Written, Status>,
    ) -> Result<Value, Status> {
        let resource = find(resource)?;
        let now = self.shared.now();
        let write = Write { resource, namespace, name, to_status, dry_run: false, now };
        let written = self.shared.write(resource.table, |state| change(write, state))?;
        Ok(match written {
            Written::Object(stored) | Written::Created(stored) => shaped(resource, &stored),
            Written::Deleted(_) => Value::Null,
        })
    }
}

fn find(resource: &str) -> Result<&'static Resource, Status> {
    Resource::named(resource).ok_or_else(|| {
        Status::new(404, "NotFound", format!("the server doesn't have a resource type {resource:?}"))
    })
}

fn shaped(resource: &Resource, stored: &Stored) -> Value {
    if resource.is_converted() { object::events_from_core(&stored.value) } else { stored.value.clone() }
}

/// See [`ApiServer::changed`].
struct Changed {
    shared: Arc<Shared>,
    id: u64,
    seen: u64,
}

impl Future for Changed {
    type Output = u64;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<u64> {
        self.shared.waiters().wait(self.id, None, context.waker());
        let changes = self.shared.state().changes;
        if changes == self.seen { Poll::Pending } else { Poll::Ready(changes) }
    }
}

impl Drop for Changed {
    fn drop(&mut self) {
        self.shared.waiters().forget(self.id);
    }
}

/// Answers a client's requests.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    label: Option<Arc<str>>,
}

impl Service {
    /// Requests through this one stand in the audit log under this name.
    #[must_use]
    pub fn labelled(mut self, label: &str) -> Self {
        self.label = Some(label.into());
        self
    }
}

impl tower::Service<Request<kube::client::Body>> for Service {
    type Response = Response<Body>;
    type Error = tower::BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            Ok(handle::handle(&service.shared, service.label.as_deref(), &parts, &body))
        })
    }
}
