//! Watches under load: nothing dropped, nothing twice, and the slow cost no memory.

use std::collections::BTreeMap;
use std::time::Duration;

use base::rng::Rng;

use super::*;

const WRITERS: u64 = 8;
const WRITES: u64 = 150;

/// What every write was answered, by revision.
async fn write_much(store: Store, seed: u64) -> BTreeMap<u64, String> {
    let mut rng = Rng::new(seed);
    let mut acknowledged = BTreeMap::new();
    for i in 0..WRITES {
        let resource = ["pods", "nodes", "leases"][rng.below(3) as usize];
        let key = format!("/registry/{resource}/ns{}/w{seed}-{}", rng.below(2), rng.below(5));
        let rev = if rng.chance(0.2) {
            store.delete(&key, Expect::Any).await.ok()
        } else {
            let value = Bytes::from(format!("{i}{}", "x".repeat(rng.below(3000) as usize)));
            Some(store.put(&key, value, Expect::Any).await.unwrap().rev)
        };
        acknowledged.extend(rev.map(|rev| (rev, key)));
    }
    acknowledged
}

/// Reads until `end` is passed, with pauses of its own kind.
async fn follow(
    mut watch: Watch,
    mut end: tokio::sync::watch::Receiver<u64>,
    seed: u64,
) -> Vec<(u64, String)> {
    let mut rng = Rng::new(seed);
    let mut seen = vec![];
    loop {
        tokio::select! {
            change = watch.next() => {
                let change = change.unwrap();
                seen.push((change.rev, change.key.to_string()));
            }
            _ = end.changed() => {}
        }
        if *end.borrow() != 0 && watch.progress().is_some_and(|at| at >= *end.borrow()) {
            return seen;
        }
        if rng.chance(0.1) {
            tokio::time::sleep(Duration::from_millis(rng.below(8))).await;
        }
    }
}

#[tokio::test]
async fn watches_never_drop_or_repeat_under_load() {
    let dir = room();
    // So little memory that most watchers meet the log.
    let options = Options { recent_bytes: 40_000, ..Options::default() };
    let store = Store::open(dir.path(), options).unwrap();
    let (end, ended) = tokio::sync::watch::channel(0);
    let prefixes = ["/registry/", "/registry/pods/", "/registry/pods/ns1/", "/registry/leases/"];
    let mut watchers = vec![];
    let mut idle = vec![];
    let writers: Vec<_> = (0..WRITERS).map(|w| tokio::spawn(write_much(store.clone(), w))).collect();
    for seed in 0..24 {
        let prefix = prefixes[seed as usize % prefixes.len()];
        let from = store.revision().saturating_sub(seed);
        let watch = store.watch(prefix, from).unwrap();
        idle.push(store.watch(prefix, from).unwrap());
        watchers.push((prefix, from, tokio::spawn(follow(watch, ended.clone(), seed))));
        tokio::time::sleep(Duration::from_millis(3)).await;
        assert!(store.stats().recent_bytes <= 40_000 + 10_000);
    }
    let mut acknowledged = BTreeMap::new();
    for writer in writers {
        acknowledged.extend(writer.await.unwrap());
    }
    let last = store.revision();
    assert_eq!(acknowledged.keys().copied().collect::<Vec<_>>(), (1..=last).collect::<Vec<_>>());
    end.send_replace(last);
    for (prefix, from, watcher) in watchers {
        let expected: Vec<(u64, String)> = acknowledged
            .range(from + 1..)
            .filter(|(_, key)| key.starts_with(prefix))
            .map(|(rev, key)| (*rev, key.clone()))
            .collect();
        assert!(watcher.await.unwrap() == expected, "{prefix} from {from}");
    }
    // Whoever never read holds nothing, and hears of the end of its history rather than of a gap.
    assert!(idle.iter().all(|watch| watch.held() == 0));
    store.compact(last).await.unwrap();
    let compacted = idle.remove(1).next().await;
    assert!(matches!(compacted, Err(WatchError::Compacted(_))), "{compacted:?}");
}

#[tokio::test]
async fn a_quiet_watch_survives_compactions_it_has_nothing_to_do_with() {
    let dir = room();
    let store = Store::open(dir.path(), Options { recent_bytes: 2000, ..Options::default() }).unwrap();
    store.put("/registry/nodes/n", bytes("1"), Expect::Any).await.unwrap();
    let mut quiet = store.watch("/registry/nodes/", 1).unwrap();
    let waiting = tokio::spawn(async move { quiet.next().await });
    for i in 0..50 {
        store.put("/registry/pods/a/x", Bytes::from(vec![0; 500]), Expect::Any).await.unwrap();
        if i % 10 == 0 {
            store.compact(store.revision()).await.unwrap();
            tokio::task::yield_now().await;
        }
    }
    // So much at once that memory does not hold even this change.
    let mut writes = vec![Write::put("/registry/nodes/n", bytes("2"), Expect::Any)];
    for i in 0..20 {
        let key = format!("/registry/pods/a/{i}");
        writes.push(Write::put(&key, Bytes::from(vec![0; 500]), Expect::Any));
    }
    let rev = store.transact(writes).await.unwrap()[0].rev;
    assert_eq!(waiting.await.unwrap().unwrap().rev, rev);
}

#[tokio::test]
async fn history_is_bounded_by_age_and_size() {
    let dir = room();
    let retention = Retention { age: Duration::from_millis(40), bytes: 1 << 20 };
    let store = Store::open(dir.path(), Options { retention, ..Options::default() }).unwrap();
    for _ in 0..10 {
        store.put("/registry/pods/a/x", bytes("v"), Expect::Any).await.unwrap();
    }
    let mut waited = 0;
    while store.compacted() < 10 {
        waited += 1;
        assert!(waited < 5000, "compacted {}", store.compacted());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    store.close().await;
    let retention = Retention { age: Duration::from_hours(1), bytes: 100_000 };
    let store = Store::open(dir.path(), Options { retention, ..Options::default() }).unwrap();
    for _ in 0..100 {
        store.put("/registry/pods/a/x", Bytes::from(vec![0; 10_000]), Expect::Any).await.unwrap();
    }
    // The last hundred thousand bytes are ten writes.
    let kept = store.revision() - store.compacted();
    assert!((3..=12).contains(&kept), "{kept}");
    // The file does not grow with the history that is gone.
    let grown = store.stats().file_bytes;
    assert!(grown < 1 << 20, "{grown}");
    assert_eq!(store.get("/registry/pods/a/x").await.unwrap().unwrap().rev, 110);
}
