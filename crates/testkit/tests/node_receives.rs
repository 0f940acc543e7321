//! What containers receive, as they see it themselves on a real containerd.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Read;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use testkit::direct::Direct;
use testkit::harness::{Harness, container, container_id, is_ready, phase, uid, waiting_reason};
use testkit::node::{AgentOptions, Containerd};
use testkit::twin::Twins;

const FOREVER: &str = "image: localhost/busybox:v1, imagePullPolicy: Never, command: [sleep, '10000']";

fn pod(name: &str, spec: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, labels: {{app: web}}, annotations: {{note: 'a b'}}}}, \
         spec: {{terminationGracePeriodSeconds: 1, {spec}}}}}"
    )
}

fn with_config(config: &str) -> Option<Harness> {
    Harness::start(
        Containerd::default(),
        AgentOptions { config: config.to_owned(), ..AgentOptions::default() },
    )
}

/// The value of a field in a file of `name: value` lines, such as /proc/1/status.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).trim().to_owned()
}

fn message(pod: &Pod, name: &str) -> String {
    let state = container(pod, name).and_then(|c| c.state.as_ref()).and_then(|s| s.waiting.as_ref());
    state.and_then(|w| w.message.clone()).unwrap_or_default()
}

#[test]
fn environment_and_downward_api() {
    let Some(h) = Harness::usual() else { return };
    let env = "env: [
        {name: EARLY, value: 'hello $(NAME)'}, {name: NAME, value: world}, {name: LATE, value: '$(NAME)-$$(NAME)'},
        {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
        {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}},
        {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}},
        {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}},
        {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}},
        {name: LABEL, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}},
        {name: NOTE, valueFrom: {fieldRef: {fieldPath: \"metadata.annotations['note']\"}}},
        {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1m}}},
        {name: MEM, valueFrom: {resourceFieldRef: {resource: requests.memory, divisor: 1Mi}}},
        {name: OTHER, valueFrom: {resourceFieldRef: {containerName: other, resource: limits.memory}}}]";
    let spec = format!(
        "containers: [
          {{name: main, image: localhost/busybox:v1, imagePullPolicy: Never, workingDir: /srv/dir,
            resources: {{requests: {{cpu: 20m, memory: 16Mi}}, limits: {{cpu: 250m, memory: 32Mi}}}},
            command: [sh, -c, 'pwd; echo $0 $1; sleep 10000', '$(NAME)'], args: ['$(LATE)'], {env}}},
          {{name: other, {FOREVER}, resources: {{limits: {{memory: 48Mi}}}}}}]"
    );
    h.apply("env", &pod("env", &spec));
    let seen = h.wait_ready("env");
    let out = h.exec("env", "main", &["env"]);
    let ip = seen.status.as_ref().unwrap().pod_ip.clone().unwrap();
    let host = h.node.address();
    for (name, value) in [
        ("EARLY", "hello $(NAME)"),
        ("LATE", "world-$(NAME)"),
        ("POD", "env-demo"),
        ("SPACE", "default"),
        ("IP", ip.as_str()),
        ("HOST", host.as_str()),
        ("NODE", "demo"),
        ("LABEL", "web"),
        ("NOTE", "a b"),
        ("CPU", "250"),
        ("MEM", "16"),
        ("OTHER", "50331648"),
        ("HOSTNAME", "env-demo"),
    ] {
        assert!(out.lines().any(|l| l == format!("{name}={value}")), "{name}={value} in {out}");
    }
    let logged = h.until("logged", || {
        Some(h.pods(&["logs", "env-demo", "-c", "main"]).1).filter(|l| l.lines().count() == 2)
    });
    assert_eq!(logged, "/srv/dir\nworld world-$(NAME)\n");
}

