//! Which credentials fit an image.

use super::docker_config::{Login, Logins};

/// Logins under the registries they are for, the most specific first, each with a note of where it is from.
#[derive(Clone, Debug)]
pub struct Keyring<T = ()> {
    /// Sorted by location, descending: `quay.io/team` comes before `quay.io`.
    entries: Vec<(String, Login, T)>,
}

/// Where Docker Hub's logins are kept for historical reasons.
const DOCKER_HUB: &str = "index.docker.io";

// === impl Keyring ===

impl<T: Clone> Keyring<T> {
    pub fn add(&mut self, logins: Logins, origin: &T) {
        for (location, login) in logins {
            if let Some(key) = key_of(&location) {
                let place = self.entries.partition_point(|(k, ..)| *k >= key);
                self.entries.insert(place, (key, login, origin.clone()));
            }
        }
    }

    /// Every login that fits the repository, in the order in which to try them. Docker Hub's old place counts only where
    /// nothing else on the whole ring fits.
    #[must_use]
    pub fn lookup(&self, repository: &str) -> Vec<(Login, T)> {
        let with = |fits: &dyn Fn(&str) -> bool| -> Vec<(Login, T)> {
            let fitting = self.entries.iter().filter(|(k, ..)| fits(k));
            fitting.map(|(_, login, origin)| (login.clone(), origin.clone())).collect()
        };
        let found = with(&|key| matches_url(key, repository));
        if found.is_empty() && is_docker_hub(repository) { with(&|key| key == DOCKER_HUB) } else { found }
    }
}

impl<T> Default for Keyring<T> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

/// Whether a location with wildcards in its host (`*.example.com/path`) fits a repository: as many
/// labels, each matching; the same port; the path a prefix.
#[must_use]
pub fn matches_url(glob: &str, target: &str) -> bool {
    let (Some(glob), Some(target)) = (Url::parse(glob), Url::parse(target)) else { return false };
    let (labels, wanted): (Vec<&str>, Vec<&str>) =
        (glob.host.split('.').collect(), target.host.split('.').collect());
    glob.port == target.port
        && labels.len() == wanted.len()
        && target.path.starts_with(glob.path)
        && labels.iter().zip(wanted).all(|(pattern, text)| matches_glob(pattern, text))
}

/// The host, and port if any, of a repository.
#[must_use]
pub fn registry_of(repository: &str) -> &str {
    repository.split('/').next().unwrap_or_default()
}

struct Url<'a> {
    host: &'a str,
    port: &'a str,
    path: &'a str,
}

impl<'a> Url<'a> {
    /// Reads a URL without scheme.
    fn parse(text: &'a str) -> Option<Self> {
        let (authority, path) = text.split_at(text.find('/').unwrap_or(text.len()));
        let path = path.split(['?', '#']).next().unwrap_or_default();
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port),
            _ => (authority, ""),
        };
        // The brackets of an IPv6 address are no character class.
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let sound = !host.contains([' ', '%', '<', '>', '"']) && port.bytes().all(|b| b.is_ascii_digit());
        sound.then_some(Self { host, port, path })
    }
}

/// The key of a location: without scheme, and without the `/v1/` or `/v2/` that old tools wrote.
fn key_of(location: &str) -> Option<String> {
    let rest =
        location.strip_prefix("https://").or_else(|| location.strip_prefix("http://")).unwrap_or(location);
    let url = Url::parse(rest)?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let path = match url.path {
        p if p.starts_with("/v1/") || p.starts_with("/v2/") => &p[3..],
        p => p,
    };
    Some(if path == "/" { authority.to_owned() } else { format!("{authority}{path}") })
}

fn is_docker_hub(repository: &str) -> bool {
    match repository.split_once('/') {
        None => !repository.is_empty(),
        Some((first, _)) => {
            matches!(first, "docker.io" | DOCKER_HUB) || (!first.is_empty() && !first.contains(['.', ':']))
        }
    }
}

/// Shell globs within one label: `*`, `?`, `[a-z]`, `[^a]`, `\` quotes. A broken pattern fits nothing.
fn matches_glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    matches_chars(&pattern, &text)
}

