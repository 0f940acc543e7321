//! Random stories, told to the store and to a model of a few lines; whatever the store says, the model says too.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use proptest::prelude::*;

use super::*;

const KEYS: [&str; 6] = [
    "/registry/pods/a/x",
    "/registry/pods/a/y",
    "/registry/pods/b/x",
    "/registry/nodes/n",
    "/registry/nodes/nn",
    "/registry/podtemplates/a/x",
];
const PREFIXES: [&str; 5] =
    ["/registry/", "/registry/pods/", "/registry/pods/a/", "/registry/nodes/", "/registry/none/"];

#[derive(Clone, Debug)]
enum Step {
    Put(usize, Guess, usize),
    Delete(usize, Guess),
    Both(usize, usize, Guess),
    Get(usize),
    /// A key, and which part of the past to look at.
    GetAt(usize, u64),
    List {
        prefix: usize,
        limit: usize,
        back: u64,
    },
    Watch {
        prefix: usize,
        back: u64,
    },
    Compact(u64),
    Reopen,
    /// Look at copies of the files as a crash right now would leave them.
    Crash,
}

#[derive(Clone, Copy, Debug)]
enum Guess {
    Absent,
    Right,
    Wrong,
    Any,
}

/// The log is all there is to know.
#[derive(Default)]
struct Model {
    log: Vec<(usize, Option<Bytes>)>,
    compacted: u64,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    let guess = prop_oneof![
        1 => Just(Guess::Absent),
        3 => Just(Guess::Right),
        1 => Just(Guess::Wrong),
        4 => Just(Guess::Any),
    ];
    let prefix = 0..PREFIXES.len();
    prop_oneof![
        6 => (key.clone(), guess.clone(), 0..6000_usize).prop_map(|(k, g, n)| Step::Put(k, g, n)),
        3 => (key.clone(), guess.clone()).prop_map(|(k, g)| Step::Delete(k, g)),
        2 => (key.clone(), key.clone(), guess).prop_map(|(a, b, g)| Step::Both(a, b, g)),
        2 => key.clone().prop_map(Step::Get),
        2 => (key, 0..12_u64).prop_map(|(k, back)| Step::GetAt(k, back)),
        2 => (prefix.clone(), 0..4_usize, 0..8_u64)
            .prop_map(|(prefix, limit, back)| Step::List { prefix, limit, back }),
        2 => (prefix, 0..20_u64).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        1 => (0..10_u64).prop_map(Step::Compact),
        1 => Just(Step::Reopen),
        1 => Just(Step::Crash),
    ]
}

// === impl Model ===

impl Model {
    fn revision(&self) -> u64 {
        self.log.len() as u64
    }

    fn at(&self, revision: u64) -> BTreeMap<&'static str, Entry> {
        let mut state: BTreeMap<&'static str, Entry> = BTreeMap::new();
        for (i, (key, value)) in self.log.iter().enumerate().take(revision as usize) {
            let (key, rev) = (KEYS[*key], i as u64 + 1);
            match value {
                Some(value) => {
                    let create_rev = state.get(key).map_or(rev, |e| e.create_rev);
                    state.insert(key, Entry { key: key.into(), create_rev, rev, value: value.clone() });
                }
                None => drop(state.remove(key)),
            }
        }
        state
    }

    fn now(&self, key: usize) -> Option<Entry> {
        self.at(self.revision()).remove(KEYS[key])
    }

    fn expect(&self, key: usize, guess: Guess) -> Expect {
        match guess {
            Guess::Absent => Expect::Absent,
            Guess::Right => self.now(key).map_or(Expect::Absent, |e| Expect::Rev(e.rev)),
            Guess::Wrong => Expect::Rev(self.revision() + 1),
            Guess::Any => Expect::Any,
        }
    }

    /// Whether a write goes through.
    fn allows(&self, key: usize, expect: Expect, delete: bool) -> bool {
        let now = self.now(key).map(|e| e.rev);
        match expect {
            Expect::Absent => now.is_none() && !delete,
            Expect::Rev(rev) => now == Some(rev),
            Expect::Any => now.is_some() || !delete,
        }
    }

    fn changes(&self, prefix: &str, from: u64) -> Vec<Told> {
        let mut told = vec![];
        for (i, (key, value)) in self.log.iter().enumerate().skip(from as usize) {
            let rev = i as u64 + 1;
            let before = self.at(rev - 1).remove(KEYS[*key]);
            let kind = match (value, &before) {
                (None, _) => ChangeKind::Deleted,
                (Some(_), None) => ChangeKind::Created,
                (Some(_), Some(_)) => ChangeKind::Updated,
            };
            let create_rev = before.as_ref().map_or(rev, |e| e.create_rev);
            let previous = before.map(|e| e.value);
            let value = value.clone().or_else(|| previous.clone()).unwrap();
            if KEYS[*key].starts_with(prefix) {
                told.push((rev, create_rev, KEYS[*key].to_owned(), kind, value, previous));
            }
        }
        told
    }
}

