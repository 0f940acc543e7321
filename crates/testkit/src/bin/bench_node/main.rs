//! What a node of a cluster costs: starts and ends of Pods as a watch sees them, requests, memory, processor time.
//! Started by `cargo xtask bench node`.
//!
//! With upstream's kubelet at hand (`--peer-kubelet PATH`) both serve the same node in turns: the same containerd, the
//! same API server, the same configuration. Without, ours is measured alone and held against recorded figures of
//! upstream's. `--peer-apiserver PATH --peer-etcd PATH` put upstream's API server in the place of ours.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod floor;
mod kubelet;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use testkit::api::{Outcome, Peer};
use testkit::node::{Node, Options, Tools};

use figures::{Figures, compare};
use kubelet::Bench;
use server::Place;

/// How much is measured.
#[derive(Clone, Copy)]
struct Effort {
    /// How often each kubelet has its turn.
    turns: usize,
    /// Pods one by one, per turn.
    rounds: usize,
    crowd: usize,
    idle: Duration,
}

struct Wish {
    quick: bool,
    binary: PathBuf,
    kubelet: Option<PathBuf>,
    server: Option<Peer>,
}

fn main() -> ExitCode {
    match Wish::parse().and_then(|wish| run(&wish)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(wish: &Wish) -> Outcome<bool> {
    let effort = if wish.quick {
        Effort { turns: 1, rounds: 5, crowd: 20, idle: Duration::from_secs(15) }
    } else {
        Effort { turns: 2, rounds: 15, crowd: 100, idle: Duration::from_secs(30) }
    };
    let node = Node::start(&Tools::from_env()?, Options::default())?;
    let (ours, theirs, floor) = node.inside(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let floor = floor::measure(&node, effort.crowd).await?;
            let (ours, theirs) = measure(wish, effort, &node).await?;
            Outcome::Ok((ours, theirs, floor))
        })
    })??;
    node.stop()?;
    Ok(compare(&ours, theirs.as_ref(), effort.crowd, floor))
}

async fn measure(wish: &Wish, effort: Effort, node: &Node) -> Outcome<(Figures, Option<Figures>)> {
    let place = Place::start(node, &wish.binary, wish.server.as_ref()).await?;
    println!(
        "{}: {} Pods one by one, {} at once\n",
        place.name(),
        effort.turns * effort.rounds,
        effort.crowd
    );
    let (mut ours, mut theirs) = (Figures::default(), wish.kubelet.as_ref().map(|_| Figures::default()));
    for turn in 0..effort.turns {
        let rests = turn + 1 == effort.turns;
        Bench::start(node, &place, "longshore", &wish.binary, effort)
            .await?
            .run(turn, rests, &mut ours)
            .await?;
        if let (Some(kubelet), Some(theirs)) = (&wish.kubelet, &mut theirs) {
            Bench::start(node, &place, "upstream", kubelet, effort).await?.run(turn, rests, theirs).await?;
        }
    }
    Ok((ours, theirs))
}

// === impl Wish ===

impl Wish {
    fn parse() -> Outcome<Wish> {
        let binary = std::env::var_os("LONGSHORE_BINARY").ok_or("LONGSHORE_BINARY is not set")?;
        let mut wish = Wish { quick: false, binary: binary.into(), kubelet: None, server: None };
        let (mut apiserver, mut etcd) = (None, None);
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            match arg.to_str() {
                Some("--quick") => wish.quick = true,
                Some("--peer-kubelet") => wish.kubelet = args.next().map(PathBuf::from),
                Some("--peer-apiserver") => apiserver = args.next(),
                Some("--peer-etcd") => etcd = args.next(),
                _ => return Err(format!("unknown argument {}", arg.display()).into()),
            }
        }
        wish.server = match (apiserver, etcd) {
            (Some(apiserver), Some(etcd)) => Some(Peer { apiserver: apiserver.into(), etcd: etcd.into() }),
            (None, None) => None,
            _ => return Err("--peer-apiserver and --peer-etcd go together".into()),
        };
        Ok(wish)
    }
}
