//! The errors of the contract.

use serde_json::{Value, json};

/// Numbers that callers know; from 100 on they are ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    Version = 1,
    /// A field that we know and do not do.
    Unsupported = 2,
    /// The namespace is not there.
    Container = 3,
    Environment = 4,
    Io = 5,
    Decode = 6,
    Config = 7,
    Later = 11,
    Unavailable = 50,
    /// The kernel would not.
    Kernel = 100,
    /// No address is left.
    Full = 101,
    /// Somebody else has it.
    Taken = 102,
    /// It is not as it was left.
    Changed = 103,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct CniError {
    pub code: u64,
    pub message: String,
    pub details: String,
}

// === impl CniError ===

impl CniError {
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code: code as u64, message: message.into(), details: String::new() }
    }

    /// A field of the configuration that cannot be as it is.
    #[must_use]
    pub fn field(path: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Code::Config, format!("{path}: {why}"))
    }

    #[must_use]
    pub fn io(act: impl std::fmt::Display, cause: &dyn std::error::Error) -> Self {
        Self::new(Code::Io, format!("{act}: {cause}"))
    }

    #[must_use]
    pub fn kernel(act: impl std::fmt::Display, cause: &dyn std::error::Error) -> Self {
        Self::new(Code::Kernel, format!("{act}: {cause}"))
    }

    /// As it is printed.
    #[must_use]
    pub fn to_json(&self, version: &str) -> Value {
        let mut value = json!({"cniVersion": version, "code": self.code, "msg": self.message});
        if !self.details.is_empty() {
            value["details"] = json!(self.details);
        }
        value
    }
}
