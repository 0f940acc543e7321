//! A daemon of a test's own, with an image made of the machine's shell.
#![allow(clippy::unwrap_used, dead_code)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use cri::v1;
use cri::{Client, Endpoint};
use images::{Digest, Store};
use runtime::network::Networks;
use runtime::{Agent, Settings};
use tokio_util::sync::CancellationToken;

pub(crate) const IMAGE: &str = "localhost/shell:v1";
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 15] = [
    "sh", "sleep", "cat", "ls", "id", "head", "tail", "grep", "wc", "readlink", "stat", "hostname", "mount",
    "sort", "ln",
];

/// Everything of one test; gone when it is dropped.
pub(crate) struct Place {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) cgroup: String,
    running: Option<(CancellationToken, std::thread::JoinHandle<()>)>,
}

impl Place {
    /// With an image, and a network plugin that only gives an address.
    pub(crate) fn new() -> Place {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // Sockets and mounts have short names; overlayfs wants a file system with extended attributes.
        let dir = tempfile::Builder::new().prefix("lsrt").tempdir_in("/tmp").unwrap();
        let cgroup = format!("longshore-test-daemon-{}-{number}", std::process::id());
        let place = Place { dir, cgroup, running: None };
        place.import();
        place.plugin();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn settings(&self) -> Settings {
        settings_in(self.dir.path())
    }

    /// A daemon on a thread of its own, as a process would be: when it ends, its tasks end in the middle of what they do.
    pub(crate) fn start(&mut self) -> Client {
        let (settings, token) = (self.settings(), CancellationToken::new());
        let end = token.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let agent = Agent::open(settings).await.unwrap();
                ready.send(()).unwrap();
                agent.serve(end).await.unwrap();
            });
            runtime.shutdown_background();
        });
        is_ready.recv_timeout(DEADLINE).unwrap();
        self.running = Some((token, thread));
        Client::new(Endpoint::from(self.path("runtime.sock").as_path()), None, DEADLINE)
    }

    /// Not waited for on the test's own thread: its client has to hear of it, too.
    pub(crate) async fn stop(&mut self) {
        if let Some((token, thread)) = self.running.take() {
            token.cancel();
            tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
        }
    }

    fn plugin(&self) {
        fs::create_dir(self.path("net.d")).unwrap();
        fs::create_dir(self.path("bin")).unwrap();
        let list = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "address"}]}"#;
        fs::write(self.path("net.d/10-pods.conflist"), list).unwrap();
        let script = format!(
            "#!/bin/sh\necho \"$CNI_COMMAND $CNI_CONTAINERID\" >> {}\n\
             [ \"$CNI_COMMAND\" = ADD ] && echo '{{\"cniVersion\":\"1.0.0\",\"ips\":[{{\"address\":\"10.1.2.3/24\"}}]}}'\nexit 0\n",
            self.path("calls").display()
        );
        fs::write(self.path("bin/address"), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(self.path("bin/address"), mode).unwrap();
    }

    fn import(&self) {
        let (stage, archive) = (self.path("stage"), self.path("archive"));
        fs::create_dir_all(&archive).unwrap();
        for dir in ["bin", "etc", "tmp"] {
            fs::create_dir_all(stage.join(dir)).unwrap();
        }
        for program in PROGRAMS {
            copy_with_libraries(program, &stage);
        }
        fs::write(
            stage.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nweb:x:1000:1001::/home/web:/bin/sh\n",
        )
        .unwrap();
        fs::write(stage.join("etc/group"), "root:x:0:\nweb:x:1001:\nmore:x:50000:web\n").unwrap();
        let layer = archive.join("layer.tar");
        run(Command::new("tar").arg("-C").arg(&stage).arg("-cf").arg(&layer).arg("."));
        let diff_id = Digest::of(&fs::read(&layer).unwrap());
        let config = format!(
            r#"{{"architecture":"{}","os":"linux","config":{{"Env":["PATH=/bin","OF_IMAGE=yes"],"Cmd":["/bin/sh"]}},"rootfs":{{"type":"layers","diff_ids":["{diff_id}"]}}}}"#,
            if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }
        );
        fs::write(archive.join("config.json"), config).unwrap();
        let manifest =
            format!(r#"[{{"Config":"config.json","RepoTags":["{IMAGE}"],"Layers":["layer.tar"]}}]"#);
        fs::write(archive.join("manifest.json"), manifest).unwrap();
        let whole = self.path("image.tar");
        run(Command::new("tar").arg("-C").arg(&archive).arg("-cf").arg(&whole).arg("."));
        let store = Store::open(&self.path("root/images")).unwrap();
        images::import(&store, fs::File::open(whole).unwrap()).unwrap();
    }

    pub(crate) fn sandbox(&self, name: &str) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: self.path("logs").join(name).display().to_string(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("/{}/{name}", self.cgroup),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(own_pids()),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(crate) fn log(&self, sandbox: &str, name: &str) -> String {
        let text = fs::read_to_string(self.path("logs").join(sandbox).join(format!("{name}.log")));
        let text = text.unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.splitn(4, ' ').nth(3));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Nothing of ours is mounted or in a cgroup.
    pub(crate) async fn assert_clean(&mut self) {
        self.stop().await;
        let until = Instant::now() + DEADLINE;
        loop {
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let mounted: Vec<&str> =
                mounts.lines().filter(|line| line.contains(self.dir.path().to_str().unwrap())).collect();
            let hierarchies = sys::cgroup::Hierarchies::find().unwrap();
            let pods = hierarchies.children(&self.cgroup).unwrap();
            let below: Vec<String> = pods
                .iter()
                .flat_map(|pod| hierarchies.children(&format!("{}/{pod}", self.cgroup)).unwrap())
                .collect();
            let dirs = fs::read_dir(self.path("state/sandboxes")).unwrap().count()
                + fs::read_dir(self.path("root/containers")).unwrap().count();
            if mounted.is_empty() && below.is_empty() && dirs == 0 {
                return;
            }
            assert!(Instant::now() < until, "left: {mounted:?} {below:?} {dirs}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((token, thread)) = self.running.take() {
            token.cancel();
            let _ = thread.join();
        }
        // What a failing test leaves goes here.
        for sandbox in fs::read_dir(self.path("state/sandboxes")).into_iter().flatten().flatten() {
            let Ok(dir) = sys::fd::open_dir(&sandbox.path()) else { continue };
            if let Ok(socket) = sys::message::connect(&dir, std::ffi::OsStr::new("keeper")) {
                let quit = runtime_core::message::encode(runtime_core::message::Ask::Quit, 0, 0);
                let _ = sys::message::send(socket, &quit, &[]);
            }
            for name in ["shm", "net", "uts", "ipc"] {
                let _ = sys::mount::unmount(&dir, std::ffi::OsStr::new(name), sys::mount::Busy::Detach);
            }
        }
        let Ok(hierarchies) = sys::cgroup::Hierarchies::find() else { return };
        let until = Instant::now() + DEADLINE;
        while hierarchies.is_anywhere(&self.cgroup) && Instant::now() < until {
            let _ = hierarchies.kill(&self.cgroup);
            let _ = hierarchies.remove(&self.cgroup);
        }
    }
}

/// How the daemon of that place runs.
pub(crate) fn settings_in(dir: &Path) -> Settings {
    Settings {
        listen: dir.join("runtime.sock"),
        root_dir: dir.join("root"),
        state_dir: dir.join("state"),
        stream: ([127, 0, 0, 1], 0).into(),
        metrics: None,
        networks: Networks {
            conf_dir: dir.join("net.d"),
            bin_dirs: vec![dir.join("bin")],
            cache_dir: dir.join("cni"),
            built_in: None,
        },
        cdi_dirs: vec![dir.join("cdi")],
        registry: registry::Settings::default(),
        handlers: vec!["runc".into()],
        version: "v1.36.4".into(),
    }
}

pub(crate) fn own_pids() -> v1::NamespaceOption {
    v1::NamespaceOption { pid: v1::NamespaceMode::Container.into(), ..Default::default() }
}

pub(crate) fn container(name: &str, script: &str) -> v1::ContainerConfig {
    v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: ["/bin/sh", "-c", script].map(str::to_owned).into(),
        log_path: format!("{name}.log"),
        linux: Some(v1::LinuxContainerConfig {
            security_context: Some(v1::LinuxContainerSecurityContext {
                namespace_options: Some(own_pids()),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub(crate) async fn exited(client: &Client, id: &str) -> v1::ContainerStatus {
    let until = Instant::now() + DEADLINE;
    loop {
        let status = client.container_status(id).await.unwrap().status.unwrap();
        if status.state() == v1::ContainerState::ContainerExited {
            return status;
        }
        assert!(Instant::now() < until, "{status:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn copy_with_libraries(program: &str, stage: &Path) {
    let paths = ["/bin", "/usr/bin"].map(|dir| Path::new(dir).join(program));
    let source = paths.iter().find(|path| path.exists()).unwrap_or_else(|| panic!("no {program}"));
    fs::copy(source, stage.join("bin").join(program)).unwrap();
    let told = Command::new("ldd").arg(source).output().unwrap();
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let libraries: BTreeSet<&str> = text.split_whitespace().filter(|word| word.starts_with('/')).collect();
    for library in libraries {
        let target = stage.join(library.trim_start_matches('/'));
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::copy(library, target).unwrap();
    }
}

fn run(command: &mut Command) {
    let out = command.output().unwrap();
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Kill -9 for the keeper that has a file of this place open: it writes the log.
pub(crate) fn kill_keeper(place: &Place) {
    let is_ours = |pid: i32| {
        let named = fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == "keeper");
        let fds = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        named && links.any(|link| link.starts_with(place.dir.path()))
    };
    let all = sys::processes::list(Path::new("/proc")).unwrap();
    let keeper = all.iter().find(|process| is_ours(process.pid)).expect("a keeper");
    assert!(sys::processes::kill(keeper).unwrap());
}

/// The archive that the image came from.
pub(crate) fn archive(place: &Place) -> Vec<u8> {
    fs::read(place.path("image.tar")).unwrap()
}
