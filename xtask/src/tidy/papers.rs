//! Rules about what the repository says of itself.

use std::fs;

use crate::layout::Layout;

const PAPERS: &[&str] = &[
    "README.md",
    "README.zh-CN.md",
    "ARCHITECTURE.md",
    "STYLE.md",
    "CHANGELOG.md",
    "LICENSE",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "deny.toml",
];

/// Its last column names the tests that keep each way in shut.
const CORPUS: &str = "docs/security.md";

pub(super) fn check(layout: &Layout, files: &[String]) -> Vec<String> {
    let mut problems: Vec<String> = PAPERS
        .iter()
        .filter(|paper| !layout.root.join(paper).is_file())
        .map(|paper| format!("{paper} is missing"))
        .collect();
    let read = |file: &str| fs::read_to_string(layout.root.join(file)).unwrap_or_default();
    let architecture = read("ARCHITECTURE.md");
    for room in rooms(files).filter(|room| !architecture.contains(&format!("`{room}`"))) {
        problems.push(format!("ARCHITECTURE.md says nothing about {room}"));
    }
    problems
        .extend(missing_tests(&read(CORPUS), files.iter().filter(|f| f.ends_with(".rs")).map(|f| read(f))));
    for page in files.iter().filter(|f| f.ends_with(".md")) {
        let text = read(page);
        problems.extend(dead_links(layout, page, &text));
        let missing = named_paths(&text).filter(|path| !layout.root.join(path).exists());
        let missing = missing.chain(sources(&text).filter(|source| !is_tracked(files, source)));
        problems.extend(missing.map(|path| format!("{page} names {path}, which does not exist")));
    }
    let (english, chinese) = (headings(&read("README.md")), headings(&read("README.zh-CN.md")));
    if english != chinese {
        problems.push(format!(
            "README.md has {english} headings and README.zh-CN.md {chinese}: translate what changed"
        ));
    }
    problems
}

/// Tests that the corpus names and that no source has: whoever removes or renames one has to say what took its place.
fn missing_tests(corpus: &str, sources: impl Iterator<Item = String>) -> Vec<String> {
    let rows = corpus.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches('|').rsplit('|').next());
    let is_test =
        |word: &&str| word.contains('_') && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let mut named: Vec<&str> =
        cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(is_test).collect();
    for source in sources {
        named.retain(|test| !source.contains(&format!("fn {test}(")));
    }
    named.iter().map(|test| format!("{CORPUS} names the test {test}, which does not exist")).collect()
}

/// What stands in backticks and looks like a path of ours.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    let is_ours = |word: &&str| {
        ["crates/", "xtask/", "docs/", "examples/", ".ci/"].iter().any(|top| word.starts_with(top))
            && !word.contains([' ', '*', '<'])
    };
    text.split('`').skip(1).step_by(2).filter(is_ours)
}

/// What stands in backticks and looks like a source file, however much of its path is said.
fn sources(text: &str) -> impl Iterator<Item = &str> {
    let is_source = |word: &&str| word.ends_with(".rs") && !word.contains([' ', '*', '<']);
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(is_source)
        .filter(|word| named_paths(&format!("`{word}`")).next().is_none())
}

fn is_tracked(files: &[String], source: &str) -> bool {
    files
        .iter()
        .any(|file| file.strip_suffix(source).is_some_and(|rest| rest.is_empty() || rest.ends_with('/')))
}

/// Links of a page to files that are not there.
fn dead_links(layout: &Layout, page: &str, text: &str) -> Vec<String> {
    let beside = layout.root.join(page);
    let is_there = |link: &str| beside.parent().is_some_and(|dir| dir.join(link).exists());
    let dead = linked_files(text).filter(|link| !is_there(link));
    dead.map(|link| format!("{page} links to {link}, which does not exist")).collect()
}

/// Where the links of a page lead inside the repository, without the heading they name.
fn linked_files(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ', '\n']).next());
    let files = links.filter(|link| !link.contains("://") && !link.starts_with("mailto:"));
    files.filter_map(|link| link.split('#').next()).filter(|file| !file.is_empty())
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
    fn a_test_that_the_corpus_names_and_nobody_has_is_told() {
        let corpus = "`in_prose_only`\n\n| finding | test |\n|---|---|\n| `not_here` | `it_is_there`, `it_is_gone` |\n";
        let sources =
            || ["#[test]\nfn it_is_there() {}".to_owned(), "// it_is_gone()".to_owned()].into_iter();
        let told = "docs/security.md names the test it_is_gone, which does not exist";
        assert_eq!(missing_tests(corpus, sources()), [told]);
        assert!(missing_tests(corpus, sources().chain(["async fn it_is_gone() {}".to_owned()])).is_empty());
    }

    #[test]
    fn a_source_file_is_known_by_the_end_of_its_path() {
        let text =
            "`http/path.rs` and `path.rs` beside `crates/base/src/time.rs`, `cargo test x.rs` and `*.rs`";
        assert_eq!(sources(text).collect::<Vec<_>>(), ["http/path.rs", "path.rs"]);
        let files = ["crates/a/src/asked/path.rs".to_owned()];
        assert!(is_tracked(&files, "path.rs") && is_tracked(&files, "asked/path.rs"));
        assert!(!is_tracked(&files, "http/path.rs") && !is_tracked(&files, "th.rs"));
    }

    #[test]
    fn links_into_the_repository_are_found() {
        let text = "[a](x.md#part) ![b](img/b.svg) [c](https://example.com/c.md) [d](#here) [e](../E.md)";
        assert_eq!(linked_files(text).collect::<Vec<_>>(), ["x.md", "img/b.svg", "../E.md"]);
    }

    #[test]
    fn paths_in_backticks_are_found() {
        let text = "See `crates/base/src/time.rs`, `cargo test`, `docs/decisions/001.md` and crates/x.";
        assert_eq!(
            named_paths(text).collect::<Vec<_>>(),
            ["crates/base/src/time.rs", "docs/decisions/001.md"]
        );
    }
}