#[test]
fn names_hosts_and_resolver() {
    let dir = tempfile::tempdir().unwrap();
    let resolv = dir.path().join("resolv.conf");
    fs::write(&resolv, "nameserver 192.0.2.1\nsearch host.example.\noptions rotate\n").unwrap();
    let config =
        format!("clusterDNS: [192.0.2.53]\nclusterDomain: cluster.local\nresolvConf: {}\n", resolv.display());
    let Some(h) = with_config(&config) else { return };
    let one = |more: &str| format!("{more} containers: [{{name: main, {FOREVER}}}]");
    let named = "hostname: box, subdomain: sub, setHostnameAsFQDN: true, \
                 hostAliases: [{ip: 192.0.2.9, hostnames: [a.example, b.example]}],";
    let custom = "dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.7], searches: [x.example], \
                  options: [{name: ndots, value: '2'}, {name: edns0}]},";
    let more = "dnsConfig: {searches: [x.example], options: [{name: ndots, value: '1'}]},";
    let pods = [
        ("named", one(named)),
        ("plain", one("")),
        ("default", one("dnsPolicy: Default,")),
        ("custom", one(custom)),
        ("more", one(more)),
        ("host", one("hostNetwork: true,")),
        ("hostfirst", one("hostNetwork: true, dnsPolicy: ClusterFirstWithHostNet,")),
    ];
    pods.iter().for_each(|(name, spec)| h.apply(name, &pod(name, spec)));
    pods.iter().for_each(|(name, _)| drop(h.wait_ready(name)));

    let cat = |name: &str, path: &str| h.exec(name, "main", &["cat", path]);
    assert_eq!(h.exec("named", "main", &["hostname"]).trim(), "box.sub.default.svc.cluster.local");
    assert_eq!(h.exec("plain", "main", &["hostname"]).trim(), "plain-demo");
    let ip = h.get("named").unwrap().status.unwrap().pod_ip.unwrap();
    let hosts = cat("named", "/etc/hosts");
    assert!(hosts.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"), "{hosts}");
    assert!(hosts.contains(&format!("\n{ip}\tbox.sub.default.svc.cluster.local\tbox\n")), "{hosts}");
    assert!(hosts.ends_with("# Entries added by HostAliases.\n192.0.2.9\ta.example\tb.example\n"), "{hosts}");
    assert!(cat("host", "/etc/hosts").starts_with("# Kubernetes-managed hosts file (host network).\n"));

    let of_cluster = "default.svc.cluster.local svc.cluster.local cluster.local host.example";
    let of_host = "search host.example\nnameserver 192.0.2.1\noptions rotate\n";
    for (name, want) in [
        ("plain", format!("search {of_cluster}\nnameserver 192.0.2.53\noptions ndots:5\n")),
        ("default", of_host.to_owned()),
        ("custom", "search x.example\nnameserver 192.0.2.7\noptions ndots:2 edns0\n".to_owned()),
        ("more", format!("search {of_cluster} x.example\nnameserver 192.0.2.53\noptions ndots:1\n")),
        ("host", of_host.to_owned()),
        ("hostfirst", format!("search {of_cluster}\nnameserver 192.0.2.53\noptions ndots:5\n")),
    ] {
        assert_eq!(cat(name, "/etc/resolv.conf"), want, "{name}");
    }
    let status = h.get("host").unwrap().status.unwrap();
    assert_eq!(status.pod_ip, status.host_ip);

    // Another network: Pods made from now on learn of it, and one that needs what is not there waits.
    fs::remove_file(&resolv).unwrap();
    h.apply("late", &pod("late", &one("dnsPolicy: Default,")));
    let told = || {
        Some(h.pods(&["get", "late-demo", "-o", "wide"]).1).filter(|t| t.contains("FailedCreatePodSandBox"))
    };
    let told = h.until("the missing file is named", told);
    assert!(told.contains(&format!("open {}", resolv.display())), "{told}");
    fs::write(&resolv, "nameserver 192.0.2.2\n").unwrap();
    h.wait_ready("late");
    assert_eq!(cat("late", "/etc/resolv.conf"), "nameserver 192.0.2.2\n");
}

#[test]
fn who_a_container_is_and_what_it_may() {
    let Some(h) = Harness::usual() else { return };
    let seccomp = h.agent.root().join("seccomp/profiles");
    fs::create_dir_all(&seccomp).unwrap();
    let refuse = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls":
        [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}"#;
    fs::write(seccomp.join("nomkdir.json"), refuse).unwrap();
    let spec = format!(
        "securityContext: {{runAsUser: 1000, runAsGroup: 2000, supplementalGroups: [3000], fsGroup: 4000,
           seccompProfile: {{type: RuntimeDefault}}}},
         containers: [
          {{name: tight, {FOREVER}, securityContext: {{runAsNonRoot: true, allowPrivilegeEscalation: false,
             readOnlyRootFilesystem: true, capabilities: {{drop: [ALL], add: [NET_BIND_SERVICE]}}}}}},
          {{name: loose, {FOREVER}, securityContext: {{runAsUser: 0, runAsGroup: 0,
             capabilities: {{add: [NET_ADMIN], drop: [CHOWN]}}, seccompProfile: {{type: Unconfined}}}}}},
          {{name: local, {FOREVER}, securityContext: {{runAsUser: 0,
             seccompProfile: {{type: Localhost, localhostProfile: profiles/nomkdir.json}}}}}}]"
    );
    h.apply("who", &pod("who", &spec));
    h.wait_ready("who");
    let status = |name: &str| h.exec("who", name, &["cat", "/proc/1/status"]);

    let tight = status("tight");
    assert_eq!(field(&tight, "Uid"), "1000\t1000\t1000\t1000");
    assert_eq!(field(&tight, "Gid"), "2000\t2000\t2000\t2000");
    assert_eq!(field(&tight, "Groups"), "2000 3000 4000");
    assert_eq!(field(&tight, "NoNewPrivs"), "1");
    assert_eq!(field(&tight, "Seccomp"), "2");
    assert_eq!(field(&tight, "CapBnd"), "0000000000000400");
    let root = h.exec("who", "tight", &["sh", "-c", "touch /x 2>&1 || true"]);
    assert!(root.contains("Read-only file system"), "{root}");

    let loose = status("loose");
    assert_eq!((field(&loose, "Uid").as_str(), field(&loose, "Gid").as_str()), ("0\t0\t0\t0", "0\t0\t0\t0"));
    assert_eq!(field(&loose, "NoNewPrivs"), "0");
    assert_eq!(field(&loose, "Seccomp"), "0");
    let bits = u64::from_str_radix(&field(&loose, "CapEff"), 16).unwrap();
    assert_eq!((bits & 1, bits >> 12 & 1, bits >> 10 & 1), (0, 1, 1), "CHOWN, NET_ADMIN, NET_BIND: {bits:x}");

    let made = h.exec("who", "local", &["sh", "-c", "mkdir /tmp/x 2>&1; touch /y && echo rest works"]);
    assert!(made.contains("Operation not permitted") && made.contains("rest works"), "{made}");
}

