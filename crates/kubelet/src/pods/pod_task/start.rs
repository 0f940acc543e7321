//! Bringing a Pod up: volumes, sandbox, and containers one after the other.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use base::ids::ContainerId;
use cri::v1;
use futures_util::{FutureExt, TryFutureExt};
use k8s_openapi::api::core::v1::{Container, Pod};
use kubelet_core::admission::Rejection;
use kubelet_core::cri_config::{
    self, ContainerConfig, ContainerInput, Dns, HandlerFeatures, ImageUser, MISSING_CLUSTER_DNS, NodeFacts,
    ResolvedVolume, SandboxConfig, SandboxInput, UserNamespace,
};
use kubelet_core::pod::{ContainerKind, Intent, KillCause, Stage, Start};
use kubelet_core::references::{References, pull_secrets as pull_secret_names};
use kubelet_core::volumes::mounts;

use super::run::earliest;
use super::terminate::lifecycle;
use super::{PodTask, name};
use crate::cluster::objects::pull_secrets;
use crate::events::EventType;
use crate::images::{ImageRef, Want};
use crate::metrics::container_type;
use crate::pods::hooks;
use crate::pods::pod_files::read_in_volume;
use crate::ports::{MountedVolume, VolumeAct, VolumeError};
use crate::runtime::to_cri;

/// Where the Pod's volumes are, by name.
pub(super) type ReadyVolumes = BTreeMap<String, ResolvedVolume>;

/// The largest environment file.
const ENV_FILE_MAX: u64 = 64 * 1024;
/// All of a container's environment files together. They are in memory at once.
const ENV_FILES_MAX: usize = 4 << 20;

/// How long a call of the runtime may hold up the end of its Pod.
const CUT_OFF_AFTER: Duration = Duration::from_secs(10);

/// An image that is there.
struct Image {
    reference: String,
    user: ImageUser,
}

/// Images of image volumes that this pass asked for, by volume.
type VolumeImages = BTreeMap<String, Result<String, NotStarted>>;

/// Why a container did not start: the waiting reason and message, already told as an event.
#[derive(Clone)]
struct NotStarted {
    reason: String,
    message: String,
}

impl NotStarted {
    fn because(reason: &str, message: impl Into<String>) -> Self {
        Self { reason: reason.to_owned(), message: message.into() }
    }
}

impl PodTask {
    /// Makes the volumes ready. None, with an event and a retry, if one is not.
    pub(super) async fn mount_volumes(&mut self, intent: &Intent) -> Option<ReadyVolumes> {
        let pod = &intent.pod;
        let mounted = self.unless_ending(self.node.volumes.mount(pod)).await?;
        self.image_retry = None;
        match mounted {
            Ok(mounted) => {
                // Old files are better than none: upstream too starts on what was mounted once.
                mounted.stale.iter().for_each(|error| self.tell_stale(pod, error));
                self.volume_groups = mounted.groups;
                Some(mounted.places.into_iter().map(|(name, m)| (name, resolved(m))).collect())
            }
            Err(error) if error.act == VolumeAct::FindRoom => {
                self.give_up_for_want_of_room(pod, &error);
                None
            }
            Err(error) => {
                self.tell_failed_mount(pod, &error);
                self.retry_with_backoff();
                None
            }
        }
    }

    /// The Pod fails, so that its owner makes another one where there is room.
    fn give_up_for_want_of_room(&mut self, pod: &Pod, error: &VolumeError) {
        let words = "Node has reached its volume attachment limit, rejecting pod.";
        let rejection = Rejection {
            reason: "VolumeAttachmentLimitExceeded".to_owned(),
            message: format!("{words} {}", unmounted(&error.volume, &error.volume, "", &error.message)),
            by_labels: false,
        };
        self.node.reject(pod, &rejection);
        let message = format!("Pod was rejected: {}", rejection.message);
        self.end_by_itself(KillCause::Rejected { reason: rejection.reason, message });
    }

    /// A volume that is only as it was. That nobody can say what a claim is bound to is no event: it is mounted.
    pub(super) fn tell_stale(&self, pod: &Pod, error: &VolumeError) {
        tracing::warn!(pod = name(pod), pod_uid = %self.uid, %error, "volume not refreshed");
        if error.act != VolumeAct::Process {
            self.tell_failed_mount(pod, error);
        }
    }

