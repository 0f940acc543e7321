//! What happens to sandboxes.

use cri::v1::{ContainerEventType, PodSandbox, PodSandboxConfig, PodSandboxFilter, PodSandboxStatusResponse};
use cri::{Error, Result};
use tokio::time::Instant;
use tonic::Code;

use super::journal::Op;
use super::state::{Container, Sandbox, State};

impl State {
    pub(super) fn run_sandbox(
        &mut self,
        config: PodSandboxConfig,
        handler: &str,
        now: Instant,
    ) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let fail = |code, message: String| Error::new("run sandbox of pod", &metadata.name, code, message);
        // Names are reserved per attempt until the sandbox is removed, as containerd does it.
        if let Some(holder) = self.sandboxes.values().find(|s| s.config.metadata.as_ref() == Some(&metadata))
        {
            let text = format!("failed to reserve sandbox name: name is reserved for {:?}", holder.id);
            return Err(fail(self.quirks.reserved, text));
        }
        let (id, serial) = self.fresh_id();
        let created_at = self.clock.now().wall;
        let mut sandbox = Sandbox {
            id: id.clone(),
            config,
            handler: handler.to_owned(),
            ready: true,
            created_at,
            ip: None,
            serial,
        };
        if !sandbox.host_network() {
            if !self.network_ready {
                let text = "failed to setup network for sandbox: cni plugin not initialized";
                return Err(fail(Code::Unknown, text.into()));
            }
            sandbox.ip = self.free_ip();
        }
        self.sandboxes.insert(id.clone(), sandbox);
        self.note_sandbox(&id, Op::RunSandbox, now);
        self.sandbox_event(&id, ContainerEventType::ContainerCreatedEvent, now);
        self.sandbox_event(&id, ContainerEventType::ContainerStartedEvent, now);
        Ok(id)
    }

    /// Kills what runs in it, gives the address back, marks it not ready. A stranger is already stopped.
    pub(super) fn stop_sandbox(&mut self, id: &str, now: Instant) {
        for container in self.members(id) {
            self.exit(&container, 137, "Error", "", now, now);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id).filter(|s| s.ready) else { return };
        sandbox.ready = false;
        sandbox.ip = None;
        self.note_sandbox(id, Op::StopSandbox, now);
        self.sandbox_event(id, ContainerEventType::ContainerStoppedEvent, now);
    }

    pub(super) fn remove_sandbox(&mut self, id: &str, now: Instant) {
        self.stop_sandbox(id, now);
        for container in self.members(id) {
            self.remove_container(&container, now);
        }
        self.note_sandbox(id, Op::RemoveSandbox, now);
        if self.sandboxes.contains_key(id) {
            self.sandbox_event(id, ContainerEventType::ContainerDeletedEvent, now);
            self.sandboxes.remove(id);
        }
    }

    pub(super) fn sandbox_status(&self, id: &str) -> Result<PodSandboxStatusResponse> {
        let sandbox = self.sandboxes.get(id).ok_or_else(|| {
            Error::new(
                "get status of sandbox",
                id,
                Code::NotFound,
                "an error occurred when try to find sandbox: not found",
            )
        })?;
        Ok(PodSandboxStatusResponse { status: Some(sandbox.status()), ..Default::default() })
    }

    pub(super) fn list_sandboxes(&self, filter: Option<&PodSandboxFilter>) -> Vec<PodSandbox> {
        let matches = |s: &&Sandbox| {
            filter.is_none_or(|f| {
                (f.id.is_empty() || s.id.starts_with(&f.id))
                    && f.state.as_ref().is_none_or(|v| v.state() == s.state())
                    && f.label_selector.iter().all(|(k, v)| s.config.labels.get(k) == Some(v))
            })
        };
        let mut found: Vec<&Sandbox> = self.sandboxes.values().filter(matches).collect();
        found.sort_by_key(|s| s.serial);
        found.into_iter().map(Sandbox::summary).collect()
    }

    /// The containers in a sandbox, oldest first.
    pub(super) fn members(&self, sandbox: &str) -> Vec<String> {
        let mut members: Vec<&Container> =
            self.containers.values().filter(|c| c.sandbox == sandbox).collect();
        members.sort_by_key(|c| c.serial);
        members.into_iter().map(|c| c.id.clone()).collect()
    }
}
