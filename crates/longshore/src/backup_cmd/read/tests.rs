use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::{Expect, ListOptions, OpenError, Options, Store};

use super::super::archive::{Entry, finish, put};
use super::super::write::write;
use super::*;

const PLACE: &str = "RESTORE_PLACE";

/// A node whose every file says `who` it is.
fn make_node(data: &Path, who: &str) {
    for dir in DIRECTORIES {
        DirBuilder::new().recursive(true).mode(0o700).create(data.join(dir)).unwrap();
    }
    for name in
        ["pki/ca.crt", "pki/ca.key", "pki/sa.key", "admin.kubeconfig", "deploy/a.yaml", "manifests/p.yaml"]
    {
        fs::write(data.join(name), who).unwrap();
    }
    // What the other one has not.
    fs::write(data.join("deploy").join(format!("{who}.yaml")), who).unwrap();
    in_store(data, async |store| {
        for i in 0..20 {
            let value = Bytes::from(who.repeat(500));
            store.put(&format!("/registry/x/{i}"), value, Expect::Any).await.unwrap();
        }
    });
}

fn in_store<T>(data: &Path, act: impl AsyncFnOnce(&Store) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store =
            Store::open(data, Options::default()).unwrap_or_else(|e| panic!("{}: {e}", data.display()));
        let told = act(&store).await;
        store.close().await;
        told
    })
}

/// Whose node it is; the same in each of its parts.
fn whose(data: &Path) -> String {
    let read = |name: &str| fs::read_to_string(data.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
    let who = read("pki/ca.key");
    for name in super::super::names(data).unwrap() {
        assert_eq!(read(&name), who, "{name}");
    }
    assert_eq!(read(&format!("deploy/{who}.yaml")), who);
    let entries = in_store(data, async |store| {
        let all = ListOptions { prefix: "/registry/x/".into(), ..ListOptions::default() };
        store.list(all).await.unwrap().entries
    });
    assert_eq!(entries.len(), 20);
    assert!(entries.iter().all(|entry| entry.value.starts_with(who.as_bytes())), "the store is not {who}'s");
    who
}

/// Everything below a directory, without what a lock says.
fn picture(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(dir).unwrap().display().to_string();
            match path.is_dir() {
                true => left.push(path),
                false if name == "store.lock" => {}
                false => drop(found.insert(name, fs::read(path).unwrap())),
            }
        }
    }
    found
}

fn archive_of(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, content) in files {
        let entry = Entry { name: (*name).to_owned(), mode: 0o777, size: content.len() as u64 };
        put(&mut bytes, &entry, &mut &content[..]).unwrap();
    }
    finish(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_backup_comes_back_private_and_what_was_there_is_kept_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two, file) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("file"));
    make_node(&one, "one");
    make_node(&two, "two");
    let before = picture(&two);
    write(&one, &file).unwrap();
    assert!(write(&one, &file).unwrap_err().contains("there already"));
    let told = read(&file, &two, false).unwrap_err();
    assert!(told.contains("--replace"), "{told}");
    assert_eq!(picture(&two), before);
    read(&file, &two, true).unwrap();
    assert_eq!(whose(&two), "one");
    assert_eq!(whose(&two.join("replaced-1")), "two");
    use std::os::unix::fs::PermissionsExt as _;
    for name in ["pki/ca.key", "admin.kubeconfig", "store.db", "deploy/a.yaml"] {
        assert_eq!(fs::metadata(two.join(name)).unwrap().permissions().mode() & 0o077, 0, "{name}");
    }
    assert!(!two.join(SCRATCH).exists() && !two.join("restore.unfinished").exists());
}

