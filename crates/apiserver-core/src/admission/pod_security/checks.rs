//! What the levels look at. A check says nothing, or what is wrong and where.

use std::collections::BTreeSet;

use serde_json::Value;

use super::level::{Level, Standard, Version};
use crate::doc;

/// Metadata, spec, version: reason and detail.
type Check = fn(&Value, &Value, Version) -> Option<(String, String)>;

/// The checks of a standard, in the order upstream reports them: baseline by name, then restricted by name. A check
/// that says the same more strictly takes the place of the other.
pub(super) fn all(standard: &Standard) -> impl Iterator<Item = Check> {
    const BASELINE: [(&str, Check); 12] = [
        ("appArmorProfile", app_armor),
        ("capabilities_baseline", capabilities_baseline),
        ("hostNamespaces", host_namespaces),
        ("hostPathVolumes", host_path_volumes),
        ("hostPorts", host_ports),
        ("hostProbesAndHostLifecycle", host_handlers),
        ("privileged", privileged),
        ("procMount", proc_mount),
        ("seLinuxOptions", selinux),
        ("seccompProfile_baseline", seccomp_baseline),
        ("sysctls", sysctls),
        ("windowsHostProcess", windows_host_process),
    ];
    const RESTRICTED: [Check; 7] = [
        privilege_escalation,
        capabilities_restricted,
        proc_mount_restricted,
        restricted_volumes,
        run_as_non_root,
        run_as_user,
        seccomp_restricted,
    ];
    let restricted = standard.level == Level::Restricted;
    let version = standard.version;
    let replaced = move |name: &str| match name {
        "capabilities_baseline" => version.is_at_least(22),
        "seccompProfile_baseline" => version.is_at_least(19),
        "hostPathVolumes" => true,
        _ => false,
    };
    let baseline =
        BASELINE.into_iter().filter(move |(name, _)| !(restricted && replaced(name))).map(|(_, c)| c);
    baseline.chain(RESTRICTED.into_iter().filter(move |_| restricted))
}

type Found = Option<(String, String)>;

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|f| doc::list(spec, f))
}

/// The names of the containers that something is true of.
fn named(spec: &Value, bad: impl Fn(&Value) -> bool) -> Vec<&str> {
    containers(spec).filter(|c| bad(c)).map(|c| doc::text(c, "name")).collect()
}

/// `container "a"`, `containers "a", "b"`
fn subjects(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quote(names))
}

fn quote<S: AsRef<str>>(items: &[S]) -> String {
    let items: Vec<String> = items.iter().map(|i| format!("\"{}\"", i.as_ref())).collect();
    items.join(", ")
}

fn plural<'t>(one: &'t str, many: &'t str, count: usize) -> &'t str {
    if count == 1 { one } else { many }
}

/// `pod`, `container "a"`, `pod and containers "a", "b"`
fn setters(pod: bool, names: &[&str]) -> Option<String> {
    let mut out = Vec::new();
    if pod {
        out.push("pod".to_owned());
    }
    if !names.is_empty() {
        out.push(subjects(names));
    }
    (!out.is_empty()).then(|| out.join(" and "))
}

fn found(reason: &str, detail: String) -> Found {
    Some((reason.to_owned(), detail))
}

fn is_windows(spec: &Value, version: Version) -> bool {
    version.is_at_least(25) && doc::text(spec, "os.name") == "windows"
}

/// A Pod in its own user namespace: its root is nobody on the host.
fn is_mapped(spec: &Value, version: Version) -> bool {
    version.is_at_least(35) && spec["hostUsers"] == false
}

