//! What deny.toml allows, checked from cargo metadata: the part of cargo-deny that needs no cargo-deny.

use serde_json::Value;

/// Every foreign package has an allowed licence, comes from a registry, and is not banned.
pub(super) fn check(metadata: &Value, deny_toml: &str) -> Vec<String> {
    let allowed = strings_of(deny_toml, "allow = [");
    let banned: Vec<&str> =
        deny_toml.lines().filter_map(|l| l.trim().strip_prefix("{ crate = \"")?.split('"').next()).collect();
    let mut problems = Vec::new();
    if allowed.is_empty() {
        problems.push("deny.toml allows no licence at all".to_owned());
    }
    for package in metadata["packages"].as_array().into_iter().flatten().filter(|p| !p["source"].is_null()) {
        let name = package["name"].as_str().unwrap_or_default();
        let licence = package["license"].as_str().unwrap_or_default();
        if !is_allowed(licence, &allowed) {
            problems.push(format!("{name}: deny.toml does not allow its licence, {licence:?}"));
        }
        if !package["source"].as_str().unwrap_or_default().starts_with("registry+") {
            problems.push(format!("{name}: comes from {}, not from a registry", package["source"]));
        }
        if banned.contains(&name) {
            problems.push(format!("{name}: is banned by deny.toml"));
        }
    }
    problems
}

/// The strings of the array that begins with `opening`.
fn strings_of<'a>(toml: &'a str, opening: &str) -> Vec<&'a str> {
    let Some((_, rest)) = toml.split_once(opening) else { return Vec::new() };
    let array = rest.split(']').next().unwrap_or_default();
    array.split('"').skip(1).step_by(2).collect()
}

/// Evaluates an SPDX expression: OR is weakest, AND binds stronger, WITH belongs to its licence. Old manifests write
/// `/` for OR.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let verdict = any_of(&mut words, allowed);
    words.peek().is_none() && verdict
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any_of(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut verdict = all_of(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        verdict |= all_of(words, allowed);
    }
    verdict
}

fn all_of(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    let mut verdict = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        verdict &= one(words, allowed);
    }
    verdict
}

fn one(words: &mut Words<'_>, allowed: &[&str]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let verdict = any_of(words, allowed);
        return words.next_if_eq(&")").is_some() && verdict;
    }
    let Some(name) = words.next() else { return false };
    match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
        Some(exception) => allowed.contains(&format!("{name} WITH {exception}").as_str()),
        None => allowed.contains(&name),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn expressions() {
        let allowed = ["MIT", "ISC", "Apache-2.0 WITH LLVM-exception"];
        for (expression, verdict) in [
            ("MIT", true),
            ("GPL-3.0", false),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("GPL-3.0 AND MIT", false),
            ("MIT OR GPL-3.0 AND GPL-2.0", true),
            ("(MIT OR GPL-3.0) AND GPL-2.0", false),
            ("ISC AND (GPL-3.0 OR MIT)", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0", false),
            ("(MIT", false),
            ("MIT ISC", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), verdict, "{expression}");
        }
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let deny = "[licenses]\nallow = [\n    \"MIT\",\n]\n[bans]\ndeny = [\n    { crate = \"nix\", reason = \"x\" },\n]\n";
        let package = |name: &str, licence: &str, source: &str| json!({ "name": name, "license": licence, "source": source });
        let metadata = json!({ "packages": [
            package("good", "MIT", "registry+x"),
            package("bad", "GPL-3.0", "registry+x"),
            package("wild", "MIT", "git+x"),
            package("nix", "MIT", "registry+x"),
            { "name": "ours", "source": null },
        ]});
        assert_eq!(
            check(&metadata, deny),
            [
                "bad: deny.toml does not allow its licence, \"GPL-3.0\"",
                "wild: comes from \"git+x\", not from a registry",
                "nix: is banned by deny.toml",
            ]
        );
    }
}
