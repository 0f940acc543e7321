//! What may change in a Pod that is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use api::field::{FieldErrors, Path};
use api::names;
use api::pod::Stage;
use api::pod::static_pod::MIRROR_ANNOTATION;
use serde_json::{Map, Value, json};

use super::super::{address, check, pod_template};
use crate::doc::{self, Field};

const CHANGEABLE: &str = "pod updates may not change fields other than `spec.containers[*].image`,\
                          `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only \
                          additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be \
                          set to 1 if it was previously negative)";

/// Differences shown in a message.
const SHOWN: usize = 8;

/// Before there was a field for it, these annotations said which AppArmor profile confines a container.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What some annotations say is said once, when the Pod is created. Much is forbidden to mirrors of a node's own Pods, and
/// much is let pass for them; and Pod Security judges AppArmor profiles at the creation only.
pub fn annotations(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let said = |pod: &Value, key: &str| doc::at(pod, "metadata.annotations").get(key).cloned();
    let keys = |pod| doc::entries(pod, "metadata.annotations").map(|(key, _)| key.to_owned());
    let fixed: BTreeSet<String> =
        keys(old).chain(keys(new)).filter(|k| k == MIRROR_ANNOTATION || k.starts_with(APP_ARMOR)).collect();
    for key in fixed {
        let what = if key == MIRROR_ANNOTATION { "mirror pod annotation" } else { "AppArmor annotations" };
        let why = match (said(old, &key), said(new, &key)) {
            (None, Some(_)) => format!("may not add {what}"),
            (before, now) if before != now => format!("may not remove or update {what}"),
            _ => continue,
        };
        errors.forbidden(&Path::new("metadata.annotations").key(&key), &why);
    }
}

