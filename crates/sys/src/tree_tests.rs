#![allow(clippy::unwrap_used)]

use std::fs::{create_dir, create_dir_all, read_to_string, write};
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::*;
use crate::mount::{self, Busy};
use crate::scratch;

fn rm(dir: &Path, name: &str) -> Result<(), TreeError> {
    remove(fd::open_dir(dir).unwrap(), OsStr::new(name))
}

fn bind(source: &Path, target: &Path) {
    let open = |p: &Path| fs::open(p, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    mount::bind(open(source), open(target), false).unwrap();
}

#[test]
fn links_are_removed_not_followed() {
    scratch::run(|dir| {
        create_dir_all(dir.join("pod/a/b")).unwrap();
        create_dir(dir.join("user")).unwrap();
        write(dir.join("user/data"), "precious").unwrap();
        symlink(dir.join("user"), dir.join("pod/a/dir")).unwrap();
        symlink(dir.join("user/data"), dir.join("pod/a/b/file")).unwrap();
        symlink(dir.join("user"), dir.join("top")).unwrap();
        rm(dir, "pod").unwrap();
        rm(dir, "top").unwrap();
        rm(dir, "top").unwrap();
        assert!(!dir.join("pod").exists());
        assert_eq!(read_to_string(dir.join("user/data")).unwrap(), "precious");
    });
}

#[test]
fn a_mount_stops_it_and_is_named() {
    scratch::run(|dir| {
        create_dir_all(dir.join("pod/volumes/v")).unwrap();
        create_dir_all(dir.join("user")).unwrap();
        write(dir.join("user/data"), "precious").unwrap();
        write(dir.join("pod/file"), "").unwrap();
        bind(&dir.join("user"), &dir.join("pod/volumes/v"));
        let error = rm(dir, "pod").unwrap_err();
        assert!(matches!(&error, TreeError::Mounted(p) if p == Path::new("pod/volumes/v")), "{error}");
        mount::unmount(fd::open_dir(&dir.join("pod/volumes")).unwrap(), OsStr::new("v"), Busy::Refuse)
            .unwrap();
        write(dir.join("pod/f"), "").unwrap();
        bind(&dir.join("user/data"), &dir.join("pod/f"));
        let error = rm(dir, "pod").unwrap_err();
        assert!(matches!(&error, TreeError::Mounted(p) if p == Path::new("pod/f")), "{error}");
        assert_eq!(read_to_string(dir.join("user/data")).unwrap(), "precious");
        bind(&dir.join("user"), &dir.join("pod"));
        assert!(matches!(rm(dir, "pod"), Err(TreeError::Mounted(_))));
        assert_eq!(read_to_string(dir.join("user/data")).unwrap(), "precious");
    });
}

#[test]
fn depth_costs_neither_stack_nor_descriptors() {
    scratch::run(|dir| {
        let mut here = fd::make_dir(fd::open_dir(dir).unwrap(), OsStr::new("deep"), Mode::RWXU).unwrap();
        for _ in 0..30_000 {
            here = fd::make_dir(&here, OsStr::new("d"), Mode::RWXU).unwrap();
        }
        drop(here);
        let mut seen = 0;
        visit(fd::open_dir(&dir.join("deep")).unwrap(), &mut |_, _| {
            seen += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, 30_000);
        rm(dir, "deep").unwrap();
        assert!(!dir.join("deep").exists());
    });
}

#[test]
fn more_directories_than_a_batch() {
    scratch::run(|dir| {
        for n in 0..BATCH * 2 + 10 {
            create_dir_all(dir.join(format!("wide/in/{n}/x"))).unwrap();
        }
        rm(dir, "wide").unwrap();
        assert!(!dir.join("wide").exists());
    });
}

#[test]
fn children_come_before_their_directory_and_mounts_are_left_out() {
    scratch::run(|dir| {
        create_dir_all(dir.join("t/a/b")).unwrap();
        create_dir_all(dir.join("t/m")).unwrap();
        write(dir.join("t/a/b/f"), "").unwrap();
        create_dir_all(dir.join("other/inside")).unwrap();
        bind(&dir.join("other"), &dir.join("t/m"));
        let mut seen = Vec::new();
        visit(fd::open_dir(&dir.join("t")).unwrap(), &mut |_, n| {
            seen.push(n.name.to_str().unwrap().to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(seen, ["f", "b", "a"]);
    });
}

#[derive(Clone, Debug)]
enum Act {
    Dir(usize, u8),
    File(usize, u8),
    Link(usize, u8, usize),
    Bind { from: usize, to: usize },
    BindFile { from: usize, to: usize },
}

fn act() -> impl Strategy<Value = Act> {
    let at = 0usize..64;
    prop_oneof![
        4 => (at.clone(), 0u8..6).prop_map(|(d, n)| Act::Dir(d, n)),
        3 => (at.clone(), 0u8..6).prop_map(|(d, n)| Act::File(d, n)),
        1 => (at.clone(), 0u8..6, 0usize..64).prop_map(|(d, n, t)| Act::Link(d, n, t)),
        1 => (at.clone(), 0usize..64).prop_map(|(from, to)| Act::Bind { from, to }),
        1 => (at, 0usize..64).prop_map(|(from, to)| Act::BindFile { from, to }),
    ]
}

/// Plays random acts in `pod`; mounts come from `user`, which must survive whatever happens.
fn play(pod: &Path, user: &Path, acts: &[Act]) -> usize {
    let mut dirs = vec![pod.to_owned()];
    let mut files = Vec::new();
    let sources: Vec<PathBuf> = (0..8).map(|n| user.join(format!("{}/{}", n / 4, n % 4))).collect();
    let mut mounts = 0;
    for act in acts {
        match act {
            Act::Dir(at, n) => {
                let path = dirs[at % dirs.len()].join(format!("d{n}"));
                if create_dir(&path).is_ok() {
                    dirs.push(path);
                }
            }
            Act::File(at, n) => {
                let path = dirs[at % dirs.len()].join(format!("f{n}"));
                if write(&path, "x").is_ok() {
                    files.push(path);
                }
            }
            Act::Link(at, n, to) => {
                let _ = symlink(&sources[to % 8], dirs[at % dirs.len()].join(format!("l{n}")));
            }
            Act::Bind { from, to } => {
                // Directories below become unreachable by path; later acts then write to the user's
                // side on purpose, before the snapshot is taken.
                bind(&sources[from % 8], &dirs[to % dirs.len()]);
                dirs.retain(|d| d.is_dir());
                files.retain(|f| f.is_file());
                mounts += 1;
            }
            Act::BindFile { from, to } if !files.is_empty() => {
                bind(&sources[from % 8].join("data"), &files[to % files.len()]);
                mounts += 1;
            }
            Act::BindFile { .. } => {}
        }
    }
    mounts
}

fn snapshot(dir: &Path) -> Vec<String> {
    let mut out = Vec::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let content = if kind.is_file() { read_to_string(entry.path()).unwrap() } else { String::new() };
            out.push(format!("{:?} {kind:?} {content}", entry.path()));
            if kind.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    out.sort();
    out
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_on_another_mount_is_touched(acts in proptest::collection::vec(act(), 1..48)) {
        scratch::run(|dir| {
            // The user's data is on the same file system, where st_dev tells nothing.
            let (pod, user) = (dir.join("pod"), dir.join("user"));
            create_dir(&pod).unwrap();
            for n in 0..8 {
                create_dir_all(user.join(format!("{}/{}", n / 4, n % 4))).unwrap();
                write(user.join(format!("{}/{}/data", n / 4, n % 4)), n.to_string()).unwrap();
            }
            let mounts = play(&pod, &user, &acts);
            let before = snapshot(&user);
            let result = rm(dir, "pod");
            assert_eq!(before, snapshot(&user));
            assert_eq!(result.is_ok(), mounts == 0, "{result:?}");
            assert_eq!(pod.exists(), mounts != 0);
        });
    }
}
