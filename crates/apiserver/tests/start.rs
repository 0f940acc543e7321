//! Starting on a data directory that somebody else has, or is about to have.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use apiserver::run::{RunError, Settings, Up, run};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use store::OpenError;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// Starts a server; its address once it serves, or why it does not.
async fn start(dir: &Path, token: CancellationToken) -> Result<Up, RunError> {
    let (up, told) = oneshot::channel();
    let running = tokio::spawn(run(Settings::for_tests(dir), move |it| drop(up.send(it.clone())), token));
    match told.await {
        Ok(up) => Ok(up),
        Err(_) => Err(running.await.unwrap().unwrap_err()),
    }
}

/// Everything but the store's own files, which the server that has them writes all the time.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let read = |dir: &Path| {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let files = entries.filter(|path| path.is_file()).collect::<Vec<_>>();
        files.into_iter().map(|path| (path.to_string_lossy().into_owned(), std::fs::read(&path).unwrap()))
    };
    let all = read(dir).chain(read(&dir.join("pki")));
    all.filter(|(path, _)| !path.contains("store.")).collect()
}

/// Whether the authority in the directory vouches for who answers.
async fn is_believed(dir: &Path, address: SocketAddr) -> bool {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("pki/ca.crt")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
}

#[tokio::test]
async fn a_second_server_changes_nothing_in_a_directory_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let token = CancellationToken::new();
    let up = start(dir.path(), token.clone()).await.unwrap();
    let before = files(dir.path());
    assert!(before.keys().any(|path| path.ends_with("admin.kubeconfig")), "{:?}", before.keys());
    // At another address: certificate and kubeconfig would say so.
    let refused = start(dir.path(), token.clone()).await.unwrap_err();
    assert!(matches!(refused, RunError::Store(OpenError::Locked { .. })), "{refused}");
    assert!(files(dir.path()) == before, "the refused server wrote");
    assert!(is_believed(dir.path(), up.address).await);
    token.cancel();
}

#[tokio::test]
async fn of_two_first_starts_at_once_one_serves_and_its_authority_vouches_for_it() {
    for _ in 0..3 {
        let dir = tempfile::tempdir().unwrap();
        let token = CancellationToken::new();
        let both = tokio::join!(start(dir.path(), token.clone()), start(dir.path(), token.clone()));
        let (up, refused) = match both {
            (Ok(up), Err(refused)) | (Err(refused), Ok(up)) => (up, refused),
            other => panic!("{other:?}"),
        };
        assert!(matches!(refused, RunError::Store(OpenError::Locked { .. })), "{refused}");
        assert!(is_believed(dir.path(), up.address).await);
        token.cancel();
    }
}
