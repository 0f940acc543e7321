//! Crashes and bad disks: what is opened afterwards is what was acknowledged, or refused and left alone.

use std::fs;
use std::path::{Path, PathBuf};

use base::rng::Rng;

use super::*;

/// A store after some writes: its files as they lie on the disk, and what they should say.
struct Scene {
    _dir: tempfile::TempDir,
    store: Store,
    place: PathBuf,
    /// The length of the write-ahead log and the whole state, after each write.
    steps: Vec<(u64, Vec<Entry>)>,
}

async fn scene(writes: u64) -> Scene {
    let dir = room();
    let place = dir.path().join("s");
    let store = Store::open(&place, Options::default()).unwrap();
    let wal = format::wal_file(&format::file(&place));
    let mut rng = Rng::new(writes);
    let mut steps = vec![(fs::metadata(&wal).unwrap().len(), vec![])];
    for i in 0..writes {
        let key = format!("/registry/pods/ns/{}", rng.below(7));
        let value = Bytes::from(vec![b'a' + (i % 26) as u8; 1 + rng.below(9000) as usize]);
        if rng.chance(0.2) {
            let _ = store.delete(&key, Expect::Any).await;
        } else {
            store.put(&key, value, Expect::Any).await.unwrap();
        }
        if store.revision() as usize == steps.len() {
            let state = store.list(all("/registry/")).await.unwrap().entries;
            steps.push((fs::metadata(&wal).unwrap().len(), state));
        }
    }
    Scene { _dir: dir, store, place, steps }
}

/// Opens files made from the given bytes; they must be untouched when they are refused.
async fn reopen(db: &[u8], wal: &[u8]) -> Result<(u64, Vec<Entry>), OpenError> {
    let dir = room();
    let path = format::file(dir.path());
    fs::write(&path, db).unwrap();
    fs::write(format::wal_file(&path), wal).unwrap();
    match Store::open(dir.path(), Options::default()) {
        Ok(store) => {
            let state = store.list(all("/registry/")).await.unwrap();
            store.close().await;
            Ok((state.revision, state.entries))
        }
        Err(refusal) => {
            assert!(fs::read(&path).unwrap() == db, "a refused file was changed");
            assert!(fs::read(format::wal_file(&path)).unwrap() == wal, "a refused log was changed");
            Err(refusal)
        }
    }
}

fn files(place: &Path) -> (Vec<u8>, Vec<u8>) {
    let path = format::file(place);
    // Tools that close a database last take its log away.
    (fs::read(&path).unwrap(), fs::read(format::wal_file(&path)).unwrap_or_default())
}

#[tokio::test]
async fn wherever_the_log_is_cut_off_the_acknowledged_part_before_it_is_whole() {
    let scene = scene(60).await;
    let (db, wal) = files(&scene.place);
    let mut rng = Rng::new(1);
    let mut cuts: Vec<u64> = scene.steps.iter().flat_map(|(len, _)| [*len, len.saturating_sub(1)]).collect();
    cuts.extend((0..60).map(|_| rng.below(wal.len() as u64)));
    for cut in cuts {
        let revision = scene.steps.iter().rposition(|(len, _)| *len <= cut).unwrap_or(0);
        let cut = usize::try_from(cut).unwrap();
        let opened = reopen(&db, &wal[..cut]).await.unwrap();
        assert_eq!(opened.0, revision as u64, "cut at {cut}");
        assert!(opened.1 == scene.steps[revision].1, "cut at {cut}");
    }
}

#[tokio::test]
async fn a_torn_last_transaction_is_dropped_and_only_that() {
    let scene = scene(20).await;
    let (db, wal) = files(&scene.place);
    let [.., before, _] = &scene.steps[..] else { panic!("no steps") };
    let mut rng = Rng::new(2);
    for _ in 0..40 {
        // Any of its blocks may have reached the disk or not.
        let mut torn = wal.clone();
        let start = usize::try_from(before.0).unwrap();
        let first = rng.chance(0.5);
        for block in torn[start..].chunks_mut(512) {
            if first || rng.chance(0.5) {
                block.fill(0);
            }
        }
        if torn == wal {
            continue;
        }
        let (revision, state) = reopen(&db, &torn).await.unwrap();
        assert_eq!(revision as usize, scene.steps.len() - 2);
        assert!(state == before.1);
    }
}

#[tokio::test]
async fn a_checkpoint_may_be_cut_off_anywhere() {
    let scene = scene(60).await;
    let (old, wal) = files(&scene.place);
    let last = scene.steps.last().unwrap().1.clone();
    let revision = scene.store.revision();
    scene.store.close().await;
    let (new, empty) = files(&scene.place);
    assert!(empty.is_empty() && new.len() > old.len());
    let mut rng = Rng::new(3);
    for round in 0..60 {
        let mut mixed = new[..new.len() - (rng.below(4) as usize * 4096).min(new.len() - old.len())].to_vec();
        for (i, block) in mixed.chunks_mut(512).enumerate() {
            if rng.chance(0.5) {
                let at = i * 512;
                match old.get(at..at + block.len()) {
                    Some(stale) => block.copy_from_slice(stale),
                    None => block.fill(0),
                }
            }
        }
        // The first page says whether there is a log at all, and does not change in this scene but as a whole.
        mixed[..4096].copy_from_slice(if rng.chance(0.5) { &old[..4096] } else { &new[..4096] });
        let opened = reopen(&mixed, &wal).await;
        let (found, state) = opened.unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert_eq!(found, revision);
        assert!(state == last, "round {round}");
    }
}

