//! `--config`: one file whose documents are the configuration kinds of the parts. What a document says wins over what `up` would
//! say; what it leaves out is as `up` has it.

use std::path::Path;

use api::config::{MAX_FILE, ReadFiles};
use api::yaml::{self, DuplicateKeys};
use serde_json::Value;

use crate::files::RealFiles;

pub(super) const KUBELET: &str = "KubeletConfiguration";
pub(super) const PROXY: &str = "KubeProxyConfiguration";
pub(super) const SCHEDULER: &str = "KubeSchedulerConfiguration";

/// What the user's file says, by kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Documents(Vec<(String, Value)>);

// === impl Documents ===

impl Documents {
    pub(super) fn read(path: Option<&Path>) -> Result<Documents, String> {
        let Some(path) = path else { return Ok(Documents::default()) };
        let within = |e: String| format!("--config {}: {e}", path.display());
        let bytes = RealFiles.read(path).map_err(|e| within(e.to_string()))?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(within(format!("larger than {MAX_FILE} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|_| within("not valid UTF-8 text".to_owned()))?;
        Documents::parse(&text).map_err(within)
    }

    fn parse(text: &str) -> Result<Documents, String> {
        let mut documents: Vec<(String, Value)> = Vec::new();
        for part in split(text) {
            let value = yaml::to_value(part.as_bytes(), DuplicateKeys::Reject).map_err(|e| e.to_string())?;
            if value.is_null() {
                continue;
            }
            let kind = value["kind"].as_str().unwrap_or_default().to_owned();
            if ![KUBELET, PROXY, SCHEDULER].contains(&kind.as_str()) {
                return Err(format!("kind {kind:?} is none of {KUBELET}, {PROXY}, {SCHEDULER}"));
            }
            if documents.iter().any(|(known, _)| *known == kind) {
                return Err(format!("{kind} is there twice"));
            }
            documents.push((kind, value));
        }
        Ok(Documents(documents))
    }

    /// Our configuration with what the user says of this kind on top.
    pub(super) fn over(&self, kind: &str, mut ours: Value) -> Value {
        if let Some((_, theirs)) = self.0.iter().find(|(known, _)| known == kind) {
            merge(&mut ours, theirs);
        }
        ours
    }
}

fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for line in text.lines() {
        if line.trim_end() == "---" {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

/// What the second says wins; what it leaves out stays.
pub(super) fn merge(ours: &mut Value, theirs: &Value) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, value) in theirs {
                merge(ours.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (ours, theirs) => *ours = theirs.clone(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_the_file_says_wins_and_the_rest_stays() {
        let text = "kind: KubeletConfiguration\nevictionHard: { memory.available: 5% }\nmaxPods: 7\n---\n# none\n---\n\
                    kind: KubeProxyConfiguration\nmode: iptables\n";
        let documents = Documents::parse(text).unwrap();
        let ours =
            json!({"kind": KUBELET, "maxPods": 1, "evictionHard": {"nodefs.available": "1%"}, "port": 1});
        let want = json!({"kind": KUBELET, "maxPods": 7, "port": 1,
                          "evictionHard": {"nodefs.available": "1%", "memory.available": "5%"}});
        assert_eq!(documents.over(KUBELET, ours), want);
        assert_eq!(documents.over(SCHEDULER, json!({"a": 1})), json!({"a": 1}));
    }

    #[test]
    fn a_kind_that_nobody_reads_is_refused() {
        let told = |text: &str| Documents::parse(text).unwrap_err();
        assert!(told("kind: Pod\n").contains("\"Pod\" is none of KubeletConfiguration"));
        assert!(told("kind: KubeletConfiguration\n---\nkind: KubeletConfiguration\n").contains("twice"));
        assert!(told("a: [").contains("line") || !told("a: [").is_empty());
    }
}
