//! The plugins, one file each, and the table of them.

pub mod balanced_allocation;
pub mod default_binder;
pub mod default_preemption;
pub mod dynamic_resources;
pub mod image_locality;
pub mod inter_pod_affinity;
pub mod node_affinity;
pub mod node_declared_features;
pub mod node_name;
pub mod node_ports;
pub mod node_resources_fit;
pub mod node_unschedulable;
pub mod node_volume_limits;
pub mod pod_topology_spread;
pub mod priority_sort;
pub mod scheduling_gates;
pub mod taint_toleration;
pub mod volume_binding;
pub mod volume_restrictions;
pub mod volume_zone;

use std::sync::Arc;

use api::config::scheduler::PluginArgs;

use crate::framework::Plugin;
pub use crate::plugin::{PluginId, Point};

/// A row of the table.
pub struct Row {
    pub id: PluginId,
    pub points: &'static [Point],
    /// Of its scores, by default.
    pub weight: i64,
    pub make: fn(&PluginArgs) -> Arc<dyn Plugin>,
}

use Point::{Bind, Filter, PostFilter, PreBind, PreEnqueue, PreFilter, PreScore, QueueSort, Reserve, Score};

/// All of them. A new plugin is a file and a row.
#[rustfmt::skip]
pub const TABLE: &[Row] = &[
    Row { id: PluginId::SchedulingGates, points: &[PreEnqueue], weight: 0, make: scheduling_gates::make },
    Row { id: PluginId::PrioritySort, points: &[QueueSort], weight: 0, make: priority_sort::make },
    Row { id: PluginId::NodeUnschedulable, points: &[Filter], weight: 0, make: node_unschedulable::make },
    Row { id: PluginId::NodeName, points: &[Filter], weight: 0, make: node_name::make },
    Row { id: PluginId::TaintToleration, points: &[Filter, PreScore, Score], weight: 3, make: taint_toleration::make },
    Row { id: PluginId::NodeAffinity, points: &[PreFilter, Filter, PreScore, Score], weight: 2, make: node_affinity::make },
    Row { id: PluginId::NodePorts, points: &[PreFilter, Filter], weight: 0, make: node_ports::make },
    Row { id: PluginId::NodeResourcesFit, points: &[PreFilter, Filter, PreScore, Score], weight: 1, make: node_resources_fit::make },
    Row { id: PluginId::VolumeRestrictions, points: &[PreFilter, Filter], weight: 0, make: volume_restrictions::make },
    Row { id: PluginId::NodeVolumeLimits, points: &[PreFilter, Filter], weight: 0, make: node_volume_limits::make },
    Row { id: PluginId::VolumeBinding, points: &[PreFilter, Filter, Reserve, PreBind, PreScore, Score], weight: 0, make: volume_binding::make },
    Row { id: PluginId::VolumeZone, points: &[PreFilter, Filter], weight: 0, make: volume_zone::make },
    Row { id: PluginId::PodTopologySpread, points: &[PreFilter, Filter, PreScore, Score], weight: 2, make: pod_topology_spread::make },
    Row { id: PluginId::InterPodAffinity, points: &[PreFilter, Filter, PreScore, Score], weight: 2, make: inter_pod_affinity::make },
    Row { id: PluginId::DynamicResources, points: &[PreEnqueue, PreFilter, Filter, PostFilter, Score, Reserve, PreBind], weight: 2, make: dynamic_resources::make },
    Row { id: PluginId::DefaultPreemption, points: &[PreEnqueue, PostFilter], weight: 0, make: default_preemption::make },
    Row { id: PluginId::NodeResourcesBalancedAllocation, points: &[PreScore, Score], weight: 1, make: balanced_allocation::make },
    Row { id: PluginId::ImageLocality, points: &[Score], weight: 1, make: image_locality::make },
    Row { id: PluginId::DefaultBinder, points: &[Bind], weight: 0, make: default_binder::make },
    Row { id: PluginId::NodeDeclaredFeatures, points: &[PreFilter, Filter], weight: 0, make: node_declared_features::make },
];

/// The row of a plugin; extenders have none.
#[must_use]
pub fn row(id: PluginId) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.id == id)
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Row").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_every_plugin_once_in_the_order_of_its_ids() {
        let ids: Vec<usize> = TABLE.iter().map(|row| row.id.index()).collect();
        assert_eq!(ids, (0..TABLE.len()).collect::<Vec<_>>());
        assert!(PluginId::all().all(|id| id == PluginId::Extender || PluginId::named(id.name()) == Some(id)));
    }
}
