//! `/flagz` and `/statusz`: pages for people who debug a component. Programs may ask for a structure instead, by naming its
//! kind.

use std::collections::BTreeMap;
use std::fmt::Write;

use http::header::{ACCEPT, CONTENT_TYPE, WARNING, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::yaml::from_value_to_yaml;

const CAUTION: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
                       guarantees and is for debugging purposes only.";

/// Whose pages they are.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    pub name: &'static str,
    /// The paths that `/statusz` names.
    pub paths: &'static [&'static str],
}

/// What a client wants to read: a page, or a structure of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Text,
    Structure(Notation, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    Json,
    Yaml,
}

// === impl Component ===

impl Component {
    /// The flags in force, in the form the client accepts.
    pub fn flagz(&self, headers: &HeaderMap, flags: &BTreeMap<impl AsRef<str>, String>) -> Response<String> {
        match form(headers, "Flagz") {
            Some(Form::Text) => {
                let mut text = format!("\n{} flagz\n{CAUTION}\n", self.name);
                for (name, value) in flags {
                    // Writing to a String cannot fail.
                    let _ = writeln!(text, "{}={value}", name.as_ref());
                }
                plain(text)
            }
            Some(Form::Structure(notation, version)) => {
                let flags: BTreeMap<&str, &String> = flags.iter().map(|(n, v)| (n.as_ref(), v)).collect();
                self.structure("Flagz", notation, version, json!({ "flags": flags }))
            }
            None => not_acceptable(),
        }
    }

    /// What runs here and since when. The version is that of the Kubernetes release, with or without its `v`.
    pub fn statusz(
        &self,
        headers: &HeaderMap,
        version: &str,
        started: Timestamp,
        now: Timestamp,
    ) -> Response<String> {
        let up = now.duration_since(started).as_secs().max(0);
        let version = version.trim_start_matches('v');
        let release = version.rsplit_once('.').map_or(version, |(release, _)| release);
        match form(headers, "Statusz") {
            Some(Form::Text) => plain(format!(
                "\n{} statusz\n{CAUTION}\n\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: none\n\
                 Binary version: {version}\nEmulation version: {release}\nPaths: {}\n",
                self.name,
                started.strftime("%a %b %e %H:%M:%S UTC %Y"),
                up / 3600,
                up / 60 % 60,
                up % 60,
                self.paths.join(" "),
            )),
            Some(Form::Structure(notation, kind)) => {
                let body = json!({
                    "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    "uptimeSeconds": up,
                    "goVersion": "",
                    "binaryVersion": version,
                    "emulationVersion": release,
                    "paths": self.paths,
                });
                self.structure("Statusz", notation, kind, body)
            }
            None => not_acceptable(),
        }
    }

    fn structure(&self, kind: &str, notation: Notation, version: &str, content: Value) -> Response<String> {
        let mut body = json!({
            "kind": kind, "apiVersion": format!("config.k8s.io/{version}"), "metadata": {"name": self.name},
        });
        if let (Value::Object(body), Value::Object(content)) = (&mut body, content) {
            body.extend(content);
        }
        let (media, body) = match notation {
            Notation::Json => ("application/json", body.to_string()),
            Notation::Yaml => ("application/yaml", from_value_to_yaml(&body)),
        };
        let media = format!("{media};g=config.k8s.io;v={version};as={kind}");
        let mut response = answer(StatusCode::OK, &media, body);
        if version == "v1alpha1" {
            let page = kind.to_ascii_lowercase();
            let text = format!(
                "299 - \"This version of the {page} endpoint is deprecated. Please use a newer version.\""
            );
            response.headers_mut().extend(HeaderValue::from_str(&text).ok().map(|text| (WARNING, text)));
        }
        response
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
            "application/json" if is_ours => version.map(|v| Form::Structure(Notation::Json, v)),
            "application/yaml" if is_ours => version.map(|v| Form::Structure(Notation::Yaml, v)),
            _ => None,
        }
    })
}

