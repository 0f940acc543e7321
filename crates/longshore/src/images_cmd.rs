//! `longshore images`: the images of a container runtime that is not running, from its directory.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use images::{Image, Store};

use crate::console;

const ROOT: &str = "/var/lib/longshore/runtime";

const USAGE: &str = "Usage:\n  longshore images ls [flags]\n  longshore images import FILE... [flags]\n\n\
     Archives are those of `docker save` and of the OCI image layout. A runtime that runs holds its images: import before \
     it starts.\n\nFlags:\n  --root-dir DIR   The --root-dir of the runtime (default /var/lib/longshore/runtime).\n";

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    match obey(args) {
        Ok(text) => {
            console::out(&text);
            ExitCode::SUCCESS
        }
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn obey(args: &[OsString]) -> Result<String, String> {
    let (mut root, mut words) = (PathBuf::from(ROOT), Vec::new());
    let mut parser = lexopt::Parser::from_args(args);
    while let Some(arg) = parser.next().map_err(|e| e.to_string())? {
        match arg {
            lexopt::Arg::Long("root-dir") => root = parser.value().map_err(|e| e.to_string())?.into(),
            lexopt::Arg::Long("help") | lexopt::Arg::Short('h') => return Ok(USAGE.to_owned()),
            lexopt::Arg::Value(word) => words.push(word),
            other => return Err(format!("{}\n\n{USAGE}", other.unexpected())),
        }
    }
    match words.split_first().map(|(verb, rest)| (verb.to_str().unwrap_or_default(), rest)) {
        Some(("ls", [])) => Ok(open(&root)?.list().iter().map(|image| row(image)).collect()),
        Some(("import", files)) if !files.is_empty() => import(&root, files),
        _ => Err(format!("what to do with images?\n\n{USAGE}")),
    }
}

fn open(root: &Path) -> Result<Store, String> {
    Store::open(&root.join("images")).map_err(|e| e.to_string())
}

fn import(root: &Path, files: &[OsString]) -> Result<String, String> {
    let store = open(root)?;
    let mut text = String::new();
    for name in files {
        let path = Path::new(name);
        let file = File::open(path).map_err(|e| format!("open {}: {e}", path.display()))?;
        let all = images::import(&store, file).map_err(|e| format!("import {}: {e}", path.display()))?;
        all.iter().for_each(|image| text.push_str(&row(image)));
    }
    Ok(text)
}

fn row(image: &Image) -> String {
    let names = if image.tags.is_empty() { &image.digests } else { &image.tags };
    let names = if names.is_empty() { "<none>".to_owned() } else { names.join(" ") };
    format!("{} {names}\n", image.id)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_told_with_what_would_be() {
        for words in [&["pull", "x"][..], &[], &["import"], &["ls", "x"], &["ls", "--all"]] {
            let args: Vec<OsString> = words.iter().map(OsString::from).collect();
            assert!(obey(&args).unwrap_err().contains("longshore images import FILE"), "{words:?}");
        }
        let missing = ["import", "/no/such/file", "--root-dir", "/dev/null/x"].map(OsString::from);
        assert!(obey(&missing).unwrap_err().contains("/dev/null/x"));
    }
}
