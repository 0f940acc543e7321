//! Amounts as cgroups know them.

use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::downward::{limits, requests};

/// A resource that can be resized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    Memory,
    Cpu,
}

/// Bytes of memory and thousandths of a CPU. Zero says that none is stated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    pub memory_limit: i64,
    pub memory_request: i64,
    pub cpu_limit: i64,
    pub cpu_request: i64,
}

// === impl Sizes ===

impl Sizes {
    #[must_use]
    pub fn of(resources: Option<&ResourceRequirements>) -> Self {
        Self {
            memory_limit: limits(resources, "memory").unwrap_or(0),
            memory_request: requests(resources, "memory").unwrap_or(0),
            cpu_limit: limits(resources, "cpu").unwrap_or(0),
            cpu_request: requests(resources, "cpu").unwrap_or(0),
        }
    }

    /// A container's; a limit it does not state is the Pod's.
    #[must_use]
    pub fn of_container(pod: Option<&ResourceRequirements>, own: Option<&ResourceRequirements>) -> Self {
        let (mut sizes, whole) = (Self::of(own), Self::of(pod));
        if sizes.memory_limit == 0 {
            sizes.memory_limit = whole.memory_limit;
        }
        if sizes.cpu_limit == 0 {
            sizes.cpu_limit = whole.cpu_limit;
        }
        sizes
    }

    #[must_use]
    pub fn limit(self, resource: Resource) -> i64 {
        match resource {
            Resource::Memory => self.memory_limit,
            Resource::Cpu => self.cpu_limit,
        }
    }

    #[must_use]
    pub fn request(self, resource: Resource) -> i64 {
        match resource {
            Resource::Memory => self.memory_request,
            Resource::Cpu => self.cpu_request,
        }
    }

    /// These, with one resource as the other has it.
    #[must_use]
    pub fn with(self, resource: Resource, of: Self) -> Self {
        match resource {
            Resource::Memory => {
                Self { memory_limit: of.memory_limit, memory_request: of.memory_request, ..self }
            }
            Resource::Cpu => Self { cpu_limit: of.cpu_limit, cpu_request: of.cpu_request, ..self },
        }
    }
}

// === impl Resource ===

impl Resource {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
        }
    }
}
