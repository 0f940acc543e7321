//! What another kubelet left running: static Pods that go on under the UIDs they have.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::pod::static_pod;
use base::ids::PodUid;
use base::time::Wall;
use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use kubelet_core::cri_config::metadata::POD_UID;
use kubelet_core::handover::{Running, predecessor};
use rustix::fs::{Mode, OFlags};
use sys::fd::OWN;

use crate::ports::Runtime;
use crate::runtime::from_cri;

/// In the directory of a Pod that was taken over: the UID its manifest has by our own reckoning. With it the Pod is
/// known again whatever happens to the times of the file.
const NOTE: &str = "manifest-uid";
/// Longer than any UID.
const NOTE_MAX: u64 = 128;
/// Pause before a runtime that did not answer is asked again.
const AGAIN: Duration = Duration::from_millis(500);

/// Everything that ran before this kubelet began.
#[derive(Debug, Default)]
pub struct Handover {
    /// Where the directories of Pods are.
    pub(super) pods: PathBuf,
    pub(super) running: Vec<Running>,
}

// === impl Handover ===

impl Handover {
    /// Asks the runtime until it answers: Pods taken for strangers would be ended.
    pub async fn find(runtime: Arc<dyn Runtime>, root: &Path) -> Self {
        let pods = root.join("pods");
        loop {
            match running(&*runtime, &pods).await {
                Ok(running) => return Self { pods, running },
                Err(error) => tracing::warn!(%error, "waiting for the runtime to say what runs"),
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Gives a manifest's Pod the UID of the one that runs already, if that was made from the same manifest. `touched` is
    /// when the file was last changed.
    pub(super) fn pass_on(&self, pod: &mut Pod, touched: Option<Wall>) {
        let Some(theirs) = predecessor(pod, touched, &self.running) else { return };
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        tracing::info!(pod = name, pod_uid = %theirs.uid, "a static Pod of another kubelet is taken over");
        let own = pod.metadata.uid.as_deref().map(PodUid::from);
        if own != theirs.noted
            && let Err(error) = own.map_or(Ok(()), |own| write_note(&self.pods, &theirs.uid, &own))
        {
            tracing::warn!(pod = name, pod_uid = %theirs.uid, %error, "takeover not noted");
        }
        static_pod::identify(pod, theirs.uid.as_str());
    }
}

/// Pods with a ready sandbox that came from a file.
async fn running(runtime: &dyn Runtime, pods: &Path) -> cri::Result<Vec<Running>> {
    let ready = v1::PodSandboxStateValue { state: v1::PodSandboxState::SandboxReady as i32 };
    let ready = v1::PodSandboxFilter { state: Some(ready), ..Default::default() };
    let sandboxes = runtime.list_pod_sandboxes(Some(ready)).await?;
    let from_files = |s: &v1::PodSandbox| {
        s.annotations.get(static_pod::SOURCE_ANNOTATION).is_some_and(|source| source == "file")
    };
    let sandboxes: Vec<v1::PodSandbox> = sandboxes.into_iter().filter(from_files).collect();
    if sandboxes.is_empty() {
        return Ok(Vec::new());
    }
    let state = v1::ContainerStateValue { state: v1::ContainerState::ContainerRunning as i32 };
    let live = v1::ContainerFilter { state: Some(state), ..Default::default() };
    let containers = runtime.list_containers(Some(live)).await?;
    Ok(sandboxes.into_iter().filter_map(|s| of(s, &containers, pods)).collect())
}

fn of(sandbox: v1::PodSandbox, containers: &[v1::Container], pods: &Path) -> Option<Running> {
    let uid = PodUid::from(sandbox.labels.get(POD_UID).filter(|uid| !uid.is_empty())?.as_str());
    let inside = containers.iter().filter(|c| c.pod_sandbox_id == sandbox.id);
    Some(Running {
        noted: read_note(pods, &uid),
        containers: inside.map(from_cri::name_and_hash).collect(),
        labels: sandbox.labels,
        annotations: sandbox.annotations,
        uid,
    })
}

/// One that is broken tells nothing.
fn read_note(pods: &Path, uid: &PodUid) -> Option<PodUid> {
    let (dir, note) = (open_dir(pods, uid).ok()?, Path::new(NOTE));
    let file = sys::fd::open_beneath(dir, note, OFlags::RDONLY | OFlags::NONBLOCK, OWN).ok()?;
    let mut text = String::new();
    std::fs::File::from(file).take(NOTE_MAX).read_to_string(&mut text).ok()?;
    Some(PodUid::from(text.trim_end())).filter(|uid| !uid.as_str().is_empty())
}

/// A Pod without a directory has nothing to remember.
fn write_note(pods: &Path, uid: &PodUid, own: &PodUid) -> io::Result<()> {
    let dir = match open_dir(pods, uid) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
    let file = sys::fd::create_beneath(dir, Path::new(NOTE), flags, Mode::from_raw_mode(0o600), OWN)?;
    std::fs::File::from(file).write_all(format!("{own}\n").as_bytes())
}

fn open_dir(pods: &Path, uid: &PodUid) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    sys::fd::open_beneath(sys::fd::open_dir(pods)?, Path::new(uid.as_str()), flags, OWN)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_note_lies_in_the_directory_of_its_pod() {
        let pods = std::env::temp_dir().join(format!("longshore-handover-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&pods);
        std::fs::create_dir_all(pods.join("u1")).unwrap();
        let (uid, own) = (PodUid::from("u1"), PodUid::from("own"));
        assert_eq!(read_note(&pods, &uid), None);
        write_note(&pods, &uid, &own).unwrap();
        assert_eq!(read_note(&pods, &uid), Some(own.clone()));
        std::fs::write(pods.join("u1").join(NOTE), "").unwrap();
        assert_eq!(read_note(&pods, &uid), None, "cut short");
        std::fs::write(pods.join("u1").join(NOTE), [0xff, 0xfe]).unwrap();
        assert_eq!(read_note(&pods, &uid), None, "not text");
        write_note(&pods, &"gone".into(), &own).unwrap();
        assert!(!pods.join("gone").exists());
        write_note(&pods, &"../x".into(), &own).unwrap_err();
        std::fs::remove_dir_all(&pods).unwrap();
    }
}
