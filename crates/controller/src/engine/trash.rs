//! The trash beside the work: what is due goes, operators' requests are carried out, and what is in it is told.
//!
//! ```text
//! operator: reads the list -> makes a request -> waits for the answer -> removes the request
//! here:     list written when it changed; requests looked for while there is anything to ask for
//!           restore: PV gone? -> manifests into the request -> restore -> answer
//! ```
//! One task does all of it, one thing after the other, so that a restore and the end of a volume's time never meet; the
//! backend compares the record once more as its last look.

use self::keys::{ANSWER, LISTING, REQUEST, date};
use crate::backend::Envelope;
use crate::client::chain;
use crate::decide::Rule;
use crate::decide::trash::{Clocks, Hold, is_due, is_ours, may_expire};
use crate::names;
use k8s_openapi::api::core::v1::ConfigMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use volwright_provisioner::{Class, Failure, InventoryItem, Mark, MarkState, Progress, Result, Trashed};

use super::Shared;
use super::report::jittered;

/// How often requests are looked for, while there is anything that one could be about: with a thousand agents these are
/// 200 small lists a second, which the API server answers from memory.
const LOOK: Duration = Duration::from_secs(5);

/// After a failed round: a right that is missing will not be there a moment later.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// A removal that takes longer goes on in the next round: requests are not to wait for it.
const AT_ONCE: Duration = Duration::from_secs(30);

/// Whoever asked has had this long to read the answer; then the request is removed for them.
const READ_WITHIN: Duration = Duration::from_secs(10 * 60);

/// Volumes that are told of, the next to go first: at 400 bytes each they stay below half of what a ConfigMap may hold.
const LISTED: usize = 1000;

/// What the command must know as well.
pub(crate) mod keys {
    use k8s_openapi::jiff::Timestamp;

    /// Of a list, in its ConfigMap.
    pub(crate) const LISTING: &str = "trash.json";
    /// Of a request, in its ConfigMap.
    pub(crate) const REQUEST: &str = "request.json";
    /// Of the answer, beside the request.
    pub(crate) const ANSWER: &str = "answer.json";

    /// A second since 1970 as people write it.
    pub(crate) fn date(second: u64) -> String {
        let time = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
        time.map_or_else(|| "for ever".to_owned(), |time| time.to_string())
    }
}

/// Beside the request, from just before the volume is restored: its record goes then, which has them.
const MANIFESTS: &str = "manifests.json";

/// What is in the trash of one provisioner or node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Listing {
    /// The node, for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The next to go first.
    pub volumes: Vec<TrashEntry>,
    /// How many more there are that do not fit.
    #[serde(default)]
    pub more: usize,
}

/// A volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrashEntry {
    /// Of its PV.
    pub name: String,
    /// Uid of the claim that it was made for.
    pub owner: String,
    /// "namespace/name" of the claim that it was bound to.
    pub claim: String,
    /// Its storage class.
    pub class: String,
    /// Bytes that its PV promised.
    pub size: u64,
    /// When it was trashed: seconds since 1970-01-01 UTC.
    pub at: u64,
    /// Kept until then: seconds since 1970-01-01 UTC.
    pub until: u64,
}

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Asked {
    /// Back into its place.
    Restore,
    /// Destroyed now.
    Purge,
}

/// A request about exactly one volume in the trash: another of the same name is not meant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrashRequest {
    /// What is asked for.
    pub asked: Asked,
    /// Of its PV.
    pub name: String,
    /// Uid of the claim that it was made for.
    pub owner: String,
    /// When it was trashed, as the list says.
    pub at: u64,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Answer {
    /// It is done.
    pub done: bool,
    /// For the operator: what was done, or why not and what to do.
    pub text: String,
    /// What brings the volume into the cluster again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<Value>,
}

impl Shared {
    /// Our time and the API server's.
    pub(super) async fn clocks(&self) -> Result<Clocks> {
        let theirs = self.api.time().await?;
        let ours = u64::try_from(self.clock.wall().as_second()).unwrap_or_default();
        Ok(Clocks { ours, theirs })
    }
}

/// A volume in the trash, as the storage has it.
struct Entry {
    handle: Envelope,
    mark: Mark,
    trashed: Trashed,
}

/// What is remembered between two rounds.
#[derive(Default)]
struct Desk {
    published: Option<Listing>,
    requests: usize,
}

