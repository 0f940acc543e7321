//! `WWW-Authenticate`: how a registry wants to be told who asks.

/// One way that a registry offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    /// A token, to be had at `realm`.
    Bearer {
        realm: String,
        service: String,
        scope: String,
    },
}

/// What of a header is known here. Tokens come first: a registry that offers both wants them.
pub(crate) fn parse(header: &str) -> Option<Challenge> {
    let mut basic = None;
    for (scheme, parameters) in challenges(header) {
        if scheme.eq_ignore_ascii_case("bearer") {
            let get = |name: &str| {
                let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                found.map(|(_, value)| value.clone()).unwrap_or_default()
            };
            let realm = get("realm");
            if !realm.is_empty() {
                return Some(Challenge::Bearer { realm, service: get("service"), scope: get("scope") });
            }
        } else if scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        }
    }
    basic
}

type Parameters = Vec<(String, String)>;

/// `Scheme key=value, key="value", Other key=value`.
fn challenges(header: &str) -> Vec<(String, Parameters)> {
    let mut all: Vec<(String, Parameters)> = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let (word, after) = token(rest);
        if word.is_empty() {
            // Not ours to understand: what was read so far counts.
            break;
        }
        let after = after.trim_start();
        match (after.strip_prefix('='), all.last_mut()) {
            (Some(value), Some((_, parameters))) => {
                let (value, after) = value_of(value.trim_start());
                parameters.push((word.to_owned(), value));
                rest = after;
            }
            _ => {
                all.push((word.to_owned(), Vec::new()));
                rest = after;
            }
        }
        rest = rest.trim_start_matches([' ', '\t', ',']);
    }
    all
}

fn token(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| c.is_whitespace() || matches!(c, '=' | ',' | '"')).unwrap_or(text.len());
    text.split_at(end)
}

fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let (value, rest) = token(text);
        return (value.to_owned(), rest);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_registries_say_is_understood() {
        let bearer = |realm: &str, service: &str, scope: &str| {
            Some(Challenge::Bearer { realm: realm.into(), service: service.into(), scope: scope.into() })
        };
        let rows = [
            (
                r#"Bearer realm="https://auth.example/token",service="registry.example",scope="repository:a/b:pull""#,
                bearer("https://auth.example/token", "registry.example", "repository:a/b:pull"),
            ),
            (r#"bearer  realm = "https://a/t" , service=x"#, bearer("https://a/t", "x", "")),
            (r#"Basic realm="x", Bearer realm="https://a/t""#, bearer("https://a/t", "", "")),
            (r#"Bearer realm="https://a/t", Basic realm="a, b""#, bearer("https://a/t", "", "")),
            (r#"Basic realm="registry \"x\"""#, Some(Challenge::Basic)),
            ("Basic", Some(Challenge::Basic)),
            (r#"Bearer error="insufficient_scope""#, None),
            ("Negotiate", None),
            ("", None),
            ("=,\"", None),
        ];
        for (header, want) in rows {
            assert_eq!(parse(header), want, "{header}");
        }
    }
}
