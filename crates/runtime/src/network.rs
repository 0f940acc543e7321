//! Pod networks by CNI plugins: the programs that the machine has, called as the contract says.
//!
//! What an ADD answered is kept where libcni keeps it, in its form, so that a Pod that one runtime attached another can detach.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use runtime_core::cni::{self, Attached, Attachment, CniError, Network, Verb};
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
        let mut text = String::new();
        let file = std::fs::File::open(path).map_err(error("opening", path))?;
        io::Read::read_to_string(&mut io::Read::take(file, CONFIG_MAX), &mut text)
            .map_err(error("reading", path))?;
        let network =
            cni::network(&text).map_err(|cause| NetworkError::Config { path: path.clone(), cause })?;
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

    fn program(&self, name: &str) -> Option<PathBuf> {
        self.bin_dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file())
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
            let path =
                self.bin_dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(":");
            let call = network.call(at, verb, to, result.as_ref(), &path);
            let program =
                self.program(&call.program).ok_or_else(|| NetworkError::Missing(call.program.clone()))?;
            let answer = tokio::time::timeout(TIMEOUT, run(&program, &call))
                .await
                .map_err(|_| NetworkError::Late(call.program.clone()))?
                .map_err(|error| NetworkError::Run(call.program.clone(), error))?;
            let (is_success, output, errors) = answer;
            let said = cni::answer(&call.program, is_success, &output, &errors)?;
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

/// How it ended, what it printed, and its complaints. Who stops waiting ends it.
async fn run(program: &Path, call: &cni::Call) -> io::Result<(bool, Vec<u8>, Vec<u8>)> {
    let mut command = Command::new(program);
    command.env_clear().envs(call.environment.iter().map(|(name, value)| (name, value)));
    // Plugins call iptables and their like.
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
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
    Ok((child.wait().await?.success(), output, errors))
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
