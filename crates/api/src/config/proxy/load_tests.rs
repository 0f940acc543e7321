use super::*;
use crate::config::DirEntry;
use crate::config::proxy::Mode;
use std::io;
use std::path::Path;

/// One file in memory; `/etc/k` is the current directory.
struct Memory(Option<String>);

impl ReadFiles for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let here = self.0.as_ref().filter(|_| path == Path::new("/etc/k/proxy.yaml"));
        here.map(|text| text.clone().into_bytes()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn current_dir(&self) -> io::Result<PathBuf> {
        Ok("/etc/k".into())
    }
}

const HEAD: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";

fn attempt(args: &[&str], body: Option<&str>) -> Result<Outcome<Loaded>, LoadError> {
    let args: Vec<OsString> = args.iter().map(OsString::from).collect();
    load(&args, &Memory(body.map(|body| format!("{HEAD}{body}"))))
}

fn run(args: &[&str]) -> Loaded {
    match attempt(args, None) {
        Ok(Outcome::Run(loaded)) => *loaded,
        other => panic!("{other:?}"),
    }
}

fn with_file(body: &str, args: &[&str]) -> Loaded {
    let mut all = vec!["--config=proxy.yaml"];
    all.extend_from_slice(args);
    match attempt(&all, Some(body)) {
        Ok(Outcome::Run(loaded)) => *loaded,
        other => panic!("{other:?}"),
    }
}

