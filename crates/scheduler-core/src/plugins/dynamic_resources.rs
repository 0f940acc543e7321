//! DynamicResources: Pods without resource claims pass. Allocation is not built: a Pod with claims waits, and says so.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::cluster::Cluster;
use crate::framework::{Plugin, PreFilter, PreScore, State};
use crate::node::NodeInfo;
use crate::pod::Pod;
use crate::status::Rejection;

const REASON: &str = "cannot allocate all claims: this scheduler does not allocate resource claims";
/// What upstream's plugin says after a failed attempt of a Pod whose claims it cannot free.
pub(crate) const NOTHING_TO_FREE: &str = "no new claims to deallocate";

#[derive(Debug)]
struct DynamicResources;

pub fn make(_: &PluginArgs) -> Arc<dyn Plugin> {
    Arc::new(DynamicResources)
}

impl Plugin for DynamicResources {
    fn pre_filter(&self, _: &Cluster, pod: &Pod) -> PreFilter {
        match pod.claims.is_empty() {
            true => PreFilter::Skip,
            false => PreFilter::Reject(Rejection::unresolvable(REASON)),
        }
    }

    fn pre_score(&self, _: &Cluster, _: &Pod, _: &State, _: &[&NodeInfo]) -> PreScore {
        PreScore::Skip
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn a_pod_with_claims_waits_and_is_told_why() {
        let plugin = make(&PluginArgs::default());
        let cluster = testing::cluster([testing::node("n", json!({}))]);
        assert_eq!(testing::filter(&plugin, &cluster, &testing::pod("p", json!({})), "n"), Ok(()));
        let pod = testing::pod("p", json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "g"}]}));
        assert_eq!(testing::filter(&plugin, &cluster, &pod, "n"), Err(Rejection::unresolvable(REASON)));
    }
}
