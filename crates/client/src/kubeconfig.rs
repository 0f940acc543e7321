//! Kubeconfig files: which server, whom to trust, who we are.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use api::yaml::{DuplicateKeys, to_value};
use base64::Engine;
use serde::Deserialize;

use crate::proxy::Proxy;

/// A kubeconfig is small; a bigger file is something else.
const MAX_SIZE: u64 = 1 << 20;
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// One context of a kubeconfig, with every path made absolute.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `https://10.0.0.1:6443`, possibly with a path prefix.
    pub server: String,
    /// The name the server's certificate must carry, where it is not the host of `server`.
    pub tls_server_name: Option<String>,
    /// Whom to trust; the system's roots where nobody is named.
    pub ca: Option<Source>,
    pub insecure: bool,
    /// On the way to the server.
    pub proxy: Option<Proxy>,
    pub identity: Identity,
    pub namespace: String,
}

/// Who we are.
#[derive(Clone, Default, PartialEq)]
pub struct Identity {
    /// Certificate chain and key, PEM.
    pub certificate: Option<(Source, Source)>,
    pub token: Option<String>,
    /// Read again when it changes; wins over `token`.
    pub token_file: Option<PathBuf>,
    pub basic: Option<(String, String)>,
    pub exec: Option<Exec>,
    /// Headers that say whom to take us for.
    pub impersonation: Vec<(String, String)>,
}

/// Bytes in the file itself, or a file beside it.
#[derive(Clone, PartialEq)]
pub enum Source {
    Inline(Vec<u8>),
    File(PathBuf),
}

/// A program that is asked for credentials.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    pub api_version: String,
    pub command: String,
    #[serde(default)]
    pub args: Vec<String>,
    #[serde(default)]
    pub env: Vec<ExecEnv>,
    #[serde(default)]
    pub install_hint: String,
    #[serde(default)]
    pub provide_cluster_info: bool,
    #[serde(default)]
    pub interactive_mode: String,
    /// What the kubeconfig says of the cluster, for this program only.
    #[serde(skip)]
    pub cluster: ExecCluster,
}

/// What a program is told of the cluster besides what we use ourselves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecCluster {
    pub proxy_url: Option<String>,
    pub disable_compression: bool,
    /// The cluster's extension of the name `client.authentication.k8s.io/exec`.
    pub config: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct ExecEnv {
    pub name: String,
    pub value: String,
}

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("reading {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("kubeconfig {path}: larger than {MAX_SIZE} bytes")]
    TooLarge { path: PathBuf },
    #[error("kubeconfig {path}: {why}")]
    Syntax { path: PathBuf, why: String },
    #[error("kubeconfig {path}: {field}: {why}")]
    Field { path: PathBuf, field: String, why: String },
    #[error("not in a cluster: {0} is not set")]
    NotInCluster(&'static str),
}

impl Config {
    /// A server, and nothing to prove to it.
    pub fn plain(server: &str) -> Config {
        Config {
            server: server.to_owned(),
            tls_server_name: None,
            ca: None,
            insecure: false,
            proxy: None,
            identity: Identity::default(),
            namespace: "default".to_owned(),
        }
    }

    /// Reads the file's current context.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let file = Document::read(path)?;
        file.resolve(path)
    }

    /// What an agent's flags name: a kubeconfig, the address of the server alone (`--master`, which also wins over the
    /// kubeconfig's), or what a Pod is given. `in_cluster` is host and port from the environment. Empty texts name nothing.
    pub fn of_flags(
        kubeconfig: &str,
        master: &str,
        in_cluster: &(Option<String>, Option<String>),
    ) -> Result<Config, ConfigError> {
        let mut config = match (kubeconfig.is_empty(), master.is_empty()) {
            (false, _) => Config::load(Path::new(kubeconfig))?,
            (true, false) => Config::plain(master),
            (true, true) => {
                let (host, port) = in_cluster;
                Config::in_cluster(host.as_deref(), port.as_deref())?
            }
        };
        if !master.is_empty() {
            let address = master.trim_end_matches('/');
            config.server =
                if address.contains("://") { address.to_owned() } else { format!("https://{address}") };
        }
        Ok(config)
    }

    /// The credentials a Pod is given: the service account's token and the address in the environment.
    pub fn in_cluster(host: Option<&str>, port: Option<&str>) -> Result<Config, ConfigError> {
        let host =
            host.filter(|h| !h.is_empty()).ok_or(ConfigError::NotInCluster("KUBERNETES_SERVICE_HOST"))?;
        let port =
            port.filter(|p| !p.is_empty()).ok_or(ConfigError::NotInCluster("KUBERNETES_SERVICE_PORT"))?;
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let dir = Path::new(SERVICE_ACCOUNT);
        Ok(Config {
            server: format!("https://{host}:{port}"),
            tls_server_name: None,
            ca: Some(Source::File(dir.join("ca.crt"))),
            insecure: false,
            proxy: None,
            identity: Identity { token_file: Some(dir.join("token")), ..Identity::default() },
            namespace: "default".to_owned(),
        })
    }
}

