//! How containers end: noticed, written down, told, and cleaned up after.

use std::sync::{Arc, PoisonError};

use cri::v1::{ContainerEventType, NamespaceMode};
use runtime_core::message::Exit;
use tokio::sync::mpsc;
use tonic::Status;

use crate::books::Container;
use crate::daemon::{Daemon, blocking};
use crate::keeper::Happened;
use crate::records::{Ended, Phase};
use crate::{cgroups, ids};

/// As with every runtime: what is not known, and what never ran.
const UNKNOWN: i32 = 255;
const NEVER_RAN: i32 = 128;

/// Waits for the end of a container that was started.
pub(crate) fn watch(daemon: Arc<Daemon>, container: Arc<Container>, mut happened: mpsc::Receiver<Happened>) {
    supervise::spawn("container", async move {
        let ended = loop {
            match happened.recv().await {
                Some(Happened::Exited(exit)) => break ended(&container, exit),
                Some(Happened::Failed { why, .. }) => break never_ran(format!("it was not started: {why}")),
                Some(_) => {}
                None => break lost("its keeper was killed"),
            }
        };
        finish(&daemon, &container, ended).await;
    });
}

/// What an exit means for the CRI.
pub(crate) fn ended(container: &Container, exit: Exit) -> Ended {
    let reason = match (exit.killed_for_memory, exit.code) {
        (1.., _) => "OOMKilled",
        (0, 0) => "Completed",
        _ => "Error",
    };
    let finished_at = exit.nanos.max(started_at(container));
    Ended { code: exit.code, reason: reason.into(), finished_at, ..Ended::default() }
}

pub(crate) fn lost(why: &str) -> Ended {
    Ended {
        code: UNKNOWN,
        finished_at: ids::now(),
        reason: "Unknown".into(),
        message: why.to_owned(),
        ..Ended::default()
    }
}

pub(crate) fn never_ran(message: String) -> Ended {
    Ended {
        code: NEVER_RAN,
        finished_at: ids::now(),
        reason: "StartError".into(),
        message,
        ..Ended::default()
    }
}

/// Makes it known, first to the next daemon, then to everybody, then to the keeper, which may forget it.
pub(crate) async fn finish(daemon: &Arc<Daemon>, container: &Arc<Container>, ended: Ended) {
    let ended = Ended { started_at: started_at(container), ..ended };
    daemon.metrics.exits.inc([ended.reason.as_str()]);
    tracing::debug!(
        container = container.id,
        code = ended.code,
        reason = ended.reason,
        "a container has ended"
    );
    let is_written = write(daemon, container, &ended).await;
    // What others of its PID namespace it leaves behind ends with it; so does what has lost its output.
    let shares = container.pid_mode() != NamespaceMode::Container;
    if shares || ended.reason == "Unknown" {
        clean(daemon, container).await;
    }
    drop(container.spare.lock().unwrap_or_else(PoisonError::into_inner).take());
    container.state.send_modify(|state| {
        state.phase = Phase::Exited(ended);
        state.pidfd = None;
    });
    daemon.publish_container(container, ContainerEventType::ContainerStoppedEvent);
    container.sandbox.jobs.forget(container.job);
    if let (true, Some(keeper)) = (is_written, container.sandbox.keeper())
        && let Err(error) = keeper.acknowledge(container.job).await
    {
        tracing::debug!(%error, container = container.id, "an exit stays with its keeper");
    }
    clean(daemon, container).await;
}

async fn write(daemon: &Arc<Daemon>, container: &Arc<Container>, ended: &Ended) -> bool {
    let mut record = container.record();
    record.phase = Phase::Exited(ended.clone());
    let (daemon, id) = (daemon.clone(), container.id.clone());
    let written = blocking(move || {
        let write = daemon.records.write(crate::records::Kind::Container, &id, &record);
        write.map_err(|e| Status::internal(e.to_string()))
    });
    match written.await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(container = container.id, %error, "the end of a container was not written down");
            false
        }
    }
}

/// The cgroup goes with the last process.
async fn clean(daemon: &Arc<Daemon>, container: &Arc<Container>) {
    let (hierarchies, cgroup) = (daemon.hierarchies.clone(), container.cgroup.clone());
    if let Err(error) = blocking(move || cgroups::remove(&hierarchies, &cgroup)).await {
        tracing::warn!(container = container.id, %error, "a cgroup is left");
    }
}

fn started_at(container: &Container) -> i64 {
    match container.state.borrow().phase {
        Phase::Running { started_at, .. } => started_at,
        _ => 0,
    }
}
