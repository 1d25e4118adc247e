//! The agent on a real directory, with an engine of cardboard.

#[path = "../../volume-tree/tests/common/faulty.rs"]
mod faulty;

use self::faulty::{Die, Faulty};
use crate::agent::wanted;
use crate::{Args, Handle, LocalPath, Parameters};
use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use volwright_provisioner::{
    AccessMode, Binding, BoxFuture, ClaimInfo, ClaimUid, Class, Context, Epoch, Failure, InstallationId,
    Mark, MarkState, NodeInfo, Placement, Pristine, Progress, Provisioner, PvName, Request, Result, Secret,
    SecretRef, Until, VolumeMode, VolumeSource, parse_parameters,
};
use volwright_volume_tree::{LocalOptions, LocalTree, Volumes, make_own_directory};

/// The engine, as far as an agent sees it.
struct FakeContext {
    installation: InstallationId,
    node: Option<NodeInfo>,
    volumes: Mutex<Result<Vec<VolumeSource>, ()>>,
}

impl Context for FakeContext {
    fn installation(&self) -> &InstallationId {
        &self.installation
    }
    fn node(&self) -> Option<&NodeInfo> {
        self.node.as_ref()
    }
    fn secret<'a>(&'a self, _: &'a SecretRef) -> BoxFuture<'a, Result<BTreeMap<String, Secret>>> {
        Box::pin(async { Err(Failure::unavailable("no secrets here")) })
    }
    fn our_volumes(&self) -> BoxFuture<'_, Result<Vec<VolumeSource>>> {
        let volumes = self.volumes.lock().unwrap().clone();
        Box::pin(async { volumes.map_err(|()| Failure::unavailable("the API server is away")) })
    }
}

fn node(labels: &[(&str, &str)]) -> NodeInfo {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    NodeInfo { name: "ip-10-0-0-1.internal".into(), uid: "node-uid".into(), labels }
}

fn context() -> Arc<FakeContext> {
    Arc::new(FakeContext {
        installation: InstallationId::new("installation"),
        node: Some(node(&[("kubernetes.io/hostname", "worker-a")])),
        volumes: Mutex::new(Ok(Vec::new())),
    })
}

struct Disks(tempfile::TempDir);

