//! What a container finds mounted.

use k8s_openapi::api::core::v1::{Container, Pod, VolumeMount};

use super::env::Environment;
use super::expand::{TooLong, expand};
use super::hosts::HOSTS_PATH;
use super::types::{ContainerInput, CriConfigError, Device, Mount, Propagation, ResolvedVolume};

/// Bytes of the longest path that Linux takes.
const PATH_MAX: usize = 4096;

/// A subPath the volumes must prepare before the container's CRI config can be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// Position in the container's volumeMounts.
    pub index: usize,
    pub volume: String,
    /// Expanded, relative, without `..`.
    pub path: String,
}

/// The subPaths of a container on host volumes (those of image volumes are the runtime's business).
pub(super) fn sub_paths(
    input: &ContainerInput<'_>,
    container: &Container,
    env: &Environment,
) -> Result<Vec<SubPath>, CriConfigError> {
    let mut out = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = sub_path(mount, env)?;
        if !path.is_empty() && matches!(volume(input, container, mount)?, ResolvedVolume::Host { .. }) {
            out.push(SubPath { index, volume: mount.name.clone(), path });
        }
    }
    Ok(out)
}

/// The container's volumeMounts in order, then its hosts file, then its termination-message file.
pub(super) fn mounts(
    input: &ContainerInput<'_>,
    container: &Container,
    env: &Environment,
) -> Result<Vec<Mount>, CriConfigError> {
    let mut out = Vec::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        out.push(of_volume(input, container, env, index, mount)?);
    }
    let selinux = input.node.selinux;
    if let Some(path) = input.hosts_file
        && super::hosts::wanted(input.pod, container, input.pod_ips)
    {
        out.push(plain(HOSTS_PATH, &path.to_string_lossy(), selinux));
    }
    let inside = container.termination_message_path.as_deref().filter(|p| !p.is_empty());
    if let (Some(path), Some(inside)) = (input.termination_file, inside) {
        out.push(plain(&absolute(inside), &path.to_string_lossy(), selinux));
    }
    let (uids, gids) = match input.userns.filter(|_| wants_userns(input.pod)) {
        Some(u) => (u.uids.clone(), u.gids.clone()),
        None => Default::default(),
    };
    for mount in &mut out {
        mount.uid_mappings.clone_from(&uids);
        mount.gid_mappings.clone_from(&gids);
    }
    Ok(out)
}

/// The container's volumeDevices.
pub(super) fn devices(
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Vec<Device>, CriConfigError> {
    let mut out = Vec::new();
    for wanted in container.volume_devices.iter().flatten() {
        let Some(ResolvedVolume::Device { path, read_only }) = input.volumes.get(&wanted.name) else {
            return Err(CriConfigError::config(format!(
                "cannot find volume {:?} to pass into container {:?}",
                wanted.name, container.name
            )));
        };
        out.push(Device {
            container_path: wanted.device_path.clone(),
            host_path: path.to_string_lossy().into_owned(),
            permissions: if *read_only { "r" } else { "mrw" }.to_owned(),
        });
    }
    Ok(out)
}

fn of_volume(
    input: &ContainerInput<'_>,
    container: &Container,
    env: &Environment,
    index: usize,
    mount: &VolumeMount,
) -> Result<Mount, CriConfigError> {
    let sub_path = sub_path(mount, env)?;
    let mut out = plain(&absolute(&mount.mount_path), "", false);
    out.propagation = propagation(mount.mount_propagation.as_deref())?;
    out.recursive_read_only = recursive_read_only(mount, input.handler.recursive_read_only)
        .map_err(|e| CriConfigError::config(format!("failed to resolve recursive read-only mode: {e}")))?;
    out.read_only = mount.read_only == Some(true);
    match volume(input, container, mount)? {
        ResolvedVolume::Image { reference } => {
            out.image = Some(reference.clone());
            out.image_sub_path = sub_path;
            out.read_only = true;
        }
        ResolvedVolume::Device { .. } => {
            return Err(CriConfigError::config(format!(
                "volume {:?} is a device and cannot be mounted into container {:?}",
                mount.name, container.name
            )));
        }
        ResolvedVolume::Host { path, read_only } => {
            out.read_only |= read_only;
            out.selinux_relabel = input.node.selinux && is_managed(input.pod, &mount.name);
            let path = match input.sub_paths.get(&index) {
                Some(prepared) => prepared,
                None if sub_path.is_empty() => path,
                None => {
                    return Err(CriConfigError::config(format!(
                        "failed to prepare subPath for volumeMount {:?} of container {:?}",
                        mount.name, container.name
                    )));
                }
            };
            out.host_path = path.to_string_lossy().into_owned();
        }
    }
    Ok(out)
}

fn volume<'a>(
    input: &ContainerInput<'a>,
    container: &Container,
    mount: &VolumeMount,
) -> Result<&'a ResolvedVolume, CriConfigError> {
    input.volumes.get(&mount.name).ok_or_else(|| {
        CriConfigError::config(format!(
            "cannot find volume {:?} to mount into container {:?}",
            mount.name, container.name
        ))
    })
}

