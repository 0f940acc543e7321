//! The files in which allocated and actuated resources outlive the agent, as upstream writes them.

use std::collections::BTreeMap;

use base::ids::PodUid;
use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use super::PodResources;

/// The file of what was granted.
pub const ALLOCATED: &str = "allocated_pods_state";
/// The file of what the cgroups were last told.
pub const ACTUATED: &str = "actuated_pods_state";

/// The resources of every Pod.
pub type Entries = BTreeMap<PodUid, PodResources>;

/// A file that says something else than what was written.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error("checkpoint is corrupted")]
    Corrupt,
    #[error("{0}")]
    Syntax(#[from] serde_json::Error),
}

/// The outer form: the entries as text, and what proves them whole.
#[derive(Serialize, Deserialize)]
struct Sealed {
    data: String,
    checksum: u64,
}

#[derive(Default, Serialize, Deserialize)]
struct Data {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, Entry>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Entry {
    container_resources: Option<BTreeMap<String, ResourceRequirements>>,
    pod_level_resources: Option<ResourceRequirements>,
}

pub fn encode(entries: &Entries) -> Result<String, CheckpointError> {
    let entry = |(uid, r): (&PodUid, &PodResources)| {
        let entry =
            Entry { container_resources: Some(r.containers.clone()), pod_level_resources: r.pod.clone() };
        (uid.to_string(), entry)
    };
    let data = serde_json::to_string(&Data { entries: entries.iter().map(entry).collect() })?;
    Ok(serde_json::to_string(&Sealed { checksum: checksum(&data), data })?)
}

pub fn decode(text: &str) -> Result<Entries, CheckpointError> {
    let sealed: Sealed = serde_json::from_str(text)?;
    if sealed.checksum != checksum(&sealed.data) {
        return Err(CheckpointError::Corrupt);
    }
    let data: Data = serde_json::from_str(&sealed.data)?;
    let entry = |(uid, e): (String, Entry)| {
        let resources = PodResources {
            containers: e.container_resources.unwrap_or_default(),
            pod: e.pod_level_resources,
        };
        (PodUid::from(uid.as_str()), resources)
    };
    Ok(data.entries.into_iter().map(entry).collect())
}

/// Upstream hashes what Go's dump of a string looks like.
fn checksum(data: &str) -> u64 {
    u64::from(base::fnv::fnv1a32(format!("(string){data}").as_bytes()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::from_yaml;

    /// A file of upstream's.
    const UPSTREAM: &str = r#"{"data":"{\"entries\":{\"pod1\":{\"ContainerResources\":{\"container1\":{\"requests\":{\"cpu\":\"1Ki\",\"memory\":\"1Ki\"}}}}}}","checksum":1178570812}"#;

    #[test]
    fn a_file_of_upstreams_is_read() {
        let requests = from_yaml("{requests: {cpu: 1Ki, memory: 1Ki}}");
        let containers = BTreeMap::from([("container1".to_owned(), requests)]);
        let want = Entries::from([(PodUid::from("pod1"), PodResources { containers, pod: None })]);
        assert_eq!(decode(UPSTREAM).unwrap(), want);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut all = Entries::new();
        assert_eq!(decode(&encode(&all).unwrap()).unwrap(), all);
        let of = |text: &str| from_yaml::<ResourceRequirements>(text);
        let containers = BTreeMap::from([
            ("a".to_owned(), of("{limits: {cpu: 100m}, requests: {cpu: 10m, memory: 1Mi}}")),
            ("b".to_owned(), of("{}")),
        ]);
        all.insert(PodUid::from("u"), PodResources { containers, pod: Some(of("{limits: {memory: 1Gi}}")) });
        all.insert(PodUid::from("v"), PodResources::default());
        assert_eq!(decode(&encode(&all).unwrap()).unwrap(), all);
    }

    #[test]
    fn a_file_that_was_changed_is_refused() {
        let changed = UPSTREAM.replacen("1Ki", "2Ki", 1);
        assert!(matches!(decode(&changed), Err(CheckpointError::Corrupt)));
        for broken in ["", "{}", "x", &UPSTREAM[..40]] {
            assert!(matches!(decode(broken), Err(CheckpointError::Syntax(_))), "{broken:?}");
        }
    }
}
