//! The flags of `longshore runtime`, and what it reads of a `config.toml` for containerd.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use base::flags::{self, Flag, FlagType, Parsed};
use serde_json::Value;

use super::{ConfigError, FieldError, LoadError, Logging, Outcome, ReadFiles, file};

mod containerd;

pub use containerd::Containerd;

const fn flag(name: &'static str, kind: FlagType, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, kind, default, help)
}

const LISTEN: &str = "unix:///run/longshore/runtime.sock";
const ROOT: &str = "/var/lib/longshore/runtime";
const STATE: &str = "/run/longshore/runtime";
/// As with every runtime; the later wins.
const CDI: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const STREAM: &str = "127.0.0.1:0";

#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    flag("help", FlagType::Bool, "false", "Print this text and exit.").short('h'),
    flag("version", FlagType::Bool, "false", "Print the version and exit."),
    flag("listen", FlagType::Text, LISTEN, "The socket of the CRI."),
    flag("root-dir", FlagType::Text, ROOT, "Where images and what containers write are kept."),
    flag("state-dir", FlagType::Text, STATE, "Where is kept what is true until the machine stops; on a file system in memory."),
    flag("config", FlagType::Text, "", "A config.toml for containerd, versions 2 and 3: what means the same here is read, the rest is named in the log."),
    flag("cni-conf-dir", FlagType::Text, "", "Where Pod networks are configured; wins over the file. By default /etc/cni/net.d."),
    flag("cni-bin-dir", FlagType::List, "", "Where network plugins are; wins over the file. By default /opt/cni/bin and /usr/lib/cni."),
    flag("registry-config-path", FlagType::Text, "", "Mirrors and trust of registries, in the layout of certs.d; wins over the file."),
    flag("stream-bind-address", FlagType::Text, STREAM, "Where clients of exec, attach and port-forward are served."),
    flag("metrics-bind-address", FlagType::Text, "", "Where /metrics and /healthz are; empty for nowhere."),
    flag("logging-format", FlagType::Text, "text", "text or json."),
    flag("v", FlagType::Uint32, "0", "How much to log; 0 to 10.").short('v'),
];

/// What the command line and the file say, checked.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub listen: PathBuf,
    pub root_dir: PathBuf,
    pub state_dir: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
    pub registry_config_path: Option<PathBuf>,
    /// Specs of CDI; none where it is switched off.
    pub cdi_spec_dirs: Vec<PathBuf>,
    pub stream: SocketAddr,
    pub metrics: Option<SocketAddr>,
    /// Names of handlers that are run by our own launcher.
    pub handlers: Vec<String>,
    pub logging: Logging,
    /// Keys of the file that mean nothing here.
    pub not_honoured: Vec<String>,
}

/// Reads arguments and file; tells every mistake.
pub fn load(args: &[OsString], files: &dyn ReadFiles) -> Result<Outcome<Loaded>, LoadError> {
    let parsed = flags::parse(FLAGS, args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::from).collect()))?;
    let is_set = |name: &str| parsed.values.get(name) == Some(&Value::Bool(true));
    if is_set("help") {
        let text = format!(
            "Run containers for a kubelet: a container runtime that serves the CRI.\n\nUsage:\n  longshore runtime [flags]\n\nFlags:\n{}",
            flags::render_help(FLAGS, 120)
        );
        return Ok(Outcome::Help(text));
    }
    if is_set("version") {
        return Ok(Outcome::Version);
    }
    let mut mistakes = Vec::new();
    let config = match text(&parsed, "config", "").as_str() {
        "" => Containerd::default(),
        path => read(files, path).map_err(|error| LoadError(vec![error]))?,
    };
    let loaded = check(&parsed, config, &mut mistakes);
    match mistakes.is_empty() {
        true => Ok(Outcome::Run(Box::new(loaded))),
        false => Err(LoadError(mistakes.into_iter().map(ConfigError::Field).collect())),
    }
}

fn read(files: &dyn ReadFiles, name: &str) -> Result<Containerd, ConfigError> {
    let bytes = file::read(files, Path::new(name))?;
    Containerd::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|what| ConfigError::Field(FieldError::new(name.to_owned(), what)))
}

fn text(parsed: &Parsed, name: &str, default: &str) -> String {
    match parsed.values.get(name) {
        Some(Value::String(text)) => text.clone(),
        _ => default.to_owned(),
    }
}

