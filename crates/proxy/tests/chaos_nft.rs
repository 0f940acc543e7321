//! The agent under change, with traffic flowing and others meddling.
#![allow(clippy::unwrap_used)]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fixture::Tools;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nft::{Element, Expr, Message, Rule, Verdict};
use proxy::backend::nft::NftDataplane;
use proxy::observed::Triggers;
use proxy::ports::Dataplane;
use proxy::sync::{Config, Gap, Periods, Report, run};
use proxy::yield_flag::YieldFlag;
use proxy::{Listed, Update};
use proxy_core::nft::{Content, Renderer, compare, table};
use proxy_core::objects::{Cluster, Family, Protocol};
use proxy_core::rules::Rulebook;
use serde_json::json;
use support::{Answer, Lab, MASQUERADE_BIT, Party, service, settings, slices};
use sys::nft::{Monitor, Nftables, Sighting};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

const CHANGES: u32 = 10_000;

/// An agent on a thread of its own, in the lab's node.
struct Agent {
    news: mpsc::Sender<Update>,
    report: watch::Receiver<Report>,
    token: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Agent {
    fn start(lab: &Lab) -> Self {
        // Short, so that the kernel is told often.
        let (news, updates) = mpsc::channel(4);
        let (report, seen) = watch::channel(Report::default());
        let token = CancellationToken::new();
        let stop = token.clone();
        let ns = std::fs::File::open(format!("/proc/{}/ns/net", lab.node.ns.pid())).unwrap();
        let thread = thread::spawn(move || {
            let network = Some(rustix::thread::LinkNameSpaceType::Network);
            rustix::thread::move_into_link_name_space(std::os::fd::AsFd::as_fd(&ns), network).unwrap();
            let planes = Family::BOTH.map(|family| {
                let plane = NftDataplane::open(family, MASQUERADE_BIT).unwrap();
                (family, Box::new(plane) as Box<dyn Dataplane>)
            });
            let second = Duration::from_secs(1);
            let periods = Periods { gap: Gap::Said(Duration::ZERO), verify: 3600 * second, retry: second };
            let config = Config {
                node_name: support::NODE.into(),
                settings: settings(),
                periods,
                triggers: Triggers::default(),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(run(config, planes.into(), updates, Arc::new(report), stop)).unwrap();
        });
        Self { news, report: seen, token, thread: Some(thread) }
    }

    fn tell(&self, update: Update) {
        self.news.blocking_send(update).unwrap();
    }

    fn begin(&self, lab: &Lab, world: &World) {
        self.tell(Update::Host(lab.host.clone()));
        self.tell(Update::Node(Box::new(support::node())));
        self.tell(Update::ServiceCidr(Box::new(support::service_cidr())));
        self.tell(Update::Begin(Listed::Services));
        world.services.iter().for_each(|service| self.tell(Update::Service(Box::new(service.clone()))));
        self.tell(Update::End(Listed::Services));
        self.tell(Update::Begin(Listed::Slices));
        world.slices.iter().for_each(|slice| self.tell(Update::Slice(Box::new(slice.clone()))));
        self.tell(Update::End(Listed::Slices));
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.token.cancel();
        let done = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || matches!(done, Some(Ok(()))));
    }
}

/// What the objects are, to compare the kernel with.
#[derive(Default)]
struct World {
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
}

impl World {
    /// So many Services of one family with one endpoint each, from 10.96.1.1 on.
    fn of(lab: &Lab, many: u32) -> Self {
        let mut world = World::default();
        for number in 0..many {
            let (name, ip) =
                (format!("s{number}"), format!("10.96.{}.{}", 1 + number / 250, 1 + number % 250));
            let over = json!({"spec": {"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"]}});
            world.services.push(service(&name, 1, over));
            let is_v4 = |slice: &EndpointSlice| slice.address_type == Family::V4.name();
            world.slices.extend(slices(&name, &[&lab.pods[0]]).into_iter().filter(is_v4));
        }
        world
    }

    fn cluster(&self) -> Cluster {
        let mut cluster = support::cluster();
        cluster.replace_services(&self.services);
        cluster.replace_slices(&self.slices);
        cluster
    }

    fn put(&mut self, agent: &Agent, service: Service) {
        self.services.retain(|s| s.metadata.name != service.metadata.name);
        self.services.push(service.clone());
        agent.tell(Update::Service(Box::new(service)));
    }

    fn remove(&mut self, agent: &Agent, name: &str) {
        self.services.retain(|s| s.metadata.name.as_deref() != Some(name));
        agent.tell(Update::NoService { namespace: "ns".into(), name: name.into() });
        let of_it = |s: &EndpointSlice| {
            s.metadata
                .labels
                .iter()
                .flatten()
                .any(|(label, value)| label.ends_with("service-name") && value == name)
        };
        for slice in self.slices.extract_if(.., |s| of_it(s)) {
            let name = slice.metadata.name.unwrap();
            agent.tell(Update::NoSlice { namespace: "ns".into(), name });
        }
    }

