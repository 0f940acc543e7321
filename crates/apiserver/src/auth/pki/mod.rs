//! The keys and certificates of the server: made at first start, renewed before they end, kept private.
//!
//! ```text
//! <data-dir>/pki/ca.crt, ca.key                  the authority for clients, nodes and this server
//!                apiserver.crt, apiserver.key    what we show (unless --tls-cert-file says otherwise)
//!                apiserver-kubelet-client.*      what we show to kubelets
//!                admin.*                         the person in admin.kubeconfig
//!                sa.key, sa.pub                  signs service account tokens, and what checks them
//! ```
//!
//! Half of a pair is never made up for in silence: what the lost half stood for, others may still believe.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use apiserver_core::request::User;
use base::time::Wall;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use x509::{AlternativeNames, Leaf, Subject, Usage, backdated, pem, verify};
use x509_parser::prelude::FromDer;

mod anchor;
mod files;
mod kubeconfig;
mod tls;

pub use ::tls::{Ca, Key};
pub use files::write_private;
pub use kubeconfig::kubeconfig;
pub use tls::{ClientCas, Identity, Serving};

/// A certificate of ours lives a year and is renewed when less than a third of it is left.
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);

/// By so much, in seconds, the clocks of two machines may differ.
const SKEW: i64 = 3600;

/// No clock that is right says less: the first of January 2026.
const MADE: i64 = 1_767_225_600;

/// The name of the files of what we show to kubelets.
const KUBELET_CLIENT: &str = "apiserver-kubelet-client";

#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    #[error("{act} {path}: {cause}")]
    File { act: &'static str, path: PathBuf, cause: io::Error },
    #[error("{0} failed")]
    Crypto(&'static str),
    #[error(transparent)]
    Certificate(#[from] ::tls::CertificateError),
    #[error("using {path}: {cause}")]
    In { path: PathBuf, cause: Box<PkiError> },
    #[error("the authority in {0} has expired; move the pki directory away to make a new one")]
    Expired(PathBuf),
    #[error(
        "the authority in {0} counts from {1} on: the clock that made it was ahead, or this one is behind; \
         set the clock, or move the pki directory away to make a new one"
    )]
    Early(PathBuf, jiff::Timestamp),
    #[error("the clock says {0}, before this program was made: set it, and start again")]
    Clock(jiff::Timestamp),
    /// Half of a pair, or the authority of what is there, was taken away.
    #[error("{} is missing, but {} is there: restore it from a backup, or remove {} on purpose to have {}",
            path.display(), beside.display(), remove.display(), made)]
    Missing { path: PathBuf, beside: PathBuf, remove: PathBuf, made: &'static str },
}

// === impl PkiError ===

impl PkiError {
    /// Whether a file could not be written because the disk is full.
    #[must_use]
    pub fn is_want_of_room(&self) -> bool {
        match self {
            PkiError::File { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            PkiError::In { cause, .. } => cause.is_want_of_room(),
            PkiError::Crypto(_)
            | PkiError::Certificate(_)
            | PkiError::Expired(_)
            | PkiError::Early(..)
            | PkiError::Clock(_)
            | PkiError::Missing { .. } => false,
        }
    }
}

/// What the certificates are about.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// `<data-dir>/pki`
    pub dir: PathBuf,
    /// Host names and addresses clients call us by, besides the ones every API server answers to.
    pub names: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub cluster_domain: String,
    /// `--client-ca-file`: believed besides our own authority.
    pub client_ca_file: Option<PathBuf>,
    /// `--tls-cert-file` and `--tls-private-key-file`: shown instead of our own.
    pub tls_files: Option<(PathBuf, PathBuf)>,
}

/// A certificate chain and its key, as PEM.
#[derive(Clone)]
pub struct Pair {
    pub certificate: String,
    pub key: String,
}

/// Everything the server needs to prove who it is and to know who others are.
#[derive(Debug)]
pub struct Pki {
    settings: Settings,
    ca: Arc<Ca>,
    serving: Arc<Serving>,
    client_cas: Arc<ClientCas>,
    /// What we show to kubelets.
    kubelet_client: Arc<Identity>,
    seen: Mutex<Seen>,
}

