//! `longshore kubectl-config`: how kubectl gets to the node of this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use lexopt::prelude::{Long, Short, ValueExt};

use crate::console;
use crate::node_here::NodeHere;

const USAGE: &str = "\
Say how kubectl gets to the node that runs on this machine.

Usage:
  eval \"$(longshore kubectl-config)\"              for this shell
  longshore kubectl-config --print > FILE         for another user or another machine

Flags:
      --print            the kubeconfig itself, with the node's address; whoever has it may do everything
      --server URL       another address in it: a name or a forwarded port
      --state-dir DIR    of the node, where several run
  -h, --help             this text
";

#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    print: bool,
    server: Option<String>,
    state_dir: Option<PathBuf>,
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    console::command(parse(args), USAGE, |options| {
        let text = NodeHere::find(options.state_dir.as_deref()).and_then(|node| say(&node, &options))?;
        console::out(&text);
        Ok::<_, String>(ExitCode::SUCCESS)
    })
}

fn say(node: &NodeHere, options: &Options) -> Result<String, String> {
    let path = node.kubeconfig();
    if !options.print {
        return Ok(format!("export KUBECONFIG={}\n", quoted(&path.display().to_string())));
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("read {}: {e}; it is for root only", path.display()))?;
    with_server(&text, options.server.as_deref().unwrap_or(&node.server))
}

/// The same for somebody who is elsewhere.
fn with_server(kubeconfig: &str, server: &str) -> Result<String, String> {
    let read = api::yaml::to_value(kubeconfig.as_bytes(), api::yaml::DuplicateKeys::Reject);
    let mut config = read.map_err(|e| format!("the kubeconfig: {e}"))?;
    for cluster in config["clusters"].as_array_mut().into_iter().flatten() {
        cluster["cluster"]["server"] = server.into();
    }
    Ok(api::yaml::from_value_to_yaml(&config))
}

/// A word that a shell takes as it is.
fn quoted(text: &str) -> String {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-".contains(&b);
    match text.bytes().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let mut options = Options::default();
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    let text = |value: Result<OsString, lexopt::Error>| {
        value.and_then(|value| value.string()).map_err(|e| e.to_string())
    };
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("print") => options.print = true,
            Long("server") => options.server = Some(text(parser.value())?),
            Long("state-dir") => options.state_dir = Some(text(parser.value())?.into()),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok(Some(options))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn another_address_takes_the_place_of_the_own_one() {
        let text = "apiVersion: v1\nkind: Config\nclusters:\n- name: a\n  cluster:\n    server: https://127.0.0.1:6443\n";
        let changed = with_server(text, "https://192.0.2.10:6443").unwrap();
        assert!(changed.contains("https://192.0.2.10:6443") && !changed.contains("127.0.0.1"), "{changed}");
    }

    #[test]
    fn a_path_is_one_word_for_the_shell() {
        assert_eq!(quoted("/var/lib/longshore/admin.kubeconfig"), "/var/lib/longshore/admin.kubeconfig");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
    }
}
