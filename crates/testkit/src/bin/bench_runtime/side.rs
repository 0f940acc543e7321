//! One runtime on a node of its own, and what is asked of it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use cri::v1;
use cri::{Client, Endpoint};
use futures_util::future::try_join_all;
use testkit::direct::{Direct, DirectPod};
use testkit::node::{Containerd, Node, Options, Tools};
use testkit::weight::memory;

use crate::Outcome;

const DEMO: &str = "localhost/demo:v1";
const BUSYBOX: &str = "localhost/busybox:v1";
/// For a container to end.
const ENDS_WITHIN: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_millis(1);

pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) direct: Direct,
    node: Node,
}

// === impl Side ===

impl Side {
    pub(crate) async fn start(tools: &Tools, containerd: Containerd) -> Outcome<Side> {
        let node = Node::start(tools, Options { containerd, ..Options::default() })?;
        let client = Client::new(Endpoint::parse(&node.endpoint())?, None, Duration::from_secs(120));
        let version = client.version().await?;
        let name = match containerd {
            Containerd::Embedded => "longshore runtime".to_owned(),
            _ => {
                format!("containerd {}", version.runtime_version.split(['~', '+']).next().unwrap_or_default())
            }
        };
        let direct = Direct::new(client, node.dir().join("direct-logs"));
        Ok(Side { name, direct, node })
    }

    pub(crate) fn stop(self) -> Outcome<()> {
        Ok(self.node.stop()?)
    }

    pub(crate) fn dir(&self) -> &Path {
        self.node.dir()
    }

    /// A Pod without containers, and how long it took to make.
    pub(crate) async fn sandbox(&self, name: &str) -> Outcome<(String, Duration)> {
        let config = self.direct.sandbox(name);
        let begun = Instant::now();
        let id = self.direct.client().run_pod_sandbox(config, "").await?;
        Ok((id, begun.elapsed()))
    }

    pub(crate) async fn end_sandbox(&self, id: &str) -> Outcome<()> {
        self.direct.client().stop_pod_sandbox(id).await?;
        Ok(self.direct.client().remove_pod_sandbox(id).await?)
    }

    /// A Pod whose container does nothing.
    pub(crate) async fn pod(&self, name: &str) -> Outcome<DirectPod> {
        Ok(self.direct.run(name, BUSYBOX, &["sleep", "100000"]).await?)
    }

    /// A container that ends at once, in a Pod that is there: made, started, seen to have ended, removed.
    pub(crate) async fn run_to_the_end(&self, pod: &DirectPod, name: &str) -> Outcome<Duration> {
        let begun = Instant::now();
        let id = self.container(pod, name, &["true"]).await?;
        self.ended(&id).await?;
        self.direct.client().remove_container(&id).await?;
        Ok(begun.elapsed())
    }

