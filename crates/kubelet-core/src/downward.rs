//! The downward API: fields and resources of a Pod as text, for environment variables and files.

use std::collections::BTreeMap;

use api::pod::Amount;
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// What the node can give away, in the units the kubelet counts in. Zero means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocatable {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    pub pods: i64,
    /// Bytes by resource name (`hugepages-2Mi`).
    pub hugepages: BTreeMap<String, i64>,
}

/// A field or resource the downward API cannot give.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DownwardError(pub String);

/// The value of `fieldPath`, as far as the object itself knows it. The IPs and the node are not in
/// here: they are only known at run time (see [`crate::cri_config`]).
pub fn field_value(pod: &Pod, field_path: &str) -> Result<String, DownwardError> {
    let meta = &pod.metadata;
    if let Some((path, key)) = split_subscript(field_path) {
        let (map, name) = match path {
            "metadata.annotations" => (&meta.annotations, key.to_ascii_lowercase()),
            "metadata.labels" => (&meta.labels, key.to_owned()),
            _ => return Err(DownwardError(format!("fieldPath {field_path:?} does not support subscript"))),
        };
        if !is_qualified_name(&name) {
            return Err(DownwardError(format!(
                "invalid key subscript in {field_path}: {key:?} is not a qualified name"
            )));
        }
        return Ok(map.as_ref().and_then(|m| m.get(key)).cloned().unwrap_or_default());
    }
    let text = |s: &Option<String>| s.clone().unwrap_or_default();
    match field_path {
        "metadata.annotations" => Ok(format_map(meta.annotations.as_ref())),
        "metadata.labels" => Ok(format_map(meta.labels.as_ref())),
        "metadata.name" => Ok(text(&meta.name)),
        "metadata.namespace" => Ok(text(&meta.namespace)),
        "metadata.uid" => Ok(text(&meta.uid)),
        _ => Err(DownwardError(format!("unsupported fieldPath: {field_path}"))),
    }
}

/// The value of a `resourceFieldRef`, divided and rounded up. An unset cpu, memory or
/// ephemeral-storage limit is the Pod's limit, else what the node can give.
pub fn resource_value(
    pod: &Pod,
    container: &str,
    resource: &str,
    divisor: Option<&Quantity>,
    node: &Allocatable,
) -> Result<String, DownwardError> {
    let spec =
        find(pod, container).ok_or_else(|| DownwardError(format!("container {container} not found")))?;
    resource_of(pod, spec.resources.as_ref(), resource, divisor, node)
}

/// Like [`resource_value`], for a container already at hand.
pub fn resource_of(
    pod: &Pod,
    resources: Option<&ResourceRequirements>,
    resource: &str,
    divisor: Option<&Quantity>,
    node: &Allocatable,
) -> Result<String, DownwardError> {
    let unsupported = || DownwardError(format!("unsupported container resource : {resource}"));
    let (side, name) = resource.split_once('.').ok_or_else(unsupported)?;
    if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !name.starts_with("hugepages-") {
        return Err(unsupported());
    }
    let amount = match side {
        "requests" => requests(resources, name),
        "limits" => limits(resources, name).filter(|v| *v != 0).or_else(|| default_limit(pod, name, node)),
        _ => return Err(unsupported()),
    };
    let unit = if name == "cpu" { 1000 } else { 1 };
    let divisor = divisor.and_then(|d| count(d, name)).filter(|d| *d != 0).unwrap_or(unit);
    Ok(div_ceil(amount.unwrap_or(0), divisor).to_string())
}

/// One resource of `limits`: millicores for cpu, else whole units.
#[must_use]
pub fn limits(resources: Option<&ResourceRequirements>, name: &str) -> Option<i64> {
    resources?.limits.as_ref()?.get(name).and_then(|q| count(q, name))
}

/// One resource of `requests`: millicores for cpu, else whole units.
#[must_use]
pub fn requests(resources: Option<&ResourceRequirements>, name: &str) -> Option<i64> {
    resources?.requests.as_ref()?.get(name).and_then(|q| count(q, name))
}

/// A quantity in the unit its resource is counted in.
#[must_use]
pub fn count(quantity: &Quantity, name: &str) -> Option<i64> {
    let amount = Amount::parse(&quantity.0).ok()?;
    Some(if name == "cpu" { amount.milli() } else { amount.value() })
}

fn default_limit(pod: &Pod, name: &str, node: &Allocatable) -> Option<i64> {
    let of_node = match name {
        "cpu" => node.milli_cpu,
        "memory" => node.memory,
        "ephemeral-storage" => node.ephemeral_storage,
        _ => return None,
    };
    if of_node == 0 {
        return None;
    }
    let of_pod = pod.spec.as_ref().and_then(|s| limits(s.resources.as_ref(), name)).filter(|v| *v != 0);
    match name {
        "cpu" | "memory" => of_pod.or(Some(of_node)),
        _ => Some(of_node),
    }
}

fn find<'a>(pod: &'a Pod, name: &str) -> Option<&'a Container> {
    let spec = pod.spec.as_ref()?;
    spec.containers.iter().chain(spec.init_containers.iter().flatten()).find(|c| c.name == name)
}

fn div_ceil(amount: i64, divisor: i64) -> i64 {
    let quotient = amount / divisor;
    let rest = amount % divisor;
    if rest != 0 && (rest > 0) == (divisor > 0) { quotient + 1 } else { quotient }
}

