//! What people expect of a cluster beside its agents, and what they would else add as Pods: addresses for Services of type
//! LoadBalancer, a default StorageClass, and manifests that are applied from a directory.
//!
//! Each is an agent of its own that meets the others at the API server only. `core` decides; the rest watches, looks at the
//! machine and writes.

mod changes;
mod core;
mod deploy;
mod events;
mod follow;
mod image_files;
mod local_path;
mod service_lb;
mod sockets;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::class::{Class, Classify};
use base::rng::Rng;
use client::Client;
use supervise::Supervisor;
use tokio_util::sync::CancellationToken;

pub use core::local_path::CLASS as STORAGE_CLASS;
pub use image_files::{Archives, Import};

pub use core::manifest::{OWNER as DEPLOY_OWNER, RECORD as DEPLOY_RECORD};

/// For tasks to end when the agent does.
const GRACE: Duration = Duration::from_secs(2);

/// What each of them needs.
#[derive(Clone, Debug)]
pub struct Start {
    pub client: Client,
    pub seed: u64,
}

/// The default StorageClass: directories of this machine.
#[derive(Clone, Debug)]
pub struct Storage {
    /// The Node whose disk it is.
    pub node: String,
    /// Where the directories of volumes are.
    pub base: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{act} {}: {cause}", .path.display())]
    Path { act: &'static str, path: PathBuf, cause: io::Error },
    #[error(transparent)]
    Task(supervise::Failure),
}

impl Classify for Error {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// Gives Services of type LoadBalancer the addresses of Nodes. `local` are those of this machine, where sockets may be in the
/// way.
pub async fn service_lb(start: Start, local: Vec<IpAddr>, token: CancellationToken) -> Result<(), Error> {
    run(start, token, |start, tasks| service_lb::start(start, local, tasks)).await
}

/// Makes volumes of the class `local-path`, and takes them away.
pub async fn local_storage(start: Start, storage: Storage, token: CancellationToken) -> Result<(), Error> {
    local_path::prepare(&storage)?;
    run(start, token, |start, tasks| local_path::start(start, storage, tasks)).await
}

/// Applies the manifests of a directory, and deletes what is no more in it.
pub async fn deploy(start: Start, directory: PathBuf, token: CancellationToken) -> Result<(), Error> {
    run(start, token, |start, tasks| deploy::start(start, directory, tasks)).await
}

/// Gives the archives of a directory to the runtime.
pub async fn image_files(archives: Archives, token: CancellationToken) -> Result<(), Error> {
    image_files::keep(archives, token).await;
    Ok(())
}

async fn run(
    start: Start,
    token: CancellationToken,
    begin: impl FnOnce((Client, Rng), &Supervisor),
) -> Result<(), Error> {
    let guard = token.child_token();
    let _stop = guard.clone().drop_guard();
    let tasks = Supervisor::new(guard.clone());
    begin((start.client, Rng::new(start.seed)), &tasks);
    guard.cancelled().await;
    let failure = tasks.failure();
    tasks.stop(GRACE).await;
    match failure {
        Some(failure) if !token.is_cancelled() => Err(Error::Task(failure)),
        _ => Ok(()),
    }
}
