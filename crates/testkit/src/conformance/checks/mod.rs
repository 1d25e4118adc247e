//! The checks. Each has a storage system of its own; all are made, whatever fails.

mod create; // provision
mod hostile; // claims that try to escape
mod marks; // set_mark, intents
mod offers; // expand, trash, inventory, capacity, doctor's lines
mod parameters; // of a class
mod plan; // plan, handle, source, aliases
mod pristine; // what is seen of contents
mod remove; // delete, undo
mod roots; // absence, and roots that are lost

use super::bench::Bench;
use super::fixture::Fixture;
use super::report::{Outcome, Report, Verdict};
use super::verdict::Checked;
use futures::FutureExt;
use std::any::Any;
use std::panic::AssertUnwindSafe;
use volwright_provisioner::Provisioner;

macro_rules! checks {
    ($($name:literal: $check:path, $rule:literal;)*) => {
        /// The names of all checks.
        pub const NAMES: &[&str] = &[$($name),*];

        /// Makes every check on a backend, each on a storage system of its own that `make` makes.
        pub async fn check<F: Fixture>(make: impl Fn() -> F) -> Report {
            let mut outcomes = Vec::new();
            $(outcomes.push(one($name, $rule, make(), $check).await);)*
            Report { backend: F::Backend::BACKEND, outcomes }
        }
    };
}