/// The content of the files we follow, as last used.
#[derive(Debug, Default)]
struct Seen {
    client_ca: String,
    serving: (String, String),
    kubelet_client: String,
    /// Where the administrator's kubeconfig is, and the server it names.
    admin_kubeconfig: Option<(PathBuf, String)>,
}

// === impl Pair ===

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pair(..)")
    }
}

// === impl Pki ===

impl Pki {
    /// Reads what is there and makes what is missing.
    pub fn open(settings: Settings, now: Wall) -> Result<Pki, PkiError> {
        files::private_dir(&settings.dir)?;
        let ca = Arc::new(open_ca(&settings.dir, now)?);
        let mut seen = read_followed(&settings, &ca, now)?;
        let pair = ensure_leaf(&settings.dir, KUBELET_CLIENT, &ca, &kubelet_client_wanted(), now)?;
        let kubelet_client = Identity::new(client_key(&settings, KUBELET_CLIENT, &pair)?);
        seen.kubelet_client = pair.certificate;
        let serving = Serving::new(serving_key(&settings, &seen.serving)?);
        let client_cas = Arc::new(ClientCas::new(&believed(&ca, &seen.client_ca))?);
        let pki = Pki { settings, ca, serving, client_cas, kubelet_client, seen: Mutex::new(seen) };
        pki.warn_of_a_stranger();
        Ok(pki)
    }

    #[must_use]
    pub fn ca(&self) -> &Arc<Ca> {
        &self.ca
    }

    #[must_use]
    pub fn client_cas(&self) -> &Arc<ClientCas> {
        &self.client_cas
    }

    /// The certificates of the authorities clients are believed by: what `extension-apiserver-authentication` publishes.
    #[must_use]
    pub fn client_ca_bundle(&self) -> String {
        format!("{}{}", self.ca.certificate_pem(), self.seen().client_ca)
    }

    /// The authority (PEM) that others know this server by: what Pods and `admin.kubeconfig` have. Our own, unless what
    /// `--tls-cert-file` shows is somebody else's.
    #[must_use]
    pub fn server_ca(&self) -> String {
        if self.settings.tls_files.is_none() {
            return self.ca.certificate_pem();
        }
        let seen = self.seen();
        anchor::find(&seen.serving.0, &seen.client_ca).unwrap_or_else(|| self.ca.certificate_pem())
    }

    /// Says so when Pods and `admin.kubeconfig` are given an authority that does not vouch for what is shown.
    fn warn_of_a_stranger(&self) {
        let Some((path, _)) = &self.settings.tls_files else { return };
        let seen = self.seen();
        if anchor::find(&seen.serving.0, &seen.client_ca).is_none() {
            tracing::warn!(
                file = %path.display(),
                "who issued the certificate is neither in its file nor in --client-ca-file: Pods will not believe this server"
            );
        }
    }