/// The subPath, expanded and safe to join.
fn sub_path(mount: &VolumeMount, env: &Environment) -> Result<String, CriConfigError> {
    let path = match mount.sub_path_expr.as_deref().filter(|e| !e.is_empty()) {
        None => mount.sub_path.clone().unwrap_or_default(),
        Some(expr) => {
            let mut missing = std::collections::BTreeSet::new();
            let path = expand(expr, PATH_MAX, |name| {
                let value = env.get(name);
                if value.unwrap_or_default().is_empty() {
                    missing.insert(name.to_owned());
                }
                Some(value.unwrap_or_default())
            });
            if !missing.is_empty() {
                let names: Vec<_> = missing.into_iter().collect();
                return Err(CriConfigError::config(format!("missing value for {}", names.join(", "))));
            }
            path.map_err(|TooLong| {
                CriConfigError::config(format!(
                    "subPathExpr of volumeMount {:?} is too long: no path has more than {PATH_MAX} bytes",
                    mount.name
                ))
            })?
        }
    };
    if path.starts_with('/') {
        return Err(CriConfigError::config(format!("error SubPath `{path}` must not be an absolute path")));
    }
    if path.split('/').any(|part| part == "..") {
        return Err(CriConfigError::config(format!(
            "unable to provision SubPath `{path}`: must not contain '..'"
        )));
    }
    Ok(path)
}

fn propagation(mode: Option<&str>) -> Result<Propagation, CriConfigError> {
    match mode {
        None | Some("None") => Ok(Propagation::Private),
        Some("HostToContainer") => Ok(Propagation::HostToContainer),
        Some("Bidirectional") => Ok(Propagation::Bidirectional),
        Some(other) => Err(CriConfigError::config(format!("invalid MountPropagation mode: {other:?}"))),
    }
}

/// Whether a mount is read-only all the way down, where the Pod's runtime handler can do that.
pub(crate) fn recursive_read_only(mount: &VolumeMount, supported: bool) -> Result<bool, String> {
    let mode = match mount.recursive_read_only.as_deref() {
        None | Some("Disabled") => return Ok(false),
        Some(mode) => mode,
    };
    let asked = format!("volume {:?} requested recursive read-only mode, but it is not", mount.name);
    if mount.read_only != Some(true) {
        return Err(format!("{asked} read-only"));
    }
    if let Some(p) = mount.mount_propagation.as_deref().filter(|p| *p != "None") {
        return Err(format!("{asked} compatible with propagation {p:?}"));
    }
    match mode {
        "IfPossible" => Ok(supported),
        "Enabled" if supported => Ok(true),
        "Enabled" => Err(format!("{asked} supported by the runtime")),
        other => Err(format!("unknown recursive read-only mode {other:?}")),
    }
}

/// Volumes the kubelet makes itself may be relabelled; a hostPath belongs to the host.
fn is_managed(pod: &Pod, volume: &str) -> bool {
    let volumes = pod.spec.as_ref().and_then(|s| s.volumes.as_deref()).unwrap_or_default();
    volumes.iter().any(|v| v.name == volume && v.host_path.is_none() && v.image.is_none())
}

fn wants_userns(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|s| s.host_users) == Some(false)
}