/// A write through the main resource: little of the spec may change.
pub(super) fn validate(errors: &mut FieldErrors, new: &Value, old: &Value) {
    annotations(errors, new, old);
    for list in ["spec.containers", "spec.initContainers"] {
        if doc::list(new, list).len() != doc::list(old, list).len() {
            return errors.forbidden(&Path::new(list), "pod updates may not add or remove containers");
        }
    }
    if !deadline(errors, new, old) {
        return;
    }
    tolerations(errors, new, old);
    gates(errors, new, old);
    let mut rest = new["spec"].clone();
    let before = &old["spec"];
    for list in ["containers", "initContainers"] {
        for (container, old) in doc::list_mut(&mut rest, list).zip(doc::list(before, list)) {
            doc::keep(container, old, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        doc::keep(&mut rest, before, field);
    }
    if doc::int(before, "terminationGracePeriodSeconds") < 0
        && doc::int(&rest, "terminationGracePeriodSeconds") == 1
    {
        doc::keep(&mut rest, before, "terminationGracePeriodSeconds");
    }
    if !doc::list(before, "schedulingGates").is_empty() {
        gated(errors, &mut rest, before);
    }
    if !doc::same(&rest, before) {
        errors.forbidden(&Path::new("spec"), &format!("{CHANGEABLE}\n{}", differences(before, &rest)));
    }
}

/// A write through `/ephemeralcontainers` changes nothing but that list.
pub fn prepare_ephemeral(new: &mut Value, old: &Value) {
    let list = doc::at(new, "spec.ephemeralContainers").clone();
    doc::keep(new, old, "spec");
    doc::keep(new, old, "status");
    match list {
        Value::Null => drop(doc::remove(new, "spec.ephemeralContainers")),
        list => doc::set(new, "spec.ephemeralContainers", list),
    }
}

/// Ephemeral containers come and stay.
pub fn validate_ephemeral(new: &Value, old: &Value, errors: &mut FieldErrors) {
    annotations(errors, new, old);
    if doc::at(old, "metadata.annotations").get(MIRROR_ANNOTATION).is_some() {
        return errors.forbidden(&Path::new(""), "static pods do not support ephemeral containers");
    }
    pod_template::validate_spec(errors, &Field::root(new), Stage::Update);
    let at = Path::new("spec.ephemeralContainers");
    let now = doc::list(new, "spec.ephemeralContainers");
    for before in doc::list(old, "spec.ephemeralContainers") {
        let name = doc::text(before, "name");
        match now.iter().find(|c| doc::text(c, "name") == name) {
            None => {
                errors.forbidden(&at, &format!("existing ephemeral containers {name:?} may not be removed\n"))
            }
            Some(c) if !doc::same(c, before) => {
                let text = differences(before, c);
                errors.forbidden(
                    &at,
                    &format!("existing ephemeral containers {name:?} may not be changed\n{text}"),
                );
            }
            Some(_) => {}
        }
    }
}

/// A client that does not know of observed generations does not take them away.
pub(super) fn keep_observed_generations(new: &mut Value, old: &Value) {
    if doc::int(new, "status.observedGeneration") == 0 && doc::int(old, "status.observedGeneration") != 0 {
        doc::keep(new, old, "status.observedGeneration");
    }
    let mut known: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for condition in doc::list(old, "status.conditions").iter().rev() {
        let generation = doc::int(condition, "observedGeneration");
        known.entry(doc::text(condition, "type").to_owned()).or_default().push(generation);
    }
    for condition in doc::list_mut(new, "status.conditions") {
        let before = known.get_mut(doc::text(condition, "type")).and_then(Vec::pop).unwrap_or_default();
        if before != 0 && doc::int(condition, "observedGeneration") == 0 {
            doc::set(condition, "observedGeneration", before);
        }
    }
}

pub(super) fn validate_status(errors: &mut FieldErrors, new: &Value, old: &Value) {
    annotations(errors, new, old);
    let status = Field::root(new).get("status");
    for condition in status.get("conditions").items() {
        check::spelled(errors, &condition.get("type"), names::qualified_name);
        let generation = condition.get("observedGeneration");
        if generation.int().is_some_and(|g| g < 0) {
            errors.invalid(&generation.at, generation.value.clone(), "must be a non-negative integer");
        }
    }
    nominated_node(errors, &status, old);
    let class = "status.qosClass";
    check::immutable(errors, new, old, class);
    ended_containers_stay_ended(errors, new, old, "containerStatuses", "containers");
    ended_containers_stay_ended(errors, new, old, "initContainerStatuses", "initContainers");
    let ips = status.get("podIPs");
    unique_families(errors, &ips);
    let hosts = status.get("hostIPs");
    if let Some(first) = hosts.items().next()
        && doc::text(first.value, "ip") != doc::text(new, "status.hostIP")
    {
        errors.invalid(&first.at.child("ip"), doc::text(first.value, "ip"), "must be equal to `hostIP`");
    }
    unique_families(errors, &hosts);
}

fn nominated_node(errors: &mut FieldErrors, status: &Field<'_>, old: &Value) {
    let nominated = status.get("nominatedNodeName");
    if nominated.is_empty() || nominated.text() == doc::text(old, "status.nominatedNodeName") {
        return;
    }
    check::spelled(errors, &nominated, names::dns_subdomain);
    if !doc::text(old, "spec.nodeName").is_empty() {
        errors.forbidden(&nominated.at, "may not be set on pods that are already bound to a node");
    }
}

fn unique_families(errors: &mut FieldErrors, ips: &Field<'_>) {
    let mut families = Vec::new();
    for entry in ips.items() {
        let text = Field { value: doc::at(entry.value, "ip"), at: entry.at.clone() };
        families.extend(address::ip(errors, &text).map(|ip| ip.is_ipv6()));
    }
    if ips.len() > 1 && !address::is_dual_stack(&families) {
        errors.invalid(&ips.at, ips.value.clone(), "may specify no more than one IP for each IP family");
    }
}

/// A container that may not be started again has no other state than its end.
fn ended_containers_stay_ended(
    errors: &mut FieldErrors,
    new: &Value,
    old: &Value,
    statuses: &str,
    specs: &str,
) {
    let specs = doc::list(old, &format!("spec.{specs}"));
    let all_restart = |c: &Value| {
        doc::list(c, "restartPolicyRules").iter().any(|r| doc::text(r, "action") == "RestartAllContainers")
    };
    if doc::list(old, "spec.containers").iter().chain(doc::list(old, "spec.initContainers")).any(all_restart)
    {
        return;
    }
    let path = format!("status.{statuses}");
    for (i, before) in doc::list(old, &path).iter().enumerate() {
        let ended = doc::at(before, "state.terminated");
        let name = doc::text(before, "name");
        let now = doc::list(new, &path).iter().find(|s| doc::text(s, "name") == name);
        let came_back = now.is_some_and(|s| doc::at(s, "state.terminated").is_null());
        if ended.is_null() || !came_back {
            continue;
        }
        let container = specs.iter().find(|c| doc::text(c, "name") == name);
        let policy = doc::text(old, "spec.restartPolicy");
        if !container.is_some_and(|c| may_restart(c, policy, doc::int(ended, "exitCode"))) {
            let at = Path::new(&path).index(i).child("state");
            errors.forbidden(&at, "may not be transitioned to non-terminated state");
        }
    }
}

fn may_restart(container: &Value, pod_policy: &str, exit_code: i64) -> bool {
    for rule in doc::list(container, "restartPolicyRules") {
        let listed = doc::list(rule, "exitCodes.values").contains(&json!(exit_code));
        let matches = match doc::text(rule, "exitCodes.operator") {
            "In" => listed,
            "NotIn" => !listed,
            _ => false,
        };
        if matches && doc::text(rule, "action") == "Restart" {
            return true;
        }
    }
    let own = doc::text(container, "restartPolicy");
    match if own.is_empty() { pod_policy } else { own } {
        "Never" => false,
        "OnFailure" => exit_code != 0,
        _ => true,
    }
}

/// Whether the rest is worth looking at.
fn deadline(errors: &mut FieldErrors, new: &Value, old: &Value) -> bool {
    let at = Path::new("spec.activeDeadlineSeconds");
    let of = |pod: &Value| doc::at(pod, "spec.activeDeadlineSeconds").as_i64();
    match (of(new), of(old)) {
        (None, Some(_)) => {
            errors.invalid(&at, Value::Null, "must not update from a positive integer to nil value");
            true
        }
        (Some(now), _) if !(0..=i64::from(i32::MAX)).contains(&now) => {
            errors.invalid(&at, now, "must be between 0 and 2147483647, inclusive");
            false
        }
        (Some(now), Some(before)) if before < now => {
            errors.invalid(&at, now, "must be less than or equal to previous value");
            false
        }
        _ => true,
    }
}

fn tolerations(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let without_seconds = |toleration: &Value| {
        let mut bare = toleration.clone();
        doc::remove(&mut bare, "tolerationSeconds");
        bare
    };
    let now: Vec<Value> = doc::list(new, "spec.tolerations").iter().map(without_seconds).collect();
    let kept = |before: &Value| now.iter().any(|t| doc::same(t, &without_seconds(before)));
    if !doc::list(old, "spec.tolerations").iter().all(kept) {
        let message = "existing toleration can not be modified except its tolerationSeconds";
        errors.forbidden(&Path::new("spec.tolerations"), message);
    }
}

fn gates(errors: &mut FieldErrors, new: &Value, old: &Value) {
    let before = doc::list(old, "spec.schedulingGates");
    for (i, gate) in doc::list(new, "spec.schedulingGates").iter().enumerate() {
        let name = doc::text(gate, "name");
        if !before.iter().any(|g| doc::text(g, "name") == name) {
            let at = Path::new("spec.schedulingGates").index(i).child("name");
            errors
                .forbidden(&at, &format!("only deletion is allowed, but found new scheduling gate '{name}'"));
        }
    }
}

/// While a Pod waits to be scheduled it may be made choosier about its node.
fn gated(errors: &mut FieldErrors, rest: &mut Value, before: &Value) {
    let lost = doc::entries(before, "nodeSelector")
        .any(|(key, value)| doc::at(rest, "nodeSelector").get(key) != Some(value));
    if lost {
        let now = doc::at(rest, "nodeSelector").clone();
        errors.invalid(
            &Path::new("spec.nodeSelector"),
            now,
            "only additions are allowed (no mutations or deletions)",
        );
    }
    doc::keep(rest, before, "nodeSelector");
    let path = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms";
    let (terms, old_terms) = (doc::list(rest, path), doc::list(before, path));
    if !old_terms.is_empty() && terms.len() != old_terms.len() {
        let at = Path::new("spec").child(path);
        errors.invalid(
            &at,
            doc::at(rest, path).clone(),
            "no additions/deletions to non-empty NodeSelectorTerms list are allowed",
        );
    }
    let narrowed = terms.iter().zip(old_terms).all(|(now, old)| {
        ["matchExpressions", "matchFields"].iter().all(|list| {
            let (now, old) = (doc::list(now, list), doc::list(old, list));
            now.len() >= old.len() && now.iter().zip(old).all(|(a, b)| doc::same(a, b))
        })
    });
    if !narrowed {
        let at = Path::new("spec").child(path);
        errors.invalid(
            &at,
            doc::at(rest, path).clone(),
            "only additions are allowed (no mutations or deletions)",
        );
    }
    doc::keep(rest, before, "affinity.nodeAffinity");
    if doc::is_unset(doc::at(rest, "affinity")) {
        doc::keep(rest, before, "affinity");
    }
}

/// Where two values differ, for a person to read: the old line with a minus, the new one with a plus.
pub(crate) fn differences(old: &Value, new: &Value) -> String {
    let mut found = Vec::new();
    collect(&mut found, "", old, new);
    let mut text = String::new();
    for (path, old, new) in found.iter().take(SHOWN) {
        for (sign, value) in [('-', old), ('+', new)] {
            if !value.is_null() {
                let _ = writeln!(text, "{sign} {path}: {}", cut(&value.to_string()));
            }
        }
    }
    if found.len() > SHOWN {
        let _ = writeln!(text, "and {} more", found.len() - SHOWN);
    }
    text
}

fn collect<'a>(found: &mut Vec<(String, &'a Value, &'a Value)>, path: &str, old: &'a Value, new: &'a Value) {
    if doc::same(old, new) {
        return;
    }
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let absent = |key: &&String| !a.contains_key(*key);
            for key in a.keys().chain(b.keys().filter(absent)) {
                let get = |map: &'a Map<String, Value>| map.get(key).unwrap_or(&Value::Null);
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                collect(found, &below, get(a), get(b));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (a, b)) in a.iter().zip(b).enumerate() {
                collect(found, &format!("{path}[{i}]"), a, b);
            }
        }
        _ => found.push((path.to_owned(), old, new)),
    }
}

