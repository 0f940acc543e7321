//! From arguments and a file to one effective configuration. A file is read strictly, as upstream does: a field that nobody
//! knows is a mistake.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use base::duration::GoDuration;
use base::flags::{self, Flag, FlagType, Parsed};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::types::{API_VERSION, KIND, KubeSchedulerConfiguration, Plugins, Profile, SchedulerFlags};
use super::{PluginArgs, ScoringStrategy, extender};
use crate::config::logging::read_vmodule;
use crate::config::serving::Serving;
use crate::config::{ConfigError, FieldError, LoadError, Logging, Outcome, ReadFiles, file};
use crate::yaml::{self, DuplicateKeys};

/// A configuration that passed validation.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: KubeSchedulerConfiguration,
    pub flags: SchedulerFlags,
    pub warnings: Vec<String>,
    /// Settings the user made that this build does not act on yet.
    pub not_honoured: Vec<String>,
}

/// Where upstream's answers.
const PORT: u16 = 10259;

const fn flag(name: &'static str, kind: FlagType, default: &'static str, help: &'static str) -> Flag {
    Flag::new(name, kind, default, help)
}

/// Every flag. Names are kube-scheduler's.
#[rustfmt::skip]
pub const FLAGS: &[Flag] = &[
    flag("help", FlagType::Bool, "false", "Print this text and exit.").short('h'),
    flag("version", FlagType::Bool, "false", "Print the version and exit."),
    flag("config", FlagType::Text, "", "The configuration file. It replaces --kubeconfig, --kube-api-* and --profiling."),
    flag("write-config-to", FlagType::Text, "", "Write the effective configuration to this file and exit."),
    flag("master", FlagType::Text, "", "The API server's address; wins over the kubeconfig's."),
    flag("kubeconfig", FlagType::Text, "", "The kubeconfig file; without it and --master, the credentials of a Pod are used."),
    flag("kube-api-qps", FlagType::Float, "50", "Requests to the API server a second."),
    flag("kube-api-burst", FlagType::Int32, "100", "Requests to the API server in a burst."),
    flag("kube-api-content-type", FlagType::Text, "application/vnd.kubernetes.protobuf", "Content type of requests to the API server."),
    flag("bind-address", FlagType::Ip, "0.0.0.0", "The address to serve on."),
    flag("secure-port", FlagType::Int32, "10259", "The port to serve HTTPS on; 0 for none."),
    flag("leader-elect", FlagType::Bool, "true", "Work only while holding the lease."),
    flag("leader-elect-lease-duration", FlagType::Duration, "15s", "How long a lease holds that is not renewed."),
    flag("leader-elect-renew-deadline", FlagType::Duration, "10s", "How long the holder tries to renew before it gives up."),
    flag("leader-elect-retry-period", FlagType::Duration, "2s", "Between two attempts to take or renew the lease."),
    flag("leader-elect-resource-lock", FlagType::Text, "leases", "What is locked: leases."),
    flag("leader-elect-resource-name", FlagType::Text, "kube-scheduler", "The name of the lease."),
    flag("leader-elect-resource-namespace", FlagType::Text, "kube-system", "The namespace of the lease."),
    flag("pod-max-in-unschedulable-pods-duration", FlagType::Duration, "5m0s", "After this an unschedulable Pod is tried again though nothing happened."),
    flag("profiling", FlagType::Bool, "true", "Serve /debug/pprof."),
    flag("contention-profiling", FlagType::Bool, "true", "Profile contended locks."),
    flag("feature-gates", FlagType::BoolMap, "", "Gates as name=true, comma separated."),
    flag("authentication-kubeconfig", FlagType::Text, "", "A kubeconfig for asking who a client is."),
    flag("authorization-kubeconfig", FlagType::Text, "", "A kubeconfig for asking what a client may."),
    flag("authentication-skip-lookup", FlagType::Bool, "false", "Do not look for the cluster's authorities."),
    flag("authorization-always-allow-paths", FlagType::List, "/healthz,/readyz,/livez", "Paths that anybody may read."),
    flag("client-ca-file", FlagType::Text, "", "Authorities (PEM) whose client certificates are believed."),
    flag("tls-cert-file", FlagType::Text, "", "The certificate (PEM) to show."),
    flag("tls-private-key-file", FlagType::Text, "", "The key (PEM) of --tls-cert-file."),
    flag("cert-dir", FlagType::Text, "", "Where certificates are kept."),
    flag("tls-min-version", FlagType::Text, "", "The oldest version of TLS that is spoken."),
    flag("tls-cipher-suites", FlagType::List, "", "Cipher suites that may be used."),
    flag("tls-curve-preferences", FlagType::List, "", "Numbers of key exchanges that may be used."),
    flag("authentication-tolerate-lookup-failure", FlagType::Bool, "true", "Go on where the cluster's authorities cannot be looked up."),
    flag("authentication-token-webhook-cache-ttl", FlagType::Duration, "10s", "How long it is remembered whose a token is."),
    flag("authorization-webhook-cache-authorized-ttl", FlagType::Duration, "10s", "How long it is remembered that somebody may."),
    flag("authorization-webhook-cache-unauthorized-ttl", FlagType::Duration, "10s", "How long it is remembered that somebody may not."),
    flag("logging-format", FlagType::Text, "text", "text or json."),
    flag("v", FlagType::Uint32, "0", "How much to log; 0 to 10.").short('v'),
    flag("vmodule", FlagType::Raw("pattern=N,..."), "", "Verbosity per source file, text format only."),
];

