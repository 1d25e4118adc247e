//! `cargo xtask demo`: the product's story on a real control plane, told as it happens.

use anyhow::{Context as _, bail};
use serde_json::Value;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_lab::{ControlPlane, Keeper, control_plane::Options};

/// Show a claim become a volume on a real Kubernetes control plane, and what happens to the data afterwards.
///
/// Builds what it needs (the first time takes some minutes), starts etcd, kube-apiserver, kube-controller-manager and
/// kube-scheduler on 127.0.0.1 and the local-path agent of one node, tells the story, and removes everything again. Needs
/// neither root nor containers: there is no kubelet, so pods get scheduled and do not run.
#[derive(Debug, clap::Parser)]
pub(crate) struct Args {
    /// Leave it running afterwards, say how to go on by hand, and end on Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Use the cluster of this kubeconfig instead of starting one; the demo makes and removes its own namespace, node and
    /// classes there
    #[arg(long, value_name = "FILE", env = "VOLWRIGHT_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Two cores that also compile are slow; nothing here takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(60);

const NAMESPACE: &str = "volwright-demo";
const NODE: &str = "demo-node";

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let story = Story::begin(&args).await?;
    let told = story.tell().await;
    if told.is_err() {
        eprintln!("\nthe agent's log is in {}", story.log.display());
        if let Ok(log) = std::fs::read_to_string(&story.log) {
            let lines: Vec<_> = log.lines().collect();
            lines[lines.len().saturating_sub(20)..].iter().for_each(|line| eprintln!("  {line}"));
        }
    }
    if args.keep && told.is_ok() {
        story.how_to_go_on();
        tokio::signal::ctrl_c().await.context("cannot wait for Ctrl-C")?;
    }
    story.end().await;
    told
}

struct Story {
    plane: ControlPlane,
    /// Kills the agent and removes the disk's folder when this process ends, however it ends.
    keeper: Keeper,
    disk: PathBuf,
    log: PathBuf,
    colours: bool,
    agent: std::process::Child,
}

impl Story {
    async fn begin(args: &Args) -> anyhow::Result<Self> {
        let binary = build()?;
        let plane = match &args.kubeconfig {
            Some(kubeconfig) => ControlPlane::external(kubeconfig).await?,
            None => ControlPlane::start(Options::default()).await?,
        };
        let keeper = Keeper::new("volwright-demo")?;
        let disk = keeper.dir().join("disk");
        std::fs::create_dir(&disk).context("cannot make a folder for the demo's disk")?;
        let log = keeper.dir().join("agent.log");
        make(&plane, &setting())?;
        let file = std::fs::File::create(&log).context("cannot write the agent's log")?;
        let mut command = Command::new(binary);
        command
            .args(["run", "--node-name", NODE, "--allow-volatile", "--http-address", "127.0.0.1:0", "--path"])
            .arg(&disk)
            .arg("--kubeconfig")
            .arg(plane.kubeconfig())
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let agent = keeper.spawn(&mut command).context("cannot start the agent")?;
        let colours = std::io::stdout().is_terminal();
        Ok(Self { plane, keeper, disk, log, colours, agent })
    }

    async fn tell(&self) -> anyhow::Result<()> {
        self.head("A storage class, a claim, and a pod that wants it");
        say(
            "The volume is made on the node that the scheduler chooses for the pod, so the class binds late.",
        );
        make(&self.plane, &classes())?;
        self.show(&["get", "storageclass", "demo", "demo-keep", "-o", "wide"])?;
        make(&self.plane, &claim_and_pod("data", "demo", "ReadWriteOnce"))?;
        let started = Instant::now();
        self.until("the claim is bound", || self.phase("data"), |phase| phase == "Bound").await?;
        say(&format!("Bound after {:.1} s, most of it the scheduler's.", started.elapsed().as_secs_f64()));
        self.show(&["get", "persistentvolumeclaim", "-o", "wide"])?;
        self.events("data").await?;
        let pv = self.field("pvc", "data", "{.spec.volumeName}")?;
        self.head("What was published");
        let columns = "NAME:.metadata.name,POLICY:.spec.persistentVolumeReclaimPolicy,PATH:.spec.local.path,\
                       NODE:.spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0],\
                       BY:.metadata.annotations.pv\\.kubernetes\\.io/provisioned-by";
        self.show(&["get", "pv", &pv, "-o", &format!("custom-columns={columns}")])?;
        say("And on the node's disk, with owner and mode:");
        self.list_disk();

        self.head("A claim that cannot be served is told why, and what to do");
        make(&self.plane, &claim_and_pod("shared", "demo", "ReadWriteMany"))?;
        self.warning("shared").await?;
        make(&self.plane, &claim_and_pod("typo", "demo-typo", "ReadWriteOnce"))?;
        self.warning("typo").await?;

        self.head("The claim goes, and its data with it");
        self.remove("data")?;
        self.until("the PV is gone", || self.exists("pv", &pv), |there| !there).await?;
        self.show(&["get", "pv"])?;
        self.list_disk();

        self.head("onDelete: retain keeps the data and says where it is");
        make(&self.plane, &claim_and_pod("precious", "demo-keep", "ReadWriteOnce"))?;
        self.until("the claim is bound", || self.phase("precious"), |phase| phase == "Bound").await?;
        let pv = self.field("pvc", "precious", "{.spec.volumeName}")?;
        self.remove("precious")?;
        self.until("the PV is gone", || self.exists("pv", &pv), |there| !there).await?;
        self.list_disk();
        self.volume_event(&pv, "VolumeRetained").await
    }

