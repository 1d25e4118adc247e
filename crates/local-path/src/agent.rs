//! The [`Provisioner`]: which root, then volume-tree's work on it.

use crate::check::check_root;
use crate::handle::{self, Handle};
use crate::path::path_of;
use crate::root::Root;
use crate::{Args, Parameters};
use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;
use volwright_provisioner::{
    AccessMode, Binding, Capabilities, Capacity, Check, Class, Failure, Growth, InventoryItem, Key, Mark,
    NodeInfo, Observed, Placement, Progress, Provisioned, Provisioner, Request, Result, SharedContext,
    Topology, Trashed, VolumeMode, VolumeSource,
};
use volwright_volume_tree::{LocalOptions, LocalTree, OpenError, Place, Volumes, Wanted};

/// The label that the scheduler places pods by. Its value need not be the node's name.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// Paths of one node are compared with each other only: labelled PVs of other nodes never reach an agent.
const KEY_ROOT: &str = "node";

/// A disk that hangs must not keep claims from the others. A working one answers in milliseconds.
const LOOK_MAX: Duration = Duration::from_secs(10);

const NOTE_NODE_NAME: &str = "nodeName";
const NOTE_NODE_UID: &str = "nodeUid";

/// The agent of one node.
pub struct LocalPath {
    context: SharedContext,
    node: NodeInfo,
    roots: Vec<Arc<Root>>,
}

impl Provisioner for LocalPath {
    const BACKEND: &'static str = "local-path";
    const HANDLE_VERSION: u16 = 1;
    type Args = Args;
    type Parameters = Parameters;
    type Handle = Handle;

    fn placement(args: &Args) -> Result<Placement> {
        let node = args.node_name.clone().filter(|name| !name.is_empty());
        let node = node.ok_or_else(|| {
            Failure::invalid(
                "--node-name (NODE_NAME) is missing: an agent serves one node and must know which. In its pod, set the \
                 variable from the field spec.nodeName",
            )
        })?;
        Ok(Placement::PerNode { node })
    }

    async fn connect(args: Args, context: SharedContext) -> Result<Self> {
        let Some(node) = context.node().cloned() else {
            return Err(Failure::invalid("local-path runs as a node agent; its node is not known"));
        };
        let options = LocalOptions { require_mount: args.require_mount, allow_volatile: args.allow_volatile };
        let holder = format!("the agent of node {}", node.name);
        let paths = plain_paths(&args.path)?;
        let new_root = |path: &String| Root::new(path.clone(), options, holder.clone());
        for path in plain_paths(&args.init_root)? {
            if !paths.contains(&path) {
                return Err(Failure::invalid(format!("--init-root {path} is not among --path")));
            }
            new_root(&path).init().await?;
        }
        let roots: Vec<_> = paths.iter().map(new_root).collect();
        check_roots(&roots, options).await?;
        Ok(Self { context, node, roots })
    }

    fn capabilities(&self, parameters: &Parameters) -> Result<Capabilities> {
        parameters.check()?;
        Ok(Capabilities {
            binding: Binding::LateOnly {
                reason: "the volume is on one node, which the scheduler must choose first; use volumeBindingMode: \
                         WaitForFirstConsumer",
            },
            modes: [AccessMode::ReadWriteOnce, AccessMode::ReadWriteOncePod]
                .map(|mode| (VolumeMode::Filesystem, mode))
                .to_vec(),
            expand: Growth::Ours,
            sees_contents: true,
            trash: true,
            ..Capabilities::filesystem(&[])
        })
    }

    fn source(&self, handle: &Handle) -> VolumeSource {
        VolumeSource::Local { path: handle.full_path() }
    }

    fn alias_keys(&self, source: &VolumeSource) -> Vec<Key> {
        match source {
            VolumeSource::Local { path } | VolumeSource::HostPath { path } => {
                vec![Key::of_path(KEY_ROOT, path)]
            }
            VolumeSource::Nfs { .. } | VolumeSource::Csi(_) | VolumeSource::Other { .. } => Vec::new(),
        }
    }

    fn fits(&self, request: &Request<Parameters>, handle: &Handle) -> bool {
        let node = request.node.as_ref().unwrap_or(&self.node);
        let root = request.parameters.path.as_deref();
        (&handle.node_name, &handle.node_uid) == (&node.name, &node.uid)
            && root.is_none_or(|path| same_path(path, &handle.root))
    }

