//! The command line of `longshore pods`.

use std::ffi::OsString;
use std::path::PathBuf;

use base::nearest::nearest;
use lexopt::prelude::*;

use super::client::escape;

const VERBS: [&str; 6] = ["apply", "get", "delete", "logs", "exec", "problems"];

#[derive(Debug, PartialEq)]
pub(super) struct Options {
    /// None for the one that is found.
    pub(super) socket: Option<PathBuf>,
    pub(super) namespace: Option<String>,
    pub(super) command: Command,
}

#[derive(Debug, PartialEq)]
pub(super) enum Command {
    Apply { input: Input },
    Get { name: Option<String>, output: Output, watch: bool },
    Delete { name: Option<String>, input: Option<Input>, grace: Option<i64>, wait: bool },
    Logs { name: String, query: String },
    Exec { name: String, container: Option<String>, command: Vec<String>, stdin: bool, tty: bool },
    Problems,
}

#[derive(Debug, PartialEq)]
pub(super) enum Input {
    Stdin,
    Path(PathBuf),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Output {
    Table,
    Wide,
    Yaml,
    Json,
}

impl Options {
    pub(super) fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or("default")
    }
}

/// Everything any of the commands may say, before it is known whether it fits together.
#[derive(Default)]
struct Raw {
    socket: Option<PathBuf>,
    namespace: Option<String>,
    words: Vec<String>,
    file: Option<OsString>,
    follow: bool,
    output: Option<String>,
    watch: bool,
    grace: Option<i64>,
    no_wait: bool,
    container: Option<String>,
    tail: Option<u64>,
    previous: bool,
    timestamps: bool,
    stdin: bool,
    tty: bool,
    command: Vec<String>,
}

/// `None` when help was asked for.
pub(super) fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let Some((verb, rest)) = args.split_first() else { return Err("a command is needed".to_owned()) };
    let verb = verb.to_string_lossy().into_owned();
    if matches!(verb.as_str(), "-h" | "--help" | "help") {
        return Ok(None);
    }
    match read(&verb, rest).map_err(|e| e.to_string())? {
        Some(raw) => raw.finish(&verb).map(Some),
        None => Ok(None),
    }
}

fn read(verb: &str, args: &[OsString]) -> Result<Option<Raw>, lexopt::Error> {
    // What follows `--` is the command to run, dashes and all.
    let end = args.iter().position(|a| a == "--").unwrap_or(args.len());
    let mut raw = Raw::default();
    for word in args.get(end + 1..).unwrap_or_default() {
        raw.command.push(word.clone().string()?);
    }
    let mut parser = lexopt::Parser::from_args(args[..end].iter().cloned());
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("socket") => raw.socket = Some(parser.value()?.into()),
            Short('n') | Long("namespace") => raw.namespace = Some(parser.value()?.string()?),
            // kubectl's habit: -f is the file, except that logs are followed.
            Short('f') | Long("follow") if verb == "logs" => raw.follow = true,
            Short('f') | Long("filename") => raw.file = Some(parser.value()?),
            Short('o') | Long("output") => raw.output = Some(parser.value()?.string()?),
            Short('w') | Long("watch") => raw.watch = true,
            Long("grace-period") => raw.grace = Some(parser.value()?.parse()?),
            Long("no-wait") => raw.no_wait = true,
            Short('c') | Long("container") => raw.container = Some(parser.value()?.string()?),
            Long("tail") => raw.tail = Some(parser.value()?.parse()?),
            Short('p') | Long("previous") => raw.previous = true,
            Long("timestamps") => raw.timestamps = true,
            Short('i') | Long("stdin") if verb == "exec" => raw.stdin = true,
            Short('t') | Long("tty") if verb == "exec" => raw.tty = true,
            Value(word) => raw.words.push(word.string()?),
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(raw))
}

impl Raw {
    fn finish(mut self, verb: &str) -> Result<Options, String> {
        let input = self.file.take().map(|f| if f == "-" { Input::Stdin } else { Input::Path(f.into()) });
        let name = if self.words.is_empty() { None } else { Some(self.words.remove(0)) };
        let name = name.map(|n| n.strip_prefix("pod/").map_or(n.clone(), str::to_owned));
        if let Some(extra) = self.words.first() {
            return Err(format!("unexpected argument {extra:?}"));
        }
        let needs_name = || "the name of a Pod is needed".to_owned();
        let command = match verb {
            "apply" => Command::Apply { input: input.ok_or("a manifest is needed: -f FILE, or -f -")? },
            "get" => {
                let output = match self.output.as_deref() {
                    None | Some("table") => Output::Table,
                    Some("wide") => Output::Wide,
                    Some("yaml") => Output::Yaml,
                    Some("json") => Output::Json,
                    Some(other) => {
                        return Err(format!("unknown output {other:?}: table, wide, yaml or json"));
                    }
                };
                Command::Get { name, output, watch: self.watch }
            }
            "delete" if name.is_none() && input.is_none() => return Err(needs_name()),
            "delete" => Command::Delete { name, input, grace: self.grace, wait: !self.no_wait },
            "logs" | "log" => Command::Logs { name: name.ok_or_else(needs_name)?, query: self.log_query() },
            "exec" if self.command.is_empty() => return Err("a command is needed after --".to_owned()),
            "exec" => {
                let name = name.ok_or_else(needs_name)?;
                let (stdin, tty) = (self.stdin, self.tty);
                Command::Exec { name, container: self.container.take(), command: self.command, stdin, tty }
            }
            "problems" => Command::Problems,
            other => {
                let meant = nearest(other, VERBS).map(|meant| format!("; did you mean {meant:?}?"));
                return Err(format!("unknown command {other:?}{}", meant.unwrap_or_default()));
            }
        };
        Ok(Options { socket: self.socket, namespace: self.namespace, command })
    }

    fn log_query(&self) -> String {
        let mut query =
            format!("follow={}&previous={}&timestamps={}", self.follow, self.previous, self.timestamps);
        if let Some(container) = &self.container {
            query.push_str(&format!("&container={}", escape(container)));
        }
        if let Some(tail) = self.tail {
            query.push_str(&format!("&tailLines={tail}"));
        }
        query
    }
}