#[test]
fn what_is_no_whole_backup_of_a_node_changes_nothing() {
    // In memory: it syncs ten thousand files.
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (one, two, file) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("file"));
    make_node(&one, "one");
    make_node(&two, "two");
    let before = picture(&two);
    write(&one, &file).unwrap();
    let whole = fs::read(&file).unwrap();
    let many: Vec<(String, &[u8])> = (0..=MOST).map(|i| (format!("deploy/{i}"), &b""[..])).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(name, bytes)| (name.as_str(), *bytes)).collect();
    let mut large = archive_of(&[("pki/ca.key", b"")]);
    let entry = Entry { name: "pki/ca.key".into(), mode: 0o600, size: 1 << 40 >> 6 };
    large.splice(0..512, {
        let mut header = Vec::new();
        _ = put(&mut header, &entry, &mut io::empty());
        header
    });
    let mut linked = archive_of(&[("pki/ca.key", b"x")]);
    linked[156] = b'2';
    let mut flipped = whole.clone();
    let at = flipped.len() - 6000;
    flipped[at] ^= 0x10;
    let rows: Vec<(Vec<u8>, &str)> = vec![
        (archive_of(&[("etc/passwd", b"x")]), "no file of a node"),
        (archive_of(&[("pki/a/b", b"x")]), "no file of a node"),
        (archive_of(&[("store.db", b"x")]), "no file of a node"),
        (archive_of(&[("restore.unfinished", b"x")]), "no file of a node"),
        (archive_of(&[("\u{1b}[2J", b"x")]), r"\u{1b}"),
        (archive_of(&[("pki", b"x")]), "no file of a node"),
        (archive_of(&[("pki/ca.key", b"x"), ("pki/ca.key", b"y")]), "exists"),
        (archive_of(&[("pki/ca.key", b"x")]), "no store"),
        (archive_of(&[(STORE, b"x")]), "store"),
        (archive_of(&[(STORE, b"")]), "store"),
        (archive_of(&many), "more than"),
        (large, "more than"),
        (linked, "no backup"),
        (flipped, "corrupt"),
        (Vec::new(), "ends early"),
        (vec![0; 512], "no store"),
        (vec![b'x'; 4096], "no backup"),
    ];
    for (bytes, want) in rows {
        let bad = dir.path().join("bad");
        fs::write(&bad, &bytes).unwrap();
        for replace in [false, true] {
            let fresh = dir.path().join("fresh");
            let told = read(&bad, &fresh, replace).unwrap_err();
            assert!(told.contains(want), "{want}: {told}");
            assert!(!told.contains('\u{1b}'), "{told}");
            assert!(picture(&fresh).is_empty(), "{want}: {:?}", picture(&fresh).keys());
        }
        read(&bad, &two, true).unwrap_err();
        assert_eq!(picture(&two), before, "{want}");
    }
    // Of the end, two blocks of nothing, one is enough.
    let end = whole.len() - 1024;
    for cut in (0..end).step_by(4099).chain([end - 1, end, end + 511]) {
        let bad = dir.path().join("bad");
        fs::write(&bad, &whole[..cut]).unwrap();
        read(&bad, &two, true).unwrap_err();
        assert_eq!(picture(&two), before, "{cut}");
    }
    assert_eq!(whose(&two), "two");
}

#[test]
fn nobody_who_waits_beside_a_backup_gets_a_byte_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let (one, file) = (dir.path().join("one"), dir.path().join("file"));
    make_node(&one, "one");
    let (half, victim) = (dir.path().join("file.half"), dir.path().join("victim"));
    fs::create_dir(&victim).unwrap();
    // A link to elsewhere, a file, a directory that others see into.
    for plant in 0..3 {
        match plant {
            0 => std::os::unix::fs::symlink(&victim, &half).unwrap(),
            1 => fs::write(&half, "").unwrap(),
            _ => {
                use std::os::unix::fs::PermissionsExt as _;
                fs::create_dir(&half).unwrap();
                fs::set_permissions(&half, fs::Permissions::from_mode(0o755)).unwrap();
            }
        }
        let told = write(&one, &file).unwrap_err();
        assert!(told.contains("file.half"), "{told}");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
        assert!(!file.exists());
        _ = fs::remove_file(&half);
        _ = fs::remove_dir(&half);
    }
    // What one left that was killed is no hindrance, and two at once do not mix.
    DirBuilder::new().mode(0o700).create(&half).unwrap();
    for name in ["archive", "store", "store.partial"] {
        fs::write(half.join(name), "rest").unwrap();
    }
    let both: Vec<_> = std::thread::scope(|scope| {
        let tries: Vec<_> = (0..2).map(|_| scope.spawn(|| write(&one, &file))).collect();
        tries.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(both.iter().filter(|done| done.is_ok()).count(), 1, "{both:?}");
    assert!(!half.exists());
    read(&file, &dir.path().join("copy"), false).unwrap();
    assert_eq!(whose(&dir.path().join("copy")), "one");
}

#[test]
fn a_running_node_and_another_restore_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two, file) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("file"));
    make_node(&one, "one");
    make_node(&two, "two");
    write(&one, &file).unwrap();
    let before = picture(&two);
    fs::create_dir(two.join(SCRATCH)).unwrap();
    fs::write(two.join(SCRATCH).join("x"), "of another restore").unwrap();
    let lock = store::Lock::take(&two).unwrap();
    let told = read(&file, &two, true).unwrap_err();
    assert!(told.contains("in use by process"), "{told}");
    assert!(two.join(SCRATCH).join("x").exists());
    drop(lock);
    fs::remove_dir_all(two.join(SCRATCH)).unwrap();
    assert_eq!(picture(&two), before);
}