/// Flags that are taken and that nothing acts on yet.
const NOT_YET: &[&str] = &["feature-gates", "profiling", "contention-profiling"];

/// Flags that a file replaces.
const REPLACED: &[&str] = &[
    "kubeconfig",
    "kube-api-qps",
    "kube-api-burst",
    "kube-api-content-type",
    "profiling",
    "contention-profiling",
];

/// Reads everything and reports every mistake it can.
pub fn load(args: &[OsString], files: &dyn ReadFiles) -> Result<Outcome<Loaded>, LoadError> {
    let parsed = flags::parse(FLAGS, args.iter().cloned())
        .map_err(|errors| LoadError(errors.into_iter().map(ConfigError::Flag).collect()))?;
    let asked = |name| parsed.values.get(name) == Some(&Value::Bool(true));
    if asked("help") {
        return Ok(Outcome::Help(help()));
    }
    if asked("version") {
        return Ok(Outcome::Version);
    }
    let mut warnings = parsed.warnings.clone();
    let text = |name: &str| parsed.values.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let path = text("config");
    let mut config = match path.is_empty() {
        true => KubeSchedulerConfiguration::default(),
        false => read_file(files, &path)?,
    };
    for name in REPLACED.iter().filter(|name| !path.is_empty() && parsed.values.contains_key(**name)) {
        warnings.push(format!("--{name} is overruled by the file of --config"));
    }
    let mut errors = lay_over(&mut config, &parsed, path.is_empty());
    let mut logging = Logging { format: "text".to_owned(), ..Logging::default() };
    logging.verbosity = parsed.values.get("v").and_then(Value::as_u64).unwrap_or(0) as u32;
    if let Some(format) = parsed.values.get("logging-format").and_then(Value::as_str) {
        logging.format = format.to_owned();
    }
    if let Some(Value::Array(texts)) = parsed.values.get("vmodule") {
        match read_vmodule(texts.iter().filter_map(Value::as_str)) {
            Ok(value) => logging.vmodule = serde_json::from_value(value).unwrap_or_default(),
            Err(why) => errors.push(FieldError::new("--vmodule", why)),
        }
    }
    errors.extend(complete(&mut config));
    if !errors.is_empty() {
        return Err(LoadError(errors.into_iter().map(ConfigError::Field).collect()));
    }
    let serving = Serving::read(&parsed.values, PORT).map_err(|why| {
        let (flag, why) = why.split_once(": ").unwrap_or(("flags", &why));
        LoadError(vec![ConfigError::Field(FieldError::new(flag, why))])
    })?;
    let max_unschedulable = parsed.values.get("pod-max-in-unschedulable-pods-duration");
    let flags = SchedulerFlags {
        master: text("master"),
        write_config_to: text("write-config-to"),
        bind_address: parsed
            .values
            .get("bind-address")
            .and_then(Value::as_str)
            .unwrap_or("0.0.0.0")
            .to_owned(),
        secure_port: parsed
            .values
            .get("secure-port")
            .and_then(Value::as_u64)
            .and_then(|p| p.try_into().ok())
            .unwrap_or(PORT),
        serving,
        pod_max_in_unschedulable_pods: max_unschedulable
            .and_then(duration)
            .unwrap_or(GoDuration::from_secs(300)),
        logging,
        values: parsed.values.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect(),
    };
    let not_honoured: Vec<String> = NOT_YET
        .iter()
        .filter(|name| parsed.values.contains_key(**name))
        .map(|name| format!("--{name}"))
        .collect();
    Ok(Outcome::Run(Box::new(Loaded { config, flags, warnings, not_honoured })))
}

