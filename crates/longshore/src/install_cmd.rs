//! `longshore install` and `longshore uninstall`: a node that starts with the machine, and a machine without it.
//!
//! What was installed is written down, and only that is taken away again.

mod files;
mod remove;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use api::config::up::{FLAGS, Up};
use base::flags;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::console;
use files::Root;

const INSTALL: &str = "\
Make the node start with this machine: the program in /usr/local/bin, a systemd unit, completion for the shell, and a
kubeconfig for you. The node starts at once.

Usage:
  longshore install [--no-start] [flags of longshore up]

Flags of `longshore up` are kept in the unit. Those of install:
      --no-start     install, and start nothing
      --root DIR     install below another directory, for images of machines; starts nothing
";
const UNINSTALL: &str = "\
Take the node from this machine: Pods end, what they mounted is unmounted, and what install put there is removed.
Volumes of the class local-path stay unless --volumes is said. Nothing that is mounted is deleted.

Usage:
  longshore uninstall [flags]

Flags:
      --volumes      remove the volumes of Pods too
      --keep-data    keep the data directory: an `install` later goes on where it was
      --root DIR     below another directory; ends nothing
";

/// What install did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Installed {
    /// The flags of `up`.
    flags: Vec<String>,
    /// Files that were not there before.
    files: Vec<PathBuf>,
}

pub(crate) fn install(args: &[OsString]) -> ExitCode {
    answer(args, INSTALL, &["no-start"], |words, root| {
        let flags: Vec<String> = words.rest.clone();
        let up = read(&flags)?;
        let is_here = root.is_machine();
        if is_here && !rustix::process::geteuid().is_root() {
            return Err("only root may install: run it with sudo".to_owned());
        }
        let installed = files::install(root, &flags, &up)?;
        for file in &installed.files {
            console::out(&format!("wrote         {}\n", file.display()));
        }
        if !is_here || words.has("no-start") {
            console::out("next          systemctl enable --now longshore\n");
            return Ok(());
        }
        if !Path::new("/run/systemd/system").is_dir() {
            console::out(&format!(
                "systemd does not run this machine; start the node with: {} up {}\n",
                files::PROGRAM,
                flags.join(" ")
            ));
            return Ok(());
        }
        systemctl(&["daemon-reload"])?;
        systemctl(&["enable", "--now", "longshore.service"])?;
        if let Some(path) = files::kubeconfig_for_caller(&up.data_dir)? {
            console::out(&format!("wrote         {}\n", path.display()));
        }
        console::out("node          runs, and starts with the machine\nnext          longshore status\n");
        Ok(())
    })
}

pub(crate) fn uninstall(args: &[OsString]) -> ExitCode {
    answer(args, UNINSTALL, &["volumes", "keep-data"], |words, root| {
        if let Some(stray) = words.rest.first() {
            return Err(format!("unknown flag {stray:?}"));
        }
        let is_here = root.is_machine();
        if is_here && !rustix::process::geteuid().is_root() {
            return Err("only root may uninstall: run it with sudo".to_owned());
        }
        let installed = files::installed(root)?;
        let up = read(&installed.flags)?;
        let mut left = Vec::new();
        if is_here {
            if Path::new("/run/systemd/system").is_dir() {
                _ = systemctl(&["disable", "--now", "longshore.service"]);
            }
            left.extend(remove::end_node(&up)?);
        }
        left.extend(remove::files(root, &installed));
        if !words.has("keep-data") {
            left.extend(remove::data(root, &up, words.has("volumes")));
        }
        if is_here && Path::new("/run/systemd/system").is_dir() {
            _ = systemctl(&["daemon-reload"]);
        }
        if left.is_empty() {
            console::out("nothing is left\n");
        }
        for what in left {
            console::out(&format!("left          {what}\n"));
        }
        Ok(())
    })
}

/// The words of a command line that are ours, and the rest.
struct Words {
    said: Vec<String>,
    rest: Vec<String>,
}

// === impl Words ===

impl Words {
    fn has(&self, flag: &str) -> bool {
        self.said.iter().any(|word| word == flag)
    }
}