fn app_armor(metadata: &Value, spec: &Value, _: Version) -> Found {
    let bad = |owner: &Value| {
        let profile = doc::at(owner, "securityContext.appArmorProfile");
        let kind = doc::text(profile, "type");
        (profile.is_object() && !matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
    };
    let mut values: BTreeSet<String> = bad(spec).into_iter().collect();
    values.extend(containers(spec).filter_map(bad));
    let names = named(spec, |c| bad(c).is_some());
    let mut who: Vec<String> = setters(bad(spec).is_some(), &names).into_iter().collect();
    let mut values: Vec<String> = values.into_iter().collect();
    let annotations: BTreeSet<String> = doc::entries(metadata, "annotations")
        .filter(|(k, _)| k.starts_with("container.apparmor.security.beta.kubernetes.io/"))
        .filter_map(|(k, v)| Some((k, v.as_str()?)))
        .filter(|(_, v)| !v.is_empty() && *v != "runtime/default" && !v.starts_with("localhost/"))
        .map(|(k, v)| format!("{k}={v:?}"))
        .collect();
    if !annotations.is_empty() {
        who.push(plural("annotation", "annotations", annotations.len()).to_owned());
        values.extend(annotations);
    }
    if who.is_empty() {
        return None;
    }
    let reason = plural("forbidden AppArmor profile", "forbidden AppArmor profiles", values.len());
    found(reason, format!("{} must not set AppArmor profile type to {}", who.join(" and "), quote(&values)))
}

const DEFAULT_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

fn added<'c>(container: &'c Value, allowed: &[&str]) -> Vec<&'c str> {
    let added = doc::list(container, "securityContext.capabilities.add").iter().filter_map(Value::as_str);
    added.filter(|c| !allowed.contains(c)).collect()
}

fn capabilities_baseline(_: &Value, spec: &Value, _: Version) -> Found {
    let names = named(spec, |c| !added(c, &DEFAULT_CAPABILITIES).is_empty());
    let extra: BTreeSet<&str> = containers(spec).flat_map(|c| added(c, &DEFAULT_CAPABILITIES)).collect();
    let extra: Vec<&str> = extra.into_iter().collect();
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must not include {} in securityContext.capabilities.add",
        subjects(&names),
        quote(&extra)
    );
    found("non-default capabilities", detail)
}

fn capabilities_restricted(_: &Value, spec: &Value, version: Version) -> Found {
    const ALLOWED: [&str; 1] = ["NET_BIND_SERVICE"];
    if is_windows(spec, version) || !version.is_at_least(22) {
        return None;
    }
    let keeps = |c: &Value| !doc::list(c, "securityContext.capabilities.drop").iter().any(|d| d == "ALL");
    let (keeping, adding) = (named(spec, keeps), named(spec, |c| !added(c, &ALLOWED).is_empty()));
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", subjects(&keeping)));
    }
    if !adding.is_empty() {
        let extra: BTreeSet<&str> = containers(spec).flat_map(|c| added(c, &ALLOWED)).collect();
        let extra: Vec<&str> = extra.into_iter().collect();
        details.push(format!(
            "{} must not include {} in securityContext.capabilities.add",
            subjects(&adding),
            quote(&extra)
        ));
    }
    if details.is_empty() { None } else { found("unrestricted capabilities", details.join("; ")) }
}

fn host_namespaces(_: &Value, spec: &Value, _: Version) -> Found {
    let used: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|f| doc::is_true(spec, f))
        .map(|f| format!("{f}=true"))
        .collect();
    if used.is_empty() { None } else { found("host namespaces", used.join(", ")) }
}

fn host_path_volumes(_: &Value, spec: &Value, _: Version) -> Found {
    let names: Vec<&str> = doc::list(spec, "volumes")
        .iter()
        .filter(|v| v["hostPath"].is_object())
        .map(|v| doc::text(v, "name"))
        .collect();
    if names.is_empty() {
        return None;
    }
    found("hostPath volumes", format!("{} {}", plural("volume", "volumes", names.len()), quote(&names)))
}

