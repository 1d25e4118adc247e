//! One check's storage system, the process on it, and the calls made.

use super::context::TestContext;
use super::fixture::{Can, Fixture, HandleOf};
use super::verdict::{Checked, expect, failed};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use volwright_provisioner::{
    Capabilities, Capacity, ClaimInfo, ClaimUid, Class, Epoch, Failure, InstallationId, InventoryItem, Key,
    Mark, MarkState, Observed, ParameterMap, Progress, Provisioned, Provisioner, PvName, Request, Result,
    Trashed, Until, parse_parameters,
};

/// A request whose class parameters are still text.
pub(super) type Wanted = Request<ParameterMap>;

/// The engine's own note; backends that keep it give it back.
pub(super) const INTENT: &str = r#"{"note":"of the conformance suite"}"#;

/// What a user is told of a call that pends.
const NOTE_MAX: usize = 200;

pub(super) struct Bench<F: Fixture> {
    pub(super) fixture: F,
    pub(super) context: Arc<TestContext>,
    process: Mutex<Option<Arc<F::Backend>>>,
    calls: Mutex<Vec<String>>,
    claims: AtomicU32,
    /// Storage systems may be shared by runs.
    run: u32,
}

/// What is known of a volume, to see whether it changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) mark: Option<Mark>,
    pub(super) size: Option<u64>,
    pub(super) exists: Option<bool>,
    pub(super) written: Option<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<F: Fixture> Bench<F> {
    pub(super) fn new(fixture: F) -> Self {
        let context = Arc::new(TestContext::new(fixture.node(), fixture.secrets()));
        Self {
            fixture,
            context,
            process: Mutex::default(),
            calls: Mutex::default(),
            claims: AtomicU32::new(0),
            run: fastrand::u32(..),
        }
    }

    /// Starts a process of the backend; one before it is dropped first.
    pub(super) async fn restart(&self) -> Checked {
        *lock(&self.process) = None;
        let connected = timeout(self.fixture.patience(), self.fixture.connect(self.context.clone())).await;
        let backend = match connected {
            Ok(Ok(backend)) => backend,
            Ok(Err(failure)) => {
                self.log("connect", &format!("{failure:?}"));
                return failed("the backend connects, as its flags are right", format!("{failure:?}"));
            }
            Err(_) => return failed("the backend connects", "no answer"),
        };
        self.log("connect", "ready");
        *lock(&self.process) = Some(Arc::new(backend));
        Ok(())
    }

    pub(super) fn backend(&self) -> Checked<Arc<F::Backend>> {
        match &*lock(&self.process) {
            Some(backend) => Ok(Arc::clone(backend)),
            None => failed("the backend is connected", "it is not"),
        }
    }

    pub(super) fn calls(&self) -> Vec<String> {
        lock(&self.calls).clone()
    }

    pub(super) fn log(&self, call: &str, answer: &str) {
        lock(&self.calls).push(format!("{call} -> {answer}"));
    }

    // What is asked for.

    /// A claim that nobody has made before, with the fixture's class.
    pub(super) fn request(&self) -> Checked<Wanted> {
        let number = self.claims.fetch_add(1, Ordering::Relaxed) + 1;
        let claim = ClaimInfo {
            namespace: "conformance".to_owned(),
            name: format!("claim-{number}"),
            uid: ClaimUid::new(format!("{:08x}-0000-4000-8000-{number:012x}", self.run)),
            labels: [].into(),
            annotations: [].into(),
        };
        self.request_for(claim, self.fixture.parameters())
    }

    pub(super) fn request_for(&self, claim: ClaimInfo, parameters: ParameterMap) -> Checked<Wanted> {
        let pv_name = PvName::new(format!("pvc-{}", claim.uid));
        let mark = Mark {
            installation: InstallationId::new(super::context::INSTALLATION),
            owner: claim.uid.clone(),
            pv_name: pv_name.clone(),
            epoch: Epoch { number: 1, token: 1 },
            state: MarkState::Unpublished,
        };
        let (volume_mode, access_mode) = match self.offers(&parameters)?.modes.first() {
            Some((volume_mode, access_mode)) => (*volume_mode, *access_mode),
            None => return failed("capabilities offer a volume mode with an access mode", "they offer none"),
        };
        Ok(Wanted {
            claim,
            pv_name,
            size: self.fixture.size(),
            access_modes: vec![access_mode],
            volume_mode,
            class_name: "conformance".to_owned(),
            parameters,
            node: self.fixture.node(),
            attempt: 0,
            mark,
            intent: Some(INTENT.to_owned()),
        })
    }

    fn parsed(parameters: &ParameterMap) -> Checked<<F::Backend as Provisioner>::Parameters> {
        match parse_parameters(parameters) {
            Ok(parsed) => Ok(parsed),
            Err(error) => {
                failed("the fixture's class parameters are accepted", format!("{parameters:?}: {error}"))
            }
        }
    }

    pub(super) fn typed(request: &Wanted) -> Checked<Request<<F::Backend as Provisioner>::Parameters>> {
        let parameters = Self::parsed(&request.parameters)?;
        Ok(request.clone().with_parameters(parameters))
    }

    pub(super) fn offers(&self, parameters: &ParameterMap) -> Checked<Capabilities> {
        match self.backend()?.capabilities(&Self::parsed(parameters)?) {
            Ok(offers) => Ok(offers),
            Err(failure) => {
                failed("the fixture's class parameters make sense", format!("{parameters:?}: {failure:?}"))
            }
        }
    }

    /// The classes that hostile claims are tried with, the ordinary one last.
    pub(super) fn hostile_classes(&self) -> Vec<ParameterMap> {
        let mut classes = self.fixture.hostile_parameters();
        classes.push(ParameterMap::new());
        for class in &mut classes {
            for (name, value) in self.fixture.parameters() {
                class.entry(name).or_insert(value);
            }
        }
        classes
    }

    /// What the fixture's class offers.
    pub(super) fn offered(&self) -> Checked<Capabilities> {
        self.offers(&self.fixture.parameters())
    }

    pub(super) fn keys(&self, handle: &HandleOf<F>) -> Checked<Vec<Key>> {
        let backend = self.backend()?;
        Ok(backend.alias_keys(&backend.source(handle)))
    }

    // Calls, one by one.

    async fn answered<T>(
        &self,
        call: String,
        show: impl FnOnce(&T) -> String,
        answer: impl Future<Output = Result<T>>,
    ) -> Checked<Result<T>> {
        let patience = self.fixture.patience();
        let Ok(answer) = timeout(patience, answer).await else {
            self.log(&call, "no answer");
            return failed("every call answers", format!("{call} did not within {patience:?}"));
        };
        match &answer {
            Ok(value) => self.log(&call, &show(value)),
            Err(failure) => {
                self.log(&call, &format!("{failure:?}"));
                expect(!failure.message().is_empty(), "a failure says what is wrong", || {
                    format!("{call} failed without a word")
                })?;
            }
        }
        Ok(answer)
    }

    pub(super) async fn plan(&self, request: &Wanted) -> Checked<Result<HandleOf<F>>> {
        let (backend, typed) = (self.backend()?, Self::typed(request)?);
        self.answered(format!("plan({})", shown(request)), json, backend.plan(&typed)).await
    }

    pub(super) async fn observe(&self, handle: &HandleOf<F>) -> Checked<Result<Option<Observed>>> {
        let backend = self.backend()?;
        let show = |seen: &Option<Observed>| format!("{seen:?}");
        self.answered(format!("observe({})", json(handle)), show, backend.observe(handle)).await
    }

    pub(super) async fn provision_once(
        &self,
        request: &Wanted,
        handle: &HandleOf<F>,
    ) -> Checked<Result<Progress<Provisioned<HandleOf<F>>>>> {
        let (backend, typed) = (self.backend()?, Self::typed(request)?);
        let show = |made: &Progress<Provisioned<HandleOf<F>>>| match made {
            Progress::Done(made) => format!("Done({}, {} bytes)", json(&made.handle), made.size),
            Progress::Pending { after, note } => format!("Pending({after:?}, {note})"),
        };
        self.answered(format!("provision({})", shown(request)), show, backend.provision(&typed, handle)).await
    }

    pub(super) async fn delete_once(
        &self,
        handle: &HandleOf<F>,
        mark: &Mark,
    ) -> Checked<Result<Progress<()>>> {
        let backend = self.backend()?;
        let call = format!("delete({}, {})", json(handle), mark_text(mark));
        self.answered(call, progress, backend.delete(handle, mark)).await
    }

    pub(super) async fn set_mark(&self, handle: &HandleOf<F>, mark: &Mark) -> Checked<Result<()>> {
        let backend = self.backend()?;
        let call = format!("set_mark({}, {})", json(handle), mark_text(mark));
        self.answered(call, |()| "Ok".to_owned(), backend.set_mark(handle, mark)).await
    }

    pub(super) async fn expand(&self, handle: &HandleOf<F>, mark: &Mark, size: u64) -> Checked<Result<u64>> {
        let call = format!("expand({}, {size})", json(handle));
        self.until_final(false, async || {
            let backend = self.backend()?;
            let show = |size: &Progress<u64>| format!("{size:?}");
            self.answered(call.clone(), show, backend.expand(handle, mark, size)).await
        })
        .await
    }

    pub(super) async fn trash(
        &self,
        handle: &HandleOf<F>,
        mark: &Mark,
        trashed: &Trashed,
    ) -> Checked<Result<Option<Trashed>>> {
        self.until_final(false, async || {
            let backend = self.backend()?;
            let call = format!("trash({}, until {})", json(handle), trashed.until);
            let show = |answer: &Progress<Option<Trashed>>| match answer {
                Progress::Done(Some(kept)) => format!("Done, until {}", kept.until),
                Progress::Done(None) => "Done, nothing there".to_owned(),
                Progress::Pending { note, .. } => format!("Pending: {note}"),
            };
            self.answered(call, show, backend.trash(handle, mark, trashed)).await
        })
        .await
    }

    pub(super) async fn restore(&self, handle: &HandleOf<F>, mark: &Mark) -> Checked<Result<()>> {
        self.until_final(false, async || {
            let backend = self.backend()?;
            self.answered(format!("restore({})", json(handle)), progress, backend.restore(handle, mark)).await
        })
        .await
    }

    pub(super) async fn purge(
        &self,
        handle: &HandleOf<F>,
        mark: &Mark,
        judged: &Trashed,
    ) -> Checked<Result<()>> {
        self.until_final(false, async || {
            let backend = self.backend()?;
            let call = format!("purge({}, until {})", json(handle), judged.until);
            self.answered(call, progress, backend.purge(handle, mark, judged)).await
        })
        .await
    }

    pub(super) async fn inventory(&self) -> Checked<Result<Vec<InventoryItem<HandleOf<F>>>>> {
        let backend = self.backend()?;
        let show = |items: &Vec<InventoryItem<HandleOf<F>>>| {
            let items: Vec<_> = items
                .iter()
                .map(|item| {
                    let mark = item.observed.mark.as_ref().map_or_else(|| "unmarked".to_owned(), mark_text);
                    format!("{} {mark}", json(&item.handle))
                })
                .collect();
            format!("[{}]", items.join(", "))
        };
        self.answered("inventory()".to_owned(), show, backend.inventory()).await
    }

    pub(super) async fn capacity(&self) -> Checked<Result<Vec<Capacity>>> {
        let (backend, parameters) = (self.backend()?, Self::parsed(&self.fixture.parameters())?);
        let show = |rooms: &Vec<Capacity>| format!("{rooms:?}");
        self.answered("capacity()".to_owned(), show, backend.capacity(&parameters)).await
    }

    // Calls until they are final.

    /// Repeats a call while it pends. `lenient`: also while it fails as a call may that comes upon one that was cut off.
    async fn until_final<T>(
        &self,
        lenient: bool,
        mut call: impl AsyncFnMut() -> Checked<Result<Progress<T>>>,
    ) -> Checked<Result<T>> {
        let end = Instant::now() + self.fixture.patience();
        loop {
            let wait = match call().await? {
                Ok(Progress::Done(value)) => return Ok(Ok(value)),
                Ok(Progress::Pending { after, note }) => {
                    expect(
                        note.len() <= NOTE_MAX,
                        "the note of a pending call has at most 200 bytes",
                        || format!("{} bytes: {note}", note.len()),
                    )?;
                    after.min(Duration::from_millis(500))
                }
                Err(failure) if lenient && passes(&failure) => Duration::from_millis(20),
                Err(failure) => return Ok(Err(failure)),
            };
            if Instant::now() >= end {
                let patience = self.fixture.patience();
                return failed(
                    "a call that is repeated comes to an end",
                    format!("none within {patience:?}"),
                );
            }
            sleep(wait).await;
        }
    }

    pub(super) async fn provision(
        &self,
        request: &Wanted,
        handle: &HandleOf<F>,
    ) -> Checked<Result<Provisioned<HandleOf<F>>>> {
        self.until_final(false, async || self.provision_once(request, handle).await).await
    }

    pub(super) async fn delete(&self, handle: &HandleOf<F>, mark: &Mark) -> Checked<Result<()>> {
        self.until_final(false, async || self.delete_once(handle, mark).await).await
    }

    /// As the engine does after a call was cut off: the same again, until it is final.
    pub(super) async fn provision_again(
        &self,
        request: &Wanted,
        handle: &HandleOf<F>,
    ) -> Checked<Provisioned<HandleOf<F>>> {
        let made = self.until_final(true, async || self.provision_once(request, handle).await).await?;
        done(made, "after a call that was cut off, the same call makes the volume")
    }

    /// See [`provision_again`](Self::provision_again).
    pub(super) async fn delete_again(&self, handle: &HandleOf<F>, mark: &Mark) -> Checked {
        let gone = self.until_final(true, async || self.delete_once(handle, mark).await).await?;
        done(gone, "after a call that was cut off, the same call ends the delete")
    }

    /// See [`provision_again`](Self::provision_again).
    pub(super) async fn set_mark_again(&self, handle: &HandleOf<F>, mark: &Mark) -> Checked {
        let set = self
            .until_final(true, async || Ok(self.set_mark(handle, mark).await?.map(Progress::Done)))
            .await?;
        done(set, "after a call that was cut off, the same call writes the mark")
    }

    /// What is there, once the call that was cut off has let go.
    pub(super) async fn seen_again(&self, handle: &HandleOf<F>) -> Checked<Option<Observed>> {
        let seen =
            self.until_final(true, async || Ok(self.observe(handle).await?.map(Progress::Done))).await?;
        done(seen, "observe answers where the storage system is in order")
    }

    // What most checks begin with.

    pub(super) async fn planned(&self, request: &Wanted) -> Checked<HandleOf<F>> {
        done(self.plan(request).await?, "an ordinary claim is given a place")
    }

    /// A new volume, not published yet.
    pub(super) async fn made(&self) -> Checked<(Wanted, HandleOf<F>)> {
        let request = self.request()?;
        let handle = self.made_for(&request).await?;
        Ok((request, handle))
    }

    pub(super) async fn made_for(&self, request: &Wanted) -> Checked<HandleOf<F>> {
        let handle = self.planned(request).await?;
        let made = self.provision(request, &handle).await?;
        Ok(done(made, "an ordinary volume is made")?.handle)
    }

    /// A new volume that has its PV.
    pub(super) async fn published(&self) -> Checked<(Wanted, HandleOf<F>)> {
        let request = self.request()?;
        let handle = self.made_for(&request).await?;
        self.publish(&request, &handle).await?;
        Ok((request, handle))
    }

    pub(super) async fn publish(&self, request: &Wanted, handle: &HandleOf<F>) -> Checked {
        let published = request.mark.with_state(MarkState::Published);
        done(self.set_mark(handle, &published).await?, "a volume that was made is marked published")?;
        self.context.publish(self.backend()?.source(handle));
        Ok(())
    }

    pub(super) async fn write(&self, handle: &HandleOf<F>) -> Checked {
        self.fixture.write_into(handle).await?;
        self.log("(a pod writes)", &json(handle));
        expect(self.fixture.is_written(handle).await?, "the fixture finds what it wrote", || {
            "it does not; mend the fixture".to_owned()
        })
    }

    pub(super) async fn seen(&self, handle: &HandleOf<F>) -> Checked<Option<Observed>> {
        done(self.observe(handle).await?, "observe answers where the storage system is in order")
    }

    /// What can be known of a volume now.
    pub(super) async fn facts(&self, handle: &HandleOf<F>) -> Checked<Facts> {
        let seen = self.seen(handle).await?;
        Ok(Facts {
            mark: seen.as_ref().and_then(|seen| seen.mark.clone()),
            size: seen.and_then(|seen| seen.size),
            exists: known(self.fixture.exists(handle).await),
            written: known(self.fixture.is_written(handle).await),
        })
    }

    /// Fails unless the volume is as it was.
    pub(super) async fn unchanged(&self, handle: &HandleOf<F>, before: &Facts) -> Checked {
        let now = self.facts(handle).await?;
        expect(now == *before, "nothing of the volume has changed", || {
            format!("{now:?}, where there was {before:?}")
        })
    }

    /// Fails unless the volume is gone, by all accounts.
    pub(super) async fn is_gone(&self, handle: &HandleOf<F>) -> Checked {
        let seen = self.seen(handle).await?;
        expect(seen.is_none(), "observe answers None for what is gone", || format!("{seen:?}"))?;
        let exists = known(self.fixture.exists(handle).await);
        expect(exists != Some(true), "there is nothing at the volume's place any more", || {
            "the fixture finds something".to_owned()
        })?;
        let Some(items) = self.listed().await? else { return Ok(()) };
        let backend = self.backend()?;
        expect(
            !items.iter().any(|item| backend.same_volume(handle, &item.handle)),
            "the inventory lists only what is there",
            || "it lists the volume that is gone".to_owned(),
        )
    }

    /// The inventory, where there is one.
    pub(super) async fn listed(&self) -> Checked<Option<Vec<InventoryItem<HandleOf<F>>>>> {
        match self.inventory().await? {
            Ok(items) => Ok(Some(items)),
            Err(failure) if failure.class() == Class::Invalid => Ok(None),
            Err(failure) => failed("the inventory can be had", format!("{failure:?}")),
        }
    }

    /// The items of the inventory that bear the owner's mark; `None` without an inventory.
    pub(super) async fn listed_of(&self, mark: &Mark) -> Checked<Option<Vec<InventoryItem<HandleOf<F>>>>> {
        let items = self.listed().await?;
        Ok(items.map(|items| {
            let ours = |item: &InventoryItem<_>| {
                item.observed.mark.as_ref().is_some_and(|found| found.same_owner(mark))
            };
            items.into_iter().filter(ours).collect()
        }))
    }

    /// Fails unless there is one volume of the owner, as far as can be seen.
    pub(super) async fn is_one(&self, mark: &Mark) -> Checked {
        let Some(items) = self.listed_of(mark).await? else { return Ok(()) };
        expect(items.len() == 1, "there is one volume of the claim", || {
            format!("the inventory lists {} of it", items.len())
        })
    }
}

