//! The Python client of the Kubernetes project against our API server: `clients/test_python.py`.
//!
//! `LONGSHORE_PYTHON` is a Python that has it; `cargo xtask test` makes one where it can.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;

#[test]
fn objects_and_watches() {
    let (Some(python), Some(binary)) =
        (std::env::var_os("LONGSHORE_PYTHON"), std::env::var_os("LONGSHORE_BINARY"))
    else {
        eprintln!("skipped: LONGSHORE_PYTHON and LONGSHORE_BINARY are not set; cargo xtask test sets them");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/test_python.py");
    let ran = Command::new(python)
        .arg("-B")
        .arg(script)
        .env("LONGSHORE_BINARY", binary)
        .env("TMPDIR", dir.path())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{told}");
    eprintln!("{told}");
}
