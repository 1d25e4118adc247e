//! `trash`: what is in it, and operators' requests. The command itself touches no storage: it makes a request in the
//! provisioner's namespace, and the leader or the node's agent carries it out.

use crate::client::Clients;
use crate::engine::{Answer, Asked, Listing, TrashEntry, TrashRequest};
use crate::names;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, PostParams, Preconditions};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use volwright_provisioner::format_bytes;

use super::calls::{say, within};
use super::{ClusterArgs, LogArgs, RunError, args};
use crate::engine::trash_keys::{ANSWER, LISTING, REQUEST};

/// Requests, answers and lists are all of them.
const MAPS: &str = "configmaps";
/// Between two looks for the answer.
const LOOK: Duration = Duration::from_secs(1);
/// Between two lines that say that the answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// What to do with the trash.
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum TrashCommand {
    /// Show what is in the trash, and until when it is kept
    List(ListArgs),
    /// Bring a volume back into its place, and print the manifests of its PersistentVolume and claim for kubectl apply
    Restore(RestoreArgs),
    /// Destroy volumes in the trash now
    Empty(EmptyArgs),
}

impl TrashCommand {
    /// Flags that all of them have.
    pub(super) fn common(&self) -> &CommonArgs {
        match self {
            Self::List(args) => &args.common,
            Self::Restore(args) => &args.common,
            Self::Empty(args) => &args.common,
        }
    }
}

/// Where the provisioner is.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct CommonArgs {
    /// Which cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Where the provisioner runs. Without it: the namespace of the kubeconfig, or the pod's own
    #[arg(long, env = "VOLWRIGHT_NAMESPACE", value_name = "NAMESPACE", value_parser = args::namespace)]
    pub namespace: Option<String>,
    /// How the log looks.
    #[command(flatten)]
    pub logs: LogArgs,
}

/// How a list is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// See [`TrashCommand::List`].
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct ListArgs {
    /// How the list is written to standard output
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Where the provisioner is.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// How long a request is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::Args)]
pub struct WaitArgs {
    /// How long to wait for the provisioner's answer: 1s to 1h. Then the request is withdrawn
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = args::wait())]
    pub wait: Duration,
}

impl Default for WaitArgs {
    fn default() -> Self {
        Self { wait: Duration::from_secs(120) }
    }
}

