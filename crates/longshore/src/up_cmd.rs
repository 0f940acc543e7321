//! `longshore up`: API server, controllers, scheduler, kubelet, kube-proxy and DNS in one process.
//!
//! Each part has a thread and an event loop of its own, and meets the others at the API server only, over pipes in memory
//! (`part`, `agents`). The API server is first up and last down: without its store only a new process can go on, so its end is
//! ours. Any other part that ends is started again.

mod addons;
mod agents;
mod choice;
mod containerd;
mod dns_clients;
mod documents;
mod importer;
mod join;
mod joining;
mod kubelet_config;
mod layout;
mod network;
mod part;
mod stop_pods;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use api::config::apiserver::ApiServer;
use api::config::page::page_url;
use api::config::up::{FLAGS, Up};
use apiserver::auth::pki::Pki;
use apiserver::http::InProcess;
use apiserver::run::run as run_server;
use apiserver_core::request::User;
use base::flags;
use base::time::Wall;
use base::verbosity::Verbosity;
use client::{Client, Request};
use kubelet::server::local_api::DEFAULT_SOCKET;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;
use x509::{AlternativeNames, Subject};

pub(crate) use self::choice::{Choice, Chosen};
pub(crate) use self::join::main as join;
pub(crate) use self::network::{BRIDGE, node_ip};

use self::agents::Agents;
use self::containerd::RuntimeHere;
use self::documents::Documents;
use self::layout::Layout;
use self::part::{Part, Tell};
use self::stop_pods::Places;
use crate::agent_cmd::Signals;
use crate::node_here::NodeHere;
use crate::{KUBERNETES, agent_cmd, apiserver_cmd, console};

/// Between two looks at the kubelet's certificate: it is renewed when a third of its life is left.
const CERTIFICATE_PERIOD: Duration = Duration::from_secs(3600);
/// For a runtime to answer that was started to end its Pods.
const RUNTIME: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
/// Between two lines about what is waited for at the end.
const SAY_AGAIN: Duration = Duration::from_secs(3);

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let parsed = match flags::parse(FLAGS, args.iter().cloned()) {
        Ok(parsed) => parsed,
        Err(mistakes) => {
            mistakes.iter().for_each(|mistake| console::err(&format!("Error: {mistake}\n")));
            return ExitCode::FAILURE;
        }
    };
    let said = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if said("help") {
        console::out(&format!(
            "Run a whole Kubernetes node in this process: API server, controllers, scheduler, kubelet, kube-proxy, DNS.\n\n\
             Usage:\n  longshore up [flags]\n\nFlags:\n{}",
            flags::render_help(FLAGS, 100)
        ));
        return ExitCode::SUCCESS;
    }
    if said("version") {
        console::out(&format!("Kubernetes {KUBERNETES}\n"));
        return ExitCode::SUCCESS;
    }
    match Up::read(&parsed.values).and_then(run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn run(up: Up) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() && !up.disabled.contains("kubelet") {
        return Err(
            "containers need root: run it as root, or without Pods with --disable=kubelet,kube-proxy"
                .to_owned(),
        );
    }
    let documents = Documents::read(up.config.as_deref())?;
    let layout = Layout::prepare(&up)?;
    let node_ip = network::node_ip(&up)?;
    sys::memory::keep_one_heap();
    let verbosity = agent_cmd::begin_log(&up.logging, &[], &[]);
    let here = Here { documents, layout, node_ip, verbosity, up: Arc::new(up) };
    part::event_loop()?.block_on(here.serve())
}

/// What was found out before anything was started.
struct Here {
    up: Arc<Up>,
    documents: Documents,
    layout: Layout,
    node_ip: IpAddr,
    verbosity: Verbosity,
}

/// The API server on its thread.
struct Server {
    up: apiserver::run::Up,
    /// Cancelled after every other part has ended.
    token: CancellationToken,
    ended: oneshot::Receiver<Result<(), String>>,
}

// === impl Here ===

