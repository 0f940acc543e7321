//! The store on a disk that fails: power cuts with torn sectors, EIO, ENOSPC, short reads and writes, at every step.
//!
//! `disk_faults/shadow.c`, loaded before libc into a process of its own, writes down what the store does to its files and fails
//! what it is told to. `disk_faults/disk.rs` works out what a power cut at any moment leaves. A story is a row of
//! transactions, each of which also writes its number; so the number says what all keys must be.
//!
//! `LONGSHORE_SEEDS=100000` plays ten thousand stories instead of a few hundred; `STORE_FAULTS_SEED=7` one of them, and tells
//! what it did to the files if it fails.

#![allow(clippy::unwrap_used)]

#[path = "disk_faults/disk.rs"]
mod disk;

use std::collections::BTreeMap;
use std::env;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use base::rng::Rng;
use bytes::Bytes;
use disk::{Disk, Record};
use store::{Expect, Health, ListOptions, OpenError, Options, Retention, Store, Write, backup, restore};

const STORIES: u64 = 240;
const PLACE: &str = "STORE_FAULTS_PLACE";
const PART: &str = "STORE_FAULTS_PART";
/// Plays the story of one seed, and tells what it did to the files.
const SEED: &str = "STORE_FAULTS_SEED";
const PROGRESS: &str = "/registry/progress/story";
/// For what takes a moment on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(60);

const EIO: u64 = 5;
const ENOSPC: u64 = 28;
const EROFS: u64 = 30;
const SHORT: u64 = 1;

/// Classes of calls that can fail.
const WRITE: u64 = 1;
const SYNC: u64 = 2;
const TRUNCATE: u64 = 4;
const READ: u64 = 8;
const NAME: u64 = 16;

/// Syncs that can be left out.
const DROP_LOG: u64 = 1;
const DROP_FILE: u64 = 2;
const DROP_DIRECTORY: u64 = 4;

/// The page shared with `shadow.c`.
struct Control {
    page: File,
    log: PathBuf,
}

/// Which calls fail, from when on, how many, and how.
#[derive(Clone, Copy, Debug, Default)]
struct Plan {
    mask: u64,
    at: u64,
    count: u64,
    kind: u64,
    drop: u64,
}

/// What the keys are when a transaction is the last one done.
type State = BTreeMap<String, Bytes>;

/// The course of a story.
#[derive(Default)]
struct Story {
    /// By the number that the transaction wrote.
    states: BTreeMap<u64, State>,
    /// The records in the log when a transaction was begun, and when it was acknowledged.
    begun: Vec<(usize, u64)>,
    acknowledged: Vec<(usize, u64)>,
    /// What the store holds now.
    current: u64,
    next: u64,
}

// === impl Control ===

impl Control {
    fn number(&self, index: u64) -> u64 {
        let mut bytes = [0; 8];
        self.page.read_exact_at(&mut bytes, index * 8).unwrap();
        u64::from_le_bytes(bytes)
    }

    fn set(&self, index: u64, value: u64) {
        self.page.write_all_at(&value.to_le_bytes(), index * 8).unwrap();
    }

    fn records(&self) -> usize {
        usize::try_from(self.number(0)).unwrap()
    }

    fn failed(&self) -> u64 {
        self.number(7)
    }

    /// Counting starts anew.
    fn follow(&self, plan: Plan) {
        for (index, value) in [0, plan.mask, 0, plan.count, plan.kind, plan.drop].into_iter().enumerate() {
            self.set(index as u64 + 1, value);
        }
        self.set(3, plan.at);
    }

    fn start_log(&self) {
        File::options().write(true).open(&self.log).unwrap().set_len(0).unwrap();
        for index in 0..8 {
            self.set(index, 0);
        }
    }

    fn read_log(&self) -> Vec<Record> {
        disk::records(&fs::read(&self.log).unwrap())
    }
}

// === impl Plan ===

