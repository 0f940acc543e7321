use super::*;
use crate::config::DirEntry;
use proptest::prelude::*;
use serde_json::{Map, json};
use std::io;

/// Files in memory; `/etc/k` is the current directory.
#[derive(Default)]
struct Memory(BTreeMap<PathBuf, Vec<u8>>);

impl Memory {
    fn with(files: &[(&str, &str)]) -> Self {
        let pairs = files.iter().map(|(p, t)| (PathBuf::from(p), t.as_bytes().to_vec()));
        Self(pairs.collect())
    }
}

impl ReadFiles for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let mut seen = BTreeMap::new();
        for path in self.0.keys() {
            if let Ok(rest) = path.strip_prefix(dir) {
                let mut parts = rest.components();
                if let Some(first) = parts.next() {
                    let name = first.as_os_str().to_string_lossy().into_owned();
                    seen.insert(name, parts.next().is_some());
                }
            }
        }
        if seen.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        // Reversed, so that the loader has to sort.
        let entries = seen.into_iter().rev();
        Ok(entries.map(|(name, is_dir)| DirEntry { name, is_dir }).collect())
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok("/etc/k".into())
    }
}

const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

fn attempt(args: &[&str], files: &[(&str, &str)]) -> Result<Outcome<Loaded>, LoadError> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    load(&args, &Memory::with(files))
}

fn run(args: &[&str], files: &[(&str, &str)]) -> Loaded {
    match attempt(args, files) {
        Ok(Outcome::Run(loaded)) => *loaded,
        Ok(other) => panic!("{other:?}"),
        Err(e) => panic!("{e}"),
    }
}

fn with_config(body: &str, args: &[&str]) -> Loaded {
    let text = format!("{HEAD}{body}");
    let mut all = vec!["--config=/etc/kubelet.yaml"];
    all.extend_from_slice(args);
    run(&all, &[("/etc/kubelet.yaml", &text)])
}

fn errors(args: &[&str], files: &[(&str, &str)]) -> Vec<String> {
    match attempt(args, files) {
        Err(e) => e.0.iter().map(ToString::to_string).collect(),
        Ok(other) => panic!("{other:?}"),
    }
}

fn config_errors(body: &str) -> Vec<String> {
    let text = format!("{HEAD}{body}");
    errors(&["--config=/etc/k.yaml"], &[("/etc/k.yaml", &text)])
}

#[test]
fn the_two_baselines() {
    let legacy = run(&[], &[]).config;
    assert!(legacy.authentication.anonymous.enabled);
    assert!(!legacy.authentication.webhook.enabled);
    assert_eq!(legacy.authorization.mode, "AlwaysAllow");
    assert_eq!(legacy.read_only_port, 10255);
    assert!(legacy.eviction_hard.is_empty());

    let file = with_config("", &[]).config;
    assert!(!file.authentication.anonymous.enabled);
    assert!(file.authentication.webhook.enabled);
    assert_eq!(file.authorization.mode, "Webhook");
    assert_eq!(file.read_only_port, 0);
    assert_eq!(file.eviction_hard.len(), 5);
    assert_eq!(file.eviction_hard["memory.available"], "100Mi");
    let mut without = file;
    without.eviction_hard.clear();
    assert_eq!(without, KubeletConfiguration::default());
}

#[test]
fn only_a_dropin_directory_keeps_the_legacy_baseline() {
    let text = format!("{HEAD}maxPods: 7\n");
    let loaded = run(&["--config-dir=d"], &[("/etc/k/d/a.conf", &text)]);
    assert_eq!((loaded.config.max_pods, loaded.config.read_only_port), (7, 10255));
    assert!(loaded.config.authentication.anonymous.enabled);
}

