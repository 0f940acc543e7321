//! IPVS: virtual servers, the device that has their addresses, ipsets, and a fixed script of iptables rules.

mod hands;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proxy_core::iptables::Saved;
use proxy_core::ipvs::{Content, DEVICE, Entry, Options, ServerKey, SetId, Step, compare, render, script};
use proxy_core::objects::{Cidr, Family, Protocol};
use proxy_core::rules::{Delta, Host, RuleSet};
use sys::ipset::{self, Ipsets};
use sys::ipvs::{self, Behaviour, Ipvs, Order, ServerId};
use sys::link::{Index, Links};
use tokio::sync::mpsc;

use self::hands::{Hands, Refused, entry};
use super::iptables::Programs;
use crate::ports::{Dataplane, Error};
use crate::yield_flag::{Outcome, YieldFlag};

/// Every kind of scheduler that clusters use; the kernel may lack some.
pub const SCHEDULERS: [&str; 9] = ["rr", "wrr", "lc", "wlc", "sh", "dh", "sed", "nq", "mh"];

/// An address that nobody has, for asking whether a scheduler is there.
const PROBE: ([u8; 4], u16) = ([198, 51, 100, 0], 20_000);

#[derive(Debug)]
pub struct IpvsDataplane {
    family: Family,
    programs: Programs,
    options: Options,
    scheduler: String,
    excluded: Vec<Cidr>,
    hands: Hands,
    /// As far as we know.
    known: Content,
    host: Host,
    /// What iptables said of our rules when they were right.
    rules_were: Option<u64>,
    /// What the kernel would not do the last time. It is tried each time again.
    refused: BTreeSet<String>,
}

/// Whether the kernel has what this mode needs, the scheduler included.
pub fn check(scheduler: &str) -> Result<(), Error> {
    let mut hands = Hands::open()?;
    hands.sets.list("KUBE-")?;
    // Where somebody uses it, it is there.
    if hands.ipvs.servers()?.iter().any(|(_, behaviour)| behaviour.scheduler == scheduler) {
        return Ok(());
    }
    let (ip, port) = PROBE;
    let probe = ServerId { protocol: Protocol::Tcp.number(), address: SocketAddr::new(ip.into(), port) };
    let behaviour = Behaviour { scheduler: scheduler.to_owned(), persistence: None, hashes_ports: false };
    hands.ipvs.carry_out(&[Order::Add(probe, behaviour)])?.none()?;
    Ok(hands.ipvs.carry_out(&[Order::Delete(probe)])?.none()?)
}

/// Removes our virtual servers, the device and the sets of a family. Ours are those whose address and port our own sets
/// name; whatever else there is stays. The rules that name the sets have to be gone.
pub fn cleanup(family: Family) -> Result<(), Error> {
    let mut sets = Ipsets::open()?;
    let found = match sets.list("KUBE-") {
        // There never was anything of this mode then.
        Err(error) if error.is_about_a_kernel_without() => return Ok(()),
        found => found?,
    };
    let ours = ours_of(&found, family);
    match Ipvs::open() {
        Ok(mut ipvs) => {
            let of_family = |id: &ServerId| Family::of(id.address.ip()) == family;
            let all = ipvs.servers()?.into_iter().map(|(id, _)| id).filter(of_family);
            let orders: Vec<Order> = all.filter(|id| is_ours(&ours, id)).map(Order::Delete).collect();
            ipvs.carry_out(&orders)?.none()?;
        }
        Err(ipvs::Error::Missing) => {}
        Err(error) => return Err(error.into()),
    }
    // Both families share the device; it goes with the last.
    let mut links = Links::open()?;
    if let Some(device) = links.find(DEVICE)? {
        let (of_family, others): (Vec<IpAddr>, Vec<IpAddr>) =
            on_device(&mut links, device)?.into_iter().partition(|ip| Family::of(*ip) == family);
        links.delete_addresses(device, &of_family)?.none()?;
        // A device that is down has no address of its own making.
        if others.is_empty() {
            links.remove(DEVICE)?;
        }
    }
    for set in ours.keys() {
        sets.destroy(&set.name(family))?;
    }
    Ok(())
}

/// The virtual servers and sets of a family; nothing is made or changed.
pub fn read(family: Family) -> Result<Content, Error> {
    let mut hands = Hands::open()?;
    let sets = ours_of(&hands.sets.list("KUBE-")?, family);
    Ok(Content { servers: hands.servers(family)?, sets, addresses: BTreeSet::new() })
}

