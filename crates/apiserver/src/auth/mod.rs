//! Who is asking, and may they? Keys and certificates, authentication, authorization.

pub mod authn;
pub mod authz;
mod bootstrap_token;
pub mod csr;
pub mod feed;
pub mod impersonate;
pub mod node;
pub mod pki;
pub mod rbac;
pub mod review;
pub mod service_account;
pub mod static_tokens;
pub mod tokens;
mod verify;
