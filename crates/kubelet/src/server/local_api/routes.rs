//! The requests.

use std::time::Duration;

use api::json::ToJson;
use api::pod::Manifest;
use api::pod::static_pod::SOURCE_ANNOTATION;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Request, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::eviction::forecast::Forecast;
use serde::Deserialize;

use super::logs::LogQuery;
use super::{ApiError, Applied, ErrorBody, EventLine, ExecRequest, LocalApi, ProblemLine};
use crate::pods::sources::local::LocalError;
use crate::pods::sources::{MANIFEST_MAX, names};

/// Changes closer together than this, for each Pod there is, reach a watcher as one: every line tells of all Pods.
const WATCH_PAUSE: Duration = Duration::from_millis(1);
/// But nobody waits longer.
const WATCH_PAUSE_MAX: Duration = Duration::from_millis(100);

pub(super) fn router(api: LocalApi) -> Router {
    Router::new()
        .route("/v1/pods", get(list).post(apply).put(apply))
        .route("/v1/pods/{namespace}/{name}", get(show).delete(delete))
        .route("/v1/pods/{namespace}/{name}/events", get(events))
        .route("/v1/pods/{namespace}/{name}/log", get(log))
        .route("/v1/pods/{namespace}/{name}/exec", post(exec).get(exec_stream))
        .route("/v1/problems", get(problems))
        .route("/v1/eviction", get(eviction))
        .layer(DefaultBodyLimit::max(MANIFEST_MAX))
        .with_state(api)
}

type Answer<T> = Result<T, ApiError>;
type Names = Path<(String, String)>;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let code = match self {
            ApiError::Bad(_) => StatusCode::BAD_REQUEST,
            ApiError::NotFound(_) => StatusCode::NOT_FOUND,
            ApiError::Conflict(_) => StatusCode::CONFLICT,
            ApiError::Failed(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(ErrorBody { message: self.to_string() })).into_response()
    }
}

impl From<LocalError> for ApiError {
    fn from(e: LocalError) -> Self {
        match e {
            LocalError::Manifest(_) | LocalError::Full => ApiError::Bad(e.to_string()),
            LocalError::Disk { .. } | LocalError::Closing => ApiError::Failed(e.to_string()),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListQuery {
    watch: bool,
}

async fn list(State(api): State<LocalApi>, Query(query): Query<ListQuery>) -> Response {
    if !query.watch {
        return Written(pod_list(&api.pods().await)).into_response();
    }
    let changed = api.view.changed();
    let lines = futures_util::stream::unfold((api, changed, None), |(api, mut changed, told)| async move {
        if let Some(told) = told {
            changed.changed().await.ok()?;
            tokio::time::sleep(WATCH_PAUSE_MAX.min(WATCH_PAUSE * told)).await;
            changed.mark_unchanged();
        }
        let pods = api.pods().await;
        let told = u32::try_from(pods.len()).unwrap_or(u32::MAX);
        let mut line = pod_list(&pods);
        line.push(b'\n');
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(line)), (api, changed, Some(told))))
    });
    Body::from_stream(lines).into_response()
}

/// Written as it is, without a tree of values in between: there may be many Pods, and a line for each change.
fn pod_list(pods: &[Pod]) -> Vec<u8> {
    let mut list = br#"{"apiVersion":"v1","kind":"PodList","metadata":{},"items":["#.to_vec();
    for (i, pod) in pods.iter().enumerate() {
        list.extend((i > 0).then_some(b','));
        list.extend(pod.to_json());
    }
    list.extend(b"]}");
    list
}

/// JSON that is written already.
struct Written(Vec<u8>);

impl From<&Pod> for Written {
    fn from(pod: &Pod) -> Written {
        Written(pod.to_json())
    }
}

impl IntoResponse for Written {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0).into_response()
    }
}

async fn show(State(api): State<LocalApi>, Path((namespace, name)): Names) -> Answer<Written> {
    api.pod(&namespace, &name).await.map(|pod| Written::from(&pod))
}

