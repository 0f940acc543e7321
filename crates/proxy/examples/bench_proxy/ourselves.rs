//! The agent in a process of its own, without the rest of the program around it.

use std::ffi::OsString;

use api::config::Outcome;
use api::config::proxy::load;
use base::verbosity::Verbosity;
use proxy::agent::{self, Start};
use tokio_util::sync::CancellationToken;

use crate::no_files::NoFiles;

/// Runs until it is killed, as `longshore kube-proxy` does.
pub(crate) fn run(args: &[OsString]) {
    let Ok(Outcome::Run(loaded)) = load(args, &NoFiles) else { panic!("arguments") };
    let start = Start {
        loaded: *loaded,
        hostname: "here".into(),
        in_cluster: (None, None),
        within: None,
        any_kernel: false,
        keeps_sources: false,
        version: "v0".into(),
        seed: 1,
        verbosity: Verbosity::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(8)
        .thread_keep_alive(std::time::Duration::from_secs(2))
        .build()
        .unwrap();
    runtime.block_on(agent::run(start, CancellationToken::new())).unwrap();
}
