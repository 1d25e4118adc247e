//! A backend for the tests of the command line: a storage system that is always empty.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use volwright_provisioner::*;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Runs as the agent of this node.
    #[arg(long)]
    pub(crate) node: Option<String>,
    /// How connecting ends: well, invalid or unavailable.
    #[arg(long, default_value = "well")]
    pub(crate) mood: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Parameters {
    #[serde(default)]
    late: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle(String);

pub(crate) struct Shelf;

impl Provisioner for Shelf {
    const BACKEND: &'static str = "shelf";
    const HANDLE_VERSION: u16 = 2;
    type Args = Args;
    type Parameters = Parameters;
    type Handle = Handle;

    fn placement(args: &Args) -> Result<Placement> {
        match args.node.clone() {
            Some(node) if node.is_empty() => Err(Failure::invalid("--node must not be empty")),
            Some(node) => Ok(Placement::PerNode { node }),
            None => Ok(Placement::Central),
        }
    }

    async fn connect(args: Args, _: SharedContext) -> Result<Self> {
        match args.mood.as_str() {
            "well" => Ok(Self),
            "invalid" => Err(Failure::invalid("there is no such mood")),
            _ => Err(Failure::unavailable("the shelf has fallen")),
        }
    }

    fn capabilities(&self, parameters: &Parameters) -> Result<Capabilities> {
        let mut offered = Capabilities::filesystem(&AccessMode::ALL);
        if parameters.late {
            offered.binding = Binding::LateOnly { reason: "a shelf hangs on one node" };
        }
        Ok(offered)
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        VolumeSource::Local { path: handle.0.clone() }
    }

    fn alias_keys(&self, _: &VolumeSource) -> Vec<Key> {
        Vec::new()
    }

    async fn plan(&self, request: &Request<Parameters>) -> Result<Handle> {
        Ok(Handle(request.claim.uid.to_string()))
    }

    async fn observe(&self, _: &Handle) -> Result<Option<Observed>> {
        Ok(None)
    }

    async fn provision(&self, _: &Request<Parameters>, _: &Handle) -> Result<Progress<Provisioned<Handle>>> {
        Err(Failure::unavailable("nothing can be put here"))
    }

    async fn delete(&self, _: &Handle, _: &Mark) -> Result<Progress<()>> {
        Ok(Progress::Done(()))
    }

    async fn set_mark(&self, _: &Handle, _: &Mark) -> Result<()> {
        Err(Failure::not_ours("nothing is here"))
    }

    /// Version 1 was the board's number; version 3 will be an object.
    fn upgrade(version: u16, handle: serde_json::Value) -> Option<Handle> {
        match version {
            1 => handle.as_u64().map(|number| Handle(format!("/board/{number}"))),
            3 => handle["board"].as_str().map(|board| Handle(board.to_owned())),
            _ => None,
        }
    }

    async fn check(&self) -> Vec<Check> {
        vec![Check { subject: "wall".to_owned(), outcome: Err("has a crack: see a mason".to_owned()) }]
    }
}
