//! Where the spec of each Pod, and what became of its containers, leads it in good weather.
//!
//! Nothing here asks the kubelet's own rules: phases and restarts are worked out anew from what the runtime really did.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::{Agent, World};
use crate::fake_runtime::{Entry, Op};

/// The longest back-off is five minutes; what follows it takes a moment.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(330);

/// The longest anything takes that needs no pause: a grace, a hook, a safety relist, a probe's threshold.
const SETTLING: Duration = Duration::from_secs(120);

/// What the runtime says of one container of a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    /// Nothing of it was ever started.
    Unborn,
    Runs {
        since: Duration,
    },
    Ended {
        code: i32,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Init,
    Sidecar,
    Regular,
}

/// One container: what it is for, what became of it, and when it was last tried.
struct Member<'a> {
    spec: &'a Container,
    role: Role,
    life: Life,
    /// It was stopped, and then tried again: a failed probe restarts it unless the policy is Never, whatever its exit code.
    comes_back: bool,
    last_try: Option<Duration>,
}

/// A Pod and its containers at one moment.
struct Facts<'a> {
    name: &'a str,
    spec: &'a PodSpec,
    members: Vec<Member<'a>>,
    /// As upstream, no second sandbox is made for a Pod that may not restart and has had a container: what had not been
    /// started when the first one died never is.
    is_stranded: bool,
    now: Duration,
}

/// Everything wrong with where a Pod is. What has ended may wait for at most `pause` before it is tried again.
pub(super) fn astray(world: &World, agent: &Agent, pod: &Pod, pause: Duration) -> Vec<String> {
    let (Some(spec), Some(uid)) = (&pod.spec, pod.metadata.uid.as_deref()) else { return Vec::new() };
    let journal = world.runtime.journal();
    let entries: Vec<&Entry> = journal.entries().iter().filter(|e| e.pod_uid == uid).collect();
    let entries = this_life(&entries);
    let init = spec.init_containers.iter().flatten().map(|c| {
        let role = if c.restart_policy.as_deref() == Some("Always") { Role::Sidecar } else { Role::Init };
        Member::new(c, role, entries)
    });
    let regular = spec.containers.iter().map(|c| Member::new(c, Role::Regular, entries));
    let facts = Facts {
        name: pod.metadata.name.as_deref().unwrap_or_default(),
        spec,
        members: init.chain(regular).collect(),
        is_stranded: spec.restart_policy.as_deref() == Some("Never") && has_lost_its_sandbox(entries),
        now: world.runtime.now(),
    };
    let mut wrong = facts.idle(pause);
    let (phase, expected) = (agent.phase(uid), facts.phases());
    if !expected.contains(&phase.as_str()) {
        wrong.push(format!("Pod {} is {phase:?} and should be {}", facts.name, expected.join(" or ")));
    }
    if let Some(expected) = facts.ready(|c, age| world.runtime.exec_code(facts.name, c, age) == 0) {
        let said = agent.is_ready(uid);
        if said != expected {
            wrong.push(format!("Pod {} says Ready {said} and should say {expected}", facts.name));
        }
    }
    wrong
}

/// What happened since nothing was left of the Pod: one that is wanted again begins anew.
fn this_life<'a, 'b>(entries: &'a [&'b Entry]) -> &'a [&'b Entry] {
    let (mut sandboxes, mut begin) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        match entry.op {
            Op::RunSandbox => sandboxes += 1,
            Op::RemoveSandbox if sandboxes > 0 => sandboxes -= 1,
            _ => continue,
        }
        if sandboxes == 0 {
            begin = at + 1;
        }
    }
    &entries[begin..]
}

/// Whether the newest sandbox is dead, and some container was made.
fn has_lost_its_sandbox(entries: &[&Entry]) -> bool {
    let last = entries.iter().rev().find(|e| matches!(e.op, Op::RunSandbox | Op::StopSandbox));
    last.is_some_and(|e| e.op == Op::StopSandbox) && entries.iter().any(|e| e.op == Op::Create)
}

// === impl Member ===

