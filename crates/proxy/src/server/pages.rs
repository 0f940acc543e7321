//! Pages for people who debug: which flags are in force, what runs here and since when. Programs may ask for a
//! structure instead, by naming its kind.

use std::collections::BTreeMap;
use std::fmt::Write;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::status::{Status, plain};

const NAME: &str = "kube-proxy";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";
const PATHS: [&str; 6] = ["/configz", "/flagz", "/healthz", "/metrics", "/proxyMode", "/statusz"];

/// What the pages tell.
#[derive(Clone, Debug)]
pub struct About {
    /// The Kubernetes release whose contract we follow, with its `v`.
    pub version: String,
    pub started: Timestamp,
    pub flags: BTreeMap<&'static str, String>,
}

/// What a client wants to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Structure(&'static str),
}

pub(super) async fn flagz(State(status): State<Status>, headers: HeaderMap) -> Response {
    let about = &status.about;
    match form(&headers, "Flagz") {
        Some(Form::Text) => {
            let mut out = format!("\n{NAME} flagz\n{WARNING}\n");
            for (name, value) in &about.flags {
                // Writing to a String cannot fail.
                let _ = writeln!(out, "{name}={value}");
            }
            plain(out)
        }
        Some(Form::Structure(version)) => structure("Flagz", version, json!({"flags": about.flags})),
        None => not_acceptable(),
    }
}

pub(super) async fn statusz(State(status): State<Status>, headers: HeaderMap) -> Response {
    let (about, now) = (&status.about, Timestamp::now());
    let up = now.duration_since(about.started).as_secs().max(0);
    let version = about.version.trim_start_matches('v');
    let release = version.rsplit_once('.').map_or(version, |(release, _)| release);
    match form(&headers, "Statusz") {
        Some(Form::Text) => plain(format!(
            "\n{NAME} statusz\n{WARNING}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: none\n\
             Binary version: {version}\nEmulation version: {release}\nPaths: {}\n",
            about.started.strftime("%a %b %e %H:%M:%S UTC %Y"),
            up / 3600,
            up / 60 % 60,
            up % 60,
            PATHS.join(" "),
        )),
        Some(Form::Structure(kind)) => {
            let body = json!({
                "startTime": about.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
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
    let accepted = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
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
    let mut response = ([(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response();
    if version == "v1alpha1" {
        let warning = match kind {
            "Flagz" => {
                "299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\""
            }
            _ => "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\"",
        };
        response.headers_mut().insert(header::WARNING, HeaderValue::from_static(warning));
    }
    response
}

fn not_acceptable() -> Response {
    let message = "only the following media types are accepted: application/json, text/plain";
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "NotAcceptable", "code": 406,
    });
    let kind = [(header::CONTENT_TYPE, "application/json")];
    (StatusCode::NOT_ACCEPTABLE, kind, body.to_string()).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_the_form_they_ask_for() {
        let rows = [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", Some(Form::Structure("v1beta1"))),
            ("application/json; as=Flagz; v=v1alpha1; g=config.k8s.io", Some(Form::Structure("v1alpha1"))),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1;g=config.k8s.io, text/plain", Some(Form::Text)),
            ("application/json", None),
        ];
        for (accept, wanted) in rows {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(form(&headers, "Flagz"), wanted, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new(), "Flagz"), Some(Form::Text));
    }
}