/// The file, as written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Document {
    current_context: String,
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
    insecure_skip_tls_verify: bool,
    proxy_url: Option<String>,
    disable_compression: bool,
    extensions: Vec<NamedExtension>,
}

#[derive(Deserialize)]
struct NamedExtension {
    name: String,
    #[serde(default)]
    extension: serde_json::Value,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
    exec: Option<Exec>,
    #[serde(rename = "as")]
    as_user: String,
    as_uid: String,
    as_groups: Vec<String>,
    as_user_extra: BTreeMap<String, Vec<String>>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Context,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Context {
    cluster: String,
    user: String,
    namespace: Option<String>,
}

// === impl Document ===

impl Document {
    fn read(path: &Path) -> Result<Document, ConfigError> {
        let at = |source| ConfigError::Read { path: path.to_owned(), source };
        if std::fs::metadata(path).map_err(at)?.len() > MAX_SIZE {
            return Err(ConfigError::TooLarge { path: path.to_owned() });
        }
        let bytes = std::fs::read(path).map_err(at)?;
        let syntax = |why: String| ConfigError::Syntax { path: path.to_owned(), why };
        let value = to_value(&bytes, DuplicateKeys::Reject).map_err(|e| syntax(e.to_string()))?;
        // What is in a file that is something else is nobody's business: it is not repeated.
        if !value.is_object() {
            return Err(syntax("this is no kubeconfig: it has no clusters, users and contexts".to_owned()));
        }
        match api::path_decode::decode(&value) {
            Ok(decoded) => Ok(decoded.object),
            Err(e) => Err(ConfigError::Field { path: path.to_owned(), field: e.path, why: e.message }),
        }
    }

    fn resolve(mut self, path: &Path) -> Result<Config, ConfigError> {
        let field = |field: String, why: &str| ConfigError::Field {
            path: path.to_owned(),
            field,
            why: why.to_owned(),
        };
        let wanted = std::mem::take(&mut self.current_context);
        let context = match self.contexts.into_iter().find(|c| c.name == wanted) {
            Some(found) => found.context,
            None if wanted.is_empty() => return Err(field("current-context".to_owned(), "is not set")),
            None => {
                return Err(field("current-context".to_owned(), &format!("no context is named {wanted:?}")));
            }
        };
        let cluster_field = format!("contexts[{wanted}].cluster");
        let cluster = self
            .clusters
            .into_iter()
            .find(|c| c.name == context.cluster)
            .ok_or_else(|| field(cluster_field, &format!("no cluster is named {:?}", context.cluster)))?;
        let user = match self.users.into_iter().find(|u| u.name == context.user) {
            Some(found) => found.user.unwrap_or_default(),
            // An empty name is an anonymous client, as kubectl has it.
            None if context.user.is_empty() => User::default(),
            None => {
                let why = format!("no user is named {:?}", context.user);
                return Err(field(format!("contexts[{wanted}].user"), &why));
            }
        };
        let reader = Reader { path, base: path.parent().unwrap_or(Path::new("/")) };
        let (ca, insecure) = reader.trust(&cluster)?;
        let proxy = reader.proxy(&cluster)?;
        let server = reader.server(&cluster)?;
        let mut identity = reader.identity(&context.user, user)?;
        if let Some(exec) = &mut identity.exec {
            exec.cluster = ExecCluster::of(&cluster.cluster);
        }
        Ok(Config {
            server,
            tls_server_name: cluster.cluster.tls_server_name.filter(|n| !n.is_empty()),
            ca,
            insecure,
            proxy,
            identity,
            namespace: context.namespace.filter(|n| !n.is_empty()).unwrap_or_else(|| "default".to_owned()),
        })
    }
}

struct Reader<'a> {
    path: &'a Path,
    base: &'a Path,
}

