//! The query of a request, and the options it carries for each verb.

use super::percent::decode_query;
use crate::api_status::ApiStatus;
use crate::options::{DeleteOptions, FieldValidation, WriteOptions};

/// The parameters of a query, decoded.
#[derive(Clone, Debug, Default)]
pub struct Query(Vec<(String, String)>);

// === impl Query ===

impl Query {
    pub fn parse(text: &str) -> Result<Query, ApiStatus> {
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode_query(name)?, decode_query(value)?))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs.map(Query).ok_or_else(|| ApiStatus::bad_request("the query is not valid percent-encoded UTF-8"))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// A present parameter is true unless it says otherwise, as upstream's conversion has it.
    pub fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    pub fn number(&self, name: &str) -> Result<Option<i64>, ApiStatus> {
        let Some(text) = self.get(name).filter(|t| !t.is_empty()) else { return Ok(None) };
        let bad = |_| ApiStatus::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        text.parse().map(Some).map_err(bad)
    }

    /// `?timeout=`: a duration as Go writes them, or nothing.
    pub fn check_timeout(&self) -> Result<(), ApiStatus> {
        let text = self.get("timeout").unwrap_or_default();
        if text.is_empty() {
            return Ok(());
        }
        check_duration(text).map_err(|why| {
            ApiStatus::bad_request(format!("invalid timeout specified in the request URL - {why}"))
        })
    }

    pub fn write_options(&self, user_agent: &str) -> Result<WriteOptions, ApiStatus> {
        for value in self.all("dryRun") {
            if value != "All" {
                let why = format!("dryRun: Unsupported value: {value:?}: supported values: \"All\"");
                return Err(bad_option(why));
            }
        }
        let field_validation = match self.get("fieldValidation").unwrap_or_default() {
            "" | "Warn" => FieldValidation::Warn,
            "Ignore" => FieldValidation::Ignore,
            "Strict" => FieldValidation::Strict,
            other => {
                return Err(bad_option(format!(
                    "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
                )));
            }
        };
        let manager = self.get("fieldManager").unwrap_or_default();
        if manager.chars().count() > 128 {
            return Err(bad_option("fieldManager: Invalid value: may not be more than 128 bytes".to_owned()));
        }
        let field_manager = if manager.is_empty() { manager_of(user_agent) } else { manager.to_owned() };
        Ok(WriteOptions {
            dry_run: self.get("dryRun").is_some(),
            field_manager,
            field_validation,
            force: self.flag("force"),
        })
    }

    /// What the query adds to the DeleteOptions of the body.
    pub fn delete_options(&self, mut options: DeleteOptions) -> Result<DeleteOptions, ApiStatus> {
        if let Some(grace) = self.number("gracePeriodSeconds")? {
            options.grace_seconds = Some(grace);
        }
        let orphan = self.get("orphanDependents").map(|_| self.flag("orphanDependents"));
        options.say(self.get("propagationPolicy"), orphan, self.all("dryRun"))?;
        Ok(options)
    }
}

/// A resourceVersion somebody sent.
pub(super) fn parse_version(text: &str) -> Result<u64, ApiStatus> {
    text.parse().map_err(|_| {
        ApiStatus::bad_request(format!(
            "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

pub(super) fn bad_option(why: String) -> ApiStatus {
    ApiStatus::new(422, "Invalid", format!("options is invalid: {why}"))
}

/// Reads `1h2.5m`; says what is wrong in the words of Go's library.
fn check_duration(text: &str) -> Result<(), String> {
    const UNITS: &[(&str, f64)] = &[
        ("ns", 1e-9),
        ("us", 1e-6),
        ("\u{b5}s", 1e-6),
        ("\u{3bc}s", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let invalid = || format!("time: invalid duration {text:?}");
    let mut rest = text.strip_prefix(['+', '-']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let is_number = |c: char| c.is_ascii_digit() || c == '.';
        let (number, after) = rest.split_at(rest.find(|c| !is_number(c)).unwrap_or(rest.len()));
        let count: f64 = number.parse().map_err(|_| invalid())?;
        let (unit, after) = after.split_at(after.find(is_number).unwrap_or(after.len()));
        if unit.is_empty() {
            return Err(format!("time: missing unit in duration {text:?}"));
        }
        let known = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, seconds)| seconds);
        seconds +=
            count * known.ok_or_else(|| format!("time: unknown unit {unit:?} in duration {text:?}"))?;
        rest = after;
    }
    // What fits into 63 bits of nanoseconds.
    if seconds < 9_223_372_036.0 { Ok(()) } else { Err(invalid()) }
}

/// The program's name in a User-Agent: what owns fields when nobody says who does.
fn manager_of(user_agent: &str) -> String {
    user_agent.split('/').next().unwrap_or_default().chars().take(128).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read() {
        assert!(Query::parse("a=b&watch").unwrap().flag("watch"));
        let write = Query::parse("dryRun=All&fieldValidation=Strict").unwrap();
        let write = write.write_options("kubectl/v1.36.4 (linux/amd64)").unwrap();
        assert_eq!(write.field_manager, "kubectl");
        assert!(write.dry_run && write.field_validation == FieldValidation::Strict);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Query::parse("a=%f").is_err());
        assert!(Query::parse("dryRun=x").unwrap().write_options("").is_err());
    }

    #[test]
    fn a_timeout_is_a_duration_of_go() {
        for text in ["", "0", "32s", "1h2.5m", "-5s", "+.5ms", "10us", "10\u{b5}s"] {
            assert_eq!(
                check_duration(text).err(),
                (text.is_empty()).then(|| "time: invalid duration \"\"".to_owned())
            );
        }
        let rows = [
            ("x", "time: invalid duration \"x\""),
            ("-", "time: invalid duration \"-\""),
            (".s", "time: invalid duration \".s\""),
            ("1.2.3s", "time: invalid duration \"1.2.3s\""),
            ("10", "time: missing unit in duration \"10\""),
            ("10y", "time: unknown unit \"y\" in duration \"10y\""),
            ("99999999999h", "time: invalid duration \"99999999999h\""),
        ];
        for (text, why) in rows {
            assert_eq!(check_duration(text), Err(why.to_owned()));
        }
        let asked = Query::parse("timeout=nonsense").unwrap().check_timeout().unwrap_err();
        assert_eq!(
            (asked.code, asked.message.as_str()),
            (400, "invalid timeout specified in the request URL - time: invalid duration \"nonsense\"")
        );
    }
}
