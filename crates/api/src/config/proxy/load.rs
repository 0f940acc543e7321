//! From arguments and a file to one effective configuration.
//!
//! Unlike the kubelet's, a file replaces the flags: only the host name and the log are still taken from the command
//! line.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use base::duration::GoDuration;
use base::flags::{self, Parsed};
use serde_json::Value;

use super::fields::FIELDS;
use super::flags::{ALSO, FLAGS, NEVER_ZERO, survives_file};
use super::types::{API_VERSION, KIND, KubeProxyConfiguration, Mode, ProxyFlags};
use super::{defaults, validate};
use crate::config::doc::{self, Standing};
use crate::config::file::{self, Doc};
use crate::config::flag::{FlagRow, Target};
use crate::config::gates::Gates;
use crate::config::logging::read_vmodule;
use crate::config::{ConfigError, FieldError, LoadError, Outcome, ReadFiles, VModule};

/// A configuration that passed validation.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: KubeProxyConfiguration,
    pub flags: ProxyFlags,
    pub gates: Gates,
    /// The configuration file, whose change ends the process.
    pub file: Option<PathBuf>,
    /// Deprecated and overruled flags, unknown and repeated fields: for the log, in order found.
    pub warnings: Vec<String>,
    /// Settings the user made that this build does not act on yet, flags with their dashes.
    pub not_honoured: Vec<String>,
    /// Every flag and its value, as a page for people shows them.
    pub flag_values: BTreeMap<&'static str, String>,
    /// The modes whose minSyncPeriod somebody set.
    paced: Vec<Mode>,
}

/// Reads everything and reports every mistake it can.
pub fn load(args: &[OsString], files: &dyn ReadFiles) -> Result<Outcome<Loaded>, LoadError> {
    let parsed = flags::parse(&super::flags::table(), args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::Flag).collect()))?;
    let asked = |name| parsed.values.get(name) == Some(&Value::Bool(true));
    if asked("help") {
        return Ok(Outcome::Help(help()));
    }
    if asked("version") {
        return Ok(Outcome::Version);
    }
    let mut loader =
        Loader { files, errors: Vec::new(), warnings: parsed.warnings.clone(), said: Vec::new() };
    match loader.run(&parsed) {
        Some(loaded) if loader.errors.is_empty() => Ok(Outcome::Run(Box::new(loaded))),
        _ => Err(LoadError(loader.errors)),
    }
}

/// The text of `--help`.
pub fn help() -> String {
    let intro = "kube-proxy makes the Services of a cluster work on one machine: it watches Services and\n\
                 EndpointSlices and keeps the kernel's rules for them.\n\n\
                 Usage:\n  kube-proxy [flags]\n\nFlags:\n";
    format!("{intro}{}", flags::render_help(&super::flags::table(), 100))
}

// === impl Loaded ===

impl Loaded {
    /// Whether the least time between two changes was asked for, or is the default.
    pub fn says_min_sync_period(&self, mode: Mode) -> bool {
        self.paced.contains(&mode)
    }
}

struct Loader<'f> {
    files: &'f dyn ReadFiles,
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
    /// Settings the user made and we do not act on.
    said: Vec<String>,
}

// === impl Loader ===