fn plain(container_path: &str, host_path: &str, selinux_relabel: bool) -> Mount {
    Mount {
        container_path: container_path.to_owned(),
        host_path: host_path.to_owned(),
        read_only: false,
        recursive_read_only: false,
        selinux_relabel,
        propagation: Propagation::Private,
        image: None,
        image_sub_path: String::new(),
        uid_mappings: Vec::new(),
        gid_mappings: Vec::new(),
    }
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Bench, pod};
    use super::super::{IdMapping, UserNamespace, spec_of};
    use super::*;

    fn bench(container: &str) -> Bench {
        let mut b = Bench::new(pod(&format!(
            "{{volumes: [{{name: data, emptyDir: {{}}}}, {{name: host, hostPath: {{path: /h}}}}, {{name: img, image: {{reference: i}}}}], containers: [{{name: main, {container}}}]}}"
        )));
        b.volumes.insert("host".into(), ResolvedVolume::Host { path: "/h".into(), read_only: true });
        b.volumes.insert("img".into(), ResolvedVolume::Image { reference: "sha256:1".into() });
        b
    }

    fn env() -> Environment {
        let mut env = Environment::default();
        env.set("WHO", "me".to_owned()).unwrap();
        env.set("NIL", String::new()).unwrap();
        env
    }

    fn of(b: &Bench) -> Result<Vec<Mount>, String> {
        mounts(&b.input("main"), &spec_of(&b.pod, "main").unwrap(), &env()).map_err(|e| e.message)
    }

    fn wanted(b: &Bench) -> Result<Vec<SubPath>, String> {
        sub_paths(&b.input("main"), &spec_of(&b.pod, "main").unwrap(), &env()).map_err(|e| e.message)
    }

    fn one(mount: &str) -> Result<Mount, String> {
        of(&bench(&format!("volumeMounts: [{{mountPath: /m, {mount}}}]"))).map(|m| m[0].clone())
    }

    #[test]
    fn paths_and_order() {
        let b = bench(
            "terminationMessagePath: dev/msg, volumeMounts: [{name: data, mountPath: m}, {name: host, mountPath: /h}, {name: img, mountPath: /i, subPath: s}]",
        );
        let got: Vec<String> = of(&b)
            .unwrap()
            .iter()
            .map(|m| {
                format!(
                    "{} {} {} {:?}{}",
                    m.container_path, m.host_path, m.read_only, m.image, m.image_sub_path
                )
            })
            .collect();
        assert_eq!(
            got,
            [
                "/m /vol/data false None",
                "/h /h true None",
                "/i  true Some(\"sha256:1\")s",
                "/etc/hosts /root/pods/u-1/etc-hosts false None",
                "/dev/msg /root/pods/u-1/containers/main/0a1b2c3d false None",
            ]
        );
        let own_hosts = of(&bench("volumeMounts: [{name: data, mountPath: /etc/hosts}]")).unwrap();
        assert_eq!(own_hosts.len(), 1, "no termination message path, no second hosts file");
        assert_eq!(
            one("name: ghost").unwrap_err(),
            "cannot find volume \"ghost\" to mount into container \"main\""
        );
    }

    #[test]
    fn propagation_and_recursion() {
        assert_eq!(
            one("name: data, mountPropagation: HostToContainer").unwrap().propagation,
            Propagation::HostToContainer
        );
        assert_eq!(
            one("name: data, mountPropagation: Bidirectional").unwrap().propagation,
            Propagation::Bidirectional
        );
        assert_eq!(one("name: data, mountPropagation: None").unwrap().propagation, Propagation::Private);
        assert_eq!(
            one("name: data, mountPropagation: X").unwrap_err(),
            "invalid MountPropagation mode: \"X\""
        );
        let rro = |m: &str| one(&format!("name: data, {m}")).map(|m| m.recursive_read_only);
        assert_eq!(rro("readOnly: true, recursiveReadOnly: Disabled"), Ok(false));
        assert_eq!(rro("readOnly: true, recursiveReadOnly: IfPossible"), Ok(true));
        assert_eq!(rro("readOnly: true, recursiveReadOnly: Enabled"), Ok(true));
        let why = |m: &str| rro(m).unwrap_err();
        let head = "failed to resolve recursive read-only mode:";
        assert_eq!(
            why("recursiveReadOnly: Enabled"),
            format!("{head} volume \"data\" requested recursive read-only mode, but it is not read-only")
        );
        assert_eq!(
            why("readOnly: true, recursiveReadOnly: Enabled, mountPropagation: HostToContainer"),
            format!(
                "{head} volume \"data\" requested recursive read-only mode, but it is not compatible with propagation \"HostToContainer\""
            )
        );
        assert_eq!(
            why("readOnly: true, recursiveReadOnly: Odd"),
            format!("{head} unknown recursive read-only mode \"Odd\"")
        );
        for (mode, want) in [("IfPossible", Ok(false)), ("Enabled", Err(()))] {
            let mut b = bench(&format!(
                "volumeMounts: [{{mountPath: /m, name: data, readOnly: true, recursiveReadOnly: {mode}}}]"
            ));
            b.handler.recursive_read_only = false;
            assert_eq!(of(&b).map(|m| m[0].recursive_read_only).map_err(drop), want, "{mode}");
        }
    }

    #[test]
    fn sub_paths_are_expanded_asked_for_and_used() {
        let mut b = bench(
            "volumeMounts: [{name: data, mountPath: /a}, {name: data, mountPath: /b, subPathExpr: 'x/$(WHO)'}, {name: img, mountPath: /c, subPath: y}]",
        );
        assert_eq!(wanted(&b).unwrap(), [SubPath { index: 1, volume: "data".into(), path: "x/me".into() }]);
        assert_eq!(
            of(&b).unwrap_err(),
            "failed to prepare subPath for volumeMount \"data\" of container \"main\""
        );
        b.sub_paths.insert(1, "/prepared".into());
        assert_eq!(of(&b).unwrap()[1].host_path, "/prepared");
        for (expr, want) in [
            ("subPathExpr: '$(NIL)/$(GONE)'", "missing value for GONE, NIL"),
            (
                &format!("subPathExpr: '{}'", "$(WHO)".repeat(2049)),
                "subPathExpr of volumeMount \"data\" is too long: no path has more than 4096 bytes",
            ),
            ("subPath: /abs", "error SubPath `/abs` must not be an absolute path"),
            ("subPath: a/../../b", "unable to provision SubPath `a/../../b`: must not contain '..'"),
        ] {
            let b = bench(&format!("volumeMounts: [{{name: data, mountPath: /a, {expr}}}]"));
            assert_eq!(wanted(&b).unwrap_err(), want);
        }
    }

    #[test]
    fn devices_are_passed_in() {
        let mut b = bench("volumeDevices: [{name: raw, devicePath: /dev/xvda}]");
        let of =
            |b: &Bench| devices(&b.input("main"), &spec_of(&b.pod, "main").unwrap()).map_err(|e| e.message);
        assert_eq!(of(&b).unwrap_err(), "cannot find volume \"raw\" to pass into container \"main\"");
        for (read_only, permissions) in [(false, "mrw"), (true, "r")] {
            b.volumes.insert("raw".into(), ResolvedVolume::Device { path: "/d".into(), read_only });
            let want = Device {
                container_path: "/dev/xvda".into(),
                host_path: "/d".into(),
                permissions: permissions.into(),
            };
            assert_eq!(of(&b).unwrap(), [want]);
        }
    }

    #[test]
    fn labels_and_id_maps() {
        let mut b = bench("volumeMounts: [{name: data, mountPath: /a}, {name: host, mountPath: /b}]");
        b.node.selinux = true;
        let relabel: Vec<bool> = of(&b).unwrap().iter().map(|m| m.selinux_relabel).collect();
        assert_eq!(relabel, [true, false, true]);
        let ids = vec![IdMapping { host_id: 65536, container_id: 0, length: 65536 }];
        b.userns = Some(UserNamespace { uids: ids.clone(), gids: ids.clone() });
        assert!(of(&b).unwrap().iter().all(|m| m.uid_mappings.is_empty()));
        b.pod.spec.as_mut().unwrap().host_users = Some(false);
        assert!(of(&b).unwrap().iter().all(|m| m.uid_mappings == ids && m.gid_mappings == ids));
    }
}
