//! InterPodAffinity: near these Pods, away from those; and what Pods that are there already say of the new one.

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::Name;
use crate::classes::Answers;
use crate::cluster::Cluster;
use crate::event::{Action, Event, Resource, What};
use crate::framework::{MAX_SCORE, Plugin, PreFilter, PreScore, State, Verdict};
use crate::labels::Labels;
use crate::node::NodeInfo;
use crate::pod::{Affinity, Class, Pod, Term};
use crate::status::Rejection;
use crate::topology::Column;

const AFFINITY: &str = "node(s) didn't match pod affinity rules";
const ANTI_AFFINITY: &str = "node(s) didn't match pod anti-affinity rules";
const EXISTING: &str = "node(s) didn't satisfy existing pods anti-affinity rules";

#[derive(Debug)]
struct InterPodAffinity {
    hard_weight: i64,
    ignores_existing_preferences: bool,
}

/// Counts by domain, for each topology key once.
#[derive(Clone, Default)]
struct Counts(Vec<(Name, Arc<Column>, Vec<i64>)>);

#[derive(Clone, Default)]
struct Found {
    /// Pods that want nobody like this one near.
    existing: Counts,
    affinity: Counts,
    anti: Counts,
    /// It matches its own terms: the first of its kind may go anywhere.
    matches_itself: bool,
    namespace: Labels,
}

/// How much a class adds, by place in [`Counts`].
type Effect = Vec<(usize, i64)>;

pub fn make(args: &PluginArgs) -> Arc<dyn Plugin> {
    let args = &args.inter_pod_affinity;
    Arc::new(InterPodAffinity {
        hard_weight: i64::from(args.hard_pod_affinity_weight),
        ignores_existing_preferences: args.ignore_preferred_terms_of_existing_pods,
    })
}

impl Counts {
    fn place(&mut self, cluster: &Cluster, key: &Name) -> usize {
        match self.0.iter().position(|(known, ..)| known == key) {
            Some(at) => at,
            None => {
                let column = cluster.column(key);
                let counts = vec![0; column.domains()];
                self.0.push((key.clone(), column, counts));
                self.0.len() - 1
            }
        }
    }

    fn add(&mut self, at: usize, node: usize, by: i64) {
        if let Some((_, column, counts)) = self.0.get_mut(at)
            && let Some(domain) = column.domain(node)
        {
            counts[domain] += by;
        }
    }

    fn at(&self, key: &Name, node: usize) -> Option<i64> {
        let (_, column, counts) = self.0.iter().find(|(known, ..)| known == key)?;
        column.domain(node).map(|domain| counts[domain])
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|(_, _, counts)| counts.iter().all(|c| *c == 0))
    }
}

/// Whether a Pod is meant by all terms; by none if there are none.
fn meant_by_all(terms: &[Term], class: &Class, cluster: &Cluster) -> bool {
    let namespace = cluster.namespace_labels(&class.namespace);
    !terms.is_empty() && terms.iter().all(|t| t.matches(class, &namespace))
}

impl InterPodAffinity {
    fn look_around(&self, cluster: &Cluster, pod: &Pod) -> Found {
        let mut found = Found { namespace: cluster.namespace_labels(&pod.key.namespace), ..Found::default() };
        let own = &pod.class.affinity;
        found.matches_itself = meant_by_all(&own.required, &pod.class, cluster);
        for term in &own.required {
            found.affinity.place(cluster, &term.topology_key);
        }
        for term in &own.required_anti {
            found.anti.place(cluster, &term.topology_key);
        }
        let looks_at_all = !own.required.is_empty() || !own.required_anti.is_empty();
        let mut answers: Answers<[Effect; 3]> = Answers::new(&cluster.classes);
        let (all, some) = (cluster.infos().iter(), cluster.infos_with_required_anti_affinity());
        let infos: Vec<&NodeInfo> = if looks_at_all { all.collect() } else { some.collect() };
        for info in infos.into_iter().filter(|info| info.node.is_some()) {
            for count in &info.classes {
                let Found { existing, affinity, anti, namespace, .. } = &mut found;
                let ask = |class: &Class| {
                    [
                        existing_effect(existing, cluster, &class.affinity, pod, namespace),
                        affinity_effect(affinity, cluster, own, class),
                        anti_effect(anti, cluster, own, class),
                    ]
                };
                let Some([e, w, a]) = answers.of(&cluster.classes, count.class, ask) else { continue };
                e.iter().for_each(|(at, n)| existing.add(*at, info.index, n * count.all));
                w.iter().for_each(|(at, n)| affinity.add(*at, info.index, n * count.all));
                a.iter().for_each(|(at, n)| anti.add(*at, info.index, n * count.all));
            }
        }
        found
    }

