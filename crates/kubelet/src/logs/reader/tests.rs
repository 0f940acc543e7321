#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::Path;

use kubelet_core::log_rotation;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;

use super::*;

fn raw(text: &str, tag: &str) -> String {
    format!("2026-01-01T00:00:00Z stdout {tag} {text}\n")
}

fn all(path: &Path, options: Options) -> String {
    let path = LogPath::below(path.parent().unwrap(), path).unwrap();
    let mut cursor = Cursor::open(&path, &options).unwrap();
    let mut text = Vec::new();
    while let Step::Text(t) = cursor.step().unwrap() {
        text.extend_from_slice(&t);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn tail_counts_lines_not_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    let long = "x".repeat(40_000);
    let text = [raw("a", "F"), raw("b1", "P"), raw(&long, "P"), raw("b3", "F"), raw("c", "F")].concat();
    std::fs::write(&path, &text).unwrap();
    let tail = |n| all(&path, Options { tail: Some(n), ..Options::default() });
    assert_eq!(tail(0), "");
    assert_eq!(tail(1), "c\n");
    assert_eq!(tail(2), format!("b1{long}b3\nc\n"));
    assert_eq!(tail(3), format!("a\nb1{long}b3\nc\n"));
    assert_eq!(tail(9), tail(3));
    std::fs::write(&path, format!("{text}2026-01-01T00:00:00Z stdout F unfin")).unwrap();
    assert_eq!(tail(1), "unfin");
    assert_eq!(tail(2), "c\nunfin");
    std::fs::write(&path, "").unwrap();
    assert_eq!(tail(1), "");
}

#[test]
fn who_asks_for_the_last_lines_gets_no_more_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    std::fs::write(&path, raw("a", "F") + &raw("b", "F")).unwrap();
    for (follow, expected) in [(false, "b\n"), (true, "b\nc\n")] {
        let place = LogPath::below(dir.path(), &path).unwrap();
        let options = Options { tail: Some(1), follow, ..Options::default() };
        let mut cursor = Cursor::open(&place, &options).unwrap();
        let log = std::fs::OpenOptions::new().append(true).open(&path);
        log.unwrap().write_all(raw("c", "F").as_bytes()).unwrap();
        let mut text = Vec::new();
        while let Step::Text(t) = cursor.step().unwrap() {
            text.extend_from_slice(&t);
        }
        assert_eq!(String::from_utf8(text).unwrap(), expected, "follow: {follow}");
        std::fs::write(&path, raw("a", "F") + &raw("b", "F")).unwrap();
    }
}

#[test]
fn bytes_are_limited_with_the_timestamps_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("0.log");
    std::fs::write(&path, raw("hello", "F").repeat(10_000)).unwrap();
    let limited = |limit_bytes, timestamps| {
        let wanted = Wanted { timestamps, ..Wanted::default() };
        all(&path, Options { limit_bytes: Some(limit_bytes), wanted, ..Options::default() })
    };
    assert_eq!(limited(8, false), "hello\nhe");
    assert_eq!(limited(33, true), "2026-01-01T00:00:00.000000000Z he");
    assert_eq!(limited(0, false), "");
    assert_eq!(limited(50_000, false).len(), 50_000);
}

/// A runtime and a log rotator, taking turns with a reader.
struct World {
    dir: tempfile::TempDir,
    writer: File,
    renamed: bool,
    second: i64,
    written: String,
    count: u32,
}

