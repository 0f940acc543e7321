//! The labels of a namespace that ask for a level.

use std::fmt;

use api::field::{FieldErrors, Path};
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Privileged,
    Baseline,
    Restricted,
}

/// A level as a version of Kubernetes defined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standard {
    pub level: Level,
    pub version: Version,
}

/// `v1.N`, or the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    Latest,
    Minor(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Policy {
    pub enforce: Standard,
    pub audit: Standard,
    pub warn: Standard,
}

const PREFIX: &str = "pod-security.kubernetes.io/";

// === impl Policy ===

impl Policy {
    /// The policy of these labels. A level that cannot be read is the strictest where it is enforced, and none where it
    /// only warns.
    pub(super) fn read(labels: &Value) -> (Policy, FieldErrors) {
        let mut errors = FieldErrors::default();
        let at = Path::new("metadata").child("labels");
        let mut standard = |mode: &str, unreadable: Level| {
            let level_key = format!("{PREFIX}{mode}");
            let level = match labels[&level_key].as_str() {
                None => Level::Privileged,
                Some(text) => Level::parse(text).unwrap_or_else(|| {
                    errors.invalid(
                        &at.key(&level_key),
                        text,
                        "must be one of privileged, baseline, restricted",
                    );
                    unreadable
                }),
            };
            let version_key = format!("{PREFIX}{mode}-version");
            let version = match labels[&version_key].as_str() {
                None => Version::Latest,
                Some(text) => Version::parse(text).unwrap_or_else(|| {
                    errors.invalid(&at.key(&version_key), text, "must be \"latest\" or \"v1.x\"");
                    Version::Latest
                }),
            };
            Standard { level, version }
        };
        let enforce = standard("enforce", Level::Restricted);
        let audit = standard("audit", Level::Privileged);
        let mut warn = standard("warn", Level::Privileged);
        // What is enforced on Pods is warned about on what makes them, unless the namespace says otherwise.
        let said = |name: &str| labels.get(format!("{PREFIX}{name}")).is_some();
        if !said("warn") && enforce.level > warn.level {
            warn.level = enforce.level;
            if !said("warn-version") {
                warn.version = enforce.version;
            }
        }
        (Policy { enforce, audit, warn }, errors)
    }

    pub(super) fn is_privileged(&self) -> bool {
        [self.enforce, self.audit, self.warn].iter().all(|s| s.level == Level::Privileged)
    }
}

// === impl Level ===

impl Level {
    fn parse(text: &str) -> Option<Level> {
        Some(match text {
            "privileged" => Level::Privileged,
            "baseline" => Level::Baseline,
            "restricted" => Level::Restricted,
            _ => return None,
        })
    }
}

// === impl Version ===

impl Version {
    fn parse(text: &str) -> Option<Version> {
        if text == "latest" {
            return Some(Version::Latest);
        }
        let minor = text.strip_prefix("v1.")?;
        let plain = minor == "0" || (!minor.starts_with('0') && minor.bytes().all(|b| b.is_ascii_digit()));
        minor.parse().ok().filter(|_| plain).map(Version::Minor)
    }

    pub fn is_at_least(self, minor: u32) -> bool {
        match self {
            Version::Latest => true,
            Version::Minor(own) => own >= minor,
        }
    }
}

impl fmt::Display for Standard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Privileged => "privileged",
            Level::Baseline => "baseline",
            Level::Restricted => "restricted",
        };
        match self.version {
            Version::Latest => write!(f, "{level}:latest"),
            Version::Minor(minor) => write!(f, "{level}:v1.{minor}"),
        }
    }
}
