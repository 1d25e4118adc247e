//! What the watches have told us. Only the watches write here; nothing that we sent ourselves is ever put in.

use crate::backend::{Backend, Envelope};
use crate::decide::volume::{HandleState, concerns_us};
use crate::decide::{ClaimGlance, ClaimView, ClassView, Identity, Rule, VolumeView, claim};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use volwright_provisioner::{ClaimUid, Key, VolumeSource};

/// A claim in the cache.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedClaim {
    /// Known of every claim.
    pub glance: ClaimGlance,
    /// Kept only for claims that wait for us, where whole claims are watched.
    pub full: Option<ClaimView>,
}

/// A PV in the cache.
#[derive(Debug)]
pub struct CachedVolume {
    /// `metadata.uid`
    pub uid: String,
    /// The whole of it, if it is ours.
    pub ours: Option<OurVolume>,
    /// Names of the data behind it.
    pub keys: Vec<Key>,
}

/// A PV of ours.
#[derive(Debug, Clone)]
pub struct OurVolume {
    /// As plain data.
    pub view: VolumeView,
    /// Its handle, if it is good.
    pub handle: Option<Envelope>,
    /// What is known of the handle.
    pub state: HandleState,
}

/// See the module.
#[derive(Default)]
pub struct World {
    claims: RwLock<BTreeMap<ClaimUid, Arc<CachedClaim>>>,
    classes: RwLock<BTreeMap<String, Arc<ClassView>>>,
    volumes: RwLock<BTreeMap<String, Arc<CachedVolume>>>,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl CachedClaim {
    /// Drops what need not be kept.
    pub fn new(identity: &Identity, glance: ClaimGlance, full: Option<ClaimView>) -> Self {
        let full = full.filter(|_| claim::concerns_us(identity, &glance));
        Self { glance, full }
    }

    fn says_the_same(&self, other: &CachedClaim) -> bool {
        let blank = |view: &ClaimView| ClaimView { resource_version: String::new(), ..view.clone() };
        self.glance == other.glance && self.full.as_ref().map(blank) == other.full.as_ref().map(blank)
    }
}

impl OurVolume {
    /// Reads the handle and compares it with the source.
    pub fn new(identity: &Identity, backend: &dyn Backend, view: VolumeView) -> Self {
        let same = |source: &VolumeSource| {
            *source == view.source || !identity.rules.holds(Rule::SourceMatchesHandle)
        };
        let (handle, state) = match view.handle.as_deref() {
            None => (None, HandleState::Missing),
            Some(text) => match Envelope::parse(text)
                .and_then(|handle| Ok((backend.source(&handle)?, handle)))
            {
                Err(error) => (None, HandleState::Bad(error.to_string())),
                Ok((source, handle)) if same(&source) => (Some(handle), HandleState::Good),
                Ok(_) => {
                    (None, HandleState::Bad("the PV's volume source is not the one of its handle".to_owned()))
                }
            },
        };
        Self { view, handle, state }
    }
}

impl CachedVolume {
    /// Drops what need not be kept of a PV that is not ours.
    pub fn new(identity: &Identity, backend: &dyn Backend, view: VolumeView) -> Self {
        let keys = backend.alias_keys(&view.source);
        let uid = view.uid.clone();
        let ours = OurVolume::new(identity, backend, view);
        let ours = concerns_us(identity, &ours.view, &ours.state).then_some(ours);
        Self { uid, ours, keys }
    }

    fn says_the_same(&self, other: &CachedVolume) -> bool {
        let ours = match (&self.ours, &other.ours) {
            (Some(one), Some(two)) => one.view.says_the_same(&two.view),
            (None, None) => true,
            _ => false,
        };
        ours && self.uid == other.uid && self.keys == other.keys
    }
}

/// What a change means for the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Something that is read has changed.
    Real,
    /// Only a version, a status or another field that nobody reads.
    Noise,
}

fn upsert<K: Ord, V>(
    table: &RwLock<BTreeMap<K, Arc<V>>>,
    key: K,
    value: V,
    same: impl Fn(&V, &V) -> bool,
) -> Change {
    let mut table = write(table);
    let change = match table.get(&key) {
        Some(known) if same(known, &value) => Change::Noise,
        _ => Change::Real,
    };
    // Also after noise: the resource version counts for later writes.
    table.insert(key, Arc::new(value));
    change
}

impl World {
    /// A claim was seen.
    pub fn put_claim(&self, claim: CachedClaim) -> Change {
        upsert(&self.claims, claim.glance.uid.clone(), claim, CachedClaim::says_the_same)
    }