impl Here {
    /// Runs until SIGTERM or SIGINT.
    async fn serve(self) -> Result<(), String> {
        let mut signals = Signals::catch()?;
        let within = InProcess::new();
        let mut server = tokio::select! {
            server = self.start_server(within.clone()) => server?,
            () = signals.come() => return Ok(()),
        };
        step(&format!("API server    https://{}", server.up.address));
        let outcome = self.run_parts(within, &mut server, &mut signals).await;
        server.token.cancel();
        // It is not awaited twice: who saw it end has its answer already.
        let ended = if outcome.is_ok() { server.ended.await.unwrap_or(Ok(())) } else { Ok(()) };
        outcome.and(ended)
    }

    async fn run_parts(
        &self,
        within: InProcess,
        server: &mut Server,
        signals: &mut Signals,
    ) -> Result<(), String> {
        let choice = Choice::find(&self.up, &self.layout)?;
        let agents = self.agents(within, server, &choice.now)?;
        let node = self.tell_others(&agents, server);
        if let Some(url) = self.page() {
            step(&format!("node page     {url}"));
        }
        let tell = telling(node.clone());
        let runtime = match self.up.disabled.contains("kubelet") {
            true => None,
            false => Some(self.start_runtime(&choice, tell.clone()).await?),
        };
        let token = CancellationToken::new();
        let mut parts = Vec::new();
        for (name, make) in agents.parts() {
            parts.push(Part::start(name, make, &token, tell.clone())?);
        }
        let certificate = (server.up.pki.clone(), agents.node_name.clone(), self.node_ip);
        let renewing = supervise::spawn("kubelet certificate", renew(certificate));
        agent_cmd::tell_systemd("READY=1");
        let admin = agents.client(User::new("kubernetes-admin", &["system:masters"]), "longshore");
        let url = format!("https://{}", server.up.address);
        let joining = joining::tell(admin.clone(), agents.clone(), url);
        let joining = supervise::spawn("for machines that join", joining);
        let known = dns_clients::of_the_start(&self.up, self.node_ip);
        let following = dns_clients::follow(admin.clone(), known, agents.dns_clients.clone());
        let following = supervise::spawn("clients of DNS", following);
        let telling = supervise::spawn("ready line", tell_when_ready(admin, agents.clone(), Instant::now()));
        let outcome = tokio::select! {
            () = signals.come() => Ok(()),
            ended = &mut server.ended => match ended {
                Ok(Err(error)) => Err(error),
                _ => Err("the API server ended by itself".to_owned()),
            },
        };
        telling.abort();
        joining.abort();
        following.abort();
        renewing.abort();
        agent_cmd::tell_systemd("STOPPING=1");
        token.cancel();
        wait_for(&parts, signals, self.up.stop_pods).await;
        if let Some(runtime) = runtime {
            leave(&self.up, &self.layout, &self.documents, &choice.now, runtime).await;
        }
        node.lock().unwrap_or_else(PoisonError::into_inner).forget();
        outcome
    }

    /// Where things are, for the commands that look for a node.
    fn tell_others(&self, agents: &Agents, server: &Server) -> Arc<Mutex<NodeHere>> {
        let pods_socket = match self.layout.is_usual() {
            true => DEFAULT_SOCKET.into(),
            false => self.layout.kubelet_root().join("pods.sock"),
        };
        Arc::new(Mutex::new(NodeHere {
            node_name: agents.node_name.clone(),
            node_ip: self.node_ip.to_string(),
            server: format!("https://{}", server.up.address),
            data_dir: self.layout.data.clone(),
            state_dir: self.layout.state.clone(),
            pods_socket,
            runtime: agents.chosen.to_string(),
            runtime_socket: agents.socket.clone(),
            node_page: self.page(),
            ..NodeHere::ours()
        }))
    }

