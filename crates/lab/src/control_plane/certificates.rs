//! Who is who: a certificate authority that lives as long as the control plane, and what it signs.
//!
//! Kubernetes reads a client's user from the common name, and its groups from the organisations.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose,
};

/// Names the API server is reached by: from the machine, and from pods by its service.
const SERVER_NAMES: [&str; 6] =
    ["localhost", "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];

/// A certificate and its key, as files.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

/// The authority, the API server's certificate and the key that signs service account tokens.
#[derive(Debug)]
pub(super) struct Certificates {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pub(super) authority: Pair,
    pub(super) server: Pair,
    /// The API server's own name when it calls a kubelet, for logs and exec.
    pub(super) kubelet_client: Pair,
    pub(super) tokens_private: PathBuf,
    pub(super) tokens_public: PathBuf,
}

impl Certificates {
    /// Makes all of it in `dir`.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(dir)?;
        let key = KeyPair::generate()?;
        let params = authority_params();
        let certificate = params.self_signed(&key)?;
        let authority = write(dir, "ca", &certificate, &key)?;
        let issuer = Issuer::new(params, key);

        let server_key = KeyPair::generate()?;
        let server_certificate = server_params()?.signed_by(&server_key, &issuer)?;
        let server = write(dir, "server", &server_certificate, &server_key)?;

        let tokens = KeyPair::generate()?;
        let tokens_private = dir.join("tokens.key");
        let tokens_public = dir.join("tokens.pub");
        fs::write(&tokens_private, tokens.serialize_pem())?;
        fs::write(&tokens_public, tokens.public_key_pem())?;

        let kubelet_client = client(dir, &issuer, "kube-apiserver-kubelet-client", &["system:masters"])?;
        let dir = dir.to_owned();
        Ok(Self { dir, issuer, authority, server, kubelet_client, tokens_private, tokens_public })
    }

    /// A certificate for a user in some groups; a new one at every call.
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> anyhow::Result<Pair> {
        client(&self.dir, &self.issuer, user, groups)
    }
}

fn client(dir: &Path, issuer: &Issuer<'_, KeyPair>, user: &str, groups: &[&str]) -> anyhow::Result<Pair> {
    let key = KeyPair::generate()?;
    let certificate = client_params(user, groups)?.signed_by(&key, issuer)?;
    write(dir, &file_stem(user), &certificate, &key)
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "volwright-lab");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params
}

fn server_params() -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(SERVER_NAMES.map(str::to_owned))?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    Ok(params)
}

fn client_params(user: &str, groups: &[&str]) -> anyhow::Result<CertificateParams> {
    let mut name = DistinguishedName::new();
    // rcgen keeps one value per attribute type. The same attribute written as its number counts as another type,
    // which allows a second one; a service account's two groups fit.
    let organisations = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])];
    if groups.len() > organisations.len() {
        bail!(
            "a client certificate can name at most {} groups, not {}: bind the role to the user instead",
            organisations.len(),
            groups.len()
        );
    }
    for (organisation, group) in organisations.into_iter().zip(groups) {
        name.push(organisation, *group);
    }
    name.push(DnType::CommonName, user);
    let mut params = CertificateParams::default();
    params.distinguished_name = name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    Ok(params)
}

/// A user name as a file name. Users may hold `:` and `/`; a number keeps two that fold into one apart.
fn file_stem(user: &str) -> String {
    let folded: String =
        user.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).take(60).collect();
    format!("{folded}-{:06x}", fastrand::u32(..1 << 24))
}

fn write(dir: &Path, name: &str, certificate: &Certificate, key: &KeyPair) -> anyhow::Result<Pair> {
    let pair = Pair { certificate: dir.join(format!("{name}.crt")), key: dir.join(format!("{name}.key")) };
    fs::write(&pair.certificate, certificate.pem()).context("failed to write a certificate")?;
    fs::write(&pair.key, key.serialize_pem()).context("failed to write a key")?;
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use rcgen::{DnValue, SanType};

    use super::*;

    fn names(params: &CertificateParams) -> Vec<String> {
        let text = |value: &DnValue| match value {
            DnValue::Utf8String(text) => text.clone(),
            other => format!("{other:?}"),
        };
        params.distinguished_name.iter().map(|(_, value)| text(value)).collect()
    }

    #[test]
    fn a_client_is_its_user_in_its_groups() {
        let cases: [(&str, &[&str], &[&str]); 3] = [
            ("admin", &["system:masters"], &["system:masters", "admin"]),
            ("nobody", &[], &["nobody"]),
            (
                "system:serviceaccount:a:b",
                &["system:serviceaccounts", "system:serviceaccounts:a"],
                &["system:serviceaccounts", "system:serviceaccounts:a", "system:serviceaccount:a:b"],
            ),
        ];
        for (user, groups, expected) in cases {
            assert_eq!(names(&client_params(user, groups).unwrap()), expected, "case: {user}");
        }
        let error = client_params("u", &["a", "b", "c"]).unwrap_err().to_string();
        assert!(error.contains("at most 2 groups, not 3"), "{error}");
    }

    #[test]
    fn the_server_answers_to_loopback_by_number_and_name() {
        let names = server_params().unwrap().subject_alt_names;
        assert!(names.contains(&SanType::IpAddress([127, 0, 0, 1].into())), "{names:?}");
        assert!(names.contains(&SanType::DnsName("localhost".try_into().unwrap())), "{names:?}");
    }

    #[test]
    fn file_names_hold_no_separator_and_differ() {
        let (one, two) = (file_stem("system:node/../x"), file_stem("system:node/../x"));
        assert!(one.starts_with("system_node____x-"), "{one}");
        assert_ne!(one, two);
    }

    #[test]
    fn keys_and_certificates_are_written_as_pem() {
        let dir = tempfile::tempdir().unwrap();
        let all = Certificates::create(dir.path()).unwrap();
        let client = all.client("someone", &[]).unwrap();
        let files = [
            (&all.authority.certificate, "CERTIFICATE"),
            (&all.authority.key, "PRIVATE KEY"),
            (&all.server.certificate, "CERTIFICATE"),
            (&all.tokens_private, "PRIVATE KEY"),
            (&all.tokens_public, "PUBLIC KEY"),
            (&client.certificate, "CERTIFICATE"),
            (&client.key, "PRIVATE KEY"),
        ];
        for (file, label) in files {
            let text = fs::read_to_string(file).unwrap();
            assert!(text.starts_with(&format!("-----BEGIN {label}-----")), "{}: {text}", file.display());
        }
    }
}