#[test]
fn flags_win_over_dropins_over_the_file() {
    let files = [
        (
            "/etc/k/c.yaml",
            format!("{HEAD}maxPods: 1\nport: 1001\nhealthzPort: 1003\nclusterDNS: [1.1.1.1]\n"),
        ),
        ("/etc/k/d/10.conf", format!("{HEAD}maxPods: 2\nport: 1002\nhealthzPort: 1004\n")),
        ("/etc/k/d/20.conf", format!("{HEAD}healthzPort: 1005\n")),
        ("/etc/k/d/sub/05.conf", format!("{HEAD}healthzPort: 1006\n")),
        ("/etc/k/d/README", "not read".to_owned()),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (*p, t.as_str())).collect();
    let args = [
        "--config=c.yaml",
        "--config-dir=d",
        "--max-pods=3",
        "--cluster-dns=8.8.8.8",
        "--cluster-dns=9.9.9.9",
    ];
    let loaded = run(&args, &files);
    let c = &loaded.config;
    assert_eq!((c.max_pods, c.port, c.healthz_port), (3, 1002, 1006));
    assert_eq!(c.cluster_dns, ["8.8.8.8", "9.9.9.9"]);
    assert_eq!(loaded.skipped, [PathBuf::from("/etc/k/d/README")]);
}

#[test]
fn dropins_merge_as_rfc_7386_onto_the_defaulted_base() {
    let base = format!("{HEAD}clusterDNS: [1.1.1.1, 2.2.2.2]\nkubeReserved: {{cpu: 1, memory: 1Gi}}\nhealthzPort: 1\nsyncFrequency: 5s\n")
        .replace("cpu: 1,", "cpu: '1',");
    let patch = format!(
        "{HEAD}clusterDNS: [3.3.3.3]\nkubeReserved: {{memory: null, pid: '9'}}\nhealthzPort: null\nsyncFrequency: null\nevictionHard: {{memory.available: 1Gi}}\nnonsense: 1\n"
    );
    let c = run(&["--config=/c", "--config-dir=/d"], &[("/c", &base), ("/d/x.conf", &patch)]);
    let told = |w: &String| w.contains("nonsense");
    assert!(!c.warnings.iter().any(told), "unknown fields in a drop-in are silent: {:?}", c.warnings);
    let c = c.config;
    assert_eq!(c.cluster_dns, ["3.3.3.3"]);
    assert_eq!(json!(c.kube_reserved), json!({"cpu": "1", "pid": "9"}));
    assert_eq!((c.healthz_port, c.sync_frequency.to_string().as_str()), (10248, "1m0s"));
    assert_eq!(c.eviction_hard.len(), 5, "a drop-in adds to the built-in thresholds");
    assert_eq!(c.eviction_hard["memory.available"], "1Gi");
}

#[test]
fn eviction_hard_in_the_file_replaces_or_merges() {
    let c = with_config("evictionHard: {memory.available: 1Gi}\n", &[]).config;
    assert_eq!(c.eviction_hard.len(), 1);
    let c = with_config("evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n", &[])
        .config;
    assert_eq!((c.eviction_hard.len(), c.eviction_hard["memory.available"].as_str()), (5, "1Gi"));
    let c = with_config("", &["--eviction-hard=nodefs.available<5%"]).config;
    assert_eq!(json!(c.eviction_hard), json!({"nodefs.available": "5%"}));
}

#[test]
fn zero_means_default_only_where_upstream_cannot_tell() {
    let c = with_config("port: 0\nsyncFrequency: 0s\nhealthzPort: 0\nregistryPullQPS: 0\nregistryBurst: 0\nresolvConf: ''\nenforceNodeAllocatable: []\n", &[]).config;
    assert_eq!((c.port, c.registry_burst), (10250, 10));
    assert_eq!(c.sync_frequency.to_string(), "1m0s");
    assert_eq!((c.healthz_port, c.registry_pull_qps), (0, 0));
    assert_eq!(c.resolv_conf, "");
    assert!(c.enforce_node_allocatable.is_empty());
    let c = with_config("", &["--port=4", "--sync-frequency=0"]).config;
    assert_eq!((c.port, c.sync_frequency.as_nanos()), (4, 0), "a flag is taken as it stands");
}

