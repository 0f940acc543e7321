//! A rule of a role: what it allows, and whether one rule covers another.

use serde_json::{Map, Value};

use crate::request::Attributes;

/// Verbs on resources (perhaps only some names), or verbs on paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub verbs: Words,
    pub groups: Words,
    pub resources: Words,
    pub names: Words,
    pub paths: Words,
}

type Words = Vec<Box<str>>;

// === impl Rule ===

impl Rule {
    #[must_use]
    pub fn from_json(rule: &Value) -> Rule {
        let words = |field: &str| {
            let list = rule[field].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(Value::as_str).map(Box::from).collect()
        };
        Rule {
            verbs: words("verbs"),
            groups: words("apiGroups"),
            resources: words("resources"),
            names: words("resourceNames"),
            paths: words("nonResourceURLs"),
        }
    }

    /// The rules of a Role or ClusterRole.
    #[must_use]
    pub fn all_of(role: &Value) -> Vec<Rule> {
        role["rules"].as_array().map(|rules| rules.iter().map(Rule::from_json).collect()).unwrap_or_default()
    }

    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut out = Map::new();
        out.insert("verbs".into(), words_json(&self.verbs));
        for (field, words) in [
            ("apiGroups", &self.groups),
            ("resources", &self.resources),
            ("resourceNames", &self.names),
            ("nonResourceURLs", &self.paths),
        ] {
            if !words.is_empty() {
                out.insert(field.into(), words_json(words));
            }
        }
        Value::Object(out)
    }

    #[must_use]
    pub fn allows(&self, attributes: &Attributes) -> bool {
        has_or_all(&self.verbs, &attributes.verb)
            && match &attributes.resource {
                Some(resource) => {
                    has_or_all(&self.groups, &resource.group)
                        && self.has_resource(&resource.plural, &resource.subresource)
                        && (self.names.is_empty() || has(&self.names, &resource.name))
                }
                None => self.paths.iter().any(|rule| path_covers(rule, &attributes.path)),
            }
    }

    fn has_resource(&self, plural: &str, subresource: &str) -> bool {
        self.resources.iter().any(|rule| match rule.split_once('/') {
            None => &**rule == "*" || (subresource.is_empty() && &**rule == plural),
            Some((resource, sub)) => {
                sub == subresource && !subresource.is_empty() && (resource == "*" || resource == plural)
            }
        })
    }

    /// Whether this rule allows all that an atomic rule (see `atoms`) allows.
    fn covers(&self, atom: &Rule) -> bool {
        let within = |set: &Words, some: &Words| some.iter().all(|s| has_or_all(set, s));
        let resources = atom.resources.iter().all(|wanted| {
            has_or_all(&self.resources, wanted)
                || wanted.split_once('/').is_some_and(|(_, sub)| has(&self.resources, &format!("*/{sub}")))
        });
        let names = self.names.is_empty()
            || (!atom.names.is_empty() && atom.names.iter().all(|name| has(&self.names, name)));
        within(&self.verbs, &atom.verbs)
            && within(&self.groups, &atom.groups)
            && resources
            && names
            && atom.paths.iter().all(|path| self.paths.iter().any(|own| path_covers(own, path)))
    }

    /// The rule as rules of one verb, one group, one resource and one name each.
    fn atoms(&self) -> Vec<Rule> {
        let one = |word: &str| vec![Box::from(word)];
        let mut out = Vec::new();
        for group in &self.groups {
            for resource in &self.resources {
                for verb in &self.verbs {
                    let atom = Rule {
                        verbs: one(verb),
                        groups: one(group),
                        resources: one(resource),
                        ..Rule::default()
                    };
                    if self.names.is_empty() {
                        out.push(atom);
                    } else {
                        out.extend(self.names.iter().map(|n| Rule { names: one(n), ..atom.clone() }));
                    }
                }
            }
        }
        for path in &self.paths {
            let on = |verb: &str| Rule { verbs: one(verb), paths: one(path), ..Rule::default() };
            out.extend(self.verbs.iter().map(|verb| on(verb)));
        }
        out
    }

    /// The rule as upstream's error statuses print it.
    fn describe(&self) -> String {
        let parts: Vec<String> = [
            ("APIGroups", &self.groups),
            ("Resources", &self.resources),
            ("NonResourceURLs", &self.paths),
            ("ResourceNames", &self.names),
            ("Verbs", &self.verbs),
        ]
        .into_iter()
        .filter(|(_, words)| !words.is_empty())
        .map(|(name, words)| format!("{name}:{}", quoted(words)))
        .collect();
        format!("{{{}}}", parts.join(", "))
    }
}

