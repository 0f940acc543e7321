//! ServiceCIDR: a range of Service addresses is ready, and goes only when no Service has an address of it alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::time::{Now, Wall};
use serde_json::{Value, json};

use crate::cache::Change;
use crate::conditions;
use crate::controller::{Controller, Key, Retry, Row, Wakes, Watch};
use crate::object::Object;
use crate::plan::{Act, Done, Event, PatchKind, Plan, Step};
use crate::resource::{IP_ADDRESSES, SERVICE_CIDRS};
use crate::terms::timestamp;
use crate::view::View;

const NAME: &str = "service-cidr-controller";

pub(crate) const SERVICE_CIDR: Row = Row {
    name: NAME,
    aliases: &[],
    identity: "service-cidrs-controller",
    event_source: NAME,
    queue: "ipaddresses",
    workers: |_| 5,
    retry: Retry::DEFAULT.gives_up_after(15),
    is_on_by_default: true,
    watches: &[
        Watch { resource: SERVICE_CIDRS, keys: overlapping },
        Watch { resource: IP_ADDRESSES, keys: containing },
    ],
    reads: &[],
    is_single: false,
    make: |_| Box::new(Ranges),
};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// For the API server to hear that no address is to be given out any more.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug)]
struct Ranges;

/// A network: its first address as bits, which family, and how many bits are fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    bits: u128,
    is_v6: bool,
    prefix: u32,
}

// === impl Ranges ===

impl Controller for Ranges {
    fn reconcile(&mut self, view: &dyn View, key: &Key, now: Now) -> Plan {
        let Some(range) = view.get(SERVICE_CIDRS, "", &key.name) else { return Plan::nothing() };
        let value = range.value();
        let finalizers = value["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let is_held = finalizers.iter().any(|finalizer| finalizer == FINALIZER);
        if range.is_deleting() {
            return deleting(view, &range, &value, is_held, now);
        }
        let mut acts = Vec::new();
        if !is_held {
            acts.push(patch(&range, &json!({"metadata": {"finalizers": [FINALIZER]}})));
        }
        let ready = Condition { status: "True", reason: "", message: "Kubernetes Service CIDR is ready" };
        acts.extend(ready.act(&range, &value, now.wall));
        Plan::nothing().then(Step::in_turn(acts))
    }

    fn settle(&mut self, view: &dyn View, key: &Key, _now: Now, done: &Done) -> Plan {
        let is_status =
            |act: &Act| matches!(act, Act::Patch { target, .. } if target.subresource == "status");
        let failed = done.last().iter().any(|(act, outcome)| is_status(act) && outcome.error().is_some());
        match view.get(SERVICE_CIDRS, "", &key.name).filter(|range| failed && !range.is_deleting()) {
            Some(range) => {
                let message = "The ServiceCIDR Status can not be set to Ready=True";
                Plan::nothing().event(Event::warning(&range, "KubernetesServiceCIDRError", message))
            }
            None => Plan::nothing(),
        }
    }
}

fn deleting(view: &dyn View, range: &Object, value: &Value, is_held: bool, now: Now) -> Plan {
    if !may_go(view, range, value) {
        let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        let condition = Condition { status: "False", reason: "Terminating", message };
        return Plan::nothing().then(Step::in_turn(condition.act(range, value, now.wall)));
    }
    let since = range.meta.deleted.map_or(GRACE, |deleted| now.wall.since(deleted));
    if since < GRACE {
        return Plan::nothing().wake(Some(GRACE - since));
    }
    let release = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
    Plan::nothing().then(Step::in_turn(is_held.then(|| patch(range, &release))))
}

fn patch(range: &Object, patch: &Value) -> Act {
    Act::patch(range, PatchKind::Strategic, patch)
}

/// Whether every address that Services have is in another range too.
fn may_go(view: &dyn View, range: &Object, value: &Value) -> bool {
    let others: Vec<Network> = view
        .list(SERVICE_CIDRS, "")
        .iter()
        .filter(|other| other.meta.name != range.meta.name && !other.is_deleting())
        .flat_map(|other| networks(&other.value()))
        .collect();
    let own = networks(value);
    if own.iter().all(|network| others.iter().any(|other| other.has(*network))) {
        return true;
    }
    let addresses = view.list(IP_ADDRESSES, "");
    let mut used = addresses.iter().filter_map(|address| address_of(address));
    !used.any(|address| {
        own.iter().any(|network| network.has(address)) && !others.iter().any(|other| other.has(address))
    })
}

/// An address that was given to a Service, as a network of its own.
fn address_of(address: &Object) -> Option<Network> {
    let ip: IpAddr =
        address.meta.name.parse().ok().filter(|_| address.label(MANAGED_BY) == Some(ALLOCATOR))?;
    Some(Network::new(ip, if ip.is_ipv6() { 128 } else { 32 }))
}

fn networks(range: &Value) -> Vec<Network> {
    let cidrs = range["spec"]["cidrs"].as_array().into_iter().flatten();
    let network = |text: &str| {
        let (ip, prefix) = text.split_once('/')?;
        Some(Network::new(ip.parse().ok()?, prefix.parse().ok()?))
    };
    cidrs.filter_map(|cidr| network(cidr.as_str()?)).collect()
}

// === impl Network ===

impl Network {
    fn new(ip: IpAddr, prefix: u32) -> Network {
        match ip {
            IpAddr::V4(ip) => {
                Network { bits: u128::from(u32::from(ip)) << 96, is_v6: false, prefix: prefix.min(32) }
            }
            IpAddr::V6(ip) => Network { bits: u128::from(ip), is_v6: true, prefix: prefix.min(128) },
        }
    }

