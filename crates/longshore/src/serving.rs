//! The secure port of a component of the control plane, from its flags: 10257 of the controllers, 10259 of the scheduler.

use std::path::Path;
use std::sync::Arc;

use api::config::serving::Serving;
use base::time::Clock;
use client::{Client, Config, Options};
use secure_serving::delegated::{self, Delegated};
use secure_serving::pages::{self, Make, Pages};
use secure_serving::{AccessRules, CertSource, Checks, ClientCa, GuardRules, Open, Reviews, Rules, TlsRules};
use tokio_util::sync::CancellationToken;

use crate::agent_cmd;

/// What the port shows.
pub(crate) struct Shown {
    pub(crate) healthz: Checks,
    pub(crate) readyz: Checks,
    pub(crate) metrics: Make,
    pub(crate) configz: Make,
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
    let Shown { healthz, readyz, metrics, configz } = shown;
    let pages = Pages {
        livez: Checks::new(vec![secure_serving::Check::ping()]),
        healthz,
        readyz,
        metrics,
        configz,
        for_everybody: Arc::new(serving.for_everybody.clone()),
        guard: open.guard.clone(),
    };
    if let Ok(address) = open.address() {
        tracing::info!(%address, "Serving securely");
    }
    open.serve(pages, pages::connections(name, Arc::default()), token).await;
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
