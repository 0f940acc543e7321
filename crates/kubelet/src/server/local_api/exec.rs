//! Running a command in a container.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use cri::v1;
use http::Request;
use k8s_openapi::api::core::v1::Pod;

use super::logs::{container_name, status};
use super::{ApiError, LocalApi, frames};
use crate::pods::sources::names;
use crate::server::secure::Query;
use streaming::{StreamOptions, What, wants_upgrade};

impl LocalApi {
    /// Runs the command to its end and returns its output and exit code as frames.
    pub(super) async fn exec(
        &self,
        pod: &Pod,
        container: Option<&str>,
        command: Vec<String>,
    ) -> Result<Vec<Bytes>, ApiError> {
        if command.is_empty() {
            return Err(ApiError::Bad("you must specify at least one command for the container".to_owned()));
        }
        let container = container_name(pod, container)?;
        let id = running_id(pod, &container)?;
        match self.runtime.exec_sync(&id, command, Duration::ZERO).await {
            Ok(done) => Ok(vec![
                frames::encode(frames::STDOUT, &done.stdout),
                frames::encode(frames::STDERR, &done.stderr),
                frames::encode(frames::EXIT, &done.exit_code.to_be_bytes()),
            ]),
            Err(error) => Ok(vec![frames::encode(frames::FAILURE, error.to_string().as_bytes())]),
        }
    }
}

impl LocalApi {
    /// Runs the command with the client's input, and on a terminal if it has one.
    pub(super) async fn exec_stream(&self, pod: &Pod, request: Request<Body>) -> Result<Response, ApiError> {
        let query = Query::parse(request.uri().query());
        if let Some(what) = query.left_out() {
            return Err(ApiError::Bad(what.to_owned()));
        }
        let cmd: Vec<String> = query.all("command").map(str::to_owned).collect();
        if cmd.is_empty() {
            return Err(ApiError::Bad("you must specify at least one command for the container".to_owned()));
        }
        if !wants_upgrade(request.headers()) {
            return Err(ApiError::Bad(
                "a command is streamed over a WebSocket; this request asks for none".to_owned(),
            ));
        }
        let container = container_name(pod, query.get("container"))?;
        let container_id = running_id(pod, &container)?;
        let (stdin, tty) = (query.flag("stdin"), query.flag("tty"));
        let wants = StreamOptions { stdin, stdout: true, stderr: !tty, tty };
        let ask = v1::ExecRequest { container_id, cmd, tty, stdin, stdout: true, stderr: !tty };
        let url = self.runtime.exec(ask).await.map_err(|e| ApiError::Failed(e.grpc_text()))?;
        Ok(self.streams.connect(What::Command(wants), &url, request).await)
    }
}

fn running_id(pod: &Pod, container: &str) -> Result<String, ApiError> {
    let status = status(pod, container);
    let running = status.filter(|s| s.state.as_ref().is_some_and(|s| s.running.is_some()));
    let id = running.and_then(|s| s.container_id.as_deref());
    // `containerd://<id>`
    let id = id.map(|id| id.split_once("://").map_or(id, |(_, id)| id).to_owned());
    id.filter(|id| !id.is_empty()).ok_or_else(|| {
        ApiError::Conflict(format!("container {container:?} of pod {:?} is not running", names(pod).1))
    })
}