#[test]
fn dependent_defaults() {
    let c = with_config("nodeStatusUpdateFrequency: 7s\n", &[]).config;
    assert_eq!(c.node_status_report_frequency.to_string(), "7s");
    let c = with_config("maxParallelImagePulls: 2\n", &[]).config;
    assert!(!c.serialize_image_pulls);
    let c = with_config("maxParallelImagePulls: 1\npodPidsLimit: -7\n", &[]).config;
    assert!(c.serialize_image_pulls);
    assert_eq!(c.pod_pids_limit, -1);
    let c = with_config(
        "featureGates: {KubeletCrashLoopBackOffMax: false, KubeletEnsureSecretPulledImages: false}\n",
        &[],
    )
    .config;
    assert_eq!(c.crash_loop_back_off.max_container_restart_period, None);
    assert_eq!(c.image_pull_credentials_verification_policy, "");
}

#[test]
fn relative_paths_start_at_the_file() {
    let text = format!(
        "{HEAD}staticPodPath: manifests\nresolvConf: ../r.conf\nauthentication: {{x509: {{clientCAFile: ./pki/ca.crt}}}}\n"
    );
    let files = [("/etc/k/sub/c.yaml", text.as_str())];
    let c = run(&["--config=sub/c.yaml"], &files).config;
    assert_eq!(c.static_pod_path, "/etc/k/sub/manifests");
    assert_eq!(c.resolv_conf, "/etc/k/r.conf");
    assert_eq!(c.authentication.x509.client_ca_file, "/etc/k/sub/pki/ca.crt");
    assert_eq!(c.pod_logs_dir, "/var/log/pods");
    let patch = format!("{HEAD}staticPodPath: other\n");
    let files = [("/c", HEAD), ("/d/a.conf", patch.as_str())];
    let c = run(&["--config=/c", "--config-dir=/d"], &files).config;
    assert_eq!(c.static_pod_path, "other", "paths in drop-ins are left alone");
}

#[test]
fn unknown_and_repeated_fields_only_warn() {
    let loaded = with_config("maxPods: 1\nmaxPodz: 2\nlogging: {colour: red}\nmaxPods: 3\n", &[]);
    assert_eq!(loaded.config.max_pods, 3);
    let text = loaded.warnings.join("\n");
    for want in ["duplicate key \"maxPods\"", "unknown field \"maxPodz\"", "unknown field \"logging.colour\""]
    {
        assert!(text.contains(want), "{text}");
    }
}

#[test]
fn gates_merge_by_name() {
    let loaded = with_config(
        "featureGates: {EventedPLEG: true, EnvFiles: false}\n",
        &["--feature-gates=EnvFiles=true,MemoryQoS=true"],
    );
    assert_eq!(
        json!(loaded.config.feature_gates),
        json!({"EventedPLEG": true, "EnvFiles": true, "MemoryQoS": true})
    );
    assert!(loaded.gates.enabled("EventedPLEG") && loaded.gates.enabled("EnvFiles"));
}

#[test]
fn every_mistake_is_reported_with_its_path() {
    let text = config_errors(
        "port: many\nhealthzPort: 3000000000\nsyncFrequency: 10\nclusterDNS: 1.1.1.1\nauthentication: yes\nkubeReserved: {cpu: 1}\nlogging: {verbosity: -1}\nreservedMemory: [{numaNode: x}]\n",
    );
    let want = [
        "/etc/k.yaml: authentication: expected an object, found a boolean",
        "/etc/k.yaml: clusterDNS: expected a list, found a string",
        "/etc/k.yaml: healthzPort: 3000000000 is not an integer between -2147483648 and 2147483647",
        "/etc/k.yaml: kubeReserved[cpu]: expected a string, found a number",
        "/etc/k.yaml: logging.verbosity: -1 is not an integer between 0 and 4294967295",
        "/etc/k.yaml: port: expected an integer, found a string",
        "/etc/k.yaml: syncFrequency: expected a duration such as \"1m30s\", found a number",
    ];
    assert_eq!(&text[..want.len()], want);
    assert!(text[want.len()].starts_with("/etc/k.yaml: reservedMemory[0]: invalid type"), "{text:?}");

    let text = config_errors(
        "maxPods: -1\nimageGCLowThresholdPercent: 90\nfeatureGates: {Nope: true, NodeSwap: false}\n",
    );
    assert_eq!(text.len(), 4, "{text:?}");
    assert!(text.iter().all(|t| t.starts_with("invalid configuration: ")), "{text:?}");
    assert!(text.iter().any(|t| t.contains("maxPods: -1 must be at least 0 (flag --max-pods)")));

    let text = errors(
        &["--node-labels=kubernetes.io/x=1", "--cloud-provider=aws", "--port=0", "--register-with-taints=x"],
        &[],
    );
    assert_eq!(text.len(), 4, "{text:?}");
}

