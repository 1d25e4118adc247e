//! Handles as they are stored on PVs, and stay there for years.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use volwright_controller::backend::{Backend as _, Envelope, Typed};
use volwright_provisioner::Provisioner;

use super::context::TestContext;
use super::fixture::Fixture;

/// Compares what a backend writes with one file for each version of its handle that was ever released: `handle-v1.json`,
/// `handle-v2.json` and so on, each the value of the annotation `volwright.io/handle` of a PV. All of them must be readable,
/// and that of the present version must be written again as it stands: a change of the JSON without a new version would
/// leave volumes that an earlier release cannot delete.
///
/// # Errors
/// What is wrong, with what to do about it.
pub async fn stored_handles<F: Fixture>(fixture: F, directory: &Path) -> Result<(), String> {
    let context = Arc::new(TestContext::new(fixture.node(), fixture.secrets()));
    let backend = fixture.connect(context).await.map_err(|failure| failure.to_string())?;
    let (backend, written) = (Typed::new(Arc::new(backend)), F::Backend::HANDLE_VERSION);
    for version in 1..=written {
        let path = directory.join(format!("handle-v{version}.json"));
        let shown = path.display();
        let text = fs::read_to_string(&path).map_err(|error| {
            format!("{shown}: {error}; put the annotation of a PV with that version there")
        })?;
        let stored = Envelope::parse(&text).map_err(|error| format!("{shown}: {error}"))?;
        if (stored.version, stored.backend.as_str()) != (version, F::Backend::BACKEND) {
            return Err(format!("{shown}: it is of version {} of {:?}", stored.version, stored.backend));
        }
        let current = backend.current(&stored).map_err(|error| {
            format!("{shown}: PVs have such handles, and they cannot be read any more: {error}")
        })?;
        if version == written && current != stored {
            return Err(format!(
                "{shown}: the handle's JSON has changed, and is now {}; raise HANDLE_VERSION, add a file for the new \
                 version, and read the old one in upgrade()",
                current.to_text()
            ));
        }
    }
    Ok(())
}
