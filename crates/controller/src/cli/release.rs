//! `release-finalizers`: lets go of the PVs of a provisioner that is uninstalled for good. No data is touched.

use crate::client::Clients;
use crate::decide::release::release;
use crate::decide::{Identity, VolumeView};
use crate::doctor::live_holder;
use crate::names;
use crate::objects::{Volume, api_time};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, Error};
use serde_json::json;
use std::io::Write;
use volwright_provisioner::{Placement, Provisioner};

use super::calls::{say, within};
use super::{ClusterArgs, LeaseArgs, RunError};

const PAGE: u32 = 500;

/// What to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct ReleaseArgs {
    /// Do it. Without this flag it is only shown
    #[arg(long)]
    pub apply: bool,
    /// No process of this provisioner runs any more, on no node. It would put the finalizers back. Needed where no lease
    /// shows it: for node agents, and with --leader-elect=false
    #[arg(long)]
    pub stopped: bool,
}

/// Shows what is let go of, and lets go of it if told to. `Ok(false)`: something could not be let go of.
pub async fn release_finalizers<P: Provisioner>(
    cluster: &ClusterArgs,
    lease: &LeaseArgs,
    args: ReleaseArgs,
    backend: &P::Args,
    clients: &Clients,
    out: &mut impl Write,
) -> Result<bool, RunError> {
    let placement = P::placement(backend).map_err(|failure| RunError::Config(failure.to_string()))?;
    let names = cluster.names(P::BACKEND);
    let client = &clients.requests;
    let has_lease = placement == Placement::Central && lease.leader_elect;
    if args.apply {
        refuse_if_served(client, lease.namespace_or(client), &names[0], has_lease, args.stopped).await?;
    }
    let identity = Identity { names, ..Identity::default() };
    let volumes: Api<Volume> = Api::all(client.clone());
    let (mut next, mut count, mut left) = (None, 0_usize, 0_usize);
    loop {
        let mut params = ListParams::default().limit(PAGE);
        params.continue_token = next;
        let page = within("list", "persistentvolumes", volumes.list(&params)).await?;
        for volume in page.items {
            let view = volume.view();
            let Some(text) = release(&identity, &view) else { continue };
            count += 1;
            let done = if args.apply { let_go(&volumes, &view).await } else { Ok(()) };
            let note = done.err().map(|error| {
                left += 1;
                format!(" -- NOT let go of: {error}; run this again")
            });
            say(out, format_args!("{} {text}{}", view.name, note.unwrap_or_default()))?;
        }
        next = page.metadata.continue_.filter(|token| !token.is_empty());
        if next.is_none() {
            break;
        }
    }
    say(out, format_args!("{}", summary(args.apply, count, left)))?;
    Ok(left == 0)
}

fn summary(apply: bool, count: usize, left: usize) -> String {
    match (apply, count) {
        (_, 0) => "\nNo PersistentVolume bears this provisioner's finalizer.".to_owned(),
        (false, _) => format!(
            "\n{count} PersistentVolumes would be let go of. Uninstall the provisioner, then give --apply. Nothing deletes \
             their data then; when the provisioner is installed again, it takes them up again."
        ),
        (true, _) => format!(
            "\n{} PersistentVolumes were let go of, {left} were not. No data was touched.",
            count - left
        ),
    }
}

/// A process that runs would put each finalizer back, and might be in the middle of a delete.
async fn refuse_if_served(
    client: &Client,
    namespace: &str,
    name: &str,
    has_lease: bool,
    stopped: bool,
) -> Result<(), RunError> {
    if !has_lease {
        return if stopped {
            Ok(())
        } else {
            Err(RunError::Config(
                "no lease shows whether this provisioner still runs: uninstall it, and give --stopped"
                    .to_owned(),
            ))
        };
    }
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = within("get", "leases", leases.get_opt(name)).await?;
    let spec = lease.and_then(|lease| lease.spec);
    match spec.as_ref().and_then(|spec| live_holder(spec, Timestamp::now())) {
        None => Ok(()),
        Some(holder) => Err(RunError::Config(format!(
            "the provisioner still runs ({holder} holds the lease {namespace}/{name}): uninstall it, or scale it to 0, first"
        ))),
    }
}

/// The annotation stays, so that whoever finds the PV or its data later knows why nothing deleted it.
async fn let_go(volumes: &Api<Volume>, view: &VolumeView) -> Result<(), RunError> {
    let now = api_time(Timestamp::now());
    let patch = Patch::Strategic(json!({ "metadata": {
        "uid": view.uid,
        "annotations": { names::RELEASED: now },
        "$deleteFromPrimitiveList/finalizers": [names::FINALIZER],
    }}));
    let params = PatchParams::default();
    let request = async {
        match volumes.patch(&view.name, &params, &patch).await {
            // It has gone meanwhile, or another has its name.
            Err(Error::Api(status)) if matches!(status.code, 404 | 422) => Ok(()),
            answer => answer.map(drop),
        }
    };
    within("patch", "persistentvolumes", request).await
}
