//! The node's way in: which credentials it starts with, and the kubeconfig it writes for itself.

use std::path::{Path, PathBuf};

use base::time::Wall;
use client::Config;
use client::kubeconfig::{Identity, Source};

use super::pem;
use super::store::{self, Store};

/// Where the first key waits for its certificate.
pub(super) const KEY_FILE: &str = "kubelet-client.key.tmp";

/// What the configuration says.
#[derive(Clone, Debug)]
pub struct Means {
    pub kubeconfig: PathBuf,
    /// Empty if there is none.
    pub bootstrap_kubeconfig: PathBuf,
    pub cert_dir: PathBuf,
    pub rotate: bool,
}

/// The credentials to start with.
#[derive(Clone, Debug)]
pub struct Credentials {
    /// How to reach the API server. Its certificate may not be there yet.
    pub config: Config,
    /// How to ask for the first certificate, and for the next should the last one have expired.
    pub bootstrap: Option<Config>,
    /// The certificate is ours to renew.
    pub rotate: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("--kubeconfig: {0}")]
    Kubeconfig(client::ConfigError),
    #[error("--bootstrap-kubeconfig: {0}")]
    Bootstrap(client::ConfigError),
    #[error("--bootstrap-kubeconfig needs --kubeconfig: the name of the file to write")]
    NoKubeconfig,
    #[error("write kubeconfig {}: {source}", .path.display())]
    Write { path: PathBuf, source: std::io::Error },
}

/// Decides on the credentials; none on a standalone node. Writes the kubeconfig where the node has none that
/// still works, before it has a certificate: kubeadm waits for that file.
pub(super) fn open(means: &Means, now: Wall) -> Result<Option<Credentials>, BootstrapError> {
    let store = Store::new(&means.cert_dir, "kubelet-client");
    let (has_own, has_bootstrap) =
        (!means.kubeconfig.as_os_str().is_empty(), !means.bootstrap_kubeconfig.as_os_str().is_empty());
    if !has_bootstrap {
        if !has_own {
            return Ok(None);
        }
        let config = Config::load(&means.kubeconfig).map_err(BootstrapError::Kubeconfig)?;
        return Ok(Some(rotating(config, None, means.rotate, &store, now)));
    }
    if !has_own {
        return Err(BootstrapError::NoKubeconfig);
    }
    match usable(&means.kubeconfig, now) {
        Ok(config) => {
            let bootstrap = Config::load(&means.bootstrap_kubeconfig).ok();
            Ok(Some(rotating(config, bootstrap, means.rotate, &store, now)))
        }
        Err(why) => {
            tracing::info!(kubeconfig = %means.kubeconfig.display(), why, "the node asks for a new identity");
            let bootstrap = Config::load(&means.bootstrap_kubeconfig).map_err(BootstrapError::Bootstrap)?;
            let config = with_certificate(&bootstrap, &store.current_path());
            let text = kubeconfig(&config, &store.current_path());
            write(&means.kubeconfig, &text)
                .map_err(|source| BootstrapError::Write { path: means.kubeconfig.clone(), source })?;
            Ok(Some(Credentials { config, bootstrap: Some(bootstrap), rotate: true }))
        }
    }
}

/// A kubeconfig whose certificate has not expired; the reason if it is not one.
fn usable(path: &Path, now: Wall) -> Result<Config, String> {
    if !path.exists() {
        return Err("there is no kubeconfig yet".to_owned());
    }
    let config = Config::load(path).map_err(|e| e.to_string())?;
    let Some((certificate, _)) = &config.identity.certificate else {
        return Err("the kubeconfig has no client certificate".to_owned());
    };
    let bytes = certificate.read().map_err(|e| e.to_string())?;
    match pem::read(&bytes)?.is_expired(now) {
        true => Err("the client certificate has expired".to_owned()),
        false => Ok(config),
    }
}

