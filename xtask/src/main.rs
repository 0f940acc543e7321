//! `cargo xtask`: everything one does with the repository besides writing code.

mod apt;
mod bench;
mod bench_up;
mod debs;
mod deny;
mod dist;
mod fuzz;
mod images;
mod interrupt;
mod kubernetes;
mod layout;
mod oci;
mod python;
mod tarball;
mod terminal;
mod test;
mod tidy;
mod up;
mod vm;

use std::process::ExitCode;

use fixture::{Failure, Result};
use terminal::say;

const USAGE: &str = "\
cargo xtask <command>

  up [--debug]        `longshore up` on this machine, with a page to look at, until Ctrl-C
                      (--debug: the unoptimised build, which is quicker to make)
  test [--seeds N] [-- FILTER…]
                      format, house rules, clippy, licences, unit, property and simulation tests, suites on a real
                      containerd and on our own runtime, and what vm does
  fetch [--refresh]   unpack containerd, runc, CNI plugins and friends, which tests and benchmarks need, from Debian
                      packages into target/cache, and build the images
  vm [-p PACKAGE] [-- TEST[::FILTER]…]
                      tests that need more of a kernel than this machine's, in an emulated machine: IPVS, systemd's
                      slices and a dead NFS server, if no other are named
  tidy                check the house rules
  dist [--binary PATH]
                      what is given to people, in target/dist: a tarball and Debian packages, with checksums
  fuzz NAME [--minutes N]
                      libFuzzer on one parser of crates/fuzzed; needs the nightly compiler and cargo-fuzz
  update-kubernetes CHECKOUT
                      take the numbers of protobuf fields from the sources of a Kubernetes release, and say what is new
  bench up [--quick]  what `longshore up` costs: start to API, node and page, memory, idle processor and disk
  bench runtime [--quick] [--peer-crun PATH]
                      what our container runtime costs beside containerd with runc, and beside runc and crun alone: Pods,
                      containers, commands, memory, logs, images
  bench pods [--quick]
                      what the kubelet costs on top of the runtime: latency, memory, processor time
  bench node [--quick] [--peer-kubelet PATH] [--peer-apiserver PATH --peer-etcd PATH]
                      what a node of a cluster costs: Pods from POST to Ready and from DELETE to gone, requests,
                      memory, processor time; beside upstream's kubelet where it is at hand
  bench proxy [SERVICES…] [--peer-proxy PATH]
                      what Services cost: the first sync, one change, a restart, memory, a packet's way; beside
                      upstream's kube-proxy where it is at hand
  bench cni [--quick]
                      what CNI plugins cost: ADD and DEL beside upstream's plugins, as programs and in process; many at
                      once; many one after the other
  bench api [--quick] [--peer-apiserver PATH --peer-etcd PATH]
                      what the API server costs: start, memory, creates, lists, watches; beside kube-apiserver and
                      etcd where they are at hand
  bench control [--quick] [--peer-apiserver PATH --peer-etcd PATH --peer-controller-manager PATH
                --peer-scheduler PATH]
                      what controllers and scheduler cost, and how fast they are: a Deployment of 100, Pods a second
                      on 1,000 and 5,000 Nodes, EndpointSlices, memory, idle processor time; beside upstream's
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(code) => code,
        Err(failure) => {
            terminal::complain(format_args!("error: {failure}"));
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<ExitCode> {
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", args),
    };
    match command {
        // Not for people: what a node's janitor runs.
        "janitor" => match rest {
            [id] => Ok(fixture::janitor::main(id)),
            _ => Err(Failure::new("janitor takes a node's id")),
        },
        "fetch" => {
            let refresh = match rest {
                [] => false,
                [flag] if flag == "--refresh" => true,
                _ => return Err(Failure::new("fetch takes only --refresh")),
            };
            let layout = layout::Layout::find()?;
            debs::fetch(&layout, refresh)?;
            images::build(&layout)?;
            Ok(ExitCode::SUCCESS)
        }
        "up" => up::up(&layout::Layout::find()?, rest),
        "test" => test::test(&layout::Layout::find()?, rest),
        "bench" if rest.first().is_some_and(|what| what == "up") => {
            bench_up::bench(&layout::Layout::find()?, &rest[1..])
        }
        "bench" => bench::bench(&layout::Layout::find()?, rest),
        "vm" => vm::vm(&layout::Layout::find()?, rest),
        "dist" => dist::dist(&layout::Layout::find()?, rest),
        "fuzz" => fuzz::fuzz(&layout::Layout::find()?, rest),
        "update-kubernetes" => kubernetes::update(&layout::Layout::find()?, rest),
        "tidy" => tidy::tidy(&layout::Layout::find()?),
        "help" | "--help" | "-h" => {
            say(USAGE.trim_end());
            Ok(ExitCode::SUCCESS)
        }
        other => Err(Failure::new(format!("no command {other:?}\n\n{USAGE}"))),
    }
}
