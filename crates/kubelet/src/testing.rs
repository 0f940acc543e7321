//! Fakes for this crate's own tests. The one of a whole runtime is in `testkit`.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use base::time::{Clock, Mono, Now, Wall};
use client::{Client, Dial, Options, Wire};
use cri::v1;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::time::Instant;
use tonic::Code;

use crate::ports::{EventStream, GrpcHealth, HttpAnswer, HttpGet, Net, NetError, Runtime};

type Exec = Box<dyn Fn(&str, &[String]) -> cri::Result<v1::ExecSyncResponse> + Send + Sync>;

/// Answers exec, status, listing and log reopening by script; nothing else.
#[derive(Default)]
pub(crate) struct ScriptedRuntime {
    /// Answers every exec. `None` hangs until the timeout, or for ever without one.
    pub(crate) exec: Option<Exec>,
    pub(crate) execs: Mutex<Vec<(String, Vec<String>, Duration)>>,
    pub(crate) containers: Mutex<Vec<v1::Container>>,
    /// Log paths by container id.
    pub(crate) logs: Mutex<Vec<(String, String)>>,
    pub(crate) reopen: Mutex<VecDeque<cri::Result<()>>>,
    pub(crate) reopened: Mutex<Vec<String>>,
    /// None: it does not tell what containers use.
    pub(crate) stats: Option<Vec<v1::ContainerStats>>,
}

/// Answers network probes by script.
#[derive(Default)]
pub(crate) struct ScriptedNet {
    pub(crate) answers: Mutex<VecDeque<Result<HttpAnswer, NetError>>>,
    pub(crate) requests: Mutex<Vec<HttpGet>>,
}

/// Tokio's clock, which tests may pause.
pub(crate) struct TokioClock(Instant);

pub(crate) fn exit(code: i32, stdout: &str) -> cri::Result<v1::ExecSyncResponse> {
    Ok(v1::ExecSyncResponse { stdout: stdout.into(), stderr: Vec::new(), exit_code: code })
}

pub(crate) fn status(status: u16) -> Result<HttpAnswer, NetError> {
    Ok(HttpAnswer { status, body: "body".into(), foreign_redirect: false })
}

pub(crate) fn clock() -> Arc<TokioClock> {
    Arc::new(TokioClock(Instant::now()))
}

/// A client of a server that is one function.
pub(crate) fn client_of<A, F, B>(answer: A) -> Client
where
    A: Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = hyper::Result<Response<B>>> + Send + 'static,
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let dial: Dial = Arc::new(move || {
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let service = service_fn(answer.clone());
        let serving =
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(theirs), service);
        tokio::spawn(async move { drop(serving.await) });
        Ok(Box::new(ours) as Box<dyn Wire>)
    });
    Client::over(dial, Options::default())
}

impl Clock for TokioClock {
    fn now(&self) -> Now {
        let up = self.0.elapsed();
        let base = Wall::from_secs(1_000_000);
        Now { mono: Mono(up), wall: Wall(base.0 + i64::try_from(up.as_nanos()).unwrap()) }
    }
}

#[async_trait]
impl Net for ScriptedNet {
    async fn http_get(&self, request: HttpGet) -> Result<HttpAnswer, NetError> {
        self.requests.lock().unwrap().push(request);
        let next = self.answers.lock().unwrap().pop_front();
        next.unwrap_or_else(|| Err(NetError("nobody there".into())))
    }

    async fn tcp_connect(&self, _: &str, _: u16, _: Duration) -> Result<(), NetError> {
        Err(NetError("nobody there".into()))
    }

    async fn grpc_health(&self, _: &str, _: u16, _: &str, _: Duration) -> Result<GrpcHealth, NetError> {
        Ok(GrpcHealth::NotServing("NOT_SERVING".into()))
    }
}

fn no<T>(op: &'static str) -> cri::Result<T> {
    Err(cri::Error::new(op, "", Code::Unimplemented, "not scripted"))
}

#[async_trait]
impl Runtime for ScriptedRuntime {
    async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> cri::Result<v1::ExecSyncResponse> {
        self.execs.lock().unwrap().push((id.to_owned(), command.clone(), timeout));
        if let Some(exec) = &self.exec {
            return exec(id, &command);
        }
        if timeout.is_zero() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(timeout).await;
        Err(cri::Error::new("exec in container", id, Code::DeadlineExceeded, "timeout"))
    }

    async fn list_containers(&self, _: Option<v1::ContainerFilter>) -> cri::Result<Vec<v1::Container>> {
        Ok(self.containers.lock().unwrap().clone())
    }

