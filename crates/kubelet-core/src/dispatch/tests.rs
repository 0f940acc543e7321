#![allow(clippy::unwrap_used)]

use super::*;
use crate::cri_config::testing;

/// A dispatcher and the node around it.
struct Bench {
    dispatch: Dispatch,
    offer: NodeOffer,
    can_ask: bool,
}

impl Bench {
    fn new(sources: &[SourceName]) -> Self {
        let allocatable = testing::node().allocatable;
        let labels = BTreeMap::from([("kubernetes.io/os".to_owned(), "linux".to_owned())]);
        let offer = NodeOffer { name: "n1".into(), labels, allocatable, ..NodeOffer::default() };
        Self { dispatch: Dispatch::new(sources.iter().copied()), offer, can_ask: false }
    }

    /// One source that has reported, and a search that found nothing.
    fn ready(pods: Vec<Pod>) -> Self {
        let mut bench = Self::new(&[SourceName::Api]);
        bench.list(pods);
        bench.on(Event::Found(Found { complete: true, ..Found::default() }));
        bench
    }

    fn on(&mut self, event: Event) -> Vec<String> {
        let around = Surroundings { offer: &self.offer, can_ask: self.can_ask };
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
        Effect::Note(Note::Orphaned(_) | Note::Considered(_)) | Effect::Search(_) | Effect::Publish(_) => {
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
    let around = Surroundings { offer: &bench.offer, can_ask: false };
    assert!(bench.dispatch.on(Event::SearchDue, around).is_empty(), "both are silent");
    assert_eq!(bench.list(vec![pod("a")]), ["begin a: run"]);
    let empty = SourceUpdate { source: SourceName::File, pods: Vec::new(), unread: Unread::default() };
    let around = Surroundings { offer: &bench.offer, can_ask: false };
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
    let around = Surroundings { offer: &bench.offer, can_ask: false };
    assert_eq!(bench.dispatch.on(Event::SearchDue, around).len(), 1);
    assert!(bench.dispatch.on(Event::SearchDue, around).is_empty());
    bench.on(Event::Found(Found::default()));
    let around = Surroundings { offer: &bench.offer, can_ask: false };
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