#[test]
fn mistakes_of_kind_and_of_range_are_reported_together_from_all_files() {
    let files = [
        (
            "/c",
            format!(
                "{HEAD}port: many\nmaxPods: -1\nevictionSoftGracePeriod: 5\nevictionSoft: {{memory.available: 1Gi}}\n"
            ),
        ),
        ("/d/1.conf", format!("{HEAD}healthzPort: x\n")),
        ("/d/2.conf", "nothing".to_owned()),
        ("/d/3.conf", format!("{HEAD}oomScoreAdj: 2000\n")),
    ];
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (*p, t.as_str())).collect();
    let text = errors(&["--config=/c", "--config-dir=/d", "--cloud-provider=x"], &files);
    let want = [
        "invalid configuration: --cloud-provider: \"x\" must be empty or \"external\"",
        "/c: evictionSoftGracePeriod: expected an object, found a number",
        "/c: port: expected an integer, found a string",
        "/d/1.conf: healthzPort: expected an integer, found a string",
        "decode /d/2.conf: the document is not an object",
        "invalid configuration: maxPods: -1 must be at least 0 (flag --max-pods)",
        "invalid configuration: oomScoreAdj: 2000 must be between -1000 and 1000, inclusive (flag --oom-score-adj)",
    ];
    assert_eq!(text, want, "and nothing that follows from a mistake");
    let text = errors(&["--config-dir=/none", "--max-pods=-1"], &[]);
    assert_eq!(text.len(), 2, "{text:?}");
}

#[test]
fn unknown_fields_inside_lists_warn_too() {
    let loaded = with_config("registerWithTaints: [{key: a, effect: NoSchedule, efect: x}]\n", &[]);
    assert!(
        loaded.warnings[0].contains("unknown field \"registerWithTaints[0].efect\""),
        "{:?}",
        loaded.warnings
    );
}

#[test]
fn unreadable_and_foreign_files_are_fatal() {
    type Row<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], &'a str);
    let rows: &[Row<'_>] = &[
        (&["--config=/none"], &[], "read /none: "),
        (&["--config=/c"], &[("/c", "")], "decode /c: the file is empty"),
        (&["--config=/c"], &[("/c", "# nothing\n")], "decode /c: the file is empty"),
        (&["--config=/c"], &[("/c", "a: [")], "decode /c: parse: "),
        (&["--config=/c"], &[("/c", "[]")], "decode /c: the document is not an object"),
        (&["--config=/c"], &[("/c", "kind: KubeletConfiguration")], "decode /c: apiVersion \"\""),
        (&["--config=/c"], &[("/c", "apiVersion: v1\nkind: Pod")], "decode /c: apiVersion \"v1\""),
        (&["--config=/c"], &[("/c", "a: 1\n---\nb: 2\n")], "decode /c: more than one document"),
        (&["--config-dir=/d"], &[], "read /d: "),
        (&["--config-dir=/d"], &[("/d/a.conf", "")], "decode /d/a.conf: the file is empty"),
        (&["--config-dir=/d"], &[("/d/a.conf", "maxPods: 1")], "decode /d/a.conf: apiVersion"),
        (&["--nope"], &[], "unknown flag: --nope"),
        (&["run"], &[], "unexpected argument \"run\""),
    ];
    for (args, files, want) in rows {
        let text = errors(args, files);
        assert!(text.len() == 1 && text[0].starts_with(want), "{args:?}: {text:?}");
    }
}

