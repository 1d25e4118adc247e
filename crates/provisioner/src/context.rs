//! What a backend may ask the engine for: narrow calls instead of a Kubernetes client.

use crate::failure::Result;
use crate::{InstallationId, NodeInfo, SecretRef, VolumeSource};
use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A boxed future, where a trait must be usable as `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The engine as seen by a backend. testkit has a fake.
pub trait Context: Send + Sync + 'static {
    /// Which installation this is; part of every mark.
    fn installation(&self) -> &InstallationId;

    /// Where Central backends run: `None`. For node agents their node, with its uid and labels.
    fn node(&self) -> Option<&NodeInfo>;

    /// Reads a secret. Fails `Unavailable` where it is missing, so that claims wait for it.
    fn secret<'a>(&'a self, secret: &'a SecretRef) -> BoxFuture<'a, Result<BTreeMap<String, Secret>>>;

    /// The sources of all PVs that this provisioner made (on this node, for agents), as they are on the API server now.
    /// A root may get its first identity only if none of them lies below it.
    fn our_volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeSource>>>;
}

/// A shared [`Context`].
pub type SharedContext = Arc<dyn Context>;

/// Bytes that never show up in a log, an event or an error.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    /// Wraps the bytes.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Self {
        Self(bytes.into())
    }

    /// The bytes; the caller takes over the duty to keep them.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
