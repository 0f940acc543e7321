//! The command line of `longshore images`.

use std::ffi::OsString;
use std::path::PathBuf;

use cri::Endpoint;
use lexopt::prelude::*;

#[derive(Debug, PartialEq)]
pub(super) struct Options {
    pub(super) place: Place,
    pub(super) command: Command,
}

/// Where the images are.
#[derive(Debug, PartialEq)]
pub(super) enum Place {
    /// Nobody said which.
    Usual,
    Runtime(Endpoint),
    /// Of a runtime that is not running.
    Directory(PathBuf),
}

#[derive(Debug, PartialEq)]
pub(super) enum Command {
    List { is_quiet: bool },
    Pull { name: String, creds: Option<String> },
    Import { paths: Vec<PathBuf>, pin: bool },
    Export { names: Vec<String>, path: PathBuf },
    Remove { names: Vec<String> },
}

/// Everything any of the commands may say, before it is known whether it fits together.
#[derive(Default)]
struct Raw {
    runtime: Option<String>,
    root: Option<PathBuf>,
    words: Vec<OsString>,
    is_quiet: bool,
    pin: bool,
    creds: Option<String>,
    output: Option<String>,
}

/// None when help is asked for.
pub(super) fn parse(args: &[OsString]) -> Result<Option<Options>, String> {
    let mut raw = Raw::default();
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Short('q') | Long("quiet") => raw.is_quiet = true,
            Long("pin") => raw.pin = true,
            Long("root-dir") => {
                raw.root = Some(parser.value().map_err(|e| format!("--root-dir: {e}"))?.into());
            }
            Long("runtime") => raw.runtime = Some(text(&mut parser, "--runtime")?),
            Short('o') | Long("output") => raw.output = Some(text(&mut parser, "-o")?),
            Long("creds") => raw.creds = Some(text(&mut parser, "--creds")?),
            Value(word) => raw.words.push(word),
            other => return Err(other.unexpected().to_string()),
        }
    }
    raw.options().map(Some)
}

fn text(parser: &mut lexopt::Parser, flag: &str) -> Result<String, String> {
    let value = parser.value().and_then(|value| value.string());
    value.map_err(|e| format!("{flag}: {e}"))
}

// === impl Raw ===

impl Raw {
    fn options(mut self) -> Result<Options, String> {
        if self.words.is_empty() {
            return Err("ls, pull, import, export or rm is wanted".into());
        }
        let command = self.words.remove(0);
        if self.output.is_some() && command != "export" {
            return Err(format!("{} takes no -o", command.to_string_lossy()));
        }
        let place = self.place(command.to_str().unwrap_or_default())?;
        let command = match command.to_str() {
            Some("ls" | "list") => {
                self.refuse("ls", &[("--pin", self.pin), ("--creds", self.creds.is_some())])?;
                self.takes("ls", 0, "no name")?;
                Command::List { is_quiet: self.is_quiet }
            }
            Some("pull") => {
                self.refuse("pull", &[("--pin", self.pin), ("-q", self.is_quiet)])?;
                self.takes("pull", 1, "one NAME")?;
                Command::Pull { name: names(self.words)?.remove(0), creds: self.creds }
            }
            Some("import") => {
                self.refuse("import", &[("-q", self.is_quiet), ("--creds", self.creds.is_some())])?;
                if self.words.is_empty() {
                    return Err("import takes at least one FILE".into());
                }
                Command::Import { paths: self.words.into_iter().map(PathBuf::from).collect(), pin: self.pin }
            }
            Some("export") => {
                let odd = [("--pin", self.pin), ("-q", self.is_quiet), ("--creds", self.creds.is_some())];
                self.refuse("export", &odd)?;
                let path = self.output.ok_or("export takes -o FILE")?.into();
                if self.words.is_empty() {
                    return Err("export takes at least one NAME".into());
                }
                Command::Export { names: names(self.words)?, path }
            }
            Some("rm" | "remove") => {
                let odd = [("--pin", self.pin), ("-q", self.is_quiet), ("--creds", self.creds.is_some())];
                self.refuse("rm", &odd)?;
                if self.words.is_empty() {
                    return Err("rm takes at least one NAME".into());
                }
                Command::Remove { names: names(self.words)? }
            }
            _ => return Err(format!("unknown command {:?}", command.to_string_lossy())),
        };
        Ok(Options { place, command })
    }

