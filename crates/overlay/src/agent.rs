//! Follows the Nodes, and after each change brings the machine where they want it. Levels, not edges: each round looks at
//! everything, so a round that was missed, or a process that was killed, costs nothing but time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use client::reflector::{Cache, Change, Objects, Reflector};
use client::{Client, ClientError, Request, Resource};
use serde_json::json;
use supervise::Supervisor;
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::core::files::{conflist, is_conflist, subnet_env};
use crate::core::lease::{Lease, Own};
use crate::core::node::Node;
use crate::core::plan::{mtu, plan};
use crate::core::underlay::{Local, choose};
use crate::core::{Both, Family};
use crate::kernel::Kernel;
use crate::{Error, Settings, output, rules};

/// Changes that come together are looked at together.
const TOGETHER: Duration = Duration::from_millis(20);
/// Before what did not work is tried again.
const AGAIN: Duration = Duration::from_secs(2);
/// Between two looks at what others may have changed in the kernel, where there are other Nodes; and where there are none.
const LOOK: Duration = Duration::from_secs(10);
const LOOK_ALONE: Duration = Duration::from_secs(60);

/// Brings everything where it is wanted, round by round.
struct Rounds {
    client: Client,
    settings: Arc<Settings>,
    nodes: Cache<Node>,
    /// What was said of which Node, or of the machine: said once.
    told: BTreeSet<(String, String)>,
    is_up: bool,
}

/// What one round found and did.
struct Outcome {
    own: Own,
    /// Nodes that cannot be reached, and why.
    wrong: Vec<(String, String)>,
    peers: usize,
    orders: usize,
    /// What did not work of it.
    failed: Option<Error>,
}

pub(crate) fn start(client: Client, mut rng: Rng, settings: Settings, tasks: &Supervisor) {
    let (nodes, changed) = (Cache::new(Vec::new()), Arc::new(Notify::new()));
    let (told, of, wake, rng) = (nodes.clone(), client.clone(), changed.clone(), rng.child());
    tasks.restart("watch of Nodes", move || {
        let objects = Objects::keeping(of.clone(), Node::of);
        let mut reflector = Reflector::with_cache(
            of.clone(),
            Resource::new("/api/v1/nodes"),
            rng.clone(),
            objects,
            told.clone(),
        );
        let wake = wake.clone();
        async move {
            loop {
                match reflector.next().await {
                    // A heartbeat is none of ours.
                    Change::Updated { old, new, .. } if old == new => {}
                    _ => wake.notify_one(),
                }
            }
        }
    });
    let settings = Arc::new(settings);
    let all = Rounds { client, settings, nodes, told: BTreeSet::new(), is_up: false };
    tasks.lasting("overlay", Arc::new(Mutex::new(all)), move |all, token| {
        let changed = changed.clone();
        async move { all.lock().await.run(changed, token).await }
    });
}

// === impl Rounds ===

impl Rounds {
    async fn run(&mut self, changed: Arc<Notify>, token: CancellationToken) {
        let rounds = async {
            loop {
                let pause = self.round().await;
                _ = tokio::time::timeout(pause, changed.notified()).await;
                tokio::time::sleep(TOGETHER).await;
            }
        };
        token.run_until_cancelled(rounds).await.unwrap_or(());
    }

    /// Says when the next one is due if nothing happens.
    async fn round(&mut self) -> Duration {
        if !self.nodes.has_synced() {
            return LOOK_ALONE;
        }
        let mut nodes = self.nodes.all();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        let Some(own) = nodes.iter().position(|node| node.name == self.settings.node) else {
            self.tell("", &format!("there is no Node {} yet", self.settings.node));
            return LOOK_ALONE;
        };
        let (own, settings) = (nodes.remove(own), self.settings.clone());
        let is_told = own.is_network_told;
        let done = tokio::task::spawn_blocking(move || bring(&own, &nodes, &settings)).await;
        let outcome = match done {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(why)) => {
                self.tell("", &why);
                return AGAIN;
            }
            Err(panic) => {
                self.tell("", &panic.to_string());
                return AGAIN;
            }
        };
        self.after(outcome, is_told).await
    }

    async fn after(&mut self, outcome: Outcome, is_told: bool) -> Duration {
        for (node, why) in &outcome.wrong {
            self.tell(node, why);
        }
        self.told.retain(|told| told.0.is_empty() || outcome.wrong.contains(told));
        if outcome.orders > 0 {
            tracing::info!(nodes = outcome.peers, orders = outcome.orders, "ways to the Pods of other Nodes");
        }
        if let Err(error) = self.write(&outcome.own, is_told).await {
            self.tell("", &format!("Node not written: {error}"));
            return AGAIN;
        }
        if let Some(error) = outcome.failed {
            self.tell("", &error.to_string());
            return AGAIN;
        }
        self.told.retain(|(node, _)| !node.is_empty());
        if !self.is_up {
            self.is_up = true;
            let ends: Vec<String> = outcome.own.lease.ends.iter().map(|end| end.subnet.to_string()).collect();
            tracing::info!(subnets = ends.join(","), "the network of Pods is up");
        }
        if outcome.peers == 0 { LOOK_ALONE } else { LOOK }
    }

    /// Says in our Node where it is, and that its network is there.
    async fn write(&self, own: &Own, is_told: bool) -> Result<(), ClientError> {
        let says_network = self.settings.tells_network && !is_told;
        if own.changes.is_empty() && !says_network {
            return Ok(());
        }
        let mut change = json!({"metadata": {"annotations": own.changes}});
        if says_network {
            let now = k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            change["status"] = json!({"conditions": [{
                "type": "NetworkUnavailable", "status": "False", "reason": "FlannelIsUp",
                "message": "Flannel is running on this node",
                "lastTransitionTime": now, "lastHeartbeatTime": now,
            }]});
        }
        let path = format!("/api/v1/nodes/{}/status?fieldManager=longshore-overlay", self.settings.node);
        self.client.ask_bytes(Request::strategic_patch(path, change.to_string())).await.map(drop)
    }

    /// Once, until it is something else.
    fn tell(&mut self, node: &str, why: &str) {
        let news = (node.to_owned(), why.to_owned());
        if !self.told.contains(&news) {
            match node {
                "" => tracing::warn!(why, "the network of Pods is not as it should be"),
                node => tracing::warn!(node, why, "the Pods of a Node cannot be reached"),
            }
            self.told.insert(news);
        }
    }
}