    pub(super) fn tell_failed_mount(&self, pod: &Pod, error: &VolumeError) {
        let (reason, message) = told(error);
        self.node.recorder.pod(pod, EventType::Warning, reason, message);
    }

    /// Waits for a call that makes something. Once the Pod is to end, the call gets only a little longer,
    /// because what is cut in the middle may be hard to find again; then the blocker is named and left.
    async fn patiently<T>(
        &self,
        pod: &Pod,
        act: &str,
        call: impl Future<Output = cri::Result<T>>,
    ) -> cri::Result<T> {
        let overdue = async {
            self.ending().await;
            tokio::time::sleep(CUT_OFF_AFTER).await;
        };
        let answered = async {
            tokio::select! {
                answer = call => Some(answer),
                () = overdue => None,
            }
        };
        if let Some(answer) = self.with_probe_updates(answered).await {
            return answer;
        }
        let message = format!("error killing pod: the runtime took too long to {act}");
        tracing::warn!(pod = name(pod), pod_uid = %self.uid, act, "gave up a call of a Pod that is to end");
        self.node.recorder.pod(pod, EventType::Warning, "FailedKillPod", message);
        let why = "given up because the Pod is to end";
        Err(cri::Error::new("wait for the runtime to", act, cri::Code::Cancelled, why))
    }

    /// The Pod's id ranges, if it wants a user namespace of its own.
    async fn userns(&self, pod: &Pod) -> Result<Option<UserNamespace>, String> {
        if !wants_userns(pod) {
            return Ok(None);
        }
        let store = self.node.userns.as_ref().ok_or("this node grants no id ranges for user namespaces")?;
        store.ensure(&self.uid).await.map(Some).map_err(|e| format!("assign user namespace: {e}"))
    }

    /// The runtime's name for the Pod's RuntimeClass.
    async fn handler(&self, pod: &Pod) -> Result<String, String> {
        if let Some(known) = self.handler.get() {
            return Ok(known.clone());
        }
        let found = self.node.objects.runtime_handler(runtime_class(pod)).await?;
        Ok(self.handler.get_or_init(|| found).clone())
    }

    /// What the Pod's handler can do. If nobody can say which one it is, a Pod that has its sandbox is judged by the
    /// default one: its containers do not wait for the API server.
    async fn features(&self, pod: &Pod) -> HandlerFeatures {
        self.node.handler(&self.handler(pod).await.unwrap_or_default())
    }

    /// Whether the handler can make mounts read-only all the way down; asked only where a mount wants to be.
    pub(super) async fn can_be_read_only(&self, pod: &Pod) -> bool {
        wants_recursive_read_only(pod) && self.features(pod).await.recursive_read_only
    }

    async fn sandbox_config(
        &self,
        pod: &Pod,
        attempt: u32,
        cgroup_parent: &str,
        userns: Option<&UserNamespace>,
    ) -> Result<SandboxConfig, String> {
        let node = NodeFacts { resolv_conf: self.resolver().await?, ..self.node.cri_config_facts() };
        let handler = self.features(pod).await;
        let made = cri_config::sandbox(&SandboxInput {
            pod,
            groups: &self.volume_groups,
            attempt,
            node: &node,
            config: &self.node.settings.cri_config,
            cgroup_parent,
            userns,
            handler,
        });
        made.map_err(|e| e.to_string())
    }

    /// The machine's resolver as it is now: a network that has changed counts for sandboxes made since.
    async fn resolver(&self) -> Result<Option<Dns>, String> {
        let text = self.node.files.node_resolver().await.map_err(|e| e.to_string())?;
        text.map(|text| cri_config::parse_resolv_conf(&text)).transpose()
    }

    /// Creates the sandbox. None, with an event and a retry, if that failed.
    pub(super) async fn create_sandbox(
        &mut self,
        intent: &Intent,
        attempt: u32,
        parent: &str,
    ) -> Option<String> {
        if attempt > 0 {
            self.node.recorder.pod(
                &intent.pod,
                EventType::Normal,
                "SandboxChanged",
                "Pod sandbox changed, it will be killed and re-created.",
            );
        }
        self.release_networks().await;
        match self.run_sandbox(&intent.pod, attempt, parent).await {
            Ok(id) => Some(id),
            Err(message) => {
                tracing::warn!(
                    pod = name(&intent.pod), pod_uid = %self.uid, attempt, error = message, "sandbox not created"
                );
                self.node.metrics.started_pods_errors_total.inc([]);
                if wants_userns(&intent.pod) {
                    self.node.metrics.started_user_namespaced_pods_errors_total.inc([]);
                }
                self.node.recorder.pod(
                    &intent.pod,
                    EventType::Warning,
                    "FailedCreatePodSandBox",
                    format!("Failed to create pod sandbox: {message}"),
                );
                self.retry_with_backoff();
                None
            }
        }
    }

