//! Who pulls.

use std::fmt;

use base64::Engine;

/// A login for a registry, as CRI carries it; printed without its secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Login {
    pub username: String,
    pub password: String,
    /// Exchanged for a token at the registry's token server.
    pub identity_token: String,
    /// Sent as it is.
    pub registry_token: String,
}

// === impl Login ===

impl Login {
    /// From `user:password` in base64, as `auth` of a Docker configuration has it. None if it is not that.
    #[must_use]
    pub fn from_auth(auth: &str) -> Option<Login> {
        let bytes = base64::engine::general_purpose::STANDARD.decode(auth.trim()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        // Some clients fill the field up with NULs.
        let (username, password) = text.trim_end_matches('\0').split_once(':')?;
        Some(Login { username: username.to_owned(), password: password.to_owned(), ..Login::default() })
    }

    pub(crate) fn basic(&self) -> Option<String> {
        let has = !self.username.is_empty() || !self.password.is_empty();
        let text = format!("{}:{}", self.username, self.password);
        has.then(|| format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(text)))
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("username", &self.username).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_auth_field_is_a_name_and_a_password() {
        let login = Login::from_auth("YW5uOnM6ZWNyZXQ=");
        assert_eq!(login.map(|l| (l.username, l.password)), Some(("ann".into(), "s:ecret".into())));
        assert_eq!(Login::from_auth("YW5u"), None);
        assert_eq!(Login::from_auth("%"), None);
    }

    #[test]
    fn a_login_is_printed_without_its_secrets() {
        let login = Login { username: "ann".into(), password: "s3cret".into(), ..Login::default() };
        assert_eq!(format!("{login:?}"), r#"Login { username: "ann", .. }"#);
    }
}
