//! Rules about what the repository says of itself.

use std::fs;

use crate::layout::Layout;

const PAPERS: &[&str] =
    &["README.md", "README.zh-CN.md", "ARCHITECTURE.md", "STYLE.md", "CHANGELOG.md", "LICENSE", "deny.toml"];

pub(super) fn check(layout: &Layout, files: &[String]) -> Vec<String> {
    let mut problems: Vec<String> = PAPERS
        .iter()
        .filter(|paper| !layout.root.join(paper).is_file())
        .map(|paper| format!("{paper} is missing"))
        .collect();
    let read = |file: &str| fs::read_to_string(layout.root.join(file)).unwrap_or_default();
    let architecture = read("ARCHITECTURE.md");
    for path in named_paths(&architecture).filter(|path| !layout.root.join(path).exists()) {
        problems.push(format!("ARCHITECTURE.md names {path}, which does not exist"));
    }
    for room in rooms(files).filter(|room| !architecture.contains(&format!("`{room}`"))) {
        problems.push(format!("ARCHITECTURE.md says nothing about {room}"));
    }
    let (english, chinese) = (headings(&read("README.md")), headings(&read("README.zh-CN.md")));
    if english != chinese {
        problems.push(format!(
            "README.md has {english} headings and README.zh-CN.md {chinese}: translate what changed"
        ));
    }
    problems
}

/// What stands in backticks and looks like a path of ours.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_ours = |word: &&str| {
        ["crates/", "xtask/", "docs/", "examples/", ".ci/"].iter().any(|top| word.starts_with(top))
            && !word.contains([' ', '*', '<'])
    };
    text.split('`').skip(1).step_by(2).filter(is_ours)
}

/// `crates/x` for each crate that has a manifest.
fn rooms(files: &[String]) -> impl Iterator<Item = &str> {
    files
        .iter()
        .filter_map(|file| file.strip_suffix("/Cargo.toml"))
        .filter(|room| room.starts_with("crates/"))
}

fn headings(text: &str) -> usize {
    text.lines().filter(|line| line.starts_with('#')).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_backticks_are_found() {
        let text = "See `crates/base/src/time.rs`, `cargo test`, `docs/decisions/001.md` and crates/x.";
        assert_eq!(
            named_paths(text).collect::<Vec<_>>(),
            ["crates/base/src/time.rs", "docs/decisions/001.md"]
        );
    }
}
