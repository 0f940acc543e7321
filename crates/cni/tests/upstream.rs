//! The same configuration to upstream's plugins and to ours, each on a machine of its own: the same answer, and the same devices,
//! addresses, routes, neighbours and parameters behind it. What differs on purpose is taken out by name.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod support;

use std::path::PathBuf;

use fixture::{Netns, Tools};
use serde_json::{Value, json};
use support::{Container, Machine, bridge, can_run, portmap, run_plugin};

struct Upstream {
    plugins: PathBuf,
    /// Where they find nft and iptables.
    search: String,
}

/// Upstream's plugins, or `None` with a reason.
fn upstream() -> Option<Upstream> {
    if !can_run() {
        return None;
    }
    let tools = Tools::from_env().map_err(|why| eprintln!("skipped: {why}")).ok()?;
    let plugins = tools.cni_bin();
    let bin = Tools::nft_from_env()?.parent()?.display().to_string();
    Some(Upstream { plugins, search: format!("{bin}:{bin}/iptables-nft:/usr/sbin:/usr/bin:/sbin:/bin") })
}

// === impl Upstream ===

impl Upstream {
    fn call(&self, machine: &Machine, verb: &str, config: &Value, of: &Container) -> Result<Value, String> {
        let mut environment = of.environment(verb);
        environment.path = self.plugins.display().to_string();
        let program = self.plugins.join(config["type"].as_str().unwrap());
        run_plugin(&machine.ns, &program, &environment, &self.search, &config.to_string())
    }

    fn add(&self, machine: &Machine, configs: &[Value], of: &Container) -> Value {
        let mut before = Value::Null;
        for config in configs {
            let mut config = config.clone();
            if !before.is_null() {
                config["prevResult"] = before;
            }
            before = self.call(machine, "ADD", &config, of).unwrap();
        }
        before
    }
}

/// What a namespace looks like to `ip`, without what is made anew each time.
fn look(ns: &Netns, devices: &[&str]) -> Value {
    let ip = |args: &[&str]| -> Value {
        let out = ns.command("ip").args(["-j", "-d"]).args(args).output().unwrap();
        serde_json::from_slice(&out.stdout).unwrap_or_default()
    };
    let kept = ["ifname", "mtu", "flags", "promiscuity", "linkinfo"];
    let mut links = Vec::new();
    for link in ip(&["addr"]).as_array().unwrap() {
        let name = link["ifname"].as_str().unwrap();
        let shown = if name.starts_with("veth") { "veth" } else { name };
        if !devices.contains(&shown) {
            continue;
        }
        let mut out = json!({});
        for key in kept {
            out[key] = link[key].clone();
        }
        out["ifname"] = json!(shown);
        // On the machine's end it says nothing: there is no queue.
        out["txqlen"] = if shown == "veth" { Value::Null } else { link["txqlen"].clone() };
        // What the kernel sees of the other end it says a little later.
        let flags = link["flags"].as_array().unwrap().iter();
        out["flags"] =
            flags.filter(|flag| !matches!(flag.as_str(), Some("NO-CARRIER" | "LOWER_UP"))).cloned().collect();
        let info = &link["linkinfo"];
        out["linkinfo"] = json!({
            "kind": info["info_kind"], "hairpin": info["info_slave_data"]["hairpin"],
            "isolated": info["info_slave_data"]["isolated"], "vlans": info["info_data"]["vlan_filtering"],
        });
        let addresses = link["addr_info"].as_array().unwrap().iter();
        // Those that the kernel makes of hardware addresses.
        let of_somebody = addresses.filter(|a| a["scope"] == "global" || name == "lo");
        out["addresses"] = of_somebody.map(|a| json!([a["local"], a["prefixlen"], a["scope"]])).collect();
        links.push(out);
    }
    let routes = |family: &str| -> Vec<Value> {
        let all = ip(&[family, "route", "show", "table", "main"]);
        let each = all
            .as_array()
            .unwrap()
            .iter()
            .filter(|r| !r["dst"].as_str().unwrap_or_default().starts_with("fe80"));
        let mut routes: Vec<Value> = each
            .map(|r| {
                let device = r["dev"].as_str().unwrap_or_default();
                let device = if device.starts_with("veth") { "veth" } else { device };
                json!([r["dst"], r["gateway"], device, r["scope"], r["prefsrc"], r["metric"], r["metrics"]])
            })
            .collect();
        routes.sort_by_key(Value::to_string);
        routes
    };
    json!({"links": links, "v4": routes("-4"), "v6": routes("-6")})
}

