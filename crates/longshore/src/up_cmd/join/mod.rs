//! `longshore join`: this machine as a node of a cluster that is elsewhere: runtime, kubelet, kube-proxy and overlay in one process.
//!
//! With a token it finds out whom to trust as `kubeadm join` does, and its kubelet asks for its certificate as everywhere.
//! From then on it needs no token. In a cluster of kubeadm, kube-proxy and the network are DaemonSets: there it is the
//! kubelet and the runtime alone.

mod agents;
mod cluster;

use std::ffi::OsString;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use api::config::join::{Asked, Join, read, table};
use base::flags;
use client::{Client, Config, Request};
use kubelet::server::local_api::DEFAULT_SOCKET;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::agents::Agents;
use self::cluster::Cluster;
use super::choice::{Choice, Chosen};
use super::documents::Documents;
use super::layout::Layout;
use super::part::{self, Part};
use super::{LOOK, is_ready, leave, network, start_chosen, step, telling, wait_for};
use crate::agent_cmd::Signals;
use crate::node_here::NodeHere;
use crate::{KUBERNETES, agent_cmd, console};

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let asked = match read(args) {
        Ok(asked) => asked,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| console::err(&format!("Error: {mistake}\n")));
            return ExitCode::FAILURE;
        }
    };
    let join = match asked {
        Asked::Help => {
            console::out(&format!(
                "Make this machine a node of a cluster that runs elsewhere. `longshore token create` there prints the line.\n\n\
                 Usage:\n  longshore join https://HOST:6443 --token ID.SECRET --discovery-token-ca-cert-hash sha256:HASH [flags]\n  \
                 longshore join [flags]     once it has joined\n\nFlags:\n{}",
                flags::render_help(&table(), 100)
            ));
            return ExitCode::SUCCESS;
        }
        Asked::Version => {
            console::out(&format!("Kubernetes {KUBERNETES}\n"));
            return ExitCode::SUCCESS;
        }
        Asked::Join(join) => *join,
    };
    match run(join) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(join: Join) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("containers need root: run it as root".to_owned());
    }
    let documents = Documents::read(join.up.config.as_deref())?;
    let layout = Layout::prepare(&join.up)?;
    let node_ip = network::node_ip(&join.up)?;
    let host = agent_cmd::hostname().to_lowercase();
    let node_name = join.up.node_name.clone().unwrap_or(host);
    sys::memory::keep_one_heap();
    let verbosity = agent_cmd::begin_log(&join.up.logging, &[], &[]);
    let event_loop = part::event_loop()?;
    event_loop.block_on(async {
        let mut signals = Signals::catch()?;
        let cluster = tokio::select! {
            cluster = Cluster::find(&join, &layout, &node_name) => cluster?,
            () = signals.come() => return Ok(()),
        };
        let layout = if cluster.network.is_some() { layout } else { layout.with_the_machine_s_network() };
        step(&format!("API server    {}", cluster.server));
        let here = Here { join, documents, layout, node_ip, node_name, cluster, verbosity };
        here.serve(&mut signals).await
    })
}

/// What was found out before anything was started.
struct Here {
    join: Join,
    documents: Documents,
    layout: Layout,
    node_ip: IpAddr,
    node_name: String,
    cluster: Cluster,
    verbosity: base::verbosity::Verbosity,
}

// === impl Here ===

impl Here {
    /// Runs until SIGTERM or SIGINT.
    async fn serve(self, signals: &mut Signals) -> Result<(), String> {
        let choice = Choice::find(&self.join.up, &self.layout)?;
        let agents = Agents {
            up: Arc::new(self.join.up.clone()),
            layout: self.layout.clone(),
            documents: self.documents.clone(),
            node_name: self.node_name.clone(),
            node_ip: self.node_ip,
            socket: choice.now.socket(&self.layout),
            chosen: choice.now.clone(),
            cluster: self.cluster.clone(),
            is_own_network: !matches!(choice.now, Chosen::Endpoint { .. }),
            verbosity: self.verbosity.clone(),
        };
        let node = Arc::new(std::sync::Mutex::new(self.node_here(&choice.now)));
        let (token, tell) = (CancellationToken::new(), telling(node.clone()));
        let runtime = start_chosen(&choice, &self.join.up, &self.layout, tell.clone()).await?;
        let mut parts = Vec::new();
        for (name, make) in agents.parts() {
            parts.push(Part::start(name, make, &token, tell.clone())?);
        }
        agent_cmd::tell_systemd("READY=1");
        let ready = tell_when_ready(agents.clone(), Instant::now());
        let telling = supervise::spawn("ready line", ready);
        signals.come().await;
        telling.abort();
        agent_cmd::tell_systemd("STOPPING=1");
        token.cancel();
        wait_for(&parts, signals, self.join.up.stop_pods).await;
        leave(&self.join.up, &self.layout, &self.documents, &choice.now, runtime).await;
        node.lock().unwrap_or_else(PoisonError::into_inner).forget();
        Ok(())
    }

    /// Where things are, for the commands that look for a node.
    fn node_here(&self, chosen: &Chosen) -> NodeHere {
        let pods_socket = match self.layout.is_usual() {
            true => DEFAULT_SOCKET.into(),
            false => self.layout.kubelet_root().join("pods.sock"),
        };
        NodeHere {
            node_name: self.node_name.clone(),
            node_ip: self.node_ip.to_string(),
            server: self.cluster.server.clone(),
            data_dir: self.layout.data.clone(),
            state_dir: self.layout.state.clone(),
            pods_socket,
            runtime: chosen.to_string(),
            runtime_socket: chosen.socket(&self.layout),
            ..NodeHere::ours()
        }
    }
}

/// Says so once the Node is Ready; the token is not needed any more.
async fn tell_when_ready(agents: Agents, began: Instant) {
    let Ok(client) = agents.client("longshore", &CancellationToken::new()).await else { return };
    while !is_ready(&client, &agents.node_name).await {
        tokio::time::sleep(LOOK).await;
    }
    agents.cluster.forget_token(&agents.layout);
    let seconds = began.elapsed().as_secs_f32();
    step(&format!("node          {} {} is Ready ({seconds:.1} s)", agents.node_name, agents.node_ip));
}

/// Asks once, and does not wait for long.
async fn ask(config: &Config, path: &str) -> Result<Value, client::ClientError> {
    const WITHIN: Duration = Duration::from_secs(10);
    let options = client::Options {
        user_agent: format!("longshore-join/{KUBERNETES}"),
        timeout: WITHIN,
        repeats: 0,
        ..client::Options::default()
    };
    let client = Client::new(config.clone(), options).await?;
    let answer = client.ask_bytes(Request::get(path)).await?;
    // What is no JSON says nothing.
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}