    async fn run_sandbox(&mut self, pod: &Pod, attempt: u32, parent: &str) -> Result<String, String> {
        self.node.files.prepare(pod).await.map_err(|e| format!("make pod directories: {e}"))?;
        let handler = self.handler(pod).await.map_err(|e| format!("failed to get sandbox runtime: {e}"))?;
        let userns = self.userns(pod).await?;
        let cri_config = self.sandbox_config(pod, attempt, parent, userns.as_ref()).await?;
        for warning in &cri_config.warnings {
            self.node.recorder.pod(pod, EventType::Warning, warning.reason, &warning.message);
            if warning.reason == MISSING_CLUSTER_DNS.0 {
                let (name, (reason, text)) = (&self.node.facts.cri_config.name, MISSING_CLUSTER_DNS);
                self.node.recorder.node(name, EventType::Warning, reason, text);
            }
        }
        self.node.metrics.started_pods_total.inc([]);
        if wants_userns(pod) {
            self.node.metrics.started_user_namespaced_pods_total.inc([]);
        }
        let made = self.node.runtime.run_pod_sandbox(to_cri::sandbox(&cri_config), &handler);
        self.patiently(pod, "make the sandbox", made).await.map_err(|e| e.grpc_text())
    }

    /// Starts containers in order. True if every one of them came up. An init container that does not
    /// start holds back the rest; a regular one does not.
    pub(super) async fn start_all(
        &mut self,
        intent: &Intent,
        starts: &[Start],
        parent: &str,
        volumes: &ReadyVolumes,
    ) -> bool {
        let mut all = true;
        let mut images = VolumeImages::new();
        self.fetch_pull_secrets(&intent.pod).await;
        for start in starts {
            if self.intent.borrow().stage > Stage::Run {
                return true;
            }
            match self.start_one(intent, start, parent, volumes, &mut images).await {
                Ok(()) => {
                    self.failed.remove(&start.name);
                }
                Err(not) => {
                    all = false;
                    tracing::warn!(
                        pod = name(&intent.pod), pod_uid = %self.uid, container = start.name,
                        reason = not.reason, error = not.message, "container not started"
                    );
                    self.count_failure(start.kind, &not.reason);
                    self.fail(&start.name, &not.reason, not.message);
                    if start.kind == ContainerKind::Init {
                        break;
                    }
                }
            }
        }
        if !all {
            self.retry_with_backoff();
            self.retry.of_containers = true;
            // Where only images are missing, their own back-off says when it is worth another look.
            self.retry.not_before = earliest(self.retry.not_before, self.image_retry);
        }
        all
    }

