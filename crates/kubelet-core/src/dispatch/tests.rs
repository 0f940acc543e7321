#![allow(clippy::unwrap_used)]

use super::*;
use crate::cri_config::testing;
use crate::resize::PodResources;

/// A dispatcher and the node around it.
struct Bench {
    dispatch: Dispatch,
    offer: NodeOffer,
    actuated: Entries,
    can_ask: bool,
}

impl Bench {
    fn new(sources: &[SourceName]) -> Self {
        let allocatable = testing::node().allocatable;
        let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
        let offer = NodeOffer { name: "n1".into(), labels, allocatable, ..NodeOffer::default() };
        Self {
            dispatch: Dispatch::new(sources.iter().copied()),
            offer,
            actuated: Entries::new(),
            can_ask: false,
        }
    }

    /// One source that has reported, and a search that found nothing.
    fn ready(pods: Vec<Pod>) -> Self {
        let mut bench = Self::new(&[SourceName::Api]);
        bench.list(pods);
        bench.on(Event::Found(Found { complete: true, ..Found::default() }));
        bench
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let around = Surroundings { offer: &self.offer, actuated: &self.actuated, can_ask: self.can_ask };
        self.dispatch.on(event, around).iter().filter_map(shown).collect()
    }

    fn list(&mut self, pods: Vec<Pod>) -> Vec<String> {
        let pods = pods.into_iter().map(Arc::new).collect();
        self.on(Event::Update(SourceUpdate { source: SourceName::Api, pods, unread: Unread::default() }))
    }

    fn found(&mut self, strangers: &[&str]) -> Vec<String> {
        let strangers = strangers.iter().map(|uid| (PodUid::from(*uid), pod(uid))).collect();
        self.on(Event::Found(Found { strangers, runtime: None, complete: true }))
    }
}

/// One line for each effect; what is published, searched and considered is left out.
fn shown(effect: &Effect) -> Option<String> {
    let name = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
    let end = |intent: &Intent| match &intent.kill {
        None => "run".to_owned(),
        Some(kill) => format!("{:?}", kill.cause).split([' ', '{']).next().unwrap_or_default().to_owned(),
    };
    Some(match effect {
        Effect::Begin { uid, intent, after } if after.is_empty() => format!("begin {uid}: {}", end(intent)),
        Effect::Begin { uid, intent, after } => {
            let after: Vec<&str> = after.iter().map(PodUid::as_str).collect();
            format!("begin {uid}: {} after {}", end(intent), after.join(" "))
        }
        Effect::Respawn(uid) => format!("respawn {uid}"),
        Effect::Intend { uid, intent } if intent.kill.is_none() => {
            let milli = crate::pod_resources::pod_requests(&intent.pod).get("cpu").copied().unwrap_or(0);
            format!("intend {uid}: run with {milli}")
        }
        Effect::Intend { uid, intent } => format!("intend {uid}: {}", end(intent)),
        Effect::Over(uid) => format!("over {uid}"),
        Effect::Forget(uid) => format!("forget {uid}"),
        Effect::Ask(uid) => format!("ask {uid}"),
        Effect::Note(Note::Rejected { pod, rejection }) => {
            format!("reject {}: {}", name(pod), rejection.reason)
        }
        Effect::Note(Note::Preempted { pod, shortage }) => format!("preempt {} for {shortage}", name(pod)),
        Effect::Note(Note::Parked(pod)) => format!("park {}", name(pod)),
        Effect::Note(Note::Restarted(pod)) => format!("restart {}", name(pod)),
        Effect::Note(Note::Spared(pod)) => format!("spare {}", name(pod)),
        Effect::Note(Note::ResizePending { pod, pending }) => {
            format!("{} {}: {}", pending.reason.as_str().to_lowercase(), name(pod), pending.message)
        }
        Effect::Note(Note::ResizeInfeasible(detail)) => format!("never: {detail}"),
        Effect::Note(Note::ResizeAccepted(trigger)) => format!("accepted after {}", trigger.as_str()),
        Effect::Note(Note::Orphaned(_) | Note::Considered(_) | Note::ResizeAsked(_))
        | Effect::Search(_)
        | Effect::Publish(_) => {
            return None;
        }
    })
}

