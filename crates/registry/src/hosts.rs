//! Where the images of a registry come from: `hosts.toml` in the layout of containerd's `certs.d`.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use http::Uri;
use serde::Deserialize;

/// Of one file.
const FILE_MAX: u64 = 1 << 20;
const FILE: &str = "hosts.toml";

/// A place to pull from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Scheme, authority, and what stands before `/v2/` or takes its place.
    pub base: Uri,
    /// With `override_path` nothing is put behind the path that was given.
    pub has_own_path: bool,
    pub can_resolve: bool,
    pub can_pull: bool,
    pub is_mirror: bool,
    pub trust: Server,
    pub headers: Vec<(String, String)>,
}

/// How a host proves who it is, and we to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Server {
    /// Files with root certificates, beside those of the machine.
    pub roots: Vec<PathBuf>,
    /// Certificates and their keys.
    pub identities: Vec<(PathBuf, Option<PathBuf>)>,
    pub skip_verify: bool,
    /// It may speak plain HTTP: only on this machine itself.
    pub may_be_plain: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {why}", .file.display())]
pub struct BadHosts {
    pub file: PathBuf,
    pub why: String,
}

#[derive(Deserialize)]
struct File {
    server: Option<String>,
    #[serde(default)]
    host: toml::Table,
    #[serde(flatten)]
    own: Fields,
}

#[derive(Clone, Default, Deserialize)]
struct Fields {
    capabilities: Option<Vec<String>>,
    #[serde(default)]
    ca: OneOrMore,
    #[serde(default)]
    client: Client,
    #[serde(default)]
    skip_verify: bool,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: BTreeMap<String, OneOrMore>,
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Client {
    /// Certificate and key in one file.
    One(String),
    More(Vec<OneOrMore>),
}

/// What to try for the images of `registry`, in this order. The registry itself is last.
pub(crate) fn hosts(dir: Option<&Path>, registry: &str) -> Result<Vec<Host>, BadHosts> {
    for candidate in dir.into_iter().flat_map(|dir| directories(dir, registry)) {
        let file = candidate.join(FILE);
        match read(&file) {
            Ok(Some(text)) => {
                return parse(&text, registry, &candidate).map_err(|why| BadHosts { file, why });
            }
            Ok(None) => {}
            Err(error) => return Err(BadHosts { file, why: error.to_string() }),
        }
    }
    Ok(vec![Host::of(registry).map_err(|why| BadHosts { file: PathBuf::from(registry), why })?])
}

/// A colon is no character for the name of a directory everywhere.
fn directories(dir: &Path, registry: &str) -> Vec<PathBuf> {
    let without_colon = registry.rsplit_once(':').map(|(host, port)| format!("{host}_{port}_"));
    let names = without_colon.into_iter().chain([registry.to_owned(), "_default".to_owned()]);
    names.map(|name| dir.join(name)).collect()
}

fn read(file: &Path) -> std::io::Result<Option<String>> {
    use std::io::Read;
    let opened = match std::fs::File::open(file) {
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        other => other?,
    };
    let mut text = String::new();
    opened.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(Some(text))
}

fn parse(text: &str, registry: &str, dir: &Path) -> Result<Vec<Host>, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string().trim_end().to_owned())?;
    let mut hosts = Vec::new();
    for (name, fields) in file.host {
        let shown = without_login(&name);
        let wrong = |why: String| format!("host.{shown:?}: {why}");
        let fields: Fields = fields.try_into().map_err(|e| wrong(e.to_string().trim_end().to_owned()))?;
        let host = Host::at(&name).map_err(wrong)?;
        hosts.push(fields.host(host, dir, true).map_err(wrong)?);
    }
    let own = match &file.server {
        Some(server) => Host::at(server).map_err(|why| format!("server: {why}"))?,
        None => Host::of(registry)?,
    };
    hosts.push(file.own.host(own, dir, false)?);
    Ok(hosts)
}

