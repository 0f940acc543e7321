//! Pod networks by CNI plugins: the programs that the machine has, called as the contract says.
//!
//! What an ADD answered is kept where libcni keeps it, in its form, so that a Pod that one runtime attached another can detach.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

pub use runtime_core::cni::Call;
use runtime_core::cni::{self, Attached, Attachment, CniError, Network, Verb};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

/// For one plugin to answer. Address services elsewhere on the network are in this.
const TIMEOUT: Duration = Duration::from_secs(120);
/// What a plugin may print.
const OUTPUT_MAX: u64 = 1 << 20;
const CONFIG_MAX: u64 = 1 << 20;

/// Where networks are configured, their programs lie, and results are kept.
#[derive(Clone, Debug)]
pub struct Networks {
    pub conf_dir: PathBuf,
    pub bin_dirs: Vec<PathBuf>,
    pub cache_dir: PathBuf,
    /// Plugins that need no program. One of a plugin directory that is not this program itself goes before.
    pub built_in: Option<Arc<dyn BuiltIn>>,
}

/// Plugins that are called as the contract says, in this process. A call blocks.
pub trait BuiltIn: fmt::Debug + Send + Sync {
    fn has(&self, plugin: &str) -> bool;
    /// Whether it did what it was told, and what it would have printed.
    fn call(&self, call: &Call) -> (bool, Vec<u8>);
}

