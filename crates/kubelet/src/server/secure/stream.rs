//! `/exec`, `/attach`, `/portForward`: the runtime is asked for an address, and the client joined to it.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use cri::v1;
use http::Request;

use super::query::Query;
use super::state::{Found, HttpError, ServerState, Target};
use crate::pods::sources::names;
use streaming::{StreamOptions, What, wants_upgrade};

pub(super) async fn exec(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    request: Request<Body>,
) -> Response {
    let answer = async {
        let query = Query::parse(request.uri().query());
        let wants = wants(&query)?;
        let found = state.find_with(&target)?;
        let container_id = container_id(&state, &found, &target.container).await?;
        let container_id = container_id
            .ok_or_else(|| HttpError::failed(format!("container not found ({:?})", target.container)))?;
        require_upgrade(&request)?;
        let cmd = query.all("command").map(str::to_owned).collect();
        let StreamOptions { stdin, stdout, stderr, tty } = wants;
        let ask = v1::ExecRequest { container_id, cmd, tty, stdin, stdout, stderr };
        let url = state.views.runtime.exec(ask).await.map_err(|e| HttpError::of(&e))?;
        Ok(state.streams.connect(What::Command(wants), &url, request).await)
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

pub(super) async fn attach(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    request: Request<Body>,
) -> Response {
    let answer = async {
        let asked = wants(&Query::parse(request.uri().query()))?;
        let found = state.find_with(&target)?;
        let missing = || {
            let (namespace, name) = names(&found.pod);
            HttpError::failed(format!("container {} not found in pod {name}_{namespace}", target.container))
        };
        // Whether there is a terminal was decided when the container started.
        let spec =
            api::pod::containers(&found.pod).find(|c| c.name() == target.container).ok_or_else(missing)?;
        let tty = spec.tty();
        let container_id = container_id(&state, &found, &target.container).await?.ok_or_else(missing)?;
        require_upgrade(&request)?;
        let wants = StreamOptions { tty, stderr: asked.stderr && !tty, ..asked };
        let StreamOptions { stdin, stdout, stderr, .. } = wants;
        let ask = v1::AttachRequest { container_id, stdin, tty, stdout, stderr };
        let url = state.views.runtime.attach(ask).await.map_err(|e| HttpError::of(&e))?;
        Ok(state.streams.connect(What::Command(wants), &url, request).await)
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

pub(super) async fn port_forward(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    request: Request<Body>,
) -> Response {
    let answer = async {
        let port = ports(&request)?;
        let found = state.find_with(&target)?;
        let pod_sandbox_id = sandbox_id(&state, &found).await?;
        require_upgrade(&request)?;
        let ask = v1::PortForwardRequest { pod_sandbox_id, port };
        let url = state.views.runtime.port_forward(ask).await.map_err(|e| HttpError::of(&e))?;
        Ok(state.streams.connect(What::Ports, &url, request).await)
    };
    answer.await.unwrap_or_else(HttpError::into_response)
}

fn wants(query: &Query) -> Result<StreamOptions, HttpError> {
    whole(query)?;
    let on = |name: &str| query.get(name) == Some("1");
    let tty = on("tty");
    // A terminal has one output.
    let wants = StreamOptions { tty, stdin: on("input"), stdout: on("output"), stderr: on("error") && !tty };
    if !wants.stdin && !wants.stdout && !wants.stderr {
        return Err(HttpError::bad("you must specify at least 1 of stdin, stdout, stderr"));
    }
    Ok(wants)
}

/// A command of which a word is missing is another command.
pub(super) fn whole(query: &Query) -> Result<(), HttpError> {
    query.left_out().map_or(Ok(()), |what| Err(HttpError::bad(what)))
}

/// Ports that a WebSocket client must name in advance; with SPDY every stream names its own.
fn ports(request: &Request<Body>) -> Result<Vec<i32>, HttpError> {
    let websocket = request
        .headers()
        .get(http::header::UPGRADE)
        .is_some_and(|v| v.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let tunnelled = request.headers().get_all("sec-websocket-protocol").iter();
    let tunnelled = tunnelled.filter_map(|v| v.to_str().ok()).any(|v| v.contains("SPDY/3.1+"));
    if !websocket || tunnelled {
        return Ok(Vec::new());
    }
    let query = Query::parse(request.uri().query());
    let mut ports = Vec::new();
    for text in query.all("port") {
        if text.is_empty() {
            return Err(HttpError::bad("query parameter \"port\" cannot be empty"));
        }
        for one in text.split(',') {
            match parse_port(one) {
                Ok(0) => return Err(HttpError::bad(format!("port {text:?} must be > 0"))),
                Ok(port) => ports.push(i32::from(port)),
                Err(why) => {
                    let why = format!("strconv.ParseUint: parsing {one:?}: {why}");
                    return Err(HttpError::bad(format!("unable to parse {text:?} as a port: {why}")));
                }
            }
        }
    }
    match ports.is_empty() {
        true => Err(HttpError::bad("query parameter \"port\" is required")),
        false => Ok(ports),
    }
}

/// A number as Go reads it: digits and nothing else.
fn parse_port(text: &str) -> Result<u16, &'static str> {
    match !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().map_err(|_| "value out of range"),
        false => Err("invalid syntax"),
    }
}

fn require_upgrade(request: &Request<Body>) -> Result<(), HttpError> {
    match wants_upgrade(request.headers()) {
        true => Ok(()),
        false => Err(HttpError::failed("Upgrade request required\n")),
    }
}

async fn container_id(
    state: &ServerState,
    found: &Found,
    container: &str,
) -> Result<Option<String>, HttpError> {
    state.running(found, container).await.map_err(|e| HttpError::of(&e))
}

/// The newest sandbox of the Pod that is up.
async fn sandbox_id(state: &ServerState, found: &Found) -> Result<String, HttpError> {
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let label_selector = BTreeMap::from([("io.kubernetes.pod.uid".to_owned(), found.uid().to_owned())]);
    let filter = v1::PodSandboxFilter { state: Some(ready), label_selector, ..Default::default() };
    let all = state.views.runtime.list_pod_sandboxes(Some(filter)).await.map_err(|e| HttpError::of(&e))?;
    let (namespace, name) = names(&found.pod);
    let newest = all.into_iter().max_by_key(|s| s.created_at).map(|s| s.id);
    newest.ok_or_else(|| HttpError::failed(format!("pod not found (\"{name}_{namespace}\")")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_has_one_output_and_something_must_be_wanted() {
        let read = |text: &str| wants(&Query::parse(Some(text))).map_err(|r| r.1);
        let all = StreamOptions { stdin: true, stdout: true, stderr: true, tty: false };
        assert_eq!(read("input=1&output=1&error=1").unwrap(), all);
        assert_eq!(
            read("input=1&output=1&error=1&tty=1").unwrap(),
            StreamOptions { tty: true, stderr: false, ..all }
        );
        for none in ["", "tty=1", "input=true", "error=1&tty=1"] {
            assert_eq!(read(none).unwrap_err(), "you must specify at least 1 of stdin, stdout, stderr");
        }
    }

    #[test]
    fn only_plain_websockets_name_their_ports_in_advance() {
        let ask = |protocol: &str, upgrade: &str, query: &str| {
            let request = Request::builder()
                .uri(format!("/portForward/ns/p?{query}"))
                .header("upgrade", upgrade)
                .header("sec-websocket-protocol", protocol);
            ports(&request.body(Body::empty()).unwrap()).map_err(|r| (r.0.as_u16(), r.1))
        };
        assert!(ask("", "SPDY/3.1", "").unwrap().is_empty());
        assert!(ask("SPDY/3.1+portforward.k8s.io", "websocket", "").unwrap().is_empty());
        assert_eq!(ask("v4.channel.k8s.io", "websocket", "port=80,443&port=1").unwrap(), [80, 443, 1]);
        let unread = |all: &str, one: &str, why: &str| {
            format!("unable to parse {all:?} as a port: strconv.ParseUint: parsing {one:?}: {why}")
        };
        let rows = [
            ("", "query parameter \"port\" is required".to_owned()),
            ("port=", "query parameter \"port\" cannot be empty".to_owned()),
            ("port=80&port=", "query parameter \"port\" cannot be empty".to_owned()),
            ("port=0", "port \"0\" must be > 0".to_owned()),
            ("port=80,0", "port \"80,0\" must be > 0".to_owned()),
            ("port=65536", unread("65536", "65536", "value out of range")),
            ("port=1,x", unread("1,x", "x", "invalid syntax")),
            ("port=1,", unread("1,", "", "invalid syntax")),
            ("port=-1", unread("-1", "-1", "invalid syntax")),
            ("port=%2B1", unread("+1", "+1", "invalid syntax")),
        ];
        for (bad, text) in rows {
            assert_eq!(ask("v4.channel.k8s.io", "WebSocket", bad).unwrap_err(), (400, text), "{bad}");
        }
    }
}