/// Somebody may have written a password where none belongs.
fn without_login(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("https", url));
    format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest))
}

// === impl Host ===

impl Host {
    /// The registry itself, nothing being said about it.
    fn of(registry: &str) -> Result<Host, String> {
        // The name of the images is not the name of the machine.
        let mut host = Host::at(if registry == "docker.io" { "registry-1.docker.io" } else { registry })?;
        host.trust.may_be_plain = host.is_this_machine();
        Ok(host)
    }

    fn at(text: &str) -> Result<Host, String> {
        let text = if text.contains("://") { text.to_owned() } else { format!("https://{text}") };
        let shown = without_login(&text);
        let base: Uri = text.trim_end_matches('/').parse().map_err(|_| format!("{shown:?} is no URL"))?;
        if !matches!(base.scheme_str(), Some("http" | "https")) || base.authority().is_none() {
            return Err(format!("{shown:?} is no http or https URL"));
        }
        if base.authority().is_some_and(|authority| authority.as_str().contains('@'))
            || base.query().is_some()
        {
            return Err("a URL without a login and without a query is wanted".into());
        }
        Ok(Host {
            base,
            has_own_path: false,
            can_resolve: true,
            can_pull: true,
            is_mirror: false,
            trust: Server::default(),
            headers: Vec::new(),
        })
    }

