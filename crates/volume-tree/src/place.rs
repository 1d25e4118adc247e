//! What names a volume below a root.

use crate::Name;
use crate::layout::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use volwright_provisioner::{Mark, RelativePath};

/// Where a volume is: part of a backend's handle.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Place {
    /// Below the root.
    pub path: RelativePath,
    /// Whose. A path is given out anew after a volume is gone; this is not.
    pub id: VolumeId,
}

impl Place {
    /// The place at `path` for the volume that `mark` names.
    pub fn new(path: RelativePath, mark: &Mark) -> Self {
        let id = VolumeId::of(mark, &path);
        Self { path, id }
    }
}

/// A volume's private name while it is made and while it is removed: a hash of owner and path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

/// Hex digits of an id: 128 bits, out of reach of chance and of claims with chosen names.
const DIGITS: usize = 32;

impl VolumeId {
    fn of(mark: &Mark, path: &RelativePath) -> Self {
        let mut hash = Sha256::new();
        let path = path.to_string();
        for part in [mark.installation.as_str(), mark.owner.as_str(), mark.pv_name.as_str(), &path] {
            // The length keeps "ab" + "c" and "a" + "bc" apart.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Self(hex(&hash.finalize()[..DIGITS / 2]))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn name(&self) -> Name {
        Name::component(&self.0)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for VolumeId {
    type Error = String;

    /// It becomes a file name, and handles come from PVs that others can edit.
    fn try_from(text: String) -> Result<Self, String> {
        let plain = text.len() == DIGITS && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if plain { Ok(Self(text)) } else { Err(format!("a volume id has {DIGITS} hex digits")) }
    }
}

impl From<VolumeId> for String {
    fn from(id: VolumeId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volwright_provisioner::{ClaimUid, Epoch, InstallationId, MarkState, PvName};

    #[test]
    fn the_id_is_the_owners_and_the_paths() {
        let mark = |pv: &str| Mark {
            installation: InstallationId::new("i"),
            owner: ClaimUid::new("u"),
            pv_name: PvName::new(pv),
            epoch: Epoch::default(),
            state: MarkState::Planned,
        };
        let path = |text: &str| RelativePath::parse(text).unwrap();
        let id = Place::new(path("a"), &mark("p")).id;
        assert_eq!(id, Place::new(path("a"), &mark("p").with_state(MarkState::Published)).id);
        assert_ne!(id, Place::new(path("b"), &mark("p")).id);
        assert_ne!(id, Place::new(path("a"), &mark("q")).id);
        assert_eq!(VolumeId::try_from(id.to_string()), Ok(id));
        for bad in ["", "..", "../../etc", &"A".repeat(32), &"a".repeat(33)] {
            assert!(VolumeId::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }
}