/// Of sets that are there, those that have our names.
fn ours_of(found: &[ipset::Set], family: Family) -> BTreeMap<SetId, BTreeSet<Entry>> {
    let of_id = |id: SetId| {
        let set = found.iter().find(|set| set.name == id.name(family))?;
        Some((id, set.entries.iter().filter_map(entry).collect()))
    };
    SetId::ALL.into_iter().filter_map(of_id).collect()
}

fn is_ours(sets: &BTreeMap<SetId, BTreeSet<Entry>>, id: &ServerId) -> bool {
    let Some(protocol) = Protocol::ALL.into_iter().find(|p| p.number() == id.protocol) else { return false };
    let (ip, port) = (id.address.ip(), id.address.port());
    let is_in = |set: SetId, entry: Entry| sets.get(&set).is_some_and(|set| set.contains(&entry));
    let by_address = [SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer];
    by_address.into_iter().any(|set| is_in(set, Entry::IpPort(ip, protocol, port)))
        || match protocol {
            Protocol::Tcp => is_in(SetId::NodePortTcp, Entry::Port(port)),
            Protocol::Udp => is_in(SetId::NodePortUdp, Entry::Port(port)),
            Protocol::Sctp => is_in(SetId::NodePortSctp, Entry::IpPort(ip, protocol, port)),
        }
}

fn on_device(links: &mut Links, device: Index) -> Result<Vec<IpAddr>, Error> {
    let all = links.addresses()?.into_iter();
    Ok(all.filter(|(at, _)| *at == device).map(|(_, ip)| ip).collect())
}

// === impl IpvsDataplane ===

impl IpvsDataplane {
    /// In the network namespace that the calling thread is in.
    pub fn open(programs: Programs, mark: u32, scheduler: &str, excluded: Vec<Cidr>) -> Result<Self, Error> {
        Ok(Self {
            family: programs.family(),
            options: Options { mark, random_fully: programs.is_random_fully() },
            programs,
            scheduler: scheduler.to_owned(),
            excluded,
            hands: Hands::open()?,
            known: Content::default(),
            host: Host::default(),
            rules_were: None,
            refused: BTreeSet::new(),
        })
    }

    fn read(&mut self, device: Index) -> Result<Content, Error> {
        let all = self.hands.links.addresses()?;
        let (ours, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(at, _)| *at == device);
        self.host = Host { addresses: others.into_iter().map(|(_, ip)| ip).collect() };
        let of_family = ours.into_iter().map(|(_, ip)| ip).filter(|ip| Family::of(*ip) == self.family);
        Ok(Content {
            addresses: of_family.collect(),
            servers: self.hands.servers(self.family)?,
            sets: self.hands.sets(self.family)?,
        })
    }

    /// Writes the rules unless they are as we left them.
    fn write_rules(&mut self, rules: &RuleSet, is_new_node: bool) -> Result<Option<String>, Error> {
        let saved = self.programs.save()?;
        if !is_new_node && self.rules_were == Some(saved.fingerprint()) {
            return Ok(None);
        }
        let was_ours = self.rules_were.is_some();
        let script = script(self.family, &rules.node, self.options, &saved);
        self.programs.restore(&script)?;
        self.rules_were = Some(self.programs.save().map(|saved: Saved| saved.fingerprint())?);
        Ok((was_ours && !is_new_node).then(|| "iptables rules were changed".to_owned()))
    }

    /// Remembers what the kernel has now, and tells what it refused, each thing once. Says whether it refused anything that
    /// it had not refused before.
    fn settle(&mut self, was: &Content, mut should: Content, refused: Vec<Refused>) -> bool {
        refused.iter().for_each(|refused| should.withhold(&refused.step, was));
        self.known = should;
        let before = std::mem::take(&mut self.refused);
        self.refused = refused.into_iter().map(|refused| refused.why).collect();
        let mut news = self.refused.difference(&before).peekable();
        let is_any = news.peek().is_some();
        for error in news {
            tracing::warn!(family = self.family.name(), error, "the kernel refused a part of our rules");
        }
        is_any
    }