/// Runs until dropped, or until it shows that there can be no trash here.
pub(super) async fn run(shared: Arc<Shared>) {
    let interval = shared.settings.trash_interval;
    // Nothing goes in the first period: whoever starts us after a long time is to have a chance to say no.
    let mut due = Instant::now() + interval;
    let mut desk = Desk::default();
    loop {
        let mut pause = LOOK.min(interval);
        match desk.round(&shared).await {
            Ok(()) => {}
            Err(failure) if failure.class() == Class::Invalid => {
                debug!("This storage system cannot list what is on it, so it has no trash.");
                shared.trash_counts([], true);
                return;
            }
            Err(failure) => {
                warn!(error = %chain(&failure), "The trash could not be looked after.");
                pause = AFTER_FAILURE.min(interval);
            }
        }
        if Instant::now() >= due {
            match expire(&shared).await {
                Ok(Left::Nothing) => due = Instant::now() + interval,
                Ok(Left::Some) => due = Instant::now() + LOOK.min(interval),
                Err(failure) => {
                    warn!(error = %chain(&failure), "What is due in the trash stays for now.");
                    due = Instant::now() + LOOK.min(interval);
                }
            }
            shared.trash_changed.store(true, Ordering::Relaxed);
        }
        tokio::time::sleep(jittered(pause)).await;
    }
}

/// Everything of ours in the trash; then everything else that is ours.
async fn entries(shared: &Shared) -> Result<(Vec<Entry>, Vec<InventoryItem<Envelope>>)> {
    let items = shared.backend_call("inventory", shared.backend.inventory()).await?;
    let (mut trash, mut rest) = (Vec::new(), Vec::new());
    for item in items {
        let Some(mark) = item.observed.mark.clone() else { continue };
        match &item.trashed {
            Some(trashed) if is_ours(&shared.identity, &shared.settings.installation, &mark) => {
                trash.push(Entry { handle: item.handle, mark, trashed: trashed.clone() });
            }
            Some(_) => {}
            None => rest.push(item),
        }
    }
    Ok((trash, rest))
}

impl Desk {
    async fn round(&mut self, shared: &Shared) -> Result<()> {
        if shared.trash_changed.swap(false, Ordering::Relaxed) {
            let looked = async {
                let (entries, _) = entries(shared).await?;
                self.tell(shared, &entries).await
            };
            if let Err(failure) = looked.await {
                shared.trash_changed.store(true, Ordering::Relaxed);
                return Err(failure);
            }
        }
        let is_empty = self.published.as_ref().is_none_or(|listing| listing.volumes.is_empty());
        if is_empty && self.requests == 0 {
            return Ok(());
        }
        let requests = shared.api.maps_with(&shared.settings.namespace, &requests_of(shared)).await?;
        self.requests = requests.len();
        for request in requests {
            serve(shared, &request).await?;
        }
        Ok(())
    }

    /// Writes the list, if it has changed.
    async fn tell(&mut self, shared: &Shared, entries: &[Entry]) -> Result<()> {
        let mut all: Vec<_> = entries.iter().map(listed).collect();
        all.sort_by(|one, two| (one.until, &one.name).cmp(&(two.until, &two.name)));
        // What was trashed while we looked may be missing in it, and is looked for at once.
        let whole = !shared.trash_changed.load(Ordering::Relaxed);
        let counted = all.iter().map(|entry| (entry.owner.clone(), (entry.class.clone(), entry.size)));
        shared.trash_counts(counted, whole);
        shared.metrics.trash(all.len(), all.iter().map(|entry| entry.size).sum());
        let more = all.len().saturating_sub(LISTED);
        all.truncate(LISTED);
        let listing = Listing { node: shared.settings.node().map(str::to_owned), volumes: all, more };
        if self.published.as_ref() == Some(&listing) {
            return Ok(());
        }
        let labels = names::trash_labels(shared.provisioner(), names::TRASH_LIST, shared.settings.node());
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some(shared.settings.namespace.clone());
        map.metadata.name = Some(names::trash_list(shared.provisioner(), shared.settings.node()));
        map.metadata.labels = Some(labels);
        map.data = Some(BTreeMap::from([(LISTING.to_owned(), json!(listing).to_string())]));
        // Where there never was anything, there need not be a list.
        shared.api.put_map(&map, !listing.volumes.is_empty()).await?;
        self.published = Some(listing);
        Ok(())
    }
}

