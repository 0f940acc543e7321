//! Images on this node: pulled when a Pod needs them, with the credentials that fit, at the pace the
//! configuration allows.
//!
//! [`ImagePuller::ensure`] is the one way in. Behind it, [`Credentials`] collects logins from the node's
//! files and from exec providers, and [`Records`] remembers on disk who has proved access to what.

mod credentials;
mod provider;
mod puller;
mod records;

pub use credentials::{Credentials, NodeFiles, PullSecret};
pub use provider::{BadProviders, Provider, load_providers};
pub use puller::{ImagePuller, ImageRef, Settings, Want};
pub use records::Records;

use base::class::{Class, Classify};
use base::time::Mono;

/// Why a container waits for its image; the reason goes to its status.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.as_str())]
pub struct ImageError {
    pub reason: Reason,
    pub message: String,
    /// When another attempt is worth while, where that is known.
    pub retry_at: Option<Mono>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    ErrImagePull,
    ImagePullBackOff,
    ErrImageNeverPull,
    InvalidImageName,
    ImageInspectError,
    RegistryUnavailable,
    SignatureValidationFailed,
}

// === impl Reason ===

impl Reason {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ErrImagePull => "ErrImagePull",
            Self::ImagePullBackOff => "ImagePullBackOff",
            Self::ErrImageNeverPull => "ErrImageNeverPull",
            Self::InvalidImageName => "InvalidImageName",
            Self::ImageInspectError => "ImageInspectError",
            Self::RegistryUnavailable => "RegistryUnavailable",
            Self::SignatureValidationFailed => "SignatureValidationFailed",
        }
    }
}

impl Classify for ImageError {
    fn class(&self) -> Class {
        match self.reason {
            Reason::InvalidImageName => Class::Reject,
            _ => Class::Retry,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
