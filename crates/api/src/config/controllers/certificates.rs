//! `--cluster-signing-…`: with whose keys certificates are issued, and what of it the controllers see.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::time::Wall;

/// The certificate and the key of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// A certificate to be issued. The request is one that its signer lets pass.
#[derive(Clone, Copy, Debug)]
pub struct Certificate<'a> {
    pub signer: &'a str,
    /// `spec.request`, as the object has it.
    pub request: &'a str,
    pub usages: &'a [&'a str],
    /// `spec.expirationSeconds`
    pub seconds: Option<i64>,
    pub now: Wall,
}

/// Issues a certificate, PEM; or says why it cannot.
pub type SignCertificate = dyn Fn(Certificate<'_>) -> Result<String, String> + Send + Sync;

/// Shared by all who sign.
#[derive(Clone)]
pub struct CertificateSigner {
    /// The signers that it can stand for.
    pub signers: BTreeSet<String>,
    pub sign: Arc<SignCertificate>,
}

/// A year.
pub(super) const DURATION: Duration = Duration::from_hours(8760);

/// Each signer, and its word in the names of flags.
const SIGNERS: [(&str, &str); 4] = [
    ("kubernetes.io/kubelet-serving", "kubelet-serving"),
    ("kubernetes.io/kube-apiserver-client-kubelet", "kubelet-client"),
    ("kubernetes.io/kube-apiserver-client", "kube-apiserver-client"),
    ("kubernetes.io/legacy-unknown", "legacy-unknown"),
];

/// The files of each signer. As upstream: one pair for all of them, or pairs for some and nothing for the others.
pub(super) fn signers<'a>(
    said: impl Fn(&str) -> Option<&'a str>,
) -> Result<BTreeMap<&'static str, SignerFiles>, String> {
    let pair = |certificate: String, key: String| match (said(&certificate), said(&key)) {
        (Some(certificate), Some(key)) => {
            Ok(Some(SignerFiles { certificate: certificate.into(), key: key.into() }))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(format!("--{certificate} needs --{key}")),
        (None, Some(_)) => Err(format!("--{key} needs --{certificate}")),
    };
    let mut own = BTreeMap::new();
    for (signer, word) in SIGNERS {
        let files =
            pair(format!("cluster-signing-{word}-cert-file"), format!("cluster-signing-{word}-key-file"))?;
        own.extend(files.map(|files| (signer, files)));
    }
    let all = pair("cluster-signing-cert-file".to_owned(), "cluster-signing-key-file".to_owned());
    match (all, own.is_empty()) {
        (Ok(Some(_)), false) => {
            Err("--cluster-signing-cert-file and --cluster-signing-key-file cannot be used \
             together with those of single signers"
                .to_owned())
        }
        // Half a pair is no pair: upstream goes on without signing.
        (Ok(None) | Err(_), _) => Ok(own),
        (Ok(Some(files)), true) => Ok(SIGNERS.iter().map(|(signer, _)| (*signer, files.clone())).collect()),
    }
}

// === impl CertificateSigner ===

impl std::fmt::Debug for CertificateSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CertificateSigner").field("signers", &self.signers).finish_non_exhaustive()
    }
}

impl PartialEq for CertificateSigner {
    fn eq(&self, other: &CertificateSigner) -> bool {
        Arc::ptr_eq(&self.sign, &other.sign)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_signer_has_the_common_pair_or_some_have_their_own() {
        let read = |flags: &'static [&'static str]| {
            signers(|name| flags.iter().find(|flag| **flag == name).copied()).map(|all| {
                all.keys().map(|signer| signer.trim_start_matches("kubernetes.io/")).collect::<Vec<_>>()
            })
        };
        const OWN: &[&str] =
            &["cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"];
        assert_eq!(read(&[]).unwrap(), [""; 0]);
        assert_eq!(read(&["cluster-signing-cert-file", "cluster-signing-key-file"]).unwrap().len(), 4);
        assert_eq!(read(&["cluster-signing-cert-file"]).unwrap(), [""; 0]);
        assert_eq!(read(OWN).unwrap(), ["legacy-unknown"]);
        assert_eq!(
            read(&OWN[..1]).unwrap_err(),
            "--cluster-signing-legacy-unknown-cert-file needs --cluster-signing-legacy-unknown-key-file"
        );
        const BOTH: &[&str] = &[OWN[0], OWN[1], "cluster-signing-cert-file", "cluster-signing-key-file"];
        assert!(read(BOTH).is_err());
    }
}
