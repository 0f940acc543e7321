//! Discovery: which groups, versions and resources there are.

use serde_json::{Value, json};

use apiserver_core::api_status::ApiStatus;
use apiserver_core::catalog::{Catalog, Group};
use apiserver_core::kind::{Kind, Subresource, Verb};

/// `/api`
pub(crate) fn api_versions(server: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}],
    })
}

/// `/apis`
pub(crate) fn group_list(catalog: &Catalog) -> Value {
    let groups = catalog.groups();
    let groups: Vec<Value> = groups.iter().filter(|g| !g.name.is_empty()).map(group_body).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/{group}`
pub(crate) fn group(catalog: &Catalog, name: &str) -> Result<Value, ApiStatus> {
    let groups = catalog.groups();
    let found =
        groups.iter().find(|g| !g.name.is_empty() && g.name == name).ok_or_else(ApiStatus::no_resource)?;
    let mut body = group_body(found);
    body["kind"] = "APIGroup".into();
    body["apiVersion"] = "v1".into();
    Ok(body)
}

/// `/api/v1`, `/apis/{group}/{version}`
pub(crate) fn resource_list(catalog: &Catalog, group: &str, version: &str) -> Result<Value, ApiStatus> {
    let mut kinds = catalog.of_version(group, version).peekable();
    if kinds.peek().is_none() {
        return Err(ApiStatus::no_resource());
    }
    let mut resources = Vec::new();
    for kind in kinds {
        resources.push(resource(kind));
        resources.extend(kind.subresources.iter().map(|sub| subresource(kind, sub)));
    }
    resources.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Ok(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources}),
    )
}

/// `/api` (the core group) or `/apis` (all others) for clients that want everything at once.
pub(crate) fn aggregated(catalog: &Catalog, core: bool, form: &str) -> Value {
    let groups = catalog.groups();
    let items: Vec<Value> = groups
        .iter()
        .filter(|group| group.name.is_empty() == core)
        .map(|group| {
            let versions: Vec<Value> = group
                .versions
                .iter()
                .map(|version| {
                    let resources: Vec<Value> =
                        catalog.of_version(group.name, version).map(|k| aggregated_kind(k)).collect();
                    json!({"version": version, "freshness": "Current", "resources": resources})
                })
                .collect();
            let mut metadata = json!({"creationTimestamp": null});
            if !core {
                metadata["name"] = group.name.into();
            }
            json!({"metadata": metadata, "versions": versions})
        })
        .collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"),
        "metadata": {}, "items": items,
    })
}

fn group_body(group: &Group<'_>) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|version| json!({"groupVersion": format!("{}/{version}", group.name), "version": version}))
        .collect();
    json!({"name": group.name, "preferredVersion": versions.first(), "versions": versions})
}

fn resource(kind: &Kind) -> Value {
    let mut out = json!({
        "name": kind.plural, "singularName": kind.singular, "namespaced": kind.is_namespaced(),
        "kind": kind.kind, "verbs": verbs(kind.verbs),
    });
    if !kind.short_names.is_empty() {
        out["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        out["categories"] = json!(kind.categories);
    }
    if let Some(hash) = storage_version_hash(kind) {
        out["storageVersionHash"] = hash.into();
    }
    out
}

/// What changes when objects are stored in another version: a migrator's hint.
fn storage_version_hash(kind: &Kind) -> Option<String> {
    use base64::Engine as _;
    let version = match kind.strategy.storage_version() {
        Some(version) => version,
        // Of the server's own, those that are stored as something else are told of by that.
        None if !kind.is_custom() && kind.is_stored() && !kind.strategy.converts() => &kind.version,
        None => return None,
    };
    let name = format!("{}/{version}/{}", kind.group, kind.kind);
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, name.as_bytes());
    Some(base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8]))
}

fn subresource(kind: &Kind, sub: &Subresource) -> Value {
    let mut out = json!({
        "name": format!("{}/{}", kind.plural, sub.name), "singularName": "",
        "namespaced": kind.is_namespaced(), "kind": sub.kind, "verbs": verbs(sub.verbs),
    });
    if let Some((group, version)) = sub.group_version {
        out["group"] = group.into();
        out["version"] = version.into();
    }
    out
}

fn aggregated_kind(kind: &Kind) -> Value {
    let scope = if kind.is_namespaced() { "Namespaced" } else { "Cluster" };
    let mut out = json!({
        "resource": kind.plural, "singularResource": kind.singular, "scope": scope,
        "responseKind": {"group": kind.group, "version": kind.version, "kind": kind.kind},
        "verbs": verbs(kind.verbs),
    });
    if !kind.short_names.is_empty() {
        out["shortNames"] = json!(kind.short_names);
    }
    if !kind.categories.is_empty() {
        out["categories"] = json!(kind.categories);
    }
    if !kind.subresources.is_empty() {
        let subs = kind.subresources.iter().map(|sub| {
            let (group, version) = sub.group_version.unwrap_or((&kind.group, &kind.version));
            json!({
                "subresource": sub.name, "verbs": verbs(sub.verbs),
                "responseKind": {"group": group, "version": version, "kind": sub.kind},
            })
        });
        out["subresources"] = subs.collect();
    }
    out
}

fn verbs(verbs: &[Verb]) -> Value {
    let mut words: Vec<&str> = verbs.iter().map(|v| v.as_str()).collect();
    words.sort_unstable();
    json!(words)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn discovery_tells_what_there_is() {
        let catalog = Catalog::new(apiserver_core::kinds::all().into_iter().map(Arc::new));
        let core = resource_list(&catalog, "", "v1").unwrap();
        let names: Vec<_> = core["resources"].as_array().unwrap().iter().map(|r| &r["name"]).collect();
        assert!(names.contains(&&"configmaps".into()), "{core}");
        assert!(resource_list(&catalog, "nobody", "v1").is_err());
        // Upstream's own figures.
        let hash = |name: &str| {
            let mut resources = core["resources"].as_array().unwrap().iter();
            resources.find(|r| r["name"] == name).unwrap()["storageVersionHash"].clone()
        };
        assert_eq!((hash("pods"), hash("configmaps")), ("xPOwRZ+Yhw8=".into(), "qFsyl6wFWjQ=".into()));
        assert_eq!(hash("pods/status"), Value::Null);
        let all = aggregated(&catalog, true, "v2");
        let resources = all["items"][0]["versions"][0]["resources"].as_array().unwrap();
        assert_eq!(resources.len(), catalog.of_version("", "v1").count());
    }
}
