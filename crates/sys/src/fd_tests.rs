#![allow(clippy::unwrap_used)]

use std::fs::{create_dir, create_dir_all, read, write};
use std::os::unix::fs::symlink;

use super::*;
use crate::{mount, scratch};

const FOLLOW: Reach = Reach { symlinks: Symlinks::Beneath, mounts: Mounts::Cross };
const STAY: Reach = Reach { symlinks: Symlinks::Refuse, mounts: Mounts::Stay };
const FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Both resolvers, which must agree.
fn both(root: &OwnedFd, rel: &str, flags: OFlags, reach: Reach) -> Result<FileId, Errno> {
    let kernel = by_kernel(root.as_fd(), Path::new(rel), flags, Mode::empty(), reach);
    let hand = by_hand(root.as_fd(), Path::new(rel), flags, Mode::empty(), reach);
    match (kernel, hand) {
        (Ok(a), Ok(b)) => {
            assert_eq!(file_id(&a).unwrap(), file_id(&b).unwrap(), "{rel}");
            Ok(file_id(a).unwrap())
        }
        (Err(a), Err(b)) => {
            assert_eq!(a, b, "{rel}");
            Err(a)
        }
        (a, b) => panic!("{rel}: the kernel says {a:?}, the walk says {b:?}"),
    }
}

#[test]
fn the_two_resolvers_agree() {
    scratch::run(|dir| {
        let root = dir.join("root");
        create_dir_all(root.join("a/b/c")).unwrap();
        create_dir(root.join("m")).unwrap();
        create_dir(dir.join("outside")).unwrap();
        write(root.join("a/file"), "x").unwrap();
        write(dir.join("outside/secret"), "x").unwrap();
        for (target, link) in [
            ("a/b", "rel"),
            ("../outside", "out"),
            ("/etc", "abs"),
            ("loop2", "loop1"),
            ("loop1", "loop2"),
            ("nowhere", "dangling"),
            ("a/../a/file", "dots"),
            ("../../../../etc/passwd", "far"),
        ] {
            symlink(target, root.join(link)).unwrap();
        }
        symlink("../..", root.join("a/b/up")).unwrap();
        let fd = open_dir(&root).unwrap();
        mount::bind(open_dir(&dir.join("outside")).unwrap(), open_dir(&root.join("m")).unwrap(), false)
            .unwrap();

        let table: &[(&str, Reach, Result<&str, Errno>)] = &[
            (".", OWN, Ok(".")),
            ("a/b/c", OWN, Ok("a/b/c")),
            ("a//b/./c", OWN, Ok("a/b/c")),
            ("a/file", OWN, Ok("a/file")),
            ("a/file/x", OWN, Err(Errno::NOTDIR)),
            ("a/none", OWN, Err(Errno::NOENT)),
            ("rel", OWN, Err(Errno::LOOP)),
            ("rel/c", OWN, Err(Errno::LOOP)),
            ("rel/c", FOLLOW, Ok("a/b/c")),
            ("dots", FOLLOW, Ok("a/file")),
            ("a/b/up", FOLLOW, Ok(".")),
            ("a/b/up/rel", FOLLOW, Ok("a/b")),
            ("out", FOLLOW, Err(Errno::XDEV)),
            ("out/secret", FOLLOW, Err(Errno::XDEV)),
            ("abs", FOLLOW, Err(Errno::XDEV)),
            ("far", FOLLOW, Err(Errno::XDEV)),
            ("..", FOLLOW, Err(Errno::XDEV)),
            ("a/../..", FOLLOW, Err(Errno::XDEV)),
            ("/etc", FOLLOW, Err(Errno::XDEV)),
            ("loop1", FOLLOW, Err(Errno::LOOP)),
            ("dangling", FOLLOW, Err(Errno::NOENT)),
            ("m/secret", OWN, Ok("m/secret")),
            ("m", STAY, Err(Errno::XDEV)),
            ("m/secret", STAY, Err(Errno::XDEV)),
            ("a/b", STAY, Ok("a/b")),
        ];
        for (rel, reach, want) in table {
            let want = want.map(|p| {
                let found = std::fs::metadata(root.join(p)).unwrap();
                use std::os::unix::fs::MetadataExt;
                FileId { dev: found.dev(), ino: found.ino() }
            });
            assert_eq!(both(&fd, rel, FLAGS, *reach), want, "{rel} {reach:?}");
        }
        assert_eq!(both(&fd, "a/file", FLAGS | OFlags::DIRECTORY, OWN), Err(Errno::NOTDIR));
    });
}

