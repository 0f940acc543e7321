//! Which names a CustomResourceDefinition gets in its group: what upstream's naming controller decides, as a function.
//!
//! Upstream compares definitions with each other only: its built-in kinds are another server's, which is asked first. Here
//! all kinds are in one catalog, so what the server itself serves has the first claim on its names.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::doc;
use crate::kind::Kind;

/// The names in a group that are not to be had.
#[derive(Debug, Default)]
pub struct Taken {
    own: Names,
    others: Names,
}

#[derive(Debug, Default)]
struct Names {
    /// Plurals, singulars and short names.
    resources: BTreeSet<String>,
    /// Kinds and list kinds.
    kinds: BTreeSet<String>,
}

/// What comes of the names a definition wants.
#[derive(Debug, PartialEq)]
pub struct Verdict {
    /// `status.acceptedNames`
    pub accepted: Value,
    /// Reason and message, where not all names can be had.
    pub conflict: Option<(&'static str, String)>,
    /// Whether it must not be served, even if it was.
    pub is_ousted: bool,
}

// === impl Taken ===

impl Taken {
    /// What the kinds of the server have, and what the other definitions of the group were given.
    pub fn new<'k>(
        object: &Value,
        served: impl IntoIterator<Item = &'k Kind>,
        definitions: impl IntoIterator<Item = &'k Value>,
    ) -> Taken {
        let (group, name) = (doc::text(object, "spec.group"), doc::text(object, "metadata.name"));
        let mut taken = Taken::default();
        for kind in served.into_iter().filter(|kind| !kind.is_custom() && kind.group == group) {
            let resources = [&kind.plural, &kind.singular].into_iter().chain(&kind.short_names);
            taken.own.resources.extend(resources.map(ToString::to_string));
            taken.own.kinds.extend([&kind.kind, &kind.list_kind].map(ToString::to_string));
        }
        for other in definitions {
            if doc::text(other, "spec.group") == group && doc::text(other, "metadata.name") != name {
                taken.others.add(doc::at(other, "status.acceptedNames"));
            }
        }
        taken
    }

    /// Judges the names a definition wants, given those it has.
    #[must_use]
    pub fn judge(&self, object: &Value) -> Verdict {
        let wanted = doc::at(object, "spec.names");
        let mut accepted = doc::at(object, "status.acceptedNames").as_object().cloned().unwrap_or_default();
        let (mut conflict, mut is_ousted) = (None, false);
        let fields = [
            ("plural", "PluralConflict"),
            ("singular", "SingularConflict"),
            ("shortNames", "ShortNamesConflict"),
            ("kind", "KindConflict"),
            ("listKind", "ListKindConflict"),
        ];
        for (field, reason) in fields {
            let is_kind = matches!(field, "kind" | "listKind");
            let has = accepted.get(field).cloned().unwrap_or_default();
            let own = words(&wanted[field]).filter(|name| self.own.has(is_kind, name)).count() > 0;
            let lost: Vec<&str> = words(&wanted[field]).filter(|n| self.is_lost(is_kind, n, &has)).collect();
            if lost.is_empty() {
                set(&mut accepted, field, &wanted[field]);
                continue;
            }
            let complaints: Vec<String> = lost.iter().map(|n| format!("{n:?} is already in use")).collect();
            let message = match &*complaints {
                [one] => one.clone(),
                many => format!("[{}]", many.join(", ")),
            };
            conflict = Some((reason, message));
            if own {
                // It may have had the name from a server that did not look.
                is_ousted = true;
                set(&mut accepted, field, &Value::Null);
            }
        }
        set(&mut accepted, "categories", &wanted["categories"]);
        for field in ["plural", "kind"] {
            accepted.entry(field).or_insert_with(|| json!(""));
        }
        Verdict { accepted: Value::Object(accepted), conflict, is_ousted }
    }

    /// Whether a name cannot be had. One that a definition has it keeps, unless it is the server's.
    fn is_lost(&self, is_kind: bool, name: &str, has: &Value) -> bool {
        self.own.has(is_kind, name) || (words(has).all(|mine| mine != name) && self.others.has(is_kind, name))
    }
}

// === impl Names ===

impl Names {
    fn add(&mut self, accepted: &Value) {
        let texts = |field: &str| words(&accepted[field]).map(str::to_owned).collect::<Vec<_>>();
        self.resources.extend(["plural", "singular", "shortNames"].into_iter().flat_map(texts));
        self.kinds.extend(["kind", "listKind"].into_iter().flat_map(texts));
    }

    fn has(&self, is_kind: bool, name: &str) -> bool {
        if is_kind { self.kinds.contains(name) } else { self.resources.contains(name) }
    }
}