    /// The configuration of the secure listener.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, PkiError> {
        tls::server_config(self.serving.clone()).map(Arc::new)
    }

    /// The service account signing key, made at first use.
    pub fn service_account_key(&self) -> Result<String, PkiError> {
        let (path, public) = (self.settings.dir.join("sa.key"), self.settings.dir.join("sa.pub"));
        let text = match files::read_if_there(&path)? {
            Some(text) => text,
            None if public.exists() => {
                let made = "a new key (every token signed with the old one is then worthless)";
                return Err(PkiError::Missing { path, beside: public.clone(), remove: public, made });
            }
            None => {
                let text = Key::generate()?.to_pem();
                files::write_private(&path, text.as_bytes())?;
                text
            }
        };
        // A key that is not ours to read is somebody else's to keep.
        if !public.exists()
            && let Ok(key) = read_key(&text)
        {
            let half = pem::encode("PUBLIC KEY", &key.public_key());
            or_without_room(files::write_private(&public, half.as_bytes()))?;
        }
        Ok(text)
    }

    /// What we show to kubelets; it changes when it is renewed.
    #[must_use]
    pub fn kubelet_client(&self) -> &Arc<Identity> {
        &self.kubelet_client
    }

    /// The administrator of `admin.kubeconfig`.
    pub fn admin(&self, now: Wall) -> Result<Pair, PkiError> {
        self.client("admin", Subject::new("kubernetes-admin", &["system:masters"]), now)
    }

    /// A client certificate for one of our own parts (`system:kube-scheduler`, a node).
    pub fn client(&self, file: &str, subject: Subject, now: Wall) -> Result<Pair, PkiError> {
        let wanted = Wanted { subject, names: AlternativeNames::default(), usage: Usage::ClientAuth };
        ensure_leaf(&self.settings.dir, file, &self.ca, &wanted, now)
    }

    /// A certificate for the port of one of our own parts (a kubelet), made again when its names change or it ends soon. Says
    /// where it and its key are.
    pub fn serving(
        &self,
        file: &str,
        subject: Subject,
        names: AlternativeNames,
        now: Wall,
    ) -> Result<(PathBuf, PathBuf), PkiError> {
        let wanted = Wanted { subject, names, usage: Usage::ServerAuth };
        ensure_leaf(&self.settings.dir, file, &self.ca, &wanted, now)?;
        let dir = &self.settings.dir;
        Ok((dir.join(format!("{file}.crt")), dir.join(format!("{file}.key"))))
    }

    /// Writes a kubeconfig for the administrator, and again whenever its certificate is renewed; an unchanged one is
    /// left alone. Says whether it changed.
    pub fn write_admin_kubeconfig(&self, path: &Path, server: &str, now: Wall) -> Result<bool, PkiError> {
        self.seen().admin_kubeconfig = Some((path.to_owned(), server.to_owned()));
        let text = kubeconfig(server, &self.server_ca(), "kubernetes-admin", &self.admin(now)?);
        if files::read_if_there(path)?.as_deref() == Some(text.as_str()) {
            return Ok(false);
        }
        or_without_room(files::write_private(path, text.as_bytes()))?;
        Ok(true)
    }

    /// Renews what ends soon and takes over files that others changed. Called every minute or so, off the runtime's
    /// thread; a file that cannot be used keeps the old one in use. Says whether anything changed.
    pub fn refresh(&self, now: Wall) -> Result<bool, PkiError> {
        // One that fails is not in the way of the others.
        let renewed =
            [self.follow_files(now), self.renew_kubelet_client(now), self.renew_admin_kubeconfig(now)];
        let mut changed = false;
        for one in renewed {
            changed |= one?;
        }
        Ok(changed)
    }

    fn follow_files(&self, now: Wall) -> Result<bool, PkiError> {
        let next = read_followed(&self.settings, &self.ca, now)?;
        let mut seen = self.seen();
        let mut changed = false;
        if next.serving != seen.serving {
            self.serving.show(serving_key(&self.settings, &next.serving)?);
            seen.serving = next.serving;
            changed = true;
        }
        if next.client_ca != seen.client_ca {
            self.client_cas.believe(&believed(&self.ca, &next.client_ca))?;
            seen.client_ca = next.client_ca;
            changed = true;
        }
        Ok(changed)
    }

    fn renew_kubelet_client(&self, now: Wall) -> Result<bool, PkiError> {
        let pair = ensure_leaf(&self.settings.dir, KUBELET_CLIENT, &self.ca, &kubelet_client_wanted(), now)?;
        if pair.certificate == self.seen().kubelet_client {
            return Ok(false);
        }
        self.kubelet_client.show(client_key(&self.settings, KUBELET_CLIENT, &pair)?);
        self.seen().kubelet_client = pair.certificate;
        Ok(true)
    }

    fn renew_admin_kubeconfig(&self, now: Wall) -> Result<bool, PkiError> {
        let about = self.seen().admin_kubeconfig.clone();
        match about {
            Some((path, server)) => self.write_admin_kubeconfig(&path, &server, now),
            None => Ok(false),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A certificate one of our own parts needs.
struct Wanted {
    subject: Subject,
    names: AlternativeNames,
    usage: Usage,
}

fn open_ca(dir: &Path, now: Wall) -> Result<Ca, PkiError> {
    let (cert_path, key_path) = (dir.join("ca.crt"), dir.join("ca.key"));
    let within = |cause| PkiError::In { path: cert_path.clone(), cause: Box::new(cause) };
    let there = (files::read_if_there(&cert_path)?, files::read_if_there(&key_path)?);
    let lost = match there {
        (Some(certificate), Some(key)) => {
            let certificate = tls::certificates(&certificate)
                .into_iter()
                .next()
                .ok_or_else(|| within(PkiError::Crypto("finding a certificate")))?;
            let key =
                read_key(&key).map_err(|cause| PkiError::In { path: key_path, cause: Box::new(cause) })?;
            let ca = Ca::load(&certificate, key).map_err(|cause| within(cause.into()))?;
            if ca.not_after() <= now {
                return Err(PkiError::Expired(cert_path));
            }
            let begins = begins(&certificate);
            if now.secs() + SKEW < begins.secs() {
                return Err(PkiError::Early(cert_path, timestamp(begins)));
            }
            return Ok(ca);
        }
        (Some(_), None) => Some((key_path.clone(), cert_path.clone())),
        // The key is written first. Alone it is what a first start left that was cut short; beside others it is not.
        (None, key) => files::first_besides(dir, &["ca.key", "ca.key.new", "ca.crt.new"])?
            .map(|other| (cert_path.clone(), if key.is_some() { key_path.clone() } else { other })),
    };
    if let Some((path, beside)) = lost {
        let made = "a new authority (every certificate of the old one is then worthless)";
        return Err(PkiError::Missing { path, beside, remove: dir.to_owned(), made });
    }
    // A machine without a battery wakes in 1970; an authority of that year would have ended long ago when the clock is set.
    if now.secs() < MADE {
        return Err(PkiError::Clock(timestamp(now)));
    }
    let ca = Ca::create(&format!("longshore-ca@{}", now.secs()), now)?;
    // The key first: a certificate without its key would stand for an authority nobody can use.
    files::write_private(&key_path, ca.key().to_pem().as_bytes())?;
    files::write_private(&cert_path, ca.certificate_pem().as_bytes())?;
    Ok(ca)
}

/// From when on a certificate that was read before counts.
fn begins(certificate: &[u8]) -> Wall {
    let read = x509_parser::certificate::X509Certificate::from_der(certificate);
    read.map_or(Wall::default(), |(_, c)| Wall::from_secs(c.validity().not_before.timestamp()))
}

fn timestamp(at: Wall) -> jiff::Timestamp {
    jiff::Timestamp::from_second(at.secs()).unwrap_or_default()
}

fn read_followed(settings: &Settings, ca: &Ca, now: Wall) -> Result<Seen, PkiError> {
    let client_ca = match &settings.client_ca_file {
        Some(path) => files::read(path)?,
        None => String::new(),
    };
    let serving = match &settings.tls_files {
        Some((certificate, key)) => (files::read(certificate)?, files::read(key)?),
        None => {
            let pair = ensure_leaf(&settings.dir, "apiserver", ca, &serving_wanted(settings), now)?;
            (pair.certificate, pair.key)
        }
    };
    Ok(Seen { client_ca, serving, ..Seen::default() })
}

/// It may do what kubelets are asked for, and nothing here besides: a Node's address is what the Node says it is, and could be
/// our own.
fn kubelet_client_wanted() -> Wanted {
    Wanted {
        subject: Subject::new(User::KUBELET_CLIENT, &[]),
        names: AlternativeNames::default(),
        usage: Usage::ClientAuth,
    }
}

fn serving_wanted(settings: &Settings) -> Wanted {
    let mut dns: Vec<String> =
        ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"].map(str::to_owned).into();
    if !settings.cluster_domain.is_empty() {
        dns.push(format!("kubernetes.default.svc.{}", settings.cluster_domain));
    }
    let mut ips = vec![IpAddr::from([127, 0, 0, 1]), IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)];
    for name in &settings.names {
        match name.parse() {
            Ok(ip) => ips.push(ip),
            Err(_) => dns.push(name.clone()),
        }
    }
    ips.extend(settings.addresses.iter().filter(|ip| !ip.is_unspecified()));
    dns.sort();
    dns.dedup();
    ips.sort();
    ips.dedup();
    Wanted {
        subject: Subject::new("kube-apiserver", &[]),
        names: AlternativeNames { dns, ips, ..AlternativeNames::default() },
        usage: Usage::ServerAuth,
    }
}

fn serving_key(
    settings: &Settings,
    (certificate, key): &(String, String),
) -> Result<rustls::sign::CertifiedKey, PkiError> {
    let path = match &settings.tls_files {
        Some((path, _)) => path.clone(),
        None => settings.dir.join("apiserver.crt"),
    };
    tls::certified_key(certificate, key).map_err(|cause| PkiError::In { path, cause: Box::new(cause) })
}

fn client_key(settings: &Settings, file: &str, pair: &Pair) -> Result<rustls::sign::CertifiedKey, PkiError> {
    let path = settings.dir.join(format!("{file}.crt"));
    tls::certified_key(&pair.certificate, &pair.key)
        .map_err(|cause| PkiError::In { path, cause: Box::new(cause) })
}

fn believed(ca: &Ca, client_ca: &str) -> Vec<CertificateDer<'static>> {
    let own = CertificateDer::from(ca.certificate().to_vec());
    std::iter::once(own).chain(tls::certificates(client_ca)).collect()
}

