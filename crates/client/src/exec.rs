//! Exec plugins: a program of the user's that hands out credentials.

use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::kubeconfig::{Config, Exec, Source};

/// A program that takes longer is killed.
const TIMEOUT: Duration = Duration::from_secs(60);
const OUTPUT_MAX: u64 = 1 << 20;
const STDERR_MAX: u64 = 4 << 10;

/// What the program answered.
#[derive(Clone, Default)]
pub(crate) struct Handed {
    pub(crate) token: Option<String>,
    /// PEM of chain and key.
    pub(crate) certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) expires: Option<jiff::Timestamp>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    status: Option<Status>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    token: String,
    client_certificate_data: String,
    client_key_data: String,
    expiration_timestamp: Option<jiff::Timestamp>,
}

/// Runs the program once.
pub(crate) async fn ask(exec: &Exec, config: &Config) -> Result<Handed, String> {
    let name = &exec.command;
    match tokio::time::timeout(TIMEOUT, run(exec, config)).await {
        Ok(Ok(output)) => read(exec, &output).map_err(|why| format!("exec plugin {name}: {why}")),
        Ok(Err(why)) => Err(format!("exec plugin {name}: {why}{}", hint(exec))),
        Err(_) => Err(format!("exec plugin {name}: no answer within {} s", TIMEOUT.as_secs())),
    }
}

async fn run(exec: &Exec, config: &Config) -> Result<Vec<u8>, String> {
    let mut command = tokio::process::Command::new(&exec.command);
    command
        .args(&exec.args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command.envs(exec.env.iter().map(|e| (&e.name, &e.value)));
    command.env("KUBERNETES_EXEC_INFO", info(exec, config).to_string());
    let mut child = command.spawn().map_err(|e| e.to_string())?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("its output cannot be read".to_owned());
    };
    let (output, errors) = tokio::join!(head(stdout, OUTPUT_MAX), head(stderr, STDERR_MAX));
    let status = child.wait().await.map_err(|e| e.to_string())?;
    if status.success() {
        return output.map_err(|e| e.to_string());
    }
    let errors = errors.unwrap_or_default();
    Err(format!("{status}: {}", String::from_utf8_lossy(&errors).trim()))
}

async fn head(from: impl AsyncRead + Unpin, max: u64) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut from = from.take(max);
    from.read_to_end(&mut out).await?;
    // What is beyond the limit is drained, so that the program does not hang on a full pipe.
    tokio::io::copy(from.get_mut(), &mut tokio::io::sink()).await?;
    Ok(out)
}

fn info(exec: &Exec, config: &Config) -> serde_json::Value {
    let mut spec = json!({ "interactive": false });
    if exec.provide_cluster_info {
        let mut cluster = json!({ "server": config.server });
        if let Some(name) = &config.tls_server_name {
            cluster["tls-server-name"] = name.as_str().into();
        }
        if config.insecure {
            cluster["insecure-skip-tls-verify"] = true.into();
        }
        if let Some(Ok(ca)) = config.ca.as_ref().map(Source::read) {
            use base64::Engine;
            cluster["certificate-authority-data"] =
                base64::engine::general_purpose::STANDARD.encode(ca).into();
        }
        if let Some(url) = &exec.cluster.proxy_url {
            cluster["proxy-url"] = url.as_str().into();
        }
        if exec.cluster.disable_compression {
            cluster["disable-compression"] = true.into();
        }
        if let Some(config) = &exec.cluster.config {
            cluster["config"] = config.clone();
        }
        spec["cluster"] = cluster;
    }
    json!({ "apiVersion": exec.api_version, "kind": "ExecCredential", "spec": spec })
}

fn read(exec: &Exec, output: &[u8]) -> Result<Handed, String> {
    let answer: ExecCredential = serde_json::from_slice(output).map_err(|e| format!("its answer: {e}"))?;
    if answer.api_version != exec.api_version {
        return Err(format!("it answers in {}, not in {}", answer.api_version, exec.api_version));
    }
    let status = answer.status.ok_or("its answer has no status")?;
    let certificate = match (status.client_certificate_data.is_empty(), status.client_key_data.is_empty()) {
        (true, true) => None,
        (false, false) => {
            Some((status.client_certificate_data.into_bytes(), status.client_key_data.into_bytes()))
        }
        _ => return Err("it must hand out certificate and key together".to_owned()),
    };
    if status.token.is_empty() && certificate.is_none() {
        return Err("it handed out neither a token nor a certificate".to_owned());
    }
    let token = Some(status.token).filter(|t| !t.is_empty());
    Ok(Handed { token, certificate, expires: status.expiration_timestamp })
}

fn hint(exec: &Exec) -> String {
    if exec.install_hint.is_empty() { String::new() } else { format!("\n{}", exec.install_hint) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_program_learns_of_the_cluster_what_the_kubeconfig_says() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = |asks: bool| {
            format!(
                "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
                 clusters: [{{name: k, cluster: {{server: 'https://a', tls-server-name: name, \
                 certificate-authority-data: Q0E=, proxy-url: 'http://p:3128', disable-compression: true, \
                 extensions: [{{name: other, extension: 1}}, \
                 {{name: client.authentication.k8s.io/exec, extension: {{audience: x}}}}]}}}}]\n\
                 users: [{{name: u, user: {{exec: {{apiVersion: client.authentication.k8s.io/v1, command: plug, \
                 provideClusterInfo: {asks}}}}}}}]\n"
            )
        };
        let told = |asks: bool| {
            std::fs::write(&path, text(asks)).unwrap();
            let config = Config::load(&path).unwrap();
            info(config.identity.exec.as_ref().unwrap(), &config)["spec"].clone()
        };
        let cluster = json!({
            "server": "https://a", "tls-server-name": "name", "certificate-authority-data": "Q0E=",
            "proxy-url": "http://p:3128", "disable-compression": true, "config": {"audience": "x"},
        });
        assert_eq!(told(true), json!({"interactive": false, "cluster": cluster}));
        assert_eq!(told(false), json!({"interactive": false}));
    }
}
