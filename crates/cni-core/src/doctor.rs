//! Where a packet of a Pod goes, step by step, and where it ends: from what the Pod's namespace and the machine's look like.

use std::net::IpAddr;

use base::finding::{Finding, Grade};
use ipnet::IpNet;

/// What there is to know.
#[derive(Clone, Debug)]
pub struct Facts {
    /// As `namespace/name`, for the texts.
    pub pod: String,
    pub ip: IpAddr,
    /// Where the Pod sends it.
    pub dials: IpAddr,
    /// Where it is to go, once kube-proxy has had its say: the same, or an endpoint.
    pub to: IpAddr,
    /// The Pod's network namespace; none where no process of this machine is in one that has the address.
    pub container: Option<Place>,
    pub machine: Place,
    /// Whether the machine passes packets of this family on.
    pub forwards: bool,
    /// Whether our table makes the Pod's packets look like the machine's, outside of its own network.
    pub is_masqueraded: bool,
    pub probe: Probe,
}

/// What a network namespace looks like.
#[derive(Clone, Debug, Default)]
pub struct Place {
    pub devices: Vec<Device>,
    pub ways: Vec<Way>,
}

#[derive(Clone, Debug, Default)]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub kind: String,
    pub is_up: bool,
    pub has_carrier: bool,
    pub mtu: u32,
    pub master: Option<u32>,
    /// The number of the other end of a cable, over there.
    pub peer: Option<u32>,
    pub addresses: Vec<IpNet>,
}

#[derive(Clone, Debug)]
pub struct Way {
    pub to: IpNet,
    pub gateway: Option<IpAddr>,
    pub device: u32,
    pub priority: u32,
}

/// What became of one connection from the Pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// Nobody was there to try.
    None,
    Answered(String),
    Refused(String),
    Silent(String),
    /// The Pod's own kernel would not send it.
    Failed(String, String),
}

// === impl Place ===

impl Place {
    fn device(&self, index: u32) -> Option<&Device> {
        self.devices.iter().find(|device| device.index == index)
    }

    fn owner(&self, ip: IpAddr) -> Option<&Device> {
        self.devices.iter().find(|device| device.addresses.iter().any(|address| address.addr() == ip))
    }

    /// As the kernel chooses: the longest, and of those the first in rank.
    #[must_use]
    pub fn way(&self, to: IpAddr) -> Option<&Way> {
        let fits = self.ways.iter().filter(|way| way.to.contains(&to));
        fits.min_by_key(|way| (std::cmp::Reverse(way.to.prefix_len()), way.priority))
    }
}

/// The findings, in the order in which a packet depends on things. After the first that is wrong only the probe is told.
#[must_use]
pub fn examine(facts: &Facts) -> Vec<Finding> {
    let mut walk = Walk { facts, findings: Vec::new() };
    let whole = walk.container().and_then(|device| walk.machine(device));
    walk.probe(whole.is_some());
    walk.findings
}

struct Walk<'a> {
    facts: &'a Facts,
    findings: Vec<Finding>,
}

// === impl Walk ===

impl<'a> Walk<'a> {
    fn good(&mut self, text: String) {
        self.findings.push(Finding { grade: Grade::Good, text, advice: String::new() });
    }

    fn note(&mut self, text: String) {
        self.findings.push(Finding { grade: Grade::Note, text, advice: String::new() });
    }

    fn wrong<T>(&mut self, text: String, advice: &str) -> Option<T> {
        self.findings.push(Finding { grade: Grade::Wrong, text, advice: advice.to_owned() });
        None
    }