type Told = (u64, u64, String, ChangeKind, Bytes, Option<Bytes>);

async fn play(steps: Vec<Step>, recent_bytes: usize) {
    let dir = room();
    let place = dir.path().join("s");
    let options = Options { recent_bytes, readers: 1, ..Options::default() };
    let mut store = Store::open(&place, options).unwrap();
    let mut model = Model::default();
    for step in steps {
        match step {
            Step::Reopen => {
                store.close().await;
                store = Store::open(&place, options).unwrap();
            }
            Step::Crash => {
                let copy = dir.path().join("crashed");
                copy_files(&place, &copy);
                let crashed = Store::open(&copy, options).unwrap();
                agree(&crashed, &model).await;
                crashed.close().await;
                fs::remove_dir_all(&copy).unwrap();
            }
            Step::Compact(back) => {
                let upto = model.revision().saturating_sub(back);
                store.compact(upto).await.unwrap();
                model.compacted = model.compacted.max(upto);
            }
            Step::Put(..) | Step::Delete(..) | Step::Both(..) => write(&store, &mut model, step).await,
            Step::Get(_) | Step::GetAt(..) | Step::List { .. } | Step::Watch { .. } => {
                read(&store, &model, step).await;
            }
        }
        assert_eq!((store.revision(), store.compacted()), (model.revision(), model.compacted));
    }
    agree(&store, &model).await;
    store.close().await;
    let store = Store::open(&place, options).unwrap();
    agree(&store, &model).await;
    store.close().await;
}

async fn write(store: &Store, model: &mut Model, step: Step) {
    let value = |n| Bytes::from(format!("{}{}", model.revision(), "v".repeat(n)));
    let (writes, logged, allowed) = match step {
        Step::Put(key, guess, size) => {
            let (expect, value) = (model.expect(key, guess), value(size));
            let allowed = model.allows(key, expect, false);
            (vec![Write::put(KEYS[key], value.clone(), expect)], vec![(key, Some(value))], allowed)
        }
        Step::Delete(key, guess) => {
            let expect = model.expect(key, guess);
            let allowed = model.allows(key, expect, true);
            (vec![Write::delete(KEYS[key], expect)], vec![(key, None)], allowed)
        }
        Step::Both(a, b, guess) => {
            let (expect, value) = (model.expect(b, guess), value(3));
            let allowed = a != b && model.allows(b, expect, true);
            let first = Write::put(KEYS[a], value.clone(), Expect::Any);
            (vec![first, Write::delete(KEYS[b], expect)], vec![(a, Some(value)), (b, None)], allowed)
        }
        other => panic!("{other:?} writes nothing"),
    };
    match store.transact(writes.clone()).await {
        Ok(entries) => {
            assert!(allowed, "{writes:?}");
            model.log.extend(logged);
            assert_eq!(entries.last().unwrap().rev, model.revision());
        }
        Err(WriteError::Conflict { index, current }) => {
            assert!(!allowed, "{writes:?}");
            let key = KEYS.iter().position(|k| **k == *writes[index].key).unwrap();
            assert_eq!(current, model.now(key));
        }
        Err(other) => panic!("{other}"),
    }
}

