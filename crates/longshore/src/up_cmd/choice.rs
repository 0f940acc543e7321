//! Which container runtime the node has: the one in this program, unless another is named. What a node was started on it keeps until
//! somebody says otherwise: its Pods are there, and another runtime would start each of them a second time.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use api::config::up::{RuntimeSaid, Up};
use api::yaml::{self, DuplicateKeys};
use serde::{Deserialize, Serialize};

use super::layout::Layout;

/// A container runtime, as a node remembers it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "runtime", rename_all = "lowercase")]
pub(crate) enum Chosen {
    /// The one in this program.
    Embedded,
    /// A containerd that we run.
    Containerd { program: PathBuf },
    /// One that somebody else runs.
    Endpoint { socket: PathBuf },
}

/// What the node is to use, and what it was started on if that is another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) now: Chosen,
    /// Its Pods have to end there before they start on the other.
    pub(crate) before: Option<Chosen>,
    /// Nobody named it: the node remembers it.
    pub(crate) is_remembered: bool,
}

// === impl Choice ===

impl Choice {
    /// Looks at nothing but the files of the node.
    pub(crate) fn of(up: &Up) -> Result<Choice, String> {
        Choice::find(up, &Layout::of(up)?)
    }

    pub(super) fn find(up: &Up, layout: &Layout) -> Result<Choice, String> {
        Ok(decide(said(&up.runtime)?, remembered(layout)?))
    }
}

fn said(said: &RuntimeSaid) -> Result<Option<Chosen>, String> {
    Ok(match said {
        RuntimeSaid::Nothing => None,
        RuntimeSaid::Embedded => Some(Chosen::Embedded),
        RuntimeSaid::Endpoint(socket) => Some(Chosen::Endpoint { socket: socket.clone() }),
        RuntimeSaid::Containerd(program) => Some(Chosen::Containerd { program: absolute(program)? }),
    })
}

/// A bare name is looked for as a shell does.
fn absolute(program: &Path) -> Result<PathBuf, String> {
    let wrong = |why: String| format!("--containerd {}: {why}", program.display());
    let found = match program.components().count() {
        1 if !program.is_absolute() => on_the_path(program),
        _ => std::path::absolute(program).ok(),
    };
    found.filter(|path| path.is_file()).ok_or_else(|| wrong("no such program".to_owned()))
}

fn decide(said: Option<Chosen>, remembered: Option<Chosen>) -> Choice {
    match (said, remembered) {
        (Some(now), before) => {
            let before = before.filter(|before| !before.has_the_pods_of(&now));
            Choice { now, before, is_remembered: false }
        }
        (None, Some(now)) => Choice { now, before: None, is_remembered: true },
        (None, None) => Choice { now: Chosen::Embedded, before: None, is_remembered: false },
    }
}

/// What the node was started on; none where it never was.
fn remembered(layout: &Layout) -> Result<Option<Chosen>, String> {
    let path = layout.chosen_runtime();
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|e| {
            format!("{}: {e}; say which runtime the Pods of this node are on, and remove it", path.display())
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(before_records(layout)),
        Err(error) => Err(format!("read {}: {error}", path.display())),
    }
}

/// A node of a version that kept no such record: what its kubelet was told.
fn before_records(layout: &Layout) -> Option<Chosen> {
    let text = fs::read(layout.data.join("kubelet.yaml")).ok()?;
    let config = yaml::to_value(&text, DuplicateKeys::Reject).ok()?;
    let endpoint = config["containerRuntimeEndpoint"].as_str()?;
    let socket = Path::new(endpoint.strip_prefix("unix://").unwrap_or(endpoint));
    Some(if socket == layout.runtime_socket() {
        Chosen::Embedded
    } else if socket == layout.containerd_socket() {
        let name = Path::new("containerd");
        Chosen::Containerd { program: on_the_path(name).unwrap_or_else(|| name.to_owned()) }
    } else {
        Chosen::Endpoint { socket: socket.to_owned() }
    })
}

pub(super) fn on_the_path(program: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|found| found.is_file())
}

// === impl Chosen ===

impl Chosen {
    /// Written before anything is started on it.
    pub(super) fn remember(&self, layout: &Layout) -> Result<(), String> {
        let path = layout.chosen_runtime();
        let half = path.with_extension("half");
        let text = serde_json::to_vec(self).map_err(io::Error::other);
        let written = text.and_then(|text| fs::write(&half, text)).and_then(|()| fs::rename(&half, &path));
        written.map_err(|e| format!("write {}: {e}", path.display()))
    }

    /// Whether a Pod that runs on the one runs on the other: a containerd of ours has one directory, whichever program it is.
    fn has_the_pods_of(&self, other: &Chosen) -> bool {
        match (self, other) {
            (Chosen::Containerd { .. }, Chosen::Containerd { .. }) => true,
            _ => self == other,
        }
    }

    /// Where it listens.
    pub(super) fn socket(&self, layout: &Layout) -> PathBuf {
        match self {
            Chosen::Embedded => layout.runtime_socket(),
            Chosen::Containerd { .. } => layout.containerd_socket(),
            Chosen::Endpoint { socket } => socket.clone(),
        }
    }

    /// Whether Pods of the node may be there still. Somebody else's runtime has to be asked.
    pub(super) fn may_have_pods(&self, layout: &Layout) -> bool {
        let has_any = |dir: PathBuf| fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
        match self {
            Chosen::Embedded => has_any(layout.runtime_state().join("sandbox-records")),
            Chosen::Containerd { .. } => {
                has_any(layout.containerd_state().join("io.containerd.runtime.v2.task/k8s.io"))
            }
            Chosen::Endpoint { .. } => true,
        }
    }