    /// The device that the packet leaves the Pod by.
    fn container(&mut self) -> Option<&'a Device> {
        let Facts { pod, ip, dials: to, container, .. } = self.facts;
        let Some(place) = container else {
            return self.wrong(
                format!("no network namespace of this machine has {ip}, the address of Pod {pod}"),
                "is the Pod on another node? Then ask there. If it is on this one, its sandbox is gone: see the kubelet's and the \
                 runtime's log",
            );
        };
        let own = place.owner(*ip)?;
        if !(own.is_up && own.has_carrier) {
            let state = if own.is_up { "sees nobody at its other end" } else { "is down" };
            return self.wrong(
                format!("{} of Pod {pod} {state}", own.name),
                "delete the Pod: its network is made anew with it",
            );
        }
        self.good(format!("Pod {pod} has {ip} on {}, which is up", own.name));
        if place.owner(*to).is_some() {
            self.good(format!("{to} is the Pod's own: packets stay inside"));
            return None;
        }
        let Some(way) = place.way(*to) else {
            return self.wrong(
                format!("Pod {pod} has no route to {to}"),
                "the network's configuration gives it none: isDefaultGateway of the plugin bridge, or routes of its ipam",
            );
        };
        let device = place.device(way.device)?;
        let by = way.gateway.map_or("directly".to_owned(), |gateway| format!("by {gateway}"));
        self.good(format!("the Pod sends to {to} {by}, on {} ({})", device.name, way.to));
        Some(device)
    }

    fn machine(&mut self, sends: &'a Device) -> Option<()> {
        let Facts { pod, ip, dials, to, machine, .. } = self.facts;
        let end = sends.peer.and_then(|index| machine.device(index));
        let Some(end) = end.filter(|end| end.peer == Some(sends.index)) else {
            self.note(format!(
                "{} is no cable that ends in this machine's namespace: what follows is about the machine",
                sends.name
            ));
            return self.onward();
        };
        if !end.is_up {
            return self.wrong(
                format!("{}, the machine's end of the Pod's cable, is down", end.name),
                "ip link set it up, or delete the Pod",
            );
        }
        let enters = match end.master.map(|index| machine.device(index)) {
            Some(Some(bridge)) if !bridge.is_up => {
                return self.wrong(format!("bridge {} is down", bridge.name), "ip link set it up");
            }
            Some(Some(bridge)) => bridge,
            _ => end,
        };
        self.good(format!("it comes out of {} on {}", end.name, enters.name));
        let place = self.facts.container.as_ref()?;
        let gateway = place.way(*dials).and_then(|way| way.gateway);
        if let Some(gateway) = gateway.filter(|gateway| machine.owner(*gateway).is_none()) {
            return self.wrong(
                format!("the gateway {gateway} of Pod {pod} is no address of this machine"),
                "the bridge lost its address, or another network took it: the plugin bridge gives it back with the next Pod",
            );
        }
        match machine.way(*ip).and_then(|way| machine.device(way.device)) {
            Some(back) if back.index == enters.index => {}
            back => {
                let by = back.map_or("nowhere".to_owned(), |back| format!("by {}", back.name));
                return self.wrong(
                    format!("the machine sends answers to {ip} {by}, not by {}", enters.name),
                    "two networks of this machine have the same range: give one of them another",
                );
            }
        }
        if dials != to {
            self.good(format!("kube-proxy sends it to {to}"));
        }
        if let Some(leaves) = machine.way(*to).and_then(|way| machine.device(way.device)) {
            if leaves.index == enters.index && machine.owner(*to).is_none() {
                self.good(format!("{to} is on {} as well: the bridge passes it on", enters.name));
                return Some(());
            }
            if sends.mtu > leaves.mtu {
                self.note(format!(
                    "the Pod's {} takes packets of {} bytes, and {} only of {}: longer ones need what the kernel tells about that",
                    sends.name, sends.mtu, leaves.name, leaves.mtu
                ));
            }
        }
        self.onward()
    }

    /// From the machine to where it is to go.
    fn onward(&mut self) -> Option<()> {
        let Facts { ip, to, machine, .. } = self.facts;
        if let Some(own) = machine.owner(*to) {
            self.good(format!("{to} is the machine's own, on {}", own.name));
            return Some(());
        }
        if !self.facts.forwards {
            let name = if to.is_ipv4() { "net.ipv4.ip_forward" } else { "net.ipv6.conf.all.forwarding" };
            return self.wrong(
                format!("the machine passes no packets on: {name} is 0"),
                "somebody set it back: plugins set it with every Pod; look in /etc/sysctl.d",
            );
        }
        let Some(way) = machine.way(*to) else {
            return self.wrong(
                format!("the machine has no route to {to}"),
                "is it the address of a Pod of another node? Then the overlay, or who makes routes between nodes, has not made this one",
            );
        };
        let Some(leaves) = machine.device(way.device) else { return Some(()) };
        if !(leaves.is_up && leaves.has_carrier) {
            let state = if leaves.is_up { "sees nobody at its other end" } else { "is down" };
            return self.wrong(
                format!("the route to {to} is by {}, which {state}", leaves.name),
                "bring the device up, or take the route away",
            );
        }
        let by = way.gateway.map_or(String::new(), |gateway| format!(" by {gateway}"));
        self.good(format!("the machine sends it on{by}, on {} ({})", leaves.name, way.to));
        match self.facts.is_masqueraded {
            true => self.good(format!("as if it came from the machine: {ip} is masqueraded")),
            false => self.note(format!(
                "it keeps its sender {ip} as far as CNI goes: who answers needs a route to it, if no other table masquerades it"
            )),
        }
        Some(())
    }

    fn probe(&mut self, is_whole: bool) {
        let rules = "something between drops it: rules of other tables (nft list ruleset), NetworkPolicies, a cloud's filters";
        match &self.facts.probe {
            Probe::None => {}
            Probe::Answered(what) => self.good(format!("{what} was answered")),
            Probe::Refused(what) => {
                self.note(format!("{what} was refused: the way there and back is good, and nobody listens"))
            }
            Probe::Silent(what) => {
                let advice = if is_whole { rules } else { "mend what is named before" };
                self.wrong::<()>(format!("{what} got no answer"), advice);
            }
            Probe::Failed(what, why) => {
                self.wrong::<()>(format!("{what} failed: {why}"), "mend what is named before");
            }
        }
    }
}