#[test]
fn both_ways_to_create() {
    scratch::run(|dir| {
        let root = open_dir(dir).unwrap();
        create_dir(dir.join("d")).unwrap();
        symlink("/etc/should-not-appear", dir.join("d/link")).unwrap();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        for (name, how) in
            [("d/k", by_kernel as fn(_, &Path, _, _, _) -> rustix::io::Result<OwnedFd>), ("d/h", by_hand)]
        {
            let file = how(root.as_fd(), Path::new(name), flags, Mode::RWXU, OWN).unwrap();
            rustix::io::write(&file, b"hi").unwrap();
            assert_eq!(read(dir.join(name)).unwrap(), b"hi");
            let again = how(root.as_fd(), Path::new(name), flags, Mode::RWXU, OWN).unwrap_err();
            assert_eq!(again, Errno::EXIST);
            let link = how(root.as_fd(), Path::new("d/link"), flags, Mode::RWXU, OWN).unwrap_err();
            assert!(matches!(link, Errno::LOOP | Errno::EXIST), "{link:?}");
        }
        assert!(!Path::new("/etc/should-not-appear").exists());
    });
}

#[test]
fn directories_get_the_mode_asked_for() {
    use std::os::unix::fs::PermissionsExt;
    scratch::run(|dir| {
        let root = open_dir(dir).unwrap();
        make_dirs(&root, Path::new("a/b"), Mode::from_raw_mode(0o777)).unwrap();
        make_dirs(&root, Path::new("a/b/c"), Mode::from_raw_mode(0o2770)).unwrap();
        for (path, mode) in [("a", 0o777), ("a/b", 0o777), ("a/b/c", 0o2770)] {
            assert_eq!(dir.join(path).metadata().unwrap().permissions().mode() & 0o7777, mode, "{path}");
        }
        symlink("a", dir.join("link")).unwrap();
        assert!(make_dirs(&root, Path::new("link/x"), Mode::RWXU).is_err());
        assert!(make_dirs(&root, Path::new("../x"), Mode::RWXU).is_err());
        assert!(make_dirs(&root, Path::new("/x"), Mode::RWXU).is_err());
    });
}

#[test]
fn a_bind_mount_of_the_same_file_system_has_another_mount_id() {
    scratch::run(|dir| {
        create_dir_all(dir.join("a")).unwrap();
        create_dir_all(dir.join("b")).unwrap();
        let root = open_dir(dir).unwrap();
        assert!(!is_mount_point(&root, OsStr::new("b")).unwrap());
        assert!(!is_mount_point(&root, OsStr::new("none")).unwrap());
        mount::bind(open_dir(&dir.join("a")).unwrap(), open_dir(&dir.join("b")).unwrap(), false).unwrap();
        assert!(is_mount_point(&root, OsStr::new("b")).unwrap());
        let b = open_dir(&dir.join("b")).unwrap();
        assert_eq!(stat(&b).unwrap().st_dev, stat(&root).unwrap().st_dev);
        assert_ne!(mount_id(&b).unwrap(), mount_id(&root).unwrap());
        assert_eq!(mount_id(&b).unwrap(), mount_id_from_fdinfo(b.as_fd()).unwrap());
    });
}

/// Neither resolver is led out by somebody who exchanges a directory for a link, or moves the
/// directory we stand in out of the root while the path goes back up.
#[test]
fn swapping_links_and_moving_directories_does_not_lead_out() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::sync::atomic::AtomicUsize;
    type Way = fn(BorrowedFd<'_>, &Path, OFlags, Mode, Reach) -> rustix::io::Result<OwnedFd>;
    for (path, a, b) in
        [("dir/file", "root/dir", "root/trap"), ("deep/down/link/file", "root/deep/down", "outside/down")]
    {
        for way in [by_kernel as Way, by_hand] {
            scratch::run(|dir| {
                for name in ["root/dir", "root/deep/down", "outside/down"] {
                    create_dir_all(dir.join(name)).unwrap();
                }
                for name in ["root/dir/file", "root/file", "root/deep/file"] {
                    write(dir.join(name), "inside").unwrap();
                }
                write(dir.join("outside/file"), "outside").unwrap();
                symlink("../outside", dir.join("root/trap")).unwrap();
                symlink("..", dir.join("root/deep/down/link")).unwrap();
                symlink("..", dir.join("outside/down/link")).unwrap();
                let root = open_dir(&dir.join("root")).unwrap();
                let (stop, won, swaps) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        while !stop.load(Ordering::Relaxed) {
                            renameat_with(CWD, dir.join(a), CWD, dir.join(b), RenameFlags::EXCHANGE).unwrap();
                            swaps.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                    for _ in 0..12_000 {
                        let Ok(file) =
                            way(root.as_fd(), Path::new(path), OFlags::RDONLY, Mode::empty(), FOLLOW)
                        else {
                            continue;
                        };
                        let mut text = [0; 16];
                        let read = rustix::io::read(&file, &mut text).unwrap();
                        if &text[..read] != b"inside" {
                            stop.store(true, Ordering::Relaxed);
                            panic!("{path} led out");
                        }
                        won.fetch_add(1, Ordering::Relaxed);
                    }
                    stop.store(true, Ordering::Relaxed);
                });
                assert!(won.into_inner() > 0 && swaps.into_inner() > 100, "{path}: no contest");
            });
        }
    }
}
