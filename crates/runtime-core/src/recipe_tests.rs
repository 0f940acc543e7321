#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[test]
fn a_recipe_is_whole_and_in_order() {
    let launch = Launch {
        namespaces: 0x2002_0000,
        log: Some(Slot(1)),
        stdio: [None, Some(Slot(2)), None],
        ops: vec![
            Op::Root(Slot(0)),
            Op::Attach(Slot(3), Target::File, b"/etc/hosts".to_vec()),
            Op::Sysctl("kernel/shm_rmid_forced".into(), "1".into()),
            Op::Exec {
                candidates: vec![b"/bin/sh".to_vec()],
                arguments: vec![b"sh".to_vec()],
                environment: vec![],
            },
        ],
        ..Launch::default()
    };
    let bytes = encode(&launch).unwrap();
    assert_eq!(codes(&bytes).unwrap(), [OP_ROOT, OP_ATTACH, OP_SYSCTL, OP_EXEC]);
    assert_eq!(bytes[AT_FLAGS], FLAG_LOG as u8);
    assert_eq!(bytes[AT_STDOUT..AT_STDOUT + 4], 2u32.to_le_bytes());
    assert_eq!(bytes[AT_STDIN..AT_STDIN + 4], NONE.to_le_bytes());
    assert!(bytes.windows(11).any(|w| w == b"/etc/hosts\0"));
}

#[test]
fn a_nul_byte_is_refused_by_the_name_of_its_place() {
    let with = |op| encode(&Launch { ops: vec![op], ..Launch::default() });
    let bad = b"a\0b".to_vec();
    let rows = [
        (Op::Mask(bad.clone()), "a masked path holds a NUL byte"),
        (Op::ChDir(bad.clone()), "the working directory holds a NUL byte"),
        (
            Op::Exec { candidates: vec![], arguments: vec![], environment: vec![bad] },
            "a variable holds a NUL byte",
        ),
    ];
    for (op, want) in rows {
        assert_eq!(with(op).unwrap_err().to_string(), want);
    }
}

#[test]
fn too_much_environment_is_refused() {
    let environment = vec![vec![b'x'; 1 << 20]; 5];
    let op = Op::Exec { candidates: vec![], arguments: vec![], environment };
    let error = encode(&Launch { ops: vec![op], ..Launch::default() }).unwrap_err();
    assert!(matches!(error, BadRecipe::TooLarge(_)), "{error}");
}

proptest! {
    #[test]
    fn whatever_is_encoded_is_whole(paths in prop::collection::vec("[a-z/]{0,40}", 0..20)) {
        let ops: Vec<Op> = paths.iter().map(|p| Op::MkDir(p.clone().into_bytes())).collect();
        let bytes = encode(&Launch { ops, ..Launch::default() }).unwrap();
        prop_assert_eq!(codes(&bytes).unwrap(), vec![OP_MKDIR; paths.len()]);
        for cut in [RECIPE_HEAD - 1, bytes.len().saturating_sub(1)] {
            prop_assert!(codes(&bytes[..cut.min(bytes.len() - 1)]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = codes(&bytes);
    }
}
