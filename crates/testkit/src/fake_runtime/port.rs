//! The kubelet's port, with the weather in between.

use std::time::Duration;

use async_trait::async_trait;
use cri::{Error, Result, v1};
use futures_util::stream;
use kubelet::ports::{EventStream, Runtime};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;

use super::FakeRuntime;
use super::faults::InjectedFault;
use super::images::Images;
use super::journal::Op;
use super::script::Exec;
use super::state::State;

/// The deadline after which a hanging call is given up, as the real client does.
const DEADLINE: Duration = Duration::from_secs(120);

/// One call in progress.
struct Call<'a> {
    fake: &'a FakeRuntime,
    op: &'static str,
    object: String,
    epoch: u64,
    after: Duration,
    fault: InjectedFault,
}

/// Takes the promised kill back when the stop is answered or abandoned.
struct Stop<'a> {
    fake: &'a FakeRuntime,
    id: &'a str,
    ticket: u64,
}

/// Ends the subscription with the stream.
struct Subscription {
    fake: FakeRuntime,
    id: u64,
    epoch: u64,
    over: bool,
}

#[async_trait]
impl Runtime for FakeRuntime {
    async fn version(&self) -> Result<v1::VersionResponse> {
        let version = v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "containerd".into(),
            runtime_version: "v2.1.4".into(),
            runtime_api_version: "v1".into(),
        };
        self.call("get version of", "runtime", |_, _| Ok(version)).await
    }

    async fn status(&self) -> Result<v1::StatusResponse> {
        self.call("get status of", "runtime", |s, _| Ok(status(s.network_ready))).await
    }

    async fn update_runtime_config(&self, _: &str) -> Result<()> {
        self.call("set configuration of", "runtime", |_, _| Ok(())).await
    }

    async fn runtime_config(&self) -> Result<v1::RuntimeConfigResponse> {
        const OP: &str = "get configuration of";
        self.call(OP, "runtime", |s, _| {
            if !s.quirks.runtime_config {
                return Err(Error::new(OP, "runtime", Code::Unimplemented, "unknown method RuntimeConfig"));
            }
            let linux = v1::LinuxRuntimeConfiguration { cgroup_driver: v1::CgroupDriver::Cgroupfs.into() };
            Ok(v1::RuntimeConfigResponse { linux: Some(linux) })
        })
        .await
    }

    async fn run_pod_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        if self.with(|s, _| s.quirks.sandboxes_hang) {
            sleep(DEADLINE).await;
            return Err(Error::new("run sandbox of pod", &name, Code::DeadlineExceeded, "injected hang"));
        }
        self.call("run sandbox of pod", &name, |s, now| s.run_sandbox(config, handler, now)).await
    }

    async fn stop_pod_sandbox(&self, id: &str) -> Result<()> {
        self.call("stop sandbox", id, |s, now| {
            s.stop_sandbox(id, now);
            Ok(())
        })
        .await
    }

    async fn remove_pod_sandbox(&self, id: &str) -> Result<()> {
        self.call("remove sandbox", id, |s, now| {
            s.remove_sandbox(id, now);
            Ok(())
        })
        .await
    }

    async fn pod_sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatusResponse> {
        self.call("get status of sandbox", id, |s, _| s.sandbox_status(id)).await
    }

    async fn list_pod_sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Result<Vec<v1::PodSandbox>> {
        self.call("list", "sandboxes", |s, _| Ok(s.list_sandboxes(filter.as_ref()))).await
    }

    async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> Result<String> {
        let name = config.metadata.as_ref().map(|m| m.name.clone()).unwrap_or_default();
        self.call("create container", &name, |s, now| s.create_container(sandbox, config, now)).await
    }

    async fn start_container(&self, id: &str) -> Result<()> {
        self.call("start container", id, |s, now| s.start_container(id, now)).await
    }

    async fn stop_container(&self, id: &str, grace: i64) -> Result<()> {
        let call = self.enter("stop container", id).await?;
        let ticket = self.with(|s, now| {
            s.serial += 1;
            let ticket = s.serial;
            s.begin_stop(id, grace, ticket, now).map(|()| ticket)
        })?;
        let stop = Stop { fake: self, id, ticket };
        call.until(|s, _| (!s.is_running(id)).then_some(())).await?;
        drop(stop);
        call.leave().await
    }

    async fn remove_container(&self, id: &str) -> Result<()> {
        self.call("remove container", id, |s, now| {
            s.remove_container(id, now);
            Ok(())
        })
        .await
    }

    async fn update_container_resources(
        &self,
        id: &str,
        resources: v1::LinuxContainerResources,
    ) -> Result<()> {
        self.call("resize container", id, |s, now| s.update_resources(id, resources, now)).await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: v1::UpdatePodSandboxResourcesRequest,
    ) -> Result<()> {
        const OP: &str = "resize sandbox";
        let id = request.pod_sandbox_id;
        self.call(OP, &id, |_, _| Err(Error::new(OP, &id, Code::Unimplemented, "not implemented yet"))).await
    }

    async fn container_status(&self, id: &str) -> Result<v1::ContainerStatusResponse> {
        self.call("get status of container", id, |s, _| s.container_status(id)).await
    }

    async fn list_containers(&self, filter: Option<v1::ContainerFilter>) -> Result<Vec<v1::Container>> {
        self.call("list", "containers", |s, _| Ok(s.list_containers(filter.as_ref()))).await
    }

    async fn reopen_container_log(&self, id: &str) -> Result<()> {
        const OP: &str = "reopen log of container";
        self.call(OP, id, |s, _| match s.is_running(id) {
            true => Ok(()),
            false => Err(Error::new(OP, id, Code::Unknown, "container is not running")),
        })
        .await
    }

    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        let call = self.enter("run command in container", id).await?;
        let (exec, begun) = self.with(|s, now| s.begin_exec(id, &command, now).map(|e| (e, now)))?;
        let limit = (!timeout.is_zero()).then(|| begun + timeout);
        let end = match &exec {
            Exec::Exit { after, .. } => Some(begun + *after),
            Exec::Hang => None,
        };
        let first = end.into_iter().chain(limit).min();
        let died = call.until_or(first, |s, _| (!s.is_running(id)).then_some(())).await?.is_some();
        call.leave().await?;
        match exec {
            _ if died => Ok(v1::ExecSyncResponse { exit_code: 137, ..Default::default() }),
            Exec::Exit { code, stdout, .. } if end == first => {
                Ok(v1::ExecSyncResponse { stdout, exit_code: code, ..Default::default() })
            }
            _ => {
                let text = format!("failed to exec in container: timeout {timeout:?} exceeded");
                Err(Error::new("run command in container", id, Code::DeadlineExceeded, text))
            }
        }
    }

    async fn exec(&self, request: v1::ExecRequest) -> Result<String> {
        let id = request.container_id;
        self.call("open exec in container", &id, |s, now| {
            s.begin_exec(&id, &request.cmd, now)?;
            Ok(format!("http://127.0.0.1:1/exec/{id}"))
        })
        .await
    }

    async fn attach(&self, request: v1::AttachRequest) -> Result<String> {
        let id = request.container_id;
        self.call("attach to container", &id, |s, _| {
            s.container_status(&id)?;
            Ok(format!("http://127.0.0.1:1/attach/{id}"))
        })
        .await
    }

    async fn port_forward(&self, request: v1::PortForwardRequest) -> Result<String> {
        let id = request.pod_sandbox_id;
        self.call("forward ports of sandbox", &id, |s, _| {
            s.sandbox_status(&id)?;
            Ok(format!("http://127.0.0.1:1/portforward/{id}"))
        })
        .await
    }

    async fn checkpoint_container(&self, request: v1::CheckpointContainerRequest) -> Result<()> {
        let id = request.container_id;
        self.call("checkpoint container", &id, |s, _| s.container_status(&id).map(drop)).await
    }

    async fn list_container_stats(&self) -> Result<Vec<v1::ContainerStats>> {
        self.call("list", "container stats", |s, _| Ok(s.container_stats())).await
    }

    async fn list_images(&self) -> Result<Vec<v1::Image>> {
        self.call("list", "images", |s, _| Ok(s.images.list())).await
    }

    async fn image_status(&self, image: v1::ImageSpec) -> Result<Option<v1::Image>> {
        self.call("get status of image", &image.image, |s, _| Ok(s.images.find(&image.image).cloned())).await
    }

    async fn pull_image(
        &self,
        image: v1::ImageSpec,
        auth: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let call = self.enter("pull image", &image.image).await?;
        let (pull, done) = self.with(|s, now| {
            let pull = s.images.pull_of(&image.image);
            let done = now + pull.latency;
            (pull, done)
        });
        call.until_or(Some(done), |_, _| None::<()>).await?;
        let pulled = self.with(|s, now| {
            Images::admit(&pull, &image.image, auth.as_ref())?;
            s.note_image(&image.image, Op::Pull, now);
            Ok(s.images.add(&image.image))
        });
        call.leave().await?;
        pulled
    }

    async fn remove_image(&self, image: v1::ImageSpec) -> Result<()> {
        self.call("remove image", &image.image, |s, now| {
            if s.images.remove(&image.image) {
                s.note_image(&image.image, Op::RemoveImage, now);
            }
            Ok(())
        })
        .await
    }

    async fn image_fs_info(&self) -> Result<v1::ImageFsInfoResponse> {
        self.call("get usage of", "image filesystem", |s, _| {
            let used = s.images.list().iter().map(|i| i.size).sum();
            let usage = v1::FilesystemUsage {
                timestamp: s.clock.now().wall.0,
                fs_id: Some(v1::FilesystemIdentifier { mountpoint: "/var/lib/containerd".into() }),
                used_bytes: Some(v1::UInt64Value { value: used }),
                inodes_used: Some(v1::UInt64Value { value: 1000 }),
            };
            let filesystems = vec![usage];
            Ok(v1::ImageFsInfoResponse {
                image_filesystems: filesystems.clone(),
                container_filesystems: filesystems,
            })
        })
        .await
    }

    async fn events(&self) -> Result<EventStream> {
        const OP: &str = "stream events of";
        let call = self.enter(OP, "runtime").await?;
        let id = self.with(|s, _| match s.quirks.events {
            true => Ok(s.subscribe()),
            false => Err(Error::new(OP, "runtime", Code::Unimplemented, "unknown method GetContainerEvents")),
        })?;
        let subscription = Subscription { fake: self.clone(), id, epoch: call.epoch, over: false };
        call.leave().await?;
        Ok(Box::pin(stream::unfold(subscription, |mut s| async { s.next().await.map(|item| (item, s)) })))
    }
}