impl<'a> Member<'a> {
    fn new(spec: &'a Container, role: Role, entries: &[&Entry]) -> Member<'a> {
        let (mut life, mut last_try) = (Life::Unborn, None);
        let (mut was_stopped, mut comes_back) = (false, false);
        for e in entries.iter().filter(|e| e.container == spec.name) {
            match e.op {
                Op::Start => {
                    life = Life::Runs { since: e.at };
                    (was_stopped, comes_back) = (false, false);
                }
                Op::Exit { code } => life = Life::Ended { code },
                Op::StartFailed => life = Life::Ended { code: 128 },
                Op::CreateFailed => comes_back |= was_stopped,
                Op::Stop { .. } => {
                    was_stopped = true;
                    continue;
                }
                _ => continue,
            }
            last_try = Some(e.at);
        }
        Member { spec, role, life, comes_back, last_try }
    }

    /// Whether it stays as it is, whatever time passes.
    fn is_over(&self, policy: &str) -> bool {
        match (self.life, self.role, policy) {
            (Life::Ended { .. }, Role::Sidecar, _) => false,
            (Life::Ended { code: 0 }, Role::Init, _) => true,
            (Life::Ended { code }, _, "OnFailure") => code == 0 && !self.comes_back,
            (Life::Ended { .. }, _, "Never") => true,
            _ => false,
        }
    }
}

// === impl Facts ===

impl Facts<'_> {
    fn policy(&self) -> &str {
        self.spec.restart_policy.as_deref().unwrap_or("Always")
    }

    fn of(&self, role: Role) -> impl Iterator<Item = &Member<'_>> {
        self.members.iter().filter(move |m| m.role == role)
    }

    fn init_failed(&self) -> bool {
        let failed = |m: &Member<'_>| matches!(m.life, Life::Ended { code } if code != 0);
        self.policy() == "Never" && self.of(Role::Init).any(failed)
    }

    fn is_over(&self) -> bool {
        self.spec.active_deadline_seconds.is_some()
            || self.init_failed()
            || self.of(Role::Regular).all(|m| m.is_over(self.policy()))
    }

    /// Containers that should run, do not, and have not been tried for longer than a back-off.
    fn idle(&self, pause: Duration) -> Vec<String> {
        if self.is_over() {
            let runs = self.members.iter().filter(|m| matches!(m.life, Life::Runs { .. }));
            return runs
                .map(|m| format!("{} of {} runs, and the Pod is over", m.spec.name, self.name))
                .collect();
        }
        let mut wrong = Vec::new();
        for member in self.due().filter(|_| !self.is_stranded) {
            let is_recent = member.last_try.is_some_and(|at| at + pause >= self.now);
            if !matches!(member.life, Life::Runs { .. }) && !member.is_over(self.policy()) && !is_recent {
                let (life, tried) = (member.life, member.last_try);
                wrong.push(format!(
                    "{} of {} should run and does not: {life:?}, last tried {tried:?}",
                    member.spec.name, self.name
                ));
            }
        }
        wrong
    }

    /// Those whose turn it is: init containers one after the other, sidecars among them, then all the others.
    fn due(&self) -> impl Iterator<Item = &Member<'_>> {
        let is_through = |m: &Member<'_>| match m.role {
            Role::Init => matches!(m.life, Life::Ended { code: 0 }),
            // What comes next waits for the first start only.
            Role::Sidecar => m.life != Life::Unborn,
            Role::Regular => true,
        };
        let stop = self.members.iter().position(|m| !is_through(m)).map_or(self.members.len(), |at| at + 1);
        self.members[..stop].iter()
    }

    /// The phases that are right; mostly one.
    fn phases(&self) -> &'static [&'static str] {
        let all_well = self.of(Role::Regular).all(|m| m.life == Life::Ended { code: 0 });
        if self.spec.active_deadline_seconds.is_some() {
            // As upstream, a deadline that passes while the last sidecar ends counts.
            return if all_well { &["Succeeded", "Failed"] } else { &["Failed"] };
        }
        if self.init_failed() {
            return &["Failed"];
        }
        if self.is_over() {
            return if all_well { &["Succeeded"] } else { &["Failed"] };
        }
        if self.is_stranded {
            return &["Pending", "Failed"];
        }
        let unborn = |m: &Member<'_>| m.life == Life::Unborn;
        let uninitialised = self.of(Role::Init).any(|m| !matches!(m.life, Life::Ended { code: 0 }));
        match uninitialised || self.members.iter().any(unborn) {
            true => &["Pending"],
            false => &["Running"],
        }
    }

    /// Whether the Pod is ready, where all its containers have run for long enough to say so.
    fn ready(&self, answers: impl Fn(&str, Duration) -> bool) -> Option<bool> {
        let ages = self.members.iter().filter(|m| m.role != Role::Init).map(|m| match m.life {
            Life::Runs { since } => Some((m, self.now.saturating_sub(since))),
            _ => None,
        });
        let ages: Vec<_> = ages.collect::<Option<_>>()?;
        if ages.iter().any(|(_, age)| *age < SETTLING) || self.is_over() {
            return None;
        }
        Some(ages.iter().all(|(m, age)| m.spec.readiness_probe.is_none() || answers(&m.spec.name, *age)))
    }
}
