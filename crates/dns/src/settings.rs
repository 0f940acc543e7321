//! What is asked for, and why it cannot be had.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use base::class::{Class, Classify};
use ipnet::IpNet;
use tokio::sync::watch;

use crate::publish::Published;

/// What the binary, or whoever starts this as a part, has to say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where questions are taken. A reply leaves from the address that was asked, so each is named.
    pub listen: Vec<IpAddr>,
    pub port: u16,
    /// Whose questions are answered; empty for everybody's. It may change.
    pub clients: watch::Receiver<Vec<IpNet>>,
    /// The zone, where no Corefile names one.
    pub cluster_domain: String,
    pub corefile: Source,
    pub health: Option<SocketAddr>,
    pub ready: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// The Service to keep in the API, where nobody else has made one.
    pub publish: Option<Published>,
    pub version: String,
    /// Spreads retries.
    pub seed: u64,
}

/// Where the Corefile is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Key `Corefile` of this ConfigMap. Without it, kubeadm's is used.
    ConfigMap {
        namespace: String,
        name: String,
    },
    File(PathBuf),
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address} for {what}: {cause}; {flag} says where")]
    Bind { what: &'static str, address: SocketAddr, cause: io::Error, flag: &'static str },
    #[error("reading Corefile {path}: {cause}")]
    Read { path: PathBuf, cause: io::Error },
    #[error("{path}: {cause}")]
    Corefile { path: PathBuf, cause: dns_core::corefile::Error },
    #[error("{0}")]
    Task(supervise::Failure),
}

// === impl Error ===

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Fault
    }
}
