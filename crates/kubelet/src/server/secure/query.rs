//! The parameters of a request, read as Go's servers read them.

use super::percent;

/// Names and values in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

/// More are not read.
const MOST: usize = 4096;

// === impl Query ===

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let pairs = text.unwrap_or_default().split('&').filter(|p| !p.is_empty()).take(MOST);
        let pair = |p: &str| {
            let (name, value) = p.split_once('=').unwrap_or((p, ""));
            let plain = |text: &str| percent::decode(&text.replace('+', " "));
            Some((plain(name)?, plain(value)?))
        };
        Self(pairs.filter_map(pair).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Present, and neither `false` nor `0`.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_broken_ones_left_out() {
        let query = Query::parse(Some("command=sh&command=-c&command=echo+%22a%26b%22&x=%zz&%ff=1&&flag"));
        assert_eq!(query.all("command").collect::<Vec<_>>(), ["sh", "-c", "echo \"a&b\""]);
        assert_eq!((query.get("x"), query.get("flag"), query.flag("flag")), (None, Some(""), true));
        assert!(!Query::parse(Some("a=False")).flag("a") && !Query::parse(None).flag("a"));
    }
}
