#![allow(clippy::unwrap_used)]

mod damage;
mod load;
mod model;

use super::*;

/// A directory in memory where there is one: what these tests are about is not how long a disk takes to sync.
fn room() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(&dir.path().join("s"), Options::default()).unwrap()
}

fn all(prefix: &str) -> ListOptions {
    ListOptions { prefix: prefix.into(), ..ListOptions::default() }
}

fn keys(page: &Page) -> Vec<&str> {
    page.entries.iter().map(|e| &*e.key).collect()
}

#[tokio::test]
async fn a_write_is_read_back_with_its_revisions_also_after_a_restart() {
    let dir = room();
    let store = open(&dir);
    let made = store.put("/registry/pods/a/x", bytes("1"), Expect::Absent).await.unwrap();
    assert_eq!((made.create_rev, made.rev), (1, 1));
    let changed = store.put("/registry/pods/a/x", bytes("2"), Expect::Rev(1)).await.unwrap();
    assert_eq!((changed.create_rev, changed.rev), (1, 2));
    assert_eq!(store.get("/registry/pods/a/x").await.unwrap(), Some(changed.clone()));
    assert_eq!(store.get_at("/registry/pods/a/x", 1).await.unwrap(), Some(made.clone()));
    store.close().await;
    let store = open(&dir);
    assert_eq!(store.revision(), 2);
    assert_eq!(store.get("/registry/pods/a/x").await.unwrap(), Some(changed));
    assert_eq!(store.get_at("/registry/pods/a/x", 1).await.unwrap(), Some(made));
}

#[tokio::test]
async fn expectations_are_kept_and_the_current_entry_told() {
    let dir = room();
    let store = open(&dir);
    let x = "/registry/pods/a/x";
    let refused = |r: Result<Entry, WriteError>| match r {
        Err(WriteError::Conflict { index: 0, current }) => current.map(|e| e.rev),
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(store.put(x, bytes("1"), Expect::Rev(7)).await), None);
    assert!(matches!(
        store.delete(x, Expect::Any).await,
        Err(WriteError::Conflict { index: 0, current: None })
    ));
    store.put(x, bytes("1"), Expect::Any).await.unwrap();
    assert_eq!(refused(store.put(x, bytes("1"), Expect::Absent).await), Some(1));
    assert_eq!(refused(store.put(x, bytes("1"), Expect::Rev(2)).await), Some(1));
    assert_eq!(store.delete(x, Expect::Rev(1)).await.unwrap(), 2);
    assert_eq!(store.get(x).await.unwrap(), None);
    assert_eq!(store.get_at(x, 1).await.unwrap().unwrap().value, bytes("1"));
    let again = store.put(x, bytes("3"), Expect::Absent).await.unwrap();
    assert_eq!((again.create_rev, again.rev), (3, 3));
    assert_eq!(store.get_at(x, 2).await.unwrap(), None);
}

#[tokio::test]
async fn a_transaction_is_done_whole_or_not_at_all() {
    let dir = room();
    let store = open(&dir);
    store.put("/registry/a/n", bytes("0"), Expect::Any).await.unwrap();
    let writes = |expect| {
        vec![
            Write::put("/registry/b/x", bytes("1"), Expect::Absent),
            Write::check("/registry/a/n", expect),
            Write::put("/registry/b/y", bytes("2"), Expect::Absent),
        ]
    };
    let refused = store.transact(writes(Expect::Rev(9))).await;
    assert!(matches!(refused, Err(WriteError::Conflict { index: 1, current: Some(_) })));
    assert_eq!(store.list(all("/registry/b/")).await.unwrap().entries, []);
    let done = store.transact(writes(Expect::Rev(1))).await.unwrap();
    assert_eq!(done.iter().map(|e| e.rev).collect::<Vec<_>>(), [2, 3]);
    let twice = vec![
        Write::put("/registry/b/z", bytes("1"), Expect::Any),
        Write::put("/registry/b/z", bytes("2"), Expect::Any),
    ];
    assert!(matches!(store.transact(twice).await, Err(WriteError::Conflict { index: 1, .. })));
}

#[tokio::test]
async fn pages_show_one_revision_whatever_is_written_between_them() {
    let dir = room();
    let store = open(&dir);
    for name in ["a", "b", "c", "d"] {
        store.put(&format!("/registry/pods/ns/{name}"), bytes(name), Expect::Absent).await.unwrap();
    }
    store.put("/registry/podtemplates/ns/a", bytes("other"), Expect::Absent).await.unwrap();
    let first = ListOptions { limit: 2, count: true, ..all("/registry/pods/") };
    let page = store.list(first.clone()).await.unwrap();
    assert_eq!(keys(&page), ["/registry/pods/ns/a", "/registry/pods/ns/b"]);
    assert_eq!((page.revision, page.more, page.remaining), (5, true, 2));
    store.delete("/registry/pods/ns/c", Expect::Any).await.unwrap();
    store.put("/registry/pods/ns/d", bytes("new"), Expect::Any).await.unwrap();
    store.put("/registry/pods/ns/e", bytes("new"), Expect::Any).await.unwrap();
    let after = Some(page.entries[1].key.clone());
    let second = ListOptions { after: after.clone(), at: Some(page.revision), ..first.clone() };
    let page = store.list(second).await.unwrap();
    assert_eq!(keys(&page), ["/registry/pods/ns/c", "/registry/pods/ns/d"]);
    assert_eq!((page.revision, page.more, page.remaining), (5, false, 0));
    assert_eq!(page.entries[1].value, bytes("d"));
    let now = store.list(ListOptions { after, ..first }).await.unwrap();
    assert_eq!(keys(&now), ["/registry/pods/ns/d", "/registry/pods/ns/e"]);
    assert!(matches!(
        store.list(ListOptions { at: Some(99), ..all("/registry/") }).await,
        Err(ReadError::Ahead { requested: 99, revision: 8 })
    ));
}