/// One name, or a list of them.
fn words(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    value.as_str().into_iter().chain(list.iter().filter_map(Value::as_str)).filter(|name| !name.is_empty())
}

fn set(accepted: &mut Map<String, Value>, field: &str, value: &Value) {
    if value.is_null() {
        accepted.remove(field);
    } else {
        accepted.insert(field.to_owned(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(group: &str, names: Value, accepted: Value) -> Value {
        let name = format!("{}.{group}", names["plural"].as_str().unwrap_or_default());
        json!({"metadata": {"name": name}, "spec": {"group": group, "names": names}, "status": {"acceptedNames": accepted}})
    }

    fn judge(object: &Value, others: &[Value]) -> Verdict {
        let kinds = super::super::all();
        Taken::new(object, &kinds, others).judge(object)
    }

    #[test]
    fn names_of_built_in_kinds_are_not_to_be_had() {
        let group = "rbac.authorization.k8s.io";
        let rows = [
            (
                json!({"plural": "rolebindings", "kind": "Mine", "listKind": "MineList"}),
                "PluralConflict",
                "rolebindings",
            ),
            (
                json!({"plural": "mine", "singular": "rolebinding", "kind": "Mine"}),
                "SingularConflict",
                "rolebinding",
            ),
            (json!({"plural": "mine", "kind": "RoleBinding"}), "KindConflict", "RoleBinding"),
            (
                json!({"plural": "mine", "kind": "Mine", "listKind": "RoleBindingList"}),
                "ListKindConflict",
                "RoleBindingList",
            ),
            (
                json!({"plural": "mine", "kind": "Mine", "shortNames": ["roles"]}),
                "ShortNamesConflict",
                "roles",
            ),
        ];
        for (names, reason, name) in rows {
            // Whether it has them already or not: no status makes them its own.
            for accepted in [Value::Null, names.clone()] {
                let verdict = judge(&definition(group, names.clone(), accepted), &[]);
                assert_eq!(
                    verdict.conflict,
                    Some((reason, format!("{name:?} is already in use"))),
                    "{names}"
                );
                assert!(
                    verdict.is_ousted && !verdict.accepted.to_string().contains(&format!("{name:?}")),
                    "{verdict:?}"
                );
            }
        }
        let free =
            definition("example.com", json!({"plural": "rolebindings", "kind": "RoleBinding"}), Value::Null);
        assert_eq!(judge(&free, &[]).conflict, None, "another group has names of its own");
    }

    #[test]
    fn plurals_singulars_and_short_names_share_one_pool_and_kinds_another() {
        let has = json!({"plural": "foos", "singular": "foo", "shortNames": ["f", "ff"], "kind": "Foo", "listKind": "FooList"});
        let other = definition("example.com", has.clone(), has);
        let rows = [
            (json!({"plural": "foo", "kind": "Bar"}), Some("PluralConflict")),
            (json!({"plural": "bars", "singular": "f", "kind": "Bar"}), Some("SingularConflict")),
            (
                json!({"plural": "bars", "shortNames": ["b", "foos"], "kind": "Bar"}),
                Some("ShortNamesConflict"),
            ),
            (json!({"plural": "bars", "kind": "FooList"}), Some("KindConflict")),
            (json!({"plural": "bars", "kind": "Bar", "listKind": "Foo"}), Some("ListKindConflict")),
            (
                json!({"plural": "bars", "singular": "bar", "shortNames": ["b"], "kind": "Bar", "listKind": "BarList"}),
                None,
            ),
        ];
        for (names, reason) in rows {
            let verdict =
                judge(&definition("example.com", names.clone(), Value::Null), std::slice::from_ref(&other));
            assert_eq!(verdict.conflict.as_ref().map(|c| c.0), reason, "{names}");
            assert!(!verdict.is_ousted);
            if reason.is_none() {
                assert_eq!(verdict.accepted, names);
            }
        }
    }

    #[test]
    fn what_a_definition_has_it_keeps() {
        let names = json!({"plural": "foos", "kind": "Foo", "shortNames": ["f"]});
        let mut later = definition("example.com", names.clone(), names);
        let rival = json!({"plural": "bars", "kind": "Bar", "shortNames": ["b"]});
        later["spec"]["names"]["shortNames"] = json!(["f", "b", "bars"]);
        let verdict = judge(&later, &[definition("example.com", rival.clone(), rival)]);
        let message = "[\"b\" is already in use, \"bars\" is already in use]".to_owned();
        assert_eq!(verdict.conflict, Some(("ShortNamesConflict", message)));
        assert_eq!(verdict.accepted["shortNames"], json!(["f"]), "until it can have the new ones");
        assert!(!verdict.is_ousted);
    }
}