/// A Pod named like its UID up to the first dash.
fn pod(uid: &str) -> Pod {
    let mut pod = testing::pod("containers: [{name: a}]");
    pod.metadata.name = uid.split('-').next().map(str::to_owned);
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

fn of_file(mut pod: Pod) -> Pod {
    pod.metadata.annotations =
        Some(BTreeMap::from([("kubernetes.io/config.source".to_owned(), "file".to_owned())]));
    pod
}

fn asking(uid: &str, cpu: &str) -> Pod {
    let spec = testing::pod(&format!("containers: [{{name: a, resources: {{requests: {{cpu: {cpu}}}}}}}]"));
    Pod { spec: spec.spec, ..pod(uid) }
}

fn critical(mut pod: Pod) -> Pod {
    pod.spec.as_mut().unwrap().priority = Some(2_000_000_000);
    pod
}

fn created(mut pod: Pod, second: i64) -> Pod {
    let at = jiff::Timestamp::from_second(second).unwrap();
    pod.metadata.creation_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
    pod
}

fn uid(text: &str) -> PodUid {
    PodUid::from(text)
}

#[test]
fn a_stranger_is_ended_once_every_source_has_reported() {
    let mut bench = Bench::new(&[SourceName::Api, SourceName::File]);
    let around = Surroundings { offer: &bench.offer, actuated: &bench.actuated, can_ask: false };
    assert!(bench.dispatch.on(Event::SearchDue, around).is_empty(), "both are silent");
    assert_eq!(bench.list(vec![pod("a")]), ["begin a: run"]);
    let empty = SourceUpdate { source: SourceName::File, pods: Vec::new(), unread: Unread::default() };
    let around = Surroundings { offer: &bench.offer, actuated: &bench.actuated, can_ask: false };
    let effects = bench.dispatch.on(Event::Update(empty), around);
    assert!(effects.iter().any(|e| matches!(e, Effect::Search(known) if known.contains("a"))), "{effects:?}");
    assert_eq!(bench.found(&["a", "x"]), ["begin x: Orphaned"], "a has an owner");
    assert_eq!(bench.found(&["x"]), [""; 0], "x has a task");
    assert_eq!(bench.on(Event::Ended(uid("x"))), ["over x", "forget x"]);
}

#[test]
fn nothing_is_ended_while_something_unreadable_may_be_it() {
    let mut bench = Bench::ready(Vec::new());
    let unread = Unread { uids: BTreeSet::from([uid("u")]), has_nameless: false };
    bench.on(Event::Update(SourceUpdate { source: SourceName::Api, pods: Vec::new(), unread }));
    assert_eq!(bench.found(&["u", "x"]), ["begin x: Orphaned"]);
    let unread = Unread { uids: BTreeSet::new(), has_nameless: true };
    bench.on(Event::Update(SourceUpdate { source: SourceName::Api, pods: Vec::new(), unread }));
    assert_eq!(bench.found(&["y"]), ["spare y"]);
}

#[test]
fn a_changed_manifest_waits_for_its_predecessor_and_a_pod_of_the_api_does_not() {
    type Row = (fn(Pod) -> Pod, &'static [&'static str], &'static [&'static str]);
    let rows: [Row; 2] = [
        (
            of_file,
            &["intend web-1: Removed", "park web-2"],
            &["over web-1", "forget web-1", "begin web-2: run"],
        ),
        (|p| p, &["intend web-1: Removed", "begin web-2: run"], &["over web-1", "forget web-1"]),
    ];
    for (kind, changed, ended) in rows {
        let mut bench = Bench::ready(vec![kind(pod("web-1"))]);
        assert_eq!(bench.list(vec![kind(pod("web-2"))]), changed);
        assert_eq!(bench.on(Event::Ended(uid("web-1"))), ended);
    }
}

/// The scheduler gives the place of a Pod away as soon as it is deleted, and with no grace that is before it has ended.
#[test]
fn a_pod_that_was_deleted_by_force_keeps_no_other_out() {
    let mut bench = Bench::new(&[SourceName::Api]);
    bench.offer.allocatable.pods = 1;
    assert_eq!(bench.list(vec![pod("old")]), ["begin old: run"]);
    assert_eq!(bench.list(vec![pod("new")]), ["intend old: Removed", "begin new: run"]);
    assert_eq!(bench.list(vec![pod("new"), pod("next")]), ["reject next: OutOfpods", "begin next: Rejected"]);
}

