//! The JSON documents of an image: OCI's and Docker's, which differ in the names of their types only.

mod config;
mod manifest;
mod platform;

pub use config::{Config, ImageConfig};
pub use manifest::{Descriptor, Document, Index, Manifest};
pub use platform::Platform;
