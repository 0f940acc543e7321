//! Rules about the text of source files.

use std::fs;

use super::arrows::PURE;
use crate::layout::Layout;

const LONGEST: usize = 800;

/// Names that say nothing about what a thing is.
const EMPTY_NAMES: &[&str] = &["manager", "helper", "helpers", "util", "utils", "common"];

/// Where unsafe code may be: the hands on the kernel, the program that is alone in its image, and the freestanding one that
/// makes the processes of Pods (docs/decisions/023.md).
const UNSAFE_ROOMS: &[&str] = &["crates/sys/", "crates/demo/src/signals.rs", "crates/keeper/program/"];

/// Words that were here once and that nobody who knows Kubernetes would look for; what they named has Kubernetes' own name now.
const RETIRED: &[&str] = &[
    "bell", "door", "doors", "doubts", "ear", "errand", "feeder", "hearing", "heritage", "house", "insist",
    "knock", "lane", "lanes", "parting", "patience", "refusal", "refusals", "rope", "seats", "shelf",
    "supplies", "tickets", "traced", "wiring",
];

/// What a pure room may not say: it would be looking at the world.
const WORLDLY: &[&str] = &[
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::env",
    "Instant::now",
    "SystemTime::now",
    "aws_lc_rs::rand",
];

/// A task that nobody hears of when it panics.
const BARE: &[&str] =
    &["tokio::spawn(", "task::spawn(", "spawn_local(", "use tokio::spawn;", "use tokio::task::spawn;"];

/// Where a task may be started without a name: where it is given one, and beside the product.
const BARE_TASKS: &[&str] = &[
    "crates/supervise/",
    "crates/testkit/",
    "crates/fixture/",
    "crates/interop-tests/",
    "crates/demo/",
    "xtask/",
];

pub(super) fn check(layout: &Layout, files: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(layout.root.join(file)) else { continue };
        problems.extend(check_paths(layout, file, &text));
        if file.ends_with(".rs") {
            problems.extend(check_rust(file, &text));
        }
    }
    problems
}

/// A path of one person's machine helps nobody else.
fn check_paths(layout: &Layout, file: &str, text: &str) -> Vec<String> {
    let root = layout.root.display().to_string();
    let home = std::env::var("HOME").map(|home| format!("{home}/.")).unwrap_or_default();
    let own = [root, home].into_iter().filter(|path| path.len() > 3);
    own.filter(|path| text.contains(path))
        .map(|path| format!("{file}: names a path of this machine: {path}"))
        .collect()
}

fn check_rust(file: &str, text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let mut complain = |line: usize, what: String| problems.push(format!("{file}:{line}: {what}"));
    let lines = text.lines().count();
    if lines > LONGEST {
        complain(lines, format!("{lines} lines are more than {LONGEST}: split it"));
    }
    let stem = file.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or_default();
    if EMPTY_NAMES.contains(&stem) {
        complain(1, format!("a file named {stem} says nothing about what is in it"));
    }
    // The rules themselves name what they forbid.
    if file == "xtask/src/tidy/text.rs" {
        return problems;
    }
    let is_pure = is_in_pure_room(file);
    let mut is_test = ["/tests/", "/examples/", "/benches/"].iter().any(|dir| file.contains(dir))
        || stem.ends_with("tests")
        || stem == "testing";
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line.trim())) {
        if line.starts_with("//") {
            continue;
        }
        is_test |= line.starts_with("#[cfg(test)]");
        for word in ["todo!(", "unimplemented!(", "#[ignore"] {
            // A test that another test runs as a process of its own is not forgotten.
            if line.contains(word) && !line.contains("#[ignore = \"run by ") {
                complain(number, format!("{word} promises what is not there"));
            }
        }
        if says_unsafe(line) && !UNSAFE_ROOMS.iter().any(|room| file.starts_with(room)) {
            complain(number, "unsafe code belongs in crates/sys".into());
        }
        if let Some(name) = empty_name(line) {
            complain(number, format!("{name} says nothing about what it is"));
        }
        let is_bare = BARE.iter().any(|call| line.contains(call));
        if !is_test && is_bare && !BARE_TASKS.iter().any(|room| file.starts_with(room)) {
            complain(number, "a task is started through crates/supervise, under a name".into());
        }
        if let Some((name, word)) = retired_word(line) {
            complain(
                number,
                format!("{name}: {word:?} is a word of ours; use the one of Kubernetes or of the field"),
            );
        }
        if is_pure && !is_test {
            for word in WORLDLY.iter().filter(|word| line.contains(**word)) {
                complain(number, format!("a pure room looks at the world: {word}"));
            }
        }
    }
    problems
}

fn is_in_pure_room(file: &str) -> bool {
    let path = file.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
    // A small core is a module of its agent.
    path.is_some_and(|(room, below)| PURE.contains(&room) || below.starts_with("core/"))
}

