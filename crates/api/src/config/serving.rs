//! The secure port of a component of the control plane, and how it finds out who asks and what that one may: flags that upstream's
//! components share.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use base::duration::GoDuration;
use serde_json::Value;

/// What the flags come to. Nothing in it was looked at on the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    pub address: SocketAddr,
    /// `--tls-cert-file`, `--tls-private-key-file`
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `--cert-dir`: where a certificate is made if none is given. None: in memory.
    pub cert_dir: Option<PathBuf>,
    pub tls_min_version: String,
    pub tls_cipher_suites: Vec<String>,
    pub tls_curve_preferences: Vec<i32>,
    pub client_ca_file: Option<PathBuf>,
    /// `--authentication-kubeconfig`: whom to ask whose a token is. None: tokens are nobody's.
    pub authentication: Option<PathBuf>,
    /// The cluster's client CA is not looked for.
    pub skip_lookup: bool,
    pub token_ttl: Duration,
    /// `--authorization-kubeconfig`: whom to ask what somebody may. None: nothing but what everybody may.
    pub authorization: Option<PathBuf>,
    pub allowed_ttl: Duration,
    pub denied_ttl: Duration,
    pub for_everybody: Vec<String>,
}

/// The flags that are read here.
pub const NAMES: &[&str] = &[
    "authentication-kubeconfig",
    "authentication-skip-lookup",
    "authentication-token-webhook-cache-ttl",
    "authentication-tolerate-lookup-failure",
    "authorization-always-allow-paths",
    "authorization-kubeconfig",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "bind-address",
    "cert-dir",
    "client-ca-file",
    "secure-port",
    "tls-cert-file",
    "tls-cipher-suites",
    "tls-curve-preferences",
    "tls-min-version",
    "tls-private-key-file",
];

// === impl Serving ===

impl Serving {
    /// From parsed flags. None: port 0, nothing is served.
    pub fn read(values: &BTreeMap<&'static str, Value>, port: u16) -> Result<Option<Serving>, String> {
        let text = |name: &str| values.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let path = |name: &str| text(name).map(PathBuf::from);
        let list = |name: &str| -> Vec<String> {
            let items = values.get(name).and_then(Value::as_array).into_iter().flatten();
            items
                .filter_map(|item| item.as_str().map(str::to_owned))
                .filter(|item| !item.is_empty())
                .collect()
        };
        let duration = |name: &str| match text(name) {
            None => Ok(Duration::from_secs(10)),
            Some(text) => text
                .parse::<GoDuration>()
                .map(GoDuration::to_std)
                .map_err(|_| format!("--{name}: {text:?} is no duration")),
        };
        let port = match values.get("secure-port").and_then(Value::as_i64) {
            None => port,
            Some(said) => u16::try_from(said)
                .map_err(|_| format!("--secure-port: {said} must be between 0 and 65535, inclusive"))?,
        };
        if port == 0 {
            return Ok(None);
        }
        let ip = text("bind-address").unwrap_or("0.0.0.0");
        let ip: IpAddr = ip.parse().map_err(|_| format!("--bind-address: {ip:?} is no address"))?;
        let certificate = match (path("tls-cert-file"), path("tls-private-key-file")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err("--tls-cert-file and --tls-private-key-file must be given together".to_owned()),
        };
        let curves = list("tls-curve-preferences");
        let curves: Result<Vec<i32>, _> = curves.iter().map(|curve| curve.parse::<i32>()).collect();
        let usual = ["/healthz", "/readyz", "/livez"].map(str::to_owned).to_vec();
        let open = if values.contains_key("authorization-always-allow-paths") {
            list("authorization-always-allow-paths")
        } else {
            usual
        };
        Ok(Some(Serving {
            address: SocketAddr::new(ip, port),
            certificate,
            cert_dir: path("cert-dir"),
            tls_min_version: text("tls-min-version").unwrap_or_default().to_owned(),
            tls_cipher_suites: list("tls-cipher-suites"),
            tls_curve_preferences: curves
                .map_err(|_| "--tls-curve-preferences: must be numbers of key exchanges".to_owned())?,
            client_ca_file: path("client-ca-file"),
            authentication: path("authentication-kubeconfig"),
            skip_lookup: values.get("authentication-skip-lookup") == Some(&Value::Bool(true)),
            token_ttl: duration("authentication-token-webhook-cache-ttl")?,
            authorization: path("authorization-kubeconfig"),
            allowed_ttl: duration("authorization-webhook-cache-authorized-ttl")?,
            denied_ttl: duration("authorization-webhook-cache-unauthorized-ttl")?,
            for_everybody: open,
        }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_port_is_upstreams_unless_something_else_is_said() {
        let read = |flags: &[(&'static str, Value)]| Serving::read(&flags.iter().cloned().collect(), 10257);
        let usual = read(&[]).unwrap().unwrap();
        assert_eq!(usual.address.to_string(), "0.0.0.0:10257");
        assert_eq!(usual.for_everybody, ["/healthz", "/readyz", "/livez"]);
        assert_eq!((usual.token_ttl, usual.certificate), (Duration::from_secs(10), None));
        assert_eq!(read(&[("secure-port", json!(0))]), Ok(None));
        let said = read(&[
            ("bind-address", json!("127.0.0.1")),
            ("secure-port", json!(1)),
            ("authorization-always-allow-paths", json!(["/metrics"])),
        ]);
        let said = said.unwrap().unwrap();
        assert_eq!(
            (said.address.to_string().as_str(), &said.for_everybody[..]),
            ("127.0.0.1:1", &["/metrics".to_owned()][..])
        );
        for (flag, value, want) in [
            ("secure-port", json!(70000), "--secure-port: 70000 must be between 0 and 65535, inclusive"),
            ("bind-address", json!("here"), "--bind-address: \"here\" is no address"),
            (
                "tls-cert-file",
                json!("/a"),
                "--tls-cert-file and --tls-private-key-file must be given together",
            ),
            (
                "tls-curve-preferences",
                json!(["x"]),
                "--tls-curve-preferences: must be numbers of key exchanges",
            ),
        ] {
            assert_eq!(read(&[(flag, value)]).unwrap_err(), want);
        }
    }
}