/// See [`TrashCommand::Restore`].
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct RestoreArgs {
    /// The volume, by the name of its PersistentVolume; see `trash list`
    pub name: String,
    /// How long to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Where the provisioner is.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// See [`TrashCommand::Empty`].
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct EmptyArgs {
    /// The volume, by the name of its PersistentVolume; see `trash list`
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub name: Option<String>,
    /// Every volume in the trash
    #[arg(long)]
    pub all: bool,
    /// Do it. Without this flag it is only shown: what is destroyed does not come back
    #[arg(long)]
    pub yes: bool,
    /// How long to wait.
    #[command(flatten)]
    pub wait: WaitArgs,
    /// Where the provisioner is.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// Carries a command out. What is printed for programs goes to `out`, progress to `notes`. `Ok(false)`: not all of what
/// was asked could be done.
pub async fn trash(
    backend: &str,
    command: &TrashCommand,
    clients: &Clients,
    out: &mut impl Write,
    notes: &mut impl Write,
) -> Result<bool, RunError> {
    let common = command.common();
    let client = &clients.requests;
    let namespace = common.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let names = common.cluster.names(backend);
    let provisioner = names.first().map_or("", String::as_str);
    let desk = Desk { maps: Api::namespaced(client.clone(), namespace), namespace, provisioner };
    let found = desk.listings().await?;
    match command {
        TrashCommand::List(args) => list(&found, args.output, out).map(|()| true),
        TrashCommand::Restore(args) => {
            let (node, entry) = desk.named(&found, &args.name)?;
            let answer = desk.ask(Asked::Restore, node, entry, args.wait.wait, notes).await?;
            if !answer.done {
                return Err(RunError::Request(format!("{} was not restored: {}", entry.name, answer.text)));
            }
            for manifest in &answer.manifests {
                say(out, format_args!("---\n{manifest:#}"))?;
            }
            say(
                notes,
                format_args!(
                    "{}: the data is back; make its PersistentVolume and claim again with the manifests (kubectl apply -f -)",
                    entry.name
                ),
            )?;
            Ok(true)
        }
        TrashCommand::Empty(args) => {
            let chosen: Vec<_> = match &args.name {
                Some(name) => vec![desk.named(&found, name)?],
                None => all(&found).collect(),
            };
            let mut left = 0_usize;
            for (node, entry) in &chosen {
                let what = format!("{} ({}, {})", entry.name, entry.claim, format_bytes(entry.size));
                if !args.yes {
                    say(out, format_args!("{what} would be destroyed"))?;
                    continue;
                }
                match desk.ask(Asked::Purge, *node, entry, args.wait.wait, notes).await {
                    Ok(Answer { done: true, .. }) => say(out, format_args!("{what} is destroyed"))?,
                    Ok(Answer { text, .. }) => {
                        left += 1;
                        say(out, format_args!("{what} -- NOT destroyed: {text}"))?;
                    }
                    Err(error) => {
                        left += 1;
                        say(out, format_args!("{what} -- NOT destroyed: {error}"))?;
                    }
                }
            }
            let more: usize = found.iter().map(|listing| listing.more).sum();
            match (chosen.is_empty(), args.yes) {
                (true, _) => say(out, format_args!("The trash is empty."))?,
                (false, false) => {
                    say(
                        out,
                        format_args!("\nWhat is destroyed does not come back. Give --yes to destroy it."),
                    )?;
                }
                (false, true) if args.all && more > 0 => {
                    say(out, format_args!("\n{more} more did not fit into the list; run this again."))?;
                }
                (false, true) => {}
            }
            Ok(left == 0)
        }
    }
}

fn all(found: &[Listing]) -> impl Iterator<Item = (Option<&str>, &TrashEntry)> {
    found.iter().flat_map(|listing| listing.volumes.iter().map(|entry| (listing.node.as_deref(), entry)))
}

fn list(found: &[Listing], format: Format, out: &mut impl Write) -> Result<(), RunError> {
    if format == Format::Json {
        let volumes: Vec<Value> = all(found)
            .map(|(node, entry)| {
                let mut volume = json!(entry);
                volume["node"] = json!(node);
                volume
            })
            .collect();
        let more: usize = found.iter().map(|listing| listing.more).sum();
        return say(out, format_args!("{:#}", json!({ "volumes": volumes, "more": more })));
    }
    let now = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    let head = ["NAME", "SIZE", "AGE", "KEPT UNTIL", "CLAIM", "NODE"].map(str::to_owned);
    let rows = all(found).map(|(node, entry)| {
        let age = Duration::from_secs(now.saturating_sub(entry.at));
        [
            entry.name.clone(),
            format_bytes(entry.size),
            age_text(age),
            crate::engine::trash_keys::date(entry.until),
            entry.claim.clone(),
            node.unwrap_or("-").to_owned(),
        ]
    });
    let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
    if rows.len() == 1 {
        return say(out, format_args!("The trash is empty."));
    }
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default())
        .collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        say(out, format_args!("{}", cells.collect::<Vec<_>>().join("  ").trim_end()))?;
    }
    for listing in found.iter().filter(|listing| listing.more > 0) {
        let at = listing.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
        say(out, format_args!("and {} more{at}, which are kept for longer", listing.more))?;
    }
    Ok(())
}

/// The two largest units, as `kubectl get` shows ages.
fn age_text(age: Duration) -> String {
    let text = humantime::format_duration(Duration::from_secs(age.as_secs())).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join("")
}

struct Desk<'a> {
    maps: Api<ConfigMap>,
    namespace: &'a str,
    provisioner: &'a str,
}

