//! Which kinds are served, under which paths, and whose they are.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use api::names;

use crate::kind::{Kind, Owner};

/// Every kind served at a moment. A CustomResourceDefinition makes a new catalog. No resource and no kind of a group
/// has two owners in it, whatever it is made from.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    kinds: Vec<Arc<Kind>>,
    by_path: HashMap<(String, String, String), Arc<Kind>>,
    left_out: Vec<Arc<Kind>>,
}

/// Who has which words of a group.
#[derive(Debug, Default)]
struct Claims(HashMap<(String, Word), Owner>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Word {
    /// Plural, singular or short name: what stands in a path, or what people type for it.
    Resource(String),
    /// Kind or list kind.
    Kind(String),
}

/// A group and its versions, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'c> {
    pub name: &'c str,
    pub versions: Vec<&'c str>,
}

// === impl Catalog ===

impl Catalog {
    /// The server's own kinds come first, whatever the order; of custom ones, the first has the name. A kind that
    /// would have what is another's is left out.
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = Arc<Kind>>) -> Catalog {
        let (own, custom): (Vec<_>, Vec<_>) = kinds.into_iter().partition(|kind| !kind.is_custom());
        let (mut catalog, mut claims) = (Catalog::default(), Claims::default());
        for kind in own.into_iter().chain(custom) {
            let path = (kind.group.to_string(), kind.version.to_string(), kind.plural.to_string());
            match catalog.by_path.entry(path) {
                Entry::Vacant(place) if is_place(&kind) && claims.take(&kind) => {
                    place.insert(kind.clone());
                    catalog.kinds.push(kind);
                }
                _ => catalog.left_out.push(kind),
            }
        }
        catalog
    }

    /// The kinds that are not served because what they are called is another's.
    pub fn left_out(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.left_out.iter()
    }

    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.iter()
    }

    /// The kind under a path.
    #[must_use]
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        self.by_path.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// The kind an object says it is.
    #[must_use]
    pub fn find_kind(&self, api_version: &str, kind: &str) -> Option<&Arc<Kind>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.kinds.iter().find(|k| k.kind == kind && k.group == group && k.version == version)
    }

    /// The first kind whose objects lie where a key is, and what of the key is the object's own.
    #[must_use]
    pub fn by_key<'k>(&self, key: &'k str) -> Option<(&Arc<Kind>, &'k str)> {
        let (is_custom, storage, rest) = Kind::split_place(key)?;
        let kind = self.kinds.iter().find(|k| k.is_custom() == is_custom && k.storage == storage)?;
        Some((kind, rest))
    }

    /// The kinds of a group version, in order.
    pub fn of_version<'c>(&'c self, group: &'c str, version: &'c str) -> impl Iterator<Item = &'c Arc<Kind>> {
        self.kinds.iter().filter(move |k| k.group == group && k.version == version)
    }

    /// Every group in order of first appearance, the core group (empty name) among them.
    #[must_use]
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut out: Vec<Group<'_>> = Vec::new();
        for kind in &self.kinds {
            let at = out.iter().position(|g| g.name == kind.group).unwrap_or_else(|| {
                out.push(Group { name: &kind.group, versions: Vec::new() });
                out.len() - 1
            });
            if !out[at].versions.contains(&&*kind.version) {
                out[at].versions.push(&kind.version);
            }
        }
        for group in &mut out {
            group.versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        }
        out
    }

    /// One kind per storage place: what to walk to see every object once.
    pub fn places(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.kinds.iter().enumerate().filter_map(|(i, kind)| {
            let mut before = self.kinds[..i].iter();
            let seen = before.any(|k| k.storage == kind.storage && k.is_custom() == kind.is_custom());
            (!seen && kind.is_stored()).then_some(kind)
        })
    }
}

/// What a definition calls its kind becomes part of keys: no name may lead out of the kind's own place.
fn is_place(kind: &Kind) -> bool {
    !kind.is_custom() || names::dns_subdomain(&kind.storage).is_empty()
}

// === impl Claims ===

impl Claims {
    /// Gives a kind its words, all or none of them.
    fn take(&mut self, kind: &Kind) -> bool {
        let resources = [&kind.plural, &kind.singular].into_iter().chain(&kind.short_names);
        let resources = resources.filter(|name| !name.is_empty()).map(|n| Word::Resource(n.to_string()));
        let kinds = [&kind.kind, &kind.list_kind].into_iter().map(|n| Word::Kind(n.to_string()));
        let words = || resources.clone().chain(kinds.clone()).map(|word| (kind.group.to_string(), word));
        let owner = kind.owner();
        if words().any(|word| self.0.get(&word).is_some_and(|other| *other != owner)) {
            return false;
        }
        self.0.extend(words().map(|word| (word, owner.clone())));
        true
    }
}

