//! A kubeconfig with everything inside.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Pair;

#[must_use]
pub fn kubeconfig(server: &str, ca: &str, user: &str, pair: &Pair) -> String {
    let (ca, certificate, key) =
        (STANDARD.encode(ca), STANDARD.encode(&pair.certificate), STANDARD.encode(&pair.key));
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: longshore
  cluster:
    certificate-authority-data: {ca}
    server: {server}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {user}@longshore
  context:
    cluster: longshore
    user: {user}
current-context: {user}@longshore
"
    )
}
