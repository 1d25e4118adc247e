//! A volume on the storage: does anything speak for it?

use volwright_provisioner::{Epoch, InstallationId, Mark, MarkState};

/// What a volume on the storage is to us.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Left {
    /// Another installation's, spoken for, kept on purpose, or being made now.
    Nothing,
    /// Made by an earlier leader and never published: its intent is opened again, to be undone.
    Unfinished,
    /// Published once, and no PV names it any more: it stays, and this reason is reported.
    Orphan(&'static str),
}

/// `spoken_for`: a PV of that name or an open intent exists.
pub fn left(ours: &InstallationId, epoch: Epoch, mark: &Mark, spoken_for: bool) -> Left {
    if mark.installation != *ours || spoken_for {
        return Left::Nothing;
    }
    match mark.state {
        MarkState::Planned | MarkState::Unpublished if mark.epoch < epoch => Left::Unfinished,
        // Of this epoch: between the call and its record nothing waits, but the list may be older than both.
        MarkState::Planned | MarkState::Unpublished | MarkState::Retained | MarkState::Trashed => {
            Left::Nothing
        }
        MarkState::Published => Left::Orphan("it was published, and its PV has gone without its data"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volwright_provisioner::{ClaimUid, PvName};

    #[test]
    fn only_what_nothing_speaks_for_is_looked_at() {
        use MarkState::{Planned, Published, Retained, Trashed, Unpublished};
        let (ours, now) = (InstallationId::new("i"), Epoch { number: 4, token: 1 });
        let mark = |installation: &str, number, state| Mark {
            installation: InstallationId::new(installation),
            owner: ClaimUid::new("u"),
            pv_name: PvName::new("pvc-u"),
            epoch: Epoch { number, token: 9 },
            state,
        };
        let cases = [
            ("another installation's", mark("j", 3, Unpublished), false, Left::Nothing),
            ("spoken for", mark("i", 3, Unpublished), true, Left::Nothing),
            ("an earlier leader's", mark("i", 3, Unpublished), false, Left::Unfinished),
            ("an earlier leader's plan", mark("i", 3, Planned), false, Left::Unfinished),
            ("being made now", mark("i", 4, Unpublished), false, Left::Nothing),
            ("kept on purpose", mark("i", 3, Retained), false, Left::Nothing),
            ("in the trash", mark("i", 3, Trashed), false, Left::Nothing),
        ];
        for (name, mark, spoken_for, expected) in cases {
            let now = if name == "being made now" { mark.epoch } else { now };
            assert_eq!(left(&ours, now, &mark, spoken_for), expected, "case: {name}");
        }
        assert!(matches!(left(&ours, now, &mark("i", 3, Published), false), Left::Orphan(_)));
    }
}
