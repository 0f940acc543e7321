//! A CSI driver beside a cluster: the process, its switches, and what it was asked.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::harness::Harness;

/// A running driver. It dies with this; what it mounted stays, as it would on a real node.
#[derive(Debug)]
pub struct CsiDriver {
    program: PathBuf,
    dir: PathBuf,
    name: String,
    words: Vec<String>,
    process: Child,
}

/// One call that the driver was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    pub call: String,
    pub request: Value,
}

// === impl CsiDriver ===

impl CsiDriver {
    /// Starts the program of this name; see there for the words.
    #[must_use]
    pub fn start(program: &str, harness: &Harness, name: &str, words: &[&str]) -> Self {
        let dir = harness.node.dir().join(format!("csi-{name}"));
        fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("make {}: {e}", dir.display()));
        let registry = harness.agent.root().join("plugins_registry");
        fs::create_dir_all(&registry).unwrap_or_else(|e| panic!("make {}: {e}", registry.display()));
        let mut words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
        words.push(format!("registry={}", registry.display()));
        let program = PathBuf::from(program);
        let process = spawn(harness, &program, &dir, name, &words);
        Self { program, dir, name: name.to_owned(), words, process }
    }

    /// What it was asked so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        let text = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        let parse = |line: &str| {
            let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            Call {
                call: value["call"].as_str().unwrap_or_default().to_owned(),
                request: value["request"].clone(),
            }
        };
        // The driver may be in the middle of a line.
        text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(parse).collect()
    }

    /// The requests of one kind.
    #[must_use]
    pub fn asked(&self, call: &str) -> Vec<Value> {
        self.calls().into_iter().filter(|c| c.call == call).map(|c| c.request).collect()
    }

    /// From now on the call does not come back.
    pub fn hang(&self, call: &str) {
        self.switch(&format!("hang-{call}"), "");
    }

    /// From now on the call fails with this gRPC code.
    pub fn fail(&self, call: &str, code: i32) {
        self.switch(&format!("fail-{call}"), &code.to_string());
    }

    /// The call works again.
    pub fn heal(&self, call: &str) {
        for kind in ["hang", "fail"] {
            let _ = fs::remove_file(self.dir.join(format!("{kind}-{call}")));
        }
    }

    /// From now on the node can have so many volumes.
    pub fn set_max(&self, volumes: u32) {
        self.switch("max", &volumes.to_string());
    }

    /// From now on it says that it is called otherwise.
    pub fn call_itself(&self, name: &str) {
        self.switch("name", name);
    }

    /// Where it keeps what is in a volume.
    #[must_use]
    pub fn volume(&self, handle: &str) -> PathBuf {
        self.dir.join("volumes").join(handle)
    }

    /// Dies, and its sockets stay behind as a crash leaves them.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Goes in good order: its registration socket goes too.
    pub fn stop(&mut self) {
        self.kill();
        let registry = self.words.iter().find_map(|w| w.strip_prefix("registry=")).unwrap_or_default();
        let _ = fs::remove_file(Path::new(registry).join(format!("{}-reg.sock", self.name)));
    }

    /// Comes back.
    pub fn restart(&mut self, harness: &Harness) {
        self.kill();
        self.process = spawn(harness, &self.program, &self.dir, &self.name, &self.words);
    }

    fn switch(&self, name: &str, text: &str) {
        // In one step: the driver may be looking.
        let (path, next) = (self.dir.join(name), self.dir.join(format!(".{name}")));
        let written = fs::write(&next, text).and_then(|()| fs::rename(&next, &path));
        written.unwrap_or_else(|e| panic!("write {}: {e}", path.display()));
    }
}

impl Drop for CsiDriver {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(harness: &Harness, program: &Path, dir: &Path, name: &str, words: &[String]) -> Child {
    let mut command = harness.node.command(program);
    command.arg(dir).arg(name).args(words).stdin(Stdio::null());
    command.spawn().unwrap_or_else(|e| panic!("run {}: {e}", program.display()))
}
