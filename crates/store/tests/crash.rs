//! Kills a process that writes to the store, again and again, and looks at what it left.
//!
//! The child plays a story that follows from a seed: each of its tasks does one operation after the other, and every
//! operation is a transaction of the change itself and of the task's progress. It says on stdout what was
//! acknowledged. After the kill, every task's progress must be the last acknowledged one or the one after it, and
//! its keys must be exactly what the story says they are at that point.
//!
//! `LONGSHORE_SEEDS=100000` kills ten thousand times instead of a few hundred.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::env;
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base::rng::Rng;
use bytes::Bytes;
use store::{Expect, ListOptions, Options, Retention, Store, Write};

const TASKS: u64 = 6;
const SLOTS: u64 = 12;
const KILLS: u64 = 300;
const PLACE: &str = "STORE_CRASH_PLACE";

/// Compaction and checkpoints run all the time, so that kills meet them too.
fn options() -> Options {
    let retention = Retention { age: Duration::from_millis(20), bytes: 200_000 };
    Options { retention, recent_bytes: 50_000, readers: 1 }
}

/// One operation of the story: the keys it changes, and to what.
fn operation(task: u64, number: u64) -> Vec<(String, Option<Bytes>)> {
    let mut rng = Rng::new(task * 1_000_003 + number);
    let slot = |rng: &mut Rng| format!("/registry/story/task{task}/{}", rng.below(SLOTS));
    let filler = |rng: &mut Rng| {
        let size = if rng.chance(0.1) { 40_000 } else { 3_000 };
        let mut text = format!("{task} {number} ");
        text.extend(std::iter::repeat_n((b'a' + (number % 26) as u8) as char, rng.below(size) as usize));
        Bytes::from(text)
    };
    let first = slot(&mut rng);
    match rng.below(4) {
        0 => vec![(first, None)],
        1 => {
            let second = slot(&mut rng);
            let value = filler(&mut rng);
            if second == first {
                vec![(first, Some(value))]
            } else {
                vec![(first, Some(value.clone())), (second, Some(value))]
            }
        }
        _ => vec![(first, Some(filler(&mut rng)))],
    }
}

fn progress_key(task: u64) -> String {
    format!("/registry/progress/task{task}")
}

/// The whole of a story up to some operation of each task.
#[derive(Default)]
struct Story {
    done: BTreeMap<u64, u64>,
    keys: BTreeMap<String, Bytes>,
}

// === impl Story ===

impl Story {
    fn advance(&mut self, task: u64, to: u64) {
        let done = self.done.entry(task).or_default();
        while *done < to {
            *done += 1;
            for (key, value) in operation(task, *done) {
                match value {
                    Some(value) => drop(self.keys.insert(key, value)),
                    None => drop(self.keys.remove(&key)),
                }
            }
        }
    }
}

