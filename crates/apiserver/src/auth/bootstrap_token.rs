//! Bootstrap tokens: how a node that has nothing yet asks for its first certificate.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base::rfc3339::Moment;
use base::time::Wall;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::objects::{Objects, places};
use apiserver_core::doc;
use apiserver_core::request::{User, groups};

const TYPE: &str = "bootstrap.kubernetes.io/token";

/// The user of a token `id.secret`, if a Secret in kube-system says so.
pub(super) async fn authenticate(objects: &Objects, token: &str, now: Wall) -> Option<User> {
    let (id, secret) = parse(token)?;
    let found =
        objects.find(places::SECRETS, "kube-system", &format!("bootstrap-token-{id}")).await.ok()??;
    user_of(&found.object, id, secret, now)
}

/// Six and sixteen lower-case letters and digits.
fn parse(token: &str) -> Option<(&str, &str)> {
    let (id, secret) = token.split_once('.')?;
    let plain =
        |s: &str, n: usize| s.len() == n && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    (plain(id, 6) && plain(secret, 16)).then_some((id, secret))
}

fn user_of(object: &Value, id: &str, secret: &str, now: Wall) -> Option<User> {
    let data = |key: &str| {
        let encoded = object["data"][key].as_str()?;
        STANDARD.decode(encoded).ok()
    };
    let text = |key: &str| data(key).and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    if doc::text(object, "type") != TYPE || !object["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    verify_slices_are_equal(&data("token-secret")?, secret.as_bytes()).ok()?;
    if text("token-id") != id || text("usage-bootstrap-authentication") != "true" {
        return None;
    }
    let expiration = text("expiration");
    if !expiration.is_empty() {
        // A time that cannot be read has passed.
        let until = Moment::parse_lenient(&expiration)?;
        if until.secs < now.secs() {
            return None;
        }
    }
    let mut user = User::new(&format!("system:bootstrap:{id}"), &[groups::BOOTSTRAPPERS]);
    for group in text("auth-extra-groups").split(',').map(str::trim).filter(|g| !g.is_empty()) {
        if !is_bootstrap_group(group) {
            return None;
        }
        user.groups.push(group.to_owned());
    }
    Some(user)
}

/// A token gives membership in groups made for tokens, and in no others.
fn is_bootstrap_group(group: &str) -> bool {
    let Some(rest) = group.strip_prefix("system:bootstrappers:") else { return false };
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b':' || b == b'-';
    (1..=256).contains(&rest.len()) && rest.bytes().all(inner) && !rest.ends_with([':', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Wall = Wall(1_800_000_000_000_000_000);

    fn secret(changes: &[(&str, &str)]) -> Value {
        let mut object = json!({"type": TYPE, "metadata": {"name": "bootstrap-token-abcdef"}, "data": {}});
        let usual = [
            ("token-id", "abcdef"),
            ("token-secret", "0123456789abcdef"),
            ("usage-bootstrap-authentication", "true"),
            ("expiration", "2030-01-01T00:00:00Z"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token"),
        ];
        for (key, value) in usual.iter().chain(changes) {
            object["data"][key] = STANDARD.encode(value).into();
        }
        object
    }

    #[test]
    fn a_token_is_good_while_its_secret_says_so() {
        let user = |object: &Value| user_of(object, "abcdef", "0123456789abcdef", NOW);
        let found = user(&secret(&[])).map(|u| (u.name, u.groups.len()));
        assert_eq!(found, Some(("system:bootstrap:abcdef".to_owned(), 2)));
        for change in [
            ("token-secret", "0123456789abcdeg"),
            ("token-id", "abcdeg"),
            ("usage-bootstrap-authentication", "false"),
            ("expiration", "2020-01-01T00:00:00Z"),
            ("expiration", "tomorrow"),
            ("auth-extra-groups", "system:masters"),
            ("auth-extra-groups", "system:bootstrappers:"),
        ] {
            assert_eq!(user(&secret(&[change])), None, "{change:?}");
        }
        let mut other = secret(&[]);
        other["type"] = "Opaque".into();
        assert_eq!(user(&other), None);
        let mut leaving = secret(&[]);
        leaving["metadata"]["deletionTimestamp"] = "2027-01-01T00:00:00Z".into();
        assert_eq!(user(&leaving), None);
    }

    #[test]
    fn only_the_known_shape_is_a_token() {
        assert_eq!(parse("abcdef.0123456789abcdef"), Some(("abcdef", "0123456789abcdef")));
        for bad in ["abcdef", "abcde.0123456789abcdef", "ABCDEF.0123456789abcdef", "../../.0123456789abcdef"]
        {
            assert_eq!(parse(bad), None);
        }
    }
}