// === impl Reader ===

impl Reader<'_> {
    fn server(&self, cluster: &NamedCluster) -> Result<String, ConfigError> {
        let field = format!("clusters[{}].cluster.server", cluster.name);
        let server = cluster.cluster.server.trim_end_matches('/');
        if server.is_empty() {
            return Err(self.mistake(&field, "is not set"));
        }
        let server = if server.contains("://") { server.to_owned() } else { format!("https://{server}") };
        match server.parse::<http::Uri>() {
            Ok(uri) if uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https")) => {
                Ok(server)
            }
            _ => Err(self.mistake(&field, "is not an http or https URL")),
        }
    }

    fn trust(&self, cluster: &NamedCluster) -> Result<(Option<Source>, bool), ConfigError> {
        let at = |name: &str| format!("clusters[{}].cluster.{name}", cluster.name);
        let c = &cluster.cluster;
        let ca = self.source(
            &at("certificate-authority"),
            &c.certificate_authority,
            &c.certificate_authority_data,
        )?;
        if ca.is_some() && c.insecure_skip_tls_verify {
            let why = "a certificate authority and insecure-skip-tls-verify exclude each other";
            return Err(self.mistake(&at("insecure-skip-tls-verify"), why));
        }
        Ok((ca, c.insecure_skip_tls_verify))
    }

    fn proxy(&self, cluster: &NamedCluster) -> Result<Option<Proxy>, ConfigError> {
        let url = cluster.cluster.proxy_url.as_deref().filter(|url| !url.is_empty());
        let field = format!("clusters[{}].cluster.proxy-url", cluster.name);
        url.map(|url| Proxy::parse(url).map_err(|why| self.mistake(&field, &why))).transpose()
    }

    fn identity(&self, name: &str, user: User) -> Result<Identity, ConfigError> {
        let at = |field: &str| format!("users[{name}].user.{field}");
        let certificate =
            self.source(&at("client-certificate"), &user.client_certificate, &user.client_certificate_data)?;
        let key = self.source(&at("client-key"), &user.client_key, &user.client_key_data)?;
        let certificate = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(self.mistake(&at("client-key"), "is not set, but client-certificate is"));
            }
            (None, Some(_)) => {
                return Err(self.mistake(&at("client-certificate"), "is not set, but client-key is"));
            }
        };
        if let Some(exec) = &user.exec {
            self.check_exec(&at("exec"), exec)?;
        }
        let impersonation = impersonation(&user);
        let exec = user.exec.map(|mut exec| {
            // Only a command with a slash in it is a path; others are looked up like the shell does.
            if exec.command.contains('/') {
                exec.command = self.base.join(&exec.command).to_string_lossy().into_owned();
            }
            exec
        });
        if user.as_user.is_empty() && !impersonation.is_empty() {
            return Err(self.mistake(&at("as"), "is not set, but other fields of an impersonation are"));
        }
        Ok(Identity {
            impersonation,
            certificate,
            token: user.token.filter(|t| !t.is_empty()),
            token_file: user.token_file.filter(|f| !f.as_os_str().is_empty()).map(|f| self.base.join(f)),
            basic: user.username.filter(|u| !u.is_empty()).map(|u| (u, user.password.unwrap_or_default())),
            exec,
        })
    }

    fn check_exec(&self, at: &str, exec: &Exec) -> Result<(), ConfigError> {
        if exec.command.is_empty() {
            return Err(self.mistake(&format!("{at}.command"), "is not set"));
        }
        match exec.api_version.as_str() {
            "client.authentication.k8s.io/v1" | "client.authentication.k8s.io/v1beta1" => {}
            _ => {
                return Err(self.mistake(
                    &format!("{at}.apiVersion"),
                    "must be client.authentication.k8s.io/v1 or v1beta1",
                ));
            }
        }
        match exec.interactive_mode.as_str() {
            "" | "Never" | "IfAvailable" => Ok(()),
            "Always" => {
                Err(self.mistake(&format!("{at}.interactiveMode"), "a node has no terminal to ask at"))
            }
            _ => Err(self.mistake(&format!("{at}.interactiveMode"), "must be Never, IfAvailable or Always")),
        }
    }

    /// Data in the file wins over a path, as upstream has it.
    fn source(
        &self,
        at: &str,
        file: &Option<PathBuf>,
        data: &Option<String>,
    ) -> Result<Option<Source>, ConfigError> {
        if let Some(data) = data.as_deref().filter(|d| !d.is_empty()) {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(data.trim())
                .map_err(|e| self.mistake(&format!("{at}-data"), &format!("is not base64: {e}")))?;
            return Ok(Some(Source::Inline(bytes)));
        }
        let file = file.as_ref().filter(|f| !f.as_os_str().is_empty());
        Ok(file.map(|f| Source::File(self.base.join(f))))
    }

    fn mistake(&self, field: &str, why: &str) -> ConfigError {
        ConfigError::Field { path: self.path.to_owned(), field: field.to_owned(), why: why.to_owned() }
    }
}

