//! What controllers and scheduler cost, and how fast they are. Started by `cargo xtask bench control`.
//!
//! With upstream's programs at hand (`--peer-apiserver`, `--peer-etcd`, `--peer-controller-manager`, `--peer-scheduler`) both sides
//! stand beside each other, and every figure is taken from one and then from the other. Without, ours are measured alone.
//! Nodes are objects without a machine: nothing but the control plane is measured.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod load;
mod side;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use testkit::api::{Outcome, Peer};
use tokio::task::LocalSet;

use crate::figures::{Figures, compare};
use crate::side::{Side, Upstream};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Nodes of the small and of the big cluster.
    pub(crate) nodes: [usize; 2],
    /// Pods of each class: basic, anti-affinity, spread.
    pub(crate) pods: [usize; 3],
    pub(crate) services: usize,
    pub(crate) rounds: usize,
    pub(crate) idle: Duration,
}

struct Wish {
    effort: Effort,
    binary: PathBuf,
    upstream: Option<Upstream>,
}

/// Pods behind each Service.
pub(crate) const BEHIND: usize = 5;
/// Replicas of the Deployment.
pub(crate) const REPLICAS: usize = 100;

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let outcome = runtime
        .map_err(Into::into)
        .and_then(|runtime| LocalSet::new().block_on(&runtime, run(Wish::parse()?)));
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(wish: Wish) -> Outcome<bool> {
    let dir = std::env::temp_dir().join(format!("longshore-bench-control-{}", std::process::id()));
    let measured = measure(&wish, &dir).await;
    if measured.is_ok() {
        fs::remove_dir_all(&dir)?;
    } else {
        eprintln!("the logs are in {}", dir.display());
    }
    let (ours, theirs) = measured?;
    Ok(compare(wish.effort, &ours, theirs.as_ref()))
}

/// Each figure from one side, then from the other.
async fn measure(wish: &Wish, dir: &std::path::Path) -> Outcome<(Figures, Option<Figures>)> {
    let effort = wish.effort;
    let mut sides = vec![Side::ours(&wish.binary, &dir.join("ours")).await?];
    if let Some(upstream) = &wish.upstream {
        sides.push(Side::upstream(upstream, &dir.join("upstream")).await?);
    }
    let mut figures = vec![Figures::default(); sides.len()];
    let mut known = 0;
    for (size, nodes) in effort.nodes.into_iter().enumerate() {
        for side in &sides {
            load::nodes(side, known..nodes).await?;
        }
        known = nodes;
        for round in 0..effort.rounds {
            for (side, found) in sides.iter().zip(&mut figures) {
                if size == 0 {
                    found.deployment.push(load::deployment(side, round).await?);
                    if round == 0 {
                        found.small_memory = side.memory()?;
                    }
                }
                for (class, count) in load::CLASSES.into_iter().zip(effort.pods) {
                    found.rates[size][class as usize].push(load::schedule(side, class, count, round).await?);
                }
            }
        }
    }
    for (side, found) in sides.iter().zip(&mut figures) {
        found.slices = load::services(side, effort.services).await?;
    }
    for (side, found) in sides.iter().zip(&mut figures) {
        found.memory = side.memory()?;
        found.idle = side.idle(effort.idle).await?;
    }
    let mut figures = figures.into_iter();
    let ours = figures.next().ok_or("nothing was measured")?;
    Ok((ours, figures.next()))
}

// === impl Wish ===

impl Wish {
    fn parse() -> Outcome<Wish> {
        let binary = std::env::var_os("LONGSHORE_BINARY").ok_or("LONGSHORE_BINARY is not set")?.into();
        let mut effort = Effort {
            nodes: [1000, 5000],
            pods: [2000, 500, 1000],
            services: 1000,
            rounds: 3,
            idle: Duration::from_secs(30),
        };
        let [mut apiserver, mut etcd, mut controllers, mut scheduler] = [const { None::<PathBuf> }; 4];
        let mut args = std::env::args_os().skip(1);
        while let Some(arg) = args.next() {
            let mut path = || args.next().map(PathBuf::from);
            match arg.to_str() {
                Some("--quick") => {
                    effort = Effort {
                        nodes: [100, 1000],
                        pods: [400, 100, 200],
                        services: 100,
                        rounds: 1,
                        idle: Duration::from_secs(5),
                    };
                }
                Some("--peer-apiserver") => apiserver = path(),
                Some("--peer-etcd") => etcd = path(),
                Some("--peer-controller-manager") => controllers = path(),
                Some("--peer-scheduler") => scheduler = path(),
                _ => return Err(format!("unknown argument {}", arg.display()).into()),
            }
        }
        let upstream = match (apiserver, etcd, controllers, scheduler) {
            (Some(apiserver), Some(etcd), Some(controllers), Some(scheduler)) => {
                Some(Upstream { server: Peer { apiserver, etcd }, controllers, scheduler })
            }
            (None, None, None, None) => None,
            _ => return Err("the four --peer-… go together".into()),
        };
        Ok(Wish { effort, binary, upstream })
    }
}