/// v2 over v1 over v1beta2 over v1alpha1 over anything else.
fn version_rank(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let major: u32 = rest[..digits].parse().ok()?;
        Some(match &rest[digits..] {
            "" => (3, major, 0),
            beta if beta.starts_with("beta") => (2, major, beta[4..].parse().ok()?),
            alpha if alpha.starts_with("alpha") => (1, major, alpha[5..].parse().ok()?),
            _ => return None,
        })
    };
    parse().unwrap_or((0, 0, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stable_versions_come_first() {
        let mut versions = vec!["v1beta1", "odd", "v1", "v2alpha1", "v2", "v1beta2", "v10"];
        versions.sort_by_key(|v| std::cmp::Reverse(version_rank(v)));
        assert_eq!(versions, ["v10", "v2", "v1", "v1beta2", "v1beta1", "v2alpha1", "odd"]);
    }

    #[test]
    fn kinds_are_found_by_path_and_by_name() {
        let catalog = Catalog::new(crate::kinds::all().into_iter().map(Arc::new));
        assert!(catalog.find("", "v1", "configmaps").is_some());
        assert!(catalog.find("", "v1", "nonsense").is_none());
        assert_eq!(catalog.find_kind("v1", "ConfigMap").map(|k| &*k.plural), Some("configmaps"));
        assert_eq!(catalog.groups()[0].name, "");
    }
    /// A custom kind of any name.
    fn custom(group: &str, version: &str, plural: &str, kind: &str) -> Arc<Kind> {
        let definition = serde_json::json!({
            "metadata": {"name": format!("{plural}.{group}")},
            "spec": {"group": group, "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
                "versions": [{"name": version, "served": true, "storage": true}]},
            "status": {"acceptedNames": {"plural": plural, "kind": kind}},
        });
        Arc::new(crate::custom::kinds(&definition).remove(0))
    }

    #[test]
    fn no_resource_and_no_kind_has_two_owners() {
        let own: Vec<Arc<Kind>> = crate::kinds::all().into_iter().map(Arc::new).collect();
        // A rival for every name there is, in versions that are served and in others, before and after its owner.
        let mut rivals = Vec::new();
        for kind in &own {
            for version in [&*kind.version, "v9"] {
                let (kinds, plurals) = (["Rival", &kind.kind], ["rivals", &kind.plural]);
                rivals.push(custom(&kind.group, version, plurals[1], kinds[0]));
                rivals.push(custom(&kind.group, version, plurals[0], kinds[1]));
                rivals.push(custom(&kind.group, version, plurals[1], kinds[1]));
            }
        }
        for kinds in [[rivals.clone(), own.clone()].concat(), [own.clone(), rivals.clone()].concat()] {
            let catalog = Catalog::new(kinds);
            assert_eq!(catalog.kinds().filter(|kind| !kind.is_custom()).count(), own.len());
            assert_eq!(catalog.kinds().filter(|kind| kind.is_custom()).count(), 0);
            assert_eq!(catalog.left_out().count(), rivals.len());
        }
        let two =
            [custom("a.b", "v1", "xs", "X"), custom("a.b", "v2", "xs", "X"), custom("a.b", "v3", "ys", "X")];
        let catalog = Catalog::new(two);
        assert!(catalog.find("a.b", "v2", "xs").is_some(), "versions of one definition have one owner");
        assert!(catalog.find("a.b", "v3", "ys").is_none());
    }

    #[test]
    fn no_name_leads_out_of_the_place_of_custom_kinds() {
        for (group, plural) in [("a.b", "../registry/secrets"), ("a.b/c", "xs"), ("", ""), ("a.b", "/")] {
            let catalog = Catalog::new([custom(group, "v1", plural, "X")]);
            assert_eq!(catalog.kinds().count(), 0, "{plural} {group}");
        }
        let kind = custom("authorization.k8s.io", "v1", "secrets", "Secret");
        assert_eq!(kind.place(), "/custom/secrets.authorization.k8s.io/");
        assert_eq!(Kind::split_place("/custom/xs.a.b/ns/n"), Some((true, "xs.a.b", "ns/n")));
        assert_eq!(Kind::split_place("/registry/xs.a.b/ns/n"), Some((false, "xs.a.b", "ns/n")));
        assert_eq!(Kind::split_place("/elsewhere/xs.a.b/ns/n"), None);
    }
}
