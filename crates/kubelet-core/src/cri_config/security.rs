//! Who a container runs as and what it may do.

use std::path::Path;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use super::metadata::describe;
use super::types::{
    ContainerInput, ContainerSecurity, CriConfigError, GroupsPolicy, HandlerFeatures, ImageUser,
    NamespaceMode, Namespaces, Profile, SandboxInput, SandboxSecurity, SeLinux, UserMode, UserNamespace,
};

/// Kernel interfaces a container must not see, and those it may only read, unless procMount is Unmasked.
const MASKED: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// AppArmor profiles of containers in Pods older than the field.
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

pub(super) fn of_sandbox(input: &SandboxInput<'_>) -> Result<SandboxSecurity, CriConfigError> {
    let pod = input.pod;
    let sc = pod_context(pod);
    Ok(SandboxSecurity {
        namespaces: namespaces(pod, input.userns, input.handler).map_err(CriConfigError::sandbox)?,
        privileged: api::pod::containers(pod).any(|c| is_privileged(c)),
        run_as_user: sc.run_as_user,
        run_as_group: sc.run_as_group,
        supplemental_groups: groups(&sc, input.groups),
        groups_policy: groups_policy(&sc).map_err(CriConfigError::sandbox)?,
        selinux: sc.se_linux_options.as_ref().map(selinux),
        // A profile of the Pod is for its containers; the sandbox always runs confined.
        seccomp: Profile::RuntimeDefault,
    })
}

