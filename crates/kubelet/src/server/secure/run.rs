//! `/run` and `/checkpoint`: one answer each.

use std::time::Duration;

use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use cri::v1;
use http::header::CONTENT_TYPE;

use super::query::Query;
use super::state::{HttpError, ServerState, Target};
use super::stream;

/// Runs a command and answers with all it wrote.
pub(super) async fn run(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    RawQuery(query): RawQuery,
) -> Result<Response, HttpError> {
    let found = state.find_with(&target)?;
    let query = Query::parse(query.as_deref());
    stream::whole(&query)?;
    let text = query.get("cmd").unwrap_or_default();
    let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
    let id = state.running(&found, &target.container).await.map_err(|e| HttpError::of(&e))?;
    let id = id.ok_or_else(|| HttpError::failed(format!("container not found ({:?})", target.container)))?;
    let done = state.views.runtime.exec_sync(&id, command, Duration::ZERO).await;
    let done = done.map_err(|e| HttpError::failed(e.grpc_text()))?;
    if done.exit_code != 0 {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(HttpError::failed(format!("command '{text}' exited with {}: {said}", done.exit_code)));
    }
    let mut output = done.stdout;
    output.extend_from_slice(&done.stderr);
    // It is not JSON, but that is what it has always been called.
    Ok(([(CONTENT_TYPE, "application/json")], output).into_response())
}

/// Writes the state of a container to a file.
pub(super) async fn checkpoint(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    RawQuery(query): RawQuery,
) -> Result<Response, HttpError> {
    let Target { namespace, pod, container, .. } = &target;
    let found = state.find_with(&target)?;
    if !found.has_container(container) {
        return Err(HttpError::not_found(format!("container {container} does not exist")));
    }
    let query = Query::parse(query.as_deref());
    let timeout = query.all("timeout").last().map(str::parse::<i64>).transpose();
    let timeout = timeout.map_err(|_| HttpError::not_found("cannot parse value of timeout parameter"))?;
    let failed = |why: String| {
        HttpError::failed(format!("checkpointing of {namespace}/{pod}/{container} failed ({why})"))
    };
    let id = state.running(&found, container).await.map_err(|e| failed(e.grpc_text()))?;
    let container_id = id.ok_or_else(|| failed(format!("container {container:?} not found")))?;
    let dir = state.root.join("checkpoints");
    let now = jiff::Timestamp::from_second(state.clock.now().wall.secs()).unwrap_or_default();
    let location = dir.join(format!("checkpoint-{pod}_{namespace}-{container}-{now}.tar"));
    let made = {
        let dir = dir.clone();
        tokio::task::spawn_blocking(move || {
            use std::os::unix::fs::DirBuilderExt;
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
        })
    };
    let made = made.await.map_err(std::io::Error::other).and_then(|made| made);
    made.map_err(|e| failed(format!("make {}: {e}", dir.display())))?;
    let location = location.to_string_lossy().into_owned();
    let ask = v1::CheckpointContainerRequest {
        container_id,
        location: location.clone(),
        timeout: timeout.unwrap_or_default(),
    };
    state.views.runtime.checkpoint_container(ask).await.map_err(|e| failed(e.grpc_text()))?;
    Ok(axum::Json(serde_json::json!({ "items": [location] })).into_response())
}
