//! Our own control plane's servers: starting, stopping, and waiting until they serve.

use std::{
    env, fs,
    future::Future,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::{
    Options,
    arguments::{self, Layout},
    binaries::{Binaries, Binary},
    certificates::Certificates,
    kubeconfig,
};
use crate::{Keeper, Server, free_port, is_open};

/// Ready takes 5 s on two idle cores; a busy machine gets ten times that before we give up.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// A port is lost only when somebody takes it in the moment between choosing and listening.
const PORT_TRIES: usize = 5;

/// A server of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// etcd.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-controller-manager.
    ControllerManager,
    /// kube-scheduler.
    Scheduler,
}

/// Fields drop in order: the servers end first, in the order of who calls whom, then the keeper and the files.
#[derive(Debug)]
pub(super) struct Servers {
    scheduler: Option<Server>,
    kcm: Option<Server>,
    api_server: Option<Server>,
    etcd: Option<Server>,
    pub(super) options: Options,
    api_port: u16,
    etcd_ports: (u16, u16),
    pub(super) layout: Layout,
    certificates: Certificates,
    binaries: Binaries,
    keeper: Keeper,
}

impl Servers {
    pub(super) async fn start(options: Options, binaries: Binaries) -> anyhow::Result<Self> {
        let keeper = Keeper::new("volwright-control-plane-")?;
        let layout = Layout { dir: keeper.dir().to_owned() };
        fs::create_dir_all(layout.logs())?;
        fs::write(layout.audit_policy(), arguments::AUDIT_POLICY)?;
        let certificates = Certificates::create(&layout.certificates())?;
        let (api_port, etcd_ports) = (0, (0, 0));
        let mut servers = Self {
            scheduler: None,
            kcm: None,
            api_server: None,
            etcd: None,
            options,
            api_port,
            etcd_ports,
            layout,
            certificates,
            binaries,
            keeper,
        };
        servers.first_start_of_etcd().await?;
        servers.first_start_of_api_server().await?;
        if let Some(etcd) = &mut servers.etcd {
            etcd.check()?; // else it was somebody else's etcd that answered on its port
        }
        servers.start_clients()?;
        servers.wait_for_clients().await?;
        Ok(servers)
    }