/// Certificates that are ours to renew are shown from our own store, whatever the kubeconfig brought them in.
fn rotating(
    mut config: Config,
    bootstrap: Option<Config>,
    rotate: bool,
    store: &Store,
    now: Wall,
) -> Credentials {
    let Some((certificate, key)) = config.identity.certificate.clone().filter(|_| rotate) else {
        return Credentials { config, bootstrap, rotate: false };
    };
    let kept = store.read().ok().flatten().and_then(|bytes| pem::read(&bytes).ok());
    // What the store has is not made better by a copy of itself, at every start.
    let is_own = matches!(&certificate, Source::File(path) if same_file(path, &store.current_path()));
    if !is_own && kept.is_none_or(|held| held.is_expired(now)) {
        let adopted = certificate.read().and_then(|c| Ok((c, key.read()?)));
        let adopted = adopted.map_err(|e| e.to_string()).and_then(|(certificate, key)| {
            pem::read(&certificate)?;
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            store
                .write(&text(&certificates_only(&certificate)), &text(&keys_only(&key)), now)
                .map_err(|e| e.to_string())
        });
        if let Err(error) = adopted {
            tracing::warn!(%error, "the kubeconfig's certificate is not renewed");
            return Credentials { config, bootstrap, rotate: false };
        }
    }
    let current = Source::File(store.current_path());
    config.identity.certificate = Some((current.clone(), current));
    Credentials { config, bootstrap, rotate: true }
}

/// Whether both lead to one file that is there.
fn same_file(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).ok();
    real(a).is_some_and(|a| Some(a) == real(b))
}

/// A file may hold certificates and keys in one; the store wants each once.
fn certificates_only(pem: &[u8]) -> Vec<u8> {
    sections(pem, |label| label == "CERTIFICATE")
}

fn keys_only(pem: &[u8]) -> Vec<u8> {
    sections(pem, |label| label.ends_with("PRIVATE KEY"))
}

fn sections(pem: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    let text = String::from_utf8_lossy(pem);
    let mut out = String::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|l| l.strip_suffix("-----")) {
            inside = keep(label);
        }
        if inside {
            out.push_str(line);
            out.push('\n');
        }
        if line.starts_with("-----END ") {
            inside = false;
        }
    }
    out.into_bytes()
}

fn with_certificate(bootstrap: &Config, current: &Path) -> Config {
    let source = Source::File(current.to_owned());
    Config {
        identity: Identity { certificate: Some((source.clone(), source)), ..Identity::default() },
        namespace: "default".to_owned(),
        ..bootstrap.clone()
    }
}

/// The file a node writes for itself, in the names upstream gives its parts.
fn kubeconfig(config: &Config, current: &Path) -> String {
    use base64::Engine;
    let mut cluster = serde_json::json!({ "server": config.server });
    match &config.ca {
        Some(Source::File(path)) => cluster["certificate-authority"] = path.to_string_lossy().into(),
        Some(Source::Inline(bytes)) => {
            cluster["certificate-authority-data"] =
                base64::engine::general_purpose::STANDARD.encode(bytes).into();
        }
        None => {}
    }
    if config.insecure {
        cluster["insecure-skip-tls-verify"] = true.into();
    }
    if let Some(name) = &config.tls_server_name {
        cluster["tls-server-name"] = name.as_str().into();
    }
    let user = serde_json::json!({ "client-certificate": current, "client-key": current });
    let document = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "default-cluster", "cluster": cluster }],
        "contexts": [{
            "name": "default-context",
            "context": { "cluster": "default-cluster", "namespace": "default", "user": "default-auth" },
        }],
        "current-context": "default-context",
        "users": [{ "name": "default-auth", "user": user }],
    });
    api::yaml::from_value_to_yaml(&document)
}

