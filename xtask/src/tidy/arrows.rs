//! Who may know whom (ARCHITECTURE.md), from cargo metadata.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// The rooms each room may enter. A room that is not built yet is listed too: its place is decided.
const ARROWS: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("nft", &[]),
    ("x509", &["base"]),
    ("tls", &["x509", "base"]),
    ("supervise", &["base"]),
    ("api", &["base"]),
    ("schema", &["api", "base"]),
    ("client", &["schema", "supervise", "tls", "api", "base"]),
    ("cri", &["api", "base"]),
    ("csi", &["plugins"]),
    ("plugins", &["base"]),
    ("secure-serving", &["client", "serve", "supervise", "tls", "api", "base"]),
    ("serve", &["supervise", "base"]),
    ("store", &["base"]),
    ("streaming", &["supervise", "tls", "api", "base"]),
    ("sys", &["nft", "api", "base"]),
    ("systemd", &["sys", "base"]),
    ("images", &["sys", "api", "base"]),
    ("registry", &["images", "client", "supervise", "tls", "api", "base"]),
    ("apiserver-core", &["schema", "x509", "api", "base"]),
    ("controllers-core", &["schema", "x509", "api", "base"]),
    ("kubelet-core", &["api", "base"]),
    ("proxy-core", &["nft", "api", "base"]),
    ("scheduler-core", &["api", "base"]),
    ("dns-core", &["base"]),
    ("runtime-core", &["base"]),
    ("cni-core", &["nft", "base"]),
    ("keeper", &[]),
    ("kubelet", AGENT),
    ("proxy", AGENT),
    (
        "controllers",
        &[
            "controllers-core",
            "schema",
            "client",
            "secure-serving",
            "serve",
            "supervise",
            "sys",
            "tls",
            "x509",
            "api",
            "base",
        ],
    ),
    (
        "runtime",
        &[
            "runtime-core",
            "keeper",
            "images",
            "registry",
            "client",
            "cri",
            "serve",
            "streaming",
            "supervise",
            "sys",
            "systemd",
            "api",
            "base",
        ],
    ),
    ("scheduler", AGENT),
    ("cni", &["cni-core", "nft", "sys"]),
    ("dns", &["dns-core", "client", "serve", "supervise", "base"]),
    ("addons", &["client", "supervise", "sys", "api", "base"]),
    ("overlay", &["client", "supervise", "sys", "nft", "api", "base"]),
    (
        "apiserver",
        &[
            "apiserver-core",
            "schema",
            "client",
            "serve",
            "store",
            "supervise",
            "sys",
            "tls",
            "x509",
            "api",
            "base",
        ],
    ),
    (
        "longshore",
        &[
            "kubelet",
            "proxy",
            "runtime",
            "images",
            "registry",
            "cni",
            "dns",
            "addons",
            "overlay",
            "scheduler",
            "apiserver",
            "apiserver-core",
            "controllers",
            "controllers-core",
            "kubelet-core",
            "proxy-core",
            "secure-serving",
            "serve",
            "store",
            "streaming",
            "supervise",
            "sys",
            "nft",
            "cri",
            "client",
            "x509",
            "api",
            "base",
        ],
    ),
    // Beside the product, not in it.
    ("demo", &[]),
    (
        "fuzzed",
        &[
            "apiserver-core",
            "dns-core",
            "runtime-core",
            "schema",
            "streaming",
            "systemd",
            "nft",
            "api",
            "base",
        ],
    ),
    ("fixture", &[]),
    ("interop-tests", &["fixture"]),
    ("xtask", &["fixture"]),
    (
        "testkit",
        &[
            "kubelet",
            "proxy",
            "runtime",
            "cni",
            "dns",
            "scheduler",
            "apiserver",
            "apiserver-core",
            "controllers",
            "controllers-core",
            "kubelet-core",
            "proxy-core",
            "scheduler-core",
            "schema",
            "serve",
            "supervise",
            "sys",
            "nft",
            "cri",
            "csi",
            "plugins",
            "client",
            "api",
            "base",
            "fixture",
        ],
    ),
];

/// Agents join cores and hands; none knows another agent.
const AGENT: &[&str] = &[
    "kubelet-core",
    "proxy-core",
    "scheduler-core",
    "secure-serving",
    "serve",
    "streaming",
    "supervise",
    "sys",
    "systemd",
    "nft",
    "cri",
    "csi",
    "plugins",
    "client",
    "tls",
    "x509",
    "api",
    "base",
];

/// Only tests may know these.
const FOR_TESTS: &[&str] = &["testkit", "fixture"];

/// Rooms that decide: whatever they are made of may not touch the world.
pub(super) const PURE: &[&str] = &[
    "base",
    "nft",
    "x509",
    "api",
    "schema",
    "apiserver-core",
    "controllers-core",
    "kubelet-core",
    "proxy-core",
    "scheduler-core",
    "dns-core",
    "cni-core",
    "runtime-core",
];
const WORLDLY: &[&str] =
    &["tokio", "libc", "rustix", "mio", "hyper", "tonic", "inotify", "rand", "getrandom"];

