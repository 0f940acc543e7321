//! Where the API server serves a kind that somebody has named, from what it says of the kind's group.

use serde_json::Value;

use crate::plan::{Act, Done, Outcome, Why};

/// A kind as an owner reference or a scale target names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind<'a> {
    pub(crate) api_version: &'a str,
    pub(crate) kind: &'a str,
}

/// Why something is not known.
#[derive(Debug)]
pub(crate) enum Missing {
    /// It will be, after these answers.
    Answers(Vec<Act>),
    /// And will not be: why.
    Nothing(String),
}

/// A resource as discovery has it.
#[derive(Debug)]
pub(crate) struct Served {
    root: String,
    pub(crate) plural: String,
    pub(crate) group: String,
    is_namespaced: bool,
    has_scale: bool,
}

/// Where an object of a kind has its scale.
pub(crate) fn scale_path(
    kind: Kind<'_>,
    namespace: &str,
    name: &str,
    done: &Done,
) -> Result<String, Missing> {
    let served = served(kind, done)?;
    if !is_word(name) {
        return Err(Missing::Nothing(format!("{name:?} is no name")));
    }
    if !served.has_scale {
        let Served { plural, group, .. } = &served;
        let dot = if group.is_empty() { "" } else { "." };
        return Err(Missing::Nothing(format!(
            "{plural}{dot}{group} does not implement the scale subresource"
        )));
    }
    let place = if served.is_namespaced { format!("/namespaces/{namespace}") } else { String::new() };
    Ok(format!("{}{place}/{}/{name}/scale", served.root, served.plural))
}

/// The resource of a kind.
pub(crate) fn served(kind: Kind<'_>, done: &Done) -> Result<Served, Missing> {
    let Kind { api_version, kind } = kind;
    let unknown = || Missing::Nothing(format!("no matches for kind {kind:?} in version {api_version:?}"));
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // Anybody may write an owner reference: it must not lead elsewhere.
    if !is_word(version) || !(group.is_empty() || is_word(group)) {
        return Err(unknown());
    }
    let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
    let list = match done.answer(&root) {
        None => return Err(Missing::Answers(vec![Act::Get { path: root }])),
        Some(Outcome::Done(answer)) => serde_json::from_slice::<Value>(answer).unwrap_or_default(),
        Some(Outcome::Failed(refusal)) if refusal.why != Why::NotFound => {
            return Err(Missing::Nothing(refusal.message.clone()));
        }
        Some(_) => return Err(unknown()),
    };
    let resources = list["resources"].as_array().cloned().unwrap_or_default();
    let name = |one: &Value| one["name"].as_str().unwrap_or_default().to_owned();
    let is_it = |one: &&Value| one["kind"] == kind && is_word(&name(one));
    let resource = resources.iter().find(is_it).ok_or_else(unknown)?;
    let plural = name(resource);
    let has_scale = resources.iter().any(|one| name(one) == format!("{plural}/scale"));
    let is_namespaced = resource["namespaced"].as_bool().unwrap_or(true);
    Ok(Served { root, plural, group: group.to_owned(), is_namespaced, has_scale })
}

/// A part of a path that leads nowhere else.
fn is_word(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    !text.is_empty() && text.bytes().all(is_plain) && text != "." && text != ".."
}
