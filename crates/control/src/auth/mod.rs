//! Who is asking, and may they? Keys and certificates, authentication, authorization.

pub mod pki;
mod verify;