#[test]
fn root_is_refused_where_it_is_not_wanted() {
    let Some(h) = Harness::usual() else { return };
    let demo = |name: &str, image: &str, more: &str| {
        format!(
            "{{name: {name}, image: 'localhost/demo:{image}', imagePullPolicy: Never, args: [sleep, forever]{more}}}"
        )
    };
    let spec = format!(
        "securityContext: {{runAsNonRoot: true}}, containers: [{}, {}, {}, {}, {}]",
        demo("root", "v1", ""),
        demo("name", "named-user", ""),
        demo("asked", "v1", ", securityContext: {runAsUser: 0}"),
        demo("number", "numeric-user", ""),
        demo(
            "missing",
            "v1",
            ", securityContext: {runAsUser: 5, seccompProfile: {type: Localhost, localhostProfile: no.json}}"
        ),
    );
    h.apply("root", &pod("root", &spec));
    let number = |p: &Pod| {
        container(p, "number").is_some_and(|c| c.state.as_ref().is_some_and(|s| s.running.is_some()))
    };
    let seen = h.wait("root", "refused", |p| {
        number(p)
            && !waiting_reason(p, "missing").is_empty()
            && waiting_reason(p, "missing") != "ContainerCreating"
    });
    let config = "CreateContainerConfigError";
    for (name, reason, words) in [
        ("root", config, "container has runAsNonRoot and image will run as root"),
        (
            "name",
            config,
            "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root",
        ),
        ("asked", config, "container's runAsUser breaks non-root policy"),
        ("missing", "CreateContainerError", "no.json"),
    ] {
        assert_eq!(waiting_reason(&seen, name), reason, "{name}: {}", message(&seen, name));
        assert!(message(&seen, name).contains(words), "{name}: {}", message(&seen, name));
    }
    assert_eq!(phase(&seen), "Pending");
    let (_, told, _) = h.pods(&["get", "root-demo", "-o", "wide"]);
    assert!(told.contains("Error: container has runAsNonRoot and image will run as root"), "{told}");
}

