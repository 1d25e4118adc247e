//! What is done and said.

use anyhow::{Context as _, bail};
use serde_json::Value;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_lab::Keeper;

use super::Args;
use super::cluster::{CLAIMS, CLASSES, Cluster, Kind, NAMESPACES, NODES, PODS, VOLUMES};
use super::manifests::{self, NAMESPACE, NODE};
use super::table;

/// Two cores that also compile are slow; nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

/// One event: type, reason, message.
type Happened = (String, String, String);

pub(super) struct Story {
    cluster: Cluster,
    /// Kills the agent and removes the disk's folder when this process ends, however it ends.
    keeper: Keeper,
    disk: PathBuf,
    log: PathBuf,
    colours: bool,
    agent: std::process::Child,
}

impl Story {
    /// Starts the cluster, and the agent of its only node.
    pub(super) async fn begin(args: &Args, binary: &Path) -> anyhow::Result<Self> {
        let keeper = Keeper::new("volwright-demo")?;
        let disk = keeper.dir().join("disk");
        std::fs::create_dir(&disk).context("cannot make a folder for the demo's disk")?;
        let log = keeper.dir().join("agent.log");
        let cluster = Cluster::start(args, keeper.dir(), NAMESPACE).await?;
        cluster.create(NAMESPACES, &manifests::namespace()).await?;
        cluster.create(NODES, &manifests::node()).await?;
        cluster.patch_status(NODES, NODE, &manifests::room_for_pods()).await?;
        let file = std::fs::File::create(&log).context("cannot write the agent's log")?;
        let mut command = Command::new(binary);
        command
            .args(["run", "--node-name", NODE, "--allow-volatile", "--http-address", "127.0.0.1:0", "--path"])
            .arg(&disk)
            .arg("--kubeconfig")
            .arg(cluster.kubeconfig())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let agent = keeper.spawn(&mut command).context("cannot start the agent")?;
        let colours = std::io::stdout().is_terminal();
        Ok(Self { cluster, keeper, disk, log, colours, agent })
    }

    pub(super) async fn tell(&self) -> anyhow::Result<()> {
        say(&self.cluster.is_what());
        self.head("A storage class, a claim, and a pod that wants it");
        say(
            "The volume is made on the node that the scheduler chooses for the pod, so the class binds late.",
        );
        for class in manifests::classes() {
            self.cluster.create(CLASSES, &class).await?;
        }
        self.show(CLASSES, "get storageclass demo demo-keep -o wide").await?;
        self.claim_and_pod("data", "demo", "ReadWriteOnce").await?;
        let started = Instant::now();
        self.until("the claim is bound", || self.phase("data"), |phase| phase == "Bound").await?;
        say(&format!("Bound after {:.1} s.", started.elapsed().as_secs_f64()));
        self.show(CLAIMS, "get persistentvolumeclaim -o wide").await?;
        self.events("data").await?;
        let pv = self.volume_of("data").await?;
        self.head("What was published");
        self.show_volume(&pv).await?;
        say("And on the node's disk, with owner and mode:");
        self.list_disk();

        self.head("A claim that cannot be served is told why, and what to do");
        self.claim_and_pod("shared", "demo", "ReadWriteMany").await?;
        self.warning("shared").await?;
        self.claim_and_pod("typo", "demo-typo", "ReadWriteOnce").await?;
        self.warning("typo").await?;

        self.head("The claim goes, and its data with it");
        self.remove("data").await?;
        self.until("the PV is gone", || self.is_volume(&pv), |there| !there).await?;
        self.show(VOLUMES, "get pv").await?;
        self.list_disk();

        self.head("onDelete: retain keeps the data and says where it is");
        self.claim_and_pod("precious", "demo-keep", "ReadWriteOnce").await?;
        self.until("the claim is bound", || self.phase("precious"), |phase| phase == "Bound").await?;
        let pv = self.volume_of("precious").await?;
        self.remove("precious").await?;
        self.until("the PV is gone", || self.is_volume(&pv), |there| !there).await?;
        self.list_disk();
        self.volume_event(&pv, "VolumeRetained").await
    }

    pub(super) fn how_to_go_on(&self) {
        self.head("Go on by hand");
        for line in self.cluster.how_to_reach_it() {
            println!("  {line}");
        }
        println!("  kubectl -n {NAMESPACE} get pvc,pv,pod");
        println!("  ls -la {}", self.disk.display());
        println!("  tail -f {}", self.log.display());
        println!("\nCtrl-C ends it and removes everything.");
    }

