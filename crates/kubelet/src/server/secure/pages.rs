//! What people look at when they wonder about the kubelet itself: `/flagz`, `/statusz`, `/debug`.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use base::verbosity::Verbosity;
use http::header::{ACCEPT, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde_json::{Value, json};

use super::inside::{Inside, Refusal};

const NAME: &str = "kubelet";
/// The paths `/statusz` names, as upstream's does; those of Pods and containers are not among them.
const PATHS: [&str; 5] = ["/configz", "/debug", "/flagz", "/healthz", "/metrics"];
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// What a client wants to read: a page, or a structure of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Structure(&'static str),
}

pub(super) async fn flagz(State(inside): State<Inside>, headers: HeaderMap) -> Response {
    let flags = &inside.about.flags;
    match form(&headers, "Flagz") {
        Some(Form::Text) => {
            let mut text = format!("\n{NAME} flagz\n{WARNING}\n\n");
            for (name, value) in flags {
                let _ = writeln!(text, "{name}={value}");
            }
            plain(text)
        }
        Some(Form::Structure(version)) => {
            let flags: BTreeMap<&String, &String> = flags.iter().map(|(name, value)| (name, value)).collect();
            structure("Flagz", version, json!({ "flags": flags }))
        }
        None => not_acceptable(),
    }
}

pub(super) async fn statusz(State(inside): State<Inside>, headers: HeaderMap) -> Response {
    let about = &inside.about;
    let started = jiff::Timestamp::from_second(about.started).unwrap_or_default();
    let up = inside.clock.now().wall.secs().saturating_sub(about.started).max(0);
    let version = about.version.trim_start_matches('v');
    let release = version.rsplit_once('.').map_or(version, |(release, _)| release);
    match form(&headers, "Statusz") {
        Some(Form::Text) => plain(format!(
            "\n{NAME} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: none\n\
             Binary version: {version}\nEmulation version: {release}\nPaths: {}\n",
            started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            PATHS.join(" "),
        )),
        Some(Form::Structure(kind)) => {
            let body = json!({
                "startTime": started.to_string(),
                "uptimeSeconds": up,
                "goVersion": "",
                "binaryVersion": version,
                "emulationVersion": release,
                "paths": PATHS,
            });
            structure("Statusz", kind, body)
        }
        None => not_acceptable(),
    }
}

/// The first form of those a client would take that we have.
fn form(headers: &HeaderMap, kind: &str) -> Option<Form> {
    let accepted = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accepted.trim().is_empty() {
        return Some(Form::Text);
    }
    accepted.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let is_ours = parameters.get("as") == Some(&kind) && parameters.get("g") == Some(&"config.k8s.io");
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|v| parameters.get("v") == Some(v));
        match media {
            "text/plain" | "text/*" | "*/*" if !parameters.contains_key("as") => Some(Form::Text),
            "application/json" if is_ours => version.map(Form::Structure),
            _ => None,
        }
    })
}

fn structure(kind: &str, version: &str, content: Value) -> Response {
    let mut body = json!({
        "kind": kind, "apiVersion": format!("config.k8s.io/{version}"), "metadata": {"name": NAME},
    });
    if let (Value::Object(body), Value::Object(content)) = (&mut body, content) {
        body.extend(content);
    }
    let media = format!("application/json;g=config.k8s.io;v={version};as={kind}");
    let mut response = ([(CONTENT_TYPE, media)], body.to_string()).into_response();
    if version == "v1alpha1" {
        let page = kind.to_ascii_lowercase();
        let text = format!(
            "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
        );
        response
            .headers_mut()
            .extend(HeaderValue::from_str(&text).ok().map(|text| (http::header::WARNING, text)));
    }
    response
}

fn not_acceptable() -> Response {
    let message = "only the following media types are accepted: application/json, text/plain";
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "NotAcceptable", "code": 406,
    });
    (StatusCode::NOT_ACCEPTABLE, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

/// There is no Go in here, and so nothing that `go tool pprof` could read.
pub(super) async fn profiles() -> Response {
    plain("/debug/pprof/\n\nProfiles:\ncmdline\n\nThe other profiles are those of a Go program, which this is not.\n".to_owned())
}

pub(super) async fn profile(Path(name): Path<String>) -> Result<Response, Refusal> {
    match name.as_str() {
        // NUL between the words, as upstream shows it.
        "cmdline" => {
            let line = tokio::fs::read("/proc/self/cmdline").await;
            let line = line.map_err(|e| Refusal::failed(format!("read /proc/self/cmdline: {e}\n")))?;
            Ok(plain(String::from_utf8_lossy(&line).trim_end_matches('\0').to_owned()))
        }
        "profile" | "symbol" | "trace" | "heap" | "goroutine" | "allocs" | "block" | "mutex"
        | "threadcreate" => {
            let text = format!("the profile {name:?} is one of a Go program, which this is not\n");
            Err(Refusal(StatusCode::NOT_IMPLEMENTED, text))
        }
        _ => Err(Refusal::not_found(format!("Unknown profile {name:?}\n"))),
    }
}

/// Sets the level at which the log is written, until it is set again or the kubelet ends.
pub(super) async fn verbosity(
    State(inside): State<Inside>,
    body: axum::body::Bytes,
) -> Result<Response, Refusal> {
    let level = inside.verbosity.ask(&String::from_utf8_lossy(&body)).map_err(Refusal::bad)?;
    tracing::callsite::rebuild_interest_cache();
    tracing::info!(level, "the verbosity of the log was set");
    Ok(plain(Verbosity::answer(level)))
}

/// The verbosity can be set, not asked for.
pub(super) async fn verbosity_is_put() -> Refusal {
    Refusal(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n".to_owned())
}

fn plain(text: String) -> Response {
    let headers = [(CONTENT_TYPE, "text/plain; charset=utf-8"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_form_they_ask_for() {
        let rows = [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("application/json, */*", Some(Form::Text)),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", Some(Form::Structure("v1beta1"))),
            ("application/json; as=Flagz; v=v1alpha1; g=config.k8s.io", Some(Form::Structure("v1alpha1"))),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1;g=config.k8s.io, text/plain", Some(Form::Text)),
            ("application/json", None),
        ];
        for (accept, wanted) in rows {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(form(&headers, "Flagz"), wanted, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new(), "Flagz"), Some(Form::Text));
    }
}
