//! One control plane: a server, controllers, a scheduler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::api::{Client, Outcome, Peer, Process, Server, free_address};

/// Upstream's programs.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    pub(crate) server: Peer,
    pub(crate) controllers: PathBuf,
    pub(crate) scheduler: PathBuf,
}

pub(crate) struct Side {
    server: Server,
    controllers: Process,
    scheduler: Process,
}

/// Bytes, or shares of a processor.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    pub(crate) server: f64,
    pub(crate) controllers: f64,
    pub(crate) scheduler: f64,
}

// === impl Side ===

impl Side {
    pub(crate) async fn ours(binary: &Path, dir: &Path) -> Outcome<Side> {
        fs::create_dir_all(dir)?;
        let server = Server::ours(binary, dir).await?;
        let kubeconfig = dir.join("data/admin.kubeconfig");
        let start = |name: &str, more: &[&str]| {
            let log = dir.join(format!("{name}.log"));
            Process::start(Command::new(binary).arg(name).args(common(&kubeconfig)).args(more), &log)
        };
        let controllers = start("kube-controller-manager", PATIENT)?;
        let scheduler = start("kube-scheduler", &[])?;
        Ok(Side { server, controllers, scheduler })
    }

    pub(crate) async fn upstream(programs: &Upstream, dir: &Path) -> Outcome<Side> {
        fs::create_dir_all(dir)?;
        let server = Server::upstream(&programs.server, dir).await?;
        let kubeconfig = server.admin_kubeconfig(dir)?;
        let key = format!("--service-account-private-key-file={}", dir.join("sa.key").display());
        // Its own limits are far below what it can do; upstream measures itself without them too.
        let fast =
            ["--kube-api-qps=5000", "--kube-api-burst=5000", "--authentication-tolerate-lookup-failure"];
        let start = |program: &Path, name: &str, more: &[&str]| {
            let port = free_address()?.port();
            let certs = dir.join(format!("{name}-certs"));
            let mut command = Command::new(program);
            command.args(common(&kubeconfig)).args(fast).args(more);
            command.arg(format!("--secure-port={port}")).arg(format!("--cert-dir={}", certs.display()));
            Process::start(&mut command, &dir.join(format!("{name}.log")))
        };
        let patient: Vec<&str> = PATIENT.iter().copied().chain([key.as_str()]).collect();
        let controllers = start(&programs.controllers, "controllers", &patient)?;
        let scheduler = start(&programs.scheduler, "scheduler", &[])?;
        Ok(Side { server, controllers, scheduler })
    }

    pub(crate) async fn client(&self) -> Outcome<Client> {
        self.server.client().await
    }

    /// Proportional set sizes.
    pub(crate) fn memory(&self) -> Outcome<Cost> {
        Ok(Cost {
            server: self.server.memory()? as f64,
            controllers: self.controllers.memory()? as f64,
            scheduler: self.scheduler.memory()? as f64,
        })
    }

    /// What is used of a processor while nothing happens.
    pub(crate) async fn idle(&self, time: Duration) -> Outcome<Cost> {
        // What is left to do of the load before.
        tokio::time::sleep(time / 3).await;
        let before = self.used()?;
        tokio::time::sleep(time).await;
        let after = self.used()?;
        let share = |part: fn(&Cost) -> f64| (part(&after) - part(&before)) / time.as_secs_f64();
        Ok(Cost {
            server: share(|cost| cost.server),
            controllers: share(|cost| cost.controllers),
            scheduler: share(|cost| cost.scheduler),
        })
    }

    /// Seconds of a processor.
    fn used(&self) -> Outcome<Cost> {
        Ok(Cost {
            server: self.server.processor_time()?.as_secs_f64(),
            controllers: self.controllers.processor_time()?.as_secs_f64(),
            scheduler: self.scheduler.processor_time()?.as_secs_f64(),
        })
    }

    /// Holds the scheduler, so that all that it is to do is there when it begins.
    pub(crate) fn hold_scheduler(&self) -> Outcome<()> {
        self.signal(Signal::STOP)
    }

    pub(crate) fn let_scheduler_go(&self) -> Outcome<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let id = i32::try_from(self.scheduler.id())?;
        Ok(kill_process(Pid::from_raw(id).ok_or("no process")?, signal)?)
    }
}

/// Nobody sends heartbeats for Nodes that are only objects.
const PATIENT: &[&str] = &["--node-monitor-grace-period=10h", "--node-startup-grace-period=10h"];

fn common(kubeconfig: &Path) -> [String; 2] {
    [format!("--kubeconfig={}", kubeconfig.display()), "--leader-elect=false".to_owned()]
}