/// The scheduler counts a Pod no more once its phase says that it is over, which is before it is deleted: the Pod that it was
/// preempted for may come first.
#[test]
fn a_pod_that_is_over_and_not_deleted_yet_keeps_no_other_out() {
    let mut bench = Bench::new(&[SourceName::Api]);
    bench.offer.allocatable.pods = 1;
    let old = |phase: &str| {
        let mut old = pod("old");
        old.status.get_or_insert_default().phase = Some(phase.to_owned());
        old
    };
    assert_eq!(bench.list(vec![old("Running")]), ["begin old: run"]);
    let refused = bench.list(vec![old("Running"), pod("early")]);
    assert_eq!(refused, ["reject early: OutOfpods", "begin early: Rejected"]);
    let effects = bench.list(vec![old("Failed"), pod("early"), pod("new")]);
    assert!(effects.contains(&"begin new: run".to_owned()), "{effects:?}");
}

#[test]
fn a_manifest_also_waits_for_what_an_earlier_life_left() {
    let mut bench = Bench::new(&[SourceName::Api]);
    let name = full_name(&pod("web-1"));
    bench.on(Event::Stock(vec![Running { uid: uid("web-1"), name, alive: true }]));
    assert_eq!(bench.list(vec![of_file(pod("web-2"))]), ["park web-2"]);
    // Somebody else took it away.
    let gone = Found { strangers: Vec::new(), runtime: Some(BTreeSet::new()), complete: true };
    assert_eq!(bench.on(Event::Found(gone)), ["begin web-2: run"]);
}

#[test]
fn who_runs_keeps_his_place_and_else_the_older_comes_first() {
    let mut bench = Bench::new(&[SourceName::Api]);
    let name = full_name(&pod("c"));
    bench.on(Event::Stock(vec![Running { uid: uid("c"), name, alive: true }]));
    let listed =
        vec![created(asking("a", "3"), 20), created(asking("b", "3"), 10), created(asking("c", "3"), 30)];
    bench.offer.allocatable.milli_cpu = 6000;
    assert_eq!(
        bench.list(listed),
        ["begin c: run", "begin b: run", "reject a: OutOfcpu", "begin a: Rejected"]
    );
}

#[test]
fn a_critical_pod_begins_after_those_who_make_way() {
    let mut bench = Bench::ready(vec![asking("small", "3")]);
    bench.offer.allocatable.milli_cpu = 4000;
    let effects = bench.list(vec![asking("small", "3"), critical(asking("vital", "3"))]);
    let want = ["preempt small for cpu", "intend small: Node", "begin vital: run after small"];
    assert_eq!(effects, want);
}

#[test]
fn labels_are_asked_for_once_and_then_decide() {
    let choosy = || {
        let spec = testing::pod("{containers: [{name: a}], nodeSelector: {disk: ssd}}").spec;
        Pod { spec, ..pod("choosy") }
    };
    for (label, want) in [
        (true, &["begin choosy: run"][..]),
        (false, &["reject choosy: NodeAffinity", "begin choosy: Rejected"]),
    ] {
        let mut bench = Bench::ready(Vec::new());
        bench.can_ask = true;
        assert_eq!(bench.list(vec![choosy()]), ["ask choosy"]);
        if label {
            bench.offer.labels.insert("disk".into(), "ssd".into());
        }
        assert_eq!(bench.on(Event::Asked(uid("choosy"))), want);
    }
    let mut alone = Bench::ready(Vec::new());
    assert_eq!(alone.list(vec![choosy()]), ["reject choosy: NodeAffinity", "begin choosy: Rejected"]);
}

#[test]
fn a_task_that_died_begins_again_and_an_unknown_one_does_not() {
    let mut bench = Bench::ready(vec![pod("a")]);
    assert_eq!(bench.on(Event::Died(uid("a"))), ["respawn a"]);
    assert_eq!(bench.on(Event::Died(uid("b"))), [""; 0]);
}

#[test]
fn the_same_uid_wanted_again_gets_another_life() {
    let mut bench = Bench::ready(vec![pod("a")]);
    assert_eq!(bench.list(Vec::new()), ["intend a: Removed"]);
    assert_eq!(bench.list(vec![pod("a")]), [""; 0], "this life ends first");
    assert_eq!(bench.on(Event::Ended(uid("a"))), ["over a", "restart a", "forget a", "begin a: run"]);
}

