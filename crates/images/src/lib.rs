//! A hand for images: what they are called and made of, and the store that keeps them unpacked, ready to be stacked.
//!
//! An image comes as an archive ([`import`]) and may go as one ([`export`]). Its layers are unpacked once and lie under the digest of their
//! uncompressed bytes, whichever image brought them: overlayfs stacks them when a container starts. What a stranger wrote is
//! bounded ([`Limits`]), and proven by its digest before it can be found.

mod archive;
mod compose;
mod decompress;
mod digest;
pub mod documents;
mod error;
mod export;
mod layer;
mod limits;
mod records;
mod store;
pub mod tar;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod unpack;

pub use archive::import;
pub use digest::{BadDigest, DiffId, Digest, Hashing};
pub use error::Error;
pub use export::export;
pub use layer::add as add_layer;
pub use limits::Limits;
pub use store::{Arrived, Held, Image, Store, Usage};
