//! Secrets never reach a log: `Debug` shows which keys there are, not what they hold.

use std::collections::BTreeMap;
use std::fmt;

use crate::v1::{NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest};

impl fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeStageVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("volume_capability", &self.volume_capability)
            .field("publish_context", &self.publish_context)
            .field("volume_context", &keys(&self.volume_context))
            .field("secrets", &keys(&self.secrets))
            .finish()
    }
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodePublishVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("staging_target_path", &self.staging_target_path)
            .field("target_path", &self.target_path)
            .field("readonly", &self.readonly)
            .field("volume_capability", &self.volume_capability)
            .field("publish_context", &self.publish_context)
            // Tokens of service accounts travel in here.
            .field("volume_context", &keys(&self.volume_context))
            .field("secrets", &keys(&self.secrets))
            .finish()
    }
}

impl fmt::Debug for NodeExpandVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeExpandVolumeRequest")
            .field("volume_id", &self.volume_id)
            .field("volume_path", &self.volume_path)
            .field("capacity_range", &self.capacity_range)
            .field("secrets", &keys(&self.secrets))
            .finish_non_exhaustive()
    }
}

fn keys(map: &BTreeMap<String, String>) -> Vec<&String> {
    map.keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_print_without_their_secrets() {
        let secrets = BTreeMap::from([("password".to_owned(), "hunter2".to_owned())]);
        let context = BTreeMap::from([("tokens".to_owned(), "hunter2".to_owned())]);
        let publish = NodePublishVolumeRequest {
            secrets: secrets.clone(),
            volume_context: context.clone(),
            ..NodePublishVolumeRequest::default()
        };
        let stage = NodeStageVolumeRequest {
            secrets: secrets.clone(),
            volume_context: context,
            ..NodeStageVolumeRequest::default()
        };
        let expand = NodeExpandVolumeRequest { secrets, ..NodeExpandVolumeRequest::default() };
        for text in [format!("{publish:?}"), format!("{stage:?}"), format!("{expand:?}")] {
            assert!(text.contains("password") && !text.contains("hunter2"), "{text}");
        }
    }
}
