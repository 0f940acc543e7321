//! What the agent asks of the kernel for itself and for the node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

/// Kernel settings that Pods rely on: path below /proc/sys, and value.
pub const TUNABLES: &[(&str, &str)] = &[
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// A kernel setting that is not as it must be.
#[derive(Debug, thiserror::Error)]
pub enum TunableError {
    #[error("invalid kernel flag: {name}, expected value: {expected}, actual value: {actual}")]
    Differs { name: &'static str, expected: &'static str, actual: String },
    #[error("read kernel flag {name}: {error}")]
    Unreadable { name: &'static str, error: io::Error },
    #[error("set kernel flag {name} to {expected}: {error}")]
    Refused { name: &'static str, expected: &'static str, error: io::Error },
}

/// Does what a well-behaved agent does at its start. What is refused is logged and lived with.
pub fn settle(oom_score_adj: i32, max_open_files: u64) {
    if !geteuid().is_root() {
        tracing::error!("the kubelet needs to run as uid 0; most of what it does will fail");
    }
    if let Err(error) = set_oom_score_adj(Path::new("/proc/self/oom_score_adj"), oom_score_adj) {
        tracing::warn!(value = oom_score_adj, %error, "own oom_score_adj not set");
    }
    match raise_open_files(max_open_files) {
        Ok(now) if now < max_open_files => {
            tracing::warn!(wanted = max_open_files, limit = now, "open files limited by the hard limit");
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(wanted = max_open_files, %error, "limit of open files not set"),
    }
}

fn set_oom_score_adj(path: &Path, value: i32) -> io::Result<()> {
    fs::write(path, value.to_string())
}

/// Sets the limit, or raises it as far as the hard limit allows; returns what holds now.
fn raise_open_files(wanted: u64) -> io::Result<u64> {
    let both = Rlimit { current: Some(wanted), maximum: Some(wanted) };
    if setrlimit(Resource::Nofile, both).is_ok() {
        return Ok(wanted);
    }
    let hard = getrlimit(Resource::Nofile).maximum;
    let most = hard.map_or(wanted, |hard| hard.min(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: hard })?;
    Ok(most)
}

/// Brings the kernel's settings to what Pods rely on or, with `protect`, only looks whether they are
/// so. Returns everything that is wrong.
#[must_use]
pub fn tune_kernel(protect: bool) -> Vec<TunableError> {
    tune(Path::new("/proc/sys"), protect)
}

fn tune(root: &Path, protect: bool) -> Vec<TunableError> {
    TUNABLES
        .iter()
        .filter_map(|(name, expected)| tune_one(root.join(name), name, expected, protect).err())
        .collect()
}

fn tune_one(
    path: PathBuf,
    name: &'static str,
    expected: &'static str,
    protect: bool,
) -> Result<(), TunableError> {
    let text = fs::read_to_string(&path).map_err(|error| TunableError::Unreadable { name, error })?;
    let actual = text.trim();
    if actual == expected {
        return Ok(());
    }
    if protect {
        return Err(TunableError::Differs { name, expected, actual: actual.to_owned() });
    }
    tracing::info!(name, expected, actual, "setting a kernel flag");
    fs::write(&path, expected).map_err(|error| TunableError::Refused { name, expected, error })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kernel() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, value) in TUNABLES {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    #[test]
    fn a_protected_kernel_is_only_looked_at() {
        let root = kernel();
        assert!(tune(root.path(), true).is_empty());
        fs::write(root.path().join("kernel/panic"), "0\n").unwrap();
        let wrong = tune(root.path(), true);
        assert_eq!(
            wrong[0].to_string(),
            "invalid kernel flag: kernel/panic, expected value: 10, actual value: 0"
        );
        assert_eq!(fs::read_to_string(root.path().join("kernel/panic")).unwrap(), "0\n");
    }

    #[test]
    fn an_unprotected_one_is_set_right() {
        let root = kernel();
        fs::write(root.path().join("vm/overcommit_memory"), "0\n").unwrap();
        fs::remove_file(root.path().join("vm/panic_on_oom")).unwrap();
        let wrong = tune(root.path(), false);
        assert!(
            matches!(wrong.as_slice(), [TunableError::Unreadable { name: "vm/panic_on_oom", .. }]),
            "{wrong:?}"
        );
        assert_eq!(fs::read_to_string(root.path().join("vm/overcommit_memory")).unwrap(), "1");
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        let before = getrlimit(Resource::Nofile);
        let now = raise_open_files(before.current.unwrap()).unwrap();
        assert_eq!(Some(now), before.current);
    }
}