#[test]
fn what_has_ended_is_cleaned_up_when_its_source_drops_it() {
    let mut bench = Bench::ready(vec![pod("a")]);
    assert_eq!(bench.on(Event::Ended(uid("a"))), ["over a"]);
    assert_eq!(bench.list(Vec::new()), ["begin a: Removed"]);
}

#[test]
fn only_one_search_at_a_time() {
    let mut bench = Bench::ready(Vec::new());
    let around = Surroundings { offer: &bench.offer, actuated: &bench.actuated, can_ask: false };
    assert_eq!(bench.dispatch.on(Event::SearchDue, around).len(), 1);
    assert!(bench.dispatch.on(Event::SearchDue, around).is_empty());
    bench.on(Event::Found(Found::default()));
    let around = Surroundings { offer: &bench.offer, actuated: &bench.actuated, can_ask: false };
    assert_eq!(bench.dispatch.on(Event::SearchDue, around).len(), 1, "also after one that found nothing");
}

#[test]
fn an_order_of_the_node_ends_who_runs() {
    let mut bench = Bench::ready(vec![pod("a")]);
    let order = |uid: &str| EndOrder {
        uid: uid.into(),
        reason: "Terminated",
        message: "m".into(),
        disrupts: true,
        grace: 3,
    };
    assert_eq!(bench.on(Event::Order(order("a"))), ["intend a: Node"]);
    assert_eq!(bench.on(Event::Order(order("b"))), [""; 0]);
}

/// The node has 3500 thousandths of a CPU.
const FULL: &str = "Node didn't have enough resource: cpu, requested: 3000, used: 1000, capacity: 3500";

#[test]
fn a_resize_is_granted_where_there_is_room_and_else_waits() {
    let mut bench = Bench::ready(vec![asking("a", "1"), asking("b", "1")]);
    let first = bench.list(vec![asking("a", "2"), asking("b", "1")]);
    assert_eq!(first, ["intend a: run with 1000", "intend a: run with 2000"]);
    bench.list(vec![asking("a", "1"), asking("b", "1")]);
    let second = bench.list(vec![asking("a", "3"), asking("b", "1")]);
    let deferred = format!("deferred a: {FULL}");
    assert_eq!(second, ["intend a: run with 1000", &deferred, "intend a: run with 1000"]);
    // Told once, as long as nothing is new.
    assert_eq!(bench.on(Event::RetryDue), [""; 0]);
    // The same wish in a later version of the Pod is told again.
    let mut newer = asking("a", "3");
    newer.metadata.generation = Some(7);
    newer.spec.as_mut().unwrap().priority = Some(1);
    assert_eq!(
        bench.list(vec![newer, asking("b", "1")]),
        ["intend a: run with 1000", &deferred, "intend a: run with 1000"]
    );
    // What is taken back waits no longer.
    assert_eq!(bench.list(vec![asking("a", "1"), asking("b", "1")]), ["intend a: run with 1000"]);
    assert!(bench.dispatch.pending_resizes().is_empty());
}

#[test]
fn a_resize_that_waits_is_granted_when_room_appears() {
    let waiting = || {
        let mut bench = Bench::ready(vec![asking("a", "1"), asking("b", "1")]);
        bench.list(vec![asking("a", "3"), asking("b", "1")]);
        assert_eq!(bench.dispatch.pending_resizes(), BTreeMap::from([("Deferred", 1)]));
        bench
    };
    let mut removed = waiting();
    let told = removed.list(vec![asking("a", "3")]);
    assert_eq!(told, ["intend b: Removed", "accepted after pods_removed", "intend a: run with 3000"]);
    let mut shrunk = waiting();
    // What shrinks holds its place until it has shrunk.
    shrunk.actuated = Entries::from([(uid("b"), PodResources::of(&asking("b", "1")))]);
    let told = shrunk.list(vec![asking("a", "3"), asking("b", "250m")]);
    assert_eq!(told[..2], ["intend b: run with 1000", "intend b: run with 250"]);
    shrunk.actuated = Entries::from([(uid("b"), PodResources::of(&asking("b", "250m")))]);
    assert_eq!(shrunk.on(Event::Actuated), ["accepted after pod_resized", "intend a: run with 3000"]);
    let mut ended = waiting();
    ended.list(vec![asking("a", "3"), asking("b", "1")]);
    let told = ended.on(Event::Ended(uid("b")));
    assert_eq!(told, ["over b", "accepted after pod_terminated", "intend a: run with 3000"]);
}