fn parameters(ns: &Netns, names: &[&str]) -> Value {
    let read = |name: &&str| {
        let value = ns.within(|| std::fs::read_to_string(format!("/proc/sys/net/{name}")));
        json!([name, value.unwrap_or_default().trim()])
    };
    names.iter().map(read).collect()
}

/// Names and hardware addresses are made anew each time.
fn shown(result: &Value, of: &Container) -> Value {
    let mut out = result.clone();
    for interface in out["interfaces"].as_array_mut().into_iter().flatten() {
        if interface["name"].as_str().is_some_and(|name| name.starts_with("veth")) {
            interface["name"] = json!("veth");
        }
        if interface["mac"].as_str().is_some_and(|mac| mac != "00:00:00:00:00:00" && mac != WANTED_MAC) {
            interface["mac"] = json!("mac");
        }
        if interface["sandbox"] == json!(of.path()) {
            interface["sandbox"] = json!("sandbox");
        }
    }
    out
}

const WANTED_MAC: &str = "02:42:00:00:00:05";

/// What is kept of addresses, without our index.
fn host_files(machine: &Machine) -> Value {
    let names = machine
        .files()
        .into_iter()
        .filter(|name| !name.contains(".attachments") && !name.starts_with("tuning/"));
    names
        .map(|name| json!([name, std::fs::read_to_string(machine.data.path().join(&name)).unwrap()]))
        .collect()
}

type Configs = fn(&Machine) -> Vec<Value>;

