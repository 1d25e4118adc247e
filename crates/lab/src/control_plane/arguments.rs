//! The servers' command lines. Pure: files and ports in, arguments out.

use std::path::{Path, PathBuf};

use super::{Options, certificates::Certificates};

/// Where everything is below the control plane's folder.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
}

impl Layout {
    pub(super) fn certificates(&self) -> PathBuf {
        self.dir.join("pki")
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.dir.join("log")
    }

    pub(super) fn audit_policy(&self) -> PathBuf {
        self.dir.join("audit-policy.json")
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.logs().join("audit.json")
    }

    pub(super) fn kubeconfig(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.kubeconfig"))
    }
}

/// One event a request, when it is answered: who, what, which object, the outcome. No bodies.
pub(super) const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{ "level": "Metadata" }]
}
"#;

/// Not written to disk for sure (`--unsafe-no-fsync`): the data need not survive the machine, only a restart.
pub(super) fn etcd(layout: &Layout, client_port: u16, peer_port: u16) -> Vec<String> {
    let client = format!("http://127.0.0.1:{client_port}");
    let peer = format!("http://127.0.0.1:{peer_port}");
    vec![
        "--name=lab".to_owned(),
        flag("data-dir", layout.dir.join("etcd")),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=lab={peer}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        // Loads of tens of thousands of claims pass the default quota of 2 GiB once histories add up.
        "--quota-backend-bytes=8589934592".to_owned(),
    ]
}

pub(super) fn api_server(
    layout: &Layout,
    certificates: &Certificates,
    options: &Options,
    port: u16,
    etcd_port: u16,
) -> Vec<String> {
    let mut arguments = vec![
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--secure-port={port}"),
        // A loopback address may not stand in an Endpoints object, so nobody maintains the one of `kubernetes`.
        "--advertise-address=127.0.0.1".to_owned(),
        "--endpoint-reconciler-type=none".to_owned(),
        "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        "--profiling=false".to_owned(),
        flag("client-ca-file", &certificates.authority.certificate),
        flag("tls-cert-file", &certificates.server.certificate),
        flag("tls-private-key-file", &certificates.server.key),
        flag("kubelet-client-certificate", &certificates.kubelet_client.certificate),
        flag("kubelet-client-key", &certificates.kubelet_client.key),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        flag("service-account-key-file", &certificates.tokens_public),
        flag("service-account-signing-key-file", &certificates.tokens_private),
    ];
    if options.audit {
        arguments.extend([
            flag("audit-policy-file", layout.audit_policy()),
            flag("audit-log-path", layout.audit_log()),
            "--audit-log-format=json".to_owned(),
            // In megabytes. Tests count lines, so the file must not be rotated away under them.
            "--audit-log-maxsize=100000".to_owned(),
        ]);
    }
    if let Some(ttl) = options.event_ttl {
        arguments.push(format!("--event-ttl={}ms", ttl.as_millis()));
    }
    arguments.extend_from_slice(&options.api_server_args);
    arguments
}

pub(super) fn controller_manager(
    layout: &Layout,
    certificates: &Certificates,
    options: &Options,
    kubeconfig: &Path,
) -> Vec<String> {
    let mut arguments = client_arguments(options, kubeconfig);
    arguments.extend([
        // As in a real cluster each controller is a user of its own, with no more rights than it needs.
        "--use-service-account-credentials=true".to_owned(),
        flag("root-ca-file", &certificates.authority.certificate),
        flag("cluster-signing-cert-file", &certificates.authority.certificate),
        flag("cluster-signing-key-file", &certificates.authority.key),
        flag("service-account-private-key-file", &certificates.tokens_private),
        format!("--pvclaimbinder-sync-period={}ms", options.binder_sync.as_millis()),
        // Its probing finds no volume plugins to run; keep it out of the machine's folders.
        flag("flex-volume-plugin-dir", layout.dir.join("flexvolume")),
    ]);
    arguments
}

pub(super) fn scheduler(options: &Options, kubeconfig: &Path) -> Vec<String> {
    client_arguments(options, kubeconfig)
}

/// What the two that are clients share. They are alone, so there is no lease to wait for; and they serve
/// nothing, so there are no ports to lose.
fn client_arguments(options: &Options, kubeconfig: &Path) -> Vec<String> {
    vec![
        flag("kubeconfig", kubeconfig),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
        "--profiling=false".to_owned(),
        format!("--kube-api-qps={}", options.kcm_qps),
        format!("--kube-api-burst={}", options.kcm_qps.saturating_mul(2)),
    ]
}

fn flag(name: &str, path: impl AsRef<Path>) -> String {
    format!("--{name}={}", path.as_ref().display())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn layout() -> (tempfile::TempDir, Layout, Certificates) {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { dir: dir.path().to_owned() };
        let certificates = Certificates::create(&layout.certificates()).unwrap();
        (dir, layout, certificates)
    }

    #[test]
    fn servers_listen_on_loopback_only() {
        let (_dir, layout, certificates) = layout();
        for argument in etcd(&layout, 1, 2) {
            assert!(!argument.contains("http") || argument.contains("http://127.0.0.1:"), "{argument}");
        }
        let arguments = api_server(&layout, &certificates, &Options::default(), 6443, 2379);
        assert!(arguments.contains(&"--bind-address=127.0.0.1".to_owned()), "{arguments:#?}");
        for arguments in [
            scheduler(&Options::default(), Path::new("/k")),
            controller_manager(&layout, &certificates, &Options::default(), Path::new("/k")),
        ] {
            assert!(arguments.contains(&"--secure-port=0".to_owned()), "{arguments:#?}");
        }
    }

    #[test]
    fn the_callers_arguments_come_last_and_so_win() {
        let (_dir, layout, certificates) = layout();
        let options = Options { api_server_args: vec!["--profiling=true".to_owned()], ..Options::default() };
        let arguments = api_server(&layout, &certificates, &options, 1, 2);
        assert_eq!(arguments.last().unwrap(), "--profiling=true");
    }

    #[test]
    fn audit_and_event_ttl_are_flags_only_when_asked_for() {
        let (_dir, layout, certificates) = layout();
        let with = |options: &Options| api_server(&layout, &certificates, options, 1, 2).join(" ");
        let plain = with(&Options::default());
        assert!(!plain.contains("--audit") && !plain.contains("--event-ttl"), "{plain}");
        let asked =
            with(&Options { audit: true, event_ttl: Some(Duration::from_secs(90)), ..Options::default() });
        assert!(asked.contains("--audit-log-path=") && asked.contains("--event-ttl=90000ms"), "{asked}");
    }

    #[test]
    fn the_clients_limits_follow_the_option() {
        let arguments = scheduler(&Options { kcm_qps: 20, ..Options::default() }, Path::new("/k")).join(" ");
        assert!(arguments.contains("--kube-api-qps=20 --kube-api-burst=40"), "{arguments}");
    }

    #[test]
    fn the_audit_policy_is_json() {
        serde_json::from_str::<serde_json::Value>(AUDIT_POLICY).unwrap();
    }
}
