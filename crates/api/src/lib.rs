//! Kubernetes kinds: decoding, defaults and validation.

pub mod pod;
