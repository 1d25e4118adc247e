//! What can go wrong, sorted by what the engine must do about it.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// The class of a [`Failure`]. It alone decides what the engine does next; nothing parses messages.
///
/// If you are not sure between [`Unavailable`](Class::Unavailable) and [`Unknown`](Class::Unknown), choose `Unknown`:
/// it costs one more question, the other may cost a leaked volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The claim or its class must change. One Warning with the remedy; tried again when either object changes, or very
    /// slowly.
    Invalid,
    /// No room here now. With late binding the scheduler is asked to pick another node; else a slow retry.
    Exhausted,
    /// This call surely started nothing. Retried for ever, with capped exponential backoff.
    Unavailable,
    /// It may have happened: a deadline passed, a reply was lost. Asked again with the same handle until final.
    Unknown,
    /// Nothing to do but wait for the named condition. One event, no storm.
    Blocked(Until),
    /// The mark names another owner. Nothing is touched. For a delete that is done, for a create it is as `Invalid`.
    /// "Cannot tell whose it is" is `Blocked`, never this.
    NotOurs,
}

/// What a [`Class::Blocked`] failure waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Until {
    /// The volume is still used or attached.
    Unused,
    /// The storage system is still deleting or making it.
    Settled,
    /// Somebody must look: the data is kept until then.
    OperatorActs,
    /// Ask again after this long.
    After(Duration),
}

/// A failed operation: a class for the engine, a text for the user, and the cause for the log.
///
/// There is deliberately no `From<std::io::Error>`: the author of a backend must choose the class.
pub struct Failure {
    class: Class,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The result of everything a backend is asked for.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure of `class`. The message goes into an event on the claim: say what is wrong and what to do, and no
    /// secrets, host paths or raw output of tools.
    pub fn new(class: Class, message: impl Into<String>) -> Self {
        Self { class, message: message.into(), source: None }
    }

    /// See [`Class::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Class::Invalid, message)
    }

    /// See [`Class::Exhausted`].
    pub fn exhausted(message: impl Into<String>) -> Self {
        Self::new(Class::Exhausted, message)
    }

    /// See [`Class::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(Class::Unavailable, message)
    }

    /// See [`Class::Unknown`].
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(Class::Unknown, message)
    }

    /// See [`Class::Blocked`].
    pub fn blocked(until: Until, message: impl Into<String>) -> Self {
        Self::new(Class::Blocked(until), message)
    }

    /// See [`Class::NotOurs`].
    pub fn not_ours(message: impl Into<String>) -> Self {
        Self::new(Class::NotOurs, message)
    }

    /// Attaches the cause. It is written to the log as a chain, and nowhere else.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What the engine decides by.
    pub fn class(&self) -> Class {
        self.class
    }

    /// The text for the user.
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.class, self.message)?;
        if let Some(source) = &self.source {
            write!(f, " ({source})")?;
        }
        Ok(())
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|e| e as _)
    }
}

/// How far an idempotent operation has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Progress<T> {
    /// It is final.
    Done(T),
    /// The storage system is at it. The worker is freed and the same call repeated after `after`.
    Pending {
        /// How long to wait before asking again.
        after: Duration,
        /// For the user: what is going on. At most 200 bytes.
        note: String,
    },
}
