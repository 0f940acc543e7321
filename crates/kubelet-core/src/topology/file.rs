//! What state files of both managers have in common.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Why a state file cannot be gone on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    #[error("checkpoint is corrupted")]
    Corrupt,
    #[error("configured policy {ours:?} differs from state checkpoint policy {theirs:?}")]
    Policy { ours: String, theirs: String },
    #[error("{0}")]
    Content(String),
}

/// Decodes the file. Like Go's decoder, it does not mind the case of these names.
pub(super) fn from_json<T: DeserializeOwned>(text: &str, names: &[&str]) -> Result<T, FileError> {
    let content = |e: serde_json::Error| FileError::Content(e.to_string());
    let mut value: Value = serde_json::from_str(text).map_err(content)?;
    if let Value::Object(members) = &mut value {
        let given = std::mem::take(members);
        for (key, value) in given {
            let name = names.iter().find(|n| n.eq_ignore_ascii_case(&key));
            members.insert(name.map_or(key, |n| (*n).to_owned()), value);
        }
    }
    serde_json::from_value(value).map_err(content)
}
