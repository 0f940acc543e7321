//! Which kinds are served, and under which paths.

use std::collections::HashMap;
use std::sync::Arc;

use crate::kind::Kind;

/// Every kind served at a moment. A CustomResourceDefinition makes a new catalog.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    kinds: Vec<Arc<Kind>>,
    by_path: HashMap<(String, String, String), Arc<Kind>>,
}

/// A group and its versions, the preferred one first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group<'c> {
    pub name: &'c str,
    pub versions: Vec<&'c str>,
}

// === impl Catalog ===

impl Catalog {
    #[must_use]
    pub fn new(kinds: impl IntoIterator<Item = Arc<Kind>>) -> Catalog {
        let kinds: Vec<Arc<Kind>> = kinds.into_iter().collect();
        let path = |k: &Kind| (k.group.to_string(), k.version.to_string(), k.plural.to_string());
        let by_path = kinds.iter().map(|kind| (path(kind), kind.clone())).collect();
        Catalog { kinds, by_path }
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

    /// The first kind that lies in a place of the store.
    #[must_use]
    pub fn by_storage(&self, storage: &str) -> Option<&Arc<Kind>> {
        self.kinds.iter().find(|k| k.storage == storage)
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
            let seen = self.kinds[..i].iter().any(|k| k.storage == kind.storage);
            (!seen && kind.is_stored()).then_some(kind)
        })
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
}
