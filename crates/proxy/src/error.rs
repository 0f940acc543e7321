//! Why the agent ends.

use base::class::{Class, Classify};

use crate::{server, sysctl};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Client(#[from] client::ClientError),
    #[error(transparent)]
    Kubeconfig(#[from] client::ConfigError),
    #[error(transparent)]
    Sysctl(#[from] sysctl::Error),
    #[error(transparent)]
    Bind(#[from] server::BindError),
    #[error("proxy mode {mode} cannot be used: {why}")]
    Mode { mode: &'static str, why: String },
    #[error("node {0} has no Pod CIDR, which detectLocalMode NodeCIDR needs")]
    NoPodCidr(String),
    #[error("the Pod CIDRs of node {0} changed")]
    NewPodCidr(String),
    #[error("the configuration file {0} changed")]
    NewConfig(String),
    #[error("watching the configuration file {path}: {cause}")]
    WatchConfig { path: String, cause: std::io::Error },
    #[error("no support for primary IP family {0:?}")]
    NoPrimaryFamily(&'static str),
    #[error("kube-proxy configuration is incorrect: {0}")]
    Incorrect(String),
    #[error("removing rules: {0}")]
    Cleanup(String),
    #[error("a task failed: {0}")]
    Task(#[from] tokio::task::JoinError),
}

// === impl Error ===

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Fault
    }
}