#[test]
fn namespaces_privileges_and_sysctls() {
    let Some(h) = Harness::usual() else { return };
    let one = |more: &str, of_container: &str| {
        format!("{more} containers: [{{name: main, {FOREVER}{of_container}}}]")
    };
    let pods = [
        ("hostpid", one("hostPID: true,", "")),
        ("hostnet", one("hostNetwork: true,", "")),
        (
            "shared",
            one("shareProcessNamespace: true,", "")
                .replace("}]", &format!("}}, {{name: second, {FOREVER}}}]")),
        ),
        ("mighty", one("", ", securityContext: {privileged: true}")),
        (
            "tuned",
            one(
                "securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}, {name: net/ipv4/ip_local_port_range, value: '2000 3000'}]},",
                "",
            ),
        ),
        ("unsafe", one("securityContext: {sysctls: [{name: kernel.msgmax, value: '100'}]},", "")),
    ];
    pods.iter().for_each(|(name, spec)| h.apply(name, &pod(name, spec)));
    h.apply("unmasked", &pod("unmasked", &one("", ", securityContext: {procMount: Unmasked}")));
    let refused = h.wait("unsafe", "refused", |p| phase(p) == "Failed");
    let status = refused.status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted")
    );
    // Only in a user namespace of its own may a Pod see all of /proc.
    let problem = h.until("a problem", || Some(h.pods(&["problems"]).1).filter(|p| p.contains("procMount")));
    assert!(problem.contains("unmasked.yaml") && h.get("unmasked").is_none(), "{problem}");
    for name in ["hostpid", "hostnet", "shared", "mighty", "tuned"] {
        h.wait_ready(name);
    }

    let agent = format!("/proc/{}/cmdline", h.agent.pid());
    assert!(h.exec("hostpid", "main", &["cat", &agent]).contains("kubelet"));
    let of_node = h.node.inside(|| fs::read_link("/proc/thread-self/ns/net").unwrap()).unwrap();
    let link = |name: &str| h.exec(name, "main", &["readlink", "/proc/self/ns/net"]).trim().to_owned();
    assert_eq!(Path::new(&link("hostnet")), of_node);
    assert_ne!(Path::new(&link("hostpid")), of_node);

    let ps = h.exec("shared", "main", &["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
    assert_eq!(ps.matches("sleep 10000").count(), 2, "{ps}");
    let first = h.exec("shared", "second", &["cat", "/proc/1/cmdline"]);
    assert!(first.contains("pause"), "{first}");
    assert!(h.exec("tuned", "main", &["cat", "/proc/1/cmdline"]).starts_with("sleep"));

    let of_agent = fs::read_to_string(format!("/proc/{}/status", h.agent.pid())).unwrap();
    let mighty = h.exec("mighty", "main", &["cat", "/proc/1/status"]);
    assert_eq!(field(&mighty, "CapEff"), field(&of_agent, "CapEff"));
    assert_eq!(field(&mighty, "Seccomp"), "0");
    let _ = h.exec(
        "mighty",
        "main",
        &["sh", "-c", "mkdir /m && mount -t tmpfs none /m && echo 1 > /proc/sys/net/ipv4/ip_forward"],
    );

    assert_eq!(h.exec("tuned", "main", &["cat", "/proc/sys/kernel/shm_rmid_forced"]).trim(), "1");
    assert_eq!(
        h.exec("tuned", "main", &["cat", "/proc/sys/net/ipv4/ip_local_port_range"]).trim(),
        "2000\t3000"
    );
    let masked = h.exec(
        "tuned",
        "main",
        &["sh", "-c", "wc -c < /proc/keys; echo 1 2>&1 > /proc/sys/kernel/x || true"],
    );
    assert!(masked.starts_with('0'), "{masked}");
}

#[test]
fn resources_reach_the_kernel() {
    let Some(h) = Harness::usual() else { return };
    let spec = format!(
        "containers: [
          {{name: some, {FOREVER}, resources: {{requests: {{cpu: 100m, memory: 16Mi}}, limits: {{cpu: 200m, memory: 32Mi}}}}}},
          {{name: free, {FOREVER}}}]"
    );
    h.apply("burst", &pod("burst", &spec));
    h.apply("effort", &pod("effort", &format!("containers: [{{name: main, {FOREVER}}}]")));
    h.wait_ready("burst");
    h.wait_ready("effort");
    let v2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let files = match v2 {
        false => [
            ("some", "cpu/cpu.shares", "102"),
            ("some", "cpu/cpu.cfs_quota_us", "20000"),
            ("some", "cpu/cpu.cfs_period_us", "100000"),
            ("some", "memory/memory.limit_in_bytes", "33554432"),
            ("free", "cpu/cpu.shares", "2"),
            ("free", "cpu/cpu.cfs_quota_us", "-1"),
        ],
        true => [
            ("some", "cpu.weight", "4"),
            ("some", "cpu.max", "20000 100000"),
            ("some", "memory.max", "33554432"),
            ("free", "cpu.weight", "1"),
            ("free", "cpu.max", "max 100000"),
            ("free", "memory.max", "max"),
        ],
    };
    // Memory and swap together are no more than memory alone, where the kernel can tell.
    let swap = ("some", "memory/memory.memsw.limit_in_bytes", "33554432");
    let swap = Some(swap).filter(|(_, file, _)| Path::new("/sys/fs/cgroup").join(file).exists());
    for (name, file, want) in files.into_iter().chain(swap) {
        let path = format!("/sys/fs/cgroup/{file}");
        assert_eq!(h.exec("burst", name, &["cat", &path]).trim(), want, "{name} {file}");
    }
    let score = |pod: &str, name: &str| -> i32 {
        h.exec(pod, name, &["cat", "/proc/1/oom_score_adj"]).trim().parse().unwrap()
    };
    assert!((2..1000).contains(&score("burst", "some")), "{}", score("burst", "some"));
    assert_eq!(score("effort", "main"), 1000);
}