    /// What one Pod of a class adds to the scores around it.
    fn score_effect(
        &self,
        counts: &mut Counts,
        cluster: &Cluster,
        pod: &Pod,
        own_namespace: &Labels,
        class: &Class,
        looks_at_all: bool,
    ) -> Effect {
        let mut effect = Effect::new();
        let mut add =
            |term: &Term, weight: i64| effect.push((counts.place(cluster, &term.topology_key), weight));
        if looks_at_all {
            let namespace = cluster.namespace_labels(&class.namespace);
            let own = &pod.class.affinity;
            for (terms, sign) in [(&own.preferred, 1), (&own.preferred_anti, -1)] {
                for (weight, term) in terms.iter().filter(|(_, t)| t.matches(class, &namespace)) {
                    add(term, sign * i64::from(*weight));
                }
            }
        }
        let theirs = &class.affinity;
        if self.hard_weight > 0 {
            for term in theirs.required.iter().filter(|t| t.matches(&pod.class, own_namespace)) {
                add(term, self.hard_weight);
            }
        }
        for (terms, sign) in [(&theirs.preferred, 1), (&theirs.preferred_anti, -1)] {
            for (weight, term) in terms.iter().filter(|(_, t)| t.matches(&pod.class, own_namespace)) {
                add(term, sign * i64::from(*weight));
            }
        }
        effect
    }
}

fn existing_effect(
    counts: &mut Counts,
    cluster: &Cluster,
    theirs: &Affinity,
    pod: &Pod,
    ns: &Labels,
) -> Effect {
    let meant = theirs.required_anti.iter().filter(|t| t.matches(&pod.class, ns));
    meant.map(|t| (counts.place(cluster, &t.topology_key), 1)).collect()
}

fn affinity_effect(counts: &mut Counts, cluster: &Cluster, own: &Affinity, class: &Class) -> Effect {
    match meant_by_all(&own.required, class, cluster) {
        true => own.required.iter().map(|t| (counts.place(cluster, &t.topology_key), 1)).collect(),
        false => Effect::new(),
    }
}

fn anti_effect(counts: &mut Counts, cluster: &Cluster, own: &Affinity, class: &Class) -> Effect {
    if own.required_anti.is_empty() {
        return Effect::new();
    }
    let namespace = cluster.namespace_labels(&class.namespace);
    let meant = own.required_anti.iter().filter(|t| t.matches(class, &namespace));
    meant.map(|t| (counts.place(cluster, &t.topology_key), 1)).collect()
}

impl Plugin for InterPodAffinity {
    fn pre_filter(&self, cluster: &Cluster, pod: &Pod) -> PreFilter {
        let found = self.look_around(cluster, pod);
        let own = &pod.class.affinity;
        if found.existing.is_zero() && own.required.is_empty() && own.required_anti.is_empty() {
            return PreFilter::Skip;
        }
        PreFilter::Pass(State::new(found))
    }

    fn filter(&self, _: &Cluster, pod: &Pod, state: &State, info: &NodeInfo) -> Verdict {
        let Some(found) = state.get::<Found>() else { return Ok(()) };
        let own = &pod.class.affinity;
        let mut is_near = true;
        for term in &own.required {
            match found.affinity.at(&term.topology_key, info.index) {
                None => return Err(Rejection::unresolvable(AFFINITY)),
                Some(count) => is_near &= count > 0,
            }
        }
        let is_first = found.matches_itself && found.affinity.is_zero();
        if !is_near && !is_first {
            return Err(Rejection::unresolvable(AFFINITY));
        }
        let anti = own.required_anti.iter();
        if anti.filter_map(|t| found.anti.at(&t.topology_key, info.index)).any(|count| count > 0) {
            return Err(Rejection::unschedulable(ANTI_AFFINITY));
        }
        let repels = |(_, column, counts): &(Name, Arc<Column>, Vec<i64>)| {
            column.domain(info.index).is_some_and(|domain| counts[domain] > 0)
        };
        match found.existing.0.iter().any(repels) {
            true => Err(Rejection::unschedulable(EXISTING)),
            false => Ok(()),
        }
    }

    fn update(&self, cluster: &Cluster, pod: &Pod, state: &mut State, other: &Pod, info: &NodeInfo, by: i64) {
        let Some(found) = state.get_mut::<Found>() else { return };
        let own = &pod.class.affinity;
        let Found { existing, affinity, anti, namespace, .. } = found;
        for (at, n) in existing_effect(existing, cluster, &other.class.affinity, pod, namespace) {
            existing.add(at, info.index, n * by);
        }
        for (at, n) in affinity_effect(affinity, cluster, own, &other.class) {
            affinity.add(at, info.index, n * by);
        }
        for (at, n) in anti_effect(anti, cluster, own, &other.class) {
            anti.add(at, info.index, n * by);
        }
    }

