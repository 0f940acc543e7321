//! Certificate signing requests: what becomes of one.

pub mod serving;
mod signer;

use serde_json::Value;
use x509::{Request, RequestError};

use crate::doc;
pub use signer::{Step, step};
pub use x509::signers::{CLIENT, CLIENT_KUBELET, SERVING};

/// What `spec.request` of a CertificateSigningRequest asks for.
pub fn request(object: &Value) -> Result<Request, RequestError> {
    Request::from_spec(doc::text(object, "spec.request"))
}
