//! A CSI driver for tests: real bind mounts and loop devices, with switches to hang or fail any call.
//!
//! `csi_driver <directory> <name> [word...]`. The directory holds everything:
//!
//! | file | what |
//! |---|---|
//! | `csi.sock`, `reg.sock` | the node service; the registration socket, unless `registry=<dir>` says where it goes |
//! | `volumes/<handle>` | what volumes hold; `<handle>.img` for devices |
//! | `calls` | one line of JSON per call |
//! | `hang-<call>` | while it exists, the call does not come back |
//! | `max` | how many volumes the node can have from now on |
//! | `fail-<call>` | while it exists, the call fails with the gRPC code number in it |
//!
//! Words: `stage`, `expand`, `stats`, `group`, `writers` are capabilities; `max=<n>`, `zone=<z>`, `versions=<a,b>`,
//! `node=<id>`, `registry=<dir>` are what they say.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use csi::v1;
use csi::v1::node_server::{Node, NodeServer};
use csi::v1::volume_capability::AccessType;
use futures_util::stream::unfold;
use plugins::registration::registration_server::{Registration, RegistrationServer};
use plugins::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use rustix::mount::{MountFlags, UnmountFlags};
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

#[derive(Clone)]
struct Driver(Arc<Settings>);

struct Settings {
    dir: PathBuf,
    name: String,
    words: Vec<String>,
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = PathBuf::from(args.next().expect("a directory"));
    let settings = Settings { dir, name: args.next().expect("a name"), words: args.collect() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve(Driver(Arc::new(settings))));
}

async fn serve(driver: Driver) {
    fs::create_dir_all(driver.0.dir.join("volumes")).unwrap();
    let node = listen(&driver.0.dir.join("csi.sock"));
    let node = Server::builder().add_service(NodeServer::new(driver.clone())).serve_with_incoming(node);
    let registry = driver.word("registry").map_or_else(|| driver.0.dir.clone(), PathBuf::from);
    let socket = registry.join(format!("{}-reg.sock", driver.0.name));
    let registration = listen(&socket);
    let registration =
        Server::builder().add_service(RegistrationServer::new(driver)).serve_with_incoming(registration);
    let (node, registration) = tokio::join!(node, registration);
    node.and(registration).unwrap();
}

fn listen(
    socket: &Path,
) -> impl futures_util::Stream<Item = std::io::Result<tokio::net::UnixStream>> + use<> {
    let _ = fs::remove_file(socket);
    let listener = UnixListener::bind(socket).unwrap();
    unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    })
}

// === impl Driver ===

impl Driver {
    fn has(&self, word: &str) -> bool {
        self.0.words.iter().any(|w| w == word)
    }

    fn word(&self, key: &str) -> Option<&str> {
        self.0.words.iter().find_map(|w| w.strip_prefix(key)?.strip_prefix('='))
    }

    /// Notes the call, then hangs or fails if it is told to.
    async fn enter(&self, call: &str, what: Value) -> Result<(), Status> {
        let dir = &self.0.dir;
        let mut log = fs::OpenOptions::new().create(true).append(true).open(dir.join("calls")).unwrap();
        writeln!(log, "{}", json!({"call": call, "request": what})).unwrap();
        while dir.join(format!("hang-{call}")).exists() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        match fs::read_to_string(dir.join(format!("fail-{call}"))) {
            Ok(code) => Err(Status::new(Code::from_i32(code.trim().parse().unwrap()), "told to fail")),
            Err(_) => Ok(()),
        }
    }

