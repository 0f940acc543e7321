#![allow(clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::testing::{Archive, config, is_root, layout, layout_of};
use crate::{Digest, Error, Image, Limits, Store, Usage};

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    (dir, store)
}

fn layer(name: &str) -> Vec<u8> {
    Archive::default().directory("d", 0o755).file(&format!("d/{name}"), name.as_bytes()).finish()
}

fn names(dir: &Path) -> Vec<String> {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn import(store: &Store, archive: &[u8]) -> Result<Arc<Image>, Error> {
    crate::import(store, archive).map(|mut images| images.remove(0))
}

#[test]
fn an_imported_image_is_found_by_every_name_it_has() {
    if !is_root() {
        return;
    }
    let (dir, store) = store();
    let image = import(&store, &layout("docker.io/library/app:v1", &[layer("a"), layer("b")])).unwrap();
    assert_eq!(image.tags, ["docker.io/library/app:v1"]);
    assert_eq!((image.config.cmd.as_slice(), image.layers.len()), (&["sh".to_owned()][..], 2));
    let short = &image.id["sha256:".len()..][..12];
    for name in ["app:v1", "docker.io/library/app:v1", &image.id, &image.digests[0], short] {
        assert_eq!(store.find(name).unwrap().id, image.id, "{name}");
    }
    for name in ["app", "app:v2", "other/app:v1", "abc", ""] {
        assert!(store.find(name).is_none(), "{name}");
    }
    let dirs: Vec<PathBuf> = image.layers.iter().map(|layer| store.layer_dir(layer)).collect();
    assert_eq!(std::fs::read(dirs[1].join("d/b")).unwrap(), b"b");
    assert_eq!(store.usage(), Usage { bytes: 2, inodes: 4 });
    drop(store);
    let again = Store::open(dir.path()).unwrap();
    assert_eq!(again.list(), [image]);
}

#[test]
fn a_tag_that_moves_is_lost_by_the_image_that_had_it() {
    if !is_root() {
        return;
    }
    let (dir, store) = store();
    let old = import(&store, &layout("app:v1", &[layer("a")])).unwrap();
    let new = import(&store, &layout("app:v1", &[layer("b")])).unwrap();
    assert_eq!(store.find("app:v1").unwrap().id, new.id);
    assert!(store.find(&old.id).unwrap().tags.is_empty());
    drop(store);
    let again = Store::open(dir.path()).unwrap();
    assert_eq!(again.find("app:v1").unwrap().id, new.id);
    assert!(again.find(&old.id).unwrap().tags.is_empty());
}

#[test]
fn what_nobody_uses_goes_and_what_is_held_stays() {
    if !is_root() {
        return;
    }
    let (_dir, store) = store();
    let both = layer("shared");
    let one = import(&store, &layout("one", &[both.clone(), layer("a")])).unwrap();
    let two = import(&store, &layout("two", &[both, layer("b")])).unwrap();
    assert_eq!(one.layers[0], two.layers[0]);
    let held = store.hold(&one.layers).unwrap();
    store.remove("one").unwrap();
    store.remove("one").unwrap();
    assert!(store.find(&one.id).is_none());
    store.collect().unwrap();
    assert!(store.layer_dir(&one.layers[1]).exists());
    drop(held);
    store.collect().unwrap();
    assert!(!store.layer_dir(&one.layers[1]).exists());
    assert!(store.layer_dir(&two.layers[0]).exists());
    assert!(matches!(store.hold(&one.layers), Err(Error::NoLayer(_))));
}

#[test]
fn what_is_not_what_its_digest_promises_is_refused_and_leaves_nothing() {
    if !is_root() {
        return;
    }
    let (dir, store) = store();
    let good = layout("app", &[layer("a")]);
    // Another byte in the file of the layer: its own checksums are none of tar's business.
    let at = good.windows(4).position(|w| w == b"\0a\0\0").unwrap() + 1;
    let mut bad = good.clone();
    bad[at] = b'x';
    let packed_twice = layout_of("app", &[layer("a")], |layer| [layer, b"more"].concat());
    let too_many = Limits { layer_bytes: 2048, ..Limits::default() };
    for (archive, want) in
        [(bad, "was promised"), (packed_twice, "was promised"), (layer("a"), "neither index.json")]
    {
        let error = import(&store, &archive).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    drop(store);
    let store = Store::with_limits(dir.path(), too_many).unwrap();
    let error = import(&store, &good).unwrap_err().to_string();
    assert!(error.contains("more than 2048 bytes"), "{error}");
    assert!(store.list().is_empty());
    for dir in [dir.path().join("layers"), dir.path().join("tmp"), dir.path().join("trash")] {
        assert_eq!(names(&dir), Vec::<String>::new(), "{}", dir.display());
    }
}

#[test]
fn a_directory_that_a_layer_only_implies_keeps_the_rights_it_has_below() {
    if !is_root() {
        return;
    }
    let (_dir, store) = store();
    let base = Archive::default()
        .directory("var", 0o755)
        .directory("var/tmp", 0o1777)
        .directory("srv", 0o755)
        .finish();
    let upper = Archive::default().file("var/tmp/x", b"").file("srv/y", b"").finish();
    let image = import(&store, &layout("app", &[base.clone(), upper.clone()])).unwrap();
    assert_eq!(image.layers.len(), 3);
    let top = store.layer_dir(&image.layers[2]);
    let mode = |path: &Path| {
        std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions()) & 0o7777
    };
    assert_eq!(mode(&top.join("var/tmp")), 0o1777);
    assert!(!top.join("srv").exists());
    // Without anything to put right there is no further layer; the same image again has the same layers.
    assert_eq!(import(&store, &layout("plain", &[upper])).unwrap().layers.len(), 1);
    store.collect().unwrap();
    assert!(top.exists());
    let again = import(
        &store,
        &layout("again", &[base, Archive::default().file("var/tmp/x", b"").file("srv/y", b"").finish()]),
    )
    .unwrap();
    assert_eq!(again.layers, image.layers);
    assert_eq!(again.tags.len(), 2);
}

#[test]
fn the_archive_of_docker_is_read_too_and_layers_may_be_packed() {
    if !is_root() {
        return;
    }
    let (_dir, store) = store();
    let (one, two) = (layer("a"), layer("b"));
    let diff_ids = [&one, &two].map(|layer| Digest::of(layer).to_string());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&two).unwrap();
    let manifest = br#"[{"Config":"c.json","RepoTags":["app:v1","app:v2"],"Layers":["1/layer.tar","2/layer.tar","3/layer.tar"]}]"#;
    let diff_ids = [&diff_ids[0], &diff_ids[1], &diff_ids[0]].map(String::clone);
    let archive = Archive::default()
        .file("1/layer.tar", &one)
        .file("2/layer.tar", &gzip.finish().unwrap())
        .symlink("3/layer.tar", "../1/layer.tar")
        .file("c.json", &config(&diff_ids))
        .file("manifest.json", manifest)
        .finish();
    let image = import(&store, &archive).unwrap();
    assert_eq!(image.tags, ["docker.io/library/app:v1", "docker.io/library/app:v2"]);
    assert_eq!(image.layers.iter().map(ToString::to_string).collect::<Vec<_>>(), diff_ids);
}

