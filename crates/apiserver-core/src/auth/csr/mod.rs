//! Certificate signing requests: what one asks for, and what becomes of it.

mod request;
pub mod serving;
mod signer;

pub use request::{Request, RequestError};
pub use signer::{CLIENT, CLIENT_KUBELET, LEGACY, SERVING, Step, step};