    /// For when it went wrong.
    pub(super) fn show_log(&self) {
        eprintln!("\nthe end of the agent's log:");
        if let Ok(log) = std::fs::read_to_string(&self.log) {
            let lines: Vec<_> = log.lines().collect();
            lines[lines.len().saturating_sub(20)..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }

    pub(super) async fn end(mut self) {
        if self.cluster.stays() {
            let classes = ["demo", "demo-keep", "demo-typo"].map(|name| (CLASSES, name));
            for (kind, name) in [(NAMESPACES, NAMESPACE), (NODES, NODE)].into_iter().chain(classes) {
                if let Err(error) = self.cluster.delete(kind, name).await {
                    eprintln!("{name} could not be removed: {error:#}");
                }
            }
        }
        self.agent.kill().ok();
        self.agent.wait().ok();
        self.cluster.stop().await;
        drop(self.keeper);
    }

    async fn claim_and_pod(&self, name: &str, class: &str, mode: &str) -> anyhow::Result<()> {
        let ready = || self.cluster.is_ready_for_pods();
        self.until("the namespace can take pods", ready, |ready| *ready).await?;
        self.cluster.create(CLAIMS, &manifests::claim(name, class, mode)).await?;
        self.cluster.create(PODS, &manifests::pod(name)).await
    }

    async fn field(&self, kind: Kind, name: &str, path: &str) -> anyhow::Result<String> {
        let object = self.cluster.get(kind, name).await?.with_context(|| format!("{name} is not there"))?;
        Ok(object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned())
    }

    async fn phase(&self, claim: &str) -> anyhow::Result<String> {
        self.field(CLAIMS, claim, "/status/phase").await
    }

    async fn volume_of(&self, claim: &str) -> anyhow::Result<String> {
        self.field(CLAIMS, claim, "/spec/volumeName").await
    }

    async fn is_volume(&self, name: &str) -> anyhow::Result<bool> {
        Ok(self.cluster.get(VOLUMES, name).await?.is_some())
    }

    async fn until<T, F: Future<Output = anyhow::Result<T>>>(
        &self,
        what: &str,
        look: impl Fn() -> F,
        enough: impl Fn(&T) -> bool,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = look().await?;
            if enough(&seen) {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                bail!("{what}: not within {PATIENCE:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn remove(&self, name: &str) -> anyhow::Result<()> {
        self.cluster.delete(PODS, name).await?;
        self.command_line(&format!("delete pvc {name}"));
        self.cluster.delete(CLAIMS, name).await
    }

    fn head(&self, text: &str) {
        if self.colours { println!("\n\x1b[1;36m{text}\x1b[0m") } else { println!("\n=== {text}") }
    }

    /// What a user would type to see the same.
    fn command_line(&self, words: &str) {
        let line = format!("$ kubectl {words}");
        if self.colours { println!("\x1b[2m{line}\x1b[0m") } else { println!("{line}") }
    }

    /// What kubectl would print, for `get KIND [NAME...] [-o wide]`.
    async fn show(&self, kind: Kind, words: &str) -> anyhow::Result<()> {
        self.command_line(words);
        let (words, wide) = words.strip_suffix(" -o wide").map_or((words, false), |words| (words, true));
        let names: Vec<&str> = words.split(' ').skip(2).collect();
        let table = self.cluster.table(kind).await?;
        for line in table::of_server(&table, &names, wide) {
            println!("{line}");
        }
        Ok(())
    }

    async fn show_volume(&self, name: &str) -> anyhow::Result<()> {
        let columns = [
            ("NAME", "/metadata/name"),
            ("POLICY", "/spec/persistentVolumeReclaimPolicy"),
            ("PATH", "/spec/local/path"),
            ("NODE", "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0"),
            ("BY", "/metadata/annotations/pv.kubernetes.io~1provisioned-by"),
        ];
        self.command_line(&format!("get pv {name} # some of its fields"));
        let volume =
            self.cluster.get(VOLUMES, name).await?.with_context(|| format!("{name} is not there"))?;
        let head = columns.map(|(title, _)| title.to_owned()).to_vec();
        let cell = |path| volume.pointer(path).and_then(Value::as_str).unwrap_or("<none>").to_owned();
        let row = columns.map(|(_, path)| cell(path)).to_vec();
        for line in table::lines(head, vec![row]) {
            println!("{line}");
        }
        Ok(())
    }

    async fn event_list(&self, about: &str) -> anyhow::Result<Vec<Happened>> {
        let events = self.cluster.events(about).await?;
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        Ok(events.iter().map(|e| (text(e, "type"), text(e, "reason"), text(e, "message"))).collect())
    }

    fn event_line(&self, (kind, reason, message): &Happened) {
        let mark = if kind == "Warning" { "\x1b[33m" } else { "\x1b[32m" };
        let (on, off) = if self.colours { (mark, "\x1b[0m") } else { ("", "") };
        println!("  {on}{kind:8}{reason}{off}: {}", message.replace('\n', "\n    "));
    }

    async fn events(&self, claim: &str) -> anyhow::Result<()> {
        let done = |events: &Vec<Happened>| events.iter().any(|e| e.1 == "ProvisioningSucceeded");
        let events = self.until("the event of success", || self.event_list(claim), done).await?;
        self.command_line(&format!("describe pvc {claim} # its events"));
        for event in &events {
            self.event_line(event);
        }
        Ok(())
    }

    async fn warning(&self, claim: &str) -> anyhow::Result<()> {
        let ours = |e: &&(String, String, String)| e.1 == "ProvisioningFailed";
        let events = self
            .until("a warning", || self.event_list(claim), |events| events.iter().any(|e| ours(&e)))
            .await?;
        self.command_line(&format!("describe pvc {claim} # its warning"));
        for event in events.iter().filter(ours) {
            self.event_line(event);
        }
        Ok(())
    }

    async fn volume_event(&self, pv: &str, reason: &str) -> anyhow::Result<()> {
        let found = |events: &Vec<Happened>| events.iter().any(|e| e.1 == reason);
        let events = self.until(reason, || self.event_list(pv), found).await?;
        for event in events.iter().filter(|event| event.1 == reason) {
            self.event_line(event);
        }
        Ok(())
    }

    fn list_disk(&self) {
        println!("$ ls -l {}", self.disk.display());
        // `ls` shows what people expect: owner, group, mode.
        if let Ok(output) = Command::new("ls").arg("-l").arg(&self.disk).output() {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            text.lines().filter(|line| !line.starts_with("total")).for_each(|line| println!("  {line}"));
            if text.lines().count() <= 1 {
                println!("  (nothing)");
            }
        }
    }
}

fn say(text: &str) {
    println!("{text}");
}
