//! Path patterns: where below its root a volume goes, written by an administrator, filled from a claim.
//!
//! What a claim's owner writes (names, labels, annotations) is hostile. A pattern is contained by construction: a
//! substituted value can only ever be a piece of one path component, and every component is checked after filling in.

use crate::{ClaimInfo, PvName};
use std::fmt;
use thiserror::Error;

/// The longest component that Linux file systems take (NAME_MAX), in bytes.
const COMPONENT_MAX: usize = 255;
/// Deeper trees serve nobody and cost a lookup a level.
const DEPTH_MAX: usize = 16;
/// The name kept for our own files at the top of every root, in any case: file systems may fold cases.
pub const RESERVED: &str = ".volwright";

/// A parsed pattern such as `${pvc.namespace}/${pvc.name}-${pv.name}`.
///
/// Tokens: `${pvc.name}`, `${pvc.namespace}`, `${pvc.uid}`, `${pv.name}`, `${pvc.labels['key']}`,
/// `${pvc.annotations['key']}`, and the spelling of nfs-subdir-external-provisioner: `${.PVC.name}`,
/// `${.PVC.namespace}`, `${.PVC.labels.key}`, `${.PVC.annotations.key}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    ClaimName,
    ClaimNamespace,
    ClaimUid,
    PvName,
    Label(String),
    Annotation(String),
}

/// Why a pattern cannot be used. The class must change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// Nothing in it.
    #[error("the path pattern is empty")]
    Empty,
    /// It begins with a slash.
    #[error("the path pattern {0:?} is absolute; it is taken below the root, so leave the leading slash out")]
    Absolute(String),
    /// `${` without `}`.
    #[error("the path pattern {0:?} has \"${{\" without \"}}\"")]
    Unclosed(String),
    /// A token that does not exist.
    #[error(
        "the path pattern has the unknown token {0:?}; known are ${{pvc.name}}, ${{pvc.namespace}}, ${{pvc.uid}}, \
         ${{pv.name}}, ${{pvc.labels['key']}} and ${{pvc.annotations['key']}}"
    )]
    UnknownToken(String),
    /// A fixed part that could never be a path component.
    #[error("the path pattern {pattern:?}: {reason}")]
    BadText {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: ComponentError,
    },
}

/// Why a claim cannot be given the path of a pattern. The claim or the class must change.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FillError {
    /// A label or annotation that the claim does not have, or an empty one.
    #[error(
        "the path pattern asks for {0}, which the claim does not have; set it and the claim is tried again"
    )]
    Missing(String),
    /// A value with a slash would choose directories.
    #[error("the value of {token} has a slash, and may not choose directories: {value:?}")]
    Slash {
        /// Which token.
        token: String,
        /// Its value, shortened.
        value: String,
    },
    /// A component that is not allowed after filling in.
    #[error("the path made from the pattern is refused: {0}")]
    Component(#[from] ComponentError),
    /// More levels than allowed.
    #[error("the path made from the pattern has {0} levels; at most {DEPTH_MAX} are allowed")]
    TooDeep(usize),
}

/// Why a text is no path component.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ComponentError {
    /// Nothing between two slashes.
    #[error("a component is empty")]
    Empty,
    /// `.` or `..`
    #[error("the component {0:?} would leave its place")]
    Dots(String),
    /// A NUL, newline, escape, ...
    #[error("the component {0:?} has a control character")]
    Control(String),
    /// A slash within.
    #[error("the component {0:?} has a slash")]
    Slash(String),
    /// Longer than file systems take.
    #[error("a component has {0} bytes; file systems take at most {COMPONENT_MAX}")]
    TooLong(usize),
    /// Our own name.
    #[error("the name {RESERVED:?} is kept for the provisioner's own files")]
    Reserved,
}

/// A checked relative path: no empty component, no `.` or `..`, no control characters, not below [`RESERVED`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelativePath(Vec<String>);

impl RelativePath {
    /// Checks each component of a slash-separated relative path.
    pub fn parse(text: &str) -> Result<Self, FillError> {
        Self::from_components(text.split('/').map(str::to_owned).collect())
    }

