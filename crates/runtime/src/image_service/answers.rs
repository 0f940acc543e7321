//! Between the store's words and the CRI's.

use std::collections::BTreeMap;

use api::image::Reference;
use base::class::{Class, Classify};
use cri::v1;
use images::{Digest, Image};
use registry::Login;
use serde_json::{Value, json};
use tonic::{Code, Status};

/// Names of one registry, which is called differently by different people.
const DOCKER: &[&str] = &["docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"];

pub(super) fn image(image: &Image) -> v1::Image {
    // Of `user:group` the user counts.
    let user = image.config.user.split(':').next().unwrap_or_default();
    let uid = user.parse::<i64>().ok();
    v1::Image {
        id: image.id.clone(),
        repo_tags: image.tags.clone(),
        repo_digests: image.digests.clone(),
        size: image.size,
        uid: uid.map(|value| v1::Int64Value { value }),
        username: if uid.is_some() { String::new() } else { user.to_owned() },
        spec: None,
        pinned: image.pinned,
    }
}

/// Whether a repository's name without tag and digest is meant, and the image is of that.
pub(super) fn is_of(image: &Image, wanted: &str) -> bool {
    let Ok(name) = api::image::repository(wanted) else { return false };
    let is_bare = api::image::trim(wanted).is_ok_and(|bare| bare == wanted);
    let of = |known: &String| Reference::parse(known).is_ok_and(|known| known.repository() == name);
    is_bare && image.tags.iter().chain(&image.digests).any(of)
}

/// What people ask for when they look closely, as containerd tells it.
pub(super) fn info(image: &Image, config: Option<String>) -> BTreeMap<String, String> {
    let config = config.and_then(|text| serde_json::from_str::<Value>(&text).ok()).unwrap_or_default();
    let layers: Vec<&str> = image.layers.iter().map(Digest::as_str).collect();
    let info = json!({ "chainID": chain(&config), "imageSpec": config, "layers": layers });
    BTreeMap::from([("info".to_owned(), info.to_string())])
}

/// The name of all layers together: each is added to what is below it.
fn chain(config: &Value) -> Option<String> {
    let ids = config.pointer("/rootfs/diff_ids")?.as_array()?.iter().filter_map(Value::as_str);
    ids.fold(None, |below: Option<String>, id| {
        Some(match below {
            Some(below) => Digest::of(format!("{below} {id}").as_bytes()).to_string(),
            None => id.to_owned(),
        })
    })
}

/// None where there is nothing to log in with at this registry; an error for what is no login.
pub(super) fn login(auth: &v1::AuthConfig, registry: &str) -> Option<Result<Login, Status>> {
    if !auth.server_address.is_empty() && !is_same_server(&auth.server_address, registry) {
        tracing::debug!(server = auth.server_address, registry, "a login for another registry is not used");
        return None;
    }
    let plain = Login {
        username: auth.username.clone(),
        password: auth.password.clone(),
        identity_token: auth.identity_token.clone(),
        registry_token: auth.registry_token.clone(),
    };
    if plain == Login::default() && !auth.auth.is_empty() {
        let wrong = || Status::invalid_argument("auth.auth is no name and password in base64");
        return Some(Login::from_auth(&auth.auth).ok_or_else(wrong));
    }
    (plain != Login::default()).then_some(Ok(plain))
}

/// An address may come as a URL, with a path of old.
fn is_same_server(address: &str, registry: &str) -> bool {
    let host = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    host == registry || (DOCKER.contains(&host) && DOCKER.contains(&registry))
}

/// The code is for programs, the text for people and for the kubelet, which looks at its first word.
pub(super) fn refusal(error: &registry::Error) -> Status {
    let code = match error {
        registry::Error::Image(images::Error::Name(_)) => Code::InvalidArgument,
        registry::Error::Image(error) if error.is_disk_full() => Code::ResourceExhausted,
        registry::Error::Login { .. } => Code::PermissionDenied,
        error if error.is_not_found() => Code::NotFound,
        registry::Error::Platform { .. } => Code::NotFound,
        error if error.class() == Class::Reject => Code::FailedPrecondition,
        // Not Unavailable: that would mean that we are.
        _ => Code::Unknown,
    };
    Status::new(code, error.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn auth(server: &str) -> v1::AuthConfig {
        v1::AuthConfig { username: "ann".into(), server_address: server.into(), ..Default::default() }
    }

    #[test]
    fn a_login_goes_only_where_it_belongs() {
        for (server, registry, is_used) in [
            ("", "any.example", true),
            ("r.example:5000", "r.example:5000", true),
            ("https://r.example/v2/", "r.example", true),
            ("https://index.docker.io/v1/", "docker.io", true),
            ("other.example", "r.example", false),
        ] {
            assert_eq!(login(&auth(server), registry).is_some(), is_used, "{server} {registry}");
        }
        let packed = v1::AuthConfig { auth: "YW5uOnM6ZWNyZXQ=".into(), ..Default::default() };
        assert_eq!(login(&packed, "r").unwrap().unwrap().password, "s:ecret");
        let odd = v1::AuthConfig { auth: "%".into(), ..Default::default() };
        assert!(login(&odd, "r").unwrap().unwrap_err().message().contains("auth.auth"));
        assert!(login(&v1::AuthConfig::default(), "r").is_none());
    }

    #[test]
    fn layers_have_a_name_together() {
        let one = json!({ "rootfs": { "diff_ids": ["sha256:a"] } });
        assert_eq!(chain(&one), Some("sha256:a".into()));
        let two = json!({ "rootfs": { "diff_ids": ["sha256:a", "sha256:b"] } });
        assert_eq!(chain(&two), Some(Digest::of(b"sha256:a sha256:b").to_string()));
        assert_eq!(chain(&Value::Null), None);
    }
}