/// The text of `--help`.
#[must_use]
pub fn help() -> String {
    let intro = "kube-scheduler finds a node for every Pod that has none.\n\n\
                 Usage:\n  kube-scheduler [flags]\n\nFlags:\n";
    format!("{intro}{}", flags::render_help(FLAGS, 100))
}

fn duration(value: &Value) -> Option<GoDuration> {
    serde_json::from_value(value.clone()).ok()
}

fn read_file(files: &dyn ReadFiles, path: &str) -> Result<KubeSchedulerConfiguration, LoadError> {
    let one = |error: ConfigError| LoadError(vec![error]);
    let bytes = file::read(files, Path::new(path)).map_err(one)?;
    let value = yaml::to_value(&bytes, DuplicateKeys::Reject);
    let doc = file::expect_kind(path, value, API_VERSION, KIND).map_err(one)?;
    let mut doc = doc;
    file::drop_nulls(&mut doc);
    serde_json::from_value(Value::Object(doc))
        .map_err(|e| one(ConfigError::Decode { path: path.to_owned(), reason: e.to_string() }))
}

/// What the command line says.
fn lay_over(config: &mut KubeSchedulerConfiguration, parsed: &Parsed, without_file: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let election = &mut config.leader_election;
    for (name, value) in &parsed.values {
        let text = || value.as_str().unwrap_or_default().to_owned();
        match *name {
            "leader-elect" => election.leader_elect = value.as_bool().unwrap_or(true),
            "leader-elect-lease-duration" => {
                election.lease_duration = duration(value).unwrap_or(election.lease_duration)
            }
            "leader-elect-renew-deadline" => {
                election.renew_deadline = duration(value).unwrap_or(election.renew_deadline)
            }
            "leader-elect-retry-period" => {
                election.retry_period = duration(value).unwrap_or(election.retry_period)
            }
            "leader-elect-resource-lock" => election.resource_lock = text(),
            "leader-elect-resource-name" => election.resource_name = text(),
            "leader-elect-resource-namespace" => election.resource_namespace = text(),
            "kubeconfig" if without_file => config.client_connection.kubeconfig = text(),
            "kube-api-qps" if without_file => config.client_connection.qps = value.as_f64().unwrap_or(50.0),
            "kube-api-burst" if without_file => {
                config.client_connection.burst =
                    value.as_i64().and_then(|b| b.try_into().ok()).unwrap_or(100);
            }
            "secure-port" if !value.as_i64().is_some_and(|p| (0..=65535).contains(&p)) => {
                errors.push(FieldError::new("--secure-port", "must be between 0 and 65535, inclusive"));
            }
            _ => {}
        }
    }
    errors
}

