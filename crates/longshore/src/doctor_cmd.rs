//! `longshore doctor service NAME`: walks from a Service to the kernel and names the first thing that is wrong.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::{Long, Short, Value, ValueExt};
use proxy::doctor::{Grade, diagnose, verdict};

use crate::console;

const USAGE: &str = "\
Find out why a Service does not work, as seen from this machine.

Usage:
  longshore doctor service NAME [flags]

Looks at the Service, the Pods it selects, its EndpointSlices, the rules in this machine's kernel, the flows it tracks,
and calls the Service. Needs root, in the network namespace of the node. Ends with 1 if something is wrong.

Flags:
  -n, --namespace NAMESPACE     default \"default\"
      --kubeconfig FILE         default $KUBECONFIG, else /var/lib/longshore/admin.kubeconfig
      --hostname-override NAME  the Node's name, default this machine's
  -h, --help                    this text
";

const KUBECONFIG: &str = "/var/lib/longshore/admin.kubeconfig";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    name: String,
    namespace: String,
    kubeconfig: Option<PathBuf>,
    node: Option<String>,
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let options = match parse(args) {
        Ok(Some(options)) => options,
        Ok(None) => {
            console::out(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            console::err(&format!("error: {message}\n\n{USAGE}"));
            return ExitCode::FAILURE;
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let shown = runtime.map_err(|e| e.to_string()).and_then(|runtime| runtime.block_on(examine(options)));
    match shown {
        Ok(code) => code,
        Err(message) => {
            console::err(&format!("error: {message}\n"));
            ExitCode::FAILURE
        }
    }
}

async fn examine(options: Options) -> Result<ExitCode, String> {
    let from_environment = || std::env::var_os("KUBECONFIG").map(PathBuf::from);
    let kubeconfig = options.kubeconfig.or_else(from_environment).unwrap_or_else(|| KUBECONFIG.into());
    let hostname = || rustix::system::uname().nodename().to_string_lossy().trim().to_lowercase();
    let node = options.node.unwrap_or_else(hostname);
    let findings = diagnose(&kubeconfig, &node, &options.namespace, &options.name).await;
    let findings = findings.map_err(|e| e.to_string())?;
    for finding in &findings {
        let grade = match finding.grade {
            Grade::Good => "ok   ",
            Grade::Note => "note ",
            Grade::Wrong => "WRONG",
        };
        console::out(&format!("{grade}  {}\n", finding.text));
    }
    match verdict(&findings) {
        None => {
            console::out("\nNothing is wrong as far as this machine can see.\n");
            Ok(ExitCode::SUCCESS)
        }
        Some(first) => {
            console::out(&format!("\nLook at this first: {}.\n{}.\n", first.text, first.advice));
            Ok(ExitCode::FAILURE)
        }
    }
}

fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let mut words = Vec::new();
    let mut options =
        Options { name: String::new(), namespace: "default".into(), kubeconfig: None, node: None };
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let text = |value: Result<OsString, lexopt::Error>| {
        value.and_then(|value| value.string()).map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Short('n') | Long("namespace") => options.namespace = text(parser.value())?,
            Long("kubeconfig") => options.kubeconfig = Some(text(parser.value())?.into()),
            Long("hostname-override") => options.node = Some(text(parser.value())?),
            Value(word) => words.push(word.string().map_err(|e| e.to_string())?),
            other => return Err(other.unexpected().to_string()),
        }
    }
    match words.as_slice() {
        [kind, name] if matches!(kind.as_str(), "service" | "services" | "svc") => {
            options.name.clone_from(name);
            Ok(Some(options))
        }
        [kind] if matches!(kind.as_str(), "service" | "services" | "svc") => Err("which Service?".into()),
        _ => Err("what shall be examined? `service NAME`".into()),
    }
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
        assert_eq!(read("service -h").unwrap(), None);
        for bad in ["service", "node x", "service a b", "service a --x"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