    /// Where the node can be looked at; on all addresses it can at the node's.
    fn page(&self) -> Option<String> {
        let address = self.up.node_page.filter(|_| !self.up.disabled.contains("kubelet"))?;
        let ip = if address.ip().is_unspecified() { self.node_ip } else { address.ip() };
        Some(page_url(SocketAddr::new(ip, address.port())))
    }

    async fn start_runtime(&self, choice: &Choice, tell: Tell) -> Result<RuntimeHere, String> {
        let config = network::ensure_config(&self.layout, &self.up, self.node_ip)?;
        let runtime = start_chosen(choice, &self.up, &self.layout, tell).await?;
        if matches!(choice.now, Chosen::Endpoint { .. }) && !network::machine_has_network() {
            tracing::warn!(
                hint = format!("cp {} /etc/cni/net.d/", config.display()),
                "the container runtime has no Pod network"
            );
        }
        Ok(runtime)
    }

    fn agents(&self, within: InProcess, server: &Server, chosen: &Chosen) -> Result<Agents, String> {
        let host = agent_cmd::hostname().to_lowercase();
        let node_name = self.up.node_name.clone().unwrap_or(host);
        let pki = &server.up.pki;
        let has_pods = !self.up.disabled.contains("kubelet");
        Ok(Agents {
            serving: kubelet_certificate(pki, &node_name, self.node_ip)?,
            ca: pki.ca().certificate_pem(),
            up: self.up.clone(),
            layout: self.layout.clone(),
            documents: self.documents.clone(),
            node_name,
            node_ip: self.node_ip,
            socket: if has_pods { chosen.socket(&self.layout) } else { Default::default() },
            has_images: watch::Sender::new(false),
            dns_clients: watch::Sender::new(dns_clients::of_the_start(&self.up, self.node_ip)),
            importer: importer::importer(chosen),
            chosen: chosen.clone(),
            is_own_network: has_pods && !matches!(chosen, Chosen::Endpoint { .. }),
            within,
            verbosity: self.verbosity.clone(),
        })
    }

    /// Starts the API server on a thread of its own and waits until it serves.
    async fn start_server(&self, within: InProcess) -> Result<Server, String> {
        let up = &self.up;
        let mut values: BTreeMap<&'static str, Value> = BTreeMap::new();
        values.insert("data-dir", json!(self.layout.data));
        values.insert("bind-address", json!(up.bind.ip()));
        values.insert("secure-port", json!(up.bind.port()));
        values.insert("advertise-address", json!(self.node_ip));
        values.insert("kubelet-certificate-authority", json!(self.layout.ca()));
        values.insert("tls-san", json!(up.tls_names));
        values.insert("service-cluster-ip-range", json!([up.service_cidr.to_string()]));
        values.insert("cluster-domain", json!(up.cluster_domain));
        if up.disabled.contains("metrics") {
            values.insert("runtime-config", json!({"metrics.k8s.io/v1beta1": false}));
        }
        let mut settings = apiserver_cmd::settings(ApiServer::read(&values)?)?;
        settings.in_process = Some(within);
        let (token, (ready, is_up), (tell, mut ended)) =
            (CancellationToken::new(), oneshot::channel(), oneshot::channel());
        let end = token.clone();
        let serve = move || {
            let served = apiserver_cmd::event_loop().and_then(|runtime| {
                let ready = |up: &apiserver::run::Up| _ = ready.send(up.clone());
                runtime.block_on(run_server(settings, ready, end)).map_err(|e| e.to_string())
            });
            let _ = tell.send(served);
        };
        let thread = thread::Builder::new().name("kube-apiserver".to_owned()).spawn(serve);
        thread.map_err(|e| format!("start a thread for the API server: {e}"))?;
        tokio::select! {
            biased;
            Ok(up) = is_up => Ok(Server { up, token, ended }),
            failed = &mut ended => match failed {
                Ok(Err(error)) => Err(self.hint(error)),
                _ => Err("the API server did not start".to_owned()),
            },
        }
    }

