//! The programs: those in the folder that `KUBEBUILDER_ASSETS` names, else built from source once per version and kept in
//! the cache folder.
//!
//! That folder is what `setup-envtest` makes. It holds etcd, kube-apiserver and kubectl, and must hold those of them that
//! are needed; kube-controller-manager and kube-scheduler, which it usually lacks, are built if it does.
//!
//! ```text
//! <cache>/control-plane/build.lock             one builder at a time
//! <cache>/control-plane/build-XXXX/            go.mod, go.sum, the program being built; a keeper removes it
//! <cache>/control-plane/<versions>/bin/<name>  complete programs only: they are renamed into place
//! ```

use std::{
    env,
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, bail};
use tokio::time::{Instant, sleep};

use super::versions::{ETCD, KUBERNETES, Module, cache_key};
use crate::{Keeper, cache_dir, server::tail};

/// A program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// The store below the API server.
    Etcd,
    /// The API server.
    ApiServer,
    /// The controllers, the volume binder among them.
    ControllerManager,
    /// The scheduler.
    Scheduler,
    /// The command line client.
    Kubectl,
}

impl Binary {
    /// All of them, the slowest to build first after the quick one: what others build on is cached by then.
    pub const ALL: [Self; 5] =
        [Self::Etcd, Self::ApiServer, Self::ControllerManager, Self::Scheduler, Self::Kubectl];

    /// The file name, which is also how logs and messages call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kubectl => "kubectl",
        }
    }

    fn module(self) -> &'static Module {
        if self == Self::Etcd { &ETCD } else { &KUBERNETES }
    }

    fn package(self) -> String {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3".to_owned(),
            _ => format!("k8s.io/kubernetes/cmd/{}", self.name()),
        }
    }
}

/// The variable of `setup-envtest` and of Kubernetes' Go test libraries: a folder with programs to use as they are.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// The programs asked for.
#[derive(Debug, Clone)]
pub struct Binaries {
    /// Where those are that we build.
    dir: PathBuf,
    assets: Option<PathBuf>,
    /// Those of `assets` that are used.
    given: Vec<Binary>,
}

impl Binaries {
    /// Takes those of `wanted` that are given, and builds the others where the cache lacks them, telling the terminal what
    /// it does. A cold build of all of them takes about five minutes on two cores, needs Go and the Go module proxy, and
    /// leaves 3 GB in Go's cache.
    pub async fn ensure(wanted: &[Binary]) -> anyhow::Result<Self> {
        let assets = match env::var_os(ASSETS).filter(|folder| !folder.is_empty()) {
            Some(folder) if Path::new(&folder).is_absolute() => Some(PathBuf::from(folder)),
            // Tests, and what runs in the background, are in folders of their own.
            Some(folder) => bail!("{ASSETS} is {}: give an absolute path", Path::new(&folder).display()),
            None => None,
        };
        let given = given(wanted, assets.as_deref(), Path::is_file)?;
        let wanted: Vec<Binary> = wanted.iter().copied().filter(|binary| !given.contains(binary)).collect();
        let root = cache_dir()?.join("control-plane");
        let binaries = Self { dir: root.join(cache_key()).join("bin"), assets, given };
        if binaries.missing(&wanted).is_empty() {
            return Ok(binaries);
        }
        fs::create_dir_all(&binaries.dir)
            .with_context(|| format!("failed to create {}", binaries.dir.display()))?;
        let _lock = lock(&root.join("build.lock")).await?;
        let missing = binaries.missing(&wanted); // another builder may have been at work meanwhile
        for (done, &binary) in missing.iter().enumerate() {
            let version = binary.module().version();
            let what = format!("{} {version} ({} of {})", binary.name(), done + 1, missing.len());
            build(binary, &root, &binaries.path(binary), &what).await?;
        }
        Ok(binaries)
    }

    /// Where a program is.
    pub fn path(&self, binary: Binary) -> PathBuf {
        match &self.assets {
            Some(assets) if self.given.contains(&binary) => assets.join(binary.name()),
            _ => self.dir.join(binary.name()),
        }
    }

    fn missing(&self, wanted: &[Binary]) -> Vec<Binary> {
        wanted.iter().copied().filter(|&binary| !self.path(binary).is_file()).collect()
    }
}

/// Which of `wanted` are taken from the folder, if one is given. An API server of ours beside an etcd of theirs would
/// surprise whoever set the variable, so what such a folder always has must be there.
fn given(
    wanted: &[Binary],
    assets: Option<&Path>,
    is_there: impl Fn(&Path) -> bool,
) -> anyhow::Result<Vec<Binary>> {
    let Some(assets) = assets else { return Ok(Vec::new()) };
    let (there, absent): (Vec<Binary>, Vec<Binary>) =
        wanted.iter().copied().partition(|binary| is_there(&assets.join(binary.name())));
    let optional = [Binary::ControllerManager, Binary::Scheduler];
    let needed: Vec<&str> =
        absent.iter().filter(|binary| !optional.contains(binary)).map(|binary| binary.name()).collect();
    if !needed.is_empty() {
        bail!(
            "{ASSETS} is {}, and there is no {} in it: put it there, or unset {ASSETS} to build the control plane from \
             source",
            assets.display(),
            needed.join(" and no ")
        );
    }
    Ok(there)
}

/// Held until dropped, and let go by the kernel when the builder dies.
async fn lock(path: &Path) -> anyhow::Result<File> {
    let file = File::create(path).with_context(|| format!("failed to create {}", path.display()))?;
    let mut told = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if told => {}
            Err(TryLockError::WouldBlock) => {
                tell("waiting for another process that builds the control plane");
                told = true;
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("failed to lock {}", path.display()));
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
}

