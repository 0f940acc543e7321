#![allow(clippy::unwrap_used)]

use base::rng::Rng;
use serde_json::json;

use super::*;
use crate::node::Node;
use crate::profile::Profile;
use crate::testing;

const S: fn(u64) -> Mono = |s| Mono(Duration::from_secs(s));

fn queue() -> Queue {
    let pauses = Pauses {
        first: Duration::from_secs(1),
        most: Duration::from_secs(10),
        max_unschedulable: MAX_UNSCHEDULABLE,
    };
    Queue::new(Arc::new([Profile::default()].into_iter().collect()), pauses)
}

fn pod(name: &str, priority: i32) -> Arc<Pod> {
    Arc::new(Pod { priority, ..testing::asking(name, json!({"cpu": "1"})) })
}

fn popped(queue: &mut Queue, now: u64) -> Option<String> {
    queue.pop(S(now)).map(|turn| turn.pod.key.name.to_string())
}

fn bigger_node() -> Event {
    let node = |cpu: &str| -> Arc<Node> {
        Arc::new(testing::node_with(
            "n",
            json!({}),
            json!({}),
            json!({"allocatable": {"cpu": cpu, "pods": "9"}}),
        ))
    };
    Event::of_node(Some(node("1")), Some(node("2"))).unwrap()
}

const FIT: Failure = Failure::Rejected(PluginSet::NODE_RESOURCES_FIT);

#[test]
fn the_important_go_first_then_the_early() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
        queue.set(pod(name, priority), &cluster, S(0));
    }
    let order: Vec<String> = std::iter::from_fn(|| popped(&mut queue, 0)).collect();
    assert_eq!(order, ["b", "d", "a", "c"]);
}

#[test]
fn a_refused_pod_waits_for_what_may_help_and_pauses_longer_each_time() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    let mut now = 0;
    for pause in [1, 2, 4, 8, 10, 10] {
        assert_eq!(popped(&mut queue, now).as_deref(), Some("p"));
        queue.fail(&"p".into(), FIT, &cluster, S(now));
        assert_eq!((queue.counts().unschedulable, popped(&mut queue, now)), (1, None));
        queue.happened(&bigger_node(), &cluster, S(now));
        assert_eq!(queue.counts().backoff, 1);
        queue.tick(S(now + pause));
        assert_eq!(queue.counts().backoff, 1, "the last second is waited out: {pause}");
        now += pause + 1;
        queue.tick(S(now));
        assert_eq!(queue.counts().active, 1, "{pause}");
    }
}

#[test]
fn what_cannot_help_wakes_nobody() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    queue.pop(S(0));
    queue.fail(&"p".into(), FIT, &cluster, S(0));
    let node = Arc::new(testing::node("n", json!({})));
    let labelled = Arc::new(testing::node("n", json!({"x": "y"})));
    queue.happened(&Event::of_node(Some(node), Some(labelled)).unwrap(), &cluster, S(60));
    assert_eq!(queue.counts().unschedulable, 1);
    queue.tick(S(330));
    assert_eq!(queue.counts().active, 1, "five minutes are enough");
}

#[test]
fn an_early_turn_is_only_for_the_refused_not_after_errors() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    queue.pop(S(0));
    queue.fail(&"p".into(), Failure::Rejected(PluginSet::default()), &cluster, S(0));
    queue.happened(&bigger_node(), &cluster, S(0));
    assert_eq!(popped(&mut queue, 0).as_deref(), Some("p"), "nobody else is there");
    queue.fail(&"p".into(), Failure::Error, &cluster, S(0));
    assert_eq!(popped(&mut queue, 0), None);
    queue.tick(S(2));
    assert_eq!(popped(&mut queue, 2).as_deref(), Some("p"));
}

#[test]
fn what_happens_in_flight_is_not_missed() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    queue.pop(S(0));
    queue.happened(&bigger_node(), &cluster, S(0));
    queue.fail(&"p".into(), FIT, &cluster, S(0));
    assert_eq!(queue.counts().backoff, 1);
}

