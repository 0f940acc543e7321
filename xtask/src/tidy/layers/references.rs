//! The paths that a source file says: `crate::…`, `super::…`, `self::…`, and what its `use` lines bring in.

use std::collections::{BTreeMap, BTreeSet};

use crate::tidy::tokens::{Token, tokens};

/// One file of a crate.
#[derive(Debug)]
pub(super) struct Source {
    /// Its path below `src`.
    pub file: String,
    pub module: Vec<String>,
    pub references: Vec<Reference>,
    /// Modules that exist for tests only, by their whole path.
    tests: BTreeSet<Vec<String>>,
    /// Names that `use` brings into this module: name, and the path it stands for.
    imports: BTreeMap<String, Vec<String>>,
}

#[derive(Debug)]
pub(super) struct Reference {
    /// The module that speaks; deeper than its file inside `mod x { … }`.
    pub module: Vec<String>,
    pub path: Vec<String>,
    pub line: usize,
}

/// All modules of a crate.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    modules: BTreeSet<&'a [String]>,
    tests: BTreeSet<&'a [String]>,
    imports: BTreeMap<&'a [String], &'a BTreeMap<String, Vec<String>>>,
}

// === impl Source ===

impl Source {
    pub(super) fn new(file: &str, text: &str) -> Self {
        let path = file.strip_suffix(".rs").unwrap_or(file);
        let mut module: Vec<String> = path.split('/').map(str::to_owned).collect();
        if module.last().is_some_and(|last| last == "mod") || matches!(path, "lib" | "main") {
            module.pop();
        }
        let mut reader = Reader {
            tokens: tokens(text),
            at: 0,
            inline: Vec::new(),
            depth: 0,
            source: Self {
                file: file.to_owned(),
                module,
                references: Vec::new(),
                tests: BTreeSet::new(),
                imports: BTreeMap::new(),
            },
        };
        reader.read();
        reader.source
    }
}

// === impl Tree ===

impl<'a> Tree<'a> {
    pub(super) fn new(sources: &'a [Source]) -> Self {
        Self {
            modules: sources.iter().map(|source| source.module.as_slice()).collect(),
            tests: sources.iter().flat_map(|source| &source.tests).map(Vec::as_slice).collect(),
            imports: sources.iter().map(|source| (source.module.as_slice(), &source.imports)).collect(),
        }
    }

    /// Whether a module, or one it lies in, exists for tests only; a file may say so by its name.
    pub(super) fn is_test(&self, module: &[String]) -> bool {
        module.last().is_some_and(|name| name.ends_with("_tests"))
            || (1..=module.len()).any(|length| self.tests.contains(&module[..length]))
    }

    /// The module that a path ends in, through names that modules on the way import from elsewhere.
    pub(super) fn resolve(&self, path: &[String]) -> Vec<String> {
        let mut path = path.to_vec();
        // An import may lead to another import; ours never take so many turns.
        for _ in 0..8 {
            let known = (0..=path.len()).rev().find(|length| self.modules.contains(&path[..*length]));
            let known = known.unwrap_or(0);
            let Some(name) = path.get(known) else { return path };
            let Some(real) = self.imports.get(&path[..known]).and_then(|imports| imports.get(name)) else {
                path.truncate(known);
                return path;
            };
            path = real.iter().chain(&path[known + 1..]).cloned().collect();
        }
        path
    }
}

/// Walks through a file's tokens.
struct Reader<'a> {
    tokens: Vec<Token<'a>>,
    at: usize,
    /// Open `mod x {` blocks and the depth of braces they opened at.
    inline: Vec<(String, usize)>,
    depth: usize,
    source: Source,
}

// === impl Reader ===

