//! The pinned sources of the servers. The go.mod files are the only place that names a version.

use sha2::{Digest as _, Sha256};

/// A Go module whose `tool` lines are the programs to build.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// The required module that the programs come from, and whose version they show.
    source: &'static str,
}

pub(super) static KUBERNETES: Module = Module {
    go_mod: include_str!("../../tools/kubernetes/go.mod"),
    go_sum: include_str!("../../tools/kubernetes/go.sum"),
    source: "k8s.io/kubernetes",
};

pub(super) static ETCD: Module = Module {
    go_mod: include_str!("../../tools/etcd/go.mod"),
    go_sum: include_str!("../../tools/etcd/go.sum"),
    source: "go.etcd.io/etcd/server/v3",
};

impl Module {
    /// The version, with its `v`.
    pub(super) fn version(&self) -> &'static str {
        let required = |line: &'static str| line.trim().strip_prefix(self.source)?.strip_prefix(' ');
        // A missing line is caught by the test below; the build would say so as well.
        self.go_mod.lines().find_map(required).and_then(|rest| rest.split(' ').next()).unwrap_or("unknown")
    }

    /// Flags for the linker: no debug information, and the version that Kubernetes programs report. Without it
    /// they call themselves v0.0.0, and clients that compare versions go astray.
    pub(super) fn ldflags(&self) -> String {
        let mut flags = "-s -w".to_owned();
        let version = self.version();
        if let Some((major, rest)) = version.trim_start_matches('v').split_once('.') {
            let minor = rest.split('.').next().unwrap_or(rest);
            let values = [
                ("gitVersion", version),
                ("gitMajor", major),
                ("gitMinor", minor),
                ("gitTreeState", "clean"),
            ];
            if self.source == KUBERNETES.source {
                for (name, value) in values {
                    flags.push_str(" -X k8s.io/component-base/version.");
                    flags.push_str(name);
                    flags.push('=');
                    flags.push_str(value);
                }
            }
        }
        flags
    }
}

/// The name of the cache folder: what is in it, and a digest of all that decides its contents.
///
/// Go's own version is left out on purpose: the programs stay good when Go is upgraded or removed.
pub(super) fn cache_key() -> String {
    let mut digest = Sha256::new();
    for module in [&KUBERNETES, &ETCD] {
        for part in [module.go_mod, module.go_sum, &module.ldflags()] {
            digest.update(part.as_bytes());
            digest.update([0]);
        }
    }
    let digest: [u8; 32] = digest.finalize().into();
    let short = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
    format!("kubernetes-{}-etcd-{}-{short:08x}", KUBERNETES.version(), ETCD.version())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_modules() {
        assert!(KUBERNETES.version().starts_with("v1."), "{}", KUBERNETES.version());
        assert!(ETCD.version().starts_with("v3."), "{}", ETCD.version());
    }

    #[test]
    fn staging_modules_are_of_the_same_release() {
        let staging = KUBERNETES.version().replacen("v1.", "v0.", 1);
        let replaced: Vec<_> = KUBERNETES.go_mod.lines().filter(|line| line.contains(" => ")).collect();
        assert!(replaced.len() > 25, "{replaced:#?}");
        for line in replaced {
            assert!(line.ends_with(&format!(" {staging}")), "{line} should be {staging}");
        }
    }

    #[test]
    fn kubernetes_is_told_its_version_and_etcd_is_not() {
        let flags = KUBERNETES.ldflags();
        assert!(flags.contains(&format!("version.gitVersion={} ", KUBERNETES.version())), "{flags}");
        assert_eq!(ETCD.ldflags(), "-s -w");
    }

    #[test]
    fn cache_key_is_a_plain_folder_name() {
        let key = cache_key();
        assert!(key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte)), "{key}");
    }
}