impl Plan {
    /// A fault of some kind at some step.
    fn draw(rng: &mut Rng) -> Plan {
        let (mask, kind) = [
            (0, 0),
            (SYNC, EIO),
            (WRITE, EIO),
            (WRITE | SYNC | TRUNCATE | NAME, EIO),
            (WRITE | NAME, ENOSPC),
            (SYNC, ENOSPC),
            (WRITE | READ, SHORT),
            (READ, EIO),
        ][rng.below(8) as usize];
        let count = [1, 1, 2, 5, u64::MAX][rng.below(5) as usize];
        Plan { mask, kind, count, at: 1 + rng.below(60), drop: 0 }
    }
}

fn options(rng: &mut Rng) -> Options {
    // Compactions run in some, so that faults meet them.
    let age = if rng.chance(0.3) { Duration::from_millis(1) } else { Duration::from_hours(1) };
    let retention = Retention { age, bytes: 1 << 20 };
    Options { retention, recent_bytes: 20_000, readers: 1 }
}

// === impl Story ===

impl Story {
    fn new() -> Story {
        let mut story = Story::default();
        story.states.insert(0, State::new());
        story
    }

    /// Does one transaction; says whether it was acknowledged.
    async fn advance(&mut self, store: &Store, control: &Control, rng: &mut Rng) -> bool {
        self.next += 1;
        let number = self.next;
        let mut state = self.states[&self.current].clone();
        let mut writes = Vec::new();
        for _ in 0..=rng.below(2) {
            let key = format!("/registry/story/{}", rng.below(6));
            if writes.iter().any(|w: &Write| *w.key == *key) {
                continue;
            }
            if rng.chance(0.25) && state.contains_key(&key) {
                state.remove(&key);
                writes.push(Write::delete(&key, Expect::Any));
            } else {
                let size = if rng.chance(0.1) { 30_000 } else { 1_500 };
                let value = Bytes::from(vec![b'a' + (number % 26) as u8; rng.below(size) as usize]);
                state.insert(key.clone(), value.clone());
                writes.push(Write::put(&key, value, Expect::Any));
            }
        }
        writes.push(Write::put(PROGRESS, Bytes::from(number.to_string()), Expect::Any));
        self.states.insert(number, state);
        self.begun.push((control.records(), number));
        let done = store.transact(writes).await.is_ok();
        if done {
            self.acknowledged.push((control.records(), number));
            self.current = number;
        }
        done
    }

    /// The numbers a disk may say when the power goes after so many records.
    fn possible(&self, records: usize) -> Vec<u64> {
        let acknowledged = self.acknowledged.iter().rfind(|(at, _)| *at <= records).map_or(0, |(_, n)| *n);
        let later = self.begun.iter().filter(|(at, n)| *at < records && *n > acknowledged).map(|(_, n)| *n);
        std::iter::once(acknowledged).chain(later).collect()
    }

    /// Compares a store with the story; the number it stands at.
    async fn compare(&self, store: &Store, possible: &[u64]) -> Result<u64, String> {
        let tell = |error: &dyn std::fmt::Display| format!("reading: {error}");
        let found = store.get(PROGRESS).await.map_err(|e| tell(&e))?;
        let number = found.map_or(0, |e| std::str::from_utf8(&e.value).unwrap().parse().unwrap());
        if !possible.contains(&number) {
            return Err(format!("it stands at {number}, and may stand at {possible:?}"));
        }
        let wanted = ListOptions { prefix: "/registry/story/".into(), ..ListOptions::default() };
        let page = store.list(wanted).await.map_err(|e| tell(&e))?;
        let keys: State = page.entries.iter().map(|e| (e.key.to_string(), e.value.clone())).collect();
        if keys != self.states[&number] {
            return Err(format!("the keys are not those of number {number}"));
        }
        Ok(number)
    }
}

/// A place for one story, and what it needs.
struct Stage<'c> {
    control: &'c Control,
    rng: Rng,
    /// Watched by `shadow.c`.
    dir: PathBuf,
    /// Not watched.
    aside: PathBuf,
    /// Faults that were met.
    met: u64,
}

// === impl Stage ===