    /// A claim is gone.
    pub fn drop_claim(&self, uid: &ClaimUid) {
        write(&self.claims).remove(uid);
    }

    /// The claim of this uid.
    pub fn claim(&self, uid: &ClaimUid) -> Option<Arc<CachedClaim>> {
        read(&self.claims).get(uid).cloned()
    }

    /// Claims that wait for us.
    pub fn waiting_claims(&self, identity: &Identity) -> Vec<ClaimUid> {
        let claims = read(&self.claims);
        claims
            .values()
            .filter(|c| claim::concerns_us(identity, &c.glance))
            .map(|c| c.glance.uid.clone())
            .collect()
    }

    /// Claims that wait for us and name this class, or of which we do not know which they name.
    pub fn waiting_claims_of(&self, identity: &Identity, class: &str) -> Vec<ClaimUid> {
        let claims = read(&self.claims);
        let names_it = |claim: &CachedClaim| {
            claim.full.as_ref().is_none_or(|full| full.class.as_deref().unwrap_or_default() == class)
        };
        let waiting =
            claims.values().filter(|c| claim::concerns_us(identity, &c.glance)).filter(|c| names_it(c));
        waiting.map(|c| c.glance.uid.clone()).collect()
    }

    /// How much is remembered, by table.
    pub fn tables(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::from([
            ("claims", read(&self.claims).len()),
            ("classes", read(&self.classes).len()),
            ("volumes", read(&self.volumes).len()),
        ])
    }

    /// The uids of all claims.
    pub fn claim_uids(&self) -> Vec<ClaimUid> {
        read(&self.claims).keys().cloned().collect()
    }

    /// Claims ("namespace/name") that name this PV in `spec.volumeName`, but the one of `except`. Agents watch no specs
    /// and so know of none.
    pub fn claims_that_name(&self, volume: &str, except: &ClaimUid) -> Vec<String> {
        let claims = read(&self.claims);
        let glances = claims.values().map(|claim| &claim.glance);
        glances
            .filter(|glance| glance.volume_name.as_deref() == Some(volume) && glance.uid != *except)
            .map(|glance| format!("{}/{}", glance.namespace, glance.name))
            .collect()
    }

    /// A class was seen.
    pub fn put_class(&self, class: ClassView) -> Change {
        upsert(&self.classes, class.name.clone(), class, ClassView::eq)
    }

    /// A class is gone.
    pub fn drop_class(&self, name: &str) {
        write(&self.classes).remove(name);
    }

    /// The class of this name.
    pub fn class(&self, name: &str) -> Option<Arc<ClassView>> {
        read(&self.classes).get(name).cloned()
    }

    /// The names of all classes.
    pub fn class_names(&self) -> Vec<String> {
        read(&self.classes).keys().cloned().collect()
    }

    /// A PV was seen.
    pub fn put_volume(&self, name: String, volume: CachedVolume) -> Change {
        upsert(&self.volumes, name, volume, CachedVolume::says_the_same)
    }

    /// A PV is gone, or no longer bears our label. Returns what it was.
    pub fn drop_volume(&self, name: &str) -> Option<Arc<CachedVolume>> {
        write(&self.volumes).remove(name)
    }

    /// The PV of this name.
    pub fn volume(&self, name: &str) -> Option<Arc<CachedVolume>> {
        read(&self.volumes).get(name).cloned()
    }

    /// Does the PV of this name name the volume of this handle, as far as the watch has told?
    pub fn names_it(&self, name: &str, handle: &Envelope) -> bool {
        self.volume(name).is_some_and(|volume| {
            volume.ours.as_ref().is_some_and(|ours| ours.handle.as_ref() == Some(handle))
        })
    }

    /// The names of all PVs.
    pub fn volume_names(&self) -> Vec<String> {
        read(&self.volumes).keys().cloned().collect()
    }

    /// Names of our PVs.
    pub fn our_volume_names(&self) -> Vec<String> {
        read(&self.volumes).iter().filter(|(_, v)| v.ours.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// Looks at each PV of ours.
    pub fn each_of_ours(&self, mut look: impl FnMut(&OurVolume)) {
        for ours in read(&self.volumes).values().filter_map(|volume| volume.ours.as_ref()) {
            look(ours);
        }
    }

    /// Names of other PVs that name the same data, a parent or a child.
    pub fn aliases(&self, name: &str, keys: &[Key]) -> Vec<String> {
        let volumes = read(&self.volumes);
        let others = volumes.iter().filter(|(other, _)| *other != name);
        crate::decide::volume::aliases(
            keys,
            others.map(|(other, volume)| (other.as_str(), volume.keys.as_slice())),
        )
    }
}
