//! Cluster addresses and node ports of Services: given out once, taken back when their Service is gone.
//!
//! What is in use is known from the Services themselves and kept in memory: one process writes them. A claim is made
//! before the write and given back when the write does not happen.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::field::{FieldErrors, Path};
use ipnet::IpNet;
use serde_json::{Value, json};

use apiserver_core::doc;
use apiserver_core::kinds::service;
use apiserver_core::meta;

/// The ranges Services get their addresses and ports from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// `--service-cluster-ip-range`: one, or one of each family, the first of which is preferred.
    pub networks: Vec<IpNet>,
    /// `--service-node-port-range`, both ends included.
    pub node_ports: (u16, u16),
}

/// Who has what. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Addresses {
    ranges: Arc<Ranges>,
    used: Arc<Mutex<Used>>,
}

/// What is taken, by the uid of the Service that has it.
#[derive(Debug, Default)]
struct Used {
    ips: HashMap<IpAddr, Box<str>>,
    ports: HashMap<u16, Box<str>>,
    /// Where the search for a free one goes on, so that one just given back rests for a while.
    next: u64,
}

/// What a write is about to take. Given back unless it is kept.
#[derive(Debug)]
pub struct Claim {
    used: Arc<Mutex<Used>>,
    ips: Vec<IpAddr>,
    ports: Vec<u16>,
}

// === impl Ranges ===

impl Default for Ranges {
    fn default() -> Ranges {
        let network = IpNet::new(IpAddr::from([10, 96, 0, 0]), 12).ok();
        Ranges { networks: network.into_iter().collect(), node_ports: (30_000, 32_767) }
    }
}

impl Ranges {
    /// The address of the `kubernetes` Service: the first of the preferred network.
    #[must_use]
    pub fn first(&self) -> Option<IpAddr> {
        self.networks.first().map(|n| nth(n, 1))
    }
}

// === impl Addresses ===

impl Addresses {
    #[must_use]
    pub fn new(ranges: Ranges) -> Addresses {
        Addresses { ranges: Arc::new(ranges), used: Arc::default() }
    }

    #[must_use]
    pub fn ranges(&self) -> &Ranges {
        &self.ranges
    }

    /// Notes what a stored Service has.
    pub fn note(&self, service: &Value) {
        let (mut used, owner) = (self.used(), meta::uid(service));
        for ip in ips_of(service) {
            used.ips.insert(ip, owner.into());
        }
        for port in ports_of(service) {
            used.ports.insert(port, owner.into());
        }
    }

    /// Takes back what `old` had and `new` has not (nothing, when it is gone).
    pub fn release(&self, old: &Value, new: Option<&Value>) {
        let owner = meta::uid(old);
        let kept_ips: HashSet<IpAddr> = new.map(|n| ips_of(n).collect()).unwrap_or_default();
        let kept_ports: HashSet<u16> = new.map(|n| ports_of(n).collect()).unwrap_or_default();
        let mut used = self.used();
        for ip in ips_of(old).filter(|ip| !kept_ips.contains(ip)) {
            if used.ips.get(&ip).is_some_and(|who| **who == *owner) {
                used.ips.remove(&ip);
            }
        }
        for port in ports_of(old).filter(|port| !kept_ports.contains(port)) {
            if used.ports.get(&port).is_some_and(|who| **who == *owner) {
                used.ports.remove(&port);
            }
        }
    }

    /// Completes a Service with what it needs and claims it.
    pub fn assign(&self, service: &mut Value, errors: &mut FieldErrors) -> Claim {
        let mut claim = Claim { used: self.used.clone(), ips: Vec::new(), ports: Vec::new() };
        let owner = meta::uid(service).to_owned();
        if service::needs_cluster_ip(service) {
            self.assign_families(service, errors);
            if !service::is_headless(service) {
                self.assign_ips(service, &owner, &mut claim, errors);
            }
        }
        if service::needs_node_ports(service) {
            self.assign_ports(service, &owner, &mut claim, errors);
        }
        if service::needs_health_check_port(service) {
            let at = Path::new("spec").child("healthCheckNodePort");
            let wanted = doc::int(service, "spec.healthCheckNodePort");
            if let Some(port) = self.take_port(wanted, &owner, &mut claim, &at, errors) {
                doc::set(service, "spec.healthCheckNodePort", port);
            }
        }
        claim
    }