impl<'c> Stage<'c> {
    fn new(control: &'c Control, place: &Path, seed: u64) -> Stage<'c> {
        let (dir, aside) = (place.join("shadowed"), place.join("aside"));
        for one in [&dir, &aside] {
            let _ = fs::remove_dir_all(one);
        }
        fs::create_dir(&dir).unwrap();
        fs::create_dir(&aside).unwrap();
        control.start_log();
        Stage { control, rng: Rng::new(seed), dir, aside, met: 0 }
    }

    fn calm(&mut self) {
        self.met += self.control.failed();
        self.control.follow(Plan { drop: self.control.number(6), ..Plan::default() });
        self.control.set(7, 0);
    }

    /// Opens the store, if need be again without faults.
    fn open(&mut self) -> Result<Store, String> {
        let options = options(&mut self.rng);
        if let Ok(store) = Store::open(&self.dir.join("s"), options) {
            return Ok(store);
        }
        self.calm();
        Store::open(&self.dir.join("s"), options).map_err(|e| format!("without faults: {e}"))
    }

    /// Plays a story under the faults of a plan, looks at the health all the while, and at the end whether all is there.
    async fn play(&mut self, plan: Plan, story: &mut Story) -> Result<(), String> {
        self.control.follow(plan);
        let store = self.open()?;
        for _ in 0..4 + self.rng.below(12) {
            if story.advance(&store, self.control, &mut self.rng).await {
                continue;
            }
            if self.control.failed() == 0 || plan.kind == SHORT {
                return Err("a write failed for no reason".to_owned());
            }
            self.see_recovery(&store, plan, story).await?;
        }
        self.calm();
        story.compare(&store, &[story.current]).await?;
        store.close().await;
        if self.rng.chance(0.5) {
            let store = Store::open(&self.dir.join("s"), Options::default()).map_err(|e| e.to_string())?;
            story.compare(&store, &[story.current]).await?;
            store.close().await;
        }
        Ok(())
    }

    /// After a write that failed: red while writes fail, green soon after they no longer do.
    async fn see_recovery(&mut self, store: &Store, plan: Plan, story: &Story) -> Result<(), String> {
        let mut health = store.health_changes();
        if plan.count == u64::MAX && plan.mask & (WRITE | SYNC) != 0 && plan.kind != SHORT {
            let red = health.wait_for(|h| *h != Health::Good);
            tokio::time::timeout(TIMEOUT, red).await.map_err(|_| "healthy, and writes nothing")?.unwrap();
            if store.put("/registry/other", Bytes::new(), Expect::Any).await.is_ok() {
                return Err("writes on a disk that fails".to_owned());
            }
        }
        // What was acknowledged is read all the while, unless reads fail too.
        if plan.mask & READ == 0 {
            story.compare(store, &[story.current]).await?;
        }
        self.calm();
        let green = health.wait_for(|h| *h == Health::Good);
        tokio::time::timeout(TIMEOUT, green).await.map_err(|_| "no recovery")?.unwrap();
        story.compare(store, &[story.current]).await?;
        Ok(())
    }

    /// Cuts the power after so many records, and opens what is left.
    async fn cut(&mut self, log: &[Record], records: usize, story: &Story) -> Result<(), String> {
        let left = self.leave(log, records);
        let opened = Store::open(&left.join("s"), Options::default());
        let last = records.checked_sub(1).map(|i| log[i].describe()).unwrap_or_default();
        let named = |e: String| format!("power cut after record {records} of {} ({last}): {e}", log.len());
        let store = opened.map_err(|e| named(e.to_string()))?;
        if store.health() != Health::Good {
            return Err(named("not healthy".to_owned()));
        }
        story.compare(&store, &story.possible(records)).await.map_err(named)?;
        store.put(PROGRESS, Bytes::from_static(b"0"), Expect::Any).await.map_err(|e| named(e.to_string()))?;
        store.close().await;
        Ok(())
    }

    /// What a power cut leaves, in a directory.
    fn leave(&mut self, log: &[Record], records: usize) -> PathBuf {
        let mut disk = Disk::new(self.rng.next_u64());
        log[..records].iter().for_each(|record| disk.play(record));
        let left = self.aside.join(records.to_string());
        let _ = fs::remove_dir_all(&left);
        fs::create_dir(&left).unwrap();
        disk.cut(&self.dir.to_string_lossy(), &left);
        left
    }
}

/// One story: faults, then power cuts at a few of its moments.
async fn story(control: &Control, place: &Path, seed: u64, drop: u64) -> Result<u64, String> {
    let mut stage = Stage::new(control, place, seed);
    let mut plan = if drop == 0 { Plan::draw(&mut stage.rng) } else { Plan::default() };
    plan.drop = drop;
    let mut story = Story::new();
    let told = |e: String| format!("seed {seed}, {plan:?}: {e}");
    stage.play(plan, &mut story).await.map_err(told)?;
    let log = control.read_log();
    for _ in 0..4 {
        let records = stage.rng.below(log.len() as u64 + 1) as usize;
        stage.cut(&log, records, &story).await.map_err(told)?;
    }
    Ok(stage.met)
}

fn stories() -> u64 {
    let seeds = env::var("LONGSHORE_SEEDS").ok().and_then(|n| n.parse::<u64>().ok());
    seeds.map_or(STORIES, |n| (n / 10).clamp(STORIES, 10_000))
}

/// Runs one part of this file in a process that `shadow.c` was loaded into.
fn run(part: &str) {
    let room = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let place = room.path();
    let library = place.join("shadow.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/disk_faults/shadow.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-o"])
        .arg(&library)
        .arg(source)
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    fs::write(place.join("control"), [0; 4096]).unwrap();
    fs::write(place.join("log"), []).unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child", "--nocapture"])
        .env("LD_PRELOAD", &library)
        .env("SHADOW_DIR", place.join("shadowed"))
        .env("SHADOW_CONTROL", place.join("control"))
        .env("SHADOW_LOG", place.join("log"))
        .env(PLACE, place)
        .env(PART, part)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
    assert!(String::from_utf8_lossy(&text).contains("1 passed"), "{}", String::from_utf8_lossy(&text));
}

