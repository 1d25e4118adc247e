//! Parameters of a class.

use schemars::JsonSchema;
use serde::Deserialize;
use std::fmt;
use volwright_provisioner::{Failure, Pattern, Result};

/// Where volumes go without a `pathPattern`: readable, and by the PV's name never given out twice.
const DEFAULT_PATTERN: &str = "${pvc.namespace}-${pvc.name}-${pv.name}";
/// Pods of any user can write, as with the peers. The root is closed to everybody but root (0700), so that only pods
/// that mount the volume reach it.
const DEFAULT_MODE: u32 = 0o777;

/// Parameters of a StorageClass for local-path. All are optional.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Parameters {
    /// Which of the agent's roots (its `--path`) volumes of this class go to, such as `/mnt/ssd`. Without it, each goes
    /// to the first root with room for it.
    #[serde(default)]
    pub path: Option<String>,

    /// Path of a volume below the root, such as `${pvc.namespace}/${pvc.name}`. Tokens: `${pvc.name}`,
    /// `${pvc.namespace}`, `${pvc.uid}`, `${pv.name}`, `${pvc.labels['key']}`, `${pvc.annotations['key']}`. Values with
    /// a slash are refused, long ones shortened with a hash. Default: `${pvc.namespace}-${pvc.name}-${pv.name}`.
    #[serde(default)]
    #[schemars(with = "Option<String>")]
    pub path_pattern: Option<PathPattern>,

    /// Permission bits of the volume's directory in octal, such as `0770` or `2770`. Default: `0777`; the root above is
    /// 0700, so that other users of the node do not get there.
    #[serde(default)]
    #[schemars(with = "Option<String>", regex(pattern = "^[0-7]{3,4}$"))]
    pub mode: Option<Mode>,

    /// Owner of the volume's directory, a number. Default: root.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_294_u32))]
    pub uid: Option<u32>,

    /// Group of the volume's directory, a number. Default: root.
    #[serde(default)]
    #[schemars(range(max = 4_294_967_294_u32))]
    pub gid: Option<u32>,
}

impl Parameters {
    /// What parses and yet makes no sense.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(path) = self.path.as_deref()
            && !path.starts_with('/')
        {
            return Err(Failure::invalid(format!(
                "parameter \"path\": {path:?} is not absolute; write one of the agent's --path in full"
            )));
        }
        for (name, id) in [("uid", self.uid), ("gid", self.gid)] {
            // To the kernel it means "leave it as it is".
            if id == Some(u32::MAX) {
                return Err(Failure::invalid(format!(
                    "parameter {name:?}: {} is no id; the largest is one less",
                    u32::MAX
                )));
            }
        }
        self.pattern().map(drop)
    }

    pub(crate) fn pattern(&self) -> Result<Pattern> {
        match &self.path_pattern {
            Some(PathPattern(pattern)) => Ok(pattern.clone()),
            None => Pattern::parse(DEFAULT_PATTERN).map_err(|e| Failure::invalid(e.to_string())),
        }
    }

    pub(crate) fn mode(&self) -> u32 {
        self.mode.map_or(DEFAULT_MODE, |mode| mode.0)
    }
}

/// A path pattern in a class.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct PathPattern(Pattern);

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Pattern::parse(&text).map(Self).map_err(|e| format!("parameter \"pathPattern\": {e}"))
    }
}

/// Permission bits in octal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Mode(u32);

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let octal = matches!(text.len(), 3 | 4) && text.bytes().all(|b| matches!(b, b'0'..=b'7'));
        let mode = octal.then(|| u32::from_str_radix(&text, 8).ok()).flatten();
        let refused =
            || format!("parameter \"mode\": {text:?} is not three or four octal digits, such as 0770");
        mode.map(Self).ok_or_else(refused)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use volwright_provisioner::parse_parameters;

    fn parse(entries: &[(&str, &str)]) -> Result<Parameters, String> {
        let map = entries.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let parsed = parse_parameters::<Parameters>(&map).map_err(|e| e.to_string())?;
        parsed.check().map_err(|e| e.to_string())?;
        Ok(parsed)
    }

    #[test]
    fn every_parameter_is_read_from_a_string() {
        let all = [
            ("path", "/mnt/a"),
            ("pathPattern", "${pvc.namespace}/${pvc.name}"),
            ("mode", "2770"),
            ("uid", "1000"),
            ("gid", "0"),
        ];
        let parsed = parse(&all).unwrap();
        assert_eq!((parsed.mode(), parsed.uid, parsed.gid), (0o2770, Some(1000), Some(0)));
        assert_eq!(parsed.pattern().unwrap().to_string(), "${pvc.namespace}/${pvc.name}");
        assert_eq!(parse(&[]).unwrap().mode(), 0o777);
        assert_eq!(parse(&[("mode", "700")]).unwrap().mode.unwrap().to_string(), "0700");
    }

    #[test]
    fn every_refusal_names_the_parameter_and_what_would_do() {
        let cases = [
            (("mode", "rwx"), "parameter \"mode\": \"rwx\" is not three or four octal digits"),
            (("mode", "0o770"), "octal digits"),
            (("mode", "77"), "octal digits"),
            (("mode", "888"), "octal digits"),
            (("mode", "+77"), "octal digits"),
            (("uid", "root"), "parameter \"uid\": \"root\" is not a whole number"),
            (("uid", "4294967295"), "parameter \"uid\": 4294967295 is no id"),
            (("pathPattern", "/abs"), "parameter \"pathPattern\": the path pattern \"/abs\" is absolute"),
            (("pathPattern", "../x"), "would leave its place"),
            (("pathPattern", "${pvc.nam}"), "unknown token"),
            (("path", "mnt"), "parameter \"path\": \"mnt\" is not absolute"),
            (
                ("Path", "/mnt"),
                "unknown field `Path`, expected one of `path`, `pathPattern`, `mode`, `uid`, `gid`",
            ),
        ];
        for (entry, expected) in cases {
            let error = parse(&[entry]).expect_err(expected);
            assert!(error.contains(expected), "{entry:?}: {error}");
        }
    }

    #[test]
    fn the_schema_knows_every_parameter() {
        let schema = serde_json::to_value(schemars::schema_for!(Parameters)).unwrap();
        let mut names: Vec<_> = schema["properties"].as_object().unwrap().keys().cloned().collect();
        names.sort();
        assert_eq!(names, ["gid", "mode", "path", "pathPattern", "uid"]);
        for (name, property) in schema["properties"].as_object().unwrap() {
            assert!(property["description"].is_string(), "{name}");
        }
    }
}
