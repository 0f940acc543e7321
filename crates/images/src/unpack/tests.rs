#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use super::*;
use crate::Digest;
use crate::testing::{Archive, is_root};

fn unpacked(archive: Archive) -> (tempfile::TempDir, Result<Unpacked, Error>) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let bytes = archive.finish();
    let fd = std::fs::File::open(&root).unwrap();
    let done = unpack(bytes.as_slice(), fd.into(), &Digest::of(&bytes), &Limits::default());
    (dir, done.map(|(done, _)| done))
}

#[test]
fn a_layer_becomes_its_files() {
    if !is_root() {
        return;
    }
    let archive = Archive::default()
        .directory("./", 0o755)
        .directory("tmp", 0o1777)
        .pax(&[("uid", b"7"), ("gid", b"8"), ("SCHILY.xattr.user.a", b"b"), ("mtime", b"1000.5")])
        .file("tmp/file", b"content")
        .hard_link("tmp/same", "tmp/file")
        .symlink("tmp/link", "/etc/passwd");
    let (dir, done) = unpacked(archive);
    let done = done.unwrap();
    assert_eq!((done.bytes, done.entries, done.implied.len()), (7, 5, 0));
    let root = dir.path().join("root");
    let file = root.join("tmp/file").metadata().unwrap();
    assert_eq!(
        (file.uid(), file.gid(), file.mtime(), file.mtime_nsec(), file.nlink()),
        (7, 8, 1000, 500_000_000, 2)
    );
    let mut value = [0; 4];
    assert_eq!(rustix::fs::getxattr(root.join("tmp/file"), "user.a", &mut value).unwrap(), 1);
    assert_eq!(root.join("tmp").metadata().unwrap().mode() & 0o7777, 0o1777);
    assert_eq!(root.join("tmp").metadata().unwrap().mtime(), 0);
    assert_eq!(std::fs::read_link(root.join("tmp/link")).unwrap(), Path::new("/etc/passwd"));
}

#[test]
fn nothing_is_written_outside_the_layer() {
    if !is_root() {
        return;
    }
    // (what, archive, what the error says; empty if it is taken and stays inside)
    let rows = [
        ("upwards", Archive::default().file("../out", b"x"), "upwards"),
        ("upwards, later", Archive::default().directory("a", 0o755).file("a/../../out", b"x"), "upwards"),
        ("from the root", Archive::default().file("/out", b"x"), ""),
        ("through a link", Archive::default().symlink("a", "../..").file("a/out", b"x"), ""),
        ("through a link to the root", Archive::default().symlink("a", "/").file("a/out", b"x"), ""),
        ("over a link", Archive::default().symlink("out", "../out").file("out", b"x"), ""),
        ("a hard link upwards", Archive::default().hard_link("a", "../out"), "upwards"),
        (
            "a hard link through a link",
            Archive::default().symlink("l", "../..").hard_link("a", "l/secret"),
            "does not have",
        ),
        (
            "a hard link to a directory",
            Archive::default().directory("d", 0o755).hard_link("a", "d"),
            "no file",
        ),
        (
            "through a link to nowhere",
            Archive::default().symlink("a", "gone").file("a/out", b"x"),
            "symbolic links",
        ),
        ("a whiteout upwards", Archive::default().file(".wh...", b""), "whiteout of nothing"),
        ("a whiteout of itself", Archive::default().file("d/.wh.", b""), "whiteout of nothing"),
        ("below a file", Archive::default().file("f", b"").file("f/g", b"x"), "directory"),
        ("a file instead of the layer", Archive::default().file("./", b""), ""),
    ];
    for (what, archive, want) in rows {
        let (dir, done) = unpacked(archive);
        let outside: Vec<_> =
            std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(outside, ["root"], "{what}");
        match done {
            Ok(_) => assert_eq!(want, "", "{what}"),
            Err(error) => {
                assert!(
                    !want.is_empty() && error.to_string().to_lowercase().contains(want),
                    "{what}: {error}"
                );
            }
        }
    }
}

#[test]
fn what_a_layer_takes_away_is_said_as_overlayfs_says_it() {
    if !is_root() {
        return;
    }
    let archive = Archive::default()
        .directory("a", 0o755)
        .file("a/.wh.gone", b"")
        .directory("b", 0o755)
        .file("b/.wh..wh..opq", b"")
        .file(".wh.new", b"")
        .directory("new", 0o755)
        .file(".wh.file", b"")
        .file("file", b"again")
        .file(".wh..wh.plnk", b"");
    let (dir, done) = unpacked(archive);
    done.unwrap();
    let root = dir.path().join("root");
    let gone = root.join("a/gone").symlink_metadata().unwrap();
    assert!(gone.file_type().is_char_device() && gone.rdev() == 0);
    let is_opaque = |name: &str| {
        let mut value = [0; 4];
        rustix::fs::getxattr(root.join(name), "trusted.overlay.opaque", &mut value)
            .is_ok_and(|n| value[..n] == *b"y")
    };
    assert_eq!([is_opaque("a"), is_opaque("b"), is_opaque("new")], [false, true, true]);
    assert_eq!(std::fs::read(root.join("file")).unwrap(), b"again");
    assert!(!root.join(".wh..wh.plnk").exists());
}

#[test]
fn no_device_and_no_word_to_overlayfs_comes_from_an_image() {
    if !is_root() {
        return;
    }
    let archive = Archive::default()
        .raw("sda", b'4', 0, b"")
        .raw("null", b'3', 0, b"")
        .pax(&[
            ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
            ("SCHILY.xattr.user.overlay.opaque", b"y"),
        ])
        .file("f", b"");
    let (dir, done) = unpacked(archive);
    assert_eq!(done.unwrap().devices, 2);
    let root = dir.path().join("root");
    assert!(!root.join("sda").exists() && !root.join("null").exists());
    let mut names = [0; 64];
    assert_eq!(rustix::fs::listxattr(root.join("f"), &mut names).unwrap(), 0);
}

#[test]
fn directories_that_no_archive_has_are_named() {
    if !is_root() {
        return;
    }
    let (_dir, done) = unpacked(Archive::default().file("a/b/c", b"").directory("a", 0o700));
    let implied: Vec<PathBuf> = done.unwrap().implied.into_iter().collect();
    assert_eq!(implied, [Path::new("a/b")]);
}

#[test]
fn holes_stay_holes() {
    if !is_root() {
        return;
    }
    let records: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10485760"), ("GNU.sparse.map", b"10485758,2")];
    let (dir, done) = unpacked(Archive::default().pax(records).file("disk", b"zz"));
    done.unwrap();
    let disk = dir.path().join("root/disk");
    assert_eq!(disk.metadata().unwrap().len(), 10_485_760);
    assert!(disk.metadata().unwrap().blocks() < 1000);
    assert!(std::fs::read(&disk).unwrap().ends_with(b"\0zz"));
}

#[test]
fn a_layer_of_too_many_entries_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Archive::default().directory("a", 0o755).directory("b", 0o755).directory("c", 0o755).finish();
    let limits = Limits { layer_entries: 2, ..Limits::default() };
    let root = std::fs::File::open(dir.path()).unwrap();
    let error = unpack(bytes.as_slice(), root.into(), &Digest::of(&bytes), &limits).unwrap_err();
    // Without root the first entry cannot be given its owner.
    assert!(error.to_string().contains("more than 2 entries") || !is_root(), "{error}");
}