    fn has(self, other: Network) -> bool {
        let mask = if self.prefix == 0 { 0 } else { u128::MAX << (128 - self.prefix) };
        self.is_v6 == other.is_v6 && self.prefix <= other.prefix && self.bits & mask == other.bits & mask
    }

    fn overlaps(self, other: Network) -> bool {
        self.has(other) || other.has(self)
    }
}

#[derive(Clone, Copy, Debug)]
struct Condition {
    status: &'static str,
    reason: &'static str,
    message: &'static str,
}

// === impl Condition ===

impl Condition {
    fn act(self, range: &Object, value: &Value, now: Wall) -> Option<Act> {
        let Condition { status, reason, message } = self;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let known = conditions::find(&value["status"], "Ready");
        let said = |known: &Value| [&known["status"], &known["reason"], &known["message"]].map(text);
        if known.is_some_and(|known| said(known) == [status, reason, message]) {
            return None;
        }
        let since =
            known.filter(|known| known["status"] == status).map(|known| text(&known["lastTransitionTime"]));
        let since = since.filter(|since| !since.is_empty()).unwrap_or_else(|| timestamp(now));
        let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since});
        let apply = json!({"apiVersion": SERVICE_CIDRS.api_version(), "kind": SERVICE_CIDRS.kind,
            "metadata": {"name": range.meta.name}, "status": {"conditions": [condition]}});
        Some(Act::patch_status(range, PatchKind::Apply(NAME), &apply))
    }
}

/// A range, and those that it has to do with.
fn overlapping(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    let Some(range) = change.object() else { return };
    let own = networks(&range.value());
    let touches = |other: &Arc<Object>| {
        networks(&other.value()).iter().any(|other| own.iter().any(|network| network.overlaps(*other)))
    };
    wakes.extend(
        view.list(SERVICE_CIDRS, "").iter().filter(|other| touches(other)).map(|other| Key::of(other)),
    );
}