/// Fills in what is left, and tells what is wrong.
fn complete(config: &mut KubeSchedulerConfiguration) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut fail = |path: String, why: String| errors.push(FieldError::new(path, why));
    if config.parallelism <= 0 {
        fail("parallelism".into(), "should be an integer value greater than zero".into());
    }
    if !(0..=100).contains(&config.percentage_of_nodes_to_score) {
        fail("percentageOfNodesToScore".into(), "not in valid range [0-100]".into());
    }
    if config.pod_initial_backoff_seconds <= 0 {
        fail("podInitialBackoffSeconds".into(), "must be greater than 0".into());
    }
    if config.pod_max_backoff_seconds < config.pod_initial_backoff_seconds {
        fail(
            "podMaxBackoffSeconds".into(),
            "must be greater than or equal to PodInitialBackoffSeconds".into(),
        );
    }
    if config.leader_election.leader_elect && config.leader_election.resource_lock != "leases" {
        fail("leaderElection.resourceLock".into(), "resourceLock value must be \"leases\"".into());
    }
    if config.profiles.is_empty() {
        config.profiles.push(Profile::default());
    }
    let managed = config.extenders.iter().flat_map(|e| &e.managed_resources);
    let counted: Vec<String> = managed.filter(|r| r.ignored_by_scheduler).map(|r| r.name.clone()).collect();
    let mut names = BTreeSet::new();
    for (i, profile) in config.profiles.iter_mut().enumerate() {
        let path = format!("profiles[{i}]");
        if profile.scheduler_name.is_empty() {
            fail(format!("{path}.schedulerName"), "Required value".into());
        }
        if !names.insert(profile.scheduler_name.clone()) {
            fail(format!("{path}.schedulerName"), format!("Duplicate value: {:?}", profile.scheduler_name));
        }
        if profile.percentage_of_nodes_to_score.is_some_and(|p| !(0..=100).contains(&p)) {
            fail(format!("{path}.percentageOfNodesToScore"), "not in valid range [0-100]".into());
        }
        match read_args(profile) {
            Ok(args) => profile.args = PluginArgs { counted_by_extenders: counted.clone(), ..args },
            Err((name, why)) => fail(format!("{path}.pluginConfig[{name}]"), why),
        }
    }
    errors.extend(extender::check(&config.extenders));
    errors
}

/// What `pluginConfig` says, strictly.
fn read_args(profile: &Profile) -> Result<PluginArgs, (String, String)> {
    let mut args = PluginArgs::default();
    let mut seen = BTreeSet::new();
    for config in &profile.plugin_config {
        let name = config.name.as_str();
        let fail = |why: String| (name.to_owned(), why);
        if !seen.insert(name) {
            return Err(fail("repeated config for plugin".to_owned()));
        }
        let mut object = config.args.as_object().cloned().unwrap_or_default();
        for (word, expected) in [("kind", format!("{name}Args")), ("apiVersion", API_VERSION.to_owned())] {
            if let Some(said) = object.remove(word)
                && said != expected
            {
                return Err(fail(format!("{word} {said} must be {expected:?}")));
            }
        }
        file::drop_nulls(&mut object);
        let value = Value::Object(object);
        match name {
            "DefaultPreemption" => args.default_preemption = read(value).map_err(fail)?,
            "InterPodAffinity" => args.inter_pod_affinity = read(value).map_err(fail)?,
            "NodeAffinity" => args.node_affinity = read(value).map_err(fail)?,
            "NodeResourcesFit" => args.node_resources_fit = read(value).map_err(fail)?,
            "NodeResourcesBalancedAllocation" => args.balanced_allocation = read(value).map_err(fail)?,
            "PodTopologySpread" => args.pod_topology_spread = read(value).map_err(fail)?,
            "VolumeBinding" => args.volume_binding = read(value).map_err(fail)?,
            "DynamicResources" => args.dynamic_resources = read(value).map_err(fail)?,
            _ => return Err(fail("no such plugin takes arguments".to_owned())),
        }
    }
    validate_args(&args)?;
    Ok(args)
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|e| e.to_string())
}

