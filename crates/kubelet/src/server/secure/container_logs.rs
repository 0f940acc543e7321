//! `/containerLogs`: what a container wrote.

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::{IntoResponse, Response};
use base::time::Wall;
use cri::log::{Output, Wanted};
use http::StatusCode;
use http::header::CONTENT_TYPE;
use kubelet_core::log_choice;

use super::query::Query;
use super::state::{Found, HttpError, ServerState, Target};
use crate::logs::LogPath;
use crate::logs::reader::{self, Options};

/// What of a log is asked for.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    follow: bool,
    previous: bool,
    timestamps: bool,
    since: Option<Since>,
    tail: Option<u64>,
    limit: Option<u64>,
    stream: Option<Output>,
}

#[derive(Debug, PartialEq)]
enum Since {
    Ago(i64),
    Time(Wall),
}

pub(super) async fn serve(
    State(state): State<ServerState>,
    Path(target): Path<Target>,
    RawQuery(query): RawQuery,
) -> Result<Response, HttpError> {
    let asked = read(&Query::parse(query.as_deref()), state.switches.split_streams)?;
    let (pod, container) = (&target.pod, &target.container);
    let found = state.find(&target.namespace, pod);
    let found = found.ok_or_else(|| HttpError::not_found(format!("pod {pod:?} does not exist")))?;
    if !found.has_container(container) {
        return Err(HttpError::not_found(format!("container {container:?} not found in pod {pod:?}")));
    }
    let restart =
        log_choice::choose(pod, &found.entry.status, container, asked.previous).map_err(HttpError::bad)?;
    let since = asked.since.map(|since| match since {
        Since::Ago(seconds) => {
            Wall(state.clock.now().wall.0.saturating_sub(seconds.saturating_mul(1_000_000_000)))
        }
        Since::Time(time) => time,
    });
    let options = Options {
        follow: asked.follow,
        tail: asked.tail,
        limit_bytes: asked.limit,
        wanted: Wanted { since, timestamps: asked.timestamps, stream: asked.stream },
    };
    let text = open(&state, &found, &target, restart, options).await?;
    Ok(([(CONTENT_TYPE, "text/plain")], text).into_response())
}

async fn open(
    state: &ServerState,
    found: &Found,
    target: &Target,
    restart: i32,
    options: Options,
) -> Result<Body, HttpError> {
    let Target { namespace, pod, container, .. } = target;
    let path = LogPath {
        root: state.pod_logs.clone(),
        directory: format!("{namespace}_{pod}_{}/{container}", found.uid()).into(),
        file: format!("{restart}.log"),
    };
    let (board, uid, name) = (state.views.pods.clone(), found.uid().to_owned(), container.clone());
    let changed = board.subscribe();
    let writes = move || {
        let entry = board.get(&uid);
        entry.as_ref().and_then(|e| log_choice::find(&e.status, &name)).is_some_and(|s| {
            s.restart_count == restart && s.state.as_ref().is_some_and(|s| s.running.is_some())
        })
    };
    let text = reader::stream(path, options, Box::new(writes), changed).await;
    text.map(Body::from_stream).map_err(|e| {
        let message =
            format!("unable to retrieve container logs of container {container:?} in pod {pod:?}: {e}");
        HttpError::bad(message)
    })
}

