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
        Err(error) => {
            assert!(fs::read(&path).unwrap() == db, "a refused file was changed");
            assert!(fs::read(format::wal_file(&path)).unwrap() == wal, "a refused log was changed");
            Err(error)
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
    let error = reopen(&db, b"").await.unwrap_err();
    let OpenError::Corrupt(corruption) = &error else { panic!("{error}") };
    assert_eq!(corruption.row, Some(made.rev));
    let text = error.to_string();
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

/// Takes files away from, or cuts, a store that was killed, and opens it.
async fn without(scene: &Scene, cut: &[(&str, Option<usize>)]) -> Result<u64, OpenError> {
    let dir = room();
    for file in fs::read_dir(&scene.place).unwrap().map(Result::unwrap) {
        if !file.file_name().to_string_lossy().ends_with("-shm") {
            fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
    }
    for (name, length) in cut {
        match length {
            Some(length) => {
                let file = fs::OpenOptions::new().write(true).open(dir.path().join(name)).unwrap();
                file.set_len(*length as u64).unwrap();
            }
            None => fs::remove_file(dir.path().join(name)).unwrap(),
        }
    }
    let store = Store::open(dir.path(), Options::default())?;
    let revision = store.revision();
    store.close().await;
    Ok(revision)
}

#[tokio::test]
async fn a_file_that_was_taken_away_or_cut_is_missed() {
    let scene = scene(30).await;
    let revision = scene.store.revision();
    let half = usize::try_from(scene.steps[scene.steps.len() / 2].0).unwrap();
    let last = usize::try_from(scene.steps.last().unwrap().0).unwrap();
    assert_eq!(without(&scene, &[]).await.unwrap(), revision);
    let (db, wal, mark) = ("store.db", "store.db-wal", "store.revision");
    for (cut, named) in [
        (&[(wal, None)][..], wal),
        (&[(wal, Some(0))], wal),
        (&[(wal, Some(half))], wal),
        (&[(wal, Some(last - 1))], wal),
        (&[(db, None), (wal, None)], db),
        (&[(db, Some(0)), (wal, Some(0))], db),
        (&[(db, None)], db),
    ] {
        let told = without(&scene, cut).await.expect_err(named).to_string();
        assert!(told.contains(named) && told.contains("backup"), "{cut:?}: {told}");
        // The way out that it tells. A log without its file is worth keeping, and has to be moved away too.
        if cut != [(db, None)] {
            assert!(told.contains(mark), "{cut:?}: {told}");
            let on = without(&scene, &[cut, &[(mark, None)]].concat()).await.unwrap();
            assert!(on < revision, "{cut:?}: {on}");
        }
    }
    // A mark that nobody can read claims nothing but that there was a store.
    assert_eq!(without(&scene, &[(mark, Some(7))]).await.unwrap(), revision);
    let gone = without(&scene, &[(mark, Some(0)), (db, None), (wal, None)]).await;
    assert!(matches!(gone, Err(OpenError::Gone { .. })), "{gone:?}");
}

#[tokio::test]
async fn an_older_copy_of_the_file_is_not_taken_for_the_store_and_no_backup_is_made_of_it() {
    let dir = room();
    let store = open(&dir);
    let place = dir.path().join("s");
    store.put("/registry/pods/a/x", bytes("1"), Expect::Any).await.unwrap();
    store.close().await;
    let old = fs::read(format::file(&place)).unwrap();
    let store = open(&dir);
    store.put("/registry/pods/a/x", bytes("2"), Expect::Any).await.unwrap();
    store.close().await;
    fs::write(format::file(&place), old).unwrap();
    let copied = backup(&place, &dir.path().join("copy"));
    assert!(matches!(copied, Err(OpenError::Rewound { found: 1, known: 2, .. })), "{copied:?}");
    assert!(!dir.path().join("copy").exists());
    let opened = Store::open(&place, Options::default());
    assert!(matches!(opened, Err(OpenError::Rewound { found: 1, known: 2, .. })), "{opened:?}");
}

#[tokio::test]
async fn the_same_backup_restored_twice_never_gives_a_revision_twice() {
    let dir = room();
    let (place, copy) = (dir.path().join("s"), dir.path().join("copy"));
    let store = open(&dir);
    store.put("/registry/pods/a/x", bytes("1"), Expect::Any).await.unwrap();
    backup(&place, &copy).unwrap();
    store.close().await;
    let mut seen = 0;
    for round in 0..3 {
        restore(&copy, &place, true).unwrap();
        if round == 2 {
            // The way out of a store that is gone.
            fs::remove_file(format::file(&place)).unwrap();
            restore(&copy, &place, false).unwrap();
        }
        let store = open(&dir);
        assert!(store.revision() > seen, "{} is not above {seen}", store.revision());
        seen = store.put("/registry/pods/a/x", bytes("other"), Expect::Any).await.unwrap().rev;
        store.close().await;
    }
}

/// Everything in a directory, but what is memory only.
fn content(place: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(place).unwrap().map(|f| f.unwrap().path()).filter(|p| p.is_file());
    let named = files.map(|p| (p.file_name().unwrap().to_string_lossy().into_owned(), fs::read(p).unwrap()));
    named.filter(|(name, _)| !name.ends_with("-shm") && !name.ends_with(".lock")).collect()
}

#[tokio::test]
async fn what_is_no_whole_backup_is_refused_and_the_store_stays_as_it_is() {
    let scene = scene(60).await;
    let dir = room();
    let copy = dir.path().join("copy");
    backup(&scene.place, &copy).unwrap();
    scene.store.close().await;
    let (before, whole) = (content(&scene.place), fs::read(&copy).unwrap());
    let bad = dir.path().join("bad");
    let mut tries: Vec<Vec<u8>> = (0..whole.len()).step_by(1024).map(|cut| whole[..cut].to_vec()).collect();
    tries.extend([b"apiVersion: v1".to_vec(), vec![0; 8192], b"SQLite format 3\0".repeat(600)]);
    for (number, content) in tries.iter().enumerate() {
        fs::write(&bad, content).unwrap();
        let refused = restore(&bad, &scene.place, true);
        assert!(refused.is_err(), "try {number} of {} bytes: {refused:?}", content.len());
    }
    for odd in [dir.path(), &dir.path().join("none"), Path::new("/dev/zero")] {
        assert!(restore(odd, &scene.place, true).is_err(), "{}", odd.display());
    }
    assert!(content(&scene.place) == before, "a refused restore changed something");
    restore(&copy, &scene.place, true).unwrap();
}

#[tokio::test]
async fn a_copy_takes_the_place_of_nothing_that_is_there() {
    let scene = scene(5).await;
    let dir = room();
    let place = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink(place("nowhere"), place("link")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, place("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    fs::create_dir(place("directory")).unwrap();
    fs::write(place("file"), "x").unwrap();
    for name in ["link", "socket", "pipe", "directory", "file"] {
        let before = place(name).symlink_metadata().unwrap().file_type();
        let told = backup(&scene.place, &place(name)).unwrap_err().to_string();
        assert!(told.contains("exists already"), "{name}: {told}");
        assert_eq!(place(name).symlink_metadata().unwrap().file_type(), before, "{name}");
    }
    // As `mktemp` leaves it.
    fs::write(place("empty"), "").unwrap();
    backup(&scene.place, &place("empty")).unwrap();
}

#[tokio::test]
async fn a_copy_that_would_act_by_itself_is_refused() {
    let scene = scene(5).await;
    let dir = room();
    let copy = dir.path().join("copy");
    for added in [
        "CREATE TRIGGER t AFTER INSERT ON log BEGIN DELETE FROM cur; END",
        "CREATE VIEW v AS SELECT * FROM cur",
        "CREATE TABLE other (x)",
        "CREATE INDEX i ON cur (rev)",
    ] {
        _ = fs::remove_file(&copy);
        backup(&scene.place, &copy).unwrap();
        let conn = rusqlite::Connection::open(&copy).unwrap();
        conn.execute_batch(added).unwrap();
        drop(conn);
        let told = restore(&copy, &scene.place.with_file_name("fresh"), false).unwrap_err().to_string();
        assert!(told.contains("no store has"), "{added}: {told}");
    }
}

#[tokio::test]
async fn a_backup_under_load_has_every_transaction_whole_or_not_at_all() {
    let dir = room();
    let store = open(&dir);
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return number;
                    }
                    let value = Bytes::from(format!("{number} {}", "x".repeat(2000)));
                    let writes = ["a", "b"].map(|half| {
                        Write::put(&format!("/registry/{half}/{writer}"), value.clone(), Expect::Any)
                    });
                    store.transact(writes.into()).await.unwrap();
                }
                0
            })
        })
        .collect();
    for round in 0..5 {
        let (copy, fresh) = (dir.path().join(format!("copy-{round}")), dir.path().join(format!("r-{round}")));
        let place = dir.path().join("s");
        let report = tokio::task::spawn_blocking(move || {
            let report = backup(&place, &copy).unwrap();
            restore(&copy, &fresh, false).unwrap();
            (report, fresh)
        });
        let (report, fresh) = report.await.unwrap();
        let restored = Store::open(&fresh, Options::default()).unwrap();
        let page = restored.list(all("/registry/")).await.unwrap();
        assert_eq!(page.entries.len() as u64, report.keys);
        let (a, b) = page.entries.split_at(page.entries.len() / 2);
        assert!(a.iter().zip(b).all(|(a, b)| a.value == b.value), "half a transaction in round {round}");
        restored.close().await;
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 0);
    }
    store.close().await;
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
