//! `longshore runtime`: from arguments to a running container runtime.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use api::config::runtime::{Loaded, load};
use client::Proxies;
use runtime::network::Networks;
use runtime::{Agent, Settings};
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// Threads for disks and mounts.
const BLOCKING: usize = 32;

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args, &RealFiles), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&loaded.logging, &[], &loaded.not_honoured);
    let ended = agent_cmd::event_loop(BLOCKING).and_then(|runtime| runtime.block_on(serve(loaded)));
    agent_cmd::exit_code("runtime", ended)
}

/// Runs until SIGTERM or SIGINT.
async fn serve(loaded: Loaded) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("containers need root".to_owned());
    }
    let token = CancellationToken::new();
    let agent = Agent::open(settings(loaded)).await.map_err(|e| e.to_string())?;
    agent_cmd::tell_systemd("READY=1");
    let served = agent_cmd::run_until_signal(agent.serve(token.clone()), token).await;
    agent_cmd::tell_systemd("STOPPING=1");
    served
}

pub(crate) fn settings(loaded: Loaded) -> Settings {
    let variable = |name: &str| std::env::var(name).ok();
    let registry = registry::Settings {
        hosts_dir: loaded.registry_config_path,
        proxies: Proxies::named_by(variable),
        ..registry::Settings::default()
    };
    Settings {
        listen: loaded.listen,
        networks: Networks {
            conf_dir: loaded.cni_conf_dir,
            bin_dirs: loaded.cni_bin_dirs,
            // It outlives a boot, as the addresses do that plugins have given away.
            cache_dir: loaded.root_dir.join("cni"),
            built_in: Some(Arc::new(crate::cni_cmd::OwnPlugins)),
        },
        cdi_dirs: loaded.cdi_spec_dirs,
        root_dir: loaded.root_dir,
        state_dir: loaded.state_dir,
        stream: loaded.stream,
        metrics: loaded.metrics,
        registry,
        handlers: loaded.handlers,
        version: KUBERNETES.to_owned(),
    }
}