    fn endpoints(&mut self, agent: &Agent, name: &str, parties: &[&Party]) {
        for slice in slices(name, parties) {
            self.slices.retain(|s| s.metadata.name != slice.metadata.name);
            self.slices.push(slice.clone());
            agent.tell(Update::Slice(Box::new(slice)));
        }
    }

    /// What is wrong in the kernel, compared with a table made anew.
    fn faults(&self, lab: &Lab, family: Family) -> Vec<String> {
        let mut cluster = self.cluster();
        let mut book = Rulebook::new(family, settings());
        let changed = cluster.take_changes(family).unwrap();
        book.update(&cluster, &lab.host, changed);
        let read = || NftDataplane::open(family, MASQUERADE_BIT).unwrap().read();
        let Ok(is) = lab.node.ns.within(read) else { return vec!["in motion".into()] };
        let mut renderer = Renderer::new(family, MASQUERADE_BIT);
        renderer.adopt(&is);
        compare(&is, renderer.whole(book.rules())).faults
    }

    fn until_right(&self, lab: &Lab, what: &str, limit: Duration) {
        let start = Instant::now();
        loop {
            let faults: Vec<String> = Family::BOTH.iter().flat_map(|f| self.faults(lab, *f)).collect();
            if faults.is_empty() {
                return;
            }
            assert!(start.elapsed() < limit, "{what}: {faults:?}");
            thread::yield_now();
        }
    }
}

struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % sides
    }
}

/// Somebody calls without a pause; every call has to be answered.
fn call(
    client: &Party,
    to: SocketAddr,
    protocol: Protocol,
    stop: &AtomicBool,
    count: &AtomicU64,
) -> Vec<Answer> {
    let mut bad = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match client.call(to, protocol) {
            Answer::From { .. } => drop(count.fetch_add(1, Ordering::Relaxed)),
            other => bad.push(other),
        }
    }
    bad
}

fn steady(lab: &Lab, agent: &Agent, world: &mut World) {
    world.services = vec![service("steady", 10, json!({"spec": {"type": "NodePort"}}))];
    world.slices = slices("steady", &[&lab.pods[0], &lab.pods[1]]);
    agent.begin(lab, world);
    world.until_right(lab, "the first sync", Duration::from_secs(10));
}

fn change(lab: &Lab, agent: &Agent, world: &mut World, dice: &mut Dice) {
    let number = 20 + dice.roll(20) as u8;
    let name = format!("s{number}");
    let everybody = [&lab.pods[0], &lab.pods[1], &lab.there];
    let some: Vec<&Party> = everybody.iter().filter(|_| dice.roll(2) == 0).copied().collect();
    match dice.roll(10) {
        0..3 => {
            let policy = ["Cluster", "Local"][dice.roll(2) as usize];
            let affinity = ["None", "ClientIP"][dice.roll(2) as usize];
            let port = 31000 + i32::from(number);
            let ports = json!([{"name": "tcp", "protocol": "TCP", "port": 80, "nodePort": port}]);
            let spec = json!({"type": "NodePort", "externalTrafficPolicy": policy, "sessionAffinity": affinity,
                              "ports": ports});
            world.put(agent, service(&name, number, json!({"spec": spec})));
        }
        3 => world.remove(agent, &name),
        4..8 => world.endpoints(agent, &name, &some),
        // The one that is called has more endpoints for a while; two of them it always has.
        _ => {
            let with_more = [&lab.pods[0], &lab.pods[1], &lab.there];
            world.endpoints(agent, "steady", &with_more[..2 + dice.roll(2) as usize]);
        }
    }
}

#[test]
fn no_call_fails_while_everything_changes() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let (agent, mut world) = (Agent::start(&lab), World::default());
    steady(&lab, &agent, &mut world);
    let (stop, count, mut dice) = (AtomicBool::new(false), AtomicU64::new(0), Dice(0x5eed));
    let bad: Vec<Answer> = thread::scope(|scope| {
        let call = |client, to: &str, protocol| {
            let (to, stop, count) = (to.parse().unwrap(), &stop, &count);
            scope.spawn(move || call(client, to, protocol, stop, count))
        };
        let callers = [
            call(&lab.pods[2], "10.96.0.10:80", Protocol::Tcp),
            call(&lab.pods[2], "[fd96::10]:80", Protocol::Tcp),
            call(&lab.outside, "10.96.0.10:80", Protocol::Tcp),
            call(&lab.node, "10.96.0.10:80", Protocol::Udp),
        ];
        for _ in 0..CHANGES {
            change(&lab, &agent, &mut world, &mut dice);
        }
        world.until_right(&lab, "after all changes", Duration::from_secs(20));
        stop.store(true, Ordering::Relaxed);
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    });
    assert!(
        bad.is_empty(),
        "{} of {} calls failed: {:?}",
        bad.len(),
        count.into_inner(),
        &bad[..bad.len().min(5)]
    );
    let report = agent.report.borrow().clone();
    assert!(report.families.iter().all(|f| f.failures == 0 && f.repairs == 0), "{report:?}");
}

