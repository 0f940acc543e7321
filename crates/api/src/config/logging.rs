//! How every agent writes its own log: the settings, their flag's syntax, and what they may not say.

use base::duration::GoDuration;
use base::quantity::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::check::Check;
use super::gates::Gates;

/// How the agent writes its own log.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Logging {
    pub format: String,
    #[serde(deserialize_with = "duration_or_nanos")]
    pub flush_frequency: GoDuration,
    pub verbosity: u32,
    pub vmodule: Vec<VModule>,
    pub options: LoggingOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LoggingOptions {
    pub text: OutputRouting,
    pub json: OutputRouting,
}

/// Where one log format writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputRouting {
    pub split_stream: bool,
    pub info_buffer_size: Quantity,
}

/// A verbosity for the source files a pattern names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VModule {
    pub file_pattern: String,
    pub verbosity: u32,
}

pub(super) fn check(log: &Logging, gates: &Gates, check: &mut Check) {
    check.one_of("logging.format", &log.format, &["text", "json"]);
    check.range("logging.verbosity", log.verbosity, 0, i32::MAX as u32);
    if log.flush_frequency.is_negative() {
        let text = format!("{} must not be negative", log.flush_frequency);
        check.fail("logging.flushFrequency", text);
    }
    if !log.vmodule.is_empty() && log.format != "text" {
        check.fail("logging.vmodule", "works with the text format only");
    }
    for (i, item) in log.vmodule.iter().enumerate() {
        let path = format!("logging.vmodule[{i}]");
        if item.file_pattern.is_empty() || item.file_pattern.contains(['=', ',']) {
            check.fail(&path, "filePattern must not be empty or contain '=' or ','");
        }
        check.range(&path, item.verbosity, 0, i32::MAX as u32);
    }
    if gates.enabled("LoggingAlphaOptions") {
        return;
    }
    for (format, options) in [("text", &log.options.text), ("json", &log.options.json)] {
        let text = "needs feature gate LoggingAlphaOptions";
        if options.split_stream {
            check.fail(&format!("logging.options.{format}.splitStream"), text);
        }
        if !options.info_buffer_size.is_zero() {
            check.fail(&format!("logging.options.{format}.infoBufferSize"), text);
        }
    }
}

/// `pattern=N,…`
pub(super) fn read_vmodule<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Value, String> {
    let text = texts.last().unwrap_or_default();
    let pairs = text.split(',').filter(|p| !p.is_empty());
    let read = |pair: &str| {
        let malformed = || format!("malformed pair {pair:?}, expected pattern=N");
        let (pattern, level) = pair.split_once('=').ok_or_else(malformed)?;
        let level: u32 = level.parse().map_err(|_| malformed())?;
        if pattern.is_empty() {
            return Err(malformed());
        }
        Ok(json!({"filePattern": pattern, "verbosity": level}))
    };
    pairs.map(read).collect()
}

fn duration_or_nanos<'de, D: serde::Deserializer<'de>>(d: D) -> Result<GoDuration, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Nanos(i64),
        Text(GoDuration),
    }
    Ok(match Either::deserialize(d)? {
        Either::Nanos(n) => GoDuration::from_nanos(n),
        Either::Text(t) => t,
    })
}
