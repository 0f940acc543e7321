//! `longshore apiserver backup FILE` and `longshore apiserver restore FILE`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use base::flags::{self, Flag, FlagType};
use serde_json::Value;
use store::Report;

use crate::console;
use api::config::apiserver::DATA_DIR;

/// What is done with a copy of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Backup,
    Restore,
}

const HELP: Flag = Flag::new("help", FlagType::Bool, "false", "Print this text.").short('h');
const BACKUP: &[Flag] = &[DATA_DIR, HELP];
const RESTORE: &[Flag] = &[
    DATA_DIR,
    Flag::new(
        "replace",
        FlagType::Bool,
        "false",
        "Put a store that is there already aside, into a directory of its own.",
    ),
    HELP,
];

#[derive(Debug, PartialEq, Eq)]
struct Wish {
    file: PathBuf,
    data_dir: PathBuf,
    replace: bool,
}

pub(super) fn main(act: Act, args: &[OsString]) -> ExitCode {
    let wish = match Wish::parse(act, args) {
        Ok(Some(wish)) => wish,
        Ok(None) => {
            console::out(&act.usage());
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            console::err(&format!("Error: {mistake}\n\n{}", act.usage()));
            return ExitCode::FAILURE;
        }
    };
    let done = match act {
        Act::Backup => store::backup(&wish.data_dir, &wish.file),
        Act::Restore => store::restore(&wish.file, &wish.data_dir, wish.replace),
    };
    match done {
        Ok(Report { revision, keys, bytes }) => {
            let (from, to) = match act {
                Act::Backup => (&wish.data_dir, &wish.file),
                Act::Restore => (&wish.file, &wish.data_dir),
            };
            let (from, to) = (from.display(), to.display());
            console::out(&format!("{from} -> {to}: {keys} objects at revision {revision}, {bytes} bytes\n"));
            ExitCode::SUCCESS
        }
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

// === impl Act ===

impl Act {
    /// The act a first argument names.
    pub(super) fn of(word: &OsString) -> Option<Act> {
        match word.to_str()? {
            "backup" => Some(Act::Backup),
            "restore" => Some(Act::Restore),
            _ => None,
        }
    }

    fn flags(self) -> &'static [Flag] {
        match self {
            Act::Backup => BACKUP,
            Act::Restore => RESTORE,
        }
    }

    fn usage(self) -> String {
        let (what, word) = match self {
            Act::Backup => ("Copy the store to a new file, while the server runs or not.", "backup"),
            Act::Restore => {
                ("Make a copy the store again. The server must not run; clients list anew.", "restore")
            }
        };
        let flags = flags::render_help(self.flags(), 100);
        format!("{what}\n\nUsage:\n  longshore apiserver {word} [flags] FILE\n\nFlags:\n{flags}")
    }
}

// === impl Wish ===

impl Wish {
    /// None where help is asked for.
    fn parse(act: Act, args: &[OsString]) -> Result<Option<Wish>, String> {
        // The one word that is no flag and no flag's value.
        let is_value = |i: usize| i > 0 && matches!(args[i - 1].to_str(), Some("--data-dir" | "-data-dir"));
        let is_file = |i: usize| !args[i].to_string_lossy().starts_with('-') && !is_value(i);
        let (files, rest): (Vec<usize>, Vec<usize>) = (0..args.len()).partition(|i| is_file(*i));
        let parsed = flags::parse(act.flags(), rest.into_iter().map(|i| args[i].clone()));
        let values = parsed
            .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?
            .values;
        let said = |name: &str| values.get(name) == Some(&Value::Bool(true));
        if said("help") {
            return Ok(None);
        }
        let [file] = files[..] else { return Err("one FILE is wanted".to_owned()) };
        let data_dir = values.get("data-dir").and_then(Value::as_str).unwrap_or(DATA_DIR.default);
        Ok(Some(Wish {
            file: PathBuf::from(&args[file]),
            data_dir: PathBuf::from(data_dir),
            replace: said("replace"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_are_understood_and_mistakes_named() {
        let parse = |act, line: &str| {
            Wish::parse(act, &line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
        };
        let wish = |file: &str, dir: &str, replace| {
            Ok(Some(Wish { file: file.into(), data_dir: dir.into(), replace }))
        };
        assert_eq!(parse(Act::Backup, "x"), wish("x", "/var/lib/longshore", false));
        assert_eq!(parse(Act::Backup, "--data-dir /d x"), wish("x", "/d", false));
        assert_eq!(parse(Act::Restore, "x --replace --data-dir=/d"), wish("x", "/d", true));
        assert_eq!(parse(Act::Backup, "--help"), Ok(None));
        assert_eq!(parse(Act::Backup, "a b"), Err("one FILE is wanted".to_owned()));
        assert!(parse(Act::Backup, "--replace a").is_err());
    }
}
