#![allow(clippy::unwrap_used)]

use std::fs::{create_dir, create_dir_all, hard_link, write};
use std::os::unix::fs::symlink;
use std::path::Path;

use super::*;
use crate::mount::{self, Memory};
use crate::scratch;

/// The usage, and in how many goes of so many files each.
fn measure(dir: &Path, at_once: u64) -> (Usage, usize) {
    let mut walk = Walk::of(fd::open_dir(dir).unwrap()).unwrap();
    for goes in 1.. {
        let mut budget = at_once;
        if let Some(usage) = walk.go_on(&mut budget).unwrap() {
            assert_eq!(usage, walk.so_far());
            return (usage, goes);
        }
    }
    unreachable!()
}

#[test]
fn everything_counts_once_and_nothing_outside_does() {
    scratch::run(|dir| {
        create_dir_all(dir.join("pod/a/b")).unwrap();
        create_dir(dir.join("outside")).unwrap();
        write(dir.join("outside/data"), vec![1; 1 << 20]).unwrap();
        let (empty, _) = measure(&dir.join("pod"), u64::MAX);
        assert_eq!(empty.inodes, 3);
        write(dir.join("pod/a/b/data"), vec![1; 64 << 10]).unwrap();
        hard_link(dir.join("pod/a/b/data"), dir.join("pod/second")).unwrap();
        symlink(dir.join("outside"), dir.join("pod/dir")).unwrap();
        symlink(dir.join("outside/data"), dir.join("pod/file")).unwrap();
        let (full, _) = measure(&dir.join("pod"), u64::MAX);
        assert_eq!(full.inodes, 6, "two links, and one file of two names");
        let grown = full.bytes - empty.bytes;
        assert!((64 << 10..256 << 10).contains(&grown), "{grown}");
    });
}

#[test]
fn a_mount_in_the_way_is_not_counted() {
    scratch::run(|dir| {
        create_dir_all(dir.join("pod/mnt")).unwrap();
        let (before, _) = measure(&dir.join("pod"), u64::MAX);
        let tmpfs = Memory::Tmpfs { size: Some(4 << 20), inodes: None, mode: 0o755, noswap: false };
        if mount::memory(fd::open_dir(&dir.join("pod/mnt")).unwrap(), &tmpfs).is_err() {
            return;
        }
        write(dir.join("pod/mnt/data"), vec![1; 1 << 20]).unwrap();
        let (after, _) = measure(&dir.join("pod"), u64::MAX);
        assert!(after.bytes <= before.bytes && after.inodes < before.inodes, "{before:?} {after:?}");
        let (inside, _) = measure(&dir.join("pod/mnt"), u64::MAX);
        assert!(inside.bytes >= 1 << 20, "{inside:?}");
    });
}

#[test]
fn a_walk_of_many_goes_comes_to_the_same_as_one() {
    scratch::run(|dir| {
        for outer in 0..20 {
            let sub = dir.join(format!("d{outer}/sub"));
            create_dir_all(&sub).unwrap();
            for file in 0..60 {
                write(sub.join(format!("a file with a rather long name {file}")), "x").unwrap();
            }
        }
        let mut deep = dir.join("deep");
        for _ in 0..200 {
            deep.push("n");
        }
        create_dir_all(&deep).unwrap();
        write(deep.join("end"), vec![1; 8192]).unwrap();
        let (whole, goes) = measure(dir, u64::MAX);
        assert_eq!((whole.inodes, goes), (1 + 20 * 62 + 201 + 1, 1));
        let (piecewise, goes) = measure(dir, 10);
        assert_eq!(piecewise, whole);
        assert!(goes > 20, "{goes}");
    });
}

#[test]
fn a_directory_that_goes_while_it_is_walked_is_named_and_what_was_counted_stays() {
    scratch::run(|dir| {
        for i in 0..10 {
            create_dir_all(dir.join(format!("d{i}/x"))).unwrap();
        }
        let mut walk = Walk::of(fd::open_dir(dir).unwrap()).unwrap();
        let mut budget = 1;
        assert!(walk.go_on(&mut budget).unwrap().is_none());
        for i in 0..10 {
            std::fs::remove_dir_all(dir.join(format!("d{i}"))).unwrap();
        }
        let mut budget = u64::MAX;
        assert!(matches!(walk.go_on(&mut budget), Err(TreeError::Io { .. })));
        assert_eq!(walk.so_far().inodes, 11);
    });
}