impl Reader<'_> {
    fn read(&mut self) {
        while self.at < self.tokens.len() {
            if self.is_test_attribute() {
                self.skip_item();
                continue;
            }
            match self.word(0) {
                "{" => self.depth += 1,
                "}" => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.inline.last().is_some_and(|(_, depth)| *depth == self.depth) {
                        self.inline.pop();
                    }
                }
                "mod" if self.word(2) == "{" => {
                    self.inline.push((self.word(1).to_owned(), self.depth));
                    self.at += 1;
                }
                "use" => {
                    self.at += 1;
                    self.import();
                    continue;
                }
                "crate" | "super" | "self" if self.is_path_start() => {
                    self.reference();
                    continue;
                }
                _ => {}
            }
            self.at += 1;
        }
    }

    fn word(&self, ahead: usize) -> &str {
        self.tokens.get(self.at + ahead).map_or("", |token| token.text)
    }

    fn is_path_start(&self) -> bool {
        let before = self.at.checked_sub(1).map_or("", |at| self.tokens[at].text);
        self.word(1) == "::" && before != "::"
    }

    /// `#[cfg(…test…)]`, unless what is asked for is the opposite.
    fn is_test_attribute(&self) -> bool {
        if [self.word(0), self.word(1), self.word(2)] != ["#", "[", "cfg"] {
            return false;
        }
        let inside = self.tokens[self.at..].iter().map(|token| token.text).take_while(|text| *text != "]");
        let words: Vec<&str> = inside.collect();
        words.contains(&"test") && !words.contains(&"not")
    }

    /// Passes over an attribute, those that follow it, and the item or field they belong to.
    fn skip_item(&mut self) {
        while self.word(0) == "#" {
            self.at += 1;
            self.skip_group();
        }
        while matches!(self.word(0), "pub" | "(" | "async" | "unsafe") {
            if self.word(0) == "(" { self.skip_group() } else { self.at += 1 }
        }
        if self.word(0) == "mod" && self.word(2) == ";" {
            let module = self.module().into_iter().chain([self.word(1).to_owned()]).collect();
            self.source.tests.insert(module);
        }
        const ITEMS: &[&str] = &[
            "mod",
            "use",
            "fn",
            "const",
            "static",
            "impl",
            "struct",
            "enum",
            "trait",
            "type",
            "extern",
            "let",
            "macro_rules",
        ];
        let is_item = ITEMS.contains(&self.word(0));
        loop {
            match self.word(0) {
                "" | "}" => return,
                ";" => break,
                "," if !is_item => break,
                "{" if is_item => return self.skip_group(),
                "(" | "[" | "{" => self.skip_group(),
                _ => self.at += 1,
            }
        }
        self.at += 1;
    }

    /// Passes over what a bracket opens, up to its own end.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        loop {
            match self.word(0) {
                "" => return,
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    fn module(&self) -> Vec<String> {
        self.source.module.iter().chain(self.inline.iter().map(|(name, _)| name)).cloned().collect()
    }

    fn reference(&mut self) {
        let (module, line) = (self.module(), self.tokens[self.at].line);
        for (path, _) in self.paths(Vec::new()) {
            let path = absolute(&module, path);
            self.source.references.push(Reference { module: module.clone(), path, line });
        }
    }

    /// `use …;` both refers to things and gives them a name here.
    fn import(&mut self) {
        let (module, line) = (self.module(), self.tokens.get(self.at).map_or(0, |token| token.line));
        for (path, name) in self.paths(Vec::new()) {
            let is_ours = matches!(path.first().map(String::as_str), Some("crate" | "super" | "self"));
            let path = absolute(&module, path);
            if let Some(name) = name.filter(|_| self.inline.is_empty()) {
                self.source.imports.insert(name, path.clone());
            }
            if is_ours {
                self.source.references.push(Reference { module: module.clone(), path, line });
            }
        }
    }

    /// The paths of a tree such as `a::{b, c::d as e}`, each with the name it is known by.
    fn paths(&mut self, mut path: Vec<String>) -> Vec<(Vec<String>, Option<String>)> {
        loop {
            match self.word(0) {
                "{" => return self.branches(&path),
                "*" => {
                    self.at += 1;
                    return vec![(path, None)];
                }
                "self" if !path.is_empty() => self.at += 1,
                "<" => return vec![(path, None)],
                _ => {
                    path.push(self.word(0).to_owned());
                    self.at += 1;
                }
            }
            if self.word(0) != "::" {
                break;
            }
            self.at += 1;
        }
        let mut name = path.last().cloned();
        if self.word(0) == "as" {
            name = Some(self.word(1).to_owned());
            self.at += 2;
        }
        vec![(path, name)]
    }

    fn branches(&mut self, path: &[String]) -> Vec<(Vec<String>, Option<String>)> {
        let mut all = Vec::new();
        self.at += 1;
        while !matches!(self.word(0), "" | "}") {
            all.extend(self.paths(path.to_vec()));
            if self.word(0) == "," {
                self.at += 1;
            }
        }
        self.at += 1;
        all
    }
}

/// A path as seen from the root of the crate. One that begins with neither `crate`, `super` nor `self` begins with a
/// child of the module, or belongs to another crate and then leads nowhere.
fn absolute(module: &[String], path: Vec<String>) -> Vec<String> {
    let mut base = module.to_vec();
    let mut rest = path.into_iter().peekable();
    while let Some(word) = rest.peek() {
        match word.as_str() {
            "crate" => base.clear(),
            "super" => _ = base.pop(),
            "self" => {}
            _ => break,
        }
        rest.next();
    }
    base.extend(rest);
    base
}