    /// Who makes the cgroups of Pods. Where systemd owns those of the machine it does, except with the runtime in this program.
    pub(super) fn cgroup_driver(&self) -> &'static str {
        if has_systemd() && *self != Chosen::Embedded { "systemd" } else { "cgroupfs" }
    }
}

impl fmt::Display for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Chosen::Embedded => f.write_str("in this program"),
            Chosen::Containerd { program } => write!(f, "{}, run by this program", program.display()),
            Chosen::Endpoint { socket } => write!(f, "unix://{}", socket.display()),
        }
    }
}

pub(super) fn has_systemd() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn containerd(program: &str) -> Chosen {
        Chosen::Containerd { program: program.into() }
    }

    fn endpoint(socket: &str) -> Chosen {
        Chosen::Endpoint { socket: socket.into() }
    }

    #[test]
    fn a_node_stays_on_the_runtime_it_was_started_on_until_somebody_says_otherwise() {
        /// Said, remembered; now, before.
        type Row = (Option<Chosen>, Option<Chosen>, Chosen, Option<Chosen>);
        use Chosen::Embedded;
        let rows: &[Row] = &[
            (None, None, Embedded, None),
            (None, Some(Embedded), Embedded, None),
            (None, Some(containerd("/a")), containerd("/a"), None),
            (None, Some(endpoint("/s")), endpoint("/s"), None),
            (Some(Embedded), None, Embedded, None),
            (Some(Embedded), Some(Embedded), Embedded, None),
            (Some(Embedded), Some(endpoint("/s")), Embedded, Some(endpoint("/s"))),
            (Some(Embedded), Some(containerd("/a")), Embedded, Some(containerd("/a"))),
            (Some(endpoint("/s")), Some(Embedded), endpoint("/s"), Some(Embedded)),
            (Some(endpoint("/s")), Some(endpoint("/t")), endpoint("/s"), Some(endpoint("/t"))),
            (Some(containerd("/b")), Some(containerd("/a")), containerd("/b"), None),
        ];
        for (said, remembered, now, before) in rows {
            let choice = decide(said.clone(), remembered.clone());
            assert_eq!((&choice.now, &choice.before), (now, before), "{said:?} {remembered:?}");
            assert_eq!(choice.is_remembered, said.is_none() && remembered.is_some());
        }
    }

    #[test]
    fn what_is_remembered_is_read_again() {
        let scratch = tempfile::tempdir().unwrap();
        let layout = Layout::below(scratch.path().to_owned(), "/run/x".into());
        assert_eq!(remembered(&layout).unwrap(), None);
        for chosen in [Chosen::Embedded, containerd("/usr/bin/containerd"), endpoint("/r.sock")] {
            chosen.remember(&layout).unwrap();
            assert_eq!(remembered(&layout).unwrap(), Some(chosen));
        }
        fs::write(layout.chosen_runtime(), "{}").unwrap();
        let told = remembered(&layout).unwrap_err();
        assert!(told.contains("container-runtime.json: missing field"), "{told}");
    }

    #[test]
    fn a_node_of_an_earlier_version_is_asked_what_its_kubelet_used() {
        let scratch = tempfile::tempdir().unwrap();
        let layout = Layout::below(scratch.path().to_owned(), "/run/x".into());
        for (socket, want) in [
            ("/run/x/runtime.sock", Chosen::Embedded),
            ("/run/containerd/containerd.sock", endpoint("/run/containerd/containerd.sock")),
        ] {
            let text = format!("kind: KubeletConfiguration\ncontainerRuntimeEndpoint: unix://{socket}\n");
            fs::write(scratch.path().join("kubelet.yaml"), text).unwrap();
            assert_eq!(remembered(&layout).unwrap(), Some(want));
        }
        let text = "containerRuntimeEndpoint: unix:///run/x/containerd.sock\n";
        fs::write(scratch.path().join("kubelet.yaml"), text).unwrap();
        assert!(matches!(remembered(&layout).unwrap(), Some(Chosen::Containerd { .. })));
    }

    #[test]
    fn a_boot_takes_the_pods_of_our_own_runtimes() {
        let scratch = tempfile::tempdir().unwrap();
        let layout = Layout::below("/data".into(), scratch.path().to_owned());
        for (chosen, pod) in [
            (Chosen::Embedded, "runtime/sandbox-records/0a"),
            (containerd("/x"), "containerd/io.containerd.runtime.v2.task/k8s.io/0a"),
        ] {
            assert!(!chosen.may_have_pods(&layout), "{chosen}");
            fs::create_dir_all(scratch.path().join(pod)).unwrap();
            assert!(chosen.may_have_pods(&layout), "{chosen}");
            fs::remove_dir(scratch.path().join(pod)).unwrap();
            assert!(!chosen.may_have_pods(&layout), "{chosen}");
        }
        assert!(endpoint("/s").may_have_pods(&layout));
    }

    #[test]
    fn a_containerd_that_is_not_there_is_told_by_its_name() {
        for name in ["/no/such/containerd", "no-such-containerd"] {
            let told = said(&RuntimeSaid::Containerd(name.into())).unwrap_err();
            assert_eq!(told, format!("--containerd {name}: no such program"));
        }
        assert!(
            matches!(said(&RuntimeSaid::Containerd("sh".into())).unwrap(), Some(Chosen::Containerd { program }) if program.is_absolute())
        );
    }
}