fn host_ports(_: &Value, spec: &Value, _: Version) -> Found {
    let ports = |c: &Value| -> Vec<String> {
        let ports = doc::list(c, "ports").iter().map(|p| doc::int(p, "hostPort")).filter(|p| *p != 0);
        ports.map(|p| p.to_string()).collect()
    };
    let names = named(spec, |c| !ports(c).is_empty());
    if names.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(spec).flat_map(ports).collect();
    let (uses, word) = (plural("uses", "use", names.len()), plural("hostPort", "hostPorts", all.len()));
    let all: Vec<String> = all.into_iter().collect();
    found("hostPort", format!("{} {uses} {word} {}", subjects(&names), all.join(", ")))
}

fn host_handlers(_: &Value, spec: &Value, version: Version) -> Found {
    if !version.is_at_least(34) {
        return None;
    }
    let hosts = |c: &Value| -> Vec<String> {
        let handlers =
            ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop"];
        let hosts = handlers
            .into_iter()
            .flat_map(|h| ["httpGet.host", "tcpSocket.host"].map(|f| doc::text(doc::at(c, h), f).to_owned()));
        hosts.filter(|h| !h.is_empty()).collect()
    };
    let names: BTreeSet<&str> = named(spec, |c| !hosts(c).is_empty()).into_iter().collect();
    let names: Vec<&str> = names.into_iter().collect();
    if names.is_empty() {
        return None;
    }
    let all: BTreeSet<String> = containers(spec).flat_map(hosts).collect();
    let all: Vec<String> = all.into_iter().collect();
    let uses = plural("uses", "use", names.len());
    let word = plural("probe or lifecycle host", "probe or lifecycle hosts", all.len());
    found("probe or lifecycle host", format!("{} {uses} {word} {}", subjects(&names), quote(&all)))
}

fn privileged(_: &Value, spec: &Value, _: Version) -> Found {
    let names = named(spec, |c| doc::is_true(c, "securityContext.privileged"));
    if names.is_empty() {
        return None;
    }
    found("privileged", format!("{} must not set securityContext.privileged=true", subjects(&names)))
}

fn proc_mount(_: &Value, spec: &Value, version: Version) -> Found {
    if is_mapped(spec, version) { None } else { unmasked_proc(spec) }
}

/// The baseline makes an exception for Pods with user namespaces; this level makes none.
fn proc_mount_restricted(_: &Value, spec: &Value, version: Version) -> Found {
    if is_mapped(spec, version) { unmasked_proc(spec) } else { None }
}

fn unmasked_proc(spec: &Value) -> Found {
    let kind = |c: &Value| {
        let kind = doc::text(c, "securityContext.procMount");
        (!matches!(kind, "" | "Default")).then(|| kind.to_owned())
    };
    let names = named(spec, |c| kind(c).is_some());
    if names.is_empty() {
        return None;
    }
    let kinds: BTreeSet<String> = containers(spec).filter_map(kind).collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    found(
        "procMount",
        format!("{} must not set securityContext.procMount to {}", subjects(&names), quote(&kinds)),
    )
}

fn selinux(_: &Value, spec: &Value, version: Version) -> Found {
    let engine = version.is_at_least(31);
    let allowed = |kind: &str| {
        matches!(kind, "" | "container_t" | "container_init_t" | "container_kvm_t")
            || (engine && kind == "container_engine_t")
    };
    let options = |owner: &Value| doc::at(owner, "securityContext.seLinuxOptions").clone();
    let bad = |owner: &Value| {
        let o = options(owner);
        !allowed(doc::text(&o, "type"))
            || !doc::text(&o, "user").is_empty()
            || !doc::text(&o, "role").is_empty()
    };
    let who = setters(bad(spec), &named(spec, bad))?;
    let all: Vec<Value> = std::iter::once(spec).chain(containers(spec)).map(options).collect();
    let kinds: BTreeSet<&str> = all.iter().map(|o| doc::text(o, "type")).filter(|k| !allowed(k)).collect();
    let kinds: Vec<&str> = kinds.into_iter().collect();
    let mut data = Vec::new();
    if !kinds.is_empty() {
        data.push(format!("{} {}", plural("type", "types", kinds.len()), quote(&kinds)));
    }
    for field in ["user", "role"] {
        if all.iter().any(|o| !doc::text(o, field).is_empty()) {
            data.push(format!("{field} may not be set"));
        }
    }
    found(
        "seLinuxOptions",
        format!("{who} set forbidden securityContext.seLinuxOptions: {}", data.join("; ")),
    )
}