#[test]
fn host_ports_reach_their_pod_and_are_taken_once() {
    let Some(h) = Harness::usual() else { return };
    // The usual network of a test has no host ports; containerd reads a changed configuration by itself.
    let conf = h.node.dir().join("cni/10-bridge.conflist");
    let text = fs::read_to_string(&conf).unwrap();
    let portmap = ", {\"type\": \"portmap\", \"backend\": \"nftables\", \"capabilities\": {\"portMappings\": true}}\n]}";
    let (head, _) = text.rsplit_once("\n]}").unwrap();
    let fresh = h.node.dir().join("cni/new");
    fs::write(&fresh, format!("{head}{portmap}")).unwrap();
    fs::rename(&fresh, &conf).unwrap();
    let spec = "containers: [{name: main, image: 'localhost/busybox:v1', imagePullPolicy: Never, \
        command: [sh, -c, 'while :; do echo over here | nc -l -p 80; done'], \
        ports: [{containerPort: 80, hostPort: 8099, protocol: TCP}]}]";
    h.apply("port", &pod("port", spec));
    h.wait_ready("port");
    let address = format!("{}:8099", h.node.address());
    let heard = h.until("heard", || {
        let reach = || {
            let mut stream = TcpStream::connect(&address).ok()?;
            let mut text = String::new();
            stream.read_to_string(&mut text).ok()?;
            Some(text)
        };
        h.node.inside(reach).unwrap()
    });
    assert_eq!(heard, "over here\n");
    h.apply("taken", &pod("taken", spec));
    let refused = h.wait("taken", "refused", |p| phase(p) == "Failed");
    assert_eq!(refused.status.unwrap().reason.as_deref(), Some("NodePorts"));
}

