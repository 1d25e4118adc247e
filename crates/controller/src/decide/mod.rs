//! What to do, as pure functions over plain data: no I/O, clock, client, randomness or `async`.
//!
//! [`claim`] answers for a claim, [`budget`] for what its class may promise, [`volume`] for a PV, [`expand`] for a claim that
//! asks for more than it has, [`settle`] for an intent whose claim went another way, [`retry`] for a failure, [`trash`] for
//! what is in the trash, [`ledger`] for what the journal writes next, [`sweep`] for what is on the storage alone; [`lease`] says who
//! leads, [`rivals`] whether another installation does. The engine's shell obeys. Each safety rule has a name in [`Rule`]; a
//! test build can switch one off ([`Rules`]) to show that its test fails without it.

pub mod budget; // how much a class may promise
pub mod claim; // claims: whose, when, on what terms
pub mod expand; // claims that ask for more
pub mod lease; // who leads
pub mod ledger; // the durable journal: what is written next, what an answer means
pub mod release; // an uninstall: finalizers come off, data stays
pub mod retry; // failures: when again
pub mod rivals; // the same provisioner, elsewhere
mod rules; // the safety rules by name
pub mod settle; // an intent whose claim is gone
pub mod sweep; // what is on the storage and in no record
pub mod trash; // how long the trash keeps what
mod view; // plain data
pub mod volume; // PVs: finalizer, retain, delete

pub use self::rules::{Rule, Rules};
pub use self::view::{
    ClaimCondition, ClaimGlance, ClaimRef, ClaimView, ClassView, DataSource, Phase, ReclaimPolicy, SizeView,
    VolumeView,
};

use serde::{Deserialize, Serialize};

/// What happens to the data of a released volume whose policy is Delete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDelete {
    /// Destroyed.
    #[default]
    Delete,
    /// Kept and recorded as retained; the event says where.
    Retain,
    /// Moved aside, restorable for a time, and then destroyed.
    Trash,
}

impl OnDelete {
    /// What a class may say.
    pub const KNOWN: &str = "delete, retain or trash";

    /// Reads a parameter or annotation. Nothing is guessed: "Retain" or "retian" is `None`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "delete" => Some(Self::Delete),
            "retain" => Some(Self::Retain),
            "trash" => Some(Self::Trash),
            _ => None,
        }
    }

    /// As it is written on the PV.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Delete => "delete",
            Self::Retain => "retain",
            Self::Trash => "trash",
        }
    }
}

/// Who we are, as the decisions need to know it.
#[derive(Debug, Clone, Default)]
pub struct Identity {
    /// Our provisioner name, then those we also answer to.
    pub names: Vec<String>,
    /// For node agents the node's name.
    pub node: Option<String>,
    /// The safety rules in force: all of them, but in a test that shows what one is good for.
    pub rules: Rules,
}

impl Identity {
    /// Is `provisioner` one of our names?
    pub fn answers_to(&self, provisioner: &str) -> bool {
        self.names.iter().any(|name| name == provisioner)
    }
}