    /// The Pod's logins for registries. Without some of them the pull is tried all the same.
    async fn fetch_pull_secrets(&mut self, pod: &Pod) {
        let names = pod.spec.iter().flat_map(pull_secret_names).map(str::to_owned);
        let wants = References { secrets: names.collect(), ..References::default() };
        if wants.is_empty() {
            return;
        }
        let (found, missing) = pull_secrets(pod, &self.node.objects.supply(pod, &wants).await);
        self.pull_secrets = found.into();
        if !missing.is_empty() {
            let message = format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                missing.join(", ")
            );
            self.node.recorder.pod(pod, EventType::Warning, "FailedToRetrieveImagePullSecret", message);
        }
    }

    async fn start_one(
        &mut self,
        intent: &Intent,
        start: &Start,
        parent: &str,
        volumes: &ReadyVolumes,
        images: &mut VolumeImages,
    ) -> Result<(), NotStarted> {
        let pod = &*intent.pod;
        let Some(spec) = cri_config::spec_of(pod, &start.name) else { return Ok(()) };
        let Some(sandbox) = self.observed.sandboxes.first().filter(|s| s.ready).cloned() else {
            return Err(NotStarted::because("ContainerCreating", ""));
        };
        let refuse = |message: String| self.refused(pod, &start.name, "CreateContainerConfigError", &message);
        let userns = self.userns(pod).await.map_err(refuse)?;
        let cri_config = self.sandbox_config(pod, sandbox.attempt, parent, userns.as_ref()).await;
        let sandbox_config = cri_config.map(|r| to_cri::sandbox(&r)).map_err(refuse)?;
        let volumes = self.with_images(pod, &spec, volumes, &sandbox_config, images).await?;
        let image = self.image(pod, &spec, &sandbox_config).await?;
        let ips = self.pod_ips(pod, &sandbox.ips);
        let cri_config = self.container_config(pod, start, &image, &volumes, &ips).await?;
        let exited = self.observed.last_exit(&start.name).map(|c| c.id.clone());
        if let Err(message) = self.note_start(pod, start).await {
            return Err(self.refused(pod, &start.name, "CreateContainerConfigError", &message));
        }
        let id = self.create(pod, start, sandbox.id.as_str(), &cri_config, sandbox_config).await?;
        if let Some(exited) = exited {
            self.crash_loop.restarted(&spec, &exited, self.node.now().mono);
        }
        self.launch(pod, start, &id).await?;
        self.link_log(pod, start, &cri_config, &id).await;
        self.post_start(intent, start, &id, ips.first()).await
    }

    /// The container's image, pulled if need be, and whom it wants to run as.
    async fn image(
        &mut self,
        pod: &Pod,
        spec: &Container,
        sandbox: &v1::PodSandboxConfig,
    ) -> Result<Image, NotStarted> {
        let secrets = self.pull_secrets.clone();
        let want = Want {
            pod,
            container: Some(&spec.name),
            image: spec.image.as_deref().unwrap_or_default(),
            policy: spec.image_pull_policy.as_deref(),
            sandbox,
            secrets: &secrets,
        };
        let ImageRef { reference, found, .. } = self.ensure_image(want).await?;
        let found = match found {
            Some(found) => Some(found),
            None => {
                let spec = v1::ImageSpec { image: reference.clone(), ..Default::default() };
                let status = self.node.runtime.image_status(spec).await;
                status.map_err(|e| NotStarted::because("ImageInspectError", e.message))?
            }
        };
        Ok(Image { reference, user: found.map(image_user).unwrap_or_default() })
    }

    async fn ensure_image(&mut self, want: Want<'_>) -> Result<ImageRef, NotStarted> {
        let begun = self.node.now().mono;
        let Some(ensured) = self.unless_ending(self.node.images.ensure(want)).await else {
            return Err(NotStarted::because("ContainerCreating", ""));
        };
        self.pulling += self.node.now().mono.since(begun);
        ensured.map_err(|e| {
            self.image_retry = earliest(self.image_retry, e.retry_at);
            NotStarted::because(e.reason.as_str(), e.message)
        })
    }

    /// The volumes, with the images this container mounts pulled: the runtime mounts only what it has.
    /// An image is asked for once a pass, whoever mounts it.
    async fn with_images(
        &mut self,
        pod: &Pod,
        spec: &Container,
        volumes: &ReadyVolumes,
        sandbox: &v1::PodSandboxConfig,
        asked: &mut VolumeImages,
    ) -> Result<ReadyVolumes, NotStarted> {
        let mut volumes = volumes.clone();
        for mount in spec.volume_mounts.iter().flatten() {
            let Some(ResolvedVolume::Image { reference }) = volumes.get_mut(&mount.name) else { continue };
            if !asked.contains_key(&mount.name) {
                let secrets = self.pull_secrets.clone();
                let want = Want {
                    pod,
                    container: None,
                    image: reference.as_str(),
                    policy: image_policy(pod, &mount.name),
                    sandbox,
                    secrets: &secrets,
                };
                let ensured = self.ensure_image(want).await;
                let metrics = &self.node.metrics;
                metrics.image_volume_requested_total.inc([]);
                match ensured {
                    Ok(_) => metrics.image_volume_mounted_succeed_total.inc([]),
                    Err(_) => metrics.image_volume_mounted_errors_total.inc([]),
                }
                asked.insert(mount.name.clone(), ensured.map(|image| image.reference));
            }
            match asked.get(&mount.name) {
                Some(Ok(found)) => reference.clone_from(found),
                Some(Err(not)) => {
                    let message = format!("Error: {}", not.reason);
                    self.node.recorder.container(pod, &spec.name, EventType::Warning, "Failed", message);
                    return Err(not.clone());
                }
                None => {}
            }
        }
        Ok(volumes)
    }

    /// Everything the container will receive, and the files that have to exist first.
    async fn container_config(
        &self,
        pod: &Pod,
        start: &Start,
        image: &Image,
        volumes: &ReadyVolumes,
        ips: &[IpAddr],
    ) -> Result<ContainerConfig, NotStarted> {
        let refuse = |message: String| self.refused(pod, &start.name, "CreateContainerConfigError", &message);
        let made = self.node.files.prepare_container(pod, &start.name);
        let made = made.map_err(|e| format!("make termination message file: {e}"));
        let wants = References::of_container(pod, &start.name);
        let (termination, references, service_env, hosts, env_files, restart_count) = tokio::try_join!(
            made,
            self.node.objects.supply(pod, &wants).map(Ok),
            self.node.objects.service_env(pod),
            self.hosts_file(pod, &start.name, ips),
            self.env_files(pod, &start.name, volumes),
            self.restart_count(pod, start).map(Ok),
        )
        .map_err(refuse)?;
        let target = self.target(pod, &start.name).map_err(refuse)?;
        let userns = self.userns(pod).await.map_err(refuse)?;
        let mut input = ContainerInput {
            pod,
            groups: &self.volume_groups,
            name: &start.name,
            kind: start.kind,
            restart_count,
            image_ref: &image.reference,
            image_user: &image.user,
            volumes,
            sub_paths: &BTreeMap::new(),
            env_files: &env_files,
            pod_ips: ips,
            node: &self.node.cri_config_facts(),
            config: &self.node.settings.cri_config,
            references: &references,
            service_env: &service_env,
            hosts_file: hosts.as_deref(),
            termination_file: Some(&termination),
            userns: userns.as_ref(),
            handler: self.features(pod).await,
            target: target.as_deref(),
        };
        let sub_paths = self.sub_paths(&input).await.map_err(refuse)?;
        input.sub_paths = &sub_paths;
        let mut config = cri_config::container(&input)
            .map_err(|e| self.refused(pod, &start.name, e.reason.as_str(), &e.message))?;
        self.node.places.of(self.uid.as_str(), &start.name).apply(&mut config.resources);
        if let Some(devices) = self.node.places.devices() {
            devices.pre_start(self.uid.as_str(), &start.name).await.map_err(refuse)?;
            devices.of_container(self.uid.as_str(), &start.name).apply(&mut config);
        }
        Ok(config)
    }

    /// The container whose processes an ephemeral one wants to see. It has to be there: the namespace is for good.
    fn target(&self, pod: &Pod, ephemeral: &str) -> Result<Option<String>, String> {
        let Some(name) = target_of(pod, ephemeral) else { return Ok(None) };
        let target =
            self.observed.newest(name).ok_or_else(|| format!("unable to find target container {name}"))?;
        Ok(Some(target.id.to_string()))
    }

    /// Files in the Pod's own volumes from which environment variables are read.
    async fn env_files(
        &self,
        pod: &Pod,
        container: &str,
        volumes: &ReadyVolumes,
    ) -> Result<BTreeMap<(String, String), String>, String> {
        let (mut files, mut read) = (BTreeMap::new(), 0);
        for (volume, path) in cri_config::env_files(pod, container) {
            let Some(ResolvedVolume::Host { path: root, .. }) = volumes.get(&volume) else { continue };
            match read_in_volume(root.clone(), PathBuf::from(&path), ENV_FILE_MAX).await {
                Ok(content) => {
                    read += content.len();
                    if read > ENV_FILES_MAX {
                        return Err(format!(
                            "environment file {path:?} in volume {volume:?}: it and those before it have more than \
                             {ENV_FILES_MAX} bytes"
                        ));
                    }
                    files.insert((volume, path), content);
                }
                // Whether a missing file matters depends on `optional`, which the CRI config knows.
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => return Err(format!("read environment file {path:?} in volume {volume:?}: {e}")),
            }
        }
        Ok(files)
    }

    /// The runtime may have forgotten earlier instances; the log files have not.
    async fn restart_count(&self, pod: &Pod, start: &Start) -> u32 {
        if self.observed.newest(&start.name).is_some() {
            return start.restart_count;
        }
        let on_disk = self.node.files.restart_count_from_logs(pod, &start.name).await.ok().flatten();
        on_disk.unwrap_or(start.restart_count)
    }

    async fn sub_paths(&self, input: &ContainerInput<'_>) -> Result<BTreeMap<usize, PathBuf>, String> {
        let mut paths = BTreeMap::new();
        for sub in cri_config::sub_paths(input).map_err(|e| e.to_string())? {
            let volumes = &self.node.volumes;
            let prepared = volumes.sub_path(input.pod, input.name, sub.index, &sub.volume, &sub.path).await;
            let path = prepared.map_err(|e| {
                format!(
                    "failed to prepare subPath for volumeMount {:?} of container {:?}: {}",
                    sub.volume, input.name, e.message
                )
            })?;
            paths.insert(sub.index, path);
        }
        Ok(paths)
    }

    /// The hosts file, rewritten at every start, unless the container brings its own.
    async fn hosts_file(
        &self,
        pod: &Pod,
        container: &str,
        ips: &[IpAddr],
    ) -> Result<Option<PathBuf>, String> {
        let node_hosts = match host_network(pod) {
            true => {
                self.node.files.node_hosts().await.map_err(|e| format!("read the node's hosts file: {e}"))?
            }
            false => String::new(),
        };
        let domain = &self.node.facts.cri_config.cluster_domain;
        let content =
            cri_config::hosts_file(pod, container, ips, domain, &node_hosts).map_err(|e| e.to_string())?;
        let Some(content) = content else { return Ok(None) };
        let written = self.node.files.write_hosts(pod, &content).await;
        written.map(Some).map_err(|e| format!("write hosts file: {e}"))
    }

    async fn create(
        &self,
        pod: &Pod,
        start: &Start,
        sandbox: &str,
        cri_config: &ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<ContainerId, NotStarted> {
        let config = to_cri::container(cri_config);
        let made = self.node.runtime.create_container(sandbox, config, sandbox_config);
        let id = self.patiently(pod, &format!("create container {}", start.name), made).await;
        let id = id.map_err(|e| self.refused(pod, &start.name, "CreateContainerError", &e.message))?;
        self.node.recorder.container(pod, &start.name, EventType::Normal, "Created", "Container created");
        Ok(ContainerId::from(id))
    }

    async fn launch(&self, pod: &Pod, start: &Start, id: &ContainerId) -> Result<(), NotStarted> {
        self.node.metrics.started_containers_total.inc([type_label(start.kind)]);
        self.node.places.starting(pod, &start.name).await;
        let started = self.node.runtime.start_container(id.as_str());
        let started = self.patiently(pod, &format!("start container {}", start.name), started).await;
        started.map_err(|e| self.refused(pod, &start.name, "RunContainerError", &e.message))?;
        self.node.recorder.container(pod, &start.name, EventType::Normal, "Started", "Container started");
        Ok(())
    }

    async fn link_log(&self, pod: &Pod, start: &Start, cri_config: &ContainerConfig, id: &ContainerId) {
        let log = self.node.files.log_directory(pod).join(&cri_config.log_path);
        let linked = self.node.files.link_log(pod, &start.name, id.as_str(), &log.to_string_lossy()).await;
        if let Err(error) = linked {
            tracing::warn!(pod = name(pod), container = start.name, %error, "log link not made");
        }
    }

    /// postStart holds back the next container; its failure kills this one.
    async fn post_start(
        &self,
        intent: &Intent,
        start: &Start,
        id: &ContainerId,
        ip: Option<&IpAddr>,
    ) -> Result<(), NotStarted> {
        let pod = &*intent.pod;
        let Some(hook) = lifecycle(pod, &start.name).and_then(|l| l.post_start.as_ref()) else {
            return Ok(());
        };
        let ip = ip.map(ToString::to_string);
        let call = hooks::Call {
            pod,
            container: &start.name,
            id,
            pod_ip: ip.as_deref(),
            runtime: &*self.node.runtime,
            net: &*self.node.net,
        };
        let Some(outcome) = self.unless_ending(hooks::run(hook, &call)).await else { return Ok(()) };
        let error = match outcome {
            Ok(done) => {
                self.tell_fallback(pod, &done);
                return Ok(());
            }
            Err(error) => error,
        };
        let recorder = &self.node.recorder;
        recorder.container(
            pod,
            &start.name,
            EventType::Warning,
            "FailedPostStartHook",
            "PostStartHook failed",
        );
        // It is stopped as any other, preStop included; an order to end the Pod does not wait for that.
        let stopping = self.stop_one(pod, &start.name, id, intent.grace(), "FailedPostStartHook");
        self.unless_ending(stopping).await;
        Err(NotStarted::because("PostStartHookError", error.to_string()))
    }

    /// Tells the user, and hands back what the status will say.
    fn refused(&self, pod: &Pod, container: &str, reason: &str, message: &str) -> NotStarted {
        self.node.recorder.container(
            pod,
            container,
            EventType::Warning,
            "Failed",
            format!("Error: {message}"),
        );
        NotStarted::because(reason, message)
    }

    fn pod_ips(&self, pod: &Pod, sandbox: &[IpAddr]) -> Vec<IpAddr> {
        match host_network(pod) {
            true => self.node.host_ips.now(),
            false => sandbox.to_vec(),
        }
    }

    fn count_failure(&self, kind: ContainerKind, reason: &str) {
        self.node.metrics.started_containers_errors_total.inc([type_label(kind), reason]);
    }
}