/// Killed at random moments, it leaves the old node, the new one, or a directory that only a restore takes.
#[test]
fn a_restore_that_is_killed_never_leaves_a_part_of_two_nodes() {
    const ROUNDS: u32 = 40;
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let (one, file) = (dir.path().join("one"), dir.path().join("file"));
    make_node(&one, "one");
    write(&one, &file).unwrap();
    let started = Instant::now();
    read(&file, &dir.path().join("timed"), false).unwrap();
    let takes = started.elapsed().max(Duration::from_millis(1));
    let (mut rng, mut seen) = (base::rng::Rng::new(1), BTreeMap::<&str, u32>::new());
    for round in 0..ROUNDS {
        let two = dir.path().join("two");
        _ = fs::remove_dir_all(&two);
        make_node(&two, "two");
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "backup_cmd::read::tests::restoring_child", "--nocapture"])
            .env(PLACE, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = io::BufRead::lines(BufReader::new(child.stdout.take().unwrap()));
        while lines.next().is_some_and(|line| !line.unwrap_or_default().ends_with("begun")) {}
        let micros = u64::try_from(takes.as_micros()).unwrap();
        std::thread::sleep(Duration::from_micros(rng.below(2 * micros)));
        child.kill().unwrap();
        child.wait().unwrap();
        let state = match store::Lock::take(&two) {
            Ok(lock) => {
                drop(lock);
                if whose(&two) == "two" { "old" } else { "new" }
            }
            Err(OpenError::HalfRestored { .. }) => {
                read(&file, &two, true).unwrap_or_else(|e| panic!("round {round}: {e}"));
                assert_eq!(whose(&two), "one", "round {round}");
                "half"
            }
            Err(other) => panic!("round {round}: {other}"),
        };
        *seen.entry(state).or_default() += 1;
        if state == "old" {
            read(&file, &two, true).unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(whose(&two), "one", "round {round}");
        }
    }
    assert!(seen.len() > 1, "{seen:?}");
}

#[test]
fn a_directory_that_is_neither_is_taken_by_nobody_but_a_restore() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two, file) = (dir.path().join("one"), dir.path().join("two"), dir.path().join("file"));
    make_node(&one, "one");
    make_node(&two, "two");
    write(&one, &file).unwrap();
    // As it is between two of the steps.
    Restore::of(&two, true).unwrap().begin().unwrap();
    fs::rename(two.join("pki"), two.join("elsewhere")).unwrap();
    let told = store::Lock::take(&two).unwrap_err().to_string();
    assert!(told.contains("cut short") && told.contains("--replace"), "{told}");
    assert!(write(&two, &dir.path().join("other")).unwrap_err().contains("cut short"));
    assert!(
        store::restore(&two.join("store.db"), &two, true).is_err(),
        "it would be half a node all the same"
    );
    read(&file, &two, true).unwrap();
    assert_eq!(whose(&two), "one");
}

/// Not a test of its own: the process that is killed while it restores.
#[test]
#[ignore = "run by the test above"]
fn restoring_child() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    let place = Path::new(&place);
    let mut out = io::stdout();
    io::Write::write_all(&mut out, b"begun\n").unwrap();
    io::Write::flush(&mut out).unwrap();
    read(&place.join("file"), &place.join("two"), true).unwrap();
}
