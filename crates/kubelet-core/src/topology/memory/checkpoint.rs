//! `memory_manager_state`, in upstream's format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::file::{FileError, from_json};
use super::state::{Block, Entries, MemoryState, NodeState, Nodes, Table};
use crate::go_dump::{Go, Key, checksum, field};

/// The name of the file below the kubelet's root.
pub const FILE: &str = "memory_manager_state";

#[derive(Debug, Default, Deserialize, Serialize)]
struct Checkpoint {
    #[serde(rename = "policyName", default)]
    policy_name: String,
    #[serde(rename = "machineState", default)]
    nodes: Nodes,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: Entries,
    #[serde(default)]
    checksum: u64,
}

/// The state as a file.
#[must_use]
pub fn write(policy: &str, state: &MemoryState) -> String {
    let checkpoint = Checkpoint {
        policy_name: policy.to_owned(),
        nodes: state.nodes.clone(),
        entries: state.entries.clone(),
        checksum: sum(policy, &state.nodes, &state.entries),
    };
    serde_json::to_string(&checkpoint).unwrap_or_default()
}

/// Reads a file that a kubelet with this policy wrote.
pub fn read(policy: &str, text: &str) -> Result<MemoryState, FileError> {
    let read: Checkpoint = from_json(text, &["policyName", "machineState", "entries", "checksum"])?;
    let Checkpoint { policy_name, nodes, entries, checksum } = read;
    if checksum != 0 && checksum != sum(&policy_name, &nodes, &entries) {
        return Err(FileError::Corrupt);
    }
    if policy_name != policy {
        return Err(FileError::Policy { ours: policy.to_owned(), theirs: policy_name });
    }
    Ok(MemoryState { nodes, entries })
}

fn sum(policy: &str, nodes: &Nodes, entries: &Entries) -> u64 {
    let pod = |(uid, containers): (&String, &BTreeMap<String, Vec<Block>>)| {
        let all = |(name, blocks): (&String, &Vec<Block>)| {
            (name.as_str().into(), Go::Slice(blocks.iter().map(go_block).collect()))
        };
        (Key::from(uid.as_str()), Go::Map(containers.iter().map(all).collect()))
    };
    let fields = [
        field("PolicyName", "string", policy),
        field("MachineState", "state.NUMANodeMap", Go::map(nodes.iter().map(|(id, n)| (*id, go_node(n))))),
        field("Entries", "state.ContainerMemoryAssignments", Go::map(entries.iter().map(pod))),
        field("Checksum", "checksum.Checksum", 0u64),
    ];
    checksum("state.MemoryManagerCheckpoint", &fields).into()
}

fn go_node(node: &NodeState) -> Go {
    let tables = node.memory.iter().map(|(kind, table)| (kind.as_str(), go_table(table)));
    Go::Struct(vec![
        field("NumberOfAssignments", "int", Go::Plain(node.assignments.to_string())),
        field("MemoryMap", "map[v1.ResourceName]*state.MemoryTable", Go::map(tables)),
        field("Cells", "[]int", go_ints(&node.cells)),
    ])
    .pointer()
}

fn go_table(table: &Table) -> Go {
    let number = |name, value: u64| field(name, "uint64", value);
    Go::Struct(vec![
        number("TotalMemSize", table.total),
        number("SystemReserved", table.system_reserved),
        number("Allocatable", table.allocatable),
        number("Reserved", table.reserved),
        number("Free", table.free),
    ])
    .pointer()
}

fn go_block(block: &Block) -> Go {
    Go::Struct(vec![
        field("NUMAAffinity", "[]int", go_ints(&block.nodes)),
        field("Type", "v1.ResourceName", block.kind.as_str()),
        field("Size", "uint64", block.size),
    ])
}

fn go_ints(numbers: &[u32]) -> Go {
    Go::Slice(numbers.iter().map(|n| u64::from(*n).into()).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_upstream_is_read_and_its_checksum_is_ours() {
        let written = r#"{"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}},"checksum":4215593881}"#;
        let state = read("static", written).unwrap();
        assert_eq!(write("static", &state), written);
        let told = |text: &str| read("static", text).unwrap_err().to_string();
        assert_eq!(told(&written.replace("1024", "1025")), "checkpoint is corrupted");
        assert_eq!(
            read("None", written).unwrap_err().to_string(),
            "configured policy \"None\" differs from state checkpoint policy \"static\""
        );
    }

    #[test]
    fn a_node_without_the_manager_has_an_empty_file() {
        let text = write("None", &MemoryState::default());
        assert!(text.starts_with(r#"{"policyName":"None","machineState":{},"checksum":"#), "{text}");
    }
}
