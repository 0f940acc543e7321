//! Which objects a list, a watch or a deletecollection is about.
//!
//! It is read once, here. Who decides whether it is allowed and who carries it out have the same value before them: two
//! readings of one request could differ, and what was allowed would not be what is done.

use api::names;
use api::selector::{FieldSelector, LabelSelector, SelectorError};

use super::query::{Query, bad_option, parse_version};
use crate::api_status::ApiStatus;
use crate::options::{ListOptions, VersionMatch};

/// The field that names an object.
const NAME: &str = "metadata.name";

/// The options of a request that may be about many objects. Nobody else can make one.
#[derive(Clone, Debug)]
pub struct Listing(ListOptions);

// === impl Listing ===

impl Listing {
    /// `named` is the object that the path names, if it does: a selector may not name another.
    pub fn read(query: &Query, named: Option<&str>) -> Result<Listing, ApiStatus> {
        let mut options = parse(query)?;
        match named {
            Some(name) if options.fields.is_empty() => options.fields = only(name)?,
            Some(name) if options.fields.exact(NAME) != Some(name) => {
                return Err(ApiStatus::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
            _ => {}
        }
        Ok(Listing(options))
    }

    pub fn options(&self) -> &ListOptions {
        &self.0
    }

    /// The one name it is about, where that could be the name of anything.
    pub fn name(&self) -> Option<&str> {
        self.0.fields.exact(NAME).filter(|name| names::path_segment(name).is_empty())
    }
}

/// The selector of one name, whatever characters it has.
fn only(name: &str) -> Result<FieldSelector, ApiStatus> {
    let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    FieldSelector::parse(&format!("{NAME}={escaped}")).map_err(|e| ApiStatus::bad_request(e.to_string()))
}

fn parse(query: &Query) -> Result<ListOptions, ApiStatus> {
    let bad = |e: SelectorError| ApiStatus::bad_request(e.to_string());
    let unable = |e: SelectorError| ApiStatus::bad_request(format!("unable to parse requirement: {e}"));
    let version_match = match query.get("resourceVersionMatch").filter(|t| !t.is_empty()) {
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
        labels: LabelSelector::parse(query.get("labelSelector").unwrap_or_default()).map_err(unable)?,
        fields: FieldSelector::parse(query.get("fieldSelector").unwrap_or_default()).map_err(bad)?,
        version: version(query)?,
        version_match,
        limit: positive(query.number("limit")?).and_then(|n| usize::try_from(n).ok()),
        continue_token: query.get("continue").filter(|t| !t.is_empty()).map(str::to_owned),
        timeout_seconds: positive(query.number("timeoutSeconds")?),
        bookmarks: query.flag("allowWatchBookmarks"),
        send_initial_events: query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents")),
    })
}

/// The resourceVersion a read asks for.
pub fn version(query: &Query) -> Result<Option<u64>, ApiStatus> {
    query.get("resourceVersion").filter(|t| !t.is_empty()).map(parse_version).transpose()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(query: &str, named: Option<&str>) -> Result<Listing, ApiStatus> {
        Listing::read(&Query::parse(query).unwrap(), named)
    }

    #[test]
    fn options_are_read() {
        let text = "labelSelector=a%3Db%2Cc&limit=5&resourceVersion=0&fieldSelector=metadata.name%3Dx&timeoutSeconds=9";
        let listing = read(text, None).unwrap();
        let options = listing.options();
        assert_eq!(options.labels.to_string(), "a=b,c");
        assert_eq!((options.limit, options.version, options.timeout_seconds), (Some(5), Some(0), Some(9)));
        assert_eq!(listing.name(), Some("x"));
        for text in ["resourceVersion=x", "limit=x", "labelSelector=a%20b", "resourceVersionMatch=Maybe"] {
            assert!(read(text, None).is_err(), "{text}");
        }
    }

    #[test]
    fn the_object_of_the_path_is_the_object_of_the_selector() {
        for name in ["x", "a,b", "a=b", "a\\", "a!=b"] {
            let listing = read("", Some(name)).unwrap();
            assert_eq!(listing.options().fields.exact(NAME), Some(name));
            assert_eq!(listing.options().fields.terms().len(), 1);
        }
        assert!(read("fieldSelector=metadata.name%3Dx", Some("x")).is_ok());
        for other in ["metadata.name%3Dy", "metadata.name!%3Dx", "status.phase%3DRunning"] {
            let api_status = read(&format!("fieldSelector={other}"), Some("x")).unwrap_err();
            assert_eq!(api_status.code, 400, "{other}");
        }
        assert_eq!(read("fieldSelector=metadata.name%3Da/b", None).unwrap().name(), None);
    }
}
