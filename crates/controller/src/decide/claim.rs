//! A claim: is it ours, is it time, and on what terms is it served?
//!
//! The order of the questions is the library's (`shouldProvision`, `canProvision`), with the questions added that it
//! leaves to each provisioner. docs/design lists both side by side.

use super::trash::kept_for;
use super::{ClaimGlance, ClaimView, ClassView, Identity, OnDelete, Rule, VolumeView};
use crate::names;
use volwright_provisioner::{
    AccessMode, Binding, Capabilities, Mark, MarkState, Observed, Pristine, VolumeMode, VolumeSource,
};

/// From what the watch knows of every claim: is it worth a look?
pub fn concerns_us(identity: &Identity, glance: &ClaimGlance) -> bool {
    let asked = glance.provisioner.as_deref().is_some_and(|name| identity.answers_to(name));
    let here = identity.node.is_none() || identity.node == glance.selected_node;
    asked && here && glance.volume_name.is_none() && !glance.terminating
}

/// An agent only: does this claim ask us and yet name no node? With late binding that does not last; with Immediate
/// binding no agent would ever serve it.
pub fn asks_no_agent(identity: &Identity, glance: &ClaimGlance) -> bool {
    let asked = glance.provisioner.as_deref().is_some_and(|name| identity.answers_to(name));
    asked && identity.node.is_some() && glance.selected_node.is_none() && !glance.terminating
}

/// What a claim needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Nothing from us. An open intent is settled.
    Nothing(Why),
    /// Nothing yet; a change will wake us. `Some` is told to the user.
    Wait(Why, Option<String>),
    /// It can never be served as it is: one Warning that names the remedy.
    Refuse(String),
    /// A PV of ours is there already: done.
    Done,
    /// To be served.
    Serve,
}

/// Why nothing is done, for the debug log and the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// `spec.volumeName` is set.
    Bound,
    /// Being deleted: a volume for it would be deleted next.
    Terminating,
    /// Another provisioner is asked, or none yet.
    NotAsked,
    /// Another node was selected.
    OtherNode,
    /// The class does not exist.
    ClassMissing,
    /// The class names another provisioner than the annotation.
    ClassOfAnother,
    /// The scheduler has not chosen a node.
    NoNodeYet,
    /// A populator fills it.
    Populator,
    /// Its PV is being deleted.
    VolumeTerminating,
}

impl Why {
    fn arm(self) -> &'static str {
        match self {
            Self::Bound => "nothing: bound",
            Self::Terminating => "nothing: terminating",
            Self::NotAsked => "nothing: not asked",
            Self::OtherNode => "nothing: other node",
            Self::ClassMissing => "wait: class missing",
            Self::ClassOfAnother => "nothing: class of another",
            Self::NoNodeYet => "wait: no node yet",
            Self::Populator => "wait: populator",
            Self::VolumeTerminating => "wait: volume terminating",
        }
    }
}

impl Route {
    /// Every answer of [`route`], for the coverage of tests.
    pub const ARMS: [&str; 12] = [
        "nothing: bound",
        "nothing: terminating",
        "nothing: not asked",
        "nothing: other node",
        "nothing: class of another",
        "wait: class missing",
        "wait: no node yet",
        "wait: populator",
        "wait: volume terminating",
        "refuse",
        "done",
        "serve",
    ];

    fn arm(&self) -> &'static str {
        match self {
            Self::Nothing(why) | Self::Wait(why, _) => why.arm(),
            Self::Refuse(_) => "refuse",
            Self::Done => "done",
            Self::Serve => "serve",
        }
    }
}

/// `existing` is the PV named for this claim, if there is one; `carries_handle` says that we can read its handle.
pub fn route(
    identity: &Identity,
    claim: &ClaimView,
    class: Option<&ClassView>,
    existing: Option<(&VolumeView, bool)>,
) -> Route {
    let route = routed(identity, claim, class, existing);
    identity.rules.visit("route", route.arm());
    route
}