/// The pair in `<dir>/<file>.crt` and `.key`; a new one when it is missing, ends soon or is not what is wanted. The key is written
/// first, so a certificate without one was robbed of it.
fn ensure_leaf(dir: &Path, file: &str, ca: &Ca, wanted: &Wanted, now: Wall) -> Result<Pair, PkiError> {
    let (cert_path, key_path) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    match (files::read_if_there(&cert_path)?, files::read_if_there(&key_path)?) {
        (Some(certificate), Some(key)) if is_good(&certificate, &key, ca, wanted, now) => {
            return Ok(Pair { certificate, key });
        }
        (Some(_), None) => {
            let (beside, made) = (cert_path.clone(), "a new pair");
            return Err(PkiError::Missing { path: key_path, beside, remove: cert_path, made });
        }
        _ => {}
    }
    let key = Key::generate()?;
    let life = i64::try_from(LEAF_LIFE.as_secs()).unwrap_or(i64::MAX);
    let leaf = Leaf {
        subject: wanted.subject.clone(),
        public_key: key.public_key(),
        names: wanted.names.clone(),
        usages: vec![Usage::DigitalSignature, wanted.usage],
        not_before: backdated(now),
        not_after: Wall::from_secs(now.secs() + life),
    };
    let pair = Pair { certificate: pem::encode("CERTIFICATE", &ca.issue(&leaf)?), key: key.to_pem() };
    let kept = files::write_private(&key_path, pair.key.as_bytes())
        .and_then(|()| files::write_private(&cert_path, pair.certificate.as_bytes()));
    or_without_room(kept)?;
    Ok(pair)
}