fn listed(entry: &Entry) -> TrashEntry {
    let Trashed { at, until, namespace, claim, class_name, size, .. } = &entry.trashed;
    TrashEntry {
        name: entry.mark.pv_name.to_string(),
        owner: entry.mark.owner.to_string(),
        claim: format!("{namespace}/{claim}"),
        class: class_name.clone(),
        size: *size,
        at: *at,
        until: *until,
    }
}

/// The labels of requests to this process.
fn requests_of(shared: &Shared) -> String {
    names::selector(&names::trash_labels(shared.provisioner(), names::TRASH_REQUEST, shared.settings.node()))
}

/// Of what is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// It has gone, or waits for something else than us.
    Nothing,
    /// A large volume has gone in part.
    Some,
}

/// Destroys what is due.
async fn expire(shared: &Shared) -> Result<Left> {
    let (trash, _) = entries(shared).await?;
    if trash.is_empty() {
        return Ok(Left::Nothing);
    }
    let clocks = shared.clocks().await?;
    let stopped = shared.journal.deletes_stopped();
    if let Err(hold) = may_expire(&shared.identity, stopped, shared.history.is_checked(), clocks) {
        let why = match hold {
            Hold::Stopped(reason) => format!("deletes are stopped: {reason}"),
            Hold::Unchecked => "the API server's history is being compared".to_owned(),
            Hold::Clocks(seconds) => format!(
                "this machine's clock and the API server's differ by {seconds} s; let both take their time from NTP"
            ),
        };
        shared.health.set_detail("trash", format!("nothing is purged: {why}"));
        warn!(why, "Nothing is purged from the trash.");
        return Ok(Left::Nothing);
    }
    shared.health.set_detail("trash", "ok");
    let mut left = Left::Nothing;
    for entry in trash.iter().filter(|entry| is_due(&shared.identity, &entry.trashed, clocks)) {
        match purge(shared, entry).await {
            Ok(true) => {}
            Ok(false) => left = Left::Some,
            Err(failure) => {
                warn!(pv = %entry.mark.pv_name, error = %chain(&failure), "Its time in the trash is over, and it stays for now.");
            }
        }
    }
    Ok(left)
}

/// Destroys one volume in the trash. `Ok(false)`: not yet all of it.
async fn purge(shared: &Shared, entry: &Entry) -> Result<bool> {
    let _held = hold(shared, entry).await?;
    if shared.identity.rules.holds(Rule::TrashUnnamed) {
        is_unnamed(shared, &entry.mark, "destroyed").await?;
    }
    let mark = Mark { epoch: shared.journal.epoch(), ..entry.mark.clone() };
    let enough = Instant::now() + AT_ONCE;
    loop {
        let asked = shared.backend.purge(&entry.handle, &mark, &entry.trashed);
        match shared.backend_call("purge", asked).await? {
            Progress::Done(()) => break,
            Progress::Pending { .. } if Instant::now() >= enough => return Ok(false),
            Progress::Pending { after, .. } => tokio::time::sleep(after).await,
        }
    }
    info!(pv = %mark.pv_name, until = date(entry.trashed.until), "Purged from the trash.");
    Ok(true)
}

async fn hold(shared: &Shared, entry: &Entry) -> Result<super::locks::Held> {
    let source =
        shared.backend.source(&entry.handle).map_err(|error| Failure::unavailable(error.to_string()))?;
    Ok(shared.locks.acquire(shared.backend.alias_keys(&source)).await)
}

/// Nothing may be done to it while a PV of its name is there.
async fn is_unnamed(shared: &Shared, mark: &Mark, what: &str) -> Result<()> {
    if shared.api.volume(mark.pv_name.as_str()).await?.is_none() {
        return Ok(());
    }
    Err(Failure::unavailable(format!(
        "a PersistentVolume {} is there, so its data in the trash is not {what}; it goes first",
        mark.pv_name
    )))
}

