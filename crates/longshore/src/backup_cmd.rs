//! `longshore backup FILE` and `longshore restore FILE`: a node in one file: its objects, keys and manifests.

mod archive;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lexopt::prelude::{Long, Short, Value, ValueExt};

use crate::console;
use crate::node_here::NodeHere;
use archive::Entry;

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
      --replace        put objects that are there already aside, into a directory of their own
  -h, --help           this text
";
const USUAL: &str = "/var/lib/longshore";
/// The store's copy, among the files of the data directory.
const STORE: &str = "store.copy";
/// What is a node besides its store.
const DIRECTORIES: [&str; 2] = ["pki", "deploy"];
const FILES: [&str; 1] = ["admin.kubeconfig"];

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
        let report = write(&data, &wish.file)?;
        Ok(format!("{} -> {}: {report}\n", data.display(), wish.file.display()))
    })
}

pub(crate) fn restore(args: &[OsString]) -> ExitCode {
    answer(args, RESTORE, |wish| {
        let data = wish.data_dir.clone().unwrap_or_else(|| USUAL.into());
        let report = read(&wish.file, &data, wish.replace)?;
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

/// Whole or not at all.
fn write(data: &Path, file: &Path) -> Result<String, String> {
    if file.exists() {
        return Err(format!("{} is there already", file.display()));
    }
    let (half, copy) = (beside(file, "half"), beside(file, "store"));
    // What one that was killed left.
    _ = fs::remove_file(&copy);
    let written = write_half(data, &half, &copy);
    _ = fs::remove_file(&copy);
    let (report, files) = written.inspect_err(|_| _ = fs::remove_file(&half))?;
    fs::rename(&half, file).map_err(|e| format!("write {}: {e}", file.display()))?;
    Ok(format!("{} objects at revision {}, {files} files", report.keys, report.revision))
}

fn write_half(data: &Path, half: &Path, copy: &Path) -> Result<(store::Report, usize), String> {
    let report = store::backup(data, copy).map_err(|e| e.to_string())?;
    let names = names(data).map_err(|e| format!("read {}: {e}", data.display()))?;
    let pack = || -> io::Result<()> {
        let out = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(half)?;
        let mut out = BufWriter::new(out);
        for name in &names {
            put(&mut out, name, &data.join(name))?;
        }
        // Last: who finds it has everything before it.
        put(&mut out, STORE, copy)?;
        archive::finish(&mut out)?;
        out.into_inner().map_err(|e| e.into_error())?.sync_all()
    };
    pack().map_err(|e| format!("write {}: {e}", half.display()))?;
    Ok((report, names.len()))
}

fn beside(file: &Path, end: &str) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{end}"));
    file.with_file_name(name)
}

/// The files of a node besides its store, relative to its directory.
fn names(data: &Path) -> io::Result<Vec<String>> {
    let mut names: Vec<String> =
        FILES.iter().filter(|name| data.join(name).is_file()).map(|name| (*name).to_owned()).collect();
    for dir in DIRECTORIES {
        if !data.join(dir).is_dir() {
            continue;
        }
        for entry in fs::read_dir(data.join(dir))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.push(format!("{dir}/{}", entry.file_name().to_string_lossy()));
            }
        }
    }
    names.sort();
    Ok(names)
}

fn put(out: &mut impl Write, name: &str, path: &Path) -> io::Result<()> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let entry = Entry { name: name.to_owned(), mode: meta.permissions().mode(), size: meta.len() };
    archive::put(out, &entry, &mut file)
}

fn read(file: &Path, data: &Path, replace: bool) -> Result<String, String> {
    let within = |e: io::Error| format!("read {}: {e}", file.display());
    let mut from = BufReader::new(File::open(file).map_err(within)?);
    fs::DirBuilder::new().recursive(true).mode(0o700).create(data).map_err(|e| {
        format!("make {}: {e}; run as root, or choose another with --data-dir", data.display())
    })?;
    // First all of it beside, then the store, which refuses where it may not go; then the rest takes its place.
    let scratch = data.join("restore");
    _ = remove(data, "restore");
    let unpacked = unpack(&mut from, &scratch).map_err(within);
    let done = unpacked.and_then(|files| {
        let copy = scratch.join(STORE);
        if !copy.is_file() {
            return Err(format!("{} is no backup of a node: it has no store", file.display()));
        }
        let report = store::restore(&copy, data, replace).map_err(|e| match replace {
            false => format!("{e}; --replace puts what is there aside"),
            true => e.to_string(),
        })?;
        take(&scratch, data).map_err(|e| format!("write {}: {e}", data.display()))?;
        Ok(format!("{} objects at revision {}, {} files", report.keys, report.revision, files - 1))
    });
    _ = remove(data, "restore");
    done
}

fn unpack(from: &mut impl Read, scratch: &Path) -> io::Result<usize> {
    let mut files = 0;
    archive::each(from, |entry, content| {
        let is_known = entry.name == STORE
            || FILES.contains(&entry.name.as_str())
            || entry
                .name
                .split_once('/')
                .is_some_and(|(dir, name)| DIRECTORIES.contains(&dir) && !name.contains('/'));
        if !is_known {
            return Err(io::Error::other(format!("{} is no file of a node", entry.name)));
        }
        let path = scratch.join(&entry.name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path.parent().unwrap_or(scratch))?;
        let mut out = OpenOptions::new().write(true).create_new(true).mode(entry.mode).open(&path)?;
        io::copy(content, &mut out)?;
        files += 1;
        out.sync_all()
    })?;
    Ok(files)
}

/// Every file to its place, over what is there.
fn take(scratch: &Path, data: &Path) -> io::Result<()> {
    for name in names(scratch)? {
        let goal = data.join(&name);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(goal.parent().unwrap_or(data))?;
        fs::rename(scratch.join(&name), goal)?;
    }
    Ok(())
}

fn remove(dir: &Path, name: &str) -> Result<(), String> {
    let parent = sys::fd::open_dir(dir).map_err(|e| e.to_string())?;
    sys::tree::remove(parent, std::ffi::OsStr::new(name)).map_err(|e| e.to_string())
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

    #[test]
    fn only_files_of_a_node_are_unpacked() {
        let scratch = tempfile::tempdir().unwrap();
        for name in ["etc/passwd", "pki/a/b", "longshore", "deploy"] {
            let mut bytes = Vec::new();
            archive::put(&mut bytes, &Entry { name: name.into(), mode: 0o600, size: 0 }, &mut io::empty())
                .unwrap();
            archive::finish(&mut bytes).unwrap();
            let told = unpack(&mut &bytes[..], scratch.path()).unwrap_err();
            assert!(told.to_string().contains("is no file of a node"), "{name}: {told}");
        }
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