async fn apply(State(api): State<LocalApi>, body: Bytes) -> Answer<Json<Vec<Applied>>> {
    let mut unknown = |field: &str| tracing::warn!(field, "ignored an unknown field of a submitted Pod");
    let manifest = api::pod::decode(&body, &mut unknown).map_err(|e| ApiError::Bad(e.to_string()))?;
    let pods = match manifest {
        Manifest::Pod(pod) => vec![*pod],
        Manifest::List(pods) => pods,
    };
    let mut applied = Vec::with_capacity(pods.len());
    for pod in pods {
        let (pod, outcome) = api.local.apply(pod).await?;
        let (namespace, name) = names(&pod);
        applied.push(Applied {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            outcome,
        });
    }
    Ok(Json(applied))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteQuery {
    grace_period_seconds: Option<i64>,
}

async fn delete(
    State(api): State<LocalApi>,
    Path((namespace, name)): Names,
    Query(query): Query<DeleteQuery>,
) -> Answer<Written> {
    if query.grace_period_seconds.is_some_and(|s| s < 0) {
        return Err(ApiError::Bad("gracePeriodSeconds must not be negative".to_owned()));
    }
    if let Some(pod) = api.local.delete(&namespace, &name, query.grace_period_seconds).await? {
        return Ok(Written::from(&*pod));
    }
    let pod = api.pod(&namespace, &name).await?;
    let annotations = pod.metadata.annotations.clone().unwrap_or_default();
    match annotations.get(SOURCE_ANNOTATION).map(String::as_str) {
        Some("local") => hasten(&api, pod, query.grace_period_seconds).await,
        source => Err(ApiError::Conflict(format!(
            "pod {name:?} was not given by command but by the {} source; remove it there",
            source.unwrap_or("api")
        ))),
    }
}

/// A Pod deleted again: the second order may give it less time.
async fn hasten(api: &LocalApi, pod: Pod, grace: Option<i64>) -> Answer<Written> {
    let Some(grace) = grace else { return Ok(Written::from(&pod)) };
    let name = pod.metadata.name.clone().unwrap_or_default();
    match api.local.hasten(pod, grace).await? {
        Some(pod) => Ok(Written::from(&*pod)),
        None => Err(ApiError::Conflict(format!("pod {name:?} was replaced meanwhile"))),
    }
}

async fn events(State(api): State<LocalApi>, Path((namespace, name)): Names) -> Answer<Json<Vec<EventLine>>> {
    let pod = api.pod(&namespace, &name).await?;
    let events = api.view.events(pod.metadata.uid.as_deref().unwrap_or_default());
    Ok(Json(events.into_iter().map(Into::into).collect()))
}

async fn log(
    State(api): State<LocalApi>,
    Path((namespace, name)): Names,
    Query(query): Query<LogQuery>,
) -> Answer<Response> {
    let pod = api.pod(&namespace, &name).await?;
    let text = api.log(&pod, &query).await?;
    Ok(([(CONTENT_TYPE, "text/plain")], Body::from_stream(text)).into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ExecQuery {
    container: Option<String>,
}

async fn exec(
    State(api): State<LocalApi>,
    Path((namespace, name)): Names,
    Query(query): Query<ExecQuery>,
    Json(request): Json<ExecRequest>,
) -> Answer<Response> {
    let pod = api.pod(&namespace, &name).await?;
    let frames = api.exec(&pod, query.container.as_deref(), request.command).await?;
    let frames = frames.into_iter().map(Ok::<_, std::convert::Infallible>);
    Ok(Body::from_stream(futures_util::stream::iter(frames)).into_response())
}

/// The same with input, or on a terminal: the connection becomes a WebSocket.
async fn exec_stream(
    State(api): State<LocalApi>,
    Path((namespace, name)): Names,
    request: Request<Body>,
) -> Answer<Response> {
    let pod = api.pod(&namespace, &name).await?;
    api.exec_stream(&pod, request).await
}

async fn eviction(State(api): State<LocalApi>) -> Answer<Json<Forecast>> {
    let forecasts =
        api.forecasts.get().ok_or_else(|| ApiError::Failed("the kubelet is still starting".into()))?;
    forecasts.forecast().await.map(Json).map_err(ApiError::Failed)
}

async fn problems(State(api): State<LocalApi>) -> Json<Vec<ProblemLine>> {
    let line = |p: crate::pods::sources::Problem| ProblemLine {
        source: p.source.to_string(),
        place: p.place,
        message: p.message,
    };
    Json(api.context.problems.list().into_iter().map(line).collect())
}
