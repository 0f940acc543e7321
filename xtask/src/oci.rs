//! OCI image archives, written by hand: an image is a layer, two JSON documents and their digests.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::tarball::Tarball;

/// An image that starts a container the way `config` says, on one layer.
#[derive(Debug)]
pub(crate) struct Image<'a> {
    pub(crate) name: &'a str,
    pub(crate) layer: &'a [u8],
    /// The `config` object of the image configuration: Entrypoint, Cmd, Env, User, …
    pub(crate) config: Value,
}

/// One archive that holds all the images; what they share is stored once.
pub(crate) fn archive(images: &[Image<'_>]) -> Vec<u8> {
    let mut blobs = Blobs::default();
    let manifests: Vec<Value> = images.iter().map(|image| blobs.image(image)).collect();
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": manifests,
    });
    let mut tarball = Tarball::default();
    tarball.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    tarball.file("index.json", 0o644, index.to_string().as_bytes());
    for (digest, blob) in &blobs.0 {
        tarball.file(&format!("blobs/sha256/{digest}"), 0o644, blob);
    }
    tarball.finish()
}

#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

// === impl Blobs ===

impl Blobs {
    fn image(&mut self, image: &Image<'_>) -> Value {
        let layer = self.add("application/vnd.oci.image.layer.v1.tar", image.layer.to_vec());
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": image.config,
            "rootfs": { "type": "layers", "diff_ids": [layer["digest"]] },
        });
        let config = self.add("application/vnd.oci.image.config.v1+json", config.to_string().into_bytes());
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config,
            "layers": [layer],
        });
        let mut entry =
            self.add("application/vnd.oci.image.manifest.v1+json", manifest.to_string().into_bytes());
        entry["annotations"] = json!({ "io.containerd.image.name": image.name });
        entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
        entry
    }

    /// Stores a blob and returns its descriptor.
    fn add(&mut self, media_type: &str, blob: Vec<u8>) -> Value {
        let digest = hex(&Sha256::digest(&blob));
        let descriptor =
            json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": blob.len() });
        self.0.insert(digest, blob);
        descriptor
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The name images use for the processor this runs on.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_with_one_layer_share_it_and_archives_are_stable() {
        let image =
            |name| Image { name, layer: b"layer", config: json!({ "Env": [format!("NAME={name}")] }) };
        let mut blobs = Blobs::default();
        let (a, b) = (blobs.image(&image("a")), blobs.image(&image("b")));
        assert_ne!(a["digest"], b["digest"]);
        assert_eq!(blobs.0.len(), 5, "one layer, two configurations, two manifests");
        assert_eq!(archive(&[image("a")]), archive(&[image("a")]));
    }
}
