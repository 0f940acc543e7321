//! Image names, with the grammar of the OCI distribution project's references.

use std::fmt;

/// A name that is no image reference, in the words people know from other tools.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name {image:?}: {why}")]
pub struct BadName {
    pub image: String,
    pub why: String,
}

const NAME_MAX: usize = 255;
const DEFAULT_DOMAIN: &str = "docker.io";

/// A name with its host and its whole path, as a registry and a runtime's store want it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// The registry, with its port.
    pub domain: String,
    pub path: String,
    pub tag: Option<String>,
    /// `algorithm:hex`.
    pub digest: Option<String>,
}

#[derive(Debug)]
struct Parts<'a> {
    name: &'a str,
    tag: Option<&'a str>,
    digest: Option<&'a str>,
}

/// The name as it goes to the runtime: `:latest` is added where neither tag nor digest is given.
/// Short names stay short, since only the runtime knows where it looks for them.
pub fn with_default_tag(image: &str) -> Result<String, BadName> {
    let full = normalize(image)?;
    let parts = parse(&full).map_err(|why| bad(image, why))?;
    Ok(match (parts.tag, parts.digest) {
        (None, None) => format!("{image}:latest"),
        _ => image.to_owned(),
    })
}

/// The repository credentials are looked up for: fully qualified, without tag and digest.
pub fn repository(image: &str) -> Result<String, BadName> {
    let full = normalize(image)?;
    let parts = parse(&full).map_err(|why| bad(image, why))?;
    Ok(parts.name.to_owned())
}

/// The name as written, without tag and digest.
pub fn trim(image: &str) -> Result<&str, BadName> {
    parse(image).map(|parts| parts.name).map_err(|why| bad(image, why))
}

// === impl Reference ===

impl Reference {
    /// Short names get the default host, and the tag `latest` where neither tag nor digest is given.
    pub fn parse(image: &str) -> Result<Reference, BadName> {
        let full = normalize(image)?;
        let parts = parse(&full).map_err(|why| bad(image, why))?;
        let (domain, path) =
            parts.name.split_once('/').ok_or_else(|| bad(image, "invalid reference format"))?;
        let tag = match (parts.tag, parts.digest) {
            (None, None) => Some("latest"),
            (tag, _) => tag,
        };
        Ok(Reference {
            domain: domain.to_owned(),
            path: path.to_owned(),
            tag: tag.map(str::to_owned),
            digest: parts.digest.map(str::to_owned),
        })
    }

    /// Without tag and digest.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.domain, self.path)
    }

    /// `repository:tag`, if it has a tag.
    #[must_use]
    pub fn tagged(&self) -> Option<String> {
        self.tag.as_ref().map(|tag| format!("{}:{tag}", self.repository()))
    }

    /// `repository@digest`, for the digest that the name turned out to be.
    #[must_use]
    pub fn at(&self, digest: &str) -> String {
        format!("{}@{digest}", self.repository())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

/// Adds the default domain, and `library/` for an official image.
fn normalize(image: &str) -> Result<String, BadName> {
    if image.len() == 64 && image.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
        let why = format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings");
        return Err(bad(image, why));
    }
    let (domain, rest) = match image.split_once('/') {
        Some((first, rest)) if is_domain_like(first) => (first, rest),
        _ => (DEFAULT_DOMAIN, image),
    };
    let domain = if domain == "index.docker.io" { DEFAULT_DOMAIN } else { domain };
    let library = if domain == DEFAULT_DOMAIN && !rest.contains('/') { "library/" } else { "" };
    let path = rest.split_once(':').map_or(rest, |(path, _)| path);
    if path.chars().any(char::is_uppercase) {
        let why = format!("invalid reference format: repository name ({library}{path}) must be lowercase");
        return Err(bad(image, why));
    }
    Ok(format!("{domain}/{library}{rest}"))
}

fn is_domain_like(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase)
}

fn parse(text: &str) -> Result<Parts<'_>, String> {
    let invalid = || String::from("invalid reference format");
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (text, None),
    };
    let after_path = rest.rfind('/').map_or(0, |i| i + 1);
    let (name, tag) = match rest[after_path..].find(':') {
        Some(i) => (&rest[..after_path + i], Some(&rest[after_path + i + 1..])),
        None => (rest, None),
    };
    if tag.is_some_and(|t| !is_tag(t)) {
        return Err(invalid());
    }
    if let Some(digest) = digest {
        check_digest(digest)?;
    }
    if !is_name(name) {
        return Err(if is_name(&name.to_lowercase()) {
            "repository name must be lowercase".into()
        } else {
            invalid()
        });
    }
    if name.len() > NAME_MAX {
        return Err(format!("repository name must not be more than {NAME_MAX} characters"));
    }
    Ok(Parts { name, tag, digest })
}

fn is_name(name: &str) -> bool {
    let paths = |text: &str| text.split('/').all(is_path_component);
    match name.split_once('/') {
        Some((domain, path)) => paths(path) && (is_domain(domain) || is_path_component(domain)),
        None => is_path_component(name),
    }
}

/// Lower-case letters and digits, joined by `.`, `_`, `__` or any number of `-`.
fn is_path_component(text: &str) -> bool {
    let is_word = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends_well = bytes.first().is_some_and(is_word) && bytes.last().is_some_and(is_word);
    ends_well
        && bytes.split(is_word).all(|separator| {
            matches!(separator, b"" | b"." | b"_" | b"__") || separator.iter().all(|b| *b == b'-')
        })
}

