//! Reading one configuration document.

use std::io;
use std::path::{Component, Path, PathBuf};

use serde_json::{Map, Value};

use super::{ConfigError, MAX_FILE, ReadFiles};
use crate::yaml::{self, DuplicateKeys, YamlError};

pub(super) type Doc = Map<String, Value>;

/// A whole file, neither empty nor too large.
pub(super) fn read(files: &dyn ReadFiles, path: &Path) -> Result<Vec<u8>, ConfigError> {
    let label = path.display().to_string();
    match files.read(path) {
        Ok(bytes) if bytes.is_empty() => Err(undecodable(&label, "the file is empty".into())),
        Ok(bytes) if bytes.len() as u64 > MAX_FILE => {
            Err(undecodable(&label, format!("the file is larger than {MAX_FILE} bytes")))
        }
        Ok(bytes) => Ok(bytes),
        Err(e) => Err(unreadable(&label, &e)),
    }
}

/// A path that does not depend on where the program stands.
pub(super) fn absolute(files: &dyn ReadFiles, name: &str) -> Result<PathBuf, ConfigError> {
    let path = Path::new(name);
    if path.is_absolute() {
        return Ok(clean(path));
    }
    match files.current_dir() {
        Ok(dir) => Ok(clean(&dir.join(path))),
        Err(e) => Err(unreadable("the current directory", &e)),
    }
}

/// A key that is said twice is worth a warning only: the last one counts, as with upstream's lenient retry.
pub(super) fn decode_leniently(
    label: &str,
    bytes: &[u8],
    warnings: &mut Vec<String>,
) -> Result<Value, YamlError> {
    match yaml::to_value(bytes, DuplicateKeys::Reject) {
        Err(e @ YamlError::DuplicateKey { .. }) => {
            warnings.push(format!("{label}: {e}; the last one counts"));
            yaml::to_value(bytes, DuplicateKeys::LastWins)
        }
        other => other,
    }
}

/// The document must be of that kind; the two words that say so are taken off.
pub(super) fn expect_kind(
    label: &str,
    value: Result<Value, YamlError>,
    api_version: &str,
    kind: &str,
) -> Result<Doc, ConfigError> {
    let mut doc = match value {
        Ok(Value::Object(doc)) => doc,
        Ok(Value::Null) => return Err(undecodable(label, "the file is empty".into())),
        Ok(_) => return Err(undecodable(label, "the document is not an object".into())),
        Err(e) => return Err(undecodable(label, e.to_string())),
    };
    let mut word = |key: &str| match doc.remove(key) {
        Some(Value::String(s)) => s,
        _ => String::new(),
    };
    let (found_version, found_kind) = (word("apiVersion"), word("kind"));
    if found_version != api_version || found_kind != kind {
        let text = format!(
            "apiVersion {found_version:?} and kind {found_kind:?} must be {api_version:?} and {kind:?}"
        );
        return Err(undecodable(label, text));
    }
    Ok(doc)
}

/// In a configuration file null means unset.
pub(super) fn drop_nulls(doc: &mut Doc) {
    doc.retain(|_, v| !v.is_null());
    for value in doc.values_mut() {
        if let Value::Object(child) = value {
            drop_nulls(child);
        }
    }
}

/// Removes `.` and resolves `..` in the text alone, as Go's path cleaning does.
pub(super) fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

pub(super) fn unreadable(path: &str, e: &io::Error) -> ConfigError {
    ConfigError::Read { path: path.to_owned(), reason: e.to_string() }
}

fn undecodable(path: &str, reason: String) -> ConfigError {
    ConfigError::Decode { path: path.to_owned(), reason }
}