fn answer(
    args: &[OsString],
    usage: &str,
    own: &[&str],
    act: impl FnOnce(&Words, &Root) -> Result<(), String>,
) -> ExitCode {
    let (mut words, mut root) = (Words { said: Vec::new(), rest: Vec::new() }, PathBuf::from("/"));
    let mut all = args.iter().map(|arg| arg.to_string_lossy().into_owned());
    while let Some(arg) = all.next() {
        match arg.strip_prefix("--") {
            _ if matches!(arg.as_str(), "-h" | "--help") => {
                console::out(usage);
                return ExitCode::SUCCESS;
            }
            Some(flag) if own.contains(&flag) => words.said.push(flag.to_owned()),
            Some("root") => root = all.next().unwrap_or_default().into(),
            Some(flag) if flag.starts_with("root=") => root = flag["root=".len()..].into(),
            _ => words.rest.push(arg),
        }
    }
    match act(&words, &Root(root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            console::err(&format!("Error: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

/// A wrong flag is better told now than in a log.
fn read(words: &[String]) -> Result<Up, String> {
    let parsed = flags::parse(FLAGS, words.iter().map(OsString::from));
    let parsed = parsed.map_err(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))?;
    if ["help", "version"].iter().any(|name| parsed.values.get(name) == Some(&Value::Bool(true))) {
        return Err("flags that only print something are none for a unit".to_owned());
    }
    Up::read(&parsed.values)
}

fn systemctl(args: &[&str]) -> Result<(), String> {
    let done = Command::new("systemctl").args(args).stdin(Stdio::null()).output();
    let done = done.map_err(|e| format!("run systemctl: {e}"))?;
    match done.status.success() {
        true => Ok(()),
        false => {
            Err(format!("systemctl {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim()))
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;

    use super::*;

    fn names(root: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let mut open = vec![root.to_owned()];
        while let Some(dir) = open.pop() {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    open.push(entry.path());
                } else {
                    found.push(entry.path().strip_prefix(root).unwrap().display().to_string());
                }
            }
        }
        found.sort();
        found
    }

    #[test]
    fn what_was_installed_goes_again_and_nothing_else() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path();
        fs::create_dir_all(root.join("usr/local/bin")).unwrap();
        fs::write(root.join("usr/local/bin/other"), "").unwrap();
        let line = |text: &str| -> Vec<OsString> {
            let own = ["--root".into(), root.into()];
            own.into_iter().chain(text.split_whitespace().map(OsString::from)).collect()
        };
        assert_eq!(install(&line("--disable=dns --node-name box")), ExitCode::SUCCESS);
        let unit = fs::read_to_string(root.join("etc/systemd/system/longshore.service")).unwrap();
        assert!(
            unit.contains("\nExecStart=/usr/local/bin/longshore up --disable=dns --node-name box\n"),
            "{unit}"
        );
        assert!(unit.contains("\nKillMode=process\n") && unit.contains("\nType=notify\n"));
        // Once more, with other flags.
        assert_eq!(install(&line("--disable=dns")), ExitCode::SUCCESS);
        let data = root.join("var/lib/longshore");
        fs::create_dir_all(data.join("storage/pvc-1_a_b")).unwrap();
        fs::create_dir_all(data.join("pki")).unwrap();
        fs::write(data.join("storage/pvc-1_a_b/kept"), "").unwrap();
        fs::write(data.join("pki/ca.key"), "").unwrap();
        assert_eq!(uninstall(&line("")), ExitCode::SUCCESS);
        assert_eq!(names(root), ["usr/local/bin/other", "var/lib/longshore/storage/pvc-1_a_b/kept"]);
        assert_eq!(install(&line("")), ExitCode::SUCCESS);
        assert_eq!(uninstall(&line("--volumes")), ExitCode::SUCCESS);
        assert_eq!(names(root), ["usr/local/bin/other"]);
    }

    #[test]
    fn a_wrong_flag_installs_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        for flag in ["--cluster-cidr=10.1.0.0", "--nodename=x", "--help-me"] {
            let args = ["--root".into(), scratch.path().into(), OsString::from(flag)];
            assert_eq!(install(&args), ExitCode::FAILURE, "{flag}");
        }
        assert_eq!(names(scratch.path()), [""; 0]);
        assert_eq!(uninstall(&["--root".into(), scratch.path().into()]), ExitCode::FAILURE);
    }

    #[test]
    fn a_file_of_somebody_else_is_not_replaced() {
        let scratch = tempfile::tempdir().unwrap();
        let unit = scratch.path().join("etc/systemd/system/longshore.service");
        fs::create_dir_all(unit.parent().unwrap()).unwrap();
        fs::write(&unit, "[Unit]\n# mine\n").unwrap();
        assert_eq!(install(&["--root".into(), scratch.path().into()]), ExitCode::FAILURE);
        assert_eq!(fs::read_to_string(&unit).unwrap(), "[Unit]\n# mine\n");
    }
}