fn check(parsed: &Parsed, config: Containerd, mistakes: &mut Vec<FieldError>) -> Loaded {
    let mut path = |name: &str, default: &str| {
        let said = text(parsed, name, default);
        if !said.starts_with('/') {
            mistakes.push(mistake(name, format!("{said:?} is not an absolute path")));
        }
        PathBuf::from(said)
    };
    let (root_dir, state_dir) = (path("root-dir", ROOT), path("state-dir", STATE));
    let said = text(parsed, "listen", LISTEN);
    let listen = said.strip_prefix("unix://").unwrap_or(&said);
    if !listen.starts_with('/') {
        mistakes.push(mistake("listen", format!("{said:?}: want unix:///path/to/socket")));
    }
    // The kernel's own limit on addresses.
    if listen.len() > 107 {
        mistakes.push(mistake("listen", format!("{said:?} is longer than a socket's address may be")));
    }
    let mut address = |name: &str, default: &str| {
        let said = text(parsed, name, default);
        let read = (!said.is_empty()).then(|| said.parse::<SocketAddr>())?;
        read.inspect_err(|_| mistakes.push(mistake(name, format!("{said:?} is not an address with a port"))))
            .ok()
    };
    let stream = address("stream-bind-address", STREAM);
    let metrics = address("metrics-bind-address", "");
    let format = text(parsed, "logging-format", "text");
    if !["text", "json"].contains(&format.as_str()) {
        mistakes.push(mistake("logging-format", format!("{format:?} is neither text nor json")));
    }
    let verbosity = parsed.values.get("v").and_then(Value::as_u64).unwrap_or(0);
    let or = |name: &str, file: Option<PathBuf>| match text(parsed, name, "").as_str() {
        "" => file,
        said => Some(PathBuf::from(said)),
    };
    Loaded {
        listen: PathBuf::from(listen),
        root_dir,
        state_dir,
        cni_conf_dir: or("cni-conf-dir", config.cni_conf_dir).unwrap_or_else(|| "/etc/cni/net.d".into()),
        cni_bin_dirs: bin_dirs(parsed, config.cni_bin_dirs),
        registry_config_path: or("registry-config-path", config.registry_config_path),
        cdi_spec_dirs: config.cdi_spec_dirs.unwrap_or_else(|| CDI.map(PathBuf::from).into()),
        stream: stream.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0))),
        metrics,
        handlers: config.handlers,
        logging: Logging {
            format,
            verbosity: u32::try_from(verbosity).unwrap_or(u32::MAX),
            ..Logging::default()
        },
        not_honoured: config.not_honoured,
    }
}

fn bin_dirs(parsed: &Parsed, file: Vec<PathBuf>) -> Vec<PathBuf> {
    let said = parsed.values.get("cni-bin-dir").and_then(Value::as_array);
    let said: Vec<PathBuf> = said.into_iter().flatten().filter_map(Value::as_str).map(Into::into).collect();
    match (said.is_empty(), file.is_empty()) {
        (false, _) => said,
        (true, false) => file,
        (true, true) => vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
    }
}

fn mistake(name: &str, what: String) -> FieldError {
    FieldError::new(format!("--{name}"), what)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;

    use super::*;
    use crate::config::DirEntry;

    struct One(&'static str);

    impl ReadFiles for One {
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            Ok(self.0.as_bytes().to_vec())
        }

        fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
            Ok(vec![])
        }

        fn current_dir(&self) -> io::Result<PathBuf> {
            Ok("/".into())
        }
    }

    fn run(text: &str, file: &'static str) -> Result<Loaded, Vec<String>> {
        let args: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        match load(&args, &One(file)) {
            Ok(Outcome::Run(loaded)) => Ok(*loaded),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.0.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn flags_win_over_the_file_and_the_file_over_the_defaults() {
        let file =
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = '/c'\nbin_dirs = ['/b']\n";
        let loaded = run("--config /x --listen unix:///r.sock", file).unwrap();
        assert_eq!((loaded.cni_conf_dir, loaded.cni_bin_dirs), ("/c".into(), vec![PathBuf::from("/b")]));
        assert_eq!(loaded.listen, Path::new("/r.sock"));
        let loaded = run("--config /x --cni-conf-dir /d --cni-bin-dir /e,/f", file).unwrap();
        assert_eq!((loaded.cni_conf_dir, loaded.cni_bin_dirs.len()), ("/d".into(), 2));
        let loaded = run("", "").unwrap();
        assert_eq!(loaded.cni_conf_dir, Path::new("/etc/cni/net.d"));
        assert_eq!((loaded.metrics, loaded.stream.port()), (None, 0));
    }

    #[test]
    fn every_mistake_is_told_by_its_flag() {
        let rows = [
            ("--root-dir x", "--root-dir: \"x\" is not an absolute path"),
            ("--listen tcp://1", "--listen: \"tcp://1\": want unix:///path/to/socket"),
            ("--stream-bind-address 80", "--stream-bind-address: \"80\" is not an address with a port"),
            ("--logging-format xml", "--logging-format: \"xml\" is neither"),
        ];
        for (args, told) in rows {
            let mistakes = run(args, "").unwrap_err();
            assert!(mistakes.len() == 1 && mistakes[0].contains(told), "{args}: {mistakes:?}");
        }
        assert_eq!(run("--root-dir x --state-dir y", "").unwrap_err().len(), 2);
        let broken = run("--config /x", "version = [").unwrap_err();
        assert!(broken[0].contains("/x"), "{broken:?}");
    }
}
