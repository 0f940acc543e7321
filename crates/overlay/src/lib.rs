//! Pods of one machine reach those of others: the part of flanneld with its kube subnet manager, without a Pod.
//!
//! Each Node says in its annotations where it is (`core::lease`); each machine makes of it a tunnel, neighbours and routes
//! (`core::plan`), and brings its kernel there (`core::steps`, `kernel`). Nodes that run flannel are understood, and
//! understand. As long as there is no other Node, there is no device either.

mod agent;
mod core;
mod kernel;
mod output;
mod rules;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::class::{Class, Classify};
use base::rng::Rng;
use client::Client;
use supervise::Supervisor;
use tokio_util::sync::CancellationToken;

pub use core::files::conflist;
pub use core::net_conf::{Backend, NetConf};
pub use core::node::Keys;
pub use core::{Both, Family};
pub use kernel::clean_up;

/// For tasks to end when the agent does.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Debug)]
pub struct Settings {
    /// The Node of this machine.
    pub node: String,
    pub conf: NetConf,
    pub keys: Keys,
    /// Names or addresses of devices that others reach us by: the first that is there.
    pub devices: Vec<String>,
    /// Where others reach us, if not at an address of this machine.
    pub public: Both<IpAddr>,
    /// Pods look like their machine to the rest of the world.
    pub masquerades: bool,
    /// What flannel's CNI plugin reads.
    pub subnet_file: Option<PathBuf>,
    pub cni: Option<Cni>,
    /// The Node's condition NetworkUnavailable is ours to clear.
    pub tells_network: bool,
    pub seed: u64,
}

/// A network for CNI, kept equal to what the Node has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cni {
    pub path: PathBuf,
    pub bridge: String,
    /// Where addresses are that Pods have.
    pub leases: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{act}: {cause}")]
    Kernel { act: &'static str, cause: String },
    #[error("write {}: {cause}", .path.display())]
    File { path: PathBuf, cause: std::io::Error },
    #[error(transparent)]
    Task(supervise::Failure),
}

impl Classify for Error {
    fn class(&self) -> Class {
        match self {
            Error::Kernel { .. } | Error::File { .. } => Class::Retry,
            Error::Task(_) => Class::Fault,
        }
    }
}

/// Keeps the ways to the Pods of others until cancelled. What is in the kernel stays there: whoever starts again finds it.
pub async fn run(client: Client, settings: Settings, token: CancellationToken) -> Result<(), Error> {
    let guard = token.child_token();
    let _stop = guard.clone().drop_guard();
    let tasks = Supervisor::new(guard.clone());
    let rng = Rng::new(settings.seed);
    agent::start(client, rng, settings, &tasks);
    guard.cancelled().await;
    let failure = tasks.failure();
    tasks.stop(GRACE).await;
    match failure {
        Some(failure) if !token.is_cancelled() => Err(Error::Task(failure)),
        _ => Ok(()),
    }
}