    fn pre_score(&self, cluster: &Cluster, pod: &Pod, _: &State, _: &[&NodeInfo]) -> PreScore {
        let own = &pod.class.affinity;
        let looks_at_all = !own.preferred.is_empty() || !own.preferred_anti.is_empty();
        if self.ignores_existing_preferences && !looks_at_all {
            return PreScore::Skip;
        }
        let namespace = cluster.namespace_labels(&pod.key.namespace);
        let mut counts = Counts::default();
        let mut answers: Answers<Effect> = Answers::new(&cluster.classes);
        let (all, some) = (cluster.infos().iter(), cluster.infos_with_affinity());
        let infos: Vec<&NodeInfo> = if looks_at_all { all.collect() } else { some.collect() };
        for info in infos {
            if info.node.as_ref().is_none_or(|node| node.labels.is_empty()) {
                continue;
            }
            for count in &info.classes {
                let ask = |class: &Class| {
                    self.score_effect(&mut counts, cluster, pod, &namespace, class, looks_at_all)
                };
                let Some(effect) = answers.of(&cluster.classes, count.class, ask) else { continue };
                for (at, weight) in effect {
                    counts.add(*at, info.index, weight * count.all);
                }
            }
        }
        if counts.0.is_empty() { PreScore::Skip } else { PreScore::Pass(State::new(counts)) }
    }

    fn score(&self, _: &Cluster, _: &Pod, state: &State, nodes: &[&NodeInfo], scores: &mut [i64]) {
        let Some(counts) = state.get::<Counts>() else { return };
        for (info, score) in nodes.iter().zip(scores) {
            let here =
                counts.0.iter().filter_map(|(_, column, counts)| Some(counts[column.domain(info.index)?]));
            *score = here.sum();
        }
    }

    fn normalise(&self, _: &State, scores: &mut [i64]) {
        let (least, most) =
            (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
        for score in scores {
            *score = match most - least {
                0 => 0,
                span => (MAX_SCORE as f64 * ((*score - least) as f64 / span as f64)) as i64,
            };
        }
    }

    fn interests(&self) -> &'static [(Resource, Action)] {
        const {
            &[
                (Resource::Pod, Action::ADD.or(Action::POD_LABEL).or(Action::DELETE)),
                (Resource::Node, Action::ADD.or(Action::NODE_LABEL)),
            ]
        }
    }

    fn wakes(&self, cluster: &Cluster, pod: &Pod, event: &Event) -> bool {
        let own = &pod.class.affinity;
        let wants = |other: &Arc<Pod>| meant_by_all(&own.required, &other.class, cluster);
        let shuns = |other: &Arc<Pod>| meant_by_all(&own.required_anti, &other.class, cluster);
        let is_placed = |p: &Arc<Pod>| p.is_bound() || !p.nominated.is_empty();
        match &event.what {
            What::Pod(Some(_), Some(new)) if new.uid == pod.uid => true,
            What::Pod(old, new) if !old.iter().chain(new).all(is_placed) => false,
            What::Pod(Some(old), Some(new)) => (!wants(old) && wants(new)) || (shuns(old) && !shuns(new)),
            What::Pod(None, Some(new)) => wants(new),
            What::Pod(Some(old), None) => {
                shuns(old) || meant_by_all(&old.class.affinity.required_anti, &pod.class, cluster)
            }
            What::Node(old, Some(new)) => {
                let keys = |terms: &[Term]| terms.iter().map(|t| t.topology_key.clone()).collect::<Vec<_>>();
                let Some(old) = old else {
                    return !own.required_anti.is_empty()
                        || keys(&own.required).iter().any(|k| new.labels.has(k));
                };
                let moved = |k: &Name| {
                    old.labels.get(k).is_some()
                        && new.labels.get(k).is_some()
                        && old.labels.get(k) != new.labels.get(k)
                };
                keys(&own.required).iter().any(|k| moved(k) || (!old.labels.has(k) && new.labels.has(k)))
                    || keys(&own.required_anti)
                        .iter()
                        .any(|k| moved(k) || (old.labels.has(k) && !new.labels.has(k)))
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn zoned() -> Cluster {
        let node = |name: &str, zone: &str| testing::node(name, json!({"zone": zone, "host": name}));
        testing::cluster([node("a", "x"), node("b", "x"), node("c", "y"), testing::node("d", json!({}))])
    }

    fn term(key: &str, app: &str) -> Value {
        json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}})
    }

    fn pod(name: &str, app: &str, near: Value, away: Value) -> Pod {
        let required = |terms: Value| json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
        let affinity = json!({"podAffinity": required(near), "podAntiAffinity": required(away)});
        testing::labelled(name, json!({"app": app}), json!({"affinity": affinity}))
    }

