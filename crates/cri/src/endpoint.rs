//! Where a runtime listens.

use std::fmt;
use std::path::{Path, PathBuf};

/// A unix socket, by path or (with a leading `@`) by abstract name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

/// An endpoint that is no unix socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("container runtime endpoint {0:?}: want unix:///path/to/socket")]
pub struct BadEndpoint(pub String);

// === impl Endpoint ===

impl Endpoint {
    /// Reads `unix:///path`, `unix://@name` or a bare absolute path.
    pub fn parse(text: &str) -> Result<Self, BadEndpoint> {
        let path = text.strip_prefix("unix://").unwrap_or(text);
        match path.as_bytes() {
            [b'/' | b'@', _, ..] if !path.contains('\0') => Ok(Self(path.into())),
            _ => Err(BadEndpoint(text.to_owned())),
        }
    }

    /// What connect(2) wants; an abstract name begins with a zero byte there.
    pub(crate) fn address(&self) -> PathBuf {
        match self.0.to_str().and_then(|p| p.strip_prefix('@')) {
            Some(name) => PathBuf::from(format!("\0{name}")),
            None => self.0.clone(),
        }
    }
}

impl From<&Path> for Endpoint {
    fn from(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let good = [
            ("unix:///run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
            ("/run/crio/crio.sock", "/run/crio/crio.sock"),
            ("unix://@runtime", "\0runtime"),
        ];
        for (text, address) in good {
            assert_eq!(Endpoint::parse(text).map(|e| e.address()), Ok(PathBuf::from(address)), "{text}");
        }
        for text in ["", "/", "unix://", "unix://run/x.sock", "tcp://127.0.0.1:1", "npipe:////./pipe/x", "@"]
        {
            assert_eq!(Endpoint::parse(text), Err(BadEndpoint(text.into())), "{text}");
        }
    }
}
