//! Flags that every provisioner has. Each is also an environment variable; a flag wins over its variable.

use crate::decide::lease::{Timing, TimingError};
use crate::logs::LogArgs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;
use volwright_provisioner::InstallationId;

/// Longest DNS name.
const MAX_NAME: usize = 253;

/// Longest provisioner name without a slash: the API server takes no storage class that names a longer one.
const MAX_PROVISIONER: usize = 63;

/// Most claims that are worked on at once: each may hold a call to the backend and one to the API server. Beyond this
/// the API server's own fairness would queue them.
const MAX_WORKERS: u16 = 256;

/// Which cluster, and under which names.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct ClusterArgs {
    /// How to reach the API server. Without it: the file in KUBECONFIG, else the pod's service account, else
    /// ~/.kube/config
    #[arg(long, env = "VOLWRIGHT_KUBECONFIG", value_name = "PATH")]
    pub kubeconfig: Option<PathBuf>,

    /// What storage classes must name as their provisioner: a DNS subdomain without a slash. Without it:
    /// BACKEND.volwright.io, such as nfs.volwright.io. Do not change it while volumes exist: their PVs name it, and would
    /// be nobody's
    #[arg(long, env = "VOLWRIGHT_PROVISIONER_NAME", value_name = "NAME", value_parser = own_name)]
    pub provisioner_name: Option<String>,

    /// A provisioner whose claims and classes are served as well, such as "rancher.io/local-path" after its controller
    /// was removed. May be given several times. Its existing PVs are touched only after they were adopted
    #[arg(long, env = "VOLWRIGHT_ALSO_PROVISIONER_NAME", value_name = "NAME", value_delimiter = ',', value_parser = also_name)]
    pub also_provisioner_name: Vec<String>,

    /// What marks volumes as this installation's. Without it: the uid of the namespace kube-system. Give it to clusters
    /// that share storage if that uid is not readable. Volumes of another installation are never touched, so do not
    /// change it while volumes exist
    #[arg(long, env = "VOLWRIGHT_INSTALLATION_ID", value_name = "ID", value_parser = installation)]
    pub installation_id: Option<String>,
}

impl ClusterArgs {
    /// The provisioner names that are served, the own one first, each once.
    pub fn names(&self, backend: &str) -> Vec<String> {
        let own = self.provisioner_name.clone().unwrap_or_else(|| format!("{backend}.volwright.io"));
        let mut names = vec![own];
        for name in &self.also_provisioner_name {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }

    /// As given by the flag.
    pub fn installation(&self) -> Option<InstallationId> {
        self.installation_id.clone().map(InstallationId::new)
    }
}

/// How much at once, and how long to wait for what.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    // `None` only in code: a simulation has no use for sockets.
    /// Where /healthz, /readyz and /metrics are served. The default is every address, IPv4 and IPv6
    #[arg(long, env = "VOLWRIGHT_HTTP_ADDRESS", value_name = "ADDRESS:PORT", default_value = "[::]:8080")]
    pub http_address: Option<SocketAddr>,

    /// Claims, and volumes, that are worked on at once, each: 1 to 256. More make bursts faster if the storage system can
    /// take it
    #[arg(long, env = "VOLWRIGHT_WORKERS", value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_WORKERS)))]
    pub workers: u16,

    /// How long one request to the API server may take: 1s to 2m. When it passes the request is given up and repeated
    /// with growing delay
    #[arg(long, env = "VOLWRIGHT_API_TIMEOUT", value_name = "TIME", default_value = "30s", value_parser = Within("1s", "2m"))]
    pub api_timeout: Duration,

    /// How long one call to the storage system may take: 1s to 1h. When it passes the outcome counts as unknown, and
    /// the same call is repeated until there is an answer
    #[arg(long, env = "VOLWRIGHT_BACKEND_TIMEOUT", value_name = "TIME", default_value = "2m", value_parser = Within("1s", "1h"))]
    pub backend_timeout: Duration,