    async fn plan(&self, request: &Request<Parameters>) -> Result<Handle> {
        request.parameters.check()?;
        self.topology()?;
        if let Some(node) = request.node.as_ref().filter(|node| node.name != self.node.name) {
            return Err(Failure::unavailable(format!(
                "the claim is for node {}, another agent's",
                node.name
            )));
        }
        let path = path_of(&request.parameters.pattern()?, &request.claim, &request.pv_name)?;
        let place = Place::new(path, &request.mark);
        let (root, volumes) = self.choose(request, &place).await?;
        let handle = handle_of(&root, &volumes, &place, &self.node.name, &self.node.uid);
        let size = serde_json::to_vec(&handle).map_or(usize::MAX, |json| json.len());
        if size > handle::SIZE_MAX {
            return Err(Failure::invalid(
                "the path made from the pattern is too long; choose a shorter pathPattern",
            ));
        }
        Ok(handle)
    }

    async fn observe(&self, handle: &Handle) -> Result<Option<Observed>> {
        let (root, volumes, place) = self.find(handle).await?;
        root.run(move || async move { volumes.observe(&place).await }).await
    }

    async fn provision(
        &self,
        request: &Request<Parameters>,
        handle: &Handle,
    ) -> Result<Progress<Provisioned<Handle>>> {
        let topology = self.topology()?;
        let (root, volumes, place) = self.find(handle).await?;
        let (mark, wanted) = (request.mark.clone(), wanted(request, handle));
        let size = root.run(move || async move { volumes.provision(&place, &mark, &wanted).await }).await?;
        Ok(Progress::Done(Provisioned { handle: handle.clone(), size, topology }))
    }

    async fn delete(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let (root, volumes, place) = self.find(handle).await?;
        let mark = mark.clone();
        root.run(move || async move { volumes.delete(&place, &mark).await }).await
    }

    async fn set_mark(&self, handle: &Handle, mark: &Mark) -> Result<()> {
        let (root, volumes, place) = self.find(handle).await?;
        let mark = mark.clone();
        root.run(move || async move { volumes.set_mark(&place, &mark).await }).await
    }

    async fn expand(&self, handle: &Handle, mark: &Mark, size: u64) -> Result<Progress<u64>> {
        let (root, volumes, place) = self.find(handle).await?;
        let mark = mark.clone();
        root.run(move || async move { volumes.expand(&place, &mark, size).await }).await.map(Progress::Done)
    }

    async fn trash(
        &self,
        handle: &Handle,
        mark: &Mark,
        trashed: &Trashed,
    ) -> Result<Progress<Option<Trashed>>> {
        let (root, volumes, place) = self.find(handle).await?;
        let (mark, trashed) = (mark.clone(), trashed.clone());
        root.run(move || async move { volumes.trash(&place, &mark, &trashed).await }).await
    }

    async fn restore(&self, handle: &Handle, mark: &Mark) -> Result<Progress<()>> {
        let (root, volumes, place) = self.find(handle).await?;
        let mark = mark.clone();
        root.run(move || async move { volumes.restore(&place, &mark).await }).await
    }

    async fn purge(&self, handle: &Handle, mark: &Mark, judged: &Trashed) -> Result<Progress<()>> {
        let (root, volumes, place) = self.find(handle).await?;
        let (mark, judged) = (mark.clone(), judged.clone());
        root.run(move || async move { volumes.purge(&place, &mark, &judged).await }).await
    }

    /// All roots or none: a volume that is missing from the list counts as gone.
    async fn inventory(&self) -> Result<Vec<InventoryItem<Handle>>> {
        let mut items = Vec::new();
        for root in &self.roots {
            let Some(volumes) = root.volumes_if_any(self.context.as_ref()).await? else { continue };
            let (shared, installation) = (Arc::clone(&volumes), self.context.installation().clone());
            let inventory = root.run(move || async move { shared.inventory(&installation).await }).await?;
            for cause in inventory.unreadable {
                warn!(root = root.path(), cause, "A volume's record is no use; the volume is kept.");
            }
            for listed in inventory.volumes {
                let note = |name: &str| listed.record.wanted.notes.get(name).cloned().unwrap_or_default();
                let (name, uid) = (note(NOTE_NODE_NAME), note(NOTE_NODE_UID));
                let handle = handle_of(root, &volumes, &listed.place, &name, &uid);
                let (intent, trashed) = (listed.record.wanted.intent, listed.record.trashed);
                items.push(InventoryItem { handle, observed: listed.observed, intent, trashed });
            }
        }
        Ok(items)
    }

