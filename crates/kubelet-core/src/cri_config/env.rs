//! A container's environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, FileKeySelector, ObjectFieldSelector,
};

use super::env_file::EnvFile;
use super::expand::{EXPANSION_MAX, PER_STRING, TooLong, expand, too_much};
use super::types::{ContainerInput, CriConfigError};
use crate::downward;

/// The variables in the order of their first declaration, service variables last. (Upstream sends
/// them in random order; nothing may depend on it.)
pub(super) fn environment(
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Environment, CriConfigError> {
    let namespace = input.pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut env = Environment::default();
    let mut files = Files::new();
    for from in container.env_from.iter().flatten() {
        add_all(input, from, namespace, &mut env)?;
    }
    for var in container.env.iter().flatten() {
        let value = match (var.value.as_deref().filter(|v| !v.is_empty()), &var.value_from) {
            (Some(value), _) => {
                let expanded = expand(value, env.left, |name| {
                    env.get(name).or_else(|| input.service_env.get(name).map(String::as_str))
                });
                Some(expanded.map_err(|TooLong| too_long(&var.name))?)
            }
            (None, Some(source)) => from_source(input, container, source, namespace, &mut files)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            env.set(&var.name, value)?;
        }
    }
    for (name, value) in input.service_env {
        if env.get(name).is_none() {
            env.set(name, value.clone())?;
        }
    }
    Ok(env)
}

/// The files, by volume and path, that must be read before the environment can be made.
pub(super) fn env_files(container: &Container) -> Vec<(String, String)> {
    let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    let mut files: Vec<_> = sources.map(|f| (f.volume_name.clone(), f.path.clone())).collect();
    files.sort();
    files.dedup();
    files
}

/// A container's variables.
#[derive(Debug)]
pub(super) struct Environment {
    vars: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
    /// Bytes that may still be set. A value that is set again does not give back what the first one took: what is
    /// bounded is the work.
    left: usize,
}

/// Environment files that were read already.
type Files = BTreeMap<(String, String), EnvFile>;

// === impl Environment ===

impl Default for Environment {
    fn default() -> Self {
        Self { vars: Vec::new(), index: BTreeMap::new(), left: EXPANSION_MAX }
    }
}

impl Environment {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|i| self.vars[*i].1.as_str())
    }

    /// Bytes that the container's command may have.
    pub(super) fn left(&self) -> usize {
        self.left
    }

    pub(super) fn into_vars(self) -> Vec<(String, String)> {
        self.vars
    }

    pub(super) fn set(&mut self, name: &str, value: String) -> Result<(), CriConfigError> {
        // The equals sign, too.
        let takes = name.len().saturating_add(value.len()).saturating_add(PER_STRING + 1);
        self.left = self.left.checked_sub(takes).ok_or_else(|| too_long(name))?;
        match self.index.get(name) {
            Some(i) => self.vars[*i].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.vars.len());
                self.vars.push((name.to_owned(), value));
            }
        }
        Ok(())
    }
}

/// Names have no end of their own.
fn too_long(name: &str) -> CriConfigError {
    const SHOWN: usize = 256;
    let (shown, more) = match name.char_indices().nth(SHOWN) {
        Some((end, _)) => (&name[..end], "..."),
        None => (name, ""),
    };
    CriConfigError::config(format!(
        "environment variable {shown:?}{more} is too long: {}",
        too_much("the environment")
    ))
}

/// Every key of an object becomes a variable; binary data of a ConfigMap does not.
fn add_all(
    input: &ContainerInput<'_>,
    from: &EnvFromSource,
    namespace: &str,
    env: &mut Environment,
) -> Result<(), CriConfigError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(r) = &from.config_map_ref {
        let map =
            input.references.config_map(namespace, &r.name, r.optional).map_err(CriConfigError::config)?;
        for (key, value) in map.iter().flat_map(|m| m.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), value.clone())?;
        }
    } else if let Some(r) = &from.secret_ref {
        let secret =
            input.references.secret(namespace, &r.name, r.optional).map_err(CriConfigError::config)?;
        for (key, value) in secret.iter().flat_map(|s| s.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned())?;
        }
    }
    Ok(())
}