#[tokio::test]
async fn a_watch_tells_every_change_after_its_revision() {
    let dir = room();
    let store = open(&dir);
    let x = "/registry/pods/a/x";
    store.put(x, bytes("1"), Expect::Any).await.unwrap();
    let mut watch = store.watch("/registry/pods/", 1).unwrap();
    let mut old = store.watch("/registry/pods/a/", 0).unwrap();
    assert_eq!(watch.progress(), Some(1));
    store.put(x, bytes("2"), Expect::Any).await.unwrap();
    store.put("/registry/nodes/n", bytes("n"), Expect::Any).await.unwrap();
    store.delete(x, Expect::Any).await.unwrap();
    let tell = |c: &Change| (c.rev, c.kind, c.value.clone(), c.previous.clone());
    let updated = (2, ChangeKind::Updated, bytes("2"), Some(bytes("1")));
    let deleted = (4, ChangeKind::Deleted, bytes("2"), Some(bytes("2")));
    assert_eq!(watch.progress(), None);
    assert_eq!(tell(&watch.next().await.unwrap()), updated);
    assert_eq!(tell(&watch.next().await.unwrap()), deleted);
    assert_eq!((watch.try_next().map(|c| c.rev), watch.progress()), (None, Some(4)));
    let created = (1, ChangeKind::Created, bytes("1"), None);
    assert_eq!(tell(&old.next().await.unwrap()), created);
    assert_eq!(old.next().await.unwrap().rev, 2);
    // The same from the log.
    store.close().await;
    assert!(matches!(watch.next().await, Err(WatchError::Fault(Fault::Closed))));
    let store = open(&dir);
    let mut watch = store.watch("/registry/pods/", 0).unwrap();
    for expected in [created, updated, deleted] {
        assert_eq!(tell(&watch.next().await.unwrap()), expected);
    }
    assert_eq!(watch.progress(), Some(4));
}

#[tokio::test]
async fn compaction_ends_what_needs_the_past_and_nothing_else() {
    let dir = room();
    let store = open(&dir);
    let (x, y) = ("/registry/pods/a/x", "/registry/pods/a/y");
    for value in ["1", "2", "3"] {
        store.put(x, bytes(value), Expect::Any).await.unwrap();
    }
    store.put(y, bytes("y"), Expect::Any).await.unwrap();
    store.delete(y, Expect::Any).await.unwrap();
    store.compact(5).await.unwrap();
    assert_eq!((store.revision(), store.compacted()), (5, 5));
    let gone = Compacted { requested: 4, compacted: 5 };
    assert_eq!(store.watch("/registry/pods/", 4).err(), Some(gone));
    assert!(matches!(store.get_at(x, 4).await, Err(ReadError::Compacted(c)) if c == gone));
    assert_eq!(store.get_at(x, 5).await.unwrap().unwrap().rev, 3);
    store.close().await;
    let store = open(&dir);
    assert_eq!((store.revision(), store.compacted()), (5, 5));
    assert_eq!(keys(&store.list(all("/registry/")).await.unwrap()), [x]);
    assert_eq!(store.put(y, bytes("y"), Expect::Absent).await.unwrap().rev, 6);
}

#[tokio::test]
async fn a_second_owner_is_refused_by_name() {
    let dir = room();
    let store = open(&dir);
    match Store::open(&dir.path().join("s"), Options::default()) {
        Err(OpenError::Locked { holder, .. }) => assert_eq!(holder, Some(std::process::id())),
        other => panic!("{other:?}"),
    }
    store.close().await;
    open(&dir);
}

#[tokio::test]
async fn concurrent_writers_share_commits() {
    let dir = room();
    let store = open(&dir);
    let writes =
        (0..200).map(|i| {
            let store = store.clone();
            async move {
                store.put(&format!("/registry/pods/a/{i}"), bytes("v"), Expect::Absent).await.unwrap().rev
            }
        });
    let mut revs = futures_util::future::join_all(writes).await;
    revs.sort_unstable();
    assert_eq!(revs, (1..=200).collect::<Vec<u64>>());
    let stats = store.stats();
    assert_eq!((stats.writes, stats.revision), (200, 200));
    assert!(stats.commits < 100, "{}", stats.commits);
}
