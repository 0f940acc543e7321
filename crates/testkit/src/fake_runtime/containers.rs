//! What happens to containers.

use std::collections::BTreeMap;
use std::time::Duration;

use cri::v1::{
    self, ContainerConfig, ContainerEventType, ContainerFilter, ContainerMetadata, ContainerStatusResponse,
};
use cri::{Error, Result};
use tokio::time::Instant;
use tonic::Code;

use super::journal::Op;
use super::script::Exec;
use super::state::{Container, Exited, Life, Running, State};

impl State {
    pub(super) fn create_container(
        &mut self,
        sandbox: &str,
        config: ContainerConfig,
        now: Instant,
    ) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        let fail = |code, message: String| Error::new("create container", &metadata.name, code, message);
        let home = self.sandboxes.get(sandbox).ok_or_else(|| {
            fail(Code::NotFound, format!("failed to find sandbox id {sandbox:?}: not found"))
        })?;
        let pod = home.pod().0;
        if !home.ready && !self.quirks.creates_in_dead_sandbox {
            return Err(fail(Code::Unknown, "failed to get sandbox container task: not found".into()));
        }
        if let Some(holder) = self.name_holder(sandbox, &metadata) {
            let text = format!("failed to reserve container name: name is reserved for {:?}", holder.id);
            return Err(fail(self.quirks.reserved, text));
        }
        let image = config.image.clone().unwrap_or_default().image;
        let Some(image_ref) = self.images.find(&image).map(|i| i.id.clone()) else {
            return Err(fail(Code::NotFound, format!("failed to resolve image {image:?}: not found")));
        };
        let log_path = format!("{}/{}", home.config.log_directory, config.log_path);
        let behaviour = self.scripts.next(&pod, &metadata.name);
        if let Some(message) = behaviour.create_error {
            self.note_refusal(sandbox, &metadata.name, now);
            return Err(fail(Code::Unknown, message));
        }
        let (id, serial) = self.fresh_id();
        let created_at = self.clock.now().wall;
        let container = Container {
            id: id.clone(),
            sandbox: sandbox.to_owned(),
            config,
            image_ref,
            log_path,
            behaviour,
            created_at,
            serial,
            life: Life::Created,
        };
        self.containers.insert(id.clone(), container);
        self.note_container(&id, Op::Create, now);
        self.container_event(&id, ContainerEventType::ContainerCreatedEvent, now);
        Ok(id)
    }

    /// Who has the name of a new container. Names hold per Pod and attempt until removal, as in
    /// containerd: a create that is repeated because its reply was lost does not make a second one.
    fn name_holder(&self, sandbox: &str, metadata: &ContainerMetadata) -> Option<&Container> {
        let pod = self.sandboxes.get(sandbox)?.pod().1;
        self.containers.values().find(|c| {
            c.config.metadata.as_ref() == Some(metadata)
                && self.sandboxes.get(&c.sandbox).is_some_and(|s| s.pod().1 == pod)
        })
    }

    pub(super) fn start_container(&mut self, id: &str, now: Instant) -> Result<()> {
        let fail = |code, message: String| Err(Error::new("start container", id, code, message));
        let started_at = self.clock.now().wall;
        let Some(container) = self.containers.get_mut(id) else {
            return fail(Code::NotFound, "an error occurred when try to find container: not found".into());
        };
        if !matches!(container.life, Life::Created) {
            let state = container.state().as_str_name();
            return fail(Code::FailedPrecondition, format!("container is in {state} state"));
        }
        let alive = self.sandboxes.get(&container.sandbox).is_some_and(|s| s.ready);
        let error = container.behaviour.start_error.clone();
        if let Some(message) = error.or_else(|| (!alive).then(|| "sandbox container is not running".into())) {
            // containerd leaves the container behind, exited with 128.
            container.life = Life::Exited(Exited {
                started_at: base::time::Wall(0),
                finished_at: started_at,
                code: 128,
                reason: "StartError",
                message: message.clone(),
            });
            self.note_container(id, Op::StartFailed, now);
            return fail(Code::Unknown, message);
        }
        let natural = container.behaviour.exit.map(|(code, after)| (now + after, code));
        container.life =
            Life::Running(Running { since: now, started_at, natural, termed: None, kills: BTreeMap::new() });
        self.note_container(id, Op::Start, now);
        self.container_event(id, ContainerEventType::ContainerStartedEvent, now);
        // A container that ends at once may be gone before its start is answered.
        self.settle(now);
        Ok(())
    }

    /// What is not said stays as it was, as in containerd.
    pub(super) fn update_resources(
        &mut self,
        id: &str,
        new: v1::LinuxContainerResources,
        now: Instant,
    ) -> Result<()> {
        let fail = |code, message: &str| Err(Error::new("resize container", id, code, message));
        let Some(container) = self.containers.get_mut(id) else {
            return fail(Code::NotFound, "an error occurred when try to find container: not found");
        };
        if matches!(container.life, Life::Exited(_)) {
            return fail(Code::Unknown, "container is not in created or running state");
        }
        let linux = container.config.linux.get_or_insert_default();
        let old = linux.resources.get_or_insert_default();
        let number = |old: &mut i64, new: i64| {
            if new != 0 {
                *old = new;
            }
        };
        number(&mut old.cpu_period, new.cpu_period);
        number(&mut old.cpu_quota, new.cpu_quota);
        number(&mut old.cpu_shares, new.cpu_shares);
        number(&mut old.memory_limit_in_bytes, new.memory_limit_in_bytes);
        number(&mut old.memory_swap_limit_in_bytes, new.memory_swap_limit_in_bytes);
        number(&mut old.oom_score_adj, new.oom_score_adj);
        for (old, new) in [(&mut old.cpuset_cpus, new.cpuset_cpus), (&mut old.cpuset_mems, new.cpuset_mems)] {
            if !new.is_empty() {
                *old = new;
            }
        }
        old.unified.extend(new.unified);
        self.note_container(id, Op::Resize, now);
        Ok(())
    }

    /// Sends TERM and promises a kill after `grace` for as long as the stop with this ticket is not
    /// abandoned. A repeated stop does not prolong an earlier one.
    pub(super) fn begin_stop(&mut self, id: &str, grace: i64, ticket: u64, now: Instant) -> Result<()> {
        let lenient = self.quirks.stop_missing_is_ok;
        let Some(container) = self.containers.get_mut(id) else {
            let text = "an error occurred when try to find container: not found";
            return if lenient {
                Ok(())
            } else {
                Err(Error::new("stop container", id, Code::NotFound, text))
            };
        };
        let on_term = container.behaviour.on_term;
        let Some(running) = container.running_mut() else { return Ok(()) };
        let grace_period = Duration::from_secs(u64::try_from(grace).unwrap_or(0));
        if grace > 0 && running.termed.is_none() {
            running.termed = on_term.map(|(code, after)| (now + after, code));
        }
        running.kills.insert(ticket, now + grace_period);
        self.note_container(id, Op::Stop { grace }, now);
        self.settle(now);
        Ok(())
    }

    /// The stop with this ticket was answered or abandoned: it kills nobody any more.
    pub(super) fn end_stop(&mut self, id: &str, ticket: u64) {
        if let Some(running) = self.containers.get_mut(id).and_then(Container::running_mut) {
            running.kills.remove(&ticket);
        }
    }

    pub(super) fn is_running(&self, id: &str) -> bool {
        self.containers.get(id).is_some_and(|c| c.running().is_some())
    }

    /// Removes it, killing it first if need be. A stranger is already removed.
    pub(super) fn remove_container(&mut self, id: &str, now: Instant) {
        let running = self.is_running(id);
        self.note_container(id, Op::Remove { running }, now);
        self.exit(id, 137, "Error", "", now, now);
        let Some(container) = self.containers.remove(id) else { return };
        let (id, sandbox) = (container.id, container.sandbox);
        self.deleted_event(&id, &sandbox, now);
    }

    pub(super) fn container_status(&self, id: &str) -> Result<ContainerStatusResponse> {
        let container = self.containers.get(id).ok_or_else(|| {
            let text = "an error occurred when try to find container: not found";
            Error::new("get status of container", id, Code::NotFound, text)
        })?;
        Ok(ContainerStatusResponse { status: Some(container.status()), ..Default::default() })
    }

    /// Of each container that runs: it uses next to nothing.
    pub(super) fn container_stats(&self) -> Vec<v1::ContainerStats> {
        let running = self.containers.values().filter(|c| c.running().is_some());
        let of = |c: &Container| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: c.id.clone(), ..Default::default() }),
            memory: Some(v1::MemoryUsage {
                usage_bytes: Some(v1::UInt64Value { value: 1 << 20 }),
                ..Default::default()
            }),
            ..Default::default()
        };
        running.map(of).collect()
    }

    pub(super) fn list_containers(&self, filter: Option<&ContainerFilter>) -> Vec<v1::Container> {
        let matches = |c: &&Container| {
            filter.is_none_or(|f| {
                (f.id.is_empty() || c.id.starts_with(&f.id))
                    && (f.pod_sandbox_id.is_empty() || c.sandbox == f.pod_sandbox_id)
                    && f.state.as_ref().is_none_or(|v| v.state() == c.state())
                    && f.label_selector.iter().all(|(k, v)| c.config.labels.get(k) == Some(v))
            })
        };
        let mut found: Vec<&Container> = self.containers.values().filter(matches).collect();
        found.sort_by_key(|c| c.serial);
        found.into_iter().map(Container::summary).collect()
    }

    /// What an exec in the container will do.
    pub(super) fn begin_exec(&mut self, id: &str, command: &[String], now: Instant) -> Result<Exec> {
        let fail = |code, message: String| Error::new("run command in container", id, code, message);
        let container = self.containers.get(id).ok_or_else(|| {
            fail(Code::NotFound, "an error occurred when try to find container: not found".into())
        })?;
        let Some(running) = container.running() else {
            let state = container.state().as_str_name();
            return Err(fail(Code::Unknown, format!("container is in {state} state")));
        };
        let pod = self.sandboxes.get(&container.sandbox).map(|s| s.pod().0).unwrap_or_default();
        let exec = self.scripts.exec(&pod, container.name(), command, running.age(now));
        self.note_container(id, Op::Exec, now);
        Ok(exec)
    }

    /// The running instance of a container, by names.
    pub(super) fn running_id(&self, pod: &str, name: &str) -> Option<String> {
        let found = self.containers.values().find(|c| {
            c.name() == name
                && c.running().is_some()
                && self.sandboxes.get(&c.sandbox).is_some_and(|s| s.pod().0 == pod)
        });
        found.map(|c| c.id.clone())
    }
}