impl Disks {
    fn new(names: &[&str]) -> Self {
        let chosen = std::env::var_os("VOLWRIGHT_TEST_DIR").unwrap_or_else(|| "/dev/shm".into());
        let dir = tempfile::tempdir_in(chosen).or_else(|_| tempfile::tempdir()).unwrap();
        for name in names {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn args(&self, names: &[&str]) -> Args {
        Args {
            node_name: Some(node(&[]).name),
            path: names.iter().map(|name| self.path(name)).collect(),
            require_mount: false,
            allow_volatile: true,
            init_root: Vec::new(),
        }
    }

    /// Every file and directory, with the size of files.
    fn listing(&self) -> Vec<(PathBuf, u64)> {
        let (mut seen, mut todo) = (Vec::new(), vec![self.0.path().to_owned()]);
        while let Some(path) = todo.pop() {
            let meta = path.symlink_metadata().unwrap();
            if meta.is_dir() {
                todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
            seen.push((path, if meta.is_file() { meta.len() } else { 0 }));
        }
        seen.sort();
        seen
    }

    async fn agent(&self, names: &[&str]) -> LocalPath {
        LocalPath::connect(self.args(names), context()).await.unwrap()
    }
}

fn parameters(entries: &[(&str, &str)]) -> Parameters {
    parse_parameters(&entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()).unwrap()
}

fn request(name: &str, entries: &[(&str, &str)]) -> Request<Parameters> {
    let uid = ClaimUid::new(format!("uid-{name}"));
    let pv_name = PvName::new(format!("pvc-uid-{name}"));
    let mark = Mark {
        installation: InstallationId::new("installation"),
        owner: uid.clone(),
        pv_name: pv_name.clone(),
        epoch: Epoch::default(),
        state: MarkState::Planned,
    };
    let claim = ClaimInfo {
        namespace: "ns".into(),
        name: name.into(),
        uid,
        labels: [].into(),
        annotations: [].into(),
    };
    Request {
        claim,
        pv_name,
        size: 1 << 20,
        access_modes: vec![AccessMode::ReadWriteOnce],
        volume_mode: VolumeMode::Filesystem,
        class_name: "local".into(),
        parameters: parameters(entries),
        node: Some(node(&[])),
        attempt: 0,
        mark,
        intent: None,
    }
}

async fn provision(agent: &LocalPath, request: &Request<Parameters>) -> Result<Handle> {
    let handle = agent.plan(request).await?;
    let Progress::Done(made) = agent.provision(request, &handle).await? else { panic!("pending") };
    assert_eq!((&made.handle, made.size), (&handle, request.size));
    agent.set_mark(&handle, &request.mark.with_state(MarkState::Published)).await?;
    Ok(handle)
}

#[track_caller]
fn refused<T>(result: Result<T>, class: Class, text: &str) {
    let Err(failure) = result else { panic!("not refused: {text}") };
    assert_eq!(failure.class(), class, "{failure:?}");
    assert!(failure.message().contains(text), "{text:?} not in {failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_lives_from_plan_to_delete() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let request = request("data", &[("mode", "2770")]);
    let handle = agent.plan(&request).await.unwrap();
    assert_eq!(handle, agent.plan(&request).await.unwrap());
    assert_eq!(agent.observe(&handle).await.unwrap(), None);
    let Progress::Done(made) = agent.provision(&request, &handle).await.unwrap() else { panic!("pending") };
    assert_eq!(made.topology, [("kubernetes.io/hostname".to_owned(), vec!["worker-a".to_owned()])].into());
    agent.set_mark(&handle, &request.mark.with_state(MarkState::Published)).await.unwrap();

    let VolumeSource::Local { path } = agent.source(&handle) else { panic!("not local") };
    assert_eq!(path, disks.text("a/ns-data-pvc-uid-data"));
    assert_eq!(Path::new(&path).metadata().unwrap().permissions().mode() & 0o7777, 0o2770);
    assert_eq!(disks.path("a").metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    let keys = agent.alias_keys(&agent.source(&handle));
    assert!(keys[0].overlaps(&agent.alias_keys(&VolumeSource::HostPath { path: disks.text("a") })[0]));

    std::fs::write(Path::new(&path).join("file"), "x").unwrap();
    let seen = agent.observe(&handle).await.unwrap().unwrap();
    assert_eq!((seen.mark.unwrap().state, seen.pristine), (MarkState::Published, Pristine::No));
    let items = agent.inventory().await.unwrap();
    assert_eq!((items.len(), &items[0].handle), (1, &handle));
    assert_eq!(agent.delete(&handle, &request.mark).await.unwrap(), Progress::Done(()));
    assert_eq!(agent.delete(&handle, &request.mark).await.unwrap(), Progress::Done(()));
    assert!(!Path::new(&path).exists() && disks.path("a").exists());
    assert!(agent.inventory().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_class_chooses_the_root_else_the_first_with_room() {
    let disks = Disks::new(&["a", "b"]);
    let agent = disks.agent(&["a", "b"]).await;
    let b = disks.text("b");
    assert_eq!(agent.plan(&request("x", &[])).await.unwrap().root, disks.text("a"));
    assert_eq!(agent.plan(&request("x", &[("path", &format!("{b}/"))])).await.unwrap().root, b);
    refused(
        agent.plan(&request("x", &[("path", "/elsewhere")])).await,
        Class::Invalid,
        "\"/elsewhere\" is not among",
    );
    let huge = Request { size: 1 << 62, ..request("x", &[]) };
    refused(agent.plan(&huge).await, Class::Exhausted, "4Ei is asked for");

    // What is recorded stays where it is, wherever the roots' order would put it now.
    let handle = provision(&agent, &request("y", &[("path", &b)])).await.unwrap();
    assert_eq!(agent.plan(&request("y", &[])).await.unwrap(), handle);
    assert!(agent.fits(&request("y", &[("path", &b)]), &handle));
    assert!(!agent.fits(&request("y", &[("path", &disks.text("a"))]), &handle));
    let moved =
        Request { node: Some(NodeInfo { uid: "made again".into(), ..node(&[]) }), ..request("y", &[]) };
    assert!(!agent.fits(&moved, &handle));
    let capacity = agent.capacity(&parameters(&[])).await.unwrap();
    assert!(capacity[0].available > 0 && capacity[0].largest.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_that_is_down_leaves_the_others_working() {
    let disks = Disks::new(&["b"]);
    let agent = disks.agent(&["a", "b"]).await;
    assert_eq!(agent.plan(&request("x", &[])).await.unwrap().root, disks.text("b"));
    let on_a = request("y", &[("path", &disks.text("a"))]);
    refused(agent.plan(&on_a).await, Class::Unavailable, "is the disk mounted?");
    refused(agent.inventory().await.map(drop), Class::Unavailable, "is the disk mounted?");
    // It comes up by itself.
    std::fs::create_dir(disks.path("a")).unwrap();
    provision(&agent, &on_a).await.unwrap();
    assert_eq!(agent.inventory().await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_identity_is_made_only_where_no_volume_of_ours_is_known() {
    let disks = Disks::new(&["a"]);
    let path = disks.text("a");
    let below = |source| vec![VolumeSource::Local { path: "/unrelated".into() }, source];
    let cases = [
        below(VolumeSource::Local { path: format!("{path}/ns-x") }),
        below(VolumeSource::HostPath { path: format!("{path}/deep/er") }),
        below(VolumeSource::Local { path: path.clone() }),
        below(VolumeSource::Local { path: disks.0.path().to_str().unwrap().to_owned() }),
    ];
    for known in cases {
        let context = context();
        let agent = LocalPath::connect(disks.args(&["a"]), context.clone()).await.unwrap();
        *context.volumes.lock().unwrap() = Err(());
        refused(agent.plan(&request("x", &[])).await, Class::Unavailable, "API server is away");
        *context.volumes.lock().unwrap() = Ok(known);
        refused(agent.plan(&request("x", &[])).await, Class::Unavailable, "--init-root");
        assert!(std::fs::read_dir(&path).unwrap().next().is_none(), "nothing is made");
    }
    let context = context();
    *context.volumes.lock().unwrap() = Ok(below(VolumeSource::Local { path: format!("{path}b/x") }));
    let agent = LocalPath::connect(disks.args(&["a"]), context).await.unwrap();
    agent.plan(&request("x", &[])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fresh_root_has_an_empty_inventory_and_one_that_was_ours_has_none() {
    let disks = Disks::new(&["a"]);
    let context = context();
    let agent = LocalPath::connect(disks.args(&["a"]), context.clone()).await.unwrap();
    assert!(agent.inventory().await.unwrap().is_empty(), "else an agent could never begin");
    assert!(std::fs::read_dir(disks.path("a")).unwrap().next().is_none(), "nothing is made");
    let path = format!("{}/ns-x", disks.text("a"));
    *context.volumes.lock().unwrap() = Ok(vec![VolumeSource::Local { path }]);
    refused(agent.inventory().await.map(drop), Class::Unavailable, "--init-root");
    *context.volumes.lock().unwrap() = Err(());
    refused(agent.inventory().await.map(drop), Class::Unavailable, "API server is away");

    *context.volumes.lock().unwrap() = Ok(Vec::new());
    provision(&agent, &request("x", &[])).await.unwrap();
    std::fs::rename(disks.path("a"), disks.path("away")).unwrap();
    std::fs::create_dir(disks.path("a")).unwrap();
    refused(agent.inventory().await.map(drop), Class::Unavailable, "is the disk mounted?");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_swapped_under_a_running_agent_is_noticed() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let request = request("x", &[]);
    let handle = provision(&agent, &request).await.unwrap();
    // The disk goes; the bare mount point shows.
    std::fs::rename(disks.path("a"), disks.path("away")).unwrap();
    std::fs::create_dir(disks.path("a")).unwrap();
    for text in ["is the disk mounted?", "mount the right disk"] {
        refused(agent.observe(&handle).await, Class::Unavailable, text);
        refused(agent.delete(&handle, &request.mark).await, Class::Unavailable, text);
        refused(agent.set_mark(&handle, &request.mark).await, Class::Unavailable, text);
        refused(agent.provision(&request, &handle).await, Class::Unavailable, text);
        if text.starts_with("is") {
            assert!(std::fs::read_dir(disks.path("a")).unwrap().next().is_none(), "nothing is made");
            // Another disk, with an identity of its own.
            let args = Args { init_root: vec![disks.path("a")], ..disks.args(&["a"]) };
            drop(LocalPath::connect(args, context()).await.unwrap());
        }
    }
    // The right one comes back.
    std::fs::rename(disks.path("a"), disks.path("other")).unwrap();
    std::fs::rename(disks.path("away"), disks.path("a")).unwrap();
    assert!(agent.observe(&handle).await.unwrap().is_some());
    assert_eq!(agent.delete(&handle, &request.mark).await.unwrap(), Progress::Done(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_claims_at_once_on_a_fresh_root_get_a_volume_each() {
    let disks = Disks::new(&["a"]);
    let agent = Arc::new(disks.agent(&["a"]).await);
    let calls: Vec<_> = (0..20)
        .map(|n| {
            let agent = Arc::clone(&agent);
            tokio::spawn(async move {
                let mode = format!("07{}{}", n / 8, n % 8);
                provision(&agent, &request(&format!("c{n}"), &[("mode", &mode)])).await
            })
        })
        .collect();
    let mut roots = Vec::new();
    for (n, call) in calls.into_iter().enumerate() {
        let handle = call.await.unwrap().unwrap();
        let mode = Path::new(&handle.full_path()).metadata().unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, u32::try_from(0o700 + n).unwrap());
        roots.push(handle.root_id);
    }
    roots.dedup();
    assert_eq!(roots.len(), 1, "one identity");
    assert_eq!(agent.inventory().await.unwrap().len(), 20);
}

#[tokio::test]
async fn mistakes_in_the_flags_stop_the_agent_with_the_remedy() {
    let disks = Disks::new(&["a", "b"]);
    std::fs::create_dir(disks.path("a/in")).unwrap();
    std::os::unix::fs::symlink(disks.path("a"), disks.path("link")).unwrap();
    std::fs::write(disks.path("file"), "x").unwrap();
    let path = |names: &[&str]| disks.args(names);
    let raw = |text: &str| Args { path: vec![text.into()], ..disks.args(&[]) };
    let cases = [
        (path(&["a", "a"]), "given twice"),
        (path(&["a", "a/in"]), "no root may contain another"),
        (path(&["a/in", "a"]), "no root may contain another"),
        (path(&["link"]), "symbolic link; give the real path"),
        (path(&["file"]), "not a directory"),
        (raw("relative"), "absolute path"),
        (raw("/"), "not \"/\""),
        (raw("/opt/../etc"), "without \"..\""),
        (Args { init_root: vec![disks.path("b")], ..path(&["a"]) }, "not among --path"),
        (Args { init_root: vec![disks.path("file")], ..path(&["file"]) }, "--init-root"),
    ];
    for (args, text) in cases {
        refused(LocalPath::connect(args, context()).await, Class::Invalid, text);
    }
    let nameless = Args { node_name: None, ..path(&["a"]) };
    refused(LocalPath::placement(&nameless), Class::Invalid, "spec.nodeName");
    let named = LocalPath::placement(&path(&["a"])).unwrap();
    assert_eq!(named, Placement::PerNode { node: "ip-10-0-0-1.internal".into() });
    if disks.0.path().starts_with("/dev/shm") {
        let strict = Args { allow_volatile: false, ..path(&["a"]) };
        refused(LocalPath::connect(strict, context()).await, Class::Invalid, "--allow-volatile");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_inside_another_agents_root_is_refused() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    provision(&agent, &request("x", &[])).await.unwrap();
    std::fs::create_dir(disks.path("a/in")).unwrap();
    refused(LocalPath::connect(disks.args(&["a/in"]), context()).await, Class::Invalid, "lies inside");
    // A second agent on the same root waits, and says for whom.
    let second = disks.agent(&["a"]).await;
    refused(second.plan(&request("y", &[])).await, Class::Unavailable, "another agent (process ");
    drop(agent);
    second.plan(&request("y", &[])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_agent_reads_no_inventory_and_writes_nothing() {
    let disks = Disks::new(&["a"]);
    let request = request("x", &[]);
    let named = "another agent (process ";
    // On a fresh root, which the first has locked and not given its identity yet.
    std::fs::set_permissions(disks.path("a"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = LocalOptions { require_mount: false, allow_volatile: true };
    let first = LocalTree::open(&disks.path("a"), options).unwrap();
    make_own_directory(&first).await.unwrap();
    first.lock("the first").unwrap();
    let before = disks.listing();
    let second = disks.agent(&["a"]).await;
    refused(second.plan(&request).await, Class::Unavailable, named);
    let mode = disks.path("a").metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((before, mode), (disks.listing(), 0o755));
    drop(first);

    let first = disks.agent(&["a"]).await;
    let handle = provision(&first, &request).await.unwrap();
    let before = disks.listing();
    refused(second.inventory().await.map(drop), Class::Unavailable, named);
    refused(second.plan(&request).await, Class::Unavailable, named);
    refused(second.observe(&handle).await, Class::Unavailable, named);
    refused(second.provision(&request, &handle).await.map(drop), Class::Unavailable, named);
    refused(second.set_mark(&handle, &request.mark).await, Class::Unavailable, named);
    refused(second.delete(&handle, &request.mark).await.map(drop), Class::Unavailable, named);
    assert_eq!(before, disks.listing());
    drop(first);
    assert_eq!(second.inventory().await.unwrap().len(), 1);
}

/// As a killed agent leaves it: cut off before or after that step of a create. False when it came to its end.
async fn cut_off(disks: &Disks, request: &Request<Parameters>, handle: &Handle, at: usize, die: Die) -> bool {
    let options = LocalOptions { require_mount: false, allow_volatile: true };
    let tree = LocalTree::open(&disks.path("a"), options).unwrap();
    let volumes = Volumes::new(Faulty::new(tree, at, die), handle.root_id.clone());
    let place = handle.place().unwrap();
    let made = volumes.provision(&place, &request.mark, &wanted(request, handle)).await;
    assert_eq!(made.is_err(), volumes.tree().died(), "{made:?}");
    made.is_err()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_killed_at_any_step_of_a_create_leaves_nothing_or_its_intent() {
    let request = Request {
        intent: Some("making".into()),
        ..request("x", &[("pathPattern", "${pvc.namespace}/${pvc.name}")])
    };
    let undo = request.mark.with_state(MarkState::Unpublished);
    let (mut nothing, mut going_on) = (0, 0);
    for die in [Die::Before, Die::After] {
        let mut cut = true;
        for at in 0.. {
            if !cut {
                break;
            }
            let disks = Disks::new(&["a"]);
            let agent = disks.agent(&["a"]).await;
            let handle = agent.plan(&request).await.unwrap();
            assert!(agent.inventory().await.unwrap().is_empty(), "a plan is no record");
            drop(agent);
            cut = cut_off(&disks, &request, &handle, at, die).await;

            let agent = disks.agent(&["a"]).await;
            let items = agent.inventory().await.unwrap();
            let Some(item) = items.first() else {
                nothing += 1;
                assert!(!disks.path("a/ns").exists(), "step {at} {die:?}");
                assert!(std::fs::read_dir(disks.path("a/.volwright/new")).unwrap().next().is_none());
                continue;
            };
            going_on += 1;
            assert_eq!((items.len(), &item.handle), (1, &handle));
            assert_eq!(item.intent.as_deref(), Some("making"), "step {at} {die:?}");
            assert_eq!(item.observed.pristine, Pristine::Yes);
            let state = item.observed.mark.as_ref().unwrap().state;
            assert!(matches!(state, MarkState::Planned | MarkState::Unpublished), "{state:?}");
            // The next process goes on with it, or undoes it.
            if at % 2 == 0 {
                agent.provision(&request, &handle).await.unwrap();
                let items = agent.inventory().await.unwrap();
                assert_eq!(items[0].intent.as_deref(), Some("making"), "until it is published");
                agent.set_mark(&handle, &request.mark.with_state(MarkState::Published)).await.unwrap();
                let items = agent.inventory().await.unwrap();
                assert_eq!((items.len(), items[0].intent.as_deref()), (1, None));
            } else {
                assert_eq!(agent.delete(&handle, &undo).await.unwrap(), Progress::Done(()));
                assert!(agent.inventory().await.unwrap().is_empty());
                assert!(!disks.path("a/ns").exists(), "step {at} {die:?}");
            }
        }
    }
    assert!(nothing > 10 && going_on > 20, "{nothing} {going_on}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_takes_nothing_that_was_written() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let request = Request { intent: Some("making".into()), ..request("x", &[]) };
    let handle = agent.plan(&request).await.unwrap();
    agent.provision(&request, &handle).await.unwrap();
    let file = Path::new(&handle.full_path()).join("file");
    std::fs::write(&file, "precious").unwrap();
    let undo = request.mark.with_state(MarkState::Unpublished);
    let operator = Class::Blocked(Until::OperatorActs);
    refused(agent.delete(&handle, &undo).await.map(drop), operator, "not empty any more");
    assert!(file.exists());
    // Its PV exists after all, and is released: what is in it goes with it.
    let released = request.mark.with_state(MarkState::Published);
    assert_eq!(agent.delete(&handle, &released).await.unwrap(), Progress::Done(()));
    assert!(!file.exists() && agent.inventory().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_cannot_be_read_keeps_its_volume_and_hides_no_other() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let (x, y) = (request("x", &[]), request("y", &[]));
    let (broken, good) = (provision(&agent, &x).await.unwrap(), provision(&agent, &y).await.unwrap());
    std::fs::write(disks.path("a/.volwright/records/ns-x-pvc-uid-x.json"), "{broken").unwrap();
    let before = disks.listing();
    let items = agent.inventory().await.unwrap();
    assert_eq!(items.iter().map(|item| &item.handle).collect::<Vec<_>>(), [&good]);
    let operator = Class::Blocked(Until::OperatorActs);
    for state in [MarkState::Unpublished, MarkState::Published] {
        let deleted = agent.delete(&broken, &x.mark.with_state(state)).await;
        refused(deleted.map(drop), operator, "cannot be read");
    }
    refused(agent.observe(&broken).await, operator, "cannot be read");
    refused(agent.provision(&x, &broken).await.map(drop), operator, "cannot be read");
    assert_eq!(before, disks.listing());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_hostname_label_is_named_before_anything_is_made() {
    let disks = Disks::new(&["a"]);
    let bare = Arc::new(FakeContext {
        installation: InstallationId::new("installation"),
        node: Some(node(&[])),
        volumes: Mutex::new(Ok(Vec::new())),
    });
    let agent = LocalPath::connect(disks.args(&["a"]), bare).await.unwrap();
    refused(agent.plan(&request("x", &[])).await, Class::Unavailable, "no label kubernetes.io/hostname");
    assert!(std::fs::read_dir(disks.path("a")).unwrap().next().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forged_handle_leads_nowhere() {
    let disks = Disks::new(&["a", "outside"]);
    let agent = disks.agent(&["a"]).await;
    let request = request("x", &[]);
    let good = provision(&agent, &request).await.unwrap();
    std::fs::write(disks.path("outside/file"), "precious").unwrap();
    let cases = [
        (Handle { root: disks.text("outside"), ..good.clone() }, Class::Unavailable),
        (Handle { path: "../outside".into(), ..good.clone() }, Class::Blocked(Until::OperatorActs)),
        (Handle { path: String::new(), ..good.clone() }, Class::Blocked(Until::OperatorActs)),
        (Handle { path: ".".into(), ..good.clone() }, Class::Blocked(Until::OperatorActs)),
        (Handle { path: ".volwright".into(), ..good.clone() }, Class::Blocked(Until::OperatorActs)),
        (Handle { path: ".volwright/records".into(), ..good.clone() }, Class::Blocked(Until::OperatorActs)),
        (Handle { node_name: "other".into(), ..good.clone() }, Class::Unavailable),
    ];
    for (handle, class) in cases {
        for result in [
            agent.delete(&handle, &request.mark).await.map(drop),
            agent.observe(&handle).await.map(drop),
            agent.set_mark(&handle, &request.mark).await,
        ] {
            assert_eq!(result.unwrap_err().class(), class, "{handle:?}");
        }
    }
    for volume in ["..", "../../../outside", ""] {
        let mut json = serde_json::to_value(&good).unwrap();
        json["volume"] = volume.into();
        serde_json::from_value::<Handle>(json).unwrap_err();
    }
    assert!(disks.path("outside/file").exists() && Path::new(&good.full_path()).exists());
}

/// Stored on PVs: a change without a new `HANDLE_VERSION` would orphan them.
#[test]
fn the_handle_is_written_as_it_was() {
    let text = r#"{"rootId":"00112233445566778899aabbccddeeff","root":"/opt/volwright","path":"ns-data-pvc-1","volume":"0123456789abcdef0123456789abcdef","nodeName":"n1","nodeUid":"u1"}"#;
    let handle: Handle = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&handle).unwrap(), text);
    assert_eq!(handle.full_path(), "/opt/volwright/ns-data-pvc-1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_is_never_longer_than_the_engine_stores() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let deep = ["x".repeat(250).as_str(); 15].join("/");
    refused(agent.plan(&request("x", &[("pathPattern", &deep)])).await, Class::Invalid, "too long");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_class_offers_and_why_not_more() {
    let disks = Disks::new(&["a"]);
    let agent = disks.agent(&["a"]).await;
    let offered = agent.capabilities(&parameters(&[])).unwrap();
    let offers = |volume, access| offered.offers(volume, &[access]);
    assert!(offers(VolumeMode::Filesystem, AccessMode::ReadWriteOnce));
    assert!(offers(VolumeMode::Filesystem, AccessMode::ReadWriteOncePod));
    assert!(!offers(VolumeMode::Filesystem, AccessMode::ReadWriteMany));
    assert!(!offers(VolumeMode::Block, AccessMode::ReadWriteOnce));
    assert!(offered.sees_contents, "a directory is empty or it is not");
    let Binding::LateOnly { reason } = offered.binding else { panic!("{offered:?}") };
    assert!(reason.contains("WaitForFirstConsumer"));
    refused(agent.capabilities(&parameters(&[("path", "mnt")])).map(drop), Class::Invalid, "not absolute");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_sees_each_root() {
    let disks = Disks::new(&["a", "open"]);
    std::fs::write(disks.path("open/file"), "x").unwrap();
    std::fs::set_permissions(disks.path("open"), std::fs::Permissions::from_mode(0o777)).unwrap();
    let agent = disks.agent(&["a", "open", "gone"]).await;
    let outcome = async |subject: &str| {
        let subject = format!("root {}", disks.text(subject));
        let lines = agent.check().await;
        let line = lines.iter().find(|line| line.subject == subject);
        line.unwrap_or_else(|| panic!("{subject}: {lines:?}")).outcome.clone()
    };
    assert!(outcome("a, identity").await.unwrap().contains("none yet"));
    assert!(outcome("a, access").await.unwrap_err().contains("chmod 0700"), "as mkdir makes it");
    assert!(!disks.path("a/.volwright").exists(), "looking changes nothing");
    agent.plan(&request("x", &[])).await.unwrap();
    assert_eq!(outcome("a, access").await, Ok("mode 0700".to_owned()));
    assert!(outcome("a").await.is_ok() && outcome("a, free space").await.is_ok());
    assert_eq!(outcome("a, identity").await.unwrap().len(), 32);
    assert!(outcome("open, access").await.unwrap_err().contains("chmod 0700"));
    assert!(outcome("gone").await.unwrap_err().contains("does not exist"));
}
