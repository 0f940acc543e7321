//! The flags of `longshore join`: those of `up` that are of the machine, and how kubeadm names a cluster.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::Ipv6Addr;

use base::flags::{self, Flag, FlagError, FlagType};
use serde_json::Value;

use super::up::{self, Up};

/// Parts of a node that `--disable` may name here.
pub const PARTS: &[&str] = &["kube-proxy", "overlay"];

/// Where API servers listen.
const PORT: u16 = 6443;

const OWN: &[Flag] = &[
    Flag::new(
        "token",
        FlagType::Text,
        "",
        "The token that lets this machine in: ID.SECRET. Not needed once it has joined.",
    ),
    Flag::new(
        "discovery-token-ca-cert-hash",
        FlagType::List,
        "",
        "The public key of the cluster's authority: sha256:HEX. Repeatable; one has to fit.",
    ),
    Flag::new(
        "discovery-token-unsafe-skip-ca-verification",
        FlagType::Bool,
        "false",
        "Join without knowing the public key of the authority: whoever has the token could be the cluster.",
    ),
    Flag::new("disable", FlagType::List, "", "Parts not to run: kube-proxy, overlay."),
];

const OF_UP: &[&str] = &[
    "data-dir",
    "state-dir",
    "config",
    "node-name",
    "node-ip",
    "container-runtime-endpoint",
    "containerd",
    "embedded-runtime",
    "cni-bin-dir",
    "pause-image",
    "stop-pods",
    "v",
    "logging-format",
    "help",
    "version",
];

/// What a command line says. Nothing in it was looked at on the machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Join {
    /// `host:port` of an API server.
    pub server: Option<String>,
    pub token: Option<Token>,
    /// SHA-256 of public keys.
    pub pins: Vec<[u8; 32]>,
    pub trusts_anybody: bool,
    pub up: Up,
}

#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub id: String,
    pub secret: String,
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Asked {
    Join(Box<Join>),
    Help,
    Version,
}

/// Every flag.
#[must_use]
pub fn table() -> Vec<Flag> {
    let of_up = up::FLAGS.iter().filter(|flag| OF_UP.contains(&flag.name));
    OWN.iter().chain(of_up).copied().collect()
}

/// Reads the arguments; tells every mistake.
pub fn read(args: &[OsString]) -> Result<Asked, Vec<String>> {
    let (values, words) = parse(args)?;
    let said = |name: &str| values.get(name) == Some(&Value::Bool(true));
    if said("help") {
        return Ok(Asked::Help);
    }
    if said("version") {
        return Ok(Asked::Version);
    }
    join(&values, &words).map(|join| Asked::Join(Box::new(join))).map_err(|mistake| vec![mistake])
}

type Values = BTreeMap<&'static str, Value>;

/// Flags, and the words beside them.
fn parse(args: &[OsString]) -> Result<(Values, Vec<String>), Vec<String>> {
    let table = table();
    let (mut args, mut words) = (args.to_vec(), Vec::new());
    loop {
        let mistakes = match flags::parse(&table, args.iter().cloned()) {
            Ok(parsed) => return Ok((parsed.values, words)),
            Err(mistakes) => mistakes,
        };
        let stray = mistakes.iter().find_map(|mistake| match mistake {
            FlagError::Positional(word) => args.iter().position(|arg| arg.to_str() == Some(word)),
            _ => None,
        });
        match stray {
            Some(at) => words.push(args.remove(at).to_string_lossy().into_owned()),
            None => return Err(mistakes.iter().map(ToString::to_string).collect()),
        }
    }
}

fn join(values: &Values, words: &[String]) -> Result<Join, String> {
    let server = match words {
        [] => None,
        [server] => Some(address(server)?),
        [_, stray, ..] => return Err(format!("unexpected argument {stray:?}")),
    };
    let list = |name: &str| -> Vec<&str> {
        let items = values.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).collect()
    };
    if let Some(unknown) = list("disable").into_iter().find(|name| !PARTS.contains(name)) {
        return Err(format!("--disable: there is no part {unknown:?}; parts are {}", PARTS.join(", ")));
    }
    let token = values.get("token").and_then(Value::as_str).filter(|text| !text.is_empty());
    let token = token.map(|text| Token::parse(text).map_err(|e| format!("--token: {e}"))).transpose()?;
    let pins: Result<_, String> = list("discovery-token-ca-cert-hash").into_iter().map(pin).collect();
    let (pins, trusts_anybody): (Vec<_>, _) = (
        pins.map_err(|e| format!("--discovery-token-ca-cert-hash: {e}"))?,
        values.get("discovery-token-unsafe-skip-ca-verification") == Some(&Value::Bool(true)),
    );
    if token.is_some() && pins.is_empty() && !trusts_anybody {
        return Err("--discovery-token-ca-cert-hash: not given; `longshore token create` prints the whole line, or say \
                    --discovery-token-unsafe-skip-ca-verification"
            .to_owned());
    }
    if token.is_some() && server.is_none() {
        return Err(
            "the address of the API server is missing: longshore join https://HOST:6443 --token …".to_owned()
        );
    }
    Ok(Join { server, token, pins, trusts_anybody, up: Up::read(values)? })
}

