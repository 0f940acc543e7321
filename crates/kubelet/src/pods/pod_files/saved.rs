//! A Pod's last status on disk: JSON with a checksum, so that what a failing disk made of it is not believed.

use std::io;

use api::json::{FromJson, ToJson};
use base::fnv::fnv1a32;
use k8s_openapi::api::core::v1::PodStatus;
use serde::Deserialize;
use serde_json::value::RawValue;

#[derive(Deserialize)]
struct Saved<'a> {
    checksum: u32,
    #[serde(borrow)]
    status: &'a RawValue,
}

pub(super) fn encode(status: &PodStatus) -> io::Result<String> {
    let json = String::from_utf8(status.to_json()).map_err(io::Error::other)?;
    Ok(format!("{{\"checksum\":{},\"status\":{json}}}", fnv1a32(json.as_bytes())))
}

pub(super) fn decode(text: &str) -> io::Result<PodStatus> {
    let Saved { checksum, status } = serde_json::from_str(text)?;
    if fnv1a32(status.get().as_bytes()) != checksum {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the checksum is wrong"));
    }
    Ok(PodStatus::from_json(status.get().as_bytes())?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_changed_on_disk_is_not_believed() {
        let status = PodStatus { phase: Some("Running".into()), ..PodStatus::default() };
        let text = encode(&status).unwrap();
        assert_eq!(decode(&text).unwrap(), status);
        assert!(decode(&text.replace("Running", "Failed")).unwrap_err().to_string().contains("checksum"));
        for at in 0..text.len() {
            assert!(decode(&text[..at]).is_err(), "{at} bytes of it");
        }
    }
}