#[test]
fn the_end_of_a_nomination_is_news_for_pods_that_are_not_more_important() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    for (name, priority) in [("low", 1), ("high", 9)] {
        queue.set(pod(name, priority), &cluster, S(0));
    }
    while let Some(turn) = queue.pop(S(0)) {
        queue.fail(&turn.pod.uid, FIT, &cluster, S(0));
    }
    let gone = Arc::new(testing::asking("x", json!({"cpu": "1"})).on("n"));
    queue.happened_to(&Event::of_pod(Some(gone), None), &cluster, S(0), |waiting| waiting.priority <= 5);
    assert_eq!((queue.counts().unschedulable, queue.counts().backoff), (1, 1));
    assert_eq!(popped(&mut queue, 0).as_deref(), Some("low"));
}

#[test]
fn a_failed_binding_pauses_as_a_first_error_however_often_the_pod_was_refused_before() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    let mut history = queue.pop(S(3)).unwrap().history;
    assert_eq!((history.attempts, history.entered), (1, Some(S(0))), "the time in the queue counts");
    history.rejections = 5;
    queue.remove(&"p".into());
    queue.set_in_flight(pod("p", 0), history, S(10));
    queue.fail(&"p".into(), Failure::Error, &cluster, S(10));
    queue.tick(S(11));
    assert_eq!(queue.counts().backoff, 1);
    queue.tick(S(12));
    assert_eq!(queue.pop(S(12)).unwrap().history.attempts, 2);
}

#[test]
fn gates_hold_a_pod_until_they_are_gone() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    let gated = testing::pod("p", json!({"schedulingGates": [{"name": "a"}]}));
    queue.set(Arc::new(gated), &cluster, S(0));
    queue.happened(&bigger_node(), &cluster, S(0));
    queue.tick(S(1000));
    assert_eq!((queue.counts().gated, popped(&mut queue, 0)), (1, None));
    queue.set(Arc::new(testing::pod("p", json!({}))), &cluster, S(0));
    assert_eq!(popped(&mut queue, 0).as_deref(), Some("p"));
}

#[test]
fn a_pod_for_which_others_make_way_waits_until_they_were_told() {
    let (mut queue, cluster) = (queue(), Cluster::default());
    queue.set(pod("p", 0), &cluster, S(0));
    queue.pop(S(0));
    queue.begin_preemption(&"p".into());
    queue.fail(&"p".into(), FIT, &cluster, S(0));
    queue.happened(&bigger_node(), &cluster, S(60));
    assert_eq!((queue.counts().gated, popped(&mut queue, 60)), (1, None));
    queue.end_preemption(&"p".into(), false, S(60));
    assert_eq!(popped(&mut queue, 60).as_deref(), Some("p"));
}

#[test]
fn no_pod_is_ever_lost() {
    for seed in 0..300 {
        let (mut queue, cluster, mut rng) = (queue(), Cluster::default(), Rng::new(seed));
        let (mut known, mut flying) = (std::collections::BTreeSet::new(), Vec::new());
        for step in 0..200 {
            let name: Name = format!("p{}", rng.below(12)).into();
            match rng.below(7) {
                0 | 1 => {
                    let priority = rng.below(3) as i32;
                    queue.set(pod(&name, priority), &cluster, S(step));
                    known.insert(name);
                }
                2 => {
                    queue.remove(&name);
                    known.remove(&name);
                    flying.retain(|f| *f != name);
                }
                3 => flying.extend(queue.pop(S(step)).map(|turn| turn.pod.uid.clone())),
                4 => queue.happened(&bigger_node(), &cluster, S(step)),
                5 => queue.tick(S(step)),
                _ => {
                    if let Some(uid) = flying.pop() {
                        let failure = if rng.chance(0.3) { Failure::Error } else { FIT };
                        queue.fail(&uid, failure, &cluster, S(step));
                    }
                }
            }
            let c = queue.counts();
            let total = c.active + c.backoff + c.unschedulable + c.gated + c.in_flight;
            assert_eq!((total, c.in_flight), (known.len(), flying.len()), "seed {seed}, step {step}");
            assert_eq!(
                queue.active.len() + queue.backoff.len() + queue.error_backoff.len(),
                c.active + c.backoff
            );
        }
    }
}
