//! What the API server serves, as far as the garbage collector asks: which resources there are, and what a reference means.

use std::sync::Arc;

use serde_json::Value;

/// A resource in one version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Served {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub is_namespaced: bool,
    /// Its objects can be listed, watched and deleted.
    pub is_collectable: bool,
}

/// Objects that nobody collects: they are many, and go by themselves.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Reads the documents of aggregated discovery, `/api` and `/apis`. The preferred version of a group comes first. None: this is
/// not such a document.
#[must_use]
pub fn served(document: &[u8]) -> Option<Vec<Served>> {
    let document: Value = serde_json::from_slice(document).ok()?;
    if document["kind"] != "APIGroupDiscoveryList" {
        return None;
    }
    let mut all = Vec::new();
    for group in items(&document["items"]) {
        let name = group["metadata"]["name"].as_str().unwrap_or_default();
        for version in items(&group["versions"]) {
            let resources = items(&version["resources"]);
            all.extend(
                resources.filter_map(|resource| Served::read(name, version["version"].as_str()?, resource)),
            );
        }
    }
    Some(all)
}

/// One version of everything that can be collected: the preferred one that can be.
#[must_use]
pub fn collectable(all: &[Arc<Served>]) -> Vec<Arc<Served>> {
    let mut chosen: Vec<Arc<Served>> = Vec::new();
    for served in all.iter().filter(|served| served.is_collectable) {
        if !chosen.iter().any(|known| known.is_same_resource(served)) {
            chosen.push(served.clone());
        }
    }
    chosen
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

// === impl Served ===

impl Served {
    fn read(group: &str, version: &str, resource: &Value) -> Option<Served> {
        let plural = resource["resource"].as_str()?;
        let verbs = |verb: &str| items(&resource["verbs"]).any(|known| known == verb);
        Some(Served {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            kind: resource["responseKind"]["kind"].as_str()?.to_owned(),
            is_namespaced: resource["scope"] == "Namespaced",
            is_collectable: ["list", "watch", "delete"].into_iter().all(verbs)
                && !IGNORED.contains(&(group, plural)),
        })
    }

    /// `apps/v1`, or `v1`.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Whether both are the same but for the version.
    #[must_use]
    pub fn is_same_resource(&self, other: &Served) -> bool {
        self.group == other.group && self.plural == other.plural
    }

    /// Where all of them are served, in one namespace or (with an empty one) in all.
    #[must_use]
    pub fn path(&self, namespace: &str) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        let (version, plural) = (self.api_version(), &self.plural);
        match namespace {
            "" => format!("{root}/{version}/{plural}"),
            namespace => format!("{root}/{version}/namespaces/{namespace}/{plural}"),
        }
    }

    #[must_use]
    pub fn object_path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{name}", self.path(namespace))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_discovery_document_tells_what_can_be_collected_and_in_which_version() {
        let all = ["create", "delete", "get", "list", "watch"];
        let resource = |plural: &str, kind: &str, verbs: &[&str]| {
            json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": verbs,
                   "subresources": [{"subresource": "status", "verbs": ["get"]}]})
        };
        let document = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {}, "versions": [{"version": "v1", "resources": [
                resource("pods", "Pod", &all), resource("events", "Event", &all),
                resource("bindings", "Binding", &["create"])]}]},
            {"metadata": {"name": "x.example.com"}, "versions": [
                {"version": "v2", "resources": [resource("things", "Thing", &all)]},
                {"version": "v1", "resources": [
                    resource("things", "Thing", &all), resource("olds", "Old", &all)]}]}]});
        let found = served(document.to_string().as_bytes()).unwrap();
        let all: Vec<Arc<Served>> = found.into_iter().map(Arc::new).collect();
        assert_eq!(all.len(), 6);
        let paths: Vec<String> = collectable(&all).iter().map(|served| served.path("n")).collect();
        assert_eq!(
            paths,
            [
                "/api/v1/namespaces/n/pods",
                "/apis/x.example.com/v2/namespaces/n/things",
                "/apis/x.example.com/v1/namespaces/n/olds"
            ]
        );
        assert_eq!(all[0].object_path("n", "p"), "/api/v1/namespaces/n/pods/p");
        assert_eq!(served(br#"{"kind": "APIGroupList", "groups": []}"#), None, "an old server");
        assert_eq!(served(b"no"), None);
    }
}
