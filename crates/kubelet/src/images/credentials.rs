//! Which logins to try for an image, in which order.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::time::{Clock, Mono};
use cri::v1::AuthConfig;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::images::{
    BadDockerConfig, Keyring, Login, Logins, SecretRef, ServiceAccountRef, read_config_json, read_dockercfg,
};
use sha2::{Digest, Sha256};

use super::hex;
use super::provider::{Asker, Provider};
use crate::ports::Accounts;

/// How long the content of the node's files is believed.
const FILES_LIFETIME: Duration = Duration::from_secs(300);
/// A credential file is not larger than this.
const FILE_MAX: u64 = 10 << 20;

/// Everything that can say a login: the Pod's secrets, the node's files, the exec providers.
pub struct Credentials {
    clock: Arc<dyn Clock>,
    files: Option<NodeFiles>,
    providers: Vec<Provider>,
    /// Who the Pods are, for providers that want to know; none without an API server.
    accounts: Option<Arc<dyn Accounts>>,
    cache: Mutex<Option<(Mono, Keyring)>>,
}

/// Where the node's own credentials may lie. The first file that can be read counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFiles {
    config_json: Vec<PathBuf>,
    dockercfg: Vec<PathBuf>,
}

/// A pull secret of a Pod, as far as images need it.
#[derive(Clone, Debug)]
pub struct PullSecret {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// What it says, if it can be read.
    pub logins: Result<Logins, BadDockerConfig>,
}

/// A secret that does not hold what its type promises: nobody can say which logins are missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("image pull secret {namespace}/{name}: {cause}")]
pub(super) struct BrokenSecret {
    namespace: String,
    name: String,
    cause: BadDockerConfig,
}

/// One login to try, and whose it is.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) auth: AuthConfig,
    pub(super) origin: Origin,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Node,
    Secret(SecretRef),
    /// A provider gave it for a Pod of this account.
    Account(ServiceAccountRef),
}

// === impl Credentials ===

impl Credentials {
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, files: Option<NodeFiles>, providers: Vec<Provider>) -> Self {
        Self { clock, files, providers, accounts: None, cache: Mutex::new(None) }
    }

    /// Providers may know the service account of the Pod that is to have the image.
    #[must_use]
    pub fn with_accounts(mut self, accounts: Option<Arc<dyn Accounts>>) -> Self {
        self.accounts = accounts;
        self
    }

    /// The logins for a repository: the Pod's secrets first, then the node's files, then the providers.
    pub(super) async fn lookup(
        &self,
        repository: &str,
        pod: &Pod,
        secrets: &[PullSecret],
    ) -> Result<Vec<Candidate>, BrokenSecret> {
        let mut found = from_secrets(repository, secrets)?;
        let candidate = |(login, origin)| Candidate { auth: auth_of(login), origin };
        let nodes = self.node_keyring().await.lookup(repository);
        found.extend(nodes.into_iter().map(|(login, ())| candidate((login, Origin::Node))));
        let mut provided = Keyring::default();
        let asker = Asker { pod, accounts: self.accounts.as_deref() };
        for provider in &self.providers {
            match provider.logins(repository, asker, self.clock.now().mono).await {
                Ok((logins, account)) => provided.add(logins, &account.map_or(Origin::Node, Origin::Account)),
                Err(error) => {
                    tracing::error!(provider = provider.name(), %error, "credential provider failed");
                }
            }
        }
        found.extend(provided.lookup(repository).into_iter().map(candidate));
        Ok(found)
    }

    async fn node_keyring(&self) -> Keyring {
        let Some(files) = &self.files else { return Keyring::default() };
        let now = self.clock.now().mono;
        if let Some((until, keyring)) = &*self.cache.lock().unwrap_or_else(PoisonError::into_inner)
            && now < *until
        {
            return keyring.clone();
        }
        let files = files.clone();
        let logins = tokio::task::spawn_blocking(move || files.read()).await.unwrap_or_default();
        let mut keyring = Keyring::default();
        // Nothing found is not remembered, as upstream would: who adds the file because a pull failed
        // should not have to wait.
        if logins.is_empty() {
            return keyring;
        }
        keyring.add(logins, &());
        *self.cache.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((now + FILES_LIFETIME, keyring.clone()));
        keyring
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("files", &self.files).finish_non_exhaustive()
    }
}

