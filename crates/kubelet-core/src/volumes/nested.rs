//! Other volumes inside a volume of files: a container may mount one at `/etc/app` and another at `/etc/app/certs`.
//!
//! Containers may only read the outer one, so no runtime can make the place for the inner one there.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;

use super::mounts;

/// The directories that have to be in the volume, by upstream's rule: what lies deeper is in another volume.
pub(super) fn nested(pod: &Pod, volume: &str) -> Result<Vec<String>, String> {
    let mut all = BTreeSet::new();
    for mounts in mounts(pod) {
        let places: BTreeSet<String> = mounts.iter().map(|m| clean(&m.mount_path)).collect();
        for mount in mounts.iter().filter(|m| m.name == volume) {
            let own = clean(&mount.mount_path);
            if own.starts_with("../") {
                return Err(format!("invalid container mount point {own}"));
            }
            all.extend(below(&own, &places));
        }
    }
    // Those are our own names.
    all.retain(|path| !path.starts_with(".."));
    Ok(all.into_iter().collect())
}

/// The outermost of `places` below `own`, as seen from there.
fn below(own: &str, places: &BTreeSet<String>) -> Vec<String> {
    let is_in =
        |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
    let mut found: Vec<&str> = Vec::new();
    for place in places.iter().filter(|place| is_in(place, own)) {
        if !found.iter().any(|outer| is_in(place, outer)) {
            found.push(place);
        }
    }
    found.into_iter().map(|place| place[own.len() + 1..].to_owned()).collect()
}

/// The shortest name of a path, by its text alone.
fn clean(path: &str) -> String {
    let is_rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match (part, parts.last()) {
            ("" | ".", _) => {}
            ("..", None) if is_rooted => {}
            ("..", Some(last)) if *last != ".." => _ = parts.pop(),
            _ => parts.push(part),
        }
    }
    let parts = parts.join("/");
    if is_rooted { format!("/{parts}") } else { parts }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What has to be in `v`, for containers that mount volumes at these places.
    fn in_v(containers: Value) -> Result<Vec<String>, String> {
        nested(&serde_json::from_value(json!({"spec": containers})).unwrap(), "v")
    }

    fn container(mounts: &[(&str, &str)]) -> Value {
        let mounts = mounts.iter().map(|(name, path)| json!({"name": name, "mountPath": path}));
        json!({"name": "c", "volumeMounts": mounts.collect::<Vec<_>>()})
    }

    #[test]
    fn only_the_outermost_places_inside_are_made() {
        let one = |mounts: &[(&str, &str)]| in_v(json!({"containers": [container(mounts)]}));
        for (mounts, want) in [
            (&[("v", "/etc/app"), ("w", "/etc/app/certs")][..], &["certs"][..]),
            (&[("v", "/etc/app/"), ("w", "/etc/./app//x/../a/b")], &["a/b"]),
            (
                &[("v", "/d"), ("w", "/d/n"), ("x", "/d/n-v"), ("y", "/d/n/deep"), ("z", "/d/n2")],
                &["n", "n-v", "n2"],
            ),
            (&[("v", "/d"), ("v", "/d/n/e"), ("v", "/e"), ("w", "/e/f")], &["f", "n/e"]),
            (&[("v", "/etc/app"), ("w", "/etc/application"), ("x", "/etc")], &[]),
            (&[("w", "/etc/app"), ("v", "/etc/app/certs")], &[]),
            (&[("v", "/"), ("w", "/x")], &[]),
            (&[("v", "/../d"), ("w", "/d/n"), ("x", "/d/..data"), ("y", "/d/..m/n")], &["n"]),
        ] {
            assert_eq!(one(mounts).unwrap(), want, "{mounts:?}");
        }
        assert_eq!(one(&[("v", "../d"), ("w", "../d/n")]).unwrap_err(), "invalid container mount point ../d");
    }

    #[test]
    fn all_containers_count_each_by_itself() {
        let outer = ("v", "/d");
        let got = in_v(json!({
            "initContainers": [container(&[outer, ("w", "/d/init")])],
            "containers": [container(&[outer, ("w", "/d/main")]), container(&[("w", "/d/nobody")])],
            "ephemeralContainers": [container(&[outer, ("w", "/d/main"), ("x", "/d/late")])],
        }));
        assert_eq!(got.unwrap(), ["init", "late", "main"]);
    }
}
