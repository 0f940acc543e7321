//! Certificates and requests for them as data: who they speak for, how they are written, and how what others signed is read
//! and checked. Keys, and whatever is drawn by chance, are `tls`'s.

pub mod der;
mod leaf;
mod names;
pub mod pem;
mod request;
pub mod signers;
pub mod verify;
pub mod write;

pub use leaf::{Leaf, Usage, backdated};
pub use names::{AlternativeNames, Attribute, Subject};
pub use request::{Request, RequestError};
