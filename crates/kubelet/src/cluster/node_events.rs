//! Where to tell what happens to the node.

use std::sync::Arc;

use kubelet_core::node::NodeEvent;

use crate::events::{EventType, Recorder};

/// A handle; cheap to clone. Telling never waits.
#[derive(Clone, Debug)]
pub struct NodeEvents {
    recorder: Recorder,
    node: Arc<str>,
}

// === impl NodeEvents ===

impl NodeEvents {
    pub(crate) fn new(recorder: Recorder, node: Arc<str>) -> NodeEvents {
        NodeEvents { recorder, node }
    }

    pub fn tell(&self, event: NodeEvent) {
        let kind = if event.warning { EventType::Warning } else { EventType::Normal };
        self.recorder.node(&self.node, kind, &event.reason, event.message);
    }
}
