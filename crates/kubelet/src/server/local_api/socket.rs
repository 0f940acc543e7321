//! The socket: made so that nobody but root ever could connect, and bounded.

use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::Router;
use base::class::{Class, Classify};
use hyper_util::service::TowerToHyperService;
use serve::{Connections, Http1, Plan, Stream};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

/// What the kernel has room for, less the zero at the end.
const PATH_MAX: usize = 107;
/// Whoever may come may pause: a log or a shell may be held by a person.
const HOW: Http1 = Http1 {
    head: 256 * 1024,
    idle: Duration::from_secs(90),
    body: Duration::from_secs(60),
    stall: serve::Limit::NEVER,
};

#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    #[error("listen on {}: {error}", .path.display())]
    Bind { path: PathBuf, error: io::Error },
    #[error(
        "listen on {}: the path of a socket may have {PATH_MAX} bytes and this one needs {needs}; \
         a shorter --root-dir helps", .path.display()
    )]
    TooLong { path: PathBuf, needs: usize },
    #[error("listen on {}: another kubelet is listening there", .path.display())]
    Taken { path: PathBuf },
}

impl Classify for SocketError {
    fn class(&self) -> Class {
        Class::Fault
    }
}

/// Binds beside the final path, closes the mode, and only then moves it there.
pub(super) fn bind(path: &Path) -> Result<UnixListener, SocketError> {
    let failed = |error| SocketError::Bind { path: path.to_owned(), error };
    let early = path.with_extension(format!("{}", std::process::id()));
    let needs = early.as_os_str().len().max(path.as_os_str().len());
    if needs > PATH_MAX {
        return Err(SocketError::TooLong { path: path.to_owned(), needs });
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(SocketError::Taken { path: path.to_owned() });
    }
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(failed)?;
    }
    let _ = std::fs::remove_file(&early);
    let listener = UnixListener::bind(&early).map_err(failed)?;
    std::fs::set_permissions(&early, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
    std::fs::rename(&early, path).map_err(failed)?;
    Ok(listener)
}

pub(super) fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Serves until the token is cancelled; open connections end with it.
pub(super) async fn serve(
    listener: UnixListener,
    router: Router,
    connections: Connections,
    token: CancellationToken,
) {
    let converse = move |stream: Stream<UnixStream>, connection| {
        let router = router.clone();
        async move {
            if !is_trusted(stream.get_ref()) {
                return tracing::warn!("refused a local connection from another user");
            }
            serve::converse(HOW, stream, connection, TowerToHyperService::new(router)).await;
        }
    };
    serve::run(listener, connections, Plan::default(), token, converse).await;
}

/// The mode already keeps others out; this holds even if somebody widens it.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid().as_raw();
    stream.peer_cred().is_ok_and(|peer| peer.uid() == 0 || peer.uid() == own)
}
