//! OCI runtimes alone, on a bundle, without anybody who calls them; and an archive of an image with many files.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::node::Tools;

use crate::Outcome;

/// Of an image as distributions make them.
const FILES: usize = 6000;
const FILE: usize = 10_000;
const WORDS: [&str; 8] =
    ["harbour ", "tide ", "keeper ", "anchor ", "mooring ", "pilot ", "ballast ", "quay\n"];

/// A bundle of busybox, and a container on it that goes on.
pub(crate) struct Bundle {
    pub(crate) name: String,
    program: PathBuf,
    dir: PathBuf,
}

// === impl Bundle ===

impl Bundle {
    pub(crate) fn new(tools: &Tools, name: &str, program: PathBuf) -> Outcome<Bundle> {
        let dir = std::env::temp_dir().join(format!("bench-runtime-{name}-{}", std::process::id()));
        let bin = dir.join("rootfs/bin");
        fs::create_dir_all(&bin)?;
        fs::copy(tools.busybox(), bin.join("busybox"))?;
        for applet in ["true", "sleep"] {
            symlink("busybox", bin.join(applet))?;
        }
        let bundle = Bundle { name: name.to_owned(), program, dir };
        finished(Command::new(&bundle.program).arg("spec").current_dir(&bundle.dir))?;
        bundle.configure(&["/bin/sleep", "100000"])?;
        finished(
            bundle.command().args(["run", "--detach", "--bundle"]).arg(&bundle.dir).arg(bundle.id("lasting")),
        )?;
        bundle.configure(&["/bin/true"])?;
        Ok(bundle)
    }

    /// What the program would write, but for the command and the terminal.
    fn configure(&self, args: &[&str]) -> Outcome<()> {
        let path = self.dir.join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path)?)?;
        config["process"]["terminal"] = json!(false);
        config["process"]["args"] = json!(args);
        Ok(fs::write(path, serde_json::to_vec(&config)?)?)
    }

    /// Created, started, waited for and deleted.
    pub(crate) fn run(&self, round: usize) -> Outcome<Duration> {
        let begun = Instant::now();
        finished(self.command().args(["run", "--bundle"]).arg(&self.dir).arg(self.id(&round.to_string())))?;
        Ok(begun.elapsed())
    }

    pub(crate) fn exec(&self) -> Outcome<Duration> {
        let begun = Instant::now();
        finished(self.command().arg("exec").arg(self.id("lasting")).arg("/bin/true"))?;
        Ok(begun.elapsed())
    }

    fn id(&self, name: &str) -> String {
        format!("longshore-bench-{}-{name}", std::process::id())
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(self.dir.join("state"));
        command
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        let gone = finished(self.command().args(["delete", "--force"]).arg(self.id("lasting")));
        match gone {
            Ok(()) => _ = fs::remove_dir_all(&self.dir),
            Err(error) => eprintln!("{} left a container behind: {error}", self.name),
        }
    }
}

/// An archive as `docker save` writes it. No two have the same layer, so that each import has everything to do.
pub(crate) fn archive(dir: &Path, number: usize) -> Outcome<PathBuf> {
    let dir = dir.join("archive");
    let tree = dir.join("tree");
    if number == 0 {
        for at in 0..FILES {
            let path = tree.join(format!("{}/{}", at % 60, at));
            fs::create_dir_all(path.parent().unwrap_or(&tree))?;
            fs::write(path, text(at))?;
        }
    }
    fs::write(tree.join("number"), number.to_string())?;
    let layer = dir.join("layer.tar");
    finished(Command::new("tar").args(["--sort=name", "-cf"]).arg(&layer).arg("-C").arg(&tree).arg("."))?;
    let digest = String::from_utf8(Command::new("sha256sum").arg(&layer).output()?.stdout)?;
    let digest = digest.split(' ').next().unwrap_or_default();
    let config = json!({"architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }, "os": "linux",
                        "config": {}, "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]}});
    let manifest = json!([{"Config": "config.json", "RepoTags": [format!("localhost/big:v{number}")], "Layers": ["layer.tar.gz"]}]);
    fs::write(dir.join("config.json"), config.to_string())?;
    fs::write(dir.join("manifest.json"), manifest.to_string())?;
    let packed = Command::new("gzip").args(["-6", "-n", "-c"]).arg(&layer).output()?.stdout;
    File::create(dir.join("layer.tar.gz"))?.write_all(&packed)?;
    let goal = dir.join(format!("{number}.tar"));
    let parts = ["manifest.json", "config.json", "layer.tar.gz"];
    finished(Command::new("tar").arg("-cf").arg(&goal).arg("-C").arg(&dir).args(parts))?;
    Ok(goal)
}

/// Words in no order, which pack about as text does.
fn text(seed: usize) -> Vec<u8> {
    let mut state = seed as u64 + 1;
    let mut text = Vec::with_capacity(FILE);
    while text.len() < FILE {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend(WORDS[(state >> 60) as usize % WORDS.len()].bytes());
    }
    text
}

fn finished(command: &mut Command) -> Outcome<()> {
    // A container keeps what it inherits: pipes of ours would stay open as long as it runs.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{command:?} ended with {status}").into()),
    }
}