fn mistakes(args: &[&str], body: Option<&str>) -> Vec<String> {
    match attempt(args, body) {
        Err(e) => e.0.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_words_the_defaults_hold() {
    let Loaded { config, file, not_honoured, .. } = run(&[]);
    assert_eq!(config, KubeProxyConfiguration::default());
    assert_eq!(
        (config.healthz_bind_address.as_str(), config.metrics_bind_address.as_str()),
        ("0.0.0.0:10256", "127.0.0.1:10249")
    );
    assert_eq!((config.mode(), config.oom_score_adj), (None, -999));
    assert_eq!(config.masquerade_mark(Mode::Iptables), 0x4000);
    assert_eq!((file, not_honoured), (None, Vec::<String>::new()));
}

#[test]
fn addresses_follow_the_family_and_get_their_ports() {
    let config = run(&["--bind-address=::"]).config;
    assert_eq!(
        (config.healthz_bind_address.as_str(), config.metrics_bind_address.as_str()),
        ("[::]:10256", "[::1]:10249")
    );
    let config = run(&["--healthz-bind-address=10.0.0.1", "--metrics-bind-address=fd00::1"]).config;
    assert_eq!(
        (config.healthz_bind_address.as_str(), config.metrics_bind_address.as_str()),
        ("10.0.0.1:10256", "[fd00::1]:10249")
    );
    let config = run(&["--healthz-port=0", "--metrics-port=9"]).config;
    assert_eq!(
        (config.healthz_bind_address.as_str(), config.metrics_bind_address.as_str()),
        ("", "127.0.0.1:9")
    );
    // As upstream: the metrics server cannot be turned off.
    assert_eq!(mistakes(&["--metrics-port=0"], None).len(), 1);
}

#[test]
fn a_file_overrules_the_flags_but_for_name_and_log() {
    let flags = ["--proxy-mode=ipvs", "--hostname-override=Node-1 ", "-v=4", "--vmodule=a=1"];
    let loaded = with_file("mode: iptables\nlogging: {vmodule: [{filePattern: b, verbosity: 2}]}\n", &flags);
    assert_eq!(loaded.config.mode(), Some(Mode::Iptables));
    assert_eq!(loaded.config.node_name("machine"), "node-1");
    assert_eq!(loaded.config.logging.verbosity, 4);
    let patterns: Vec<&str> = loaded.config.logging.vmodule.iter().map(|v| v.file_pattern.as_str()).collect();
    assert_eq!(patterns, ["a", "b"]);
    assert_eq!(loaded.warnings, ["--proxy-mode is overruled by the file of --config"]);
    assert_eq!(loaded.file.as_deref(), Some(Path::new("/etc/k/proxy.yaml")));
}

#[test]
fn a_zero_period_means_the_default_unless_ipvs_says_it() {
    let config = with_file("mode: ipvs\nipvs: {minSyncPeriod: 0s}\niptables: {syncPeriod: 0s}\n", &[]).config;
    assert_eq!(config.periods(Mode::Ipvs).1.to_string(), "0s");
    assert_eq!(config.periods(Mode::Iptables).0.to_string(), "30s");
}

#[test]
fn who_asks_for_a_gap_is_told_from_who_does_not() {
    let says = |body: &str, mode| with_file(body, &[]).says_min_sync_period(mode);
    assert!(!says("mode: nftables\n", Mode::Nftables));
    assert!(!says("mode: nftables\nnftables: {minSyncPeriod: 0s}\n", Mode::Nftables));
    assert!(says("mode: nftables\nnftables: {minSyncPeriod: 1s}\n", Mode::Nftables));
    assert!(!says("mode: nftables\niptables: {minSyncPeriod: 1s}\n", Mode::Nftables));
    assert!(says("iptables: {minSyncPeriod: 1s}\n", Mode::Nftables));
    assert!(says("iptables: {minSyncPeriod: 1s}\n", Mode::Iptables));
    assert!(!says("iptables: {minSyncPeriod: 1s}\n", Mode::Ipvs));
}

#[test]
fn without_a_mode_the_iptables_block_speaks_for_both() {
    let body =
        "iptables: {masqueradeAll: true, masqueradeBit: 3, syncPeriod: 10s}\nnftables: {syncPeriod: 20s}\n";
    let config = with_file(body, &[]).config;
    assert!(config.masquerades_all(Mode::Nftables));
    assert_eq!(config.masquerade_mark(Mode::Nftables), 8);
    assert_eq!(config.periods(Mode::Nftables).0.to_string(), "20s");
    let config = with_file(&format!("mode: nftables\n{body}"), &[]).config;
    assert!(!config.masquerades_all(Mode::Nftables));
    let config = run(&["--masquerade-all", "--proxy-mode=nftables", "--iptables-sync-period=5s"]).config;
    assert!(config.masquerades_all(Mode::Nftables));
    assert_eq!(config.periods(Mode::Nftables).0.to_string(), "5s");
}

#[test]
fn unknown_and_repeated_fields_are_only_warned_about() {
    let loaded = with_file("mode: iptables\nmode: nftables\nnope: 1\nconfigSyncPeriod: 1m\n", &[]);
    assert_eq!(loaded.config.mode(), Some(Mode::Nftables));
    assert_eq!(loaded.warnings.len(), 2, "{:?}", loaded.warnings);
    assert_eq!(loaded.not_honoured, ["configSyncPeriod"]);
}

#[test]
fn every_mistake_is_told_with_its_path() {
    let body = "mode: userspace\nbindAddress: x\noomScoreAdj: 2000\nclusterCIDR: 10.0.0.0/8,10.1.0.0/16\n\
                nodePortAddresses: [primary, 10.0.0.0/8]\nmetricsBindAddress: host:1\nhealthzBindAddress: '1.2.3.4:0'\n\
                iptables: {masqueradeBit: 32, syncPeriod: 1s, minSyncPeriod: 2s}\nconfigSyncPeriod: -1s\n\
                conntrack: {min: -1, udpTimeout: -1s}\nclientConnection: {burst: -1}\n\
                showHiddenMetricsForVersion: '1.2'\nlogging: {format: xml}\nfeatureGates: {Nope: true}\n";
    let found = mistakes(&["--config=proxy.yaml"], Some(body));
    let paths = [
        "mode",
        "bindAddress",
        "oomScoreAdj",
        "clusterCIDR",
        "nodePortAddresses[0]",
        "metricsBindAddress",
        "healthzBindAddress",
        "iptables.masqueradeBit",
        "iptables.syncPeriod",
        "configSyncPeriod",
        "conntrack.min",
        "conntrack.udpTimeout",
        "clientConnection.burst",
        "showHiddenMetricsForVersion",
        "logging.format",
        "featureGates.Nope",
    ];
    for path in paths {
        let hit = format!("invalid configuration: {path}: ");
        assert!(found.iter().any(|m| m.starts_with(&hit)), "{path} in {found:#?}");
    }
    let found = mistakes(&["--config=proxy.yaml"], Some("oomScoreAdj: high\nmode: [a]\n"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("/etc/k/proxy.yaml: "), "{found:?}");
}

#[test]
fn a_zero_period_on_the_command_line_is_a_mistake() {
    for flag in ["--config-sync-period", "--iptables-sync-period"] {
        let found = mistakes(&[&format!("{flag}=0s")], None);
        assert!(found.len() == 1 && found[0].contains(flag), "{found:?}");
    }
    run(&["--iptables-min-sync-period=0s"]);
}

#[test]
fn interface_modes_need_their_names() {
    for (mode, path) in [
        ("BridgeInterface", "detectLocal.bridgeInterface"),
        ("InterfaceNamePrefix", "detectLocal.interfaceNamePrefix"),
    ] {
        let found = mistakes(&[&format!("--detect-local-mode={mode}")], None);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains(path), "{found:?}");
    }
    run(&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"]);
    run(&["--detect-local-mode=NodeCIDR", "--cluster-cidr=nonsense"]);
}
