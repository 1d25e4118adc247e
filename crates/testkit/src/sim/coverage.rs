//! What the runs of a simulation must have visited together: every fault at every step, and every answer of every decision. A
//! pair that was never met proves nothing.

use std::collections::BTreeSet;
use volwright_controller::decide::claim::Route;
use volwright_controller::decide::expand::{self, MAY_GROW_ARMS};
use volwright_controller::decide::settle::Settle;
use volwright_controller::decide::volume::{DESTROY_ARMS, GO_ON_ARMS, Step};

use super::chaos::Fault;
use super::run::Coverage;

/// Every step that a central engine takes, with the faults that it can meet besides those of the process.
const STEPS: [(&str, &[&[Fault]]); 38] = [
    ("get persistentvolumeclaims", &[&Fault::READS]),
    ("get persistentvolumes", &[&Fault::READS, &Fault::MEDDLING]),
    ("get nodes", &[&Fault::READS]),
    ("get leases", &[&Fault::READS]),
    ("get configmaps", &[&Fault::READS]),
    ("get version", &[&Fault::READS]),
    ("list persistentvolumeclaims", &[&Fault::READS]),
    ("list persistentvolumes", &[&Fault::READS]),
    ("list storageclasses", &[&Fault::READS]),
    ("list volumeattachments", &[&Fault::READS]),
    ("list leases", &[&Fault::READS]),
    ("list configmaps", &[&Fault::READS]),
    ("watch persistentvolumeclaims", &[&Fault::WATCHES]),
    ("watch persistentvolumes", &[&Fault::WATCHES]),
    ("watch storageclasses", &[&Fault::WATCHES]),
    ("watch leases", &[&Fault::WATCHES]),
    ("create persistentvolumes", &[&Fault::CREATES]),
    ("create leases", &[&Fault::CREATES]),
    ("create configmaps", &[&Fault::CREATES]),
    ("create events", &[&Fault::CREATES]),
    ("update leases", &[&Fault::WRITES]),
    ("update configmaps", &[&Fault::WRITES]),
    ("patch configmaps", &[&Fault::WRITES]),
    ("patch persistentvolumes", &[&Fault::WRITES, &Fault::MEDDLING]),
    ("patch persistentvolumeclaims", &[&Fault::WRITES]),
    ("patch persistentvolumeclaims/status", &[&Fault::WRITES]),
    ("patch events", &[&Fault::WRITES]),
    ("delete persistentvolumes", &[&Fault::WRITES, &Fault::MEDDLING]),
    ("backend plan", &[&Fault::BACKEND_READS, &[Fault::BackendFull]]),
    ("backend observe", &[&Fault::BACKEND_READS]),
    ("backend inventory", &[&Fault::BACKEND_READS]),
    ("backend provision", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending, Fault::BackendFull]]),
    ("backend set_mark", &[&Fault::BACKEND_WRITES]),
    ("backend expand", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending, Fault::BackendFull]]),
    ("backend delete", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending, Fault::BackendBusy]]),
    ("backend trash", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending, Fault::BackendBusy]]),
    ("backend restore", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending]]),
    ("backend purge", &[&Fault::BACKEND_WRITES, &[Fault::BackendPending]]),
];

/// Every fault with every step that it can meet.
pub fn pairs() -> BTreeSet<(Fault, &'static str)> {
    let mut pairs = BTreeSet::new();
    for (step, families) in STEPS {
        let own = families.iter().flat_map(|family| family.iter());
        pairs.extend(own.chain(&Fault::PROCESS).map(|fault| (*fault, step)));
    }
    pairs
}

/// Every answer of every decision that a central engine can get to.
pub fn arms() -> BTreeSet<(&'static str, &'static str)> {
    // Only a node agent asks which node was selected.
    let route = Route::ARMS.into_iter().filter(|arm| *arm != "nothing: other node");
    let mut arms: BTreeSet<_> = route.map(|arm| ("route", arm)).collect();
    arms.extend(Step::ARMS.map(|arm| ("step", arm)));
    arms.extend(Settle::ARMS.map(|arm| ("settle", arm)));
    // The shell looks at claims of our own bound PVs only; what changes in between, and data that somebody takes away or
    // marks as kept under a bound PV, tables show.
    let elsewhere = ["nothing: not ours", "nothing: not bound", "nothing: large enough", "absent", "kept"];
    let grows = |arm: &&str| !elsewhere.contains(arm);
    arms.extend(expand::Step::ARMS.into_iter().filter(grows).map(|arm| ("expand", arm)));
    arms.extend(MAY_GROW_ARMS.into_iter().filter(grows).map(|arm| ("may grow", arm)));
    // A second line of defence: what the first look at the live PV has refused does not get there. Tables show it.
    let reached = |arm: &&str| !["policy", "bound", "no fence"].contains(arm);
    arms.extend(GO_ON_ARMS.into_iter().filter(reached).map(|arm| ("go on", arm)));
    arms.extend(DESTROY_ARMS.into_iter().filter(reached).map(|arm| ("destroy", arm)));
    arms
}

impl Coverage {
    /// What was not visited.
    pub fn missing(&self) -> Vec<String> {
        let faults = pairs().into_iter().filter(|pair| !self.faults.contains(pair));
        let arms = arms().into_iter().filter(|arm| !self.arms.contains(arm));
        faults
            .map(|(fault, step)| format!("{fault:?} at {step}"))
            .chain(arms.map(|(decision, arm)| format!("{decision}: {arm}")))
            .collect()
    }
}
