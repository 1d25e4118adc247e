//! One component of a path, as bytes: what users put into volumes need not be UTF-8.

use std::borrow::Cow;
use std::fmt;

/// The name of one directory entry. It has no slash and no NUL and is neither `.` nor `..`, so that joined to a
/// directory it always means something directly inside.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Cow<'static, [u8]>);

impl Name {
    /// Checks and takes a name. `None` for what could lead elsewhere.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Option<Self> {
        let bytes = bytes.into();
        let plain =
            !matches!(bytes.as_slice(), b"" | b"." | b"..") && !bytes.iter().any(|b| matches!(b, b'/' | 0));
        plain.then_some(Self(Cow::Owned(bytes)))
    }

    /// A name of our own, known to be plain.
    pub(crate) const fn fixed(name: &'static str) -> Self {
        Self(Cow::Borrowed(name.as_bytes()))
    }

    /// A component of a [`RelativePath`](volwright_provisioner::RelativePath), which checked it already, or a name
    /// built from hex digits.
    pub(crate) fn component(component: &str) -> Self {
        debug_assert!(Self::new(component).is_some(), "{component:?} is no component");
        Self(Cow::Owned(component.as_bytes().to_vec()))
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The name where it is UTF-8, as all of our own are.
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Users choose these: nothing they write may break a log line or an event.
        write!(f, "{}", String::from_utf8_lossy(&self.0).escape_debug())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leads_elsewhere() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0b"] {
            assert_eq!(Name::new(bad), None, "{bad:?}");
        }
        for good in [&b"a"[..], b"...", b".volwright", b"\xff\xfe", b"a\nb"] {
            assert_eq!(Name::new(good).map(|n| n.as_bytes().to_vec()), Some(good.to_vec()));
        }
        assert_eq!(Name::new(*b"a\nb").unwrap().to_string(), "a\\nb");
    }
}