/// What `wanted` allows and `held` does not, in atoms.
#[must_use]
pub fn missing(held: &[Rule], wanted: &[Rule]) -> Vec<Rule> {
    let atoms = wanted.iter().flat_map(Rule::atoms);
    atoms.filter(|atom| !held.iter().any(|rule| rule.covers(atom))).collect()
}

/// Atoms on the same resource as lines, their verbs together: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
#[must_use]
pub fn describe(atoms: Vec<Rule>) -> String {
    let mut merged: Vec<Rule> = Vec::new();
    for atom in atoms {
        let same = |r: &&mut Rule| {
            r.groups == atom.groups
                && r.resources == atom.resources
                && r.names == atom.names
                && r.paths == atom.paths
        };
        // Upstream merges verbs on resources only.
        match merged.iter_mut().find(same).filter(|_| atom.paths.is_empty()) {
            Some(rule) => {
                let new = atom.verbs.into_iter().filter(|v| !rule.verbs.contains(v)).collect::<Vec<_>>();
                rule.verbs.extend(new);
            }
            None => merged.push(atom),
        }
    }
    let mut lines: Vec<String> = merged.iter().map(Rule::describe).collect();
    lines.sort();
    lines.dedup();
    lines.join("\n")
}

/// `["a" "b"]`, as Go prints a list of strings.
#[must_use]
pub fn quoted<S: AsRef<str>>(words: &[S]) -> String {
    let words: Vec<String> = words.iter().map(|w| format!("{:?}", w.as_ref())).collect();
    format!("[{}]", words.join(" "))
}

fn has(words: &Words, word: &str) -> bool {
    words.iter().any(|w| &**w == word)
}

fn has_or_all(words: &Words, word: &str) -> bool {
    words.iter().any(|w| &**w == "*" || &**w == word)
}

/// `/api/*` covers everything that begins with `/api/`.
fn path_covers(rule: &str, path: &str) -> bool {
    rule == path || (rule.ends_with('*') && path.starts_with(rule.trim_end_matches('*')))
}