fn impersonation(user: &User) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    let mut add = |name: &str, value: &String| {
        if !value.is_empty() {
            headers.push((name.to_owned(), value.clone()));
        }
    };
    add("Impersonate-User", &user.as_user);
    add("Impersonate-Uid", &user.as_uid);
    user.as_groups.iter().for_each(|group| add("Impersonate-Group", group));
    for (key, values) in &user.as_user_extra {
        let encoded = |b: u8| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => char::from(b).to_string(),
            b => format!("%{b:02X}"),
        };
        let key: String = key.bytes().map(encoded).collect();
        values.iter().for_each(|value| add(&format!("Impersonate-Extra-{key}"), value));
    }
    headers
}

// === impl ExecCluster ===

impl ExecCluster {
    fn of(cluster: &Cluster) -> ExecCluster {
        let own = |e: &&NamedExtension| e.name == "client.authentication.k8s.io/exec";
        ExecCluster {
            proxy_url: cluster.proxy_url.clone().filter(|url| !url.is_empty()),
            disable_compression: cluster.disable_compression,
            config: cluster.extensions.iter().find(own).map(|e| e.extension.clone()),
        }
    }
}

// === impl Source ===

impl Source {
    /// The bytes as they are now.
    pub fn read(&self) -> Result<Vec<u8>, ConfigError> {
        match self {
            Source::Inline(bytes) => Ok(bytes.clone()),
            Source::File(path) => {
                std::fs::read(path).map_err(|source| ConfigError::Read { path: path.clone(), source })
            }
        }
    }
}

/// What is in the file may be a key.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Inline(bytes) => write!(f, "Inline({} bytes)", bytes.len()),
            Source::File(path) => write!(f, "File({})", path.display()),
        }
    }
}

