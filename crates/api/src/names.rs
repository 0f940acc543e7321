//! The syntaxes names must follow. Each check returns messages, none when the name is good.

/// RFC 1123 label: container, volume and host names.
#[must_use]
pub fn dns_label(value: &str) -> Vec<String> {
    let mut out = at_most(value, 63);
    if !is_dns_label(value) {
        out.push(if is_dns_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
             start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for \
             validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .to_owned()
        });
    }
    out
}

/// RFC 1123 subdomain: Pod, node and most object names.
#[must_use]
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut out = at_most(value, 253);
    if !is_dns_subdomain(value) {
        out.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
             and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
             validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    out
}

/// RFC 1035 label: starts with a letter.
#[must_use]
pub fn dns_1035_label(value: &str) -> Vec<String> {
    let mut out = at_most(value, 63);
    if !is_dns_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        out.push(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
             alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex \
             used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
                .to_owned(),
        );
    }
    out
}

/// A subdomain whose first label may be `*`.
#[must_use]
pub fn wildcard_dns_subdomain(value: &str) -> Vec<String> {
    let mut out = at_most(value, 253);
    if !value.strip_prefix("*.").is_some_and(is_dns_subdomain) {
        out.push(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
             consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character \
             (e.g. '*.example.com', regex used for validation is \
             '\\*\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    out
}

/// Anything that can stand between two slashes of a path.
#[must_use]
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    ["/", "%"].iter().filter(|c| value.contains(**c)).map(|c| format!("may not contain '{c}'")).collect()
}

/// A DNS search path: a subdomain whose labels may hold underscores.
#[must_use]
pub fn search_domain(value: &str) -> Vec<String> {
    let mut out = at_most(value, 253);
    let label = |l: &str| {
        let l = l.strip_prefix('_').unwrap_or(l);
        edged(l, |b| lower_alnum(b) || b == b'-' || b == b'_', lower_alnum)
    };
    if !value.split('.').all(label) {
        out.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or \
             '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
             validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')"
                .to_owned(),
        );
    }
    out
}

/// A label key, resource name or condition type: `[prefix/]name`.
#[must_use]
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    let parts: Vec<&str> = value.split('/').collect();
    let name = match *parts {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                out.push("prefix part must be non-empty".to_owned());
            } else {
                out.extend(dns_subdomain(prefix).into_iter().map(|m| format!("prefix part {m}")));
            }
            name
        }
        _ => {
            out.push(format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                LABEL_CHARACTERS
            ));
            return out;
        }
    };
    if name.is_empty() {
        out.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        out.push("name part must be no more than 63 bytes".to_owned());
    }
    if !is_label_text(name) {
        out.push(format!(
            "name part {LABEL_CHARACTERS} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
             validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
        ));
    }
    out
}

#[must_use]
pub fn label_value(value: &str) -> Vec<String> {
    let mut out = Vec::new();
    if value.len() > 63 {
        out.push("must be no more than 63 bytes".to_owned());
    }
    if !value.is_empty() && !is_label_text(value) {
        out.push(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
             must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
             regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
                .to_owned(),
        );
    }
    out
}

#[must_use]
pub fn port_name(value: &str) -> Vec<String> {
    let mut out = at_most(value, 15);
    if value.is_empty() || !value.bytes().all(|b| lower_alnum(b) || b == b'-') {
        out.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !value.bytes().any(|b| b.is_ascii_lowercase()) {
        out.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        out.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        out.push("must not begin or end with a hyphen".to_owned());
    }
    out
}

#[must_use]
pub fn port_number(value: i64) -> Vec<String> {
    in_range(value, 1, 65535)
}

#[must_use]
pub fn user_or_group_id(value: i64) -> Vec<String> {
    in_range(value, 0, i64::from(i32::MAX))
}

#[must_use]
pub fn in_range(value: i64, lo: i64, hi: i64) -> Vec<String> {
    if (lo..=hi).contains(&value) {
        Vec::new()
    } else {
        vec![format!("must be between {lo} and {hi}, inclusive")]
    }
}

/// Environment variables may be named almost anything since 1.34.
#[must_use]
pub fn env_name(value: &str) -> Vec<String> {
    if value.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ]
    }
}

