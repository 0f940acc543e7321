//! Shims that the runtime has forgotten.
//!
//! containerd starts a sandbox by a program that starts the shim and tells where it listens. When the call is given up in
//! that moment (its caller was killed, or waited too long) containerd kills the program, takes the sandbox for not
//! started and removes its bundle; the shim lives on, and nobody will ever speak to it. It is not in its Pod's cgroup but
//! in containerd's own, unless `shim_cgroup` puts all shims somewhere else, so no cgroup tells of it. What does: it works
//! in its bundle, and that directory is gone. From a bundle containerd finds its shims again after a restart; one without
//! it is lost for good.

use std::collections::BTreeSet;

use crate::observed::FoundPod;

/// The namespace in which containerd keeps what the kubelet asked for.
const NAMESPACE: &str = "k8s.io";
/// What the kernel adds to the name of a directory that is gone.
const GONE: &str = " (deleted)";

/// A process, as far as it tells whether it is a shim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: i32,
    /// With the pid, this names a process for good.
    pub started: u64,
    pub args: Vec<String>,
    /// Where it works, as the kernel shows it.
    pub directory: String,
}

/// Whether the words can be those of a shim; others need not be looked at.
#[must_use]
pub fn may_be_shim(args: &[String]) -> bool {
    args.first().is_some_and(|program| {
        program.rsplit('/').next().is_some_and(|name| name.starts_with("containerd-shim"))
    })
}

/// Shims of the runtime at `socket` that it has forgotten. One that was only just given up may still be on its way out:
/// who asks twice, some time apart, ends what was there both times.
#[must_use]
pub fn forgotten_shims<'p>(processes: &'p [Process], socket: &str, found: &[FoundPod]) -> Vec<&'p Process> {
    let sandboxes = found.iter().flat_map(|p| &p.observed.sandboxes).map(|s| s.id.as_str());
    let containers = found.iter().flat_map(|p| &p.observed.containers).map(|c| c.id.as_str());
    let listed: BTreeSet<&str> = sandboxes.chain(containers).collect();
    let is_forgotten = |process: &&Process| {
        let Some(id) = shim_of(&process.args, socket) else { return false };
        let bundle = process.directory.strip_suffix(GONE);
        bundle.and_then(|b| b.rsplit('/').next()) == Some(id) && !listed.contains(id)
    };
    processes.iter().filter(is_forgotten).collect()
}

/// Whose shim it is. None of a program that only starts or deletes one, and of other runtimes' and other users' shims.
fn shim_of<'a>(args: &'a [String], socket: &str) -> Option<&'a str> {
    let (mut id, mut ours, mut reached) = (None, false, false);
    let mut words = args.get(1..).filter(|_| may_be_shim(args))?.iter();
    while let Some(word) = words.next() {
        match word.trim_start_matches('-') {
            "namespace" => ours = words.next()? == NAMESPACE,
            "id" => id = words.next(),
            "address" => reached = words.next()? == socket,
            "debug" => {}
            _ => return None,
        }
    }
    id.map(String::as_str).filter(|id| ours && reached && !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::Observed;
    use crate::testing::{instance, sandbox};

    const SOCKET: &str = "/run/containerd/containerd.sock";

    fn process(args: &str, directory: &str) -> Process {
        let args = args.split(' ').map(str::to_owned).collect();
        Process { pid: 7, started: 70, args, directory: directory.to_owned() }
    }

    #[test]
    fn only_a_shim_without_bundle_that_nobody_lists_is_forgotten() {
        let shim = "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id";
        let at = "-address /run/containerd/containerd.sock";
        let bundle = "/run/containerd/io.containerd.runtime.v2.task/k8s.io";
        let rows = [
            (format!("{shim} lost {at}"), format!("{bundle}/lost (deleted)"), true),
            (format!("{shim} lost {at} -debug"), format!("{bundle}/lost (deleted)"), true),
            // The bundle is there: containerd finds it again.
            (format!("{shim} lost {at}"), format!("{bundle}/lost"), false),
            // Another directory than its bundle.
            (format!("{shim} lost {at}"), format!("{bundle}/other (deleted)"), false),
            // The runtime lists it.
            (format!("{shim} s1 {at}"), format!("{bundle}/s1 (deleted)"), false),
            (format!("{shim} app-0 {at}"), format!("{bundle}/app-0 (deleted)"), false),
            // Programs on their way.
            (format!("{shim} lost {at} start"), format!("{bundle}/lost (deleted)"), false),
            (format!("{shim} lost {at} -bundle x delete"), format!("{bundle}/lost (deleted)"), false),
            // Those of others.
            (
                format!("{shim} lost -address /run/other/containerd.sock"),
                format!("{bundle}/lost (deleted)"),
                false,
            ),
            (
                format!("/usr/bin/containerd-shim-runc-v2 -namespace moby -id lost {at}"),
                "/run/moby/lost (deleted)".to_owned(),
                false,
            ),
            (format!("/usr/bin/sleep -namespace k8s.io -id lost {at}"), "/lost (deleted)".to_owned(), false),
            (format!("{shim} lost"), "/lost (deleted)".to_owned(), false),
        ];
        let found = [FoundPod {
            uid: "u".into(),
            name: "web".into(),
            namespace: "default".into(),
            observed: Observed {
                revision: 1,
                sandboxes: vec![sandbox("s1", 0, true)],
                containers: vec![crate::observed::Container { id: "app-0".into(), ..instance("app") }],
            },
        }];
        for (args, directory, want) in rows {
            let all = [process(&args, &directory)];
            assert_eq!(forgotten_shims(&all, SOCKET, &found).len() == 1, want, "{args} in {directory}");
        }
    }
}
