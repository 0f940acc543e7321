//! The parameters of a request, read as Go's servers read them.

use super::percent;

/// Names and values in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pairs: Vec<(String, String)>,
    left_out: Option<String>,
}

/// More are not read.
const MOST: usize = 4096;
/// Bytes of a parameter that a refusal shows.
const SHOWN: usize = 64;

// === impl Query ===

impl Query {
    pub(crate) fn parse(text: Option<&str>) -> Self {
        let mut query = Self::default();
        for part in text.unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            if query.pairs.len() == MOST {
                query.left_out = Some(format!("more than {MOST} query parameters"));
                break;
            }
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let plain = |text: &str| percent::decode(&text.replace('+', " "));
            match (plain(name), plain(value)) {
                (Some(name), Some(value)) => query.pairs.push((name, value)),
                _ => {
                    let shown: String = part.chars().take(SHOWN).collect();
                    query.left_out.get_or_insert(format!("query parameter {shown:?} is no text"));
                }
            }
        }
        query
    }

    /// What was not read, if anything. Whoever acts on all of it had better not.
    pub(crate) fn left_out(&self) -> Option<&str> {
        self.left_out.as_deref()
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.pairs.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
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
        assert_eq!(query.left_out(), Some("query parameter \"x=%zz\" is no text"));
        assert!(!Query::parse(Some("a=False")).flag("a") && !Query::parse(None).flag("a"));
    }

    #[test]
    fn what_is_left_out_is_told() {
        let many = |count: usize| Query::parse(Some(&vec!["command=x"; count].join("&")));
        assert_eq!((many(4096).left_out(), many(4096).all("command").count()), (None, 4096));
        assert_eq!(many(5000).left_out(), Some("more than 4096 query parameters"));
        for broken in ["a=%ff", "a=b%00", "%ff=a", "a=%4"] {
            let text = format!("first=1&{broken}&last=1");
            let query = Query::parse(Some(&text));
            assert!(query.left_out().unwrap_or_default().contains(broken) && query.flag("last"), "{broken}");
        }
    }
}