    fn backing(&self, handle: &str) -> PathBuf {
        let dir = self.0.dir.join("volumes").join(handle);
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn device(&self, handle: &str) -> Result<PathBuf, Status> {
        let image = self.0.dir.join("volumes").join(format!("{handle}.img"));
        if !image.exists() {
            fs::File::create(&image).and_then(|f| f.set_len(1 << 20)).map_err(internal)?;
        }
        let known =
            losetup(&["--associated", &image.display().to_string(), "--noheadings", "--output", "NAME"])?;
        if let Some(device) = known.lines().next().filter(|l| !l.trim().is_empty()) {
            return Ok(PathBuf::from(device.trim()));
        }
        Ok(PathBuf::from(losetup(&["--find", "--show", &image.display().to_string()])?.trim()))
    }
}

#[tonic::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.enter("GetInfo", json!({})).await?;
        let versions = self.word("versions").unwrap_or("1.0.0");
        Ok(Response::new(PluginInfo {
            r#type: self.word("type").unwrap_or("CSIPlugin").to_owned(),
            name: fs::read_to_string(self.0.dir.join("name")).unwrap_or_else(|_| self.0.name.clone()),
            endpoint: self.0.dir.join("csi.sock").display().to_string(),
            supported_versions: versions.split(',').map(str::to_owned).collect(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let what = json!({"registered": status.plugin_registered, "error": status.error});
        self.enter("NotifyRegistrationStatus", what).await?;
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_info(
        &self,
        _: Request<v1::NodeGetInfoRequest>,
    ) -> Result<Response<v1::NodeGetInfoResponse>, Status> {
        self.enter("NodeGetInfo", json!({})).await?;
        let max = fs::read_to_string(self.0.dir.join("max")).ok();
        let segments = self
            .word("zone")
            .map(|zone| BTreeMap::from([("topology.test/zone".to_owned(), zone.to_owned())]));
        Ok(Response::new(v1::NodeGetInfoResponse {
            node_id: self.word("node").unwrap_or("node-1").to_owned(),
            max_volumes_per_node: max.as_deref().or(self.word("max")).map_or(0, |n| n.parse().unwrap()),
            accessible_topology: segments.map(|segments| v1::Topology { segments }),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<v1::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<v1::NodeGetCapabilitiesResponse>, Status> {
        use v1::node_service_capability::rpc::Type;
        self.enter("NodeGetCapabilities", json!({})).await?;
        let all = [
            ("stage", Type::StageUnstageVolume),
            ("stats", Type::GetVolumeStats),
            ("expand", Type::ExpandVolume),
            ("group", Type::VolumeMountGroup),
            ("writers", Type::SingleNodeMultiWriter),
        ];
        let offered = all.into_iter().filter(|(word, _)| self.has(word)).map(|(_, kind)| {
            let rpc = v1::node_service_capability::Rpc { r#type: kind.into() };
            v1::NodeServiceCapability { r#type: Some(v1::node_service_capability::Type::Rpc(rpc)) }
        });
        Ok(Response::new(v1::NodeGetCapabilitiesResponse { capabilities: offered.collect() }))
    }

    async fn node_stage_volume(
        &self,
        request: Request<v1::NodeStageVolumeRequest>,
    ) -> Result<Response<v1::NodeStageVolumeResponse>, Status> {
        let r = request.into_inner();
        let what = json!({
            "volume": r.volume_id, "staging": r.staging_target_path, "secrets": r.secrets,
            "context": r.volume_context, "publish": r.publish_context, "capability": shape(r.volume_capability.as_ref()),
        });
        self.enter("NodeStageVolume", what).await?;
        if !is_block(r.volume_capability.as_ref()) && !is_mounted(&r.staging_target_path) {
            bind(&self.backing(&r.volume_id), Path::new(&r.staging_target_path), false)?;
        }
        Ok(Response::new(v1::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<v1::NodeUnstageVolumeRequest>,
    ) -> Result<Response<v1::NodeUnstageVolumeResponse>, Status> {
        let r = request.into_inner();
        self.enter("NodeUnstageVolume", json!({"volume": r.volume_id, "staging": r.staging_target_path}))
            .await?;
        unmount(&r.staging_target_path)?;
        let image = self.0.dir.join("volumes").join(format!("{}.img", r.volume_id));
        if image.exists() {
            let device = self.device(&r.volume_id)?;
            losetup(&["--detach", &device.display().to_string()])?;
        }
        Ok(Response::new(v1::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<v1::NodePublishVolumeRequest>,
    ) -> Result<Response<v1::NodePublishVolumeResponse>, Status> {
        let r = request.into_inner();
        let what = json!({
            "volume": r.volume_id, "staging": r.staging_target_path, "target": r.target_path, "readonly": r.readonly,
            "secrets": r.secrets, "context": r.volume_context, "publish": r.publish_context,
            "capability": shape(r.volume_capability.as_ref()),
        });
        self.enter("NodePublishVolume", what).await?;
        if is_mounted(&r.target_path) {
            return Ok(Response::new(v1::NodePublishVolumeResponse {}));
        }
        let target = Path::new(&r.target_path);
        if is_block(r.volume_capability.as_ref()) {
            fs::File::create(target).map_err(internal)?;
            bind(&self.device(&r.volume_id)?, target, false)?;
        } else {
            fs::create_dir_all(target).map_err(internal)?;
            let source = match r.staging_target_path.as_str() {
                "" => self.backing(&r.volume_id),
                staging => PathBuf::from(staging),
            };
            bind(&source, target, r.readonly)?;
        }
        Ok(Response::new(v1::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<v1::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<v1::NodeUnpublishVolumeResponse>, Status> {
        let r = request.into_inner();
        self.enter("NodeUnpublishVolume", json!({"volume": r.volume_id, "target": r.target_path})).await?;
        unmount(&r.target_path)?;
        let target = Path::new(&r.target_path);
        let gone = if target.is_dir() { fs::remove_dir(target) } else { fs::remove_file(target) };
        match gone {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(internal(e)),
            _ => Ok(Response::new(v1::NodeUnpublishVolumeResponse {})),
        }
    }

    async fn node_expand_volume(
        &self,
        request: Request<v1::NodeExpandVolumeRequest>,
    ) -> Result<Response<v1::NodeExpandVolumeResponse>, Status> {
        let r = request.into_inner();
        let size = r.capacity_range.map_or(0, |c| c.required_bytes);
        let what = json!({"volume": r.volume_id, "path": r.volume_path, "staging": r.staging_target_path, "size": size, "secrets": r.secrets});
        self.enter("NodeExpandVolume", what).await?;
        Ok(Response::new(v1::NodeExpandVolumeResponse { capacity_bytes: size }))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<v1::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<v1::NodeGetVolumeStatsResponse>, Status> {
        use v1::volume_usage::Unit;
        let r = request.into_inner();
        self.enter("NodeGetVolumeStats", json!({"volume": r.volume_id, "path": r.volume_path})).await?;
        let usage = |unit: Unit, total, used| v1::VolumeUsage {
            available: total - used,
            total,
            used,
            unit: unit.into(),
        };
        let usage = vec![usage(Unit::Bytes, 1000, 400), usage(Unit::Inodes, 100, 10)];
        Ok(Response::new(v1::NodeGetVolumeStatsResponse { usage, volume_condition: None }))
    }
}

fn is_block(capability: Option<&v1::VolumeCapability>) -> bool {
    matches!(capability.and_then(|c| c.access_type.as_ref()), Some(AccessType::Block(_)))
}

fn shape(capability: Option<&v1::VolumeCapability>) -> Value {
    let Some(capability) = capability else { return Value::Null };
    let mode = capability.access_mode.as_ref().map(|m| m.mode().as_str_name());
    match &capability.access_type {
        Some(AccessType::Mount(m)) => json!({
            "mode": mode, "fsType": m.fs_type, "flags": m.mount_flags, "group": m.volume_mount_group,
        }),
        Some(AccessType::Block(_)) => json!({"mode": mode, "block": true}),
        None => Value::Null,
    }
}

/// The table knows no symlinks on the way to a mount point.
fn is_mounted(path: &str) -> bool {
    let path = Path::new(path);
    let real = path.parent().and_then(|dir| Some(dir.canonicalize().ok()?.join(path.file_name()?)));
    let real = real.unwrap_or_else(|| path.to_owned());
    sys::mountinfo::read().unwrap().iter().any(|m| m.mount_point == real)
}

fn bind(source: &Path, target: &Path, read_only: bool) -> Result<(), Status> {
    let io = |e: rustix::io::Errno| internal(e.into());
    rustix::mount::mount_bind(source, target).map_err(io)?;
    if read_only {
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        rustix::mount::mount_remount(target, flags, c"").map_err(io)?;
    }
    Ok(())
}

fn unmount(path: &str) -> Result<(), Status> {
    while is_mounted(path) {
        rustix::mount::unmount(path, UnmountFlags::empty()).map_err(|e| internal(e.into()))?;
    }
    Ok(())
}

fn losetup(args: &[&str]) -> Result<String, Status> {
    let done = Command::new("losetup").args(args).output().map_err(internal)?;
    match done.status.success() {
        true => Ok(String::from_utf8_lossy(&done.stdout).into_owned()),
        false => Err(Status::internal(String::from_utf8_lossy(&done.stderr).into_owned())),
    }
}

fn internal(error: std::io::Error) -> Status {
    Status::internal(error.to_string())
}
