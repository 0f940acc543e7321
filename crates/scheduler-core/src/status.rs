//! How a node or a Pod is refused, and the sentence users read.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::plugin::PluginId;

/// Whether anything could make the node fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// Pods that make way may help.
    Unschedulable,
    /// Nothing that goes away helps.
    UnschedulableAndUnresolvable,
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub code: Code,
    pub reasons: Reasons,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reasons {
    One(&'static str),
    Many(Vec<Cow<'static, str>>),
}

/// What became of a node that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    pub node: usize,
    pub plugin: PluginId,
    pub rejection: Rejection,
}

/// Why a Pod fits nowhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// All nodes there are.
    pub nodes: usize,
    pub statuses: Vec<NodeStatus>,
    /// What holds for every node that has no status of its own.
    pub absent: Option<(Rejection, PluginId)>,
    /// A PreFilter plugin refused the Pod as a whole.
    pub pre_filter: Option<String>,
    pub post_filter: String,
    pub plugins: PluginSet,
}

/// Some of the plugins.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct PluginSet(u32);

// === impl Rejection ===

impl Rejection {
    #[must_use]
    pub const fn unschedulable(reason: &'static str) -> Rejection {
        Rejection { code: Code::Unschedulable, reasons: Reasons::One(reason) }
    }

    #[must_use]
    pub const fn unresolvable(reason: &'static str) -> Rejection {
        Rejection { code: Code::UnschedulableAndUnresolvable, reasons: Reasons::One(reason) }
    }

    #[must_use]
    pub fn said(code: Code, reason: String) -> Rejection {
        Rejection { code, reasons: Reasons::Many(vec![reason.into()]) }
    }

    /// All reasons in one line.
    #[must_use]
    pub fn message(&self) -> String {
        let all: Vec<&str> = self.reasons.iter().collect();
        all.join(", ")
    }
}

// === impl Reasons ===

impl Reasons {
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (one, many) = match self {
            Reasons::One(reason) => (Some(*reason), &[][..]),
            Reasons::Many(all) => (None, all.as_slice()),
        };
        one.into_iter().chain(many.iter().map(Cow::as_ref))
    }
}

// === impl Diagnosis ===

impl Diagnosis {
    /// The sentence of the condition and the event.
    #[must_use]
    pub fn message(&self) -> String {
        let mut out = format!("0/{} nodes are available:", self.nodes);
        let reasons = match &self.pre_filter {
            Some(message) => message.clone(),
            None => self.reasons().join(", "),
        };
        if !reasons.is_empty() {
            out.push_str(&format!(" {reasons}."));
        }
        if !self.post_filter.is_empty() {
            out.push(' ');
            out.push_str(&self.post_filter);
        }
        out
    }

    /// How many nodes each reason kept away, sorted as text.
    fn reasons(&self) -> Vec<String> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for status in &self.statuses {
            for reason in status.rejection.reasons.iter() {
                *counts.entry(reason).or_default() += 1;
            }
        }
        let absent = self.nodes.saturating_sub(self.statuses.len());
        if let Some((rejection, _)) = self.absent.as_ref().filter(|_| absent > 0) {
            for reason in rejection.reasons.iter() {
                *counts.entry(reason).or_default() += absent;
            }
        }
        let mut lines: Vec<String> = counts.iter().map(|(reason, n)| format!("{n} {reason}")).collect();
        lines.sort();
        lines
    }

    #[must_use]
    pub fn status_of(&self, node: usize) -> Option<&Rejection> {
        let own = self.statuses.iter().find(|s| s.node == node).map(|s| &s.rejection);
        own.or(self.absent.as_ref().map(|(rejection, _)| rejection))
    }
}

// === impl PluginSet ===

impl PluginSet {
    #[cfg(test)]
    pub(crate) const NODE_RESOURCES_FIT: PluginSet = PluginSet(1 << PluginId::NodeResourcesFit as u32);

    pub fn insert(&mut self, plugin: PluginId) {
        self.0 |= 1 << plugin.index();
    }

    #[must_use]
    pub fn with(mut self, plugin: PluginId) -> PluginSet {
        self.insert(plugin);
        self
    }

    #[must_use]
    pub fn has(self, plugin: PluginId) -> bool {
        self.0 & (1 << plugin.index()) != 0
    }

    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[must_use]
    pub fn union(self, other: PluginSet) -> PluginSet {
        PluginSet(self.0 | other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = PluginId> {
        PluginId::all().filter(move |id| self.has(*id))
    }
}

impl std::fmt::Debug for PluginSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.iter().map(PluginId::name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(node: usize, rejection: Rejection) -> NodeStatus {
        NodeStatus { node, plugin: PluginId::NodeName, rejection }
    }

    #[test]
    fn the_sentence_counts_reasons_and_sorts_them_as_text() {
        let cpu = Rejection::unschedulable("Insufficient cpu");
        let both = Rejection {
            code: Code::Unschedulable,
            reasons: Reasons::Many(vec!["Insufficient cpu".into(), "Too many pods".into()]),
        };
        let mut statuses: Vec<NodeStatus> = (0..9).map(|n| status(n, cpu.clone())).collect();
        statuses.push(status(9, both));
        statuses.push(status(10, Rejection::unresolvable("node(s) had untolerated taint(s)")));
        let mut diagnosis = Diagnosis { nodes: 11, statuses, ..Diagnosis::default() };
        assert_eq!(
            diagnosis.message(),
            "0/11 nodes are available: 1 Too many pods, 1 node(s) had untolerated taint(s), 10 Insufficient cpu."
        );
        diagnosis.post_filter = "not found".to_owned();
        assert!(diagnosis.message().ends_with("10 Insufficient cpu. not found"));
        diagnosis.pre_filter = Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
        assert_eq!(
            diagnosis.message(),
            "0/11 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found"
        );
    }

    #[test]
    fn nodes_that_were_never_asked_count_under_their_plugin() {
        let rejection = Rejection::unresolvable("node(s) didn't satisfy plugin(s) [NodeAffinity]");
        let diagnosis = Diagnosis {
            nodes: 3,
            statuses: vec![status(0, Rejection::unschedulable("Insufficient cpu"))],
            absent: Some((rejection, PluginId::NodeAffinity)),
            ..Diagnosis::default()
        };
        assert_eq!(
            diagnosis.message(),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [NodeAffinity]."
        );
    }
}
