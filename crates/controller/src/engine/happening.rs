//! Whom an event is about, and the actions it can name.

use crate::decide::{ClaimView, ClassView, VolumeView};
use k8s_openapi::api::core::v1::ObjectReference;
use std::fmt;

/// `action` of events on claims.
pub const ABOUT_CLAIM: &str = "Provision";
/// `action` of events on classes.
pub const ABOUT_CLASS: &str = "Promise";
/// `action` of events on PVs.
pub const ABOUT_VOLUME: &str = "Delete";

/// A claim, a class or a PV as the target of events; displays as logs name it.
#[derive(Debug, Clone)]
pub struct Subject(ObjectReference);

impl Subject {
    /// A claim.
    pub fn claim(claim: &ClaimView) -> Self {
        let glance = &claim.glance;
        Self::of_claim(&glance.namespace, &glance.name, glance.uid.as_str())
    }

    /// A claim by its names.
    pub fn of_claim(namespace: &str, name: &str, uid: &str) -> Self {
        Self(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        })
    }

    /// A class.
    pub fn class(class: &ClassView) -> Self {
        Self(ObjectReference {
            api_version: Some("storage.k8s.io/v1".to_owned()),
            kind: Some("StorageClass".to_owned()),
            name: Some(class.name.clone()),
            uid: Some(class.uid.clone()),
            ..ObjectReference::default()
        })
    }

    /// A PV.
    pub fn volume(volume: &VolumeView) -> Self {
        Self(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolume".to_owned()),
            name: Some(volume.name.clone()),
            uid: Some(volume.uid.clone()),
            ..ObjectReference::default()
        })
    }

    /// For the event.
    pub fn reference(&self) -> ObjectReference {
        self.0.clone()
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.name.as_deref().unwrap_or_default();
        match &self.0.namespace {
            Some(namespace) => write!(f, "{namespace}/{name}"),
            None => f.write_str(name),
        }
    }
}
