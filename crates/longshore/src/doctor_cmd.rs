//! `longshore doctor service NAME`, `longshore doctor pod NAME` and `longshore doctor network POD TO`: walk from an object to what
//! it comes to, and name the first thing that is wrong. `longshore doctor eviction`: who would have to go next.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use base::finding::{Finding, Grade, verdict};
use base::time::Wall;
use kubelet::server::local_api::{DEFAULT_SOCKET, Forecast};
use lexopt::prelude::{Long, Short, Value, ValueExt};
use serde_json::json;

use crate::console;
use crate::pods_cmd::client::Client;

mod network;

const USAGE: &str = "\
Find out why a Service or a Pod does not work, and which Pod would be evicted next.

Usage:
  longshore doctor service NAME [flags]
  longshore doctor pod NAME [flags]
  longshore doctor network POD POD|SERVICE|IP [PORT] [flags]
  longshore doctor eviction [flags]

service: looks at the Service, the Pods it selects, its EndpointSlices, the rules in this machine's kernel, the flows it
tracks, and calls the Service. Needs root, in the network namespace of the node.
pod: looks at who owns the Pod, quota, what the scheduler says of every node, volumes, sandbox, image, probes and
finalizers. Asks the API server only, from anywhere.
network: follows a packet from a Pod of this machine: its namespace, bridge, routes, Service, masquerade; then tries one
connection from there. Needs root, in the network namespace of the node.
eviction: asks the kubelet of this machine what is left of memory, disks and process ids, who would go first and by which
rule, and what would be cleared away before. Nothing is done. Needs root.
Ends with 1 if something is wrong, or some threshold is met.

Flags:
  -n, --namespace NAMESPACE     default \"default\"
  -o, --output FORMAT           text or json, default text
      --kubeconfig FILE         default $KUBECONFIG, else /var/lib/longshore/admin.kubeconfig
      --hostname-override NAME  the Node's name, default this machine's; for a Service
      --socket PATH             the kubelet's socket, default /run/longshore/pods.sock; for eviction
  -h, --help                    this text
";

const KUBECONFIG: &str = "/var/lib/longshore/admin.kubeconfig";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    kind: Kind,
    name: String,
    /// Of a packet: where it goes.
    to: Vec<String>,
    namespace: String,
    is_json: bool,
    kubeconfig: Option<PathBuf>,
    node: Option<String>,
    socket: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Service,
    Pod,
    Network,
    Eviction,
}

/// Pods of each order that people are shown.
const SHOWN: usize = 5;

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    console::command(parse(args), USAGE, |options| console::block_on(examine(options))?)
}

async fn examine(options: Options) -> Result<ExitCode, String> {
    let from_environment = || std::env::var_os("KUBECONFIG").map(PathBuf::from);
    let kubeconfig =
        options.kubeconfig.clone().or_else(from_environment).unwrap_or_else(|| KUBECONFIG.into());
    let (namespace, name) = (&options.namespace, &options.name);
    let findings = match options.kind {
        Kind::Service => {
            let node = options.node.clone().unwrap_or_else(hostname);
            let found = proxy::doctor::diagnose(&kubeconfig, &node, namespace, name).await;
            found.map_err(|e| e.to_string())?
        }
        Kind::Pod => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
            let now = Wall(i64::try_from(now).unwrap_or(i64::MAX));
            let found = scheduler::doctor::diagnose(&kubeconfig, namespace, name, now).await;
            found.map_err(|e| e.to_string())?
        }
        Kind::Network => {
            let node = options.node.clone().unwrap_or_else(hostname);
            network::diagnose(&kubeconfig, &node, namespace, name, &options.to).await?
        }
        Kind::Eviction => return foretell(&options).await,
    };
    console::out(&if options.is_json { as_json(&findings) } else { as_text(&findings) });
    Ok(if verdict(&findings).is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase()
}

