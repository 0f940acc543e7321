//! The authorities of `--cluster-signing-…-file`: read at the start, and again when somebody has changed them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use api::config::controllers::{Certificate, CertificateSigner, SignerFiles};
use tls::{Ca, Key};
use x509::{Request, pem, signers};

/// How often the files are looked at, as upstream does it.
const PERIOD: Duration = Duration::from_mins(1);

/// The authority of each signer.
#[derive(Clone, Debug)]
pub struct Authorities {
    files: Arc<BTreeMap<String, SignerFiles>>,
    /// Seconds that a certificate lives at most.
    longest: i64,
    loaded: Arc<RwLock<BTreeMap<String, Arc<Ca>>>>,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error("read {path}: {cause}")]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{path}: {cause}")]
    Bad { path: PathBuf, cause: String },
}

// === impl Authorities ===

impl Authorities {
    pub fn open(
        files: BTreeMap<&'static str, SignerFiles>,
        duration: Duration,
    ) -> Result<Authorities, AuthorityError> {
        let files: BTreeMap<String, SignerFiles> =
            files.into_iter().map(|(signer, files)| (signer.to_owned(), files)).collect();
        let loaded = load(&files)?;
        let longest = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
        Ok(Authorities { files: Arc::new(files), longest, loaded: Arc::new(RwLock::new(loaded)) })
    }

    /// For the controller that signs. None: there are no files.
    #[must_use]
    pub fn signer(&self) -> Option<CertificateSigner> {
        let all = self.clone();
        let signers = self.files.keys().cloned().collect();
        let sign = Arc::new(move |wanted: Certificate<'_>| all.sign(wanted));
        (!self.files.is_empty()).then_some(CertificateSigner { signers, sign })
    }

    /// Follows the files; never ends. What cannot be read changes nothing.
    pub async fn follow(self) {
        loop {
            tokio::time::sleep(PERIOD).await;
            let files = self.files.clone();
            if let Ok(loaded) = tokio::task::spawn_blocking(move || load(&files)).await {
                self.renew(loaded);
            }
        }
    }

    fn renew(&self, loaded: Result<BTreeMap<String, Arc<Ca>>, AuthorityError>) {
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                tracing::warn!(%error, "The authority of a signer cannot be read again");
                return;
            }
        };
        let mut known = self.loaded.write().unwrap_or_else(PoisonError::into_inner);
        for (signer, ca) in &loaded {
            if known.get(signer).is_some_and(|old| old.certificate() != ca.certificate()) {
                tracing::info!(signer, "The authority of a signer has changed");
            }
        }
        *known = loaded;
    }

    fn sign(&self, wanted: Certificate<'_>) -> Result<String, String> {
        let known = self.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let ca = known.get(wanted.signer).cloned();
        drop(known);
        let ca = ca.ok_or_else(|| format!("no authority for {}", wanted.signer))?;
        if ca.not_after() < wanted.now {
            return Err(format!("the authority of {} has expired", wanted.signer));
        }
        let request = Request::from_spec(wanted.request).map_err(|error| error.to_string())?;
        let leaf = signers::leaf(request, wanted.usages, wanted.seconds, self.longest, wanted.now)?;
        let der = ca.issue(&leaf).map_err(|error| error.to_string())?;
        Ok(pem::encode("CERTIFICATE", &der))
    }
}

/// Signers that share files share the authority.
fn load(files: &BTreeMap<String, SignerFiles>) -> Result<BTreeMap<String, Arc<Ca>>, AuthorityError> {
    let mut known: Vec<(&SignerFiles, Arc<Ca>)> = Vec::new();
    let mut all = BTreeMap::new();
    for (signer, files) in files {
        let ca = match known.iter().find(|(of, _)| *of == files) {
            Some((_, ca)) => ca.clone(),
            None => Arc::new(load_one(files)?),
        };
        known.push((files, ca.clone()));
        all.insert(signer.clone(), ca);
    }
    Ok(all)
}

