//! Cases in YAML, statuses as snapshots; then tables for the phase and what must always hold.

mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use base::ids::ContainerId;
use base::time::Wall;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::super::{KillCause, Stage, Verdict, Verdicts, Waiting};
use super::{StatusInput, readiness, status};
use crate::observed::{Container as Instance, ContainerState, Observed, Resources, User};
use crate::resize::{InProgress, Pending, PendingReason, PodResources};
use crate::testing::{exited, from_yaml, instance, pod_yaml, sandbox};

/// A case with the usual values filled in.
pub(super) struct Case {
    pub(super) pod: Pod,
    pub(super) observed: Observed,
    pub(super) verdicts: Verdicts,
    pub(super) replaced: BTreeSet<ContainerId>,
    pub(super) waiting: BTreeMap<String, Waiting>,
    pub(super) previous: PodStatus,
    pub(super) stage: Stage,
    pub(super) kill: Option<KillCause>,
    pub(super) actuated: Option<PodResources>,
    pub(super) pending: Option<Pending>,
    pub(super) resizing: Option<InProgress>,
    pub(super) host_ips: Vec<IpAddr>,
    pub(super) recursive_read_only: bool,
    pub(super) now: i64,
}

impl Case {
    pub(super) fn new(spec: &str, containers: Vec<Instance>) -> Self {
        let mut pod = pod_yaml(spec);
        pod.metadata.generation = Some(3);
        Self {
            pod,
            observed: Observed { revision: 1, sandboxes: vec![sandbox("s0", 0, true)], containers },
            verdicts: Verdicts::new(),
            replaced: BTreeSet::new(),
            waiting: BTreeMap::new(),
            previous: PodStatus::default(),
            stage: Stage::Run,
            kill: None,
            actuated: None,
            pending: None,
            resizing: None,
            host_ips: vec![IpAddr::from([192, 0, 2, 1])],
            recursive_read_only: true,
            now: 1_000,
        }
    }

    pub(super) fn status(&self) -> PodStatus {
        status(&self.input())
    }

    /// What is shown while nobody looks at the runtime.
    pub(super) fn readiness(&self) -> PodStatus {
        readiness(&self.input())
    }

    fn input(&self) -> StatusInput<'_> {
        StatusInput {
            pod: &self.pod,
            observed: &self.observed,
            verdicts: &self.verdicts,
            replaced: &self.replaced,
            waiting: &self.waiting,
            previous: &self.previous,
            stage: self.stage,
            kill: self.kill.as_ref(),
            actuated: self.actuated.as_ref(),
            pending: self.pending.as_ref(),
            resizing: self.resizing.as_ref(),
            host_ips: &self.host_ips,
            runtime_name: "containerd",
            recursive_read_only: self.recursive_read_only,
            now: Wall::from_secs(self.now),
        }
    }

    /// Publishes, so that the next status builds on this one.
    pub(super) fn publish(&mut self) -> PodStatus {
        self.previous = self.status();
        self.previous.clone()
    }

    fn yaml(&self) -> String {
        api::yaml::from_value_to_yaml(&serde_json::to_value(self.status()).expect("serialises"))
    }
}

pub(super) fn wait(reason: &str, message: &str) -> Waiting {
    Waiting { reason: reason.into(), message: message.into() }
}

const APP: &str = "containers: [{name: app, image: 'app:1'}]";

#[test]
fn a_mount_is_as_read_only_as_the_handler_can_make_it() {
    let spec = "
containers:
- name: app
  image: 'app:1'
  volumeMounts:
  - {name: v, mountPath: /rro, readOnly: true, recursiveReadOnly: Enabled}
  - {name: v, mountPath: /if, readOnly: true, recursiveReadOnly: IfPossible}
  - {name: v, mountPath: /no, readOnly: true, recursiveReadOnly: Disabled}
  - {name: v, mountPath: /ro, readOnly: true}
  - {name: v, mountPath: /rw}";
    let mut case = Case::new(spec, vec![instance("app")]);
    for (able, most) in [(true, "Enabled"), (false, "Disabled")] {
        case.recursive_read_only = able;
        let status = case.status();
        let containers = status.container_statuses.iter().flatten();
        let mounts = containers.flat_map(|c| c.volume_mounts.iter().flatten());
        let said: Vec<_> = mounts.map(|m| m.recursive_read_only.as_deref()).collect();
        assert_eq!(said, [Some(most), Some(most), Some("Disabled"), Some("Disabled"), None]);
    }
}

const STAGED: &str = "
initContainers:
- {name: zeta, image: 'zeta:1'}
- {name: mesh, image: 'mesh:1', restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}}
containers:
- {name: web, image: 'web:1', readinessProbe: {tcpSocket: {port: 1}}}
- {name: app, image: 'app:1'}
ephemeralContainers: [{name: debug, image: 'debug:1', volumeMounts: [{name: data, mountPath: /data}]}]";

#[test]
fn new_pod() {
    let mut case = Case::new(STAGED, vec![]);
    case.observed.sandboxes.clear();
    insta::assert_snapshot!(case.yaml());
}