/// What can be made again any time is used all the same when the disk is too full to keep it.
fn or_without_room(kept: Result<(), PkiError>) -> Result<(), PkiError> {
    match kept {
        Err(error) if error.is_want_of_room() => {
            tracing::warn!(%error, "the disk is full: used, but not kept");
            Ok(())
        }
        other => other,
    }
}

fn is_good(certificate: &str, key: &str, ca: &Ca, wanted: &Wanted, now: Wall) -> bool {
    let Some(der) = tls::certificates(certificate).into_iter().next() else { return false };
    let Ok((_, parsed)) = x509_parser::certificate::X509Certificate::from_der(&der) else { return false };
    let Ok(key) = read_key(key) else { return false };
    let (from, until) = (parsed.validity().not_before.timestamp(), parsed.validity().not_after.timestamp());
    let left = until - now.secs();
    let authority = x509_parser::x509::SubjectPublicKeyInfo::from_der(&ca.key().public_key())
        .is_ok_and(|(_, spki)| verify::certificate_signature(&parsed, &spki));
    parsed.public_key().raw == key.public_key()
        && authority
        && parsed.subject().as_raw() == wanted.subject.der()
        && alternative_names(&parsed) == wanted.names
        && from <= now.secs()
        // What ends with its authority cannot be renewed.
        && (left > (until - from) / 3 || until == ca.not_after().secs())
}