#[test]
fn on_a_failing_disk_every_acknowledged_write_survives_and_health_tells_the_truth() {
    run("faults");
}

#[test]
fn a_disk_that_fails_at_the_start_is_never_called_corruption_and_a_full_one_is_read() {
    run("opening");
}

#[test]
fn a_sync_that_is_left_out_is_noticed() {
    run("dropped");
}

#[test]
fn a_backup_that_failed_is_never_taken_for_one() {
    run("backup");
}

#[test]
fn a_restore_that_failed_leaves_the_old_store_or_says_what_to_do() {
    run("restore");
}

/// Not a test of its own: the process with the failing disk.
#[test]
#[ignore = "run by the tests above"]
fn child() {
    let Some(place) = env::var_os(PLACE) else { return };
    let place = PathBuf::from(place);
    let page = File::options().read(true).write(true).open(place.join("control")).unwrap();
    let control = Control { page, log: place.join("log") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    match env::var(PART).unwrap().as_str() {
        "faults" if env::var_os(SEED).is_some() => {
            let seed = env::var(SEED).unwrap().parse().unwrap();
            let told = runtime.block_on(story(&control, &place, seed, 0));
            let log = control.read_log().iter().map(Record::describe).collect::<Vec<_>>().join("\n");
            told.unwrap_or_else(|e| panic!("{log}\n{e}"));
        }
        "faults" => {
            let mut met = 0;
            for seed in 0..stories() {
                met += runtime.block_on(story(&control, &place, seed, 0)).unwrap_or_else(|e| panic!("{e}"));
            }
            assert!(met > stories() / 4, "{met} faults are too few to prove anything");
        }
        "opening" => {
            let (mut met, mut full) = (0, 0);
            for (mask, kind) in [
                (READ, EIO),
                (WRITE | SYNC | TRUNCATE | NAME, EIO),
                (WRITE | NAME, EROFS),
                (WRITE | NAME, ENOSPC),
            ] {
                for count in [1, u64::MAX] {
                    let steps = (1..).map(|at| Plan { mask, kind, count, at, drop: 0 });
                    for plan in steps {
                        let opened = runtime.block_on(opened(&control, &place, plan));
                        let opened = opened.unwrap_or_else(|e| panic!("{plan:?}: {e}"));
                        full += u64::from(opened == Some(Health::Full));
                        match control.failed() {
                            0 => break,
                            _ => met += 1,
                        }
                    }
                }
            }
            assert!(met > 40 && full > 10, "{met} faults, {full} full disks are too few to prove anything");
        }
        "dropped" => {
            for drop in [DROP_LOG, DROP_FILE, DROP_DIRECTORY] {
                let noticed = (0..400).find(|s| runtime.block_on(story(&control, &place, *s, drop)).is_err());
                assert!(noticed.is_some(), "nobody noticed that syncs {drop} were left out");
            }
        }
        "backup" => {
            for seed in 0..stories() / 2 {
                runtime.block_on(copied(&control, &place, seed)).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        "restore" => {
            for seed in 0..stories() / 2 {
                runtime.block_on(restored(&control, &place, seed)).unwrap_or_else(|e| panic!("{e}"));
            }
        }
        other => panic!("{other}"),
    }
}

/// Opens a store with a full log while the disk fails: an error, never called corruption; or, on a full disk, a store that is
/// read, refuses writes, and takes them when there is room. Says how it was at first.
async fn opened(control: &Control, place: &Path, plan: Plan) -> Result<Option<Health>, String> {
    let mut stage = Stage::new(control, place, plan.at);
    let mut story = Story::new();
    let store = stage.open()?;
    for _ in 0..6 {
        story.advance(&store, control, &mut stage.rng).await;
    }
    // As a crash leaves it: the log is full, and its index is gone.
    let crashed = stage.dir.join("crashed");
    fs::create_dir(&crashed).unwrap();
    for name in ["store.lock", "store.db", "store.db-wal"] {
        fs::copy(stage.dir.join("s").join(name), crashed.join(name)).unwrap();
    }
    store.close().await;
    control.follow(plan);
    control.set(7, 0);
    let opening = Store::open(&crashed, Options::default());
    if opening.is_err() {
        control.follow(Plan::default());
    }
    let store = match opening {
        Err(OpenError::Corrupt(wrong)) => return Err(format!("called corrupt: {wrong}")),
        // With room again at the next look, nobody can tell what was missing.
        Err(error) if plan.kind == ENOSPC && plan.count > 1 => return Err(format!("not opened: {error}")),
        Err(_) => return Ok(None),
        Ok(store) => store,
    };
    let (health, is_lasting) = (store.health(), plan.count == u64::MAX);
    if plan.kind == ENOSPC && is_lasting && control.failed() > 0 {
        story.compare(&store, &[story.current]).await?;
        match store.put("/registry/other", Bytes::new(), Expect::Any).await {
            Err(error) if error.to_string().contains("the disk is full") => {}
            other => return Err(format!("on a full disk: {other:?}")),
        }
    }
    let failed = control.failed();
    control.follow(Plan::default());
    let good = async { store.health_changes().wait_for(|h| *h == Health::Good).await.map(drop) };
    tokio::time::timeout(TIMEOUT, good).await.map_err(|_| "no recovery")?.unwrap();
    story.compare(&store, &[story.current]).await?;
    let written = store.put("/registry/other", Bytes::new(), Expect::Any).await;
    written.map_err(|e| format!("with room: {e}"))?;
    store.close().await;
    control.set(7, failed);
    Ok(Some(health))
}

/// Makes a store without faults, and leaves it open or not.
async fn prepared(stage: &mut Stage<'_>) -> Result<(Story, Option<Store>), String> {
    let mut story = Story::new();
    let store = stage.open()?;
    for _ in 0..3 + stage.rng.below(6) {
        story.advance(&store, stage.control, &mut stage.rng).await;
    }
    if stage.rng.chance(0.5) {
        return Ok((story, Some(store)));
    }
    store.close().await;
    Ok((story, None))
}

/// Reads a copy the way a person would use it.
async fn whole(copy: &Path, aside: &Path, story: &Story) -> Result<(), String> {
    let fresh = aside.join("restored");
    let _ = fs::remove_dir_all(&fresh);
    restore(copy, &fresh, false).map_err(|e| format!("a copy that cannot be restored: {e}"))?;
    let store = Store::open(&fresh, Options::default()).map_err(|e| e.to_string())?;
    story.compare(&store, &[story.current]).await?;
    store.close().await;
    Ok(())
}

/// A backup under faults: it is whole, or there is none, whenever the power goes.
async fn copied(control: &Control, place: &Path, seed: u64) -> Result<(), String> {
    let mut stage = Stage::new(control, place, seed);
    let (story, store) = prepared(&mut stage).await?;
    let plan = Plan::draw(&mut stage.rng);
    let told = |e: String| format!("seed {seed}, {plan:?}: {e}");
    let to = stage.dir.join("copy");
    control.follow(plan);
    let done = backup(&stage.dir.join("s"), &to);
    stage.calm();
    let end = control.records();
    match done {
        Ok(_) => whole(&to, &stage.aside, &story).await.map_err(told)?,
        Err(error) if stage.met == 0 => return Err(told(format!("failed without a fault: {error}"))),
        // Where not even a name can be taken away, what has it is whole.
        Err(_) if to.exists() && plan.mask & NAME != 0 => {
            whole(&to, &stage.aside, &story).await.map_err(told)?;
        }
        Err(_) if to.exists() => return Err(told("a failed backup has the name of one".to_owned())),
        Err(_) => {
            let left: Vec<_> = fs::read_dir(&stage.dir).unwrap().map(|f| f.unwrap().file_name()).collect();
            if left.len() > 1 && plan.mask & NAME == 0 {
                return Err(told(format!("a failed backup leaves {left:?} behind")));
            }
        }
    }
    let log = control.read_log();
    for round in 0..3 {
        let records = if round == 0 { end } else { stage.rng.below(log.len() as u64 + 1) as usize };
        let left = stage.leave(&log, records);
        let copy = left.join("copy");
        match (copy.exists(), done.is_ok() && records >= end) {
            (true, _) => {
                let aside = stage.aside.clone();
                whole(&copy, &aside, &story)
                    .await
                    .map_err(|e| told(format!("power cut at {records}: {e}")))?;
            }
            (false, true) => return Err(told("a power cut took a finished backup".to_owned())),
            (false, false) => {}
        }
    }
    if let Some(store) = store {
        store.close().await;
    }
    Ok(())
}

/// A restore under faults over another store: the old one or the new one, or an error that says what to do.
async fn restored(control: &Control, place: &Path, seed: u64) -> Result<(), String> {
    let mut stage = Stage::new(control, place, seed);
    let (new, store) = prepared(&mut stage).await?;
    let copy = stage.aside.join("copy");
    backup(&stage.dir.join("s"), &copy).map_err(|e| e.to_string())?;
    let store = match store {
        Some(store) => store,
        None => stage.open()?,
    };
    let mut old = new;
    let copied = old.current;
    old.advance(&store, control, &mut stage.rng).await;
    store.close().await;
    let plan = Plan::draw(&mut stage.rng);
    let told = |e: String| format!("seed {seed}, {plan:?}: {e}");
    let start = control.records();
    control.follow(plan);
    let done = restore(&copy, &stage.dir.join("s"), true);
    stage.calm();
    if let (Err(error), 0) = (&done, stage.met) {
        return Err(told(format!("failed without a fault: {error}")));
    }
    let end = control.records();
    let log = control.read_log();
    for round in 0..3 {
        let records =
            if round == 0 { end } else { start + stage.rng.below((end - start) as u64 + 1) as usize };
        let left = stage.leave(&log, records).join("s");
        let possible = match (&done, records >= end) {
            (Ok(_), true) => vec![copied],
            _ => vec![copied, old.current],
        };
        match Store::open(&left, Options::default()) {
            Ok(store) => {
                let found = old.compare(&store, &possible).await;
                found.map_err(|e| told(format!("power cut at {records}: {e}")))?;
                store.close().await;
            }
            Err(OpenError::Unfinished { .. }) if done.is_err() || records < end => {
                // What it says helps.
                restore(&copy, &left, true).map_err(|e| told(format!("not even again: {e}")))?;
            }
            Err(error) => return Err(told(format!("power cut at {records}: {error}"))),
        }
    }
    Ok(())
}
