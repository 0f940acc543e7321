//! What has to last while rules change: connections, and what is known of clients; and what must not.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use proxy::ports::Dataplane;
use proxy_core::objects::{Cluster, Family, Protocol};
use serde_json::json;

use super::agent::{Talker, until};
use super::held::{Held, serve};
use super::matrix::Kernel;
use super::{Answer, Lab, Party, service, slices};

const PLAIN: [&str; 2] = ["10.96.0.10:80", "[fd96::10]:80"];

fn tell(lab: &Lab, kernels: &mut [Kernel; 2], cluster: &mut Cluster) {
    kernels.iter_mut().for_each(|kernel| kernel.update(lab, cluster));
}

/// Connections go on, whatever becomes of other endpoints, of their own, and of the proxy.
pub(crate) fn connections(
    lab: &Lab,
    kernels: &mut [Kernel; 2],
    open: impl Fn(Family) -> Box<dyn Dataplane> + Sync,
) {
    const PORT: u16 = 9000;
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    serve(a, PORT);
    serve(b, PORT);
    let slices_of = |who: &[&Party]| {
        let mut all = slices("plain", who);
        for slice in &mut all {
            slice.ports.iter_mut().flatten().for_each(|port| port.port = Some(i32::from(PORT)));
        }
        all
    };
    let mut cluster = super::cluster();
    cluster.replace_services(&[service("plain", 10, json!({}))]);
    cluster.replace_slices(&slices_of(&[a]));
    tell(lab, kernels, &mut cluster);
    let clients = [&lab.pods[2], &lab.outside];
    let mut held: Vec<Held> =
        clients.iter().flat_map(|client| PLAIN.map(|to| Held::open(client, to))).collect();
    let mut talk = |when: &str| {
        held.iter_mut().for_each(|held| assert_eq!(held.ask().ok().as_deref(), Some("a"), "{when}"));
    };
    talk("at first");
    for (who, when) in [(&[a, b][..], "with another endpoint"), (&[b], "after its own went")] {
        cluster.replace_slices(&slices_of(who));
        tell(lab, kernels, &mut cluster);
        talk(when);
    }
    cluster.put_service(&service("other", 11, json!({})));
    tell(lab, kernels, &mut cluster);
    talk("with another Service");
    for kernel in kernels {
        assert_eq!(kernel.restart(lab, &open), Vec::<String>::new());
    }
    talk("after a restart of the proxy");
}

/// A client keeps its endpoint as long as it calls, and is forgotten some time after it was last heard of.
pub(crate) fn affinity(lab: &Lab, kernels: &mut [Kernel; 2]) {
    const SECONDS: u64 = 2;
    let config = json!({"clientIP": {"timeoutSeconds": SECONDS}});
    let over = json!({"spec": {"sessionAffinity": "ClientIP", "sessionAffinityConfig": config}});
    let mut cluster = super::cluster();
    cluster.replace_services(&[service("sticky", 10, over)]);
    cluster.replace_slices(&slices("sticky", &[&lab.pods[0], &lab.pods[1], &lab.there]));
    tell(lab, kernels, &mut cluster);
    thread::scope(|scope| {
        for to in PLAIN {
            scope.spawn(move || {
                let (to, client): (SocketAddr, _) = (to.parse().unwrap(), &lab.pods[2]);
                let first = client.call(to, Protocol::Tcp);
                assert!(matches!(first, Answer::From { .. }), "{first:?}");
                let began = Instant::now();
                let mut asked = began;
                while began.elapsed() < Duration::from_secs(SECONDS + 1) {
                    let answer = client.call(to, Protocol::Tcp);
                    // On a busy machine the client may have been silent for so long that it was forgotten.
                    if asked.elapsed() < Duration::from_millis(1500) {
                        assert_eq!(answer, first);
                    }
                    asked = Instant::now();
                    thread::sleep(Duration::from_millis(100));
                }
                // One of three times another draw is the same.
                until("the client is forgotten", || {
                    thread::sleep(Duration::from_secs(SECONDS + 1));
                    client.call(to, Protocol::Tcp) != first
                });
            });
        }
    });
}

/// Flows of those who never pause follow their endpoints, also through a time without any.
pub(crate) fn flows(lab: &Lab, kernels: &mut [Kernel; 2]) {
    let (a, b) = (&lab.pods[0], &lab.pods[1]);
    let mut cluster = super::cluster();
    cluster.replace_services(&[service("plain", 10, json!({}))]);
    let talkers = PLAIN.map(|to| Talker::new(&lab.pods[2], to));
    for (who, name) in [(&[a][..], Some("a")), (&[b], Some("b")), (&[], None), (&[a], Some("a"))] {
        cluster.replace_slices(&slices("plain", who));
        tell(lab, kernels, &mut cluster);
        kernels.iter_mut().for_each(|kernel| kernel.tidy(lab));
        for talker in &talkers {
            until(&format!("{name:?} answers"), || talker.ask().as_deref() == name);
        }
    }
}