fn is_domain(text: &str) -> bool {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    };
    if port.is_some_and(|p| p.is_empty() || !p.bytes().all(|b| b.is_ascii_digit())) {
        return false;
    }
    if let Some(v6) = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        return !v6.is_empty() && v6.bytes().all(|b| b.is_ascii_hexdigit() || b == b':');
    }
    host.split('.').all(|label| {
        !label.is_empty()
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    })
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(word)
        && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

fn check_digest(digest: &str) -> Result<(), String> {
    let (algorithm, hex) = digest.split_once(':').ok_or("invalid reference format")?;
    let is_hex = hex.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'a'..=b'f'));
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ if !is_hex || hex.len() < 32 || algorithm.is_empty() => {
            return Err("invalid reference format".into());
        }
        _ => return Err("unsupported digest algorithm".into()),
    };
    match (is_hex, hex.len() == length) {
        (true, true) => Ok(()),
        (true, false) if hex.len() >= 32 => Err("invalid checksum digest length".into()),
        _ => Err("invalid reference format".into()),
    }
}

fn bad(image: &str, why: impl Into<String>) -> BadName {
    BadName { image: image.to_owned(), why: why.into() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn good_names() {
        let rows = [
            // as written, with tag, repository, trimmed
            ("busybox", "busybox:latest", "docker.io/library/busybox", "busybox"),
            ("busybox:1.36", "busybox:1.36", "docker.io/library/busybox", "busybox"),
            ("me/app", "me/app:latest", "docker.io/me/app", "me/app"),
            (
                "index.docker.io/app",
                "index.docker.io/app:latest",
                "docker.io/library/app",
                "index.docker.io/app",
            ),
            ("localhost/app", "localhost/app:latest", "localhost/app", "localhost/app"),
            ("host:5000/a/b", "host:5000/a/b:latest", "host:5000/a/b", "host:5000/a/b"),
            ("host:5000/a/b:v1", "host:5000/a/b:v1", "host:5000/a/b", "host:5000/a/b"),
            ("[::1]:5000/a:v_1.-", "[::1]:5000/a:v_1.-", "[::1]:5000/a", "[::1]:5000/a"),
            (
                "quay.io/a__b/c--d.e",
                "quay.io/a__b/c--d.e:latest",
                "quay.io/a__b/c--d.e",
                "quay.io/a__b/c--d.e",
            ),
            ("UP.io/a", "UP.io/a:latest", "UP.io/a", "UP.io/a"),
        ];
        for (image, tagged, repo, trimmed) in rows {
            assert_eq!(with_default_tag(image).as_deref(), Ok(tagged), "{image}");
            assert_eq!(repository(image).as_deref(), Ok(repo), "{image}");
            assert_eq!(trim(image), Ok(trimmed), "{image}");
        }
        let both = format!("quay.io/a:v1@{DIGEST}");
        assert_eq!(with_default_tag(&both), Ok(both.clone()));
        assert_eq!(repository(&both).as_deref(), Ok("quay.io/a"));
        let digest = format!("a@{DIGEST}");
        assert_eq!(with_default_tag(&digest), Ok(digest.clone()));
    }

    #[test]
    fn a_reference_names_host_path_tag_and_digest() {
        let rows = [
            ("busybox", "docker.io/library/busybox:latest"),
            ("host:5000/a/b:v1", "host:5000/a/b:v1"),
            ("localhost/app", "localhost/app:latest"),
        ];
        for (image, full) in rows {
            assert_eq!(Reference::parse(image).unwrap().to_string(), full);
        }
        let pinned = Reference::parse(&format!("quay.io/a:v1@{DIGEST}")).unwrap();
        assert_eq!(pinned.tagged().as_deref(), Some("quay.io/a:v1"));
        assert_eq!(pinned.at(DIGEST), format!("quay.io/a@{DIGEST}"));
        let digest_only = Reference::parse(&format!("a@{DIGEST}")).unwrap();
        assert_eq!((digest_only.tag, digest_only.digest.as_deref()), (None, Some(DIGEST)));
        assert!(Reference::parse("team/Case").is_err());
    }

    #[test]
    fn bad_names() {
        let hex = "a".repeat(64);
        let long = format!("quay.io/{}", "a/".repeat(130) + "a");
        let short_digest = format!("a@sha256:{}", "a".repeat(40));
        let rows = [
            ("", "invalid reference format"),
            (":x", "invalid reference format"),
            ("busybox:", "invalid reference format"),
            ("busybox:-x", "invalid reference format"),
            ("a//b", "invalid reference format"),
            ("quay.io/", "invalid reference format"),
            ("-bad/x y", "invalid reference format"),
            ("host:port/a", "invalid reference format"),
            ("a@sha256:zz", "invalid reference format"),
            (&short_digest, "invalid checksum digest length"),
            ("Busybox", "invalid reference format: repository name (library/Busybox) must be lowercase"),
            (&hex, "cannot specify 64-byte hexadecimal strings"),
            (&long, "repository name must not be more than 255 characters"),
        ];
        for (image, why) in rows {
            let error = with_default_tag(image).unwrap_err();
            assert!(error.why.contains(why), "{image}: {}", error.why);
            assert!(repository(image).is_err());
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered_and_tags_are_stable(text in "\\PC{0,40}|[a-z0-9./:@_-]{0,40}") {
            if let Ok(tagged) = with_default_tag(&text) {
                prop_assert_eq!(with_default_tag(&tagged), Ok(tagged.clone()));
                prop_assert_eq!(repository(&text), repository(&tagged));
            }
        }
    }
}