    /// Delay after a first failure: 10ms to 1m. It doubles with each further one, up to --backoff-max
    #[arg(long, env = "VOLWRIGHT_BACKOFF_BASE", value_name = "TIME", default_value = "1s", value_parser = Within("10ms", "1m"))]
    pub backoff_base: Duration,

    /// Longest delay between two tries: 1s to 1h. Also about how long it takes to notice that a storage system is back
    #[arg(long, env = "VOLWRIGHT_BACKOFF_MAX", value_name = "TIME", default_value = "5m", value_parser = Within("1s", "1h"))]
    pub backoff_max: Duration,

    /// Everything is looked at again after this long, in case a change was missed: 1m to 1day. At 50,000 claims, 15m cost
    /// about 56 decisions a second
    #[arg(long, env = "VOLWRIGHT_RESYNC", value_name = "TIME", default_value = "15m", value_parser = Within("1m", "1day"))]
    pub resync: Duration,

    /// How often the trash is looked through for volumes whose time is over: 1s to 1day. Nothing is purged before it has
    /// passed once after a start
    #[arg(long, env = "VOLWRIGHT_TRASH_INTERVAL", value_name = "TIME", default_value = "10m", value_parser = Within("1s", "1day"))]
    pub trash_interval: Duration,

    /// How long running calls may take to finish after SIGTERM: 0s to 10m. Set terminationGracePeriodSeconds at least 10
    /// seconds higher. Calls that take longer are cut off, and taken up again by the next process
    #[arg(long, env = "VOLWRIGHT_DRAIN", value_name = "TIME", default_value = "20s", value_parser = Within("0s", "10m"))]
    pub drain: Duration,
}

impl Default for EngineArgs {
    fn default() -> Self {
        Self {
            http_address: Some(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 8080)),
            workers: 8,
            api_timeout: Duration::from_secs(30),
            backend_timeout: Duration::from_secs(120),
            backoff_base: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            resync: Duration::from_secs(900),
            trash_interval: Duration::from_secs(600),
            drain: Duration::from_secs(20),
        }
    }
}

/// How several processes of one provisioner take turns. Node agents have a lock on their node instead, and ignore these.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
#[command(next_help_heading = "Leadership")]
pub struct LeaseArgs {
    /// Where the lease and the journal are. Without it: the pod's own namespace. All processes of one provisioner name must
    /// use the same; a second one is refused
    #[arg(long, env = "VOLWRIGHT_NAMESPACE", value_name = "NAMESPACE", value_parser = namespace)]
    pub namespace: Option<String>,

    /// Let several processes run, of which one works. With false there is no lease, and you must see to it that only one
    /// process runs
    #[arg(long, env = "VOLWRIGHT_LEADER_ELECT", value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    pub leader_elect: bool,

    /// How long a lease that nobody renews stands: 5s to 10m. That long a crash of the leader delays all work
    #[arg(long, env = "VOLWRIGHT_LEASE_DURATION", value_name = "TIME", default_value = "15s", value_parser = Within("5s", "10m"))]
    pub lease_duration: Duration,

    /// How long a leader that cannot reach the API server goes on: 2s to 9m, and less than --lease-duration
    #[arg(long, env = "VOLWRIGHT_LEASE_RENEW_DEADLINE", value_name = "TIME", default_value = "10s", value_parser = Within("2s", "9m"))]
    pub lease_renew_deadline: Duration,

    /// Between two renewals: 500ms to 1m, and less than --lease-renew-deadline
    #[arg(long, env = "VOLWRIGHT_LEASE_RETRY_PERIOD", value_name = "TIME", default_value = "2s", value_parser = Within("500ms", "1m"))]
    pub lease_retry_period: Duration,
}

