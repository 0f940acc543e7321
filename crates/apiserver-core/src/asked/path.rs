//! What a method and a path ask for.

use std::borrow::Cow;

use super::percent::decode;
use api::names;

use super::listing::Listing;
use super::query::Query;
use crate::api_status::ApiStatus;
use crate::request::Resource;

/// A request, told apart. Whether it is allowed and what is done both go by this one value.
#[derive(Clone, Debug)]
pub struct Asked {
    /// One of the eight for a resource, or nothing where the method is none of theirs; the method for anything else.
    pub verb: Cow<'static, str>,
    /// None for discovery, health, metrics.
    pub resource: Option<Resource>,
    /// Of a list, a watch or a deletecollection.
    pub listing: Option<Listing>,
    /// Why it cannot be done, for those who may know.
    pub fault: Option<ApiStatus>,
}

/// Tells what is asked. The query decides between list and watch, and may name the one object of either.
pub fn read(method: &http::Method, path: &str, query: &Query) -> Asked {
    let other = || Asked {
        verb: Cow::Owned(method.as_str().to_ascii_lowercase()),
        resource: None,
        listing: None,
        fault: None,
    };
    let Some(parts) = segments(path) else { return other() };
    let parts: Vec<&str> = parts.iter().map(AsRef::as_ref).collect();
    let (group, version, tail) = match &*parts {
        ["api", version, tail @ ..] if !tail.is_empty() => ("", *version, tail),
        ["apis", group, version, tail @ ..] if !tail.is_empty() => (*group, *version, tail),
        _ => return other(),
    };
    // The old way to say ?watch=true; clients from the beginning still use it.
    let (tail, by_path) = match tail {
        ["watch", below @ ..] if !below.is_empty() => (below, true),
        whole => (whole, false),
    };
    let mut resource = read_resource(group, tail);
    version.clone_into(&mut resource.version);
    let fault = check_names(&resource).err();
    let (named, whole) = (!resource.name.is_empty(), resource.subresource.is_empty());
    let verb = match verb_of(method) {
        _ if by_path => "watch",
        Some("get") if whole && query.flag("watch") => "watch",
        Some("get") if !named => "list",
        Some("delete") if !named => "deletecollection",
        Some(verb) => verb,
        None => "",
    };
    let mut asked = Asked { verb: verb.into(), resource: None, listing: None, fault };
    if matches!(verb, "list" | "watch" | "deletecollection") {
        asked.narrow(query, &mut resource, by_path);
    }
    asked.resource = Some(resource);
    asked
}

fn read_resource(group: &str, tail: &[&str]) -> Resource {
    let (namespace, plural, below) = match tail {
        // A Namespace itself: it is its own namespace, as role bindings in it expect.
        ["namespaces", name, below @ ..] if below.is_empty() || is_own_subresource(group, below) => {
            (*name, "namespaces", &tail[1..])
        }
        ["namespaces", namespace, plural, below @ ..] => (*namespace, *plural, below),
        [plural, below @ ..] => ("", *plural, below),
        [] => ("", "", tail),
    };
    let (name, below) = below.split_first().map_or(("", below), |(n, b)| (*n, b));
    Resource {
        group: group.to_owned(),
        namespace: namespace.to_owned(),
        plural: plural.to_owned(),
        name: name.to_owned(),
        // What follows the subresource is the business of whoever it is passed on to.
        subresource: below.first().copied().unwrap_or_default().to_owned(),
        ..Resource::default()
    }
}

/// An escaped slash makes no longer path of a name: it would reach into other places of the store.
fn check_names(resource: &Resource) -> Result<(), ApiStatus> {
    let Resource { namespace, name, plural, .. } = resource;
    // A Namespace is its own namespace, and is judged by its name.
    let is_itself = plural == "namespaces" && namespace == name;
    if !namespace.is_empty() && !is_itself && !names::path_segment(namespace).is_empty() {
        return Err(ApiStatus::no_resource());
    }
    let complaints = if name.is_empty() { Vec::new() } else { names::path_segment(name) };
    if complaints.is_empty() {
        return Ok(());
    }
    Err(ApiStatus::bad_request(format!("Name parameter invalid: {name:?}: {}", complaints.join(";"))))
}

// === impl Asked ===

impl Asked {
    /// Says what a list, watch or deletecollection is narrowed to.
    fn narrow(&mut self, query: &Query, resource: &mut Resource, by_path: bool) {
        let named = Some(resource.name.as_str()).filter(|name| !name.is_empty());
        let listing = match Listing::read(query, named) {
            Ok(listing) => listing,
            // What cannot be read narrows nothing, and is refused after all.
            Err(api_status) => {
                self.fault.get_or_insert(api_status);
                return;
            }
        };
        // Upstream lets no selector count on the old paths, nor a name for a deletecollection.
        if !by_path {
            resource.field_selector = listing.options().fields.clone();
            resource.label_selector = listing.options().labels.clone();
            if named.is_none() && self.verb != "deletecollection" {
                resource.name = listing.name().unwrap_or_default().to_owned();
            }
        }
        self.listing = Some(listing);
    }
}