#[must_use]
pub fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        Vec::new()
    } else {
        vec![
            "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex \
             used for validation is '[-A-Za-z0-9]+')"
                .to_owned(),
        ]
    }
}

#[must_use]
pub fn config_key(value: &str) -> Vec<String> {
    let mut out = at_most(value, 253);
    if value.is_empty()
        || !value.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    {
        out.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or \
             'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    if value == "." || value == ".." {
        out.push(format!("must not be '{value}'"));
    } else if value.starts_with("..") {
        out.push("must not start with '..'".to_owned());
    }
    out
}

/// A sysctl name, with dots or slashes.
#[must_use]
pub fn is_sysctl(value: &str) -> bool {
    let inner = |b| lower_alnum(b) || b == b'-' || b == b'_';
    value.len() <= 253 && value.split(['.', '/']).all(|s| edged(s, inner, lower_alnum))
}

/// An address as the API takes it; leading zeros in IPv4 are refused, as Go refuses them.
#[must_use]
pub fn ip(value: &str) -> Vec<String> {
    if value.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

fn is_dns_label(value: &str) -> bool {
    edged(value, |b| lower_alnum(b) || b == b'-', lower_alnum)
}

fn is_dns_subdomain(value: &str) -> bool {
    value.split('.').all(is_dns_label)
}

const LABEL_CHARACTERS: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and \
                                end with an alphanumeric character";

fn is_label_text(value: &str) -> bool {
    edged(
        value,
        |b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'),
        |b| b.is_ascii_alphanumeric(),
    )
}

fn edged(value: &str, inner: impl Fn(u8) -> bool, edge: impl Fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    edge(*first) && edge(*last) && bytes.iter().all(|b| inner(*b))
}

fn lower_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn at_most(value: &str, max: usize) -> Vec<String> {
    if value.len() > max { vec![format!("must be no more than {max} characters")] } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syntaxes() {
        type Check = fn(&str) -> bool;
        let table: [(&str, Check, &[&str], &[&str]); 12] = [
            ("label", |v| dns_label(v).is_empty(), &["a", "a-b", "0"], &["", "-a", "a-", "A", "a.b", "é"]),
            ("subdomain", |v| dns_subdomain(v).is_empty(), &["a.b", "a"], &["", "a..b", ".a", "a_b"]),
            ("1035", |v| dns_1035_label(v).is_empty(), &["a", "a-1"], &["", "1a", "a-", "a.b"]),
            (
                "wildcard",
                |v| wildcard_dns_subdomain(v).is_empty(),
                &["*.a", "*.a.b"],
                &["*", "*.", "a.*", "a"],
            ),
            ("segment", |v| path_segment(v).is_empty(), &["a:b", "..."], &[".", "..", "a/b", "a%"]),
            ("search", |v| search_domain(v).is_empty(), &["_a.b", "a_b"], &["", "A", "a..b"]),
            ("qualified", |v| qualified_name(v).is_empty(), &["A_b", "x.y/Z"], &["", "/a", "a/", "a/b/c"]),
            ("value", |v| label_value(v).is_empty(), &["", "A.b"], &["-", " "]),
            ("port", |v| port_name(v).is_empty(), &["http", "h2c"], &["", "80", "a--b", "-a", "A"]),
            ("env", |v| env_name(v).is_empty(), &["A", "a b", "1"], &["a=b", "é", "\u{7}"]),
            ("key", |v| config_key(v).is_empty(), &["a.b"], &["", ".", "..", "..a", "a/b"]),
            ("sysctl", is_sysctl, &["net.ipv4.x", "a/b.c-d_e"], &["", "a..b", "A", "a."]),
        ];
        for (name, check, good, bad) in table {
            good.iter().for_each(|v| assert!(check(v), "{name} {v:?}"));
            bad.iter().for_each(|v| assert!(!check(v), "{name} {v:?}"));
        }
        assert!(ip("10.0.0.1").is_empty() && ip("::1").is_empty());
        assert!(!ip("10.0.0.01").is_empty() && !ip("x").is_empty());
    }
}
