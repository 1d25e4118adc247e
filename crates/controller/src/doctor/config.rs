//! `config check`: flags and storage classes before they meet a cluster, for a pipeline that guards a repository of manifests.

use crate::backend::problems_of_class;
use crate::cli::RunOptions;
use crate::client::chain;
use crate::decide::ClassView;
use crate::decide::budget::budget;
use crate::decide::claim::on_delete;
use crate::objects::Class;
use serde::Deserialize;
use serde_json::Value;
use volwright_provisioner::{Placement, Provisioner};

use super::{Report, Status};

/// What the flags and these files (name and YAML text) say, and what is wrong with them. Asks nobody.
pub fn check_config<P: Provisioner>(
    options: &RunOptions,
    args: &P::Args,
    files: &[(String, String)],
) -> Report {
    let mut report = Report::default();
    report.begin("config");
    let names = options.cluster.names(P::BACKEND);
    report.ok("provisioner", format!("serves {}", names.join(", ")));
    match P::placement(args) {
        Ok(Placement::Central) => {
            report.ok("placement", "one process for the cluster, others may stand by");
            match options.lease.timing() {
                Ok(_) => report.ok("lease", "its times fit together"),
                Err(error) => report.fail("lease", chain(&error)),
            }
        }
        Ok(Placement::PerNode { node }) => report.ok("placement", format!("an agent for node {node}")),
        Err(failure) => report.fail("flags", chain(&failure)),
    }
    for (file, text) in files {
        look_at_file::<P>(&mut report, &names, file, text);
    }
    report
}

fn look_at_file<P: Provisioner>(report: &mut Report, names: &[String], file: &str, text: &str) {
    let before = report.findings.len();
    for (number, document) in serde_yaml::Deserializer::from_str(text).enumerate() {
        let value = match Value::deserialize(document) {
            Ok(Value::Null) => continue,
            Ok(value) => value,
            Err(error) => {
                report.fail(format!("{file}, document {}", number + 1), format!("is no YAML: {error}"));
                // Nothing after this place can be read either, and the parser would say so for ever.
                break;
            }
        };
        let items = match value["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![value],
        };
        for item in items.into_iter().filter(|item| item["kind"] == "StorageClass") {
            match serde_json::from_value::<Class>(item) {
                Ok(class) => look_at_class::<P>(report, names, file, &class.view()),
                Err(error) => report.fail(file, format!("has a StorageClass that cannot be read: {error}")),
            }
        }
    }
    if report.findings.len() == before {
        report.add(file, Status::Note, "has no StorageClass");
    }
}

fn look_at_class<P: Provisioner>(report: &mut Report, names: &[String], file: &str, class: &ClassView) {
    let subject = format!("{file}, storage class {}", class.name);
    if !names.contains(&class.provisioner) {
        report.add(subject, Status::Note, format!("is of another provisioner, {}", class.provisioner));
        return;
    }
    let mut problems = problems_of_class::<P>(&class.parameters);
    problems.extend(on_delete(class).err());
    problems.extend(budget(class).err());
    if problems.is_empty() {
        report.ok(subject, "its parameters are understood");
    } else {
        report.fail(subject, problems.join("; "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::shelf::{Args, Shelf};

    fn check(files: &[(&str, &str)]) -> Vec<(String, Status, String)> {
        let files: Vec<_> =
            files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let args = Args { node: None, mood: "well".to_owned() };
        let report = check_config::<Shelf>(&RunOptions::default(), &args, &files);
        report.findings.into_iter().map(|f| (f.subject, f.status, f.detail)).collect()
    }

    #[test]
    fn every_class_of_every_document_is_looked_at() {
        let classes = "apiVersion: v1\nkind: List\nitems:\n- kind: StorageClass\n  metadata: {name: good}\n  provisioner: \
                       shelf.volwright.io\n---\nkind: StorageClass\nmetadata: {name: bad}\nprovisioner: \
                       shelf.volwright.io\nparameters: {colour: red, onDelete: shred}\n---\nkind: StorageClass\nmetadata: \
                       {name: theirs}\nprovisioner: ebs.csi.aws.com\n---\nkind: Secret\n";
        let found =
            check(&[("classes.yaml", classes), ("empty.yaml", "kind: Secret\n"), ("broken.yaml", "a: [\n")]);
        let one = |subject: &str| {
            found.iter().find(|(s, ..)| s == subject).unwrap_or_else(|| panic!("{subject}: {found:#?}"))
        };
        assert_eq!(one("classes.yaml, storage class good").1, Status::Ok);
        let (_, status, text) = one("classes.yaml, storage class bad");
        assert_eq!(*status, Status::Fail);
        assert!(text.contains("unknown field `colour`") && text.contains("onDelete to \"shred\""), "{text}");
        assert_eq!(one("classes.yaml, storage class theirs").1, Status::Note);
        assert_eq!(one("empty.yaml").1, Status::Note);
        assert!(
            found.iter().any(|(s, status, _)| s.starts_with("broken.yaml") && *status == Status::Fail),
            "{found:#?}"
        );
    }
}
