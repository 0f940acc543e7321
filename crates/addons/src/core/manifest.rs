//! Files of manifests: what is in them, in which order it is applied, and what goes when it is no more in one.

use std::collections::{BTreeMap, BTreeSet};

use api::yaml::{self, DuplicateKeys};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who owns what was applied.
pub const OWNER: &str = "longshore-deploy";
/// The ConfigMap of kube-system that remembers what each file brought.
pub const RECORD: &str = "longshore-deploy";
/// A file with this after its name is as if both were not there.
const SKIP: &str = ".skip";
const ENDS: [&str; 3] = [".yaml", ".yml", ".json"];

/// What came from a file, as it is remembered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Named {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// What each file brought.
pub(crate) type Record = BTreeMap<String, Vec<Named>>;

/// The files that count among these names.
pub(crate) fn wanted(names: &BTreeSet<String>) -> impl Iterator<Item = &str> {
    let is_manifest = |name: &&String| ENDS.iter().any(|end| name.ends_with(end)) && !name.starts_with('.');
    let is_skipped = |name: &&String| !names.contains(&format!("{name}{SKIP}"));
    names.iter().filter(is_manifest).filter(is_skipped).map(String::as_str)
}

/// What a ConfigMap cannot have as a key cannot be remembered.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    match name.len() <= 253 && name.bytes().all(fits) {
        true => Ok(()),
        false => Err("its name has other characters than letters, digits, '-', '_' and '.'".to_owned()),
    }
}

/// The objects of a file, those first that others need.
pub(crate) fn parse(text: &str) -> Result<Vec<Value>, String> {
    let mut objects = Vec::new();
    for (number, document) in split(text).iter().enumerate() {
        let within = |why: String| format!("document {}: {why}", number + 1);
        let value = yaml::to_value(document.as_bytes(), DuplicateKeys::Reject);
        let value = value.map_err(|e| within(e.to_string()))?;
        match value {
            Value::Null => {}
            Value::Object(_) if value["kind"] == "List" && value["items"].is_array() => {
                objects.extend(value["items"].as_array().cloned().unwrap_or_default());
            }
            other => objects.push(other),
        }
        if let Some(error) = objects.last().and_then(|object| check(object).err()) {
            return Err(within(error));
        }
    }
    for object in &objects {
        check(object)?;
    }
    objects.sort_by_key(rank);
    Ok(objects)
}

fn check(object: &Value) -> Result<(), String> {
    if !object.is_object() {
        return Err("it is no object".to_owned());
    }
    for (field, value) in [
        ("apiVersion", &object["apiVersion"]),
        ("kind", &object["kind"]),
        ("metadata.name", &object["metadata"]["name"]),
    ] {
        if value.as_str().is_none_or(str::is_empty) {
            return Err(format!("{field} is missing"));
        }
    }
    Ok(())
}

fn rank(object: &Value) -> u8 {
    match object["kind"].as_str() {
        Some("Namespace") => 0,
        Some("CustomResourceDefinition") => 1,
        _ => 2,
    }
}

/// The documents of a file.
pub(crate) fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        let is_break =
            line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']));
        if is_break {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

/// What was brought by a file and is brought by none any more.
pub(crate) fn stale(before: &Record, now: &Record) -> Vec<Named> {
    let kept: BTreeSet<&Named> = now.values().flatten().collect();
    let all: BTreeSet<&Named> = before.values().flatten().collect();
    let mut gone: Vec<Named> = all.into_iter().filter(|named| !kept.contains(named)).cloned().collect();
    // What lies in a namespace goes before it, what is of a kind before its definition.
    gone.sort_by_key(|named| match named.kind.as_str() {
        "Namespace" => 2,
        "CustomResourceDefinition" => 1,
        _ => 0,
    });
    gone
}

/// Both: what is there while one is turned into the other.
pub(crate) fn union(a: &Record, b: &Record) -> Record {
    let mut all = a.clone();
    for (file, named) in b {
        let of_file = all.entry(file.clone()).or_default();
        of_file.extend(
            named.iter().filter(|one| !a.get(file).is_some_and(|known| known.contains(one))).cloned(),
        );
    }
    all
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn named(kind: &str, name: &str) -> Named {
        Named { api_version: "v1".into(), kind: kind.into(), namespace: String::new(), name: name.into() }
    }

    fn record(files: &[(&str, &[Named])]) -> Record {
        files.iter().map(|(file, all)| ((*file).to_owned(), all.to_vec())).collect()
    }

    #[test]
    fn namespaces_and_kinds_are_applied_first() {
        let text = "# a comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n--- # more\n\
                    apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n\
                    - {apiVersion: v1, kind: Namespace, metadata: {name: shop}}\n---\n";
        let kinds: Vec<String> =
            parse(text).unwrap().iter().map(|o| o["kind"].as_str().unwrap().to_owned()).collect();
        assert_eq!(kinds, ["Namespace", "ConfigMap", "Secret"]);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_place() {
        let ok = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n";
        for (text, want) in [
            ("kind: ConfigMap\n", "document 1: apiVersion is missing"),
            (
                "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n",
                "document 1: metadata.name is missing",
            ),
            ("- a\n", "document 1: it is no object"),
        ] {
            assert_eq!(parse(text).unwrap_err(), want);
            let second = parse(&format!("{ok}---\n{text}")).unwrap_err();
            assert_eq!(second, want.replace('1', "2"));
        }
        assert!(parse("a: [\n").unwrap_err().starts_with("document 1: parse: "));
        assert_eq!(parse("# nothing\n"), Ok(vec![]));
    }

    #[test]
    fn a_file_is_left_out_by_a_file_beside_it() {
        let names = ["a.yaml", "b.yml", "b.yml.skip", "c.json", "d.txt", ".e.yaml", "f.yaml~"];
        let names = names.map(str::to_owned).into();
        assert_eq!(wanted(&names).collect::<Vec<_>>(), ["a.yaml", "c.json"]);
        assert!(check_name("web-1.yaml").is_ok() && check_name("my page.yaml").is_err());
    }

    #[test]
    fn what_no_file_brings_any_more_goes_contents_first() {
        let (ns, map, other) = (named("Namespace", "n"), named("ConfigMap", "a"), named("ConfigMap", "b"));
        let before =
            record(&[("x.yaml", &[ns.clone(), map.clone()]), ("y.yaml", std::slice::from_ref(&other))]);
        assert_eq!(
            stale(&before, &record(&[("y.yaml", std::slice::from_ref(&other))])),
            [map.clone(), ns.clone()]
        );
        // It moved to another file.
        assert_eq!(stale(&before, &record(&[("z.yaml", &[map, ns, other])])), []);
    }

    #[test]
    fn nothing_is_forgotten_half_way() {
        let (a, b) = (named("ConfigMap", "a"), named("ConfigMap", "b"));
        let (before, after) = (
            record(&[("x", std::slice::from_ref(&a))]),
            record(&[("x", std::slice::from_ref(&b)), ("y", std::slice::from_ref(&a))]),
        );
        let both = union(&before, &after);
        assert_eq!(both, record(&[("x", &[a.clone(), b]), ("y", &[a])]));
    }
}