fn cases() -> Vec<(&'static str, Configs)> {
    fn with(machine: &Machine, changes: Value) -> Vec<Value> {
        let mut config = bridge(machine);
        config["ipMasqBackend"] = json!("nftables");
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        vec![config]
    }
    fn loopback() -> Value {
        json!({"cniVersion": "1.0.0", "name": "pods", "type": "loopback"})
    }
    fn ptp(machine: &Machine, changes: Value) -> Vec<Value> {
        let mut configs = with(machine, changes);
        configs[0]["type"] = json!("ptp");
        configs[0]["ipam"]["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
        configs
    }
    vec![
        ("everything", |m| with(m, json!({}))),
        ("plain", |m| with(m, json!({"isDefaultGateway": false, "ipMasq": false, "hairpinMode": false}))),
        ("gateway without default route", |m| with(m, json!({"isDefaultGateway": false, "isGateway": true}))),
        ("mtu, isolation, promiscuity", |m| {
            with(m, json!({"mtu": 1400, "portIsolation": true, "promiscMode": true, "hairpinMode": false}))
        }),
        ("hardware address", |m| with(m, json!({"runtimeConfig": {"mac": WANTED_MAC}}))),
        ("old version", |m| with(m, json!({"cniVersion": "0.3.1"}))),
        ("middle version", |m| with(m, json!({"cniVersion": "0.4.0"}))),
        ("newest version", |m| with(m, json!({"cniVersion": "1.1.0"}))),
        ("dns", |m| with(m, json!({"dns": {"nameservers": ["10.22.0.53"], "search": ["x"]}}))),
        ("layer two", |m| with(m, json!({"ipam": {}, "isDefaultGateway": false, "ipMasq": false}))),
        ("without an interface", |m| {
            with(
                m,
                json!({"ipam": {}, "isDefaultGateway": false, "ipMasq": false, "disableContainerInterface": true}),
            )
        }),
        ("one range, old form, routes", |m| {
            with(
                m,
                json!({"isDefaultGateway": false, "isGateway": true, "ipam": {"type": "host-local", "dataDir": m.data.path(), "subnet": "10.9.0.0/16",
                "rangeStart": "10.9.3.3", "rangeEnd": "10.9.3.9", "gateway": "10.9.255.254",
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "172.16.0.0/12", "gw": "10.9.0.77"}]}}),
            )
        }),
        ("static addresses", |m| {
            with(
                m,
                json!({"isDefaultGateway": false, "isGateway": true, "ipam": {"type": "static", "addresses": [
                {"address": "10.9.0.5/16", "gateway": "10.9.0.1"}, {"address": "fd09::5/64"}],
                "routes": [{"dst": "0.0.0.0/0"}], "dns": {"nameservers": ["10.9.0.1"]}}}),
            )
        }),
        ("ports", |m| {
            let mut configs = with(m, json!({}));
            let mut ports = portmap(json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]));
            ports["backend"] = json!("nftables");
            configs.push(ports);
            configs
        }),
        ("tuned", |m| {
            let mut configs = with(m, json!({}));
            configs.push(json!({"cniVersion": "1.0.0", "name": "pods", "type": "tuning", "mac": WANTED_MAC,
                "mtu": 1300, "promisc": true, "allmulti": true, "txQLen": 77, "dataDir": m.data.path().join("tuning"),
                "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.core.somaxconn": "500"}}));
            configs
        }),
        ("limited", |m| {
            let mut configs = with(m, json!({}));
            configs.push(json!({"cniVersion": "1.0.0", "name": "pods", "type": "bandwidth",
                "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 800_000}));
            configs
        }),
        ("loopback", |_| vec![loopback()]),
        ("a cable", |m| ptp(m, json!({}))),
        ("a cable with mtu", |m| ptp(m, json!({"mtu": 1400, "ipMasq": false}))),
    ]
}

/// Parameters of the machine and of the container that plugins set.
const OF_MACHINE: &[&str] = &[
    "ipv4/ip_forward",
    "ipv6/conf/all/forwarding",
    "ipv6/conf/cni0/accept_ra",
    "ipv4/conf/cni0/route_localnet",
];
const OF_CONTAINER: &[&str] = &[
    "ipv4/conf/eth0/arp_notify",
    "ipv6/conf/eth0/accept_dad",
    "ipv6/conf/eth0/disable_ipv6",
    "ipv6/conf/eth0/keep_addr_on_down",
    "ipv4/conf/eth0/arp_filter",
    "core/somaxconn",
];

#[test]
fn the_same_configuration_makes_the_same_network() {
    let Some(upstream) = upstream() else { return };
    let differences: Vec<String> =
        cases().into_iter().flat_map(|(case, configs)| compare(&upstream, case, configs)).collect();
    assert!(differences.is_empty(), "\n{}", differences.join("\n"));
}

/// One configuration on both; what differs.
fn compare(upstream: &Upstream, case: &str, configs: Configs) -> Vec<String> {
    let (theirs, ours) = (Machine::new(), Machine::new());
    // Loopback is up where they begin: upstream's leave that to the plugin of that name, ours never leave it down.
    let (there, here) = (Container::new("c1"), Container::new("c1"));
    let their_result = upstream.add(&theirs, &configs(&theirs), &there);
    let our_result = ours.add(&configs(&ours), &here).unwrap();
    let mut differences = Vec::new();
    let mut same = |what: &str, ours: Value, theirs: Value| {
        if ours != theirs {
            differences.push(format!("{case}, {what}:\n  ours   {ours}\n  theirs {theirs}"));
        }
    };
    same("answer", shown(&our_result, &here), shown(&their_result, &there));
    for names in [["eth0"], ["lo"]] {
        same(names[0], look(&here.ns, &names), look(&there.ns, &names));
    }
    for names in [["cni0"], ["veth"]] {
        same(names[0], look(&ours.ns, &names), look(&theirs.ns, &names));
    }
    same("the machine's parameters", parameters(&ours.ns, OF_MACHINE), parameters(&theirs.ns, OF_MACHINE));
    // A cable of ours announces its addresses as a bridge's does.
    let is_ours_alone = |name: &&str| {
        case.contains("cable") && (name.ends_with("arp_notify") || name.ends_with("accept_dad"))
    };
    let own: Vec<&str> = OF_CONTAINER.iter().filter(|name| !is_ours_alone(name)).copied().collect();
    same("the container's parameters", parameters(&here.ns, &own), parameters(&there.ns, &own));
    same("files", host_files(&ours), host_files(&theirs));
    // What one made the other takes away.
    for config in configs(&theirs).iter().rev().filter(|config| config["type"] != "loopback") {
        let mut config = config.clone();
        config["prevResult"] = their_result.clone();
        theirs.call("DEL", &config, &there).unwrap();
    }
    same("files after the deletion", host_files(&theirs), json!([]));
    same("cables after the deletion", look(&theirs.ns, &["veth"])["links"].clone(), json!([]));
    differences
}

/// Both take addresses of one directory at the same time, hundreds of them.
#[test]
fn both_take_addresses_of_one_directory_and_none_is_given_twice() {
    let Some(upstream) = upstream() else { return };
    let machine = Machine::new();
    let config = json!({"cniVersion": "1.0.0", "name": "pods", "type": "host-local",
        "ipam": {"type": "host-local", "dataDir": machine.data.path(), "ranges": [[{"subnet": "10.0.0.0/16"}]]}});
    let holder = Container::new("holder");
    let of = |who: String| cni::Environment { container: who, ..holder.environment("ADD") };
    let results: Vec<String> = std::thread::scope(|scope| {
        let theirs: Vec<_> = (0..2)
            .map(|thread| {
                let (upstream, machine, config, of) = (&upstream, &machine, &config, &of);
                scope.spawn(move || {
                    let one = |at: usize| {
                        let environment = cni::Environment {
                            path: upstream.plugins.display().to_string(),
                            ..of(format!("their-{thread}-{at}"))
                        };
                        let program = upstream.plugins.join("host-local");
                        run_plugin(&machine.ns, &program, &environment, &upstream.search, &config.to_string())
                            .unwrap()
                    };
                    (0..25).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        let ours: Vec<_> = (0..2)
            .map(|thread| {
                let (config, of) = (config.to_string(), &of);
                scope.spawn(move || {
                    let one = |at: usize| {
                        cni::call("host-local", &of(format!("our-{thread}-{at}")), config.as_bytes())
                            .unwrap()
                            .unwrap()
                    };
                    (0..200).map(one).collect::<Vec<_>>()
                })
            })
            .collect();
        let all = theirs.into_iter().chain(ours).flat_map(|thread| thread.join().unwrap());
        all.map(|result| result["ips"][0]["address"].as_str().unwrap().to_owned()).collect()
    });
    let once: std::collections::BTreeSet<&String> = results.iter().collect();
    assert_eq!((results.len(), once.len()), (450, 450));
    // Each takes away what the other gave.
    let our_first = cni::Environment {
        command: "DEL".into(),
        path: upstream.plugins.display().to_string(),
        ..of("our-0-0".into())
    };
    let program = upstream.plugins.join("host-local");
    run_plugin(&machine.ns, &program, &our_first, &upstream.search, &config.to_string()).unwrap();
    let their_first = cni::Environment { command: "DEL".into(), ..of("their-0-0".into()) };
    cni::call("host-local", &their_first, config.to_string().as_bytes()).unwrap();
    let left = machine.files().into_iter().filter(|name| !name.contains(".attachments")).count();
    assert_eq!(left, 448);
}