async fn read(store: &Store, model: &Model, step: Step) {
    match step {
        Step::Get(key) => assert_eq!(store.get(KEYS[key]).await.unwrap(), model.now(key)),
        Step::GetAt(key, back) => {
            let at = model.revision().saturating_sub(back);
            match store.get_at(KEYS[key], at).await {
                Ok(found) => {
                    assert!(at >= model.compacted);
                    assert_eq!(found, model.at(at).remove(KEYS[key]));
                }
                Err(ReadError::Compacted(c)) => assert!(at < model.compacted && c.requested == at),
                Err(other) => panic!("{other}"),
            }
        }
        Step::List { prefix, limit, back } => list(store, model, PREFIXES[prefix], limit, back).await,
        Step::Watch { prefix, back } => {
            let from = model.revision().saturating_sub(back);
            match store.watch(PREFIXES[prefix], from) {
                Ok(watch) => {
                    assert!(from >= model.compacted);
                    let expected = model.changes(PREFIXES[prefix], from);
                    assert_eq!(drain(watch, expected.len()).await, expected);
                }
                Err(c) => assert!(from < model.compacted && c.compacted == model.compacted),
            }
        }
        other => panic!("{other:?} reads nothing"),
    }
}

async fn list(store: &Store, model: &Model, prefix: &str, limit: usize, back: u64) {
    let at = model.revision().saturating_sub(back).max(model.compacted);
    let wanted: Vec<Entry> =
        model.at(at).into_values().filter(|entry| entry.key.starts_with(prefix)).collect();
    let mut found = Vec::new();
    let mut after = None;
    loop {
        let options = ListOptions { after, limit, at: Some(at), count: true, ..all(prefix) };
        let page = store.list(options).await.unwrap();
        found.extend(page.entries);
        assert_eq!(page.remaining as usize, wanted.len() - found.len());
        assert_eq!(page.more, page.remaining > 0);
        if !page.more {
            break;
        }
        after = Some(found.last().unwrap().key.clone());
    }
    assert_eq!(found, wanted);
}

/// What a watch has to say: so many changes, and then no more.
async fn drain(mut watch: Watch, count: usize) -> Vec<Told> {
    let mut told = vec![];
    for _ in 0..count {
        told.push(tell(&watch.next().await.unwrap()));
    }
    // Where nothing of the prefix is left in memory, the log still has to be asked.
    while watch.progress().is_none() {
        let more = tokio::time::timeout(std::time::Duration::from_millis(1), watch.next()).await;
        told.extend(more.map(|change| tell(&change.unwrap())));
    }
    told
}

fn tell(c: &Change) -> Told {
    (c.rev, c.create_rev, c.key.to_string(), c.kind, c.value.clone(), c.previous.clone())
}

/// The whole kept past is the model's.
async fn agree(store: &Store, model: &Model) {
    assert_eq!((store.revision(), store.compacted()), (model.revision(), model.compacted));
    for back in [0, 1, 3] {
        list(store, model, "/registry/", 0, back).await;
    }
    let watch = store.watch("/registry/", model.compacted).unwrap();
    let expected = model.changes("/registry/", model.compacted);
    assert_eq!(drain(watch, expected.len()).await, expected);
}

pub(super) fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let (old, new) = (format::file(from), format::file(to));
    fs::copy(&old, &new).unwrap();
    fs::copy(format::wal_file(&old), format::wal_file(&new)).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_model_does(
        steps in proptest::collection::vec(step(), 1..60),
        recent_bytes in prop_oneof![Just(0), Just(8_000), Just(4 << 20)],
    ) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
            .block_on(play(steps, recent_bytes));
    }
}