fn validate_args(args: &PluginArgs) -> Result<(), (String, String)> {
    let fail = |name: &str, why: &str| Err((name.to_owned(), why.to_owned()));
    let preemption = &args.default_preemption;
    if !(0..=100).contains(&preemption.min_candidate_nodes_percentage) {
        return fail("DefaultPreemption", "minCandidateNodesPercentage: not in valid range [0, 100]");
    }
    if preemption.min_candidate_nodes_absolute < 0 {
        return fail("DefaultPreemption", "minCandidateNodesAbsolute: not in valid range [0, inf)");
    }
    if preemption.min_candidate_nodes_percentage == 0 && preemption.min_candidate_nodes_absolute == 0 {
        return fail(
            "DefaultPreemption",
            "minCandidateNodesPercentage and minCandidateNodesAbsolute cannot both be zero",
        );
    }
    if !(0..=100).contains(&args.inter_pod_affinity.hard_pod_affinity_weight) {
        return fail("InterPodAffinity", "hardPodAffinityWeight: not in valid range [0, 100]");
    }
    let ScoringStrategy { kind, resources, requested_to_capacity_ratio } =
        &args.node_resources_fit.scoring_strategy;
    match kind.as_str() {
        "LeastAllocated" | "MostAllocated" => {}
        "RequestedToCapacityRatio" => {
            let shape = requested_to_capacity_ratio.as_ref().map(|r| r.shape.as_slice()).unwrap_or_default();
            let ascends = shape.windows(2).all(|w| w[0].utilization < w[1].utilization);
            let in_range = |p: &super::UtilizationShapePoint| {
                (0..=100).contains(&p.utilization) && (0..=10).contains(&p.score)
            };
            if shape.is_empty() || !ascends || !shape.iter().all(in_range) {
                return fail(
                    "NodeResourcesFit",
                    "requestedToCapacityRatio.shape: utilization must ascend within [0, 100], scores be within [0, 10]",
                );
            }
        }
        _ => {
            return fail(
                "NodeResourcesFit",
                "scoringStrategy.type must be LeastAllocated, MostAllocated or RequestedToCapacityRatio",
            );
        }
    }
    if resources.iter().any(|r| !(0..=100).contains(&r.weight)) {
        return fail("NodeResourcesFit", "scoringStrategy.resources: weight not in valid range [1, 100]");
    }
    let spread = &args.pod_topology_spread;
    match spread.defaulting_type.as_str() {
        "System" if !spread.default_constraints.is_empty() => {
            return fail("PodTopologySpread", "defaultConstraints must be empty with defaultingType System");
        }
        "System" | "List" => {}
        _ => return fail("PodTopologySpread", "defaultingType must be System or List"),
    }
    if spread.default_constraints.iter().any(|c| c.label_selector.is_some()) {
        return fail(
            "PodTopologySpread",
            "defaultConstraints must not define a selector, as they are deduced for each pod",
        );
    }
    if args.volume_binding.bind_timeout_seconds < 0 {
        return fail("VolumeBinding", "bindTimeoutSeconds must be non-negative");
    }
    Ok(())
}

