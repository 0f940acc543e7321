//! From arguments and files to one effective configuration, in upstream's order of precedence:
//! defaults, the file, the drop-in directory, then the command line again on top.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use base::flags::{self, Parsed};
use serde_json::Value;

use super::fields::{self, FIELDS};
use super::flags::FLAGS;
use super::settings::{self, KubeletFlags};
use super::types::{API_VERSION, KIND, KubeletConfiguration};
use super::{defaults, validate};
use crate::config::doc::{self, Standing};
use crate::config::file::{self, Doc};
use crate::config::flag::Target;
use crate::config::gates::Gates;
use crate::config::{ConfigError, FieldError, LoadError, Outcome, ReadFiles};
use crate::yaml::{self, DuplicateKeys, YamlError};

/// A configuration that passed validation.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: KubeletConfiguration,
    pub flags: KubeletFlags,
    pub gates: Gates,
    /// Deprecated flags, unknown and repeated fields: for the log, in order found.
    pub warnings: Vec<String>,
    /// Settings the user made that this build does not act on yet, flags with their dashes.
    pub not_honoured: Vec<String>,
    /// Files in the drop-in directory that were passed over for their names.
    pub skipped: Vec<PathBuf>,
}

/// Reads everything and reports every mistake it can.
pub fn load(args: &[OsString], files: &dyn ReadFiles) -> Result<Outcome<Loaded>, LoadError> {
    let table = super::flags::table();
    let parsed = flags::parse(&table, args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::Flag).collect()))?;
    let asked = |name| parsed.values.get(name) == Some(&Value::Bool(true));
    if asked("help") {
        return Ok(Outcome::Help(help()));
    }
    if asked("version") {
        return Ok(Outcome::Version);
    }
    let mut loader = Loader::new(files, &parsed);
    let loaded = loader.run(parsed);
    match loaded {
        Some(loaded) if loader.errors.is_empty() => Ok(Outcome::Run(Box::new(loaded))),
        _ => Err(LoadError(loader.errors)),
    }
}

/// The text of `--help`.
pub fn help() -> String {
    let intro = "The kubelet runs the Pods of one machine. It is given Pods by manifest files, a manifest\n\
                 URL or the API server, and keeps their containers running through a container runtime.\n\n\
                 Usage:\n  kubelet [flags]\n\nFlags:\n";
    format!("{intro}{}", flags::render_help(&super::flags::table(), 100))
}

struct Loader<'f> {
    files: &'f dyn ReadFiles,
    errors: Vec<ConfigError>,
    warnings: Vec<String>,
    set: BTreeSet<&'static str>,
    skipped: Vec<PathBuf>,
    /// Fields that could not be read: they count as not set, so that all others are looked at too.
    spoiled: Vec<String>,
    /// Field values the command line gives, by path.
    overlay: BTreeMap<&'static str, Value>,
}

// === impl Loader ===

impl<'f> Loader<'f> {
    fn new(files: &'f dyn ReadFiles, parsed: &Parsed) -> Self {
        let mut loader = Self {
            files,
            errors: Vec::new(),
            warnings: parsed.warnings.clone(),
            set: BTreeSet::new(),
            skipped: Vec::new(),
            spoiled: Vec::new(),
            overlay: BTreeMap::new(),
        };
        for row in FLAGS {
            let (Target::Field(path), Some(value)) = (row.target, parsed.values.get(row.flag.name)) else {
                continue;
            };
            let value = match (row.flag.kind, value) {
                (flags::FlagType::Raw(_), Value::Array(texts)) => settings::expand_raw(row.flag.name, texts),
                _ => Ok(value.clone()),
            };
            match value {
                Ok(value) => {
                    loader.overlay.insert(path, value);
                }
                Err(why) => loader.fail_flag(row.flag.name, why),
            }
        }
        loader
    }

