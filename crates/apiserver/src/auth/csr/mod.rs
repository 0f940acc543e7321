//! Certificate signing requests: how nodes get their first certificate and the next ones.

mod controller;
mod request;
mod signer;

pub use controller::{run, sweep};
pub use request::{Request, RequestError};
pub use signer::{CLIENT, CLIENT_KUBELET, LEGACY, SERVING, Step, step};
