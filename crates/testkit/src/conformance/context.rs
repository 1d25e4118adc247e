//! The engine as a backend sees it, made of cardboard.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use volwright_provisioner::{
    BoxFuture, Context, Failure, InstallationId, NodeInfo, Result, Secret, SecretRef, VolumeSource,
};

pub(super) const INSTALLATION: &str = "c0f0a0ce-0000-4000-8000-000000000001";

/// Remembers the PVs that the suite would have created.
pub(super) struct TestContext {
    installation: InstallationId,
    node: Option<NodeInfo>,
    secrets: Vec<(SecretRef, BTreeMap<String, Secret>)>,
    volumes: Mutex<Vec<VolumeSource>>,
}

impl TestContext {
    pub(super) fn new(node: Option<NodeInfo>, secrets: Vec<(SecretRef, BTreeMap<String, Secret>)>) -> Self {
        let installation = InstallationId::new(INSTALLATION);
        Self { installation, node, secrets, volumes: Mutex::default() }
    }

    /// A PV with this source exists now.
    pub(super) fn publish(&self, source: VolumeSource) {
        self.volumes.lock().unwrap_or_else(PoisonError::into_inner).push(source);
    }
}

impl Context for TestContext {
    fn installation(&self) -> &InstallationId {
        &self.installation
    }

    fn node(&self) -> Option<&NodeInfo> {
        self.node.as_ref()
    }

    fn secret<'a>(&'a self, secret: &'a SecretRef) -> BoxFuture<'a, Result<BTreeMap<String, Secret>>> {
        let found =
            self.secrets.iter().find(|(known, _)| known == secret).map(|(_, content)| content.clone());
        Box::pin(async { found.ok_or_else(|| Failure::unavailable("the secret is not there")) })
    }

    fn our_volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeSource>>> {
        let volumes = self.volumes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async { Ok(volumes) })
    }
}