/// The alternative names of a certificate, in the order they stand there.
fn alternative_names(certificate: &x509_parser::certificate::X509Certificate<'_>) -> AlternativeNames {
    match certificate.subject_alternative_name() {
        Ok(Some(names)) => verify::general_names(&names.value.general_names).unwrap_or_default(),
        _ => AlternativeNames::default(),
    }
}

fn read_key(text: &str) -> Result<Key, PkiError> {
    Ok(Key::from_pem(text.as_bytes())?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use base64::Engine as _;
    use rustls::pki_types::UnixTime;

    use super::*;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);
    const YEAR: i64 = 365 * 24 * 3600;

    fn settings(dir: &Path) -> Settings {
        Settings {
            dir: dir.to_owned(),
            names: vec!["node-1".into(), "192.0.2.7".into()],
            addresses: vec!["10.96.0.1".parse().unwrap(), "0.0.0.0".parse().unwrap()],
            cluster_domain: "cluster.local".into(),
            ..Settings::default()
        }
    }

    fn leaf(pki: &Pki) -> Vec<u8> {
        pki.serving.leaf().unwrap().to_vec()
    }

    #[test]
    fn a_second_start_finds_what_the_first_made() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::open(settings(dir.path()), NOW).unwrap();
        let admin = first.admin(NOW).unwrap();
        let token_key = first.service_account_key().unwrap();
        let second = Pki::open(settings(dir.path()), Wall::from_secs(NOW.secs() + 60)).unwrap();
        assert_eq!(first.ca().certificate(), second.ca().certificate());
        assert_eq!(leaf(&first), leaf(&second));
        assert_eq!(admin.certificate, second.admin(NOW).unwrap().certificate);
        assert_eq!(token_key, second.service_account_key().unwrap());
    }

    #[test]
    fn the_serving_certificate_names_what_clients_call() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(settings(dir.path()), NOW).unwrap();
        let der = leaf(&pki);
        let (_, cert) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
        let names = alternative_names(&cert);
        assert!(names.dns.contains(&"kubernetes.default.svc.cluster.local".to_owned()));
        assert!(names.dns.contains(&"node-1".to_owned()));
        let ips: Vec<String> = names.ips.iter().map(ToString::to_string).collect();
        assert_eq!(ips, ["10.96.0.1", "127.0.0.1", "192.0.2.7", "::1"]);
    }

    #[test]
    fn certificates_are_renewed_before_they_end_and_when_names_change() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(settings(dir.path()), NOW).unwrap();
        let before = leaf(&pki);
        assert!(!pki.refresh(Wall::from_secs(NOW.secs() + YEAR / 2)).unwrap());
        assert!(pki.refresh(Wall::from_secs(NOW.secs() + YEAR * 3 / 4)).unwrap());
        assert_ne!(leaf(&pki), before);
        let renewed = leaf(&pki);
        let more = Settings { names: vec!["other".into()], ..settings(dir.path()) };
        let again = Pki::open(more, Wall::from_secs(NOW.secs() + YEAR * 3 / 4)).unwrap();
        assert_ne!(leaf(&again), renewed);
    }

    #[test]
    fn a_lost_half_is_told_and_nothing_is_made_in_its_place() {
        // What is taken away, and whether the next start may make it anew.
        for (lost, is_refused) in [
            (&["ca.key"][..], true),
            (&["ca.crt"], true),
            (&["ca.key", "ca.crt"], true),
            (&["sa.key"], true),
            (&["apiserver.key"], true),
            (&["admin.key"], true),
            // A crash can leave a key without its certificate, and either can be made again from the authority.
            (&["apiserver.crt"], false),
            (&["apiserver.key", "apiserver.crt"], false),
            (&["sa.pub"], false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let start = || {
                let pki = Pki::open(settings(dir.path()), NOW)?;
                Ok((pki.admin(NOW)?.certificate, pki.service_account_key()?))
            };
            let first: (String, String) = start().unwrap_or_else(|e: PkiError| panic!("{e}"));
            lost.iter().for_each(|name| std::fs::remove_file(dir.path().join(name)).unwrap());
            let again = start();
            assert_eq!(again.is_err(), is_refused, "{lost:?}: {again:?}");
            let Err(error) = again else {
                assert_eq!(again.unwrap(), first, "{lost:?}");
                continue;
            };
            let told = error.to_string();
            assert!(told.contains("is missing") && told.contains("backup"), "{told}");
            assert!(lost.iter().any(|name| told.contains(name)), "{told}");
            assert!(lost.iter().all(|name| !dir.path().join(name).exists()), "{lost:?} was made anew");
        }
    }

    #[test]
    fn a_first_start_that_was_cut_short_is_made_up_for() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("ca.key"), Key::generate().unwrap().to_pem()).unwrap();
        std::fs::write(dir.path().join("ca.crt.new"), "hal").unwrap();
        Pki::open(settings(dir.path()), NOW).unwrap();
    }

    #[test]
    fn a_damaged_key_is_named() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(settings(dir.path()), NOW).unwrap();
        std::fs::write(dir.path().join("ca.key"), "").unwrap();
        let told = Pki::open(settings(dir.path()), NOW).unwrap_err().to_string();
        assert!(told.contains("ca.key"), "{told}");
    }

    #[test]
    fn a_new_authority_replaces_every_leaf_and_an_expired_one_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let before = Pki::open(settings(dir.path()), NOW).unwrap().admin(NOW).unwrap();
        let ca = Ca::create("another", NOW).unwrap();
        std::fs::write(dir.path().join("ca.key"), ca.key().to_pem()).unwrap();
        std::fs::write(dir.path().join("ca.crt"), ca.certificate_pem()).unwrap();
        let pki = Pki::open(settings(dir.path()), NOW).unwrap();
        assert_ne!(pki.admin(NOW).unwrap().certificate, before.certificate);
        let late = Wall::from_secs(NOW.secs() + 11 * YEAR);
        assert!(matches!(Pki::open(settings(dir.path()), late), Err(PkiError::Expired(_))));
    }

    #[test]
    fn files_of_the_user_are_followed_and_a_broken_one_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key, ca) = (dir.path().join("t.crt"), dir.path().join("t.key"), dir.path().join("c.crt"));
        let other = Ca::create("elsewhere", NOW).unwrap();
        let write = |name: &str| {
            let k = Key::generate().unwrap();
            let der = other
                .issue(&Leaf {
                    subject: Subject::new(name, &[]),
                    public_key: k.public_key(),
                    names: AlternativeNames { dns: vec![name.into()], ..AlternativeNames::default() },
                    usages: vec![Usage::ServerAuth],
                    not_before: NOW,
                    not_after: Wall::from_secs(NOW.secs() + YEAR),
                })
                .unwrap();
            std::fs::write(&cert, pem::encode("CERTIFICATE", &der)).unwrap();
            std::fs::write(&key, k.to_pem()).unwrap();
            der
        };
        let first = write("one");
        std::fs::write(&ca, other.certificate_pem()).unwrap();
        let pki = Pki::open(
            Settings {
                tls_files: Some((cert.clone(), key.clone())),
                client_ca_file: Some(ca.clone()),
                ..settings(&dir.path().join("pki"))
            },
            NOW,
        )
        .unwrap();
        assert_eq!(leaf(&pki), first);
        assert_eq!(pki.client_ca_bundle().matches("BEGIN").count(), 2);
        std::fs::write(&cert, "not a certificate").unwrap();
        assert!(pki.refresh(NOW).is_err());
        assert_eq!(leaf(&pki), first);
        let second = write("two");
        assert!(pki.refresh(NOW).unwrap());
        assert_eq!(leaf(&pki), second);
        std::fs::write(&ca, Ca::create("third", NOW).unwrap().certificate_pem()).unwrap();
        assert!(pki.refresh(NOW).unwrap());
        assert_eq!(pki.client_cas().generation(), 1);
    }

    #[test]
    fn the_admin_kubeconfig_is_private_and_written_once() {
        use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(settings(dir.path()), NOW).unwrap();
        let path = dir.path().join("admin.kubeconfig");
        pki.write_admin_kubeconfig(&path, "https://127.0.0.1:6443", NOW).unwrap();
        let inode = std::fs::metadata(&path).unwrap().ino();
        pki.write_admin_kubeconfig(&path, "https://127.0.0.1:6443", NOW).unwrap();
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((meta.ino(), meta.permissions().mode() & 0o777), (inode, 0o600));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("server: https://127.0.0.1:6443") && text.contains("client-key-data: "));
    }

    #[test]
    fn a_clock_a_year_ahead_or_behind_costs_nothing_once_it_is_right() {
        // The clock at the first start, and how it is set afterwards.
        for (first, later) in
            [(NOW.secs() + YEAR, vec![0]), (NOW.secs() - YEAR, vec![0]), (NOW.secs(), vec![-YEAR, YEAR, 0])]
        {
            let dir = tempfile::tempdir().unwrap();
            let pki = Pki::open(settings(dir.path()), Wall::from_secs(first)).unwrap();
            let authority = pki.ca().certificate().to_vec();
            for at in later {
                let now = Wall::from_secs(NOW.secs() + at);
                pki.refresh(now).unwrap();
                let again = Pki::open(settings(dir.path()), now).unwrap();
                assert_eq!(again.ca().certificate(), authority, "the authority stays");
                for pki in [&pki, &again] {
                    for der in [leaf(pki), pki.kubelet_client().leaf().unwrap().to_vec(), authority.clone()] {
                        let (_, cert) = x509_parser::certificate::X509Certificate::from_der(&der).unwrap();
                        let (from, until) = (cert.validity().not_before, cert.validity().not_after);
                        assert!(
                            from.timestamp() <= now.secs() && now.secs() < until.timestamp(),
                            "{first} {at}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn an_authority_that_does_not_count_yet_is_told() {
        let dir = tempfile::tempdir().unwrap();
        Pki::open(settings(dir.path()), Wall::from_secs(NOW.secs() + 10 * YEAR)).unwrap();
        let told = Pki::open(settings(dir.path()), NOW).unwrap_err().to_string();
        assert!(told.contains("ca.crt") && told.contains("clock"), "{told}");
        Pki::open(settings(dir.path()), Wall::from_secs(NOW.secs() + 9 * YEAR)).unwrap();
    }

    #[test]
    fn no_authority_is_made_by_a_clock_that_was_never_set() {
        let dir = tempfile::tempdir().unwrap();
        let told = Pki::open(settings(dir.path()), Wall::from_secs(60)).unwrap_err().to_string();
        assert!(told.contains("1970") && told.contains("clock"), "{told}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        Pki::open(settings(dir.path()), NOW).unwrap();
    }

    #[test]
    fn four_hundred_days_on_everything_that_ended_was_renewed_without_a_restart() {
        use rustls::client::ResolvesClientCert as _;
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(settings(dir.path()), NOW).unwrap();
        let path = dir.path().join("admin.kubeconfig");
        pki.write_admin_kubeconfig(&path, "https://127.0.0.1:6443", NOW).unwrap();
        let shown = pki.kubelet_client().clone();
        let (serving, kubelet_client) = (leaf(&pki), shown.leaf().unwrap());
        let first = std::fs::read_to_string(&path).unwrap();

        let day = |n: i64| Wall::from_secs(NOW.secs() + n * 24 * 3600);
        assert!(!pki.refresh(day(1)).unwrap(), "nothing ends soon");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), first);
        assert!(pki.refresh(day(400)).unwrap());
        let later = UnixTime::since_unix_epoch(Duration::from_secs(day(400).secs().unsigned_abs()));
        let good = |certificate: &CertificateDer<'static>| {
            pki.client_cas().verify(std::slice::from_ref(certificate), later).is_ok()
        };
        assert_ne!(leaf(&pki), serving);
        assert!(!good(&kubelet_client) && good(&shown.leaf().unwrap()));
        let schemes = [rustls::SignatureScheme::ECDSA_NISTP256_SHA256];
        assert!(shown.resolve(&[], &schemes).is_some(), "the one that connections were made with");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_ne!(text, first);
        let (_, encoded) = text.split_once("client-certificate-data: ").unwrap();
        let encoded = encoded.lines().next().unwrap();
        let admin = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
        assert!(good(&tls::certificates(std::str::from_utf8(&admin).unwrap())[0]));
        assert!(!pki.refresh(day(400)).unwrap(), "once");
    }
}