impl Default for LeaseArgs {
    fn default() -> Self {
        Self {
            namespace: None,
            leader_elect: true,
            lease_duration: Duration::from_secs(15),
            lease_renew_deadline: Duration::from_secs(10),
            lease_retry_period: Duration::from_secs(2),
        }
    }
}

impl LeaseArgs {
    /// The times, if two could not lead at once with them.
    pub fn timing(&self) -> Result<Timing, TimingError> {
        Timing::new(self.lease_duration, self.lease_renew_deadline, self.lease_retry_period)
    }

    /// Where the lease and the journal are: as given, or where the client is at home.
    pub(crate) fn namespace_or<'a>(&'a self, client: &'a kube::Client) -> &'a str {
        self.namespace.as_deref().unwrap_or_else(|| client.default_namespace())
    }
}

/// All flags of `run` but the backend's.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct RunOptions {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// How the engine runs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How processes take turns.
    #[command(flatten)]
    pub lease: LeaseArgs,
    /// How the log looks.
    #[command(flatten)]
    pub logs: LogArgs,
}

/// Parses a duration such as `30s` or `2m`, and refuses one outside the bounds.
#[derive(Debug, Clone, Copy)]
struct Within(&'static str, &'static str);

impl Within {
    fn parse(self, text: &str) -> Result<Duration, String> {
        let value = humantime::parse_duration(text).map_err(|error| {
            format!("{error}; write a number with its unit, such as 500ms, 30s, 2m or 1h")
        })?;
        let bound = |text| humantime::parse_duration(text).unwrap_or_default();
        if value < bound(self.0) || value > bound(self.1) {
            return Err(format!("use {} to {}", self.0, self.1));
        }
        Ok(value)
    }
}

impl clap::builder::TypedValueParser for Within {
    type Value = Duration;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<Duration, clap::Error> {
        let parser = *self;
        clap::builder::TypedValueParser::parse_ref(&move |text: &str| parser.parse(text), command, arg, value)
    }
}

/// How long a command waits.
pub(super) fn wait() -> impl clap::builder::TypedValueParser<Value = Duration> {
    Within("1s", "1h")
}

/// The own name: it must also do as `reportingController` of events and as the name of a lock.
fn own_name(text: &str) -> Result<String, String> {
    if text.contains('/') {
        return Err(format!(
            "a provisioner name has no slash; use a DNS subdomain such as nfs.example.com, and \
             --also-provisioner-name {text} to serve the claims of an older provisioner"
        ));
    }
    reserved(text)?;
    provisioner(text)?;
    Ok(text.to_owned())
}

/// The name of an older provisioner: qualified, so with at most one slash.
fn also_name(text: &str) -> Result<String, String> {
    reserved(text)?;
    match text.split_once('/') {
        None => provisioner(text)?,
        Some((domain, name)) => {
            subdomain(domain)?;
            let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            let ends = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
            let fine = name.len() <= 63 && name.chars().all(good);
            if !(fine && ends(name.chars().next()) && ends(name.chars().last())) {
                return Err(
                    "what follows the slash must be 1 to 63 letters, digits, '-', '_' or '.'".to_owned()
                );
            }
        }
    }
    Ok(text.to_owned())
}

fn provisioner(text: &str) -> Result<(), String> {
    subdomain(text)?;
    if text.len() > MAX_PROVISIONER {
        return Err(format!(
            "no storage class can name it: a provisioner name without a slash has at most {MAX_PROVISIONER} characters, \
             and this one has {}",
            text.len()
        ));
    }
    Ok(())
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    if text.len() > 63 || text.contains('.') {
        return Err("a namespace is one DNS label of at most 63 characters".to_owned());
    }
    subdomain(text)?;
    Ok(text.to_owned())
}

fn reserved(text: &str) -> Result<(), String> {
    let domain = text.split('/').next().unwrap_or_default();
    if domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") {
        return Err("names in kubernetes.io belong to Kubernetes' own volume plugins".to_owned());
    }
    Ok(())
}