async fn build(binary: Binary, root: &Path, target: &Path, what: &str) -> anyhow::Result<()> {
    let keeper = Keeper::new_in(root, "build-")?;
    let dir = keeper.dir();
    let module = binary.module();
    fs::write(dir.join("go.mod"), module.go_mod)?;
    fs::write(dir.join("go.sum"), module.go_sum)?;
    check_go(dir)?;

    let output = dir.join(binary.name());
    let log = dir.join("log");
    let log_file = File::create(&log)?;
    let mut command = Command::new("go");
    command
        .current_dir(dir)
        .env("CGO_ENABLED", "0") // no C compiler needed, and the program runs on any libc
        .env("GOWORK", "off")
        .args(["build", "-mod=readonly", "-buildvcs=false", "-trimpath", "-ldflags", &module.ldflags(), "-o"])
        .arg(&output)
        .arg(binary.package())
        .stdout(log_file.try_clone()?)
        .stderr(log_file);

    tell(&format!("building {what}"));
    let start = Instant::now();
    let mut told = 0;
    let mut child = keeper.spawn(&mut command)?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        sleep(Duration::from_millis(100)).await;
        let seconds = start.elapsed().as_secs();
        if seconds >= told + 15 {
            told = seconds;
            tell(&format!("building {what}: {seconds} s"));
        }
    };
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        bail!(
            "`go build {}` failed ({status}):\n{}\nIt needs the Go module proxy (see `go env GOPROXY`) once, 4 GB of \
             disk below `go env GOCACHE GOMODCACHE` and 3 GB of memory.",
            binary.package(),
            tail(&text, 15)
        );
    }
    fs::rename(&output, target)
        .with_context(|| format!("failed to move {} into the cache", binary.name()))?;
    tell(&format!("built {what} in {} s", start.elapsed().as_secs()));
    Ok(())
}

/// Runs Go where our go.mod is, so that it compares the version that file asks for with its own.
fn check_go(dir: &Path) -> anyhow::Result<()> {
    let needed = KUBERNETES.go_mod.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or("1.25");
    let remedy = format!("install Go {needed} or later (https://go.dev/dl) and put `go` on the PATH");
    let output = Command::new("go")
        .args(["list", "-m"])
        .current_dir(dir)
        .env("GOWORK", "off")
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!(
                "the control plane is built from source, but Go refuses: {}\nTo repair: {remedy}.",
                said.trim()
            )
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("the control plane is built from source, and Go is not there: {remedy}")
        }
        Err(error) => Err(error).context("failed to run `go`"),
    }
}

/// A build of minutes must show that it lives.
#[expect(
    clippy::print_stderr,
    reason = "progress for whoever waits at the terminal or reads a test's output"
)]
fn tell(message: &str) {
    eprintln!("volwright-lab: {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wanted, whether a folder is named, what is in it; what is taken from it, or how the refusal begins.
    type Case<'a> = (&'a [Binary], bool, &'a [&'a str], Result<&'a [Binary], &'a str>);

    #[test]
    fn programs_are_taken_from_the_folder_that_is_named_and_the_others_are_built() {
        use Binary::{ApiServer, ControllerManager, Etcd, Kubectl, Scheduler};
        let envtest = &["etcd", "kube-apiserver", "kubectl"][..];
        let all = &["etcd", "kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler"][..];
        // What is wanted, whether a folder is named, what is in it; what is taken from it, or how the refusal begins.
        let cases: [Case<'_>; 7] = [
            (&Binary::ALL, false, all, Ok(&[])),
            (&Binary::ALL, true, envtest, Ok(&[Etcd, ApiServer, Kubectl])),
            (&Binary::ALL, true, all, Ok(&[Etcd, ApiServer, ControllerManager, Scheduler, Kubectl])),
            (&[Kubectl], true, &["kubectl"], Ok(&[Kubectl])),
            (&[Scheduler], true, &[], Ok(&[])),
            (
                &Binary::ALL,
                true,
                &["etcd"],
                Err("KUBEBUILDER_ASSETS is /a, and there is no kube-apiserver and no kubectl in it"),
            ),
            (&[Kubectl], true, &["etcd"], Err("KUBEBUILDER_ASSETS is /a, and there is no kubectl in it")),
        ];
        for (wanted, named, there, expected) in cases {
            let is_there = |path: &Path| there.iter().any(|name| path == Path::new("/a").join(name));
            let found = given(wanted, named.then(|| Path::new("/a")), is_there);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{wanted:?} {there:?}"),
                (Err(error), Err(expected)) => assert!(error.to_string().starts_with(expected), "{error}"),
                (found, _) => panic!("{wanted:?} {there:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_given_program_is_where_it_was_given_and_a_built_one_in_the_cache() {
        let binaries =
            Binaries { dir: "/cache".into(), assets: Some("/a".into()), given: vec![Binary::Etcd] };
        assert_eq!(binaries.path(Binary::Etcd), Path::new("/a/etcd"));
        assert_eq!(binaries.path(Binary::Scheduler), Path::new("/cache/kube-scheduler"));
    }

    #[test]
    fn every_program_is_a_tool_of_its_module() {
        for binary in Binary::ALL {
            let package = binary.package();
            let listed = binary
                .module()
                .go_mod
                .lines()
                .any(|line| line.trim().trim_start_matches("tool ").trim_end() == package);
            assert!(listed, "{package} is missing from the `tool` lines");
        }
    }
}
