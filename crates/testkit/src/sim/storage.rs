//! The way between a process and its storage system: calls that are under way take effect whatever becomes of the process.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use volwright_controller::backend::{Backend, Envelope, HandleError};
use volwright_provisioner::{
    BoxFuture, Capabilities, Capacity, Check, Failure, InventoryItem, Key, Mark, Observed, ParameterMap,
    Progress, Provisioned, Request, Result, Trashed, Until, VolumeSource,
};

use super::chaos::Fault;
use super::course::Course;
use super::process::Process;
use super::watchtower::Watchtower;
use crate::Store;

/// A backend whose calls meet faults.
pub struct Storage {
    inner: Arc<dyn Backend>,
    store: Store,
    process: Process,
    tower: Watchtower,
    /// Deadline of a call: what takes effect late does so before.
    deadline: Duration,
}

impl Storage {
    /// `inner` is the backend of one process, on `store`.
    pub fn new(
        inner: Arc<dyn Backend>,
        store: Store,
        process: Process,
        tower: Watchtower,
        deadline: Duration,
    ) -> Self {
        Self { inner, store, process, tower, deadline }
    }

    /// One call. `effect` runs on the storage's side.
    async fn call<T: Send + 'static>(
        &self,
        step: &'static str,
        possible: &[&[Fault]],
        answer: impl Fn(Fault) -> Option<Result<T>>,
        effect: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let chaos = self.process.chaos();
        let mut course = Course::usual(&self.process);
        if let Some(fault) = chaos.at(step, possible) {
            self.process.tell(format_args!("{step}: {fault:?}"));
            if let Some(answer) = answer(fault) {
                return answer;
            }
            match fault {
                Fault::BackendAway => return Err(Failure::unavailable("simulated: the storage is away")),
                Fault::BackendUnknown => {
                    return Err(Failure::unknown("simulated: no answer, and nothing done"));
                }
                Fault::BackendHangs => return std::future::pending().await,
                Fault::BackendLostReply => course.lost = true,
                Fault::BackendLate => {
                    course.first = chaos.between(Duration::ZERO, self.deadline);
                    drop(course.take(self.process.clone(), effect));
                    return Err(Failure::unknown("simulated: no answer, and done later"));
                }
                Fault::BackendSlow => {
                    course.first = chaos.between(Duration::ZERO, self.deadline);
                    course.then = chaos.between(Duration::ZERO, self.deadline);
                }
                Fault::RootHidden => {
                    self.store.hide_root(true);
                    let (store, time) = (self.store.clone(), chaos.between(SECOND, 30 * SECOND));
                    tokio::spawn(async move {
                        sleep(time).await;
                        store.hide_root(false);
                    });
                }
                other => course.meet(other, &self.process).await,
            }
        }
        let answer = course.take(self.process.clone(), effect).await;
        let answer = answer.unwrap_or_else(|_| Err(Failure::unknown("simulated: cut off")));
        if course.lost { Err(Failure::unknown("simulated: done, and the answer is lost")) } else { answer }
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn nothing<T>(_: Fault) -> Option<Result<T>> {
    None
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that a faulty call wants")]
fn pending<T>() -> Option<Result<Progress<T>>> {
    Some(Ok(Progress::Pending { after: SECOND, note: "simulated: it takes its time".to_owned() }))
}

impl Backend for Storage {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self, parameters: &ParameterMap) -> Result<Capabilities> {
        self.inner.capabilities(parameters)
    }

    fn current(&self, handle: &Envelope) -> Result<Envelope, HandleError> {
        self.inner.current(handle)
    }

    fn source(&self, handle: &Envelope) -> Result<VolumeSource, HandleError> {
        self.inner.source(handle)
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        self.inner.alias_keys(source)
    }

    fn same_volume(&self, planned: &Envelope, completed: &Envelope) -> bool {
        self.inner.same_volume(planned, completed)
    }

    fn fits(&self, request: &Request<ParameterMap>, handle: &Envelope) -> bool {
        self.inner.fits(request, handle)
    }

    fn plan<'a>(&'a self, request: &'a Request<ParameterMap>) -> BoxFuture<'a, Result<Envelope>> {
        let (inner, request) = (Arc::clone(&self.inner), request.clone());
        let full = |fault| {
            (fault == Fault::BackendFull).then(|| Err(Failure::exhausted("simulated: no room to plan in")))
        };
        Box::pin(async move {
            self.tower.call_begins(&self.process, "plan");
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_READS, &Fault::PROCESS, &[Fault::BackendFull]];
            self.call("backend plan", &possible, full, async move { inner.plan(&request).await }).await
        })
    }

