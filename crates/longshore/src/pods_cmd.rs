//! `longshore pods …`: give Pods to the kubelet of this machine and look at them, no API server needed.

use std::ffi::OsString;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::json::{FromJson, List};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kubelet::pods::sources::local::Outcome;
use kubelet::server::local_api::{Applied, DEFAULT_SOCKET, EventLine, ExecRequest, frames};

use crate::console;
use crate::node_here::NodeHere;

mod args;
pub(crate) mod client;
mod details;
mod row;
mod session;
mod table;

use args::{Command, Input, Options, Output};
use client::{Client, ClientError};

pub(crate) const USAGE: &str = "\
Give Pods to the kubelet of this machine, and see how they do.

Usage:
  longshore pods apply -f FILE|DIR|-
  longshore pods get [NAME] [-n NAMESPACE] [-o table|wide|yaml|json] [-w]
  longshore pods delete NAME|-f FILE [-n NAMESPACE] [--grace-period SECONDS] [--no-wait]
  longshore pods logs NAME [-c CONTAINER] [-f] [--tail N] [--previous] [--timestamps]
  longshore pods exec NAME [-c CONTAINER] [-i] [-t] -- COMMAND [ARGS...]
  longshore pods problems
  longshore ps|logs|exec ...                        short for pods get|logs|exec

Flags of every command:
  -n, --namespace NAMESPACE   default \"default\"; get without NAME shows all namespaces
      --socket PATH           where the kubelet listens, default $LONGSHORE_SOCKET, else /run/longshore/pods.sock, else that of
                              the `longshore up` that runs here
  -h, --help                  this text
";

/// Manifests read from a file or standard input.
const INPUT_MAX: u64 = 64 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
enum PodsError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("read {}: {error}", .path.display())]
    Input { path: PathBuf, error: std::io::Error },
    #[error("{path}: no manifest found")]
    Nothing { path: String },
    #[error("{path}: {message}")]
    Manifest { path: String, message: String },
    #[error("the kubelet's answer made no sense: {0}")]
    Nonsense(String),
    #[error("{0}")]
    Exec(String),
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    console::command(args::parse(args), USAGE, |options| {
        console::block_on(run(options))?.map_err(|error| error.to_string())
    })
}

/// `longshore ps`, `logs` and `exec`: the verbs that one types most.
pub(crate) fn short(verb: &str, rest: &[OsString]) -> ExitCode {
    let all: Vec<OsString> = std::iter::once(verb.into()).chain(rest.iter().cloned()).collect();
    main(&all)
}

/// The socket of the kubelet that is meant: the one that was named, else the usual one, else that of the node that runs here.
fn socket(named: Option<&Path>, from_environment: Option<OsString>, usual: &Path) -> PathBuf {
    if let Some(named) = named {
        return named.to_owned();
    }
    if let Some(named) = from_environment.filter(|text| !text.is_empty()) {
        return named.into();
    }
    if usual.exists() {
        return usual.to_owned();
    }
    NodeHere::find(None).map_or_else(|_| usual.to_owned(), |node| node.pods_socket)
}

