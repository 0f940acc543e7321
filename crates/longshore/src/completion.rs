//! `longshore completion bash|zsh|fish`: scripts made from the command and flag tables.

use std::ffi::OsString;
use std::process::ExitCode;

use api::config::{kubelet, proxy};
use base::flags::{Flag, FlagType};
use base::nearest::nearest;

use crate::{COMMANDS, console};

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let script = match args {
        [shell] => script(&shell.to_string_lossy()),
        _ => None,
    };
    match script {
        Some(text) => {
            console::out(&text);
            ExitCode::SUCCESS
        }
        None => {
            let word = args.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
            if let Some(meant) = nearest(&word, ["bash", "zsh", "fish"]) {
                console::err(&format!("Error: no shell {word:?}; did you mean {meant:?}?\n"));
            }
            console::err("Usage:\n  longshore completion bash|zsh|fish\n");
            ExitCode::FAILURE
        }
    }
}

fn script(shell: &str) -> Option<String> {
    match shell {
        "bash" => Some(bash()),
        "zsh" => Some(zsh()),
        "fish" => Some(fish()),
        _ => None,
    }
}

/// The agents, and what flags they take.
fn agents() -> [(&'static str, Vec<Flag>); 9] {
    [
        ("up", api::config::up::FLAGS.to_vec()),
        ("join", api::config::join::table()),
        ("kubelet", kubelet::flags::table()),
        ("kube-proxy", proxy::flags::table()),
        ("kube-scheduler", api::config::scheduler::FLAGS.to_vec()),
        ("runtime", api::config::runtime::FLAGS.to_vec()),
        ("overlay", api::config::overlay::FLAGS.to_vec()),
        ("dns", api::config::dns::FLAGS.to_vec()),
        ("apiserver", api::config::apiserver::FLAGS.to_vec()),
    ]
}

fn command_names() -> String {
    let names: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).collect();
    names.join(" ")
}

/// `--flag` for booleans, `--flag=` where a value follows.
fn spelled(flag: &Flag) -> String {
    match flag.kind {
        FlagType::Bool => format!("--{}", flag.name),
        _ => format!("--{}=", flag.name),
    }
}

pub(crate) fn bash() -> String {
    let mut cases = String::new();
    for (agent, table) in agents() {
        let flags: Vec<String> = table.iter().map(spelled).collect();
        cases.push_str(&format!("        {agent}) flags=\"{}\" ;;\n", flags.join(" ")));
    }
    format!(
        r#"_longshore() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" first="${{COMP_WORDS[1]}}" agent="${{COMP_WORDS[0]##*/}}" flags=""
    COMPREPLY=()
    [[ "$agent" == longshore && $COMP_CWORD -gt 1 ]] && agent="$first"
    case "$agent" in
{cases}    esac
    if [[ -n "$flags" ]]; then
        if [[ "$word" == -* ]]; then
            COMPREPLY=($(compgen -W "$flags" -- "$word"))
            [[ "${{COMPREPLY[0]}}" == *= ]] && compopt -o nospace
        else
            compopt -o default
        fi
    elif [[ $COMP_CWORD -eq 1 ]]; then
        COMPREPLY=($(compgen -W "{commands}" -- "$word"))
    elif [[ "$first" == completion ]]; then
        COMPREPLY=($(compgen -W "bash zsh fish" -- "$word"))
    fi
}}
complete -F _longshore longshore kubelet kube-proxy
"#,
        commands = command_names(),
    )
}

fn zsh() -> String {
    let mut cases = String::new();
    for (agent, table) in agents() {
        let mut rows = String::new();
        for flag in table {
            let help = quote(flag.help).replace(['[', ']', ':'], " ");
            let value = match flag.kind {
                FlagType::Bool => "".to_owned(),
                kind => format!(":{}:_files", kind.word().replace(':', " ")),
            };
            let equals = if value.is_empty() { "" } else { "=" };
            rows.push_str(&format!("            '--{}{equals}[{help}]{value}' \\\n", flag.name));
        }
        cases.push_str(&format!("        {agent}) _arguments \\\n{rows}            '*: :' ;;\n"));
    }
    format!(
        r#"#compdef longshore kubelet kube-proxy
_longshore() {{
    local agent=${{words[1]:t}}
    if [[ $agent == longshore ]]; then
        if (( CURRENT == 2 )); then
            compadd {commands}
            return
        fi
        agent=${{words[2]}}
    fi
    case $agent in
        completion) compadd bash zsh fish ;;
{cases}    esac
}}
compdef _longshore longshore kubelet kube-proxy
"#,
        commands = command_names(),
    )
}

fn fish() -> String {
    let mut out = String::new();
    for (name, help) in COMMANDS {
        out.push_str(&format!(
            "complete -c longshore -n __fish_use_subcommand -f -a {name} -d '{}'\n",
            quote(help)
        ));
    }
    out.push_str("complete -c longshore -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n");
    for (agent, table) in agents() {
        let inside = format!("-n '__fish_seen_subcommand_from {agent}' ");
        for (command, condition) in [("longshore", inside.as_str()), (agent, "")] {
            for flag in &table {
                let value = if flag.kind == FlagType::Bool { "-f" } else { "-r" };
                out.push_str(&format!(
                    "complete -c {command} {condition}-l {} {value} -d '{}'\n",
                    flag.name,
                    quote(flag.help)
                ));
            }
        }
    }
    out
}

/// Makes text safe inside single quotes.
fn quote(text: &str) -> String {
    text.replace('\'', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_knows_every_flag_and_command() {
        for shell in ["bash", "zsh", "fish"] {
            let text = script(shell).unwrap_or_default();
            for (agent, table) in agents() {
                for flag in table {
                    assert!(text.contains(flag.name), "{shell} {agent}: {}", flag.name);
                }
            }
            for (name, _) in COMMANDS {
                assert!(text.contains(name), "{shell}: {name}");
            }
        }
        assert_eq!(script("csh"), None);
    }

    #[test]
    fn bash_accepts_its_script() {
        let Ok(mut child) =
            std::process::Command::new("bash").arg("-n").stdin(std::process::Stdio::piped()).spawn()
        else {
            return;
        };
        if let Some(mut stdin) = child.stdin.take() {
            let _ = std::io::Write::write_all(&mut stdin, bash().as_bytes());
        }
        assert!(child.wait().is_ok_and(|s| s.success()));
    }
}