/// The sets of all extension points, by their names in the file.
#[must_use]
pub fn points(plugins: &Plugins) -> [(&'static str, &super::PluginSet); 12] {
    [
        ("preEnqueue", &plugins.pre_enqueue),
        ("queueSort", &plugins.queue_sort),
        ("preFilter", &plugins.pre_filter),
        ("filter", &plugins.filter),
        ("postFilter", &plugins.post_filter),
        ("preScore", &plugins.pre_score),
        ("score", &plugins.score),
        ("reserve", &plugins.reserve),
        ("permit", &plugins.permit),
        ("preBind", &plugins.pre_bind),
        ("bind", &plugins.bind),
        ("postBind", &plugins.post_bind),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io;
    use std::path::PathBuf;

    use super::*;
    use crate::config::DirEntry;

    struct One(&'static str);

    impl ReadFiles for One {
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            Ok(format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{}", self.0).into_bytes())
        }
        fn list(&self, _: &Path) -> io::Result<Vec<DirEntry>> {
            Ok(Vec::new())
        }
        fn current_dir(&self) -> io::Result<PathBuf> {
            Ok("/".into())
        }
    }

    fn loaded(file: &'static str, more: &[&str]) -> Result<Loaded, String> {
        let mut args: Vec<OsString> = vec!["--config=/f".into()];
        args.extend(more.iter().map(Into::into));
        match load(&args, &One(file)) {
            Ok(Outcome::Run(loaded)) => Ok(*loaded),
            Ok(other) => panic!("{other:?}"),
            Err(errors) => Err(errors.to_string()),
        }
    }

    #[test]
    fn without_a_file_there_is_one_profile_with_upstreams_defaults() {
        let Ok(Outcome::Run(loaded)) =
            load(&["--leader-elect=false".into(), "--kubeconfig=/k".into()], &One(""))
        else {
            panic!("not loaded")
        };
        let config = &loaded.config;
        assert_eq!(config.profiles.len(), 1);
        assert_eq!(config.profiles[0].scheduler_name, "default-scheduler");
        assert_eq!((config.client_connection.qps, config.client_connection.burst), (50.0, 100));
        assert_eq!(
            (config.client_connection.kubeconfig.as_str(), config.leader_election.leader_elect),
            ("/k", false)
        );
        assert_eq!(loaded.flags.max_unschedulable().as_secs(), 300);
    }

    #[test]
    fn a_file_is_read_strictly_and_mistakes_are_named() {
        for (file, expected) in [
            ("parallelism: 0\n", "parallelism: should be an integer value greater than zero"),
            ("percentageOfNodesToScore: 101\n", "percentageOfNodesToScore: not in valid range [0-100]"),
            ("podInitialBackoffSeconds: 20\n", "podMaxBackoffSeconds: must be greater than or equal"),
            ("flavour: strong\n", "unknown field `flavour`"),
            (
                "profiles: [{schedulerName: a}, {schedulerName: a}]\n",
                "profiles[1].schedulerName: Duplicate value: \"a\"",
            ),
            (
                "profiles: [{pluginConfig: [{name: Nothing, args: {}}]}]\n",
                "profiles[0].pluginConfig[Nothing]: no such plugin",
            ),
            (
                "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]\n",
                "not in valid range [0, 100]",
            ),
            (
                "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {softness: 1}}]}]\n",
                "unknown field `softness`",
            ),
            (
                "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {kind: FitArgs}}]}]\n",
                "must be \"InterPodAffinityArgs\"",
            ),
            ("extenders: [{urlPrefix: a}]\n", "extenders[0].urlPrefix: \"a\" must begin with http"),
            (
                "extenders: [{urlPrefix: http://a, prioritizeVerb: p}]\n",
                "extenders[0].weight: must have a positive",
            ),
            (
                "extenders: [{urlPrefix: http://a, bindVerb: b}, {urlPrefix: http://b, bindVerb: b}]\n",
                "only one extender can implement bind",
            ),
            (
                "extenders: [{urlPrefix: http://a, managedResources: [{name: cpu}]}]\n",
                "managedResources[0].name: is an invalid extended resource name",
            ),
            (
                "extenders: [{urlPrefix: https://a, tlsConfig: {caData: '*'}}]\n",
                "extenders[0].tlsConfig.caData: is not base64",
            ),
        ] {
            let said = loaded(file, &[]).unwrap_err();
            assert!(said.contains(expected), "{file}: {said}");
        }
    }

    #[test]
    fn the_secure_port_is_upstreams_unless_it_is_moved_or_closed() {
        let address =
            |more: &[&str]| loaded("", more).map(|l| l.flags.serving.map(|s| s.address.to_string()));
        assert_eq!(address(&[]), Ok(Some("0.0.0.0:10259".to_owned())));
        assert_eq!(
            address(&["--secure-port=7", "--bind-address=127.0.0.1"]),
            Ok(Some("127.0.0.1:7".to_owned()))
        );
        assert_eq!(address(&["--secure-port=0"]), Ok(None));
        assert!(address(&["--tls-cert-file=/a"]).unwrap_err().contains("must be given together"));
    }

    #[test]
    fn extenders_are_read_and_what_they_count_is_not_counted_twice() {
        let file = "extenders: [{urlPrefix: https://a/b, filterVerb: f, enableHTTPS: true, nodeCacheCapable: true, \
                    managedResources: [{name: example.com/gpu, ignoredByScheduler: true}], ignorable: true}]\n";
        let loaded = loaded(file, &[]).unwrap();
        let extender = &loaded.config.extenders[0];
        assert!(extender.enable_https && extender.ignorable && extender.node_cache_capable);
        assert_eq!(extender.http_timeout.to_std().as_secs(), 5);
        assert_eq!(loaded.config.profiles[0].args.counted_by_extenders, ["example.com/gpu"]);
    }

    #[test]
    fn flags_of_leader_election_win_over_the_file_and_others_do_not() {
        let file =
            "leaderElection: {leaderElect: true, leaseDuration: 30s}\nclientConnection: {kubeconfig: /a}\n";
        let loaded = loaded(file, &["--leader-elect=false", "--kubeconfig=/b"]).unwrap();
        assert!(!loaded.config.leader_election.leader_elect);
        assert_eq!(loaded.config.client_connection.kubeconfig, "/a");
        assert_eq!(loaded.warnings, ["--kubeconfig is overruled by the file of --config"]);
    }
}
