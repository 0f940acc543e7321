//! `cargo xtask dist`: what is given to people: the program in a tarball and in Debian packages, with checksums.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use fixture::{Doing, Failure, Result};
use sha2::{Digest, Sha256};

use crate::layout::Layout;
use crate::tarball::Tarball;
use crate::terminal::{say, step};

/// The largest that the program may be.
const LARGEST: u64 = 25_000_000;
/// Beside the program in the tarball.
const FILES: &[&str] = &[
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "README.zh-CN.md",
    "docs/up.md",
    "docs/up.zh-CN.md",
    "examples/hello.yaml",
    "examples/kubelet.yaml",
    "examples/up.yaml",
    "examples/volume.yaml",
];

pub(crate) fn dist(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let binary = match args {
        [] => build(layout)?,
        [flag, path] if flag == "--binary" => PathBuf::from(path),
        _ => return Err(Failure::new("dist takes only --binary PATH, a program that is built already")),
    };
    let size = fs::metadata(&binary).doing(|| format!("looking at {}", binary.display()))?.len();
    if size > LARGEST && args.is_empty() {
        return Err(Failure::new(format!("the program has {size} bytes; {LARGEST} are allowed")));
    }
    let (version, epoch) = (version(layout)?, epoch(layout)?);
    let out = layout.target.join("dist");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out).doing(|| format!("making {}", out.display()))?;
    let name = format!("longshore-{version}-{}", crate::images::host_triple()?);
    tarball(layout, &binary, &name, &out.join(format!("{name}.tar.gz")))?;
    let status = Command::new(layout.root.join("packaging/debian/build"))
        .arg(&binary)
        .arg(&version)
        .arg(&out)
        .env("SOURCE_DATE_EPOCH", &epoch)
        .stdout(Stdio::null())
        .status()
        .doing(|| "running packaging/debian/build".into())?;
    if !status.success() {
        return Err(Failure::new("packaging/debian/build failed"));
    }
    let sums = sums(&out)?;
    fs::write(out.join("SHA256SUMS"), &sums).doing(|| "writing SHA256SUMS".into())?;
    say(sums.trim_end());
    Ok(ExitCode::SUCCESS)
}

fn build(layout: &Layout) -> Result<PathBuf> {
    step("building longshore as it is shipped (this takes minutes)");
    // No path of this machine stays in the program: two machines build the same.
    let remap = format!("--remap-path-prefix={}=/longshore", layout.root.display());
    let status = Command::new("cargo")
        .args(["build", "--locked", "--release", "--package", "longshore"])
        .env("RUSTFLAGS", remap)
        .current_dir(&layout.root)
        .status()
        .doing(|| "running cargo build".into())?;
    match status.success() {
        true => Ok(layout.target.join("release/longshore")),
        false => Err(Failure::new("longshore does not build")),
    }
}

fn tarball(layout: &Layout, binary: &Path, name: &str, goal: &Path) -> Result<()> {
    let read = |path: &Path| fs::read(path).doing(|| format!("reading {}", path.display()));
    let mut all = Tarball::default();
    all.file(&format!("{name}/longshore"), 0o755, &read(binary)?);
    for file in FILES {
        all.file(&format!("{name}/{file}"), 0o644, &read(&layout.root.join(file))?);
    }
    let plain = goal.with_extension("");
    fs::write(&plain, all.finish()).doing(|| format!("writing {}", plain.display()))?;
    let status = Command::new("gzip").args(["-9", "--no-name"]).arg(&plain).status();
    match status.doing(|| "running gzip".into())?.success() {
        true => Ok(()),
        false => Err(Failure::new("gzip failed")),
    }
}

/// The version of the workspace.
fn version(layout: &Layout) -> Result<String> {
    let manifest = layout.root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).doing(|| format!("reading {}", manifest.display()))?;
    let line = text.lines().find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|line| line.strip_suffix('"')).map(str::to_owned);
    version.ok_or_else(|| Failure::new("Cargo.toml names no version"))
}

/// When the last commit was made: the time that everything in the packages has.
fn epoch(layout: &Layout) -> Result<String> {
    let git = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(&layout.root).output();
    let out = git.doing(|| "running git".into())?;
    let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
    Ok(if text.is_empty() { "0".to_owned() } else { text })
}

/// As `sha256sum` writes and checks them.
fn sums(dir: &Path) -> Result<String> {
    let act = || format!("reading {}", dir.display());
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .doing(act)?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    let mut text = String::new();
    for path in files {
        let sum = Sha256::digest(fs::read(&path).doing(act)?);
        let sum: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        text.push_str(&format!("{sum}  {name}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tarball_has_is_in_the_repository() -> Result<()> {
        let layout = Layout::find()?;
        for file in FILES {
            assert!(layout.root.join(file).is_file(), "{file}");
        }
        assert!(version(&layout)?.split('.').count() == 3);
        Ok(())
    }
}
