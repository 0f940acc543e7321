//! Which Pod goes first when a set has too many.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;

use base::time::{Now, Wall};

use crate::object::Object;
use crate::terms::PodTerms;

/// The Pods that go, `count` of them. `related` are all Pods of the sets that have the same owner: of two that stand on one
/// Node, one goes first.
#[must_use]
pub fn first_to_go(
    pods: &[Arc<Object>],
    related: &[Arc<Object>],
    count: usize,
    now: Now,
) -> Vec<Arc<Object>> {
    let mut pods = pods.to_vec();
    if count >= pods.len() {
        return pods;
    }
    let mut on_node: HashMap<&str, usize> = HashMap::new();
    for pod in related.iter().filter(|pod| pod.pod().is_some_and(PodTerms::is_active)) {
        *on_node.entry(&pod.meta.node).or_default() += 1;
    }
    pods.sort_by(|a, b| order(a, b, &on_node, now));
    pods.truncate(count);
    pods
}

/// The same for the Pods of a Job: without costs and neighbours, and by time as it is.
#[must_use]
pub fn first_of_job(pods: &[Arc<Object>], count: usize) -> Vec<Arc<Object>> {
    let mut pods = pods.to_vec();
    let nobody = PodTerms::default();
    // A missing time is the youngest.
    let young = |time: Option<Wall>| Reverse(time.unwrap_or(Wall(i64::MAX)));
    pods.sort_by_key(|pod| {
        let terms = pod.pod().unwrap_or(&nobody);
        let since = young(terms.ready.flatten());
        let is_placed = !pod.meta.node.is_empty();
        (is_placed, terms.phase, terms.is_ready(), since, Reverse(terms.restarts), young(pod.meta.created))
    });
    pods.truncate(count);
    pods
}

fn order(a: &Object, b: &Object, on_node: &HashMap<&str, usize>, now: Now) -> Ordering {
    let nobody = PodTerms::default();
    let (x, y) = (a.pod().unwrap_or(&nobody), b.pod().unwrap_or(&nobody));
    let beside = |pod: &Object| Reverse(on_node.get(&*pod.meta.node).copied().unwrap_or(0));
    let by_time = |a_time: Option<Wall>, b_time: Option<Wall>| {
        (a_time != b_time)
            .then(|| younger_first(a_time, b_time, now).then_with(|| a.meta.uid.cmp(&b.meta.uid)))
    };
    let first = (!a.meta.node.is_empty()).cmp(&!b.meta.node.is_empty());
    let first = first.then(x.phase.cmp(&y.phase));
    let first = first.then(x.is_ready().cmp(&y.is_ready()));
    let first = first.then(x.deletion_cost.cmp(&y.deletion_cost)).then(beside(a).cmp(&beside(b)));
    if first.is_ne() {
        return first;
    }
    let ready = x.ready.zip(y.ready).and_then(|(a_since, b_since)| by_time(a_since, b_since));
    let restarts = y.restarts.cmp(&x.restarts);
    ready.unwrap_or_else(|| {
        restarts.then_with(|| by_time(a.meta.created, b.meta.created).unwrap_or(Ordering::Equal))
    })
}

/// Ages are compared by their power of two, so that the choice among Pods of about one age does not always hit the youngest.
/// A missing time is the youngest.
fn younger_first(a: Option<Wall>, b: Option<Wall>, now: Now) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => magnitude(a, now).cmp(&magnitude(b, now)),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn magnitude(at: Wall, now: Now) -> i32 {
    let age = now.wall.0.saturating_sub(at.0);
    if age > 0 { i32::try_from(age.ilog2()).unwrap_or(i32::MAX) } else { -1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, Draft, at};

    fn goes_first(pods: &[Draft]) -> Vec<String> {
        let pods: Vec<Arc<Object>> = pods.iter().map(|draft| Arc::new(draft.object())).collect();
        let count = pods.len() - 1;
        first_to_go(&pods, &pods, count, at(1000)).iter().map(|pod| pod.meta.name.to_string()).collect()
    }

    /// Each row is one rule of 1.7: the second Pod of each pair goes first.
    #[test]
    fn the_first_difference_decides() {
        let base = || testing::pod("x").on("n1").running().ready(100).created(0);
        let rows: [(&str, Draft, Draft); 9] = [
            ("unassigned", base(), testing::pod("y").created(0)),
            ("pending", base(), testing::pod("y").on("n2").phase("Pending").created(0)),
            ("unready", base(), testing::pod("y").on("n2").running().created(0)),
            (
                "cost",
                base(),
                testing::pod("y")
                    .on("n2")
                    .running()
                    .ready(100)
                    .created(0)
                    .annotation("controller.kubernetes.io/pod-deletion-cost", "-5"),
            ),
            ("ready for shorter", base(), testing::pod("y").on("n2").running().ready(990).created(0)),
            ("restarts", base(), testing::pod("y").on("n2").running().ready(100).created(0).restarts(3)),
            ("younger", base(), testing::pod("y").on("n2").running().ready(100).created(900)),
            (
                "about as old: by UID",
                base().uid("u2"),
                testing::pod("y").uid("u1").on("n2").running().ready(100).created(10),
            ),
            ("no time at all", base(), testing::pod("y").on("n2").running().ready(100)),
        ];
        for (rule, stays, goes) in rows {
            assert_eq!(goes_first(&[stays.clone(), goes.clone()]), ["y"], "{rule}");
            assert_eq!(goes_first(&[goes, stays]), ["y"], "{rule}, the other way round");
        }
    }

    #[test]
    fn of_two_on_one_node_one_goes() {
        let pod = |name: &str, node: &str| testing::pod(name).on(node).running().ready(100).created(0);
        assert_eq!(goes_first(&[pod("a", "n1"), pod("b", "n2"), pod("c", "n2")])[0], "b");
    }
}
