//! The handle that tests and the demo hold.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use super::{
    Component, Options,
    binaries::{Binaries, Binary},
    servers::{Servers, answers},
};
use crate::ProcessId;

/// A control plane: one of ours, gone when this is dropped; or somebody's, that we were given a kubeconfig for.
#[derive(Debug)]
pub struct ControlPlane {
    kubeconfig: PathBuf,
    kubectl: PathBuf,
    server_url: String,
    servers: Option<Box<Servers>>,
}

impl ControlPlane {
    /// Starts one and waits until it serves, building the programs first where the cache lacks them.
    pub async fn start(options: Options) -> anyhow::Result<Self> {
        let binaries = Binaries::ensure(&Binary::ALL).await?;
        let kubectl = binaries.path(Binary::Kubectl);
        let servers = Servers::start(options, binaries).await.context("failed to start a control plane")?;
        Ok(Self {
            kubeconfig: servers.admin(),
            kubectl,
            server_url: servers.url(),
            servers: Some(Box::new(servers)),
        })
    }

    /// Uses a cluster that exists. It is only checked that it answers; it can neither be stopped nor restarted.
    pub async fn external(kubeconfig: &Path) -> anyhow::Result<Self> {
        let kubeconfig = std::path::absolute(kubeconfig)?;
        if !kubeconfig.is_file() {
            bail!("there is no kubeconfig {}", kubeconfig.display());
        }
        let kubectl = match on_path("kubectl") {
            Some(kubectl) => kubectl,
            None => Binaries::ensure(&[Binary::Kubectl]).await?.path(Binary::Kubectl),
        };
        let server_url = server_of(&kubectl, &kubeconfig)?;
        if !answers(&kubectl, &kubeconfig, "/readyz").await {
            bail!(
                "the cluster at {server_url} does not answer; try: kubectl --kubeconfig {} get --raw /readyz",
                kubeconfig.display()
            );
        }
        Ok(Self { kubeconfig, kubectl, server_url, servers: None })
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The kubectl program of the servers' version (for an external cluster, the one on the PATH).
    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// A kubectl command for the administrator. What it learns of the API is cached with the cluster's files,
    /// since the next cluster may have this one's port.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        if let Some(servers) = &self.servers {
            command.env("KUBECACHEDIR", servers.layout.dir.join("kubectl-cache"));
        }
        command
    }

    /// `https://host:port`.
    pub fn server_url(&self) -> &str {
        &self.server_url
    }

    /// A kubeconfig for another user, authenticated by a client certificate. At most two groups;
    /// `system:authenticated` comes by itself.
    pub fn client_for(&self, user: &str, groups: &[&str]) -> anyhow::Result<PathBuf> {
        self.servers()?.client_for(user, groups)
    }

    /// The folder of the servers' logs: `<server>.log`, and the audit log.
    pub fn log_dir(&self) -> anyhow::Result<PathBuf> {
        Ok(self.servers()?.layout.logs())
    }

    /// The audit log: one JSON object a line for every answered request, with `user.username`, `verb`,
    /// `objectRef` and `responseStatus.code`. A watch makes two lines, when it starts (`stage` is
    /// `ResponseStarted`) and when it ends. A line may come a moment after its answer.
    pub fn audit_log(&self) -> anyhow::Result<PathBuf> {
        let servers = self.servers()?;
        if !servers.options.audit {
            bail!("there is no audit log: start the control plane with `audit: true`");
        }
        Ok(servers.layout.audit_log())
    }

    /// Kills the API server, as a crash would: every connection is reset.
    pub fn stop_api_server(&mut self) -> anyhow::Result<()> {
        self.servers_mut()?.stop_api_server()
    }

    /// Starts it again with the same port and data, and waits until it serves.
    pub async fn start_api_server(&mut self) -> anyhow::Result<()> {
        self.servers_mut()?.start_api_server().await
    }

    /// Restarts it with other extra arguments in place of those in [`Options::api_server_args`]. They stay for
    /// later restarts.
    pub async fn restart_api_server_with(&mut self, extra: &[String]) -> anyhow::Result<()> {
        let servers = self.servers_mut()?;
        extra.clone_into(&mut servers.options.api_server_args);
        servers.stop_api_server().ok(); // it may have been stopped before
        servers.start_api_server().await
    }

    /// Stops etcd and starts it with the same ports and data; waits until the API server serves again.
    pub async fn restart_etcd(&mut self) -> anyhow::Result<()> {
        self.servers_mut()?.restart_etcd().await
    }

    /// Freezes a server (SIGSTOP): its connections stay open and nothing is answered.
    pub fn pause(&self, component: Component) -> anyhow::Result<()> {
        self.servers()?.server(component)?.pause()
    }

    /// Lets a server go on after [`Self::pause`].
    pub fn resume(&self, component: Component) -> anyhow::Result<()> {
        self.servers()?.server(component)?.resume()
    }

    /// The running servers by name, with the port where there is one. Empty for an external cluster.
    pub fn processes(&self) -> Vec<(String, ProcessId, Option<u16>)> {
        let Some(servers) = &self.servers else { return Vec::new() };
        servers
            .running()
            .filter_map(|(server, port)| Some((server.name().to_owned(), server.process()?, port)))
            .collect()
    }

    /// Ends all servers and removes their files; leaves an external cluster alone. Dropping does the same, but
    /// keeps the caller's thread busy for the few milliseconds that it takes.
    pub async fn stop(self) {
        // Joined even when the task panicked: whatever happened, the keeper has cleaned up by then.
        tokio::task::spawn_blocking(move || drop(self)).await.ok();
    }

    fn servers(&self) -> anyhow::Result<&Servers> {
        self.servers.as_deref().context(NOT_OURS)
    }

    fn servers_mut(&mut self) -> anyhow::Result<&mut Servers> {
        self.servers.as_deref_mut().context(NOT_OURS)
    }
}

const NOT_OURS: &str =
    "this cluster came with a kubeconfig and its servers are not ours to touch: run without --kubeconfig";

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// As kubectl reads the kubeconfig, merges and defaults included.
fn server_of(kubectl: &Path, kubeconfig: &Path) -> anyhow::Result<String> {
    let output = Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["config", "view", "--minify", "-o", "jsonpath={.clusters[0].cluster.server}"])
        .stdin(Stdio::null())
        .output()
        .context("failed to run kubectl")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{} cannot be used: {}", kubeconfig.display(), said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