    fn place(&self, command: &str) -> Result<Place, String> {
        match (&self.root, &self.runtime) {
            (Some(_), Some(_)) => Err("one of --root-dir and --runtime is wanted".into()),
            (Some(_), None) if !matches!(command, "ls" | "list" | "import") => {
                Err(format!("{command} takes no --root-dir: a runtime has to run for it"))
            }
            (Some(root), None) => Ok(Place::Directory(root.clone())),
            (None, Some(runtime)) => {
                Endpoint::parse(runtime).map(Place::Runtime).map_err(|e| format!("--runtime: {e}"))
            }
            (None, None) => Ok(Place::Usual),
        }
    }

    fn takes(&self, command: &str, count: usize, what: &str) -> Result<(), String> {
        if self.words.len() == count { Ok(()) } else { Err(format!("{command} takes {what}")) }
    }

    fn refuse(&self, command: &str, flags: &[(&str, bool)]) -> Result<(), String> {
        match flags.iter().find(|(_, is_set)| *is_set) {
            Some((flag, _)) => Err(format!("{command} takes no {flag}")),
            None => Ok(()),
        }
    }
}

fn names(words: Vec<OsString>) -> Result<Vec<String>, String> {
    let name = |word: OsString| word.into_string().map_err(|word| format!("{word:?} is no name"));
    words.into_iter().map(name).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<Command, String> {
        let args: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        parse(&args).map(|options| options.unwrap().command)
    }

    #[test]
    fn commands_are_understood() {
        assert_eq!(run("ls -q"), Ok(Command::List { is_quiet: true }));
        let (name, creds) = ("a/b:v1".to_owned(), Some("u:p".to_owned()));
        assert_eq!(run("pull a/b:v1 --creds u:p"), Ok(Command::Pull { name, creds }));
        assert_eq!(
            run("import - f --pin"),
            Ok(Command::Import { paths: vec!["-".into(), "f".into()], pin: true })
        );
        assert_eq!(run("rm a b"), Ok(Command::Remove { names: vec!["a".into(), "b".into()] }));
        let (names, path) = (vec!["a".into()], PathBuf::from("f"));
        assert_eq!(run("export a -o f"), Ok(Command::Export { names, path }));
        let args = ["ls", "--runtime", "unix:///x.sock"].map(OsString::from);
        let place = |args: &[OsString]| parse(args).unwrap().unwrap().place;
        assert_eq!(place(&args), Place::Runtime(Endpoint::parse("/x.sock").unwrap()));
        assert_eq!(place(&["ls".into()]), Place::Usual);
        let args = ["import", "--root-dir", "/d", "f"].map(OsString::from);
        assert_eq!(place(&args), Place::Directory("/d".into()));
        assert_eq!(parse(&["-h".into()]), Ok(None));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        for (line, want) in [
            ("", "ls, pull, import, export or rm"),
            ("export a", "export takes -o FILE"),
            ("export -o f", "export takes at least one NAME"),
            ("ls -o f", "ls takes no -o"),
            ("fly", "unknown command \"fly\""),
            ("ls x", "ls takes no name"),
            ("ls --pin", "ls takes no --pin"),
            ("pull", "pull takes one NAME"),
            ("import", "import takes at least one FILE"),
            ("pull a --root-dir /d", "pull takes no --root-dir"),
            ("fly --root-dir /d", "fly takes no --root-dir"),
            ("ls --root-dir /d --runtime /x", "one of --root-dir and --runtime"),
            ("rm", "rm takes at least one NAME"),
            ("rm a --creds x:y", "rm takes no --creds"),
            ("ls --runtime tcp://x", "--runtime: "),
            ("ls --fly", "--fly"),
        ] {
            let why = run(line).unwrap_err();
            assert!(why.contains(want), "{line}: {why}");
        }
    }
}
