//! The defaults the API server would fill in.

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, HTTPGetAction, Lifecycle, ObjectFieldSelector, Pod, PodSpec, Probe,
    ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::resources::{
    ResourceList, aggregate_limits, aggregate_requests, is_huge_pages, is_overcommit_allowed, is_pod_level,
};
use super::{Amount, default_pull_policy};

/// Mode of files in volumes: 0644.
const FILE_MODE: i32 = 0o644;

/// Fills in every default of a Pod. Idempotent.
pub fn set_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    set_template_defaults(spec);
    spec.enable_service_links.get_or_insert(true);
    let host_network = spec.host_network == Some(true);
    for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        if host_network {
            c.ports.iter_mut().flatten().for_each(default_host_port);
        }
        if let Some(resources) = &mut c.resources {
            default_requests(resources);
        }
    }
    default_pod_resources(spec);
}

/// Fills in the defaults of the Pods to be made from a template: what depends on where and when a Pod is made is left
/// to the Pod itself. Idempotent.
pub fn set_template_defaults(spec: &mut PodSpec) {
    set_spec_defaults(spec);
    spec.volumes.iter_mut().flatten().for_each(default_volume);
    for c in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        ContainerFields::of(c).set_defaults();
    }
    for c in spec.ephemeral_containers.iter_mut().flatten() {
        ContainerFields::of_ephemeral(c).set_defaults();
    }
}