fn bad_seccomp(owner: &Value) -> Option<String> {
    let profile = doc::at(owner, "securityContext.seccompProfile");
    let kind = doc::text(profile, "type");
    (profile.is_object() && !matches!(kind, "RuntimeDefault" | "Localhost")).then(|| kind.to_owned())
}

fn seccomp_baseline(metadata: &Value, spec: &Value, version: Version) -> Found {
    if !version.is_at_least(19) {
        return seccomp_annotations(metadata, spec);
    }
    let who = setters(bad_seccomp(spec).is_some(), &named(spec, |c| bad_seccomp(c).is_some()))?;
    let values: BTreeSet<String> =
        std::iter::once(spec).chain(containers(spec)).filter_map(bad_seccomp).collect();
    let values: Vec<String> = values.into_iter().collect();
    found(
        "seccompProfile",
        format!("{who} must not set securityContext.seccompProfile.type to {}", quote(&values)),
    )
}

fn seccomp_annotations(metadata: &Value, spec: &Value) -> Found {
    let container = containers(spec)
        .map(|c| format!("container.seccomp.security.alpha.kubernetes.io/{}", doc::text(c, "name")));
    let keys = std::iter::once("seccomp.security.alpha.kubernetes.io/pod".to_owned()).chain(container);
    let bad: BTreeSet<String> = keys
        .filter_map(|key| Some((metadata["annotations"][&key].as_str()?.to_owned(), key)))
        .filter(|(v, _)| v != "runtime/default" && v != "docker/default" && !v.starts_with("localhost/"))
        .map(|(v, key)| format!("{key}={v:?}"))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let word = plural("annotation", "annotations", bad.len());
    let bad: Vec<String> = bad.into_iter().collect();
    found("seccompProfile", format!("forbidden {word} {}", bad.join(", ")))
}

fn seccomp_restricted(metadata: &Value, spec: &Value, version: Version) -> Found {
    if is_windows(spec, version) || !version.is_at_least(19) {
        return None;
    }
    if let Some(found) = seccomp_baseline(metadata, spec, version) {
        return Some(found);
    }
    let unset = |owner: &Value| !doc::at(owner, "securityContext.seccompProfile").is_object();
    let names = if unset(spec) { named(spec, unset) } else { Vec::new() };
    if names.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        subjects(&names)
    );
    found("seccompProfile", detail)
}

fn sysctls(_: &Value, spec: &Value, version: Version) -> Found {
    let allowed = |name: &str| match name {
        "kernel.shm_rmid_forced"
        | "net.ipv4.ip_local_port_range"
        | "net.ipv4.tcp_syncookies"
        | "net.ipv4.ping_group_range"
        | "net.ipv4.ip_unprivileged_port_start" => true,
        "net.ipv4.ip_local_reserved_ports" => version.is_at_least(27),
        "net.ipv4.tcp_keepalive_time"
        | "net.ipv4.tcp_fin_timeout"
        | "net.ipv4.tcp_keepalive_intvl"
        | "net.ipv4.tcp_keepalive_probes" => version.is_at_least(29),
        "net.ipv4.tcp_rmem" | "net.ipv4.tcp_wmem" => version.is_at_least(32),
        _ => false,
    };
    let bad: Vec<&str> = doc::list(spec, "securityContext.sysctls")
        .iter()
        .map(|s| doc::text(s, "name"))
        .filter(|n| !allowed(n))
        .collect();
    if bad.is_empty() { None } else { found("forbidden sysctls", bad.join(", ")) }
}

