#![allow(clippy::unwrap_used)]

use super::*;
use crate::testing::Archive;
use proptest::prelude::*;

fn entries(bytes: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, TarError> {
    let mut archive = Entries::new(bytes);
    let mut all = Vec::new();
    while let Some(entry) = archive.next_entry()? {
        let mut content = Vec::new();
        archive.read_to_end(&mut content)?;
        all.push((entry, content));
    }
    Ok(all)
}

#[test]
fn every_kind_of_entry_is_read() {
    let bytes = Archive::default()
        .directory("etc/", 0o755)
        .file("etc/motd", b"hello")
        .symlink("etc/link", "../usr")
        .hard_link("etc/other", "etc/motd")
        .finish();
    let found = entries(&bytes).unwrap();
    let kinds: Vec<EntryType> = found.iter().map(|(entry, _)| entry.kind).collect();
    assert_eq!(kinds, [EntryType::Directory, EntryType::File, EntryType::Symlink, EntryType::HardLink]);
    assert_eq!(found[1].1, b"hello");
    assert_eq!((found[2].0.link.as_slice(), found[3].0.link.as_slice()), (&b"../usr"[..], &b"etc/motd"[..]));
}

#[test]
fn an_extended_header_speaks_for_the_next_entry_only() {
    let bytes = Archive::default()
        .pax(&[
            ("path", b"a/very/long/name"),
            ("uid", b"100000"),
            ("SCHILY.xattr.user.x", b"\x00\xff"),
            ("mtime", b"5.5"),
        ])
        .file("short", b"1")
        .file("next", b"2")
        .finish();
    let found = entries(&bytes).unwrap();
    assert_eq!(found[0].0.path, b"a/very/long/name");
    assert_eq!((found[0].0.uid, found[0].0.mtime), (100_000, (5, 500_000_000)));
    assert_eq!(found[0].0.xattrs, [(b"user.x".to_vec(), vec![0, 0xff])]);
    assert_eq!((found[1].0.path.as_slice(), found[1].0.uid), (&b"next"[..], 0));
}

#[test]
fn where_an_entry_ends_is_told_by_the_extended_header() {
    // The header says 0 bytes, the extended one 512: a reader that believes the first takes the content for a header.
    let hidden = Archive::default().file("hidden", b"").finish();
    let bytes = Archive::default()
        .pax(&[("size", b"512")])
        .raw("outer", b'0', 0, &hidden[..512])
        .file("after", b"")
        .finish();
    let found = entries(&bytes).unwrap();
    let paths: Vec<&[u8]> = found.iter().map(|(entry, _)| entry.path.as_slice()).collect();
    assert_eq!(paths, [&b"outer"[..], b"after"]);
    assert_eq!(found[0].1.len(), 512);
}

#[test]
fn long_names_of_gnu_are_read() {
    let long = "d/".repeat(100) + "file";
    let bytes = Archive::default()
        .raw("././@LongLink", b'L', long.len() as u64 + 1, format!("{long}\0").as_bytes())
        .file("cut", b"x")
        .finish();
    assert_eq!(entries(&bytes).unwrap()[0].0.path, long.as_bytes());
}

#[test]
fn holes_are_where_the_map_says() {
    let map = b"2\n0\n3\n1000\n2\n";
    let mut content = map.to_vec();
    content.resize(512, 0);
    content.extend_from_slice(b"abcde");
    let records: &[(&str, &[u8])] = &[
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"disk"),
        ("GNU.sparse.realsize", b"4096"),
    ];
    let bytes = Archive::default().pax(records).file("GNUSparseFile.0/disk", &content).finish();
    let (entry, content) = entries(&bytes).unwrap().remove(0);
    assert_eq!((entry.path.as_slice(), entry.size, content.as_slice()), (&b"disk"[..], 4096, &b"abcde"[..]));
    assert_eq!(entry.data.unwrap(), [Hole { offset: 0, length: 3 }, Hole { offset: 1000, length: 2 }]);

    let old: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"8,2")];
    let (entry, _) = entries(&Archive::default().pax(old).file("f", b"zz").finish()).unwrap().remove(0);
    assert_eq!((entry.size, entry.data.unwrap()), (10, vec![Hole { offset: 8, length: 2 }]));
    for map in [&b"8,3"[..], b"9,2", b"0,1,0,1", b"8", b"8,1"] {
        let bad: &[(&str, &[u8])] = &[("GNU.sparse.size", b"10"), ("GNU.sparse.map", map)];
        assert!(entries(&Archive::default().pax(bad).file("f", b"zz").finish()).is_err(), "{map:?}");
    }
}

#[test]
fn a_torn_archive_is_an_error_and_a_missing_end_is_none() {
    let bytes = Archive::default().file("a", &[7; 1000]).finish();
    assert!(entries(&bytes[..512 + 700]).is_err());
    assert!(entries(&bytes[..300]).is_err());
    assert_eq!(entries(&bytes[..512 + 1024]).unwrap().len(), 1);
    let mut wrong = bytes.clone();
    wrong[0] ^= 1;
    assert!(entries(&wrong).unwrap_err().to_string().contains("checksum"));
    let amid = [&bytes[..512 + 1024], &[0; 512], &bytes].concat();
    assert!(entries(&amid).is_err());
}

#[test]
fn an_entry_nobody_knows_is_refused() {
    let bytes = Archive::default().raw("x", b'V', 0, b"").finish();
    assert!(entries(&bytes).unwrap_err().to_string().contains("'V'"));
}

proptest! {
    #[test]
    fn any_bytes_are_answered(mut bytes in proptest::collection::vec(any::<u8>(), 0..2048), flips in proptest::collection::vec((0usize..4096, any::<u8>()), 0..8)) {
        let _ = entries(&bytes);
        bytes = Archive::default().pax(&[("path", b"p")]).file("f", b"content").symlink("s", "t").finish();
        for (at, with) in flips {
            let at = at % bytes.len();
            bytes[at] ^= with;
        }
        let _ = entries(&bytes);
    }
}