fn cut(text: &str) -> &str {
    text.char_indices().nth(120).map_or(text, |(at, _)| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(old: Value, new: Value) -> String {
        let mut errors = FieldErrors::default();
        validate(&mut errors, &json!({"spec": new}), &json!({"spec": old}));
        errors.to_string()
    }

    #[test]
    fn little_of_a_spec_may_change() {
        let old = json!({"containers": [{"name": "a", "image": "x"}], "nodeName": "n", "activeDeadlineSeconds": 10,
            "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5}]});
        let with = |change: &dyn Fn(&mut Value)| {
            let mut new = old.clone();
            change(&mut new);
            complaints(old.clone(), new)
        };
        assert_eq!(with(&|_| {}), "[]");
        assert_eq!(with(&|s| s["containers"][0]["image"] = json!("y")), "[]");
        assert_eq!(with(&|s| s["activeDeadlineSeconds"] = json!(5)), "[]");
        assert_eq!(with(&|s| s["tolerations"][0]["tolerationSeconds"] = json!(9)), "[]");
        assert_eq!(
            with(&|s| s["tolerations"].as_array_mut().into_iter().for_each(|t| t.push(json!({"key": "m"})))),
            "[]"
        );
        assert_eq!(with(&|s| s["hostNetwork"] = json!(false)), "[]");
        assert_eq!(
            with(&|s| s["activeDeadlineSeconds"] = json!(11)),
            "spec.activeDeadlineSeconds: Invalid value: 11: must be less than or equal to previous value"
        );
        assert_eq!(
            with(&|s| s["tolerations"] = json!([])),
            "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
        );
        assert_eq!(
            with(&|s| s["containers"] = json!([])),
            "spec.containers: Forbidden: pod updates may not add or remove containers"
        );
        assert_eq!(
            with(&|s| s["containers"][0]["command"] = json!(["sh"])),
            format!("spec: Forbidden: {CHANGEABLE}\n+ containers[0].command: [\"sh\"]\n")
        );
        assert_eq!(
            with(&|s| s["nodeName"] = json!("m")),
            format!("spec: Forbidden: {CHANGEABLE}\n- nodeName: \"n\"\n+ nodeName: \"m\"\n")
        );
    }

    #[test]
    fn a_gated_pod_may_become_choosier() {
        let old = json!({"schedulingGates": [{"name": "g"}], "nodeSelector": {"a": "1"}});
        assert_eq!(complaints(old.clone(), json!({"nodeSelector": {"a": "1", "b": "2"}})), "[]");
        assert!(
            complaints(old.clone(), json!({"nodeSelector": {"b": "2"}}))
                .contains("only additions are allowed")
        );
        assert!(
            complaints(old, json!({"schedulingGates": [{"name": "h"}], "nodeSelector": {"a": "1"}}))
                .contains("only deletion is allowed, but found new scheduling gate 'h'")
        );
    }

    #[test]
    fn the_end_of_a_container_is_final() {
        let pod = |policy: &str, state: Value| {
            json!({"spec": {"restartPolicy": policy, "containers": [{"name": "a"}]},
            "status": {"containerStatuses": [{"name": "a", "state": state}]}})
        };
        let status = |policy: &str, code: i64| {
            let mut errors = FieldErrors::default();
            let old = pod(policy, json!({"terminated": {"exitCode": code}}));
            validate_status(&mut errors, &pod(policy, json!({"running": {}})), &old);
            errors.to_string()
        };
        assert_eq!(status("Always", 0), "[]");
        assert_eq!(status("OnFailure", 1), "[]");
        let want =
            "status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state";
        assert_eq!(status("OnFailure", 0), want);
        assert_eq!(status("Never", 1), want);
    }

    #[test]
    fn ephemeral_containers_come_and_stay() {
        let main = json!([{"name": "a", "image": "x", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]);
        let debug = |image: &str| json!({"name": "d", "image": image, "imagePullPolicy": "Always", "terminationMessagePolicy": "File"});
        let pod = |ephemeral: Value| {
            json!({"spec": {"containers": main, "ephemeralContainers": ephemeral, "restartPolicy": "Always",
            "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1}})
        };
        let check = |old: Value, new: Value| {
            let mut errors = FieldErrors::default();
            validate_ephemeral(&pod(new), &pod(old), &mut errors);
            errors.to_string()
        };
        assert_eq!(check(json!([]), json!([debug("y")])), "[]");
        assert!(
            check(json!([debug("y")]), json!([]))
                .contains("existing ephemeral containers \\\"d\\\" may not be removed")
                || check(json!([debug("y")]), json!([])).contains("\"d\" may not be removed")
        );
        assert!(check(json!([debug("y")]), json!([debug("z")])).contains("may not be changed"));
        let mut probed = debug("y");
        probed["livenessProbe"] = json!({"exec": {"command": ["x"]}});
        assert!(
            check(json!([]), json!([probed]))
                .contains("livenessProbe: Forbidden: cannot be set for an Ephemeral Container")
        );
        let mut new = pod(json!([debug("y")]));
        new["spec"]["nodeName"] = json!("other");
        prepare_ephemeral(&mut new, &pod(json!([])));
        assert_eq!(new, pod(json!([debug("y")])));
    }

    #[test]
    fn observed_generations_stay() {
        let old = json!({"status": {"observedGeneration": 3, "conditions": [{"type": "Ready", "observedGeneration": 2}]}});
        let mut new = json!({"status": {"conditions": [{"type": "Ready"}, {"type": "X"}]}});
        keep_observed_generations(&mut new, &old);
        assert_eq!(
            new,
            json!({"status": {"observedGeneration": 3, "conditions": [{"type": "Ready", "observedGeneration": 2}, {"type": "X"}]}})
        );
    }
}