/// How a plugin is called.
enum Way {
    Program(PathBuf),
    Here(Arc<dyn BuiltIn>),
}

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error("no network config found in {}", .0.display())]
    None(PathBuf),
    #[error("{what} {}: {cause}", path.display())]
    Path { what: &'static str, path: PathBuf, cause: io::Error },
    #[error("network config {}: {cause}", path.display())]
    Config { path: PathBuf, cause: CniError },
    #[error("network plugin {0} is in none of the plugin directories")]
    Missing(String),
    #[error("running network plugin {0}: {1}")]
    Run(String, io::Error),
    #[error("network plugin {0} did not answer in time")]
    Late(String),
    #[error(transparent)]
    Cni(#[from] CniError),
}

impl Networks {
    /// The first by name that is a network, as with every runtime.
    pub fn load(&self) -> Result<(Network, Value), NetworkError> {
        let error = |what, path: &Path| {
            let path = path.to_owned();
            move |cause| NetworkError::Path { what, path, cause }
        };
        let none = || NetworkError::None(self.conf_dir.clone());
        let entries = match std::fs::read_dir(&self.conf_dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(none()),
            other => other.map_err(error("reading", &self.conf_dir))?,
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.retain(|path| path.extension().is_some_and(|e| e == "conf" || e == "conflist" || e == "json"));
        paths.sort();
        let path = paths.first().ok_or_else(none)?;
        let text = read_config(path).map_err(error("reading", path))?;
        let more = |name: &str| directory(&self.conf_dir.join(name));
        let network = cni::network_with(&text, &more)
            .map_err(|cause| NetworkError::Config { path: path.clone(), cause })?;
        Ok((network, Value::String(text)))
    }

    /// Attaches. When a plugin fails, those that had their turn and it itself are told to undo it.
    pub async fn add(
        &self,
        network: &Network,
        config: &Value,
        to: &Attachment,
    ) -> Result<Attached, NetworkError> {
        match self.chain(network, Verb::Add, to, None).await {
            Ok((plugin, result)) => {
                let attached = cni::attached(&plugin, result.unwrap_or_else(|| json!({})))?;
                self.keep(network, config, to, &attached.result)?;
                Ok(attached)
            }
            Err(error) => {
                if let Err(second) = self.chain(network, Verb::Del, to, None).await {
                    tracing::warn!(error = %second, container = to.container, "undoing half of a Pod's network");
                }
                Err(error)
            }
        }
    }

    /// Detaches, with what was kept of the attaching if there is any. Idempotent.
    pub async fn del(&self, network: &Network, to: &Attachment) -> Result<(), NetworkError> {
        let path = self.kept(network, to);
        let kept =
            tokio::fs::read(&path).await.ok().and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let before = kept.and_then(|mut kept| kept.get_mut("result").map(Value::take));
        self.chain(network, Verb::Del, to, before).await?;
        match tokio::fs::remove_file(&path).await {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(NetworkError::Path { what: "removing", path, cause: e })
            }
            _ => Ok(()),
        }
    }

    /// Attachments that are kept for what is not there any more: of a boot before this one, for instance. They still hold
    /// addresses.
    pub fn leftovers(&self, is_known: impl Fn(&str) -> bool) -> Vec<(PathBuf, Network, Attachment)> {
        let entries = std::fs::read_dir(&self.cache_dir).into_iter().flatten().flatten();
        let kept = entries.filter_map(|entry| Some((entry.path(), read_kept(&entry.path())?)));
        let left = kept.filter(|(_, (_, attachment))| !is_known(&attachment.container));
        left.map(|(path, (network, attachment))| (path, network, attachment)).collect()
    }

    /// Whether one more could be attached. A network whose contract does not have the question is ready when its plugins are
    /// there.
    pub async fn status(&self, network: &Network) -> Result<(), NetworkError> {
        for at in network.order(Verb::Status) {
            let way = self.way(network.program(at)).await?;
            if network.has_status() {
                let call = network.ask(at, Verb::Status, &[], &self.path());
                self.one(&way, &call).await?;
            }
        }
        Ok(())
    }

    /// Frees what plugins hold for attachments that are not among those that live. Nothing may be attached or detached
    /// meanwhile. Each plugin has its turn, whatever becomes of the others; the first failure is told.
    pub async fn collect(&self, network: &Network, valid: &[(String, String)]) -> Result<(), NetworkError> {
        if network.is_gc_disabled || !network.has_status() {
            return Ok(());
        }
        let mut first = Ok(());
        for at in network.order(Verb::Gc) {
            let call = network.ask(at, Verb::Gc, valid, &self.path());
            let done = match self.way(&call.program).await {
                Ok(way) => self.one(&way, &call).await.map(drop),
                Err(error) => Err(error),
            };
            first = first.and(done);
        }
        first
    }

    fn path(&self) -> String {
        self.bin_dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":")
    }

    async fn way(&self, name: &str) -> Result<Way, NetworkError> {
        let built_in = self.built_in.clone().filter(|built_in| built_in.has(name));
        let paths: Vec<PathBuf> = self.bin_dirs.iter().map(|dir| dir.join(name)).collect();
        let found = tokio::task::spawn_blocking(move || {
            let path = paths.into_iter().find(|path| path.is_file())?;
            let this = std::fs::canonicalize("/proc/self/exe").ok();
            let is_this = this.is_some() && std::fs::canonicalize(&path).ok() == this;
            Some((path, is_this))
        });
        match (found.await.ok().flatten(), built_in) {
            (Some((path, false)), _) | (Some((path, true)), None) => Ok(Way::Program(path)),
            (_, Some(built_in)) => Ok(Way::Here(built_in)),
            (None, None) => Err(NetworkError::Missing(name.to_owned())),
        }
    }

    async fn one(&self, way: &Way, call: &cni::Call) -> Result<Option<Value>, NetworkError> {
        let late = || NetworkError::Late(call.program.clone());
        let failed = |error| NetworkError::Run(call.program.clone(), error);
        let (is_success, output, errors) = match way {
            Way::Program(path) => {
                tokio::time::timeout(TIMEOUT, run(path, call)).await.map_err(|_| late())?.map_err(failed)?
            }
            Way::Here(built_in) => {
                let (built_in, call) = (built_in.clone(), call.clone());
                let called = tokio::task::spawn_blocking(move || built_in.call(&call));
                let called = tokio::time::timeout(TIMEOUT, called).await.map_err(|_| late())?;
                let (is_success, output) = called.map_err(|e| failed(io::Error::other(e)))?;
                (is_success, output, vec![])
            }
        };
        Ok(cni::answer(&call.program, is_success, &output, &errors)?)
    }

    /// The name of the last plugin and what it answered.
    async fn chain(
        &self,
        network: &Network,
        verb: Verb,
        to: &Attachment,
        before: Option<Value>,
    ) -> Result<(String, Option<Value>), NetworkError> {
        let (mut result, mut last) = (before, String::new());
        for at in network.order(verb) {
            last = network.program(at).to_owned();
            let call = network.call(at, verb, to, result.as_ref(), &self.path());
            let way = self.way(&call.program).await?;
            let said = self.one(&way, &call).await?;
            // A deletion hands every plugin the final result of the attaching.
            if verb == Verb::Add {
                result = said.or(result);
            }
        }
        Ok((last, result))
    }

    fn kept(&self, network: &Network, to: &Attachment) -> PathBuf {
        self.cache_dir.join(format!("{}-{}-{}", network.name, to.container, to.interface))
    }

    fn keep(
        &self,
        network: &Network,
        config: &Value,
        to: &Attachment,
        result: &Value,
    ) -> Result<(), NetworkError> {
        let text = config.as_str().unwrap_or_default();
        let entry = json!({
            "kind": "cniCacheV1",
            "containerId": to.container,
            "config": base64(text.as_bytes()),
            "ifName": to.interface,
            "networkName": network.name,
            "netns": to.namespace,
            "cniArgs": to.arguments.iter().map(|(k, v)| json!([k, v])).collect::<Vec<_>>(),
            "capabilityArgs": to.capabilities,
            "result": result,
        });
        let path = self.kept(network, to);
        let write = || {
            std::fs::create_dir_all(&self.cache_dir)?;
            let aside = path.with_extension("new");
            std::fs::write(&aside, entry.to_string())?;
            std::fs::rename(&aside, &path)
        };
        write().map_err(|cause| NetworkError::Path { what: "keeping", path: path.clone(), cause })
    }
}