impl Loader<'_> {
    fn run(&mut self, parsed: &Parsed) -> Option<Loaded> {
        let flags = self.read_own_flags(parsed)?;
        let overlay = self.read_overlay(parsed, !flags.config.is_empty());
        let (mut doc, file) = if flags.config.is_empty() {
            (Doc::new(), None)
        } else {
            let path = file::absolute(self.files, &flags.config);
            let path = self.kept(path)?;
            (self.read_config(&path)?, Some(path))
        };
        lay_over(&mut doc, overlay);
        let paced =
            Mode::ALL.into_iter().filter(|mode| defaults::says_min_sync_period(&doc, *mode)).collect();
        defaults::fill(&mut doc);
        if file.is_none() && flags.write_config_to.is_empty() {
            apply_ports(&mut doc, &flags);
        }
        if doc
            .get("hostnameOverride")
            .and_then(Value::as_str)
            .is_some_and(|n| !n.is_empty() && n.trim().is_empty())
        {
            self.fail("hostnameOverride", "must not be blank".into());
        }
        let config = KubeProxyConfiguration::from_doc(doc).map_err(|e| {
            let error = FieldError::new("configuration", e.to_string());
            ConfigError::Field(error)
        });
        let config = self.kept(config)?;
        let (gates, errors) = Gates::choose(&config.feature_gates);
        let errors = errors.into_iter().chain(validate::validate(&config, &gates));
        self.errors.extend(errors.map(ConfigError::Field));
        self.said.extend(gates.unheeded_by_proxy().map(|name| format!("featureGates.{name}")));
        Some(Loaded {
            config,
            flags,
            gates,
            file,
            warnings: std::mem::take(&mut self.warnings),
            not_honoured: std::mem::take(&mut self.said),
            flag_values: flag_values(parsed),
            paced,
        })
    }

    fn read_own_flags(&mut self, parsed: &Parsed) -> Option<ProxyFlags> {
        let own = FLAGS.iter().filter(|row| matches!(row.target, Target::Own(_)));
        let pairs = own.filter_map(|row| {
            let value = parsed.values.get(row.flag.name)?;
            Some((row.flag.name.to_owned(), value.clone()))
        });
        let flags = serde_json::from_value(Value::Object(pairs.collect()))
            .map_err(|e| ConfigError::Field(FieldError::new("flags", e.to_string())));
        self.kept(flags)
    }

    /// What the command line says of fields, by path.
    fn read_overlay(&mut self, parsed: &Parsed, has_file: bool) -> BTreeMap<&'static str, Value> {
        let mut overlay = BTreeMap::new();
        for row in FLAGS {
            let Some(value) = parsed.values.get(row.flag.name) else { continue };
            if has_file && !survives_file(row) {
                self.warnings.push(format!("--{} is overruled by the file of --config", row.flag.name));
                continue;
            }
            if row.standing(FIELDS) == Standing::NotYet {
                self.said.push(format!("--{}", row.flag.name));
            }
            let Target::Field(path) = row.target else { continue };
            if NEVER_ZERO.contains(&row.flag.name) && is_zero(value) {
                self.fail(&format!("--{}", row.flag.name), "must be greater than 0".into());
            }
            let value = match (row.flag.kind, value) {
                (flags::FlagType::Raw(_), Value::Array(texts)) => {
                    match read_vmodule(texts.iter().filter_map(Value::as_str)) {
                        Ok(value) => value,
                        Err(why) => {
                            self.fail(&format!("--{}", row.flag.name), why);
                            continue;
                        }
                    }
                }
                _ => value.clone(),
            };
            for (_, path) in ALSO.iter().filter(|(flag, _)| *flag == row.flag.name) {
                overlay.insert(*path, value.clone());
            }
            overlay.insert(path, value);
        }
        overlay
    }

    fn read_config(&mut self, path: &std::path::Path) -> Option<Doc> {
        let label = path.display().to_string();
        let bytes = file::read(self.files, path);
        let bytes = self.kept(bytes)?;
        let value = file::decode_leniently(&label, &bytes, &mut self.warnings);
        let doc = file::expect_kind(&label, value, API_VERSION, KIND);
        let mut doc = self.kept(doc)?;
        let findings = doc::check(FIELDS, &doc);
        for field in &findings.unknown {
            self.warnings.push(format!("{label}: unknown field {field:?} is ignored"));
        }
        let is_not_yet =
            |path: &&&str| FIELDS.iter().any(|f| f.path == **path && f.standing == Standing::NotYet);
        self.said.extend(findings.set.iter().filter(is_not_yet).map(|path| (*path).to_owned()));
        let before = self.errors.len();
        let in_file = |error| ConfigError::InFile { path: label.clone(), error };
        self.errors.extend(findings.errors.into_iter().map(in_file));
        if let Some(Value::Array(items)) = doc::get(&doc, "logging.vmodule") {
            for (i, item) in items.iter().enumerate() {
                if let Err(e) = serde_json::from_value::<VModule>(item.clone()) {
                    let error = FieldError::new(format!("logging.vmodule[{i}]"), e.to_string());
                    self.errors.push(ConfigError::InFile { path: label.clone(), error });
                }
            }
        }
        file::drop_nulls(&mut doc);
        (self.errors.len() == before).then_some(doc)
    }

    fn kept<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    fn fail(&mut self, path: &str, why: String) {
        self.errors.push(ConfigError::Field(FieldError::new(path, why)));
    }
}

fn is_zero(value: &Value) -> bool {
    serde_json::from_value::<GoDuration>(value.clone()).is_ok_and(|duration| duration == GoDuration::ZERO)
}

/// What was said, or else the default.
fn flag_values(parsed: &Parsed) -> BTreeMap<&'static str, String> {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
                .collect();
            format!("[{}]", items.join(","))
        }
        Value::Object(map) => map.iter().map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    let unsaid = |row: &FlagRow| match (row.flag.kind, row.flag.default) {
        (flags::FlagType::List, "") => "[]".to_owned(),
        (_, default) => default.to_owned(),
    };
    let value = |row: &FlagRow| parsed.values.get(row.flag.name).map_or_else(|| unsaid(row), text);
    FLAGS.iter().map(|row| (row.flag.name, value(row))).collect()
}

/// Patterns of both count, the command line's first.
fn lay_over(doc: &mut Doc, overlay: BTreeMap<&'static str, Value>) {
    for (path, value) in overlay {
        let value = match (path, value, doc::get(doc, path)) {
            ("logging.vmodule", Value::Array(mut first), Some(Value::Array(then))) => {
                first.extend(then.iter().cloned());
                Value::Array(first)
            }
            (_, value, _) => value,
        };
        doc::set(doc, path, value);
    }
}

/// The old port flags: zero turns a server off, anything else is the port of an address without one.
fn apply_ports(doc: &mut Doc, flags: &ProxyFlags) {
    let ports = [("healthzBindAddress", flags.healthz_port), ("metricsBindAddress", flags.metrics_port)];
    for (path, port) in ports {
        let Some(port) = port else { continue };
        let said = doc::get(doc, path).and_then(Value::as_str).unwrap_or_default();
        let default_port =
            if path.starts_with('h') { defaults::HEALTHZ_PORT } else { defaults::METRICS_PORT };
        let address = match (port, said.strip_suffix(&format!(":{default_port}"))) {
            (0, _) => String::new(),
            (port, Some(host)) => format!("{host}:{port}"),
            (_, None) => said.to_owned(),
        };
        doc::set(doc, path, Value::from(address));
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
