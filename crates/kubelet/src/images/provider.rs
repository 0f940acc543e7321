//! Exec credential providers: programs that are asked for logins, as CredentialProviderConfig says.

mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::yaml::{DuplicateKeys, to_value};
use base::duration::GoDuration;
use base::time::Mono;
use kubelet_core::images::{Login, Logins, ServiceAccountRef, matches_url, registry_of};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(super) use tokens::Asker;
use tokens::{Identity, Speaker, TokenAttributes};

/// A provider that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(60);
/// It cannot say more than this.
const OUTPUT_MAX: u64 = 1 << 20;
const STDERR_MAX: u64 = 4 << 10;
/// Answers remembered per provider; the one that expires first gives way.
const CACHE_MAX: usize = 1024;
const API_VERSIONS: [&str; 3] = [
    "credentialprovider.kubelet.k8s.io/v1",
    "credentialprovider.kubelet.k8s.io/v1beta1",
    "credentialprovider.kubelet.k8s.io/v1alpha1",
];
const CONFIG_VERSIONS: [&str; 3] =
    ["kubelet.config.k8s.io/v1", "kubelet.config.k8s.io/v1beta1", "kubelet.config.k8s.io/v1alpha1"];

/// One program that can be asked for logins.
pub struct Provider {
    name: String,
    program: PathBuf,
    api_version: String,
    match_images: Vec<String>,
    default_cache: Duration,
    args: Vec<String>,
    env: Vec<(String, String)>,
    /// None for a provider that does not care whose Pod it is.
    tokens: Option<TokenAttributes>,
    cache: Mutex<HashMap<CacheKey, (Mono, Logins)>>,
    /// One run per image and account at a time; those who wait find the answer in the cache.
    asking: Mutex<HashMap<(String, Speaker), Turn>>,
}

/// Why the providers cannot be used: every mistake, one per line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct BadProviders(pub Vec<String>);

/// Why a provider gave no answer. Says nothing of what it answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("run {program}: {why}")]
pub(super) struct ProviderError {
    program: String,
    why: String,
}

/// Whose turn it is to run the program.
type Turn = Arc<tokio::sync::Mutex<()>>;

