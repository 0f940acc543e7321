//! ImageLocality: better where the images are already, unless everybody would go there.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::framework::{MAX_SCORE, Plugin, State};
use crate::node::NodeInfo;
use crate::pod::Pod;

const LEAST: i64 = 23 << 20;
const MOST_PER_CONTAINER: i64 = 1000 << 20;

#[derive(Debug)]
struct ImageLocality;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(ImageLocality)
}

impl Plugin for ImageLocality {
    fn score(&self, cluster: &Cluster, pod: &Pod, _: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let total = cluster.node_count() as f64;
        // An image that few nodes have counts less, so that a Pod is not drawn to one node by a large image alone.
        let spread: Vec<f64> =
            pod.images.iter().map(|image| cluster.nodes_with_image(image) as f64 / total).collect();
        if spread.iter().all(|share| *share == 0.0) {
            scores.fill(0);
            return;
        }
        let most = MOST_PER_CONTAINER * pod.containers as i64;
        for (info, score) in nodes.iter().zip(scores) {
            let Some(node) = &info.node else { continue };
            let sizes = pod
                .images
                .iter()
                .zip(&spread)
                .filter_map(|(image, share)| Some((node.image_size(image)? as f64 * share) as i64));
            let sum = sizes.sum::<i64>().clamp(LEAST, most);
            *score = MAX_SCORE * (sum - LEAST) / (most - LEAST).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    const MB: i64 = 1 << 20;

    #[test]
    fn images_that_are_there_score_by_size_and_spread() {
        let plugin = make(&PluginArgs::default());
        let node = |name: &str, images: Value| {
            testing::node_with(name, json!({}), json!({}), json!({"images": images}))
        };
        let image = |name: &str, size: i64| json!({"names": [name], "sizeBytes": size * MB});
        let mut cluster = testing::cluster([
            node("a", json!([image("x:latest", 40), image("y:1", 300)])),
            node("b", json!([image("x:latest", 250), image("z:1", 10)])),
        ]);
        let pod = |images: &[&str]| {
            let containers: Vec<Value> = images.iter().map(|i| json!({"name": "c", "image": i})).collect();
            testing::pod("p", json!({"containers": containers}))
        };
        // b: 10MB over half of the nodes is below the least; x on both counts whole.
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod(&["x", "z:1"])), Some(vec![0, 11]));
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod(&["x", "y:1"])), Some(vec![8, 11]));
        assert_eq!(testing::scores(&plugin, &mut cluster, &pod(&["none"])), Some(vec![0, 0]));
    }
}
