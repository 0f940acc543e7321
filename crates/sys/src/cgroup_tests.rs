//! The files of both versions on plain directories, and the kernel's own where this machine lets us.

#![allow(clippy::unwrap_used)]

use super::*;

fn mount(fs_type: &str, point: &Path, options: &str) -> Mount {
    let line =
        format!("30 25 0:26 / {} rw,relatime shared:9 - {fs_type} cgroup {options}\n", point.display());
    mountinfo::parse(line.as_bytes()).unwrap().remove(0)
}

#[test]
fn both_versions_are_told_apart() {
    let at = |p: &str| PathBuf::from(p);
    let old = [
        mount("cgroup2", &at("/c/unified"), "rw"),
        mount("cgroup", &at("/c/cpu,cpuacct"), "rw,cpu,cpuacct"),
        mount("cgroup", &at("/c/memory"), "rw,memory"),
    ];
    let found = Hierarchies::of(&old).unwrap();
    assert_eq!(found.version(), Version::V1);
    assert_eq!(found.file("p", "cpu", "cpu.shares"), Some(at("/c/cpu,cpuacct/p/cpu.shares")));
    assert_eq!(found.file("p", "pids", "pids.max"), None);
    let new = [mount("cgroup2", &at("/c"), "rw")];
    let found = Hierarchies::of(&new).unwrap();
    assert_eq!(found.version(), Version::V2);
    assert_eq!(found.file("p", "pids", "pids.max"), Some(at("/c/p/pids.max")));
    assert_eq!(Hierarchies::of(&[]), None);
}

#[test]
fn version_2_delegates_what_the_parent_has() {
    crate::scratch::run(|root| {
        for (name, controllers) in [("", "cpu memory io pids"), ("a", "memory pids")] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("cgroup.controllers"), controllers).unwrap();
            fs::write(root.join(name).join("cgroup.subtree_control"), "memory").unwrap();
        }
        let all = Hierarchies::of(&[mount("cgroup2", root, "rw")]).unwrap();
        all.make("a/b").unwrap();
        assert!(all.exists("a/b"));
        let enabled =
            |name: &str| fs::read_to_string(root.join(name).join("cgroup.subtree_control")).unwrap();
        assert_eq!((enabled("").as_str(), enabled("a").as_str()), ("+cpu +pids", "+pids"));
        assert_eq!(all.children("a").unwrap(), BTreeSet::from(["b".to_owned()]));
    });
}

/// The hierarchies of this machine, if it lets us make cgroups.
fn real(name: &str) -> Option<Hierarchies> {
    let all = Hierarchies::find().ok()?;
    all.make(name).ok()?;
    Some(all)
}

#[test]
fn a_real_one_is_made_bounded_emptied_and_removed() {
    let name = format!("longshore-sys-{}", std::process::id());
    let Some(all) = real(&name) else { return };
    let inner = format!("{name}/inner");
    all.make(&inner).unwrap();
    assert!(all.exists(&inner));
    let (controller, file, value) = ("pids", "pids.max", "77");
    if all.write(&inner, controller, file, value).unwrap() {
        assert_eq!(all.read(&inner, controller, file).unwrap().as_deref(), Some(value));
    }
    assert!(all.write(&inner, "pids", "pids.max", "nonsense").is_err());
    assert_eq!(all.read(&inner, "memory", "no.such.file").unwrap(), None);

    let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let entered = all.write(&inner, "pids", "cgroup.procs", &child.id().to_string()).unwrap();
    assert!(entered);
    let pid = i32::try_from(child.id()).unwrap();
    assert!(all.processes(&name).unwrap().contains(&pid));
    assert!(all.remove(&name).is_err(), "a cgroup with a process in it was removed");
    assert_eq!(all.kill(&name).unwrap(), 1);
    child.wait().unwrap();
    // The kernel takes a moment to see that the process is gone.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while all.remove(&name).is_err() && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
    assert!(!all.exists(&name) && all.children(&name).unwrap().is_empty());
    all.remove(&name).unwrap();
}

#[test]
fn one_that_forks_as_fast_as_it_can_does_not_get_away() {
    let name = format!("longshore-sys-forks-{}", std::process::id());
    let Some(all) = real(&name) else { return };
    // Each starts the next and ends, so that every list of processes is old when it is read.
    let script = "n() { n & }; read go; n";
    let mut shell = std::process::Command::new("bash");
    let mut child = shell.args(["-c", script]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    all.write(&name, "pids", "pids.max", "50").unwrap();
    let hierarchies: Vec<&str> = match all.version() {
        Version::V1 => vec!["pids", "freezer"],
        Version::V2 => vec!["pids"],
    };
    for controller in hierarchies {
        all.write(&name, controller, "cgroup.procs", &child.id().to_string()).unwrap();
    }
    drop(child.stdin.take());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let mut kills = 0;
    while !all.processes(&name).unwrap().is_empty() && std::time::Instant::now() < until {
        all.kill(&name).unwrap();
        kills += 1;
    }
    let _ = child.wait();
    assert!(all.processes(&name).unwrap().is_empty(), "still there after {kills} kills");
    while all.remove(&name).is_err() && std::time::Instant::now() < until {
        std::thread::yield_now();
    }
}