fn load_one(files: &SignerFiles) -> Result<Ca, AuthorityError> {
    let bad = |path: &Path, cause: String| AuthorityError::Bad { path: path.to_owned(), cause };
    let certificate = read(&files.certificate)?;
    let certificate = String::from_utf8_lossy(&certificate);
    let found = pem::decode(&certificate).into_iter().find(|(label, _)| label == "CERTIFICATE");
    let (_, der) = found.ok_or_else(|| bad(&files.certificate, "no certificate in it".to_owned()))?;
    let key = Key::from_pem(&read(&files.key)?).map_err(|error| bad(&files.key, error.to_string()))?;
    Ca::load(&der, key).map_err(|error| bad(&files.certificate, error.to_string()))
}

fn read(path: &Path) -> Result<Vec<u8>, AuthorityError> {
    std::fs::read(path).map_err(|cause| AuthorityError::Read { path: path.to_owned(), cause })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base::time::Wall;
    use x509::{AlternativeNames, Subject};

    use super::*;

    const NOW: Wall = Wall::from_secs(1_800_000_000);

    fn write(dir: &Path, ca: &Ca) -> SignerFiles {
        let files = SignerFiles { certificate: dir.join("ca.crt"), key: dir.join("ca.key") };
        std::fs::write(&files.certificate, ca.certificate_pem()).unwrap();
        std::fs::write(&files.key, ca.key().to_pem()).unwrap();
        files
    }

    fn ask(authorities: &Authorities, signer: &str, now: Wall) -> Result<String, String> {
        use base64::Engine as _;
        let key = Key::generate().unwrap();
        let names = AlternativeNames::default();
        let request = key.request(&Subject::new("system:node:n1", &["system:nodes"]), &names).unwrap();
        let request = base64::engine::general_purpose::STANDARD.encode(request);
        let usages = ["digital signature", "client auth"];
        (authorities.signer().unwrap().sign)(Certificate {
            signer,
            request: &request,
            usages: &usages,
            seconds: None,
            now,
        })
    }

    #[test]
    fn what_is_issued_is_signed_by_the_files_as_they_are_now() {
        let dir = tempfile::tempdir().unwrap();
        let first = Ca::create("first", NOW).unwrap();
        let files = write(dir.path(), &first);
        let all = BTreeMap::from([(signers::CLIENT_KUBELET, files.clone()), (signers::SERVING, files)]);
        let authorities = Authorities::open(all, Duration::from_hours(1)).unwrap();
        let issued = ask(&authorities, signers::CLIENT_KUBELET, NOW).unwrap();
        let issuer = |pem: &str| {
            let (_, der) = pem::decode(pem).remove(0);
            der.windows(5).any(|part| part == b"first")
        };
        assert!(issuer(&issued));
        assert!(ask(&authorities, signers::CLIENT, NOW).unwrap_err().contains("no authority"));
        let late = Wall::from_secs(NOW.secs() + 11 * 365 * 86_400);
        assert!(ask(&authorities, signers::SERVING, late).unwrap_err().contains("expired"));

        std::fs::write(dir.path().join("ca.key"), "nonsense").unwrap();
        authorities.renew(load(&authorities.files));
        assert!(issuer(&ask(&authorities, signers::SERVING, NOW).unwrap()), "a broken file changes nothing");
        write(dir.path(), &Ca::create("other", NOW).unwrap());
        authorities.renew(load(&authorities.files));
        assert!(!issuer(&ask(&authorities, signers::SERVING, NOW).unwrap()));
    }

    #[test]
    fn a_file_that_is_missing_or_damaged_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let files = write(dir.path(), &Ca::create("ca", NOW).unwrap());
        let open = || Authorities::open(BTreeMap::from([(signers::CLIENT, files.clone())]), PERIOD);
        assert!(open().is_ok());
        std::fs::write(&files.key, Key::generate().unwrap().to_pem()).unwrap();
        assert!(open().unwrap_err().to_string().contains("ca.crt"), "another's key");
        std::fs::write(&files.key, "nonsense").unwrap();
        assert!(open().unwrap_err().to_string().contains("ca.key"));
        std::fs::remove_file(&files.key).unwrap();
        assert!(open().unwrap_err().to_string().starts_with("read "));
        let none = Authorities::open(BTreeMap::new(), PERIOD).unwrap();
        assert!(none.signer().is_none());
    }
}