pub(super) fn of_container(
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<ContainerSecurity, CriConfigError> {
    let pod = input.pod;
    let (of_pod, own) = (pod_context(pod), container.security_context.clone().unwrap_or_default());
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    verify_non_root(input, container, &own, &of_pod)?;
    let (image_uid, image_name) = match input.image_user {
        ImageUser::Uid(uid) => (Some(*uid), String::new()),
        ImageUser::Name(name) => (None, name.clone()),
    };
    let mut namespaces = namespaces(pod, input.userns, input.handler).map_err(CriConfigError::config)?;
    if let Some(target) = input.target.filter(|_| namespaces.pid == NamespaceMode::Container) {
        namespaces.pid = NamespaceMode::Target;
        namespaces.target_id = target.to_owned();
    }
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked");
    let paths = |list: &[&str]| match unmasked {
        true => Vec::new(),
        false => list.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>(),
    };
    let mut masked_paths = paths(&MASKED);
    if !unmasked {
        masked_paths.extend(input.node.thermal_paths.iter().cloned());
    }
    let capabilities = own.capabilities.clone().unwrap_or_default();
    let profile = own.seccomp_profile.as_ref().or(of_pod.seccomp_profile.as_ref());
    Ok(ContainerSecurity {
        namespaces,
        privileged: own.privileged == Some(true),
        run_as_user: run_as_user.or(image_uid),
        run_as_username: if run_as_user.is_none() { image_name } else { String::new() },
        run_as_group: own.run_as_group.or(of_pod.run_as_group),
        supplemental_groups: groups(&of_pod, input.groups),
        groups_policy: groups_policy(&of_pod).map_err(CriConfigError::config)?,
        selinux: own.se_linux_options.as_ref().or(of_pod.se_linux_options.as_ref()).map(selinux),
        seccomp: seccomp(profile, &input.config.seccomp_root, input.config.seccomp_default)?,
        apparmor: apparmor(pod, container, &own, &of_pod)?,
        add_capabilities: capabilities.add.unwrap_or_default(),
        drop_capabilities: capabilities.drop.unwrap_or_default(),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        read_only_rootfs: own.read_only_root_filesystem == Some(true),
        masked_paths,
        readonly_paths: paths(&READ_ONLY),
    })
}

fn pod_context(pod: &Pod) -> PodSecurityContext {
    pod.spec.as_ref().and_then(|s| s.security_context.clone()).unwrap_or_default()
}

fn is_privileged(container: api::pod::ContainerRef<'_>) -> bool {
    let sc = match container {
        api::pod::ContainerRef::Spec { container, .. } => container.security_context.as_ref(),
        api::pod::ContainerRef::Ephemeral(c) => c.security_context.as_ref(),
    };
    sc.and_then(|s| s.privileged) == Some(true)
}

fn namespaces(
    pod: &Pod,
    userns: Option<&UserNamespace>,
    handler: HandlerFeatures,
) -> Result<Namespaces, String> {
    let spec = pod.spec.clone().unwrap_or_default();
    let shared = |on: Option<bool>| if on == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = match (spec.host_pid, spec.share_process_namespace) {
        (Some(true), _) => NamespaceMode::Node,
        (_, Some(true)) => NamespaceMode::Pod,
        _ => NamespaceMode::Container,
    };
    let user = if spec.host_users == Some(false) {
        if !handler.user_namespaces {
            return Err("can't set `spec.hostUsers: false`, runtime does not support user namespaces".into());
        }
        UserMode::Pod(userns.ok_or("create user namespace: no id range was allocated")?.clone())
    } else {
        UserMode::Node
    };
    Ok(Namespaces {
        network: shared(spec.host_network),
        ipc: shared(spec.host_ipc),
        pid,
        target_id: String::new(),
        user,
    })
}

/// fsGroup first, then the Pod's own list, then what its volumes say and the list does not.
fn groups(sc: &PodSecurityContext, of_volumes: &[i64]) -> Vec<i64> {
    let own = || sc.supplemental_groups.iter().flatten().copied();
    let more = of_volumes.iter().copied().filter(|gid| !own().any(|g| g == *gid));
    sc.fs_group.into_iter().chain(own()).chain(more).collect()
}

fn groups_policy(sc: &PodSecurityContext) -> Result<GroupsPolicy, String> {
    match sc.supplemental_groups_policy.as_deref() {
        None | Some("Merge") => Ok(GroupsPolicy::Merge),
        Some("Strict") => Ok(GroupsPolicy::Strict),
        Some(other) => Err(format!("unsupported supplementalGroupsPolicy: {other}")),
    }
}

fn selinux(options: &SELinuxOptions) -> SeLinux {
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    SeLinux {
        user: text(&options.user),
        role: text(&options.role),
        kind: text(&options.type_),
        level: text(&options.level),
    }
}

/// runAsNonRoot is kept by refusing to start: a number can be checked, a name cannot.
fn verify_non_root(
    input: &ContainerInput<'_>,
    container: &Container,
    own: &SecurityContext,
    of_pod: &PodSecurityContext,
) -> Result<(), CriConfigError> {
    if own.run_as_non_root.or(of_pod.run_as_non_root) != Some(true) {
        return Ok(());
    }
    let whose = format!("(pod: {:?}, container: {})", describe(input.pod), container.name);
    let problem = match (own.run_as_user.or(of_pod.run_as_user), input.image_user) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (Some(_), _) => return Ok(()),
        (None, ImageUser::Uid(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        (None, ImageUser::Uid(uid)) if !(0..=i64::from(i32::MAX)).contains(uid) => format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be between 0 and {max}, inclusive",
            max = i32::MAX
        ),
        (None, ImageUser::Uid(_)) => return Ok(()),
        (None, ImageUser::Name(name)) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        ),
    };
    Err(CriConfigError::config(format!("{problem} {whose}")))
}

