//! Kubernetes kinds: decoding, defaults and validation.

pub mod field;
pub mod pod;
pub mod traced;
pub mod yaml;
