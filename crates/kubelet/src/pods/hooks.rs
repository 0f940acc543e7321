//! Lifecycle hooks: postStart and preStop.
//!
//! A hook has no time limit of its own; dropping the future ends it.

use base::class::{Class, Classify};
use base::ids::ContainerId;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};
use kubelet_core::cri_config::metadata::describe;
use std::time::Duration;

use crate::host::net::PLAIN_HTTP_ANSWER;
use crate::pods::prober::resolve_port;
use crate::ports::{HttpGet, Net, NetError, Runtime};

/// Bytes of a command's output that an error shows.
const OUTPUT_LIMIT: usize = 10 * 1024;

/// Where a hook runs, and with what.
pub struct Call<'a> {
    pub pod: &'a Pod,
    pub container: &'a str,
    pub id: &'a ContainerId,
    pub pod_ip: Option<&'a str>,
    pub runtime: &'a dyn Runtime,
    pub net: &'a dyn Net,
}

/// A hook that failed, in the words of the container's status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    #[error(
        "Exec lifecycle hook ([{}]) for Container {container:?} in Pod {pod:?} failed - error: {error}, message: {output:?}",
        command.join(" ")
    )]
    Exec { command: Vec<String>, container: String, pod: String, error: String, output: String },
    #[error(
        "HTTP lifecycle hook ({path}) for Container {container:?} in Pod {pod:?} failed - error: {error}"
    )]
    Http { path: String, container: String, pod: String, error: String },
    #[error("Cannot run handler: invalid handler")]
    Invalid,
}

/// A hook that did its work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// It was meant for HTTPS, and this host answered it over plain HTTP.
    pub fell_back: Option<String>,
}

/// Runs a hook to its end.
pub async fn run(hook: &LifecycleHandler, call: &Call<'_>) -> Result<Done, HookError> {
    if let Some(exec) = &hook.exec {
        return run_exec(exec.command.clone().unwrap_or_default(), call).await.map(|()| Done::default());
    }
    if let Some(http) = &hook.http_get {
        return run_http(http, call).await.map_err(|error| HookError::Http {
            path: http.path.clone().unwrap_or_default(),
            container: call.container.to_owned(),
            pod: describe(call.pod),
            error,
        });
    }
    if let Some(sleep) = &hook.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default())).await;
        return Ok(Done::default());
    }
    // A tcpSocket is accepted by the API and has never worked.
    Err(HookError::Invalid)
}

async fn run_exec(command: Vec<String>, call: &Call<'_>) -> Result<(), HookError> {
    let answer = call.runtime.exec_sync(call.id.as_str(), command.clone(), Duration::ZERO).await;
    let (error, output) = match answer {
        Ok(answer) if answer.exit_code == 0 => return Ok(()),
        Ok(answer) => {
            let shown =
                |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(OUTPUT_LIMIT)]).into_owned();
            let (words, code, errors) = (command.join(" "), answer.exit_code, shown(&answer.stderr));
            (
                format!("command '{words}' exited with {code}: {errors}"),
                shown(&[answer.stdout, answer.stderr].concat()),
            )
        }
        Err(error) => (error.to_string(), String::new()),
    };
    let (container, pod) = (call.container.to_owned(), describe(call.pod));
    Err(HookError::Exec { command, container, pod, error, output })
}

/// Any answer is a success. HTTPS falls back to HTTP when the other side speaks only that; the
/// credentials of the request are then left out.
async fn run_http(action: &HTTPGetAction, call: &Call<'_>) -> Result<Done, String> {
    let mut request = request(action, call)?;
    match call.net.http_get(request.clone()).await {
        Ok(_) => Ok(Done::default()),
        Err(NetError(text)) if request.tls && text.contains(PLAIN_HTTP_ANSWER) => {
            request.tls = false;
            request.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
            let host = format!("{}:{}", request.host, request.port);
            // What counts as the failure is the first one.
            call.net.http_get(request).await.map(|_| Done { fell_back: Some(host) }).map_err(|_| text)
        }
        Err(NetError(text)) => Err(text),
    }
}

fn request(action: &HTTPGetAction, call: &Call<'_>) -> Result<HttpGet, String> {
    let host = action.host.as_deref().filter(|h| !h.is_empty()).or(call.pod_ip);
    let host = host.ok_or("failed to find networking container: the Pod has no IP address")?;
    let blank = Container::default();
    let spec = call.pod.spec.iter();
    let mut all = spec.flat_map(|s| s.init_containers.iter().flatten().chain(&s.containers));
    let container = all.find(|c| c.name == call.container).unwrap_or(&blank);
    let mut headers: Vec<(String, String)> =
        action.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect();
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
        headers.push(("User-Agent".to_owned(), "kube-lifecycle/1.36".to_owned()));
    }
    Ok(HttpGet {
        tls: action.scheme.as_deref().is_some_and(|s| s.eq_ignore_ascii_case("https")),
        host: host.to_owned(),
        port: resolve_port(&action.port, container)?,
        path: action.path.clone().unwrap_or_default(),
        headers,
        timeout: Duration::ZERO,
        follow_redirects: true,
    })
}

// === impl Call ===

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call")
            .field("container", &self.container)
            .field("id", self.id)
            .finish_non_exhaustive()
    }
}

// === impl HookError ===

impl Classify for HookError {
    fn class(&self) -> Class {
        match self {
            HookError::Exec { .. } | HookError::Http { .. } => Class::Retry,
            HookError::Invalid => Class::Reject,
        }
    }
}

#[cfg(test)]
mod tests;
