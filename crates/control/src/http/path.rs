//! What a method and a path ask for.

use std::borrow::Cow;

use percent::decode;

use crate::request::Resource;

/// A request, told apart by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// One of the eight for a resource; the method for anything else.
    pub(crate) verb: Cow<'static, str>,
    /// None for discovery, health, metrics.
    pub(crate) resource: Option<Resource>,
}

/// Tells what is asked. `query` decides between list and watch, and names the object of a list by field selector.
pub(crate) fn read(method: &http::Method, path: &str, watch: bool, named: Option<&str>) -> Asked {
    let other = || Asked { verb: Cow::Owned(method.as_str().to_ascii_lowercase()), resource: None };
    let Some(parts) = segments(path) else { return other() };
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    let (group, version, mut tail) = match &*parts {
        ["api", version, tail @ ..] if !tail.is_empty() => ("", *version, tail),
        ["apis", group, version, tail @ ..] if !tail.is_empty() => (*group, *version, tail),
        _ => return other(),
    };
    let Some(mut verb) = verb_of(method) else { return other() };
    // The old way to say ?watch=true; clients from the beginning still use it.
    let mut watching = watch;
    if let ["watch", below @ ..] = tail
        && !below.is_empty()
    {
        (tail, watching) = (below, true);
    }
    let mut resource =
        Resource { group: group.to_owned(), version: version.to_owned(), ..Resource::default() };
    let named_parts = match tail {
        ["namespaces", namespace, below @ ..] if !is_own_subresource(group, below) => {
            resource.namespace = (*namespace).to_owned();
            below
        }
        whole => whole,
    };
    match named_parts {
        // A Namespace itself: it is its own namespace, as role bindings in it expect.
        [] => {
            resource.plural = "namespaces".to_owned();
            resource.name = resource.namespace.clone();
        }
        [plural, below @ ..] => {
            resource.plural = (*plural).to_owned();
            if let ["namespaces", namespace, ..] = named_parts {
                resource.namespace = (*namespace).to_owned();
            }
            let (name, below) = below.split_first().map_or(("", below), |(n, b)| (*n, b));
            resource.name = name.to_owned();
            // What follows the subresource is the business of whoever it is passed on to.
            resource.subresource = below.first().copied().unwrap_or_default().to_owned();
        }
    }
    if resource.name.is_empty() {
        verb = match verb {
            "get" if watching => "watch",
            "get" => "list",
            "delete" => "deletecollection",
            other => other,
        };
        if matches!(verb, "list" | "watch" | "deletecollection") {
            resource.name = named.unwrap_or_default().to_owned();
        }
    } else if verb == "get" && watching && resource.subresource.is_empty() {
        verb = "watch";
    }
    Asked { verb: verb.into(), resource: Some(resource) }
}

/// Whether what follows `namespaces/{name}` belongs to the Namespace object rather than being a resource in it.
fn is_own_subresource(group: &str, below: &[&str]) -> bool {
    group.is_empty() && matches!(below, ["status" | "finalize"])
}

pub(super) fn verb_of(method: &http::Method) -> Option<&'static str> {
    Some(match *method {
        http::Method::GET | http::Method::HEAD => "get",
        http::Method::POST => "create",
        http::Method::PUT => "update",
        http::Method::PATCH => "patch",
        http::Method::DELETE => "delete",
        _ => return None,
    })
}

/// The decoded segments of a path; None when one of them is no text.
fn segments(path: &str) -> Option<Vec<Cow<'_, str>>> {
    path.trim_matches('/').split('/').map(decode).collect()
}

/// What follows the subresource in a path, as it was sent: the path that whoever it leads to is asked for. Segments are
/// counted as [`read`] does, since an object may have the name of a subresource.
pub(crate) fn beyond<'p>(path: &'p str, resource: &Resource) -> &'p str {
    let mut before = if resource.group.is_empty() { 2 } else { 3 };
    let path = path.trim_start_matches('/');
    if path.split('/').nth(before).and_then(decode).is_some_and(|s| s == "watch") {
        before += 1;
    }
    if !resource.namespace.is_empty() {
        before += 2;
    }
    // Its kind, its name, its subresource.
    before += 3;
    path.match_indices('/').nth(before - 1).map_or("/", |(at, _)| &path[at..])
}

