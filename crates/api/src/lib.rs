//! Kubernetes kinds and configuration kinds: decoding, defaults and validation.

pub mod config;
pub mod pod;
pub mod yaml;