    async fn capacity(&self, parameters: &Parameters) -> Result<Vec<Capacity>> {
        let topology = self.topology()?;
        let (mut available, mut largest) = (0_u64, 0);
        for root in self.candidates(parameters)? {
            let volumes = root.volumes().await?;
            let space = root.run(move || async move { volumes.space().await }).await?;
            available = available.saturating_add(space.available);
            largest = largest.max(space.available);
        }
        Ok(vec![Capacity { topology, available, largest: Some(largest) }])
    }

    async fn check(&self) -> Vec<Check> {
        let mut checks = vec![Check {
            subject: format!("node {}", self.node.name),
            outcome: self.topology().map(|t| format!("{t:?}")).map_err(|failure| failure.to_string()),
        }];
        for root in &self.roots {
            checks.extend(check_root(root, self.context.as_ref()).await);
        }
        checks
    }
}

impl LocalPath {
    fn topology(&self) -> Result<Topology> {
        match self.node.labels.get(HOSTNAME).filter(|value| !value.is_empty()) {
            Some(value) => Ok(Topology::from([(HOSTNAME.to_owned(), vec![value.clone()])])),
            None => Err(Failure::unavailable(format!(
                "node {} has no label {HOSTNAME}, by which pods are placed next to their volumes; set it",
                self.node.name
            ))),
        }
    }

    /// The roots that a class may use.
    fn candidates(&self, parameters: &Parameters) -> Result<Vec<&Arc<Root>>> {
        let Some(path) = &parameters.path else { return Ok(self.roots.iter().collect()) };
        let found: Vec<_> = self.roots.iter().filter(|root| same_path(root.path(), path)).collect();
        if found.is_empty() {
            return Err(Failure::invalid(format!(
                "parameter \"path\": {path:?} is not among the roots of node {}; see the agent's --path",
                self.node.name
            )));
        }
        Ok(found)
    }

    /// The root that has the claim's volume already, else the first with room.
    async fn choose(
        &self,
        request: &Request<Parameters>,
        place: &Place,
    ) -> Result<(Arc<Root>, Arc<Volumes<LocalTree>>)> {
        let (mut roomy, mut why_not) = (None, None::<Failure>);
        for root in self.candidates(&request.parameters)? {
            let looked = async {
                let volumes = root.volumes_or_first(self.context.as_ref()).await?;
                let (shared, place, size) = (Arc::clone(&volumes), place.clone(), request.size);
                let (seen, room) =
                    root.run(move || async move {
                        Ok((shared.observe(&place).await?, shared.check_room(size).await))
                    })
                    .await?;
                let is_ours = |seen: Observed| seen.mark.is_some_and(|mark| mark.same_owner(&request.mark));
                if seen.is_some_and(is_ours) { Ok((volumes, true)) } else { room.map(|()| (volumes, false)) }
            };
            let looked = tokio::time::timeout(LOOK_MAX, looked).await;
            match looked.unwrap_or_else(|_| Err(Failure::unavailable("a disk of the node does not answer"))) {
                Ok((volumes, true)) => return Ok((Arc::clone(root), volumes)),
                Ok((volumes, false)) => roomy = roomy.or_else(|| Some((Arc::clone(root), volumes))),
                // Too full is the better answer: it lets the pod go to another node.
                Err(failure) if failure.class() == Class::Exhausted => why_not = Some(failure),
                Err(failure) => why_not = why_not.or(Some(failure)),
            }
        }
        roomy.ok_or_else(|| {
            why_not.unwrap_or_else(|| Failure::unavailable("the agent has no root; give it a --path"))
        })
    }