/// Percent-encoding, as paths and queries use it.
pub(crate) mod percent {
    use std::borrow::Cow;

    /// None when the bytes are no UTF-8 or an escape is cut short.
    pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
        if !text.contains('%') {
            return Some(Cow::Borrowed(text));
        }
        let mut out = Vec::with_capacity(text.len());
        let mut bytes = text.bytes();
        while let Some(b) = bytes.next() {
            if b != b'%' {
                out.push(b);
                continue;
            }
            let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16));
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        }
        String::from_utf8(out).ok().map(Cow::Owned)
    }

    /// The same where a plus sign is a space.
    pub(crate) fn decode_query(text: &str) -> Option<String> {
        decode(&text.replace('+', " ")).map(Cow::into_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart() {
        // verb, group/version, namespace, plural, name, subresource
        let rows = [
            ("GET", "/api/v1/pods", "list /v1  pods  "),
            ("GET", "/api/v1/namespaces", "list /v1  namespaces  "),
            ("GET", "/api/v1/namespaces/a", "get /v1 a namespaces a "),
            ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 a namespaces a finalize"),
            ("GET", "/api/v1/namespaces/a/pods", "list /v1 a pods  "),
            ("GET", "/api/v1/namespaces/a/pods/p", "get /v1 a pods p "),
            ("POST", "/api/v1/namespaces/a/pods/p/exec", "create /v1 a pods p exec"),
            ("GET", "/api/v1/namespaces/a/services/s:80/proxy/x/y", "get /v1 a services s:80 proxy"),
            ("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 a deployments  "),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "patch apps/v1 a deployments d scale",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1 a pods  "),
            ("GET", "/api/v1/watch/namespaces/a/pods/p", "watch /v1 a pods p "),
            ("GET", "/api/v1/nodes/n%3A1", "get /v1  nodes n:1 "),
            ("GET", "/apis/apps/v1", "path get"),
            ("GET", "/api/v1/", "path get"),
            ("POST", "/livez", "path post"),
            ("OPTIONS", "/api/v1/pods", "path options"),
        ];
        for (method, path, told) in rows {
            let method = http::Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let asked = read(&method, path, false, None);
            let seen = match asked.resource {
                None => format!("path {}", asked.verb),
                Some(r) => format!(
                    "{} {}/{} {} {} {} {}",
                    asked.verb, r.group, r.version, r.namespace, r.plural, r.name, r.subresource
                ),
            };
            assert_eq!(seen, told, "{path}");
        }
    }

    #[test]
    fn what_follows_a_subresource_is_passed_on_as_it_was_sent() {
        let rows = [
            ("/api/v1/nodes/n/proxy", "/"),
            ("/api/v1/nodes/n/proxy/", "/"),
            ("/api/v1/nodes/n/proxy/logs/", "/logs/"),
            ("//api/v1/nodes/n/proxy//logs", "//logs"),
            ("/api/v1/nodes/proxy/proxy/a%2Fb", "/a%2Fb"),
            ("/api/v1/nodes/n%3A1/proxy/proxy/x", "/proxy/x"),
            ("/api/v1/namespaces/proxy/pods/proxy-1/proxy/x", "/x"),
            ("/api/v1/namespaces/a/services/proxy/proxy/", "/"),
            ("/api/v1/watch/namespaces/a/pods/p/proxy/x", "/x"),
        ];
        for (path, rest) in rows {
            let asked = read(&http::Method::GET, path, false, None);
            let seen = asked.resource.map(|r| (r.subresource.clone(), beyond(path, &r)));
            assert_eq!(seen, Some(("proxy".to_owned(), rest)), "{path}");
        }
    }

    #[test]
    fn a_watch_of_one_object_names_it() {
        let asked = read(&http::Method::GET, "/api/v1/namespaces/a/pods", true, Some("p"));
        let name = asked.resource.map(|r| r.name);
        assert_eq!((&*asked.verb, name.as_deref()), ("watch", Some("p")));
    }
}
