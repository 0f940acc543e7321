//! The disk may take its time: what an async function does itself may not wait for it. It goes to the blocking pool, or to a
//! thread of its own, as a closure or as a function that is called there (docs/decisions/021.md).

use std::fs;
use std::ops::Range;

use super::tokens::{Token, tokens};
use crate::layout::Layout;

/// Beside the product.
const FREE: &[&str] = &["testkit", "fixture", "interop-tests", "demo", "fuzzed"];

/// Methods of a path that look at the disk.
const OF_PATHS: &[&str] = &[
    "canonicalize",
    "exists",
    "is_dir",
    "is_file",
    "is_symlink",
    "metadata",
    "read_dir",
    "read_link",
    "symlink_metadata",
    "try_exists",
];

pub(super) fn check(layout: &Layout, files: &[String]) -> Vec<String> {
    let product = files.iter().filter(|file| is_product(file));
    let text = |file: &&String| fs::read_to_string(layout.root.join(file)).unwrap_or_default();
    product.flat_map(|file| check_rust(file, &text(&file))).collect()
}

fn is_product(file: &str) -> bool {
    let path = file.strip_prefix("crates/").and_then(|path| path.split_once("/src/"));
    path.is_some_and(|(room, path)| {
        let stem = path.rsplit('/').next().and_then(|name| name.strip_suffix(".rs")).unwrap_or("tests");
        !FREE.contains(&room) && !stem.ends_with("tests") && stem != "testing" && !path.contains("tests/")
    })
}

fn check_rust(file: &str, text: &str) -> Vec<String> {
    let code = Code(tokens(text));
    let is_async = code.async_places();
    let places = (0..code.0.len()).filter(|at| is_async[*at]);
    let told = places.filter_map(|at| Some((code.0[at].line, code.disk(at)?)));
    told.map(|(line, what)| {
        format!("{file}:{line}: {what} in an async function: the disk is for a thread that may wait")
    })
    .collect()
}

struct Code<'a>(Vec<Token<'a>>);

// === impl Code ===

