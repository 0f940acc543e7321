#![allow(clippy::unwrap_used)]

use super::*;
use crate::capabilities::all;
use crate::recipe;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn command() -> Command {
    let image = Image { entrypoint: words("/bin/app"), working_dir: "/srv".into(), ..Image::default() };
    Command::new(&image, (&[], &[]), &[], "", ("web-0", false, &root())).unwrap()
}

fn root() -> User {
    User { uid: 0, gid: 0, groups: vec![0], home: "/root".into() }
}

fn container() -> Container {
    Container {
        command: command(),
        user: root(),
        user_root: None,
        capabilities: Wanted::default(),
        network: Scope::Pod,
        pid: Scope::Container,
        ipc: Scope::Pod,
        cgroup: Cgroup::V2,
        mounts: vec![],
        masked_paths: words("/proc/kcore"),
        readonly_paths: words("/proc/sys"),
        is_root_readonly: false,
        no_new_privileges: false,
        seccomp: Some((vec![1], 0)),
        rlimits: vec![],
        oom_score: Some(-998),
        has_input: false,
        has_terminal: false,
    }
}

fn story(plan: &Plan) -> Vec<String> {
    plan.launch.ops.iter().map(Op::describe).collect()
}

#[test]
fn a_container_is_set_up_in_this_order() {
    let plan = plan(&container(), all()).unwrap();
    assert_eq!(
        story(&plan),
        [
            "setting limits",
            "entering the namespaces",
            "entering the namespaces",
            "entering the namespaces",
            "attaching the root file system",
            "mounting proc on /proc",
            "mounting /dev",
            "mounting devpts on /dev/pts",
            "mounting mqueue on /dev/mqueue",
            "mounting sysfs on /sys",
            "mounting cgroup2 on /sys/fs/cgroup",
            "making the directory /srv",
            "making /proc/sys read-only",
            "masking /proc/kcore",
            "changing the root",
            "setting limits",
            "changing to the working directory /srv",
            "loading the seccomp filter",
            "dropping capabilities",
            "becoming user 0 of group 0",
            "dropping capabilities",
            "exec /bin/app",
        ]
    );
    let namespaces = namespace::MOUNT | namespace::PID | namespace::CGROUP;
    assert_eq!(plan.launch.namespaces, u64::from(namespaces));
    assert_eq!(plan.sources[plan.launch.cgroup.unwrap().0 as usize], Source::CgroupDir);
    recipe::encode(&plan.launch).unwrap();
}

#[test]
fn every_slot_has_its_source_once() {
    let mut container = container();
    container.cgroup = Cgroup::V1(words("memory cpu,cpuacct"));
    container.pid = Scope::Pod;
    container.mounts =
        ["/b/inner", "/b", "/a"].map(|path| Mount { path: path.into(), target: Target::Dir }).into();
    let plan = plan(&container, all()).unwrap();
    let attached: Vec<&Source> = plan
        .launch
        .ops
        .iter()
        .filter_map(|op| match op {
            Op::Attach(slot, ..) => Some(&plan.sources[slot.0 as usize]),
            _ => None,
        })
        .filter(|source| matches!(source, Source::Mount(_)))
        .collect();
    assert_eq!(attached, [&Source::Mount(1), &Source::Mount(2), &Source::Mount(0)], "parents first");
    let tasks = plan.sources.iter().filter(|s| matches!(s, Source::Tasks(_))).count();
    assert_eq!(tasks, 2);
    assert!(plan.launch.pid_namespace.is_some());
    assert_eq!(plan.launch.namespaces & u64::from(namespace::PID | namespace::CGROUP), 0);
    for (i, source) in plan.sources.iter().enumerate() {
        assert!(!plan.sources[..i].contains(source), "{source:?} twice");
    }
}