// === impl NodeFiles ===

impl NodeFiles {
    /// The usual places: the kubelet's root, its working directory, the home directory and `/`.
    #[must_use]
    pub fn usual(root: &Path, working: &Path, home: Option<&Path>) -> Self {
        let slash = Path::new("/");
        let old = [Some(root), Some(working), home, Some(slash)].into_iter().flatten();
        let docker = |dir: &Path| dir.join(".docker");
        let new = [Some(root.to_owned()), Some(working.to_owned()), home.map(docker), Some(docker(slash))];
        Self {
            config_json: new.into_iter().flatten().map(|dir| dir.join("config.json")).collect(),
            dockercfg: old.map(|dir| dir.join(".dockercfg")).collect(),
        }
    }

    fn read(&self) -> Logins {
        let json = self.config_json.iter().find_map(|path| read_config_json(&read_bounded(path)?).ok());
        json.or_else(|| self.dockercfg.iter().find_map(|path| read_dockercfg(&read_bounded(path)?).ok()))
            .unwrap_or_default()
    }
}

// === impl PullSecret ===

impl PullSecret {
    fn reference(&self, login: &Login) -> SecretRef {
        SecretRef {
            uid: self.uid.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            credential_hash: hash(login),
        }
    }
}

/// The Pod's own secrets that fit a repository, which is what a pull record can be compared with.
pub(super) fn secrets_for(repository: &str, secrets: &[PullSecret]) -> Result<Vec<SecretRef>, BrokenSecret> {
    let of = |c: Candidate| if let Origin::Secret(secret) = c.origin { Some(secret) } else { None };
    Ok(from_secrets(repository, secrets)?.into_iter().filter_map(of).collect())
}

/// All secrets make one ring: the most specific login counts first, whichever secret holds it.
fn from_secrets(repository: &str, secrets: &[PullSecret]) -> Result<Vec<Candidate>, BrokenSecret> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        let logins = secret.logins.clone().map_err(|cause| BrokenSecret {
            namespace: secret.namespace.clone(),
            name: secret.name.clone(),
            cause,
        })?;
        keyring.add(logins, &secret);
    }
    let candidate = |(login, secret): (Login, &PullSecret)| {
        let origin = Origin::Secret(secret.reference(&login));
        Candidate { auth: auth_of(login), origin }
    };
    Ok(keyring.lookup(repository).into_iter().map(candidate).collect())
}

fn auth_of(login: Login) -> AuthConfig {
    AuthConfig { username: login.username, password: login.password, ..AuthConfig::default() }
}

/// SHA-256 over the login as Go's JSON writes it, which is what records of other kubelets hold.
fn hash(login: &Login) -> String {
    let field = |name: &str, value: &str| {
        (!value.is_empty()).then(|| {
            let text = serde_json::Value::from(value).to_string();
            format!(
                "\"{name}\":{}",
                text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
            )
        })
    };
    let fields = [("username", &login.username), ("password", &login.password), ("email", &login.email)];
    let fields = fields.map(|(name, value)| field(name, value));
    let text = format!("{{{}}}", fields.into_iter().flatten().collect::<Vec<_>>().join(","));
    hex(&Sha256::digest(text.as_bytes()))
}