/// None leaves the variable unset (an optional source that is not there).
fn from_source(
    input: &ContainerInput<'_>,
    container: &Container,
    source: &EnvVarSource,
    namespace: &str,
    files: &mut Files,
) -> Result<Option<String>, CriConfigError> {
    if let Some(field) = &source.field_ref {
        return field_value(input, field).map(Some);
    }
    if let Some(r) = &source.resource_field_ref {
        let (divisor, node) = (r.divisor.as_ref(), &input.node.allocatable);
        let value = match r.container_name.as_deref() {
            None | Some("") => {
                let own = container.resources.as_ref();
                downward::resource_of(input.pod, own, &r.resource, divisor, node)
            }
            Some(name) => downward::resource_value(input.pod, name, &r.resource, divisor, node),
        };
        return value.map(Some).map_err(|e| CriConfigError::config(e.to_string()));
    }
    if let Some(r) = &source.config_map_key_ref {
        let map =
            input.references.config_map(namespace, &r.name, r.optional).map_err(CriConfigError::config)?;
        let Some(map) = map else { return Ok(None) };
        let value = map.data.as_ref().and_then(|d| d.get(&r.key)).cloned();
        return key_or_refuse(value, ["ConfigMap", namespace, &r.name, &r.key], r.optional);
    }
    if let Some(r) = &source.secret_key_ref {
        let secret =
            input.references.secret(namespace, &r.name, r.optional).map_err(CriConfigError::config)?;
        let Some(secret) = secret else { return Ok(None) };
        let value = secret.data.as_ref().and_then(|d| d.get(&r.key));
        let value = value.map(|v| String::from_utf8_lossy(&v.0).into_owned());
        return key_or_refuse(value, ["Secret", namespace, &r.name, &r.key], r.optional);
    }
    source.file_key_ref.as_ref().map_or(Ok(Some(String::new())), |file| file_value(input, file, files))
}

fn key_or_refuse(
    value: Option<String>,
    [kind, namespace, name, key]: [&str; 4],
    optional: Option<bool>,
) -> Result<Option<String>, CriConfigError> {
    match value {
        None if optional != Some(true) => {
            Err(CriConfigError::config(format!("couldn't find key {key} in {kind} {namespace}/{name}")))
        }
        value => Ok(value),
    }
}

fn field_value(input: &ContainerInput<'_>, field: &ObjectFieldSelector) -> Result<String, CriConfigError> {
    let version = field.api_version.as_deref().unwrap_or("v1");
    if version != "v1" {
        return Err(CriConfigError::config(format!("unsupported pod version: {version}")));
    }
    let spec = input.pod.spec.as_ref();
    let joined = |ips: &[std::net::IpAddr]| ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let first = |ips: &[std::net::IpAddr]| ips.first().map(ToString::to_string).unwrap_or_default();
    match field.field_path.as_str() {
        "spec.nodeName" | "spec.host" => Ok(spec.and_then(|s| s.node_name.clone()).unwrap_or_default()),
        "spec.serviceAccountName" => {
            Ok(spec.and_then(|s| s.service_account_name.clone()).unwrap_or_default())
        }
        "status.hostIP" => Ok(first(&input.node.host_ips)),
        "status.hostIPs" => Ok(joined(&input.node.host_ips)),
        "status.podIP" => Ok(first(input.pod_ips)),
        "status.podIPs" => Ok(joined(input.pod_ips)),
        path => downward::field_value(input.pod, path).map_err(|e| CriConfigError::config(e.to_string())),
    }
}