/// For what an answer is good, and for whom.
type CacheKey = (Scope, Speaker);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Scope {
    Image(String),
    Registry(String),
    Global,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    api_version: String,
    kind: String,
    #[serde(default)]
    providers: Vec<Entry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    #[serde(default)]
    name: String,
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    match_images: Vec<String>,
    default_cache_duration: Option<GoDuration>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: Vec<EnvVar>,
    token_attributes: Option<TokenAttributes>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnvVar {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    kind: &'static str,
    api_version: &'a str,
    image: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service_account_annotations: Option<&'a BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Response {
    api_version: String,
    kind: String,
    #[serde(default)]
    cache_key_type: String,
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: Option<BTreeMap<String, Auth>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Auth {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

/// Reads the configuration (a file, or the `.json`, `.yaml` and `.yml` files of a directory in order)
/// and finds the programs in `bin_dir`. `tokens` says whether the feature gate lets providers have tokens of service
/// accounts. Blocking; called once at start.
pub fn load_providers(config: &Path, bin_dir: &Path, tokens: bool) -> Result<Vec<Provider>, BadProviders> {
    let mut mistakes = Vec::new();
    let mut providers: Vec<Provider> = Vec::new();
    let mut names = BTreeSet::new();
    for file in config_files(config).map_err(|e| BadProviders(vec![e]))? {
        let config = match read_config(&file) {
            Ok(config) => config,
            Err(why) => {
                mistakes.push(format!("{}: {why}", file.display()));
                continue;
            }
        };
        for (index, entry) in config.providers.into_iter().enumerate() {
            let at = format!("{}: providers[{index}]", file.display());
            mistakes.extend(entry.mistakes(bin_dir, tokens).into_iter().map(|why| format!("{at}.{why}")));
            if !names.insert(entry.name.clone()) {
                mistakes.push(format!("{at}.name: duplicate provider {:?}", entry.name));
            }
            providers.push(Provider::new(entry, bin_dir));
        }
    }
    if providers.is_empty() && mistakes.is_empty() {
        mistakes.push(format!("{}: providers: at least one is required", config.display()));
    }
    if mistakes.is_empty() { Ok(providers) } else { Err(BadProviders(mistakes)) }
}

// === impl Provider ===

impl Provider {
    fn new(entry: Entry, bin_dir: &Path) -> Self {
        Self {
            program: bin_dir.join(&entry.name),
            name: entry.name,
            api_version: entry.api_version,
            match_images: entry.match_images,
            default_cache: entry.default_cache_duration.unwrap_or_default().to_std(),
            args: entry.args,
            env: entry.env.into_iter().map(|e| (e.name, e.value)).collect(),
            tokens: entry.token_attributes,
            cache: Mutex::default(),
            asking: Mutex::default(),
        }
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has nothing to say to Pods whose service account nobody knows.
    #[must_use]
    pub fn needs_accounts(&self) -> bool {
        self.tokens.as_ref().is_some_and(TokenAttributes::requires_account)
    }

    /// The logins the provider has for a repository, and for whose Pods they are if not for all of the node; none if it
    /// is not meant for it.
    pub(super) async fn logins(
        &self,
        repository: &str,
        asker: Asker<'_>,
        now: Mono,
    ) -> Result<(Logins, Option<ServiceAccountRef>), ProviderError> {
        if !self.match_images.iter().any(|glob| matches_url(glob, repository)) {
            return Ok((Logins::new(), None));
        }
        let identity = match &self.tokens {
            None => None,
            Some(attributes) => match attributes.identify(asker).await.map_err(|why| self.error(why))? {
                None => return Ok((Logins::new(), None)),
                Some(identity) => identity,
            },
        };
        let logins = self.logins_for(repository, identity.as_ref(), now).await?;
        Ok((logins, identity.map(|i| i.account)))
    }

    async fn logins_for(
        &self,
        repository: &str,
        identity: Option<&Identity>,
        now: Mono,
    ) -> Result<Logins, ProviderError> {
        let speaker = self.tokens.as_ref().zip(identity).map(|(t, i)| t.speaker(i)).unwrap_or_default();
        if let Some(logins) = self.cached(repository, &speaker, now) {
            return Ok(logins);
        }
        let turn = self.turn(repository, &speaker);
        let _turn = turn.lock().await;
        if let Some(logins) = self.cached(repository, &speaker, now) {
            return Ok(logins);
        }
        let response = tokio::time::timeout(TIMEOUT, self.ask(repository, identity))
            .await
            .unwrap_or_else(|_| Err(self.error(format!("no answer within {TIMEOUT:?}"))))?;
        if let (Some(attributes), Some(identity)) = (&self.tokens, identity) {
            let passwords = response.auth.iter().flatten().map(|(_, auth)| auth.password.as_str());
            attributes.check_echo(identity, passwords).map_err(|why| self.error(why))?;
        }
        self.remember(repository, speaker, response, now)
    }

    fn cached(&self, repository: &str, speaker: &Speaker, now: Mono) -> Option<Logins> {
        let cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let scopes = [
            Scope::Image(repository.to_owned()),
            Scope::Registry(registry_of(repository).to_owned()),
            Scope::Global,
        ];
        let fresh = |scope| cache.get(&(scope, speaker.clone())).filter(|(until, _)| now <= *until);
        scopes.into_iter().find_map(fresh).map(|(_, l)| l.clone())
    }

    fn turn(&self, repository: &str, speaker: &Speaker) -> Turn {
        let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        asking.retain(|_, turn| Arc::strong_count(turn) > 1);
        asking.entry((repository.to_owned(), speaker.clone())).or_default().clone()
    }

    fn remember(
        &self,
        repository: &str,
        speaker: Speaker,
        response: Response,
        now: Mono,
    ) -> Result<Logins, ProviderError> {
        let scope = match response.cache_key_type.as_str() {
            "Image" => Scope::Image(repository.to_owned()),
            "Registry" => Scope::Registry(registry_of(repository).to_owned()),
            "Global" => Scope::Global,
            other => return Err(self.error(format!("cacheKeyType {other:?} in its answer is not valid"))),
        };
        let login = |a: Auth| Login { username: a.username, password: a.password, ..Login::default() };
        let auth = response.auth.unwrap_or_default();
        let logins: Logins = auth.into_iter().map(|(location, a)| (location, login(a))).collect();
        let lifetime = response.cache_duration.map_or(self.default_cache, GoDuration::to_std);
        if !lifetime.is_zero() {
            let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
            cache.retain(|_, (until, _)| now <= *until);
            if cache.len() >= CACHE_MAX
                && let Some(first) = cache.iter().min_by_key(|(_, (until, _))| *until).map(|(k, _)| k.clone())
            {
                cache.remove(&first);
            }
            cache.insert((scope, speaker), (now + lifetime, logins.clone()));
        }
        Ok(logins)
    }

    /// Runs the program. Dropping the future kills it.
    async fn ask(&self, repository: &str, identity: Option<&Identity>) -> Result<Response, ProviderError> {
        let io = |act: &'static str| move |e: std::io::Error| self.error(format!("{act}: {e}"));
        let request = Request {
            kind: "CredentialProviderRequest",
            api_version: &self.api_version,
            image: repository,
            service_account_token: identity.map(|i| i.token.as_str()),
            service_account_annotations: identity.map(|i| &i.annotations).filter(|a| !a.is_empty()),
        };
        let request = serde_json::to_vec(&request).map_err(|e| self.error(e.to_string()))?;
        let mut child = tokio::process::Command::new(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(io("start"))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A provider that does not read its request is free to do so.
                _ = stdin.write_all(&request).await;
            }
        };
        let ((), answer, complaint) =
            tokio::join!(write, drain(stdout, OUTPUT_MAX), drain(stderr, STDERR_MAX));
        let status = child.wait().await.map_err(io("wait"))?;
        if !status.success() {
            let complaint = String::from_utf8_lossy(&complaint);
            return Err(self.error(format!("{status}: {}", complaint.trim())));
        }
        if answer.len() as u64 > OUTPUT_MAX {
            return Err(self.error(format!("its answer is larger than {OUTPUT_MAX} bytes")));
        }
        self.decode(&answer)
    }

    fn decode(&self, answer: &[u8]) -> Result<Response, ProviderError> {
        // The parser's words may quote the answer, so they are not passed on.
        let response: Response = serde_json::from_slice(answer)
            .map_err(|_| self.error("its answer is not a CredentialProviderResponse".into()))?;
        if response.kind != "CredentialProviderResponse" || response.api_version != self.api_version {
            let (want, got) = (&self.api_version, &response.api_version);
            return Err(self.error(format!("it answered with {} of {got}, expected {want}", response.kind)));
        }
        Ok(response)
    }

    fn error(&self, why: String) -> ProviderError {
        ProviderError { program: self.program.display().to_string(), why }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("program", &self.program).finish_non_exhaustive()
    }
}

// === impl Entry ===

impl Entry {
    fn mistakes(&self, bin_dir: &Path, tokens: bool) -> Vec<String> {
        let mut found = Vec::new();
        let mut check = |wrong: bool, text: String| {
            if wrong {
                found.push(text);
            }
        };
        let name = &self.name;
        let bad_name = name.is_empty() || name.contains(['/', ' ']) || name == "." || name == "..";
        check(bad_name, format!("name: {name:?} is not the name of a program"));
        let known = API_VERSIONS.contains(&self.api_version.as_str());
        check(
            !known,
            format!("apiVersion: {:?} is not one of {}", self.api_version, API_VERSIONS.join(", ")),
        );
        check(self.match_images.is_empty(), "matchImages: at least one is required".into());
        let duration = self.default_cache_duration;
        check(duration.is_none(), "defaultCacheDuration: required".into());
        check(
            duration.is_some_and(GoDuration::is_negative),
            "defaultCacheDuration: must not be negative".into(),
        );
        for mistake in self.token_attributes.iter().flat_map(|t| t.mistakes(&self.api_version, tokens)) {
            check(true, mistake);
        }
        if !bad_name {
            let program = bin_dir.join(name);
            check(!is_executable(&program), format!("name: {} is not an executable file", program.display()));
        }
        found
    }
}

async fn drain(pipe: Option<impl tokio::io::AsyncRead + Unpin>, limit: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let mut pipe = pipe.take(limit + 1);
        _ = pipe.read_to_end(&mut bytes).await;
        // Keep the pipe flowing so that a talkative program can end.
        _ = tokio::io::copy(&mut pipe.into_inner(), &mut tokio::io::sink()).await;
    }
    bytes
}

fn config_files(config: &Path) -> Result<Vec<PathBuf>, String> {
    let fail = |e: std::io::Error| format!("{}: {e}", config.display());
    if !std::fs::metadata(config).map_err(fail)?.is_dir() {
        return Ok(vec![config.to_owned()]);
    }
    let wanted = |path: &PathBuf| {
        let extension = path.extension().and_then(|e| e.to_str());
        matches!(extension, Some("json" | "yaml" | "yml")) && !path.is_dir()
    };
    let entries = std::fs::read_dir(config).map_err(fail)?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(wanted).collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no configuration files found", config.display()));
    }
    Ok(files)
}

fn read_config(file: &Path) -> Result<Config, String> {
    let bytes = std::fs::read(file).map_err(|e| e.to_string())?;
    let value = to_value(&bytes, DuplicateKeys::Reject).map_err(|e| e.to_string())?;
    let config: Config = serde_json::from_value(value).map_err(|e| e.to_string())?;
    if config.kind != "CredentialProviderConfig" || !CONFIG_VERSIONS.contains(&config.api_version.as_str()) {
        return Err(format!(
            "{} of {} is not a CredentialProviderConfig of {}",
            config.kind, config.api_version, CONFIG_VERSIONS[0]
        ));
    }
    Ok(config)
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[path = "provider_tests.rs"]
mod tests;