#[test]
fn help_and_version_come_first_but_after_parsing() {
    assert!(matches!(attempt(&["--help", "--config=/none"], &[]), Ok(Outcome::Help(_))));
    assert!(matches!(attempt(&["-h"], &[]), Ok(Outcome::Help(_))));
    assert!(matches!(attempt(&["--version"], &[]), Ok(Outcome::Version)));
    assert!(attempt(&["--help", "--nope"], &[]).is_err());
    let text = help();
    for row in FLAGS {
        assert!(text.contains(&format!("--{}", row.flag.name)));
    }
}

#[test]
fn settings_not_acted_on_are_named() {
    let loaded = with_config(
        "rotateCertificates: true\nclusterDomain: a\nauthentication: {webhook: {enabled: false}}\n",
        &["--kubeconfig=/k", "--max-pods=3", "--volume-plugin-dir=/a"],
    );
    assert_eq!(loaded.not_honoured, ["--volume-plugin-dir"]);
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    let loaded = with_config("kernelMemcgNotification: true\nfeatureGates: {PodsAPI: true}\n", &[]);
    assert_eq!(loaded.not_honoured, ["featureGates.PodsAPI"]);
    assert!(
        loaded.warnings[0].starts_with("kernelMemcgNotification is honoured in part: "),
        "{:?}",
        loaded.warnings
    );
}

#[test]
fn what_kubeadm_and_the_node_suite_pass_is_taken() {
    let kubeadm = "address: 0.0.0.0\nauthentication:\n  anonymous: {enabled: false}\n  webhook: {cacheTTL: 0s, enabled: true}\n  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}\nauthorization:\n  mode: Webhook\n  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}\ncgroupDriver: systemd\nclusterDNS: [10.96.0.10]\nclusterDomain: cluster.local\ncontainerRuntimeEndpoint: \"\"\ncpuManagerReconcilePeriod: 0s\ncrashLoopBackOff: {}\nevictionPressureTransitionPeriod: 0s\nhealthzBindAddress: 127.0.0.1\nhealthzPort: 10248\nlogging:\n  flushFrequency: 0\n  options: {json: {infoBufferSize: \"0\"}, text: {infoBufferSize: \"0\"}}\n  verbosity: 0\nmemorySwap: {}\nnodeStatusReportFrequency: 0s\nrotateCertificates: true\nruntimeRequestTimeout: 0s\nshutdownGracePeriod: 0s\nstaticPodPath: /etc/kubernetes/manifests\nstreamingConnectionIdleTimeout: 0s\nsyncFrequency: 0s\nvolumeStatsAggPeriod: 0s\n";
    let loaded = with_config(
        kubeadm,
        &[
            "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
            "--container-runtime-endpoint=unix:///var/run/containerd/containerd.sock",
            "--register-with-taints=a=b:NoSchedule",
            "--hostname-override=Node-1",
        ],
    );
    assert_eq!(loaded.not_honoured, Vec::<String>::new());
    assert_eq!(loaded.config.sync_frequency.to_string(), "1m0s");
    assert_eq!(loaded.config.logging.flush_frequency.to_string(), "5s");
    assert_eq!(loaded.config.register_with_taints[0].key, "a");
    let e2e = run(
        &[
            "--kubeconfig",
            "/k",
            "--root-dir",
            "/var/lib/kubelet",
            "--v",
            "4",
            "--feature-gates",
            "EventedPLEG=false",
            "--hostname-override",
            "n",
            "--container-runtime-endpoint",
            "unix:///run/containerd/containerd.sock",
            "--image-service-endpoint",
            "unix:///i.sock",
            "--runtime-cgroups=/system.slice/containerd.service",
            "--housekeeping_interval=5s",
            "--boot_id_file=/x",
            "-storage-driver-db",
            "cadvisor",
        ],
        &[],
    );
    assert_eq!(e2e.config.logging.verbosity, 4);
    assert_eq!(e2e.config.image_endpoint(), "unix:///i.sock");
    assert_eq!(e2e.flags.housekeeping_interval.to_string(), "5s");
}