#[test]
fn stop_signal_and_user_namespace() {
    let Some(h) = Harness::usual() else { return };
    let out = h.node.dir().join("out");
    fs::create_dir(&out).unwrap();
    let spec = format!(
        "os: {{name: linux}}, volumes: [{{name: out, hostPath: {{path: {}}}}}],
         containers: [{{name: main, image: 'localhost/busybox:v1', imagePullPolicy: Never, lifecycle: {{stopSignal: SIGUSR1}},
           command: [sh, -c, 'trap \"echo usr1 > /out/got; exit\" USR1; trap \"echo term > /out/got; exit\" TERM; echo up > /out/up; while :; do sleep 0.1; done'],
           volumeMounts: [{{name: out, mountPath: /out}}]}}]",
        out.display()
    );
    h.apply("signal", &pod("signal", &spec));
    h.apply("mapped", &pod("mapped", &format!("hostUsers: false, containers: [{{name: main, {FOREVER}}}]")));
    h.until("listening", || out.join("up").exists().then_some(()));
    h.remove("signal");
    h.wait_gone("signal");
    // A runtime whose CRI does not know the field yet goes by the image, which says nothing: TERM.
    let got = fs::read_to_string(out.join("got")).unwrap();
    assert!(matches!(got.trim(), "usr1" | "term"), "{got}");

    let refusal = "can't set `spec.hostUsers: false`, runtime does not support user namespaces";
    let is_refused = || h.pods(&["get", "mapped-demo", "-o", "wide"]).1.contains(refusal);
    h.until("mapped or refused", || {
        (is_refused() || h.get("mapped").is_some_and(|p| is_ready(&p))).then_some(())
    });
    if is_refused() {
        assert_eq!(phase(&h.get("mapped").unwrap()), "Pending");
    } else {
        let map = h.exec("mapped", "main", &["cat", "/proc/1/uid_map"]);
        let numbers: Vec<u64> = map.split_whitespace().map(|n| n.parse().unwrap()).collect();
        assert!(matches!(numbers[..], [0, first, 65536] if first >= 65536), "{map}");
    }
    h.remove("mapped");
    h.wait_gone("mapped");
}

/// What runc is told, without the names and places that differ from Pod to Pod.
fn outline(h: &Harness, id: &str) -> serde_json::Value {
    let out = h.node.ctr().args(["containers", "info", id]).output().unwrap();
    assert!(out.status.success(), "{id}: {}", String::from_utf8_lossy(&out.stderr));
    let info: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let mut spec = info["Spec"].clone();
    let fields = spec.as_object_mut().unwrap();
    fields.remove("annotations");
    fields.remove("hostname");
    for mount in spec["mounts"].as_array_mut().unwrap() {
        mount["source"].take();
    }
    spec["linux"]["cgroupsPath"].take();
    for namespace in spec["linux"]["namespaces"].as_array_mut().unwrap() {
        namespace["path"].take();
    }
    for variable in spec["process"]["env"].as_array_mut().unwrap() {
        let name = variable.as_str().unwrap().split('=').next().unwrap().to_owned();
        *variable = name.into();
    }
    spec
}