/// Brings the machine where the Nodes want it. `Err` where it is not known where that is.
fn bring(own: &Node, others: &[Node], settings: &Settings) -> Result<Outcome, String> {
    let (conf, keys) = (&settings.conf, &settings.keys);
    let mut kernel = Kernel::open().map_err(|e| e.to_string())?;
    let machine = kernel.machine(conf).map_err(|e| e.to_string())?;
    let (mut underlays, mut public): (Both<Local>, Both<_>) = Default::default();
    for family in Family::ALL.into_iter().filter(|family| conf.networks.get(*family).is_some()) {
        let way_out = machine.default_device.get(family).copied();
        let local = choose(family, &settings.devices, &own.addresses, &machine.locals, way_out)?;
        public.set(family, Some(settings.public.get(family).copied().unwrap_or(local.ip)));
        underlays.set(family, Some(local.clone()));
    }
    let own = Lease::own(own, keys, conf, &public, &machine.macs)?;
    let (mut peers, mut wrong) = (Vec::new(), Vec::new());
    for node in others {
        match Lease::of(node, keys, conf) {
            Ok(lease) => peers.extend(lease),
            Err(why) => wrong.push((node.name.clone(), why)),
        }
    }
    let (mut orders, mut failed) = (0, kernel.forget_others(conf).err());
    for family in Family::ALL {
        let wanted = match underlays.get(family) {
            Some(underlay) => {
                let near: BTreeMap<_, _> = peers
                    .iter()
                    .filter_map(|lease| lease.ends.get(family))
                    .map(|end| (end.public, kernel.next_to(end.public)))
                    .collect();
                let next_to = |ip| near.get(&ip).copied().flatten();
                let (wanted, not) = plan((family, conf), &own.lease, &peers, underlay, &next_to);
                wrong.extend(not);
                wanted
            }
            None => Default::default(),
        };
        match kernel.bring(family, &wanted, conf) {
            Ok(count) => orders += count,
            Err(error) => failed = failed.or(Some(error)),
        }
        let rules = match conf.networks.get(family).filter(|_| settings.masquerades) {
            Some(network) => rules::ensure(*network),
            None => rules::remove(family),
        };
        failed = failed.or(rules.err());
    }
    failed = failed.or(write_files(&own, settings, mtu(conf, &underlays)).err());
    Ok(Outcome { own, wrong, peers: peers.len(), orders, failed })
}

fn write_files(own: &Own, settings: &Settings, mtu: u32) -> Result<(), Error> {
    if let Some(path) = &settings.subnet_file {
        output::write(path, &subnet_env(&settings.conf, &own.lease, mtu, settings.masquerades))?;
    }
    if let Some(cni) = &settings.cni {
        let mut subnets = Both::default();
        for family in Family::ALL {
            subnets.set(family, own.lease.ends.get(family).map(|end| end.subnet));
        }
        // Pods look like their machine by our rules or by those of the plugin, not by both.
        let text = conflist(&subnets, mtu, !settings.masquerades, &cni.bridge, &cni.leases);
        if !output::is_ours_to_write(&cni.path, &is_conflist(&cni.bridge, &cni.leases))? {
            return Ok(());
        }
        if output::write(&cni.path, &text)? {
            tracing::info!(path = %cni.path.display(), "network of Pods written");
        }
    }
    Ok(())
}
