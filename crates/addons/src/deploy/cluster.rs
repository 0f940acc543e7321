//! What is asked of the API server.

use std::collections::BTreeMap;

use client::{Client, ClientError, Request};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::core::manifest::{Named, OWNER, RECORD, Record};

const RECORDS: &str = "/api/v1/namespaces/kube-system/configmaps";

pub(super) struct Cluster {
    client: Client,
    /// What is known of which version of a group. Kinds come and go; what is not found is asked for again.
    kinds: BTreeMap<String, Vec<Kind>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Kind {
    name: String,
    kind: String,
    namespaced: bool,
}

#[derive(Deserialize)]
struct Resources {
    resources: Vec<Kind>,
}

#[derive(Deserialize)]
struct Stored {
    #[serde(default)]
    data: BTreeMap<String, String>,
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(client: Client) -> Cluster {
        Cluster { client, kinds: BTreeMap::new() }
    }

    /// What each file brought, as it was remembered.
    pub(super) async fn record(&self) -> Result<Record, ClientError> {
        let stored = match self.client.ask_bytes(Request::get(format!("{RECORDS}/{RECORD}"))).await {
            Ok(bytes) => {
                serde_json::from_slice::<Stored>(&bytes).map(|stored| stored.data).unwrap_or_default()
            }
            Err(error) if error.is_not_found() => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        let read = |(file, text): (String, String)| match serde_json::from_str(&text) {
            Ok(named) => Some((file, named)),
            Err(error) => {
                tracing::warn!(%error, file, "what the file brought is not known any more, and stays");
                None
            }
        };
        Ok(stored.into_iter().filter_map(read).collect())
    }

    pub(super) async fn remember(&self, record: &Record) -> Result<(), ClientError> {
        let text = |named: &Vec<Named>| serde_json::to_string(named).unwrap_or_default();
        let data: BTreeMap<&String, String> =
            record.iter().map(|(file, named)| (file, text(named))).collect();
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": RECORD, "namespace": "kube-system"}, "data": data,
        });
        self.patch(&format!("{RECORDS}/{RECORD}"), &object).await
    }

    /// The names under which the objects are remembered: with the namespace that they come to be in. A kind that is not known
    /// yet may be defined by an object before: it counts as one with a namespace where it says one.
    pub(super) async fn name_all(&mut self, objects: &[Value]) -> Result<Vec<Named>, String> {
        let mut all = Vec::new();
        for object in objects {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let (api_version, kind) = (text("/apiVersion"), text("/kind"));
            let said = text("/metadata/namespace");
            let known = self.kind(api_version, kind).await.map_err(|error| error.to_string())?;
            let namespace = match known {
                Some(known) => namespace_of(&known, said),
                None => said,
            };
            all.push(Named {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
                namespace: namespace.to_owned(),
                name: text("/metadata/name").to_owned(),
            });
        }
        Ok(all)
    }

    pub(super) async fn apply(&mut self, object: &Value) -> Result<(), String> {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("/apiVersion"), text("/kind"));
        let known = self.kind(api_version, kind).await.map_err(|error| error.to_string())?;
        let Some(known) = known else {
            return Err(format!("the API server has no kind {kind} in {api_version}"));
        };
        let namespace = namespace_of(&known, text("/metadata/namespace"));
        let path = path(api_version, &known.name, namespace, text("/metadata/name"));
        self.patch(&path, object).await.map_err(|error| error.to_string())
    }

    /// Also fine where it is gone already, or its kind is.
    pub(super) async fn delete(&mut self, named: &Named) -> Result<(), ClientError> {
        let Some(known) = self.kind(&named.api_version, &named.kind).await? else { return Ok(()) };
        let path = path(&named.api_version, &known.name, &named.namespace, &named.name);
        let body = json!({"propagationPolicy": "Background"}).to_string();
        match self.client.ask_bytes(Request::delete(path, body)).await {
            Err(error) if error.is_not_found() => Ok(()),
            other => other.map(drop),
        }
    }

    async fn patch(&self, path: &str, object: &Value) -> Result<(), ClientError> {
        let path = format!("{path}?fieldManager={OWNER}&force=true");
        let request = Request::patch(path, "application/apply-patch+yaml", object.to_string());
        self.client.ask_bytes(request).await.map(drop)
    }

    async fn kind(&mut self, api_version: &str, kind: &str) -> Result<Option<Kind>, ClientError> {
        let find = |all: &Vec<Kind>| {
            all.iter().find(|known| known.kind == kind && !known.name.contains('/')).cloned()
        };
        if let Some(found) = self.kinds.get(api_version).and_then(find) {
            return Ok(Some(found));
        }
        let all = match self.client.ask_bytes(Request::get(root(api_version))).await {
            Ok(bytes) => serde_json::from_slice::<Resources>(&bytes).map(|r| r.resources).unwrap_or_default(),
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let found = find(&all);
        self.kinds.insert(api_version.to_owned(), all);
        Ok(found)
    }
}

fn namespace_of<'a>(kind: &Kind, said: &'a str) -> &'a str {
    match (kind.namespaced, said) {
        (false, _) => "",
        (true, "") => "default",
        (true, said) => said,
    }
}

fn root(api_version: &str) -> String {
    match api_version.contains('/') {
        true => format!("/apis/{api_version}"),
        false => format!("/api/{api_version}"),
    }
}

fn path(api_version: &str, plural: &str, namespace: &str, name: &str) -> String {
    let root = root(api_version);
    match namespace {
        "" => format!("{root}/{plural}/{name}"),
        namespace => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        assert_eq!(path("v1", "configmaps", "a", "b"), "/api/v1/namespaces/a/configmaps/b");
        assert_eq!(path("apps/v1", "deployments", "a", "b"), "/apis/apps/v1/namespaces/a/deployments/b");
        assert_eq!(path("v1", "namespaces", "", "b"), "/api/v1/namespaces/b");
    }
}
