//! Kubernetes kinds and configuration kinds: decoding, defaults and validation.

pub mod bearer;
pub mod config;
pub mod debugging;
pub mod field;
pub mod json;
pub mod names;
pub mod pod;
pub mod selector;
pub mod traced;
pub mod yaml;
pub mod zpages;