/// `host:port` of what people write: a URL, a host, a host with a port.
fn address(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").unwrap_or(text).trim_end_matches('/');
    let wrong = || format!("{text:?} is no address of an API server: write it as https://HOST:6443");
    if rest.is_empty() || rest.contains(['/', '@', '?', '#', ' ']) {
        return Err(wrong());
    }
    if rest.parse::<Ipv6Addr>().is_ok() {
        return Ok(format!("[{rest}]:{PORT}"));
    }
    match rest.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
            if host.is_empty() || !is_port { Err(wrong()) } else { Ok(rest.to_owned()) }
        }
        _ => Ok(format!("{rest}:{PORT}")),
    }
}

fn pin(text: &str) -> Result<[u8; 32], String> {
    let wrong = || format!("{text:?} is not sha256: and 64 digits of the base 16");
    let digits = text.strip_prefix("sha256:").filter(|digits| digits.len() == 64 && digits.is_ascii());
    let digits = digits.ok_or_else(wrong)?;
    let mut hash = [0; 32];
    for (at, octet) in hash.iter_mut().enumerate() {
        *octet = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}

// === impl Token ===

impl Token {
    /// Six and sixteen lower-case letters and digits.
    pub fn parse(text: &str) -> Result<Token, String> {
        let is_plain = |s: &str, n: usize| {
            s.len() == n && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match text.split_once('.') {
            Some((id, secret)) if is_plain(id, 6) && is_plain(secret, 16) => {
                Ok(Token { id: id.to_owned(), secret: secret.to_owned() })
            }
            // Nearly a token is a secret too, and not repeated.
            _ => Err("it is not six and sixteen lower-case letters or digits with a dot between".to_owned()),
        }
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("id", &self.id).finish_non_exhaustive()
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.id, self.secret)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TOKEN: &str = "--token=abcdef.0123456789abcdef";

    fn hash() -> String {
        format!("--discovery-token-ca-cert-hash=sha256:{}", "0f".repeat(32))
    }

    fn joined(args: &[&str]) -> Result<Join, Vec<String>> {
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        match read(&args)? {
            Asked::Join(join) => Ok(*join),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_line_that_is_printed_is_read_in_any_order() {
        let hash = hash();
        for args in [
            ["https://192.0.2.1:6443", TOKEN, &hash, "--stop-pods"],
            [TOKEN, "--stop-pods", "192.0.2.1:6443", &hash],
            [&hash, TOKEN, "--stop-pods", "192.0.2.1"],
        ] {
            let join = joined(&args).unwrap();
            assert_eq!(join.server.as_deref(), Some("192.0.2.1:6443"), "{args:?}");
            assert_eq!((join.pins, join.up.stop_pods), (vec![[0x0f; 32]], true));
            let token = join.token.unwrap();
            assert_eq!(token.to_string(), "abcdef.0123456789abcdef");
            assert!(!format!("{token:?}").contains("0123456789abcdef"));
        }
        assert_eq!(joined(&[]).unwrap().server, None);
        assert_eq!(joined(&["fd00::1"]).unwrap().server.as_deref(), Some("[fd00::1]:6443"));
        assert_eq!(joined(&["https://[fd00::1]:7443/"]).unwrap().server.as_deref(), Some("[fd00::1]:7443"));
    }

    #[test]
    fn what_is_wrong_is_told_and_no_secret_with_it() {
        for (args, want) in [
            (&["x", TOKEN][..], "--discovery-token-ca-cert-hash: not given"),
            (&["x", "--token=abc.def"], "--token: it is not six and sixteen"),
            (&["x", "y"], "unexpected argument \"y\""),
            (&["http://x"], "is no address of an API server"),
            (&["x:0"], "is no address of an API server"),
            (&["x", "--discovery-token-ca-cert-hash=sha256:ab"], "is not sha256: and 64 digits"),
            (&["x", "--disable=dns"], "there is no part \"dns\"; parts are kube-proxy, overlay"),
            (
                &[TOKEN, "--discovery-token-unsafe-skip-ca-verification"],
                "the address of the API server is missing",
            ),
            (&["x", "--cluster-cidr=10.0.0.0/8"], "unknown flag"),
        ] {
            let told = joined(args).unwrap_err().join("; ");
            assert!(told.contains(want) && !told.contains("0123456789abcdef"), "{args:?}: {told}");
        }
    }
}