fn write(path: &Path, text: &str) -> std::io::Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    store::write_private(path, text.as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};
    use std::fs;

    /// Certificate and key, good from 2020 until the year given.
    fn pair(until: i32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["n1".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn now() -> Wall {
        Wall::from_secs(1_750_000_000)
    }

    struct Place {
        dir: tempfile::TempDir,
        means: Means,
    }

    fn place() -> Place {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let means = Means {
            kubeconfig: at("kubelet.conf"),
            bootstrap_kubeconfig: at("bootstrap.conf"),
            cert_dir: at("pki"),
            rotate: true,
        };
        let bootstrap = "current-context: b\nclusters: [{name: k, cluster: {server: 'https://h:6443', certificate-authority-data: Q0E=}}]\ncontexts: [{name: b, context: {cluster: k, user: u}}]\nusers: [{name: u, user: {token: abcdef.0123456789abcdef}}]\n";
        fs::write(&means.bootstrap_kubeconfig, bootstrap).unwrap();
        Place { dir, means }
    }

    /// A kubeconfig with a certificate of its own.
    fn write_own(place: &Place, until: i32) {
        let (certificate, key) = pair(until);
        let encode = |text: &str| {
            use base64::Engine;
            base64::engine::general_purpose::STANDARD.encode(text)
        };
        let text = format!(
            "current-context: c\nclusters: [{{name: k, cluster: {{server: 'https://own:6443', insecure-skip-tls-verify: true}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {{client-certificate-data: {}, client-key-data: {}}}}}]\n",
            encode(&certificate),
            encode(&key)
        );
        fs::write(&place.means.kubeconfig, text).unwrap();
    }

    #[test]
    fn a_node_without_any_kubeconfig_is_standalone() {
        let none = Means {
            kubeconfig: PathBuf::new(),
            bootstrap_kubeconfig: PathBuf::new(),
            cert_dir: PathBuf::new(),
            rotate: true,
        };
        assert!(open(&none, now()).unwrap().is_none());
        let half = Means { bootstrap_kubeconfig: "/b".into(), ..none };
        assert!(matches!(open(&half, now()), Err(BootstrapError::NoKubeconfig)));
    }

    #[test]
    fn a_new_node_writes_its_kubeconfig_and_asks_with_the_token() {
        let place = place();
        let found = open(&place.means, now()).unwrap().unwrap();
        assert_eq!(found.bootstrap.unwrap().identity.token.as_deref(), Some("abcdef.0123456789abcdef"));
        assert!(found.rotate);
        let current = place.dir.path().join("pki/kubelet-client-current.pem");
        let written = Config::load(&place.means.kubeconfig).unwrap();
        assert_eq!(written.server, "https://h:6443");
        assert_eq!(written.ca, Some(Source::Inline(b"CA".to_vec())));
        let file = Source::File(current);
        assert_eq!(written.identity.certificate, Some((file.clone(), file)));
        assert_eq!(written.identity.token, None, "the token is not the node's");
        assert_eq!(found.config, written);
    }

    #[test]
    fn a_kubeconfig_that_works_is_used_and_its_certificate_adopted() {
        let place = place();
        write_own(&place, 2040);
        let found = open(&place.means, now()).unwrap().unwrap();
        assert_eq!(found.config.server, "https://own:6443");
        let current = place.dir.path().join("pki/kubelet-client-current.pem");
        assert_eq!(found.config.identity.certificate.unwrap().0, Source::File(current.clone()));
        let kept = fs::read(&current).unwrap();
        assert!(pem::read(&kept).is_ok() && super::super::rotation::certified(&kept).is_ok());
        // Without rotation it is shown from where it is.
        let found = open(&Means { rotate: false, ..place.means.clone() }, now()).unwrap().unwrap();
        assert!(matches!(found.config.identity.certificate, Some((Source::Inline(_), _))));
        assert!(!found.rotate);
    }

    #[test]
    fn an_expired_or_broken_identity_begins_again() {
        let place = place();
        write_own(&place, 2021);
        let found = open(&place.means, now()).unwrap().unwrap();
        assert!(found.bootstrap.is_some());
        assert_eq!(found.config.server, "https://h:6443");
        fs::write(&place.means.kubeconfig, "nonsense: [").unwrap();
        assert!(open(&place.means, now()).unwrap().unwrap().bootstrap.is_some());
        let alone = Means { bootstrap_kubeconfig: PathBuf::new(), ..place.means.clone() };
        fs::write(&place.means.kubeconfig, "nonsense: [").unwrap();
        assert!(matches!(open(&alone, now()), Err(BootstrapError::Kubeconfig(_))));
    }

    #[test]
    fn an_expired_certificate_of_our_own_is_not_copied_at_every_start() {
        let place = place();
        let alone = Means { bootstrap_kubeconfig: PathBuf::new(), ..place.means.clone() };
        write_own(&place, 2021);
        open(&alone, now()).unwrap().unwrap();
        let current = place.dir.path().join("pki/kubelet-client-current.pem");
        let text = format!(
            "current-context: c\nclusters: [{{name: k, cluster: {{server: 'https://own:6443'}}}}]\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nusers: [{{name: u, user: {{client-certificate: '{0}', client-key: '{0}'}}}}]\n",
            current.display()
        );
        fs::write(&place.means.kubeconfig, text).unwrap();
        let count = || fs::read_dir(place.dir.path().join("pki")).unwrap().count();
        let before = count();
        for _ in 0..2 {
            assert!(open(&alone, now()).unwrap().unwrap().rotate, "it is still ours to renew");
            assert_eq!(count(), before);
        }
    }

    #[test]
    fn certificates_and_keys_are_told_apart() {
        let (certificate, key) = pair(2040);
        let both = format!("{certificate}{key}");
        assert_eq!(certificates_only(both.as_bytes()), certificate.replace('\r', "").into_bytes());
        assert_eq!(keys_only(both.as_bytes()), key.replace('\r', "").into_bytes());
    }
}