/// The benchmark compares the two, so the runtime must be given the same work.
#[test]
fn a_twin_receives_what_the_pod_does() {
    let Some(h) = Harness::usual() else { return };
    let manifest = |name: &str| {
        pod(
            name,
            "dnsPolicy: Default, containers: [
              {name: main, image: 'localhost/demo:v1', imagePullPolicy: Never, args: [sleep, forever]}]",
        )
    };
    h.apply("one", &manifest("one"));
    let one = h.wait_ready("one");
    let order = Twins::new(&h.node, &h.node.dir().join("twins")).unwrap().order(&manifest("two")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = cri::Endpoint::parse(&h.node.endpoint()).unwrap();
        let client = cri::Client::new(endpoint, None, Duration::from_secs(60));
        let sandboxes = client.list_pod_sandboxes(None).await.unwrap();
        let own = |s: &&cri::v1::PodSandbox| s.metadata.as_ref().is_some_and(|m| m.uid == uid(&one));
        let sandbox = sandboxes.iter().find(own).unwrap();
        let direct = Direct::new(client, h.node.dir().join("direct"));
        let two = direct.carry_out(order).await.unwrap();
        assert_eq!(outline(&h, &sandbox.id), outline(&h, &two.sandbox), "sandboxes");
        let container = container_id(&one, "main").trim_start_matches("containerd://");
        assert_eq!(outline(&h, container), outline(&h, &two.container), "containers");
        direct.remove(&two, 1).await.unwrap();
    });
}

/// A number in the Pod's cgroup, whatever the version.
fn in_cgroup(h: &Harness, below: &str, controller: &str, old: &str, new: &str) -> String {
    let root = Path::new("/sys/fs/cgroup");
    let (dir, file) = match root.join("cgroup.controllers").exists() {
        true => (root.to_path_buf(), new),
        false => (root.join(controller), old),
    };
    let path = dir.join(h.node.cgroup()).join("kubepods").join(below).join(file);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).trim().to_owned()
}

#[test]
fn a_pod_is_held_to_its_limits_as_a_whole() {
    let Some(h) = with_config("podPidsLimit: 123\n") else { return };
    let both = "resources: {requests: {cpu: 100m, memory: 24Mi}, limits: {cpu: 100m, memory: 24Mi}}";
    let spec = format!("containers: [{{name: a, {FOREVER}, {both}}}, {{name: b, {FOREVER}, {both}}}]");
    h.apply("bound", &pod("bound", &spec));
    let seen = h.wait_ready("bound");
    let below = format!("pod{}", uid(&seen));
    let memory = in_cgroup(&h, &below, "memory", "memory.limit_in_bytes", "memory.max");
    assert_eq!(memory, (48 << 20).to_string());
    assert_eq!(in_cgroup(&h, &below, "pids", "pids.max", "pids.max"), "123");
    // Both containers, and the sandbox, are in it.
    let inside = |controller: &str| {
        let root = Path::new("/sys/fs/cgroup");
        let root = if root.join("cgroup.controllers").exists() { root.into() } else { root.join(controller) };
        let dir = root.join(h.node.cgroup()).join("kubepods").join(&below);
        fs::read_dir(dir).map_or(0, |all| all.flatten().filter(|e| e.path().is_dir()).count())
    };
    assert_eq!(inside("memory"), 3);
    h.remove("bound");
    h.wait_gone("bound");
    assert_eq!(inside("memory"), 0);
    assert!(!Path::new("/sys/fs/cgroup/memory").join(h.node.cgroup()).join("kubepods").join(&below).exists());
}