#[test]
fn the_more_important_resize_is_granted_first() {
    let of = |uid: &str, cpu: &str, priority: i32| {
        let mut pod = asking(uid, cpu);
        pod.spec.as_mut().unwrap().priority = Some(priority);
        pod
    };
    let mut bench = Bench::ready(vec![of("a", "1", 0), of("b", "1", 9), of("c", "1", 0)]);
    bench.list(vec![of("a", "2", 0), of("b", "1", 9), of("c", "1", 0)]);
    bench.list(vec![of("a", "2", 0), of("b", "2", 9), of("c", "1", 0)]);
    let told = bench.list(vec![of("a", "2", 0), of("b", "2", 9)]);
    let granted: Vec<&String> = told.iter().filter(|line| line.ends_with("2000")).collect();
    assert_eq!(granted, ["intend b: run with 2000"], "{told:?}");
}

#[test]
fn what_can_never_be_is_not_tried_again() {
    let guaranteed = |uid: &str, cpu: &str| {
        let list = format!("{{cpu: {cpu}, memory: 1Gi}}");
        let text = format!("containers: [{{name: a, resources: {{requests: {list}, limits: {list}}}}}]");
        Pod { spec: testing::pod(&text).spec, ..pod(uid) }
    };
    let mut bench = Bench::ready(vec![guaranteed("a", "1")]);
    bench.offer.static_cpus = true;
    let told = bench.list(vec![guaranteed("a", "2")]);
    assert_eq!(told[0], "intend a: run with 1000");
    assert_eq!(told[1], "never: guaranteed_pod_cpu_manager_static_policy");
    assert!(told[2].starts_with("infeasible a: Resize is infeasible for Guaranteed Pods"), "{told:?}");
    bench.offer.static_cpus = false;
    assert_eq!(bench.on(Event::RetryDue), [""; 0]);
    let told = bench.list(vec![guaranteed("a", "3")]);
    assert_eq!(told, ["intend a: run with 1000", "intend a: run with 3000"]);
}

#[test]
fn the_next_life_goes_by_what_the_last_one_granted() {
    let mut bench = Bench::new(&[SourceName::Api, SourceName::File]);
    let granted = [("a", "1"), ("b", "2")].map(|(u, cpu)| (uid(u), PodResources::of(&asking(u, cpu))));
    bench.dispatch = std::mem::take(&mut bench.dispatch).with_granted(granted.into());
    let told = bench.list(vec![asking("a", "2"), asking("b", "2")]);
    assert_eq!(told, ["begin a: run", "begin b: run"], "not before every source has reported");
    let (_, task) = bench.dispatch.tasks().find(|(u, _)| **u == uid("a")).unwrap();
    assert_eq!(*task.intent.allocated, PodResources::of(&asking("a", "1")));
    let file = SourceUpdate {
        source: SourceName::File,
        pods: vec![Arc::new(asking("f", "1"))],
        unread: Unread::default(),
    };
    let told = bench.on(Event::Update(file));
    assert_eq!(told[0], "reject f: OutOfcpu", "what was granted counts: {told:?}");
    assert!(
        told.iter().any(|t| t.starts_with("deferred a: Node didn't have enough resource: cpu")),
        "{told:?}"
    );
}

#[test]
fn a_pod_that_ends_is_not_resized() {
    let mut bench = Bench::ready(vec![asking("a", "1")]);
    let mut leaving = asking("a", "2");
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
    assert_eq!(bench.list(vec![leaving]), ["intend a: Deleted"]);
    let mut full = Bench::ready(vec![asking("a", "1"), asking("b", "1")]);
    full.list(vec![asking("a", "3"), asking("b", "1")]);
    let mut leaving = asking("a", "3");
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Default::default()));
    full.list(vec![leaving, asking("b", "1")]);
    assert_eq!(full.on(Event::Ended(uid("b"))), ["over b"]);
}

#[test]
fn a_critical_pod_that_grows_has_others_make_way() {
    let mut bench = Bench::ready(vec![critical(asking("a", "1")), asking("b", "2")]);
    let told = bench.list(vec![critical(asking("a", "3")), asking("b", "2")]);
    let want = ["intend a: run with 1000", "preempt b for cpu", "intend b: Node", "intend a: run with 3000"];
    assert_eq!(told, want);
}
