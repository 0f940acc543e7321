//! Who is asking, and may they? Keys and certificates, authentication, authorization.

pub mod pki;
mod user;
mod verify;

pub use user::{User, groups, service_account_name};
