//! Names: kept in the case they were asked in, compared without it.

use domain::base::Name as Wire;

/// A whole name in wire form.
pub type Name = Wire<Vec<u8>>;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a domain name")]
pub struct BadName(pub String);

/// Reads a name, with or without the last dot.
pub fn parse(text: &str) -> Result<Name, BadName> {
    match text {
        "." | "" => Ok(Name::root()),
        _ => Name::vec_from_str(text).map_err(|_| BadName(text.to_owned())),
    }
}

/// The labels in front of `zone` in lower case, first label first; none if the name is not in the zone. A label that is no text
/// is the name of nothing we know.
#[must_use]
pub fn labels_in(name: &Name, zone: &Name) -> Option<Vec<String>> {
    if !name.ends_with(zone) {
        return None;
    }
    // Both counts have the root.
    let own = name.label_count() - zone.label_count();
    let text = |label: &[u8]| String::from_utf8_lossy(label).to_ascii_lowercase();
    Some(name.iter().take(own).map(|label| text(label.as_slice())).collect())
}

/// `first` in front of `rest`; none if that is too long.
#[must_use]
pub fn join(first: &[&str], rest: &Name) -> Option<Name> {
    let mut bytes = Vec::with_capacity(64);
    for label in first {
        let size = u8::try_from(label.len()).ok().filter(|size| (1..=63).contains(size))?;
        bytes.push(size);
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.extend_from_slice(rest.as_slice());
    Name::from_octets(bytes).ok()
}

/// In lower case, as a key.
#[must_use]
pub fn canonical(name: &Name) -> Name {
    let mut name = name.clone();
    name.make_canonical();
    name
}

/// As people write it, with the last dot.
#[must_use]
pub fn text(name: &Name) -> String {
    name.fmt_with_dot().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_at_their_zone_whatever_the_case() {
        let zone = parse("cluster.local").unwrap();
        let rows: [(&str, Option<&[&str]>); 5] = [
            ("A.Default.SVC.Cluster.LOCAL.", Some(&["a", "default", "svc"])),
            ("cluster.local", Some(&[])),
            ("local", None),
            ("xcluster.local", None),
            (".", None),
        ];
        for (name, labels) in rows {
            let found = labels_in(&parse(name).unwrap(), &zone);
            assert_eq!(found, labels.map(|l| l.iter().map(|l| (*l).to_owned()).collect()), "{name}");
        }
        assert_eq!(text(&join(&["_http", "_tcp"], &zone).unwrap()), "_http._tcp.cluster.local.");
        assert_eq!(join(&[&"a".repeat(64)], &zone), None);
        assert_eq!(join(&[""], &zone), None);
        assert_eq!(text(&parse(".").unwrap()), ".");
        assert!(parse("a..b").is_err());
    }
}