fn routed(
    identity: &Identity,
    claim: &ClaimView,
    class: Option<&ClassView>,
    existing: Option<(&VolumeView, bool)>,
) -> Route {
    let glance = &claim.glance;
    if glance.volume_name.is_some() {
        return Route::Nothing(Why::Bound);
    }
    if glance.terminating {
        return Route::Nothing(Why::Terminating);
    }
    if !glance.provisioner.as_deref().is_some_and(|name| identity.answers_to(name)) {
        return Route::Nothing(Why::NotAsked);
    }
    let class_name = claim.class.as_deref().unwrap_or_default();
    let Some(class) = class else {
        let note =
            format!("StorageClass {class_name:?} does not exist; the claim is served as soon as it does");
        return Route::Wait(Why::ClassMissing, Some(note));
    };
    if !identity.answers_to(&class.provisioner) {
        return Route::Nothing(Why::ClassOfAnother);
    }
    if class.late_binding && glance.selected_node.is_none() {
        return Route::Wait(Why::NoNodeYet, None);
    }
    if identity.node.is_some() && identity.node != glance.selected_node {
        return Route::Nothing(Why::OtherNode);
    }
    if let Some((volume, carries_handle)) = existing {
        return existing_volume(identity, claim, volume, carries_handle);
    }
    if !identity.rules.holds(Rule::SourceRespected) {
        return Route::Serve;
    }
    source_of_data(claim)
}

fn existing_volume(
    identity: &Identity,
    claim: &ClaimView,
    volume: &VolumeView,
    carries_handle: bool,
) -> Route {
    let made_by_us = volume.provisioned_by.as_deref().is_some_and(|name| identity.answers_to(name));
    if identity.rules.holds(Rule::PvIsOurs) && !(made_by_us && carries_handle) {
        return Route::Refuse(format!(
            "a PersistentVolume named {} exists that this provisioner did not make; remove it or make the claim anew",
            volume.name
        ));
    }
    if volume.terminating {
        let note =
            format!("waiting for PersistentVolume {} of this claim, which is being deleted", volume.name);
        return Route::Wait(Why::VolumeTerminating, Some(note));
    }
    // A populator may have re-pointed claimRef: whose claim it names now is not compared.
    let _ = claim;
    Route::Done
}

fn source_of_data(claim: &ClaimView) -> Route {
    let Some(source) = &claim.data_source else { return Route::Serve };
    match (source.group.as_str(), source.kind.as_str()) {
        ("", "PersistentVolumeClaim") => Route::Refuse(format!(
            "the claim asks for a copy of PersistentVolumeClaim {:?}, and this provisioner cannot clone; \
             leave dataSource out and copy the data in a pod",
            source.name
        )),
        ("snapshot.storage.k8s.io", "VolumeSnapshot") => Route::Refuse(format!(
            "the claim asks for VolumeSnapshot {:?}, and this provisioner cannot restore snapshots; \
             leave dataSource out",
            source.name
        )),
        (group, kind) => Route::Wait(
            Why::Populator,
            Some(format!("assuming that a populator for {kind} ({group}) will provide the volume")),
        ),
    }
}

/// What a claim is served with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Bytes, at least 1.
    pub size: u64,
    /// As the claim says; RWOP stands alone.
    pub access_modes: Vec<AccessMode>,
    /// As the claim says.
    pub volume_mode: VolumeMode,
    /// From the class.
    pub on_delete: OnDelete,
}

/// Can this backend serve this claim of this class? `Err` is the Warning's text, and names the remedy.
pub fn terms(claim: &ClaimView, class: &ClassView, offers: &Capabilities) -> Result<Terms, String> {
    if claim.has_selector {
        return Err("spec.selector cannot be combined with dynamic provisioning: remove the selector, \
                    or bind the claim to an existing PV by spec.volumeName"
            .to_owned());
    }
    let size = claim.request.clone()?;
    if size == 0 {
        return Err("spec.resources.requests.storage is 0; ask for at least one byte".to_owned());
    }
    let volume_mode = claim.volume_mode.clone()?;
    if !offers.offers_volume_mode(volume_mode) {
        return Err(format!("this provisioner does not offer volumeMode {volume_mode}"));
    }
    let access_modes = access_modes(claim, offers, volume_mode)?;
    if let (Binding::LateOnly { reason }, false) = (&offers.binding, class.late_binding) {
        return Err(format!(
            "StorageClass {:?} has volumeBindingMode Immediate: {reason}; make the class anew with \
             volumeBindingMode: WaitForFirstConsumer",
            class.name
        ));
    }
    let on_delete = on_delete(class)?;
    if on_delete == OnDelete::Trash && !offers.trash {
        return Err(format!(
            "StorageClass {:?} sets onDelete to \"trash\", which this provisioner does not offer with its parameters; use \
             delete or retain",
            class.name
        ));
    }
    Ok(Terms { size, access_modes, volume_mode, on_delete })
}

