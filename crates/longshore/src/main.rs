//! One binary, many names: `longshore kubelet …`, or the same program installed as `kubelet`.
//!
//! Only this crate reads the arguments and the environment; everything below receives structs.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

use base::nearest::nearest;

mod agent_cmd;
mod apiserver_cmd;
mod backup_cmd;
mod check_cmd;
mod cni_cmd;
mod completion;
mod console;
mod controllers_cmd;
mod discovery;
mod dns_cmd;
mod doctor_cmd;
mod files;
mod images_cmd;
mod install_cmd;
mod kubectl_config_cmd;
mod kubelet_cmd;
mod logging;
mod node_here;
mod overlay_cmd;
mod pods_cmd;
mod proxy_cmd;
mod runtime_cmd;
mod scheduler_cmd;
mod serving;
mod status_cmd;
mod token_cmd;
mod up_cmd;

/// The Kubernetes release whose contract the agents follow.
const KUBERNETES: &str = "v1.36.4";

/// Subcommands and what help says of them.
const COMMANDS: &[(&str, &str)] = &[
    ("up", "Run a whole node in one process: everything below, for kubectl"),
    ("join", "Make this machine a node of a cluster that runs elsewhere"),
    ("token", "Let other machines join the cluster"),
    ("kubelet", "Run the Pods of this machine"),
    ("apiserver", "Serve the Kubernetes API for this machine"),
    ("kube-proxy", "Make Services work on this machine"),
    ("kube-controller-manager", "Run the controllers: what is asked for becomes Pods"),
    ("kube-scheduler", "Find a node for every Pod"),
    ("runtime", "Run containers for a kubelet, in containerd's place"),
    ("overlay", "Let Pods of different nodes reach each other, in flannel's place"),
    ("dns", "Answer for the names of Services and Pods"),
    ("images", "See, bring and remove the images of this machine's container runtime"),
    ("status", "Show how the node of this machine is"),
    ("check", "Find out whether this machine can be a node"),
    ("install", "Make the node start with this machine"),
    ("uninstall", "Take the node from this machine"),
    ("backup", "Write the node of this machine into one file"),
    ("restore", "Make a node of a backup"),
    ("kubectl-config", "Say how kubectl gets to the node of this machine"),
    ("ps", "Show the Pods of this machine"),
    ("logs", "Show the log of a Pod of this machine"),
    ("exec", "Run a command in a Pod of this machine"),
    ("pods", "Give Pods to this machine's kubelet, and see how they do"),
    ("cni", "Be the CNI plugins of this machine: bridge, host-local, portmap and others"),
    ("doctor", "Find out why a Service or a Pod does not work"),
    ("completion", "Print a completion script for bash, zsh or fish"),
    ("help", "Print this text"),
];

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let name = Path::new(&program).file_name().unwrap_or(OsStr::new("longshore"));
    let rest: Vec<OsString> = args.collect();
    match name.to_str() {
        Some(plugin) if cni_cmd::is_plugin(plugin) => cni_cmd::be(plugin),
        name => match name.and_then(agent) {
            Some(main) => main(&rest),
            None => dispatch(&rest),
        },
    }
}

/// The agent that the program is when it is installed under this name.
fn agent(name: &str) -> Option<fn(&[OsString]) -> ExitCode> {
    match name {
        "kubelet" => Some(kubelet_cmd::main),
        "kube-apiserver" => Some(apiserver_cmd::main),
        "kube-proxy" => Some(proxy_cmd::main),
        "kube-controller-manager" => Some(controllers_cmd::main),
        "kube-scheduler" => Some(scheduler_cmd::main),
        "flanneld" => Some(overlay_cmd::main),
        _ => None,
    }
}

fn dispatch(args: &[OsString]) -> ExitCode {
    let Some((command, rest)) = args.split_first() else {
        console::err(&usage());
        return ExitCode::FAILURE;
    };
    match command.to_str() {
        Some("up") => up_cmd::main(rest),
        Some("join") => up_cmd::join(rest),
        Some("token") => token_cmd::main(rest),
        Some("kubelet") => kubelet_cmd::main(rest),
        Some("apiserver" | "kube-apiserver") => apiserver_cmd::main(rest),
        Some("kube-proxy") => proxy_cmd::main(rest),
        Some("kube-controller-manager") => controllers_cmd::main(rest),
        Some("kube-scheduler") => scheduler_cmd::main(rest),
        Some("runtime") => runtime_cmd::main(rest),
        Some("overlay") => overlay_cmd::main(rest),
        Some("dns") => dns_cmd::main(rest),
        Some("images") => images_cmd::main(rest),
        Some("status") => status_cmd::main(rest),
        Some("check") => check_cmd::main(rest),
        Some("install") => install_cmd::install(rest),
        Some("uninstall") => install_cmd::uninstall(rest),
        Some("backup") => backup_cmd::backup(rest),
        Some("restore") => backup_cmd::restore(rest),
        Some("kubectl-config") => kubectl_config_cmd::main(rest),
        Some("pods") => pods_cmd::main(rest),
        Some("cni") => cni_cmd::main(rest),
        Some("ps") => pods_cmd::short("get", rest),
        Some(word @ ("logs" | "exec")) => pods_cmd::short(word, rest),
        Some("doctor") => doctor_cmd::main(rest),
        Some("completion") => completion::main(rest),
        Some("help") if !rest.is_empty() => help(rest),
        Some("help" | "--help" | "-help" | "-h") => {
            console::out(&usage());
            ExitCode::SUCCESS
        }
        Some("version" | "--version" | "-version" | "-V") => {
            let version = env!("CARGO_PKG_VERSION");
            console::out(&format!("longshore {version} (Kubernetes {KUBERNETES})\n"));
            ExitCode::SUCCESS
        }
        _ => {
            let word = command.to_string_lossy();
            let names = COMMANDS.iter().map(|(name, _)| *name);
            console::err(&match nearest(&word, names) {
                Some(meant) => {
                    format!("Error: unknown command {word:?}; did you mean `longshore {meant}`?\n")
                }
                None => format!("Error: unknown command {word:?}\n\n{}", usage()),
            });
            ExitCode::FAILURE
        }
    }
}

/// `help COMMAND` is `COMMAND --help`.
fn help(words: &[OsString]) -> ExitCode {
    match words {
        [word] if word == "help" => dispatch(&["--help".into()]),
        [word] => dispatch(&[word.clone(), "--help".into()]),
        _ => {
            console::err("Usage:\n  longshore help COMMAND\n");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> String {
    let mut text = String::from(
        "Longshore is a Kubernetes node in one binary.\n\n\
         Usage:\n  longshore <command> [flags]\n  longshore --version\n\nCommands:\n",
    );
    for (name, help) in COMMANDS {
        text.push_str(&format!("  {name:<25}{help}\n"));
    }
    text.push_str(
        "\nInstalled under the name of an agent (kubelet, kube-apiserver, kube-proxy,\n         kube-controller-manager, kube-scheduler, flanneld) or of a CNI plugin, the program is that.\n",
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_answers_to_the_names_of_its_agents() {
        for name in [
            "kubelet",
            "kube-apiserver",
            "kube-proxy",
            "kube-controller-manager",
            "kube-scheduler",
            "flanneld",
        ] {
            assert!(
                agent(name).is_some_and(|main| main(&["--version".into()]) == ExitCode::SUCCESS),
                "{name}"
            );
            assert!(usage().contains(name), "{name}");
        }
        assert!(agent("longshore").is_none() && agent("apiserver").is_none());
    }
}