impl Desk<'_> {
    /// What the leader, or each agent, has told of its trash.
    async fn listings(&self) -> Result<Vec<Listing>, RunError> {
        let labels = names::selector(&names::trash_labels(self.provisioner, names::TRASH_LIST, None));
        let found = within("list", MAPS, self.maps.list(&ListParams::default().labels(&labels))).await?;
        let mut listings = Vec::new();
        for map in found.items {
            let text = map.data.as_ref().and_then(|data| data.get(LISTING));
            let listing = text.and_then(|text| serde_json::from_str::<Listing>(text).ok());
            listings.push(listing.ok_or_else(|| {
                let name = map.metadata.name.unwrap_or_default();
                RunError::Request(format!(
                    "the list of the trash in ConfigMap {}/{name} cannot be read; use the command of the provisioner's own \
                     release",
                    self.namespace
                ))
            })?);
        }
        Ok(listings)
    }

    fn named<'l>(
        &self,
        found: &'l [Listing],
        name: &str,
    ) -> Result<(Option<&'l str>, &'l TrashEntry), RunError> {
        let mut named = all(found).filter(|(_, entry)| entry.name == name);
        match (named.next(), named.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => {
                Err(RunError::Request(format!("{name} is in the trash twice; look at both by hand")))
            }
            (None, _) => Err(RunError::Request(format!(
                "{name} is not in the trash of {} in namespace {}; `trash list` shows what is, and --namespace and \
                 --provisioner-name choose whose",
                self.provisioner, self.namespace
            ))),
        }
    }

    /// Makes a request, waits for its answer and removes it.
    async fn ask(
        &self,
        asked: Asked,
        node: Option<&str>,
        entry: &TrashEntry,
        wait: Duration,
        notes: &mut impl Write,
    ) -> Result<Answer, RunError> {
        let request =
            TrashRequest { asked, name: entry.name.clone(), owner: entry.owner.clone(), at: entry.at };
        let labels = names::trash_labels(self.provisioner, names::TRASH_REQUEST, node);
        let mut map = ConfigMap::default();
        map.metadata.name = Some(format!("{}-request-{:016x}", self.provisioner, fastrand::u64(..)));
        map.metadata.labels = Some(labels);
        map.data = Some(BTreeMap::from([(REQUEST.to_owned(), json!(request).to_string())]));
        let map = within("create", MAPS, self.maps.create(&PostParams::default(), &map)).await?;
        let answer = self.answer(&map, node, entry, wait, notes).await;
        let removed = self.remove(&map).await;
        let answer = answer?;
        if let Err(error) = removed {
            say(notes, format_args!("the request could not be removed, and will be in 10 minutes: {error}"))?;
        }
        answer.ok_or_else(|| {
            let whom =
                node.map_or_else(|| "its leader".to_owned(), |node| format!("the agent of node {node}"));
            RunError::Request(format!(
                "no answer within {}: {whom} may be down or busy. The request is withdrawn; if it was being carried out just \
                 now, `trash list` shows it in a moment",
                humantime::format_duration(wait)
            ))
        })
    }

    async fn answer(
        &self,
        map: &ConfigMap,
        node: Option<&str>,
        entry: &TrashEntry,
        wait: Duration,
        notes: &mut impl Write,
    ) -> Result<Option<Answer>, RunError> {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        let (began, mut told) = (Instant::now(), Instant::now());
        loop {
            let found = within("get", MAPS, self.maps.get_opt(name)).await?;
            let Some(found) = found else {
                return Err(RunError::Request(format!(
                    "somebody removed the request {}/{name}; `trash list` shows whether it was carried out",
                    self.namespace
                )));
            };
            if let Some(text) = found.data.as_ref().and_then(|data| data.get(ANSWER)) {
                let answer = serde_json::from_str(text);
                return answer.map(Some).map_err(|_| {
                    RunError::Request(
                        "the answer cannot be read; use the command of the provisioner's own release"
                            .to_owned(),
                    )
                });
            }
            if began.elapsed() >= wait {
                return Ok(None);
            }
            if told.elapsed() >= PATIENCE {
                told = Instant::now();
                let whom =
                    node.map_or_else(|| "the leader".to_owned(), |node| format!("the agent of {node}"));
                say(notes, format_args!("{}: waiting for {whom}", entry.name))?;
            }
            sleep(LOOK).await;
        }
    }

    async fn remove(&self, map: &ConfigMap) -> Result<(), RunError> {
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: map.metadata.uid.clone(), resource_version: None }),
            ..DeleteParams::default()
        };
        let name = map.metadata.name.as_deref().unwrap_or_default();
        let request = async {
            match self.maps.delete(name, &parameters).await {
                Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                answer => answer.map(drop),
            }
        };
        within("delete", MAPS, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(node: Option<&str>, names: &[&str], more: usize) -> Listing {
        let volumes = names.iter().map(|name| TrashEntry {
            name: (*name).to_owned(),
            owner: "u".to_owned(),
            claim: "shop/orders".to_owned(),
            class: "fast".to_owned(),
            size: 10 << 30,
            at: 1_767_225_600,
            until: 1_767_830_400,
        });
        Listing { node: node.map(str::to_owned), volumes: volumes.collect(), more }
    }

    #[test]
    fn a_list_is_a_table_for_people_and_json_for_programs() {
        let text = |found: &[Listing], format| {
            let mut out = Vec::new();
            list(found, format, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(&[], Format::Table), "The trash is empty.\n");
        let found = [listing(Some("worker-1"), &["pvc-a", "pvc-longer"], 2), listing(None, &["pvc-c"], 0)];
        let table = text(&found, Format::Table);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("NAME        SIZE  AGE") && lines[0].ends_with("NODE"), "{table}");
        assert!(lines[2].starts_with("pvc-longer  10Gi") && lines[2].ends_with("worker-1"), "{table}");
        assert!(lines[3].contains("2026-01-08T00:00:00Z  shop/orders  -"), "{table}");
        assert_eq!(lines[4], "and 2 more on node worker-1, which are kept for longer");
        let json: Value = serde_json::from_str(&text(&found, Format::Json)).unwrap();
        assert_eq!(json["volumes"][1]["node"], "worker-1");
        assert_eq!(
            (json["volumes"][2]["until"].as_u64(), json["more"].as_u64()),
            (Some(1_767_830_400), Some(2))
        );
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [(5, "5s"), (65, "1m5s"), (90_061, "1day1h"), (0, "0s")] {
            assert_eq!(age_text(Duration::from_secs(seconds)), expected);
        }
    }
}
