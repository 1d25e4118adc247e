//! What a backend can do with a class.

use crate::{AccessMode, VolumeMode};

/// When a claim of the class may be served (`volumeBindingMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// At once, or after the scheduler chose a node.
    Any,
    /// Only after the scheduler chose a node. A class with `Immediate` is refused with this reason.
    LateOnly {
        /// Why, for the user.
        reason: &'static str,
    },
}

/// Who makes a volume larger when its claim asks for more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Growth {
    /// Nobody can.
    #[default]
    No,
    /// We do, by [`Provisioner::expand`](crate::Provisioner::expand).
    Ours,
    /// The resizer of the CSI driver that the PV names does all of it, on such PVs too; we touch nothing.
    Driver,
    /// We do; the CSI driver's own resizer tries as well, and can only fail. Its marks on the claim are overwritten.
    Both,
}

impl Growth {
    /// Is [`Provisioner::expand`](crate::Provisioner::expand) called for such volumes?
    pub fn is_ours(self) -> bool {
        matches!(self, Self::Ours | Self::Both)
    }
}

/// What a backend offers for one set of class parameters. Pure and cheap: asked for every claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// Pairs that work. A claim for anything else is refused.
    pub modes: Vec<(VolumeMode, AccessMode)>,
    /// When claims may be served.
    pub binding: Binding,
    /// Who makes volumes larger. A file system on a CSI-shaped PV is then grown by its node.
    pub expand: Growth,
    /// A claim may name another claim as its source.
    pub clone: bool,
    /// `onDelete: trash` works.
    pub trash: bool,
    /// The backend sees whether anybody has written to a volume: `observe` answers pristine `Yes` or `No`, and never
    /// `Unknown` for a healthy volume. The mark `published` is then written after the PV was created, else just before:
    /// where emptiness cannot be seen, an `unpublished` mark is all that says so.
    pub sees_contents: bool,
}

impl Capabilities {
    /// File system volumes in the given access modes, any binding, nothing optional.
    pub fn filesystem(modes: &[AccessMode]) -> Self {
        Self {
            modes: modes.iter().map(|mode| (VolumeMode::Filesystem, *mode)).collect(),
            binding: Binding::Any,
            expand: Growth::No,
            clone: false,
            trash: false,
            sees_contents: false,
        }
    }

    /// Can every one of `access` be had with `volume`?
    pub fn offers(&self, volume: VolumeMode, access: &[AccessMode]) -> bool {
        access.iter().all(|mode| self.modes.contains(&(volume, *mode)))
    }

    /// The volume modes that occur at all.
    pub fn offers_volume_mode(&self, volume: VolumeMode) -> bool {
        self.modes.iter().any(|(offered, _)| *offered == volume)
    }
}
