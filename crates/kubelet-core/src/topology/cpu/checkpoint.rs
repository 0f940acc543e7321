//! `cpu_manager_state`, in upstream's format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::cpu_set::CpuSet;
use super::super::file::{FileError, from_json};
use super::{CpuState, Entries};
use crate::go_dump::{Field, Go, Key, checksum, field};

/// The name of the file below the kubelet's root.
pub const FILE: &str = "cpu_manager_state";

#[derive(Debug, Default, Deserialize, Serialize)]
struct Checkpoint {
    #[serde(rename = "policyName", default)]
    policy_name: String,
    #[serde(rename = "defaultCpuSet", default)]
    shared: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, String>>,
    #[serde(default)]
    checksum: u64,
}

/// The state as a file.
#[must_use]
pub fn write(policy: &str, state: &CpuState) -> String {
    let set = |(name, cpus): (&String, &CpuSet)| (name.clone(), cpus.to_string());
    let pod = |(uid, containers): (&String, &BTreeMap<String, CpuSet>)| {
        (uid.clone(), containers.iter().map(set).collect())
    };
    let mut checkpoint = Checkpoint {
        policy_name: policy.to_owned(),
        shared: state.shared.to_string(),
        entries: state.entries.iter().map(pod).collect(),
        checksum: 0,
    };
    checkpoint.checksum = checkpoint.sum();
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

/// Reads a file that a kubelet with this policy wrote.
pub fn read(policy: &str, text: &str) -> Result<CpuState, FileError> {
    let names = ["policyName", "defaultCpuSet", "entries", "checksum"];
    let checkpoint: Checkpoint = from_json(text, &names)?;
    // A checksum of zero is from before there were any.
    if checkpoint.checksum != 0 && checkpoint.checksum != checkpoint.sum() {
        return Err(FileError::Corrupt);
    }
    if checkpoint.policy_name != policy {
        return Err(FileError::Policy { ours: policy.to_owned(), theirs: checkpoint.policy_name });
    }
    let shared = checkpoint.shared.parse().map_err(|e| {
        FileError::Content(format!("could not parse default cpu set {:?}: {e}", checkpoint.shared))
    })?;
    let mut entries = Entries::new();
    for (uid, containers) in checkpoint.entries {
        let pod = entries.entry(uid.clone()).or_default();
        for (name, text) in containers {
            let cpus = text.parse().map_err(|e| {
                FileError::Content(format!(
                    "could not parse cpuset {text:?} for container {name:?} in pod {uid:?}: {e}"
                ))
            })?;
            pod.insert(name, cpus);
        }
    }
    Ok(CpuState { shared, entries })
}

// === impl Checkpoint ===

impl Checkpoint {
    fn sum(&self) -> u64 {
        let text = |(k, v): (&String, &String)| (k.as_str().into(), Go::from(v.as_str()));
        let pod = |(uid, containers): (&String, &BTreeMap<String, String>)| {
            (Key::from(uid.as_str()), Go::Map(containers.iter().map(text).collect()))
        };
        let fields: [Field; 4] = [
            field("PolicyName", "string", self.policy_name.as_str()),
            field("DefaultCPUSet", "string", self.shared.as_str()),
            field("Entries", "map[string]map[string]string", Go::map(self.entries.iter().map(pod))),
            field("Checksum", "checksum.Checksum", 0u64),
        ];
        checksum("state.CPUManagerCheckpoint", &fields).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Written by upstream's kubelet, spelled as it was.
    const WRITTEN: [(&str, u32); 2] = [
        (r#""defaultCPUSet":"4-6","entries":{}"#, 354_655_845),
        (r#""defaultCPUSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}}"#, 3_610_638_499),
    ];

    #[test]
    fn files_of_upstream_are_read_and_their_checksums_are_ours() {
        for (content, sum) in WRITTEN {
            let text = format!(r#"{{"policyName":"none",{content},"checksum":{sum}}}"#);
            let state = read("none", &text).unwrap();
            assert!(write("none", &state).ends_with(&format!(r#""checksum":{sum}}}"#)));
        }
    }

    #[test]
    fn files_that_are_not_ours_are_refused() {
        let told = |policy: &str, text: &str| read(policy, text).unwrap_err().to_string();
        let good = write("static", &CpuState { shared: CpuSet::from([0, 1]), entries: Entries::new() });
        assert_eq!(
            told("none", &good),
            "configured policy \"none\" differs from state checkpoint policy \"static\""
        );
        assert_eq!(told("static", &good.replace("0-1", "0-2")), "checkpoint is corrupted");
        assert_eq!(
            told("static", &good.replace("static", "none")),
            "checkpoint is corrupted",
            "the sum is looked at first"
        );
        assert!(told("static", "{").contains("EOF"));
        let odd = r#"{"policyName":"static","defaultCpuSet":"1.3"}"#;
        assert_eq!(
            told("static", odd),
            "could not parse default cpu set \"1.3\": strconv.Atoi: parsing \"1.3\": invalid syntax"
        );
    }

    #[test]
    fn an_empty_state_has_no_entries() {
        let text = write("none", &CpuState::default());
        assert_eq!(text, r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#);
    }
}