// === impl FakeRuntime ===

impl FakeRuntime {
    async fn call<T>(
        &self,
        op: &'static str,
        object: &str,
        effect: impl FnOnce(&mut State, Instant) -> Result<T>,
    ) -> Result<T> {
        let call = self.enter(op, object).await?;
        let result = self.with(effect);
        call.leave().await?;
        result
    }

    /// The way to the runtime. What comes back has arrived.
    async fn enter(&self, op: &'static str, object: &str) -> Result<Call<'_>> {
        let (fate, epoch) = self.with(|s, _| (s.faults.draw(&mut s.rng), s.epoch));
        let call =
            Call { fake: self, op, object: object.to_owned(), epoch, after: fate.after, fault: fate.fault };
        call.check()?;
        pause(fate.before).await;
        call.check()?;
        match fate.fault {
            InjectedFault::Error => Err(call.error(Code::Unknown, "injected failure")),
            InjectedFault::Hang { effect: false } => call.hang().await,
            _ => Ok(call),
        }
    }

    async fn changed(&self, changes: &mut watch::Receiver<u64>, until: Option<Instant>) {
        match until {
            // The sender lives as long as the fake we hold.
            None => _ = changes.changed().await,
            Some(until) => tokio::select! {
                () = sleep_until(until) => {}
                _ = changes.changed() => {}
            },
        }
    }
}

// === impl Call ===

impl Call<'_> {
    /// Fails when the runtime is away, or has been since the call was made.
    fn check(&self) -> Result<()> {
        match self.fake.with(|s, _| s.epoch == self.epoch && s.down_until.is_none()) {
            true => Ok(()),
            false => Err(self.error(Code::Unavailable, "connection refused")),
        }
    }

