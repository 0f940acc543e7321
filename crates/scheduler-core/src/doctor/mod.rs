//! Why a Pod does not run, or does not end: from who should make it, over quota, scheduling, volumes, sandbox, images and
//! probes, to finalizers. Facts go in, findings come out, in the order in which a Pod's luck depends on them: the first that
//! is wrong is the one to look at.

mod ending;
mod making;
mod running;
mod waiting;

use std::fmt::Display;

pub use base::finding::{Finding, Grade, verdict};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::cluster::Cluster;

/// Everything that was found out, and nothing decided.
#[derive(Debug, Default)]
pub struct Facts {
    pub namespace: String,
    pub name: String,
    pub pod: Option<core::Pod>,
    /// None where there is no such namespace.
    pub namespace_phase: Option<String>,
    /// Of the Pod's namespace.
    pub events: Vec<core::Event>,
    pub quotas: Vec<core::ResourceQuota>,
    /// ConfigMaps, Secrets and claims that the Pod cannot do without and that are not there: `secret "x"`.
    pub missing: Vec<String>,
    /// The Pod's node, if there is such an object.
    pub node: Option<core::Node>,
    /// What the scheduler looks at, the Pod's own place left out.
    pub cluster: Cluster,
    /// Nanoseconds since the epoch.
    pub now: i64,
}

/// All findings. After something without which the rest makes no sense, there are no more.
#[must_use]
pub fn examine(facts: &mut Facts) -> Vec<Finding> {
    let mut chart = Chart { findings: Vec::new() };
    let Some(pod) = facts.pod.take() else {
        making::examine(&mut chart, facts);
        return chart.findings;
    };
    if pod.metadata.deletion_timestamp.is_some() {
        ending::examine(&mut chart, facts, &pod);
        return chart.findings;
    }
    chart.owner(&pod);
    let status = pod.status.clone().unwrap_or_default();
    match status.phase.as_deref() {
        Some("Succeeded") => chart.good(format!("Pod {} has ended well", shown(&pod))),
        Some("Failed") => {
            let why = [status.reason, status.message].into_iter().flatten().collect::<Vec<_>>().join(": ");
            let why = if why.is_empty() { ended_containers(&pod) } else { why };
            let advice = describe(&pod);
            chart.wrong(format!("Pod {} has failed: {why}", shown(&pod)), &advice);
        }
        _ if node_of(&pod).is_none() => waiting::examine(&mut chart, facts, &pod),
        _ => running::examine(&mut chart, facts, &pod),
    }
    chart.findings
}

/// Findings as they come together.
struct Chart {
    findings: Vec<Finding>,
}

// === impl Chart ===

impl Chart {
    fn put(&mut self, grade: Grade, text: String, advice: &str) {
        self.findings.push(Finding { grade, text, advice: advice.to_owned() });
    }

    fn good(&mut self, text: String) {
        self.put(Grade::Good, text, "");
    }

    fn note(&mut self, text: String) {
        self.put(Grade::Note, text, "");
    }

    fn wrong(&mut self, text: String, advice: &str) {
        self.put(Grade::Wrong, text, advice);
    }

    fn is_well(&self) -> bool {
        verdict(&self.findings).is_none()
    }

    fn owner(&mut self, pod: &core::Pod) {
        let owners = pod.metadata.owner_references.iter().flatten();
        match owners.clone().find(|o| o.controller == Some(true)) {
            Some(owner) => self.good(format!("it belongs to {} {:?}", owner.kind, owner.name)),
            None if is_static(pod) => {
                self.note(
                    "it is a static Pod: its manifest lies on its node, and deleting it here changes nothing"
                        .to_owned(),
                );
            }
            None => self.note("nobody owns it: once it is gone, nobody makes it again".to_owned()),
        }
    }
}

fn is_static(pod: &core::Pod) -> bool {
    pod.metadata.annotations.as_ref().is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"))
}

/// Namespace and name, as commands want them.
fn target(pod: &core::Pod) -> String {
    let meta = &pod.metadata;
    format!(
        "-n {} {}",
        meta.namespace.as_deref().unwrap_or("default"),
        meta.name.as_deref().unwrap_or_default()
    )
}