fn subdomain(text: &str) -> Result<(), String> {
    let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let label = |label: &str| {
        let bytes = label.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
    };
    if text.len() > MAX_NAME || !text.split('.').all(label) {
        return Err(format!(
            "not a DNS subdomain: use at most {MAX_NAME} lower-case letters, digits, '-' and '.', such as nfs.example.com"
        ));
    }
    Ok(())
}

/// The id becomes part of marks, tags and image metadata, so it keeps to what all of them can hold.
fn installation(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > 63 || !text.chars().all(good) {
        return Err("use 1 to 63 letters, digits, '-', '_' or '.'".to_owned());
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        options: RunOptions,
    }

    fn parse(args: &[&str]) -> Result<RunOptions, String> {
        let all = std::iter::once("x").chain(args.iter().copied());
        Flags::try_parse_from(all).map(|f| f.options).map_err(|e| e.to_string())
    }

    #[test]
    fn the_defaults_of_the_flags_are_those_of_the_code() {
        assert_eq!(parse(&[]), Ok(RunOptions::default()));
    }

    #[test]
    fn names_start_with_the_own_one_and_come_once() {
        assert_eq!(parse(&[]).unwrap().cluster.names("nfs"), ["nfs.volwright.io"]);
        let options = parse(&[
            "--provisioner-name=nfs.example.com",
            "--also-provisioner-name=cluster.local/nfs,nfs.example.com",
            "--also-provisioner-name=cluster.local/nfs",
        ]);
        assert_eq!(options.unwrap().cluster.names("nfs"), ["nfs.example.com", "cluster.local/nfs"]);
    }

    #[test]
    fn every_refusal_says_what_would_do() {
        let long = format!("--provisioner-name={}", "a.".repeat(127) + "a");
        let longer_than_classes_take = format!("--provisioner-name={}", "a".repeat(64));
        let cases: [(&str, &str); 18] = [
            ("--provisioner-name=rancher.io/local-path", "--also-provisioner-name rancher.io/local-path"),
            ("--provisioner-name=kubernetes.io", "belong to Kubernetes' own"),
            ("--also-provisioner-name=kubernetes.io/aws-ebs", "belong to Kubernetes' own"),
            ("--provisioner-name=NFS.example.com", "such as nfs.example.com"),
            ("--provisioner-name=-a", "such as nfs.example.com"),
            ("--provisioner-name=a..b", "such as nfs.example.com"),
            ("--provisioner-name=", "such as nfs.example.com"),
            (&long, "at most 253"),
            (&longer_than_classes_take, "at most 63 characters, and this one has 64"),
            ("--also-provisioner-name=a/b/c", "what follows the slash"),
            ("--also-provisioner-name=a/", "what follows the slash"),
            ("--installation-id=a b", "use 1 to 63"),
            ("--workers=0", "1..=256"),
            ("--workers=257", "1..=256"),
            ("--api-timeout=30", "such as 500ms, 30s"),
            ("--api-timeout=3m", "use 1s to 2m"),
            ("--drain=-1s", "such as 500ms, 30s"),
            ("--http-address=8080", "invalid socket address"),
        ];
        for (flag, expected) in cases {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains(expected), "{flag}: {error}");
        }
    }

    #[test]
    fn every_flag_is_also_a_variable_and_has_help() {
        let command = <Flags as clap::CommandFactory>::command();
        for arg in command.get_arguments().filter(|a| !["help", "version"].contains(&a.get_id().as_str())) {
            let name = arg.get_id().as_str();
            assert!(arg.get_help().is_some(), "{name}");
            let variable = arg.get_env().and_then(|v| v.to_str()).unwrap_or_default();
            let expected = match name {
                "log_level" => "VOLWRIGHT_LOG".to_owned(),
                _ => format!("VOLWRIGHT_{}", name.to_uppercase()),
            };
            assert_eq!(variable, expected);
        }
    }
}
