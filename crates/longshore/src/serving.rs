//! The secure port of a component of the control plane, from its flags: 10257 of the controllers, 10259 of the scheduler.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::path::Path;
use std::sync::Arc;

use api::config::serving::Serving;
use api::zpages::Component;
use base::flags::Flag;
use base::metrics::{MetricType, Text};
use base::time::Clock;
use client::{Client, Config, Options};
use jiff::Timestamp;
use secure_serving::delegated::{self, Delegated};
use secure_serving::pages::{self, About, Make, Pages};
use secure_serving::{AccessRules, CertSource, Checks, ClientCa, GuardRules, Open, Reviews, Rules, TlsRules};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{KUBERNETES, agent_cmd};

/// What the port shows.
pub(crate) struct Shown {
    pub(crate) healthz: Checks,
    pub(crate) readyz: Checks,
    pub(crate) metrics: Make,
    /// Further pages of metrics, by their path.
    pub(crate) more: Vec<(&'static str, Make)>,
    pub(crate) configz: Make,
    /// As `flags_in_force` has them.
    pub(crate) flags: BTreeMap<String, String>,
}

/// What `/statusz` names.
const PATHS: &[&str] = &["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/readyz"];

/// Every flag with the value that counts, as `/flagz` shows them.
pub(crate) fn flags_in_force(
    table: &[Flag],
    said: &BTreeMap<&'static str, Value>,
) -> BTreeMap<String, String> {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(all) => {
            let words = all.iter().map(|one| one.as_str().map_or_else(|| one.to_string(), str::to_owned));
            format!("[{}]", words.collect::<Vec<_>>().join(","))
        }
        Value::Object(all) => all.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    let value = |flag: &Flag| said.get(flag.name).map_or_else(|| flag.default.to_owned(), word);
    table.iter().map(|flag| (flag.name.to_owned(), value(flag))).collect()
}

/// Takes the port; a conflict or a bad certificate is known before anything else starts.
pub(crate) async fn open(
    name: &'static str,
    serving: &Serving,
    clock: Arc<dyn Clock>,
) -> Result<Open, String> {
    let authentication = client(serving.authentication.as_deref(), name).await?;
    let authorization = client(serving.authorization.as_deref(), name).await?;
    let client_ca = client_ca(serving, authentication.as_ref()).await;
    let rules = Rules {
        what: name,
        address: serving.address,
        certificate: certificate(name, serving),
        tls: TlsRules {
            min_version: serving.tls_min_version.clone(),
            suites: serving.tls_cipher_suites.clone(),
            curves: serving.tls_curve_preferences.clone(),
        },
        guard: GuardRules {
            client_ca,
            anonymous: true,
            tokens: authentication.is_some().then_some(serving.token_ttl),
            access: Some(AccessRules { allowed_for: serving.allowed_ttl, denied_for: serving.denied_ttl }),
        },
    };
    let reviews: Arc<dyn Reviews> = Arc::new(Delegated::new(authentication, authorization));
    secure_serving::open(rules, Some(reviews), clock).await.map_err(|e| e.to_string())
}

/// Serves until cancelled.
pub(crate) async fn serve(
    name: &'static str,
    serving: &Serving,
    open: Open,
    shown: Shown,
    token: CancellationToken,
) {
    let Shown { healthz, readyz, metrics, more, configz, flags } = shown;
    let about = About {
        component: Component { name, paths: PATHS },
        flags,
        version: KUBERNETES.to_owned(),
        started: Timestamp::now(),
    };
    let metrics: Make = Arc::new(move || {
        let mut out = metrics();
        // Writing to a String cannot fail.
        let _ = write_build(&mut out).and_then(|()| sys::process::write_process(&mut out));
        out
    });
    let pages = Pages {
        livez: Checks::new(vec![secure_serving::Check::ping()]),
        healthz,
        readyz,
        metrics,
        more,
        configz,
        about,
        for_everybody: Arc::new(serving.for_everybody.clone()),
        guard: open.guard.clone(),
    };
    if let Ok(address) = open.address() {
        tracing::info!(%address, "Serving securely");
    }
    open.serve(pages, pages::connections(name, Arc::default()), token).await;
}

/// `kubernetes_build_info`, as every component has it.
fn write_build(out: &mut dyn Write) -> fmt::Result {
    const NAME: &str = "kubernetes_build_info";
    let mut numbers = KUBERNETES.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
    let labels = [
        ("build_date", ""),
        ("compiler", "rustc"),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("git_version", KUBERNETES),
        ("go_version", ""),
        ("major", major),
        ("minor", minor),
        ("platform", &platform),
    ];
    let mut text = Text::new(out);
    text.header(NAME, MetricType::Gauge, "Always 1; the labels say what was built, from what and how.")?;
    text.sample(NAME, &labels, 1.0, None)
}

fn certificate(name: &'static str, serving: &Serving) -> CertSource {
    let host = agent_cmd::hostname();
    match (&serving.certificate, &serving.cert_dir) {
        (Some((cert, key)), _) => CertSource::Files { cert: cert.clone(), key: key.clone() },
        (None, Some(dir)) => CertSource::SelfSigned { dir: dir.clone(), name, host },
        (None, None) => CertSource::InMemory { host },
    }
}

async fn client(kubeconfig: Option<&Path>, name: &str) -> Result<Option<Client>, String> {
    let Some(path) = kubeconfig else { return Ok(None) };
    let config = Config::load(path).map_err(|e| e.to_string())?;
    let options = Options { user_agent: format!("{name}/delegated"), ..Options::default() };
    Client::new(config, options).await.map(Some).map_err(|e| e.to_string())
}

/// Whose client certificates are believed: a file's, or what the cluster publishes. Where it cannot be asked, nobody's: tokens
/// are still good.
async fn client_ca(serving: &Serving, client: Option<&Client>) -> ClientCa {
    if let Some(file) = &serving.client_ca_file {
        return ClientCa::File(file.clone());
    }
    let Some(client) = client.filter(|_| !serving.skip_lookup) else { return ClientCa::Nobodys };
    match delegated::client_ca(client).await {
        Ok(Some(text)) => ClientCa::Text(text),
        Ok(None) => ClientCa::Nobodys,
        Err(error) => {
            tracing::warn!(%error, "the cluster's client CA is not known; client certificates are nobody's");
            ClientCa::Nobodys
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_shown_as_it_is_in_force() {
        let said = BTreeMap::from([
            ("kubeconfig", Value::from("/k")),
            ("leader-elect", Value::Bool(false)),
            ("controllers", serde_json::json!(["*", "-job"])),
        ]);
        let flags = flags_in_force(api::config::controllers::FLAGS, &said);
        assert_eq!(flags.len(), api::config::controllers::FLAGS.len());
        for (name, value) in [
            ("kubeconfig", "/k"),
            ("leader-elect", "false"),
            ("controllers", "[*,-job]"),
            ("node-monitor-period", "5s"),
        ] {
            assert_eq!(flags[name], value, "{name}");
        }
    }

    #[test]
    fn the_build_is_told_in_one_line() {
        let mut out = String::new();
        assert!(write_build(&mut out).is_ok());
        assert!(out.contains("major=\"1\",minor=\"36\"") && out.ends_with(" 1\n"), "{out}");
    }
}
