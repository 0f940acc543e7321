#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

fn status(value: Value) -> PodStatus {
    serde_json::from_value(value).unwrap()
}

fn known(status: &PodStatus) -> Reported<'_> {
    Reported { uid: "u", status, is_deleting: false, is_mirror: false }
}

fn told(api: Value, ours: Value) -> Value {
    let api = status(api);
    match report(&known(&api), &status(ours), false) {
        Report::Patch(patch) => patch["status"].clone(),
        Report::Nothing => json!("nothing"),
        Report::Delete => json!("delete"),
    }
}

#[test]
fn only_what_differs_is_told() {
    assert_eq!(told(json!({"phase": "Running"}), json!({"phase": "Running"})), json!("nothing"));
    assert_eq!(told(json!({"phase": "Pending"}), json!({"phase": "Running"})), json!({"phase": "Running"}));
    assert_eq!(
        told(json!({"phase": "Running", "reason": "x"}), json!({"phase": "Running"})),
        json!({"reason": null})
    );
    let one = json!({"name": "a", "image": "i", "imageID": "", "ready": false, "restartCount": 0});
    let two = json!({"name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0});
    assert_eq!(
        told(json!({"containerStatuses": [one]}), json!({"containerStatuses": [two]}))["containerStatuses"],
        json!([two]),
    );
}

#[test]
fn what_says_nothing_is_no_difference() {
    let bare = json!({"name": "a", "image": "i", "imageID": "", "ready": true, "restartCount": 0});
    let mut wordy = bare.clone();
    wordy["lastState"] = json!({});
    let told =
        told(json!({"containerStatuses": [wordy], "podIPs": []}), json!({"containerStatuses": [bare]}));
    assert_eq!(told, json!("nothing"));
}

#[test]
fn that_there_are_no_resources_is_told_once() {
    assert_eq!(told(json!({}), json!({"resources": {}})), json!({"resources": {}}));
    assert_eq!(told(json!({"resources": {}}), json!({"resources": {}})), json!("nothing"));
    let some = json!({"resources": {"limits": {"cpu": "1"}}});
    assert_eq!(told(some, json!({"resources": {}})), json!({"resources": {"limits": null}}));
}

#[test]
fn conditions_of_others_stay() {
    let api = json!({"conditions": [
        {"type": "gate.io/x", "status": "True"},
        {"type": "Ready", "status": "True", "reason": "edited by hand"},
        {"type": "PodResizePending", "status": "True"},
    ]});
    // What we remember of the gate is old; what the API server says of it counts.
    let ours = json!({"conditions": [
        {"type": "gate.io/x", "status": "False"},
        {"type": "Ready", "status": "True"},
        {"type": "Initialized", "status": "True"},
    ]});
    assert_eq!(
        told(api, ours),
        json!({
            "$setElementOrder/conditions": [{"type": "gate.io/x"}, {"type": "Ready"}, {"type": "Initialized"}],
            "conditions": [
                {"type": "Ready", "reason": null},
                {"type": "Initialized", "status": "True"},
                {"$patch": "delete", "type": "PodResizePending"},
            ],
        })
    );
}

#[test]
fn a_disruption_is_ours_to_tell_only_as_we_end_the_pod() {
    let because = |phase: &str, reason: &str| json!({"phase": phase, "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]});
    let (running, failed) = (json!({"phase": "Running"}), json!({"phase": "Failed"}));
    let ours = because("Failed", "TerminationByKubelet");
    assert_eq!(told(running.clone(), ours.clone())["conditions"], ours["conditions"]);
    let merged = told(because("Running", "drain"), ours.clone());
    assert_eq!(merged["conditions"], json!([{"type": "DisruptionTarget", "reason": "TerminationByKubelet"}]));
    assert_eq!(told(because("Running", "drain"), running), json!("nothing"));
    // What another wrote is his to change, though we have seen what it was before.
    assert_eq!(told(because("Running", "B"), because("Running", "A")), json!("nothing"));
    assert_eq!(told(because("Failed", "B"), ours), json!("nothing"));
    assert_eq!(told(because("Failed", "B"), failed), json!("nothing"));
}

#[test]
fn what_the_scheduler_and_controllers_say_stays() {
    let api = json!({
        "nominatedNodeName": "n2",
        "resourceClaimStatuses": [{"name": "c", "resourceClaimName": "x"}],
        "extendedResourceClaimStatus": {"requestMappings": [], "resourceClaimName": "x"},
        "nodeAllocatableResourceClaimStatuses": [{"containers": ["a"], "resourceClaimName": "x"}],
    });
    assert_eq!(told(api, json!({})), json!("nothing"));
}

#[test]
fn addresses_are_replaced_one_by_one() {
    let api = json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]});
    let ours = json!({"podIP": "10.0.0.2", "podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::1"}]});
    assert_eq!(
        told(api, ours),
        json!({
            "podIP": "10.0.0.2",
            "$setElementOrder/podIPs": [{"ip": "10.0.0.2"}, {"ip": "fd00::1"}],
            "podIPs": [{"ip": "10.0.0.2"}, {"$patch": "delete", "ip": "10.0.0.1"}],
        })
    );
}