fn seccomp(profile: Option<&SeccompProfile>, root: &Path, default: bool) -> Result<Profile, CriConfigError> {
    match profile {
        None if default => Ok(Profile::RuntimeDefault),
        None => Ok(Profile::Unconfined),
        Some(p) if p.type_ == "RuntimeDefault" => Ok(Profile::RuntimeDefault),
        Some(p) if p.type_ == "Localhost" => {
            let name = p.localhost_profile.as_deref().filter(|n| !n.is_empty()).ok_or_else(|| {
                CriConfigError::config("localhostProfile must be set if seccompProfile type is Localhost.")
            })?;
            // Validation refuses these; a profile outside the directory must not slip through either way.
            if Path::new(name).components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
                return Err(CriConfigError::config(format!(
                    "localhostProfile {name:?} must be a path below the seccomp directory"
                )));
            }
            Ok(Profile::Localhost(root.join(name).to_string_lossy().into_owned()))
        }
        Some(_) => Ok(Profile::Unconfined),
    }
}

fn apparmor(
    pod: &Pod,
    container: &Container,
    own: &SecurityContext,
    of_pod: &PodSecurityContext,
) -> Result<Option<Profile>, CriConfigError> {
    if let Some(p) = &own.app_armor_profile {
        return apparmor_field(p).map(Some);
    }
    let key = format!("{APPARMOR_ANNOTATION}{}", container.name);
    let annotation = pod.metadata.annotations.as_ref().and_then(|a| a.get(&key)).map(String::as_str);
    let annotated = match annotation {
        Some("runtime/default") => Some(Profile::RuntimeDefault),
        Some("unconfined") => Some(Profile::Unconfined),
        Some(other) => other.strip_prefix("localhost/").map(|n| Profile::Localhost(n.to_owned())),
        None => None,
    };
    match (annotated, &of_pod.app_armor_profile) {
        (Some(p), _) => Ok(Some(p)),
        (None, Some(p)) => apparmor_field(p).map(Some),
        (None, None) => Ok(None),
    }
}