    fn how_to_go_on(&self) {
        self.head("Go on by hand");
        println!("  export KUBECONFIG={}", self.plane.kubeconfig().display());
        println!("  alias kubectl={}", self.plane.kubectl().display());
        println!("  kubectl -n {NAMESPACE} get pvc,pv,pod");
        println!("  ls -la {}", self.disk.display());
        println!("  tail -f {}", self.log.display());
        println!("\nCtrl-C ends it and removes everything.");
    }

    async fn end(mut self) {
        let things = [
            &["delete", "namespace", NAMESPACE, "--wait=false"][..],
            &["delete", "node", NODE],
            &["delete", "storageclass", "demo", "demo-keep", "demo-typo"],
        ];
        for thing in things {
            // A control plane of our own goes as a whole; in another's this is all that can be done.
            self.kubectl(thing).stdout(Stdio::null()).stderr(Stdio::null()).status().ok();
        }
        self.agent.kill().ok();
        self.agent.wait().ok();
        self.plane.stop().await;
        drop(self.keeper);
    }

    fn kubectl(&self, words: &[&str]) -> Command {
        let mut command = self.plane.kubectl_command();
        command.args(words);
        command
    }

    fn ask(&self, words: &[&str]) -> anyhow::Result<String> {
        let output = self.kubectl(words).output().context("kubectl cannot be run")?;
        if !output.status.success() {
            bail!("kubectl {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn field(&self, kind: &str, name: &str, path: &str) -> anyhow::Result<String> {
        self.ask(&["-n", NAMESPACE, "get", kind, name, "-o", &format!("jsonpath={path}")])
    }

    fn phase(&self, claim: &str) -> anyhow::Result<String> {
        self.field("pvc", claim, "{.status.phase}")
    }

    fn exists(&self, kind: &str, name: &str) -> anyhow::Result<bool> {
        Ok(!self.ask(&["get", kind, name, "--ignore-not-found", "-o", "name"])?.is_empty())
    }

    async fn until<T>(
        &self,
        what: &str,
        look: impl Fn() -> anyhow::Result<T>,
        enough: impl Fn(&T) -> bool,
    ) -> anyhow::Result<T> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let seen = look()?;
            if enough(&seen) {
                return Ok(seen);
            }
            if Instant::now() > deadline {
                bail!("{what}: not within {PATIENCE:?}");
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn remove(&self, name: &str) -> anyhow::Result<()> {
        // No kubelet ends the pod, so it is removed at once.
        self.ask(&["-n", NAMESPACE, "delete", "pod", name, "--force", "--grace-period=0"])?;
        self.command_line(&["delete", "pvc", name]);
        self.ask(&["-n", NAMESPACE, "delete", "pvc", name])?;
        Ok(())
    }

    fn head(&self, text: &str) {
        if self.colours { println!("\n\x1b[1;36m{text}\x1b[0m") } else { println!("\n=== {text}") }
    }

    fn command_line(&self, words: &[&str]) {
        let line = format!("$ kubectl {}", words.join(" "));
        if self.colours { println!("\x1b[2m{line}\x1b[0m") } else { println!("{line}") }
    }

    fn show(&self, words: &[&str]) -> anyhow::Result<()> {
        self.command_line(words);
        let mut all = vec!["-n", NAMESPACE];
        all.extend(words);
        // What it says on stderr ("No resources found") belongs to the story.
        let output = self.kubectl(&all).output().context("kubectl cannot be run")?;
        let mut out = std::io::stdout().lock();
        out.write_all(&output.stdout)?;
        out.write_all(&output.stderr)?;
        Ok(())
    }

    fn event_list(&self, claim: &str) -> anyhow::Result<Vec<(String, String, String)>> {
        let filter = format!("--field-selector=involvedObject.name={claim}");
        let list = self.ask(&["get", "events", "-A", &filter, "-o", "json"])?;
        let list: Value = serde_json::from_str(&list).context("kubectl's JSON")?;
        let text = |event: &Value, key: &str| event[key].as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|e| (text(e, "type"), text(e, "reason"), text(e, "message"))).collect())
    }

    fn event_line(&self, (kind, reason, message): &(String, String, String)) {
        let mark = if kind == "Warning" { "\x1b[33m" } else { "\x1b[32m" };
        let (on, off) = if self.colours { (mark, "\x1b[0m") } else { ("", "") };
        println!("  {on}{kind:8}{reason}{off}: {}", message.replace('\n', "\n    "));
    }

    async fn events(&self, claim: &str) -> anyhow::Result<()> {
        let done =
            |events: &Vec<(String, String, String)>| events.iter().any(|e| e.1 == "ProvisioningSucceeded");
        let events = self.until("the event of success", || self.event_list(claim), done).await?;
        self.command_line(&["describe", "pvc", claim, "# its events"]);
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
        self.command_line(&["describe", "pvc", claim, "# its warning"]);
        for event in events.iter().filter(ours) {
            self.event_line(event);
        }
        Ok(())
    }

    async fn volume_event(&self, pv: &str, reason: &str) -> anyhow::Result<()> {
        let found = |events: &Vec<(String, String, String)>| events.iter().any(|e| e.1 == reason);
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

fn build() -> anyhow::Result<PathBuf> {
    eprintln!("Building the local-path agent ...");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--quiet", "-p", "volwright-local-path"])
        .current_dir(super::tidy::root())
        .env("CARGO_TARGET_DIR", super::test::target_dir())
        .status()
        .context("cargo cannot be run")?;
    if !status.success() {
        bail!("the agent cannot be built; cargo has said why");
    }
    Ok(super::test::target_dir().join("debug/volwright-local-path"))
}

fn make(plane: &ControlPlane, manifests: &str) -> anyhow::Result<()> {
    let mut child = plane
        .kubectl_command()
        .args(["apply", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("kubectl cannot be run")?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(manifests.as_bytes()).context("kubectl does not read")?;
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("kubectl apply: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    status_of_node(plane)
}

/// The scheduler counts pods against what a kubelet would report. There is none, so we say it.
fn status_of_node(plane: &ControlPlane) -> anyhow::Result<()> {
    let patch = r#"{"status":{"capacity":{"pods":"110","cpu":"8","memory":"16Gi"},"allocatable":{"pods":"110","cpu":"8","memory":"16Gi"}}}"#;
    let status = plane
        .kubectl_command()
        .args(["patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch])
        .stdout(Stdio::null())
        .status()
        .context("kubectl cannot be run")?;
    if status.success() { Ok(()) } else { bail!("the demo's node cannot be given room for pods") }
}

fn setting() -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: {NAMESPACE}\n---\n\
         apiVersion: v1\nkind: Node\nmetadata:\n  name: {NODE}\n  labels:\n    kubernetes.io/hostname: {NODE}\n"
    )
}

fn classes() -> String {
    let class = |name: &str, parameters: &str| {
        format!(
            "---\napiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata:\n  name: {name}\n\
             provisioner: local-path.volwright.io\nvolumeBindingMode: WaitForFirstConsumer\n{parameters}"
        )
    };
    let mut all = class("demo", "parameters:\n  mode: \"0750\"\n");
    all.push_str(&class("demo-keep", "parameters:\n  onDelete: retain\n"));
    all.push_str(&class("demo-typo", "parameters:\n  pathPatern: ${pvc.name}\n"));
    all
}

fn claim_and_pod(name: &str, class: &str, mode: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata:\n  name: {name}\n  namespace: {NAMESPACE}\nspec:\n  \
         storageClassName: {class}\n  accessModes: [{mode}]\n  resources:\n    requests:\n      storage: 10Mi\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: {NAMESPACE}\nspec:\n  \
         tolerations: [{{operator: Exists}}]\n  containers:\n  - name: app\n    image: none\n    volumeMounts:\n    \
         - {{name: data, mountPath: /data}}\n  volumes:\n  - name: data\n    persistentVolumeClaim: {{claimName: {name}}}\n"
    )
}
