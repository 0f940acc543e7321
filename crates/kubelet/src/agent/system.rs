//! The cgroups of the node's own programs: this process is put into kubeletCgroups, and what is in no cgroup into
//! systemCgroups, at the start and every minute, as upstream does.

use std::time::Duration;

use api::config::kubelet::Loaded;
use supervise::Supervisor;
use sys::cgroup::Hierarchies;
use tokio_util::sync::CancellationToken;

use super::{Builder, StartError};

const PERIOD: Duration = Duration::from_secs(60);

/// What is to be in which cgroup.
#[derive(Clone, Debug)]
struct Places {
    hand: Hierarchies,
    kubelet: Option<String>,
    /// For what is in the root.
    system: Option<String>,
}

impl Builder<'_> {
    /// Makes them and puts in what belongs there. A cgroup that cannot be made is a mistake of the configuration.
    pub(super) fn start_system(&self, tasks: &Supervisor) -> Result<(), StartError> {
        let Loaded { config, .. } = &self.start.loaded;
        let named = |path: &str| (!path.is_empty()).then(|| path.trim_matches('/').to_owned());
        let (kubelet, system) = (named(&config.kubelet_cgroups), named(&config.system_cgroups));
        if system.as_deref() == Some("") {
            return Err(StartError::new("system container cannot be root (\"/\")"));
        }
        // The root is where it is without being asked.
        let kubelet = kubelet.filter(|name| !name.is_empty());
        if kubelet.is_none() && system.is_none() {
            return Ok(());
        }
        let hand = Hierarchies::find();
        let hand = hand.map_err(|e| StartError::new(format!("find the cgroup hierarchies: {e}")))?;
        for (field, name) in [("kubeletCgroups", &kubelet), ("systemCgroups", &system)] {
            let Some(name) = name else { continue };
            hand.make(name).map_err(|e| StartError::new(format!("{field} {name:?}: {e}")))?;
        }
        let places = Places { hand, kubelet, system };
        tasks.lasting("system_cgroups", places, keep);
        Ok(())
    }
}

async fn keep(places: Places, token: CancellationToken) {
    let mut told = Vec::new();
    let mut tick = tokio::time::interval(PERIOD);
    let work = async {
        loop {
            tick.tick().await;
            let places = places.clone();
            let wrong = tokio::task::spawn_blocking(move || places.settle()).await.unwrap_or_default();
            // The same trouble every minute is told once.
            for error in wrong.iter().filter(|error| !told.contains(*error)) {
                tracing::warn!(error, "a process is not in the cgroup it belongs in");
            }
            told = wrong;
        }
    };
    token.run_until_cancelled(Box::pin(work)).await;
}

impl Places {
    /// What could not be done.
    fn settle(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut note = |outcome: std::io::Result<()>| wrong.extend(outcome.err().map(|e| e.to_string()));
        if let Some(name) = &self.kubelet {
            let own = i32::try_from(std::process::id()).unwrap_or_default();
            if !self.hand.files(name).processes().contains(&own) {
                note(self.hand.adopt(name, own));
            }
        }
        if let Some(name) = &self.system {
            note(move_all(&self.hand, "", name));
        }
        wrong
    }
}

/// Moves every process that is in one cgroup itself to another, but for the first of the machine and the kernel's own.
fn move_all(hand: &Hierarchies, from: &str, to: &str) -> std::io::Result<()> {
    let mut failed = None;
    for pid in hand.files(from).processes() {
        if pid != 1 && is_program(pid) {
            failed = hand.adopt(to, pid).err().or(failed);
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What the kernel runs itself has no file.
fn is_program(pid: i32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::Command;

    use super::*;

    /// As root; without, there are no cgroups to make.
    #[test]
    fn what_is_in_one_cgroup_is_moved_to_another() {
        let hand = Hierarchies::find().unwrap();
        let top = format!("longshore-test-{}", std::process::id());
        let (from, to) = (format!("{top}/from"), format!("{top}/to"));
        if hand.make(&from).and_then(|()| hand.make(&to)).is_err() {
            return;
        }
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        hand.adopt(&from, pid).unwrap();
        assert_eq!(hand.files(&from).processes(), [pid]);
        let moved = move_all(&hand, &from, &to);
        let found = (hand.files(&from).processes(), hand.files(&to).processes());
        child.kill().unwrap();
        child.wait().unwrap();
        hand.remove(&top).unwrap();
        assert!(moved.is_ok(), "{moved:?}");
        assert_eq!(found, (vec![], vec![pid]));
        assert!(is_program(i32::try_from(std::process::id()).unwrap()));
    }
}