/// `metadata.labels['k']` -> (`metadata.labels`, `k`).
fn split_subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?.split_once("['").filter(|(before, _)| !before.is_empty())
}

/// `key="value"` lines in key order, values quoted the way Go quotes strings.
fn format_map(map: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = map.into_iter().flatten().map(|(k, v)| format!("{k}={}", go_quote(v))).collect();
    lines.join("\n")
}

fn go_quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if is_invisible(c) && (c as u32) > 0xffff => out.push_str(&format!("\\U{:08x}", c as u32)),
            c if is_invisible(c) => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Characters Go would escape as not printable: the debug format of Rust escapes the same classes
/// (controls, separators, unassigned), apart from grapheme extenders, which Go prints.
fn is_invisible(c: char) -> bool {
    !c.is_ascii()
        && (c.is_control()
            || c.is_whitespace()
            || matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'))
}

/// `[prefix/]name`, the shape of label keys.
fn is_qualified_name(key: &str) -> bool {
    let name_ok = |s: &str| {
        (1..=63).contains(&s.len())
            && s.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
            && s.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && s.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric())
    };
    match key.split_once('/') {
        None => name_ok(key),
        Some((prefix, name)) => name_ok(name) && is_dns_subdomain(prefix),
    }
}

/// A lower-case DNS name of at most 253 characters.
#[must_use]
pub fn is_dns_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_label)
}

/// One part of a DNS name: lower-case letters, digits and inner dashes, at most 63.
#[must_use]
pub fn is_dns_label(label: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| alnum(b) || b == b'-')
        && label.bytes().next().is_some_and(alnum)
        && label.bytes().last().is_some_and(alnum)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn pod() -> Pod {
        serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "web", "namespace": "shop", "uid": "u-1",
                "labels": {"app": "web", "z.io/tier": "front"},
                "annotations": {"note": "a \"b\"\n\\ é\u{7f}", "Up.io/Key": "v"},
            },
            "spec": {"containers": [
                {"name": "main", "resources": {
                    "requests": {"cpu": "250m", "memory": "100Mi", "hugepages-2Mi": "4Mi"},
                    "limits": {"cpu": "1500m", "memory": "1Gi"}}},
                {"name": "free"},
            ], "initContainers": [{"name": "first", "resources": {"limits": {"cpu": "2"}}}]},
        }))
        .unwrap()
    }

    fn node() -> Allocatable {
        Allocatable { milli_cpu: 3500, memory: 8 << 30, ephemeral_storage: 5000, ..Default::default() }
    }

    #[test]
    fn fields() {
        for (path, want) in [
            ("metadata.name", "web"),
            ("metadata.namespace", "shop"),
            ("metadata.uid", "u-1"),
            ("metadata.labels", "app=\"web\"\nz.io/tier=\"front\""),
            ("metadata.annotations", "Up.io/Key=\"v\"\nnote=\"a \\\"b\\\"\\n\\\\ é\\x7f\""),
            ("metadata.labels['z.io/tier']", "front"),
            ("metadata.labels['absent']", ""),
            ("metadata.annotations['Up.io/Key']", "v"),
        ] {
            assert_eq!(field_value(&pod(), path).as_deref(), Ok(want), "{path}");
        }
        for (path, want) in [
            ("spec.nope", "unsupported fieldPath: spec.nope"),
            ("spec.x['y']", "fieldPath \"spec.x['y']\" does not support subscript"),
            (
                "metadata.labels['a b']",
                "invalid key subscript in metadata.labels['a b']: \"a b\" is not a qualified name",
            ),
        ] {
            assert_eq!(field_value(&pod(), path).unwrap_err().to_string(), want);
        }
    }

    #[test]
    fn resources() {
        for (container, resource, divisor, want) in [
            ("main", "limits.cpu", None, "2"),
            ("main", "limits.cpu", Some("1m"), "1500"),
            ("main", "limits.cpu", Some("0"), "2"),
            ("main", "requests.cpu", None, "1"),
            ("main", "requests.memory", Some("1Mi"), "100"),
            ("main", "requests.memory", Some("1Gi"), "1"),
            ("main", "requests.hugepages-2Mi", Some("1Mi"), "4"),
            ("main", "limits.hugepages-2Mi", None, "0"),
            ("free", "limits.cpu", None, "4"),
            ("free", "limits.memory", Some("1Gi"), "8"),
            ("free", "limits.ephemeral-storage", None, "5000"),
            ("free", "requests.cpu", None, "0"),
            ("first", "limits.cpu", None, "2"),
        ] {
            let divisor = divisor.map(|d: &str| Quantity(d.into()));
            let got = resource_value(&pod(), container, resource, divisor.as_ref(), &node());
            assert_eq!(got.as_deref(), Ok(want), "{container} {resource} {divisor:?}");
        }
        let mut limited = pod();
        limited.spec.as_mut().unwrap().resources =
            serde_json::from_value(serde_json::json!({"limits": {"cpu": "3"}})).unwrap();
        assert_eq!(resource_value(&limited, "free", "limits.cpu", None, &node()).unwrap(), "3");
        assert_eq!(
            resource_value(&pod(), "main", "limits.gpu", None, &node()).unwrap_err().to_string(),
            "unsupported container resource : limits.gpu"
        );
        assert_eq!(
            resource_value(&pod(), "ghost", "limits.cpu", None, &node()).unwrap_err().to_string(),
            "container ghost not found"
        );
    }
}