async fn foretell(options: &Options) -> Result<ExitCode, String> {
    let asked = Client::new(options.socket.clone()).json::<Forecast>("GET", "/v1/eviction", None).await;
    let told = asked.map_err(|e| e.to_string())?;
    console::out(&match options.is_json {
        true => format!("{:#}\n", json!(told)),
        false => told.text(SHOWN),
    });
    Ok(if told.is_pressed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What was found, for a person, and how the command ends.
pub(crate) fn show(findings: &[Finding]) -> ExitCode {
    console::out(&as_text(findings));
    if verdict(findings).is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn as_text(findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let grade = match finding.grade {
            Grade::Good => "ok   ",
            Grade::Note => "note ",
            Grade::Wrong => "WRONG",
        };
        out.push_str(&format!("{grade}  {}\n", finding.text));
        if finding.grade == Grade::Note && !finding.advice.is_empty() {
            out.push_str(&format!("       {}\n", finding.advice));
        }
    }
    match verdict(findings) {
        None => out.push_str("\nNothing is wrong as far as this machine can see.\n"),
        Some(first) => {
            out.push_str(&format!("\nLook at this first: {}.\n{}.\n", first.text, first.advice));
        }
    }
    out
}

/// For programs: all findings, and which of them is to be looked at first.
fn as_json(findings: &[Finding]) -> String {
    let show = |finding: &Finding| {
        let grade = match finding.grade {
            Grade::Good => "ok",
            Grade::Note => "note",
            Grade::Wrong => "wrong",
        };
        let mut out = json!({"grade": grade, "text": finding.text});
        if !finding.advice.is_empty() {
            out["advice"] = json!(finding.advice);
        }
        out
    };
    let all: Vec<_> = findings.iter().map(show).collect();
    let out = json!({"findings": all, "first": verdict(findings).map(show)});
    format!("{out:#}\n")
}

fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let mut words = Vec::new();
    let (mut namespace, mut is_json, mut kubeconfig, mut node) = ("default".to_owned(), false, None, None);
    let mut socket = PathBuf::from(DEFAULT_SOCKET);
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let text = |value: Result<OsString, lexopt::Error>| {
        value.and_then(|value| value.string()).map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Short('n') | Long("namespace") => namespace = text(parser.value())?,
            Short('o') | Long("output") => {
                is_json = match text(parser.value())?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => return Err(format!("--output {other:?} must be text or json")),
                }
            }
            Long("kubeconfig") => kubeconfig = Some(text(parser.value())?.into()),
            Long("hostname-override") => node = Some(text(parser.value())?),
            Long("socket") => socket = parser.value().map_err(|e| e.to_string())?.into(),
            Value(word) => words.push(word.string().map_err(|e| e.to_string())?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let kind = match words.first().map(String::as_str) {
        Some("service" | "services" | "svc") => Kind::Service,
        Some("pod" | "pods" | "po") => Kind::Pod,
        Some("network" | "net") => Kind::Network,
        Some("eviction" | "evictions") => Kind::Eviction,
        _ => {
            return Err(
                "what shall be examined? `service NAME`, `pod NAME`, `network POD TO` or `eviction`".into()
            );
        }
    };
    let (name, to) = match (kind, words.as_slice()) {
        (Kind::Network, [_, name, to @ ..]) if matches!(to.len(), 1 | 2) => (name.clone(), to.to_vec()),
        (Kind::Network, _) => {
            return Err("from which Pod, and to whom? `network POD POD|SERVICE|IP [PORT]`".into());
        }
        (Kind::Eviction, [_]) => (String::new(), vec![]),
        (Kind::Eviction, _) => return Err("eviction is about the node and takes no name".into()),
        (_, [_, name]) => (name.clone(), vec![]),
        (_, [_]) => return Err(format!("which {kind:?}?")),
        _ => return Err("one name at a time".into()),
    };
    Ok(Some(Options { kind, name, to, namespace, is_json, kubeconfig, node, socket }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read() {
        let read = |text: &str| parse(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        let options = read("svc web -n shop --hostname-override n1").unwrap().unwrap();
        assert_eq!((options.name.as_str(), options.namespace.as_str()), ("web", "shop"));
        assert_eq!((options.kubeconfig, options.node.as_deref()), (None, Some("n1")));
        assert_eq!((options.kind, options.is_json), (Kind::Service, false));
        let options = read("pod web-0 -o json").unwrap().unwrap();
        assert_eq!((options.kind, options.is_json, options.name.as_str()), (Kind::Pod, true, "web-0"));
        assert_eq!(read("service -h").unwrap(), None);
        let options = read("network web-0 db 5432 -n shop").unwrap().unwrap();
        assert_eq!(
            (options.kind, options.name.as_str(), options.to.join(":")),
            (Kind::Network, "web-0", "db:5432".into())
        );
        let options = read("eviction -o json --socket /x").unwrap().unwrap();
        assert_eq!((options.kind, options.is_json, options.socket), (Kind::Eviction, true, "/x".into()));
        for bad in [
            "eviction x",
            "network web-0",
            "network a b 1 2",
            "service",
            "node x",
            "service a b",
            "service a --x",
            "pod a -o yaml",
            "pod",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn findings_are_shown_to_people_and_to_programs() {
        let finding =
            |grade, text: &str, advice: &str| Finding { grade, text: text.into(), advice: advice.into() };
        let mut all = vec![finding(Grade::Good, "a", ""), finding(Grade::Note, "b", "")];
        assert!(as_text(&all).ends_with("note   b\n\nNothing is wrong as far as this machine can see.\n"));
        let read = |all: &[Finding]| serde_json::from_str::<serde_json::Value>(&as_json(all)).unwrap();
        assert_eq!(
            read(&all),
            json!({"findings": [{"grade": "ok", "text": "a"}, {"grade": "note", "text": "b"}], "first": null})
        );
        all.push(finding(Grade::Wrong, "c", "do d"));
        assert!(as_text(&all).ends_with("WRONG  c\n\nLook at this first: c.\ndo d.\n"));
        assert_eq!(read(&all)["first"], json!({"grade": "wrong", "text": "c", "advice": "do d"}));
    }
}
