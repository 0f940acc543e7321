//! Who is asking, and may they? Keys and certificates, authentication, authorization.

pub mod authz;
pub mod node;
pub mod pki;
pub mod rbac;
mod verify;