const LICENCE: &str = "Apache-2.0";

pub(super) fn check(metadata: &Value) -> Vec<String> {
    let packages = metadata["packages"].as_array().map(Vec::as_slice).unwrap_or_default();
    let rooms: BTreeMap<&str, &Value> = packages
        .iter()
        .filter(|p| p["source"].is_null())
        .filter_map(|p| Some((p["name"].as_str()?, p)))
        .collect();
    let mut problems = Vec::new();
    for (name, room) in &rooms {
        problems.extend(check_room(name, room, &rooms));
    }
    for name in PURE.iter().filter(|name| rooms.contains_key(*name)) {
        let found = reachable(metadata, name);
        let worldly = WORLDLY.iter().filter(|w| found.contains(**w));
        problems.extend(
            worldly.map(|w| format!("{name} decides and may not touch the world, but depends on {w}")),
        );
    }
    problems
}

fn check_room(name: &str, room: &Value, rooms: &BTreeMap<&str, &Value>) -> Vec<String> {
    let mut problems = Vec::new();
    if room["license"] != LICENCE {
        problems.push(format!("{name}: licence is {}, not {LICENCE}", room["license"]));
    }
    let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
        problems.push(format!("{name} has no row in the table of arrows (xtask/src/tidy/arrows.rs)"));
        return problems;
    };
    for dependency in room["dependencies"].as_array().map(Vec::as_slice).unwrap_or_default() {
        let Some(to) = dependency["name"].as_str().filter(|to| rooms.contains_key(to)) else { continue };
        let is_for_tests = dependency["kind"] == "dev" && (FOR_TESTS.contains(&to) || to == name);
        if !allowed.contains(&to) && !is_for_tests {
            problems.push(format!("{name} may not know {to}"));
        }
    }
    problems
}

/// Everything a package is built from, however deep; what only its tests or its build need does not count.
fn reachable<'a>(metadata: &'a Value, name: &str) -> BTreeSet<&'a str> {
    let nodes = metadata["resolve"]["nodes"].as_array().map(Vec::as_slice).unwrap_or_default();
    let graph: BTreeMap<&str, &Value> = nodes.iter().filter_map(|n| Some((n["id"].as_str()?, n))).collect();
    let names: BTreeMap<&str, &str> = metadata["packages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|p| Some((p["id"].as_str()?, p["name"].as_str()?)))
        .collect();
    let start = names.iter().find(|(id, known)| **known == name && is_local(metadata, id)).map(|(id, _)| *id);
    let mut open: Vec<&str> = start.into_iter().collect();
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    while let Some(id) = open.pop() {
        if !seen.insert(id) {
            continue;
        }
        found.extend(names.get(id));
        for dep in graph.get(id).and_then(|n| n["deps"].as_array()).into_iter().flatten() {
            let is_normal =
                dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k["kind"].is_null()));
            if is_normal {
                open.extend(dep["pkg"].as_str());
            }
        }
    }
    found
}

fn is_local(metadata: &Value, id: &str) -> bool {
    metadata["workspace_members"].as_array().is_some_and(|members| members.iter().any(|m| m == id))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| json!({ "name": name, "kind": kind })).collect();
        json!({ "name": name, "id": name, "source": null, "license": LICENCE, "dependencies": dependencies })
    }

    #[test]
    fn bent_arrows_are_seen() {
        let metadata = json!({ "packages": [
            package("base", &[]),
            package("kubelet", &[("proxy", None), ("testkit", Some("dev")), ("base", None)]),
            package("proxy", &[("testkit", None)]),
            package("testkit", &[]),
            package("attic", &[]),
        ]});
        assert_eq!(
            check(&metadata),
            [
                "attic has no row in the table of arrows (xtask/src/tidy/arrows.rs)",
                "kubelet may not know proxy",
                "proxy may not know testkit",
            ]
        );
    }

    #[test]
    fn a_core_may_not_reach_the_world_through_somebody_else() {
        let edge = |to: &str, kind: Value| json!({ "pkg": to, "dep_kinds": [{ "kind": kind }] });
        let mut foreign = package("middle", &[]);
        foreign["source"] = json!("somewhere");
        let mut tokio = foreign.clone();
        tokio["name"] = json!("tokio");
        tokio["id"] = json!("tokio");
        let graph = |kind: Value| {
            json!({
                "packages": [package("api", &[]), foreign, tokio],
                "workspace_members": ["api"],
                "resolve": { "nodes": [
                    { "id": "api", "deps": [edge("middle", Value::Null)] },
                    { "id": "middle", "deps": [edge("tokio", kind)] },
                    { "id": "tokio", "deps": [] },
                ]},
            })
        };
        assert_eq!(
            check(&graph(Value::Null)),
            ["api decides and may not touch the world, but depends on tokio"]
        );
        assert!(check(&graph(json!("build"))).is_empty());
    }
}