fn plain(text: String) -> Response<String> {
    let mut response = answer(StatusCode::OK, "text/plain; charset=utf-8", text);
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn not_acceptable() -> Response<String> {
    let message =
        "only the following media types are accepted: application/json, application/yaml, text/plain";
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
        "reason": "NotAcceptable", "code": 406,
    });
    answer(StatusCode::NOT_ACCEPTABLE, "application/json", body.to_string())
}

fn answer(status: StatusCode, media: &str, body: String) -> Response<String> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().extend(HeaderValue::from_str(media).ok().map(|media| (CONTENT_TYPE, media)));
    response
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const COMPONENT: Component = Component { name: "kube-thing", paths: &["/flagz", "/statusz"] };

    fn accepting(text: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(text))])
    }

    #[test]
    fn clients_get_the_form_they_ask_for() {
        let structure = |notation, version| Some(Form::Structure(notation, version));
        let rows = [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("application/json, */*", Some(Form::Text)),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io", structure(Notation::Json, "v1beta1")),
            (
                "application/json; as=Flagz; v=v1alpha1; g=config.k8s.io",
                structure(Notation::Json, "v1alpha1"),
            ),
            ("application/yaml;as=Flagz;v=v1beta1;g=config.k8s.io", structure(Notation::Yaml, "v1beta1")),
            ("application/yaml, text/plain", Some(Form::Text)),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1;g=config.k8s.io, text/plain", Some(Form::Text)),
            ("application/json", None),
        ];
        for (accept, wanted) in rows {
            assert_eq!(form(&accepting(accept), "Flagz"), wanted, "{accept}");
        }
        assert_eq!(form(&HeaderMap::new(), "Flagz"), Some(Form::Text));
    }

    #[test]
    fn a_page_and_its_structure_say_the_same() {
        let flags = BTreeMap::from([("v", "2".to_owned())]);
        let page = COMPONENT.flagz(&HeaderMap::new(), &flags);
        assert_eq!(page.body(), &format!("\nkube-thing flagz\n{CAUTION}\nv=2\n"));
        assert_eq!(page.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
        let old = COMPONENT.flagz(&accepting("application/json;as=Flagz;v=v1alpha1;g=config.k8s.io"), &flags);
        assert_eq!(old.headers()[CONTENT_TYPE], "application/json;g=config.k8s.io;v=v1alpha1;as=Flagz");
        assert!(old.headers()[WARNING].to_str().unwrap().contains("the flagz endpoint is deprecated"));
        let body: Value = serde_json::from_str(old.body()).unwrap();
        assert_eq!((&body["flags"]["v"], &body["metadata"]["name"]), (&json!("2"), &json!("kube-thing")));
        let yaml = COMPONENT.flagz(&accepting("application/yaml;as=Flagz;v=v1beta1;g=config.k8s.io"), &flags);
        assert_eq!(yaml.headers()[CONTENT_TYPE], "application/yaml;g=config.k8s.io;v=v1beta1;as=Flagz");
        let wanted = "apiVersion: config.k8s.io/v1beta1\nflags:\n  v: \"2\"\nkind: Flagz\nmetadata:\n  name: kube-thing\n";
        assert_eq!(yaml.body(), wanted);
        let (started, now) = (Timestamp::UNIX_EPOCH, Timestamp::from_second(3723).unwrap());
        let page = COMPONENT.statusz(&accepting("*/*"), "v1.36.4", started, now);
        for line in [
            "Up: 1 hr 02 min 03 sec\n",
            "Binary version: 1.36.4\n",
            "Emulation version: 1.36\n",
            "Paths: /flagz /statusz\n",
        ] {
            assert!(page.body().contains(line), "{line}");
        }
        assert_eq!(COMPONENT.flagz(&accepting("image/png"), &flags).status(), StatusCode::NOT_ACCEPTABLE);
    }
}
