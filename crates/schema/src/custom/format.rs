//! The `format` of a text. Unknown formats ask nothing.

use std::net::{Ipv4Addr, Ipv6Addr};

use base::rfc3339::Moment;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Whether `text` has the format. Dashes in the name of a format do not count.
pub(super) fn is(format: &str, text: &str) -> bool {
    let format: String = format.chars().filter(|c| *c != '-').collect();
    match &*format {
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => is_mac(text),
        "hostname" => is_hostname(text),
        "uri" => is_uri(text),
        "email" => is_email(text),
        "uuid" | "uuid3" | "uuid4" | "uuid5" => is_uuid(text, &format),
        "byte" => STANDARD.decode(text).is_ok(),
        "date" => text.parse::<jiff::civil::Date>().is_ok() && text.len() == 10,
        "datetime" => text.contains(['T', 't']) && Moment::parse_lenient(text).is_some(),
        "duration" => text.parse::<base::duration::GoDuration>().is_ok(),
        "bsonobjectid" => text.len() == 24 && text.bytes().all(|b| b.is_ascii_hexdigit()),
        "hexcolor" => {
            let digits = text.strip_prefix('#').unwrap_or(text);
            matches!(digits.len(), 3 | 6) && digits.bytes().all(|b| b.is_ascii_hexdigit())
        }
        "k8sshortname" => api::names::dns_label(text).is_empty(),
        "k8slongname" => api::names::dns_subdomain(text).is_empty(),
        _ => true,
    }
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let max = match (address.parse::<Ipv4Addr>(), address.parse::<Ipv6Addr>()) {
        (Ok(_), _) => 32,
        (_, Ok(_)) => 128,
        _ => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= max)
}

fn is_mac(text: &str) -> bool {
    let pairs = |separator: char| {
        let parts: Vec<&str> = text.split(separator).collect();
        matches!(parts.len(), 6 | 8 | 20)
            && parts.iter().all(|p| p.len() == 2 && p.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    pairs(':') || pairs('-')
}

fn is_hostname(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 255 && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label)
}

/// An absolute path, or a scheme and something after it.
fn is_uri(text: &str) -> bool {
    let is_clean = !text.bytes().any(|b| b.is_ascii_control() || b == b' ');
    let has_scheme = text.split_once(':').is_some_and(|(scheme, rest)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
            && !rest.is_empty()
    });
    is_clean && (text.starts_with('/') || has_scheme)
}

fn is_email(text: &str) -> bool {
    // `Name <address>` is an address too.
    let address = match text.split_once('<') {
        Some((_, rest)) => rest.strip_suffix('>').unwrap_or_default(),
        None => text,
    };
    address.rsplit_once('@').is_some_and(|(who, host)| {
        !who.is_empty() && !host.is_empty() && !address.contains(char::is_whitespace)
    })
}

fn is_uuid(text: &str, format: &str) -> bool {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b'-').collect();
    let has_form = digits.len() == 32
        && digits.iter().all(u8::is_ascii_hexdigit)
        && text.bytes().enumerate().all(|(i, b)| b != b'-' || matches!(i, 8 | 12 | 13 | 16..=18 | 20..=23));
    let is_variant = || matches!(digits[16].to_ascii_lowercase(), b'8' | b'9' | b'a' | b'b');
    has_form
        && match format {
            "uuid3" => digits[12] == b'3',
            "uuid4" => digits[12] == b'4' && is_variant(),
            "uuid5" => digits[12] == b'5' && is_variant(),
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats() {
        let cases: &[(&str, &[&str], &[&str])] = &[
            ("ipv4", &["10.0.0.1"], &["10.0.0", "::1", ""]),
            ("ipv6", &["::1", "fe80::2"], &["10.0.0.1", "g::"]),
            ("cidr", &["10.0.0.0/8", "fd00::/64"], &["10.0.0.0", "10.0.0.0/33", "x/8"]),
            ("mac", &["00:1a:2b:3c:4d:5e", "00-1A-2B-3C-4D-5E"], &["00:1a:2b", "zz:1a:2b:3c:4d:5e"]),
            ("hostname", &["a.example.com", "host"], &["-a", "a..b", "a_b"]),
            ("uri", &["http://x/y", "/path", "mailto:a@b"], &["no uri", "", "9:x"]),
            ("email", &["a@b.c", "A <a@b.c>"], &["a", "@b", "a b@c"]),
            (
                "uuid",
                &["123e4567-e89b-12d3-a456-426614174000", "123E4567e89b12d3a456426614174000"],
                &["123", ""],
            ),
            ("uuid4", &["123e4567-e89b-42d3-a456-426614174000"], &["123e4567-e89b-12d3-a456-426614174000"]),
            ("byte", &["aGk="], &["a*"]),
            ("date", &["2024-02-29"], &["2024-02-30", "2024-2-1", "x"]),
            ("date-time", &["2024-02-03T04:05:06Z", "2024-02-03T04:05:06.1+02:00"], &["2024-02-03", "x"]),
            ("duration", &["1h30m", "5s"], &["x", "5"]),
            ("anything", &["x", ""], &[]),
        ];
        for (format, good, bad) in cases {
            for text in *good {
                assert!(is(format, text), "{format} {text}");
            }
            for text in *bad {
                assert!(!is(format, text), "{format} {text}");
            }
        }
    }
}
