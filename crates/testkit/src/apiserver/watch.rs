//! Watches: bodies that never end by themselves, one JSON object a line.

use axum::body::{Body, Bytes};
use futures::Stream;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

use super::object::{Form, Stored, namespace, set};
use super::read::Options;
use super::resources::Resource;
use super::selectors::Selector;
use super::status::Status;
use super::store::{Change, Event, State};
use super::{Shared, table};

/// The real server's, give or take a quarter.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);

/// The last bookmark comes so long before the end of a watch.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// How long a watch lasts that names no timeout: the real server chooses between half an hour and an hour.
const DEFAULT_TIMEOUT: u64 = 45 * 60;

struct Watch {
    shared: Arc<Shared>,
    id: u64,
    resource: &'static Resource,
    namespace: String,
    selector: Selector,
    form: Form,
    bookmarks: bool,
    /// Changes up to this version have been looked at.
    position: u64,
    epoch: u64,
    ready: VecDeque<Bytes>,
    next_bookmark: Instant,
    end: Instant,
    timer: Pin<Box<Sleep>>,
    ended: bool,
}

/// Opens a watch. An unknown place in history is told in an event, as the real server does, or, if so set, in the status.
pub(super) fn open(
    shared: &Arc<Shared>,
    state: &State,
    resource: &'static Resource,
    namespace: &str,
    options: &Options,
    form: Form,
) -> Result<Body, Status> {
    options.check()?;
    let selector = options.selector(resource)?;
    let wanted = options.wanted_version()?;
    let now = Instant::now();
    let end = now + Duration::from_secs(options.timeout.unwrap_or(DEFAULT_TIMEOUT));
    let mut watch = Watch {
        shared: Arc::clone(shared),
        id: shared.waiters().register(),
        resource,
        namespace: namespace.to_owned(),
        selector,
        form,
        bookmarks: options.bookmarks,
        position: wanted.unwrap_or(state.version),
        epoch: state.epoch,
        ready: VecDeque::new(),
        next_bookmark: bookmark_time(now, end),
        end,
        timer: Box::pin(sleep_until(end)),
        ended: false,
    };
    let initial = options.initial_events.unwrap_or(wanted.is_none());
    if initial {
        if let Some(wanted) = wanted.filter(|wanted| *wanted > state.version) {
            return Err(Status::too_large_version(wanted, state.version));
        }
        watch.position = state.version;
        for object in state.tables.get(resource.table).into_iter().flat_map(|table| table.objects.values()) {
            if watch.sees(&object.value) {
                let line = watch.line("ADDED", object);
                watch.ready.push_back(line);
            }
        }
        if options.initial_events == Some(true) && options.bookmarks {
            let line = watch.bookmark(true);
            watch.ready.push_back(line);
        }
    } else if watch.position < state.floor(resource.table) {
        let message =
            format!("too old resource version: {} ({})", watch.position, state.floor(resource.table));
        let status = Status::expired(message);
        if shared.refuses_old_watches() {
            return Err(status);
        }
        watch.ready.push_back(error_line(&status));
        watch.ended = true;
    }
    Ok(Body::from_stream(watch))
}

fn bookmark_time(now: Instant, end: Instant) -> Instant {
    let last = end.checked_sub(LAST_BOOKMARK).unwrap_or(end);
    // After the last one there is none.
    if now >= last { end } else { last.min(now + BOOKMARK_PERIOD) }
}

fn error_line(status: &Status) -> Bytes {
    format!("{{\"type\":\"ERROR\",\"object\":{}}}\n", status.to_value()).into()
}

impl Watch {
    fn sees(&self, object: &Value) -> bool {
        (self.namespace.is_empty() || namespace(object) == self.namespace) && self.selector.matches(object)
    }

