//! Image references, as far as a Pod's text needs them.

/// The reference with `:latest` added when it has neither tag nor digest. Short names stay short.
#[must_use]
pub fn effective_image(image: &str) -> String {
    if image.is_empty() || image.contains('@') || tag(image).is_some() {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

/// `imagePullPolicy` where the manifest has none: Always for `:latest`, else IfNotPresent.
#[must_use]
pub fn default_pull_policy(image: &str) -> &'static str {
    let latest = match tag(image) {
        Some(tag) => tag == "latest",
        None => !image.contains('@'),
    };
    // Upstream ignores a reference that does not parse and finds no tag in it.
    if latest && !image.is_empty() { "Always" } else { "IfNotPresent" }
}

/// The tag, never mistaken for the port of a registry.
fn tag(image: &str) -> Option<&str> {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let last = name.rsplit_once('/').map_or(name, |(_, last)| last);
    last.split_once(':').map(|(_, tag)| tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_policies() {
        let digest = "a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (image, effective, policy) in [
            ("busybox", "busybox:latest", "Always"),
            ("busybox:latest", "busybox:latest", "Always"),
            ("busybox:1", "busybox:1", "IfNotPresent"),
            ("host:5000/x", "host:5000/x:latest", "Always"),
            ("host:5000/x:v2", "host:5000/x:v2", "IfNotPresent"),
            (digest, digest, "IfNotPresent"),
            ("", "", "IfNotPresent"),
        ] {
            assert_eq!(effective_image(image), effective, "{image}");
            assert_eq!(default_pull_policy(image), policy, "{image}");
        }
    }
}
