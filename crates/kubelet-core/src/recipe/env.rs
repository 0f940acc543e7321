//! A container's environment.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, EnvFromSource, EnvVarSource, FileKeySelector, ObjectFieldSelector,
};

use super::expand::expand;
use super::types::{ContainerInput, RecipeError};
use crate::downward;

/// The variables in the order of their first declaration, service variables last. (Upstream sends
/// them in random order; nothing may depend on it.)
pub(super) fn environment(
    input: &ContainerInput<'_>,
    container: &Container,
) -> Result<Vec<(String, String)>, RecipeError> {
    let namespace = input.pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut env = Env::default();
    for from in container.env_from.iter().flatten() {
        add_all(input, from, namespace, &mut env)?;
    }
    for var in container.env.iter().flatten() {
        let value = match (var.value.as_deref().filter(|v| !v.is_empty()), &var.value_from) {
            (Some(value), _) => Some(expand(value, |name| {
                env.get(name).or_else(|| input.service_env.get(name).map(String::as_str))
            })),
            (None, Some(source)) => from_source(input, container, source, namespace)?,
            (None, None) => Some(String::new()),
        };
        if let Some(value) = value {
            env.set(&var.name, value);
        }
    }
    for (name, value) in input.service_env {
        if env.get(name).is_none() {
            env.set(name, value.clone());
        }
    }
    Ok(env.vars)
}

/// The files, by volume and path, that must be read before the environment can be made.
pub(super) fn env_files(container: &Container) -> Vec<(String, String)> {
    let sources = container.env.iter().flatten().filter_map(|v| v.value_from.as_ref()?.file_key_ref.as_ref());
    let mut files: Vec<_> = sources.map(|f| (f.volume_name.clone(), f.path.clone())).collect();
    files.sort();
    files.dedup();
    files
}

#[derive(Default)]
struct Env {
    vars: Vec<(String, String)>,
    index: BTreeMap<String, usize>,
}

impl Env {
    fn get(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|i| self.vars[*i].1.as_str())
    }

    fn set(&mut self, name: &str, value: String) {
        match self.index.get(name) {
            Some(i) => self.vars[*i].1 = value,
            None => {
                self.index.insert(name.to_owned(), self.vars.len());
                self.vars.push((name.to_owned(), value));
            }
        }
    }
}

/// Every key of an object becomes a variable; binary data of a ConfigMap does not.
fn add_all(
    input: &ContainerInput<'_>,
    from: &EnvFromSource,
    namespace: &str,
    env: &mut Env,
) -> Result<(), RecipeError> {
    let prefix = from.prefix.as_deref().unwrap_or_default();
    if let Some(r) = &from.config_map_ref {
        let map = input.supplies.config_map(namespace, &r.name, r.optional).map_err(RecipeError::config)?;
        for (key, value) in map.iter().flat_map(|m| m.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), value.clone());
        }
    } else if let Some(r) = &from.secret_ref {
        let secret = input.supplies.secret(namespace, &r.name, r.optional).map_err(RecipeError::config)?;
        for (key, value) in secret.iter().flat_map(|s| s.data.iter().flatten()) {
            env.set(&format!("{prefix}{key}"), String::from_utf8_lossy(&value.0).into_owned());
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
) -> Result<Option<String>, RecipeError> {
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
        return value.map(Some).map_err(|e| RecipeError::config(e.to_string()));
    }
    if let Some(r) = &source.config_map_key_ref {
        let map = input.supplies.config_map(namespace, &r.name, r.optional).map_err(RecipeError::config)?;
        let Some(map) = map else { return Ok(None) };
        let value = map.data.as_ref().and_then(|d| d.get(&r.key)).cloned();
        return key_or_refuse(value, ["ConfigMap", namespace, &r.name, &r.key], r.optional);
    }
    if let Some(r) = &source.secret_key_ref {
        let secret = input.supplies.secret(namespace, &r.name, r.optional).map_err(RecipeError::config)?;
        let Some(secret) = secret else { return Ok(None) };
        let value = secret.data.as_ref().and_then(|d| d.get(&r.key));
        let value = value.map(|v| String::from_utf8_lossy(&v.0).into_owned());
        return key_or_refuse(value, ["Secret", namespace, &r.name, &r.key], r.optional);
    }
    source.file_key_ref.as_ref().map_or(Ok(Some(String::new())), |file| file_value(input, file))
}

