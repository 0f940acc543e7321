//! What Kubernetes objects look like, and what follows from it: strict and lenient decoding, patches, field ownership,
//! OpenAPI.
//!
//! Pure: documents in, documents out. The types are read at build time from the Kubernetes types the workspace
//! depends on, so there is one source of field truth.

pub mod apply;
pub mod custom;
pub mod decode;
pub mod jsonpath;
pub mod lenient;
pub mod nesting;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod types;

#[cfg(test)]
mod testing;