fn image_user(image: v1::Image) -> ImageUser {
    match (image.uid, image.username) {
        (Some(uid), _) => ImageUser::Uid(uid.value),
        (None, name) if !name.is_empty() => ImageUser::Name(name),
        _ => ImageUser::default(),
    }
}

fn image_policy<'a>(pod: &'a Pod, volume: &str) -> Option<&'a str> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    volumes.iter().find(|v| v.name == volume)?.image.as_ref()?.pull_policy.as_deref()
}

/// The event of a volume that is not ready, in upstream's words.
fn told(error: &VolumeError) -> (&'static str, String) {
    let VolumeError { volume, message, .. } = error;
    let unable = |attach: &str, process: &str| {
        let all = unmounted(volume, attach, process, message);
        ("FailedMount", format!("Unable to attach or mount volumes: {all}"))
    };
    let (reason, step) = match error.act {
        VolumeAct::Attach | VolumeAct::FindRoom => return unable(volume, ""),
        VolumeAct::Process => return unable("", volume),
        VolumeAct::CheckNode => ("FailedMount", "MountVolume.NodeAffinity check"),
        VolumeAct::Stage => ("FailedMount", "MountVolume.MountDevice"),
        VolumeAct::StageDevice => ("FailedMapVolume", "MapVolume.SetUpDevice"),
        VolumeAct::Map => ("FailedMapVolume", "MapVolume.MapPodDevice"),
        _ => ("FailedMount", "MountVolume.SetUp"),
    };
    (reason, format!("{step} failed for volume {volume:?} : {message}"))
}

