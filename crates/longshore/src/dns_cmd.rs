//! `longshore dns`: from arguments to a running agent.

use std::ffi::OsString;
use std::process::ExitCode;

use api::config::dns::{Loaded, load};
use client::{Client, Config, Options};
use dns::{Agent, Published, Settings, Source};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{KUBERNETES, agent_cmd};

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&loaded.logging, &[], &[]);
    let ended = agent_cmd::event_loop(4).and_then(|runtime| runtime.block_on(serve(loaded)));
    agent_cmd::exit_code("dns", ended)
}

/// Runs until SIGTERM or SIGINT.
async fn serve(loaded: Loaded) -> Result<(), String> {
    let access = Config::of_flags(&loaded.kubeconfig, &loaded.master, &agent_cmd::in_cluster());
    let access = access.map_err(|e| e.to_string())?;
    let options = Options { user_agent: format!("longshore-dns/{KUBERNETES}"), ..Options::default() };
    let client = Client::new(access, options).await.map_err(|e| e.to_string())?;
    let agent = Agent::bind(settings(loaded)).await.map_err(|e| e.to_string())?;
    let token = CancellationToken::new();
    agent_cmd::run_until_signal(agent.run(client, token.clone()), token).await
}

fn settings(loaded: Loaded) -> Settings {
    let published = |cluster_ip| {
        let metrics_port = loaded.metrics.map(|address| address.port());
        Some(Published { cluster_ip, endpoint: *loaded.listen.first()?, port: loaded.port, metrics_port })
    };
    let publish = loaded.service_ip.and_then(published);
    Settings {
        // Whoever binds an address says who can reach it.
        clients: watch::channel(Vec::new()).1,
        port: loaded.port,
        cluster_domain: loaded.cluster_domain,
        corefile: match loaded.corefile.is_empty() {
            true => Source::ConfigMap { namespace: "kube-system".into(), name: "coredns".into() },
            false => Source::File(loaded.corefile.into()),
        },
        health: loaded.health,
        ready: loaded.ready,
        metrics: loaded.metrics,
        publish,
        version: KUBERNETES.to_owned(),
        seed: agent_cmd::seed(),
        listen: loaded.listen,
    }
}