    async fn container(&self, pod: &DirectPod, name: &str, args: &[&str]) -> Outcome<String> {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: BUSYBOX.into(), ..v1::ImageSpec::default() }),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            log_path: format!("{name}.log"),
            ..v1::ContainerConfig::default()
        };
        let client = self.direct.client();
        let id = client.create_container(&pod.sandbox, config, self.direct.sandbox("work")).await?;
        client.start_container(&id).await?;
        Ok(id)
    }

    async fn ended(&self, id: &str) -> Outcome<()> {
        let until = Instant::now() + ENDS_WITHIN;
        loop {
            let status = self.direct.client().container_status(id).await?.status.unwrap_or_default();
            if status.state == v1::ContainerState::ContainerExited as i32 {
                return match status.exit_code {
                    0 => Ok(()),
                    code => Err(format!("a container ended with {code}: {}", status.message).into()),
                };
            }
            if Instant::now() > until {
                return Err("a container does not end".into());
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    pub(crate) async fn exec(&self, pod: &DirectPod) -> Outcome<Duration> {
        let begun = Instant::now();
        let command = vec!["true".to_owned()];
        let done = self.direct.client().exec_sync(&pod.container, command, Duration::from_secs(60)).await?;
        match done.exit_code {
            0 => Ok(begun.elapsed()),
            code => Err(format!("`true` ended with {code}").into()),
        }
    }

    pub(crate) async fn crowd(&self, count: usize) -> Outcome<Vec<DirectPod>> {
        let names: Vec<String> = (0..count).map(|n| format!("crowd-{n}")).collect();
        Ok(try_join_all(names.iter().map(|name| self.direct.run(name, DEMO, &["pause"]))).await?)
    }

    pub(crate) async fn remove_crowd(&self, pods: &[DirectPod]) -> Outcome<()> {
        try_join_all(pods.iter().map(|pod| self.direct.remove(pod, 1))).await?;
        Ok(())
    }

    /// Has a container print lines of 100 bytes, each by a write of its own. The runtime's processor time for them.
    pub(crate) async fn log(&self, lines: usize) -> Outcome<Duration> {
        let pod = self.pod("work").await?;
        let script = format!("yes {} | dd bs=100 count={lines} 2>/dev/null", "x".repeat(99));
        let before = self.processor();
        let id = self.container(&pod, "log", &["sh", "-c", &script]).await?;
        self.ended(&id).await?;
        let used = self.processor().saturating_sub(before);
        let path = self.node.dir().join("direct-logs/work/log.log");
        let written = fs::metadata(&path)?.len();
        if written < lines as u64 * 100 {
            return Err(format!("{} has {written} bytes: lines are lost", path.display()).into());
        }
        self.direct.client().remove_container(&id).await?;
        self.direct.remove(&pod, 0).await?;
        fs::remove_file(path)?;
        Ok(used)
    }

    /// Gives the runtime an archive with an image that it does not have.
    pub(crate) fn import(&self, archive: &Path) -> Outcome<(Duration, Duration)> {
        let (before, begun) = (self.processor(), Instant::now());
        let others = clients();
        self.node.import(archive)?;
        let wall = begun.elapsed();
        let used = self.processor().saturating_sub(before) + clients().saturating_sub(others);
        Ok((wall, used))
    }

    /// Of the runtime's own processes: daemon, shims, keepers. Not of what runs in containers.
    fn processor(&self) -> Duration {
        self.pids().iter().map(|pid| times(*pid).0).sum()
    }

    /// The same, with the processes that they started and that have ended.
    pub(crate) fn processor_with_children(&self) -> Duration {
        self.pids().iter().map(|pid| times(*pid)).map(|(own, children)| own + children).sum()
    }

    /// The same processes' memory, in MB.
    pub(crate) fn memory(&self) -> f64 {
        self.pids().iter().filter_map(|pid| memory(*pid, "Pss:").ok()).sum()
    }

    fn pids(&self) -> Vec<u32> {
        let processes = self.node.census().processes;
        let pids = processes.iter().filter_map(|line| line.split(' ').next()?.parse::<u32>().ok());
        pids.filter(|pid| is_of_the_runtime(*pid)).collect()
    }
}

/// By the program: a shim and a keeper have their Pod's name, or none.
fn is_of_the_runtime(pid: u32) -> bool {
    let Ok(program) = fs::read_link(format!("/proc/{pid}/exe")) else { return false };
    let program = program.display().to_string();
    ["memfd:keeper", "/containerd", "/longshore"].iter().any(|part| program.contains(part))
}

/// Own processor time, and that of children that were waited for.
fn times(pid: u32) -> (Duration, Duration) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().skip(11);
    let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    let mut pair = || {
        let both: u64 = (0..2).filter_map(|_| fields.next()?.parse::<u64>().ok()).sum();
        Duration::from_secs_f64(both as f64 * tick)
    };
    (pair(), pair())
}

/// What the clients cost that gave an archive: ctr, and ours.
fn clients() -> Duration {
    times(std::process::id()).1
}
