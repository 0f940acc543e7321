#![allow(clippy::unwrap_used)]

use super::*;
use crate::cri_config::testing::{node as facts, pod};

fn node() -> NodeOffer {
    NodeOffer {
        name: "n1".into(),
        labels: BTreeMap::from([
            ("kubernetes.io/os".to_owned(), "linux".to_owned()),
            ("kubernetes.io/arch".to_owned(), "amd64".to_owned()),
            ("rank".to_owned(), "5".to_owned()),
        ]),
        taints: Vec::new(),
        allocatable: facts().allocatable,
        extended: BTreeMap::new(),
        sysctls: Allowlist::new("6.1.0", &[]).unwrap(),
        app_armor: false,
        strict_groups: false,
        no_pod_resources: false,
        declared: None,
        shutting_down: false,
        pressures: Pressures::default(),
        ..NodeOffer::default()
    }
}

fn uid(mut pod: Pod, uid: &str) -> Pod {
    pod.metadata.uid = Some(uid.into());
    pod
}

fn of_file(mut pod: Pod) -> Pod {
    pod.metadata.annotations =
        Some(BTreeMap::from([("kubernetes.io/config.source".to_owned(), "file".to_owned())]));
    pod
}

fn try_admit(pod: &Pod, others: &[&Pod], node: &NodeOffer) -> Result<Vec<String>, (String, String)> {
    admit(&AdmitInput { pod, others, node })
        .map(|v| v.iter().map(ToString::to_string).collect())
        .map_err(|r| (r.reason, r.message))
}

fn asks(cpu: &str) -> Pod {
    pod(&format!("containers: [{{name: a, resources: {{requests: {{cpu: {cpu}}}}}}}]"))
}

#[test]
fn rejections() {
    let affinity = |expr: &str| {
        format!(
            "{{containers: [], affinity: {{nodeAffinity: {{requiredDuringSchedulingIgnoredDuringExecution: {{nodeSelectorTerms: [{expr}]}}}}}}}}"
        )
    };
    let no_affinity = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    for (spec, want) in [
        ("containers: []".to_owned(), None),
        (
            "{containers: [], securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}}".to_owned(),
            Some(("SysctlForbidden", "forbidden sysctl: \"kernel.msgmax\" not allowlisted")),
        ),
        (
            "{containers: [], os: {name: windows}}".to_owned(),
            Some(("PodOSNotSupported", "Failed to admit pod as the OS field doesn't match node OS")),
        ),
        (
            "{containers: [], securityContext: {supplementalGroupsPolicy: Strict}}".to_owned(),
            Some((
                "SupplementalGroupsPolicyNotSupported",
                "SupplementalGroupsPolicy=Strict is not supported in this node",
            )),
        ),
        ("{containers: [], securityContext: {supplementalGroupsPolicy: Merge}}".to_owned(), None),
        (
            "{containers: [], securityContext: {appArmorProfile: {type: RuntimeDefault}}}".to_owned(),
            Some(("AppArmor", "Cannot enforce AppArmor: AppArmor is not enabled on the host")),
        ),
        ("{containers: [], securityContext: {appArmorProfile: {type: Unconfined}}}".to_owned(), None),
        ("{containers: [], nodeName: n1, nodeSelector: {kubernetes.io/arch: amd64}}".to_owned(), None),
        ("{containers: [], nodeSelector: {disk: ssd}}".to_owned(), Some(("NodeAffinity", no_affinity))),
        (
            "{containers: [], nodeName: other}".to_owned(),
            Some(("NodeName", "Predicate NodeName failed: node(s) didn't match the requested node name")),
        ),
        (affinity("{matchExpressions: [{key: rank, operator: Gt, values: ['4']}]}"), None),
        (
            affinity("{matchExpressions: [{key: rank, operator: Lt, values: ['4']}]}"),
            Some(("NodeAffinity", no_affinity)),
        ),
        (
            affinity(
                "{matchExpressions: [{key: rank, operator: In, values: ['4']}]}, {matchFields: [{key: metadata.name, operator: In, values: [n1]}]}",
            ),
            None,
        ),
        (
            affinity(
                "{matchExpressions: [{key: gone, operator: NotIn, values: [x]}, {key: rank, operator: Exists}, {key: gone, operator: DoesNotExist}]}",
            ),
            None,
        ),
        (affinity("{}"), Some(("NodeAffinity", no_affinity))),
    ] {
        let want = want.map_or(Ok(vec![]), |(r, m)| Err((r.to_owned(), m.to_owned())));
        assert_eq!(try_admit(&pod(&spec), &[], &node()), want, "{spec}");
    }
    let able = NodeOffer { app_armor: true, strict_groups: true, ..node() };
    assert!(try_admit(&pod("{containers: [], securityContext: {supplementalGroupsPolicy: Strict, appArmorProfile: {type: RuntimeDefault}}}"), &[], &able).is_ok());
    let nameless =
        pod("{containers: [], securityContext: {appArmorProfile: {type: Localhost, localhostProfile: ' '}}}");
    assert_eq!(try_admit(&nameless, &[], &able).unwrap_err().0, "AppArmor");
}