    /// Which families the Service is of.
    fn assign_families(&self, service: &mut Value, errors: &mut FieldErrors) {
        let families: Vec<&str> = self.ranges.networks.iter().map(family).collect();
        let policy_at = Path::new("spec").child("ipFamilyPolicy");
        let mut wanted: Vec<String> = doc::list(service, "spec.ipFamilies")
            .iter()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect();
        // Addresses asked for say their families themselves.
        for (i, ip) in ips_of(service).enumerate() {
            if wanted.len() <= i {
                wanted.push(if ip.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned());
            }
        }
        if doc::text(service, "spec.ipFamilyPolicy").is_empty() {
            let policy = if wanted.len() > 1 { "RequireDualStack" } else { "SingleStack" };
            doc::set(service, "spec.ipFamilyPolicy", policy);
        }
        let policy = doc::text(service, "spec.ipFamilyPolicy").to_owned();
        if policy == "RequireDualStack" && families.len() < 2 {
            errors.invalid(&policy_at, policy, "this cluster is not configured for dual-stack services");
            return;
        }
        for (i, asked) in wanted.iter().enumerate() {
            if !families.contains(&asked.as_str()) {
                let at = Path::new("spec").child("ipFamilies").index(i);
                errors.invalid(&at, asked.as_str(), "not configured on this cluster");
                return;
            }
        }
        let count = if policy == "SingleStack" { 1 } else { families.len() };
        for family in &families {
            if wanted.len() < count && !wanted.iter().any(|w| w == family) {
                wanted.push((*family).to_owned());
            }
        }
        doc::set(service, "spec.ipFamilies", json!(wanted));
    }

    fn assign_ips(&self, service: &mut Value, owner: &str, claim: &mut Claim, errors: &mut FieldErrors) {
        let at = Path::new("spec").child("clusterIPs");
        let families: Vec<String> = doc::list(service, "spec.ipFamilies")
            .iter()
            .filter_map(|f| f.as_str().map(str::to_owned))
            .collect();
        let mut given: Vec<String> = Vec::new();
        let asked: Vec<String> = doc::list(service, "spec.clusterIPs")
            .iter()
            .filter_map(|v| v.as_str().map(str::to_owned))
            .collect();
        for (i, wanted) in families.iter().enumerate() {
            let Some(network) = self.ranges.networks.iter().find(|n| family(n) == wanted) else { continue };
            let taken = match asked.get(i) {
                Some(text) => self.take_ip(text, network, owner, claim),
                None => self.find_ip(network, owner, claim),
            };
            match taken {
                Ok(ip) => given.push(ip.to_string()),
                Err(why) => return errors.invalid(&at, json!(asked), why),
            }
        }
        if let Some(first) = given.first() {
            doc::set(service, "spec.clusterIP", first.as_str());
            doc::set(service, "spec.clusterIPs", json!(given));
        }
    }

    fn take_ip(&self, text: &str, network: &IpNet, owner: &str, claim: &mut Claim) -> Result<IpAddr, String> {
        let failed = |why: &str| format!("failed to allocate IP {text}: {why}");
        let ip: IpAddr = text.parse().map_err(|_| failed("not a valid IP"))?;
        let mut used = self.used();
        match used.ips.get(&ip) {
            Some(who) if **who == *owner => return Ok(ip),
            Some(_) => return Err(failed("provided IP is already allocated")),
            None => {}
        }
        if !network.contains(&ip) {
            return Err(failed("the provided network does not match the current range"));
        }
        if ip == network.network() || (ip.is_ipv4() && ip == network.broadcast()) {
            return Err(failed(&format!(
                "the provided IP ({text}) is not in the valid range. The range of valid IPs is {network}"
            )));
        }
        used.ips.insert(ip, owner.into());
        claim.ips.push(ip);
        Ok(ip)
    }

    fn find_ip(&self, network: &IpNet, owner: &str, claim: &mut Claim) -> Result<IpAddr, String> {
        let size = usable(network);
        let mut used = self.used();
        // The low addresses are left to those who ask for theirs, as long as there are others.
        let reserved = (size / 16).clamp(16, 256).min(size.saturating_sub(1));
        let start = used.next;
        let band = size - reserved;
        let upper = (0..band).map(|i| 1 + reserved + (start.wrapping_add(i)) % band);
        let found = upper.chain(1..=reserved).map(|n| nth(network, n)).find(|ip| !used.ips.contains_key(ip));
        let ip = found.ok_or_else(|| "failed to allocate a serviceIP: range is full".to_owned())?;
        used.next = start.wrapping_add(1);
        used.ips.insert(ip, owner.into());
        claim.ips.push(ip);
        Ok(ip)
    }