fn shown(pod: &core::Pod) -> String {
    let meta = &pod.metadata;
    format!("{}/{}", meta.namespace.as_deref().unwrap_or("default"), meta.name.as_deref().unwrap_or_default())
}

fn describe(pod: &core::Pod) -> String {
    format!("look at it with `kubectl describe pod {}`", target(pod))
}

fn node_of(pod: &core::Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

fn condition<'a>(pod: &'a core::Pod, kind: &str) -> Option<&'a core::PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Statuses of all containers, those that come first first.
fn statuses(pod: &core::Pod) -> impl Iterator<Item = &core::ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|s| s.init_container_statuses.as_ref());
    let main = status.and_then(|s| s.container_statuses.as_ref());
    init.into_iter().flatten().chain(main.into_iter().flatten())
}

/// How a container ended, in a few words.
fn how_it_ended(end: &core::ContainerStateTerminated) -> String {
    let reason = end.reason.as_deref().filter(|r| !r.is_empty() && *r != "Error").unwrap_or("ended");
    let what = match end.signal.filter(|s| *s != 0) {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", end.exit_code),
    };
    match end.message.as_deref().map(str::trim).filter(|m| !m.is_empty()) {
        Some(message) => format!("{reason} with {what}: {}", first_line(message)),
        None => format!("{reason} with {what}"),
    }
}

/// Why a node is not ready; none if it is.
fn unready(node: &core::Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|c| c.type_ == "Ready");
    match ready {
        None => Some("its kubelet has not said anything yet".to_owned()),
        Some(c) if c.status == "True" => None,
        Some(c) => {
            let message = c.message.clone().filter(|m| !m.is_empty());
            Some(message.or_else(|| c.reason.clone()).unwrap_or_default())
        }
    }
}

fn ended_containers(pod: &core::Pod) -> String {
    let ended = statuses(pod).filter_map(|s| {
        let end = s.state.as_ref()?.terminated.as_ref().filter(|end| end.exit_code != 0)?;
        Some(format!("container {:?} {}", s.name, how_it_ended(end)))
    });
    ended.collect::<Vec<_>>().join(", ")
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

fn nanoseconds(time: &Time) -> i64 {
    i64::try_from(time.0.as_nanosecond()).unwrap_or(i64::MAX)
}

// === impl Facts ===

impl Facts {
    /// The newest event of one of these reasons about an object.
    fn event(&self, kind: &str, name: &str, reasons: &[&str]) -> Option<&core::Event> {
        let about = |e: &&core::Event| {
            let object = &e.involved_object;
            object.kind.as_deref() == Some(kind) && object.name.as_deref() == Some(name)
        };
        let meant = self.events.iter().filter(about);
        meant.filter(|e| e.reason.as_deref().is_some_and(|r| reasons.contains(&r))).max_by_key(|e| told_at(e))
    }

    /// The same about the Pod, in its present life.
    fn own_event(&self, pod: &core::Pod, reasons: &[&str]) -> Option<&core::Event> {
        let event = self.event("Pod", pod.metadata.name.as_deref()?, reasons)?;
        let uid = event.involved_object.uid.as_deref().unwrap_or_default();
        (uid.is_empty() || pod.metadata.uid.as_deref() == Some(uid)).then_some(event)
    }

    fn seconds_since(&self, time: &Time) -> i64 {
        (self.now - nanoseconds(time)) / 1_000_000_000
    }
}

fn told_at(event: &core::Event) -> i64 {
    let series = event.series.as_ref().and_then(|s| s.last_observed_time.as_ref());
    let exact = series.or(event.event_time.as_ref()).map(|t| i64::try_from(t.0.as_nanosecond()).unwrap_or(0));
    let old = event.last_timestamp.as_ref().or(event.first_timestamp.as_ref()).map(nanoseconds);
    exact.into_iter().chain(old).max().unwrap_or(0)
}

fn said(event: &core::Event) -> &str {
    event.message.as_deref().unwrap_or_default().trim()
}

/// `1 node`, `2 nodes`.
fn counted(count: usize, what: impl Display) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests;