async fn run(options: Options) -> Result<ExitCode, PodsError> {
    let from_environment = std::env::var_os("LONGSHORE_SOCKET");
    let path = socket(options.socket.as_deref(), from_environment, Path::new(DEFAULT_SOCKET));
    let client = Client::new(path.clone());
    match &options.command {
        Command::Apply { input } => apply(&client, input).await,
        Command::Get { name, output, watch } => {
            get(&client, &options, name.as_deref(), *output, *watch).await
        }
        Command::Delete { name, input, grace, wait } => {
            let targets = match (name, input) {
                (_, Some(input)) => named_in(input)?,
                (Some(name), None) => vec![(options.namespace().to_owned(), name.clone())],
                (None, None) => Vec::new(),
            };
            for (namespace, name) in targets {
                delete(&client, &namespace, &name, *grace, *wait).await?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Logs { name, query } => {
            let mut body =
                client.stream("GET", &pod_path(&options, name, &format!("/log?{query}")), None).await?;
            let mut out = std::io::stdout();
            while let Some(piece) = body.next().await? {
                if out.write_all(&piece).and_then(|()| out.flush()).is_err() {
                    break;
                }
            }
            Ok(ExitCode::SUCCESS)
        }
        Command::Exec { name, container, command, stdin, tty } if *stdin || *tty => {
            let words = command.iter().map(|word| format!("&command={}", client::escape(word)));
            let container = container.iter().map(|c| format!("&container={}", client::escape(c)));
            let tty = session::lends_terminal(*stdin, *tty, std::io::stdin().is_terminal());
            let tty = tty.unwrap_or_else(|words| {
                console::err(&format!("{words}\n"));
                false
            });
            let stdin = *stdin && (tty || !session::is_spent(&mut std::io::stdin().lock()));
            let begin = format!("/exec?stdin={}&tty={}", u8::from(stdin), u8::from(tty));
            let query: String = std::iter::once(begin).chain(container).chain(words).collect();
            session::run(&path, &pod_path(&options, name, &query), stdin, tty).await
        }
        Command::Exec { name, container, command, .. } => {
            let query =
                container.as_ref().map(|c| format!("?container={}", client::escape(c))).unwrap_or_default();
            exec(&client, &pod_path(&options, name, &format!("/exec{query}")), command.clone()).await
        }
        Command::Problems => {
            let problems: Vec<kubelet::server::local_api::ProblemLine> =
                client.json("GET", "/v1/problems", None).await?;
            for p in &problems {
                console::out(&format!("{}\t{}\t{}\n", p.source, p.place, p.message));
            }
            Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

fn pod_path(options: &Options, name: &str, rest: &str) -> String {
    format!("/v1/pods/{}/{}{rest}", client::escape(options.namespace()), client::escape(name))
}

async fn apply(client: &Client, input: &Input) -> Result<ExitCode, PodsError> {
    let mut failed = false;
    for (path, document) in documents(input)? {
        match client.json::<Vec<Applied>>("POST", "/v1/pods", Some(document.into_bytes())).await {
            Ok(applied) => {
                for a in applied {
                    let word = match a.outcome {
                        Outcome::Created => "created",
                        Outcome::Configured => "configured",
                        Outcome::Unchanged => "unchanged",
                    };
                    console::out(&format!("pod/{} {word}\n", a.name));
                }
            }
            // One bad document does not keep the others from being applied.
            Err(ClientError::Refused { message, .. }) => {
                console::err(&format!("error: {path}: {message}\n"));
                failed = true;
            }
            Err(e) => return Err(e.into()),
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn get(
    client: &Client,
    options: &Options,
    name: Option<&str>,
    output: Output,
    watch: bool,
) -> Result<ExitCode, PodsError> {
    if watch {
        return watch_pods(client, options, name, output).await;
    }
    let Some(name) = name else {
        let pods = wanted(options, None, list(client).await?);
        console::out(&many(&pods, output));
        return Ok(ExitCode::SUCCESS);
    };
    let pod: Pod = client.json("GET", &pod_path(options, name, ""), None).await?;
    let events: Vec<EventLine> = match output {
        Output::Wide | Output::Yaml => client.json("GET", &pod_path(options, name, "/events"), None).await?,
        _ => Vec::new(),
    };
    console::out(&match output {
        Output::Table => table::render(std::slice::from_ref(&pod), false, Timestamp::now()),
        Output::Wide => details::wide(&pod, &events, Timestamp::now()),
        Output::Yaml => details::yaml(&pod, &events, Timestamp::now()),
        Output::Json => details::json(&pod),
    });
    Ok(ExitCode::SUCCESS)
}

fn many(pods: &[Pod], output: Output) -> String {
    match output {
        Output::Table if pods.is_empty() => "No Pods found.\n".to_owned(),
        Output::Table => table::render(pods, false, Timestamp::now()),
        Output::Wide => table::render(pods, true, Timestamp::now()),
        Output::Yaml => details::yaml_list(pods),
        Output::Json => details::json_list(pods),
    }
}

async fn list(client: &Client) -> Result<Vec<Pod>, PodsError> {
    let list: List<Pod> = client.json("GET", "/v1/pods", None).await?;
    Ok(list.items)
}

fn items(line: &[u8]) -> Result<Vec<Pod>, PodsError> {
    let list = List::from_json(line).map_err(|e| PodsError::Nonsense(e.to_string()))?;
    Ok(list.items)
}

fn wanted(options: &Options, name: Option<&str>, pods: Vec<Pod>) -> Vec<Pod> {
    let matches = |p: &Pod| {
        let (namespace, pod_name) = kubelet::pods::sources::names(p);
        let node = p.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default();
        options.namespace.as_deref().is_none_or(|n| n == namespace)
            && name.is_none_or(|n| n == pod_name || format!("{n}-{}", node.to_lowercase()) == pod_name)
    };
    pods.into_iter().filter(matches).collect()
}

/// Prints the table, then each row again when it changes.
async fn watch_pods(
    client: &Client,
    options: &Options,
    name: Option<&str>,
    output: Output,
) -> Result<ExitCode, PodsError> {
    let mut body = client.stream("GET", "/v1/pods?watch=true", None).await?;
    let mut shown = table::Watched::new(output == Output::Wide);
    let mut buffer = Vec::new();
    while let Some(piece) = body.next().await? {
        buffer.extend_from_slice(&piece);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            let pods = wanted(options, name, items(&line)?);
            console::out(&shown.news(&pods, Timestamp::now()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(
    client: &Client,
    namespace: &str,
    name: &str,
    grace: Option<i64>,
    wait: bool,
) -> Result<(), PodsError> {
    let query = grace.map(|g| format!("?gracePeriodSeconds={g}")).unwrap_or_default();
    let path = format!("/v1/pods/{}/{}{query}", client::escape(namespace), client::escape(name));
    let pod: Pod = client.json("DELETE", &path, None).await?;
    console::out(&format!("pod/{name} deleted\n"));
    if !wait {
        return Ok(());
    }
    let mut body = client.stream("GET", "/v1/pods?watch=true", None).await?;
    let mut buffer = Vec::new();
    while let Some(piece) = body.next().await? {
        buffer.extend_from_slice(&piece);
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = buffer.drain(..=end).collect();
            if !items(&line)?.iter().any(|p| p.metadata.uid == pod.metadata.uid) {
                return Ok(());
            }
        }
    }
    Ok(())
}

async fn exec(client: &Client, path: &str, command: Vec<String>) -> Result<ExitCode, PodsError> {
    let request = serde_json::to_vec(&ExecRequest { command }).unwrap_or_default();
    let mut body = client.stream("POST", path, Some(request)).await?;
    let mut reader = frames::FrameReader::default();
    while let Some(piece) = body.next().await? {
        reader.push(&piece);
        while let Some(frame) = reader.next_frame().map_err(|e| PodsError::Nonsense(e.to_owned()))? {
            match frame.channel {
                frames::STDOUT => drop(std::io::stdout().write_all(&frame.bytes)),
                frames::STDERR => drop(std::io::stderr().write_all(&frame.bytes)),
                frames::EXIT => {
                    let code = frame.bytes.first_chunk::<4>().map_or(1, |b| i32::from_be_bytes(*b));
                    return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
                }
                _ => return Err(PodsError::Exec(String::from_utf8_lossy(&frame.bytes).into_owned())),
            }
        }
    }
    Err(PodsError::Nonsense("the command's exit code is missing".to_owned()))
}

/// The Pods a manifest names.
fn named_in(input: &Input) -> Result<Vec<(String, String)>, PodsError> {
    let mut out = Vec::new();
    for (path, document) in documents(input)? {
        let manifest = api::pod::decode(document.as_bytes(), &mut |_| {})
            .map_err(|e| PodsError::Manifest { path: path.clone(), message: e.to_string() })?;
        let pods = match manifest {
            api::pod::Manifest::Pod(pod) => vec![*pod],
            api::pod::Manifest::List(pods) => pods,
        };
        for pod in &pods {
            let (namespace, name) = kubelet::pods::sources::names(pod);
            let namespace = if namespace.is_empty() { "default" } else { namespace };
            out.push((namespace.to_owned(), name.to_owned()));
        }
    }
    Ok(out)
}

/// The documents of the input, each with the name of where it came from.
fn documents(input: &Input) -> Result<Vec<(String, String)>, PodsError> {
    let files = match input {
        Input::Stdin => vec![("standard input".to_owned(), read(std::io::stdin(), Path::new("-"))?)],
        Input::Path(path) if path.is_dir() => directory(path)?,
        Input::Path(path) => {
            let file = std::fs::File::open(path);
            let file = file.map_err(|error| PodsError::Input { path: path.clone(), error })?;
            vec![(path.display().to_string(), read(file, path)?)]
        }
    };
    let mut out = Vec::new();
    for (path, text) in files {
        let before = out.len();
        out.extend(split(&text).into_iter().map(|d| (path.clone(), d)));
        if out.len() == before {
            return Err(PodsError::Nothing { path });
        }
    }
    Ok(out)
}

fn directory(path: &Path) -> Result<Vec<(String, String)>, PodsError> {
    let failed = |error| PodsError::Input { path: path.to_owned(), error };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(path).map_err(failed)?.filter_map(|e| Some(e.ok()?.path())).collect();
    paths.retain(|p| matches!(p.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json")));
    paths.sort();
    let read_one = |p: PathBuf| {
        let file = std::fs::File::open(&p).map_err(|error| PodsError::Input { path: p.clone(), error })?;
        Ok((p.display().to_string(), read(file, &p)?))
    };
    paths.into_iter().map(read_one).collect()
}

fn read(from: impl Read, path: &Path) -> Result<String, PodsError> {
    let mut text = String::new();
    let result = from.take(INPUT_MAX).read_to_string(&mut text);
    result.map_err(|error| PodsError::Input { path: path.to_owned(), error })?;
    Ok(text)
}

/// YAML documents are separated by lines of three dashes.
fn split(text: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" || line.starts_with("--- ") {
            out.push(String::new());
        } else if let Some(last) = out.last_mut() {
            last.push_str(line);
            last.push('\n');
        }
    }
    let says_something =
        |d: &String| d.lines().any(|l| !l.trim().is_empty() && !l.trim_start().starts_with('#'));
    out.retain(says_something);
    out
}

#[cfg(test)]
mod tests;
