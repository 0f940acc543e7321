//! Who a container runs as and what it may do.

use std::path::Path;

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSecurityContext, SELinuxOptions, SeccompProfile, SecurityContext,
};

use super::metadata::describe;
use super::types::{
    ContainerInput, ContainerSecurity, GroupsPolicy, HandlerFeatures, ImageUser, NamespaceMode, Namespaces,
    Profile, RecipeError, SandboxInput, SandboxSecurity, SeLinux, UserMode, UserNamespace,
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

pub(super) fn of_sandbox(input: &SandboxInput<'_>) -> Result<SandboxSecurity, RecipeError> {
    let pod = input.pod;
    let sc = pod_context(pod);
    Ok(SandboxSecurity {
        namespaces: namespaces(pod, input.userns, input.handler).map_err(RecipeError::sandbox)?,
        privileged: api::pod::containers(pod).any(|c| is_privileged(c)),
        run_as_user: sc.run_as_user,
        run_as_group: sc.run_as_group,
        supplemental_groups: groups(&sc),
        groups_policy: groups_policy(&sc).map_err(RecipeError::sandbox)?,
        selinux: sc.se_linux_options.as_ref().map(selinux),
        // A profile of the Pod is for its containers; the sandbox always runs confined.
        seccomp: Profile::RuntimeDefault,
    })
}

pub(super) fn of_container(
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<ContainerSecurity, RecipeError> {
    let pod = input.pod;
    let (of_pod, own) = (pod_context(pod), container.security_context.clone().unwrap_or_default());
    let run_as_user = own.run_as_user.or(of_pod.run_as_user);
    verify_non_root(input, container, &own, &of_pod)?;
    let (image_uid, image_name) = match input.image_user {
        ImageUser::Uid(uid) => (Some(*uid), String::new()),
        ImageUser::Name(name) => (None, name.clone()),
    };
    let mut namespaces = namespaces(pod, input.userns, input.handler).map_err(RecipeError::config)?;
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
        supplemental_groups: groups(&of_pod),
        groups_policy: groups_policy(&of_pod).map_err(RecipeError::config)?,
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

/// fsGroup first, then the Pod's own list.
fn groups(sc: &PodSecurityContext) -> Vec<i64> {
    sc.fs_group.into_iter().chain(sc.supplemental_groups.iter().flatten().copied()).collect()
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
) -> Result<(), RecipeError> {
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
    Err(RecipeError::config(format!("{problem} {whose}")))
}

fn seccomp(profile: Option<&SeccompProfile>, root: &Path, default: bool) -> Result<Profile, RecipeError> {
    match profile {
        None if default => Ok(Profile::RuntimeDefault),
        None => Ok(Profile::Unconfined),
        Some(p) if p.type_ == "RuntimeDefault" => Ok(Profile::RuntimeDefault),
        Some(p) if p.type_ == "Localhost" => {
            let name = p.localhost_profile.as_deref().filter(|n| !n.is_empty()).ok_or_else(|| {
                RecipeError::config("localhostProfile must be set if seccompProfile type is Localhost.")
            })?;
            // Validation refuses these; a profile outside the directory must not slip through either way.
            if Path::new(name).components().any(|c| !matches!(c, std::path::Component::Normal(_))) {
                return Err(RecipeError::config(format!(
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
) -> Result<Option<Profile>, RecipeError> {
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

fn apparmor_field(profile: &AppArmorProfile) -> Result<Profile, RecipeError> {
    match profile.type_.as_str() {
        "RuntimeDefault" => Ok(Profile::RuntimeDefault),
        "Unconfined" => Ok(Profile::Unconfined),
        "Localhost" => {
            let name = profile.localhost_profile.clone();
            name.map(Profile::Localhost)
                .ok_or_else(|| RecipeError::config("missing localhost apparmor profile name"))
        }
        other => Err(RecipeError::config(format!("unknown apparmor profile type: {other:?}"))),
    }
}
