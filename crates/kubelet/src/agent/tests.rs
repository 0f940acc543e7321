#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use api::config::gates::Gates;
use base::duration::GoDuration;
use client::kubeconfig::Source;
use http::Response;
use http_body_util::Empty;
use hyper::body::Bytes;
use supervise::{Failure, OnStart};

use super::servers::{Listeners, Open, PageListener};
use super::*;
use crate::server::{self, local_api, secure};
use crate::testing::{ScriptedRuntime, client_of, clock};

/// Started again after a panic, on every node of a cluster.
const RESTARTED: [&str; 28] = [
    "container_gc",
    "cpu_sets",
    "csi_limits",
    "csi_node",
    "event_writer",
    "eviction",
    "host_addresses",
    "image_gc",
    "iptables_chains",
    "lease",
    "log_rotation",
    "memory_release",
    "mirror_pods",
    "node_status",
    "observer",
    "oom_watcher",
    "own_node",
    "plugin_watcher",
    "runtime_health",
    "serving_certificate",
    "shutdown",
    "source_api",
    "source_file",
    "source_local",
    "source_url",
    "status_writer",
    "volume_stats",
    "volume_sweep",
];
/// Those that depend on the unit file and on who renews the client certificate.
const SOMETIMES: [&str; 3] = ["watchdog", "client_certificate", "certificate_expiry"];
const ESSENTIAL: [&str; 9] = [
    "device_registration",
    "dispatcher",
    "healthz_server",
    "kubelet_server",
    "local_api",
    "lock_file",
    "node_page",
    "pod_resources",
    "read_only_server",
];

fn start_at(root: &Path) -> Start {
    let mut config = KubeletConfiguration {
        cgroups_per_qos: false,
        enforce_node_allocatable: Vec::new(),
        static_pod_path: root.join("manifests").display().to_string(),
        static_pod_url: "http://127.0.0.1:1/".to_owned(),
        server_tls_bootstrap: true,
        shutdown_grace_period: GoDuration::from_secs(1),
        pod_logs_dir: root.join("logs").display().to_string(),
        resolv_conf: String::new(),
        ..KubeletConfiguration::default()
    };
    config.eviction_hard.clear();
    let flags = KubeletFlags {
        root_dir: root.display().to_string(),
        cert_dir: root.join("pki").display().to_string(),
        kubeconfig: root.join("kubeconfig").display().to_string(),
        ..KubeletFlags::default()
    };
    let loaded = Loaded {
        config,
        flags,
        gates: Gates::default(),
        warnings: Vec::new(),
        not_honoured: Vec::new(),
        skipped: Vec::new(),
    };
    let nowhere = root.join("nowhere");
    Start {
        loaded,
        systemd: Systemd {
            socket: None,
            watchdog_usec: Some("60000000".to_owned()),
            watchdog_pid: Some(std::process::id().to_string()),
        },
        home: None,
        working_dir: root.to_owned(),
        places: Places { bus: nowhere.clone(), systemd: nowhere.clone(), settings: nowhere },
        proxies: Proxies::default(),
        within: None,
        version: "v1.36.4".to_owned(),
        verbosity: Verbosity::default(),
    }
}

/// A cluster whose API server knows nothing.
fn cluster(rotates: bool) -> Arc<Cluster> {
    let client = client_of(|_| async {
        let mut nothing = Response::new(Empty::<Bytes>::new());
        *nothing.status_mut() = http::StatusCode::NOT_FOUND;
        Ok(nothing)
    });
    let mut cluster = Cluster::reached_by(client, "n");
    cluster.credentials.rotate = rotates;
    let none = || Source::Inline(Vec::new());
    cluster.credentials.config.identity.certificate = Some((none(), none()));
    Arc::new(cluster)
}

fn builder(start: &Start, rotates: bool) -> Builder<'_> {
    let Loaded { config, flags, .. } = &start.loaded;
    let dirs = settings::dirs(config, flags);
    root::make_dirs(&dirs).unwrap();
    Builder {
        start,
        dirs,
        machine: Machine { cpus: 4, memory: facts::Memory { total: 1 << 32, swap: 0 }, ..Machine::default() },
        clock: clock(),
        metrics: Arc::default(),
        probe_metrics: Arc::default(),
        ports: Ports { metrics: Arc::default(), budget: serve::Budget::now() },
        runtime: Arc::new(ScriptedRuntime::default()),
        driver: Driver::Cgroupfs,
        cluster: Some(cluster(rotates)),
        drivers: Arc::default(),
        figures: Arc::default(),
        forecasts: Arc::default(),
        host_ips: watch::Sender::default(),
    }
}