fn apparmor_field(profile: &AppArmorProfile) -> Result<Profile, CriConfigError> {
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Profile::RuntimeDefault),
        "Unconfined" => Ok(Profile::Unconfined),
        "Localhost" => {
            let name = profile.localhost_profile.clone();
            name.map(Profile::Localhost)
                .ok_or_else(|| CriConfigError::config("missing localhost apparmor profile name"))
        }
        other => Err(CriConfigError::config(format!("unknown apparmor profile type: {other:?}"))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Bench, pod};
    use super::super::{IdMapping, spec_of};
    use super::*;

    fn of(bench: &Bench) -> Result<ContainerSecurity, String> {
        let spec = spec_of(&bench.pod, "main").unwrap();
        of_container(&bench.input("main"), &spec).map_err(|e| e.message)
    }

    fn with(pod_sc: &str, own: &str) -> Bench {
        Bench::new(pod(&format!(
            "{{securityContext: {{{pod_sc}}}, containers: [{{name: main, securityContext: {{{own}}}}}]}}"
        )))
    }

    #[test]
    fn users_and_groups() {
        let user = |b: &Bench| {
            let s = of(b).unwrap();
            (s.run_as_user, s.run_as_username, s.run_as_group)
        };
        assert_eq!(user(&with("", "")), (Some(0), String::new(), None));
        assert_eq!(user(&with("runAsUser: 5, runAsGroup: 6", "")), (Some(5), String::new(), Some(6)));
        assert_eq!(
            user(&with("runAsUser: 5, runAsGroup: 6", "runAsUser: 7")),
            (Some(7), String::new(), Some(6))
        );
        let mut named = with("", "");
        named.image_user = ImageUser::Name("nobody".into());
        assert_eq!(user(&named), (None, "nobody".into(), None));
        named.pod.spec.as_mut().unwrap().security_context.as_mut().unwrap().run_as_user = Some(9);
        assert_eq!(user(&named), (Some(9), String::new(), None));
        let s = of(&with("fsGroup: 1, supplementalGroups: [2, 3], supplementalGroupsPolicy: Strict", ""))
            .unwrap();
        assert_eq!((s.supplemental_groups, s.groups_policy), (vec![1, 2, 3], GroupsPolicy::Strict));
        let listed: PodSecurityContext =
            serde_json::from_str(r#"{"fsGroup": 1, "supplementalGroups": [2, 3]}"#).unwrap();
        assert_eq!(groups(&listed, &[3, 4]), [1, 2, 3, 4]);
        assert_eq!(groups(&PodSecurityContext::default(), &[4]), [4]);
        assert_eq!(
            of(&with("supplementalGroupsPolicy: Odd", "")).unwrap_err(),
            "unsupported supplementalGroupsPolicy: Odd"
        );
    }

    /// In CVE-2019-11245 the second life of a container ran as root where the first did not.
    #[test]
    fn a_restart_changes_nobodys_rights() {
        let bench = with("runAsUser: 5, runAsNonRoot: true, fsGroup: 6", "privileged: false");
        let spec = spec_of(&bench.pod, "main").unwrap();
        let lives = [0, 1, 7].map(|restart_count| {
            let input = ContainerInput { restart_count, ..bench.input("main") };
            of_container(&input, &spec).unwrap()
        });
        assert_eq!(lives[0].run_as_user, Some(5));
        assert!(lives.iter().all(|life| *life == lives[0]), "{lives:?}");
    }

    #[test]
    fn non_root() {
        let tail = "(pod: \"web_shop(u-1)\", container: main)";
        let name = |n: &str| ImageUser::Name(n.into());
        for (pod_sc, own, image, want) in [
            (
                "runAsNonRoot: true",
                "",
                ImageUser::Uid(0),
                Some("container has runAsNonRoot and image will run as root"),
            ),
            ("runAsNonRoot: true", "", ImageUser::Uid(10), None),
            ("runAsNonRoot: true", "runAsNonRoot: false", ImageUser::Uid(0), None),
            (
                "",
                "runAsNonRoot: true",
                name("web"),
                Some(
                    "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root",
                ),
            ),
            (
                "runAsUser: 0, runAsNonRoot: true",
                "",
                ImageUser::Uid(10),
                Some("container's runAsUser breaks non-root policy"),
            ),
            ("runAsUser: 0, runAsNonRoot: true", "runAsUser: 4", name("web"), None),
            (
                "runAsNonRoot: true",
                "",
                ImageUser::Uid(-1),
                Some(
                    "container has runAsNonRoot and image has an invalid user id (-1). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive",
                ),
            ),
        ] {
            let mut b = with(pod_sc, own);
            b.image_user = image;
            let got = of(&b).err();
            assert_eq!(got, want.map(|w| format!("{w} {tail}")), "{pod_sc} {own}");
        }
    }

    #[test]
    fn profiles() {
        let local = "seccompProfile: {type: Localhost, localhostProfile: a/b.json}";
        for (pod_sc, own, default, want) in [
            ("", "", false, Profile::Unconfined),
            ("", "", true, Profile::RuntimeDefault),
            ("seccompProfile: {type: RuntimeDefault}", "", false, Profile::RuntimeDefault),
            (
                "seccompProfile: {type: RuntimeDefault}",
                "seccompProfile: {type: Unconfined}",
                true,
                Profile::Unconfined,
            ),
            (local, "", false, Profile::Localhost("/var/lib/kubelet/seccomp/a/b.json".into())),
        ] {
            let mut b = with(pod_sc, own);
            b.config.seccomp_default = default;
            assert_eq!(of(&b).unwrap().seccomp, want, "{pod_sc} {own}");
        }
        assert!(of(&with("", "seccompProfile: {type: Localhost}")).is_err());
        for outside in ["../x", "/etc/shadow", "a/../../b"] {
            let own = format!("seccompProfile: {{type: Localhost, localhostProfile: {outside}}}");
            assert!(of(&with("", &own)).is_err(), "{outside}");
        }
        let armor = |b: &Bench| of(b).map(|s| s.apparmor);
        assert_eq!(armor(&with("", "")), Ok(None));
        assert_eq!(
            armor(&with("appArmorProfile: {type: RuntimeDefault}", "")),
            Ok(Some(Profile::RuntimeDefault))
        );
        let both = (
            "appArmorProfile: {type: RuntimeDefault}",
            "appArmorProfile: {type: Localhost, localhostProfile: p}",
        );
        assert_eq!(armor(&with(both.0, both.1)), Ok(Some(Profile::Localhost("p".into()))));
        let mut old = with("appArmorProfile: {type: RuntimeDefault}", "");
        let key = "container.apparmor.security.beta.kubernetes.io/main".to_owned();
        old.pod.metadata.annotations = Some([(key, "localhost/q".to_owned())].into());
        assert_eq!(armor(&old), Ok(Some(Profile::Localhost("q".into()))));
        assert!(armor(&with("", "appArmorProfile: {type: Localhost}")).is_err());
    }

    #[test]
    fn privileges_and_proc() {
        let plain = of(&with("", "")).unwrap();
        assert_eq!((plain.privileged, plain.no_new_privs, plain.read_only_rootfs), (false, false, false));
        assert_eq!((plain.masked_paths.len(), plain.readonly_paths.len()), (12, 5));
        let mut b = with(
            "",
            "procMount: Unmasked, privileged: true, allowPrivilegeEscalation: true, readOnlyRootFilesystem: true, capabilities: {add: [SYS_TIME], drop: [ALL]}",
        );
        b.node.thermal_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()];
        let s = of(&b).unwrap();
        assert_eq!((s.privileged, s.no_new_privs, s.read_only_rootfs), (true, false, true));
        assert_eq!((s.masked_paths.len(), s.readonly_paths.len()), (0, 0));
        assert_eq!(
            (s.add_capabilities, s.drop_capabilities),
            (vec!["SYS_TIME".to_owned()], vec!["ALL".to_owned()])
        );
        let mut b = with("", "allowPrivilegeEscalation: false");
        b.node.thermal_paths = vec!["/sys/devices/system/cpu/cpu0/thermal_throttle".into()];
        let s = of(&b).unwrap();
        assert_eq!((s.no_new_privs, s.masked_paths.len()), (true, 13));
        assert!(of_sandbox(&Bench::new(pod("{containers: [{name: a}], ephemeralContainers: [{name: e, securityContext: {privileged: true}}]}")).sandbox_input()).unwrap().privileged);
    }

    #[test]
    fn namespace_modes() {
        use NamespaceMode::{Container, Node, Pod as OfPod, Target};
        let modes = |spec: &str, target: Option<&str>| {
            let mut b = Bench::new(pod(&format!("{{{spec} containers: [{{name: main}}]}}")));
            b.target = target.map(str::to_owned);
            let n = of(&b).unwrap().namespaces;
            (n.network, n.pid, n.ipc)
        };
        assert_eq!(modes("", None), (OfPod, Container, OfPod));
        assert_eq!(modes("hostNetwork: true, hostPID: true, hostIPC: true,", None), (Node, Node, Node));
        assert_eq!(modes("shareProcessNamespace: true,", Some("c1")), (OfPod, OfPod, OfPod));
        assert_eq!(modes("", Some("c1")), (OfPod, Target, OfPod));
        let mut b = Bench::new(pod("{hostUsers: false, containers: [{name: main}]}"));
        assert!(of(&b).unwrap_err().contains("no id range was allocated"));
        let ids = vec![IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        b.userns = Some(UserNamespace { uids: ids.clone(), gids: ids });
        assert_eq!(of(&b).unwrap().namespaces.user, UserMode::Pod(b.userns.clone().unwrap()));
        b.handler.user_namespaces = false;
        assert_eq!(
            of(&b).unwrap_err(),
            "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
        );
        b.pod.spec.as_mut().unwrap().host_users = Some(true);
        assert_eq!(of(&b).unwrap().namespaces.user, UserMode::Node);
    }
}