fn windows_host_process(_: &Value, spec: &Value, _: Version) -> Found {
    let bad = |owner: &Value| doc::is_true(owner, "securityContext.windowsOptions.hostProcess");
    let who = setters(bad(spec), &named(spec, bad))?;
    found("hostProcess", format!("{who} must not set securityContext.windowsOptions.hostProcess=true"))
}

fn privilege_escalation(_: &Value, spec: &Value, version: Version) -> Found {
    if is_windows(spec, version) || !version.is_at_least(8) {
        return None;
    }
    let names =
        named(spec, |c| *doc::at(c, "securityContext.allowPrivilegeEscalation") != Value::Bool(false));
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} must set securityContext.allowPrivilegeEscalation=false", subjects(&names));
    found("allowPrivilegeEscalation != false", detail)
}

fn restricted_volumes(_: &Value, spec: &Value, _: Version) -> Found {
    const FINE: [&str; 9] = [
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    ];
    let source = |v: &Value| {
        let fields = v.as_object().into_iter().flatten().filter(|(_, s)| !s.is_null());
        fields.map(|(k, _)| k.clone()).find(|k| k != "name").unwrap_or_else(|| "unknown".to_owned())
    };
    let bad: Vec<&Value> =
        doc::list(spec, "volumes").iter().filter(|v| !FINE.contains(&source(v).as_str())).collect();
    if bad.is_empty() {
        return None;
    }
    let names: Vec<&str> = bad.iter().map(|v| doc::text(v, "name")).collect();
    let kinds: BTreeSet<String> = bad.iter().map(|v| source(v)).collect();
    let kinds: Vec<String> = kinds.into_iter().collect();
    let detail = format!(
        "{} {} {} {} {}",
        plural("volume", "volumes", names.len()),
        quote(&names),
        plural("uses", "use", names.len()),
        plural("restricted volume type", "restricted volume types", kinds.len()),
        quote(&kinds)
    );
    found("restricted volume types", detail)
}

fn run_as_non_root(_: &Value, spec: &Value, version: Version) -> Found {
    if is_mapped(spec, version) {
        return None;
    }
    let said = |owner: &Value| doc::at(owner, "securityContext.runAsNonRoot").as_bool();
    if let Some(who) = setters(said(spec) == Some(false), &named(spec, |c| said(c) == Some(false))) {
        return found(
            "runAsNonRoot != true",
            format!("{who} must not set securityContext.runAsNonRoot=false"),
        );
    }
    let names = if said(spec) == Some(true) { Vec::new() } else { named(spec, |c| said(c).is_none()) };
    if names.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", subjects(&names));
    found("runAsNonRoot != true", detail)
}