#[test]
fn the_effective_configuration_loads_as_itself() {
    let loaded = with_config(
        "maxPods: 9\nevictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m}\ntracing: {samplingRatePerMillion: 3}\nuserNamespaces: {idsPerPod: 131072}\n",
        &["--seccomp-default"],
    );
    assert!(loaded.config.seccomp_default);
    let text = crate::yaml::from_value_to_yaml(&loaded.config.to_v1beta1());
    let again = run(&["--config=/c"], &[("/c", &text)]);
    assert_eq!(again.config, loaded.config);
    let known = |w: &String| w.contains("is honoured in part");
    assert!(again.warnings.iter().all(known), "{:?}", again.warnings);
}

// --- malformed input ---

/// Whether a path is a field's, inside a field, or a section that holds fields.
fn names_a_field(path: &str) -> bool {
    let at_or_below = |outer: &str, inner: &str| {
        let rest = inner.strip_prefix(outer);
        rest.is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']))
    };
    let matches = |f: &doc::Field| at_or_below(f.path, path) || at_or_below(path, f.path);
    FIELDS.iter().any(matches)
}

static DEFAULT_TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
    crate::yaml::from_value_to_yaml(&KubeletConfiguration::default().to_v1beta1())
});

/// A value of any wrong or right kind, some of them huge.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        "[-0-9.]{0,30}(s|m|h|Mi|Gi|%|e99|)".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-zA-Z.]{0,10}", inner, 0..3)
                .prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A few fields get arbitrary values: either the configuration is valid, or every error names a
    /// field of the table (a dependency may name the other field of a pair) or the file.
    #[test]
    fn malformed_values_are_errors_that_name_the_field(
        picks in prop::collection::vec((0..FIELDS.len(), any_value()), 1..4), as_yaml in any::<bool>()
    ) {
        let mut doc = Map::new();
        doc.insert("apiVersion".into(), API_VERSION.into());
        doc.insert("kind".into(), KIND.into());
        for (i, value) in picks {
            doc::set(&mut doc, FIELDS[i].path, value);
        }
        let doc = Value::Object(doc);
        let text = if as_yaml { crate::yaml::from_value_to_yaml(&doc) } else { doc.to_string() };
        match attempt(&["--config=/c"], &[("/c", &text)]) {
            Ok(Outcome::Run(loaded)) => {
                prop_assert!(matches!(loaded.config.to_v1beta1(), Value::Object(_)));
            }
            Ok(other) => prop_assert!(false, "{other:?}"),
            Err(e) => for error in e.0 {
                let named = match &error {
                    ConfigError::InFile { error, .. } | ConfigError::Field(error) => names_a_field(&error.path),
                    ConfigError::Decode { path, .. } => path == "/c",
                    _ => false,
                };
                prop_assert!(named, "{error} does not name a field\n{text}");
            },
        }
    }

    /// Text with bytes cut, doubled and replaced never panics and, when refused, says where.
    #[test]
    fn mutated_text_never_panics(cut in any::<prop::sample::Index>(), len in 0usize..40, insert in ".{0,6}", byte in any::<u8>(), dropin in any::<bool>()) {
        let mut bytes = DEFAULT_TEXT.clone().into_bytes();
        let at = cut.index(bytes.len());
        let end = (at + len).min(bytes.len());
        let mut patch = insert.into_bytes();
        patch.push(byte);
        bytes.splice(at..end, patch);
        let (flag, path) = if dropin { ("--config-dir=/d", "/d/a.conf") } else { ("--config=/c", "/c") };
        let files = Memory([(PathBuf::from(path), bytes)].into());
        if let Err(e) = load(&[OsString::from(flag)], &files) {
            prop_assert!(!e.0.is_empty() && !e.to_string().is_empty());
        }
    }

    #[test]
    fn any_command_line_is_an_answer(args in prop::collection::vec(prop_oneof![
        (0..FLAGS.len(), "[-a-z0-9=,:<./]{0,10}").prop_map(|(i, v)| format!("--{}={v}", FLAGS[i].flag.name)),
        "-{0,2}[a-z-]{0,10}",
    ], 0..5)) {
        let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
        let _ = load(&args, &Memory::default());
    }
}
