//! NodeResourcesBalancedAllocation: better where a Pod makes the use of a node's resources more even.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use super::node_resources_fit::{share, weighted};
use crate::cluster::Cluster;
use crate::framework::{MAX_SCORE, Plugin, PreScore, State};
use crate::node::NodeInfo;
use crate::pod::Pod;
use crate::resources::Resource;

#[derive(Debug)]
struct BalancedAllocation {
    resources: Vec<Resource>,
}

pub fn make(args: &PluginArgs) -> Arc<dyn Plugin> {
    let resources = weighted(&args.balanced_allocation.resources).into_iter().map(|(r, _)| r).collect();
    Arc::new(BalancedAllocation { resources })
}

/// 100 where all fractions are equal.
fn evenness(fractions: &[f64]) -> i64 {
    let count = fractions.len() as f64;
    let deviation = match fractions {
        [a, b] => ((a - b) / 2.0).abs(),
        [_, _, _, ..] => {
            let mean = fractions.iter().sum::<f64>() / count;
            (fractions.iter().map(|f| (f - mean) * (f - mean)).sum::<f64>() / count).sqrt()
        }
        _ => 0.0,
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

impl Plugin for BalancedAllocation {
    fn pre_score(&self, _: &Cluster, pod: &Pod, _: &State, _: &[&NodeInfo]) -> PreScore {
        match self.resources.iter().all(|r| pod.requests.of(r) == 0) {
            true => PreScore::Skip,
            false => PreScore::Pass(State::default()),
        }
    }

    fn score(&self, _: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (info, score) in nodes.iter().zip(scores) {
            before.clear();
            after.clear();
            for resource in &self.resources {
                let asked = pod.requests.of(resource);
                let Some((has, taken)) = share(info, &info.requested, resource, asked) else { continue };
                let fraction = |amount: i64| (amount as f64 / has as f64).min(1.0);
                before.push(fraction(taken));
                after.push(fraction(taken + asked));
            }
            *score = MAX_SCORE / 2 + (MAX_SCORE / 2 + evenness(&after) - evenness(&before)) / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn what_evens_a_node_out_scores_more() {
        let plugin = make(&PluginArgs::default());
        let node = |name: &str| {
            testing::node_with(
                name,
                json!({}),
                json!({}),
                json!({"allocatable": {"cpu": "10", "memory": "1000"}}),
            )
        };
        let mut cluster = testing::cluster(["a", "b", "c"].map(node));
        testing::put(&mut cluster, &testing::asking("x", json!({"cpu": "5"})), "b");
        testing::put(&mut cluster, &testing::asking("y", json!({"memory": "500"})), "c");
        let pod = testing::asking("p", json!({"memory": "500"}));
        // From even to 25 off; from 25 off to even; from 25 off to 50 off.
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod), Some(vec![62, 87, 62]));
        assert_eq!(testing::scores(&plugin, &mut cluster, &testing::pod("p", json!({}))), None);
    }
}