fn key_or_refuse(
    value: Option<String>,
    [kind, namespace, name, key]: [&str; 4],
    optional: Option<bool>,
) -> Result<Option<String>, RecipeError> {
    match value {
        None if optional != Some(true) => {
            Err(RecipeError::config(format!("couldn't find key {key} in {kind} {namespace}/{name}")))
        }
        value => Ok(value),
    }
}

fn field_value(input: &ContainerInput<'_>, field: &ObjectFieldSelector) -> Result<String, RecipeError> {
    let version = field.api_version.as_deref().unwrap_or("v1");
    if version != "v1" {
        return Err(RecipeError::config(format!("unsupported pod version: {version}")));
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
        path => downward::field_value(input.pod, path).map_err(|e| RecipeError::config(e.to_string())),
    }
}

fn file_value(input: &ContainerInput<'_>, file: &FileKeySelector) -> Result<Option<String>, RecipeError> {
    if !input.volumes.contains_key(&file.volume_name) {
        return Err(RecipeError::config(format!(
            "cannot find the volume {:?} referenced by FileKeyRef",
            file.volume_name
        )));
    }
    // The path inside the volume is named, never the host's: this message reaches the Pod's status.
    let unreadable = || RecipeError::config("couldn't parse env file");
    let key = (file.volume_name.clone(), file.path.clone());
    let content = input.env_files.get(&key).ok_or_else(unreadable)?;
    let value = parse_env_file(content, &file.key).map_err(|_| unreadable())?;
    match value.filter(|v| !v.is_empty()) {
        Some(value) => Ok(Some(value)),
        None if file.optional == Some(true) => Ok(None),
        None => Err(RecipeError::config(format!(
            "environment variable key {:?} not found in file {:?}",
            file.key, file.path
        ))),
    }
}

/// Where an environment file is wrong, counted in lines from one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BadLine(usize);

/// Finds `key` in a file of `NAME='value'` lines: values are literal between single quotes and may
/// span lines, `#` begins a comment, and a space after `=` means an empty value.
fn parse_env_file(content: &str, key: &str) -> Result<Option<String>, BadLine> {
    let mut lines = content.lines().enumerate().map(|(i, l)| (i + 1, l));
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start_matches([' ', '\t']);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(BadLine(number))?;
        if name.is_empty() || name.ends_with([' ', '\t']) {
            return Err(BadLine(number));
        }
        if value.starts_with([' ', '\t']) {
            if name == key {
                return Ok(Some(String::new()));
            }
            continue;
        }
        let mut rest = value.strip_prefix('\'').ok_or(BadLine(number))?;
        let mut text = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                text.push_str(end);
                break after.trim_start_matches([' ', '\t']);
            }
            text.push_str(rest);
            text.push('\n');
            rest = lines.next().ok_or(BadLine(number))?.1;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return Err(BadLine(number));
        }
        if name == key {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::testing::{Bench, pod};
    use super::*;
    use crate::supplies::Supply;
    use std::sync::Arc;

    fn env_of(bench: &Bench) -> Result<Vec<(String, String)>, String> {
        let input = bench.input("main");
        let container = super::super::spec_of(&bench.pod, "main").unwrap();
        environment(&input, &container).map_err(|e| e.message)
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
        b.supplies.has_server = true;
        b.supplies.config_maps.insert("m".into(), Supply::Found(map));
        b.supplies.secrets.insert("s".into(), Supply::Found(secret));
        b.supplies.secrets.insert("absent".into(), Supply::Missing);
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
        for (content, want) in [
            ("KEY=bare", Err(BadLine(1))),
            ("KEY ='v'", Err(BadLine(1))),
            ("A='x'\nKEY='open", Err(BadLine(2))),
            ("KEY='v' junk", Err(BadLine(1))),
            ("='v'", Err(BadLine(1))),
            ("nonsense", Err(BadLine(1))),
            ("KEY= 'v'", Ok(Some(String::new()))),
            ("KEY='a$b\\n'", Ok(Some("a$b\\n".into()))),
            ("OTHER='v'", Ok(None)),
        ] {
            assert_eq!(parse_env_file(content, "KEY"), want, "{content:?}");
        }
    }
}