fn words_json(words: &Words) -> Value {
    words.iter().map(|w| Value::from(&**w)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::request::Resource;
    use proptest::prelude::*;
    use serde_json::json;

    fn rule(value: Value) -> Rule {
        Rule::from_json(&value)
    }

    fn on(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.to_owned().into(),
            resource: Some(Resource {
                group: group.into(),
                plural: plural.into(),
                subresource: subresource.into(),
                name: name.into(),
                ..Resource::default()
            }),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_rule_allows_what_it_names() {
        let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods", "pods/log"]});
        let scales = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*/scale"]});
        let named =
            json!({"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"]});
        let all = json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]});
        let cases = [
            (&pods, on("get", "", "pods", "x"), true),
            (&pods, on("get", "", "pods/log", "x"), true),
            (&pods, on("get", "", "pods/exec", "x"), false),
            (&pods, on("list", "", "pods", ""), false),
            (&pods, on("get", "apps", "pods", "x"), false),
            (&scales, on("update", "apps", "deployments/scale", "x"), true),
            (&scales, on("update", "apps", "deployments", "x"), false),
            (&named, on("get", "", "secrets", "a"), true),
            (&named, on("get", "", "secrets", "b"), false),
            (&named, on("get", "", "secrets", ""), false),
            (&all, on("anything", "x.y", "z/w", ""), true),
        ];
        for (value, attributes, allowed) in cases {
            assert_eq!(rule(value.clone()).allows(&attributes), allowed, "{value} {attributes:?}");
        }
        let paths = rule(json!({"verbs": ["get"], "nonResourceURLs": ["/api/*", "/healthz"]}));
        let at = |path: &str| Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
        assert!(paths.allows(&at("/api/v1")) && paths.allows(&at("/healthz")));
        assert!(!paths.allows(&at("/api")) && !paths.allows(&at("/healthz/x")));
    }

    #[test]
    fn what_is_missing_is_told_as_upstream_tells_it() {
        let held = [rule(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}))];
        let wanted = [rule(
            json!({"verbs": ["get", "list", "watch"], "apiGroups": [""], "resources": ["pods", "secrets"]}),
        )];
        assert_eq!(
            describe(missing(&held, &wanted)),
            "{APIGroups:[\"\"], Resources:[\"pods\"], Verbs:[\"list\" \"watch\"]}\n\
             {APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\" \"list\" \"watch\"]}"
        );
        let all = [rule(json!({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}))];
        assert!(missing(&all, &wanted).is_empty());
        assert!(!missing(&wanted, &all).is_empty());
    }

    fn word(of: &'static [&'static str]) -> impl Strategy<Value = Words> {
        prop::collection::vec(prop::sample::select(of), 0..3)
            .prop_map(|v| v.into_iter().map(Box::from).collect())
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        (
            word(&["get", "list", "*"]),
            word(&["", "apps", "*"]),
            word(&["pods", "pods/log", "*/log", "nodes", "*"]),
            word(&["a", "b"]),
            word(&["/a", "/a/*", "/a/b", "*"]),
        )
            .prop_map(|(verbs, groups, resources, names, paths)| Rule {
                verbs,
                groups,
                resources,
                names,
                paths,
            })
    }

    fn any_request() -> impl Strategy<Value = Attributes> {
        let resource = (
            prop::sample::select(&["get", "list", "watch"][..]),
            prop::sample::select(&["", "apps", "batch"][..]),
            prop::sample::select(&["pods", "pods/log", "nodes/log", "nodes"][..]),
            prop::sample::select(&["a", "b", "c", ""][..]),
        )
            .prop_map(|(v, g, r, n)| on(v, g, r, n));
        let path =
            (prop::sample::select(&["get", "list"][..]), prop::sample::select(&["/a", "/a/b", "/c"][..]))
                .prop_map(|(v, p)| Attributes { verb: v.into(), path: p.into(), ..Attributes::default() });
        prop_oneof![resource, path]
    }

    /// The rule spelled out word by word, without any of the shortcuts above.
    fn naive(rule: &Rule, a: &Attributes) -> bool {
        let verb = rule.verbs.iter().any(|v| **v == *"*" || **v == *a.verb);
        let Some(r) = &a.resource else {
            let path = rule.paths.iter().any(|p| match p.strip_suffix('*') {
                Some(prefix) => a.path.starts_with(prefix),
                None => **p == *a.path,
            });
            return verb && path;
        };
        let full = r.with_subresource();
        let mut spellings = vec!["*".to_owned(), full.to_string()];
        if !r.subresource.is_empty() {
            spellings.push(format!("*/{}", r.subresource));
        }
        verb && rule.groups.iter().any(|g| **g == *"*" || **g == *r.group)
            && rule.resources.iter().any(|x| spellings.iter().any(|s| **s == **x))
            && (rule.names.is_empty() || rule.names.iter().any(|n| **n == *r.name))
    }

    proptest! {
        #[test]
        fn a_rule_agrees_with_its_words(rule in any_rule(), request in any_request()) {
            prop_assert_eq!(rule.allows(&request), naive(&rule, &request));
        }

        /// Whoever holds rules that cover others can do whatever the others allow: no escalation.
        #[test]
        fn covering_rules_allow_all_that_the_covered_allow(
            held in prop::collection::vec(any_rule(), 0..4),
            wanted in any_rule(),
            request in any_request(),
        ) {
            let wanted = [wanted];
            if missing(&held, &wanted).is_empty() && wanted[0].allows(&request) {
                prop_assert!(held.iter().any(|r| r.allows(&request)));
            }
        }
    }
}
