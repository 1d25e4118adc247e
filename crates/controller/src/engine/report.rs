//! How a run ended: what is tried again and when, and a failure's log line, metric and event, from one place so that they
//! cannot disagree.

use crate::client::chain;
use crate::decide::ClaimView;
use crate::decide::retry::{Next, next};
use crate::names::{CLAIMS_CHECK, CLASSES_CHECK, VOLUMES_CHECK};
use std::time::Duration;
use tracing::warn;
use volwright_provisioner::{ClaimUid, Class, Failure, Until};

use super::events::{Happening, NOTE_LIMIT};
use super::happening::{ABOUT_CLAIM, ABOUT_CLASS, ABOUT_VOLUME, Subject};
use super::{Flow, Shared};

/// Up to a fifth more: many that failed together do not come back together.
pub(super) fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(1.0 + fastrand::f64() * 0.2)
}

/// Failures in a row that are not told of while something is waited for that mostly passes by itself: at the default delays
/// over half a minute, and a detach takes some 20 s.
const QUIET: u32 = 10;

/// What failed, with the labels of its metric.
#[derive(Clone, Copy)]
enum Work<'a> {
    Provision { class: &'a str, source: &'a str },
    Delete { class: &'a str },
}

impl Work<'_> {
    fn operation(self) -> &'static str {
        match self {
            Self::Provision { .. } => "provision",
            Self::Delete { .. } => "delete",
        }
    }
}

impl Shared {
    pub(super) fn finish_claim(&self, uid: &ClaimUid, flow: Flow) {
        match flow {
            Flow::Settled => self.claims.forget(uid),
            // What was remembered of it while it was still being undone.
            Flow::Parked if self.world.claim(uid).is_none() => self.forget_claim(uid),
            Flow::Parked => {}
            Flow::After(delay) => self.claims.add_after(uid.clone(), delay),
            Flow::Failed(failure) => {
                let cached = self.world.claim(uid);
                let subject = cached
                    .as_ref()
                    .map(|c| Subject::of_claim(&c.glance.namespace, &c.glance.name, uid.as_str()));
                // An agent's cache does not know the class; an open intent does.
                let full = cached.as_ref().and_then(|c| c.full.as_ref());
                let planned = self.journal.intent(uid).map(|intent| intent.request.class_name.clone());
                let class = full.and_then(|full| full.class.clone()).or(planned).unwrap_or_default();
                let work = Work::Provision { class: &class, source: full.map_or("", ClaimView::source_kind) };
                let delay = self.report(work, uid.as_str(), subject, &failure, self.claims.failed(uid));
                self.claims.add_after(uid.clone(), jittered(delay));
            }
        }
    }

    pub(super) fn finish_volume(&self, name: &str, flow: Flow) {
        match flow {
            Flow::Settled => self.volumes.forget(&name.to_owned()),
            Flow::Parked => {}
            Flow::After(delay) => self.volumes.add_after(name.to_owned(), delay),
            Flow::Failed(failure) => {
                let cached = self.world.volume(name);
                let view = cached.as_ref().and_then(|volume| volume.ours.as_ref()).map(|ours| &ours.view);
                let work = Work::Delete { class: view.map_or("", |view| view.class.as_str()) };
                let failures = self.volumes.failed(&name.to_owned());
                let delay = self.report(work, name, view.map(Subject::volume), &failure, failures);
                self.volumes.add_after(name.to_owned(), jittered(delay));
            }
        }
    }

    /// Tells of a failure. Returns when to try again, before jitter.
    fn report(
        &self,
        work: Work<'_>,
        key: &str,
        subject: Option<Subject>,
        failure: &Failure,
        failures: u32,
    ) -> Duration {
        let (delay, remark) = match next(failure.class(), failures, self.settings.backoff()) {
            Next::Again(delay) => (delay, ""),
            Next::Reschedule(delay) => (delay.max(self.settings.backoff_base), ""),
            Next::WhenChanged(delay) => (delay, " (tried again when it or its class changes)"),
        };
        let op = work.operation();
        warn!(key, op, attempt = failures, class = ?failure.class(), error = %chain(failure), "Failed, will try again.");
        // Waiting for a detach, or as long as the API server asked, is not the user's to mend.
        let quiet =
            matches!(failure.class(), Class::Blocked(Until::Unused | Until::Settled | Until::After(_)))
                && failures < QUIET;
        if quiet {
            return delay;
        }
        let (reason, action) = match work {
            Work::Provision { class, source } => {
                self.metrics.provision_failed(class, source);
                ("ProvisioningFailed", ABOUT_CLAIM)
            }
            Work::Delete { class } => {
                self.metrics.delete_failed(class);
                ("VolumeFailedDelete", ABOUT_VOLUME)
            }
        };
        if let Some(subject) = subject {
            self.tell(&subject, true, reason, action, format!("{}{remark}", failure.message()));
        }
        delay
    }

    /// As [`report`](Self::report), for a claim that is to be scheduled anew.
    pub(super) fn report_claim_failure(&self, claim: &ClaimView, failure: &Failure) -> Duration {
        let uid = &claim.glance.uid;
        let failures = self.claims.failed(uid);
        let work = Work::Provision {
            class: claim.class.as_deref().unwrap_or_default(),
            source: claim.source_kind(),
        };
        self.report(work, uid.as_str(), Some(Subject::claim(claim)), failure, failures);
        match next(failure.class(), failures, self.settings.backoff()) {
            Next::Again(delay) | Next::Reschedule(delay) | Next::WhenChanged(delay) => delay,
        }
    }

    pub(super) fn tell(
        &self,
        subject: &Subject,
        warning: bool,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let note = if warning { with_check(note, action) } else { note };
        self.events.publish(Happening { regarding: subject.reference(), warning, reason, action, note });
    }
}

/// A Warning says where to read on, unless that would push its own words out of the event.
fn with_check(note: String, action: &'static str) -> String {
    let check = match action {
        ABOUT_VOLUME => VOLUMES_CHECK,
        ABOUT_CLASS => CLASSES_CHECK,
        _ => CLAIMS_CHECK,
    };
    let longer = format!("{note} (doctor: {check})");
    if longer.len() <= NOTE_LIMIT { longer } else { note }
}