#[test]
fn killed_at_any_moment_it_has_every_acknowledged_write_and_no_half_one() {
    let seeds = env::var("LONGSHORE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    let kills = seeds.map_or(KILLS, |n| (n / 10).clamp(KILLS, 10_000));
    // A kill loses nothing that reached the kernel, so memory serves as well as a disk, and is kinder to it.
    let memory = seeds.is_none().then(|| tempfile::tempdir_in("/dev/shm").ok()).flatten();
    let dir = memory.unwrap_or_else(|| tempfile::tempdir().unwrap());
    let place = dir.path().join("store");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rng = Rng::new(seeds.unwrap_or_default());
    let mut story = Story::default();
    let (mut acknowledged, mut unheard) = (0, 0);
    // What a kill meets is a matter of luck, and of the machine.
    for kill in 0..10 * kills {
        if kill >= kills && unheard > 0 {
            break;
        }
        let child = spawn(&place);
        let told = run_and_kill(child, &mut rng);
        for (task, number) in &told {
            acknowledged += number.saturating_sub(story.done.get(task).copied().unwrap_or_default());
            story.advance(*task, *number);
        }
        unheard += runtime.block_on(look(&place, &mut story, kill));
    }
    assert!(acknowledged > kills, "{acknowledged} acknowledged writes are too few to prove anything");
    assert!(unheard > 0, "no kill met a write between the disk and the acknowledgement");
}

/// Kills a process that backs up and restores, again and again. There is always the store, or an error that says what to do; and
/// what has the name of a backup is one.
#[test]
fn killed_in_a_backup_or_a_restore_it_leaves_a_store_and_no_half_backup() {
    const ROUNDS: u64 = 60;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (place, copy) = (dir.path().join("store"), dir.path().join("copy"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(&place, options()).unwrap();
        for i in 0..40 {
            store.put(&format!("/registry/x/{i}"), Bytes::from(vec![b'x'; 9000]), Expect::Any).await.unwrap();
        }
        store.close().await;
    });
    store::backup(&place, &copy).unwrap();
    let (mut rng, mut unfinished, mut last) = (Rng::new(1), 0, 0);
    for round in 0..ROUNDS {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--ignored", "--exact", "copying_child", "--nocapture"])
            .env(PLACE, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        // From its first act on, at some moment of it.
        while lines.next().is_some_and(|line| !line.unwrap_or_default().starts_with("begun")) {}
        std::thread::sleep(Duration::from_micros(rng.below(30_000)));
        child.kill().unwrap();
        child.wait().unwrap();
        let opened = match Store::open(&place, options()) {
            Err(store::OpenError::Unfinished { .. }) => {
                unfinished += 1;
                store::restore(&copy, &place, true).unwrap();
                Store::open(&place, options())
            }
            other => other,
        };
        let store = opened.unwrap_or_else(|e| panic!("round {round}: {e}"));
        runtime.block_on(async {
            let page = store.list(ListOptions { prefix: "/registry/x/".into(), ..ListOptions::default() });
            assert_eq!(page.await.unwrap().entries.len(), 40, "round {round}");
            assert!(store.revision() >= last, "round {round}: revisions go back");
            last = store.revision();
            store.close().await;
        });
        for made in std::fs::read_dir(dir.path().join("copies")).into_iter().flatten() {
            let made = made.unwrap().path();
            if made.extension().is_none() {
                let fresh = dir.path().join("fresh");
                let _ = std::fs::remove_dir_all(&fresh);
                store::restore(&made, &fresh, false).unwrap_or_else(|e| panic!("round {round}: {e}"));
            }
            std::fs::remove_file(made).unwrap();
        }
    }
    assert!(unfinished < ROUNDS, "no restore was ever done");
}

/// Not a test of its own: the process that is killed while it copies.
#[test]
#[ignore = "run by the test above"]
fn copying_child() {
    let Some(place) = env::var_os(PLACE) else { return };
    let place = Path::new(&place);
    let copies = place.join("copies");
    std::fs::create_dir_all(&copies).unwrap();
    let mut out = std::io::stdout();
    out.write_all(b"begun\n").unwrap();
    out.flush().unwrap();
    for number in 0.. {
        store::backup(&place.join("store"), &copies.join(number.to_string())).unwrap();
        store::restore(&place.join("copy"), &place.join("store"), true).unwrap();
    }
}

fn spawn(place: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Lets the child work until a random acknowledgement or a little longer, and returns the last one of each task.
fn run_and_kill(mut child: Child, rng: &mut Rng) -> BTreeMap<u64, u64> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut told = BTreeMap::new();
    let mut left = rng.below(60);
    let mut note = |line: &str| {
        let mut words = line.split(' ');
        if words.next() == Some("done") {
            let mut number = || words.next().and_then(|w| w.parse::<u64>().ok());
            told.extend(number().zip(number()));
            return true;
        }
        false
    };
    // Some are killed while they open the store.
    if rng.chance(0.05) {
        std::thread::sleep(Duration::from_micros(rng.below(20_000)));
    } else {
        while let Some(Ok(line)) = lines.next() {
            if note(&line) && left == 0 {
                break;
            }
            left = left.saturating_sub(1);
        }
        std::thread::sleep(Duration::from_micros(rng.below(500)));
    }
    child.kill().unwrap();
    // What was still in the pipe had been acknowledged too. The last line may be cut off.
    for line in lines.map_while(Result::ok) {
        note(&line);
    }
    child.wait().unwrap();
    told
}

/// Compares the store with the story; returns how many operations were done but not heard of.
async fn look(place: &Path, story: &mut Story, kill: u64) -> u64 {
    let store = Store::open(place, options()).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
    let mut unheard = 0;
    for task in 0..TASKS {
        let found = store.get(&progress_key(task)).await.unwrap();
        let found: u64 = found.map_or(0, |e| std::str::from_utf8(&e.value).unwrap().parse().unwrap());
        let told = story.done.get(&task).copied().unwrap_or_default();
        assert!(
            found == told || found == told + 1,
            "kill {kill}: task {task} at {found}, acknowledged {told}"
        );
        unheard += found - told;
        story.advance(task, found);
    }
    let page = store.list(ListOptions { prefix: "/registry/story/".into(), ..ListOptions::default() });
    let entries = page.await.unwrap().entries;
    assert_eq!(entries.len(), story.keys.len(), "kill {kill}");
    for (entry, (key, value)) in entries.iter().zip(&story.keys) {
        assert!(*entry.key == **key && entry.value == *value, "kill {kill}: {key}");
    }
    store.close().await;
    unheard
}

/// Not a test of its own: the process that is killed.
#[test]
#[ignore = "run by the test above"]
fn child() {
    let Some(place) = env::var_os(PLACE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = Store::open(Path::new(&place), options()).unwrap();
        let tasks: Vec<_> = (0..TASKS).map(|task| tokio::spawn(work(store.clone(), task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

async fn work(store: Store, task: u64) {
    let key = progress_key(task);
    let mut last = store.get(&key).await.unwrap();
    let mut number: u64 =
        last.as_ref().map_or(0, |e| std::str::from_utf8(&e.value).unwrap().parse().unwrap());
    loop {
        number += 1;
        let mut writes = vec![];
        for (key, value) in operation(task, number) {
            match value {
                Some(value) => writes.push(Write::put(&key, value, Expect::Any)),
                None if store.get(&key).await.unwrap().is_some() => {
                    writes.push(Write::delete(&key, Expect::Any));
                }
                None => {}
            }
        }
        let expect = last.map_or(Expect::Absent, |e| Expect::Rev(e.rev));
        writes.push(Write::put(&key, Bytes::from(number.to_string()), expect));
        last = store.transact(writes).await.unwrap().pop();
        let mut out = std::io::stdout();
        out.write_all(format!("done {task} {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
}
