//! `cargo xtask bench pods`: what the kubelet costs on top of the runtime.

use std::process::{Command, ExitCode};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::step;
use crate::{debs, images};

pub(crate) fn bench(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    let quick = match args {
        [what] if what == "pods" => false,
        [what, flag] if what == "pods" && flag == "--quick" => true,
        _ => return Err(Failure::new("what shall be measured? bench pods [--quick]")),
    };
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("containers need root: run it as root"));
    }
    fixture::sweep_stale()?;
    debs::fetch(layout, false)?;
    images::build(layout)?;
    step("building longshore and the benchmark (the first time takes minutes)");
    let built = Command::new("cargo")
        .args([
            "build",
            "--locked",
            "--profile",
            "release-fast",
            "--package",
            "longshore",
            "--package",
            "testkit",
        ])
        .args(["--bin", "longshore", "--bin", "bench_pods"])
        .current_dir(&layout.root)
        .status()
        .doing(|| "running cargo build".into())?;
    if !built.success() {
        return Err(Failure::new("the benchmark does not build"));
    }
    let programs = layout.target.join("release-fast");
    let mut bench = Command::new(programs.join("bench_pods"));
    bench.env("LONGSHORE_NODE_CACHE", &layout.cache).env("LONGSHORE_BINARY", programs.join("longshore"));
    let status = bench.args(quick.then_some("--quick")).status().doing(|| "running the benchmark".into())?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
