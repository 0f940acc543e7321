//! Credentials never reach a log: their `Debug` shows which fields are set, not what they hold.

use std::fmt;

use crate::v1::AuthConfig;

impl fmt::Debug for AuthConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mask = |s: &str| if s.is_empty() { "" } else { "***" };
        f.debug_struct("AuthConfig")
            .field("username", &mask(&self.username))
            .field("password", &mask(&self.password))
            .field("auth", &mask(&self.auth))
            .field("server_address", &self.server_address)
            .field("identity_token", &mask(&self.identity_token))
            .field("registry_token", &mask(&self.registry_token))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use crate::v1::{AuthConfig, PullImageRequest};

    #[test]
    fn a_pull_request_prints_without_its_secrets() {
        let auth = AuthConfig {
            username: "hunter".into(),
            password: "hunter2".into(),
            server_address: "registry.example".into(),
            ..AuthConfig::default()
        };
        let text = format!("{:?}", PullImageRequest { auth: Some(auth), ..PullImageRequest::default() });
        assert!(!text.contains("hunter"), "{text}");
        assert!(text.contains("registry.example") && text.contains("***"), "{text}");
    }
}