fn read_bounded(path: &Path) -> Option<Vec<u8>> {
    use std::io::Read;
    let file = std::fs::File::open(path).ok()?;
    let mut bytes = Vec::new();
    let read = file.take(FILE_MAX + 1).read_to_end(&mut bytes).ok()? as u64;
    (read <= FILE_MAX).then_some(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use base::time::Now;

    struct Stopped(Mutex<Mono>);

    impl Clock for Stopped {
        fn now(&self) -> Now {
            Now { mono: *self.0.lock().unwrap(), ..Now::default() }
        }
    }

    fn login(name: &str) -> Login {
        Login { username: name.into(), password: "pw<&>".into(), ..Login::default() }
    }

    #[tokio::test]
    async fn secrets_come_before_the_nodes_files_which_are_cached() {
        let dir = tempfile::tempdir().unwrap();
        let (root, home) = (dir.path().join("root"), dir.path().join("home"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(home.join(".docker")).unwrap();
        let old = root.join(".dockercfg");
        std::fs::write(&old, r#"{"r.io": {"username": "old", "password": "x"}}"#).unwrap();
        std::fs::write(home.join(".docker/config.json"), "broken").unwrap();
        let clock = Arc::new(Stopped(Mutex::default()));
        let files = NodeFiles::usual(&root, &root, Some(&home));
        let credentials = Credentials::new(clock.clone(), Some(files), Vec::new());
        let secret = PullSecret {
            uid: "u".into(),
            namespace: "ns".into(),
            name: "s".into(),
            logins: Ok([("r.io/team".to_owned(), login("secret"))].into()),
        };
        let secrets = [secret];
        let names = async |repo: &str| {
            let found = credentials.lookup(repo, &Pod::default(), &secrets).await.unwrap();
            found.into_iter().map(|c| (c.auth.username, c.origin != Origin::Node)).collect::<Vec<_>>()
        };
        assert_eq!(names("r.io/team/x").await, [("secret".into(), true), ("old".into(), false)]);
        assert_eq!(names("r.io/x").await, [("old".into(), false)]);

        // The newer format wins over the older one, wherever it lies; but the old answer is still warm.
        std::fs::write(home.join(".docker/config.json"), r#"{"auths": {"r.io": {"auth": "bmV3Onk="}}}"#)
            .unwrap();
        assert_eq!(names("r.io/x").await, [("old".into(), false)]);
        *clock.0.lock().unwrap() = Mono(FILES_LIFETIME);
        assert_eq!(names("r.io/x").await, [("new".into(), false)]);
        assert_eq!(names("other.io/x").await, []);
    }

    #[test]
    fn the_hash_is_over_gos_json() {
        let expected = Sha256::digest(br#"{"username":"me","password":"pw\u003c\u0026\u003e"}"#);
        assert_eq!(hash(&login("me")), hex(&expected));
        let expected =
            Sha256::digest(br#"{"username":"me","password":"pw\u003c\u0026\u003e","email":"m@x"}"#);
        assert_eq!(hash(&Login { email: "m@x".into(), ..login("me") }), hex(&expected));
    }

    fn secret(name: &str, logins: &[(&str, &str)]) -> PullSecret {
        let logins = logins.iter().map(|(place, user)| ((*place).to_owned(), login(user))).collect();
        PullSecret { uid: name.into(), namespace: "ns".into(), name: name.into(), logins: Ok(logins) }
    }

    #[test]
    fn all_secrets_make_one_ring() {
        let names = |repository: &str, secrets: &[PullSecret]| {
            let found = from_secrets(repository, secrets).unwrap();
            found.into_iter().map(|c| c.auth.username).collect::<Vec<_>>()
        };
        let wide = secret("wide", &[("r.io", "wide"), ("https://index.docker.io/v1/", "hub")]);
        let narrow = secret("narrow", &[("r.io/team", "narrow"), ("docker.io/team", "team")]);
        let both = [wide, narrow];
        assert_eq!(names("r.io/team/x", &both), ["narrow", "wide"], "the most specific first");
        assert_eq!(
            names("docker.io/team/x", &both),
            ["team"],
            "Docker Hub's old place is for want of a better"
        );
        assert_eq!(names("docker.io/library/x", &both), ["hub"]);
        let whose = secrets_for("r.io/team/x", &both).unwrap();
        assert_eq!(whose.iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["narrow", "wide"]);
    }

    #[test]
    fn a_broken_secret_is_named() {
        let broken = PullSecret { logins: Err(BadDockerConfig), ..secret("typo", &[]) };
        let error = from_secrets("r.io/x", &[secret("good", &[("r.io", "me")]), broken]).unwrap_err();
        assert_eq!(error.to_string(), "image pull secret ns/typo: not a valid docker configuration");
    }
}