fn unmounted(volume: &str, attach: &str, process: &str, why: &str) -> String {
    format!(
        "unmounted volumes=[{volume}], unattached volumes=[{attach}], failed to process volumes=[{process}]: {why}"
    )
}

fn resolved(mounted: MountedVolume) -> ResolvedVolume {
    match mounted {
        MountedVolume::Host { path, read_only } => ResolvedVolume::Host { path, read_only },
        MountedVolume::Image { reference } => ResolvedVolume::Image { reference },
        MountedVolume::Device { path, read_only } => ResolvedVolume::Device { path, read_only },
    }
}

fn runtime_class(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.runtime_class_name.as_deref()).unwrap_or_default()
}

fn wants_recursive_read_only(pod: &Pod) -> bool {
    let mut modes = mounts(pod).flatten().filter_map(|m| m.recursive_read_only.as_deref());
    modes.any(|mode| mode != "Disabled")
}

fn wants_userns(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_users) == Some(false)
}

pub(super) fn type_label(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => container_type::INIT,
        ContainerKind::Ephemeral => container_type::EPHEMERAL,
        ContainerKind::Regular => container_type::CONTAINER,
    }
}

fn host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_network).unwrap_or(false)
}

fn target_of<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    let ephemeral = pod.spec.as_ref()?.ephemeral_containers.as_ref()?;
    let target = ephemeral.iter().find(|c| c.name == name)?.target_container_name.as_deref();
    target.filter(|t| !t.is_empty())
}
