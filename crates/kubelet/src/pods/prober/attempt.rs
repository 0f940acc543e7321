//! One probe, carried out once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::ids::ContainerId;
use k8s_openapi::api::core::v1::{
    Container, ExecAction, GRPCAction, HTTPGetAction, Pod, Probe, TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kubelet_core::cri_config::{EXPANSION_MAX, expand_words};
use kubelet_core::probe::{Outcome, ProbeSpec};
use kubelet_core::text::go_duration;

use super::Hands;
use crate::ports::{GrpcHealth, HttpGet, NetError};

/// Bytes of output that are looked at and shown.
const OUTPUT_LIMIT: usize = 10 * 1024;

/// What is probed, and how.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) pod: Arc<Pod>,
    pub(super) container: Box<Container>,
    probe: Box<Probe>,
    timeout: Duration,
}

/// The result in one word, and in the words an event shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) outcome: Outcome,
    pub(super) text: String,
}

// === impl Target ===

impl Target {
    pub(super) fn new(pod: Arc<Pod>, container: &Container, spec: ProbeSpec, probe: &Probe) -> Self {
        let (container, probe) = (Box::new(container.clone()), Box::new(probe.clone()));
        Self { pod, container, probe, timeout: spec.timeout }
    }

    pub(super) async fn attempt(&self, hands: &Hands, id: &ContainerId, ip: Option<&str>) -> Said {
        let probe = &self.probe;
        if let Some(exec) = &probe.exec {
            return self.exec(exec, hands, id).await;
        }
        let said = if let Some(http) = &probe.http_get {
            self.http(http, hands, ip).await
        } else if let Some(tcp) = &probe.tcp_socket {
            self.tcp(tcp, hands, ip).await
        } else if let Some(grpc) = &probe.grpc {
            self.grpc(grpc, hands, ip).await
        } else {
            Err("missing probe handler".to_owned())
        };
        said.unwrap_or_else(|text| Said { outcome: Outcome::Error, text })
    }

    /// Only what the manifest itself says is known here: references to other objects are empty.
    fn command(&self, action: &ExecAction) -> Result<Vec<String>, String> {
        let words = action.command.as_deref().unwrap_or_default();
        if !words.iter().any(|word| word.contains('$')) {
            return Ok(words.to_vec());
        }
        let env = self.container.env.iter().flatten();
        let env: BTreeMap<&str, &str> =
            env.map(|e| (e.name.as_str(), e.value.as_deref().unwrap_or_default())).collect();
        expand_words("command", words, EXPANSION_MAX, |name| env.get(name).copied())
    }

    async fn exec(&self, action: &ExecAction, hands: &Hands, id: &ContainerId) -> Said {
        let command = match self.command(action) {
            Ok(command) => command,
            Err(text) => return Said { outcome: Outcome::Error, text },
        };
        let shown = command.join(" ");
        match hands.runtime.exec_sync(id.as_str(), command, self.timeout).await {
            Ok(answer) => {
                let mut output = answer.stdout;
                output.truncate(OUTPUT_LIMIT);
                output.extend_from_slice(
                    &answer.stderr[..answer.stderr.len().min(OUTPUT_LIMIT - output.len())],
                );
                let outcome = if answer.exit_code == 0 { Outcome::Success } else { Outcome::Failure };
                Said { outcome, text: String::from_utf8_lossy(&output).into_owned() }
            }
            Err(error) if error.code == tonic::Code::DeadlineExceeded => {
                let text =
                    format!("command timed out: {shown:?} timed out after {}", go_duration(self.timeout));
                Said { outcome: Outcome::Failure, text }
            }
            Err(error) => Said { outcome: Outcome::Error, text: error.to_string() },
        }
    }

    async fn http(&self, action: &HTTPGetAction, hands: &Hands, ip: Option<&str>) -> Result<Said, String> {
        let headers =
            action.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
        let request = HttpGet {
            tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
            host: host(action.host.as_deref(), ip)?,
            port: port(&action.port, &self.container)?,
            path: action.path.clone().unwrap_or_default(),
            headers,
            timeout: self.timeout,
            follow_redirects: true,
        };
        Ok(match hands.net.http_get(request).await {
            Ok(answer) if answer.foreign_redirect || (300..400).contains(&answer.status) => Said {
                outcome: Outcome::Warning,
                text: format!("Probe terminated redirects, Response body: {}", answer.body),
            },
            Ok(answer) if (200..300).contains(&answer.status) => {
                Said { outcome: Outcome::Success, text: answer.body }
            }
            // The body may hold what is not meant for the Pod's events.
            Ok(answer) => failure(format!("HTTP probe failed with statuscode: {}", answer.status)),
            Err(NetError(text)) => failure(text),
        })
    }

    async fn tcp(&self, action: &TCPSocketAction, hands: &Hands, ip: Option<&str>) -> Result<Said, String> {
        let (host, port) = (host(action.host.as_deref(), ip)?, port(&action.port, &self.container)?);
        Ok(match hands.net.tcp_connect(&host, port, self.timeout).await {
            Ok(()) => Said { outcome: Outcome::Success, text: String::new() },
            Err(NetError(text)) => failure(text),
        })
    }

    async fn grpc(&self, action: &GRPCAction, hands: &Hands, ip: Option<&str>) -> Result<Said, String> {
        let (host, port) = (host(None, ip)?, number(action.port)?);
        let service = action.service.as_deref().unwrap_or_default();
        Ok(match hands.net.grpc_health(&host, port, service, self.timeout).await {
            Ok(GrpcHealth::Serving) => Said { outcome: Outcome::Success, text: "service healthy".to_owned() },
            Ok(GrpcHealth::NotServing(status)) => {
                failure(format!("service unhealthy (responded with {status:?})"))
            }
            Ok(GrpcHealth::Unimplemented(words)) => {
                let what = "this server does not implement the grpc health protocol (grpc.health.v1.Health)";
                failure(format!("error: {what}: {words}"))
            }
            Err(NetError(text)) => failure(text),
        })
    }
}

fn failure(text: String) -> Said {
    Said { outcome: Outcome::Failure, text }
}

/// The host the user names, else the Pod's address.
fn host(own: Option<&str>, ip: Option<&str>) -> Result<String, String> {
    let own = own.filter(|h| !h.is_empty());
    own.or(ip).map(str::to_owned).ok_or_else(|| "the Pod has no IP address yet".to_owned())
}

/// A port number, the name of one of the container's ports, or a number written as text.
pub(crate) fn port(port: &IntOrString, container: &Container) -> Result<u16, String> {
    let name = match port {
        IntOrString::Int(n) => return number(*n),
        IntOrString::String(name) => name,
    };
    let named = container.ports.iter().flatten().find(|p| p.name.as_ref() == Some(name));
    match (named, name.parse()) {
        (Some(port), _) => number(port.container_port),
        (None, Ok(n)) => number(n),
        (None, Err(_)) => Err(format!("couldn't find port: {name:?} in container {:?}", container.name)),
    }
}

fn number(n: i32) -> Result<u16, String> {
    u16::try_from(n).ok().filter(|n| *n > 0).ok_or_else(|| format!("invalid port number: {n}"))
}