// === impl Identity ===

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificate", &self.certificate)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("token_file", &self.token_file)
            .field("basic", &self.basic.as_ref().map(|(user, _)| user))
            .field("exec", &self.exec.as_ref().map(|e| &e.command))
            .field("impersonation", &self.impersonation)
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        let prefix = dir.path().display().to_string();
        Config::load(&path).map_err(|e| e.to_string().replace(&prefix, "DIR"))
    }

    fn with(cluster: &str, user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{{cluster}}}}}]\nusers: [{{name: u, user: {{{user}}}}}]\n"
        )
    }

    #[test]
    fn paths_are_relative_to_the_file_and_data_wins() {
        let c = load(&with(
            "server: 'https://a:6443/', certificate-authority: pki/ca.crt",
            "client-certificate: /x/c.pem, client-key: k.pem, client-key-data: aGk=, tokenFile: t",
        ))
        .unwrap();
        assert_eq!(c.server, "https://a:6443");
        assert!(matches!(c.ca, Some(Source::File(p)) if p.ends_with("pki/ca.crt") && p.is_absolute()));
        let (certificate, key) = c.identity.certificate.unwrap();
        assert_eq!(certificate, Source::File("/x/c.pem".into()));
        assert_eq!(key, Source::Inline(b"hi".to_vec()));
        assert!(c.identity.token_file.unwrap().is_absolute());
        assert_eq!(c.namespace, "default");
    }

    #[test]
    fn proxies_and_impersonation_are_read() {
        let c = load(&with(
            "server: 'https://a', proxy-url: 'http://p:3128'",
            "token: t, as: ann, as-uid: u1, as-groups: [g, h], as-user-extra: {example.org/a b: [c]}",
        ))
        .unwrap();
        assert_eq!(format!("{:?}", c.proxy), "Some(Http p:3128)");
        let headers: Vec<String> =
            c.identity.impersonation.iter().map(|(k, v)| format!("{k}: {v}")).collect();
        let expected = [
            "Impersonate-User: ann",
            "Impersonate-Uid: u1",
            "Impersonate-Group: g",
            "Impersonate-Group: h",
            "Impersonate-Extra-example.org%2Fa%20b: c",
        ];
        assert_eq!(headers, expected);
        let why = load(&with("server: 'https://a', proxy-url: 'https://p'", "token: t")).unwrap_err();
        assert!(why.contains("clusters[k].cluster.proxy-url: a proxy that itself wants TLS"), "{why}");
        let why = load(&with("server: 'https://a'", "as-groups: [g]")).unwrap_err();
        assert!(why.contains("users[u].user.as: is not set"), "{why}");
    }

    #[test]
    fn a_server_without_a_scheme_speaks_tls() {
        assert_eq!(load(&with("server: 10.0.0.1", "")).unwrap().server, "https://10.0.0.1");
    }

    #[test]
    fn mistakes_name_their_field() {
        let cases = [
            ("{}".to_owned(), "kubeconfig DIR/kubeconfig: current-context: is not set"),
            (
                "current-context: x".to_owned(),
                "kubeconfig DIR/kubeconfig: current-context: no context is named \"x\"",
            ),
            (with("", ""), "kubeconfig DIR/kubeconfig: clusters[k].cluster.server: is not set"),
            (
                with("server: 'ftp://x'", ""),
                "kubeconfig DIR/kubeconfig: clusters[k].cluster.server: is not an http or https URL",
            ),
            (
                with("server: a, certificate-authority: x, insecure-skip-tls-verify: true", ""),
                "kubeconfig DIR/kubeconfig: clusters[k].cluster.insecure-skip-tls-verify: a certificate authority and insecure-skip-tls-verify exclude each other",
            ),
            (
                with("server: a", "client-certificate: x"),
                "kubeconfig DIR/kubeconfig: users[u].user.client-key: is not set, but client-certificate is",
            ),
            (
                with("server: a", "client-key-data: '%', client-certificate: x"),
                "kubeconfig DIR/kubeconfig: users[u].user.client-key-data: is not base64: Invalid symbol 37, offset 0.",
            ),
            (
                with("server: a", "exec: {apiVersion: x, command: plug}"),
                "kubeconfig DIR/kubeconfig: users[u].user.exec.apiVersion: must be client.authentication.k8s.io/v1 or v1beta1",
            ),
        ];
        for (text, told) in cases {
            assert_eq!(load(&text).unwrap_err(), told);
        }
        assert!(
            load("clusters: [{name: 1}]")
                .unwrap_err()
                .starts_with("kubeconfig DIR/kubeconfig: clusters[0].name: ")
        );
        assert!(load(": :").unwrap_err().starts_with("kubeconfig DIR/kubeconfig: "));
    }

    #[test]
    fn secrets_are_not_shown() {
        let c = load(&with("server: a", "token: hush, username: me, password: hush")).unwrap();
        assert!(!format!("{c:?}").contains("hush"));
    }
}