fn file_value(
    input: &ContainerInput<'_>,
    file: &FileKeySelector,
    files: &mut Files,
) -> Result<Option<String>, CriConfigError> {
    if !input.volumes.contains_key(&file.volume_name) {
        return Err(CriConfigError::config(format!(
            "cannot find the volume {:?} referenced by FileKeyRef",
            file.volume_name
        )));
    }
    // The path inside the volume is named, never the host's: this message reaches the Pod's status.
    let unreadable = || CriConfigError::config("couldn't parse env file");
    let key = (file.volume_name.clone(), file.path.clone());
    let content = input.env_files.get(&key).ok_or_else(unreadable)?;
    let read = files.entry(key).or_insert_with(|| EnvFile::parse(content));
    let value = read.get(&file.key).map_err(|_| unreadable())?;
    match value.filter(|v| !v.is_empty()) {
        Some(value) => Ok(Some(value.to_owned())),
        None if file.optional == Some(true) => Ok(None),
        None => Err(CriConfigError::config(format!(
            "environment variable key {:?} not found in file {:?}",
            file.key, file.path
        ))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Bench, pod};
    use super::*;
    use crate::references::Referenced;
    use std::sync::Arc;

    fn env_of(bench: &Bench) -> Result<Vec<(String, String)>, String> {
        let input = bench.input("main");
        let container = super::super::spec_of(&bench.pod, "main").unwrap();
        environment(&input, &container).map(Environment::into_vars).map_err(|e| e.message)
    }

    fn lines(bench: &Bench) -> Vec<String> {
        env_of(bench).unwrap().into_iter().map(|(k, v)| format!("{k}={v}")).collect()
    }

    #[test]
    fn order_override_and_expansion() {
        let mut b = Bench::new(pod("containers: [{name: main, env: [
                {name: A, value: a}, {name: B, value: '$(A)-$(SVC)-$(C)-$$(A)'}, {name: C, value: c},
                {name: A, value: '$(A)2'}, {name: D, value: '$(B)'}, {name: E}, {name: F, value: '$(E)|'},
                {name: SVC, value: mine}]}]"));
        b.service_env = [("SVC".into(), "svc".into()), ("OTHER".into(), "o".into())].into();
        assert_eq!(
            lines(&b),
            ["A=a2", "B=a-svc-$(C)-$(A)", "C=c", "D=a-svc-$(C)-$(A)", "E=", "F=|", "SVC=mine", "OTHER=o"]
        );
    }

    #[test]
    fn an_environment_that_grows_without_end_is_refused_and_the_variable_named() {
        let mut vars = vec![format!("{{name: E0, value: '{}'}}", "x".repeat(100))];
        vars.extend(
            (1..=8).map(|i| format!("{{name: E{i}, value: '{}'}}", format!("$(E{})", i - 1).repeat(10))),
        );
        let b = Bench::new(pod(&format!("containers: [{{name: main, env: [{}]}}]", vars.join(", "))));
        let want = "environment variable \"E5\" is too long: with references replaced, the environment would have \
                    more than 6291456 bytes";
        assert_eq!(env_of(&b).unwrap_err(), want);
        // The last one that fits leaves room for no other.
        let b = Bench::new(pod(&format!("containers: [{{name: main, env: [{}]}}]", vars[..5].join(", "))));
        assert_eq!(lines(&b)[4].len(), "E4=".len() + 1_000_000);
    }

    #[test]
    fn a_variable_that_is_set_again_and_again_comes_to_an_end_too() {
        let mut b = Bench::new(pod("containers: [{name: main}]"));
        let main = &mut b.pod.spec.as_mut().unwrap().containers[0];
        let var = |name: &str, value: String| k8s_openapi::api::core::v1::EnvVar {
            name: name.into(),
            value: Some(value),
            value_from: None,
        };
        let mut env = vec![var("BIG", "x".repeat(1 << 20))];
        env.extend((0..10_000).map(|_| var("AGAIN", "$(BIG)".into())));
        main.env = Some(env);
        assert!(env_of(&b).unwrap_err().starts_with("environment variable \"AGAIN\" is too long: "));
        main_env(&mut b, vec![var(&"n".repeat(7 << 20), String::new())]);
        let error = env_of(&b).unwrap_err();
        assert!(error.starts_with("environment variable \"nnn") && error.len() < 500, "{error}");
    }

    fn main_env(bench: &mut Bench, env: Vec<k8s_openapi::api::core::v1::EnvVar>) {
        bench.pod.spec.as_mut().unwrap().containers[0].env = Some(env);
    }

    #[test]
    fn a_large_object_taken_many_times_is_refused() {
        let from = "{configMapRef: {name: m}, prefix: P}, ".repeat(20);
        let mut b = Bench::new(pod(&format!("containers: [{{name: main, envFrom: [{from}]}}]")));
        let map = serde_json::json!({"data": {"a": "x".repeat(1 << 20)}});
        let map = Arc::new(serde_json::from_value(map).unwrap());
        b.references.has_server = true;
        b.references.config_maps.insert("m".into(), Referenced::Found(map));
        assert!(env_of(&b).unwrap_err().starts_with("environment variable \"Pa\" is too long: "));
    }

    #[test]
    fn downward_fields() {
        let b = Bench::new(pod("nodeName: n1
serviceAccountName: sa
containers: [{name: main, resources: {limits: {cpu: 500m}}, env: [
    {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}},
    {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}},
    {name: SA, valueFrom: {fieldRef: {fieldPath: spec.serviceAccountName}}},
    {name: HIP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}},
    {name: HIPS, valueFrom: {fieldRef: {fieldPath: status.hostIPs}}},
    {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}},
    {name: IPS, valueFrom: {fieldRef: {fieldPath: status.podIPs}}},
    {name: CPU, valueFrom: {resourceFieldRef: {resource: limits.cpu}}},
    {name: MEM, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}]}]"));
        assert_eq!(
            lines(&b),
            [
                "NAME=web",
                "NODE=n1",
                "SA=sa",
                "HIP=192.0.2.10",
                "HIPS=192.0.2.10,2001:db8::10",
                "IP=10.1.0.5",
                "IPS=10.1.0.5,fd00::5",
                "CPU=1",
                "MEM=4096"
            ]
        );
    }

    #[test]
    fn references_that_fail() {
        for (env, want) in [
            (
                "env: [{name: X, valueFrom: {configMapKeyRef: {name: cm, key: k}}}]",
                "couldn't get configMap shop/cm, no kubeClient defined",
            ),
            ("envFrom: [{secretRef: {name: s}}]", "couldn't get secret shop/s, no kubeClient defined"),
            (
                "env: [{name: X, valueFrom: {fieldRef: {fieldPath: status.phase}}}]",
                "unsupported fieldPath: status.phase",
            ),
            (
                "env: [{name: X, valueFrom: {fieldRef: {apiVersion: v2, fieldPath: metadata.name}}}]",
                "unsupported pod version: v2",
            ),
            (
                "env: [{name: X, valueFrom: {fileKeyRef: {volumeName: v, path: p, key: k}}}]",
                "cannot find the volume \"v\" referenced by FileKeyRef",
            ),
        ] {
            let b = Bench::new(pod(&format!("containers: [{{name: main, {env}}}]")));
            assert_eq!(env_of(&b).unwrap_err(), want);
        }
        let optional = "containers: [{name: main, envFrom: [{configMapRef: {name: c, optional: true}}],
            env: [{name: X, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]}]";
        assert_eq!(lines(&Bench::new(pod(optional))), Vec::<String>::new());
    }

    #[test]
    fn values_from_objects() {
        let mut b = Bench::new(pod("
containers:
- name: main
  envFrom:
  - {prefix: P_, configMapRef: {name: m}}
  - {secretRef: {name: s}}
  - {secretRef: {name: absent, optional: true}}
  env:
  - {name: b, value: own}
  - {name: K, valueFrom: {configMapKeyRef: {name: m, key: a}}}
  - {name: S, valueFrom: {secretKeyRef: {name: s, key: b}}}
  - {name: O, valueFrom: {configMapKeyRef: {name: m, key: none, optional: true}}}
  - {name: R, value: \"$(K)-$(P_a)\"}"));
        let map = serde_json::json!({"data": {"a": "1"}, "binaryData": {"raw": "AA=="}});
        let secret = serde_json::json!({"data": {"b": "eA=="}});
        let map = Arc::new(serde_json::from_value(map).unwrap());
        let secret = Arc::new(serde_json::from_value(secret).unwrap());
        b.references.has_server = true;
        b.references.config_maps.insert("m".into(), Referenced::Found(map));
        b.references.secrets.insert("s".into(), Referenced::Found(secret));
        b.references.secrets.insert("absent".into(), Referenced::Missing);
        assert_eq!(lines(&b), ["P_a=1", "b=own", "K=1", "S=x", "R=1-1"]);
        for (key, want) in [
            ("configMapKeyRef: {name: m, key: gone}", "couldn't find key gone in ConfigMap shop/m"),
            ("secretKeyRef: {name: s, key: gone}", "couldn't find key gone in Secret shop/s"),
            ("secretKeyRef: {name: absent, key: k}", "secret \"absent\" not found"),
        ] {
            let env = format!("containers: [{{name: main, env: [{{name: X, valueFrom: {{{key}}}}}]}}]");
            b.pod = pod(&env);
            assert_eq!(env_of(&b).unwrap_err(), want);
        }
    }

    #[test]
    fn values_from_files() {
        let mut b = Bench::new(pod(
            "containers: [{name: main, env: [
                {name: K, valueFrom: {fileKeyRef: {volumeName: data, path: f.env, key: KEY}}},
                {name: N, valueFrom: {fileKeyRef: {volumeName: data, path: f.env, key: NONE, optional: true}}}]}]",
        ));
        assert_eq!(env_of(&b).unwrap_err(), "couldn't parse env file");
        b.env_files.insert(("data".into(), "f.env".into()), "# c\n\n  A='1' # x\nKEY='two\nlines'\n".into());
        assert_eq!(lines(&b), ["K=two\nlines"]);
    }
}