#[test]
fn extended_resources_count_where_the_node_has_them() {
    let wants = |n: u32| {
        pod(&format!(
            "containers: [{{name: a, resources: {{requests: {{example.com/dongle: {n}, example.com/elsewhere: 9}}}}}}]"
        ))
    };
    assert!(try_admit(&wants(5), &[], &node()).is_ok(), "nobody knows it here");
    let extended = BTreeMap::from([("example.com/dongle".to_owned(), 4)]);
    let has_four = NodeOffer { extended, ..node() };
    assert!(try_admit(&wants(4), &[], &has_four).is_ok());
    let text = |requested, used| {
        format!(
            "Node didn't have enough resource: example.com/dongle, requested: {requested}, used: {used}, capacity: 4"
        )
    };
    let reason = "OutOfexample.com/dongle".to_owned();
    assert_eq!(try_admit(&wants(5), &[], &has_four).unwrap_err(), (reason.clone(), text(5, 0)));
    assert_eq!(try_admit(&wants(2), &[&wants(3)], &has_four).unwrap_err(), (reason, text(2, 3)));
}

#[test]
fn resources_and_counts() {
    let (two, one) = (asks("2"), asks("1"));
    assert!(try_admit(&one, &[&two], &node()).is_ok());
    assert_eq!(
        try_admit(&two, &[&two], &node()).unwrap_err(),
        (
            "OutOfcpu".to_owned(),
            "Node didn't have enough resource: cpu, requested: 2000, used: 2000, capacity: 3500".to_owned()
        )
    );
    let mut small = node();
    small.allocatable.pods = 1;
    assert_eq!(try_admit(&pod("containers: []"), &[&one], &small).unwrap_err().0, "OutOfpods");
    for (resource, reason) in [
        ("memory: 5Gi", "OutOfmemory"),
        ("ephemeral-storage: 11Gi", "OutOfephemeral-storage"),
        ("hugepages-2Mi: 2Mi", "OutOfhugepages-2Mi"),
    ] {
        let p = pod(&format!("containers: [{{name: a, resources: {{requests: {{{resource}}}}}}}]"));
        assert_eq!(try_admit(&p, &[], &node()).unwrap_err().0, reason);
    }
    let unknown = pod("containers: [{name: a, resources: {requests: {example.com/gpu: '1'}}}]");
    assert!(try_admit(&unknown, &[], &node()).is_ok());
}

#[test]
fn host_ports() {
    let with =
        |port: &str| pod(&format!("containers: [{{name: a, ports: [{{containerPort: 80, {port}}}]}}]"));
    let held = with("hostPort: 8080, hostIP: 10.0.0.1");
    for (port, clash) in [
        ("hostPort: 8080", true),
        ("hostPort: 8080, hostIP: 10.0.0.1", true),
        ("hostPort: 8080, hostIP: 10.0.0.2", false),
        ("hostPort: 8080, protocol: UDP", false),
        ("hostPort: 8081", false),
    ] {
        let got = try_admit(&with(port), &[&held], &node());
        assert_eq!(got.is_err(), clash, "{port}: {got:?}");
    }
    let sidecar = pod(
        "{containers: [], initContainers: [{name: s, restartPolicy: Always, ports: [{containerPort: 1, hostPort: 8080}]}]}",
    );
    assert_eq!(try_admit(&with("hostPort: 8080"), &[&sidecar], &node()).unwrap_err().0, "NodePorts");
}

#[test]
fn critical_pods_displace_others() {
    let critical = of_file(asks("2"));
    let (a, b, c) = (uid(asks("500m"), "a"), uid(asks("1"), "b"), uid(asks("2"), "c"));
    assert_eq!(try_admit(&critical, &[&a], &node()), Ok(vec![]));
    // 3500 of 3500 used: 2000 are missing, one Pod gives them all.
    assert_eq!(try_admit(&critical, &[&a, &b, &c], &node()), Ok(vec!["c".into()]));
    // 3500 of 3500 used, 2000 of them by a Pod that stays: 500 too few can be freed.
    let statics = of_file(uid(asks("2"), "s"));
    assert_eq!(try_admit(&critical, &[&a, &b, &statics], &node()).unwrap_err().0, "UnexpectedAdmissionError");
    // Two small Pods make way where no single one is enough; the least protected first.
    let free = uid(pod("containers: []"), "free");
    let half = of_file(asks("1500m"));
    assert_eq!(try_admit(&half, &[&free, &a, &b, &statics], &node()), Ok(vec!["b".into(), "a".into()]));
    let mut full = node();
    full.allocatable.pods = 2;
    assert_eq!(try_admit(&of_file(pod("containers: []")), &[&free, &a], &full), Ok(vec!["free".into()]));
    assert_eq!(
        try_admit(&critical, &[&statics], &node()).unwrap_err(),
        (
            "UnexpectedAdmissionError".to_owned(),
            "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: 500), ]".to_owned()
        )
    );
    let misplaced =
        of_file(pod("{nodeName: other, containers: [{name: a, resources: {requests: {cpu: '9'}}}]}"));
    assert_eq!(try_admit(&misplaced, &[], &node()).unwrap_err().0, "NodeName");
}

