//! Extenders: what they are asked, and what their answers mean. Who sends is somebody else.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use api::config::scheduler::Extender;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::Name;
use crate::cluster::Cluster;
use crate::framework::MAX_SCORE;
use crate::plugins::PluginId;
use crate::pod::Pod;
use crate::preemption::Candidate;
use crate::status::{Code, Diagnosis, NodeStatus, Rejection};

/// The best that an extender gives.
const MAX_EXTENDER_SCORE: i64 = 10;

/// Objects as the API server has them, for extenders that do not know them.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// By UID.
    pub pods: HashMap<Name, Arc<RawValue>>,
    pub nodes: HashMap<Name, Arc<RawValue>>,
}

/// A question about nodes. Field names are upstream's.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Args<'a> {
    pod: Option<&'a RawValue>,
    nodes: Option<NodeList<'a>>,
    node_names: Option<Vec<&'a str>>,
}

#[derive(Debug, Serialize)]
struct NodeList<'a> {
    metadata: BTreeMap<&'static str, &'static str>,
    items: Vec<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct FilterResult {
    nodes: Option<NodesAnswer>,
    node_names: Option<Vec<String>>,
    failed_nodes: Option<BTreeMap<String, String>>,
    failed_and_unresolvable_nodes: Option<BTreeMap<String, String>>,
    error: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodesAnswer {
    items: Option<Vec<NodeAnswer>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeAnswer {
    metadata: NodeMeta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeMeta {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HostPriority {
    host: String,
    #[serde(default)]
    score: i64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct PreemptionArgs<'a> {
    pod: Option<&'a RawValue>,
    node_name_to_victims: Option<BTreeMap<&'a str, Victims<'a>>>,
    node_name_to_meta_victims: Option<BTreeMap<&'a str, MetaVictims>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Victims<'a> {
    pods: Vec<&'a RawValue>,
    #[serde(rename = "NumPDBViolations")]
    violations: usize,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct MetaVictims {
    pods: Option<Vec<MetaPod>>,
    #[serde(rename = "NumPDBViolations")]
    violations: i64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct MetaPod {
    #[serde(rename = "UID")]
    uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct PreemptionResult {
    node_name_to_meta_victims: Option<BTreeMap<String, Option<MetaVictims>>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
struct BindingArgs<'a> {
    pod_name: &'a str,
    pod_namespace: &'a str,
    #[serde(rename = "PodUID")]
    pod_uid: &'a str,
    node: &'a str,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct BindingResult {
    error: String,
}

/// In the order in which they are asked: those that may fail come last.
#[must_use]
pub fn in_order(configured: &[Extender]) -> Vec<Extender> {
    let mut all = configured.to_vec();
    all.sort_by_key(|extender| extender.ignorable);
    all
}

/// Whether the Pod is its business.
#[must_use]
pub fn is_interested(extender: &Extender, pod: &Pod) -> bool {
    let asked = |name: &str| pod.requests.scalars().iter().any(|(known, _)| **known == *name);
    extender.managed_resources.is_empty() || extender.managed_resources.iter().any(|r| asked(&r.name))
}

/// The body of a question about nodes: may the Pod go there, and how good are they?
pub fn ask_about_nodes(
    extender: &Extender,
    objects: &Objects,
    cluster: &Cluster,
    pod: &Pod,
    nodes: &[usize],
) -> Result<String, String> {
    let names = nodes.iter().map(|node| cluster.info(*node).name());
    let args = match extender.node_cache_capable {
        true => Args { pod: object(objects, pod), nodes: None, node_names: Some(names.collect()) },
        false => {
            let items = names.filter_map(|name| objects.nodes.get(name).map(|raw| &**raw)).collect();
            let nodes = Some(NodeList { metadata: BTreeMap::new(), items });
            Args { pod: object(objects, pod), nodes, node_names: None }
        }
    };
    serde_json::to_string(&args).map_err(|e| e.to_string())
}

fn object<'a>(objects: &'a Objects, pod: &Pod) -> Option<&'a RawValue> {
    objects.pods.get(&pod.uid).map(|raw| &**raw)
}

/// Keeps the nodes that the extender leaves, and writes down what it says of the others.
pub fn read_filter(
    extender: &Extender,
    cluster: &Cluster,
    feasible: &[usize],
    answer: &[u8],
    diagnosis: &mut Diagnosis,
) -> Result<Vec<usize>, String> {
    let result: FilterResult = serde_json::from_slice(answer).map_err(|e| e.to_string())?;
    if !result.error.is_empty() {
        return Err(result.error);
    }
    let asked: HashMap<&str, usize> =
        feasible.iter().map(|node| (cluster.info(*node).name(), *node)).collect();
    let names: Vec<String> = match (result.node_names, result.nodes) {
        (Some(names), _) if extender.node_cache_capable => names,
        (_, Some(nodes)) => nodes.items.into_iter().flatten().map(|n| n.metadata.name).collect(),
        _ => Vec::new(),
    };
    let mut left = Vec::with_capacity(names.len());
    for name in names {
        let node = asked.get(name.as_str()).ok_or_else(|| {
            let url = &extender.url_prefix;
            format!(
                "extender {url:?} claims a filtered node {name:?} which is not found in the input node list"
            )
        })?;
        left.push(*node);
    }
    let unresolvable = result.failed_and_unresolvable_nodes.unwrap_or_default();
    let failed = result.failed_nodes.unwrap_or_default();
    let other = failed.iter().filter(|(name, _)| !unresolvable.contains_key(*name));
    let told = unresolvable.iter().map(|told| (told, Code::UnschedulableAndUnresolvable));
    for ((name, why), code) in told.chain(other.map(|told| (told, Code::Unschedulable))) {
        let Some(node) = cluster.node_index(name) else { continue };
        let rejection = Rejection::said(code, why.clone());
        diagnosis.statuses.retain(|status| status.node != node);
        diagnosis.statuses.push(NodeStatus { node, plugin: PluginId::Extender, rejection });
    }
    if left.len() != feasible.len() {
        diagnosis.plugins.insert(PluginId::Extender);
    }
    Ok(left)
}

/// Adds what the extender thinks of the nodes.
pub fn read_priorities(
    extender: &Extender,
    cluster: &Cluster,
    answer: &[u8],
    extra: &mut HashMap<usize, i64>,
) -> Result<(), String> {
    let list: Option<Vec<HostPriority>> = serde_json::from_slice(answer).map_err(|e| e.to_string())?;
    for HostPriority { host, score } in list.into_iter().flatten() {
        if let Some(node) = cluster.node_index(&host) {
            let own = score.saturating_mul(extender.weight).saturating_mul(MAX_SCORE / MAX_EXTENDER_SCORE);
            let sum = extra.entry(node).or_default();
            *sum = sum.saturating_add(own);
        }
    }
    Ok(())
}

/// The body of the question which of the candidates for preemption may be used.
pub fn ask_about_victims(
    extender: &Extender,
    objects: &Objects,
    cluster: &Cluster,
    pod: &Pod,
    candidates: &[Candidate],
) -> Result<String, String> {
    let by_node = candidates.iter().map(|c| (cluster.info(c.node).name(), c));
    let mut args = PreemptionArgs {
        pod: object(objects, pod),
        node_name_to_victims: None,
        node_name_to_meta_victims: None,
    };
    if extender.node_cache_capable {
        let meta = |c: &Candidate| MetaVictims {
            pods: Some(c.victims.iter().map(|p| MetaPod { uid: p.uid.to_string() }).collect()),
            violations: c.violations as i64,
        };
        args.node_name_to_meta_victims = Some(by_node.map(|(name, c)| (name, meta(c))).collect());
    } else {
        let victims = |c: &Candidate| Victims {
            pods: c.victims.iter().filter_map(|p| object(objects, p)).collect(),
            violations: c.violations,
        };
        args.node_name_to_victims = Some(by_node.map(|(name, c)| (name, victims(c))).collect());
    }
    serde_json::to_string(&args).map_err(|e| e.to_string())
}

/// The candidates that are left, with the victims the extender wants.
pub fn read_victims(extender: &Extender, cluster: &Cluster, answer: &[u8]) -> Result<Vec<Candidate>, String> {
    let result: PreemptionResult = serde_json::from_slice(answer).map_err(|e| e.to_string())?;
    let mut candidates = Vec::new();
    let mut seen = HashSet::new();
    for (name, victims) in result.node_name_to_meta_victims.unwrap_or_default() {
        let node =
            cluster.node_index(&name).ok_or_else(|| format!("nodeinfo not found for node name {name:?}"))?;
        let MetaVictims { pods, violations } = victims.unwrap_or_default();
        let mut known = Vec::new();
        for MetaPod { uid } in pods.into_iter().flatten() {
            let pod = cluster.info(node).pods.iter().find(|p| *p.uid == *uid).ok_or_else(|| {
                let url = &extender.url_prefix;
                format!(
                    "extender: {url} claims to preempt pod (UID: {uid}) on node: {name}, but the pod is not found on that node"
                )
            })?;
            if seen.insert(pod.uid.clone()) {
                known.push(pod.clone());
            }
        }
        if known.is_empty() {
            if extender.ignorable {
                continue;
            }
            return Err(format!("expected at least one victim pod on node {name:?}"));
        }
        let violations = usize::try_from(violations).unwrap_or(0);
        candidates.push(Candidate { node, victims: known, violations });
    }
    Ok(candidates)
}

/// The body of the order to bind a Pod.
pub fn ask_to_bind(pod: &Pod, node: &str) -> Result<String, String> {
    let args =
        BindingArgs { pod_name: &pod.key.name, pod_namespace: &pod.key.namespace, pod_uid: &pod.uid, node };
    serde_json::to_string(&args).map_err(|e| e.to_string())
}

pub fn read_binding(answer: &[u8]) -> Result<(), String> {
    let BindingResult { error } = serde_json::from_slice(answer).map_err(|e| e.to_string())?;
    if error.is_empty() { Ok(()) } else { Err(error) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing;

    fn extender(cached: bool, ignorable: bool) -> Extender {
        Extender {
            url_prefix: "http://x".into(),
            node_cache_capable: cached,
            ignorable,
            weight: 3,
            ..Extender::default()
        }
    }

    fn filtered(cached: bool, answer: &Value) -> (Result<Vec<usize>, String>, Diagnosis) {
        let mut cluster = testing::cluster(["a", "b", "c"].map(|n| testing::node(n, json!({}))));
        let nodes = cluster.order();
        let mut diagnosis = Diagnosis { nodes: 3, ..Diagnosis::default() };
        let left = read_filter(
            &extender(cached, false),
            &cluster,
            &nodes,
            answer.to_string().as_bytes(),
            &mut diagnosis,
        );
        (left, diagnosis)
    }

    #[test]
    fn what_an_extender_leaves_is_left_and_what_it_says_is_told() {
        for (cached, answer, expected) in [
            (true, json!({"NodeNames": ["b", "a"]}), Ok(vec![1, 0])),
            (false, json!({"Nodes": {"items": [{"metadata": {"name": "c"}}]}}), Ok(vec![2])),
            (false, json!({"NodeNames": ["b"]}), Ok(vec![])),
            (true, json!({"Error": "no"}), Err("no".to_owned())),
            (
                true,
                json!({"NodeNames": ["z"]}),
                Err("extender \"http://x\" claims a filtered node \"z\" which is not found in the input node list".to_owned()),
            ),
        ] {
            assert_eq!(filtered(cached, &answer).0, expected, "{answer}");
        }
        let answer = json!({"NodeNames": [], "FailedNodes": {"a": "full", "b": "full"}, "FailedAndUnresolvableNodes": {"b": "never", "c": "never"}});
        let (_, diagnosis) = filtered(true, &answer);
        assert_eq!(diagnosis.message(), "0/3 nodes are available: 1 full, 2 never.");
        assert!(diagnosis.plugins.has(PluginId::Extender));
        assert_eq!(diagnosis.status_of(0).unwrap().code, Code::Unschedulable);
        assert_eq!(diagnosis.status_of(1).unwrap().code, Code::UnschedulableAndUnresolvable);
    }

    #[test]
    fn scores_are_brought_to_the_plugins_scale() {
        let cluster = testing::cluster(["a", "b"].map(|n| testing::node(n, json!({}))));
        let mut extra = HashMap::from([(0, 1)]);
        let answer = json!([{"Host": "a", "Score": 10}, {"Host": "none", "Score": 10}]).to_string();
        read_priorities(&extender(true, false), &cluster, answer.as_bytes(), &mut extra).unwrap();
        assert_eq!(extra, HashMap::from([(0, 301)]));
    }

    #[test]
    fn only_pods_that_ask_for_what_it_manages_are_its_business() {
        let managed = api::config::scheduler::ManagedResource {
            name: "example.com/gpu".into(),
            ignored_by_scheduler: true,
        };
        let own = Extender { managed_resources: vec![managed], ..extender(true, false) };
        assert!(is_interested(&own, &testing::asking("p", json!({"example.com/gpu": "1"}))));
        assert!(!is_interested(&own, &testing::asking("p", json!({"cpu": "1"}))));
        assert!(is_interested(&extender(true, false), &testing::asking("p", json!({}))));
    }

    #[test]
    fn questions_are_written_as_upstream_writes_them() {
        let cluster = testing::cluster([testing::node("a", json!({}))]);
        let pod = testing::asking("p", json!({}));
        let raw = |text: &str| Arc::from(RawValue::from_string(text.to_owned()).unwrap());
        let mut objects = Objects::default();
        objects.pods.insert(pod.uid.clone(), raw("{\"kind\":\"Pod\"}"));
        objects.nodes.insert("a".into(), raw("{\"kind\":\"Node\"}"));
        let ask =
            |cached: bool| ask_about_nodes(&extender(cached, false), &objects, &cluster, &pod, &[0]).unwrap();
        assert_eq!(ask(true), "{\"Pod\":{\"kind\":\"Pod\"},\"Nodes\":null,\"NodeNames\":[\"a\"]}");
        assert_eq!(
            ask(false),
            "{\"Pod\":{\"kind\":\"Pod\"},\"Nodes\":{\"metadata\":{},\"items\":[{\"kind\":\"Node\"}]},\"NodeNames\":null}"
        );
        assert_eq!(
            ask_to_bind(&pod, "a").unwrap(),
            "{\"PodName\":\"p\",\"PodNamespace\":\"default\",\"PodUID\":\"p\",\"Node\":\"a\"}"
        );
        assert_eq!(read_binding(b"{\"Error\":\"late\"}"), Err("late".to_owned()));
        let victim = Candidate { node: 0, victims: vec![Arc::new(pod.clone())], violations: 1 };
        assert_eq!(
            ask_about_victims(&extender(true, false), &objects, &cluster, &pod, &[victim]).unwrap(),
            "{\"Pod\":{\"kind\":\"Pod\"},\"NodeNameToVictims\":null,\"NodeNameToMetaVictims\":{\"a\":{\"Pods\":[{\"UID\":\"p\"}],\"NumPDBViolations\":1}}}"
        );
    }

    #[test]
    fn victims_must_be_on_the_node_and_there_must_be_one() {
        let mut cluster = testing::cluster([testing::node("a", json!({}))]);
        testing::put(&mut cluster, &testing::asking("x", json!({})), "a");
        let answer = |victims: Value| json!({"NodeNameToMetaVictims": victims}).to_string();
        let read = |victims: Value, ignorable| {
            let read = read_victims(&extender(true, ignorable), &cluster, answer(victims).as_bytes());
            read.map(|all| all.iter().map(|c| (c.victims.len(), c.violations)).collect::<Vec<_>>())
        };
        assert_eq!(
            read(json!({"a": {"Pods": [{"UID": "x"}], "NumPDBViolations": 2}}), false),
            Ok(vec![(1, 2)])
        );
        assert_eq!(
            read(json!({"a": {"Pods": []}}), false),
            Err("expected at least one victim pod on node \"a\"".into())
        );
        assert_eq!(read(json!({"a": null}), true), Ok(vec![]));
        assert!(
            read(json!({"a": {"Pods": [{"UID": "y"}]}}), true)
                .unwrap_err()
                .contains("not found on that node")
        );
        assert!(read(json!({"b": {"Pods": [{"UID": "x"}]}}), true).is_err());
    }
}