/// How it ended, what it printed, and its complaints. Who stops waiting ends it, and whatever it started.
async fn run(program: &Path, call: &cni::Call) -> io::Result<(bool, Vec<u8>, Vec<u8>)> {
    let mut command = Command::new(program);
    command.env_clear().envs(call.environment.iter().map(|(name, value)| (name, value)));
    // Plugins call iptables and their like.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // It and its children are a group, to be ended as one.
    command.process_group(0);
    let mut child = command.spawn()?;
    let mut group = Group(child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)));
    let Child { stdin, stdout, stderr, .. } = &mut child;
    let (mut stdin, stdout, stderr) = (stdin.take(), stdout.take(), stderr.take());
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let write = async {
        if let Some(mut stdin) = stdin.take() {
            // One that does not read its input may still answer.
            let _ = stdin.write_all(call.input.as_bytes()).await;
        }
    };
    let read = async {
        match stdout {
            Some(from) => from.take(OUTPUT_MAX).read_to_end(&mut output).await.map(drop),
            None => Ok(()),
        }
    };
    let complain = async {
        match stderr {
            Some(from) => from.take(OUTPUT_MAX).read_to_end(&mut errors).await.map(drop),
            None => Ok(()),
        }
    };
    let ((), read, complain) = tokio::join!(write, read, complain);
    read.and(complain)?;
    let status = child.wait().await?;
    // What it left running has its leave: some plugins start a daemon.
    group.0 = None;
    Ok((status.success(), output, errors))
}

/// A plugin with its children, killed when nobody waits for it any more.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

fn read_config(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    io::Read::read_to_string(&mut io::Read::take(file, CONFIG_MAX), &mut text)?;
    Ok(text)
}

/// The files of plugins of a network, by name; none where there is no such directory.
fn directory(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "conf"));
    paths.sort();
    paths.iter().filter_map(|path| read_config(path).ok()).collect()
}

fn read_kept(path: &Path) -> Option<(Network, Attachment)> {
    let entry: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    let text = |key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let config = unbase64(&text("config")?)?;
    let pair = |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
    let arguments = entry.get("cniArgs").and_then(Value::as_array).into_iter().flatten().filter_map(pair);
    let attachment = Attachment {
        container: text("containerId")?,
        // It went with its Pod.
        namespace: None,
        interface: text("ifName")?,
        arguments: arguments.collect(),
        capabilities: entry.get("capabilityArgs").and_then(Value::as_object).cloned().unwrap_or_default(),
    };
    Some((cni::network(&config).ok()?, attachment))
}

fn unbase64(text: &str) -> Option<String> {
    use base64::Engine;
    String::from_utf8(base64::engine::general_purpose::STANDARD.decode(text).ok()?).ok()
}

/// Go writes bytes so.
fn base64(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}