    fn assign_ports(&self, service: &mut Value, owner: &str, claim: &mut Claim, errors: &mut FieldErrors) {
        let wants_any = doc::text(service, "spec.type") != "LoadBalancer"
            || doc::at(service, "spec.allocateLoadBalancerNodePorts").as_bool() != Some(false);
        // Two protocols on one port of a Service share its node port.
        let mut by_port: HashMap<i64, i64> = HashMap::new();
        for (i, port) in doc::list_mut(service, "spec.ports").enumerate() {
            let at = Path::new("spec").child("ports").index(i).child("nodePort");
            let (number, asked) = (doc::int(port, "port"), doc::int(port, "nodePort"));
            if asked == 0 && !wants_any {
                continue;
            }
            let wanted = if asked == 0 { by_port.get(&number).copied().unwrap_or_default() } else { asked };
            if let Some(taken) = self.take_port(wanted, owner, claim, &at, errors) {
                by_port.insert(number, taken);
                doc::set(port, "nodePort", taken);
            }
        }
    }

    fn take_port(
        &self,
        wanted: i64,
        owner: &str,
        claim: &mut Claim,
        at: &Path,
        errors: &mut FieldErrors,
    ) -> Option<i64> {
        let (low, high) = self.ranges.node_ports;
        let mut used = self.used();
        if wanted == 0 {
            let size = u64::from(high - low) + 1;
            let start = used.next;
            let free = (0..size).map(|i| {
                low + u16::try_from((start.wrapping_mul(31).wrapping_add(i)) % size).unwrap_or_default()
            });
            let Some(port) = free.into_iter().find(|p| !used.ports.contains_key(p)) else {
                errors.invalid(at, wanted, "failed to allocate a nodePort: range is full");
                return None;
            };
            used.next = start.wrapping_add(1);
            used.ports.insert(port, owner.into());
            claim.ports.push(port);
            return Some(i64::from(port));
        }
        let port = u16::try_from(wanted).ok()?;
        match used.ports.get(&port) {
            Some(who) if **who == *owner => return Some(wanted),
            Some(_) => {
                errors.invalid(at, wanted, "provided port is already allocated");
                return None;
            }
            None => {}
        }
        if !(low..=high).contains(&port) {
            let why =
                format!("provided port is not in the valid range. The range of valid ports is {low}-{high}");
            errors.invalid(at, wanted, why);
            return None;
        }
        used.ports.insert(port, owner.into());
        claim.ports.push(port);
        Some(wanted)
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Claim ===

impl Claim {
    /// The write happened.
    pub fn keep(mut self) {
        self.ips.clear();
        self.ports.clear();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.ips.is_empty() && self.ports.is_empty() {
            return;
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        for ip in &self.ips {
            used.ips.remove(ip);
        }
        for port in &self.ports {
            used.ports.remove(port);
        }
    }
}

pub(super) fn ips_of(service: &Value) -> impl Iterator<Item = IpAddr> + '_ {
    doc::list(service, "spec.clusterIPs").iter().filter_map(|v| v.as_str()?.parse().ok())
}

fn ports_of(service: &Value) -> impl Iterator<Item = u16> + '_ {
    let ports = doc::list(service, "spec.ports").iter().map(|p| doc::int(p, "nodePort"));
    let health = doc::int(service, "spec.healthCheckNodePort");
    ports.chain([health]).filter(|p| *p > 0).filter_map(|p| u16::try_from(p).ok())
}

fn family(network: &IpNet) -> &'static str {
    if network.addr().is_ipv4() { "IPv4" } else { "IPv6" }
}

/// How many addresses can be given out: not the network's own, nor the broadcast of IPv4.
fn usable(network: &IpNet) -> u64 {
    let bits = u32::from(network.max_prefix_len() - network.prefix_len()).min(32);
    let all = 1u64 << bits;
    if network.addr().is_ipv4() { all.saturating_sub(2).max(1) } else { all - 1 }
}