#[test]
fn rejections_are_counted_under_a_bounded_number_of_reasons() {
    for (reason, label) in [
        ("OutOfcpu", "OutOfcpu"),
        ("OutOfexample.com/gpu", "OutOfExtendedResources"),
        ("SysctlForbidden", "SysctlForbidden"),
        ("NodePorts", "Other"),
    ] {
        let rejection = Rejection { reason: reason.to_owned(), message: String::new(), by_labels: false };
        assert_eq!(rejection.label(), label);
    }
}

#[test]
fn features_the_node_lacks_and_a_node_that_goes_down() {
    let rules =
        "restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [1]}}]";
    let restarts = pod(&format!("containers: [{{name: a, {rules}}}]"));
    let userns = pod("{containers: [], hostNetwork: true, hostUsers: false}");
    let whole = pod("{containers: [], resources: {limits: {cpu: 1}}}");
    let none = NodeOffer { declared: Some(Vec::new()), no_pod_resources: true, ..node() };
    let rejected = |pod: &Pod, node: &NodeOffer| try_admit(pod, &[], node).unwrap_err();
    let lacks = |what: &str| {
        let message = format!("Pod requires node features that are not available: {what}");
        ("PodFeatureUnsupported".to_owned(), message)
    };
    assert_eq!(rejected(&restarts, &none), lacks("RestartAllContainersOnContainerExits"));
    assert_eq!(rejected(&userns, &none), lacks("UserNamespacesHostNetworkSupport"));
    assert_eq!(rejected(&whole, &none).0, "PodLevelResourcesNotSupported");
    for pod in [&restarts, &userns, &whole] {
        assert_eq!(try_admit(pod, &[], &node()), Ok(vec![]), "nobody asks");
    }
    let declared = Some(vec!["RestartAllContainersOnContainerExits".to_owned()]);
    assert_eq!(try_admit(&restarts, &[], &NodeOffer { declared, ..node() }), Ok(vec![]));
    let down = NodeOffer { shutting_down: true, ..node() };
    let words = "Pod was rejected as the node is shutting down.";
    assert_eq!(rejected(&pod("containers: []"), &down), ("NodeShutdown".to_owned(), words.to_owned()));
}

#[test]
fn a_node_that_is_short_lets_in_only_whom_it_must() {
    let best_effort = pod("{containers: [{name: c}]}");
    let burstable = pod("{containers: [{name: c, resources: {requests: {memory: 1Mi}}}]}");
    let tolerant = |key: &str| {
        pod(&format!(
            "{{containers: [{{name: c}}], tolerations: [{{key: node.kubernetes.io/{key}, operator: Exists}}]}}"
        ))
    };
    let critical = pod("{priority: 2000000000, containers: [{name: c}]}");
    let memory = Pressures { memory: true, ..Pressures::default() };
    let both = Pressures { disk: true, ..memory };
    let pids = Pressures { pids: true, ..Pressures::default() };
    let table = [
        (&best_effort, Pressures::default(), None),
        (&best_effort, memory, Some("[MemoryPressure]")),
        (&burstable, memory, None),
        (&tolerant("memory-pressure"), memory, None),
        (&tolerant("disk-pressure"), memory, Some("[MemoryPressure]")),
        (&tolerant("memory-pressure"), both, Some("[MemoryPressure DiskPressure]")),
        (&burstable, both, Some("[MemoryPressure DiskPressure]")),
        (&burstable, pids, Some("[PIDPressure]")),
        (&critical, both, None),
    ];
    for (pod, pressures, want) in table {
        let node = NodeOffer { pressures, ..node() };
        let refused = admit(&AdmitInput { pod, others: &[], node: &node }).err();
        let told = refused.map(|r| (r.label().to_owned(), r.message));
        assert_eq!(
            told,
            want.map(|w| ("Evicted".to_owned(), format!("The node had condition: {w}. "))),
            "{pressures:?}"
        );
    }
}
