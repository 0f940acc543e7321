//! Layers inside a crate: modules beside each other may not know one another in a circle. What two of them need lies
//! below both. Checked at every level of a crate; what only tests say does not count.

mod graph;
mod references;

use std::fs;

use crate::layout::Layout;
use graph::Graph;
use references::Source;

pub(super) fn check(layout: &Layout, files: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    for room in rooms(files) {
        let inside = files.iter().filter_map(|file| {
            let path = file.strip_prefix(room)?.strip_prefix("/src/")?;
            path.ends_with(".rs").then_some((file, path))
        });
        let sources = inside.filter_map(|(file, path)| {
            Some(Source::new(path, &fs::read_to_string(layout.root.join(file)).ok()?))
        });
        problems.extend(circles(room, sources.collect()));
    }
    problems
}

fn rooms(files: &[String]) -> impl Iterator<Item = &str> {
    files.iter().filter_map(|file| file.strip_suffix("/Cargo.toml")).filter(|room| !room.starts_with("fuzz"))
}

fn circles(room: &str, sources: Vec<Source>) -> Vec<String> {
    let mut problems = Vec::new();
    for (level, graph) in Graph::by_level(&sources) {
        let place = if level.is_empty() { room.to_owned() } else { format!("{room}, {}", level.join("::")) };
        for circle in graph.circles() {
            let names: Vec<&str> = circle.modules.iter().map(String::as_str).collect();
            let arcs: Vec<String> = circle
                .shortest
                .iter()
                .map(|arc| format!("\n    {} knows {}: {}", arc.from, arc.to, arc.reference))
                .collect();
            problems.push(format!("{place}: modules in a circle: {}{}", names.join(", "), arcs.concat()));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(files: &[(&str, &str)]) -> Vec<String> {
        circles("crates/x", files.iter().map(|(path, text)| Source::new(path, text)).collect())
    }

    #[test]
    fn a_circle_is_told_with_one_reference_for_each_arc() {
        let lib = ("lib.rs", "pub mod a;\nmod b;\nmod c;\npub use c::Thing;");
        let a = ("a.rs", "use crate::{b::Bee, std};");
        let b = ("b/mod.rs", "fn f() -> crate::Thing { todo() }");
        let c = ("c.rs", "mod inner {\n    use super::super::a;\n}");
        let want = "crates/x: modules in a circle: a, b, c\
            \n    a knows b: a.rs:1\n    b knows c: b/mod.rs:1\n    c knows a: c.rs:2";
        assert_eq!(told(&[lib, a, b, c]), [want]);
        assert_eq!(told(&[lib, a, b]), [""; 0]);
    }

    #[test]
    fn a_circle_deep_inside_is_told_too() {
        let files = [
            ("lib.rs", "mod top;"),
            ("top/mod.rs", "mod a; mod b; pub use b::Bee;"),
            ("top/a.rs", "use super::Bee;"),
            ("top/b.rs", "use crate::top::a::A;"),
        ];
        let want = "crates/x, top: modules in a circle: a, b\
            \n    a knows b: top/a.rs:1\n    b knows a: top/b.rs:1";
        assert_eq!(told(&files), [want]);
    }

    #[test]
    fn tests_comments_and_text_know_whom_they_like() {
        let lib = ("lib.rs", "mod a; mod b; #[cfg(test)] mod testing;");
        let b = ("b.rs", "use crate::a;");
        for text in [
            "// crate::b",
            "/* crate::b /* nested */ crate::b */",
            "const X: &str = \"crate::b\"; const Y: &str = r#\"\" crate::b\"#; const Z: char = '\"';",
            "#[cfg(test)]\nmod tests { use crate::b; fn f() { {} } }",
            "#[cfg(test)]\nuse crate::b;",
            "#[cfg(any(test, feature = \"testing\"))]\nfn f<A, B>(x: [A; 2]) -> B { crate::b::f() }",
            "struct X { #[cfg(test)] b: crate::b::B<u8>, c: u8 }",
            "#[cfg(test)]\nmod deep;",
        ] {
            let deep = if text.contains("deep") { "use crate::b;" } else { "" };
            let files = [lib, ("a.rs", text), b, ("a/deep.rs", deep), ("testing.rs", "use crate::a;")];
            assert_eq!(told(&files), [""; 0], "{text}");
        }
        let shown = "#[cfg(not(test))]\nuse crate::b;";
        assert_eq!(told(&[lib, ("a.rs", shown), b]).len(), 1);
    }
}