fn nth(network: &IpNet, n: u64) -> IpAddr {
    match network.network() {
        IpAddr::V4(base) => {
            IpAddr::V4((u32::from(base).wrapping_add(u32::try_from(n).unwrap_or_default())).into())
        }
        IpAddr::V6(base) => IpAddr::V6((u128::from(base).wrapping_add(u128::from(n))).into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn addresses(networks: &[&str]) -> Addresses {
        let networks = networks.iter().map(|n| n.parse().unwrap()).collect();
        Addresses::new(Ranges { networks, node_ports: (30_000, 30_003) })
    }

    fn service(uid: &str, spec: Value) -> Value {
        json!({"metadata": {"uid": uid}, "spec": spec})
    }

    fn assigned(addresses: &Addresses, service: &mut Value) -> String {
        let mut errors = FieldErrors::default();
        let claim = addresses.assign(service, &mut errors);
        if errors.is_empty() {
            claim.keep();
        }
        errors.to_string()
    }

    #[test]
    fn a_service_gets_what_it_needs() {
        let all = addresses(&["10.0.0.0/24", "fd00::/108"]);
        let mut plain = service("a", json!({"type": "ClusterIP"}));
        assert_eq!(assigned(&all, &mut plain), "[]");
        assert_eq!(plain["spec"]["ipFamilies"], json!(["IPv4"]));
        assert_eq!(plain["spec"]["clusterIP"], plain["spec"]["clusterIPs"][0]);
        let mut dual = service("b", json!({"type": "ClusterIP", "ipFamilyPolicy": "PreferDualStack"}));
        assigned(&all, &mut dual);
        assert_eq!(dual["spec"]["clusterIPs"].as_array().unwrap().len(), 2);
        let mut headless =
            service("c", json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}));
        assert_eq!(assigned(&all, &mut headless), "[]");
        assert_eq!(headless["spec"]["clusterIPs"], json!(["None"]));
        let mut clash =
            service("d", json!({"type": "ClusterIP", "clusterIPs": [plain["spec"]["clusterIP"]]}));
        assert!(assigned(&all, &mut clash).contains("already allocated"));
        for (ip, why) in
            [("10.9.0.1", "does not match the current range"), ("10.0.0.0", "not in the valid range")]
        {
            let mut outside = service("e", json!({"type": "ClusterIP", "clusterIPs": [ip]}));
            assert!(assigned(&all, &mut outside).contains(why), "{ip}");
        }
        all.release(&plain, None);
        assert_eq!(assigned(&all, &mut clash), "[]");
    }

    #[test]
    fn ports_are_shared_by_protocols_and_run_out() {
        let all = addresses(&["10.0.0.0/24"]);
        let ports = json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}, {"port": 80}]);
        let mut first = service("a", json!({"type": "NodePort", "ports": ports}));
        assert_eq!(assigned(&all, &mut first), "[]");
        assert_eq!(first["spec"]["ports"][0]["nodePort"], first["spec"]["ports"][1]["nodePort"]);
        let again = first.clone();
        assert_eq!(assigned(&all, &mut first), "[]");
        assert_eq!(first, again, "what it has it keeps");
        let three = json!([{"port": 1}, {"port": 2}, {"port": 3}]);
        let mut second = service("b", json!({"type": "NodePort", "ports": three}));
        assert!(assigned(&all, &mut second).contains("range is full"));
        let mut third = service("c", json!({"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]}));
        assert_eq!(assigned(&all, &mut third), "[]", "a claim that failed is given back");
    }

    proptest! {
        #[test]
        fn nothing_is_given_twice(steps in proptest::collection::vec((any::<bool>(), 0usize..8), 1..200)) {
            let all = addresses(&["10.0.0.0/27"]);
            let mut live: Vec<Option<Value>> = vec![None; 8];
            for (make, slot) in steps {
                match (make, live[slot].take()) {
                    (false, None) => {}
                    (false, Some(old)) => all.release(&old, None),
                    (true, Some(old)) => live[slot] = Some(old),
                    (true, None) => {
                        let mut new = service(&slot.to_string(), json!({"type": "ClusterIP"}));
                        prop_assert_eq!(assigned(&all, &mut new), "[]");
                        live[slot] = Some(new);
                    }
                }
                let ips: Vec<_> = live.iter().flatten().map(|s| s["spec"]["clusterIP"].clone()).collect();
                let mut unique: Vec<String> = ips.iter().map(ToString::to_string).collect();
                unique.sort();
                unique.dedup();
                prop_assert_eq!(unique.len(), ips.len());
            }
        }
    }
}
