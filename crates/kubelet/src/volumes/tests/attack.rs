//! A Pod that swaps links and directories in its volume while a subPath is prepared.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use sys::fd;

use super::super::sub_path;
use super::*;

const ROUNDS: usize = 12_000;

/// Exchanges two names as fast as it can until told to stop.
fn swap(a: &Path, b: &Path, stop: &AtomicBool, swaps: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).unwrap();
        swaps.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `attempt` while `a` and `b` below the volume change places. Returns how often it succeeded.
fn under_attack(a: &Path, b: &Path, rounds: usize, mut attempt: impl FnMut() -> bool) -> usize {
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let won = std::thread::scope(|scope| {
        scope.spawn(|| swap(a, b, &stop, &swaps));
        let won = (0..rounds).filter(|_| attempt()).count();
        stop.store(true, Ordering::Relaxed);
        won
    });
    assert!(swaps.into_inner() > 100, "the attacker slept");
    won
}

struct Field {
    volume: PathBuf,
    secret: PathBuf,
}

/// `volume/dir` is a directory, `volume/trap` a link out; both lead to `room/file`.
fn field(dir: &Path, out: &str) -> Field {
    let (volume, secret) = (dir.join("volume"), dir.join("secret"));
    for root in [volume.join("dir"), secret.clone()] {
        fs::create_dir_all(root.join("room")).unwrap();
        fs::write(root.join("room/file"), root.display().to_string()).unwrap();
    }
    let target = if out == "absolute" { secret.clone() } else { PathBuf::from(out) };
    symlink(target, volume.join("trap")).unwrap();
    Field { volume, secret }
}

#[test]
fn resolving_never_leaves_the_volume() {
    for out in ["../secret", "absolute", "dir/../../secret"] {
        scratch::run(|dir| {
            let field = field(dir, out);
            let inside = fd::stat(fd::open_dir(&field.volume.join("dir/room")).unwrap()).unwrap().st_ino;
            let root = fd::open_dir(&field.volume).unwrap();
            let (a, b) = (field.volume.join("dir"), field.volume.join("trap"));
            let won = under_attack(&a, &b, ROUNDS, || {
                match sub_path::resolve(std::os::fd::AsFd::as_fd(&root), Path::new("dir/room")) {
                    Ok(found) => {
                        assert_eq!(fd::stat(found).unwrap().st_ino, inside, "escaped through {out}");
                        true
                    }
                    Err(_) => false,
                }
            });
            assert!(won > 0, "never got through at all");
        });
    }
}

#[test]
fn creating_never_leaves_the_volume() {
    scratch::run(|dir| {
        let field = field(dir, "../secret");
        let root = fd::open_dir(&field.volume).unwrap();
        let (a, b) = (field.volume.join("dir"), field.volume.join("trap"));
        let mut n = 0;
        under_attack(&a, &b, ROUNDS, || {
            n += 1;
            let path = format!("dir/new{}/x", n % 500);
            sub_path::resolve(std::os::fd::AsFd::as_fd(&root), Path::new(&path)).is_ok()
        });
        let names: Vec<_> = fs::read_dir(&field.secret).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["room"], "something was made outside");
    });
}

/// The whole way: what the runtime would be given shows the volume's file or nothing.
#[test]
fn what_is_mounted_is_what_was_resolved() {
    on_node(|node| {
        let host = node.dir.join("host");
        let field = field(&host, "../secret");
        let volume = json!({"hostPath": {"path": field.volume.to_str().unwrap()}});
        let pod = pod(volume);
        let (a, b) = (field.volume.join("dir"), field.volume.join("trap"));
        let mine = field.volume.join("dir").display().to_string();
        let won = under_attack(&a, &b, 2_000, || {
            let Ok(bound) = node.sub_path(&pod, 0, "dir/room/file") else { return false };
            assert_eq!(fs::read_to_string(bound).unwrap(), mine, "escaped");
            true
        });
        assert!(won > 0);
        node.unmount().unwrap();
        node.assert_clean();
    });
}

/// The same for clean-up and for fsGroup: a directory that turns into a link is not followed.
#[test]
fn walking_never_leaves_the_volume() {
    scratch::run(|dir| {
        use super::super::fs_group::{self, Access};
        use kubelet_core::volumes::{ChangePolicy, FsGroup};
        let field = field(dir, "../secret");
        let (a, b) = (field.volume.join("dir"), field.volume.join("trap"));
        let group = FsGroup { gid: 99, policy: ChangePolicy::Always };
        under_attack(&a, &b, 3_000, || {
            fs_group::apply(fd::open_dir(&field.volume).unwrap(), group, Access::ReadWrite).is_ok()
        });
        for path in [field.secret.clone(), field.secret.join("room"), field.secret.join("room/file")] {
            assert_eq!(gid(&path), 0, "{path:?}");
        }
        let mut gone = 0;
        for round in 0..200 {
            let victim = dir.join(format!("victim{round}"));
            fs::create_dir_all(victim.join("dir/x/y")).unwrap();
            symlink(&field.secret, victim.join("trap")).unwrap();
            let stop = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (a, b) = (victim.join("dir"), victim.join("trap"));
                    while !stop.load(Ordering::Relaxed) {
                        let _ = renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE);
                    }
                });
                let name = victim.file_name().unwrap();
                gone += usize::from(sys::tree::remove(fd::open_dir(dir).unwrap(), name).is_ok());
                stop.store(true, Ordering::Relaxed);
            });
        }
        assert!(gone > 0);
        assert!(field.secret.join("room/file").exists());
    });
}
