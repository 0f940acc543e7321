//! Where containers run: CPU manager, memory manager and topology manager as the configuration wants them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::config::kubelet::Loaded;
use kubelet_core::node::capacity::{self, PodLimit, Reserved};
use kubelet_core::topology::cpu::options::OptionGates;

use secure_serving::Check;
use supervise::Supervisor;
use tokio_util::sync::CancellationToken;

use super::{Builder, StartError};
use crate::devices::{self, DevicePlugins};
use crate::host::topology;
use crate::placement::{Places, Settings};
use crate::pods::node::Node;
use crate::server::pod_resources;

impl Builder<'_> {
    /// Goes on from what an earlier life left, or refuses to.
    pub(super) fn places(&self, token: &CancellationToken) -> Result<Arc<Places>, StartError> {
        let memory = u64::try_from(self.machine.memory.total).unwrap_or(0);
        let machine = topology::read(Path::new(topology::SYSTEM), memory)
            .map_err(|e| StartError::new(format!("read CPUs and NUMA nodes: {e}")))?;
        let settings = self.placement()?;
        let places = Places::open(&settings, &machine, &self.dirs.root, self.metrics.clone())?;
        let (clock, metrics) = (self.clock.clone(), self.metrics.clone());
        let dir = device_dir(&self.dirs.root);
        let devices = DevicePlugins::open(&dir, machine.node_ids(), clock, metrics, token.clone());
        Ok(Arc::new(places.with_devices(devices)))
    }

    /// Lets device plugins in, those of an earlier life too: they see that their sockets are gone.
    pub(super) fn start_devices(&self, node: &Arc<Node>, tasks: &Supervisor) -> Result<(), StartError> {
        let Some(devices) = node.places.devices() else { return Ok(()) };
        let listener = devices.listen_for_plugins().map_err(|e| {
            StartError::new(format!(
                "listen for device plugins in {}: {e}",
                device_dir(&self.dirs.root).display()
            ))
        })?;
        tasks.essential("device_registration", devices.clone().serve(listener, tasks.token().clone()));
        let dir = self.dirs.root.join("pod-resources");
        let listener = pod_resources::bind(&dir)
            .map_err(|e| StartError::new(format!("listen in {}: {e}", dir.display())))?;
        tasks.essential("pod_resources", pod_resources::serve(node.clone(), listener, tasks.token().clone()));
        Ok(())
    }

    /// Fails when no device plugin can register.
    pub(super) fn device_check(&self, node: &Node) -> Check {
        let devices = node.places.devices().cloned();
        Check::new("device-plugin", move || devices.as_ref().map_or(Ok(()), |d| d.check_registration()))
    }

    fn placement(&self) -> Result<Settings, StartError> {
        let Loaded { config, flags, gates, .. } = &self.start.loaded;
        let numbers = self.machine.numbers(config.local_storage_capacity_isolation);
        let all = capacity::capacity(&numbers, PodLimit { max: 0, per_core: 0 });
        let reserved = Reserved::new(config, flags.experimental_allocatable_ignore_eviction);
        let mut reserved_memory = Vec::new();
        for reservation in &config.reserved_memory {
            let node = u32::try_from(reservation.numa_node).map_err(|_| {
                StartError::new(format!("reservedMemory: NUMA node {}", reservation.numa_node))
            })?;
            reserved_memory.push((node, reservation.limits.clone()));
        }
        Ok(Settings {
            cpu_policy: config.cpu_manager_policy.clone(),
            cpu_options: config.cpu_manager_policy_options.clone(),
            option_gates: OptionGates {
                alpha: gates.enabled("CPUManagerPolicyAlphaOptions"),
                beta: gates.enabled("CPUManagerPolicyBetaOptions"),
            },
            reserved_cpus: config.reserved_system_cpus.clone(),
            memory_policy: config.memory_manager_policy.clone(),
            reserved_memory,
            topology_policy: config.topology_manager_policy.clone(),
            topology_scope: config.topology_manager_scope.clone(),
            topology_options: config.topology_manager_policy_options.clone(),
            kept_back: reserved.all(&all),
        })
    }
}

/// Upstream's place, whatever the root is; a node with a root of its own keeps to it, so that two nodes on one machine do
/// not take each other's plugins.
fn device_dir(root: &Path) -> PathBuf {
    match root == Path::new("/var/lib/kubelet") {
        true => devices::USUAL_DIR.into(),
        false => root.join("device-plugins"),
    }
}