/// Carries one request out, or leaves it for the next round.
async fn serve(shared: &Shared, map: &ConfigMap) -> Result<()> {
    let data = map.data.clone().unwrap_or_default();
    if data.contains_key(ANSWER) {
        let made = map.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        let age = shared.clock.wall().as_second().saturating_sub(made);
        if age > READ_WITHIN.as_secs().cast_signed() {
            shared.api.delete_map(map).await?;
        }
        return Ok(());
    }
    let name = map.metadata.name.clone().unwrap_or_default();
    let request = data.get(REQUEST).and_then(|text| serde_json::from_str::<TrashRequest>(text).ok());
    let answer = match request {
        None => refused("the request cannot be read; use the command of the provisioner's own release"),
        Some(request) => {
            info!(request = name, pv = request.name, asked = ?request.asked, "An operator's request is carried out.");
            let done = match request.asked {
                Asked::Restore => restore(shared, map, &request).await,
                Asked::Purge => purge_now(shared, &request).await,
            };
            shared.trash_changed.store(true, Ordering::Relaxed);
            match done {
                Ok(Some(answer)) => answer,
                Ok(None) => return Ok(()),
                Err(failure) => match failure.class() {
                    Class::Unavailable | Class::Unknown | Class::Exhausted => {
                        warn!(request = name, error = %chain(&failure), "A request waits.");
                        return Ok(());
                    }
                    Class::Invalid | Class::Blocked(_) | Class::NotOurs => refused(failure.message()),
                },
            }
        }
    };
    shared.api.add_to_map(map, json!({ (ANSWER): json!(answer).to_string() })).await?;
    Ok(())
}

fn refused(text: impl Into<String>) -> Answer {
    Answer { done: false, text: text.into(), manifests: Vec::new() }
}

fn is_meant(mark: &Mark, request: &TrashRequest) -> bool {
    mark.pv_name.as_str() == request.name && mark.owner.as_str() == request.owner
}

async fn restore(shared: &Shared, map: &ConfigMap, request: &TrashRequest) -> Result<Option<Answer>> {
    let (trash, rest) = entries(shared).await?;
    let recorded = map.data.as_ref().and_then(|data| data.get(MANIFESTS));
    let found = trash.iter().find(|e| is_meant(&e.mark, request) && e.trashed.at == request.at);
    let Some(entry) = found else {
        let is_back = rest.iter().filter_map(|item| item.observed.mark.as_ref()).any(|mark| {
            is_meant(mark, request)
                && mark.installation == shared.settings.installation
                && mark.state == MarkState::Retained
        });
        // An earlier run of this request brought it back, and was cut off before it could say so.
        return Ok(Some(match recorded.and_then(|text| serde_json::from_str(text).ok()) {
            Some(manifests) if is_back => restored(manifests),
            _ => refused("it is not in the trash any more: it was restored or purged meanwhile"),
        }));
    };
    let _held = hold(shared, entry).await?;
    if shared.identity.rules.holds(Rule::RestoreParted)
        && let Err(failure) = is_unnamed(shared, &entry.mark, "restored").await
    {
        return Ok(Some(refused(failure.message())));
    }
    // A call that was given up must not come after this.
    if !shared.in_doubt(&entry.mark.owner).is_zero() {
        return Ok(None);
    }
    let manifests: Vec<Value> = serde_json::from_str(&entry.trashed.note).unwrap_or_default();
    // Before the record goes that has them.
    if !shared.api.add_to_map(map, json!({ (MANIFESTS): json!(manifests).to_string() })).await? {
        return Ok(None); // withdrawn
    }
    let mark = Mark { epoch: shared.journal.epoch(), ..entry.mark.clone() };
    let asked = shared.backend.restore(&entry.handle, &mark);
    match shared.backend_write("restore", &mark.owner, asked).await? {
        Progress::Done(()) => {}
        Progress::Pending { .. } => return Ok(None),
    }
    shared.settle_doubt(&mark.owner);
    info!(pv = request.name, "Restored from the trash.");
    Ok(Some(restored(manifests)))
}

fn restored(manifests: Vec<Value>) -> Answer {
    Answer { done: true, text: "restored".to_owned(), manifests }
}

async fn purge_now(shared: &Shared, request: &TrashRequest) -> Result<Option<Answer>> {
    let done = || Some(Answer { done: true, text: "purged".to_owned(), manifests: Vec::new() });
    let (trash, _) = entries(shared).await?;
    let Some(entry) = trash.iter().find(|e| is_meant(&e.mark, request) && e.trashed.at == request.at) else {
        return Ok(done());
    };
    if let Some(reason) = shared.journal.deletes_stopped() {
        return Ok(Some(refused(reason)));
    }
    // A backup of etcd may have brought an old request back: first it has to show whether that is so.
    if !shared.history.is_checked() {
        return Ok(None);
    }
    if let Err(failure) = is_unnamed(shared, &entry.mark, "destroyed").await {
        return Ok(Some(refused(failure.message())));
    }
    Ok(if purge(shared, entry).await? { done() } else { None })
}
