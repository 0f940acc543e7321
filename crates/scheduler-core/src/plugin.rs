//! Names of plugins and of the points at which they are called.

/// Every plugin, in the order in which upstream calls them; extenders stand at the end, as if they were one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PluginId {
    SchedulingGates,
    PrioritySort,
    NodeUnschedulable,
    NodeName,
    TaintToleration,
    NodeAffinity,
    NodePorts,
    NodeResourcesFit,
    VolumeRestrictions,
    NodeVolumeLimits,
    VolumeBinding,
    VolumeZone,
    PodTopologySpread,
    InterPodAffinity,
    DynamicResources,
    DefaultPreemption,
    NodeResourcesBalancedAllocation,
    ImageLocality,
    DefaultBinder,
    NodeDeclaredFeatures,
    Extender,
}

/// The points at which a plugin can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

const ALL: &[PluginId] = &[
    PluginId::SchedulingGates,
    PluginId::PrioritySort,
    PluginId::NodeUnschedulable,
    PluginId::NodeName,
    PluginId::TaintToleration,
    PluginId::NodeAffinity,
    PluginId::NodePorts,
    PluginId::NodeResourcesFit,
    PluginId::VolumeRestrictions,
    PluginId::NodeVolumeLimits,
    PluginId::VolumeBinding,
    PluginId::VolumeZone,
    PluginId::PodTopologySpread,
    PluginId::InterPodAffinity,
    PluginId::DynamicResources,
    PluginId::DefaultPreemption,
    PluginId::NodeResourcesBalancedAllocation,
    PluginId::ImageLocality,
    PluginId::DefaultBinder,
    PluginId::NodeDeclaredFeatures,
    PluginId::Extender,
];

// === impl PluginId ===

impl PluginId {
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// All of them, with the extenders.
    pub fn all() -> impl Iterator<Item = PluginId> {
        ALL.iter().copied()
    }

    #[must_use]
    pub fn named(name: &str) -> Option<PluginId> {
        PluginId::all().filter(|id| *id != PluginId::Extender).find(|id| id.name() == name)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            PluginId::SchedulingGates => "SchedulingGates",
            PluginId::PrioritySort => "PrioritySort",
            PluginId::NodeUnschedulable => "NodeUnschedulable",
            PluginId::NodeName => "NodeName",
            PluginId::TaintToleration => "TaintToleration",
            PluginId::NodeAffinity => "NodeAffinity",
            PluginId::NodePorts => "NodePorts",
            PluginId::NodeResourcesFit => "NodeResourcesFit",
            PluginId::VolumeRestrictions => "VolumeRestrictions",
            PluginId::NodeVolumeLimits => "NodeVolumeLimits",
            PluginId::VolumeBinding => "VolumeBinding",
            PluginId::VolumeZone => "VolumeZone",
            PluginId::PodTopologySpread => "PodTopologySpread",
            PluginId::InterPodAffinity => "InterPodAffinity",
            PluginId::DynamicResources => "DynamicResources",
            PluginId::DefaultPreemption => "DefaultPreemption",
            PluginId::NodeResourcesBalancedAllocation => "NodeResourcesBalancedAllocation",
            PluginId::ImageLocality => "ImageLocality",
            PluginId::DefaultBinder => "DefaultBinder",
            PluginId::NodeDeclaredFeatures => "NodeDeclaredFeatures",
            PluginId::Extender => "Extender",
        }
    }
}

// === impl Point ===

impl Point {
    /// By its name in a configuration.
    #[must_use]
    pub fn named(name: &str) -> Option<Point> {
        Some(match name {
            "preEnqueue" => Point::PreEnqueue,
            "queueSort" => Point::QueueSort,
            "preFilter" => Point::PreFilter,
            "filter" => Point::Filter,
            "postFilter" => Point::PostFilter,
            "preScore" => Point::PreScore,
            "score" => Point::Score,
            "reserve" => Point::Reserve,
            "permit" => Point::Permit,
            "preBind" => Point::PreBind,
            "bind" => Point::Bind,
            "postBind" => Point::PostBind,
            _ => return None,
        })
    }
}
