//! `kubelet_internal_checkpoint`, in upstream's format.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Allocation, DeviceBooks, Entries};
use crate::go_dump::{Field, Go, Key, dump, field};

/// The name of the file beside the plugins' sockets.
pub const FILE: &str = "kubelet_internal_checkpoint";

/// Why the file cannot be gone on from.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("checkpoint is corrupted")]
    Corrupt,
    #[error("{0}")]
    Json(String),
    #[error("the answer of the plugin for {resource} of container {container} is no base64")]
    Answer { container: String, resource: String },
}

/// What the file says: who has what, and which resources there were.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    pub entries: Entries,
    pub resources: Vec<String>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct File {
    #[serde(rename = "Data", default)]
    data: Data,
    #[serde(rename = "Checksum", default)]
    checksum: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    pod_device_entries: Option<Vec<Entry>>,
    #[serde(default)]
    registered_devices: BTreeMap<String, Option<Vec<String>>>,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Entry {
    #[serde(rename = "PodUID")]
    uid: String,
    #[serde(rename = "ContainerName")]
    container: String,
    #[serde(rename = "ResourceName")]
    resource: String,
    #[serde(rename = "DeviceIDs")]
    devices: BTreeMap<i64, Vec<String>>,
    #[serde(rename = "AllocResp")]
    answer: String,
}

/// The books as a file.
#[must_use]
pub fn write(books: &DeviceBooks) -> String {
    let mut entries = Vec::new();
    for (uid, containers) in books.entries() {
        for (container, resources) in containers {
            entries.extend(resources.iter().map(|(resource, a)| Entry {
                uid: uid.clone(),
                container: container.clone(),
                resource: resource.clone(),
                devices: a.by_node.clone(),
                answer: encode(&a.answer),
            }));
        }
    }
    let healthy = |(name, devices): (&str, &super::Devices)| {
        let ids = devices.iter().filter(|(_, d)| d.healthy).map(|(id, _)| id.clone()).collect();
        (name.to_owned(), Some(ids))
    };
    let data = Data {
        pod_device_entries: Some(entries).filter(|e| !e.is_empty()),
        registered_devices: books.resources().map(healthy).collect(),
    };
    let checksum = data.sum().unwrap_or(0);
    serde_json::to_string(&File { data, checksum }).unwrap_or_default()
}

/// Reads what a kubelet left.
pub fn read(text: &str) -> Result<Saved, ReadError> {
    let file: File = serde_json::from_str(text).map_err(|e| ReadError::Json(e.to_string()))?;
    if file.checksum != file.data.sum()? {
        return Err(ReadError::Corrupt);
    }
    let mut entries = Entries::new();
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let answer = entry.bytes()?;
        let of_pod = entries.entry(entry.uid).or_default();
        let of_container = of_pod.entry(entry.container).or_default();
        of_container.insert(entry.resource, Allocation { by_node: entry.devices, answer });
    }
    Ok(Saved { entries, resources: file.data.registered_devices.into_keys().collect() })
}

// === impl Data ===

impl Data {
    fn sum(&self) -> Result<u64, ReadError> {
        let entries = match &self.pod_device_entries {
            None => Go::Nil,
            Some(entries) => Go::Slice(entries.iter().map(Entry::go).collect::<Result<_, _>>()?),
        };
        let list = |(name, ids): (&String, &Option<Vec<String>>)| {
            let ids = ids.as_ref().map_or(Go::Nil, |ids| texts(ids));
            (Key::from(name.as_str()), ids)
        };
        let registered = Go::Map(self.registered_devices.iter().map(list).collect());
        let fields: [Field; 2] = [
            field("PodDeviceEntries", "[]checkpoint.PodDevicesEntry", entries),
            field("RegisteredDevices", "map[string][]string", registered),
        ];
        let text = format!("(checkpoint.checkpointData){}", dump(&fields));
        Ok(base::fnv::fnv1a32(text.as_bytes()).into())
    }
}

// === impl Entry ===

impl Entry {
    fn bytes(&self) -> Result<Vec<u8>, ReadError> {
        let wrong =
            || ReadError::Answer { container: self.container.clone(), resource: self.resource.clone() };
        decode(&self.answer).ok_or_else(wrong)
    }

    fn go(&self) -> Result<Go, ReadError> {
        let devices = self.devices.iter().map(|(node, ids)| (Key::from(*node), texts(ids)));
        let answer = self.bytes()?.into_iter().map(|b| u64::from(b).into()).collect();
        Ok(Go::Struct(vec![
            field("PodUID", "string", self.uid.as_str()),
            field("ContainerName", "string", self.container.as_str()),
            field("ResourceName", "string", self.resource.as_str()),
            field("DeviceIDs", "checkpoint.DevicesPerNUMA", Go::Map(devices.collect())),
            field("AllocResp", "[]uint8", Go::Slice(answer)),
        ]))
    }
}

fn texts(of: &[String]) -> Go {
    Go::Slice(of.iter().map(|t| t.as_str().into()).collect())
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 with padding, as Go's decoder of JSON wants bytes.
fn encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for i in 0..4 {
            let index = (bits >> (18 - 6 * i)) & 63;
            let filled = i <= chunk.len();
            out.push(if filled { char::from(ALPHABET[index as usize]) } else { '=' });
        }
    }
    out
}

fn decode(text: &str) -> Option<Vec<u8>> {
    crate::images::decode_base64(text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Its checksum is what upstream's kubelet wrote.
    const WRITTEN: &str = r#"{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-0650a168-e770-3ea8-8ac3-8a1d419763e0"]}},"Checksum":3952659280}"#;

    #[test]
    fn a_file_of_upstream_is_read() {
        let saved = read(WRITTEN).unwrap();
        assert_eq!(
            (saved.entries.len(), saved.resources.as_slice()),
            (0, ["nvidia.com/gpu".to_owned()].as_slice())
        );
        assert_eq!(read(&WRITTEN.replace("0650", "0651")), Err(ReadError::Corrupt));
        assert!(matches!(read("{"), Err(ReadError::Json(_))));
    }

    #[test]
    fn an_entry_is_summed_as_upstream_sums_it() {
        let entry = Entry {
            uid: "bf52b2cd-b611-4e79-86b1-280b283185c3".into(),
            container: "check".into(),
            resource: "nvidia.com/gpu".into(),
            devices: [(-1, vec!["tegra".to_owned()])].into(),
            answer: "Ch8KFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSBXRlZ3Jh".into(),
        };
        let registered = [("nvidia.com/gpu".to_owned(), Some(vec!["tegra".to_owned()]))].into();
        let data = Data { pod_device_entries: Some(vec![entry]), registered_devices: registered };
        assert_eq!(data.sum(), Ok(3_660_592_824));
    }

    #[test]
    fn bytes_are_written_as_go_reads_them() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
    }
}
