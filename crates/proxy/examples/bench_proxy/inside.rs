//! The rules and the nftables backend, without a process around them.

use std::time::{Duration, Instant};

use fixture::Netns;
use proxy::backend::nft::NftDataplane;
use proxy::ports::Dataplane;
use proxy::yield_flag::{Outcome, YieldFlag};
use proxy_core::objects::{Cidr, Cluster, Family};
use proxy_core::rules::{Host, LocalTraffic, Mode, Rulebook, Settings};

use crate::objects::{service, slice};

const CHANGES: u32 = 200;

pub(crate) fn measure(count: u32) {
    Netns::new().unwrap().within(|| measure_here(count));
}

fn measure_here(count: u32) {
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
    plane.verify(book.rules(), &YieldFlag::default()).unwrap();
    // As the loop does that calls it.
    sys::memory::release().unwrap();
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
        // Now and then as many endpoints as no Service had before.
        let endpoints = if turn % 20 == 0 { 5 + turn / 20 } else { 2 + turn % 3 };
        cluster.put_slice(&slice(turn * 7 % count, endpoints, turn));
        scales.push(change(&mut cluster, &mut book));
        cluster.put_service(&service(count + turn));
        cluster.put_slice(&slice(count + turn, 2, 0));
        services.push(change(&mut cluster, &mut book));
    }
    let start = Instant::now();
    let mut again = NftDataplane::open(Family::V4, 14).unwrap();
    let faults = again.verify(book.rules(), &YieldFlag::default()).unwrap();
    assert_eq!(faults, Outcome::Done(Vec::new()));
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