    pub(super) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.api_port)
    }

    pub(super) fn admin(&self) -> PathBuf {
        self.layout.kubeconfig("admin")
    }

    pub(super) fn client_for(&self, user: &str, groups: &[&str]) -> anyhow::Result<PathBuf> {
        let pair = self.certificates.client(user, groups)?;
        // The certificate's file name is one that no other user has.
        let stem = pair.certificate.file_stem().and_then(|stem| stem.to_str()).unwrap_or("client");
        let file = self.layout.kubeconfig(stem);
        self.write_kubeconfig(&file, user, &pair)?;
        Ok(file)
    }

    /// The servers that run, with the port each serves.
    pub(super) fn running(&self) -> impl Iterator<Item = (&Server, Option<u16>)> {
        [
            (self.etcd.as_ref(), Some(self.etcd_ports.0)),
            (self.api_server.as_ref(), Some(self.api_port)),
            (self.kcm.as_ref(), None),
            (self.scheduler.as_ref(), None),
        ]
        .into_iter()
        .filter_map(|(server, port)| Some((server?, port)))
    }

    pub(super) fn server(&self, component: Component) -> anyhow::Result<&Server> {
        match component {
            Component::Etcd => self.etcd.as_ref(),
            Component::ApiServer => self.api_server.as_ref(),
            Component::ControllerManager => self.kcm.as_ref(),
            Component::Scheduler => self.scheduler.as_ref(),
        }
        .with_context(|| format!("{component:?} does not run: it was stopped, or the options left it out"))
    }

    pub(super) fn stop_api_server(&mut self) -> anyhow::Result<()> {
        if self.api_server.take().is_none() {
            bail!("the API server is already stopped");
        }
        Ok(())
    }

    /// On the port it had.
    pub(super) async fn start_api_server(&mut self) -> anyhow::Result<()> {
        if self.api_server.is_some() {
            bail!("the API server runs already: call stop_api_server first");
        }
        for _ in 0..PORT_TRIES {
            self.spawn_api_server()?;
            match self.wait_for_api_server().await {
                Err(_) if self.api_server.as_ref().is_some_and(Server::lost_its_port) => {
                    self.api_server = None;
                }
                outcome => return outcome,
            }
            sleep(Duration::from_millis(500)).await;
        }
        bail!("somebody else listens on port {}, which the API server had", self.api_port)
    }

    pub(super) async fn restart_etcd(&mut self) -> anyhow::Result<()> {
        // Killed: asked politely it waits 5 s for its watchers. What it has written is the kernel's by then.
        self.etcd = None;
        self.spawn_etcd()?;
        self.wait_for_etcd().await?;
        if self.api_server.is_some() {
            self.wait_for_api_server().await?;
        }
        Ok(())
    }

    async fn first_start_of_etcd(&mut self) -> anyhow::Result<()> {
        for _ in 0..PORT_TRIES {
            self.etcd_ports = (free_port()?, free_port()?);
            self.spawn_etcd()?;
            match self.wait_for_etcd().await {
                Err(_) if self.etcd.as_ref().is_some_and(Server::lost_its_port) => self.etcd = None,
                outcome => return outcome,
            }
        }
        bail!("etcd lost its port {PORT_TRIES} times in a row: is something taking every port of 127.0.0.1?")
    }

    async fn first_start_of_api_server(&mut self) -> anyhow::Result<()> {
        let admin = self.certificates.client("admin", &["system:masters"])?;
        for _ in 0..PORT_TRIES {
            self.api_port = free_port()?;
            self.write_kubeconfig(&self.admin(), "admin", &admin)?;
            self.spawn_api_server()?;
            match self.wait_for_api_server().await {
                Err(_) if self.api_server.as_ref().is_some_and(Server::lost_its_port) => {
                    self.api_server = None;
                }
                outcome => return outcome,
            }
        }
        bail!("the API server lost its port {PORT_TRIES} times in a row: is something taking every port?")
    }

    fn start_clients(&mut self) -> anyhow::Result<()> {
        if self.options.kcm {
            let kubeconfig = self.component_kubeconfig("system:kube-controller-manager")?;
            let arguments =
                arguments::controller_manager(&self.layout, &self.certificates, &self.options, &kubeconfig);
            self.kcm = Some(self.spawn(Binary::ControllerManager, &arguments)?);
        }
        if self.options.scheduler {
            let kubeconfig = self.component_kubeconfig("system:kube-scheduler")?;
            let arguments = arguments::scheduler(&self.options, &kubeconfig);
            self.scheduler = Some(self.spawn(Binary::Scheduler, &arguments)?);
        }
        Ok(())
    }

    /// The controllers work when they have made the default namespace's service account, without which no pod
    /// can be created. The scheduler shows no sign; it catches up with what was created before it was ready.
    async fn wait_for_clients(&mut self) -> anyhow::Result<()> {
        if self.kcm.is_some() {
            let path = "/api/v1/namespaces/default/serviceaccounts/default";
            let (kubectl, admin) = (self.binaries.path(Binary::Kubectl), self.admin());
            wait_for(&mut self.kcm, || answers(&kubectl, &admin, path)).await?;
        }
        if let Some(scheduler) = &mut self.scheduler {
            scheduler.check()?;
        }
        Ok(())
    }

    fn component_kubeconfig(&self, user: &str) -> anyhow::Result<PathBuf> {
        self.client_for(user, &[])
    }

    fn write_kubeconfig(
        &self,
        file: &Path,
        user: &str,
        pair: &super::certificates::Pair,
    ) -> anyhow::Result<()> {
        kubeconfig::write(file, &self.url(), &self.certificates.authority.certificate, user, pair)
    }

    fn spawn_etcd(&mut self) -> anyhow::Result<()> {
        let (client, peer) = self.etcd_ports;
        self.etcd = Some(self.spawn(Binary::Etcd, &arguments::etcd(&self.layout, client, peer))?);
        Ok(())
    }

    fn spawn_api_server(&mut self) -> anyhow::Result<()> {
        let (port, etcd_port) = (self.api_port, self.etcd_ports.0);
        let arguments =
            arguments::api_server(&self.layout, &self.certificates, &self.options, port, etcd_port);
        self.api_server = Some(self.spawn(Binary::ApiServer, &arguments)?);
        Ok(())
    }

    fn spawn(&self, binary: Binary, arguments: &[String]) -> anyhow::Result<Server> {
        let mut command = Command::new(self.binaries.path(binary));
        // The caller's environment stays out: etcd takes settings from ETCD_*, Go programs from GO*.
        command.args(arguments).current_dir(&self.layout.dir).env_clear();
        if let Some(path) = env::var_os("PATH") {
            command.env("PATH", path);
        }
        Server::start(&self.keeper, binary.name(), &self.layout.logs(), &mut command)
    }

    async fn wait_for_etcd(&mut self) -> anyhow::Result<()> {
        let port = self.etcd_ports.0;
        wait_for(&mut self.etcd, || is_open(port)).await
    }

    /// The open port is the cheap question, asked until it is answered; `/readyz` says that the roles are there.
    async fn wait_for_api_server(&mut self) -> anyhow::Result<()> {
        let port = self.api_port;
        let (kubectl, admin) = (self.binaries.path(Binary::Kubectl), self.admin());
        wait_for(&mut self.api_server, || async {
            is_open(port).await && answers(&kubectl, &admin, "/readyz").await
        })
        .await
    }
}

/// Waits until `ready`, or the server ends, or the limit passes. The error shows the end of the server's log.
async fn wait_for<F: Future<Output = bool>>(
    server: &mut Option<Server>,
    mut ready: impl FnMut() -> F,
) -> anyhow::Result<()> {
    let Some(server) = server else { bail!("there is no server to wait for") };
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        server.check()?;
        if ready().await {
            // Somebody else may have answered on a port that ours failed to get.
            return server.check();
        }
        if Instant::now() > deadline {
            bail!(
                "{} was not ready after {} s; the end of its log:\n{}",
                server.name(),
                READY_LIMIT.as_secs(),
                server.log_tail()
            );
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Whether `kubectl get --raw` succeeds. A process, not an HTTPS client: this crate needs no TLS that way.
pub(super) async fn answers(kubectl: &Path, kubeconfig: &Path, path: &str) -> bool {
    let child = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["get", "--raw", path, "--request-timeout=5s"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    // Bounded by the request's own timeout.
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return status.success(),
            Ok(None) => sleep(Duration::from_millis(10)).await,
            Err(_) => return false,
        }
    }
}