    /// What to change where a port is taken.
    fn hint(&self, error: String) -> String {
        match error.contains("Address already in use") {
            true => format!("{error}; another API server may run, or choose another port with --secure-port"),
            false => error,
        }
    }
}

/// Starts what was chosen. Pods that are elsewhere end there first: one that went on there would run twice.
async fn start_chosen(choice: &Choice, up: &Up, layout: &Layout, tell: Tell) -> Result<RuntimeHere, String> {
    if let Some(before) = choice.before.as_ref().filter(|before| before.may_have_pods(layout)) {
        step(&format!("runtime       was {before}: the Pods that run there end, and start again"));
        end_containers_of(before, up, layout).await?;
    }
    let runtime = RuntimeHere::start(&choice.now, up, layout, tell)?;
    choice.now.remember(layout)?;
    step(&format!("runtime       {}", choice.now));
    if choice.is_remembered && choice.now != Chosen::Embedded {
        step(
            "              this node was started on it; --embedded-runtime changes to the one in this program",
        );
    }
    Ok(runtime)
}

async fn end_containers_of(before: &Chosen, up: &Up, layout: &Layout) -> Result<(), String> {
    let runtime = RuntimeHere::start(before, up, layout, nobody())?;
    let soon = CancellationToken::new();
    let answers = tokio::time::timeout(RUNTIME, containerd::wait_for(&runtime.socket, &soon)).await;
    let left = match answers {
        Ok(()) => stop_pods::end_containers(&runtime.socket).await,
        Err(_) => vec![format!("nobody answers at unix://{}", runtime.socket.display())],
    };
    tokio::task::spawn_blocking(move || runtime.stop()).await.map_err(|e| format!("stop {before}: {e}"))?;
    match left.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the Pods of this node could not be ended on the runtime that they run on, {before}: {}. If nothing of it is left, remove {}",
            left.join("; "),
            layout.chosen_runtime().display()
        )),
    }
}

/// Pods stay or go, as is wanted; a containerd of our own goes.
async fn leave(up: &Up, layout: &Layout, documents: &Documents, chosen: &Chosen, runtime: RuntimeHere) {
    if up.stop_pods {
        step("stopping the Pods");
        for what in stop_pods::stop_pods(&runtime.socket, &places(layout, documents, chosen)).await {
            tracing::warn!(what, "left behind");
        }
    } else {
        step("Pods keep running; start again to look after them");
    }
    let stopped = tokio::task::spawn_blocking(move || runtime.stop()).await;
    if stopped.is_err() {
        tracing::error!("containerd may still run");
    }
}

fn places(layout: &Layout, documents: &Documents, chosen: &Chosen) -> Places {
    Places {
        kubelet_root: layout.kubelet_root(),
        logs: layout.pod_logs(),
        cgroup: cgroup_of_pods(documents, chosen),
    }
}

/// The cgroup that all Pods are in, where the kubelet makes it and not systemd.
fn cgroup_of_pods(documents: &Documents, chosen: &Chosen) -> Option<String> {
    let ours = json!({"cgroupDriver": chosen.cgroup_driver(), "cgroupRoot": ""});
    let config = documents.over(documents::KUBELET, ours);
    let root = config["cgroupRoot"].as_str().unwrap_or_default().trim_matches('/');
    let all = if root.is_empty() { "kubepods".to_owned() } else { format!("{root}/kubepods") };
    (config["cgroupDriver"] == "cgroupfs").then_some(all)
}