#[test]
fn the_object_goes_last() {
    let running = status(json!({"phase": "Running"}));
    let failed = status(json!({"phase": "Failed"}));
    let table = [
        // (API server's status, ours, deleting, mirror, finished, what is told)
        (&failed, &failed, true, false, true, "delete"),
        (&failed, &failed, true, false, false, "nothing"),
        (&failed, &failed, false, false, true, "nothing"),
        (&failed, &failed, true, true, true, "nothing"),
        (&running, &failed, true, false, true, "patch"),
        (&running, &running, true, false, true, "nothing"),
    ];
    for (api, ours, is_deleting, is_mirror, finished, want) in table {
        let got = match report(&Reported { is_deleting, is_mirror, ..known(api) }, ours, finished) {
            Report::Nothing => "nothing",
            Report::Patch(_) => "patch",
            Report::Delete => "delete",
        };
        assert_eq!(got, want, "{api:?} {is_deleting} {is_mirror} {finished}");
    }
}

/// What an API server makes of a patch, as far as these patches go.
fn apply(into: &mut Map<String, Value>, patch: &Map<String, Value>) {
    for (field, change) in patch.iter().filter(|(f, _)| !f.starts_with('$')) {
        match (change, merge_key(field)) {
            (Value::Null, _) => _ = into.remove(field),
            (Value::Array(items), Some(key)) => {
                let mut list = into.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
                for item in items {
                    let at = list.iter().position(|l| l[key] == item[key]);
                    match (at, item["$patch"] == "delete") {
                        (Some(at), true) => _ = list.remove(at),
                        (None, true) => {}
                        (Some(at), false) => {
                            let Value::Object(old) = &mut list[at] else { continue };
                            apply(old, item.as_object().unwrap());
                        }
                        (None, false) => list.push(item.clone()),
                    }
                }
                let order = patch.get(&format!("$setElementOrder/{field}")).and_then(Value::as_array);
                let place = |i: &Value| order.iter().flat_map(|o| o.iter()).position(|o| o[key] == i[key]);
                list.sort_by_key(place);
                into.insert(field.clone(), Value::Array(list));
            }
            (Value::Object(change), _) if into.get(field).is_some_and(Value::is_object) => {
                if let Some(Value::Object(old)) = into.get_mut(field) {
                    apply(old, change);
                }
            }
            _ => _ = into.insert(field.clone(), change.clone()),
        }
    }
}

fn any_status() -> impl Strategy<Value = PodStatus> {
    let condition = (
        prop::sample::select(vec![
            "Ready",
            "Initialized",
            "gate.io/x",
            "DisruptionTarget",
            "PodResizePending",
        ]),
        prop::sample::select(vec!["True", "False"]),
        prop::option::of("[a-c]"),
    );
    let ip = prop::sample::select(vec!["10.0.0.1", "10.0.0.2", "fd00::1"]);
    (
        prop::option::of(prop::sample::select(vec!["Pending", "Running", "Failed"])),
        prop::collection::vec(condition, 0..5),
        prop::collection::btree_set(ip, 0..3),
        prop::option::of("[a-c]"),
    )
        .prop_map(|(phase, conditions, ips, message)| {
            let mut seen = std::collections::BTreeSet::new();
            let conditions: Vec<Value> = conditions
                .into_iter()
                .filter(|(kind, _, _)| seen.insert(*kind))
                .map(|(kind, status, reason)| json!({"type": kind, "status": status, "reason": reason}))
                .collect();
            let ips: Vec<Value> = ips.into_iter().map(|ip| json!({"ip": ip})).collect();
            let mut value = json!({"phase": phase, "conditions": conditions, "message": message});
            if !ips.is_empty() {
                value["podIPs"] = Value::Array(ips);
            }
            status(value)
        })
}

proptest! {
    /// Whatever either side says: told once, there is nothing more to tell, and nobody else's word is lost.
    #[test]
    fn one_patch_is_enough(api in any_status(), ours in any_status()) {
        let mut after = object(&api);
        if let Report::Patch(patch) = report(&known(&api), &ours, false) {
            apply(&mut after, patch["status"].as_object().unwrap());
        }
        let after: PodStatus = serde_json::from_value(Value::Object(after)).unwrap();
        prop_assert_eq!(report(&known(&after), &ours, false), Report::Nothing);
        prop_assert_eq!(&after.phase, &ours.phase);
        let gate = |s: &PodStatus| s.conditions.iter().flatten().find(|c| c.type_ == "gate.io/x").cloned();
        prop_assert_eq!(gate(&after), gate(&api));
    }
}