fn says_unsafe(line: &str) -> bool {
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait", "allow(unsafe_code"]
        .iter()
        .any(|form| line.contains(form))
}

/// The name that an item on this line is given.
fn item_name(line: &str) -> Option<&str> {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words.find(|word| matches!(*word, "struct" | "enum" | "trait" | "mod" | "type" | "const" | "static"))?;
    words.next()
}

/// The name of the item on this line and the retired word in it.
fn retired_word(line: &str) -> Option<(&str, &'static str)> {
    let name = item_name(line)?;
    let spaced: String = match name.contains(char::is_lowercase) {
        true => name.chars().flat_map(|c| [c.is_uppercase().then_some('_'), Some(c)]).flatten().collect(),
        false => name.to_owned(),
    };
    let spaced = spaced.to_ascii_lowercase();
    RETIRED.iter().find(|word| spaced.split('_').any(|part| part == **word)).map(|word| (name, *word))
}

/// The name that an item on this line is given, if its last word is an empty one.
fn empty_name(line: &str) -> Option<&str> {
    let name = item_name(line)?;
    let last_capital = name.rfind(char::is_uppercase).unwrap_or(0);
    let last = name[last_capital..].rsplit('_').next()?.to_ascii_lowercase();
    EMPTY_NAMES.contains(&last.as_str()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_can_be_broken() {
        let long = "\n".repeat(LONGEST + 1);
        let rows = [
            ("crates/kubelet/src/a.rs", "fn a() { todo!() }", "a.rs:1: todo!( promises what is not there"),
            ("crates/kubelet/src/a.rs", "unsafe { b() }", "a.rs:1: unsafe code belongs in crates/sys"),
            ("crates/kubelet/src/a.rs", "#[ignore]", "a.rs:1: #[ignore promises what is not there"),
            (
                "crates/kubelet/src/a.rs",
                "unimplemented!()",
                "a.rs:1: unimplemented!( promises what is not there",
            ),
            (
                "crates/kubelet/src/a.rs",
                "tokio::spawn(work());",
                "a.rs:1: a task is started through crates/supervise, under a name",
            ),
            (
                "crates/proxy/src/a.rs",
                "let task = tokio::task::spawn(work());",
                "a.rs:1: a task is started through crates/supervise, under a name",
            ),
            (
                "crates/kubelet/src/a.rs",
                "pub struct PodManager;",
                "a.rs:1: PodManager says nothing about what it is",
            ),
            (
                "crates/kubelet/src/a.rs",
                "mod test_utils;",
                "a.rs:1: test_utils says nothing about what it is",
            ),
            (
                "crates/kubelet/src/util.rs",
                "",
                "util.rs:1: a file named util says nothing about what is in it",
            ),
            ("crates/kubelet/src/a.rs", &long, "a.rs:801: 801 lines are more than 800: split it"),
            (
                "crates/kubelet-core/src/a.rs",
                "use std::fs;",
                "a.rs:1: a pure room looks at the world: std::fs",
            ),
            (
                "crates/apiserver-core/src/a.rs",
                "aws_lc_rs::rand::fill(&mut bytes)",
                "a.rs:1: a pure room looks at the world: aws_lc_rs::rand",
            ),
            (
                "crates/api/src/a.rs",
                "let words = std::env::args_os();",
                "a.rs:1: a pure room looks at the world: std::env",
            ),
            (
                "crates/nft/src/a.rs",
                "let now = Instant::now();",
                "a.rs:1: a pure room looks at the world: Instant::now",
            ),
            (
                "crates/kubelet/src/a.rs",
                "pub(super) struct PodLane {",
                "a.rs:1: PodLane: \"lane\" is a word of ours; use the one of Kubernetes or of the field",
            ),
            (
                "crates/store/src/a.rs",
                "const SHORT_PATIENCE: u8 = 1;",
                "a.rs:1: SHORT_PATIENCE: \"patience\" is a word of ours; use the one of Kubernetes or of the field",
            ),
        ];
        for (file, text, want) in rows {
            let got = check_rust(file, text);
            assert_eq!(got.len(), 1, "{text:?}: {got:?}");
            assert!(got[0].ends_with(want), "{got:?}");
        }
    }

    #[test]
    fn a_path_of_this_machine_is_told() -> fixture::Result<()> {
        let layout = Layout::find()?;
        let text = format!("cd {}/target", layout.root.display());
        assert_eq!(check_paths(&layout, "docs/a.md", &text).len(), 1);
        assert_eq!(check_paths(&layout, "docs/a.md", "cd target"), [""; 0]);
        Ok(())
    }

    #[test]
    fn what_is_allowed_stays_allowed() {
        let rows = [
            ("crates/sys/src/a.rs", "unsafe { b() }"),
            ("crates/kubelet/src/a.rs", "// never say todo!() here"),
            ("crates/kubelet/src/a.rs", "enum CpuManagerPolicy { None }"),
            ("crates/kubelet/src/a.rs", "use std::fs;"),
            ("crates/kubelet/src/a.rs", "struct Dataplane;"),
            ("crates/schema/build.rs", "use std::fs;"),
            ("crates/base/src/a.rs", "#[cfg(test)]\nuse std::env;"),
            ("crates/supervise/src/a.rs", "tokio::spawn(work());"),
            ("crates/kubelet/src/a.rs", "#[cfg(test)]\ntokio::spawn(work());"),
            ("crates/kubelet/src/a.rs", "#[ignore = \"run by another_test\"]"),
            ("crates/kubelet-core/src/a.rs", "#[cfg(test)]\nuse std::fs;"),
        ];
        for (file, text) in rows {
            assert_eq!(check_rust(file, text), [""; 0], "{text:?}");
        }
    }
}