    fn line(&self, kind: &str, object: &Stored) -> Bytes {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        if self.form == Form::Table {
            let version = json!({ "resourceVersion": object.version.to_string() });
            let rows = std::iter::once(&object.value);
            let table = table::table(self.resource, &version, rows, self.shared.now());
            out.extend_from_slice(table.to_string().as_bytes());
        } else {
            object.write(self.resource, self.form, &mut out);
        }
        out.extend_from_slice(b"}\n");
        out.into()
    }

    fn bookmark(&self, initial_end: bool) -> Bytes {
        let mut object = match self.form {
            Form::Full | Form::Table => {
                json!({ "kind": self.resource.kind, "apiVersion": self.resource.api_version() })
            }
            Form::Metadata => json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1" }),
        };
        if self.form == Form::Full {
            // An object with nothing in it, as Go writes it.
            match self.resource.kind {
                "PersistentVolume" | "Node" | "Pod" | "Namespace" => {
                    object["spec"] = json!({});
                    object["status"] = json!({});
                }
                "PersistentVolumeClaim" => {
                    object["spec"] = json!({ "resources": {} });
                    object["status"] = json!({});
                }
                "StorageClass" => object["provisioner"] = json!(""),
                _ => {}
            }
        }
        set(&mut object, &["metadata", "resourceVersion"], json!(self.position.to_string()));
        if initial_end {
            set(&mut object, &["metadata", "annotations", "k8s.io/initial-events-end"], json!("true"));
        }
        format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n").into()
    }

    /// How a change looks from here. What enters the selection was added, what leaves it was deleted.
    fn show(&self, event: &Event) -> Option<Bytes> {
        if event.change == Change::Deleted {
            return self.sees(&event.object.value).then(|| self.line("DELETED", &event.object));
        }
        let before = event.previous.as_ref().filter(|previous| self.sees(&previous.value));
        match (before, self.sees(&event.object.value)) {
            (None, true) => Some(self.line("ADDED", &event.object)),
            (Some(_), true) => Some(self.line("MODIFIED", &event.object)),
            // As it last was seen, with the version of what took it away.
            (Some(before), false) => {
                Some(self.line("DELETED", &Stored::new(before.value.clone(), event.version)))
            }
            (None, false) => None,
        }
    }

    /// The next line that history has for us. `Err`: this watch is over.
    fn advance(&mut self) -> Result<Option<Bytes>, ()> {
        let shared = Arc::clone(&self.shared);
        let state = shared.state();
        if state.epoch != self.epoch {
            return Err(());
        }
        while let Some(event) = state.next_event(self.resource.table, self.position)? {
            self.position = event.version;
            if let Some(line) = self.show(event) {
                return Ok(Some(line));
            }
        }
        // A place that the server has not reached stays: after a restore, events up to there are not for us.
        self.position = self.position.max(state.version);
        Ok(None)
    }
}

impl Stream for Watch {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = &mut *self;
        if let Some(line) = watch.ready.pop_front() {
            return Poll::Ready(Some(Ok(line)));
        }
        if watch.ended {
            return Poll::Ready(None);
        }
        // First, so that a change after the look below is not missed.
        watch.shared.waiters().wait(watch.id, Some(watch.resource.table), context.waker());
        match watch.advance() {
            Err(()) => {
                watch.ended = true;
                return Poll::Ready(None);
            }
            Ok(Some(line)) => return Poll::Ready(Some(Ok(line))),
            Ok(None) => {}
        }
        loop {
            let now = Instant::now();
            if now >= watch.end {
                watch.ended = true;
                return Poll::Ready(None);
            }
            if watch.bookmarks && now >= watch.next_bookmark {
                watch.next_bookmark = bookmark_time(now, watch.end);
                return Poll::Ready(Some(Ok(watch.bookmark(false))));
            }
            let due = if watch.bookmarks { watch.next_bookmark.min(watch.end) } else { watch.end };
            if watch.timer.deadline() != due {
                watch.timer.as_mut().reset(due);
            }
            if watch.timer.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.waiters().forget(self.id);
    }
}