    fn observe<'a>(&'a self, handle: &'a Envelope) -> BoxFuture<'a, Result<Option<Observed>>> {
        let (inner, handle) = (Arc::clone(&self.inner), handle.clone());
        let possible = [&Fault::BACKEND_READS[..], &Fault::PROCESS];
        Box::pin(async move {
            self.tower.call_begins(&self.process, "observe");
            self.call("backend observe", &possible, nothing, async move { inner.observe(&handle).await })
                .await
        })
    }

    fn provision<'a>(
        &'a self,
        request: &'a Request<ParameterMap>,
        handle: &'a Envelope,
    ) -> BoxFuture<'a, Result<Progress<Provisioned<Envelope>>>> {
        let (inner, request, handle) = (Arc::clone(&self.inner), request.clone(), handle.clone());
        let answer = |fault| match fault {
            Fault::BackendPending => pending(),
            Fault::BackendFull => Some(Err(Failure::exhausted("simulated: no room"))),
            _ => None,
        };
        let more = [Fault::BackendPending, Fault::BackendFull];
        Box::pin(async move {
            self.tower.provision_begins(&self.process, &request);
            let (tower, process) = (self.tower.clone(), self.process.clone());
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &more];
            self.call("backend provision", &possible, answer, async move {
                let made = inner.provision(&request, &handle).await;
                tower.provisioned(&process, &request, &made);
                made
            })
            .await
        })
    }

    fn delete<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>> {
        let (inner, handle, mark) = (Arc::clone(&self.inner), handle.clone(), mark.clone());
        let answer = |fault| match fault {
            Fault::BackendPending => pending(),
            Fault::BackendBusy => Some(Err(Failure::blocked(Until::Unused, "simulated: in use"))),
            _ => None,
        };
        let more = [Fault::BackendPending, Fault::BackendBusy];
        Box::pin(async move {
            let warrant = self.tower.delete_begins(&self.process, self.inner.as_ref(), &handle, &mark);
            let (tower, process, store) = (self.tower.clone(), self.process.clone(), self.store.clone());
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &more];
            self.call("backend delete", &possible, answer, async move {
                let path = handle.handle["path"].as_str().unwrap_or_default().to_owned();
                let before = store.get(&path);
                let done = inner.delete(&handle, &mark).await;
                tower.deleted(&process, warrant, &path, before, store.get(&path).as_ref(), &mark);
                done
            })
            .await
        })
    }

    fn set_mark<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<()>> {
        let (inner, handle, mark) = (Arc::clone(&self.inner), handle.clone(), mark.clone());
        let possible = [&Fault::BACKEND_WRITES[..], &Fault::PROCESS];
        Box::pin(async move {
            self.tower.call_begins(&self.process, "set_mark");
            self.call(
                "backend set_mark",
                &possible,
                nothing,
                async move { inner.set_mark(&handle, &mark).await },
            )
            .await
        })
    }

    fn expand<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        size: u64,
    ) -> BoxFuture<'a, Result<Progress<u64>>> {
        let (inner, handle, mark) = (Arc::clone(&self.inner), handle.clone(), mark.clone());
        let answer = |fault| match fault {
            Fault::BackendPending => pending(),
            Fault::BackendFull => Some(Err(Failure::exhausted("simulated: no room to grow"))),
            _ => None,
        };
        let more = [Fault::BackendPending, Fault::BackendFull];
        Box::pin(async move {
            self.tower.expand_begins(&self.process, &handle, &mark, size);
            let (tower, process, store) = (self.tower.clone(), self.process.clone(), self.store.clone());
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &more];
            self.call("backend expand", &possible, answer, async move {
                let path = handle.handle["path"].as_str().unwrap_or_default().to_owned();
                let before = store.get(&path);
                let done = inner.expand(&handle, &mark, size).await;
                tower.expanded(&process, &path, before.as_ref(), store.get(&path).as_ref(), &mark);
                done
            })
            .await
        })
    }

    fn trash<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        trashed: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<Option<Trashed>>>> {
        let (inner, handle, mark, trashed) =
            (Arc::clone(&self.inner), handle.clone(), mark.clone(), trashed.clone());
        let answer = |fault| match fault {
            Fault::BackendPending => pending(),
            Fault::BackendBusy => Some(Err(Failure::blocked(Until::Unused, "simulated: in use"))),
            _ => None,
        };
        let more = [Fault::BackendPending, Fault::BackendBusy];
        Box::pin(async move {
            // The same looks come before it as before a delete.
            self.tower.delete_begins(&self.process, self.inner.as_ref(), &handle, &mark);
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &more];
            let process = self.process.clone();
            self.call("backend trash", &possible, answer, async move {
                let done = inner.trash(&handle, &mark, &trashed).await;
                if let Ok(Progress::Done(Some(kept))) = &done {
                    process.tell(format_args!("storage trashed {} until {}", mark.pv_name, kept.until));
                }
                done
            })
            .await
        })
    }

    fn restore<'a>(&'a self, handle: &'a Envelope, mark: &'a Mark) -> BoxFuture<'a, Result<Progress<()>>> {
        let (inner, handle, mark) = (Arc::clone(&self.inner), handle.clone(), mark.clone());
        let answer = |fault| (fault == Fault::BackendPending).then(pending).flatten();
        Box::pin(async move {
            self.tower.restore_begins(&self.process, mark.pv_name.as_str());
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &[Fault::BackendPending]];
            let (process, tower, store) = (self.process.clone(), self.tower.clone(), self.store.clone());
            self.call("backend restore", &possible, answer, async move {
                let before = store.trash();
                let done = inner.restore(&handle, &mark).await;
                tower.restored(&process, &before, &store, &mark);
                done
            })
            .await
        })
    }

    fn purge<'a>(
        &'a self,
        handle: &'a Envelope,
        mark: &'a Mark,
        judged: &'a Trashed,
    ) -> BoxFuture<'a, Result<Progress<()>>> {
        let (inner, handle, mark, judged) =
            (Arc::clone(&self.inner), handle.clone(), mark.clone(), judged.clone());
        let answer = |fault| (fault == Fault::BackendPending).then(pending).flatten();
        Box::pin(async move {
            self.tower.call_begins(&self.process, "purge");
            let possible: [&[Fault]; 3] = [&Fault::BACKEND_WRITES, &Fault::PROCESS, &[Fault::BackendPending]];
            let (process, tower, store) = (self.process.clone(), self.tower.clone(), self.store.clone());
            self.call("backend purge", &possible, answer, async move {
                let before = store.trash();
                let done = inner.purge(&handle, &mark, &judged).await;
                tower.purged(&process, &before, &store);
                done
            })
            .await
        })
    }

    fn inventory(&self) -> BoxFuture<'_, Result<Vec<InventoryItem<Envelope>>>> {
        let inner = Arc::clone(&self.inner);
        let possible = [&Fault::BACKEND_READS[..], &Fault::PROCESS];
        Box::pin(async move {
            self.tower.call_begins(&self.process, "inventory");
            self.call("backend inventory", &possible, nothing, async move { inner.inventory().await }).await
        })
    }

    fn capacity<'a>(&'a self, parameters: &'a ParameterMap) -> BoxFuture<'a, Result<Vec<Capacity>>> {
        self.inner.capacity(parameters)
    }

    fn check(&self) -> BoxFuture<'_, Vec<Check>> {
        self.inner.check()
    }
}