checks! {
    "names": parameters::names,
        "The name becomes the provisioner's, <name>.volwright.io, which the API server takes only as a DNS subdomain.";
    "parameters-accepted": parameters::accepted,
        "A class that the documentation shows must work, and offer something.";
    "parameters-unknown-refused": parameters::unknown_refused,
        "A misspelt parameter that is ignored gives volumes that nobody asked for: use #[serde(deny_unknown_fields)].";
    "parameters-schema": parameters::schema,
        "The schema is what users and charts see of the parameters: each is described, and none is left out.";

    "plan-deterministic": plan::deterministic,
        "After a crash the plan is made again, and must find the volume that the first one made.";
    "plan-changes-nothing": plan::changes_nothing,
        "The intent is recorded after the plan. What a plan made would be forgotten in a crash.";
    "plan-apart": plan::apart,
        "Two claims on the same data: deleting one takes the other's along.";
    "plan-fits": plan::fits,
        "A plan that does not fit its own request is undone and made anew for ever.";
    "handle-round-trip": plan::handle_round_trip,
        "The handle is stored as JSON, on the PV and in the journal, and is all that a later process has.";
    "handle-size": plan::handle_size,
        "Handles of a thousand intents share one journal object; at most 2 KiB each.";
    "handle-no-secrets": plan::handle_no_secrets,
        "The handle is on the PV, which many may read.";
    "source-deterministic": plan::source_deterministic,
        "The PV's source is compared with the handle's before each delete.";
    "same-volume": plan::same_volume,
        "It ends intents: two claims' volumes that count as one, or one that counts as two, leave volumes behind.";
    "alias-own": plan::alias_own,
        "Locks and the search for aliases go by these keys; a source without any is never guarded.";
    "alias-nested": plan::alias_nested,
        "A parent or child directory is the same data, a path that only begins with the same letters is not.";
    "alias-foreign-kind": plan::alias_foreign_kind,
        "A kind of volume that is never ours must not keep ours from being deleted.";
    "adopt-round-trip": plan::adopt_round_trip,
        "A PV taken over must go on meaning the same data.";

    "provision-makes": create::makes,
        "Done says that the volume is there, marked, and as large as asked for.";
    "provision-not-redirected": create::not_redirected,
        "The planned handle is in the journal. A volume elsewhere is lost in a crash.";
    "provision-idempotent": create::idempotent,
        "After a crash the call is made again for a volume that is there, and may be in use.";
    "provision-lost-reply": create::lost_reply,
        "The reply is lost with the process; the next one asks again, with the same handle.";
    "provision-cut-off": create::cut_off,
        "A call is dropped at its deadline, wherever it is. The same call finishes what it began, or begins anew.";
    "provision-concurrent": create::concurrent,
        "A call that was dropped at its deadline may still be at work when the next one comes.";
    "provision-keeps-published": create::keeps_published,
        "A published volume that became unpublished again could be undone with its data.";
    "provision-other-owner": create::other_owner,
        "Nothing that bears another owner's mark is ever changed.";
    "provision-unmarked": create::unmarked,
        "What is there without a mark, and not empty, is somebody's data.";
    "provision-after-delete": create::after_delete,
        "After an undo the same claim is served again, with the next attempt.";

    "pristine-new": pristine::new,
        "What is not known to be empty is never undone: claims that went away would leave volumes behind.";
    "pristine-written": pristine::written,
        "Pristine volumes are destroyed when their PV is not known to exist.";

    "set-mark-published": marks::published,
        "The mark says that data may be in the volume; every later process must see it.";
    "set-mark-idempotent": marks::idempotent,
        "After a crash the same mark is written again.";
    "set-mark-retained": marks::retained,
        "A volume that is kept on purpose says so, for whoever finds it without a PV.";
    "set-mark-cut-off": marks::cut_off,
        "A call is dropped at its deadline, and the same call writes the mark. No mark is lost in between.";
    "set-mark-other-owner": marks::other_owner,
        "Nothing that bears another owner's mark is ever changed.";
    "set-mark-needs-volume": marks::needs_volume,
        "Ok says that the mark is written; where there is no volume it cannot be.";
    "intent-kept": marks::intent_kept,
        "Where the backend's record is the journal, the intent survives a crash from the first thing made to the PV.";
    "intent-ends": marks::intent_ends,
        "A published volume has no intent: a later process would take it for one that is being made.";

    "delete-removes": remove::removes,
        "Done lets the PV go; what is left then is a leak.";
    "delete-idempotent": remove::idempotent,
        "After a crash the call is made again for a volume that is gone.";
    "delete-lost-reply": remove::lost_reply,
        "The reply is lost with the process; the next one asks again.";
    "delete-cut-off": remove::cut_off,
        "A call is dropped at its deadline, wherever it is. The same call finishes what it began.";
    "delete-concurrent": remove::concurrent,
        "A call that was dropped at its deadline may still be at work when the next one comes.";
    "delete-other-owner": remove::other_owner,
        "Nothing that bears another owner's mark is ever changed.";
    "delete-later-epoch": remove::later_epoch,
        "A later leader goes on with the volume: a deposed one's call comes too late, and NotOurs would let the PV go.";
    "delete-unmarked": remove::unmarked,
        "Nobody can tell whose an unmarked thing is; it is kept.";
    "delete-leaves-others": remove::leaves_others,
        "A delete takes one volume.";
    "undo-empty": remove::undo_empty,
        "A volume that was never published and is empty goes when its claim has gone.";
    "undo-keeps-written": remove::undo_keeps_written,
        "Its PV may have existed while we were down. An undo takes nothing that anybody has written.";

    "absence-observed": roots::absence_observed,
        "None is a statement, and the answer where the root is the right one and the volume is not there.";
    "root-lost-observe": roots::lost_observe,
        "An unmounted disk looks empty: absence counts only where the root shows its identity.";
    "root-lost-delete": roots::lost_delete,
        "A delete that is Done on the wrong root lets the PV go, and the data stays behind without it.";
    "root-lost-writes": roots::lost_writes,
        "What is made on a bare mount point fills the node's disk, and is hidden when the disk comes back.";
    "root-lost-inventory": roots::lost_inventory,
        "What is missing from the inventory counts as gone.";
    "root-lost-restart": roots::lost_restart,
        "A process that starts while the disk is away must not take the empty place for a new root.";

    "hostile-claims": hostile::claims,
        "Names, labels and annotations are written by the claim's owner: they never choose a place outside the root.";

    "expand-grows": offers::expand_grows,
        "A volume grows, keeps its data, and says how large it is; the same call again changes nothing.";
    "expand-never-shrinks": offers::expand_never_shrinks,
        "A file system that is made smaller than its data loses it.";
    "expand-other-owner": offers::expand_other_owner,
        "Nothing that bears another owner's mark is ever changed.";
    "trash-restores": offers::trash_restores,
        "Trash is there to come back from, with the data.";
    "trash-record-kept": offers::trash_record_kept,
        "By the record it is restored and purged: the first call's stays, and only what was judged is purged.";
    "trash-purges": offers::trash_purges,
        "What is purged is gone, and the same call again is Done.";
    "trash-other-owner": offers::trash_other_owner,
        "Nothing that bears another owner's mark is ever changed.";
    "inventory-complete": offers::inventory_complete,
        "After a crash, and for orphans, the inventory is compared with the PVs: what it leaves out is taken for gone.";
    "capacity-sane": offers::capacity_sane,
        "The scheduler chooses nodes by it.";
    "doctor-lines": offers::doctor_lines,
        "Doctor's lines name what was looked at, and show no secrets.";
}

async fn one<F: Fixture>(
    name: &'static str,
    rule: &'static str,
    fixture: F,
    check: impl AsyncFnOnce(&Bench<F>) -> Checked,
) -> Outcome {
    let bench = Bench::new(fixture);
    let made = async {
        bench.restart().await?;
        check(&bench).await
    };
    let verdict = match AssertUnwindSafe(made).catch_unwind().await {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(stop)) => stop,
        Err(panic) => Verdict::Failed {
            expected: "no call panics".to_owned(),
            seen: format!("a panic: {}", panic_text(panic.as_ref())),
        },
    };
    Outcome { name, rule, verdict, calls: bench.calls() }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(no text)")
}