    /// Waits until `done` gives something, as long as the runtime lives.
    async fn until<T>(&self, done: impl FnMut(&mut State, Instant) -> Option<T>) -> Result<T> {
        loop_forever(self.until_or(None, done).await)
    }

    /// The same, but no longer than until `limit`.
    async fn until_or<T>(
        &self,
        limit: Option<Instant>,
        mut done: impl FnMut(&mut State, Instant) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut changes = self.fake.shared.changed.subscribe();
        loop {
            self.check()?;
            let (answer, due, now) = self.fake.with(|s, now| (done(s, now), s.next_due(), now));
            if answer.is_some() || limit.is_some_and(|limit| limit <= now) {
                return Ok(answer);
            }
            self.fake.changed(&mut changes, limit.into_iter().chain(due).min()).await;
        }
    }

    /// The way back.
    async fn leave(self) -> Result<()> {
        pause(self.after).await;
        self.check()?;
        match self.fault {
            InjectedFault::LostReply => Err(self.error(Code::Unavailable, "injected loss of the reply")),
            InjectedFault::Hang { .. } => self.hang().await,
            _ => Ok(()),
        }
    }

    async fn hang<T>(&self) -> Result<T> {
        sleep(DEADLINE).await;
        Err(self.error(Code::DeadlineExceeded, "injected hang"))
    }

