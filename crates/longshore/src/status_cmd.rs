//! `longshore status`: how the node of this machine is.

mod certificates;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::{Client, ClientError, Config, Options, Request};
use lexopt::prelude::{Long, Short, ValueExt};
use serde_json::{Value, json};

use crate::node_here::{NodeHere, Standing};
use crate::{KUBERNETES, console};

const USAGE: &str = "\
Show how the node of this machine is: its parts, certificates, storage, addresses, Pods. Ends with 1 if something is wrong.

Usage:
  longshore status [flags]

Flags:
  -o, --output FORMAT   text or json, default text
      --state-dir DIR   of the node, where several run
  -h, --help            this text
";
/// For all that is asked of the API server.
const PATIENT: Duration = Duration::from_secs(10);

/// What there is to say, one line each: a word, and more of it. The whole is as good as its lines.
#[derive(Debug, Default)]
struct Report {
    rows: Vec<(&'static str, String)>,
    json: serde_json::Map<String, Value>,
    wrong: bool,
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    console::command(parse(args), USAGE, |(is_json, state_dir)| {
        let node = NodeHere::find(state_dir.as_deref())?;
        let report = console::block_on(look(&node))?;
        console::out(&if is_json { report.as_json() } else { report.as_text() });
        Ok::<_, String>(if report.wrong { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    })
}

async fn look(node: &NodeHere) -> Report {
    let mut report = Report::default();
    let version = format!("{} (Kubernetes {KUBERNETES}), process {}", node.version, node.pid);
    report.say(
        "longshore",
        version,
        json!({"version": node.version, "kubernetes": KUBERNETES, "pid": node.pid}),
    );
    report.say("API server", node.server.clone(), json!(node.server));
    report.parts(node);
    report.runtime(node);
    report.page(node);
    match tokio::time::timeout(PATIENT, ask(node, &mut report)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => report.wrong("API server", error.to_string()),
        Err(_) => report.wrong("API server", format!("no answer within {} s", PATIENT.as_secs())),
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    report.certificates(&node.data_dir, i64::try_from(now).unwrap_or(i64::MAX));
    report.storage(&node.data_dir);
    report.say("kubectl", "eval \"$(longshore kubectl-config)\"".to_owned(), json!(node.kubeconfig()));
    report
}

/// What the API server knows.
async fn ask(node: &NodeHere, report: &mut Report) -> Result<(), ClientError> {
    let client = Client::new(Config::load(&node.kubeconfig())?, Options::default()).await?;
    let get = async |path: String| -> Result<Value, ClientError> {
        let bytes = client.ask_bytes(Request::get(path)).await?;
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    };
    match get(format!("/api/v1/nodes/{}", node.node_name)).await {
        Ok(object) => report.node(node, &object),
        Err(error) if error.is_not_found() => {
            report.wrong("node", format!("{} is not registered", node.node_name))
        }
        Err(error) => return Err(error),
    }
    let pods = get(format!("/api/v1/pods?fieldSelector=spec.nodeName={}", node.node_name)).await?;
    let counts = phases(&pods);
    let text: Vec<String> = counts.iter().map(|(phase, count)| format!("{count} {phase}")).collect();
    let text = if text.is_empty() { "none".to_owned() } else { text.join(", ") };
    report.say("Pods", text, counts.into_iter().map(|(phase, count)| (phase, json!(count))).collect());
    let waiting = phases(&get("/api/v1/pods?fieldSelector=spec.nodeName=".to_owned()).await?);
    let waiting: usize = waiting.iter().map(|(_, count)| count).sum();
    if waiting > 0 {
        report.rows.push(("Pods", format!("{waiting} wait for a node: longshore doctor pod says why")));
    }
    for (name, address) in balancers(&get("/api/v1/services".to_owned()).await?) {
        let text = match &address {
            Some(address) => format!("{name} at {address}"),
            None => format!("{name} waits for an address: longshore doctor service says why"),
        };
        report.rows.push(("Service", text));
    }
    Ok(())
}

/// How many Pods are in which phase.
fn phases(list: &Value) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    for pod in list["items"].as_array().into_iter().flatten() {
        *counts.entry(pod["status"]["phase"].as_str().unwrap_or("Unknown").to_owned()).or_insert(0) += 1;
    }
    counts.into_iter().collect()
}

/// Services of type LoadBalancer, and where they are.
fn balancers(list: &Value) -> Vec<(String, Option<String>)> {
    let all = list["items"].as_array().into_iter().flatten();
    let balanced = all.filter(|service| service["spec"]["type"] == "LoadBalancer");
    let show = |service: &Value| {
        let text = |pointer: &str| service.pointer(pointer).and_then(Value::as_str);
        let name =
            format!("{}/{}", text("/metadata/namespace").unwrap_or(""), text("/metadata/name").unwrap_or(""));
        let ports: Vec<String> = service["spec"]["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|port| port["port"].to_string())
            .collect();
        let address = text("/status/loadBalancer/ingress/0/ip").map(|ip| format!("{ip}:{}", ports.join(",")));
        (name, address)
    };
    balanced.map(show).collect()
}

// === impl Report ===

impl Report {
    fn say(&mut self, word: &'static str, text: String, value: Value) {
        self.rows.push((word, text));
        self.json.insert(word.to_owned(), value);
    }

    fn wrong(&mut self, word: &'static str, text: String) {
        self.wrong = true;
        self.json.insert(format!("{word} (wrong)"), json!(text));
        self.rows.push((word, format!("WRONG: {text}")));
    }

    fn page(&mut self, node: &NodeHere) {
        let off = "off: longshore up --node-page=4194 shows the node in a browser";
        let text = node.node_page.clone().unwrap_or_else(|| off.to_owned());
        self.say("node page", text, json!(node.node_page));
    }

    fn parts(&mut self, node: &NodeHere) {
        let running: Vec<&str> =
            node.parts.iter().filter(|(_, s)| **s == Standing::Runs).map(|(name, _)| name.as_str()).collect();
        self.say("parts", running.join(", "), json!(running));
        for (name, standing) in &node.parts {
            if let Standing::Failed(error) = standing {
                self.wrong("parts", format!("{name} does not run and is tried again: {error}"));
            }
        }
    }

    fn runtime(&mut self, node: &NodeHere) {
        // A node without Pods has none.
        if node.runtime_socket.as_os_str().is_empty() {
            return;
        }
        let socket = format!("unix://{}", node.runtime_socket.display());
        let value = json!({"endpoint": socket, "which": node.runtime});
        // One that others run is named by its socket.
        let text = if node.runtime == socket { socket } else { format!("{}: {socket}", node.runtime) };
        self.say("runtime", text, value);
    }

    fn node(&mut self, node: &NodeHere, object: &Value) {
        let conditions = || object["status"]["conditions"].as_array().into_iter().flatten();
        let ready = conditions().find(|condition| condition["type"] == "Ready");
        for pressure in
            conditions().filter(|condition| condition["type"] != "Ready" && condition["status"] == "True")
        {
            let text = |name: &str| pressure[name].as_str().unwrap_or_default().to_owned();
            self.wrong("node", format!("{}: {}; no new Pods come to it", text("type"), text("message")));
        }
        let is_ready = ready.is_some_and(|condition| condition["status"] == "True");
        let name = format!("{} {}", node.node_name, node.node_ip);
        if is_ready {
            return self.say(
                "node",
                format!("{name} is Ready"),
                json!({"name": node.node_name, "ready": true}),
            );
        }
        let why =
            ready.and_then(|condition| condition["message"].as_str()).unwrap_or("nothing is said of it");
        self.wrong("node", format!("{name} is not Ready: {why}"));
    }

    fn certificates(&mut self, data: &Path, now: i64) {
        let mut all = Vec::new();
        for (name, end) in certificates::ends(&data.join("pki")) {
            let days = (end - now).div_euclid(24 * 3600);
            if days < 0 {
                self.wrong("certificates", format!("{name} has ended"));
            }
            all.push((name, days));
        }
        all.sort_by_key(|(_, days)| *days);
        let text: Vec<String> = all.iter().map(|(name, days)| format!("{name} {days} days")).collect();
        self.say(
            "certificates",
            text.join(", "),
            all.into_iter().map(|(name, days)| (name, json!(days))).collect(),
        );
    }

    fn storage(&mut self, data: &Path) {
        let free = rustix::fs::statvfs(data).map(|fs| fs.f_bavail.saturating_mul(fs.f_frsize)).unwrap_or(0);
        let store: u64 = sizes(data, "store");
        let text = format!("{}: store {}, {} free", data.display(), human(store), human(free));
        self.say("storage", text, json!({"directory": data, "storeBytes": store, "freeBytes": free}));
    }

    fn as_text(&self) -> String {
        let mut out = String::new();
        for (word, text) in &self.rows {
            _ = writeln!(out, "{word:<14}{text}");
        }
        out
    }

    fn as_json(&self) -> String {
        format!("{:#}\n", Value::Object(self.json.clone()))
    }
}

/// Of the files in a directory whose names begin so, and in one of that name.
fn sizes(dir: &Path, begin: &str) -> u64 {
    let of = |dir: &Path, all: bool| -> u64 {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let wanted = entries.filter(|entry| all || entry.file_name().to_string_lossy().starts_with(begin));
        wanted
            .filter_map(|entry| entry.metadata().ok())
            .filter(|meta| meta.is_file())
            .map(|meta| meta.len())
            .sum()
    };
    of(dir, false) + of(&dir.join(begin), true)
}

/// As people read sizes.
fn human(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KB", "MB", "GB"] {
        if size < 1000.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1000.0;
    }
    format!("{size:.1} TB")
}

fn parse(args: &[OsString]) -> Result<Option<(bool, Option<PathBuf>)>, String> {
    let (mut is_json, mut state_dir) = (false, None);
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let text = |value: Result<OsString, lexopt::Error>| {
        value.and_then(|value| value.string()).map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Short('o') | Long("output") => {
                is_json = match text(parser.value())?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => return Err(format!("--output {other:?} must be text or json")),
                }
            }
            Long("state-dir") => state_dir = Some(text(parser.value())?.into()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some((is_json, state_dir)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_as_people_read_them() {
        for (bytes, want) in [(0, "0 B"), (999, "999 B"), (1_500, "1.5 KB"), (77_000_000_000, "77.0 GB")] {
            assert_eq!(human(bytes), want);
        }
    }

    #[test]
    fn services_are_shown_with_their_address_or_without() {
        let service = |kind: &str, status: Value| {
            json!({"metadata": {"namespace": "a", "name": "b"}, "status": status,
                   "spec": {"type": kind, "ports": [{"port": 80}, {"port": 443}]}})
        };
        let given = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let list = json!({"items": [
            service("LoadBalancer", given), service("LoadBalancer", json!({})), service("ClusterIP", json!({})),
        ]});
        let name = || "a/b".to_owned();
        assert_eq!(balancers(&list), [(name(), Some("192.0.2.1:80,443".to_owned())), (name(), None)]);
        let pods = json!({"items": [{"status": {"phase": "Running"}}, {"status": {"phase": "Running"}}, {}]});
        assert_eq!(phases(&pods), [("Running".to_owned(), 2), ("Unknown".to_owned(), 1)]);
    }

    #[test]
    fn a_node_under_pressure_is_not_well() {
        let node = NodeHere { node_name: "box".into(), node_ip: "192.0.2.1".into(), ..NodeHere::ours() };
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "message": "low"});
        let object = json!({"status": {"conditions": [condition("DiskPressure", "True"), condition("Ready", "True")]}});
        let mut report = Report::default();
        report.node(&node, &object);
        let want = "node          WRONG: DiskPressure: low; no new Pods come to it\nnode          box 192.0.2.1 is Ready\n";
        assert_eq!(report.as_text(), want);
        assert!(report.wrong);
    }

    #[test]
    fn where_the_node_can_be_looked_at_is_said() {
        for (page, want) in [
            (Some("http://127.0.0.1:4194/"), "node page     http://127.0.0.1:4194/\n"),
            (None, "node page     off: longshore up --node-page=4194 shows the node in a browser\n"),
        ] {
            let node = NodeHere { node_page: page.map(str::to_owned), ..NodeHere::ours() };
            let mut report = Report::default();
            report.page(&node);
            assert_eq!(report.as_text(), want);
            assert!(!report.wrong);
        }
    }

    #[test]
    fn a_part_that_failed_is_what_is_wrong() {
        let mut node = NodeHere::ours();
        node.parts.insert("dns".to_owned(), Standing::Failed("port 53 is taken".to_owned()));
        node.parts.insert("kubelet".to_owned(), Standing::Runs);
        let mut report = Report::default();
        report.parts(&node);
        let want = "parts         kubelet\nparts         WRONG: dns does not run and is tried again: port 53 is taken\n";
        assert_eq!(report.as_text(), want);
        assert!(report.wrong && report.as_json().contains("port 53"));
    }
}