#[test]
fn initialising() {
    let mut case = Case::new(STAGED, vec![instance("mesh"), exited("zeta", 0)]);
    case.waiting.insert("app".into(), wait("ErrImagePull", "no such image"));
    insta::assert_snapshot!(case.yaml());
}

#[test]
fn running_and_ready() {
    let spec = "
containers:
- name: web
  image: 'web:1'
  readinessProbe: {tcpSocket: {port: 1}}
  resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: '0.5', memory: 64Mi}}
  volumeMounts: [{name: data, mountPath: /data, readOnly: true}, {name: tmp, mountPath: /tmp}]";
    let web = Instance {
        resources: Some(Resources {
            cpu_shares: 102,
            cpu_quota: 50_000,
            cpu_period: 100_000,
            memory_limit: 67_108_864,
        }),
        user: Some(User { uid: 1000, gid: 1000, supplemental_groups: vec![1000, 2000] }),
        ..instance("web")
    };
    let mut case = Case::new(spec, vec![web]);
    case.verdicts.insert("web-0".into(), Verdict { readiness: Some(true), ..Default::default() });
    case.host_ips.push("2001:db8::1".parse().expect("an address"));
    case.observed.sandboxes[0].ips =
        ["2001:db8::7", "10.0.0.7", "10.0.0.8"].map(|ip| ip.parse().expect("an address")).to_vec();
    insta::assert_snapshot!(case.yaml());
}

#[test]
fn crash_looping() {
    let newest = Instance {
        id: "app-2".into(),
        restart_count: 2,
        message: "exec failed".into(),
        termination_message: "out of beans".into(),
        ..exited("app", 1)
    };
    let mut case = Case::new(APP, vec![newest, exited("app", 7)]);
    case.waiting
        .insert("app".into(), wait("CrashLoopBackOff", "back-off 10s restarting failed container=app"));
    insta::assert_snapshot!(case.yaml());
}

#[test]
fn completed() {
    let spec = format!("restartPolicy: Never\n{APP}");
    let mut case = Case::new(&spec, vec![exited("app", 0)]);
    case.observed.sandboxes[0].ready = false;
    case.previous.pod_ips = Some(from_yaml("[{ip: 10.0.0.7}]"));
    insta::assert_snapshot!(case.yaml());
}

#[test]
fn evicted() {
    let mut case = Case::new(APP, vec![exited("app", 137)]);
    case.stage = Stage::Terminating;
    case.kill = Some(KillCause::Node {
        reason: "Evicted".into(),
        message: "The node was low on resource: memory. ".into(),
        disrupts: true,
    });
    insta::assert_snapshot!(case.yaml());
    case.kill = Some(KillCause::Node {
        reason: "Evicted".into(),
        message: "Usage of EmptyDir volume \"v\" exceeds the limit \"1Ki\". ".into(),
        disrupts: false,
    });
    let own_fault = case.yaml();
    assert!(own_fault.contains("reason: Evicted") && !own_fault.contains("DisruptionTarget"), "{own_fault}");
}

#[test]
fn turned_away() {
    let mut case = Case::new(APP, vec![]);
    case.observed.sandboxes.clear();
    case.stage = Stage::Terminating;
    case.kill = Some(KillCause::Rejected {
        reason: "OutOfcpu".into(),
        message: "Pod was rejected: Node didn't have enough resource: cpu".into(),
    });
    insta::assert_snapshot!(case.yaml());
    // The verdict stays as bare as it is when a later agent has only the object to go by.
    let told = case.publish();
    (case.stage, case.kill, case.now) = (Stage::Terminated, None, 2_000);
    assert_eq!(case.publish(), told);
    case.pod.status = Some(std::mem::take(&mut case.previous));
    assert_eq!(case.status(), told);
}

#[test]
fn vanished() {
    let mut case = Case::new(APP, vec![instance("app")]);
    case.publish();
    case.observed.containers.clear();
    insta::assert_snapshot!(case.yaml());
}

/// A sidecar asks for it, and those that never restart have been killed for it.
#[test]
fn killed_to_be_restarted() {
    let spec = "
restartPolicy: Never
initContainers:
- {name: setup, image: 'setup:1'}
- name: judge
  image: 'judge:1'
  restartPolicy: Always
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]
containers: [{name: app, image: 'app:1'}]";
    let mut case = Case::new(spec, vec![instance("app"), instance("judge"), exited("setup", 0)]);
    assert_eq!(case.publish().phase.as_deref(), Some("Running"));
    case.observed.containers = vec![exited("app", 137), exited("judge", 42), exited("setup", 0)];
    assert_eq!(case.status().phase.as_deref(), Some("Running"));
    // The same exits when nobody asked are the end.
    case.observed.containers[1].exit_code = 1;
    assert_eq!(case.status().phase.as_deref(), Some("Failed"));
}

#[test]
fn restarting_all() {
    let spec = "
containers:
- {name: app, image: 'app:1'}
- name: judge
  image: 'judge:1'
  restartPolicy: Never
  restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88]}}]";
    let mut case = Case::new(spec, vec![instance("app"), instance("judge")]);
    case.publish();
    case.observed.containers = vec![exited("judge", 88)];
    insta::assert_snapshot!(case.yaml());
}
