//! What the runtime needs for the crowd when nobody but the benchmark asks: no kubelet is faster.

use std::time::{Duration, Instant};

use cri::{Client, Endpoint};
use futures_util::future::try_join_all;
use testkit::api::Outcome;
use testkit::direct::{Direct, DirectPod, Order};
use testkit::node::Node;
use testkit::twin::Twins;

const LIMIT: Duration = Duration::from_secs(180);

/// From the first call to the last container that runs.
pub(crate) async fn measure(node: &Node, crowd: usize) -> Outcome<Duration> {
    let client = Client::new(Endpoint::parse(&node.endpoint())?, None, LIMIT);
    let direct = Direct::new(client, node.dir().join("direct-logs"));
    let twins = Twins::new(node, &node.dir().join("twins")).map_err(|e| e.to_string())?;
    let orders = (0..crowd).map(|n| twins.order(&manifest(&format!("direct-{n}"))));
    let orders: Vec<Order> = orders.collect::<Result<_, _>>().map_err(|e| e.to_string())?;
    let begun = Instant::now();
    let runs = orders.into_iter().map(|order| direct.carry_out(order));
    let pods: Vec<DirectPod> = try_join_all(runs).await?;
    let floor = begun.elapsed();
    try_join_all(pods.iter().map(|pod| direct.remove(pod, 5))).await?;
    eprintln!("the runtime alone: {crowd} at once after {:.1} s", floor.as_secs_f64());
    Ok(floor)
}

fn manifest(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{ name: {name} }}\nspec:\n  dnsPolicy: Default\n  containers:\n  \
         - name: main\n    image: localhost/demo:v1\n    imagePullPolicy: Never\n    args: [sleep, forever]\n"
    )
}
