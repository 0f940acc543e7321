//! What a cluster's Services cost: the first sync, one change, a restart, memory. Run by `cargo xtask bench proxy`.
//!
//! In a network namespace of its own; needs root. Arguments: how many Services, each with two endpoints.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use fixture::Netns;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proxy::backend::nft::NftDataplane;
use proxy::ports::Dataplane;
use proxy_core::objects::{Cidr, Cluster, Family};
use proxy_core::rules::{Host, LocalTraffic, Mode, Rulebook, Settings};
use serde_json::json;

const CHANGES: u32 = 200;

fn main() {
    let counts: Vec<u32> = std::env::args().skip(1).filter_map(|n| n.parse().ok()).collect();
    for count in if counts.is_empty() { vec![5_000] } else { counts } {
        let ns = Netns::new().unwrap();
        ns.within(|| measure(count));
    }
}

fn measure(count: u32) {
    let empty = resident();
    let (mut cluster, host) = (Cluster::new("here"), Host::default());
    cluster.replace_services(&[]);
    cluster.replace_slices(&[]);
    // One by one, as a watch would decode them: nobody holds all objects at once.
    for number in 0..count {
        cluster.put_service(&service(number));
        cluster.put_slice(&slice(number, 2, 0));
    }
    let mut book = Rulebook::new(Family::V4, settings());
    let mut plane = NftDataplane::open(Family::V4, 14).unwrap();
    let start = Instant::now();
    let changed = cluster.take_changes(Family::V4).unwrap();
    book.update(&cluster, &host, changed);
    let decided = start.elapsed();
    plane.verify(book.rules()).unwrap();
    let first = start.elapsed();
    let held = resident();

    let mut change = |cluster: &mut Cluster, book: &mut Rulebook| {
        let start = Instant::now();
        let changed = cluster.take_changes(Family::V4).unwrap();
        let delta = book.update(cluster, &host, changed);
        plane.apply(book.rules(), &delta).unwrap();
        start.elapsed()
    };
    let mut scales = Vec::new();
    let mut services = Vec::new();
    for turn in 0..CHANGES {
        cluster.put_slice(&slice(turn * 7 % count, 2 + turn % 3, turn));
        scales.push(change(&mut cluster, &mut book));
        cluster.put_service(&service(count + turn));
        cluster.put_slice(&slice(count + turn, 2, 0));
        services.push(change(&mut cluster, &mut book));
    }
    let start = Instant::now();
    let mut again = NftDataplane::open(Family::V4, 14).unwrap();
    let faults = again.verify(book.rules()).unwrap();
    assert!(faults.is_empty(), "{faults:?}");
    println!("{count} Services of 2 endpoints, nftables");
    println!("  first sync        {first:>10.1?}  of which deciding {decided:.1?}");
    println!("  endpoints change  {}", spread(scales));
    println!("  a Service more    {}", spread(services));
    println!("  restart, verified {:>10.1?}  nothing rewritten", start.elapsed());
    println!("  memory            {:>7} KiB  after the first sync ({empty} KiB before)", held);
    println!("  memory            {:>7} KiB  after a comparison with the kernel", resident());
}

fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100];
    format!("{:>10.1?}  p50, {:.1?} p99, {:.1?} at most", at(50), at(99), at(100))
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn settings() -> Settings {
    let mut settings = Settings::new(Mode::Nftables);
    settings.local_traffic = LocalTraffic::ClusterCidr(Cidr::parse("10.128.0.0/9").into_iter().collect());
    settings
}

fn service(number: u32) -> Service {
    let ip = format!("10.{}.{}.{}", 96 + number / 65_536, number / 256 % 256, number % 256);
    let made = json!({
        "metadata": {"namespace": "bench", "name": format!("service-{number}")},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"],
                 "ports": [{"name": "http", "port": 80}]},
    });
    serde_json::from_value(made).unwrap()
}

fn slice(number: u32, endpoints: u32, shift: u32) -> EndpointSlice {
    let ip = |i: u32| {
        let pod = number * 2 + i + shift;
        format!("10.{}.{}.{}", 128 + pod / 65_536, pod / 256 % 256, pod % 256)
    };
    let endpoints: Vec<_> =
        (0..endpoints).map(|i| json!({"addresses": [ip(i)], "nodeName": "elsewhere"})).collect();
    let made = json!({
        "metadata": {"namespace": "bench", "name": format!("service-{number}-x"),
                     "labels": {"kubernetes.io/service-name": format!("service-{number}")}},
        "addressType": "IPv4", "endpoints": endpoints, "ports": [{"name": "http", "port": 8080}],
    });
    serde_json::from_value(made).unwrap()
}