/// Everything a node of a cluster has, on ports that nobody else has.
async fn ready(builder: &Builder<'_>, token: &CancellationToken) -> Ready {
    let (health, healthy) = watch::channel(RuntimeHealth::default());
    let (node, volumes) = builder.node(healthy, token).await.unwrap();
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let issued = builder.cluster.as_ref().map(|c| c.serving());
    let loaded = &builder.start.loaded;
    let rules = port::rules(loaded, secure::WHAT, any, "n", issued, false).unwrap().unwrap();
    let root = &builder.dirs.root;
    let open = Open {
        healthz: Some(server::bind("healthz", any).await.unwrap()),
        read_only: Some(server::bind("read-only API", any).await.unwrap()),
        secure: Some(secure::open(rules, None, builder.clock.clone()).await.unwrap()),
        page: Some(PageListener::Local(server::bind("the node page", any).await.unwrap())),
    };
    let listeners = Listeners { open, local: local_api::bind(&root.join("s")).unwrap() };
    let lock = LockFile::hold(&root.join("lock")).await.unwrap();
    let contention = Some(lock.listen().unwrap());
    // It lasts as long as the process: nobody else wants the file.
    std::mem::forget(lock);
    Ready { node: Arc::new(node), volumes, health, listeners, contention }
}

type Starts = BTreeMap<&'static str, u32>;

/// A node that runs, and how often each of its tasks started. Those that `kill` names die when they start.
struct Running {
    starts: watch::Receiver<Starts>,
    tasks: Supervisor,
    _dir: tempfile::TempDir,
}

async fn run_node(
    rotates: bool,
    kill: impl Fn(&'static str, u32) -> bool + Send + Sync + 'static,
) -> Running {
    let dir = tempfile::tempdir().unwrap();
    let start = start_at(dir.path());
    let (told, starts) = watch::channel(Starts::new());
    let on_start: OnStart = Arc::new(move |name| {
        let mut times = 0;
        told.send_modify(|starts| times = *starts.entry(name).and_modify(|n| *n += 1).or_insert(1));
        // The machine's own iptables are nothing for a test.
        assert!(!kill(name, times) && name != "iptables_chains", "killed by the test");
    });
    let tasks = Supervisor::watched(CancellationToken::new(), on_start);
    let builder = builder(&start, rotates);
    let ready = ready(&builder, tasks.token()).await;
    builder.start(ready, &tasks).await.unwrap();
    Running { starts, tasks, _dir: dir }
}

#[tokio::test]
async fn a_task_that_panics_is_started_again_and_every_task_is_in_a_list() {
    for rotates in [true, false] {
        let certificate = SOMETIMES[1 + usize::from(!rotates)];
        let restarted: Vec<&str> = RESTARTED.into_iter().chain(["watchdog", certificate]).collect();
        let mut node = run_node(rotates, |name, times| times == 1 && !ESSENTIAL.contains(&name)).await;
        let again = |starts: &Starts| restarted.iter().all(|name| starts.get(name) >= Some(&2));
        let starts = node.starts.wait_for(again).await.unwrap().clone();
        let mut known: Vec<&str> = restarted.iter().copied().chain(ESSENTIAL).collect();
        known.sort_unstable();
        assert_eq!(starts.into_keys().collect::<Vec<_>>(), known);
        assert_eq!(node.tasks.failure(), None);
        node.tasks.stop(Duration::ZERO).await;
    }
}

#[tokio::test]
async fn the_kubelet_ends_without_a_task_it_may_not_be_without() {
    for name in ESSENTIAL {
        let node = run_node(true, move |started, _| started == name).await;
        node.tasks.token().cancelled().await;
        assert_eq!(node.tasks.failure(), Some(Failure::Panicked(name)));
        node.tasks.stop(Duration::ZERO).await;
    }
}
