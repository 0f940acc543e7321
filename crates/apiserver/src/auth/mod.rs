//! Who is asking, and may they? Keys and certificates, authentication, authorization.

pub mod authn;
pub mod authorizer_informer;
mod bootstrap_token;
pub mod csr;
pub mod impersonate;
pub mod pki;
pub mod review;
pub mod service_account;
pub mod static_tokens;
pub mod tokens;