    /// The root of a handle, opened, showing the identity that the handle carries.
    async fn find(&self, handle: &Handle) -> Result<(Arc<Root>, Arc<Volumes<LocalTree>>, Place)> {
        if handle.node_name != self.node.name {
            return Err(Failure::unavailable(format!(
                "the volume is on node {}, another agent's",
                handle.node_name
            )));
        }
        let root = self.roots.iter().find(|root| root.path() == handle.root).ok_or_else(|| {
            Failure::unavailable("the agent has no such root any more; give it the --path again that it had")
        })?;
        let place = handle.place()?;
        let volumes = root.volumes().await?;
        let (shared, expected) = (Arc::clone(&volumes), handle.root_id.clone());
        root.run(move || async move { shared.expect_root(&expected).await }).await?;
        Ok((Arc::clone(root), volumes, place))
    }
}

fn handle_of(
    root: &Root,
    volumes: &Volumes<LocalTree>,
    place: &Place,
    node_name: &str,
    node_uid: &str,
) -> Handle {
    Handle {
        root_id: volumes.root_id().clone(),
        root: root.path().to_owned(),
        path: place.path.to_string(),
        volume: place.id.clone(),
        node_name: node_name.to_owned(),
        node_uid: node_uid.to_owned(),
    }
}

pub(crate) fn wanted(request: &Request<Parameters>, handle: &Handle) -> Wanted {
    let notes = [
        (NOTE_NODE_NAME, handle.node_name.as_str()),
        (NOTE_NODE_UID, &handle.node_uid),
        ("namespace", &request.claim.namespace),
        ("claim", &request.claim.name),
        ("class", &request.class_name),
    ];
    Wanted {
        size: request.size,
        mode: request.parameters.mode(),
        uid: request.parameters.uid,
        gid: request.parameters.gid,
        notes: BTreeMap::from(notes.map(|(name, value)| (name.to_owned(), value.to_owned()))),
        intent: request.intent.clone(),
    }
}

fn same_path(one: &str, two: &str) -> bool {
    Path::new(one).components().eq(Path::new(two).components())
}

/// Each path written in one way only, none twice, none in another.
fn plain_paths(paths: &[PathBuf]) -> Result<Vec<String>> {
    let mut plain: Vec<String> = Vec::new();
    for path in paths {
        let proper = path.is_absolute()
            && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
        let text: Option<String> = path.components().collect::<PathBuf>().into_os_string().into_string().ok();
        let text = text.filter(|text| proper && text != "/").ok_or_else(|| {
            Failure::invalid(format!(
                "--path {}: write an absolute path in full, without \"..\" and not \"/\"",
                path.display()
            ))
        })?;
        for other in &plain {
            if *other == text {
                return Err(Failure::invalid(format!("--path {text} is given twice")));
            }
            let (one, two) = (Path::new(&text), Path::new(other));
            if one.starts_with(two) || two.starts_with(one) {
                return Err(Failure::invalid(format!(
                    "--path {text} and --path {other}: no root may contain another; volumes of one would be data of the other"
                )));
            }
        }
        plain.push(text);
    }
    Ok(plain)
}

/// Mistakes stop the agent; a disk that is not there yet does not.
async fn check_roots(roots: &[Arc<Root>], options: LocalOptions) -> Result<()> {
    let mut trees: Vec<(String, LocalTree)> = Vec::new();
    for root in roots {
        let path = root.path().to_owned();
        let opened = root.run(move || async move { Ok(LocalTree::open(Path::new(&path), options)) }).await?;
        match opened {
            Ok(tree) => {
                if let Some((other, _)) = trees.iter().find(|(_, other)| other.is_same_directory(&tree)) {
                    return Err(Failure::invalid(format!(
                        "--path {} and --path {other} are the same directory",
                        root.path()
                    )));
                }
                trees.push((root.path().to_owned(), tree));
            }
            Err(
                error @ (OpenError::NotAbsolute(_)
                | OpenError::Link { .. }
                | OpenError::NotADirectory(_)
                | OpenError::Volatile(_)
                | OpenError::InsideRoot { .. }),
            ) => return Err(Failure::invalid(format!("--path: {error}")).caused_by(error)),
            Err(
                error @ (OpenError::Missing(_)
                | OpenError::NotMounted(_)
                | OpenError::Untrusted(_)
                | OpenError::Io { .. }),
            ) => {
                warn!(
                    root = root.path(),
                    error = &error as &dyn std::error::Error,
                    "A root is not usable now."
                );
            }
        }
    }
    Ok(())
}