#[test]
fn a_torn_archive_names_what_is_missing() {
    if !is_root() {
        return;
    }
    let (_dir, store) = store();
    let whole = layout("app", &[layer("a")]);
    for cut in [100, 600, 2000, whole.len() / 2] {
        let error = import(&store, &whole[..cut]).unwrap_err();
        assert!(!error.to_string().is_empty());
    }
    let foreign = br#"{"manifests":[{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0}]}"#;
    let error =
        import(&store, &Archive::default().file("index.json", foreign).finish()).unwrap_err().to_string();
    assert!(error.starts_with("the archive names no image for linux/"), "{error}");
    assert!(store.list().is_empty());
}

#[test]
fn one_process_has_the_store() {
    let (dir, _store) = store();
    let error = Store::open(dir.path()).unwrap_err().to_string();
    assert!(error.contains("another process"), "{error}");
}

#[test]
fn what_a_killed_process_left_is_swept() {
    if !is_root() {
        return;
    }
    let (dir, store) = store();
    let image = import(&store, &layout("app", &[layer("a")])).unwrap();
    let lost = import(&store, &layout("lost", &[layer("b")])).unwrap();
    drop(store);
    std::fs::create_dir_all(dir.path().join("tmp/7/fs/half")).unwrap();
    std::fs::create_dir_all(dir.path().join("layers/sha256-nonsense")).unwrap();
    std::fs::write(dir.path().join("images/.half"), b"{").unwrap();
    std::fs::remove_file(dir.path().join("layers").join(lost.layers[0].file_name()).join("record")).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.list(), [image]);
    for (place, left) in [("tmp", 0), ("trash", 0), ("layers", 1), ("images", 1)] {
        assert_eq!(names(&dir.path().join(place)).len(), left, "{place}");
    }
}