fn run_as_user(_: &Value, spec: &Value, version: Version) -> Found {
    if is_mapped(spec, version) || !version.is_at_least(23) {
        return None;
    }
    let root = |owner: &Value| doc::at(owner, "securityContext.runAsUser").as_i64() == Some(0);
    let who = setters(root(spec), &named(spec, root))?;
    found("runAsUser=0", format!("{who} must not set runAsUser=0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn judged(level: Level, version: Version, spec: Value) -> Vec<String> {
        let standard = Standard { level, version };
        all(&standard)
            .filter_map(|c| c(&json!({}), &spec, version))
            .map(|(r, d)| format!("{r} ({d})"))
            .collect()
    }

    fn one(context: Value) -> Value {
        json!({"containers": [{"name": "a", "securityContext": context}]})
    }

    #[test]
    fn baseline_finds_each_breach() {
        let cases = [
            (
                one(json!({"privileged": true})),
                "privileged (container \"a\" must not set securityContext.privileged=true)",
            ),
            (
                one(json!({"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}})),
                "non-default capabilities (container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
            ),
            (json!({"hostPID": true, "hostIPC": true}), "host namespaces (hostPID=true, hostIPC=true)"),
            (json!({"volumes": [{"name": "v", "hostPath": {}}]}), "hostPath volumes (volume \"v\")"),
            (
                json!({"containers": [{"name": "a", "ports": [{"hostPort": 80}]}, {"name": "b", "ports": [{"hostPort": 81}]}]}),
                "hostPort (containers \"a\", \"b\" use hostPorts 80, 81)",
            ),
            (
                one(json!({"seccompProfile": {"type": "Unconfined"}})),
                "seccompProfile (container \"a\" must not set securityContext.seccompProfile.type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}, {"name": "net.ipv4.tcp_rmem"}]}}),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                json!({"securityContext": {"seLinuxOptions": {"type": "spc_t", "user": "u"}}}),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"spc_t\"; user may not be set)",
            ),
            (
                one(json!({"procMount": "Unmasked"})),
                "procMount (container \"a\" must not set securityContext.procMount to \"Unmasked\")",
            ),
            (
                json!({"securityContext": {"appArmorProfile": {"type": "Unconfined"}}}),
                "forbidden AppArmor profile (pod must not set AppArmor profile type to \"Unconfined\")",
            ),
            (
                json!({"securityContext": {"windowsOptions": {"hostProcess": true}}}),
                "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
            ),
            (
                json!({"containers": [{"name": "a", "livenessProbe": {"httpGet": {"host": "x"}}}]}),
                "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"x\")",
            ),
        ];
        for (spec, expected) in cases {
            assert_eq!(judged(Level::Baseline, Version::Latest, spec.clone()), [expected], "{spec}");
        }
        assert!(judged(Level::Baseline, Version::Latest, one(json!({}))).is_empty());
    }

    #[test]
    fn restricted_asks_for_more_and_says_it_once() {
        let good = json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]});
        assert!(judged(Level::Restricted, Version::Latest, good.clone()).is_empty());
        let changed = |path: &str, value: Value| {
            let mut spec = good.clone();
            doc::set(&mut spec, path, value);
            judged(Level::Restricted, Version::Latest, spec)
        };
        assert_eq!(
            changed("volumes", json!([{"name": "v", "hostPath": {"path": "/"}}])),
            ["restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")"]
        );
        assert_eq!(
            changed("securityContext.runAsUser", json!(0)),
            ["runAsUser=0 (pod must not set runAsUser=0)"]
        );
        assert_eq!(
            changed("securityContext.runAsNonRoot", json!(false)),
            ["runAsNonRoot != true (pod must not set securityContext.runAsNonRoot=false)"]
        );
        let mut mapped = good.clone();
        doc::set(&mut mapped, "hostUsers", false);
        doc::set(&mut mapped, "securityContext.runAsUser", 0);
        assert!(judged(Level::Restricted, Version::Latest, mapped.clone()).is_empty());
        assert_eq!(judged(Level::Restricted, Version::Minor(34), mapped.clone()).len(), 1);
        doc::list_mut(&mut mapped, "containers")
            .for_each(|c| doc::set(c, "securityContext.procMount", "Unmasked"));
        let unmasked = |level| judged(level, Version::Latest, mapped.clone());
        assert_eq!(unmasked(Level::Baseline), [""; 0]);
        let [told] = &unmasked(Level::Restricted)[..] else { panic!("one complaint") };
        assert!(told.starts_with("procMount (container"), "{told}");
    }

    #[test]
    fn older_versions_ask_for_what_they_knew() {
        let probe = json!({"containers": [{"name": "a", "livenessProbe": {"tcpSocket": {"host": "x"}}}]});
        assert!(judged(Level::Baseline, Version::Minor(33), probe).is_empty());
        let sysctl = json!({"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_rmem"}]}});
        assert_eq!(
            judged(Level::Baseline, Version::Minor(31), sysctl),
            ["forbidden sysctls (net.ipv4.tcp_rmem)"]
        );
    }
}