impl Code<'_> {
    fn word(&self, at: usize) -> &str {
        self.0.get(at).map_or("", |token| token.text)
    }

    fn before(&self, at: usize, steps: usize) -> &str {
        at.checked_sub(steps).map_or("", |at| self.word(at))
    }

    /// What is asked of the disk here.
    fn disk(&self, at: usize) -> Option<String> {
        let (word, next) = (self.word(at), self.word(at + 1));
        let after = self.word(at + 2);
        let is_function = after.starts_with(char::is_lowercase);
        let path_before = |steps| self.before(at, steps) == "::";
        let of_somebody = path_before(1) && matches!(self.before(at, 2), "tokio" | "rustix")
            || path_before(1) && path_before(3) && self.before(at, 4) == "tokio";
        match word {
            "fs" if next == "::" && is_function && !of_somebody => Some(format!("fs::{after}")),
            "File" if next == "::" && matches!(after, "open" | "create" | "options") && !of_somebody => {
                Some(format!("File::{after}"))
            }
            "OpenOptions" if next == "::" => Some("OpenOptions".to_owned()),
            _ if OF_PATHS.contains(&word) => {
                (self.before(at, 1) == "." && next == "(" && after == ")").then(|| format!(".{word}()"))
            }
            _ => None,
        }
    }

    /// For each token, whether it runs as part of an async function or block.
    fn async_places(&self) -> Vec<bool> {
        let mut places = vec![false; self.0.len()];
        // What begins later lies inside: the innermost counts.
        for at in 0..self.0.len() {
            let scope = match self.word(at) {
                "async" if self.word(at + 1) == "fn" => self.body(at + 1).map(|body| (body, true)),
                "async" => self.block(at).map(|body| (body, true)),
                "fn" if self.before(at, 1) != "async" => self.body(at).map(|body| (body, false)),
                "|" if self.begins_closure(at) => self.closure(at).map(|body| (body, false)),
                _ => None,
            };
            let Some((body, value)) = scope else { continue };
            places[body].fill(value);
        }
        self.forget_tests(&mut places);
        places
    }

    /// What tests do inside of a file is their business.
    fn forget_tests(&self, places: &mut [bool]) {
        for at in (0..self.0.len()).filter(|at| self.word(*at) == "#" && self.is_test(*at)) {
            if let Some(body) = self.body(at) {
                places[body].fill(false);
            }
        }
    }

    fn is_test(&self, at: usize) -> bool {
        ["[", "cfg", "(", "test", ")"].iter().enumerate().all(|(i, sign)| self.word(at + 1 + i) == *sign)
    }

    /// `async { … }` and `async move { … }`.
    fn block(&self, at: usize) -> Option<Range<usize>> {
        let open = if self.word(at + 1) == "move" { at + 2 } else { at + 1 };
        (self.word(open) == "{").then(|| open..self.end(open))
    }

    /// The body of the item whose first words are here.
    fn body(&self, at: usize) -> Option<Range<usize>> {
        let mut depth = 0_usize;
        for place in at..self.0.len() {
            match self.word(place) {
                "(" | "[" => depth += 1,
                ")" | "]" => depth = depth.saturating_sub(1),
                ";" if depth == 0 => return None,
                "{" if depth == 0 => return Some(place..self.end(place)),
                _ => {}
            }
        }
        None
    }

    fn begins_closure(&self, at: usize) -> bool {
        matches!(self.before(at, 1), "(" | "," | "=" | "move" | "{" | ";" | "return")
    }

    fn closure(&self, at: usize) -> Option<Range<usize>> {
        let close = (at + 1..self.0.len()).find(|place| self.word(*place) == "|")?;
        let mut begin = close + 1;
        if self.word(begin) == "-" {
            begin = (begin..self.0.len()).find(|place| self.word(*place) == "{")?;
        }
        if self.word(begin) == "{" {
            return Some(begin..self.end(begin));
        }
        let mut depth = 0_usize;
        for place in begin..self.0.len() {
            match self.word(place) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" | "," | ";" if depth == 0 => return Some(begin..place),
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        None
    }

    /// Where the brace that opens here is closed.
    fn end(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for place in open..self.0.len() {
            match self.word(place) {
                "{" => depth += 1,
                "}" if depth == 1 => return place,
                "}" => depth -= 1,
                _ => {}
            }
        }
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_async_function_may_not_wait_for_the_disk() {
        let rows = [
            ("async fn a() {\n    std::fs::read(path)\n}", "a.rs:2: fs::read"),
            ("async fn a(b: [u8; 3]) -> Vec<u8> { fs::write(path, text) }", "a.rs:1: fs::write"),
            ("fn a() -> impl Future { async move { File::open(path) } }", "a.rs:1: File::open"),
            ("async fn a() { OpenOptions::new().open(path) }", "a.rs:1: OpenOptions"),
            ("async fn a() { if path.exists() {} }", "a.rs:1: .exists()"),
            ("fn a() { spawn(move || async { fs::read(path) }) }", "a.rs:1: fs::read"),
        ];
        for (text, want) in rows {
            let told = check_rust("a.rs", text);
            assert_eq!(told.len(), 1, "{text}: {told:?}");
            assert!(told[0].starts_with(want), "{told:?}");
        }
    }

    #[test]
    fn who_may_wait_may_ask_the_disk() {
        for text in [
            "fn a() { fs::read(path) }",
            "async fn a() { spawn_blocking(move || fs::read(path)).await }",
            "async fn a() { let read = || -> io::Result<()> { fs::read_dir(path)?; Ok(()) }; on_thread(read).await }",
            "async fn a() { self.run(|i| { let dir = i.path(); fs::write(dir, text) }).await }",
            "async fn a() { tokio::fs::read(path).await; tokio::fs::File::create(path).await; rustix::fs::stat(path); fs::Permissions::from_mode(1) }",
            "async fn a() { fn b() { fs::read(path) } }",
            "async fn a() { body.metadata(7) }",
            "#[cfg(test)]\nmod tests { async fn a() { fs::read(path) } }",
            "trait A { async fn a(); fn b() { fs::read(path) } }",
        ] {
            assert_eq!(check_rust("a.rs", text), [""; 0], "{text}");
        }
        assert!(is_product("crates/kubelet/src/a.rs") && is_product("crates/kubelet/src/a/mod.rs"));
        for file in ["crates/kubelet/tests/a.rs", "crates/testkit/src/a.rs", "xtask/src/a.rs"] {
            assert!(!is_product(file), "{file}");
        }
        assert!(!is_product("crates/kubelet/src/tests/a.rs") && !is_product("crates/kubelet/src/a_tests.rs"));
    }
}