    #[test]
    fn near_means_the_same_domain_and_the_first_of_its_kind_goes_anywhere_with_the_label() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let other = pod("p", "web", json!([term("zone", "db")]), json!([]));
        assert_eq!(testing::filter(&plugin, &cluster, &other, "a"), Err(Rejection::unresolvable(AFFINITY)));
        let first = pod("p", "web", json!([term("zone", "web")]), json!([]));
        assert_eq!(testing::passing(&plugin, &mut cluster, &first), ["a", "b", "c"]);
        testing::put(&mut cluster, &pod("db", "db", json!([]), json!([])), "a");
        testing::put(&mut cluster, &pod("web", "web", json!([]), json!([])), "c");
        assert_eq!(testing::passing(&plugin, &mut cluster, &other), ["a", "b"]);
        assert_eq!(testing::passing(&plugin, &mut cluster, &first), ["c"]);
        let both = pod("p", "web", json!([term("zone", "web"), term("zone", "db")]), json!([]));
        assert!(testing::passing(&plugin, &mut cluster, &both).is_empty(), "no Pod is meant by both");
    }

    #[test]
    fn away_holds_both_ways() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let shy = pod("shy", "web", json!([]), json!([term("zone", "db")]));
        testing::put(&mut cluster, &pod("db", "db", json!([]), json!([])), "a");
        assert_eq!(testing::passing(&plugin, &mut cluster, &shy), ["c", "d"]);
        assert_eq!(
            testing::filter(&plugin, &cluster, &shy, "b"),
            Err(Rejection::unschedulable(ANTI_AFFINITY))
        );
        testing::put(&mut cluster, &shy, "c");
        let db = pod("db2", "db", json!([]), json!([]));
        assert_eq!(testing::passing(&plugin, &mut cluster, &db), ["a", "b", "d"]);
        assert_eq!(testing::filter(&plugin, &cluster, &db, "c"), Err(Rejection::unschedulable(EXISTING)));
        assert_eq!(testing::passing(&plugin, &mut cluster, &pod("x", "x", json!([]), json!([]))).len(), 4);
    }

    #[test]
    fn namespaces_are_listed_selected_or_the_own_one() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let labels = |team: &str| Labels::from(&[("team".to_owned(), team.to_owned())].into());
        cluster.namespaces.insert("far".into(), labels("a"));
        let far = json!({"namespace": "far", "labels": {"app": "db"}});
        testing::put(&mut cluster, &testing::pod_with("db", far, json!({}), json!({})), "a");
        for (extra, passes) in [
            (json!({}), true),
            (json!({"namespaces": ["far"]}), false),
            (json!({"namespaceSelector": {}}), false),
            (json!({"namespaceSelector": {"matchLabels": {"team": "a"}}}), false),
            (json!({"namespaceSelector": {"matchLabels": {"team": "b"}}}), true),
        ] {
            let mut away = term("host", "db");
            for (key, value) in extra.as_object().into_iter().flatten() {
                away[key] = value.clone();
            }
            let shy = pod("p", "web", json!([]), json!([away]));
            assert_eq!(testing::filter(&plugin, &cluster, &shy, "a").is_ok(), passes, "{extra}");
        }
    }

    #[test]
    fn a_trial_without_a_pod_forgets_it() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        let db = pod("db", "db", json!([]), json!([]));
        testing::put(&mut cluster, &db, "a");
        let shy = pod("shy", "web", json!([]), json!([term("host", "db")]));
        let PreFilter::Pass(mut state) = plugin.pre_filter(&cluster, &shy) else { panic!("skipped") };
        let info = testing::info(&cluster, "a");
        assert!(plugin.filter(&cluster, &shy, &state, info).is_err());
        plugin.update(&cluster, &shy, &mut state, &db, info, -1);
        assert!(plugin.filter(&cluster, &shy, &state, info).is_ok());
    }

    #[test]
    fn preferences_of_both_sides_score() {
        let plugin = make(&PluginArgs::default());
        let mut cluster = zoned();
        testing::put(&mut cluster, &pod("db", "db", json!([]), json!([])), "a");
        // A Pod that must be near web draws web to itself.
        testing::put(&mut cluster, &pod("needs", "cache", json!([term("host", "web")]), json!([])), "c");
        let preferred = json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution":
            [{"weight": 4, "podAffinityTerm": term("zone", "db")}]}});
        let web = testing::labelled("p", json!({"app": "web"}), json!({"affinity": preferred}));
        assert_eq!(testing::scores(&plugin, &mut cluster, &web), Some(vec![100, 100, 25, 0]));
        let plain = testing::labelled("p", json!({"app": "none"}), json!({}));
        assert_eq!(testing::scores(&plugin, &mut cluster, &plain), None);
    }
}
