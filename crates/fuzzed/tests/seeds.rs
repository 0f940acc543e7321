//! Every seed, and many small changes of each, through its parser.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use base::rng::Rng;
use fuzzed::TARGETS;

/// Changes of one seed in a normal run; `cargo xtask fuzz` looks further.
const CHANGES: u64 = 400;

fn place(below: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz").join(below)
}

fn names(below: &str) -> BTreeSet<String> {
    let entries = fs::read_dir(place(below)).unwrap().map(|e| e.unwrap().path());
    entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

/// One to four bytes are changed, left out or doubled, or the end is cut off.
fn changed(seed: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
        match rng.below(5) {
            0 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][usize::try_from(rng.below(5)).unwrap()],
            1 => bytes[at] ^= 1 << rng.below(8),
            2 => _ = bytes.remove(at),
            3 => bytes.insert(at, bytes[at]),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

#[test]
fn no_parser_panics_on_its_seeds_or_on_small_changes_of_them() {
    for (name, parse) in TARGETS {
        let mut rng = Rng::new(0x5eed);
        let files = fs::read_dir(place("seeds").join(name)).unwrap().map(|e| e.unwrap().path());
        let files: BTreeSet<PathBuf> = files.collect();
        assert!(!files.is_empty(), "{name} has no seeds");
        for file in files {
            let seed = fs::read(&file).unwrap();
            parse(&seed);
            (0..CHANGES).for_each(|_| parse(&changed(&seed, &mut rng)));
        }
    }
}

#[test]
fn every_parser_has_a_program_and_seeds() {
    let ours: BTreeSet<String> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("fuzz_targets"), ours);
    assert_eq!(names("seeds"), ours);
    let manifest = fs::read_to_string(place("Cargo.toml")).unwrap();
    for name in ours {
        assert!(
            manifest.contains(&format!("path = \"fuzz_targets/{name}.rs\"")),
            "{name} is not in fuzz/Cargo.toml"
        );
    }
}
