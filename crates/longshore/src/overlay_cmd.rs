//! `longshore overlay`: from arguments to a running agent.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use api::config::MAX_FILE;
use api::config::ReadFiles;
use api::config::overlay::{Loaded, load};
use client::{Client, Config, Options, Request};
use overlay::{Both, Cni, Keys, NetConf, Settings};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::files::RealFiles;
use crate::{KUBERNETES, agent_cmd};

/// The bridge of the network that is written where one is asked for, and where its addresses are.
const BRIDGE: &str = "longshore0";
const LEASES: &str = "/run/longshore/cni";

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    agent_cmd::obey(load(args), run)
}

fn run(loaded: Loaded) -> ExitCode {
    sys::memory::keep_one_heap();
    agent_cmd::begin_log(&loaded.logging, &[], &[]);
    let ended = agent_cmd::event_loop(4).and_then(|runtime| runtime.block_on(serve(loaded)));
    agent_cmd::exit_code("overlay", ended)
}

/// Runs until SIGTERM or SIGINT.
async fn serve(loaded: Loaded) -> Result<(), String> {
    let conf = net_conf(&loaded.net_conf)?;
    let keys = Keys::new(&loaded.prefix).map_err(|e| format!("--kube-annotation-prefix: {e}"))?;
    let access = Config::of_flags(&loaded.kubeconfig, &loaded.master, &agent_cmd::in_cluster());
    let access = access.map_err(|e| e.to_string())?;
    let options = Options { user_agent: format!("longshore-overlay/{KUBERNETES}"), ..Options::default() };
    let client = Client::new(access, options).await.map_err(|e| e.to_string())?;
    let token = CancellationToken::new();
    let settings = Settings {
        node: node_name(&client, &loaded.node).await?,
        conf,
        keys,
        devices: loaded.devices,
        public: Both { v4: loaded.public_v4, v6: loaded.public_v6 },
        masquerades: loaded.masquerades,
        subnet_file: loaded.subnet_file,
        cni: loaded.cni_file.map(|path| Cni { path, bridge: BRIDGE.to_owned(), leases: LEASES.into() }),
        tells_network: loaded.tells_network,
        seed: agent_cmd::seed(),
    };
    agent_cmd::run_until_signal(overlay::run(client, settings, token.clone()), token).await
}

fn net_conf(path: &Path) -> Result<NetConf, String> {
    let within = |e: String| format!("--net-config-path {}: {e}", path.display());
    let bytes = RealFiles.read(path).map_err(|e| within(e.to_string()))?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(within(format!("larger than {MAX_FILE} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| within("not valid UTF-8 text".to_owned()))?;
    let conf = NetConf::parse(&text).map_err(within)?;
    for field in &conf.ignored {
        tracing::warn!(field, "a field of the network's configuration does not act");
    }
    Ok(conf)
}

/// As flanneld finds it: named, of the Pod that this is, or the host's.
async fn node_name(client: &Client, given: &str) -> Result<String, String> {
    let variable = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
    if let Some(name) =
        Some(given.to_owned()).filter(|name| !name.is_empty()).or_else(|| variable("NODE_NAME"))
    {
        return Ok(name);
    }
    let (Some(namespace), Some(name)) = (variable("POD_NAMESPACE"), variable("POD_NAME")) else {
        return Ok(agent_cmd::hostname().to_lowercase());
    };
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
    let pod = client.ask_bytes(Request::get(path)).await;
    let pod = pod.map_err(|e| format!("find the Node of Pod {namespace}/{name}: {e}"))?;
    let pod: Value = serde_json::from_slice(&pod).unwrap_or_default();
    let node = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
    node.map(str::to_owned).ok_or_else(|| format!("Pod {namespace}/{name} is on no Node"))
}