/// Can a PV with this source carry the claim's VolumeAttributesClass? The API allows one on CSI-shaped PVs only, and a
/// claim binds to no PV without the same (kubernetes-facts 7).
pub fn attributes_class(claim: &ClaimView, source: &VolumeSource) -> Result<(), String> {
    match &claim.attributes_class {
        Some(class) if !source.is_csi() => Err(format!(
            "spec.volumeAttributesClassName {class:?} cannot be honoured: Kubernetes allows it on CSI volumes only, and \
             the claim could never bind; remove it"
        )),
        _ => Ok(()),
    }
}

fn access_modes(
    claim: &ClaimView,
    offers: &Capabilities,
    volume_mode: VolumeMode,
) -> Result<Vec<AccessMode>, String> {
    if claim.access_modes.is_empty() {
        return Err("spec.accessModes is empty".to_owned());
    }
    let modes = claim
        .access_modes
        .iter()
        .map(|text| AccessMode::parse(text).ok_or_else(|| format!("the access mode {text:?} is unknown")))
        .collect::<Result<Vec<_>, _>>()?;
    if offers.offers(volume_mode, &modes) {
        return Ok(modes);
    }
    let offered: Vec<_> = offers
        .modes
        .iter()
        .filter(|(volume, _)| *volume == volume_mode)
        .map(|(_, access)| access.as_str())
        .collect();
    Err(format!(
        "access modes {} cannot be had with volumeMode {volume_mode}; this provisioner offers {}",
        claim.access_modes.join(", "),
        offered.join(", ")
    ))
}

/// The class's `onDelete`.
pub fn on_delete(class: &ClassView) -> Result<OnDelete, String> {
    let on_delete = match class.parameters.get(names::ON_DELETE_PARAMETER) {
        None => OnDelete::default(),
        Some(text) => OnDelete::parse(text).ok_or_else(|| {
            format!("StorageClass {:?} sets onDelete to {text:?}; use {}", class.name, OnDelete::KNOWN)
        })?,
    };
    match class.parameters.get(names::TRASH_FOR_PARAMETER) {
        // Whoever writes this counts on the trash, and would find the data destroyed.
        Some(_) if on_delete != OnDelete::Trash => Err(format!(
            "StorageClass {:?} sets trashFor, and onDelete to {:?}: set onDelete to trash, or leave trashFor out",
            class.name,
            on_delete.as_str()
        )),
        text => match kept_for(text.map(String::as_str)) {
            Ok(_) => Ok(on_delete),
            Err(why) => Err(format!("StorageClass {:?}: the parameter trashFor {why}", class.name)),
        },
    }
}

/// What was found at the planned place, before anything is made there. `intent_was_open`: an earlier run had recorded
/// this plan, so an unmarked empty thing is what it left. `Err` is the text for the user.
pub fn place(
    identity: &Identity,
    mark: &Mark,
    observed: Option<&Observed>,
    intent_was_open: bool,
) -> Result<(), String> {
    let Some(observed) = observed else { return Ok(()) };
    if !identity.rules.holds(Rule::PlaceIsFree) {
        return Ok(());
    }
    match &observed.mark {
        Some(found) if found.same_owner(mark) => match found.state {
            MarkState::Planned if observed.pristine != Pristine::Yes => {
                Err("something that is not empty stands where the volume was planned; move it away".to_owned())
            }
            MarkState::Planned | MarkState::Unpublished | MarkState::Published => Ok(()),
            MarkState::Retained | MarkState::Trashed => Err(
                "an earlier volume of this claim was retained in this place; bring its PV back, or make the claim \
                 anew"
                    .to_owned(),
            ),
        },
        Some(_) => Err("the volume's place is taken by another claim's volume; choose another pathPattern, \
                        or delete that volume first"
            .to_owned()),
        None if intent_was_open && observed.pristine == Pristine::Yes => Ok(()),
        None => Err("something that this provisioner did not make stands in the volume's place; move it away, \
                     or choose another pathPattern"
            .to_owned()),
    }
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