#[tokio::test]
async fn a_flipped_bit_in_the_file_is_refused_or_harmless() {
    let scene = scene(60).await;
    let last = scene.steps.last().unwrap().1.clone();
    let revision = scene.store.revision();
    scene.store.compact(revision / 2).await.unwrap();
    scene.store.close().await;
    let (db, _) = files(&scene.place);
    let mut rng = Rng::new(4);
    let mut refused = 0;
    for _ in 0..200 {
        let mut bad = db.clone();
        let at = rng.below(db.len() as u64) as usize;
        bad[at] ^= 1 << rng.below(8);
        match reopen(&bad, b"").await {
            Ok((found, state)) => assert!(found == revision && state == last, "byte {at}"),
            Err(OpenError::Corrupt(_) | OpenError::Newer { .. } | OpenError::Foreign { .. }) => refused += 1,
            // The engine has its own words for some nonsense in the file's header.
            Err(OpenError::Engine { .. }) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(refused > 50, "{refused}");
}

#[tokio::test]
async fn a_flipped_bit_in_the_log_never_drops_what_is_far_behind_it() {
    let scene = scene(40).await;
    let (db, wal) = files(&scene.place);
    let mut rng = Rng::new(5);
    let mut refused = 0;
    for _ in 0..100 {
        let mut bad = wal.clone();
        let at = rng.below(wal.len() as u64) as usize;
        bad[at] ^= 1 << rng.below(8);
        match reopen(&db, &bad).await {
            // In the last transactions, damage cannot be told from a write that was cut off.
            Ok((revision, state)) => {
                let revision = usize::try_from(revision).unwrap();
                assert!(revision + 3 >= scene.steps.len(), "byte {at}: revision {revision}");
                assert!(state == scene.steps[revision].1, "byte {at}");
            }
            Err(OpenError::Corrupt(_)) => refused += 1,
            Err(other) => panic!("byte {at}: {other}"),
        }
    }
    assert!(refused > 50, "{refused}");
}

#[tokio::test]
async fn a_bad_row_is_named() {
    let scene = scene(30).await;
    let marker = Bytes::from_static(b"find me in the file");
    let made = scene.store.put("/registry/pods/ns/marked", marker.clone(), Expect::Any).await.unwrap();
    scene.store.close().await;
    let (mut db, _) = files(&scene.place);
    let at = db.windows(marker.len()).position(|w| w == marker).unwrap();
    db[at] ^= 1;
    let refusal = reopen(&db, b"").await.unwrap_err();
    let OpenError::Corrupt(corruption) = &refusal else { panic!("{refusal}") };
    assert_eq!(corruption.row, Some(made.rev));
    let text = refusal.to_string();
    assert!(text.contains("store.db") && text.contains("/registry/pods/ns/marked"), "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
}

#[tokio::test]
async fn newer_and_foreign_files_are_refused() {
    let dir = room();
    let path = format::file(dir.path());
    Store::open(dir.path(), Options::default()).unwrap().close().await;
    let conn = rusqlite::Connection::open(&path).unwrap();
    conn.execute_batch("PRAGMA user_version = 2").unwrap();
    drop(conn);
    let (db, wal) = files(dir.path());
    assert!(matches!(reopen(&db, &wal).await, Err(OpenError::Newer { found: 2, known: 1, .. })));
    let path = dir.path().join("other.db");
    rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t (x)").unwrap();
    let foreign = reopen(&fs::read(&path).unwrap(), b"").await;
    assert!(matches!(foreign, Err(OpenError::Foreign { .. })));
    let text = reopen(&b"no database at all, just a text that is long enough".repeat(20), b"").await;
    assert!(matches!(text, Err(OpenError::Corrupt(_))));
    let alone = reopen(b"", &[1; 64]).await;
    assert!(matches!(alone, Err(OpenError::Corrupt(_))));
}

#[tokio::test]
async fn a_backup_of_a_busy_store_is_one_revision_and_restores_above_it() {
    let scene = scene(60).await;
    let copy = scene.place.join("copy.db");
    let report = backup(&scene.place, &copy).unwrap();
    let last = scene.steps.last().unwrap().1.clone();
    assert_eq!((report.revision, report.keys), (scene.store.revision(), last.len() as u64));
    assert!(matches!(backup(&scene.place, &copy), Err(OpenError::Exists { .. })));
    scene.store.put("/registry/pods/ns/later", bytes("lost"), Expect::Any).await.unwrap();
    assert!(matches!(restore(&copy, &scene.place, true), Err(OpenError::Locked { .. })));
    let later = scene.store.revision();
    scene.store.close().await;
    assert!(matches!(restore(&copy, &scene.place, false), Err(OpenError::Exists { .. })));
    restore(&copy, &scene.place, true).unwrap();
    assert!(scene.place.join("replaced-1/store.db").exists());
    let store = Store::open(&scene.place, Options::default()).unwrap();
    let page = store.list(all("/registry/")).await.unwrap();
    assert!(page.entries == last && page.revision > later);
    assert!(store.watch("/registry/", later).is_err());
    let put = store.put(&last[0].key, bytes("on"), Expect::Rev(last[0].rev)).await.unwrap();
    assert_eq!(put.rev, page.revision + 1);
    store.close().await;
    Store::open(&scene.place, Options::default()).unwrap();
    // A copy of a store that nobody has open, and a copy that is damaged.
    let offline = scene.place.join("offline.db");
    backup(&scene.place, &offline).unwrap();
    let mut bad = fs::read(&offline).unwrap();
    let middle = bad.len() / 2;
    bad[middle..middle + 512].fill(0x55);
    fs::write(&offline, bad).unwrap();
    let fresh = scene.place.join("fresh");
    assert!(matches!(restore(&offline, &fresh, false), Err(OpenError::Corrupt(_))));
    assert!(!format::file(&fresh).exists());
}
