//! The query of a request, and the options it carries for each verb.

use api::selector::{FieldSelector, LabelSelector};

use super::path::percent::decode_query;
use crate::refusal::Refusal;
use crate::registry::options::{DeleteOptions, FieldValidation, ListOptions, VersionMatch, WriteOptions};

/// The parameters of a query, decoded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

// === impl Query ===

impl Query {
    pub(crate) fn parse(text: &str) -> Result<Query, Refusal> {
        let pairs = text.split('&').filter(|part| !part.is_empty()).map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            Some((decode_query(name)?, decode_query(value)?))
        });
        let pairs: Option<Vec<_>> = pairs.collect();
        pairs.map(Query).ok_or_else(|| Refusal::bad_request("the query is not valid percent-encoded UTF-8"))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    pub(crate) fn all<'q>(&'q self, name: &'q str) -> impl Iterator<Item = &'q str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// A present parameter is true unless it says otherwise, as upstream's conversion has it.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| !matches!(v.to_ascii_lowercase().as_str(), "false" | "0"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<i64>, Refusal> {
        let Some(text) = self.get(name).filter(|t| !t.is_empty()) else { return Ok(None) };
        let bad = |_| Refusal::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"));
        text.parse().map(Some).map_err(bad)
    }

    /// The name a field selector pins down.
    pub(crate) fn named(&self) -> Option<String> {
        let fields = FieldSelector::parse(self.get("fieldSelector")?).ok()?;
        fields.exact("metadata.name").map(str::to_owned)
    }

    pub(crate) fn list_options(&self) -> Result<ListOptions, Refusal> {
        let bad = |e: api::selector::SelectorError| Refusal::bad_request(e.to_string());
        let unable = |e: api::selector::SelectorError| {
            Refusal::bad_request(format!("unable to parse requirement: {e}"))
        };
        let version = match self.get("resourceVersion").filter(|t| !t.is_empty()) {
            Some(text) => Some(parse_version(text)?),
            None => None,
        };
        let version_match = match self.get("resourceVersionMatch").filter(|t| !t.is_empty()) {
            None => None,
            Some("NotOlderThan") => Some(VersionMatch::NotOlderThan),
            Some("Exact") => Some(VersionMatch::Exact),
            Some(other) => {
                return Err(bad_option(format!(
                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\", \"\""
                )));
            }
        };
        let positive = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        Ok(ListOptions {
            labels: LabelSelector::parse(self.get("labelSelector").unwrap_or_default()).map_err(unable)?,
            fields: FieldSelector::parse(self.get("fieldSelector").unwrap_or_default()).map_err(bad)?,
            version,
            version_match,
            limit: positive(self.number("limit")?).and_then(|n| usize::try_from(n).ok()),
            continue_token: self.get("continue").filter(|t| !t.is_empty()).map(str::to_owned),
            timeout_seconds: positive(self.number("timeoutSeconds")?),
            bookmarks: self.flag("allowWatchBookmarks"),
            send_initial_events: self.get("sendInitialEvents").map(|_| self.flag("sendInitialEvents")),
        })
    }

    pub(crate) fn write_options(&self, user_agent: &str) -> Result<WriteOptions, Refusal> {
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
    pub(crate) fn delete_options(&self, mut options: DeleteOptions) -> Result<DeleteOptions, Refusal> {
        if let Some(grace) = self.number("gracePeriodSeconds")? {
            options.grace_seconds = Some(grace);
        }
        let orphan = self.get("orphanDependents").map(|_| self.flag("orphanDependents"));
        options.say(self.get("propagationPolicy"), orphan, self.all("dryRun"))?;
        Ok(options)
    }
}

/// A resourceVersion somebody sent.
pub(crate) fn parse_version(text: &str) -> Result<u64, Refusal> {
    text.parse().map_err(|_| {
        Refusal::bad_request(format!(
            "Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
        ))
    })
}

fn bad_option(why: String) -> Refusal {
    Refusal::new(422, "Invalid", format!("options is invalid: {why}"))
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
        let query = Query::parse(
            "labelSelector=a%3Db%2Cc&limit=5&resourceVersion=0&watch&fieldSelector=metadata.name%3Dx&timeoutSeconds=9",
        )
        .unwrap();
        let options = query.list_options().unwrap();
        assert_eq!(options.labels.to_string(), "a=b,c");
        assert_eq!((options.limit, options.version, options.timeout_seconds), (Some(5), Some(0), Some(9)));
        assert!(query.flag("watch") && query.named().as_deref() == Some("x"));
        let write = Query::parse("dryRun=All&fieldValidation=Strict").unwrap();
        let write = write.write_options("kubectl/v1.36.4 (linux/amd64)").unwrap();
        assert_eq!(write.field_manager, "kubectl");
        assert!(write.dry_run && write.field_validation == FieldValidation::Strict);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["resourceVersion=x", "limit=x", "labelSelector=a%20b", "resourceVersionMatch=Maybe"] {
            assert!(Query::parse(text).unwrap().list_options().is_err(), "{text}");
        }
        assert!(Query::parse("a=%f").is_err());
        assert!(Query::parse("dryRun=x").unwrap().write_options("").is_err());
    }
}