/// Everything below a directory, as far as an image can say it.
fn tree(root: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let (mut all, mut dirs) = (Vec::new(), vec![root.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let content = match meta.file_type() {
                kind if kind.is_file() => {
                    String::from_utf8_lossy(&std::fs::read(&path).unwrap()).into_owned()
                }
                kind if kind.is_symlink() => std::fs::read_link(&path).unwrap().display().to_string(),
                _ => String::new(),
            };
            let mut value = [0; 64];
            let mut attribute = |name: &str| {
                let n = rustix::fs::lgetxattr(&path, name, &mut value[..]).unwrap_or(0);
                String::from_utf8_lossy(&value[..n]).into_owned()
            };
            let attributes = attribute("user.note") + &attribute("trusted.overlay.opaque");
            let path_in = path.strip_prefix(root).unwrap().display().to_string();
            let (mode, links, time) = (meta.mode(), meta.nlink(), meta.mtime());
            all.push(format!("{path_in} {mode:o} {} {links} {time} {content:?} {attributes:?}", meta.uid()));
            if meta.is_dir() {
                dirs.push(path);
            }
        }
    }
    all.sort();
    all
}

#[test]
fn what_is_exported_is_the_same_when_it_is_imported() {
    if !is_root() {
        return;
    }
    let (_dir, store) = store();
    let long = format!("d/{}", "n".repeat(90));
    let lower = Archive::default()
        .directory("d", 0o1777)
        .directory(&long, 0o750)
        .pax(&[("SCHILY.xattr.user.note", b"hello"), ("mtime", b"1700000000.5")])
        .file("d/file", b"content")
        .hard_link("d/second", "d/file")
        .symlink("d/link", "/etc/passwd")
        .file("gone", b"")
        .directory("whole", 0o755)
        .file("whole/old", b"")
        .finish();
    let upper = Archive::default()
        .file(".wh.gone", b"")
        .directory("whole", 0o755)
        .file("whole/.wh..wh..opq", b"")
        .file("whole/new", b"n")
        .file("d/implied", b"")
        .finish();
    let image = import(&store, &layout("app:v1", &[lower.clone(), upper])).unwrap();
    import(&store, &layout("app:v2", &[lower])).unwrap();
    let both = ["app:v1".to_owned(), "docker.io/library/app:v2".to_owned()];
    let (mut archive, mut again) = (Vec::new(), Vec::new());
    crate::export(&store, &both, &mut archive).unwrap();
    crate::export(&store, &both, &mut again).unwrap();
    assert!(archive == again, "the same images make another archive");
    assert_eq!(names(&store.root().join("tmp")), Vec::<String>::new());
    let (_other_dir, other) = self::store();
    let images = crate::import(&other, archive.as_slice()).unwrap();
    let tags: Vec<&str> = images.iter().flat_map(|image| &image.tags).map(String::as_str).collect();
    assert_eq!(tags, ["docker.io/library/app:v1", "docker.io/library/app:v2"]);
    assert_eq!((&images[0].config, images[0].layers[0] == images[1].layers[0]), (&image.config, true));
    assert_eq!((image.layers.len(), images[0].layers.len()), (3, 3));
    for (before, after) in image.layers.iter().zip(&images[0].layers) {
        assert_eq!(tree(&store.layer_dir(before)), tree(&other.layer_dir(after)));
    }
    let error = crate::export(&store, &["other".to_owned()], std::io::sink()).unwrap_err().to_string();
    assert_eq!(error, "there is no image \"other\"");
}

#[test]
fn a_pin_stays() {
    if !is_root() {
        return;
    }
    let (dir, store) = store();
    let image = import(&store, &layout("app:v1", &[layer("a")])).unwrap();
    assert!(!image.pinned);
    assert!(store.pin("app:v1", true).unwrap().unwrap().pinned);
    assert!(store.pin("other", true).unwrap().is_none());
    // Importing it again takes nothing away.
    assert!(import(&store, &layout("app:v2", &[layer("a")])).unwrap().pinned);
    drop(store);
    assert!(Store::open(dir.path()).unwrap().find(&image.id).unwrap().pinned);
}
