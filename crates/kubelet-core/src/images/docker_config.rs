//! Credential files in Docker's two formats.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

/// A user name and a password; printed without either.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub username: String,
    pub password: String,
    pub email: String,
}

/// Logins by registry, as the file names it.
pub type Logins = BTreeMap<String, Login>;

/// A file that is not what it should be. It says nothing of the content, which is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid docker configuration")]
pub struct BadDockerConfig;

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    email: String,
    #[serde(default)]
    auth: String,
}

/// Reads `config.json`: logins under `auths`. Credential helpers are the user's, not the node's, and
/// are left alone.
pub fn read_config_json(bytes: &[u8]) -> Result<Logins, BadDockerConfig> {
    let mut config: Map<String, Value> = serde_json::from_slice(bytes).map_err(|_| BadDockerConfig)?;
    match config.remove("auths") {
        None | Some(Value::Null) => Ok(Logins::new()),
        Some(auths) => logins(serde_json::from_value(auths).map_err(|_| BadDockerConfig)?),
    }
}

/// Reads `.dockercfg`: logins at the top.
pub fn read_dockercfg(bytes: &[u8]) -> Result<Logins, BadDockerConfig> {
    logins(serde_json::from_slice(bytes).map_err(|_| BadDockerConfig)?)
}

fn logins(entries: BTreeMap<String, Entry>) -> Result<Logins, BadDockerConfig> {
    let login = |(registry, entry): (String, Entry)| {
        let (username, password) = match entry.auth.as_str() {
            "" => (entry.username, entry.password),
            auth => split_auth(auth).ok_or(BadDockerConfig)?,
        };
        Ok((registry, Login { username, password, email: entry.email }))
    };
    entries.into_iter().map(login).collect()
}

/// `base64(user:password)`, padded or not.
fn split_auth(auth: &str) -> Option<(String, String)> {
    let text = String::from_utf8(decode_base64(auth)?).ok()?;
    let (username, password) = text.split_once(':')?;
    Some((username.to_owned(), password.to_owned()))
}

pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    // Line breaks inside are allowed, as Go's decoder allows them.
    let text: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\n' | b'\r')).collect();
    let digits = text.iter().rposition(|b| *b != b'=').map_or(0, |i| i + 1);
    let padding = text.len() - digits;
    if padding > 0 && (padding > 2 || !text.len().is_multiple_of(4)) || digits % 4 == 1 {
        return None;
    }
    let mut out = Vec::with_capacity(digits * 3 / 4);
    let (mut buffer, mut bits) = (0u32, 0);
    for byte in &text[..digits] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        buffer = buffer << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            out.push((buffer >> bits) as u8);
        }
    }
    Some(out)
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(username: &str, password: &str) -> Login {
        Login { username: username.into(), password: password.into(), email: String::new() }
    }

    #[test]
    fn both_formats_and_every_way_to_write_a_login() {
        let auths = br#"{"a.io": {"auth": "bWU6cDp3"}, "b.io": {"auth": "bWU6cHdk"},
            "c.io": {"username": "me", "password": "pw"}, "d.io": {"auth": "bWU6cHc=", "username": "other"}}"#;
        let expected: Logins = [
            ("a.io", login("me", "p:w")),
            ("b.io", login("me", "pwd")),
            ("c.io", login("me", "pw")),
            ("d.io", login("me", "pw")),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into();
        assert_eq!(read_dockercfg(auths), Ok(expected.clone()));
        let nested =
            [br#"{"credHelpers": {"x.io": "ecr"}, "credsStore": "pass", "auths": "#.as_slice(), auths, b"}"]
                .concat();
        assert_eq!(read_config_json(&nested), Ok(expected));
        assert_eq!(read_config_json(b"{}"), Ok(Logins::new()));
        assert!(!format!("{:?}", login("me", "pw")).contains("pw"));
    }

    #[test]
    fn broken_files_are_refused_without_a_word_of_their_content() {
        for text in [
            "",
            "[]",
            r#"{"auths": []}"#,
            r#"{"auths": {"a": {"auth": "%"}}}"#,
            r#"{"auths": {"a": {"auth": "bWU="}}}"#,
        ] {
            assert_eq!(read_config_json(text.as_bytes()), Err(BadDockerConfig), "{text}");
        }
    }

    #[test]
    fn base64() {
        for (text, bytes) in
            [("", ""), ("Zg==", "f"), ("Zg", "f"), ("Zm8=", "fo"), ("Zm8", "fo"), ("Zm9v", "foo")]
        {
            assert_eq!(decode_base64(text).as_deref(), Some(bytes.as_bytes()), "{text}");
        }
        for text in ["Z", "Zg=", "Z===", "Zm8==", "====", "Zm9vA", "a b"] {
            assert_eq!(decode_base64(text), None, "{text}");
        }
    }
}