/// Ends all Pods of a node that does not run any more, and takes away what they hang on. Says what resisted.
pub(crate) fn end_pods(up: &Up) -> Result<Vec<String>, String> {
    if up.disabled.contains("kubelet") {
        return Ok(Vec::new());
    }
    let layout = Layout::prepare(up)?;
    let documents = Documents::read(up.config.as_deref())?;
    // Containers that nobody asks about do not end: the runtime has to run for it.
    let choice = Choice::find(up, &layout)?;
    // A change that was asked for and never made.
    let before = choice.before.filter(|before| before.may_have_pods(&layout));
    let chosen = before.unwrap_or(choice.now);
    let runtime = RuntimeHere::start(&chosen, up, &layout, nobody())?;
    let places = places(&layout, &documents, &chosen);
    let left = part::event_loop()?.block_on(async {
        let soon = CancellationToken::new();
        let answers = tokio::time::timeout(RUNTIME, containerd::wait_for(&runtime.socket, &soon)).await;
        match answers {
            Ok(()) => stop_pods::stop_pods(&runtime.socket, &places).await,
            Err(_) => vec![format!("containers: nobody answers at {}", runtime.socket.display())],
        }
    });
    runtime.stop();
    Ok(left)
}

/// Where no other command looks for the node.
fn nobody() -> Tell {
    Arc::new(|_, _| ())
}

/// Keeps what others read up to date with how the parts are.
fn telling(node: Arc<Mutex<NodeHere>>) -> Tell {
    Arc::new(move |name, standing| {
        let mut node = node.lock().unwrap_or_else(PoisonError::into_inner);
        node.parts.insert(name.to_owned(), standing);
        if let Err(error) = node.tell() {
            tracing::warn!(%error, "other commands cannot find this node");
        }
    })
}

/// Waits for the parts and says which ones; who asks twice does not want to wait.
async fn wait_for(parts: &[Part], signals: &mut Signals, stop_pods: bool) {
    let mut said: Option<Instant> = None;
    loop {
        let left: Vec<&str> = parts.iter().filter(|part| !part.has_ended()).map(|part| part.name).collect();
        if left.is_empty() {
            return;
        }
        if said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            said = Some(Instant::now());
            step(&format!("stopping: waiting for {}", left.join(", ")));
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
            () = signals.come(), if !stop_pods => return,
        }
    }
}

/// The certificate of the kubelet's port, signed by our authority.
fn kubelet_certificate(
    pki: &Pki,
    node_name: &str,
    node_ip: IpAddr,
) -> Result<(std::path::PathBuf, std::path::PathBuf), String> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Wall(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX));
    let subject = Subject::new(&format!("system:node:{node_name}"), &["system:nodes"]);
    let names = AlternativeNames {
        dns: vec![node_name.to_owned()],
        ips: vec![node_ip],
        ..AlternativeNames::default()
    };
    pki.serving("kubelet", subject, names, now).map_err(|e| e.to_string())
}

/// The kubelet follows the files.
async fn renew((pki, node_name, node_ip): (Arc<Pki>, String, IpAddr)) {
    loop {
        tokio::time::sleep(CERTIFICATE_PERIOD).await;
        let (pki, name) = (pki.clone(), node_name.clone());
        let renewed = tokio::task::spawn_blocking(move || kubelet_certificate(&pki, &name, node_ip)).await;
        if let Ok(Err(error)) = renewed {
            tracing::error!(error, "the kubelet's certificate was not renewed");
        }
    }
}

/// Says what to do next, once the Node is Ready.
async fn tell_when_ready(admin: Client, agents: Agents, began: Instant) {
    let kubeconfig = agents.layout.data.join("admin.kubeconfig");
    if !agents.up.disabled.contains("kubelet") {
        while !is_ready(&admin, &agents.node_name).await {
            tokio::time::sleep(LOOK).await;
        }
        let seconds = began.elapsed().as_secs_f32();
        step(&format!("node          {} {} is Ready ({seconds:.1} s)", agents.node_name, agents.node_ip));
    }
    step(&format!("next          export KUBECONFIG={}", kubeconfig.display()));
    step("              kubectl get nodes");
}

async fn is_ready(admin: &Client, node: &str) -> bool {
    let Ok(answer) = admin.ask_bytes(Request::get(format!("/api/v1/nodes/{node}"))).await else {
        return false;
    };
    let node: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let mut conditions = node["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// A line for the person at the terminal.
fn step(line: &str) {
    console::out(&format!("{line}\n"));
}