    fn is_this_machine(&self) -> bool {
        let host = self.base.host().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The URL of something below `repository`; a mirror is told whose it is.
    pub(crate) fn url(&self, repository: &str, rest: &str, registry: &str) -> String {
        let path = self.base.path().trim_end_matches('/');
        let v2 = if self.has_own_path || path.ends_with("/v2") { "" } else { "/v2" };
        let of = if self.is_mirror { format!("?ns={registry}") } else { String::new() };
        let (scheme, authority) = (self.base.scheme_str().unwrap_or("https"), self.name());
        format!("{scheme}://{authority}{path}{v2}/{repository}/{rest}{of}")
    }

    pub(crate) fn name(&self) -> &str {
        self.base.authority().map_or("", |authority| authority.as_str())
    }
}

// === impl Fields ===

impl Fields {
    fn host(self, mut host: Host, dir: &Path, is_mirror: bool) -> Result<Host, String> {
        if let Some(known) = &self.capabilities {
            if let Some(odd) =
                known.iter().find(|c| !matches!(c.as_str(), "pull" | "resolve" | "push" | "referrers"))
            {
                return Err(format!("capabilities: {odd:?} is none of pull, resolve, push"));
            }
            host.can_pull = known.iter().any(|c| c == "pull");
            host.can_resolve = known.iter().any(|c| c == "resolve");
        }
        host.is_mirror = is_mirror;
        host.has_own_path = self.override_path;
        host.trust.skip_verify = self.skip_verify;
        host.trust.roots = self.ca.all().map(|file| dir.join(file)).collect();
        host.trust.identities = self.client.pairs(dir)?;
        for (name, values) in &self.header {
            host.headers.extend(values.all().map(|value| (name.clone(), value.to_owned())));
        }
        Ok(host)
    }
}

// === impl OneOrMore ===

impl OneOrMore {
    fn all(&self) -> impl Iterator<Item = &str> {
        let all = match self {
            OneOrMore::One(one) => std::slice::from_ref(one),
            OneOrMore::More(more) => more,
        };
        all.iter().map(String::as_str)
    }
}

impl Default for OneOrMore {
    fn default() -> OneOrMore {
        OneOrMore::More(Vec::new())
    }
}

// === impl Client ===

impl Client {
    fn pairs(&self, dir: &Path) -> Result<Vec<(PathBuf, Option<PathBuf>)>, String> {
        let more = match self {
            Client::One(one) => return Ok(vec![(dir.join(one), None)]),
            Client::More(more) => more,
        };
        more.iter()
            .map(|entry| match entry.all().collect::<Vec<_>>()[..] {
                [both] => Ok((dir.join(both), None)),
                [certificate, ""] => Ok((dir.join(certificate), None)),
                [certificate, key] => Ok((dir.join(certificate), Some(dir.join(key)))),
                _ => Err("client: a certificate and its key are wanted".to_owned()),
            })
            .collect()
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::More(Vec::new())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn urls(text: &str, registry: &str) -> Vec<String> {
        let hosts = parse(text, registry, Path::new("/certs")).unwrap();
        hosts.iter().map(|host| host.url("a/b", "manifests/v1", registry)).collect()
    }

    #[test]
    fn mirrors_come_in_the_order_they_are_written_in_and_the_registry_last() {
        let text = r#"
            server = "https://registry.example"
            [host."https://zulu.example"]
              capabilities = ["pull", "resolve"]
            [host."http://alpha.example:5000/prefix"]
            [host."https://own.example/v2/mirror"]
              override_path = true
        "#;
        assert_eq!(
            urls(text, "docker.io"),
            [
                "https://zulu.example/v2/a/b/manifests/v1?ns=docker.io",
                "http://alpha.example:5000/prefix/v2/a/b/manifests/v1?ns=docker.io",
                "https://own.example/v2/mirror/a/b/manifests/v1?ns=docker.io",
                "https://registry.example/v2/a/b/manifests/v1",
            ]
        );
        assert_eq!(urls("", "docker.io"), ["https://registry-1.docker.io/v2/a/b/manifests/v1"]);
        assert_eq!(urls("", "host:5000"), ["https://host:5000/v2/a/b/manifests/v1"]);
    }

    #[test]
    fn trust_and_headers_are_read_in_every_form() {
        let text = r#"
            ca = "roots.pem"
            skip_verify = true
            [header]
              x-one = "1"
              x-two = ["2", "3"]
            [host."https://m"]
              capabilities = ["resolve"]
              ca = ["/a.pem", "b.pem"]
              client = [["c.pem", "c.key"], ["both.pem", ""]]
        "#;
        let hosts = parse(text, "r.example", Path::new("/certs")).unwrap();
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(hosts[0].trust.roots, paths(&["/a.pem", "/certs/b.pem"]));
        assert_eq!(
            hosts[0].trust.identities,
            [("/certs/c.pem".into(), Some("/certs/c.key".into())), ("/certs/both.pem".into(), None)]
        );
        assert_eq!((hosts[0].can_resolve, hosts[0].can_pull), (true, false));
        assert_eq!((hosts[1].trust.skip_verify, hosts[1].headers.len()), (true, 3));
        assert_eq!(hosts[1].trust.roots, paths(&["/certs/roots.pem"]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, want) in [
            ("server = 3", "server"),
            ("[host.\"ftp://x\"]", "host.\"ftp://x\""),
            ("[host.\"https://user:secret@x\"]", "without a login"),
            ("[host.\"https://x\"]\ncapabilities = [\"fly\"]", "\"fly\" is none of"),
            ("[host.\"https://x\"]\nclient = [[\"a\", \"b\", \"c\"]]", "a certificate and its key"),
            ("nonsense", "nonsense"),
        ] {
            let why = parse(text, "r", Path::new("/")).unwrap_err();
            assert!(why.contains(want), "{text}: {why}");
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn the_directory_of_a_registry_may_have_no_colon() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, server: &str| {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join(FILE), format!("server = {server:?}")).unwrap();
        };
        let found = |registry: &str| hosts(Some(dir.path()), registry).unwrap()[0].name().to_owned();
        assert_eq!(found("h:5000"), "h:5000");
        put("_default", "https://default");
        assert_eq!((found("h:5000"), found("other")), ("default".into(), "default".into()));
        put("h_5000_", "https://underscored");
        assert_eq!(found("h:5000"), "underscored");
        assert!(hosts(None, "localhost:5000").unwrap()[0].trust.may_be_plain);
        assert!(!hosts(None, "r.example").unwrap()[0].trust.may_be_plain);
    }
}