    fn run(&mut self, parsed: Parsed) -> Option<Loaded> {
        let flags = self.read_own_flags(&parsed)?;
        for error in flags.validate() {
            self.errors.push(ConfigError::Field(error));
        }
        let mut doc = if flags.config.is_empty() {
            let mut doc = defaults::legacy();
            self.apply_flags(&mut doc);
            doc
        } else {
            self.read_config(&flags.config)?
        };
        // Even if the drop-ins cannot be read, the rest is looked at.
        if !flags.config_dir.is_empty()
            && let Some(merged) = self.merge_dropins(doc.clone(), Path::new(&flags.config_dir))
        {
            doc = merged;
        }
        self.apply_flags(&mut doc);
        let mut config = match KubeletConfiguration::from_doc(doc) {
            Ok(config) => config,
            Err(e) => {
                let error = FieldError::new("configuration", e.to_string());
                self.errors.push(ConfigError::Field(error));
                return None;
            }
        };
        config.seccomp_default |= flags.seccomp_default;
        let (gates, errors) = Gates::choose(&config.feature_gates);
        let errors = errors.into_iter().chain(validate::validate(&config, &gates));
        // What could not be read was put back to its default, which may not fit what stands beside it.
        let errors = errors.filter(|e| !self.spoiled.iter().any(|s| e.concerns(s)));
        self.errors.extend(errors.map(ConfigError::Field));
        self.warn_of_parts(&parsed);
        Some(Loaded {
            not_honoured: self.not_honoured(&parsed, &gates),
            config,
            flags,
            gates,
            warnings: std::mem::take(&mut self.warnings),
            skipped: std::mem::take(&mut self.skipped),
        })
    }

    fn read_own_flags(&mut self, parsed: &Parsed) -> Option<KubeletFlags> {
        let is_own =
            |name: &str| FLAGS.iter().any(|r| r.flag.name == name && matches!(r.target, Target::Own(_)));
        let own: Doc = parsed
            .values
            .iter()
            .filter(|(name, _)| is_own(name))
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        match serde_json::from_value(Value::Object(own)) {
            Ok(flags) => Some(flags),
            Err(e) => {
                self.fail_flag("config", e.to_string());
                None
            }
        }
    }

    /// Lays the command line over a document. Gates merge by name, the flag winning; every other
    /// flag replaces the whole field, maps and lists too.
    fn apply_flags(&self, doc: &mut Doc) {
        for (path, value) in &self.overlay {
            match (*path, doc.get_mut(*path), value) {
                ("featureGates", Some(Value::Object(gates)), Value::Object(more)) => {
                    gates.extend(more.clone());
                }
                _ => doc::set(doc, path, value.clone()),
            }
        }
    }

    fn read_config(&mut self, name: &str) -> Option<Doc> {
        let path = self.absolute(name)?;
        let label = path.display().to_string();
        let bytes = self.read_file(&path)?;
        let value = file::decode_leniently(&label, &bytes, &mut self.warnings);
        let mut doc = self.expect_kind(&label, value)?;
        for field in self.check_fields(&label, &mut doc) {
            self.warnings.push(format!("{label}: unknown field {field:?} is ignored"));
        }
        file::drop_nulls(&mut doc);
        defaults::fill(&mut doc);
        resolve_paths(&mut doc, path.parent().unwrap_or(Path::new("/")));
        defaults::fill_eviction_hard(&mut doc);
        Some(doc)
    }

    fn merge_dropins(&mut self, base: Doc, dir: &Path) -> Option<Doc> {
        let dir = self.absolute(&dir.to_string_lossy())?;
        let mut names = Vec::new();
        self.walk(&dir, 0, &mut names)?;
        let mut merged = Value::Object(base);
        for path in names {
            let label = path.display().to_string();
            let Some(bytes) = self.read_file(&path) else { continue };
            let value = yaml::to_value(&bytes, DuplicateKeys::LastWins);
            let Some(mut doc) = self.expect_kind(&label, value) else { continue };
            self.check_fields(&label, &mut doc);
            doc::merge_patch(&mut merged, &Value::Object(doc));
        }
        let Value::Object(mut doc) = merged else {
            return None;
        };
        file::drop_nulls(&mut doc);
        defaults::fill(&mut doc);
        Some(doc)
    }

