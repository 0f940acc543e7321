//! Rows under each other.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;

use super::row::Row;

const HEADER: [&str; 9] = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE", "SOURCE"];
/// Columns without `wide`.
const NARROW: usize = 7;

pub(super) fn render(pods: &[Pod], wide: bool, now: Timestamp) -> String {
    let rows: Vec<Row> = pods.iter().map(|p| Row::of(p, now)).collect();
    let mut lines = vec![HEADER.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    align(&lines, if wide { HEADER.len() } else { NARROW })
}

fn align(lines: &[[String; 9]], columns: usize) -> String {
    let width = |i: usize| lines.iter().map(|l| l[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            text.push_str(&format!("{cell:<width$}   "));
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
    out
}

impl Row {
    fn cells(&self) -> [String; 9] {
        [
            &self.namespace,
            &self.name,
            &self.ready,
            &self.status,
            &self.restarts,
            &self.age,
            &self.ip,
            &self.node,
            &self.source,
        ]
        .map(Clone::clone)
    }
}

/// A table that grows by the rows that changed.
pub(super) struct Watched {
    wide: bool,
    started: bool,
    /// By UID: what a row last said, its age aside.
    rows: BTreeMap<String, Row>,
}

impl Watched {
    pub(super) fn new(wide: bool) -> Self {
        Self { wide, started: false, rows: BTreeMap::new() }
    }

    /// The rows that differ from what was shown before.
    pub(super) fn news(&mut self, pods: &[Pod], now: Timestamp) -> String {
        let mut fresh = Vec::new();
        let mut seen = BTreeMap::new();
        for pod in pods {
            let row = Row::of(pod, now);
            let key = pod.metadata.uid.clone().unwrap_or_default();
            let ageless = Row { age: String::new(), ..row.clone() };
            if self.rows.get(&key) != Some(&ageless) {
                fresh.push(pod.clone());
            }
            seen.insert(key, ageless);
        }
        self.rows = seen;
        if fresh.is_empty() && self.started {
            return String::new();
        }
        let text = render(&fresh, self.wide, now);
        let skip = usize::from(std::mem::replace(&mut self.started, true));
        text.split_inclusive('\n').skip(skip).collect()
    }
}
