//! A shard of the journal as a ConfigMap, and back.

use super::entry::Record;
use crate::decide::ledger::{Image, Version, Write};
use crate::names;
use k8s_openapi::api::core::v1::ConfigMap;
use std::collections::BTreeMap;

/// Reads what the server has sent.
pub(super) fn image(object: &ConfigMap) -> Image {
    let note = |name: &str| object.metadata.annotations.as_ref().and_then(|notes| notes.get(name));
    Image {
        version: version(object),
        epoch: note(names::JOURNAL_EPOCH)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default(),
        counter: note(names::JOURNAL_COMMITS).and_then(|text| text.parse().ok()).unwrap_or(0),
        shards: note(names::JOURNAL_SHARDS).and_then(|text| text.parse().ok()),
        stop: note(names::DELETES_STOPPED).cloned(),
        data: object.data.clone().unwrap_or_default(),
    }
}

pub(super) fn version(object: &ConfigMap) -> Version {
    Version {
        uid: object.metadata.uid.clone().unwrap_or_default(),
        resource: object.metadata.resource_version.clone().unwrap_or_default(),
    }
}

/// The object to send: what others have put on it stays.
pub(super) fn object(
    base: Option<&ConfigMap>,
    name: &str,
    provisioner: &str,
    write: &Write<Record>,
) -> ConfigMap {
    let mut object = base.filter(|_| write.version.is_some()).cloned().unwrap_or_default();
    let meta = &mut object.metadata;
    meta.name = Some(name.to_owned());
    meta.managed_fields = None;
    meta.uid = write.version.as_ref().map(|version| version.uid.clone());
    meta.resource_version =
        write.version.as_ref().map(|version| version.resource.clone()).filter(|version| !version.is_empty());
    let labels = meta.labels.get_or_insert_with(BTreeMap::new);
    labels.insert(names::MANAGED_BY.to_owned(), "volwright".to_owned());
    labels.insert(names::JOURNAL_PROVISIONER.to_owned(), names::provisioner_label(provisioner));
    let notes = meta.annotations.get_or_insert_with(BTreeMap::new);
    notes.insert(names::JOURNAL_EPOCH.to_owned(), serde_json::json!(write.epoch).to_string());
    notes.insert(names::JOURNAL_COMMITS.to_owned(), write.counter.to_string());
    match write.shards {
        Some(shards) => notes.insert(names::JOURNAL_SHARDS.to_owned(), shards.to_string()),
        None => notes.remove(names::JOURNAL_SHARDS),
    };
    match &write.stop {
        Some(reason) => notes.insert(names::DELETES_STOPPED.to_owned(), reason.clone()),
        None => notes.remove(names::DELETES_STOPPED),
    };
    object.data = Some(write.data.clone());
    object
}