fn matches_chars(pattern: &[char], text: &[char]) -> bool {
    match pattern {
        [] => text.is_empty(),
        ['*', rest @ ..] => {
            // A run of stars is one star; otherwise the work would grow exponentially with them.
            let rest = rest.iter().position(|c| *c != '*').map_or(&[][..], |i| &rest[i..]);
            (0..=text.len()).any(|i| matches_chars(rest, &text[i..]))
        }
        ['?', rest @ ..] => !text.is_empty() && matches_chars(rest, &text[1..]),
        ['[', rest @ ..] => match (class(rest, text.first().copied()), text) {
            (Some((true, rest)), [_, text @ ..]) => matches_chars(rest, text),
            _ => false,
        },
        ['\\', quoted, rest @ ..] => text.first() == Some(quoted) && matches_chars(rest, &text[1..]),
        ['\\'] => false,
        [c, rest @ ..] => text.first() == Some(c) && matches_chars(rest, &text[1..]),
    }
}

/// Reads a class up to its `]` and says whether `c` is in it. `None` if it is broken.
fn class(pattern: &[char], c: Option<char>) -> Option<(bool, &[char])> {
    let negated = pattern.first() == Some(&'^');
    let mut rest = if negated { &pattern[1..] } else { pattern };
    let mut found = false;
    let mut first = true;
    loop {
        match rest {
            [']', after @ ..] if !first => return Some((found != negated && c.is_some(), after)),
            [low, '-', high, after @ ..] if *high != ']' => {
                found |= c.is_some_and(|c| (*low..=*high).contains(&c));
                rest = after;
            }
            [one, after @ ..] if !matches!(one, '-' | ']') => {
                found |= c == Some(*one);
                rest = after;
            }
            _ => return None,
        }
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls() {
        let rows = [
            ("*.docker.io", "blah.docker.io", true),
            ("*.docker.io", "not.right.io", false),
            ("*.docker.io", "a.b.docker.io", false),
            ("*.kubernetes.io", "*.kubernetes.io", true),
            ("k8s.gcr.io", "k8s.gcr.io/pause", true),
            ("reg*.io:5000", "registry.io:5000/x", true),
            ("registry.io", "registry.io:5000", false),
            ("registry.io:5000", "registry.io:6000", false),
            ("a.io/team", "a.io/team/app", true),
            ("a.io/team", "a.io/te", false),
            ("a.io/team", "a.io/teamwork", true),
            ("a.io/*", "a.io/x", false),
            ("r[0-9].io", "r7.io", true),
            ("r[^0-9].io", "r7.io", false),
            ("r?.io", "r.io", false),
            ("r[.io", "r[.io", false),
            ("r\\*.io", "r*.io", true),
            ("*.*.*", "a.b.c/d", true),
            ("[::1]:5000/a", "[::1]:5000/a/b", true),
            ("a.io:*", "a.io:1", false),
        ];
        for (glob, target, fits) in rows {
            assert_eq!(matches_url(glob, target), fits, "{glob} {target}");
        }
    }

    fn keyring(locations: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        for location in locations {
            let login = Login { username: (*location).into(), ..Login::default() };
            keyring.add([((*location).to_owned(), login)].into(), &());
        }
        keyring
    }

    #[test]
    fn the_most_specific_login_comes_first() {
        let ring = keyring(&[
            "quay.io",
            "https://quay.io/team/v2/",
            "*.io",
            "http://other.io/v1/",
            "https://index.docker.io/v1/",
            "bad host",
        ]);
        let names = |repo| ring.lookup(repo).into_iter().map(|(l, ())| l.username).collect::<Vec<_>>();
        assert_eq!(names("quay.io/app"), ["quay.io", "*.io"]);
        assert_eq!(names("quay.io/team/v2/x"), ["https://quay.io/team/v2/", "quay.io", "*.io"]);
        assert_eq!(names("other.io/x"), ["http://other.io/v1/", "*.io"]);
        assert_eq!(names("docker.io/library/busybox"), ["*.io"]);
        assert_eq!(names("example.com/x"), [""; 0]);
        let hub = keyring(&["https://index.docker.io/v1/", "a.io"]);
        assert_eq!(hub.lookup("docker.io/library/busybox").len(), 1);
        assert_eq!(hub.lookup("library/busybox").len(), 1);
        assert_eq!(hub.lookup("b.io/busybox").len(), 0);
        assert_eq!(registry_of("host:5000/a/b"), "host:5000");
    }

    proptest! {
        #[test]
        fn patterns_never_panic_and_a_host_fits_itself(pattern in "\\PC{0,20}", host in "[a-z0-9.-]{1,20}") {
            prop_assert!(matches_url(&host, &host));
            prop_assert!(!matches_url(&pattern, &host) || pattern.split('.').count() == host.split('.').count()
                || pattern.contains(['/', ':']));
        }
    }
}