#[test]
fn the_privileged_see_everything_writable() {
    let mut container = container();
    container.capabilities.is_privileged = true;
    let plan = plan(&container, all()).unwrap();
    assert!(!plan.launch.ops.iter().any(|op| matches!(op, Op::Mask(_) | Op::ReadOnly(_))));
    let sys = plan.launch.ops.iter().find_map(|op| match op {
        Op::FsMount { kind: "sysfs", attributes, .. } => Some(*attributes),
        _ => None,
    });
    assert_eq!(sys.unwrap() & READ_ONLY, 0);
}

#[test]
fn with_no_new_privileges_the_filter_is_the_last_step() {
    let mut container = container();
    container.no_new_privileges = true;
    let ops = plan(&container, all()).unwrap().launch.ops;
    let [.., Op::NoNewPrivileges, Op::Seccomp { .. }, Op::Exec { .. }] = &ops[..] else { panic!("{ops:?}") };
}

#[test]
fn the_machines_namespaces_are_where_we_are() {
    let mut container = container();
    (container.network, container.pid, container.ipc) = (Scope::Node, Scope::Node, Scope::Node);
    let plan = plan(&container, all()).unwrap();
    assert!(!plan.launch.ops.iter().any(|op| matches!(op, Op::SetNs(..))));
    assert_eq!(plan.launch.pid_namespace, None);
}

#[test]
fn an_exec_is_where_its_target_is() {
    let exec = Exec {
        command: command().beside(&words("ls -l"), false).unwrap(),
        user: User { uid: 7, ..root() },
        has_user_namespace: false,
        capabilities: Wanted::default(),
        cgroup: Cgroup::V2,
        no_new_privileges: false,
        seccomp: None,
        rlimits: vec![],
        oom_score: Some(5),
        has_terminal: false,
        stdio: [false, true, true],
    };
    let plan = plan_exec(&exec, all()).unwrap();
    assert_eq!(plan.sources, [Source::Target, Source::CgroupDir, Source::Stdio(1), Source::Stdio(2)]);
    assert_eq!(plan.launch.stdio[0], None);
    let Some(Op::Exec { candidates, arguments, .. }) = plan.launch.ops.last() else { panic!() };
    assert_eq!(candidates[0], b"/usr/local/sbin/ls");
    assert_eq!(arguments.len(), 2);
}

#[test]
fn commands_come_from_the_pod_and_the_image() {
    let image = Image {
        entrypoint: words("/entry -a"),
        cmd: words("b c"),
        env: words("PATH=/image X=1"),
        working_dir: "/there".into(),
    };
    let user = User { home: "/home/me".into(), ..root() };
    let new = |command: &str, args: &str, envs: &[(String, Vec<u8>)], dir: &str| {
        Command::new(&image, (&words(command), &words(args)), envs, dir, ("host", true, &user))
    };
    let rows =
        [("", "", "/entry -a b c"), ("", "x", "/entry -a x"), ("sh", "", "sh"), ("sh", "-c y", "sh -c y")];
    for (command, args, want) in rows {
        let got = new(command, args, &[], "").unwrap();
        let arguments: Vec<String> =
            got.arguments.iter().map(|a| String::from_utf8_lossy(a).into_owned()).collect();
        assert_eq!(arguments.join(" "), want);
        assert_eq!(got.directory, "/there");
    }
    let envs = [("X".to_owned(), vec![0xff, 2]), ("HOME".to_owned(), b"/else".to_vec())];
    let got = new("sh", "", &envs, "/here").unwrap();
    assert_eq!(got.directory, "/here");
    for want in [&b"PATH=/image"[..], b"X=\xff\x02", b"HOME=/else", b"TERM=xterm", b"HOSTNAME=host"] {
        assert!(got.environment.iter().any(|v| v == want), "{want:?}");
    }
    assert_eq!(got.candidates(), [b"/image/sh".to_vec()]);
    assert!(new("", "", &[], "").unwrap().environment.contains(&b"HOME=/home/me".to_vec()));
    assert_eq!(new("sh", "", &[], "relative"), Err(NoCommand::Directory));
    let empty = Image::default();
    assert_eq!(Command::new(&empty, (&[], &[]), &[], "", ("", false, &user)), Err(NoCommand::None));
}