/// What others do to the table.
enum Edit {
    Messages(Vec<Message>),
    /// What we have no words for: lines for `nft`.
    Lines(&'static str),
}

impl Edit {
    /// Whether the kernel agreed: while there is news, it may have been done or undone already.
    fn make(&self, lab: &Lab, foreign: &mut Nftables) -> bool {
        match self {
            Edit::Messages(messages) => foreign.commit(&table(Family::V4), messages).is_ok(),
            Edit::Lines(lines) => {
                let Some(nft) = Tools::nft_from_env() else { return true };
                let mut command = lab.node.ns.command(&nft.display().to_string());
                command.arg(lines).output().unwrap().status.success()
            }
        }
    }
}

fn edits() -> Vec<(&'static str, Edit)> {
    let key = vec![10, 96, 0, 10, 6, 0, 0, 0, 0, 80, 0, 0];
    let mut other = key.clone();
    other[3] = 99;
    let accept = Rule { exprs: vec![Expr::Verdict(Verdict::Accept)], comment: None };
    let stranger = nft::Chain { name: "stranger".into(), hook: None };
    let elements = |set: &str, key: Vec<u8>| (set.into(), vec![Element::new(key)]);
    let (less, more) = (elements("all-service-ips", key), elements("external-ips", other));
    vec![
        ("a rule more", Edit::Messages(vec![Message::AddRule("services".into(), accept)])),
        ("a chain emptied", Edit::Messages(vec![Message::FlushChain("services".into())])),
        ("an element less", Edit::Messages(vec![Message::DeleteElements(less.0, less.1)])),
        ("a chain more", Edit::Messages(vec![Message::AddChain(stranger)])),
        ("the table deleted", Edit::Messages(vec![Message::DeleteTable])),
        ("an element more", Edit::Messages(vec![Message::AddElements(more.0, more.1)])),
        (
            "a rule with a set of its own",
            Edit::Lines("insert rule ip kube-proxy services ip daddr { 1.1.1.1, 2.2.2.2 } counter"),
        ),
        (
            "a chain that a map leads to",
            Edit::Lines(
                "add chain ip kube-proxy led\n add map ip kube-proxy leads { type ipv4_addr : verdict; }\n \
                 add element ip kube-proxy leads { 1.1.1.1 : goto led }",
            ),
        ),
        (
            "a chain that drops everything",
            Edit::Lines("add chain ip kube-proxy x { type filter hook forward priority 0; policy drop; }"),
        ),
        (
            "a chain of ours that drops everything",
            Edit::Lines(
                "add chain ip kube-proxy filter-forward { type filter hook forward priority 0; policy drop; }",
            ),
        ),
        ("the table put to sleep", Edit::Lines("add table ip kube-proxy { flags dormant; }")),
        (
            "an element for all that is not there",
            Edit::Lines("add element ip kube-proxy all-cluster-ips { * }"),
        ),
        (
            "a chain of a kind that we do not use",
            Edit::Lines("add chain ip kube-proxy y { type route hook output priority 0; policy accept; }"),
        ),
    ]
}

#[test]
fn what_others_break_is_healed_and_a_restart_touches_nothing() {
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let (agent, mut world) = (Agent::start(&lab), World::default());
    steady(&lab, &agent, &mut world);
    let mut dice = Dice(7);
    for _ in 0..60 {
        change(&lab, &agent, &mut world, &mut dice);
    }
    world.until_right(&lab, "after changes", Duration::from_secs(20));
    // The second comparison, after which the agent listens.
    let is_listening = |agent: &Agent| agent.report.borrow().families.iter().all(|f| f.syncs >= 2);
    while !is_listening(&agent) {
        thread::yield_now();
    }
    let mut foreign: Nftables = lab.node.ns.within(|| Nftables::open().unwrap());
    for (what, edit) in edits() {
        // A machine that does much else may be late once, but not each time.
        let is_quick = (0..3).any(|_| {
            assert!(edit.make(&lab, &mut foreign), "{what}");
            let start = Instant::now();
            world.until_right(&lab, what, Duration::from_secs(10));
            start.elapsed() < Duration::from_secs(1)
        });
        assert!(is_quick, "{what}: not healed within a second");
        let answer = lab.pods[2].call("10.96.0.10:80".parse().unwrap(), Protocol::Tcp);
        assert!(matches!(answer, Answer::From { .. }), "{what}: {answer:?}");
    }
    // The same while there is news all the time.
    for (what, edit) in edits() {
        for number in 0..100 {
            change(&lab, &agent, &mut world, &mut dice);
            if number % 40 == 0 {
                edit.make(&lab, &mut foreign);
            }
        }
        world.until_right(&lab, what, Duration::from_secs(20));
    }
    drop(agent);
    // An agent that comes back finds everything right.
    let mut monitor = lab.node.ns.within(|| Monitor::open().unwrap());
    let agent = Agent::start(&lab);
    agent.begin(&lab, &world);
    while !is_listening(&agent) {
        thread::yield_now();
    }
    for family in Family::BOTH {
        assert_eq!(monitor.read(&table(family), 0).unwrap().0, Sighting::Nothing, "{family:?}");
    }
}

/// A first sync of many Services takes several transactions. Whoever is killed between two of them leaves nothing that the
/// kernel calls, and who comes after him goes on from there.
#[test]
fn a_build_that_was_cut_short_does_no_harm_and_is_finished() {
    const MANY: u32 = 9_000;
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let world = World::of(&lab, MANY);
    let mut cluster = world.cluster();
    let mut book = Rulebook::new(Family::V4, settings());
    let changed = cluster.take_changes(Family::V4).unwrap();
    book.update(&cluster, &lab.host, changed);
    let steps =
        compare(&Content::default(), Renderer::new(Family::V4, MASQUERADE_BIT).whole(book.rules())).steps;
    assert!(steps.len() > 1, "{}", steps.len());
    lab.node.ns.within(|| {
        for cut in 0..steps.len() {
            let mut plane = NftDataplane::open(Family::V4, MASQUERADE_BIT).unwrap();
            if cut > 0 {
                plane.remove().unwrap();
            }
            let mut killed = Nftables::open().unwrap();
            steps[..cut].iter().for_each(|step| killed.commit(&table(Family::V4), step).unwrap());
            assert!(!plane.read().unwrap().is_hooked(), "{cut}");
            plane.verify(book.rules(), &YieldFlag::default()).unwrap();
            let is = plane.read().unwrap();
            let mut renderer = Renderer::new(Family::V4, MASQUERADE_BIT);
            renderer.adopt(&is);
            let findings = compare(&is, renderer.whole(book.rules()));
            assert_eq!(findings.faults, Vec::<String>::new(), "{cut}");
        }
    });
}

/// Changes a table of its own without a pause to speak of, as some firewalls do.
fn churn(foreign: &mut Nftables, stop: &AtomicBool) {
    let own = nft::TableId { family: table(Family::V4).family, name: "restless".into() };
    let chain = nft::Chain { name: "one".into(), hook: None };
    let accept = Rule { exprs: vec![Expr::Verdict(Verdict::Accept)], comment: None };
    foreign.commit(&own, &[Message::AddTable, Message::AddChain(chain)]).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let change = [Message::FlushChain("one".into()), Message::AddRule("one".into(), accept.clone())];
        foreign.commit(&own, &change).unwrap();
    }
}

