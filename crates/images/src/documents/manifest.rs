//! Manifests and indexes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::platform::Platform;
use crate::digest::Digest;
use crate::error::Error;
use crate::limits::Limits;

const OCI_INDEX: &str = "application/vnd.oci.image.index.v1+json";
const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const DOCKER_LIST: &str = "application/vnd.docker.distribution.manifest.list.v2+json";
const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// What a name may lead to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    Manifest(Manifest),
    /// One image for each of several platforms.
    Index(Index),
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub config: Descriptor,
    /// The lowest first.
    pub layers: Vec<Descriptor>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    pub manifests: Vec<Descriptor>,
}

/// A blob: its name, its size, and what it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Claims {
    #[serde(default)]
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

// === impl Document ===

impl Document {
    /// What a registry is asked for, the best first.
    pub const ACCEPT: &'static [&'static str] = &[OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST];

    /// By what it says it is. A document that claims to be both a manifest and an index is neither: two readers could
    /// take it for different images.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Document, Error> {
        let bad = |why: String| Error::document("manifest", why);
        let kind: Claims = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if kind.schema_version == 1 {
            return Err(Error::Refused(
                "the image has a manifest of schema version 1, which is no longer supported: push it anew"
                    .into(),
            ));
        }
        let is_index = match kind.media_type.as_str() {
            OCI_INDEX | DOCKER_LIST => true,
            OCI_MANIFEST | DOCKER_MANIFEST => false,
            "" => kind.manifests.is_some(),
            other => return Err(Error::Refused(format!("the media type {other:?} is no image"))),
        };
        if kind.manifests.is_some() == kind.layers.is_some() || is_index != kind.manifests.is_some() {
            return Err(bad("it has to have either layers or manifests".into()));
        }
        if is_index {
            return Ok(Document::Index(serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if manifest.layers.len() > limits.layers {
            let (n, most) = (manifest.layers.len(), limits.layers);
            return Err(Error::Refused(format!("the image has {n} layers, and {most} is the limit")));
        }
        if let Some(foreign) = manifest.layers.iter().find(|layer| !layer.is_layer()) {
            return Err(Error::Refused(format!(
                "the media type {:?} is no layer of a container image",
                foreign.media_type
            )));
        }
        Ok(Document::Manifest(manifest))
    }
}

// === impl Index ===

impl Index {
    /// The image that runs best on `here`. Those that do not say what they are for come last.
    #[must_use]
    pub fn choose(&self, here: &Platform) -> Option<&Descriptor> {
        let fit = |descriptor: &Descriptor| match &descriptor.platform {
            Some(theirs) => here.fit(theirs).map(|fit| fit + 1),
            None => Some(0),
        };
        // The first of equals, as upstream.
        self.manifests
            .iter()
            .rev()
            .filter_map(|d| Some((fit(d)?, d)))
            .max_by_key(|(fit, _)| *fit)
            .map(|(_, d)| d)
    }
}

// === impl Descriptor ===

impl Descriptor {
    #[must_use]
    pub fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
    }

    fn is_layer(&self) -> bool {
        let (kind, _) = self.media_type.split_once('+').unwrap_or((&self.media_type, ""));
        matches!(
            kind,
            "application/vnd.oci.image.layer.v1.tar"
                | "application/vnd.docker.image.rootfs.diff.tar"
                | "application/vnd.docker.image.rootfs.diff.tar.gzip"
                | "application/vnd.docker.image.rootfs.diff.tar.zstd"
                | ""
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(value: &Value) -> Result<Document, Error> {
        Document::parse(value.to_string().as_bytes(), &Limits::default())
    }

    fn blob(media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": Digest::of(b"x").as_str(), "size": 1 })
    }

    #[test]
    fn a_document_is_what_it_says_or_refused() {
        let gzip = blob("application/vnd.oci.image.layer.v1.tar+gzip");
        let docker = blob("application/vnd.docker.image.rootfs.diff.tar.gzip");
        let config = blob("application/vnd.oci.image.config.v1+json");
        let rows = [
            (
                json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": [gzip]}),
                "manifest",
            ),
            (
                json!({"schemaVersion": 2, "mediaType": DOCKER_MANIFEST, "config": config, "layers": [docker]}),
                "manifest",
            ),
            (json!({"schemaVersion": 2, "config": config, "layers": []}), "manifest"),
            (json!({"schemaVersion": 2, "manifests": []}), "index"),
            (json!({"schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": []}), "index"),
            (json!({"schemaVersion": 1, "fsLayers": []}), "schema version 1"),
            (json!({"mediaType": OCI_MANIFEST, "manifests": []}), "either layers or manifests"),
            (json!({"mediaType": OCI_INDEX, "manifests": [], "layers": []}), "either layers or manifests"),
            (json!({"mediaType": "text/html", "layers": []}), "\"text/html\" is no image"),
            (
                json!({"config": config, "layers": [blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip")]}),
                "no layer",
            ),
            (json!({"config": config, "layers": [{"digest": "sha256:..", "size": 1}]}), "is no digest"),
            (json!([]), "manifest"),
        ];
        for (document, want) in rows {
            let found = match parse(&document) {
                Ok(Document::Manifest(_)) => "manifest".to_owned(),
                Ok(Document::Index(_)) => "index".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(found.contains(want), "{document}: {found}");
        }
    }

    #[test]
    fn an_index_leads_to_the_image_of_this_machine() {
        let one = |architecture: &str, content: &[u8]| {
            json!({"mediaType": OCI_MANIFEST, "digest": Digest::of(content).as_str(), "size": 1,
                   "platform": {"os": "linux", "architecture": architecture}})
        };
        let index = json!({"manifests": [one("386", b"a"), one("arm64", b"b"), one("amd64", b"c"), one("amd64", b"d"),
            {"digest": Digest::of(b"e").as_str(), "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}}]});
        let Document::Index(index) = parse(&index).unwrap() else { panic!("an index") };
        let here = |architecture: &str| Platform {
            os: "linux".into(),
            architecture: architecture.into(),
            variant: String::new(),
        };
        assert_eq!(index.choose(&here("amd64")).unwrap().digest, Digest::of(b"c"));
        assert_eq!(index.choose(&here("arm64")).unwrap().digest, Digest::of(b"b"));
        assert_eq!(index.choose(&here("riscv64")), None);
    }
}