    fn from_components(components: Vec<String>) -> Result<Self, FillError> {
        if components.len() > DEPTH_MAX {
            return Err(FillError::TooDeep(components.len()));
        }
        for component in &components {
            check_component(component)?;
        }
        match components.first() {
            Some(first) if first.eq_ignore_ascii_case(RESERVED) => Err(ComponentError::Reserved.into()),
            Some(_) => Ok(Self(components)),
            None => Err(ComponentError::Empty.into()),
        }
    }

    /// The components, at least one.
    pub fn components(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for RelativePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("/"))
    }
}

fn check_component(component: &str) -> Result<(), ComponentError> {
    if component.is_empty() {
        Err(ComponentError::Empty)
    } else if component == "." || component == ".." {
        Err(ComponentError::Dots(component.to_owned()))
    } else if component.contains('/') {
        Err(ComponentError::Slash(shorten(component)))
    } else if component.chars().any(char::is_control) {
        Err(ComponentError::Control(shorten(component)))
    } else if component.len() > COMPONENT_MAX {
        Err(ComponentError::TooLong(component.len()))
    } else {
        Ok(())
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

impl Pattern {
    /// Reads a pattern; says what is wrong with it before any claim comes.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.starts_with('/') {
            return Err(PatternError::Absolute(text.to_owned()));
        }
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            if start > 0 {
                parts.push(Part::Text(rest[..start].to_owned()));
            }
            let after = &rest[start + 2..];
            let end = after.find('}').ok_or_else(|| PatternError::Unclosed(text.to_owned()))?;
            parts.push(token(&after[..end])?);
            rest = &after[end + 1..];
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        let pattern = Self { text: text.to_owned(), parts };
        pattern.check_fixed_parts()?;
        Ok(pattern)
    }

    /// Fills the pattern for one claim.
    pub fn fill(&self, claim: &ClaimInfo, pv_name: &PvName) -> Result<RelativePath, FillError> {
        let mut components = vec![String::new()];
        for part in &self.parts {
            if let Part::Text(text) = part {
                let mut pieces = text.split('/');
                push_piece(&mut components, pieces.next().unwrap_or_default());
                components.extend(pieces.map(str::to_owned));
                continue;
            }
            let value = part.value(claim, pv_name).filter(|v| !v.is_empty());
            let value = value.ok_or_else(|| FillError::Missing(part.to_string()))?;
            if value.contains('/') {
                return Err(FillError::Slash { token: part.to_string(), value: shorten(value) });
            }
            push_piece(&mut components, value);
        }
        RelativePath::from_components(components)
    }

    /// A pattern with a placeholder for each token must be a path already: else no claim could ever use it.
    fn check_fixed_parts(&self) -> Result<(), PatternError> {
        let sample: String = self
            .parts
            .iter()
            .map(|part| if let Part::Text(text) = part { text.as_str() } else { "x" })
            .collect();
        let bad = |reason| PatternError::BadText { pattern: self.text.clone(), reason };
        for component in sample.split('/') {
            check_component(component).map_err(bad)?;
        }
        match sample.split('/').next() {
            Some(first) if first.eq_ignore_ascii_case(RESERVED) => Err(bad(ComponentError::Reserved)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn push_piece(components: &mut [String], piece: &str) {
    if let Some(last) = components.last_mut() {
        last.push_str(piece);
    }
}

fn token(text: &str) -> Result<Part, PatternError> {
    let unknown = || PatternError::UnknownToken(format!("${{{text}}}"));
    match text {
        "pvc.name" | ".PVC.name" => return Ok(Part::ClaimName),
        "pvc.namespace" | ".PVC.namespace" => return Ok(Part::ClaimNamespace),
        "pvc.uid" => return Ok(Part::ClaimUid),
        "pv.name" | ".PV.name" => return Ok(Part::PvName),
        _ => {}
    }
    let quoted = |prefix: &str| {
        text.strip_prefix(prefix)?.strip_prefix("['")?.strip_suffix("']").filter(|k| !k.is_empty())
    };
    let dotted = |prefix: &str| text.strip_prefix(prefix).filter(|k| !k.is_empty());
    if let Some(key) = quoted("pvc.labels").or_else(|| dotted(".PVC.labels.")) {
        Ok(Part::Label(key.to_owned()))
    } else if let Some(key) = quoted("pvc.annotations").or_else(|| dotted(".PVC.annotations.")) {
        Ok(Part::Annotation(key.to_owned()))
    } else {
        Err(unknown())
    }
}

impl Part {
    fn value<'a>(&'a self, claim: &'a ClaimInfo, pv_name: &'a PvName) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::ClaimName => Some(&claim.name),
            Self::ClaimNamespace => Some(&claim.namespace),
            Self::ClaimUid => Some(claim.uid.as_str()),
            Self::PvName => Some(pv_name.as_str()),
            Self::Label(key) => claim.labels.get(key).map(String::as_str),
            Self::Annotation(key) => claim.annotations.get(key).map(String::as_str),
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::ClaimName => f.write_str("the claim's name"),
            Self::ClaimNamespace => f.write_str("the claim's namespace"),
            Self::ClaimUid => f.write_str("the claim's uid"),
            Self::PvName => f.write_str("the PV's name"),
            Self::Label(key) => write!(f, "the label {key:?}"),
            Self::Annotation(key) => write!(f, "the annotation {key:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ClaimUid;
    use proptest::prelude::*;

    fn claim(label: &str) -> ClaimInfo {
        ClaimInfo {
            namespace: "ns".into(),
            name: "data".into(),
            uid: ClaimUid::new("u1"),
            labels: [("app".to_owned(), label.to_owned())].into(),
            annotations: [("example.com/dir".to_owned(), label.to_owned())].into(),
        }
    }

    fn fill(pattern: &str, label: &str) -> Result<String, String> {
        let pattern = Pattern::parse(pattern).map_err(|e| e.to_string())?;
        pattern.fill(&claim(label), &PvName::new("pvc-u1")).map(|p| p.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn patterns_are_filled_from_the_claim() {
        let cases = [
            ("${pvc.namespace}-${pvc.name}-${pv.name}", "ns-data-pvc-u1"),
            ("${pvc.namespace}/${pvc.name}", "ns/data"),
            ("a/${pvc.labels['app']}x/b", "a/webx/b"),
            ("${.PVC.namespace}/${.PVC.annotations.example.com/dir}", "ns/web"),
            ("${pvc.uid}", "u1"),
            ("..${pvc.name}", "..data"),
        ];
        for (pattern, expected) in cases {
            assert_eq!(fill(pattern, "web"), Ok(expected.to_owned()), "{pattern}");
        }
    }

    #[test]
    fn what_would_leave_the_root_is_refused_and_named() {
        let cases = [
            ("/abs/${pvc.name}", "web", "is absolute"),
            ("../${pvc.name}", "web", "would leave its place"),
            ("a//${pvc.name}", "web", "is empty"),
            ("${pvc.name}/", "web", "is empty"),
            ("${pvc.labels['app']}", "..", "would leave its place"),
            ("${pvc.labels['app']}.", ".", "would leave its place"),
            ("a/${pvc.labels['app']}", "../../etc", "has a slash"),
            ("${pvc.labels['app']}", "a\0b", "control character"),
            ("${pvc.labels['app']}", "", "which the claim does not have"),
            ("${pvc.labels['nope']}", "x", "which the claim does not have"),
            ("${pvc.labels['app']}/x", ".VolWright", "kept for the provisioner"),
            (".volwright/${pvc.name}", "x", "kept for the provisioner"),
            ("${pvc.labels['app']}", &"é".repeat(200), "at most 255"),
            ("${pvc.secret}", "x", "unknown token \"${pvc.secret}\""),
            ("${pvc.name", "x", "without \"}\""),
            ("", "x", "is empty"),
        ];
        for (pattern, label, expected) in cases {
            let error = fill(pattern, label).expect_err(pattern);
            assert!(error.contains(expected), "{pattern} with {label:?}: {error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn whatever_the_claim_says_the_path_stays_below(
            pattern in "(\\$\\{pvc.name\\}|\\$\\{pvc.labels\\['app'\\]\\}|\\.|/|a|\\.\\.|\\$\\{pvc.annotations\\['example.com/dir'\\]\\}){1,8}",
            label in "(\\PC|\\.|/|\0|\n|\\.\\.){0,300}",
        ) {
            if let Ok(path) = fill(&pattern, &label) {
                prop_assert!(!path.starts_with('/'));
                for component in path.split('/') {
                    prop_assert!(!component.is_empty() && component != "." && component != "..");
                    prop_assert!(component.len() <= 255 && !component.chars().any(char::is_control));
                }
            }
        }
    }
}