/// The kernel tells a whole table only between two changes of any table, so that ours can hardly be read then.
#[test]
fn others_who_never_rest_hold_up_nothing() {
    const MANY: u32 = 4_000;
    if support::skipped() {
        return;
    }
    let lab = Lab::new();
    let (mut world, stop) = (World::of(&lab, MANY), AtomicBool::new(false));
    let mut foreign: Nftables = lab.node.ns.within(|| Nftables::open().unwrap());
    let answers =
        |to: &str| matches!(lab.pods[2].call(to.parse().unwrap(), Protocol::Tcp), Answer::From { .. });
    let until_answers = |to: &str, what: &str| {
        let start = Instant::now();
        while !answers(to) {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}: {to}");
        }
    };
    thread::scope(|scope| {
        // Also when something fails.
        let _stop = Stop(&stop);
        scope.spawn(|| churn(&mut foreign, &stop));
        let agent = Agent::start(&lab);
        agent.begin(&lab, &world);
        until_answers("10.96.1.1:80", "the first sync");
        let mut plane = lab.node.ns.within(|| NftDataplane::open(Family::V4, MASQUERADE_BIT).unwrap());
        for number in 20..30 {
            let name = format!("late{number}");
            world.put(&agent, service(&name, number, json!({})));
            world.endpoints(&agent, &name, &[&lab.pods[1]]);
            until_answers(&format!("10.96.0.{number}:80"), "a change");
        }
        // What it cannot see it puts right all the same, in the end.
        plane.remove().unwrap();
        until_answers("10.96.1.1:80", "the table deleted");
        until_answers("10.96.0.20:80", "the table deleted");
    });
    world.until_right(&lab, "in peace", Duration::from_secs(60));
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
