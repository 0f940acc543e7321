//! Kubernetes kinds and configuration kinds: decoding, defaults and validation.

pub mod bearer;
pub mod config;
pub mod cron;
pub mod debugging;
pub mod events;
pub mod field;
pub mod image;
pub mod json;
pub mod names;
pub mod path_decode;
pub mod pod;
pub mod quota;
pub mod selector;
pub mod yaml;
pub mod zpages;