    async fn container_status(&self, id: &str) -> cri::Result<v1::ContainerStatusResponse> {
        let logs = self.logs.lock().unwrap();
        let Some((_, path)) = logs.iter().find(|(i, _)| i == id) else { return no("container status") };
        let status = v1::ContainerStatus { id: id.into(), log_path: path.clone(), ..Default::default() };
        Ok(v1::ContainerStatusResponse { status: Some(status), ..Default::default() })
    }

    /// Makes a new file when it succeeds, as a runtime does.
    async fn reopen_container_log(&self, id: &str) -> cri::Result<()> {
        self.reopened.lock().unwrap().push(id.to_owned());
        if let Some(Err(error)) = self.reopen.lock().unwrap().pop_front() {
            return Err(error);
        }
        for (_, path) in self.logs.lock().unwrap().iter().filter(|(i, _)| i == id) {
            std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
        }
        Ok(())
    }

    async fn version(&self) -> cri::Result<v1::VersionResponse> {
        Ok(v1::VersionResponse::default())
    }
    async fn status(&self) -> cri::Result<v1::StatusResponse> {
        Ok(v1::StatusResponse::default())
    }
    async fn runtime_config(&self) -> cri::Result<v1::RuntimeConfigResponse> {
        no("runtime config")
    }
    async fn update_runtime_config(&self, _: &str) -> cri::Result<()> {
        no("update runtime config")
    }
    async fn run_pod_sandbox(&self, _: v1::PodSandboxConfig, _: &str) -> cri::Result<String> {
        no("run sandbox")
    }
    async fn stop_pod_sandbox(&self, _: &str) -> cri::Result<()> {
        no("stop sandbox")
    }
    async fn remove_pod_sandbox(&self, _: &str) -> cri::Result<()> {
        no("remove sandbox")
    }
    async fn pod_sandbox_status(&self, _: &str) -> cri::Result<v1::PodSandboxStatusResponse> {
        no("sandbox status")
    }
    async fn list_pod_sandboxes(&self, _: Option<v1::PodSandboxFilter>) -> cri::Result<Vec<v1::PodSandbox>> {
        no("list sandboxes")
    }
    async fn create_container(
        &self,
        _: &str,
        _: v1::ContainerConfig,
        _: v1::PodSandboxConfig,
    ) -> cri::Result<String> {
        no("create container")
    }
    async fn start_container(&self, _: &str) -> cri::Result<()> {
        no("start container")
    }
    async fn stop_container(&self, _: &str, _: i64) -> cri::Result<()> {
        no("stop container")
    }
    async fn remove_container(&self, _: &str) -> cri::Result<()> {
        no("remove container")
    }
    async fn update_container_resources(&self, _: &str, _: v1::LinuxContainerResources) -> cri::Result<()> {
        no("resize container")
    }
    async fn update_pod_sandbox_resources(&self, _: v1::UpdatePodSandboxResourcesRequest) -> cri::Result<()> {
        no("resize sandbox")
    }
    async fn exec(&self, _: v1::ExecRequest) -> cri::Result<String> {
        no("exec")
    }
    async fn attach(&self, _: v1::AttachRequest) -> cri::Result<String> {
        no("attach")
    }
    async fn port_forward(&self, _: v1::PortForwardRequest) -> cri::Result<String> {
        no("port forward")
    }
    async fn checkpoint_container(&self, _: v1::CheckpointContainerRequest) -> cri::Result<()> {
        no("checkpoint container")
    }
    async fn list_container_stats(&self) -> cri::Result<Vec<v1::ContainerStats>> {
        self.stats.clone().map_or_else(|| no("list container stats"), Ok)
    }
    async fn list_images(&self) -> cri::Result<Vec<v1::Image>> {
        no("list images")
    }
    async fn image_status(&self, _: v1::ImageSpec) -> cri::Result<Option<v1::Image>> {
        no("image status")
    }
    async fn pull_image(
        &self,
        _: v1::ImageSpec,
        _: Option<v1::AuthConfig>,
        _: Option<v1::PodSandboxConfig>,
    ) -> cri::Result<String> {
        no("pull image")
    }
    async fn remove_image(&self, _: v1::ImageSpec) -> cri::Result<()> {
        no("remove image")
    }
    async fn image_fs_info(&self) -> cri::Result<v1::ImageFsInfoResponse> {
        no("image filesystem")
    }
    async fn events(&self) -> cri::Result<EventStream> {
        no("events")
    }
}
