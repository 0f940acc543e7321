//! Port 10250, as the configuration wants it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use api::config::kubelet::{KubeletConfiguration, Loaded};
use serde_json::Value;

use super::StartError;
use crate::server::secure::{
    About, AccessRules, CertSource, ClientCa, GuardRules, Issued, Rules, Switches, TlsRules,
};

/// The rules of a port that is guarded as 10250 is; none when there shall be none.
///
/// A standalone node whose requests must be reviewed by an API server would refuse everybody. Upstream does not start
/// then; here the port stays closed.
pub(super) fn rules(
    loaded: &Loaded,
    what: &'static str,
    address: SocketAddr,
    node_name: &str,
    issued: Option<Issued>,
    is_standalone: bool,
) -> Result<Option<Rules>, StartError> {
    let config = &loaded.config;
    if is_standalone && config.authorization.mode == "Webhook" {
        tracing::info!(port = what, "the port stays closed: there is no API server to ask who may use it");
        return Ok(None);
    }
    Ok(Some(Rules {
        what,
        address,
        certificate: certificate(loaded, node_name, issued)?,
        tls: TlsRules {
            min_version: config.tls_min_version.clone(),
            suites: config.tls_cipher_suites.clone(),
            curves: config.tls_curve_preferences.clone(),
        },
        guard: guard(config),
    }))
}

fn certificate(loaded: &Loaded, node_name: &str, issued: Option<Issued>) -> Result<CertSource, StartError> {
    let Loaded { config, flags, .. } = loaded;
    let (cert, key) = (&config.tls_cert_file, &config.tls_private_key_file);
    match (cert.is_empty(), key.is_empty(), issued) {
        (false, false, _) => Ok(CertSource::Files { cert: cert.into(), key: key.into() }),
        (true, true, Some(issued)) => Ok(CertSource::Issued(issued)),
        (true, true, None) => Ok(CertSource::SelfSigned {
            dir: PathBuf::from(&flags.cert_dir),
            name: "kubelet",
            host: node_name.to_owned(),
        }),
        _ => Err(StartError::new("tlsCertFile and tlsPrivateKeyFile must be given together")),
    }
}

fn guard(config: &KubeletConfiguration) -> GuardRules {
    let authn = &config.authentication;
    let access = &config.authorization;
    GuardRules {
        client_ca: match authn.x509.client_ca_file.as_str() {
            "" => ClientCa::Nobodys,
            file => ClientCa::File(PathBuf::from(file)),
        },
        anonymous: authn.anonymous.enabled,
        tokens: authn.webhook.enabled.then(|| authn.webhook.cache_ttl.to_std()),
        access: (access.mode == "Webhook").then(|| AccessRules {
            allowed_for: access.webhook.cache_authorized_ttl.to_std(),
            denied_for: access.webhook.cache_unauthorized_ttl.to_std(),
        }),
    }
}

pub(super) fn switches(loaded: &Loaded) -> Switches {
    let Loaded { config, gates, .. } = loaded;
    Switches {
        debugging: config.enable_debugging_handlers,
        system_logs: config.enable_system_log_handler,
        system_log_query: config.enable_system_log_query,
        profiling: config.enable_profiling_handler,
        debug_flags: config.enable_debug_flags_handler,
        checkpoint: gates.enabled("ContainerCheckpoint"),
        split_streams: gates.enabled("PodLogsQuerySplitStreams"),
        flagz: gates.enabled("ComponentFlagz"),
        statusz: gates.enabled("ComponentStatusz"),
    }
}

/// What the kubelet tells of itself.
pub(super) fn about(loaded: &Loaded, version: &str, started: i64) -> Arc<About> {
    let flags = serde_json::to_value(&loaded.flags).unwrap_or_default();
    let shown = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let flags = flags.as_object().into_iter().flatten();
    let flags = flags.map(|(name, value)| (name.clone(), shown(value))).collect();
    Arc::new(About { version: version.to_owned(), started, flags })
}