fn set_spec_defaults(spec: &mut PodSpec) {
    fill(&mut spec.dns_policy, "ClusterFirst");
    fill(&mut spec.restart_policy, "Always");
    fill(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context.get_or_insert_default();
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    // The old name of the field and the new one always say the same; the new one wins.
    if spec.service_account_name.as_deref().unwrap_or_default().is_empty() {
        spec.service_account_name.clone_from(&spec.service_account);
    }
    spec.service_account.clone_from(&spec.service_account_name);
    spec.overhead.iter_mut().for_each(round_up);
}

/// The fields that ordinary and ephemeral containers, two types, have in common.
struct ContainerFields<'a> {
    image: &'a str,
    image_pull_policy: &'a mut Option<String>,
    termination_message_path: &'a mut Option<String>,
    termination_message_policy: &'a mut Option<String>,
    ports: &'a mut Option<Vec<ContainerPort>>,
    env: &'a mut Option<Vec<EnvVar>>,
    probes: [&'a mut Option<Probe>; 3],
    lifecycle: &'a mut Option<Lifecycle>,
    resources: &'a mut Option<ResourceRequirements>,
}

macro_rules! parts {
    ($c:expr) => {
        ContainerFields {
            image: $c.image.as_deref().unwrap_or_default(),
            image_pull_policy: &mut $c.image_pull_policy,
            termination_message_path: &mut $c.termination_message_path,
            termination_message_policy: &mut $c.termination_message_policy,
            ports: &mut $c.ports,
            env: &mut $c.env,
            probes: [&mut $c.liveness_probe, &mut $c.readiness_probe, &mut $c.startup_probe],
            lifecycle: &mut $c.lifecycle,
            resources: &mut $c.resources,
        }
    };
}

impl<'a> ContainerFields<'a> {
    fn of(c: &'a mut Container) -> Self {
        parts!(c)
    }

    fn of_ephemeral(c: &'a mut k8s_openapi::api::core::v1::EphemeralContainer) -> Self {
        parts!(c)
    }

    fn set_defaults(&mut self) {
        fill(self.image_pull_policy, default_pull_policy(self.image));
        fill(self.termination_message_path, "/dev/termination-log");
        fill(self.termination_message_policy, "File");
        self.ports.iter_mut().flatten().for_each(|p| fill(&mut p.protocol, "TCP"));
        for source in self.env.iter_mut().flatten().filter_map(|e| e.value_from.as_mut()) {
            default_field_ref(&mut source.field_ref);
        }
        for probe in self.probes.iter_mut().filter_map(|p| p.as_mut()) {
            default_probe(probe);
        }
        if let Some(lifecycle) = self.lifecycle {
            for hook in [&mut lifecycle.post_start, &mut lifecycle.pre_stop].into_iter().flatten() {
                hook.http_get.as_mut().into_iter().for_each(default_http_get);
            }
        }
        if let Some(resources) = self.resources {
            resources.limits.iter_mut().for_each(round_up);
            resources.requests.iter_mut().for_each(round_up);
        }
    }
}

fn default_probe(probe: &mut Probe) {
    fill_zero(&mut probe.timeout_seconds, 1);
    fill_zero(&mut probe.period_seconds, 10);
    fill_zero(&mut probe.success_threshold, 1);
    fill_zero(&mut probe.failure_threshold, 3);
    probe.http_get.as_mut().into_iter().for_each(default_http_get);
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn default_http_get(http: &mut HTTPGetAction) {
    fill(&mut http.path, "/");
    fill(&mut http.scheme, "HTTP");
}

fn default_field_ref(field: &mut Option<ObjectFieldSelector>) {
    if let Some(field) = field {
        fill(&mut field.api_version, "v1");
    }
}

fn default_host_port(port: &mut ContainerPort) {
    if port.host_port.unwrap_or_default() == 0 {
        port.host_port = Some(port.container_port);
    }
}

fn default_volume(volume: &mut Volume) {
    if (Volume { name: volume.name.clone(), ..Volume::default() }) == *volume {
        volume.empty_dir = Some(Default::default());
    }
    if let Some(image) = &mut volume.image {
        let policy = default_pull_policy(image.reference.as_deref().unwrap_or_default());
        fill(&mut image.pull_policy, policy);
    }
    if let Some(host) = &mut volume.host_path {
        host.type_.get_or_insert_default();
    }
    if let Some(secret) = &mut volume.secret {
        secret.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(map) = &mut volume.config_map {
        map.default_mode.get_or_insert(FILE_MODE);
    }
    if let Some(api) = &mut volume.downward_api {
        api.default_mode.get_or_insert(FILE_MODE);
        api.items.iter_mut().flatten().for_each(|i| default_field_ref(&mut i.field_ref));
    }
    if let Some(projected) = &mut volume.projected {
        projected.default_mode.get_or_insert(FILE_MODE);
        for source in projected.sources.iter_mut().flatten() {
            for item in source.downward_api.iter_mut().filter_map(|d| d.items.as_mut()).flatten() {
                default_field_ref(&mut item.field_ref);
            }
            if let Some(token) = &mut source.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
}

/// A limit without a request is also the request.
fn default_requests(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else { return };
    let requests = resources.requests.get_or_insert_default();
    for (name, quantity) in limits {
        requests.entry(name.clone()).or_insert_with(|| quantity.clone());
    }
}

/// Pod-level resources that are partly given are completed from the containers: huge page limits
/// first, then requests from what the containers request, then requests from limits.
fn default_pod_resources(spec: &mut PodSpec) {
    let (requested, limited) = (aggregate_requests(spec), aggregate_limits(spec));
    let Some(resources) = &mut spec.resources else { return };
    let (limits, requests) = (resources.limits.take(), resources.requests.take());
    let mut limits: ResourceList = limits.unwrap_or_default();
    let mut requests: ResourceList = requests.unwrap_or_default();
    if !limits.is_empty() || !requests.is_empty() {
        for (name, amount) in limited.iter().filter(|(n, _)| is_huge_pages(n)) {
            if !requests.contains_key(name) {
                limits.entry(name.clone()).or_insert_with(|| Quantity(amount.to_string()));
            }
        }
    }
    if !limits.is_empty() {
        for (name, amount) in requested.iter().filter(|(n, _)| is_pod_level(n) && is_overcommit_allowed(n)) {
            requests.entry(name.clone()).or_insert_with(|| Quantity(amount.to_string()));
        }
        for (name, quantity) in limits.iter().filter(|(n, _)| is_pod_level(n)) {
            requests.entry(name.clone()).or_insert_with(|| quantity.clone());
        }
    }
    resources.limits = (!limits.is_empty()).then_some(limits);
    resources.requests = (!requests.is_empty()).then_some(requests);
}

fn round_up(list: &mut ResourceList) {
    for quantity in list.values_mut() {
        if let Ok(amount) = Amount::parse(&quantity.0)
            && amount.round_up_to_milli() != amount
        {
            quantity.0 = amount.round_up_to_milli().to_string();
        }
    }
}

fn fill(field: &mut Option<String>, default: &str) {
    if field.as_deref().unwrap_or_default().is_empty() {
        *field = Some(default.to_owned());
    }
}

fn fill_zero(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(default);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn defaulted(spec: Value) -> Value {
        let mut pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
        set_defaults(&mut pod);
        let once = pod.clone();
        set_defaults(&mut pod);
        assert_eq!(once, pod, "idempotent");
        serde_json::to_value(pod).unwrap()["spec"].take()
    }

    #[test]
    fn an_almost_empty_pod() {
        assert_eq!(
            defaulted(json!({"containers": [{"name": "a", "image": "x"}]})),
            json!({
                "containers": [{
                    "name": "a", "image": "x", "imagePullPolicy": "Always",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"
                }],
                "dnsPolicy": "ClusterFirst", "enableServiceLinks": true, "restartPolicy": "Always",
                "schedulerName": "default-scheduler", "securityContext": {}, "terminationGracePeriodSeconds": 30
            })
        );
    }

    /// (spec, JSON pointer, expected)
    fn check(spec: Value, pointer: &str, want: Value) {
        let got = defaulted(spec.clone());
        assert_eq!(got.pointer(pointer).cloned().unwrap_or(Value::Null), want, "{pointer} of {spec}");
    }

    #[test]
    fn each_default() {
        let c = |extra: Value| {
            let mut c = json!({"name": "a", "image": "x:1"});
            c.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            json!({ "containers": [c] })
        };
        check(
            json!({"containers": [], "terminationGracePeriodSeconds": -5}),
            "/terminationGracePeriodSeconds",
            json!(1),
        );
        check(
            json!({"containers": [], "terminationGracePeriodSeconds": 0}),
            "/terminationGracePeriodSeconds",
            json!(0),
        );
        check(json!({"containers": [], "serviceAccount": "s"}), "/serviceAccountName", json!("s"));
        check(json!({"containers": [], "volumes": [{"name": "v"}]}), "/volumes/0/emptyDir", json!({}));
        check(
            json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": "/"}}]}),
            "/volumes/0/hostPath/type",
            json!(""),
        );
        let items = json!([{"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}]);
        check(
            json!({"containers": [], "volumes": [{"name": "v", "downwardAPI": {"items": items}}]}),
            "/volumes/0/downwardAPI",
            json!({"defaultMode": 420, "items": [{"path": "p", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}]}),
        );
        check(
            json!({"containers": [], "volumes": [{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": items}}]}}]}),
            "/volumes/0/projected/sources/0/downwardAPI/items/0/fieldRef/apiVersion",
            json!("v1"),
        );
        check(
            json!({"containers": [], "volumes": [{"name": "v", "image": {"reference": "y"}}]}),
            "/volumes/0/image/pullPolicy",
            json!("Always"),
        );
        check(c(json!({"image": "x"})), "/containers/0/imagePullPolicy", json!("Always"));
        check(c(json!({})), "/containers/0/imagePullPolicy", json!("IfNotPresent"));
        check(
            c(json!({"ports": [{"containerPort": 80}]})),
            "/containers/0/ports/0",
            json!({"containerPort": 80, "protocol": "TCP"}),
        );
        let mut host = c(json!({"ports": [{"containerPort": 80}]}));
        host["hostNetwork"] = json!(true);
        check(host, "/containers/0/ports/0/hostPort", json!(80));
        check(
            c(json!({"livenessProbe": {"httpGet": {"port": 80}}})),
            "/containers/0/livenessProbe",
            json!({
            "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
            "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}),
        );
        check(
            c(json!({"lifecycle": {"preStop": {"httpGet": {"port": 1}}}})),
            "/containers/0/lifecycle/preStop/httpGet/scheme",
            json!("HTTP"),
        );
        check(
            c(json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]})),
            "/containers/0/env/0/valueFrom/fieldRef/apiVersion",
            json!("v1"),
        );
        check(
            c(
                json!({"resources": {"limits": {"cpu": "0.0001", "memory": "1Gi"}, "requests": {"memory": "1Mi"}}}),
            ),
            "/containers/0/resources",
            json!({"limits": {"cpu": "1m", "memory": "1Gi"}, "requests": {"cpu": "1m", "memory": "1Mi"}}),
        );
        let e = json!({"containers": [], "ephemeralContainers": [{"name": "d", "image": "y"}]});
        check(e, "/ephemeralContainers/0/terminationMessagePolicy", json!("File"));
    }

    #[test]
    fn pod_level_resources_are_completed() {
        let c = json!([{"name": "a", "resources": {"requests": {"cpu": "100m"}, "limits": {"hugepages-2Mi": "4Mi"}}}]);
        check(
            json!({"containers": c, "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}),
            "/resources",
            json!({
            "limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "4Mi"},
            "requests": {"cpu": "100m", "memory": "1Gi", "hugepages-2Mi": "4Mi"}}),
        );
        check(json!({"containers": c, "resources": {}}), "/resources", json!({}));
    }
}
