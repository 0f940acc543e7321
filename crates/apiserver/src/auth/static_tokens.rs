//! `--token-auth-file`: lines of token, user, uid and optional groups.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{SHA256, digest};

use apiserver_core::request::User;

/// Users by the digest of their token: looking a digest up tells nothing about how near a guess was.
#[derive(Clone, Default)]
pub struct StaticTokens(HashMap<[u8; 32], User>);

#[derive(Debug, thiserror::Error)]
pub enum StaticTokensError {
    #[error("reading the token file {path}: {cause}")]
    File { path: PathBuf, cause: std::io::Error },
    #[error("token file {path}, line {line}: expected at least 3 columns (token, user name, user uid)")]
    Columns { path: PathBuf, line: usize },
    #[error("token file {path}, line {line}: the token is empty")]
    Empty { path: PathBuf, line: usize },
}

// === impl StaticTokens ===

impl std::fmt::Debug for StaticTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StaticTokens({})", self.0.len())
    }
}

impl StaticTokens {
    pub fn read(path: &Path) -> Result<StaticTokens, StaticTokensError> {
        let text = std::fs::read_to_string(path)
            .map_err(|cause| StaticTokensError::File { path: path.to_owned(), cause })?;
        let mut out = HashMap::new();
        for (index, row) in text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty()) {
            let (path, line) = (path.to_owned(), index + 1);
            let columns = columns(row);
            let [token, name, uid, rest @ ..] = columns.as_slice() else {
                return Err(StaticTokensError::Columns { path, line });
            };
            if token.is_empty() {
                return Err(StaticTokensError::Empty { path, line });
            }
            let groups = rest.first().map(String::as_str).unwrap_or_default();
            let groups = groups.split(',').filter(|g| !g.is_empty()).map(str::to_owned).collect();
            let user = User { name: name.clone(), uid: uid.clone(), groups, ..User::default() };
            out.insert(key(token), user);
        }
        Ok(StaticTokens(out))
    }

    pub(super) fn authenticate(&self, token: &str) -> Option<User> {
        self.0.get(&key(token)).cloned()
    }
}

fn key(token: &str) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest(&SHA256, token.as_bytes()).as_ref());
    out
}

/// Comma-separated values; quotes keep commas, and a doubled quote is one.
fn columns(row: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let (mut quoted, mut chars) = (false, row.trim_end_matches('\r').chars().peekable());
    while let Some(c) = chars.next() {
        let Some(last) = out.last_mut() else { break };
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                last.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => out.push(String::new()),
            ' ' if !quoted && last.is_empty() => {}
            c => last.push(c),
        }
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_users() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.csv");
        std::fs::write(&path, "t1,jane,7\n\nt2,bob,8,\"dev,ops\"\n").unwrap();
        let tokens = StaticTokens::read(&path).unwrap();
        assert_eq!(tokens.authenticate("t1").unwrap().name, "jane");
        assert_eq!(tokens.authenticate("t2").unwrap().groups, ["dev", "ops"]);
        assert_eq!(tokens.authenticate("t3"), None);
        for bad in ["t1,jane", ",jane,7"] {
            std::fs::write(&path, bad).unwrap();
            assert!(StaticTokens::read(&path).is_err());
        }
        assert_eq!(columns(r#"a,"b ""c"", d",e"#), ["a", "b \"c\", d", "e"]);
    }
}
