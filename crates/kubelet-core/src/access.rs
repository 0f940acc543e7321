//! What a request to the kubelet asks for, in the words in which the API server is asked whether it is allowed:
//! `nodes/<subresource>` of this node, and a verb.

/// A question about a request. Any of the subresources suffices; they are asked about in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Empty for methods that mean nothing here.
    pub verb: &'static str,
    pub subresources: &'static [&'static str],
}

/// Paths with a subresource of their own; all others are `proxy`.
const PATHS: &[(&str, &[&str])] = &[
    ("/pods", &["pods", "proxy"]),
    ("/healthz", &["healthz", "proxy"]),
    ("/configz", &["configz", "proxy"]),
    ("/runningpods", &["pods", "proxy"]),
    ("/stats", &["stats"]),
    ("/metrics", &["metrics"]),
    ("/logs", &["log"]),
    ("/checkpoint", &["checkpoint"]),
    ("/statusz", &["statusz"]),
    ("/flagz", &["configz"]),
];

/// What runs in a container or reaches into it.
const STREAMS: &[&str] = &["/exec", "/attach", "/portForward", "/run"];

/// The question to ask about a request.
///
/// A WebSocket begins with a GET, so upstream lets whoever may `get` nodes/proxy run commands in every container of the
/// node. Here that takes `create`, however the request is made.
#[must_use]
pub fn question(method: &str, path: &str) -> Question {
    let is_below = |root: &&str| is_below(path, root);
    let verb = match method {
        "GET" if STREAMS.iter().any(is_below) => "create",
        "POST" => "create",
        "GET" => "get",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "",
    };
    let known = PATHS.iter().find(|(root, _)| is_below(root));
    Question { verb, subresources: known.map_or(&["proxy"], |(_, subresources)| subresources) }
}

fn is_below(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_its_subresources() {
        let rows: &[(&str, &str, &str, &[&str])] = &[
            ("GET", "/stats/summary", "get", &["stats"]),
            ("POST", "/stats/summary", "create", &["stats"]),
            ("GET", "/metrics", "get", &["metrics"]),
            ("GET", "/metrics/cadvisor", "get", &["metrics"]),
            ("GET", "/metricsx", "get", &["proxy"]),
            ("GET", "/logs/", "get", &["log"]),
            ("GET", "/logs", "get", &["log"]),
            ("POST", "/checkpoint/ns/p/c", "create", &["checkpoint"]),
            ("GET", "/statusz", "get", &["statusz"]),
            ("GET", "/flagz", "get", &["configz"]),
            ("GET", "/pods", "get", &["pods", "proxy"]),
            ("GET", "/pods/", "get", &["pods", "proxy"]),
            ("GET", "/runningpods/", "get", &["pods", "proxy"]),
            ("GET", "/healthz/ping", "get", &["healthz", "proxy"]),
            ("GET", "/configz", "get", &["configz", "proxy"]),
            ("GET", "/containerLogs/ns/p/c", "get", &["proxy"]),
            ("PUT", "/debug/flags/v", "update", &["proxy"]),
            ("PATCH", "/", "patch", &["proxy"]),
            ("DELETE", "/pods", "delete", &["pods", "proxy"]),
            ("HEAD", "/pods", "", &["pods", "proxy"]),
            ("GET", "//metrics", "get", &["proxy"]),
            ("GET", "", "get", &["proxy"]),
        ];
        for (method, path, verb, subresources) in rows {
            assert_eq!(question(method, path), Question { verb, subresources }, "{method} {path}");
        }
    }

    #[test]
    fn reading_is_not_enough_to_run_commands() {
        for path in ["/exec/ns/p/c", "/attach/ns/p/uid/c", "/portForward/ns/p", "/run/ns/p/c", "/exec"] {
            for method in ["GET", "POST"] {
                assert_eq!(question(method, path).verb, "create", "{method} {path}");
            }
        }
        assert_eq!(question("GET", "/executor").verb, "get");
    }
}
