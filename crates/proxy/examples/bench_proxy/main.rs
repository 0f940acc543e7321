//! What a cluster's Services cost: the first sync, one change, a restart, memory, and a packet's way. Run by
//! `cargo xtask bench proxy`.
//!
//! In network namespaces of its own; needs root. Arguments: how many Services, each with two endpoints; `--longshore PATH`
//! to measure the whole program instead of the agent alone, `--peer PATH` to measure upstream's kube-proxy beside it, and
//! `--mode MODE` for one of the modes.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod beside;
mod inside;
#[path = "../../tests/support/no_files.rs"]
mod no_files;
mod object_server;
mod objects;
mod ourselves;

use std::path::PathBuf;

use beside::{Figures, Program};

/// With more Services than this upstream takes minutes for its first sync.
const PEER_LIMIT: u32 = 10_000;

/// The numbers between which a packet's way should not get longer.
const DEFAULT_COUNTS: [u32; 3] = [1, 5_000, 50_000];

#[derive(Default)]
struct Arguments {
    counts: Vec<u32>,
    longshore: Option<PathBuf>,
    peer: Option<PathBuf>,
    mode: Option<String>,
}

fn main() {
    // As the program does that is measured.
    sys::memory::keep_one_heap();
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == "kube-proxy") {
        return ourselves::run(&words[1..]);
    }
    let arguments = Arguments::read(std::env::args().skip(1));
    for count in &arguments.counts {
        inside::measure(*count);
    }
    let longshore = arguments.longshore.unwrap_or_else(|| std::env::current_exe().unwrap());
    for mode in ["nftables", "iptables"]
        .into_iter()
        .filter(|mode| arguments.mode.as_deref().is_none_or(|m| m == *mode))
    {
        let mut ways = Vec::new();
        for count in &arguments.counts {
            let ours = beside::measure(&Program::ours(&longshore), mode, *count);
            let is_feasible = *count <= PEER_LIMIT;
            let peer = arguments.peer.as_ref().filter(|_| is_feasible).map(|peer| Program::upstream(peer));
            let theirs = peer.map(|peer| beside::measure(&peer, mode, *count));
            show(mode, *count, &ours, theirs.as_ref());
            ways.push((*count, ours.packet));
        }
        if let [(least, first), .., (most, last)] = ways[..] {
            let ratio = last.as_secs_f64() / first.as_secs_f64();
            println!("first packet, {mode}: {ratio:.2} times as long with {most} Services as with {least}");
        }
    }
}

fn show(mode: &str, count: u32, ours: &Figures, theirs: Option<&Figures>) {
    println!("{count} Services of 2 endpoints, {mode}{:>29}{:>14}{:>10}", "ours", "upstream", "ratio");
    type Row = (&'static str, fn(&Figures) -> f64, &'static str, f64);
    let rows: [Row; 7] = [
        ("start to the first answer", |f| f.first.as_secs_f64(), "s", 1.0),
        ("processor time until then", |f| f.processor.as_secs_f64(), "s", 1.0),
        ("one change, p50", |f| f.change.as_secs_f64(), "ms", 1e3),
        ("one change, at most", |f| f.slowest.as_secs_f64(), "ms", 1e3),
        ("memory, resident", |f| f.resident as f64, "MB", 1e-6),
        ("memory, at most", |f| f.peak as f64, "MB", 1e-6),
        ("first packet, p50", |f| f.packet.as_secs_f64(), "µs", 1e6),
    ];
    for (what, read, unit, scale) in rows {
        let own = read(ours);
        let cell = |value: f64| format!("{:.2} {unit}", value * scale);
        match theirs.map(read) {
            None => println!("  {what:<30}{:>28}", cell(own)),
            Some(peer) => {
                println!("  {what:<30}{:>28}{:>14}{:>10.1}", cell(own), cell(peer), peer / own);
            }
        }
    }
}

impl Arguments {
    fn read(mut args: impl Iterator<Item = String>) -> Self {
        let mut read = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--longshore" => read.longshore = args.next().map(PathBuf::from),
                "--mode" => read.mode = args.next(),
                "--peer" => read.peer = args.next().map(PathBuf::from),
                count => read.counts.extend(count.parse::<u32>()),
            }
        }
        if read.counts.is_empty() {
            read.counts.extend(DEFAULT_COUNTS);
        }
        read
    }
}
