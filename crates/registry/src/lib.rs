//! A hand for image registries: pulls what the distribution specification serves into the store of images.
//!
//! Where a registry is, whom to trust and which mirrors come first is read from a directory in the layout of containerd's
//! `certs.d`, so that what a machine has keeps its meaning.

mod challenge;
mod connect;
mod error;
mod exchange;
mod hosts;
mod login;
mod pull;

pub use error::Error;
pub use hosts::{BadHosts, Host, Server};
pub use login::Login;
pub use pull::{Pull, Registries, Settings};
