//! A machine and its containers: network namespaces, and plugins called in them.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    dead_code,
    unreachable_pub,
    missing_debug_implementations
)]

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cni::{CniError, Environment};
use fixture::Netns;
use serde_json::{Value, json};

pub struct Machine {
    pub ns: Netns,
    pub data: tempfile::TempDir,
}

pub struct Container {
    pub ns: Netns,
    pub id: String,
}

/// How long a packet that must arrive may take; one that must not is waited for as long as [`NEVER`].
const ARRIVES: Duration = Duration::from_secs(10);
pub const NEVER: Duration = Duration::from_millis(300);

/// Whether there are namespaces to be had.
pub fn can_run() -> bool {
    match Netns::available() {
        Ok(()) => true,
        Err(why) => {
            eprintln!("skipped: {why}");
            false
        }
    }
}

// === impl Machine ===

impl Machine {
    pub fn new() -> Self {
        Self { ns: Netns::new().unwrap(), data: tempfile::tempdir().unwrap() }
    }

    /// Calls a plugin in process, on this machine.
    pub fn call(&self, verb: &str, config: &Value, of: &Container) -> Result<Value, CniError> {
        let environment = of.environment(verb);
        let plugin = config["type"].as_str().unwrap().to_owned();
        let input = config.to_string();
        let value = self.ns.within(|| cni::call(&plugin, &environment, input.as_bytes()))?;
        Ok(value.unwrap_or_default())
    }

    /// Calls plugins one after the other, as a runtime does.
    pub fn add(&self, configs: &[Value], of: &Container) -> Result<Value, CniError> {
        let mut before: Option<Value> = None;
        for config in configs {
            let mut config = config.clone();
            if let Some(before) = &before {
                config["prevResult"] = before.clone();
            }
            before = Some(self.call("ADD", &config, of)?);
        }
        Ok(before.unwrap_or_default())
    }

    pub fn each(
        &self,
        verb: &str,
        configs: &[Value],
        before: &Value,
        of: &Container,
    ) -> Result<(), CniError> {
        let order: Vec<&Value> =
            if verb == "DEL" { configs.iter().rev().collect() } else { configs.iter().collect() };
        for config in order {
            let mut config = config.clone();
            if !before.is_null() {
                config["prevResult"] = before.clone();
            }
            self.call(verb, &config, of)?;
        }
        Ok(())
    }

    pub fn del(&self, configs: &[Value], before: &Value, of: &Container) -> Result<(), CniError> {
        self.each("DEL", configs, before, of)
    }

    /// What is left after a garbage collection with these to live.
    pub fn gc(&self, configs: &[Value], valid: &[&Container]) -> Result<(), CniError> {
        let valid: Vec<Value> =
            valid.iter().map(|of| json!({"containerID": of.id, "ifname": "eth0"})).collect();
        for config in configs {
            let mut config = config.clone();
            config["cniVersion"] = json!("1.1.0");
            config["cni.dev/valid-attachments"] = json!(valid);
            let environment = Environment { command: "GC".into(), ..Environment::default() };
            let plugin = config["type"].as_str().unwrap().to_owned();
            self.ns.within(|| cni::call(&plugin, &environment, config.to_string().as_bytes()))?;
        }
        Ok(())
    }

    /// Another machine on a cable to this one: 192.0.2.1 and 2001:db8::1 here, .2 and ::2 there.
    pub fn neighbour(&self) -> Netns {
        let other = Netns::new().unwrap();
        self.ns
            .ip(&format!(
                "link add out0 type veth peer name in0 netns {}\naddr add 192.0.2.1/24 dev out0\n\
                 addr add 2001:db8::1/64 dev out0 nodad\nlink set out0 up\n",
                other.pid()
            ))
            .unwrap();
        other
            .ip("addr add 192.0.2.2/24 dev in0\naddr add 2001:db8::2/64 dev in0 nodad\nlink set in0 up\n")
            .unwrap();
        other
    }

    /// Everything that can be left: devices, addresses, routes, elements, files.
    pub fn inventory(&self) -> String {
        let ip = |args: &[&str]| {
            let out = self.ns.command("ip").args(args).output().unwrap();
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let text = [ip(&["-o", "addr"]), ip(&["-o", "link"]), ip(&["route"]), ip(&["-6", "route"])].concat();
        // What counts with time, and what the kernel sees a little later.
        let lines = text.lines().filter(|line| !line.contains("fe80::"));
        let lines = lines.map(|line| line.split(" valid_lft").next().unwrap().to_owned() + "\n");
        let mut text: String = lines.collect();
        for late in
            ["NO-CARRIER,", ",LOWER_UP", " linkdown", " state UP", " state DOWN", " state LOWERLAYERDOWN"]
        {
            text = text.replace(late, "");
        }
        for family in [nft::Family::Ip, nft::Family::Ip6] {
            text.push_str(&self.elements(family).join("\n"));
        }
        text.push_str(&self.files().join("\n"));
        text
    }

    pub fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        let mut open = vec![self.data.path().to_owned()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(dir).unwrap().flatten() {
                match entry.path().is_dir() {
                    true => open.push(entry.path()),
                    false => {
                        names.push(entry.path().strip_prefix(self.data.path()).unwrap().display().to_string())
                    }
                }
            }
        }
        names.retain(|name| !name.ends_with("/lock") && !name.contains("last_reserved_ip"));
        names.sort();
        names
    }