    /// Collects `*.conf` below a directory in lexical order, deeper files in their place.
    fn walk(&mut self, dir: &Path, depth: usize, out: &mut Vec<PathBuf>) -> Option<()> {
        const DEEPEST: usize = 32;
        let label = dir.display().to_string();
        let listed = if depth > DEEPEST {
            Err(std::io::Error::other("directories nested too deep"))
        } else {
            self.files.list(dir)
        };
        let mut entries = match listed {
            Ok(entries) => entries,
            Err(e) => {
                self.errors.push(file::unreadable(&label, &e));
                return None;
            }
        };
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                self.walk(&path, depth + 1, out)?;
            } else if entry.name.ends_with(".conf") {
                out.push(path);
            } else {
                self.skipped.push(path);
            }
        }
        Some(())
    }

    /// Both the reader's mistakes and a document's kind end the reading of that document.
    fn kept<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    fn expect_kind(&mut self, label: &str, value: Result<Value, YamlError>) -> Option<Doc> {
        let doc = file::expect_kind(label, value, API_VERSION, KIND);
        self.kept(doc)
    }

    /// Takes out of a document what is not of its field's kind, each with its error. Returns the fields nobody knows.
    fn check_fields(&mut self, label: &str, doc: &mut Doc) -> Vec<String> {
        let mut findings = doc::check(FIELDS, doc);
        self.set.append(&mut findings.set);
        let mut wrong = findings.errors;
        for field in FIELDS.iter().filter(|f| f.kind == doc::FieldType::ObjectList) {
            let Some(Value::Array(items)) = doc::get(doc, field.path) else {
                continue;
            };
            for (i, item) in items.iter().enumerate() {
                let place = format!("{}[{i}]", field.path);
                match super::types::check_object(field.path, item) {
                    Ok(unknown) => findings.unknown.extend(unknown.iter().map(|u| format!("{place}.{u}"))),
                    Err(why) => wrong.push(FieldError::new(place, why)),
                }
            }
        }
        for error in wrong {
            let field = error.path.split('[').next().unwrap_or_default().to_owned();
            doc::remove(doc, &field);
            self.spoiled.push(field);
            self.errors.push(ConfigError::InFile { path: label.to_owned(), error });
        }
        findings.unknown
    }

    /// Names the settings that are acted on only in part.
    fn warn_of_parts(&mut self, parsed: &Parsed) {
        let in_files =
            self.set.iter().filter_map(|path| Some(((*path).to_owned(), fields::find(path)?.standing)));
        let by_flag = FLAGS
            .iter()
            .filter(|row| parsed.values.contains_key(row.flag.name))
            .map(|row| (format!("--{}", row.flag.name), row.standing(FIELDS)));
        for (setting, standing) in in_files.chain(by_flag) {
            if let Standing::InPart(how) = standing {
                self.warnings.push(format!("{setting} is honoured in part: {how}"));
            }
        }
    }

    fn not_honoured(&self, parsed: &Parsed, gates: &Gates) -> Vec<String> {
        let in_files = self
            .set
            .iter()
            .filter(|path| fields::find(path).is_some_and(|f| f.standing == Standing::NotYet))
            .map(|path| (*path).to_owned());
        let by_flag = FLAGS
            .iter()
            .filter(|row| parsed.values.contains_key(row.flag.name))
            .filter(|row| row.standing(FIELDS) == Standing::NotYet)
            .map(|row| format!("--{}", row.flag.name));
        let turned = gates.unheeded().map(|name| format!("featureGates.{name}"));
        in_files.chain(by_flag).chain(turned).collect()
    }

    fn read_file(&mut self, path: &Path) -> Option<Vec<u8>> {
        let bytes = file::read(self.files, path);
        self.kept(bytes)
    }

    fn absolute(&mut self, name: &str) -> Option<PathBuf> {
        let path = file::absolute(self.files, name);
        self.kept(path)
    }

    fn fail_flag(&mut self, flag: &str, why: String) {
        let error = FieldError::new(format!("--{flag}"), why);
        self.errors.push(ConfigError::Field(error));
    }
}

/// Fields of a configuration file whose relative paths start at the file's directory.
const PATH_FIELDS: [&str; 7] = [
    "staticPodPath",
    "authentication.x509.clientCAFile",
    "tlsCertFile",
    "tlsPrivateKeyFile",
    "resolvConf",
    "volumePluginDir",
    "podLogsDir",
];

fn resolve_paths(doc: &mut Doc, dir: &Path) {
    for field in PATH_FIELDS {
        let Some(Value::String(text)) = doc::get(doc, field) else {
            continue;
        };
        if !text.is_empty() && !text.starts_with('/') {
            let path = file::clean(&dir.join(text)).to_string_lossy().into_owned();
            doc::set(doc, field, Value::from(path));
        }
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