#[derive(Clone, Debug)]
enum Act {
    Write(u8),
    Piece,
    Rename,
    Reopen,
    Compress,
    Prune,
    Read(u8),
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let writer = File::create(dir.path().join("0.log")).unwrap();
        Self { dir, writer, renamed: false, second: 0, written: String::new(), count: 0 }
    }

    fn names(&self) -> Vec<String> {
        std::fs::read_dir(self.dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    fn write(&mut self, tag: &str) {
        self.count += 1;
        let text = format!("line {} {}", self.count, "y".repeat(self.count as usize % 50));
        self.writer.write_all(raw(&text, tag).as_bytes()).unwrap();
        self.written += &text;
        if tag == "F" {
            self.written += "\n";
        }
    }

    fn rename(&mut self) {
        if !std::mem::replace(&mut self.renamed, true) {
            self.second += 1;
            let plan =
                log_rotation::rotate("0.log", &self.names(), 100, base::time::Wall::from_secs(self.second));
            std::fs::rename(self.dir.path().join("0.log"), self.dir.path().join(plan.rename_to)).unwrap();
        }
    }

    fn reopen(&mut self) {
        if std::mem::replace(&mut self.renamed, false) {
            self.writer = File::create(self.dir.path().join("0.log")).unwrap();
        }
    }

    /// Packs every rotation but the newest, as a rotation does.
    fn compress(&self) {
        let plan = log_rotation::rotate("0.log", &self.names(), 100, base::time::Wall(0));
        let newest = log_rotation::rotated_since("0.log", &self.names(), None).pop();
        for name in plan.compress.iter().filter(|n| newest.as_ref().is_none_or(|(_, newest)| newest != *n)) {
            let plain = self.dir.path().join(name);
            let packed = File::create(self.dir.path().join(format!("{name}.gz"))).unwrap();
            let mut encoder = flate2::write::GzEncoder::new(packed, flate2::Compression::fast());
            encoder.write_all(&std::fs::read(&plain).unwrap()).unwrap();
            encoder.finish().unwrap();
            std::fs::remove_file(plain).unwrap();
        }
    }
}

impl World {
    /// Removes the oldest rotation.
    fn prune(&self) {
        if let Some((_, name)) = log_rotation::rotated_since("0.log", &self.names(), None).into_iter().next()
        {
            std::fs::remove_file(self.dir.path().join(name)).unwrap();
        }
    }

    /// The text of everything that is still there.
    fn kept(&self) -> String {
        let rotated = log_rotation::rotated_since("0.log", &self.names(), None);
        let names = rotated.into_iter().map(|(_, name)| name).chain(["0.log".to_owned()]);
        let mut text = String::new();
        for name in names {
            let file = File::open(self.dir.path().join(&name)).unwrap();
            let mut raw = String::new();
            match name.ends_with(".gz") {
                true => MultiGzDecoder::new(file).read_to_string(&mut raw).unwrap(),
                false => { file }.read_to_string(&mut raw).unwrap(),
            };
            for line in raw.lines() {
                text += line.split_once(" F ").unwrap().1;
                text += "\n";
            }
        }
        text
    }
}

fn read_some(cursor: &mut Cursor, steps: u8, text: &mut Vec<u8>) {
    for _ in 0..steps {
        match cursor.step().unwrap() {
            Step::Text(t) => text.extend_from_slice(&t),
            Step::Rotated => cursor.advance().unwrap(),
            Step::CaughtUp | Step::Done => return,
        }
    }
}

/// What a follower reads who was there from the beginning.
fn followed(acts: Vec<Act>) -> (World, String) {
    let mut world = World::new();
    let path = LogPath::below(world.dir.path(), &world.dir.path().join("0.log")).unwrap();
    let mut cursor = Cursor::open(&path, &Options { follow: true, ..Options::default() }).unwrap();
    let mut text = Vec::new();
    for act in acts {
        match act {
            Act::Write(n) => (0..n).for_each(|_| world.write("F")),
            Act::Piece => world.write("P"),
            Act::Rename => world.rename(),
            Act::Reopen => world.reopen(),
            Act::Compress => world.compress(),
            Act::Prune => world.prune(),
            Act::Read(steps) => read_some(&mut cursor, steps, &mut text),
        }
    }
    world.reopen();
    read_some(&mut cursor, 255, &mut text);
    (world, String::from_utf8(text).unwrap())
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (1u8..5).prop_map(Act::Write),
        1 => Just(Act::Piece),
        2 => Just(Act::Rename),
        2 => Just(Act::Reopen),
        1 => Just(Act::Compress),
        3 => (1u8..6).prop_map(Act::Read),
    ];
    prop::collection::vec(act, 0..60)
}

proptest! {
    #[test]
    fn every_line_once_and_in_order_whatever_is_rotated_when(acts in acts()) {
        let (world, text) = followed(acts);
        prop_assert_eq!(text, world.written);
    }
}

#[tokio::test]
async fn a_follower_sees_lines_as_they_come_and_ends_with_the_container() {
    let mut world = World::new();
    let path = LogPath::below(world.dir.path(), &world.dir.path().join("0.log")).unwrap();
    let ended = CancellationToken::new();
    let options = Options { follow: true, ..Options::default() };
    let mut text = read(path, options, ended.clone()).await.unwrap();
    world.write("F");
    let mut seen = String::from_utf8(text.recv().await.unwrap().unwrap().to_vec()).unwrap();
    world.rename();
    world.write("F");
    world.reopen();
    world.write("F");
    ended.cancel();
    while let Some(piece) = text.recv().await {
        seen += std::str::from_utf8(&piece.unwrap()).unwrap();
    }
    assert_eq!(seen, world.written);
}

#[tokio::test]
async fn a_missing_log_is_an_error_and_a_lost_reader_ends_the_task() {
    let world = World::new();
    let path = |name| LogPath::below(world.dir.path(), &world.dir.path().join(name)).unwrap();
    assert!(read(path("9.log"), Options::default(), CancellationToken::new()).await.is_err());
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let options = Options { follow: true, ..Options::default() };
    drop(read(path("0.log"), options, CancellationToken::new()).await.unwrap());
    while tokio::runtime::Handle::current().metrics().num_alive_tasks() > before {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

fn acts_of_a_laggard() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (1u8..5).prop_map(Act::Write),
        3 => Just(Act::Rename),
        3 => Just(Act::Reopen),
        2 => Just(Act::Compress),
        2 => Just(Act::Prune),
        1 => (1u8..4).prop_map(Act::Read),
    ];
    prop::collection::vec(act, 0..60)
}

proptest! {
    #[test]
    fn what_was_not_pruned_is_read_once_and_in_order(acts in acts_of_a_laggard()) {
        let (world, text) = followed(acts);
        let mut written = world.written.lines();
        prop_assert!(text.lines().all(|line| written.any(|w| w == line)), "twice, or out of order: {text}");
        let read: std::collections::HashSet<&str> = text.lines().collect();
        for line in world.kept().lines() {
            prop_assert!(read.contains(line), "{line:?} is there and was not read");
        }
    }
}
