//! The program as CNI plugins: called by a plugin's name, it answers as the contract says.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cni::Environment;

use crate::console;

const USAGE: &str = "\
Be the CNI plugins of this machine: bridge, host-local, portmap and the others.

Usage:
  longshore cni install DIR     put a link for each plugin into DIR, such as /opt/cni/bin
  longshore cni PLUGIN          be this plugin, as when called by its name: told by CNI_COMMAND and its like, and
                                by a configuration on standard input

What is in DIR under a plugin's name and no link of ours stays as it is, and is named.
";

/// Whether the program was called by a plugin's name.
pub(crate) fn is_plugin(name: &str) -> bool {
    cni::names().any(|known| known == name)
}

pub(crate) fn main(args: &[OsString]) -> ExitCode {
    let words: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap_or_default()).collect();
    match words.as_slice() {
        ["-h" | "--help" | "help"] => {
            console::out(USAGE);
            ExitCode::SUCCESS
        }
        ["install", _] => match install(Path::new(&args[1])) {
            Ok(()) => ExitCode::SUCCESS,
            Err(message) => {
                console::err(&format!("error: {message}\n"));
                ExitCode::FAILURE
            }
        },
        [plugin] if is_plugin(plugin) => be(plugin),
        _ => {
            console::err(USAGE);
            ExitCode::FAILURE
        }
    }
}

/// One call of a plugin, as a program.
pub(crate) fn be(plugin: &str) -> ExitCode {
    let word = |name: &str| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
    let environment = environment(word);
    if environment.command.is_empty() {
        // A person, and not a runtime.
        let names: Vec<&str> = cni::names().collect();
        console::err(&format!(
            "{plugin} is a CNI plugin: a runtime calls it. The plugins: {}\n",
            names.join(", ")
        ));
        return ExitCode::FAILURE;
    }
    // One byte more than may be, so that too much is seen; what comes after nobody reads.
    let mut input = Vec::new();
    let read = std::io::stdin().lock().take(cni::INPUT_MAX as u64 + 1).read_to_end(&mut input);
    if let Err(error) = read {
        console::err(&format!("reading the configuration: {error}\n"));
    }
    let answer = cni::answer(plugin, &environment, &input);
    console::out(&answer.output);
    if answer.is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The plugins, for a runtime in this process.
#[derive(Debug)]
pub(crate) struct OwnPlugins;

impl runtime::network::BuiltIn for OwnPlugins {
    fn has(&self, plugin: &str) -> bool {
        is_plugin(plugin)
    }

    fn call(&self, call: &runtime::network::Call) -> (bool, Vec<u8>) {
        let word = |name: &str| {
            let found = call.environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| value.clone()).unwrap_or_default()
        };
        let answer = cni::answer(&call.program, &environment(word), call.input.as_bytes());
        (answer.is_success, answer.output.into_bytes())
    }
}

fn environment(word: impl Fn(&str) -> String) -> Environment {
    Environment {
        command: word("CNI_COMMAND"),
        container: word("CNI_CONTAINERID"),
        namespace: word("CNI_NETNS"),
        interface: word("CNI_IFNAME"),
        arguments: word("CNI_ARGS"),
        path: word("CNI_PATH"),
    }
}

/// A link to this program for each plugin. Older links of ours are renewed.
pub(crate) fn install(dir: &Path) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| format!("find this program: {e}"))?;
    std::fs::create_dir_all(dir).map_err(|e| format!("make {}: {e}", dir.display()))?;
    let mut foreign = Vec::new();
    for name in cni::names() {
        let path = dir.join(name);
        match std::fs::read_link(&path) {
            Ok(to) if to == program => continue,
            Ok(to) if !is_ours(&to) => foreign.push(name),
            Err(_) if path.symlink_metadata().is_ok() => foreign.push(name),
            _ => link(&program, &path)?,
        }
    }
    match foreign.as_slice() {
        [] => Ok(()),
        names => {
            Err(format!("in {} these are there already and not ours: {}", dir.display(), names.join(", ")))
        }
    }
}

fn is_ours(program: &Path) -> bool {
    program.file_name() == Some(OsStr::new("longshore"))
}

/// Whole or not at all: somebody may be calling the old one.
fn link(program: &Path, path: &Path) -> Result<(), String> {
    let mut aside: PathBuf = path.to_owned();
    aside.set_extension("new");
    let _ = std::fs::remove_file(&aside);
    std::os::unix::fs::symlink(program, &aside)
        .and_then(|()| std::fs::rename(&aside, path))
        .map_err(|e| format!("link {}: {e}", path.display()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_and_what_is_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bridge"), "theirs").unwrap();
        std::os::unix::fs::symlink("/elsewhere/longshore", dir.path().join("ptp")).unwrap();
        std::os::unix::fs::symlink("/elsewhere/ptp", dir.path().join("portmap")).unwrap();
        let told = install(dir.path()).unwrap_err();
        assert!(told.ends_with("not ours: bridge, portmap"), "{told}");
        assert_eq!(std::fs::read_to_string(dir.path().join("bridge")).unwrap(), "theirs");
        for name in ["host-local", "ptp"] {
            assert_eq!(std::fs::read_link(dir.path().join(name)).unwrap(), std::env::current_exe().unwrap());
        }
        std::fs::remove_file(dir.path().join("bridge")).unwrap();
        std::fs::remove_file(dir.path().join("portmap")).unwrap();
        install(dir.path()).unwrap();
        install(dir.path()).unwrap();
        assert_eq!(dir.path().read_dir().unwrap().count(), 9);
    }

    #[test]
    fn a_runtime_in_this_process_calls_them_without_a_program() {
        use runtime::network::{BuiltIn, Call};
        let call = |command: &str| Call {
            program: "bridge".to_owned(),
            environment: vec![("CNI_COMMAND", command.to_owned())],
            input: r#"{"cniVersion": "1.1.0", "name": "pods"}"#.to_owned(),
        };
        assert!(OwnPlugins.has("bridge") && !OwnPlugins.has("longshore"));
        let (is_success, output) = OwnPlugins.call(&call("VERSION"));
        assert!(is_success && String::from_utf8(output).unwrap().contains("supportedVersions"));
        let (is_success, output) = OwnPlugins.call(&call("ADD"));
        assert!(!is_success && String::from_utf8(output).unwrap().contains("CNI_CONTAINERID"));
    }
}
