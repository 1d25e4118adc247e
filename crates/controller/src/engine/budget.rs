//! What classes with a budget have promised, and the promises that nothing else shows yet.
//!
//! A promise is known from the PV, from the open intent, or from the trash. In between (before the record, and from the end of the intent until
//! the watch shows the PV) it is known from here only.

use crate::decide::budget::{Promised, Room, budget, room};
use crate::decide::{ClassView, Rule};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use volwright_provisioner::{ClaimUid, Failure, Result, Until, parse_bytes};

use super::Shared;
use super::happening::{ABOUT_CLASS, Subject};
use super::memory::Memory;

/// A PV that was made and deleted between two listings never shows. Later than this after its creation nothing comes any more.
const SHOWN_WITHIN: Duration = Duration::from_secs(300);

/// A promise that neither a PV nor an intent shows.
#[derive(Debug)]
struct Promise {
    class: String,
    bytes: u64,
    /// Its PV was made.
    made: Option<Instant>,
}

/// By the uid of the claim. Bounded by claims being served.
#[derive(Debug, Default)]
pub(super) struct Promises(BTreeMap<ClaimUid, Promise>);

/// Classes and bytes of what is in the trash, by the uid of the claim that it was made for. `None` until it was looked at.
pub(super) type Trash = Option<BTreeMap<String, (String, u64)>>;

impl Promises {
    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The watch shows the PV, if there is one. One that is still being made has its promise yet.
    pub(super) fn made_is_shown(&mut self, uid: &ClaimUid) {
        if self.0.get(uid).is_some_and(|promise| promise.made.is_some()) {
            self.0.remove(uid);
        }
    }
}

impl Shared {
    /// Promises `size` bytes of the class to the claim, where its budget has room. To look and to promise is one step: of
    /// two claims that are served at once only one gets the last room. Repeatable.
    ///
    /// # Errors
    /// `Exhausted` for a node agent, since another node has a budget of its own; else `Blocked`: a change of the class, or
    /// the end of a volume of it, wakes the claim.
    pub(super) fn promise(&self, uid: &ClaimUid, class: &ClassView, size: u64) -> Result<()> {
        if class.budget.is_none() {
            return Ok(());
        }
        let mut memory = self.memory();
        if memory.trashed.is_none() && !self.settings.trash_interval.is_zero() {
            let text =
                format!("what StorageClass {:?} has in the trash counts, and is not known yet", class.name);
            return Err(Failure::blocked(Until::After(Duration::from_secs(1)), text));
        }
        let live = |promise: &Promise| promise.made.is_none_or(|made| made.elapsed() < SHOWN_WITHIN);
        memory.promises.0.retain(|_, promise| live(promise));
        let total = self.promised(&class.name, &memory);
        let room = room(&self.identity.rules, class, &total, uid.as_str(), size).map_err(Failure::invalid)?;
        if self.identity.rules.holds(Rule::BudgetKept)
            && let Room::Full(text) = room
        {
            return Err(match self.settings.node() {
                Some(_) => Failure::exhausted(text),
                None => Failure::blocked(Until::OperatorActs, text),
            });
        }
        if self.identity.rules.holds(Rule::PromiseCounts) {
            memory
                .promises
                .0
                .insert(uid.clone(), Promise { class: class.name.clone(), bytes: size, made: None });
        }
        drop(memory);
        if let Ok(Some(limit)) = budget(class) {
            let promised = total.without(uid.as_str()).saturating_add(size);
            self.metrics.budget(&class.name, limit, promised);
        }
        if let Room::Near(text) = room {
            self.tell(&Subject::class(class), true, "CapacityBudgetNear", ABOUT_CLASS, text);
        }
        Ok(())
    }

    /// The claim's PV was made. Its promise counts until the watch shows the PV.
    pub(super) fn promise_made(&self, uid: &ClaimUid, class: &str, bytes: u64) {
        let promise = Promise { class: class.to_owned(), bytes, made: Some(Instant::now()) };
        if self.identity.rules.holds(Rule::PromiseCounts) {
            self.memory().promises.0.insert(uid.clone(), promise);
        }
    }

    /// A growth that was promised is not wanted any more. (One that came about counts until the watch shows it.)
    pub(super) fn growth_lapsed(&self, owner: &ClaimUid) {
        let mut memory = self.memory();
        if memory.promises.0.get(owner).is_some_and(|promise| promise.made.is_none()) {
            memory.promises.0.remove(owner);
        }
    }

    /// Nothing came of it.
    pub(super) fn promise_ended(&self, uid: &ClaimUid) {
        self.memory().promises.0.remove(uid);
    }

    /// Room of the class may have come free: claims that wait for it are looked at again.
    pub(super) fn room_came_free(&self, class: &str) {
        if self.world.class(class).is_some_and(|class| class.budget.is_some()) {
            self.class_changed(class);
        }
    }

    /// Puts what a class with a budget has promised into the metrics.
    pub(super) fn show_budget(&self, class: &str) {
        let limit = self.world.class(class).and_then(|class| budget(&class).ok().flatten());
        match limit {
            Some(bytes) => {
                let promised = self.promised(class, &self.memory()).total();
                self.metrics.budget(class, bytes, promised);
            }
            None => self.metrics.no_budget(class),
        }
    }

    /// The same for all classes.
    pub(super) fn show_budgets(&self) {
        for class in self.world.class_names() {
            self.show_budget(&class);
        }
    }

    /// This is in the trash now, or has left it. `whole`: and nothing else is.
    pub(super) fn trash_counts(&self, now: impl IntoIterator<Item = (String, (String, u64))>, whole: bool) {
        let mut memory = self.memory();
        if !whole && memory.trashed.is_none() {
            // The first look has them all.
            return;
        }
        let before = memory.trashed.take().unwrap_or_default();
        let mut trash: BTreeMap<_, _> = now.into_iter().collect();
        let mut freed = Vec::new();
        for (owner, (class, bytes)) in before {
            if !whole {
                trash.entry(owner).or_insert((class, bytes));
            } else if !trash.contains_key(&owner) && !freed.contains(&class) {
                freed.push(class);
            }
        }
        memory.trashed = Some(trash);
        drop(memory);
        for class in freed {
            self.room_came_free(&class);
        }
    }

    fn promised(&self, class: &str, memory: &Memory) -> Promised {
        let mut promised = Promised::default();
        self.world.each_of_ours(|ours| {
            if ours.view.class == class {
                // The API server takes no other.
                promised.add(ours.view.owner(), parse_bytes(&ours.view.capacity).unwrap_or(0));
            }
        });
        for uid in self.journal.claims() {
            if let Some(intent) = self.journal.intent(&uid).filter(|i| i.request.class_name == class) {
                promised.add(uid.as_str(), intent.request.size);
            }
        }
        for (uid, promise) in memory.promises.0.iter().filter(|(_, promise)| promise.class == class) {
            promised.add(uid.as_str(), promise.bytes);
        }
        for (owner, (_, bytes)) in memory.trashed.iter().flatten().filter(|(_, (of, _))| of == class) {
            promised.add(owner, *bytes);
        }
        promised
    }
}