/// An address that comes or goes.
fn containing(change: &Change, view: &dyn View, wakes: &mut Wakes) {
    if change.old.is_some() && change.new.is_some() {
        return;
    }
    let Some(address) = change.object().and_then(|address| address_of(address)) else { return };
    let has = |range: &Arc<Object>| networks(&range.value()).iter().any(|network| network.has(address));
    wakes.extend(view.list(SERVICE_CIDRS, "").iter().filter(|range| has(range)).map(|range| Key::of(range)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Draft, World, at, draft};

    fn range(name: &str, cidrs: &[&str]) -> Draft {
        draft(SERVICE_CIDRS, name)
            .set("/spec/cidrs", json!(cidrs))
            .set("/metadata/finalizers", json!([FINALIZER]))
    }

    fn address(ip: &str) -> Draft {
        draft(IP_ADDRESSES, ip).label(MANAGED_BY, ALLOCATOR)
    }

    fn planned(objects: Vec<Draft>, now: u64) -> Plan {
        Ranges.reconcile(&World::new(objects).cache, &Key::new("", "a"), at(now))
    }

    /// `Ready`, its reason, and what becomes of the finalizer.
    fn words(plan: &Plan) -> String {
        let word = |act: &Act| {
            let body = act.body();
            match body["status"]["conditions"][0]["status"].as_str() {
                Some(status) => format!("Ready={status}"),
                None if body["metadata"]["finalizers"].is_array() => "hold".to_owned(),
                None => "release".to_owned(),
            }
        };
        plan.acts().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_range_is_held_and_ready() {
        let bare = range("a", &["10.0.0.0/16"]).set("/metadata/finalizers", json!([]));
        assert_eq!(words(&planned(vec![bare], 100)), "hold Ready=True");
        let ready = json!([{"type": "Ready", "status": "True", "reason": "", "message": "Kubernetes Service CIDR is ready"}]);
        let ready = range("a", &["10.0.0.0/16"]).set("/status/conditions", ready);
        assert_eq!(planned(vec![ready], 100), Plan::nothing());
    }

    #[test]
    fn a_range_goes_when_no_address_is_of_it_alone() {
        let going = || range("a", &["10.0.0.0/24", "fd00::/112"]).deleting(true);
        for (row, others, want) in [
            ("nothing is used", vec![], "release"),
            ("an address of it", vec![address("10.0.0.7")], "Ready=False"),
            ("one of the other family", vec![address("fd00::9")], "Ready=False"),
            ("one of somewhere else", vec![address("10.0.1.7")], "release"),
            ("a larger one has it too", vec![address("10.0.0.7"), range("b", &["10.0.0.0/8"])], "release"),
            (
                "another that goes does not count",
                vec![address("10.0.0.7"), range("b", &["10.0.0.0/8"]).deleting(true)],
                "Ready=False",
            ),
            ("a smaller one has it too", vec![address("10.0.0.7"), range("b", &["10.0.0.0/29"])], "release"),
            (
                "a smaller one without it",
                vec![address("10.0.0.7"), range("b", &["10.0.0.128/25"])],
                "Ready=False",
            ),
            ("not from the allocator", vec![draft(IP_ADDRESSES, "10.0.0.7")], "release"),
        ] {
            let objects = std::iter::once(going()).chain(others).collect();
            assert_eq!(words(&planned(objects, 100)), want, "{row}");
        }
        let soon = planned(vec![going()], 4);
        assert_eq!((soon.has_acts(), soon.wake), (false, Some(Duration::from_secs(7))));
    }

    #[test]
    fn addresses_and_other_ranges_wake_it() {
        let world = World::new([range("a", &["10.0.0.0/24"]), range("b", &["10.1.0.0/16"])]);
        let wakes =
            |old: Option<&Draft>, new: Option<&Draft>| world.wakes(SERVICE_CIDR.watches, old, new).concat();
        assert_eq!(wakes(Some(&address("10.0.0.1")), None), "a");
        assert_eq!(wakes(None, Some(&range("c", &["10.0.0.0/8"]))), "ab");
    }
}