/// May it be otherwise when the call is repeated?
fn passes(failure: &Failure) -> bool {
    match failure.class() {
        Class::Unavailable | Class::Unknown | Class::Blocked(Until::Settled | Until::After(_)) => true,
        Class::Invalid
        | Class::Exhausted
        | Class::NotOurs
        | Class::Blocked(Until::Unused | Until::OperatorActs) => false,
    }
}

/// The value; a failure fails the check.
pub(super) fn done<T>(answer: Result<T>, expected: &str) -> Checked<T> {
    match answer {
        Ok(value) => Ok(value),
        Err(failure) => failed(expected, format!("{failure:?}")),
    }
}

/// Fails unless the call was refused with this class.
pub(super) fn refused<T>(answer: &Result<T>, class: Class, expected: &str) -> Checked {
    match answer {
        Err(failure) if failure.class() == class => Ok(()),
        Err(failure) => failed(expected, format!("{failure:?}")),
        Ok(_) => failed(expected, "it answered as if all were well"),
    }
}

fn known<T>(answer: Can<T>) -> Option<T> {
    answer.ok()
}

pub(super) fn json<H: serde::Serialize>(handle: &H) -> String {
    serde_json::to_string(handle).unwrap_or_else(|error| format!("(no JSON: {error})"))
}

fn progress(progress: &Progress<()>) -> String {
    format!("{progress:?}")
}

fn shown(request: &Wanted) -> String {
    let claim = &request.claim;
    let again = if request.attempt == 0 { String::new() } else { format!(", attempt {}", request.attempt) };
    format!("{:?}/{:?}{again}", claim.namespace, claim.name)
}

fn mark_text(mark: &Mark) -> String {
    format!("{:?} {} epoch {}", mark.state, mark.pv_name, mark.epoch.number)
}
