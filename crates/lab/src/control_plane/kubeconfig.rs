//! Kubeconfig files. JSON is YAML too, and needs no other library.

use std::{fs, path::Path};

use anyhow::Context as _;
use serde_json::json;

use super::certificates::Pair;

/// Writes a kubeconfig with one context. It names the certificates' files, which live as long as the cluster.
pub(super) fn write(
    file: &Path,
    server: &str,
    authority: &Path,
    user: &str,
    pair: &Pair,
) -> anyhow::Result<()> {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "volwright-lab",
        "clusters": [{
            "name": "volwright-lab",
            "cluster": { "server": server, "certificate-authority": authority },
        }],
        "users": [{
            "name": user,
            "user": { "client-certificate": pair.certificate, "client-key": pair.key },
        }],
        "contexts": [{
            "name": "volwright-lab",
            "context": { "cluster": "volwright-lab", "user": user, "namespace": "default" },
        }],
    });
    let text = serde_json::to_string_pretty(&config)?;
    fs::write(file, text + "\n").with_context(|| format!("failed to write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_leads_to_the_user_and_the_server() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        let pair = Pair { certificate: "/a b/\"c\".crt".into(), key: "/a b/c.key".into() };
        write(&file, "https://127.0.0.1:1", Path::new("/ca.crt"), "system:node:n", &pair).unwrap();
        let read: serde_json::Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        assert_eq!(read["contexts"][0]["context"]["user"], read["users"][0]["name"]);
        assert_eq!(read["contexts"][0]["context"]["cluster"], read["clusters"][0]["name"]);
        assert_eq!(read["users"][0]["user"]["client-certificate"], "/a b/\"c\".crt");
        assert_eq!(read["clusters"][0]["cluster"]["server"], "https://127.0.0.1:1");
    }
}
