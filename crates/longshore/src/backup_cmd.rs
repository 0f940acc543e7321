//! `longshore backup FILE` and `longshore restore FILE`: a node in one file: its objects, keys and manifests.

mod archive;
mod read;
mod write;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::console;
use crate::node_here::NodeHere;

const BACKUP: &str = "\
Write a node into one file, while it runs or not: its objects, keys, tokens and manifests. Whoever has the file may do everything
with the cluster. Volumes of Pods and images are not in it.

Usage:
  longshore backup [flags] FILE

Flags:
      --data-dir DIR   default that of the node that runs here, else /var/lib/longshore
  -h, --help           this text
";
const RESTORE: &str = "\
Make a node of a backup. It must not run; `longshore up` goes on from there.

Usage:
  longshore restore [flags] FILE

Flags:
      --data-dir DIR   default /var/lib/longshore
      --replace        put what is there already aside, into a directory of its own
  -h, --help           this text
";
const USUAL: &str = "/var/lib/longshore";
/// The store's copy, among the files of the data directory.
const STORE: &str = "store.copy";
/// What is a node besides its store.
const DIRECTORIES: [&str; 3] = ["pki", "deploy", "manifests"];
const FILES: [&str; 1] = ["admin.kubeconfig"];
/// A file of a node that is not its store is smaller, and there are fewer of them.
const LARGEST: u64 = 64 << 20;
const MOST: usize = 10_000;

#[derive(Debug, PartialEq, Eq)]
struct Wish {
    file: PathBuf,
    data_dir: Option<PathBuf>,
    replace: bool,
}

pub(crate) fn backup(args: &[OsString]) -> ExitCode {
    answer(args, BACKUP, |wish| {
        if wish.replace {
            return Err("unknown flag: --replace".to_owned());
        }
        let running = || NodeHere::find(None).ok().map(|node| node.data_dir);
        let data = wish.data_dir.clone().or_else(running).unwrap_or_else(|| USUAL.into());
        let report = write::write(&data, &wish.file)?;
        Ok(format!("{} -> {}: {report}\n", data.display(), wish.file.display()))
    })
}

pub(crate) fn restore(args: &[OsString]) -> ExitCode {
    answer(args, RESTORE, |wish| {
        let data = wish.data_dir.clone().unwrap_or_else(|| USUAL.into());
        let report = read::read(&wish.file, &data, wish.replace)?;
        Ok(format!("{} -> {}: {report}\nnext          longshore up\n", wish.file.display(), data.display()))
    })
}

fn answer(args: &[OsString], usage: &str, act: impl FnOnce(&Wish) -> Result<String, String>) -> ExitCode {
    let done = match parse(args) {
        Ok(Some(wish)) => act(&wish),
        Ok(None) => Ok(usage.to_owned()),
        Err(mistake) => Err(format!("{mistake}\n\n{usage}")),
    };
    match done {
        Ok(text) => {
            console::out(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            console::err(&format!("Error: {}\n", error.trim_end()));
            ExitCode::FAILURE
        }
    }
}

/// The files of a node besides its store, relative to its directory.
fn names(data: &Path) -> io::Result<Vec<String>> {
    let files = FILES.into_iter().filter(|name| data.join(name).is_file());
    let mut names: Vec<String> = files.map(str::to_owned).collect();
    for dir in DIRECTORIES.into_iter().filter(|dir| data.join(dir).is_dir()) {
        for entry in fs::read_dir(data.join(dir))? {
            let entry = entry?;
            // A name that is no text is none of a node's.
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(format!("{dir}/{name}"));
            }
        }
    }
    names.sort();
    Ok(names)
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

fn parse(args: &[OsString]) -> Result<Option<Wish>, String> {
    let (mut file, mut data_dir, mut replace) = (None, None, false);
    let mut parser = lexopt::Parser::from_args(args.iter().cloned());
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("data-dir") => {
                data_dir = Some(parser.value().and_then(|v| v.string()).map_err(|e| e.to_string())?.into());
            }
            Long("replace") => replace = true,
            Value(word) if file.is_none() => file = Some(PathBuf::from(word)),
            other => return Err(other.unexpected().to_string()),
        }
    }
    let file = file.ok_or("one FILE is wanted")?;
    Ok(Some(Wish { file, data_dir, replace }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_understood() {
        let read = |text: &str| parse(&text.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        let wish =
            |dir: Option<&str>, replace| Wish { file: "x".into(), data_dir: dir.map(PathBuf::from), replace };
        assert_eq!(read("x"), Ok(Some(wish(None, false))));
        assert_eq!(read("--data-dir /d x --replace"), Ok(Some(wish(Some("/d"), true))));
        assert_eq!(read("-h"), Ok(None));
        assert!(read("").is_err() && read("a b").is_err() && read("--x a").is_err());
    }
}
