//! What every plugin is told: verb, attachment and configuration.

use serde_json::{Map, Value};

use crate::error::{CniError, Code};
use crate::fields::Fields;
use crate::success::{Dns, Success};
use crate::version::{OLDEST, VERSIONS, is_at_least};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

/// The environment of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub command: String,
    pub container: String,
    pub namespace: String,
    pub interface: String,
    pub arguments: String,
    pub path: String,
}

/// Who has something on a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentId {
    pub container: String,
    pub interface: String,
}

#[derive(Clone, Debug)]
pub struct Request {
    pub verb: Verb,
    pub attachment: AttachmentId,
    /// Empty where it is not told or gone.
    pub namespace: String,
    pub arguments: Vec<(String, String)>,
    /// Where plugins are that ours delegate to.
    pub path: String,
    /// Of the contract, as the configuration asks for it.
    pub version: String,
    /// The network's name.
    pub network: String,
    pub config: Map<String, Value>,
}

// === impl Verb ===

impl Verb {
    pub fn parse(word: &str) -> Result<Self, CniError> {
        Ok(match word {
            "ADD" => Verb::Add,
            "DEL" => Verb::Del,
            "CHECK" => Verb::Check,
            "STATUS" => Verb::Status,
            "GC" => Verb::Gc,
            "VERSION" => Verb::Version,
            other => return Err(environment("CNI_COMMAND", format!("{other:?} is no command"))),
        })
    }

    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Status => "STATUS",
            Verb::Gc => "GC",
            Verb::Version => "VERSION",
        }
    }

    fn is_of_attachment(self) -> bool {
        matches!(self, Verb::Add | Verb::Del | Verb::Check)
    }

    /// The first version of the contract that has it.
    fn since(self) -> &'static str {
        match self {
            Verb::Check => "0.4.0",
            Verb::Status | Verb::Gc => "1.1.0",
            Verb::Add | Verb::Del | Verb::Version => OLDEST,
        }
    }
}

fn environment(name: &str, why: impl std::fmt::Display) -> CniError {
    CniError::new(Code::Environment, format!("{name}: {why}"))
}

// === impl Request ===

impl Request {
    pub fn new(environment: &Environment, config: Map<String, Value>) -> Result<Self, CniError> {
        let verb = Verb::parse(&environment.command)?;
        let fields = Fields::new(&config);
        let version = version(&fields)?;
        let network = fields.text("name")?.unwrap_or_default().to_owned();
        if verb != Verb::Version {
            check_network(&network)?;
        }
        if !is_at_least(&version, verb.since()) {
            let why = format!("cniVersion: {version} has no {}", verb.word());
            return Err(CniError::new(Code::Version, why));
        }
        check_environment(verb, environment)?;
        Ok(Self {
            verb,
            attachment: AttachmentId {
                container: environment.container.clone(),
                interface: environment.interface.clone(),
            },
            namespace: environment.namespace.clone(),
            arguments: arguments(&environment.arguments)?,
            path: environment.path.clone(),
            version,
            network,
            config,
        })
    }

    #[must_use]
    pub fn fields(&self) -> Fields<'_> {
        Fields::new(&self.config)
    }

    #[must_use]
    pub fn argument(&self, key: &str) -> Option<&str> {
        let found = self.arguments.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    /// What the plugins before this one answered.
    pub fn previous(&self) -> Result<Option<Success>, CniError> {
        let before = self.fields().fields("prevResult")?;
        before.map(|before| Success::read(&before)).transpose()
    }

    /// The same, where there must be plugins before.
    pub fn required_previous(&self) -> Result<Success, CniError> {
        self.previous()?.ok_or_else(|| {
            CniError::field("prevResult", "it is missing: this plugin works on what one before it made")
        })
    }

    /// The plugin that gives addresses.
    pub fn ipam(&self) -> Result<Option<&str>, CniError> {
        let Some(ipam) = self.fields().fields("ipam")? else { return Ok(None) };
        Ok(ipam.text("type")?.filter(|kind| !kind.is_empty()))
    }

    pub fn dns(&self) -> Result<Dns, CniError> {
        self.fields().fields("dns")?.map_or(Ok(Dns::default()), |dns| Dns::read(&dns))
    }

    /// What the caller was asked for: `runtimeConfig`.
    pub fn runtime(&self) -> Result<Option<Fields<'_>>, CniError> {
        self.fields().fields("runtimeConfig")
    }

    /// `args.cni`.
    pub fn conventional(&self) -> Result<Option<Fields<'_>>, CniError> {
        match self.fields().fields("args")? {
            Some(args) => args.fields("cni"),
            None => Ok(None),
        }
    }

    /// Who may keep what they have, when garbage is collected.
    pub fn valid_attachments(&self) -> Result<Vec<AttachmentId>, CniError> {
        let listed = self.fields().objects("cni.dev/valid-attachments")?;
        let read = |one: Fields<'_>| {
            let word = |key: &str| {
                let text = one.text(key)?.filter(|text| !text.is_empty());
                text.map(str::to_owned).ok_or_else(|| CniError::field(&one.path(key), "it is missing"))
            };
            Ok(AttachmentId { container: word("containerID")?, interface: word("ifname")? })
        };
        listed.into_iter().map(read).collect()
    }

    /// In the version that was asked for.
    #[must_use]
    pub fn answer(&self, success: &Success) -> Value {
        success.to_json(&self.version)
    }
}

/// The version of a configuration, which must be one that we speak.
pub fn version(fields: &Fields<'_>) -> Result<String, CniError> {
    let version = fields.text("cniVersion")?.filter(|text| !text.is_empty()).unwrap_or(OLDEST);
    match VERSIONS.contains(&version) {
        true => Ok(version.to_owned()),
        false => Err(CniError::new(
            Code::Version,
            format!("cniVersion: {version:?} is none of {}", VERSIONS.join(", ")),
        )),
    }
}

/// It becomes a directory's name.
fn check_network(name: &str) -> Result<(), CniError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let is_good = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain);
    match is_good && name.len() <= 200 {
        true => Ok(()),
        false => Err(CniError::field("name", format!("{name:?} is not the name of a network"))),
    }
}

fn check_environment(verb: Verb, told: &Environment) -> Result<(), CniError> {
    if !verb.is_of_attachment() {
        return Ok(());
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let container = &told.container;
    let is_good = container.starts_with(|c: char| c.is_ascii_alphanumeric())
        && container.chars().all(is_plain)
        && container.len() <= 200;
    if !is_good {
        return Err(environment("CNI_CONTAINERID", format!("{container:?} is not the id of a container")));
    }
    if told.namespace.is_empty() && verb != Verb::Del {
        return Err(environment("CNI_NETNS", "it is missing"));
    }
    check_interface(&told.interface).map_err(|why| environment("CNI_IFNAME", why))
}

/// What the kernel takes for a device's name.
pub fn check_interface(name: &str) -> Result<(), String> {
    let is_bad = name.is_empty()
        || name.len() > 15
        || matches!(name, "." | "..")
        || name.chars().any(|c| c.is_whitespace() || matches!(c, '/' | ':') || c.is_control());
    if is_bad { Err(format!("{name:?} cannot be the name of a device")) } else { Ok(()) }
}

fn arguments(text: &str) -> Result<Vec<(String, String)>, CniError> {
    let pairs = text.split(';').filter(|pair| !pair.is_empty());
    let read = |pair: &str| match pair.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(environment("CNI_ARGS", format!("{pair:?} is not KEY=VALUE"))),
    };
    pairs.map(read).collect()
}
