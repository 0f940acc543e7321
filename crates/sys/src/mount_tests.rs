#![allow(clippy::unwrap_used)]

use std::fs::{create_dir, read_to_string, write};

use super::*;
use crate::fd::open_dir;
use crate::scratch;

fn mounted(path: &Path) -> Option<mountinfo::Mount> {
    mountinfo::read().unwrap().into_iter().rfind(|m| m.mount_point == path)
}

fn tmpfs() -> Memory {
    Memory::Tmpfs { size: Some(1 << 20), inodes: Some(100), mode: 0o1777, noswap: true }
}

#[test]
fn tmpfs_both_ways() {
    scratch::run(|dir| {
        type Way = fn(BorrowedFd<'_>, &Memory) -> io::Result<()>;
        let ways: [(&str, Way); 2] = [("new", |t, m| memory(t, m)), ("old", |t, m| memory_by_path(t, m))];
        for (name, way) in ways {
            let path = dir.join(name);
            create_dir(&path).unwrap();
            way(open_dir(&path).unwrap().as_fd(), &tmpfs()).unwrap();
            let m = mounted(&path).unwrap();
            assert_eq!(m.fs_type, "tmpfs");
            for option in ["size=1024k", "nr_inodes=100"] {
                assert!(m.super_options.split(',').any(|o| o == option), "{}", m.super_options);
            }
            assert_eq!(fd::stat(open_dir(&path).unwrap()).unwrap().st_mode & 0o7777, 0o1777);
            assert!(write(path.join("big"), vec![0; 2 << 20]).is_err());
            unmount(open_dir(dir).unwrap(), OsStr::new(name), Busy::Refuse).unwrap();
            assert_eq!(mounted(&path), None);
        }
    });
}

#[test]
fn hugetlbfs_has_its_page_size() {
    if !Path::new("/sys/kernel/mm/hugepages/hugepages-2048kB").exists() {
        return;
    }
    scratch::run(|dir| {
        let path = dir.join("huge");
        create_dir(&path).unwrap();
        let what = Memory::Hugetlbfs { page_size: 2 << 20, size: Some(8 << 20), mode: 0o777 };
        memory(open_dir(&path).unwrap(), &what).unwrap();
        let m = mounted(&path).unwrap();
        assert_eq!(m.fs_type, "hugetlbfs");
        assert!(m.super_options.contains("pagesize=2M"), "{}", m.super_options);
    });
}

#[test]
fn files_and_directories_are_bound_both_ways() {
    scratch::run(|dir| {
        let open = |name: &str| {
            let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(dir.join(name), flags, rustix::fs::Mode::empty()).unwrap()
        };
        create_dir(dir.join("a")).unwrap();
        create_dir(dir.join("b")).unwrap();
        write(dir.join("a/x"), "from a").unwrap();
        write(dir.join("f"), "").unwrap();
        bind(open("a"), open("b"), false).unwrap();
        bind(open("a/x"), open("f"), false).unwrap();
        assert_eq!(read_to_string(dir.join("b/x")).unwrap(), "from a");
        assert_eq!(read_to_string(dir.join("f")).unwrap(), "from a");
        for name in ["b", "f"] {
            unmount(open_dir(dir).unwrap(), OsStr::new(name), Busy::Refuse).unwrap();
        }
        bind_by_path(open("a").as_fd(), open("b").as_fd(), true).unwrap();
        assert_eq!(read_to_string(dir.join("b/x")).unwrap(), "from a");
    });
}

#[test]
fn a_busy_mount_refuses_or_is_detached() {
    scratch::run(|dir| {
        create_dir(dir.join("v")).unwrap();
        memory(open_dir(&dir.join("v")).unwrap(), &tmpfs()).unwrap();
        let user = std::fs::File::create(dir.join("v/open")).unwrap();
        let parent = open_dir(dir).unwrap();
        let error = unmount(&parent, OsStr::new("v"), Busy::Refuse).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EBUSY));
        unmount(&parent, OsStr::new("v"), Busy::Detach).unwrap();
        assert_eq!(mounted(&dir.join("v")), None);
        drop(user);
    });
}

#[test]
fn unmount_does_not_follow_a_link() {
    scratch::run(|dir| {
        create_dir(dir.join("v")).unwrap();
        memory(open_dir(&dir.join("v")).unwrap(), &tmpfs()).unwrap();
        std::os::unix::fs::symlink("v", dir.join("link")).unwrap();
        assert!(unmount(open_dir(dir).unwrap(), OsStr::new("link"), Busy::Detach).is_err());
        assert!(mounted(&dir.join("v")).is_some());
    });
}

#[test]
fn sharing_is_made_once() {
    scratch::run(|dir| {
        let root = dir.join("root");
        create_dir(&root).unwrap();
        assert!(make_shared(&root).unwrap());
        assert!(mounted(&root).unwrap().is_shared());
        assert!(!make_shared(&root).unwrap());
        assert_eq!(mountinfo::below(&root).unwrap().len(), 1);
        assert!(!mounted(dir).unwrap().is_shared());
    });
}
