//! Archives for tests, entry by entry, right or wrong.

use serde_json::json;

use crate::Digest;

#[derive(Default)]
pub(crate) struct Archive(Vec<u8>);

impl Archive {
    pub(crate) fn file(self, path: &str, content: &[u8]) -> Archive {
        self.raw(path, b'0', content.len() as u64, content)
    }

    pub(crate) fn directory(mut self, path: &str, mode: u32) -> Archive {
        self.header(path, b'5', 0, mode, "");
        self
    }

    pub(crate) fn symlink(mut self, path: &str, to: &str) -> Archive {
        self.header(path, b'2', 0, 0o777, to);
        self
    }

    pub(crate) fn hard_link(mut self, path: &str, to: &str) -> Archive {
        self.header(path, b'1', 0, 0o644, to);
        self
    }

    /// An extended header for the next entry.
    pub(crate) fn pax(self, records: &[(&str, &[u8])]) -> Archive {
        let mut bytes = Vec::new();
        for (key, value) in records {
            let rest = key.len() + value.len() + 3;
            let mut length = rest + 1;
            while length != rest + length.to_string().len() {
                length = rest + length.to_string().len();
            }
            bytes.extend_from_slice(format!("{length} {key}=").as_bytes());
            bytes.extend_from_slice(value);
            bytes.push(b'\n');
        }
        self.raw("PaxHeaders/x", b'x', bytes.len() as u64, &bytes)
    }

    /// A header that says what it is told to, and bytes behind it.
    pub(crate) fn raw(mut self, path: &str, flag: u8, size: u64, content: &[u8]) -> Archive {
        self.header(path, flag, size, 0o644, "");
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.0.extend_from_slice(&[0; 1024]);
        self.0
    }

    fn header(&mut self, path: &str, flag: u8, size: u64, mode: u32, link: &str) {
        let mut raw = [0u8; 512];
        raw[..path.len()].copy_from_slice(path.as_bytes());
        raw[100..107].copy_from_slice(format!("{mode:07o}").as_bytes());
        raw[108..115].copy_from_slice(b"0000000");
        raw[116..123].copy_from_slice(b"0000000");
        raw[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        raw[136..147].copy_from_slice(b"00000000000");
        raw[148..156].copy_from_slice(b"        ");
        raw[156] = flag;
        raw[157..157 + link.len()].copy_from_slice(link.as_bytes());
        raw[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u32 = raw.iter().map(|b| u32::from(*b)).sum();
        raw[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend_from_slice(&raw);
    }
}

/// Owners, whiteouts and their attributes are root's to set: without root these tests prove nothing.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// An image as OCI's layout has it.
pub(crate) fn layout(name: &str, layers: &[Vec<u8>]) -> Vec<u8> {
    layout_of(name, layers, |layer| layer.to_vec())
}

pub(crate) fn layout_of(name: &str, layers: &[Vec<u8>], pack: impl Fn(&[u8]) -> Vec<u8>) -> Vec<u8> {
    let mut archive = Archive::default();
    let mut descriptors = Vec::new();
    for layer in layers {
        let packed = pack(layer);
        let digest = Digest::of(&packed);
        descriptors.push(json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": digest.as_str(), "size": packed.len() }));
        archive = archive.file(&format!("blobs/sha256/{}", digest.hex()), &packed);
    }
    let diff_ids: Vec<String> = layers.iter().map(|layer| Digest::of(layer).to_string()).collect();
    let config = config(&diff_ids);
    let config_digest = Digest::of(&config);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": { "digest": config_digest.as_str(), "size": config.len() },
        "layers": descriptors,
    });
    let manifest = manifest.to_string().into_bytes();
    let manifest_digest = Digest::of(&manifest);
    let index = json!({ "schemaVersion": 2, "manifests": [{
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "digest": manifest_digest.as_str(),
        "size": manifest.len(),
        "annotations": { "io.containerd.image.name": name },
    }]});
    archive
        .file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)
        .file("index.json", index.to_string().as_bytes())
        .file(&format!("blobs/sha256/{}", manifest_digest.hex()), &manifest)
        .file(&format!("blobs/sha256/{}", config_digest.hex()), &config)
        .finish()
}

pub(crate) fn config(diff_ids: &[String]) -> Vec<u8> {
    json!({
        "architecture": crate::documents::Platform::of_this_machine().architecture,
        "os": "linux",
        "config": { "Cmd": ["sh"], "Env": ["A=1"] },
        "rootfs": { "type": "layers", "diff_ids": diff_ids },
    })
    .to_string()
    .into_bytes()
}
