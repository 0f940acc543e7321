//! `cargo xtask bench`: what the kubelet costs on top of the runtime, what it costs as a node of a cluster beside
//! upstream's, what its figures cost, what the container runtime costs beside containerd, what the API server costs, what
//! Services cost, what CNI plugins cost.

use std::process::{Command, ExitCode};

use fixture::{Doing, Failure, Result};

use crate::layout::Layout;
use crate::terminal::step;
use crate::{debs, images};

pub(crate) fn bench(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    match args.split_first() {
        Some((what, rest)) if what == "pods" => on_containerd(layout, "bench_pods", rest),
        Some((what, rest)) if what == "node" => on_containerd(layout, "bench_node", rest),
        Some((what, rest)) if what == "stats" => on_containerd(layout, "bench_stats", rest),
        Some((what, rest)) if what == "runtime" => on_containerd(layout, "bench_runtime", rest),
        Some((what, rest)) if what == "api" => run(layout, "bench_api", rest),
        Some((what, rest)) if what == "control" => run(layout, "bench_control", rest),
        Some((what, rest)) if what == "cni" => bench_cni(layout, rest),
        Some((what, counts)) if what == "proxy" => bench_proxy(layout, counts),
        _ => Err(Failure::new(
            "what shall be measured? bench up|runtime|pods|node|stats|api|control|cni [--quick] or bench proxy [SERVICES…] [--peer-proxy PATH]",
        )),
    }
}

fn on_containerd(layout: &Layout, bench: &str, args: &[String]) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("containers need root: run it as root"));
    }
    fixture::sweep_stale()?;
    debs::fetch(layout, false)?;
    images::build(layout)?;
    run(layout, bench, args)
}

fn bench_cni(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("network namespaces need root: run it as root"));
    }
    debs::fetch(layout, false)?;
    run(layout, "bench_cni", args)
}

/// Builds a benchmark and what it measures, and runs it.
fn run(layout: &Layout, bench: &str, args: &[String]) -> Result<ExitCode> {
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
        .args(["--bin", "longshore", "--bin", bench])
        .current_dir(&layout.root)
        .status()
        .doing(|| "running cargo build".into())?;
    if !built.success() {
        return Err(Failure::new("the benchmark does not build"));
    }
    let programs = layout.target.join("release-fast");
    let status = Command::new(programs.join(bench))
        .env("LONGSHORE_NODE_CACHE", &layout.cache)
        .env("LONGSHORE_BINARY", programs.join("longshore"))
        .args(args)
        .status()
        .doing(|| "running the benchmark".into())?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}

/// Numbers of Services, and `--peer-proxy PATH` for upstream's kube-proxy in the same run.
fn bench_proxy(layout: &Layout, args: &[String]) -> Result<ExitCode> {
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::new("network namespaces need root: run it as root"));
    }
    let mut counts = Vec::new();
    let mut peer = None;
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--peer-proxy" => peer = rest.next(),
            count => counts.push(count),
        }
    }
    debs::fetch(layout, false)?;
    step("building longshore and the benchmark (the first time takes minutes)");
    let build = ["build", "--locked", "--profile", "release-fast"];
    for what in [["longshore", "--bin", "longshore"], ["proxy", "--example", "bench_proxy"]] {
        let built = Command::new("cargo")
            .args(build)
            .arg("--package")
            .args(what)
            .current_dir(&layout.root)
            .status()
            .doing(|| "running cargo build".into())?;
        if !built.success() {
            return Err(Failure::new("the benchmark does not build"));
        }
    }
    let programs = layout.target.join("release-fast");
    let status = Command::new(programs.join("examples/bench_proxy"))
        .env("LONGSHORE_NODE_CACHE", &layout.cache)
        .args(counts)
        .arg("--longshore")
        .arg(programs.join("longshore"))
        .args(peer.iter().flat_map(|peer| ["--peer", peer.as_str()]))
        .status()
        .doing(|| "running the benchmark".into())?;
    Ok(ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)))
}