    pub fn elements(&self, family: nft::Family) -> Vec<String> {
        self.ns.within(|| {
            let mut nft = sys::nft::Nftables::open().unwrap();
            let table = cni_core::table::table(family);
            let mut all = Vec::new();
            for set in cni_core::table::SetId::ALL {
                let mut found = Vec::new();
                let question = nft::Question::Elements(set.name());
                let asked = nft.ask(&table, &question, &mut found, Vec::clear, |found, notice| {
                    if let nft::What::Elements(_, Some(elements)) = notice.what {
                        found.extend(elements);
                    }
                    true
                });
                if asked.is_ok() {
                    all.extend(
                        found.iter().map(|e: &nft::Element| format!("{} {e:?} {:?}", set.name(), e.comment)),
                    );
                }
            }
            all
        })
    }
}

// === impl Container ===

impl Container {
    pub fn new(id: &str) -> Self {
        Self { ns: Netns::new().unwrap(), id: id.to_owned() }
    }

    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.ns.pid())
    }

    pub fn environment(&self, verb: &str) -> Environment {
        Environment {
            command: verb.to_owned(),
            container: self.id.clone(),
            namespace: self.path(),
            interface: "eth0".into(),
            arguments: String::new(),
            path: "/nonexistent".into(),
        }
    }
}

/// The configuration of a bridge with addresses of both families.
pub fn bridge(machine: &Machine) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": "pods", "type": "bridge", "bridge": "cni0",
        "isDefaultGateway": true, "ipMasq": true, "hairpinMode": true,
        "ipam": {
            "type": "host-local", "dataDir": machine.data.path(),
            "ranges": [[{"subnet": "10.22.0.0/24"}], [{"subnet": "fd22::/64"}]],
        },
    })
}

pub fn portmap(ports: Value) -> Value {
    json!({"cniVersion": "1.0.0", "name": "pods", "type": "portmap", "runtimeConfig": {"portMappings": ports}})
}

/// The addresses of a result, version 4 first.
pub fn ips(result: &Value) -> Vec<IpAddr> {
    let each = result["ips"].as_array().unwrap().iter();
    let mut ips: Vec<IpAddr> =
        each.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().parse().unwrap()).collect();
    ips.sort();
    ips
}

pub fn listen(ns: &Netns, at: &str) -> TcpListener {
    ns.within(|| TcpListener::bind(at).unwrap())
}

/// Says who the other side sees.
pub fn caller(from: &Netns, to: &str, server: &TcpListener) -> std::io::Result<IpAddr> {
    let to: SocketAddr = to.parse().unwrap();
    let mut client = from.within(|| TcpStream::connect_timeout(&to, ARRIVES))?;
    let (mut served, who) = server.accept()?;
    client.write_all(b"ping")?;
    let mut heard = [0; 4];
    served.read_exact(&mut heard)?;
    served.write_all(b"pong")?;
    client.read_exact(&mut heard)?;
    assert_eq!(&heard, b"pong");
    Ok(who.ip())
}

pub fn is_unreachable(from: &Netns, to: &str) -> bool {
    let to: SocketAddr = to.parse().unwrap();
    from.within(|| TcpStream::connect_timeout(&to, NEVER)).is_err()
}

/// Another program, in a namespace: what it printed, if it ended well.
pub fn run_plugin(
    ns: &Netns,
    program: &Path,
    environment: &Environment,
    search: &str,
    input: &str,
) -> Result<Value, String> {
    let mut command: Command = ns.command(program.to_str().unwrap());
    command
        .env("CNI_COMMAND", &environment.command)
        .env("CNI_CONTAINERID", &environment.container)
        .env("CNI_NETNS", &environment.namespace)
        .env("CNI_IFNAME", &environment.interface)
        .env("CNI_ARGS", &environment.arguments)
        .env("CNI_PATH", &environment.path)
        .env("PATH", search);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    match out.status.success() {
        true => Ok(serde_json::from_str(&text).unwrap_or_default()),
        false => Err(format!("{text}{}", String::from_utf8_lossy(&out.stderr))),
    }
}