/// Whether what follows `namespaces/{name}` belongs to the Namespace object rather than being a resource in it.
fn is_own_subresource(group: &str, below: &[&str]) -> bool {
    group.is_empty() && matches!(below, ["status" | "finalize"])
}

pub fn verb_of(method: &http::Method) -> Option<&'static str> {
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
/// counted as [`read`] does, since an object may have the name of a subresource. None when nothing follows.
pub fn beyond<'p>(path: &'p str, resource: &Resource) -> Option<&'p str> {
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
    path.match_indices('/').nth(before - 1).map(|(at, _)| &path[at..])
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
            // There are no Namespaces in a Namespace, whatever somebody may do in that one.
            ("GET", "/api/v1/namespaces/a/namespaces", "list /v1 a namespaces  "),
            ("GET", "/api/v1/namespaces/a/namespaces/b", "get /v1 a namespaces b "),
            ("PUT", "/api/v1/namespaces/a/namespaces/b/finalize", "update /v1 a namespaces b finalize"),
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
            ("OPTIONS", "/livez", "path options"),
            ("OPTIONS", "/api/v1/pods", " /v1  pods  "),
            ("OPTIONS", "/api/v1/namespaces/a/pods/p/proxy/x", " /v1 a pods p proxy"),
            ("POST", "/api/v1/watch/namespaces/a/pods", "watch /v1 a pods  "),
            ("GET", "/api/v1/watch/namespaces/a/pods/p/proxy/x", "watch /v1 a pods p proxy"),
        ];
        for (method, path, told) in rows {
            let method = http::Method::from_bytes(method.as_bytes()).unwrap_or_default();
            let asked = read(&method, path, &Query::default());
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
            ("/api/v1/nodes/n/proxy", None),
            ("/api/v1/nodes/n/proxy/", Some("/")),
            ("/api/v1/nodes/n/proxy/logs/", Some("/logs/")),
            ("//api/v1/nodes/n/proxy//logs", Some("//logs")),
            ("/api/v1/nodes/proxy/proxy/a%2Fb", Some("/a%2Fb")),
            ("/api/v1/nodes/n%3A1/proxy/proxy/x", Some("/proxy/x")),
            ("/api/v1/namespaces/proxy/pods/proxy-1/proxy/x", Some("/x")),
            ("/api/v1/namespaces/a/services/proxy/proxy/", Some("/")),
            ("/api/v1/watch/namespaces/a/pods/p/proxy/x", Some("/x")),
        ];
        for (path, rest) in rows {
            let asked = read(&http::Method::GET, path, &Query::default());
            let seen = asked.resource.map(|r| (r.subresource.clone(), beyond(path, &r)));
            assert_eq!(seen, Some(("proxy".to_owned(), rest)), "{path}");
        }
    }

    fn ask(line: &str) -> Asked {
        let (method, target) = line.split_once(' ').unwrap_or(("GET", line));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let method = http::Method::from_bytes(method.as_bytes()).unwrap_or_default();
        read(&method, path, &Query::parse(query).unwrap_or_default())
    }

    #[test]
    fn what_is_allowed_is_what_is_done() {
        // What is asked for, as whom authorization sees it, and the selector that is carried out.
        let rows = [
            (
                "GET /api/v1/namespaces/a/pods?watch=true&fieldSelector=metadata.name%3Dp",
                "watch p metadata.name=p",
            ),
            ("GET /api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp", "list p metadata.name=p"),
            ("GET /api/v1/namespaces/a/pods/p?watch=true", "watch p metadata.name=p"),
            ("GET /api/v1/namespaces/a/pods/p?watch=false&fieldSelector=metadata.name%3Dq", "get p -"),
            ("GET /api/v1/watch/namespaces/a/pods/p", "watch p metadata.name=p"),
            ("GET /api/v1/watch/namespaces/a/pods?fieldSelector=metadata.name%3Dp", "watch  metadata.name=p"),
            (
                "DELETE /api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp",
                "deletecollection  metadata.name=p",
            ),
            ("GET /api/v1/namespaces/a/pods/p?watch=true&fieldSelector=metadata.name%3Dq", "watch p 400"),
            ("GET /api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%3Dq", "watch p 400"),
            ("GET /api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp&limit=x", "list  400"),
            ("GET /api/v1/namespaces/a/pods/p%2Fq", "get p/q 400"),
            ("GET /api/v1/namespaces/a/pods/..", "get .. 400"),
            ("GET /api/v1/namespaces/..%2Fb/pods/p", "get p 404"),
            ("GET /api/v1/namespaces/..%2Fb/namespaces/p", "get p 404"),
            ("GET /api/v1/namespaces/..%2Fb", "get ../b 400"),
        ];
        for (line, told) in rows {
            let asked = ask(line);
            let done = match (&asked.fault, &asked.listing) {
                (Some(fault), _) => fault.code.to_string(),
                (None, Some(listing)) => listing.options().fields.to_string(),
                (None, None) => "-".to_owned(),
            };
            let name = asked.resource.map(|r| r.name).unwrap_or_default();
            assert_eq!(format!("{} {name} {done}", asked.verb), told, "{line}");
        }
    }
}