    fn error(&self, code: Code, message: &str) -> Error {
        Error::new(self.op, &self.object, code, message)
    }
}

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.fake.with(|s, _| s.end_stop(self.id, self.ticket));
    }
}

// === impl Subscription ===

impl Subscription {
    async fn next(&mut self) -> Option<Result<v1::ContainerEventResponse>> {
        if self.over {
            return None;
        }
        let mut changes = self.fake.shared.changed.subscribe();
        loop {
            let (alive, event, due) = self.fake.with(|s, now| {
                let alive = s.epoch == self.epoch && s.subscribers.contains_key(&self.id);
                (alive, s.next_event(self.id, now), s.next_due())
            });
            if !alive {
                self.over = true;
                let text = "error reading from server: EOF";
                return Some(Err(Error::new("stream events of", "runtime", Code::Unavailable, text)));
            }
            match event {
                Ok(event) => return Some(Ok(event)),
                Err(at) => self.fake.changed(&mut changes, at.into_iter().chain(due).min()).await,
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.fake.with(|s, _| s.subscribers.remove(&self.id));
    }
}

async fn pause(time: Duration) {
    if !time.is_zero() {
        sleep(time).await;
    }
}

/// Without a limit the wait only ends with an answer.
fn loop_forever<T>(answer: Result<Option<T>>) -> Result<T> {
    answer.and_then(|a| {
        a.ok_or_else(|| Error::new("wait for", "runtime", Code::Internal, "a wait without limit ended"))
    })
}

fn status(network_ready: bool) -> v1::StatusResponse {
    let condition = |kind: &str, ready: bool| v1::RuntimeCondition {
        r#type: kind.into(),
        status: ready,
        reason: if ready { String::new() } else { "NetworkPluginNotReady".into() },
        message: if ready { String::new() } else { "cni plugin not initialized".into() },
    };
    let conditions = vec![condition("RuntimeReady", true), condition("NetworkReady", network_ready)];
    let features = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: true };
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus { conditions }),
        runtime_handlers: vec![v1::RuntimeHandler { name: String::new(), features: Some(features) }],
        features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
        ..Default::default()
    }
}
