//! The configuration of an image: how its containers start, and what its layers are.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use super::platform::Platform;
use crate::digest::DiffId;
use crate::error::Error;
use crate::limits::Limits;

/// How containers of an image start, unless they are told otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Config {
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Paths that are volumes.
    #[serde(deserialize_with = "names")]
    pub volumes: Vec<String>,
}

/// The whole document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    pub config: Config,
    pub platform: Platform,
    /// The lowest layer first.
    pub diff_ids: Vec<DiffId>,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(default, deserialize_with = "or_default")]
    config: Config,
    #[serde(flatten)]
    platform: Platform,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    #[serde(default, deserialize_with = "or_default")]
    diff_ids: Vec<DiffId>,
}

// === impl ImageConfig ===

impl ImageConfig {
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<ImageConfig, Error> {
        let raw: Raw =
            serde_json::from_slice(bytes).map_err(|e| Error::document("configuration of the image", e))?;
        if raw.rootfs.diff_ids.len() > limits.layers {
            return Err(Error::Refused(format!(
                "the image has {} layers, and {} is the limit",
                raw.rootfs.diff_ids.len(),
                limits.layers
            )));
        }
        Ok(ImageConfig { config: raw.config, platform: raw.platform, diff_ids: raw.rootfs.diff_ids })
    }
}

/// Go writes `null` for what is empty.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// A set is an object with empty values.
fn names<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let set: Option<BTreeMap<String, serde::de::IgnoredAny>> = Option::deserialize(from)?;
    Ok(set.unwrap_or_default().into_keys().collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_docker_and_buildkit_write_is_read() {
        let text = r#"{"architecture":"arm64","variant":"v8","os":"linux","created":"2026-01-01T00:00:00Z",
            "config":{"User":"www-data","Env":["A=1"],"Entrypoint":null,"Cmd":["sh"],"WorkingDir":"/srv",
            "StopSignal":"SIGQUIT","Labels":{"a":"b"},"Volumes":{"/data":{},"/log":{}},"ExposedPorts":{"80/tcp":{}}},
            "rootfs":{"type":"layers","diff_ids":["sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"]}}"#;
        let image = ImageConfig::parse(text.as_bytes(), &Limits::default()).unwrap();
        assert_eq!(image.config.entrypoint, Vec::<String>::new());
        assert_eq!(image.config.volumes, ["/data", "/log"]);
        assert_eq!((image.platform.architecture.as_str(), image.platform.variant.as_str()), ("arm64", "v8"));
        assert_eq!(image.diff_ids.len(), 1);
    }

    #[test]
    fn an_empty_configuration_is_one() {
        let image = ImageConfig::parse(br#"{"rootfs":{},"config":null}"#, &Limits::default()).unwrap();
        assert_eq!(image, ImageConfig::default());
    }

    #[test]
    fn a_layer_that_is_no_digest_is_refused_by_name() {
        let bad = br#"{"rootfs":{"diff_ids":["../../etc"]}}"#;
        let error = ImageConfig::parse(bad, &Limits::default()).unwrap_err().to_string();
        assert!(error.contains("../../etc"), "{error}");
        let many = format!(
            r#"{{"rootfs":{{"diff_ids":[{}]}}}}"#,
            vec![format!("{:?}", crate::Digest::of(b"").as_str()); 501].join(",")
        );
        let error = ImageConfig::parse(many.as_bytes(), &Limits::default()).unwrap_err().to_string();
        assert_eq!(error, "the image has 501 layers, and 500 is the limit");
    }
}
