//! When a container that stopped is started again.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::{ContainerKind, Verdict};
use crate::observed::Container as Instance;

/// Whether a container that exited with `exit_code` is to run again: its own rules first, then its
/// own policy, then the Pod's.
#[must_use]
pub fn restarts_after_exit(container: &Container, spec: &PodSpec, exit_code: i32) -> bool {
    if container.restart_policy.is_some() && matching_action(container, exit_code).is_some() {
        return true;
    }
    match policy(container, spec) {
        "OnFailure" => exit_code != 0,
        "Never" => false,
        _ => true,
    }
}

/// Whether a container that the kubelet itself kills (failed probe) is to run again. It has no exit
/// code yet, so the rules on exit codes have no say.
#[must_use]
pub fn restarts_after_kill(container: &Container, spec: &PodSpec) -> bool {
    policy(container, spec) != "Never"
}

/// Whether this exited instance is to run again.
///
/// Besides the policies, two ends that the kubelet itself brought about have their own rule, and it
/// must hold also when the exit is seen only later: a failed liveness or startup probe restarts
/// unless the policy is Never, whatever the exit code; one that was stopped because its definition
/// changed (`replaced`) restarts always. Editing what ended before that brings nothing back.
#[must_use]
pub fn will_restart(
    container: &Container,
    spec: &PodSpec,
    exited: &Instance,
    verdict: Verdict,
    replaced: bool,
) -> bool {
    let failed = verdict.liveness == Some(false) || verdict.startup == Some(false);
    restarts_after_exit(container, spec, exited.exit_code)
        || (failed && restarts_after_kill(container, spec))
        || replaced
        || was_called_off(exited)
}

/// Whether its start was called off by the one who asked for it, an agent that was killed in the midst of it.
/// The runtime says it ended, but it never ran: no policy on ends applies.
#[must_use]
pub fn was_called_off(exited: &Instance) -> bool {
    exited.started_at.is_none() && exited.message.ends_with("context canceled")
}

/// Whether the container could ever run again, whatever it exits with.
#[must_use]
pub fn may_restart(container: &Container, spec: &PodSpec) -> bool {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    (container.restart_policy.is_some() && rules.iter().any(|r| r.action == RESTART))
        || policy(container, spec) != "Never"
}

/// Whether this exit restarts every container of the Pod.
#[must_use]
pub fn restarts_all(container: &Container, exit_code: i32) -> bool {
    matching_action(container, exit_code) == Some(RESTART_ALL)
}

/// Whether some rule of the Pod could restart every container.
#[must_use]
pub fn may_restart_all(spec: &PodSpec) -> bool {
    let init = spec.init_containers.iter().flatten();
    init.chain(&spec.containers)
        .flat_map(|c| c.restart_policy_rules.iter().flatten())
        .any(|r| r.action == RESTART_ALL)
}

/// An init container that runs beside the regular ones for the Pod's life.
#[must_use]
pub fn is_sidecar(init: &Container) -> bool {
    init.restart_policy.as_deref() == Some("Always")
}

/// What kind of container bears this name in the Pod, if any does.
#[must_use]
pub fn kind_of(pod: &Pod, name: &str) -> Option<ContainerKind> {
    let spec = pod.spec.as_ref()?;
    if spec.containers.iter().any(|c| c.name == name) {
        return Some(ContainerKind::Regular);
    }
    if let Some(c) = spec.init_containers.iter().flatten().find(|c| c.name == name) {
        return Some(if is_sidecar(c) { ContainerKind::Sidecar } else { ContainerKind::Init });
    }
    let found = spec.ephemeral_containers.iter().flatten().any(|c| c.name == name);
    found.then_some(ContainerKind::Ephemeral)
}

const RESTART: &str = "Restart";
const RESTART_ALL: &str = "RestartAllContainers";

fn policy<'a>(container: &'a Container, spec: &'a PodSpec) -> &'a str {
    container.restart_policy.as_deref().or(spec.restart_policy.as_deref()).unwrap_or("Always")
}

/// The action of the first rule that matches; actions we do not know match nothing.
fn matching_action(container: &Container, exit_code: i32) -> Option<&str> {
    let rules = container.restart_policy_rules.as_deref().unwrap_or_default();
    let hit = rules.iter().find(|r| {
        r.exit_codes.as_ref().is_some_and(|on| {
            let listed = on.values.iter().flatten().any(|v| *v == exit_code);
            match on.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                _ => false,
            }
        })
    })?;
    [RESTART, RESTART_ALL].into_iter().find(|a| *a == hit.action)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};

    use super::*;

    fn rule(action: &str, operator: &str, values: &[i32]) -> ContainerRestartRule {
        ContainerRestartRule {
            action: action.into(),
            exit_codes: Some(ContainerRestartRuleOnExitCodes {
                operator: operator.into(),
                values: Some(values.to_vec()),
            }),
        }
    }

    fn container(policy: Option<&str>, rules: Vec<ContainerRestartRule>) -> Container {
        Container {
            restart_policy: policy.map(Into::into),
            restart_policy_rules: (!rules.is_empty()).then_some(rules),
            ..Default::default()
        }
    }

    #[test]
    fn rules_then_container_then_pod() {
        let table = [
            // (pod policy, container policy, rules, exit code, restarts)
            ("Always", None, vec![], 0, true),
            ("OnFailure", None, vec![], 0, false),
            ("OnFailure", None, vec![], 1, true),
            ("Never", None, vec![], 1, false),
            ("Never", Some("Always"), vec![], 0, true),
            ("Always", Some("Never"), vec![], 1, false),
            ("Always", Some("OnFailure"), vec![], 0, false),
            ("Never", Some("Never"), vec![rule("Restart", "In", &[42])], 42, true),
            ("Never", Some("Never"), vec![rule("Restart", "In", &[42])], 41, false),
            ("Never", Some("Never"), vec![rule("Restart", "NotIn", &[42])], 41, true),
            ("Never", Some("Never"), vec![rule("Restart", "NotIn", &[42])], 42, false),
            ("Never", Some("Never"), vec![rule("RestartAllContainers", "In", &[7])], 7, true),
            ("Never", Some("Never"), vec![rule("Explode", "In", &[7])], 7, false),
        ];
        for (pod, own, rules, code, want) in table {
            let spec = PodSpec { restart_policy: Some(pod.into()), ..Default::default() };
            let c = container(own, rules);
            assert_eq!(restarts_after_exit(&c, &spec, code), want, "{pod} {own:?} {code}");
        }
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let c = container(
            Some("Never"),
            vec![rule("Restart", "In", &[1]), rule("RestartAllContainers", "NotIn", &[0])],
        );
        assert!(!restarts_all(&c, 1));
        assert!(restarts_all(&c, 2));
        assert!(!restarts_all(&c, 0));
    }
}
