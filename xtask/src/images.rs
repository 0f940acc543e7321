//! Builds the images that demo and tests run: from our own static program, and for tests from Debian's static busybox too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::{Doing, Failure, Result};
use serde_json::json;

use crate::layout::Layout;
use crate::oci::{Image, archive};
use crate::tarball::Tarball;
use crate::terminal::step;

const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\n\
                        app:x:1000:1000:app:/home/app:/bin/sh\n\
                        nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";
const GROUP: &[u8] = b"root:x:0:\nextra:x:2000:app\napp:x:1000:\nnogroup:x:65534:\n";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The demo's image alone, which needs nothing but a compiler.
pub(crate) fn demo_archive(layout: &Layout) -> PathBuf {
    layout.cache.join("demo.tar")
}

pub(crate) fn build_demo_archive(layout: &Layout) -> Result<PathBuf> {
    let layer = demo_layer(&read(&build_demo(layout)?)?);
    let config =
        json!({ "Entrypoint": ["/demo"], "Cmd": ["serve"], "Env": [PATH, "VERSION=v1"], "WorkingDir": "/" });
    put(demo_archive(layout), archive(&[Image { name: "localhost/demo:v1", layer: &layer, config }]))
}

/// Writes `target/cache/images.tar`, an archive in the layout of OCI.
pub(crate) fn build(layout: &Layout) -> Result<PathBuf> {
    let demo = read(&build_demo(layout)?)?;
    let busybox = layout.cache.join("busybox/bin/busybox");
    let (demo_layer, busybox_layer) = (demo_layer(&demo), busybox_layer(&busybox)?);
    let demo = |name, extra: serde_json::Value| {
        let mut config =
            json!({ "Entrypoint": ["/demo"], "Cmd": ["serve"], "Env": [PATH], "WorkingDir": "/" });
        if let (Some(config), Some(extra)) = (config.as_object_mut(), extra.as_object()) {
            config.extend(extra.clone());
        }
        Image { name, layer: &demo_layer, config }
    };
    let bytes = archive(&[
        demo("localhost/pause:demo", json!({ "Cmd": ["pause"], "User": "65534:65534" })),
        demo("localhost/demo:v1", json!({ "Env": [PATH, "VERSION=v1"] })),
        demo("localhost/demo:v2", json!({ "Env": [PATH, "VERSION=v2"] })),
        demo("localhost/demo:numeric-user", json!({ "User": "1000" })),
        demo("localhost/demo:named-user", json!({ "User": "app" })),
        Image {
            name: "localhost/busybox:v1",
            layer: &busybox_layer,
            config: json!({ "Cmd": ["sh"], "Env": [PATH] }),
        },
    ]);
    put(layout.cache.join("images.tar"), bytes)
}

/// Whole or not at all; what is the same keeps its time.
fn put(goal: PathBuf, bytes: Vec<u8>) -> Result<PathBuf> {
    if fs::read(&goal).is_ok_and(|old| old == bytes) {
        return Ok(goal);
    }
    let half = goal.with_extension("tar.half");
    fs::create_dir_all(goal.parent().unwrap_or(Path::new("/")))
        .and_then(|()| fs::write(&half, bytes))
        .and_then(|()| fs::rename(&half, &goal))
        .doing(|| format!("writing {}", goal.display()))?;
    Ok(goal)
}

/// Static, so that it is the image's only file; for the host's own triple, so that no other target has to be installed.
fn build_demo(layout: &Layout) -> Result<PathBuf> {
    step("building the demo image");
    let triple = host_triple()?;
    let status = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--release", "--package", "demo", "--target", &triple])
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        .env("CARGO_TARGET_DIR", &layout.target)
        .current_dir(&layout.root)
        .status()
        .doing(|| "running cargo build for the demo program".into())?;
    if !status.success() {
        return Err(Failure::new("the demo program does not build"));
    }
    Ok(layout.target.join(triple).join("release/demo"))
}

pub(crate) fn host_triple() -> Result<String> {
    let out = Command::new("rustc").arg("-vV").output().doing(|| "running rustc -vV".into())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    text.lines()
        .find_map(|line| line.strip_prefix("host: "))
        .map(str::to_owned)
        .ok_or_else(|| Failure::new("rustc -vV names no host"))
}

fn demo_layer(program: &[u8]) -> Vec<u8> {
    let mut layer = Tarball::default();
    skeleton(&mut layer);
    layer.file("demo", 0o755, program);
    layer.finish()
}

fn busybox_layer(program: &Path) -> Result<Vec<u8>> {
    let out =
        Command::new(program).arg("--list").output().doing(|| format!("running {}", program.display()))?;
    let mut layer = Tarball::default();
    skeleton(&mut layer);
    layer.dir("bin/", 0o755);
    layer.file("bin/busybox", 0o755, &read(program)?);
    for applet in String::from_utf8_lossy(&out.stdout).lines().filter(|applet| *applet != "busybox") {
        layer.symlink(&format!("bin/{applet}"), "busybox");
    }
    Ok(layer.finish())
}

fn skeleton(layer: &mut Tarball) {
    for dir in ["etc/", "home/", "home/app/", "root/", "var/"] {
        layer.dir(dir, 0o755);
    }
    layer.dir("tmp/", 0o1777);
    layer.file("etc/passwd", 0o644, PASSWD);
    layer.file("etc/group", 0o644, GROUP);
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).doing(|| format!("reading {}", path.display()))
}