    fn bring(
        &mut self,
        rules: &RuleSet,
        is_new_node: bool,
        flag: &YieldFlag,
    ) -> Result<Outcome<Vec<String>>, Error> {
        let device = self.hands.links.ensure_dummy(DEVICE)?;
        let is = self.read(device)?;
        if flag.is_raised() {
            return Ok(Outcome::Left);
        }
        let mut should = render(rules, &self.host, &self.scheduler);
        let steps = compare(&is, &should, &self.excluded);
        // Traffic is served anew before the rules of another mode give way to ours, and what is old goes last.
        let is_removal = |step: &Step| {
            matches!(
                step,
                Step::Unbind(_) | Step::Retire(..) | Step::DeleteServer(_) | Step::DeleteEntries(..)
            )
        };
        let cut = steps.iter().position(is_removal).unwrap_or(steps.len());
        let (first, last) = steps.split_at(cut);
        let mut refused = self.hands.carry_out(self.family, device, first, &mut should)?;
        let of_rules = self.write_rules(rules, is_new_node)?;
        refused.extend(self.hands.carry_out(self.family, device, last, &mut should)?);
        let is_all_done = refused.is_empty();
        self.settle(&is, should, refused);
        // What could not be put right was not, and is told elsewhere.
        let done = if is_all_done { steps } else { compare(&is, &self.known, &self.excluded) };
        Ok(Outcome::Done(describe(&is, &done).into_iter().chain(of_rules).collect()))
    }
}

impl Dataplane for IpvsDataplane {
    fn verify(&mut self, rules: &RuleSet, flag: &YieldFlag) -> Result<Outcome<Vec<String>>, Error> {
        self.bring(rules, self.rules_were.is_none(), flag)
    }

    fn apply(&mut self, rules: &RuleSet, delta: &Delta) -> Result<(), Error> {
        if delta.node.is_some() {
            return self.bring(rules, true, &YieldFlag::default()).map(drop);
        }
        let device = self.hands.links.ensure_dummy(DEVICE)?;
        let mut should = render(rules, &self.host, &self.scheduler);
        let steps = compare(&self.known, &should, &self.excluded);
        let refused = self.hands.carry_out(self.family, device, &steps, &mut should)?;
        let was = std::mem::take(&mut self.known);
        match self.settle(&was, should, refused) {
            // Perhaps it is not as we thought.
            true => self.bring(rules, false, &YieldFlag::default()).map(drop),
            false => Ok(()),
        }
    }

    /// Nobody tells when others change IPVS; the comparison comes often instead.
    fn listen(&mut self) -> Result<mpsc::Receiver<()>, Error> {
        let (notify, notifications) = mpsc::channel(1);
        supervise::spawn("ipvs notify", async move { notify.closed().await });
        Ok(notifications)
    }
}

/// In a few words. A real server that is on its way out is no fault.
fn describe(is: &Content, steps: &[Step]) -> Vec<String> {
    let weight = |key: &ServerKey, real: &SocketAddr| Some(is.servers.get(key)?.reals.get(real)?.weight);
    let fault = |step: &Step| match step {
        Step::AddEntries(set, entries) => Some(format!("{set:?} lacks {} entries", entries.len())),
        Step::DeleteEntries(set, entries) => Some(format!("{set:?} has {} entries too many", entries.len())),
        Step::AddServer(key, _) => Some(format!("virtual server {} is missing", key.address)),
        Step::ChangeServer(key, _) => Some(format!("virtual server {} is different", key.address)),
        Step::AddReal(key, real) => Some(format!("{real} is missing behind {}", key.address)),
        Step::Restore(key, real) => Some(format!("{real} behind {} has another weight", key.address)),
        Step::Retire(key, real) if weight(key, real) == Some(0) => None,
        Step::Retire(key, real) => Some(format!("{real} is still behind {}", key.address)),
        Step::DeleteServer(key) => Some(format!("virtual server {} is not ours", key.address)),
        Step::Bind(ips) => Some(format!("{DEVICE} lacks {} addresses", ips.len())),
        Step::Unbind(ips) => Some(format!("{DEVICE} has {} addresses too many", ips.len())),
    };
    steps.iter().filter_map(fault).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_what_our_sets_name_is_ours() {
        let cluster_ip = Entry::IpPort("10.96.0.10".parse().unwrap(), Protocol::Tcp, 80);
        let sets = BTreeMap::from([
            (SetId::ClusterIp, BTreeSet::from([cluster_ip])),
            (SetId::NodePortUdp, BTreeSet::from([Entry::Port(30_053)])),
        ]);
        let rows = [
            (6, "10.96.0.10:80", true),
            (17, "10.96.0.10:80", false),
            (6, "10.96.0.10:81", false),
            (17, "192.168.0.1:30053", true),
            (6, "192.168.0.1:30053", false),
            (1, "10.96.0.10:80", false),
        ];
        for (protocol, address, wanted) in rows {
            let id = ServerId { protocol, address: address.parse().unwrap() };
            assert_eq!(is_ours(&sets, &id), wanted, "{address}");
        }
    }
}