/// Reads the parameters and refuses what makes no sense, with upstream's codes.
fn read(query: &Query, split_streams: bool) -> Result<Asked, HttpError> {
    let unclear = || HttpError::bad(r#"{"message": "Unable to decode query."}"#);
    let invalid =
        || HttpError(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#.to_owned());
    let number = |name: &str| query.get(name).map(|v| v.parse::<i64>().map_err(|_| unclear())).transpose();
    let mut asked = Asked {
        follow: query.flag("follow"),
        previous: query.flag("previous"),
        timestamps: query.flag("timestamps"),
        ..Asked::default()
    };
    // An old name, and an old word for all of it.
    let tail = match query.get("tail").filter(|t| !t.is_empty()) {
        Some("all") => None,
        Some(text) => Some(text.parse::<i64>().map_err(|_| unclear())?),
        None => number("tailLines")?,
    };
    asked.tail = tail.map(|n| u64::try_from(n).map_err(|_| invalid())).transpose()?;
    asked.limit = match number("limitBytes")? {
        Some(n) if n < 1 => return Err(invalid()),
        n => n.and_then(|n| u64::try_from(n).ok()),
    };
    let ago = number("sinceSeconds")?;
    let time = query.get("sinceTime").filter(|t| !t.is_empty() && *t != "null");
    let time = time.map(|t| cri::log::parse_time(t).ok_or_else(unclear)).transpose()?;
    asked.since = match (ago, time) {
        (Some(_), Some(_)) => return Err(invalid()),
        (Some(seconds), None) if seconds < 1 => return Err(invalid()),
        (Some(seconds), None) => Some(Since::Ago(seconds)),
        (None, time) => time.map(Since::Time),
    };
    asked.stream = match query.get("stream") {
        None | Some("" | "All") => None,
        Some("Stdout") => Some(Output::Stdout),
        Some("Stderr") => Some(Output::Stderr),
        Some(_) => return Err(invalid()),
    };
    if asked.stream.is_some() && !split_streams {
        let stream = query.get("stream").unwrap_or_default();
        return Err(HttpError::bad(format!(
            "unable to return the given log stream: {stream:?}. Please enable PodLogsQuerySplitStreams feature gate in kubelet"
        )));
    }
    if asked.stream.is_some() && asked.tail.is_some() {
        return Err(invalid());
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_read_as_upstream_does() {
        let all = Asked::default;
        let time = |t| cri::log::parse_time(t).map(Since::Time);
        let rows: Vec<(&str, Result<Asked, u16>)> = vec![
            ("", Ok(all())),
            (
                "follow=true&previous=1&timestamps=",
                Ok(Asked { follow: true, previous: true, timestamps: true, ..all() }),
            ),
            ("follow=false&previous=0", Ok(all())),
            ("tailLines=5", Ok(Asked { tail: Some(5), ..all() })),
            ("tail=all&tailLines=5", Ok(all())),
            ("tail=3&tailLines=5", Ok(Asked { tail: Some(3), ..all() })),
            ("tailLines=-1", Err(422)),
            ("tailLines=x", Err(400)),
            ("limitBytes=10", Ok(Asked { limit: Some(10), ..all() })),
            ("limitBytes=0", Err(422)),
            ("sinceSeconds=60", Ok(Asked { since: Some(Since::Ago(60)), ..all() })),
            ("sinceSeconds=0", Err(422)),
            ("sinceTime=2026-01-01T00:00:00Z", Ok(Asked { since: time("2026-01-01T00:00:00Z"), ..all() })),
            (
                "sinceTime=2026-01-01T00%3A00%3A00%2B01%3A00",
                Ok(Asked { since: time("2025-12-31T23:00:00Z"), ..all() }),
            ),
            ("sinceTime=yesterday", Err(400)),
            ("sinceTime=2026-01-01T00:00:00Z&sinceSeconds=1", Err(422)),
            ("stream=All", Ok(all())),
            ("stream=Stderr", Ok(Asked { stream: Some(Output::Stderr), ..all() })),
            ("stream=stdout", Err(422)),
            ("stream=Stdout&tailLines=1", Err(422)),
            ("limitBytes=99999999999999999999", Err(400)),
            ("%zz=%", Ok(all())),
        ];
        for (text, expected) in rows {
            let found = read(&Query::parse(Some(text)), true).map_err(|r| r.0.as_u16());
            assert_eq!(found, expected, "{text}");
        }
        assert!(
            read(&Query::parse(Some("stream=Stdout")), false).is_err_and(|r| r.0 == StatusCode::BAD_REQUEST)
        );
    }
}
